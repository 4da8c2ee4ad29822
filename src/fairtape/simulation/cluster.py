"""A whole deployment in virtual time: sites with journals, reformation servers and their store, sources.

A realm is built from a charter and plays every part that is not a machine: it gives a restarted site its journal back,
answers for the store, and keeps feeding the sources. What is done to it, faults and orders, comes from outside.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from fairtape.core.effects import Channel
from fairtape.core.formation_log import (
    ENTRIES_MAX,
    Claim,
    Claimed,
    Leadership,
    LogEntry,
    Recall,
    Recalled,
    Record,
    Recorded,
    RecordRefused,
    StoreRequest,
    StoreResponse,
    Unavailable,
)
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.machine import Machine
from fairtape.nodes.coordinator.server import Reformer, ReformerConfig
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.site import Site, SiteConfig
from fairtape.nodes.source import Source
from fairtape.ring.membership.topology import Topology
from fairtape.ring.receiver.tracing import Tracer
from fairtape.simulation.clocks import SimulatedClock, TrueClock
from fairtape.simulation.network import Tree
from fairtape.simulation.simulated_journal import SimulatedJournal
from fairtape.simulation.world import EPOCH, World
from fairtape.wire.frames import DATAGRAM_MAX, NodeId
from fairtape.wire.membership import OperatorCommand, OperatorVerb
from fairtape.wire.seals import Keys

# The formation store of a simulated world: what SQLite and etcd do, said as plainly as it can be.


class MemoryFormationStore:
    """Survives every crash of a simulated node, as a disk does."""

    __slots__ = ("leadership", "log")

    def __init__(self) -> None:
        self.leadership: Leadership | None = None
        self.log: list[LogEntry] = []

    def answer(self, question: StoreRequest) -> StoreResponse:
        """Carry out one question. Always available: an outage is a fault of the world, not of the store."""
        match question:
            case Recall():
                latest = {entry.loop: entry for entry in self.log}
                return Recalled(self.leadership, tuple(latest[loop] for loop in sorted(latest)))
            case Claim():
                if self.leadership == question.expected:
                    self.leadership = question.wanted
                return Claimed(self.leadership)
            case Record():
                return self._record(question.entries)

    def close(self) -> None:
        """Nothing is held."""

    def _record(self, entries: tuple[LogEntry, ...]) -> Recorded | RecordRefused:
        assert len(entries) <= ENTRIES_MAX, f"{len(entries)} entries at once"
        appended = list(self.log)
        for entry in entries:
            numbers = [other.number for other in appended if other.loop == entry.loop]
            if self.leadership is None or entry.term != self.leadership.term:
                return RecordRefused(entries)
            if numbers and entry.number != numbers[-1] + 1:
                return RecordRefused(entries)
            appended.append(entry)
        self.log = appended
        return Recorded(entries)


OPERATOR: Final = 999_999
PENDING_MAX: Final = 10_000  # messages that wait for room in a source

Stream = tuple[NodeId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """Who there is, and what is between them."""

    topology: Topology
    reformers: tuple[NodeId, ...]
    sources: tuple[NodeId, ...]
    sky: Callable[[NodeId, NodeId], LinkFaults]
    seed: int = 0
    tree_loss: float | None = None  # of each branch of one multicast tree; None: links lose on their own
    durable: bool = True  # journals survive crashes whole; else their last entries may be lost
    latecomers: tuple[NodeId, ...] = ()  # sites that are not there from the beginning
    leader_lease: Duration = 300 * MILLISECOND
    store_delay: Duration = 2 * MILLISECOND
    datagram_max: int = DATAGRAM_MAX
    clocks: Mapping[NodeId, SimulatedClock] = field(default_factory=dict)


class StoreRoom:
    """The formation store as reformation servers reach it."""

    def __init__(self, delay: Duration, chance: Random) -> None:
        self.store = MemoryFormationStore()
        self.closed = False  # an outage
        self.cut_off: set[NodeId] = set()  # who cannot reach it
        self._delay = delay
        self._chance = chance

    def consult(self, node: NodeId, question: StoreRequest) -> tuple[Duration, StoreResponse]:
        """An answer after a while; in an outage none, though the question may have been carried out all the same."""
        delay = int(self._delay * self._chance.uniform(0.5, 2.0))
        if self.closed or node in self.cut_off:
            if self._chance.random() < 0.2:
                self.store.answer(question)
            return SECOND // 4, Unavailable(question)
        return delay, self.store.answer(question)


class Cluster:
    """A deployment that runs."""

    def __init__(self, plan: ClusterPlan) -> None:
        self.plan = plan
        self.published: dict[Stream, list[bytes]] = {}
        self.shelves: dict[NodeId, SimulatedJournal] = {}
        self.homes = dict(plan.topology.homes())
        self.sites = tuple(self.homes)
        chance = Random(f"realm {plan.seed}")  # noqa: S311 - a simulation
        everyone = (*self.sites, *plan.reformers, *plan.sources)
        tree = Tree.grown(everyone, plan.tree_loss, chance) if plan.tree_loss is not None else None
        self.world = World(chance=chance, sky=plan.sky, tree=tree)
        self._power = Random(f"power {plan.seed}")  # noqa: S311
        self.store = StoreRoom(plan.store_delay, Random(f"store {plan.seed}"))  # noqa: S311
        self.world.archive = self.store
        self._keys = Keys.from_secret(b"a realm", (*self.sites, *plan.reformers, OPERATOR), plan.sources)
        self._incarnations = dict.fromkeys(plan.sources, 1)
        self._pending: dict[NodeId, list[bytes]] = {source: [] for source in plan.sources}
        self._serial = 0

    def settle(self) -> None:
        """Seat everyone but those who come late."""
        for reformer in self.plan.reformers:
            self.world.add(reformer, self._new_reformer(reformer), clock=self._clock(reformer))
        for site in self.sites:
            if site not in self.plan.latecomers:
                self.seat(site)
        for source in self.plan.sources:
            machine = self._new_source(source)
            self.world.add(source, machine, channels=(Channel.CONTROL,), clock=self._clock(source))

    def seat(self, site: NodeId) -> None:
        """Let a site come that was not there."""
        if site in self.shelves:
            return
        self.shelves[site] = SimulatedJournal()
        self.world.add(
            site,
            self._new_site(site),
            channels=(Channel.DATA, Channel.CONTROL),
            clock=self._clock(site),
            shelf=self.shelves[site],
        )

    def run(self, period: Duration) -> None:
        """Let time pass."""
        self.world.run(self.world.now + period)

    def site(self, node: NodeId) -> Site:
        """The machine of a site."""
        machine = self.world.machine(node)
        assert isinstance(machine, Site)
        return machine

    def source(self, node: NodeId) -> Source:
        """The machine of a source."""
        machine = self.world.machine(node)
        assert isinstance(machine, Source)
        return machine

    def leader(self) -> Reformer | None:
        """The reformation server that leads now."""
        for node in self.plan.reformers:
            machine = self.world.machine(node)
            assert isinstance(machine, Reformer)
            if self.world.is_up(node) and machine.leads(self.world.clock(node).read(self.world.now)):
                return machine
        return None

    def reborn(self, node: NodeId) -> Machine:
        """A new incarnation of whatever sits there, with its journal if it has one."""
        if node in self.homes:
            if not self.plan.durable:
                self.shelves[node].lose_power(self._power)
            return self._new_site(node)
        if node in self.plan.reformers:
            return self._new_reformer(node)
        self._incarnations[node] += 1
        return self._new_source(node)

    def publish(self, source: NodeId, messages: Sequence[bytes]) -> None:
        """Give an application's messages to a source; what it has no room for is offered again."""
        room = PENDING_MAX - len(self._pending[source])
        self._pending[source] += messages[: max(room, 0)]
        self._offer(source)

    def pending(self) -> int:
        """Messages that no source has taken yet."""
        return sum(len(waiting) for node, waiting in self._pending.items() if self.world.is_up(node))

    def order(self, verb: OperatorVerb, site: NodeId = 0) -> None:
        """The operator speaks to all reformation servers."""
        self._serial += 1
        box = MessageAuthenticator(
            me=OPERATOR, keys=self._keys, peers=self._keys.sites, first_serial=self.world.now + self._serial
        )
        datagram = box.for_membership(OperatorCommand(0, 0, OPERATOR, verb, site))
        for reformer in self.plan.reformers:
            self.world.inject(reformer, datagram)

    def _offer(self, node: NodeId) -> None:
        waiting, world = self._pending[node], self.world

        def offer(now: Instant) -> None:
            taken = self.source(node).publish(waiting, now)
            self.published.setdefault((node, self._incarnations[node]), []).extend(waiting[:taken])
            del waiting[:taken]

        if waiting and world.is_up(node) and not world.is_paused(node):
            world.touch(node, offer)
        if waiting:
            world.at(world.now + self.plan.topology.primary.timing.retry_period, lambda: self._offer(node))

    def _clock(self, node: NodeId) -> SimulatedClock:
        return self.plan.clocks.get(node) or TrueClock()

    def _born_at(self, node: NodeId) -> Instant:
        return self._clock(node).read(self.world.now)

    def _new_site(self, node: NodeId) -> Site:
        clock, plan = self._clock(node), self.plan
        post = SiteConfig(
            me=node,
            reformers=plan.reformers,
            timing=plan.topology.primary.timing,
            home=self.homes[node],
            durable=plan.durable,
            datagram_max=plan.datagram_max,
        )
        return Site(
            post,
            keys=self._keys,
            born_at=self._born_at(node),
            recovered=self.shelves[node].truncate_after(1 << 62),
            clock_bound=lambda: clock.bound,
            tracer=Tracer(),
        )

    def _new_reformer(self, node: NodeId) -> Reformer:
        clock = self._clock(node)
        bench = ReformerConfig(me=node, operator=OPERATOR, leader_lease=self.plan.leader_lease)
        return Reformer(
            bench, self.plan.topology, keys=self._keys, born_at=self._born_at(node), clock_bound=lambda: clock.bound
        )

    def _new_source(self, node: NodeId) -> Source:
        topology = self.plan.topology
        return Source(
            me=node,
            keys=self._keys.for_source(node),
            timing=topology.primary.timing,
            resilience=topology.resilience_of(topology.primary.tour),
            incarnation=self._incarnations[node],
            datagram_max=self.plan.datagram_max,
        )


__all__ = ["EPOCH", "OPERATOR", "Cluster", "ClusterPlan", "StoreRoom", "Stream"]
