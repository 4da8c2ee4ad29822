"""The event loop of the simulator: virtual time, one event queue, and the machines that production runs.

The world drives a machine as the UDP driver does: it passes datagrams to it, wakes it at its deadline, and carries out
its effects in order. Real bytes cross the network. Nothing depends on the wall clock, on hashing or on the memory
layout: events of one instant happen in the order in which they were scheduled, so one seed gives one history.

A turn takes no time, unless its node is placed on a processor (`processors`). Then a turn is a step of the driver with
its costs: the node is woken if its deadline has passed, reads a bounded slice of what has arrived, and is woken again.
Datagrams leave at the end of the part of the turn that made them. A release is handed over, and stamped with the
node's clock, at the instant that the turn has reached by then.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
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
    FetchChunks,
    FormationChange,
    JoinChannels,
    Multicast,
    Notice,
    Ordered,
    QueryStore,
    Release,
    Report,
    Send,
    Truncate,
)
from fairtape.core.formation_log import StoreRequest, StoreResponse, Unavailable
from fairtape.core.instants import MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.core.machine import JournalMachine, Machine, ReleasingMachine, StoreMachine
from fairtape.net.node_runtime import Producer, stamped
from fairtape.simulation.clocks import SimulatedClock, TrueClock
from fairtape.simulation.network import LinkModel, Network, Tree
from fairtape.simulation.processors import Costs, PlacedNode, Placement
from fairtape.simulation.simulated_journal import SimulatedJournal
from fairtape.wire.frames import NodeId

EPOCH: Final = 1_767_225_600 * SECOND  # 2026-01-01 UTC: simulated instants have as many digits as real ones
BACKLOG_MAX: Final = 5_000  # datagrams in the socket of a paused node; more are lost, as in any kernel
SPIN_MAX: Final = 1_000  # wakes of one node in one turn; more is a machine whose deadline never advances
TURNS_MAX: Final = 300_000  # events of one world; more is a message storm


def chance_for(what: str, seed: int) -> Random:
    """The random numbers of one part of one world, so that a change in one part leaves the others as they are.

    The name is part of the seed: another name draws another world.
    """
    return Random(f"{what} {seed}")  # noqa: S311 - worlds must be repeatable, not secret


QueuedEvent: TypeAlias = bytes | Callable[[], None] | None  # a datagram, a scheduled call, or a wake


class Spinning(Exception):
    """The deadline of a machine never advances: it would be woken at the same instant without end."""


class Storm(Exception):
    """The world had more events than its limit: machines answer one another without end."""


class Observer:
    """Sees every effect of every machine, and every fault of a node.

    Checkers, recorders and the intruder are observers. Subclasses override what they need.
    """

    def sent(self, node: NodeId, to: int, datagram: bytes, at: Instant, /) -> None:
        """A node sent a datagram, to one node or to a channel."""

    def appended(self, node: NodeId, ordered: Ordered, now: Instant, /) -> None:
        """A node wrote Msg(e) to its journal at `now` of its own clock."""

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:
        """A node released Msg(e) at `now` of its own clock."""

    def reported(self, node: NodeId, report: Report, now: Instant, /) -> None:
        """A node declared a failure at `now` of its own clock."""

    def formation_changed(self, node: NodeId, change: FormationChange, now: Instant, /) -> None:
        """A node wrote a change of formation to its journal."""

    def noticed(self, node: NodeId, text: str, now: Instant, /) -> None:
        """A node wrote a line to its log."""

    def truncated(self, node: NodeId, token: int, now: Instant, /) -> None:
        """A node removed everything after a token from its journal."""

    def fault_event(self, node: NodeId, what: str, now: Instant, /) -> None:
        """A node had a "crash", "restart", "pause" or "resume"."""

    def delayed(self, node: NodeId, period: Duration, now: Instant, /) -> None:
        """A node acts up to this long after it could have acted, because of its processor."""


class Violation(Exception):
    """A broken guarantee: its name, the node (if one), the true time, and what was found."""

    def __init__(self, guarantee: str, node: NodeId | None, at: Instant, text: str) -> None:
        super().__init__(guarantee, node, at, text)
        self.guarantee = guarantee
        self.node = node
        self.at = at
        self.text = text

    def __str__(self) -> str:
        where = "" if self.node is None else f" at node {self.node}"
        return f"{self.guarantee}{where}: {self.text}"


class StoreAccess(Protocol):
    """How the nodes of a world reach the formation store."""

    def query(self, node: NodeId, question: StoreRequest) -> tuple[Duration, StoreResponse]:
        """The response to this node, and the delay after which it arrives."""


class SimulatedNode:
    """One node: its machine, clock and journal, and whether it is up."""

    __slots__ = (
        "armed_for", "backlog", "clock", "fetches", "journal", "machine", "node", "paused", "placed", "releases",
        "restarts", "up", "wake_at",
    )  # fmt: skip

    def __init__(self, node: NodeId, machine: Machine, clock: SimulatedClock, journal: SimulatedJournal | None) -> None:
        self.node = node
        self.machine = machine
        self.releases = isinstance(machine, ReleasingMachine)  # of every incarnation
        self.clock = clock
        self.journal = journal
        self.restarts = 0  # a response from the store is only for the incarnation that asked
        self.up = True
        self.paused = False
        self.backlog: list[bytes] = []
        self.fetches: deque[Fetch | FetchChunks] = deque()  # pending reads of the journal, bounded by the machine
        self.placed: PlacedNode | None = None  # on a processor; None: its turns take no time
        self.disarm()

    def disarm(self) -> None:
        """Cancel the timer: a wake that is already in the queue is ignored."""
        self.armed_for: Instant = NEVER  # by the node's clock
        self.wake_at: Instant = NEVER  # in true time


class World:
    """Nodes, their clocks, the network between them, and virtual time."""

    def __init__(self, *, chance: Random, link_model: LinkModel, tree: Tree | None = None, echo: bool = False) -> None:
        self.now: Instant = EPOCH
        self.deliveries = 0  # datagrams handed to nodes
        self.digest = 0  # of everything sent and delivered: equal digests, equal histories
        self.turns_max = TURNS_MAX
        self.observers: list[Observer] = []
        self.store_access: StoreAccess | None = None
        self.receipts: Callable[[NodeId, list[bytes]], None] | None = None  # sees what a node has read
        self.network = Network(
            link_model=link_model, chance=chance, deliver=self._schedule_delivery, tree=tree, echo=echo
        )
        self._chance = chance
        self._hosts: dict[NodeId, SimulatedNode] = {}
        self._queue: list[tuple[Instant, int, SimulatedNode | None, QueuedEvent]] = []
        self._tick = count().__next__

    def add(
        self,
        node: NodeId,
        machine: Machine,
        *,
        channels: Iterable[int] = (),
        clock: SimulatedClock | None = None,
        journal: SimulatedJournal | None = None,
        placement: Placement | None = None,
        also: Iterable[NodeId] = (),
    ) -> None:
        """Add a node and start its machine. `also` names other nodes at its address: sources of the same process."""
        host = SimulatedNode(node, machine, clock or TrueClock(), journal)
        for each in (node, *also):
            assert each not in self._hosts
            self._hosts[each] = host
        if placement is not None:
            host.placed = PlacedNode(
                placement, turn=partial(self._turn, host), turn_ended=partial(self._turn_ended, host)
            )
        self.network.join(node, channels)
        self.touch(node)

    def at(self, instant: Instant, plan: Callable[[], None]) -> None:
        """Call `plan` at a true instant."""
        heappush(self._queue, (max(instant, self.now), self._tick(), None, plan))

    def run(self, until: Instant) -> None:
        queue = self._queue
        while queue and queue[0][0] <= until:
            at, turn, host, event = heappop(queue)
            self.now = at
            if turn > self.turns_max:
                raise Storm(f"{self.turns_max} events by {at}")
            if host is None:
                assert callable(event)
                event()
            elif event is None:
                if host.wake_at == at and host.up and not host.paused:
                    self._wake(host)
            else:
                assert isinstance(event, bytes)
                self._receive(host, event)
        self.now = until

    def machine(self, node: NodeId) -> Machine:
        return self._hosts[node].machine

    def clock(self, node: NodeId) -> SimulatedClock:
        return self._hosts[node].clock

    def is_up(self, node: NodeId) -> bool:
        """Whether the node has not crashed."""
        return self._hosts[node].up

    def is_paused(self, node: NodeId) -> bool:
        return self._hosts[node].paused

    def backlog(self, node: NodeId) -> Duration:
        """How long a node on a processor will take for the blocks that have arrived and were not read yet."""
        placed = self._hosts[node].placed
        return 0 if placed is None else placed.read_rate.period_for(placed.data.waiting)

    def datagrams_lost(self) -> int:
        """The datagrams that found the socket of their node full."""
        return sum(host.placed.lost for host in set(self._hosts.values()) if host.placed is not None)

    def touch(self, node: NodeId, act: Callable[[Instant], None] | None = None) -> None:
        """Call a machine from outside, as an application does, then carry out its effects."""
        host = self._hosts[node]
        if not host.up:
            return
        if host.placed is not None:
            if act is not None:
                host.placed.call(act)
            self._make_ready(host, host.placed)
            return
        now = host.clock.read(self.now)
        if act is not None:
            act(now)
        self._finish_turn(host, now)

    def inject(self, node: NodeId, datagram: bytes, delay: Duration = 0) -> None:
        """Deliver a datagram that no node sent."""
        self._schedule_delivery(delay, node, datagram)

    def crash(self, node: NodeId) -> None:
        """Stop a node until `restart`; its backlog is lost."""
        host = self._hosts[node]
        if not host.up:
            return
        host.up = host.paused = False
        host.backlog.clear()
        host.disarm()
        if host.placed is not None:
            host.placed.stop()
        self._notify_fault(host, "crash")

    def restart(self, node: NodeId, machine: Machine) -> None:
        """Replace the machine of a node by a new incarnation."""
        self.crash(node)
        host = self._hosts[node]
        host.machine = machine
        host.restarts += 1
        host.fetches.clear()
        host.up = True
        self._notify_fault(host, "restart")
        self.touch(node)

    def pause(self, node: NodeId) -> None:
        host = self._hosts[node]
        if host.up and not host.paused:
            host.paused = True
            self._notify_fault(host, "pause")

    def resume(self, node: NodeId) -> None:
        """Resume a paused node. Whether timers or sockets are served first is random, as in a real event loop."""
        host = self._hosts[node]
        if not host.up or not host.paused:
            return
        host.paused = False
        host.disarm()  # a timer that expired during the pause was ignored
        self._notify_fault(host, "resume")
        if host.placed is not None:
            self._make_ready(host, host.placed)
            return
        backlog, host.backlog = host.backlog, []
        if self._chance.random() < 0.5:
            self._wake(host)
        now = host.clock.read(self.now)
        self.deliveries += len(backlog)
        host.machine.receive_all(backlog, now)
        self._notify_receipts(host, backlog)
        self._finish_turn(host, now)

    def _schedule_delivery(self, delay: Duration, node: NodeId, datagram: bytes) -> None:
        heappush(self._queue, (self.now + delay, self._tick(), self._hosts[node], datagram))

    def _receive(self, host: SimulatedNode, datagram: bytes) -> None:
        """One turn: all datagrams that arrive at this node in this instant, as a driver empties a socket."""
        if not host.up:
            return
        if host.placed is not None:
            host.placed.arrived(datagram)
            self._make_ready(host, host.placed)
            return
        if host.paused:
            if len(host.backlog) < BACKLOG_MAX:
                host.backlog.append(datagram)
            return
        at, queue, machine = self.now, self._queue, host.machine
        now = host.clock.read(at)
        arrived = [datagram]
        while queue and queue[0][0] == at and queue[0][2] is host and isinstance(event := queue[0][3], bytes):
            heappop(queue)
            arrived.append(event)
        self.deliveries += len(arrived)
        machine.receive_all(arrived, now)
        self._notify_receipts(host, arrived)
        self._finish_turn(host, now)

    def _wake(self, host: SimulatedNode) -> None:
        host.disarm()
        if host.placed is not None:
            self._make_ready(host, host.placed)
            return
        self._finish_turn(host, host.clock.read(self.now))

    def _finish_turn(self, host: SimulatedNode, now: Instant) -> None:
        """Carry out the effects of the machine and wake it until its deadline is in the future."""
        machine = host.machine
        for _ in range(SPIN_MAX):
            effects = machine.drain()
            if effects:
                self._carry_out(host, effects, now)
            if host.fetches and host.journal is not None:  # after all appends of this turn
                self._read_journal(host, host.journal, now)
                continue
            deadline = machine.deadline()
            if deadline is None:
                return
            if deadline > now:
                if deadline < host.armed_for:
                    self._arm(host, deadline)
                return
            machine.wake(now)
        raise Spinning(f"node {host.node} asks again and again to be woken at {deadline}")

    def _make_ready(self, host: SimulatedNode, placed: PlacedNode) -> None:
        if host.up and not host.paused:
            placed.ready(self.now)

    def _turn(self, host: SimulatedNode) -> Iterator[Duration]:
        """One turn of a node on a processor: releases, a slice of what has arrived, and what is due then."""
        placed, machine = host.placed, host.machine
        assert placed is not None
        placed.begin(self.now)
        placed.idle_turns += 1
        costs, producer = placed.placement.costs, placed.placement.producer
        yield costs.turn
        owed = 0  # time that has been used and has not passed yet
        if host.releases and _is_due(machine.deadline(), host.clock.read(self.now)):
            cast(ReleasingMachine, machine).advance(host.clock.read(self.now))
            owed = yield from self._act(host, placed, owed)
        arrived, calls = placed.take_slice(), len(placed.calls)
        if arrived or calls:
            placed.idle_turns = 0
        now = host.clock.read(self.now)
        if arrived:
            self.deliveries += len(arrived)
            machine.receive_all(arrived, now)
            self._notify_receipts(host, arrived)
            owed += costs.receiving(len(arrived), sum(map(len, arrived)))
        for _ in range(calls):
            placed.calls.popleft()(now)
        if producer is not None and _is_due(producer.deadline(), now):
            producer.wake(now)
        owed = yield from self._act(host, placed, owed)
        yield owed
        if self._wake_if_due(host):
            yield (yield from self._act(host, placed, 0))

    def _wake_if_due(self, host: SimulatedNode) -> bool:
        now = host.clock.read(self.now)
        due = _is_due(host.machine.deadline(), now)
        if due:
            host.machine.wake(now)
        return due

    def _act(self, host: SimulatedNode, placed: PlacedNode, owed: Duration) -> Generator[Duration, None, Duration]:
        """Carry out the effects, each at the instant that the turn reaches. Returns the time that has yet to pass."""
        costs = placed.placement.costs
        effects = host.machine.drain()
        if not effects and host.fetches and host.journal is not None:  # after all appends
            self._read_journal(host, host.journal, host.clock.read(self.now))
            owed += costs.append
            effects = host.machine.drain()
        if effects:
            placed.idle_turns = 0
        waiting: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Deliver):
                yield owed
                self._carry_out_placed(host, placed, waiting)
                effect.release = stamped(effect.release, host.clock.read(self.now))
                self._carry_out(host, [effect], effect.release.released_at)
                waiting, owed = [], costs.message * effect.release.count
            else:
                waiting.append(effect)
                owed += _cost(effect, costs)
        if waiting:
            yield owed
            self._carry_out_placed(host, placed, waiting)
            owed = 0
        return owed

    def _carry_out_placed(self, host: SimulatedNode, placed: PlacedNode, effects: list[Effect]) -> None:
        """Carry out effects at the instant that the turn has reached, and report how late that may be."""
        now = host.clock.read(self.now)
        for observer in self.observers:
            observer.delayed(host.node, self.now - placed.due_since, now)
        self._carry_out(host, effects, now)

    def _turn_ended(self, host: SimulatedNode) -> bool:
        """Whether a node needs its next turn at once; else its timer is set."""
        placed = host.placed
        assert placed is not None
        host.disarm()
        placed.end(self.now)
        if not host.up or host.paused:
            return False
        if placed.has_input or host.fetches:
            return True
        deadline = _earliest(host.machine.deadline(), placed.placement.producer)
        if deadline is None:
            return False
        if deadline > host.clock.read(self.now):
            self._arm(host, deadline)
            return False
        if placed.idle_turns > SPIN_MAX:
            raise Spinning(f"node {host.node} asks again and again to be woken at {deadline}")
        return True

    def _arm(self, host: SimulatedNode, deadline: Instant) -> None:
        host.armed_for = deadline
        host.wake_at = host.clock.when(deadline, self.now)
        heappush(self._queue, (host.wake_at, self._tick(), host, None))

    def _carry_out(self, host: SimulatedNode, effects: list[Effect], now: Instant) -> None:
        for effect in effects:
            if isinstance(effect, Multicast):
                for datagram in effect.datagrams:
                    self._notify_sent(host.node, effect.channel, datagram)
                    self.network.multicast(host.node, effect.channel, datagram)
            elif isinstance(effect, Send):
                for datagram in effect.datagrams:
                    self._notify_sent(host.node, effect.to, datagram)
                    if effect.to in self._hosts:
                        self.network.send(host.node, self._hosts[effect.to].node, datagram)
            elif isinstance(effect, QueryStore):
                self._query_store(host, effect.question)
            elif isinstance(effect, JoinChannels):
                self.network.listen(host.node, effect.channels)
            else:
                if host.journal is not None:
                    self._write_journal(host, host.journal, effect, now)
                self._notify(host.node, effect, now)

    @staticmethod
    def _read_journal(host: SimulatedNode, journal: SimulatedJournal, now: Instant) -> None:
        fetch, machine = host.fetches.popleft(), cast(JournalMachine, host.machine)
        if isinstance(fetch, FetchChunks):
            machine.fetched_chunks(fetch.ticket, journal.chunks(fetch), now)
        else:
            machine.fetched(fetch.ticket, journal.after(fetch.token, fetch.formation, fetch.size_max), now)

    @staticmethod
    def _write_journal(host: SimulatedNode, journal: SimulatedJournal, effect: Effect, now: Instant) -> None:
        match effect:
            case Append():
                journal.append(effect.ordered)
            case AppendFormation():
                journal.append(effect.change)
            case Deliver():
                journal.release(effect.release)
            case Fetch() | FetchChunks():
                host.fetches.append(effect)
            case Truncate():
                cast(JournalMachine, host.machine).recovered(journal.truncate_after(effect.token), now)

    def _query_store(self, host: SimulatedNode, question: StoreRequest) -> None:
        delay, response = SECOND, cast(StoreResponse, Unavailable(question))
        if self.store_access is not None:
            delay, response = self.store_access.query(host.node, question)
        restarts = host.restarts

        def arrive() -> None:
            if not host.up or host.restarts != restarts:
                return
            if host.paused:  # the response waits in a queue of the process
                self.at(self.now + MILLISECOND, arrive)
                return
            self.touch(host.node, partial(cast(StoreMachine, host.machine).answered, response))

        self.at(self.now + delay, arrive)

    def _notify_receipts(self, host: SimulatedNode, datagrams: list[bytes]) -> None:
        if self.receipts is not None:
            self.receipts(host.node, datagrams)

    def _notify(self, node: NodeId, effect: Effect, now: Instant) -> None:
        for observer in self.observers:
            match effect:
                case Append():
                    observer.appended(node, effect.ordered, now)
                case Deliver():
                    self.digest = hash((self.digest, node, effect.release.sequence, effect.release.released_at))
                    observer.delivered(node, effect.ordered, effect.release, now)
                case Report():
                    observer.reported(node, effect, now)
                case AppendFormation():
                    observer.formation_changed(node, effect.change, now)
                case Notice():
                    observer.noticed(node, effect.text, now)
                case Truncate():
                    observer.truncated(node, effect.token, now)

    def _notify_sent(self, node: NodeId, to: int, datagram: bytes) -> None:
        self.digest = hash((self.digest, self.now, node, crc32(datagram)))
        for observer in self.observers:
            observer.sent(node, to, datagram, self.now)

    def _notify_fault(self, host: SimulatedNode, what: str) -> None:
        now = host.clock.read(self.now)  # once: a clock with noise draws a number for each reading
        for observer in self.observers:
            observer.fault_event(host.node, what, now)


def _is_due(deadline: Instant | None, now: Instant) -> bool:
    return deadline is not None and deadline <= now


def _earliest(deadline: Instant | None, producer: Producer | None) -> Instant | None:
    other = None if producer is None else producer.deadline()
    if deadline is None or other is None:
        return other if deadline is None else deadline
    return min(deadline, other)


def _cost(effect: Effect, costs: Costs) -> Duration:
    match effect:
        case Multicast() | Send():
            return costs.sending(sum(map(len, effect.datagrams)))
        case Append() | AppendFormation():
            return costs.append
        case _:
            return 0
