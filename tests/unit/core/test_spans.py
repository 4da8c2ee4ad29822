"""Iteration over blocks and messages: numbers, fragments, and limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core import spans
from fairtape.core.effects import Span
from fairtape.core.spans import MessageAssembler, blocks, messages
from fairtape.wire.blocks import pack_messages, split_message
from fairtape.wire.frames import Malformed

FIRST = 7  # the source's number of the first message
SEQUENCE = 100
FRAGMENT_SIZE = 40

contents = st.lists(
    st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=4) | st.binary(min_size=50, max_size=200),
    min_size=1,
    max_size=6,
)


def span_of(parts: list[list[bytes] | bytes], source: int = 201) -> Span:
    """A span of blocks of short messages, and of long messages in fragments."""
    bodies: list[bytes] = []
    counts: list[int] = []
    fragments: list[bool] = []
    for part in parts:
        cut = [pack_messages(part)] if isinstance(part, list) else list(split_message(part, FRAGMENT_SIZE))
        bodies += cut
        counts += [len(part)] if isinstance(part, list) else [1] * len(cut)
        fragments += [isinstance(part, bytes)] * len(cut)
    flags = tuple(fragments) if any(fragments) else ()
    return Span(source, 1, FIRST, sum(counts), SEQUENCE, tuple(bodies), tuple(counts), flags)


@given(contents)
def test_blocks_number_their_first_messages_without_a_gap(parts: list[list[bytes] | bytes]) -> None:
    span = span_of(parts)
    following = SEQUENCE
    for sequence, _, count, _ in blocks(span):
        assert sequence == following
        following += count
    assert following == SEQUENCE + span.count
    assert [body for _, body, _, _ in blocks(span)] == list(span.bodies)


@given(contents)
def test_messages_are_those_that_were_packed_and_not_fragmented(parts: list[list[bytes] | bytes]) -> None:
    found = list(messages(span_of(parts)))
    assert [payload for _, payload in found] == [each for part in parts if isinstance(part, list) for each in part]
    numbers = [sequence for sequence, _ in found]
    assert numbers == sorted(set(numbers))


@given(contents)
def test_an_assembler_reads_every_message_with_the_number_of_its_last_fragment(
    parts: list[list[bytes] | bytes],
) -> None:
    expected: list[tuple[int, bytes]] = []
    sequence = SEQUENCE
    for part in parts:
        if isinstance(part, list):
            expected += enumerate(part, sequence)
            sequence += len(part)
        else:
            sequence += len(list(split_message(part, FRAGMENT_SIZE)))
            expected.append((sequence - 1, part))
    assert list(MessageAssembler().messages(span_of(parts))) == expected


def test_a_long_message_may_continue_in_the_next_span() -> None:
    whole = bytes(range(100))
    first, *others = split_message(whole, FRAGMENT_SIZE)
    assembler = MessageAssembler()
    assert assembler.add((201, 1), first) is None
    assert (201, 1) in assembler
    assert [assembler.add((201, 1), each) for each in others] == [None] * (len(others) - 1) + [whole]


def test_cleared_assemblers_forget_incomplete_messages() -> None:
    first, *others = split_message(bytes(100), FRAGMENT_SIZE)
    assembler = MessageAssembler()
    assembler.add((201, 1), first)
    assembler.clear()
    assert (201, 1) not in assembler
    assert [assembler.add((201, 1), each) for each in others] == [None] * len(others)


def test_above_the_limit_the_oldest_stream_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "STREAMS_MAX", 2)
    assembler = MessageAssembler()
    fragment = next(split_message(bytes(100), FRAGMENT_SIZE))
    for source in (1, 2, 3):
        assembler.add((source, 1), fragment)
    assert [(source, 1) in assembler for source in (1, 2, 3)] == [False, True, True]


def test_a_wrong_body_is_malformed_for_both_readers() -> None:
    span = Span(201, 1, FIRST, 1, SEQUENCE, (b"\x00",), (1,))
    with pytest.raises(Malformed):
        list(messages(span))
    with pytest.raises(Malformed):
        list(MessageAssembler().messages(span))
