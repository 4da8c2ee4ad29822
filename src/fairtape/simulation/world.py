"""A world: virtual time, one queue of events, and the same machines that production runs.

The world does for a machine what the UDP driver does, and no more: it hands over datagrams, wakes it at its deadline,
and carries out its effects in order. Real bytes cross. Nothing depends on the wall clock, on hashing or on the memory's
layout: events of one instant happen in the order in which they were scheduled, so one seed is one history.
"""

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Final, Protocol, TypeAlias, cast
from zlib import crc32

from fairtape.core.effects import (
    Append,
    AppendFormation,
    Deliver,
    Effect,
    Fetch,
    JoinChannels,
    Multicast,
    Notice,
    QueryStore,
    Report,
    Send,
    Truncate,
)
from fairtape.core.formation_log import StoreRequest, StoreResponse, Unavailable
from fairtape.core.instants import MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.core.machine import JournalMachine, Machine, StoreMachine
from fairtape.simulation.clocks import SimulatedClock, TrueClock
from fairtape.simulation.network import Network, Sky, Tree
from fairtape.simulation.observer import Observer
from fairtape.simulation.simulated_journal import SimulatedJournal
from fairtape.wire.frames import NodeId

EPOCH: Final = 1_767_225_600 * SECOND  # 2026-01-01 UTC: worlds start at a time as wide as the real one
BACKLOG_MAX: Final = 5_000  # datagrams in the socket of a paused node; more are lost, as in any kernel
SPIN_MAX: Final = 1_000  # wakes of one node in one turn; more is a machine that never sleeps
TURNS_MAX: Final = 300_000  # events of one world; more is a storm that feeds itself

Event: TypeAlias = bytes | Callable[[], None] | None  # a datagram, a plan, or a wake


class Spinning(Exception):
    """A machine that wants to be woken again and again at the same instant."""


class Storm(Exception):
    """Machines that keep one another busy without end."""


class SimulatedHistory(Protocol):
    """The formation store as the world reaches it: with a delay, and not always."""

    def consult(self, node: NodeId, question: StoreRequest) -> tuple[Duration, StoreResponse]:
        """What the store answers to this node, and after how long."""


class SimulatedNode:
    """One node's place in the world: its machine, its clock, and what is being done to it."""

    __slots__ = (
        "armed_for", "backlog", "clock", "fetches", "life", "machine", "node", "paused", "shelf", "up", "wake_at",
    )  # fmt: skip

    def __init__(self, node: NodeId, machine: Machine, clock: SimulatedClock, shelf: SimulatedJournal | None) -> None:
        self.node = node
        self.machine = machine
        self.clock = clock
        self.shelf = shelf
        self.life = 0  # counts restarts: what an earlier life asked for is not for this one
        self.up = True
        self.paused = False
        self.backlog: list[bytes] = []
        self.fetches: deque[Fetch] = deque()  # questions to the journal, bounded by the machine that asks them
        self.disarm()

    def disarm(self) -> None:
        """Forget the timer; a wake that is already in the queue is then stale."""
        self.armed_for: Instant = NEVER  # by the node's clock
        self.wake_at: Instant = NEVER  # in true time


class World:
    """Nodes, their clocks, the network between them, and the time."""

    def __init__(self, *, chance: Random, sky: Sky, tree: Tree | None = None, echo: bool = False) -> None:
        self.now: Instant = EPOCH
        self.deliveries = 0  # datagrams handed to nodes
        self.digest = 0  # of everything sent and delivered: equal digests, equal histories
        self.turns_max = TURNS_MAX
        self.witnesses: list[Observer] = []
        self.archive: SimulatedHistory | None = None
        self.network = Network(sky=sky, chance=chance, deliver=self._post, tree=tree, echo=echo)
        self._chance = chance
        self._seats: dict[NodeId, SimulatedNode] = {}
        self._queue: list[tuple[Instant, int, SimulatedNode | None, Event]] = []
        self._tick = count().__next__

    def add(
        self,
        node: NodeId,
        machine: Machine,
        *,
        channels: Iterable[int] = (),
        clock: SimulatedClock | None = None,
        shelf: SimulatedJournal | None = None,
    ) -> None:
        """Seat a node."""
        assert node not in self._seats
        self._seats[node] = SimulatedNode(node, machine, clock or TrueClock(), shelf)
        self.network.join(node, channels)
        self.touch(node)

    def at(self, instant: Instant, plan: Callable[[], None]) -> None:
        """Do something to the world at a true instant."""
        heappush(self._queue, (max(instant, self.now), self._tick(), None, plan))

    def run(self, until: Instant) -> None:
        """Let time pass."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            at, turn, seat, event = heappop(queue)
            self.now = at
            if turn > self.turns_max:
                raise Storm(f"{self.turns_max} events by {at}")
            if seat is None:
                assert callable(event)
                event()
            elif event is None:
                if seat.wake_at == at and seat.up and not seat.paused:
                    self._wake(seat)
            else:
                assert isinstance(event, bytes)
                self._receive(seat, event)
        self.now = until

    def machine(self, node: NodeId) -> Machine:
        """The machine in a seat."""
        return self._seats[node].machine

    def clock(self, node: NodeId) -> SimulatedClock:
        """A node's clock."""
        return self._seats[node].clock

    def is_up(self, node: NodeId) -> bool:
        """Whether the node has not crashed."""
        return self._seats[node].up

    def is_paused(self, node: NodeId) -> bool:
        """Whether the node's process stands still."""
        return self._seats[node].paused

    def touch(self, node: NodeId, act: Callable[[Instant], None] | None = None) -> None:
        """Act on a machine from outside, as an application does, then carry out what it wants."""
        seat = self._seats[node]
        if not seat.up:
            return
        now = seat.clock.read(self.now)
        if act is not None:
            act(now)
        self._settle(seat, now)

    def inject(self, node: NodeId, datagram: bytes, delay: Duration = 0) -> None:
        """Let a datagram from nowhere arrive at a node."""
        self._post(delay, node, datagram)

    def crash(self, node: NodeId) -> None:
        """Stop a node for good, or until `restart`."""
        seat = self._seats[node]
        if not seat.up:
            return
        seat.up = seat.paused = False
        seat.backlog.clear()
        seat.disarm()
        self._tell(seat, "crash")

    def restart(self, node: NodeId, machine: Machine) -> None:
        """Put a new incarnation into a seat."""
        self.crash(node)
        seat = self._seats[node]
        seat.machine = machine
        seat.life += 1
        seat.fetches.clear()
        seat.up = True
        self._tell(seat, "restart")
        self.touch(node)

    def pause(self, node: NodeId) -> None:
        """Let a node's process stand still."""
        seat = self._seats[node]
        if seat.up and not seat.paused:
            seat.paused = True
            self._tell(seat, "pause")

    def resume(self, node: NodeId) -> None:
        """Let it go on. Whether sockets or timers are looked at first is as open as in any event loop."""
        seat = self._seats[node]
        if not seat.up or not seat.paused:
            return
        seat.paused = False
        seat.disarm()  # a timer that ran out in the meantime found nobody
        self._tell(seat, "resume")
        backlog, seat.backlog = seat.backlog, []
        if self._chance.random() < 0.5:
            self._wake(seat)
        now = seat.clock.read(self.now)
        self.deliveries += len(backlog)
        seat.machine.receive_all(backlog, now)
        self._settle(seat, now)

    def _post(self, delay: Duration, node: NodeId, datagram: bytes) -> None:
        heappush(self._queue, (self.now + delay, self._tick(), self._seats[node], datagram))

    def _receive(self, seat: SimulatedNode, datagram: bytes) -> None:
        """One turn: everything that arrives at this node in this instant, as a driver empties a socket."""
        if not seat.up:
            return
        if seat.paused:
            if len(seat.backlog) < BACKLOG_MAX:
                seat.backlog.append(datagram)
            return
        at, queue, machine = self.now, self._queue, seat.machine
        now = seat.clock.read(at)
        arrived = [datagram]
        while queue and queue[0][0] == at and queue[0][2] is seat and isinstance(event := queue[0][3], bytes):
            heappop(queue)
            arrived.append(event)
        self.deliveries += len(arrived)
        machine.receive_all(arrived, now)
        self._settle(seat, now)

    def _wake(self, seat: SimulatedNode) -> None:
        seat.disarm()
        self._settle(seat, seat.clock.read(self.now))

    def _settle(self, seat: SimulatedNode, now: Instant) -> None:
        """End a turn: carry out what the machine wants, and wake it as long as something is already due."""
        machine = seat.machine
        for _ in range(SPIN_MAX):
            effects = machine.drain()
            if effects:
                self._carry_out(seat, effects, now)
            if seat.fetches and seat.shelf is not None:  # only now has the journal what the machine believes it has
                self._read_journal(seat, seat.shelf, now)
                continue
            deadline = machine.deadline()
            if deadline is None:
                return
            if deadline > now:
                if deadline < seat.armed_for:
                    self._arm(seat, deadline)
                return
            machine.wake(now)
        raise Spinning(f"node {seat.node} wants to wake at {deadline} again and again")

    def _arm(self, seat: SimulatedNode, deadline: Instant) -> None:
        seat.armed_for = deadline
        seat.wake_at = seat.clock.when(deadline, self.now)
        heappush(self._queue, (seat.wake_at, self._tick(), seat, None))

    def _carry_out(self, seat: SimulatedNode, effects: list[Effect], now: Instant) -> None:
        for effect in effects:
            if isinstance(effect, Multicast):
                for datagram in effect.datagrams:
                    self._note(seat.node, effect.channel, datagram)
                    self.network.multicast(seat.node, effect.channel, datagram)
            elif isinstance(effect, Send):
                for datagram in effect.datagrams:
                    self._note(seat.node, effect.to, datagram)
                    if effect.to in self._seats:
                        self.network.send(seat.node, effect.to, datagram)
            elif isinstance(effect, QueryStore):
                self._consult(seat, effect.question)
            elif isinstance(effect, JoinChannels):
                self.network.listen(seat.node, effect.channels)
            else:
                if seat.shelf is not None:
                    self._keep(seat, seat.shelf, effect, now)
                self._testify(seat.node, effect, now)

    @staticmethod
    def _read_journal(seat: SimulatedNode, shelf: SimulatedJournal, now: Instant) -> None:
        fetch = seat.fetches.popleft()
        entries = shelf.after(fetch.token, fetch.formation, fetch.size_max)
        cast(JournalMachine, seat.machine).fetched(fetch.ticket, entries, now)

    @staticmethod
    def _keep(seat: SimulatedNode, shelf: SimulatedJournal, effect: Effect, now: Instant) -> None:
        """What a journal does."""
        match effect:
            case Append():
                shelf.append(effect.ordered)
            case AppendFormation():
                shelf.append(effect.change)
            case Deliver():
                shelf.release(effect.release)
            case Fetch():
                seat.fetches.append(effect)
            case Truncate():
                cast(JournalMachine, seat.machine).recovered(shelf.truncate_after(effect.token), now)

    def _consult(self, seat: SimulatedNode, question: StoreRequest) -> None:
        delay, answer = SECOND, cast(StoreResponse, Unavailable(question))
        if self.archive is not None:
            delay, answer = self.archive.consult(seat.node, question)
        life = seat.life

        def arrive() -> None:
            if not seat.up or seat.life != life:
                return
            if seat.paused:  # the answer waits in a queue of the process
                self.at(self.now + MILLISECOND, arrive)
                return
            now = seat.clock.read(self.now)
            cast(StoreMachine, seat.machine).answered(answer, now)
            self._settle(seat, now)

        self.at(self.now + delay, arrive)

    def _testify(self, node: NodeId, effect: Effect, now: Instant) -> None:
        for witness in self.witnesses:
            match effect:
                case Append():
                    witness.appended(node, effect.ordered, now)
                case Deliver():
                    self.digest = hash((self.digest, node, effect.release.sequence, effect.release.released_at))
                    witness.delivered(node, effect.ordered, effect.release, now)
                case Report():
                    witness.reported(node, effect, now)
                case AppendFormation():
                    witness.turned(node, effect.change, now)
                case Notice():
                    witness.noticed(node, effect.text, now)
                case Truncate():
                    witness.cut(node, effect.token, now)

    def _note(self, node: NodeId, to: int, datagram: bytes) -> None:
        self.digest = hash((self.digest, self.now, node, crc32(datagram)))
        for witness in self.witnesses:
            witness.sent(node, to, datagram, self.now)

    def _tell(self, seat: SimulatedNode, what: str) -> None:
        for witness in self.witnesses:
            witness.befell(seat.node, what, seat.clock.read(self.now))
