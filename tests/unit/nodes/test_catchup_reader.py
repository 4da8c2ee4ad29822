"""The reader of catching up: entries in chunks, reassembled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.effects import Ordered, Span
from fairtape.core.entries import Entry, Position, encode_entry, position_of
from fairtape.core.instants import MILLISECOND, NEVER
from fairtape.nodes.catchup import UNANSWERED_MAX, WINDOW, CatchUpReader, answer
from fairtape.wire.blocks import pack_records
from fairtape.wire.membership import CatchUp, HistoryChunk

SMALL = 200


def entry(token: int, size: int) -> Entry:
    body = pack_records(bytes(size), size)
    span = Span(201, 1, token, 1, token, (body,), (1,))
    return Ordered(0, 1, token, token, 1, 1_000 * token, (span,))


def ask(after: int, chunk: int = 0, chunks_max: int = WINDOW) -> CatchUp:
    return CatchUp(0, 1, 9, after, chunk, chunks_max)


def answered(request: CatchUp, entries: list[Entry], *, exhausted: bool = True) -> list[HistoryChunk]:
    encoded = [encode_entry(each) for each in entries]
    return list(
        answer(
            request,
            encoded,
            me=2,
            complete=50,
            settled=49,
            known=3,
            exhausted=exhausted,
            journal_end=Position(3, 7),
            datagram_max=SMALL,
        )
    )


@given(st.lists(st.integers(1, 2_000), min_size=1, max_size=5), st.randoms())
def test_entries_arrive_whole_whatever_the_order_of_their_chunks(sizes: list[int], chance: object) -> None:
    entries = [entry(token, size) for token, size in enumerate(sizes, 1)]
    chunks = [past for past in answered(ask(0), entries) if past.chunks]
    chance.shuffle(chunks)  # type: ignore[attr-defined]
    reader = CatchUpReader()
    reader.start(0)
    for past in chunks:
        reader.take(past, 0)
    position, got = Position(1, 0), []
    while (each := reader.entry_after(position)) is not None:
        got.append(each)
        position = position_of(each)
    assert got == entries[: len(got)]
    assert len(got) == len(entries) or sum(past.chunks > 0 for past in chunks) == WINDOW


def test_only_a_journal_read_to_its_end_states_that_nothing_follows() -> None:
    """Otherwise the client would continue with a gap."""
    *_, last = answered(ask(0), [entry(1, 10)])
    assert (last.chunks, last.after, last.complete_through, last.known) == (0, 1, 50, 3)
    *_, last = answered(ask(0), [entry(1, 10)], exhausted=False)
    assert (last.chunks, last.after, last.complete_through, last.known) == (0, 1, 1, 0)


def test_an_answer_is_no_longer_than_was_asked_for_and_begins_where_it_was_asked() -> None:
    chunks = answered(ask(0, chunk=2, chunks_max=3), [entry(1, 2_000)])
    assert [past.chunk for past in chunks] == [2, 3, 4]


def test_a_reader_asks_for_the_first_chunk_that_it_misses() -> None:
    reader = CatchUpReader()
    chunks = answered(ask(0), [entry(1, 1_000)])
    assert reader.first_missing(Position(1, 0)) == 0
    reader.take(chunks[0], 0)
    reader.take(chunks[2], 0)
    assert reader.first_missing(Position(1, 0)) == 1


def test_two_entries_that_follow_one_position_never_mix() -> None:
    """Seed 1543 of a cluster campaign: chunks of two entries waited for one another for ever."""
    reader = CatchUpReader()
    before, after = (answered(ask(0), [entry(1, size)]) for size in (1_000, 900))
    for stale, fresh in zip(before, after, strict=False):
        reader.take(stale, 0)
        reader.take(fresh, 0)
    assert reader.entry_after(Position(1, 0)) is None
    for fresh in after:
        reader.take(fresh, 0)
    assert reader.entry_after(Position(1, 0)) == entry(1, 900)


def test_an_entry_that_may_not_be_taken_yet_is_requested_by_one_chunk_and_not_at_once() -> None:
    """Seed 1445 of a cluster campaign: full responses, each requested at once, with no entry that could be taken."""
    reader = CatchUpReader()
    reader.asked(0, 10)
    reader.take(answered(ask(0), [entry(1, 10)])[0], 5)
    reader.defer(5)
    assert (reader.window, reader.ask_at) == (1, 15)
    assert reader.first_missing(Position(1, 0)) == 0  # the last chunk again, to learn whether it may be taken
    reader.entry_taken(Position(1, 0))
    assert reader.window == WINDOW
    assert reader.entry_after(Position(1, 0)) is None


def test_a_silent_server_is_followed_by_the_next() -> None:
    reader = CatchUpReader()
    for _ in range(UNANSWERED_MAX):
        assert reader.next_server([4, 5]) == 4
        reader.asked(0, 10)
    assert reader.next_server([4, 5]) == 5


def test_a_reader_continues_at_once_when_a_response_has_ended() -> None:
    reader = CatchUpReader()
    reader.asked(0, 10 * MILLISECOND)
    reader.answer_ended(5)
    assert reader.ask_at == 10 * MILLISECOND  # nothing arrived: the server knows no more
    reader.take(answered(ask(0), [entry(1, 10)])[0], 5)
    reader.answer_ended(5)
    assert reader.ask_at == 5


def test_a_clock_that_was_set_back_does_not_stop_a_reader() -> None:
    reader = CatchUpReader()
    reader.asked(1_000, 10)
    reader.check_clock(500)
    assert reader.ask_at == 500
    reader.stop()
    reader.check_clock(0)
    assert reader.ask_at == NEVER


@pytest.mark.parametrize("position", [Position(1, 7), Position(2, 0)])
def test_an_entry_without_chunks_is_not_assembled(position: Position) -> None:
    assert CatchUpReader().entry_after(position) is None


def test_a_client_with_chunks_of_an_abandoned_entry_is_sent_the_valid_one() -> None:
    reader = CatchUpReader()
    reader.start(0)
    for past in answered(ask(0), [entry(1, 1_000)]):
        if past.chunks:
            reader.take(past, 0)
    last = reader.first_missing(Position(1, 0))
    assert last > 0
    short = entry(1, 10)
    reader.take(answered(ask(0, last, 1), [short])[0], 0)
    assert reader.entry_after(Position(1, 0)) == short
