"""A deployment in virtual time: sites with journals, reformation servers with their store, and sources.

A cluster is built from a `ClusterPlan` and simulates everything around the machines: journals that survive a restart,
access to the formation store, and applications that publish. Faults and operator commands come from outside. A bare
ring is a cluster with a fixed formation: its sites are receivers without journals, and it has no reformation servers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from random import Random
from typing import Final, TypeAlias

from fairtape.core.effects import Channel, Ordered
from fairtape.core.entries import Entry
from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.machine import Machine
from fairtape.core.spans import StreamId
from fairtape.nodes.coordinator.server import Reformer, ReformerConfig
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.receiver import Receiver
from fairtape.nodes.site import Site, SiteConfig
from fairtape.nodes.source import Source
from fairtape.nodes.source_group import SourceGroup
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.topology import Topology
from fairtape.ring.receiver.recovery import TransitionObserver
from fairtape.ring.receiver.tracing import Tracer
from fairtape.simulation.clocks import SimulatedClock, TrueClock
from fairtape.simulation.network import LinkModel, Tree
from fairtape.simulation.processors import Placement
from fairtape.simulation.simulated_journal import JournalCopy, SimulatedJournal
from fairtape.simulation.simulated_store import SimulatedStoreAccess
from fairtape.simulation.world import World, chance_for
from fairtape.storage.incarnations import SERIALS_MAX
from fairtape.wire.frames import DATAGRAM_MAX, NodeId
from fairtape.wire.membership import MembershipState, OperatorCommand, OperatorVerb
from fairtape.wire.seals import Keys

OPERATOR: Final = 999_999
PENDING_MAX: Final = 10_000  # messages that wait until a source accepts them
RECORD_MAX: Final = 120  # bytes of a message that fits the smallest block
FILLER: Final = b"chatter"  # in the digest of every history, as the secret is, so neither must change
SECRET: Final = b"a realm"

Extent: TypeAlias = tuple[int, int]
"""A formation, and the number after the last message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """The nodes, links and clocks of a cluster."""

    topology: Topology
    reformers: tuple[NodeId, ...]
    sources: tuple[NodeId, ...]
    link_model: LinkModel
    delay_shares: tuple[float, float] | None = None  # each link has a share between these of its delay, drawn once
    group: tuple[NodeId, ...] = ()  # sources of one process, behind one machine at the address of the first
    record_sources: tuple[NodeId, ...] = ()  # sources that publish short messages of one size as records
    seed: int = 0
    tree_loss: float | None = None  # per edge of one multicast tree; None: links lose independently
    durable: bool = True  # journals survive crashes completely; else their last entries may be lost
    late_sites: tuple[NodeId, ...] = ()  # sites that are started later, with `start_site`
    leader_lease: Duration = 300 * MILLISECOND
    store_delay: Duration = 2 * MILLISECOND
    datagram_max: int = DATAGRAM_MAX
    clocks: Mapping[NodeId, SimulatedClock] = field(default_factory=dict)
    placement: Callable[["Cluster", NodeId], Placement] | None = None  # on processors; None: turns take no time
    formation: Formation | None = None  # of a bare ring, fixed from its start; None: reformation servers make them
    echo: bool = False  # a node receives its own multicasts
    stream: str = "realm"  # the random numbers of the network; this name and the secret are part of every history
    secret: bytes = SECRET


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """What an older copy of a journal lacked: token and number of each message."""

    known: frozenset[tuple[int, int]]  # the site had reported to the leader that it held them
    unknown: frozenset[tuple[int, int]]
    term: int  # of that leader
    recorded: int  # the count of entries that the store had recorded


class Cluster:
    """A running deployment."""

    def __init__(self, plan: ClusterPlan) -> None:
        self.plan = plan
        self.published: dict[StreamId, list[bytes]] = {}
        self.journals: dict[NodeId, SimulatedJournal] = {}
        self._rollbacks: list[Rollback] = []
        self._reported: dict[NodeId, dict[tuple[NodeId, int], Extent]] = {}  # of each site, to each leader in its term
        self.resumed = False  # the operator has ordered to go on, with a smaller K or a Break
        self.missing_keys: dict[NodeId, set[NodeId]] = {}  # the sources whose keys a site lacks when it starts
        self._written: dict[bytes, tuple[bytes, Entry]] = {}  # by all sites
        self.homes = dict(plan.topology.homes())
        self.sites = tuple(self.homes)
        self.tracers: dict[NodeId, Tracer] = {}
        self.observe: Callable[[NodeId], TransitionObserver] | None = None  # the recoveries of each site, once started
        chance = chance_for(plan.stream, plan.seed)
        nodes = (*self.sites, *plan.reformers, *plan.sources)
        link_model = self._link_model(nodes, chance)
        tree = Tree.random(nodes, plan.tree_loss, chance) if plan.tree_loss is not None else None
        self.world = World(chance=chance, link_model=link_model, tree=tree, echo=plan.echo)
        self._power = Random(f"power {plan.seed}")  # noqa: S311
        store_chance = Random(f"store {plan.seed}")  # noqa: S311 - a simulation
        self.store_access = SimulatedStoreAccess(plan.store_delay, store_chance, now=lambda: self.world.now)
        self.world.store_access = self.store_access
        self._keys = Keys.from_secret(plan.secret, (*self.sites, *plan.reformers, OPERATOR), plan.sources)
        self._incarnations = dict.fromkeys(plan.sources, 1)
        for place, source in enumerate(plan.group):
            self._incarnations[source] += place  # the incarnations of a group are distinct
        self._last_incarnations: dict[NodeId, int] = {}  # of sites and reformation servers, as on their disks
        self._pending: dict[NodeId, list[bytes]] = {source: [] for source in plan.sources}
        self._fillers = dict.fromkeys(plan.sources, 0)
        self._serial = 0

    def start(self) -> None:
        """Start all nodes except the late sites."""
        for reformer in self.plan.reformers:
            self.world.add(
                reformer,
                self._new_reformer(reformer),
                clock=self._clock(reformer),
                placement=self._placement(reformer),
            )
        for site in self.sites:
            if site not in self.plan.late_sites:
                self.start_site(site)
        for source, *others in self._source_processes():
            self.world.add(
                source,
                self._new_sources(source),
                channels=(Channel.CONTROL,),
                clock=self._clock(source),
                placement=self._placement(source),
                also=others,
            )

    def start_site(self, site: NodeId) -> None:
        """Start a late site; one that was started is left alone."""
        if site in self.journals:
            return
        if self.plan.formation is None:
            self.journals[site] = SimulatedJournal(self._written, identity=site)
        self.world.add(
            site,
            self._new_site(site) if self.plan.formation is None else self._new_receiver(site, self.plan.formation),
            channels=(Channel.DATA, Channel.CONTROL),
            clock=self._clock(site),
            journal=self.journals.get(site),
            placement=self._placement(site),
        )

    def run(self, period: Duration) -> None:
        self.world.run(self.world.now + period)

    def site(self, node: NodeId) -> Site:
        machine = self.world.machine(node)
        assert isinstance(machine, Site)
        return machine

    def receiver(self, node: NodeId) -> Receiver:
        """A site of a fixed formation."""
        machine = self.world.machine(node)
        assert isinstance(machine, Receiver)
        return machine

    def source(self, node: NodeId) -> Source:
        machine = self.world.machine(node)
        if isinstance(machine, SourceGroup):
            return machine.sources[node]
        assert isinstance(machine, Source)
        return machine

    def reformer(self, node: NodeId) -> Reformer:
        machine = self.world.machine(node)
        assert isinstance(machine, Reformer)
        return machine

    def leader(self) -> Reformer | None:
        """The reformation server that is the leader now, by the store of the deployment."""
        for node in self.plan.reformers:
            if node in self.store_access.copied:
                continue
            machine = self.reformer(node)
            if self.world.is_up(node) and machine.leads(self.world.clock(node).read(self.world.now)):
                return machine
        return None

    def new_incarnation(self, node: NodeId) -> Machine:
        """A new machine for a restarted node, with its journal if it is a site."""
        assert self.plan.formation is None or node not in self.homes, (
            f"site {node} cannot enter a fixed formation again"
        )
        if node in self.homes:
            self._note_reported(node)
            if not self.plan.durable:
                self.journals[node].lose_power(self._power)
            return self._new_site(node)
        if node in self.plan.reformers:
            return self._new_reformer(node)
        for source in self.plan.group if node in self.plan.group else (node,):
            self._incarnations[source] += max(len(self.plan.group), 1)
        return self._new_sources(node)

    def roll_back_journal(self, site: NodeId, copy: JournalCopy) -> None:
        """Replace the journal of a stopped site by an older copy. The truth is noted: its identity does not show it."""
        self._note_reported(site)
        journal, leader = self.journals[site], self._leader_and_term()
        end = copy.entries[-1].token if copy.entries else 0
        reported = self._reported.get(site, {}).get(leader, (0, 0)) if leader is not None else (0, 0)
        lost = [
            (entry, entry.sequence + offset)
            for entry in journal.entries
            if isinstance(entry, Ordered) and entry.token > end
            for offset in range(entry.count)
        ]
        known = {(e.token, number) for e, number in lost if e.formation <= reported[0] and number < reported[1]}
        self._rollbacks.append(
            Rollback(
                known=frozenset(known),
                unknown=frozenset({(e.token, number) for e, number in lost} - known),
                term=leader[1] if leader is not None else 0,
                recorded=len(self.store_access.recorded),
            )
        )
        journal.restore(copy)

    def rolled_back(self) -> frozenset[tuple[int, int]]:
        """Token and number of messages that copies of journals lacked, where the leader that decided had no report.

        A leader that knew what the site had held, and then recorded the next formation, is not excused.
        """
        lost: set[tuple[int, int]] = set()
        for each in self._rollbacks:
            following = (entry.term for entry in self.store_access.recorded[each.recorded :] if entry.loop == 0)
            lost |= each.unknown if next(following, each.term) == each.term else each.unknown | each.known
        return frozenset(lost)

    def _leader_and_term(self) -> tuple[NodeId, int] | None:
        leader = self.leader()
        return None if leader is None else (leader.config.me, leader.primary.term)

    def _note_reported(self, site: NodeId) -> None:
        """What the leader knows that a site holds as a member of the present formation, before the site restarts."""
        leader, who = self.leader(), self._leader_and_term()
        if leader is None or who is None or site not in leader.primary.known or leader.primary.formation is None:
            return
        report = leader.primary.known[site].report
        acts = report.membership_state in (MembershipState.MEMBER, MembershipState.FENCED)
        if acts and report.formation == leader.primary.formation.number:
            reported = self._reported.setdefault(site, {})
            reported[who] = max(reported.get(who, (0, 0)), (report.formation, report.sequence))

    def publish(self, source: NodeId, messages: Sequence[bytes]) -> None:
        """Publish messages through a source; what it does not accept is offered again later."""
        capacity = PENDING_MAX - len(self._pending[source])
        self._pending[source] += messages[: max(capacity, 0)]
        self._offer(source)

    def pending(self) -> int:
        """The count of messages that running sources have not accepted yet."""
        return sum(len(waiting) for node, waiting in self._pending.items() if self.world.is_up(node))

    def running_sources(self) -> list[Source]:
        return [self.source(node) for node in self.plan.sources if self.world.is_up(node)]

    def numbers_used(self, stream: StreamId) -> int:
        """How many numbers an incarnation has used for messages that must arrive; 0 if it no longer runs."""
        source, incarnation = stream
        if not self.world.is_up(source) or self.source(source).incarnation != incarnation:
            return 0
        return self.source(source).next_number - 1 - self._fillers[source]

    def publish_filler(self, source: NodeId) -> None:
        """Publish one message that need not arrive, unless others are waiting."""
        if self.world.is_up(source) and not self._pending[source]:
            self._fillers[source] += 1
            self.publish(source, [FILLER])

    def command(self, verb: OperatorVerb, site: NodeId = 0) -> None:
        """Send an operator command to all reformation servers."""
        self._serial += 1
        self.resumed = self.resumed or verb in (OperatorVerb.RESUME, OperatorVerb.ADOPT)
        if verb is OperatorVerb.ADOPT:
            site = self.store_access.store.identity
        authenticator = MessageAuthenticator(
            me=OPERATOR, keys=self._keys, peers=self._keys.sites, first_serial=self.world.now + self._serial
        )
        leader = self.leader()
        present = leader.primary.formation if leader is not None and verb is OperatorVerb.RESUME else None
        formation = present.number if present is not None else 0
        datagram = authenticator.for_membership(OperatorCommand(0, formation, OPERATOR, verb, site))
        for reformer in self.plan.reformers:
            self.world.inject(reformer, datagram)

    def _offer(self, node: NodeId) -> None:
        waiting, world = self._pending[node], self.world

        def offer(now: Instant) -> None:
            publish = _publish_records if node in self.plan.record_sources else Source.publish
            taken = publish(self.source(node), waiting, now)
            self.published.setdefault((node, self._incarnations[node]), []).extend(waiting[:taken])
            del waiting[:taken]

        if waiting and world.is_up(node) and not world.is_paused(node):
            world.touch(node, offer)
        if waiting:
            world.at(world.now + self.plan.topology.primary.timing.retry_period, lambda: self._offer(node))

    def _link_model(self, nodes: Sequence[NodeId], chance: Random) -> LinkModel:
        plan, links = self.plan, dict[tuple[NodeId, NodeId], LinkFaults]()
        if plan.delay_shares is None:
            return plan.link_model
        for origin in nodes:
            for to in nodes:
                link = plan.link_model(origin, to)
                links[origin, to] = replace(link, delay=int(link.delay * chance.uniform(*plan.delay_shares)))
        return lambda origin, to: links[origin, to]

    def _source_processes(self) -> list[tuple[NodeId, ...]]:
        """The sources of each process: usually one."""
        group = self.plan.group
        alone: list[tuple[NodeId, ...]] = [(source,) for source in self.plan.sources if source not in group]
        return [*alone, group] if group else alone

    def _clock(self, node: NodeId) -> SimulatedClock:
        return self.plan.clocks.get(node) or TrueClock()

    def _placement(self, node: NodeId) -> Placement | None:
        return None if self.plan.placement is None else self.plan.placement(self, node)

    def _born_at(self, node: NodeId) -> Instant:
        return self._clock(node).read(self.world.now)

    def _next_incarnation(self, node: NodeId) -> int:
        """What the node would read from its disk and write there."""
        last = self._last_incarnations.get(node)
        now = self._born_at(node)
        self._last_incarnations[node] = now if last is None else max(now, last + SERIALS_MAX)
        return self._last_incarnations[node]

    def _new_site(self, node: NodeId) -> Site:
        clock, plan = self._clock(node), self.plan
        config = SiteConfig(
            me=node,
            reformers=plan.reformers,
            timing=plan.topology.primary.timing,
            home=self.homes[node],
            durable=plan.durable,
            datagram_max=plan.datagram_max,
        )
        missing = self.missing_keys.get(node, set())
        known = {source: key for source, key in self._keys.sources.items() if source not in missing}
        return Site(
            config,
            keys=replace(self._keys, sources=known),
            born_at=self._born_at(node),
            incarnation=self._next_incarnation(node),
            recovered=self.journals[node].truncate_after(1 << 62),
            clock_bound=lambda: clock.bound,
            backlog=partial(self.world.backlog, node),
            observe=self._observer(node),
            tracer=self._tracer(node),
        )

    def _new_receiver(self, node: NodeId, formation: Formation) -> Receiver:
        clock = self._clock(node)
        return Receiver(
            me=node,
            formation=formation,
            keys=self._keys,
            born_at=min(self._born_at(node), formation.starts_at),  # a faulty clock may be past the start
            datagram_max=self.plan.datagram_max,
            clock_bound=lambda: clock.bound,
            backlog=partial(self.world.backlog, node),
            observe=self._observer(node),
            tracer=self._tracer(node),
        )

    def _observer(self, node: NodeId) -> TransitionObserver | None:
        return None if self.observe is None else self.observe(node)

    def _tracer(self, node: NodeId) -> Tracer:
        self.tracers[node] = Tracer()
        return self.tracers[node]

    def _new_reformer(self, node: NodeId) -> Reformer:
        clock = self._clock(node)
        config = ReformerConfig(me=node, operator=OPERATOR, leader_lease=self.plan.leader_lease)
        return Reformer(
            config,
            self.plan.topology,
            keys=self._keys,
            born_at=self._born_at(node),
            incarnation=self._next_incarnation(node),
            clock_bound=lambda: clock.bound,
        )

    def _new_sources(self, node: NodeId) -> Source | SourceGroup:
        group = self.plan.group
        return SourceGroup(map(self._new_source, group)) if node in group else self._new_source(node)

    def _new_source(self, node: NodeId) -> Source:
        topology = self.plan.topology
        return Source(
            me=node,
            keys=self._keys.for_source(node),
            timing=topology.primary.timing,
            pace_max=topology.pace_max,
            resilience=topology.resilience_of(topology.primary.tour),
            incarnation=self._incarnations[node],
            datagram_max=self.plan.datagram_max,
        )


def _publish_records(source: Source, messages: list[bytes], now: Instant) -> int:
    """Publish runs of one size as records, and messages that are too long for one block as messages."""
    accepted = 0
    for size, run in groupby(messages, key=len):
        records = list(run)
        if size <= RECORD_MAX:
            taken = source.publish_records(b"".join(records), size, now)
        else:
            taken = source.publish(records, now)
        accepted += taken
        if taken < len(records):
            break
    return accepted
