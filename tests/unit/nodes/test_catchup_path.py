"""Catching up over a link of limited rate: a client and a server, some milliseconds apart."""

from collections import deque
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from random import Random
from typing import Any, cast

import pytest

from fairtape.core.effects import FetchChunks, Ordered, Span
from fairtape.core.entries import Position, position_of
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.core.timing import PROFILES
from fairtape.nodes.catchup import CatchUpReader, CatchUpServer
from fairtape.simulation.simulated_journal import SimulatedJournal
from fairtape.wire.membership import CatchUp, HistoryChunk

MBIT = 125_000  # bytes per second
DATAGRAM = 1_400
SERVER, CLIENT = 1, 2
TURN, CHUNK = 100 * MICROSECOND, 10 * MICROSECOND  # time of the server for a request, and for each chunk


@cache
def journal_of(entries: int, size: int) -> SimulatedJournal:
    journal = SimulatedJournal()
    for token in range(1, entries + 1):
        body = token.to_bytes(8) * (size // 8)
        bodies = tuple(body[at : at + 1_200] for at in range(0, size, 1_200))
        count = len(bodies)
        span = Span(101, 1, token * 100_000, count, token * 100_000, bodies, (1,) * count)
        journal.append(Ordered(0, 1, token, token * 100_000, count, token, (span,)))
    return journal


class Plain:
    """Leaves messages as they are."""

    def for_membership(self, message: object) -> object:
        return message


@dataclass
class Numbered:
    number: int = 1


@dataclass
class Serving:
    """What the server states of its receiver."""

    journal_end: Position
    formation: Numbered = field(default_factory=Numbered)
    verified: bool = True

    @property
    def complete_through(self) -> int:
        return self.journal_end.token

    survives_through = complete_through

    @property
    def membership(self) -> "Serving":
        return self


@dataclass
class Link:
    """From the server to the client: a rate, a queue that drops what it cannot hold, a delay, and losses."""

    rate: int
    delay: Duration
    queue_max: int
    loss: float = 0.0
    free_at: Instant = 0
    carried: int = 0
    lost: int = 0
    queued: int = 0  # bytes, at most

    def arrival(self, now: Instant, chance: Random) -> Instant | None:
        waiting = max(self.free_at - now, 0) * self.rate // SECOND
        if waiting + DATAGRAM > self.queue_max or chance.random() < self.loss:
            self.lost += 1
            return None
        self.queued = max(self.queued, waiting)
        self.carried += 1
        self.free_at = max(self.free_at, now) + DATAGRAM * SECOND // self.rate
        return self.free_at + self.delay


class Pair:
    """A client that reads the journal of a server, which serves one request per turn."""

    def __init__(self, journal: SimulatedJournal, link: Link, *, retry_period: Duration, seed: int = 1) -> None:
        self.link = link
        self.taken = 0
        self.requests = 0
        self.turns = 0
        self.chunks = 0  # taken
        self.now: Instant = SECOND
        self._journal = journal
        self._chance = Random(seed)
        self._reader = CatchUpReader()
        self._server = CatchUpServer(me=SERVER, authenticator=cast("Any", Plain()), datagram_max=DATAGRAM)
        self._receiver = cast("Any", Serving(position_of(journal.entries[-1])))
        self._fetches: deque[FetchChunks] = deque()
        self._free_at: Instant = 0
        self._position = Position(1, 0)
        self._events: list[tuple[Instant, int, object]] = []
        self._count = 0
        self._reader.start(self._position, retry_period, self.now)

    def run(self, until: Instant) -> Duration:
        """Until the client has everything; how long that took."""
        began_at = self.now
        while self._position != self._receiver.journal_end:
            self._ask()
            at = self._events[0][0] if self._events else self._reader.ask_at
            self.now = max(min(at, self._reader.ask_at), self.now)
            assert self.now < until, f"{self.taken} of {len(self._journal.entries)} entries, {self.link}"
            while self._events and self._events[0][0] <= self.now:
                self._handle(heappop(self._events)[2])
        return self.now - began_at

    def _ask(self) -> None:
        if self._reader.ask_at > self.now:
            return
        formation, token = self._position
        for chunk, count, number in self._reader.requests(self._position, self.now):
            self.requests += 1
            request = CatchUp(0, formation, CLIENT, token, chunk, count, number, self.now)
            if self._chance.random() >= self.link.loss:
                self._push(self.now + self.link.delay, request)

    def _handle(self, event: object) -> None:
        if isinstance(event, CatchUp):
            fetch = self._server.start_read(event)
            if fetch is not None:
                self._fetches.append(fetch)
                self._free_at = max(self._free_at, self.now) + TURN + CHUNK * fetch.count_max
                self._push(self._free_at, None)
        elif isinstance(event, HistoryChunk):
            self._take(event)
        else:
            self._serve()

    def _serve(self) -> None:
        fetch = self._fetches.popleft()
        self.turns += 1
        pending = self._server.end_read(fetch.ticket)
        assert pending is not None
        for send in self._server.answer(pending, self._journal.chunks(fetch), self._receiver):
            for message in send.datagrams:
                at = self.link.arrival(self.now, self._chance)
                if at is not None:
                    self._push(at, message)

    def _take(self, history: HistoryChunk) -> None:
        self.chunks += 1
        if not history.chunks:
            self._reader.ended(history.number, self.now)
        elif self._reader.take(history, self._position, self.now):
            while (entry := self._reader.entry_after(self._position)) is not None:
                assert entry == self._journal.entries[self.taken]
                self.taken += 1
                self._position = position_of(entry)
                self._reader.entry_taken(entry, self.now)

    def _push(self, at: Instant, event: object) -> None:
        self._count += 1
        heappush(self._events, (at, self._count, event))


def wan(megabits: int, *, queue_ms: int = 100, loss: float = 0.0) -> Link:
    return Link(megabits * MBIT, 150 * MILLISECOND, megabits * MBIT * queue_ms // 1_000, loss)


def needed(link: Link) -> Duration:
    """The time that what it has carried needs on the link."""
    return link.carried * DATAGRAM * SECOND // link.rate


@pytest.mark.parametrize("size", [600, 7_200, 5_000_000], ids=["many small entries", "entries", "large entries"])
def test_a_long_fat_path_is_filled(size: int) -> None:
    """200 Mbit/s at a round trip of 300 ms hold 7.5 MB; one window of 64 chunks per round trip would be 282 kB/s."""
    link = wan(200)
    pair = Pair(journal_of(60_000_000 // max(size, 1_400), size), link, retry_period=PROFILES["wan"].retry_period)
    period = pair.run(until=120 * SECOND)
    assert period < needed(link) + 8 * SECOND  # the window grows for some seconds
    assert link.carried < 1.1 * pair.chunks


def test_a_slow_path_is_filled_and_not_flooded() -> None:
    link = wan(10, queue_ms=500)
    pair = Pair(journal_of(1_500, 7_200), link, retry_period=PROFILES["wan"].retry_period)
    period = pair.run(until=120 * SECOND)
    assert period < 1.3 * needed(link) + 4 * SECOND
    assert link.lost == 0
    assert link.queued < 250 * MILLISECOND * link.rate // SECOND  # while the window grows fast


def test_losses_that_are_not_those_of_a_full_queue_do_not_starve_a_long_path() -> None:
    link = wan(100, loss=0.01)
    pair = Pair(journal_of(4_000, 7_200), link, retry_period=PROFILES["wan"].retry_period)
    period = pair.run(until=120 * SECOND)
    assert period < 1.5 * needed(link) + 8 * SECOND
    assert link.carried < 1.1 * pair.chunks


@pytest.mark.parametrize("profile", ["lan", "metro"])
def test_a_near_site_is_limited_by_the_server_alone(profile: str) -> None:
    timing = PROFILES[profile]
    link = Link(10_000 * MBIT, timing.retry_period // 8, 10_000 * MBIT // 100)
    pair = Pair(journal_of(3_000, 7_200), link, retry_period=timing.retry_period)
    period = pair.run(until=60 * SECOND)
    assert period < 1.5 * (pair.turns * TURN + link.carried * CHUNK) + SECOND
    assert link.lost == 0
