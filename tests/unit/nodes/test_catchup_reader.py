"""The reader of catching up: entries in chunks, requested ahead and reassembled."""

from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.effects import Ordered, Span
from fairtape.core.entries import Entry, Position, position_of
from fairtape.core.instants import MILLISECOND, NEVER
from fairtape.nodes.catchup import UNANSWERED_MAX, CatchUpReader, CatchUpServer
from fairtape.nodes.congestion_window import WINDOW_START
from fairtape.simulation.simulated_journal import SimulatedJournal
from fairtape.wire.blocks import pack_records
from fairtape.wire.frames import Malformed
from fairtape.wire.membership import POSITION, CatchUp, HistoryChunk
from unit.nodes.test_catchup_path import Plain, Serving

SMALL = 256
START = Position(1, 0)
PERIOD = 10 * MILLISECOND
NOW = 1_000 * MILLISECOND

Request = tuple[int, int, int]  # a chunk, the number of chunks, and the number of the first


def entry(token: int, size: int) -> Entry:
    body = pack_records(bytes(size), size)
    span = Span(201, 1, token, 1, token, (body,), (1,))
    return Ordered(0, 1, token, token, 1, 1_000 * token, (span,))


class Server:
    """A server with these entries in its journal, and the receiver's journal end where that differs."""

    def __init__(self, *entries: Entry, journal_end: Position | None = None) -> None:
        self._journal = SimulatedJournal()
        for each in entries:
            self._journal.append(each)
        self._receiver = cast("Any", Serving(journal_end or position_of(entries[-1])))
        self._server = CatchUpServer(me=2, authenticator=cast("Any", Plain()), datagram_max=SMALL)

    def answer(self, request: Request, position: Position = START) -> list[HistoryChunk]:
        chunk, count, number = request
        fetch = self._server.start_read(CatchUp(0, position.formation, 9, position.token, chunk, count, number, NOW))
        assert fetch is not None
        pending = self._server.end_read(fetch.ticket)
        assert pending is not None
        sent = self._server.answer(pending, self._journal.chunks(fetch), self._receiver)
        return [cast("HistoryChunk", message) for send in sent for message in send.datagrams]


def started() -> CatchUpReader:
    reader = CatchUpReader()
    reader.start(START, PERIOD, NOW)
    return reader


def all_of(reader: CatchUpReader, position: Position = START) -> list[Entry]:
    got = []
    while (each := reader.entry_after(position)) is not None:
        got.append(each)
        position = position_of(each)
        reader.entry_taken(each, NOW)
    return got


@given(st.lists(st.integers(1, 1_200), min_size=1, max_size=5), st.randoms())
def test_entries_arrive_whole_whatever_the_order_of_their_chunks(sizes: list[int], chance: Random) -> None:
    entries = [entry(token, size) for token, size in enumerate(sizes, 1)]
    reader = started()
    (request,) = reader.requests(START, NOW)
    chunks = [each for each in Server(*entries).answer(request) if each.chunks]
    chance.shuffle(chunks)
    for each in chunks:
        reader.take(each, START, NOW)
    assert all_of(reader) == entries


def test_only_a_journal_read_to_its_end_states_that_nothing_follows() -> None:
    """Otherwise the client would continue with a gap."""
    *_, last = Server(entry(1, 10)).answer((0, 64, 700))
    assert (last.chunks, last.after, last.number, last.known) == (0, 1, 701, 1)
    assert last.data == POSITION.pack(1, 1)
    assert [each.chunks for each in Server(entry(1, 10), journal_end=Position(1, 5)).answer((0, 64, 700))] == [1]
    assert [each.chunks for each in Server(entry(1, 10)).answer((0, 1, 700))] == [1]


def test_a_response_is_what_was_requested_also_when_that_is_ahead() -> None:
    server = Server(entry(1, 1_000), entry(2, 1_000))
    whole = server.answer((0, 64, 700))
    per_entry = whole[0].chunks
    ahead = server.answer((2, per_entry, 702))
    assert [(each.after, each.chunk, each.number) for each in ahead] == [
        (token, chunk, 700 + token * per_entry + chunk)
        for token, chunk in [(0, at) for at in range(2, per_entry)] + [(1, 0), (1, 1)]
    ]
    assert [each.data for each in ahead] == [each.data for each in whole[2 : 2 + per_entry]]


def test_what_is_requested_ahead_needs_no_entry_to_have_arrived() -> None:
    """One request in a round trip would bring 84 kB in each, however fast the path is."""
    reader = started()
    (first,) = reader.requests(START, NOW)
    assert first[:2] == (0, WINDOW_START)
    server = Server(*(entry(token, 150) for token in range(1, 400)))
    for each in server.answer(first)[: WINDOW_START - 8]:
        reader.take(each, START, NOW)
    assert reader.requests(START, NOW)[0][0] == WINDOW_START


def test_a_chunk_that_was_overtaken_is_requested_again_and_alone() -> None:
    reader = started()
    server = Server(*(entry(token, 150) for token in range(1, 400)))
    (first,) = reader.requests(START, NOW)
    for each in server.answer(first):
        if each.chunk or each.after != 3:
            reader.take(each, START, NOW)
    got = all_of(reader)
    position = position_of(got[-1])
    assert len(got) == 3
    later = NOW + PERIOD // 2
    *_, (_, count, number) = reader.requests(position, later)
    assert count > 1
    sent = HistoryChunk(0, 1, 2, 70, 400, 400, 1, 0, 1, b"x", number=number, asked_at=later)
    reader.take(sent, position, later)
    assert all(chunk for chunk, _, _ in reader.requests(position, later))
    reader.take(replace(sent, number=number + 1, after=71), position, later + MILLISECOND + 1)
    again = reader.requests(position, later + MILLISECOND + 1)
    assert again[0][:2] == (0, 1)
    assert all(count > 1 for _, count, _ in again[1:])


def test_chunks_of_another_entry_after_the_same_position_start_everything_anew() -> None:
    """Seed 1543 of a cluster campaign: chunks of two entries waited for one another for ever."""
    reader = started()
    before, after = Server(entry(1, 1_000)), Server(entry(1, 900))
    (request,) = reader.requests(START, NOW)
    stale, fresh = before.answer(request), after.answer(request)
    reader.take(stale[0], START, NOW)
    reader.take(fresh[1], START, NOW)
    assert reader.entry_after(START) is None
    assert reader.ask_at == NOW + PERIOD
    (again,) = reader.requests(START, reader.ask_at)
    for each in after.answer(again):
        if each.chunks:
            reader.take(each, START, NOW + PERIOD)
    assert reader.entry_after(START) == entry(1, 900)


def test_an_entry_that_may_not_be_taken_yet_is_requested_by_one_chunk_and_not_at_once() -> None:
    """Seed 1445 of a cluster campaign: full responses, each requested at once, with no entry that could be taken."""
    reader = started()
    (request,) = reader.requests(START, NOW)
    server = Server(entry(1, 400))
    chunks = server.answer(request)
    for each in chunks[:-1]:
        reader.take(each, START, NOW)
    reader.defer(NOW)
    assert reader.ask_at == NOW + PERIOD
    assert reader.requests(START, NOW) == []
    ((chunk, count, number),) = reader.requests(START, reader.ask_at)
    assert (chunk, count) == (len(chunks) - 2, 1)  # the last chunk again, to learn whether it may be taken
    assert reader.take(server.answer((chunk, count, number))[0], START, NOW + PERIOD)
    assert all_of(reader) == [entry(1, 400)]


def test_a_deferred_entry_that_another_server_does_not_have_is_forgotten() -> None:
    """Seed 880118 of a cluster campaign: it was requested again and was not there."""
    reader = started()
    (request,) = reader.requests(START, NOW)
    for each in Server(entry(1, 10)).answer(request)[:-1]:
        reader.take(each, START, NOW)
    reader.defer(NOW)
    reader.ended(request[2], NOW)
    assert reader.requests(START, reader.ask_at)[0][:2] == (0, WINDOW_START)


def test_a_silent_server_is_followed_by_the_next() -> None:
    reader, now = started(), NOW
    for _ in range(UNANSWERED_MAX):
        assert reader.requests(START, now)
        assert reader.next_server([4, 5]) == 4
        assert now < reader.ask_at < NEVER
        now = reader.ask_at
    assert reader.requests(START, now)
    assert reader.next_server([4, 5]) == 5


def test_a_reader_that_starts_again_asks_the_likeliest_server_first() -> None:
    reader, now = started(), NOW
    for _ in range(UNANSWERED_MAX):
        assert reader.requests(START, now)
        now = reader.ask_at
    assert reader.requests(START, now)
    assert reader.next_server([4, 5]) == 5
    reader.stop()
    reader.start(START, PERIOD, now)
    assert reader.next_server([4, 5]) == 4


def test_a_server_that_has_no_more_is_followed_by_the_next() -> None:
    """Seed 880106 of a cluster campaign: two members that had lost the same tokens asked only one another."""
    reader, now = started(), NOW
    for _ in range(UNANSWERED_MAX):
        ((_, _, number),) = reader.requests(START, now)
        assert reader.next_server([4, 5]) == 4
        reader.ended(number, now)
        now = reader.ask_at
    assert reader.requests(START, now)
    assert reader.next_server([4, 5]) == 5


def test_a_reader_waits_at_the_end_of_a_journal() -> None:
    reader = started()
    (request,) = reader.requests(START, NOW)
    one, end = Server(entry(1, 10)).answer(request)
    assert reader.take(one, START, NOW)
    (taken,) = all_of(reader)
    reader.ended(end.number, NOW)
    assert reader.ask_at == NOW + PERIOD
    assert reader.requests(position_of(taken), NOW) == []
    assert reader.requests(position_of(taken), reader.ask_at)[0][0] == 0


def test_a_clock_that_was_set_back_does_not_stop_a_reader() -> None:
    reader = started()
    reader.requests(START, NOW)
    reader.check_clock(NOW - PERIOD)
    assert reader.ask_at == NOW - PERIOD
    reader.stop()
    reader.check_clock(0)
    assert reader.ask_at == NEVER


def test_a_position_that_the_ring_has_moved_begins_a_new_numbering() -> None:
    reader = started()
    ((_, _, number),) = reader.requests(START, NOW)
    ((chunk, _, later),) = reader.requests(Position(1, 7), NOW)
    assert chunk == 0
    assert later > number + WINDOW_START


@pytest.mark.parametrize("position", [Position(1, 7), Position(2, 0)])
def test_an_entry_without_chunks_is_not_assembled(position: Position) -> None:
    assert CatchUpReader().entry_after(position) is None


def test_chunks_that_were_not_requested_are_not_held() -> None:
    reader = started()
    ((_, _, number),) = reader.requests(START, NOW)
    for wrong in (number - 1, number + (1 << 30)):
        assert not reader.take(HistoryChunk(0, 1, 2, 0, 9, 9, 1, 0, 1, b"x", number=wrong), START, NOW)
    assert reader.entry_after(START) is None


def test_an_entry_that_is_none_is_requested_again() -> None:
    reader = started()
    ((_, _, number),) = reader.requests(START, NOW)
    assert reader.take(HistoryChunk(0, 1, 2, 0, 9, 9, 1, 0, 1, b"x", number=number), START, NOW)
    with pytest.raises(Malformed):
        reader.entry_after(START)
    assert reader.requests(START, NOW)[0][0] == 0
