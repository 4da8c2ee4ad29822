"""Entries for journals: streams to write, and Hypothesis strategies over the full width of every field."""

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import strategies as st

from fairtape.core.effects import FormationChange, Ordered, Release, Span
from fairtape.core.entries import LAYOUT_MAX
from fairtape.core.entries import Entry as Content
from fairtape.core.instants import MILLISECOND
from fairtape.journal import JournalWriter, SyncPolicy
from fairtape.wire.blocks import pack_messages, split_message
from fairtape.wire.frames import COUNT_MAX, FORMATION_MAX, NODE_MAX, NUMBER_MAX

STRIPE = 3
SITE = 6
STARTS_AT = 1_750_000_000_000_000_000
TOKEN_PERIOD = MILLISECOND
COMMIT_DELAY = 2 * MILLISECOND
FRAGMENT_SPACE = 40


def token_at(token: int) -> int:
    return STARTS_AT + token * TOKEN_PERIOD


def released(ordered: Ordered, *, late: bool = False) -> Release:
    commit_at = ordered.acknowledged_at + COMMIT_DELAY
    return Release(ordered.token, ordered.sequence, ordered.count, commit_at, commit_at + 7, late, 1_000)


def stream(seed: int, *, size_max: int = 60, sequence: int = 1, token: int = 1) -> Iterator[Ordered]:
    """An endless order of three sources; some tokens are skipped, and some messages are longer than a block."""
    chance = random.Random(seed)
    numbers = dict.fromkeys((1, 2, 9), 1)
    while True:
        spans, start = [], sequence
        for source in chance.sample(sorted(numbers), chance.randint(1, 3)):
            bodies, counts, fragments = [], [], []
            for _ in range(chance.randint(1, 3)):
                if chance.random() < 0.1:
                    parts = list(split_message(chance.randbytes(100), FRAGMENT_SPACE))
                    bodies += parts
                    counts += [1] * len(parts)
                    fragments += [True] * len(parts)
                else:
                    messages = [chance.randbytes(chance.randint(0, size_max)) for _ in range(chance.randint(1, 4))]
                    bodies.append(pack_messages(messages))
                    counts.append(len(messages))
                    fragments.append(False)
            flags = tuple(fragments) if any(fragments) else ()
            count = sum(counts)
            spans.append(Span(source, 5, numbers[source], count, sequence, tuple(bodies), tuple(counts), flags))
            numbers[source] += count
            sequence += count
        yield Ordered(STRIPE, 1, token, start, sequence - start, token_at(token), tuple(spans))
        token += chance.randint(1, 3)


def first(count: int, *, seed: int = 1, size_max: int = 60) -> list[Ordered]:
    source = stream(seed, size_max=size_max)
    return [next(source) for _ in range(count)]


def formation_change(
    before: Ordered, number: int, *, broken: bool = False, layout: bytes = b"layout"
) -> FormationChange:
    """The change to a formation whose first token is that of `before`."""
    return FormationChange(STRIPE, number, before.token, before.sequence, broken, layout, before.acknowledged_at)


def stream_with_formations(seed: int, *, size_max: int = 60) -> Iterator[Content]:
    """An endless order with changes of formation, sometimes two at one place, and sometimes with a Break."""
    chance = random.Random(f"storm {seed}")
    number = 1
    for ordered in stream(seed, size_max=size_max):
        for _ in range(chance.choice((0, 0, 0, 0, 0, 0, 1, 2))):
            number += 1
            layout = chance.randbytes(chance.randint(0, 300))
            yield formation_change(ordered, number, broken=chance.random() < 0.3, layout=layout)
        yield replace(ordered, formation=number)


def first_with_formations(count: int, *, seed: int = 1, size_max: int = 60) -> list[Content]:
    """`stream_with_formations` up to this many tokens."""
    history: list[Content] = []
    for entry in stream_with_formations(seed, size_max=size_max):
        history.append(entry)
        count -= isinstance(entry, Ordered)
        if not count:
            break
    return history


def messages_of(history: Sequence[Content]) -> list[Ordered]:
    return [entry for entry in history if isinstance(entry, Ordered)]


def streams_after(history: Sequence[Content]) -> dict[int, tuple[int, int]]:
    """A simple reference of the writer's table."""
    return {
        span.source: (span.incarnation, span.first + span.count)
        for ordered in messages_of(history)
        for span in ordered.spans
    }


def instant_of(entry: Content) -> int:
    return entry.acknowledged_at if isinstance(entry, Ordered) else entry.installed_at


def append_entry(writer: JournalWriter, entry: Content) -> None:
    if isinstance(entry, Ordered):
        writer.append(entry, entry.acknowledged_at)
    else:
        writer.append_formation(entry, entry.installed_at)


def tiny(count: int) -> list[Ordered]:
    """The smallest possible entries: one message each."""
    return [
        Ordered(STRIPE, 1, at, at, 1, token_at(at), (Span(1, 5, at, 1, at, (pack_messages([b"x"]),), (1,)),))
        for at in range(1, count + 1)
    ]


def open_writer(
    directory: Path, sync: SyncPolicy = SyncPolicy.NEVER, *, segment_size_max: int = 4 << 10
) -> JournalWriter:
    return JournalWriter.open(directory, stripe=STRIPE, site=SITE, sync=sync, segment_size_max=segment_size_max)


def write(
    directory: Path,
    history: Sequence[Content],
    *,
    behind: int = 2,
    segment_size_max: int = 4 << 10,
    site: int = SITE,
    sync: SyncPolicy = SyncPolicy.NEVER,
) -> None:
    """Write a journal whose release marks are `behind` entries late, as commits are; all are written in the end.

    Checkpoints are written when the disk is ready, so segments are reproducible only with the policy `token`.
    """
    options = {"stripe": STRIPE, "site": site, "segment_size_max": segment_size_max}
    with JournalWriter.open(directory, sync=sync, **options) as writer:
        unreleased: list[Ordered] = []
        for entry in history:
            append_entry(writer, entry)
            unreleased += messages_of([entry])
            if len(unreleased) > behind:
                mark(writer, unreleased.pop(0))
        for ordered in unreleased:
            mark(writer, ordered)


def mark(writer: JournalWriter, ordered: Ordered) -> None:
    writer.release(released(ordered, late=ordered.token % 5 == 0), ordered.acknowledged_at + COMMIT_DELAY)


def copy(directory: Path, to: Path) -> Path:
    shutil.copytree(directory, to, ignore=lambda _, names: [name for name in names if name == "lock"])
    return to


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.segment"))


@st.composite
def spans(draw: st.DrawFn, sequence: int) -> Span:
    blocks = draw(
        st.lists(
            st.one_of(
                st.tuples(st.binary(min_size=1, max_size=64), st.integers(1, COUNT_MAX), st.just(False)),
                st.tuples(st.binary(min_size=1, max_size=64), st.just(1), st.just(True)),
            ),
            min_size=1,
            max_size=5,
        )
    )
    bodies, counts, fragments = zip(*blocks, strict=True)
    first_number = draw(st.integers(1, NUMBER_MAX - sum(counts)))
    return Span(
        draw(st.integers(0, NODE_MAX)),
        draw(st.integers(0, NUMBER_MAX)),
        first_number,
        sum(counts),
        sequence,
        bodies,
        counts,
        fragments if any(fragments) else (),
    )


@st.composite
def ordered_contents(draw: st.DrawFn) -> Ordered:
    start = sequence = draw(st.integers(1, NUMBER_MAX - 100 * COUNT_MAX))
    drawn = []
    for _ in range(draw(st.integers(1, 4))):
        drawn.append(draw(spans(sequence)))
        sequence += drawn[-1].count
    formation = draw(st.integers(0, FORMATION_MAX))
    token, acknowledged_at = draw(st.integers(1, NUMBER_MAX)), draw(st.integers(0, NUMBER_MAX))
    return Ordered(STRIPE, formation, token, start, sequence - start, acknowledged_at, tuple(drawn))


numbers = st.integers(0, NUMBER_MAX)
formation_changes = st.builds(
    FormationChange,
    stripe=st.just(STRIPE),
    formation=st.integers(0, FORMATION_MAX),
    token=st.integers(1, NUMBER_MAX),
    sequence=st.integers(1, NUMBER_MAX),
    broken=st.booleans(),
    layout=st.binary(max_size=LAYOUT_MAX),
    installed_at=numbers,
)
contents = st.one_of(ordered_contents(), formation_changes)
releases = st.builds(
    Release,
    token=numbers,
    sequence=st.integers(1, NUMBER_MAX // 2),
    count=st.integers(1, (1 << 32) - 1),
    commit_at=numbers,
    released_at=numbers,
    late=st.booleans(),
    clock_bound=numbers,
)
