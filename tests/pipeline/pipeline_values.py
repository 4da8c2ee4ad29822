"""Journals for the pipeline, and the rows that the plain reader of journals finds in them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import unit.journal.journal_values as values
from fairtape.core.effects import FormationChange, Ordered, Release, Span
from fairtape.core.entries import HEAD_SIZE
from fairtape.core.entries import Entry as Content
from fairtape.journal import JournalMessage, JournalReader, JournalWriter, SyncPolicy
from fairtape.journal.format import encode_release
from fairtape.journal.segments import Segment, SegmentReplay
from fairtape.market.trades import PublishedTrade, encode
from fairtape.pipeline.source.journal_rows import batches
from fairtape.pipeline.source.options import JournalSourceOptions
from fairtape.pipeline.source.partitions import OffsetRange, Partitions
from fairtape.wire.blocks import pack_messages

SYMBOLS = ("ABC", "DEF", "GHIJ", "A")
FAR = (1 << 62) + 12_345  # beyond what a double can count


def trade(number: int) -> PublishedTrade:
    """The trade with this number: no field of it survives a detour through a float or a microsecond."""
    price = (1 if number % 2 else -1) * (FAR + number)
    return PublishedTrade(
        1 + number % 3,
        SYMBOLS[number % 4],
        price,
        FAR - number,
        values.STARTS_AT + number,
        (1 << 64) - number,
        number % 4,
    )


def token(number: int, first: int, count: int, *, stripe: int = 0, formation: int = 1) -> Ordered:
    """One token of trades of one source, in blocks of at most seven."""
    payloads = [encode(trade(sequence)) for sequence in range(first, first + count)]
    blocks = [payloads[at : at + 7] for at in range(0, count, 7)]
    bodies, counts = tuple(map(pack_messages, blocks)), tuple(map(len, blocks))
    span = Span(101, 7, first, count, first, bodies, counts)
    return Ordered(stripe, formation, number, first, count, values.token_at(number), (span,))


def tokens(count: int, *, size: int = 10, first: int = 1, stripe: int = 0) -> list[Ordered]:
    """Tokens that follow one another, from the token and the number after those before `first`."""
    start = (first - 1) // size
    return [token(start + at + 1, first + at * size, size, stripe=stripe) for at in range(count)]


def append(
    directory: Path,
    history: Sequence[Content],
    *,
    stripe: int = 0,
    site: int = 1,
    size_max: int = 8 << 10,
    keep: int = 0,
    sync: SyncPolicy = SyncPolicy.NEVER,
) -> None:
    """Add to a journal, with all release marks but those of the last `keep` tokens."""
    with JournalWriter.open(directory, stripe=stripe, site=site, sync=sync, segment_size_max=size_max) as writer:
        for entry in history:
            values.append_entry(writer, entry)
        messages = values.messages_of(history)
        for ordered in messages[: len(messages) - keep]:
            values.mark(writer, ordered)


def equal_journals(folder: Path, history: Sequence[Content], *, size_max: int = 4 << 10) -> tuple[Path, Path]:
    """The journals of sites 1 and 2, cut into segments at the same places."""
    for site in (1, 2):
        append(folder / f"s{site}", history, site=site, size_max=size_max, sync=SyncPolicy.TOKEN)
    return folder / "s1", folder / "s2"


def swap(one: Path, other: Path, place: int) -> tuple[Path, Path]:
    """Exchange the segments at this place of two journals that hold the same order."""
    mine, theirs = values.segments(one)[place], values.segments(other)[place]
    assert mine.name == theirs.name
    content = mine.read_bytes()
    mine.write_bytes(theirs.read_bytes())
    theirs.write_bytes(content)
    return mine, theirs


def flip(path: Path, at: int) -> None:
    """Alter one bit of the byte at this place."""
    octets = bytearray(path.read_bytes())
    octets[at] ^= 1
    path.write_bytes(octets)


def marks_in(path: Path) -> list[tuple[int, Release]]:
    """The release marks of a segment, with their bytes."""
    with Segment(path) as segment:
        return [(offset, record) for offset, record in SegmentReplay(segment) if isinstance(record, Release)]


def alter_mark(path: Path, offset: int, mark: Release) -> None:
    """Write another mark there, with a CRC that fits it and the digest that stood there."""
    octets = bytearray(path.read_bytes())
    octets[offset : offset + HEAD_SIZE] = encode_release(mark)
    path.write_bytes(octets)


def expected_rows(directory: Path, **ranges: Any) -> list[tuple[Any, ...]]:
    """The reference: kind, formation, token, number, source and its number, times, payload of all released messages."""
    found: list[tuple[Any, ...]] = []
    marks = _marks(directory)
    for each in JournalReader.open(directory).messages_and_formations(**ranges):
        if isinstance(each, FormationChange):
            kind = "break" if each.broken else "formation"
            found.append((kind, each.token, each.sequence, None, None, each.installed_at, None, each.layout))
        elif isinstance(each, JournalMessage):
            numbers = each.token, each.sequence, each.source, each.number
            found.append(("message", *numbers, each.acknowledged_at, marks[each.token].released_at, each.payload))
    return found


def _marks(directory: Path) -> dict[int, Release]:
    with JournalReader.open(directory).entries() as cursor:
        return {entry.ordered.token: entry.release for entry in cursor if entry.release is not None}


def offset_ranges(options: JournalSourceOptions, rows_max: int = 1 << 20) -> Iterator[OffsetRange]:
    """The offset ranges that tasks would read, cut after `rows_max` rows."""
    partitions = Partitions(options)
    start = partitions.start()
    end = partitions.latest(start)
    for name, mark in end.items():
        yield from partitions.partitions()[name].offset_ranges(start[name], mark, rows_max=rows_max)


def rows(options: JournalSourceOptions, rows_max: int = 1 << 20) -> list[dict[str, Any]]:
    """All rows that the source would give, in order."""
    return [
        row
        for offset_range in offset_ranges(options, rows_max)
        for batch in batches(offset_range, options)
        for row in batch.to_pylist()
    ]


def as_expected(row: dict[str, Any]) -> tuple[Any, ...]:
    """A row of messages in the form of `expected_rows`."""
    names = ("kind", "token", "sequence", "source", "source_number", "acknowledged_at_ns", "released_at_ns", "payload")
    return tuple(row[name] for name in names)
