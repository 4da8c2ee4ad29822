"""Reading: what is released, what is ordered, from any number and any time, while it is being written."""

import os
import random
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairtape.core.effects import FetchChunks, FormationChange, Ordered, Span
from fairtape.core.entries import Entry, EntryChunk, Extract, Position, decode_entry, encode_entry, position_of
from fairtape.core.errors import UserError
from fairtape.journal import Damaged, History, JournalMessage, JournalReader, JournalWriter, SyncPolicy, verify
from fairtape.journal.reader import SKIPPED_MAX, VERIFIED_MAX
from fairtape.simulation.simulated_journal import SimulatedJournal
from fairtape.wire.blocks import Assembler, split_message, unpack_messages
from unit.journal import journal_values as values

ENTRIES = values.first(200)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal")
    values.write(path, ENTRIES)
    return path


def plain_messages(entries: list[Ordered]) -> list[tuple[int, int, int, bytes]]:
    """A simple reference of `JournalReader.messages`: sequence, source, number, payload."""
    assemblers: dict[int, Assembler] = {}
    found = []
    for span in chain.from_iterable(ordered.spans for ordered in entries):
        sequence = span.sequence
        for position, (body, count) in enumerate(zip(span.bodies, span.counts, strict=True)):
            if span.fragments and span.fragments[position]:
                whole = assemblers.setdefault(span.source, Assembler()).add(body)
                payloads = [] if whole is None else [whole]
            else:
                payloads = unpack_messages(body, count)
            for index, payload in enumerate(payloads):
                number = span.first + sequence + index - span.sequence
                found.append((sequence + index, span.source, number, payload))
            sequence += count
    return found


def plainly(message: JournalMessage) -> tuple[int, int, int, bytes]:
    return message.sequence, message.source, message.number, message.payload


def test_every_entry_is_read_with_its_release(directory: Path) -> None:
    with JournalReader.open(directory).entries() as cursor:
        found = list(cursor)
    assert [entry.ordered for entry in found] == ENTRIES
    assert [entry.release for entry in found] == [
        values.released(ordered, late=ordered.token % 5 == 0) for ordered in ENTRIES
    ]


def test_every_message_is_read_and_long_ones_are_reassembled(directory: Path) -> None:
    messages = list(JournalReader.open(directory).messages())
    assert list(map(plainly, messages)) == plain_messages(ENTRIES)
    assert any(len(message.payload) == 100 for message in messages)
    for message in messages:
        assert message.acknowledged_at == values.token_at(message.token)
        assert message.commit_at == message.acknowledged_at + values.COMMIT_DELAY
        assert message.released_at == message.commit_at + 7
        assert message.late == (message.token % 5 == 0)


def test_reading_from_any_number_returns_exactly_the_rest(directory: Path) -> None:
    """Also from the middle of a long message."""
    journal = JournalReader.open(directory)
    whole = plain_messages(ENTRIES)
    last = whole[-1][0]
    for sequence in [1, last, last + 1, *random.Random(5).sample(range(1, last), 150)]:
        rest = [message for message in whole if message[0] >= sequence]
        assert list(map(plainly, journal.messages(from_sequence=sequence, to_sequence=sequence + 30))) == [
            message for message in rest if message[0] <= sequence + 30
        ]


def test_a_long_message_may_be_spread_over_many_entries(tmp_path: Path) -> None:
    entries = spread_message(40)
    values.write(tmp_path, entries)
    journal = JournalReader.open(tmp_path)
    for sequence in (1, 2, 20, 40):
        [message] = journal.messages(from_sequence=sequence)
        assert (message.sequence, message.number, len(message.payload)) == (40, 40, 40 * 32)
    assert list(journal.messages(to_sequence=39)) == []


def spread_message(count: int) -> list[Ordered]:
    bodies = list(split_message(bytes(range(32)) * count, values.FRAGMENT_SPACE))
    assert len(bodies) == count
    return [
        Ordered(values.STRIPE, 1, at, at, 1, values.token_at(at), (Span(1, 5, at, 1, at, (body,), (1,), (True,)),))
        for at, body in enumerate(bodies, 1)
    ]


def test_a_cursor_starts_at_the_entry_with_the_number(directory: Path) -> None:
    journal = JournalReader.open(directory)
    for ordered in ENTRIES:
        for sequence in (ordered.sequence, ordered.sequence + ordered.count - 1):
            with journal.entries(from_sequence=sequence) as cursor:
                assert next(iter(cursor)).ordered == ordered


def test_a_time_finds_the_first_entry_acknowledged_then_or_later(directory: Path) -> None:
    journal = JournalReader.open(directory)
    for ordered in ENTRIES:
        with journal.entries(since=ordered.acknowledged_at) as cursor:
            assert next(iter(cursor)).ordered == ordered
    with journal.entries(since=0) as cursor:
        assert next(iter(cursor)).ordered == ENTRIES[0]
    with journal.entries(since=ENTRIES[-1].acknowledged_at + 1) as cursor:
        assert list(cursor) == []


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(times=st.lists(st.integers(0, 50), min_size=60, max_size=60), wanted=st.integers(0, 51))
def test_reading_since_a_time_is_correct_even_where_clocks_disagree(
    times: list[int], wanted: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """RMP's acknowledgments have the times of their token sites' clocks, which may disagree."""
    path = tmp_path_factory.mktemp("times")
    entries = [replace(ordered, acknowledged_at=at) for ordered, at in zip(ENTRIES, times, strict=False)]
    values.write(path, entries)
    expected = next((ordered for ordered in entries if ordered.acknowledged_at >= wanted), None)
    with JournalReader.open(path).entries(since=wanted) as cursor:
        found = next(iter(cursor), None)
    assert (found and found.ordered) == expected


def test_only_released_entries_are_read_unless_everything_is_requested(tmp_path: Path) -> None:
    entries = values.first(10)
    with JournalWriter.open(tmp_path, stripe=values.STRIPE, site=values.SITE, sync=SyncPolicy.NEVER) as writer:
        for ordered in entries:
            writer.append(ordered, 0)
        for ordered in entries[:4]:
            values.mark(writer, ordered)
    journal = JournalReader.open(tmp_path)
    with journal.entries() as cursor:
        assert [entry.ordered for entry in cursor] == entries[:4]
    with journal.entries(ordered=True) as cursor:
        assert [(entry.ordered, entry.release is not None) for entry in cursor] == [
            (ordered, position < 4) for position, ordered in enumerate(entries)
        ]
    assert {message.released_at is None for message in journal.messages(ordered=True)} == {False, True}


@pytest.mark.parametrize("ordered", [False, True])
def test_a_cursor_follows_the_writer_from_the_very_beginning(tmp_path: Path, ordered: bool) -> None:
    journal = JournalReader.open(tmp_path)
    seen: list[Ordered] = []
    entries = ENTRIES[:120]
    with (
        JournalWriter.open(
            tmp_path, stripe=values.STRIPE, site=values.SITE, sync=SyncPolicy.NEVER, segment_size_max=4 << 10
        ) as writer,
        journal.entries(ordered=ordered) as cursor,
    ):
        assert list(cursor) == []
        for position, written in enumerate(entries):
            writer.append(written, 0)
            if position >= 3:
                values.mark(writer, entries[position - 3])
            if position % 4:
                seen += [entry.ordered for entry in cursor]
                assert seen == entries[: position + 1 if ordered else max(position - 2, 0)]
    assert len(values.segments(tmp_path)) > 3


def test_a_cursor_sees_an_entry_only_when_it_is_whole(tmp_path: Path) -> None:
    entries = values.first(3, size_max=10)
    values.write(tmp_path / "whole", entries, behind=0)
    (segment,) = values.segments(tmp_path / "whole")
    growing = tmp_path / "growing"
    growing.mkdir()
    seen: list[Ordered] = []
    with JournalReader.open(growing).entries() as cursor, (growing / segment.name).open("wb", buffering=0) as file:
        for byte in segment.read_bytes():
            file.write(bytes([byte]))
            seen += [entry.ordered for entry in cursor]
            assert seen == entries[: len(seen)]
    assert seen == entries


def test_an_empty_directory_is_an_empty_journal(tmp_path: Path) -> None:
    journal = JournalReader.open(tmp_path)
    assert list(journal.messages()) == []
    assert list(journal.summaries()) == []
    assert verify(tmp_path).sound


def test_a_missing_directory_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        JournalReader.open(tmp_path / "nowhere")


def test_a_missing_segment_is_never_skipped_silently(directory: Path, tmp_path: Path) -> None:
    holed = values.copy(directory, tmp_path / "holed")
    values.segments(holed)[2].unlink()
    with pytest.raises(Damaged, match="what follows is missing up to sequence"):
        list(JournalReader.open(holed).messages())


def test_damage_is_named_by_file_byte_and_sequence_number(directory: Path, tmp_path: Path) -> None:
    damaged = values.copy(directory, tmp_path / "damaged")
    file = values.segments(damaged)[1]
    with JournalReader.open(damaged).entries(from_sequence=int(file.stem)) as cursor:
        entries = iter(cursor)
        next(entries)
        second = next(entries)
    content = bytearray(file.read_bytes())
    content[second.offset + 100] ^= 1
    file.write_bytes(content)
    with pytest.raises(Damaged) as caught:
        list(JournalReader.open(damaged).messages())
    assert (caught.value.path, caught.value.offset) == (file, second.offset)
    assert caught.value.sequence == second.ordered.sequence
    assert all(str(part) in str(caught.value) for part in (file, second.offset, second.ordered.sequence))


def read_everything(directory: Path) -> None:
    """All ways of reading; only `Damaged` may be raised."""
    journal = JournalReader.open(directory)
    for ordered in (False, True):
        for way in (
            lambda ordered=ordered: list(journal.messages(ordered=ordered)),
            lambda ordered=ordered: list(journal.entries(from_sequence=7, ordered=ordered)),
            lambda ordered=ordered: list(journal.entries(since=values.token_at(9), ordered=ordered)),
            lambda: list(journal.summaries()),
            lambda: verify(directory),
        ):
            with suppress(Damaged):
                way()


@settings(max_examples=150)
@given(contents=st.lists(st.binary(max_size=400), min_size=1, max_size=3))
def test_garbage_files_raise_nothing_but_damaged(
    contents: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("garbage")
    for position, content in enumerate(contents):
        (path / f"{1 + 100 * position:019d}.segment").write_bytes(content)
    read_everything(path)


@settings(max_examples=100)
@given(data=st.data())
def test_a_journal_with_garbage_written_over_it_raises_nothing_but_damaged(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("garbled")
    values.write(path, ENTRIES[:25])
    file = data.draw(st.sampled_from(values.segments(path)))
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content)))
    garbage = data.draw(st.binary(max_size=80))
    content[at : at + data.draw(st.integers(0, 80))] = garbage
    file.write_bytes(content)
    read_everything(path)


# Catching up from a journal in chunks: the same chain, while it grows and after it was truncated.

HISTORY = values.first_with_formations(120, seed=2)
ENCODED = list(map(encode_entry, HISTORY))


@pytest.fixture(scope="module")
def catchup_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history")
    values.write(path, HISTORY)
    return path


def end_of(chunk: list[bytes], before: Position) -> Position:
    return position_of(decode_entry(chunk[-1])) if chunk else before


def test_a_site_that_appends_every_chunk_has_the_same_chain(catchup_directory: Path, tmp_path: Path) -> None:
    for size_max in (1, 300, 5_000, 1 << 30):
        history, position = History(catchup_directory), Position(0, 0)
        caught_up = tmp_path / str(size_max)
        with values.open_writer(caught_up) as writer:
            while chunk := history.after(position.token, size_max, formation=position.formation):
                assert sum(map(len, chunk)) <= size_max or len(chunk) == 1
                for encoded in chunk:
                    values.append_entry(writer, decode_entry(encoded))
                position = end_of(chunk, position)
        assert verify(caught_up).digest == verify(catchup_directory).digest


@settings(max_examples=80)
@given(at=st.integers(0, len(HISTORY) - 1), size_max=st.integers(1, 4_000))
def test_from_any_position_exactly_the_following_entries_are_returned(
    at: int, size_max: int, catchup_directory: Path
) -> None:
    position = position_of(HISTORY[at])
    chunk = History(catchup_directory).after(position.token, size_max, formation=position.formation)
    assert chunk == ENCODED[at + 1 : at + 1 + len(chunk)]
    assert chunk or at == len(HISTORY) - 1
    following = at + 1 + len(chunk)
    if following < len(ENCODED):
        assert sum(map(len, chunk)) + len(ENCODED[following]) > size_max


@settings(max_examples=80)
@given(token=st.integers(0, HISTORY[-1].token + 1))
def test_without_a_formation_the_one_in_force_and_everything_with_a_later_token_are_returned(
    token: int, catchup_directory: Path
) -> None:
    start = next((at for at, entry in enumerate(HISTORY) if entry.token > token), len(HISTORY))
    changes = [at for at in range(start + 1) if at < len(HISTORY) and isinstance(HISTORY[at], FormationChange)]
    in_force = changes[-1:] if start < len(HISTORY) and changes[-1:] != [start] else []
    expected = [*map(ENCODED.__getitem__, in_force), *ENCODED[start:]]
    simulated = SimulatedJournal()
    for entry in HISTORY:
        simulated.append(entry)
    for size_max in (1, 1 << 30):
        found = History(catchup_directory).after(token, size_max)
        assert found == expected[: len(found)]
        assert len(found) == len(expected) or len(found) == len(in_force) + 1
        assert simulated.after(token, None, size_max) == found


def test_an_unknown_position_skips_nothing(catchup_directory: Path) -> None:
    """A site asks from an end that the survivors do not have: it gets the formation that took over."""
    at = next(at for at, entry in enumerate(HISTORY) if isinstance(entry, FormationChange) and entry.token > 20)
    change = HISTORY[at]
    chunk = History(catchup_directory).after(change.token + 1_000, 1 << 30, formation=change.formation - 1)
    assert chunk == ENCODED[at:]


def test_everything_appended_before_the_call_is_returned(tmp_path: Path) -> None:
    chance = random.Random(4)
    readers = [Position(0, 0)] * 5
    seen: list[list[bytes]] = [[] for _ in readers]
    history = History(tmp_path)
    assert history.after(0, 1_000) == []
    with values.open_writer(tmp_path) as writer:
        for count, entry in enumerate(HISTORY, 1):
            values.append_entry(writer, entry)
            if isinstance(entry, FormationChange) or count % 2:
                reader = chance.randrange(len(readers))
                position = readers[reader]
                while chunk := history.after(position.token, 2_000, formation=position.formation):
                    seen[reader] += chunk
                    position = end_of(chunk, position)
                readers[reader] = position
                assert seen[reader] == ENCODED[:count]
            elif entry.sequence == 1:
                values.mark(writer, entry)
    assert len(values.segments(tmp_path)) > 3


def test_a_remembered_place_does_not_survive_a_truncation(tmp_path: Path) -> None:
    """Not even where the journal has grown again to the same size."""
    entries: list[Entry] = list(values.tiny(20))
    history = History(tmp_path)
    with values.open_writer(tmp_path, segment_size_max=1 << 20) as writer:
        for entry in entries:
            values.append_entry(writer, entry)
        assert len(history.after(0, 1 << 20)) == 20
        assert history.after(20, 1 << 20, formation=1) == []
        writer.truncate_after(10)
        other = [replace(entry, acknowledged_at=entry.acknowledged_at + 1) for entry in values.tiny(20)[10:]]
        assert history.after(20, 1 << 20, formation=1) == []
        for ordered in other:
            writer.append(ordered, 0)
        assert history.after(10, 1 << 20, formation=1) == list(map(encode_entry, other))
        writer.truncate_after(15)
        writer.append_formation(values.formation_change(values.tiny(16)[15], 2), 0)
        (change,) = history.after(20, 1 << 20, formation=1)
        assert decode_entry(change) == values.formation_change(values.tiny(16)[15], 2)


def test_an_updated_index_finds_the_same_also_after_a_truncation(tmp_path: Path) -> None:
    start = next(at for at, entry in enumerate(HISTORY) if at > 20 and isinstance(entry, Ordered)) + 1
    history, cold = History(tmp_path), ENCODED[start:]
    history.update_index()
    token, formation = HISTORY[start - 1].token, HISTORY[start - 1].formation
    with values.open_writer(tmp_path) as writer:
        for _ in range(3):
            for entry in HISTORY[start if writer.tip else 0 :]:
                values.append_entry(writer, entry)
                history.update_index()
            assert history.after(token, 1 << 30, formation=formation) == cold
            assert history.after(0, 1 << 30) == ENCODED
            writer.truncate_after(token)
            assert history.after(token, 1 << 30, formation=formation) == []
            assert history.after(0, 1 << 30) == ENCODED[:start]


def test_damaged_entries_are_never_returned(tmp_path: Path) -> None:
    """A wrong bit in an entry is detected; a wrong bit in a release mark, which is not returned, need not be."""
    values.write(tmp_path, HISTORY, sync=SyncPolicy.TOKEN)
    file = values.segments(tmp_path)[1]
    content = file.read_bytes()
    noticed = 0
    for at in range(0, len(content), 7):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        try:
            assert History(tmp_path).after(0, 1 << 30) == ENCODED
        except Damaged:
            noticed += 1
    assert noticed > len(content) / 7 / 2


def test_more_readers_than_remembered_places_get_correct_chunks(catchup_directory: Path) -> None:
    """Also with more readers than remembered places."""
    history = History(catchup_directory)
    for _ in range(2):
        for at, entry in enumerate(HISTORY[:-1]):
            position = position_of(entry)
            assert history.after(position.token, 1, formation=position.formation) == [ENCODED[at + 1]]


# Chunks of entries, for sites that catch up.

CHUNK = 1_000


def read_from(history: History, position: Position, *, skip: int = 0, count: int = 64) -> Extract | None:
    return history.chunks(FetchChunks(position.token, position.formation, skip, count, CHUNK, ticket=1))


@given(at=st.integers(0, len(HISTORY) - 1), skip=st.integers(0, 80), count=st.integers(1, 64))
@settings(max_examples=80)
def test_the_chunks_are_those_of_the_following_entries(at: int, skip: int, count: int, catchup_directory: Path) -> None:
    """As the journal of the simulator reads them."""
    model = SimulatedJournal()
    for entry in HISTORY:
        model.append(entry)
    position = position_of(HISTORY[at])
    expected = model.chunks(FetchChunks(position.token, position.formation, skip, count, CHUNK, ticket=1))
    found = read_from(History(catchup_directory), position, skip=skip, count=count)
    assert found is not None
    assert [chunk._replace(check=0) for chunk in found.chunks] == [each._replace(check=0) for each in expected.chunks]
    assert (found.end, found.counted, found.exhausted) == expected[1:]


LARGE = 8_000_000


@pytest.fixture(scope="module")
def large_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal with one entry of 8 MB, and a small one after it."""
    path = tmp_path_factory.mktemp("large")
    sequence = 1
    with values.open_writer(path, segment_size_max=1 << 26) as writer:
        for token, size in enumerate((LARGE, 50_000), 1):
            bodies = tuple(bytes([at % 251]) * 50_000 for at in range(size // 50_000))
            count = len(bodies)
            span = Span(101, 1, sequence, count, sequence, bodies, (1,) * count)
            writer.append(Ordered(values.STRIPE, 1, token, sequence, count, token, (span,)), 0)
            sequence += count
    return path


def test_of_a_large_entry_only_the_wanted_bytes_are_read(
    large_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 84 MB was read and hashed as a whole for each of its thousand requests: 84 GB."""
    read = 0
    pread = os.pread

    def counted(file: int, size: int, offset: int) -> bytes:
        nonlocal read
        data = pread(file, size, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counted)
    history, position, skip = History(large_directory), Position(0, 0), 0
    parts: list[EntryChunk] = []
    while not parts or len(parts) < parts[0].chunks:
        extract = read_from(history, position, skip=skip)
        assert extract is not None
        parts += extract.chunks
        skip = len(parts)
    entry = decode_entry(b"".join(part.data for part in parts[: parts[0].chunks]))
    assert isinstance(entry, Ordered)
    assert entry.token == 1
    assert read < 3 * LARGE


def test_the_end_of_a_large_entry_is_only_returned_once_it_is_verified(large_directory: Path) -> None:
    """A little in each call, because the site's tokens wait meanwhile."""
    history = History(large_directory)
    first = read_from(history, Position(0, 0))
    assert first is not None
    chunks, calls = first.chunks[0].chunks, 1
    while (last := read_from(history, Position(0, 0), skip=chunks - 1, count=1)) is None:
        calls += 1
    assert calls == LARGE // VERIFIED_MAX + 1
    assert last.chunks[0].chunk == chunks - 1
    again = read_from(history, Position(0, 0), skip=chunks - 1, count=1)
    assert again == last


def test_a_damaged_large_entry_is_never_complete(large_directory: Path, tmp_path: Path) -> None:
    (original,) = values.segments(large_directory)
    content = bytearray(original.read_bytes())
    content[4_000_000] ^= 1
    (tmp_path / original.name).write_bytes(content)
    history, chunks = History(tmp_path), LARGE // CHUNK
    for skip in range(0, chunks - 64, 64):
        assert read_from(history, Position(0, 0), skip=skip) is not None
    with pytest.raises(Damaged):
        read_from(history, Position(0, 0), skip=chunks - 64, count=128)


def test_what_is_requested_too_far_ahead_is_not_searched(tmp_path: Path) -> None:
    with values.open_writer(tmp_path) as writer:
        for entry in values.tiny(SKIPPED_MAX + 100):
            writer.append(entry, 0)
    extract = read_from(History(tmp_path), Position(0, 0), skip=SKIPPED_MAX + 90, count=1)
    assert extract is not None
    assert not extract.chunks
    assert not extract.exhausted
