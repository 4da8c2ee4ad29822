"""Faults of a deployment as values: of its links, journals, clocks, keys and store, and of what its sources publish.

`fault_schedule` draws them, a scenario names them, and `ClusterFaults` carries them out. Each says what it does to the
truth; what the machines can learn of it is their matter.

`Equivocation` is excluded from the schedules: a source or a site that seals two texts under one number has broken the
one assumption that no machine can do without, as long as no evidence of it is kept (see "Guarantees" in PROTOCOL).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import ClassVar, Final, TypeAlias

from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.simulation.clocks import DRIFT_STAGES, Offset, OffsetClock, SimulatedClock, TrueClock
from fairtape.simulation.cluster import SECRET, Cluster
from fairtape.simulation.simulated_journal import JournalCopy
from fairtape.wire.frames import (
    BLOCK_HEADER,
    Ack,
    Kind,
    NodeId,
    decode_block,
    decode_control,
    encode_control,
    is_block,
    serial_of,
)
from fairtape.wire.membership import OperatorVerb
from fairtape.wire.seals import Authenticator, Keys, Seal

Link: TypeAlias = tuple[NodeId, NodeId]


@dataclass(frozen=True, slots=True)
class CutPairs:
    """No datagram passes between the nodes of these pairs. Who reaches whom is not transitive."""

    name: ClassVar = "cut pairs"
    at: Instant
    pairs: tuple[Link, ...]
    period: Duration


@dataclass(frozen=True, slots=True)
class CutOneWay:
    """No datagram passes from the first to the second node of these links; the other directions stay open."""

    name: ClassVar = "cut one way"
    at: Instant
    links: tuple[Link, ...]
    period: Duration


@dataclass(frozen=True, slots=True)
class EmptyJournal:
    """A site crashes; after a period it starts again with an empty journal, which has another identity."""

    name: ClassVar = "empty journal"
    at: Instant
    node: NodeId
    period: Duration


@dataclass(frozen=True, slots=True)
class RolledBackJournal:
    """A site crashes; after a period it starts again with a copy of its journal that is `age` older than the crash."""

    name: ClassVar = "rolled-back journal"
    at: Instant
    node: NodeId
    age: Duration
    period: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondRestart:
    """A site restarts with an older copy of its journal, after a first restart: its own, or one of another site.

    The restart of another site begins a formation, and the copy may end in the one before. A peer that holds as much as
    the site crashes with it, and the others have been cut off from both and from the sources since `cut_at`.
    """

    name: ClassVar = "second restart"
    at: Instant
    node: NodeId
    age: Duration
    period: Duration
    first: NodeId
    first_at: Instant
    first_period: Duration
    peer: NodeId
    cut_at: Instant


@dataclass(frozen=True, slots=True)
class ClockSetBack:
    """A node crashes and, after a period, starts again with its clock set back `by` so much.

    Where it was `ahead`, it had been wrong since `since` and is right now; otherwise it is wrong until `until`.
    """

    name: ClassVar = "clock set back"
    at: Instant
    node: NodeId
    period: Duration
    by: Duration
    since: Instant
    until: Instant
    ahead: bool
    declared: bool  # whether the bound covers the error

    def offsets(self) -> list[Offset]:
        """The offsets of the clock of this node."""
        declared = self.by if self.declared else 0
        if self.ahead:
            return [Offset(self.since, self.by, declared), Offset(self.at, 0)]
        return [Offset(self.at, -self.by, declared), Offset(self.until, 0)]


@dataclass(frozen=True, slots=True)
class StoppedMachine:
    """A virtual machine stands still, and its clock with it. The clock is corrected later; its bound does not know."""

    name: ClassVar = "stopped machine"
    at: Instant
    node: NodeId
    period: Duration
    corrected_at: Instant
    slewed: bool  # corrected in small steps, from `corrected_at` on

    def offsets(self) -> list[Offset]:
        """The offsets of the clock of this node."""
        stages = DRIFT_STAGES if self.slewed else 1
        corrected = [
            Offset(self.corrected_at + stage * 50 * MILLISECOND, -self.period * (stages - 1 - stage) // stages)
            for stage in range(stages)
        ]
        return [Offset(self.at, -self.period), *corrected]


@dataclass(frozen=True, slots=True)
class BadClock:
    """A clock loses its reference until all faults end, and declares it."""

    name: ClassVar = "bad clock"
    at: Instant
    node: NodeId
    error: Duration
    until: Instant

    def offsets(self) -> list[Offset]:
        """The offsets of the clock of this node."""
        return [Offset(self.at, self.error, abs(self.error)), Offset(self.until, 0)]


@dataclass(frozen=True, slots=True)
class Flapping:
    """A site crashes and restarts again and again: (how long it is down, how long it runs) each time."""

    name: ClassVar = "flapping"
    at: Instant
    node: NodeId
    times: tuple[tuple[Duration, Duration], ...]


@dataclass(frozen=True, slots=True)
class SlowStore:
    """Every call of the store takes at least this long, for a period; or, without a period, the next call."""

    name: ClassVar = "slow store"
    at: Instant
    delay: Duration
    period: Duration


@dataclass(frozen=True, slots=True)
class LateAnswers:
    """The store carries claims out, and their answers come late, for a period."""

    name: ClassVar = "late answers"
    at: Instant
    late: Duration
    period: Duration


@dataclass(frozen=True, slots=True)
class LostAnswer:
    """The store carries out the next claim of one server, whose answer is lost; later the server cannot reach it."""

    name: ClassVar = "lost answer"
    at: Instant
    node: NodeId
    gives_up_after: Duration
    gone_at: Instant
    gone_period: Duration


@dataclass(frozen=True, slots=True)
class RestoredStore:
    """The store is restored from a backup that lacks the last formations."""

    name: ClassVar = "restored store"
    at: Instant
    formations: int


@dataclass(frozen=True, slots=True)
class LostStore:
    """The store is lost, and an empty one takes its place; after a period the operator says so."""

    name: ClassVar = "lost store"
    at: Instant
    period: Duration = 0


@dataclass(frozen=True, slots=True)
class CopiedFolder:
    """Servers use the store of a copy of the folder, which is empty at first, for a period; some sites hear no other.

    The sites are cut off from all others but the last source.
    """

    name: ClassVar = "copied folder"
    at: Instant
    servers: tuple[NodeId, ...]
    sites: tuple[NodeId, ...]  # cut off with these servers
    period: Duration


@dataclass(frozen=True, slots=True)
class DelayedLeader:
    """What the leader sends to some sites is held, it dies, and after a period the sites receive it."""

    name: ClassVar = "delayed leader"
    at: Instant
    sites: tuple[NodeId, ...]
    dies_after: Duration
    period: Duration


@dataclass(frozen=True, slots=True)
class MissingKey:
    """A site starts again without the key of one source; after a period, with it."""

    name: ClassVar = "missing key"
    at: Instant
    node: NodeId
    source: NodeId
    period: Duration


@dataclass(frozen=True, slots=True)
class BusySource:
    """A source always has something to send, while the others are as quiet as before."""

    name: ClassVar = "busy source"
    at: Instant
    source: NodeId
    every: Duration
    until: Instant


@dataclass(frozen=True, slots=True)
class LargeMessages:
    """A source publishes messages of many datagrams."""

    name: ClassVar = "large messages"
    at: Instant
    source: NodeId
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Equivocation:
    """What a source or a site says, some sites hear otherwise, under the same numbers. Excluded: see above."""

    name: ClassVar = "equivocation"
    at: Instant
    node: NodeId
    to: tuple[NodeId, ...]
    period: Duration


ClusterFault: TypeAlias = (
    CutPairs
    | CutOneWay
    | EmptyJournal
    | RolledBackJournal
    | SecondRestart
    | ClockSetBack
    | StoppedMachine
    | BadClock
    | Flapping
    | SlowStore
    | LateAnswers
    | LostAnswer
    | RestoredStore
    | LostStore
    | CopiedFolder
    | DelayedLeader
    | MissingKey
    | BusySource
    | LargeMessages
    | Equivocation
)
PEER_AWAY: Final = 600 * MILLISECOND  # longer than the site itself: the ring goes on before it returns
CLOCK_FAULTS: Final = (ClockSetBack, StoppedMachine, BadClock)


def with_offsets(
    clocks: Mapping[NodeId, SimulatedClock], faults: Iterable[ClusterFault]
) -> dict[NodeId, SimulatedClock]:
    """The clocks of a cluster under these faults: at most one of them for each clock."""
    offset: dict[NodeId, SimulatedClock] = {}
    for fault in faults:
        if isinstance(fault, CLOCK_FAULTS):
            assert fault.node not in offset
            offset[fault.node] = OffsetClock(clocks.get(fault.node) or TrueClock(), fault.offsets())
    return {**clocks, **offset}


class ClusterFaults:
    """Carries the faults of one run out, and notes which of them took place."""

    def __init__(self, cluster: Cluster, chance: Random) -> None:
        self.occurred: set[str] = set()
        self._cluster = cluster
        self._chance = chance
        self._copies: dict[NodeId, JournalCopy] = {}
        self._two_faced: tuple[NodeId, tuple[NodeId, ...]] | None = None

    def schedule(self, fault: ClusterFault) -> None:  # noqa: C901 - one case for each kind of fault
        """Put one fault on the event queue of the cluster."""
        match fault:
            case CutPairs():
                self._cut(fault, [*fault.pairs, *((to, origin) for origin, to in fault.pairs)])
            case CutOneWay():
                self._cut(fault, list(fault.links))
            case EmptyJournal():
                self._crash(fault, fault.node, fault.period, partial(self._lose_journal, fault))
            case RolledBackJournal():
                self._at(fault.at - fault.age, partial(self._copy_journal, fault.node))
                self._crash(fault, fault.node, fault.period, partial(self._roll_back_journal, fault))
            case SecondRestart():
                self._schedule_second_restart(fault)
            case ClockSetBack():
                self._crash(fault, fault.node, fault.period)
            case StoppedMachine():
                self._at(fault.at, partial(self._cluster.world.pause, fault.node), fault)
                self._at(fault.at + fault.period, partial(self._cluster.world.resume, fault.node))
            case Flapping():
                at = fault.at
                for down, up in fault.times:
                    self._crash(replace(fault, at=at), fault.node, down)
                    at += down + up
            case MissingKey():
                missing = self._cluster.missing_keys
                self._crash(fault, fault.node, 0, partial(missing.__setitem__, fault.node, {fault.source}))
                again = replace(fault, at=fault.at + fault.period)
                self._crash(again, fault.node, 0, partial(missing.pop, fault.node, None))
            case SlowStore() | LateAnswers() | LostAnswer() | RestoredStore() | LostStore():
                self._schedule_store_fault(fault)
            case CopiedFolder():
                self._at(fault.at, partial(self._copy_folder, fault))
            case DelayedLeader():
                self._at(fault.at, partial(self._delay_leader, fault))
            case BusySource():
                for at in range(fault.at, fault.until, fault.every):
                    self._at(at, partial(self._publish, fault.source, 64), fault)
            case LargeMessages():
                for size in fault.sizes:
                    self._at(fault.at, partial(self._publish, fault.source, size), fault)
            case Equivocation():
                self._at(fault.at, partial(self._be_two_faced, fault), fault)
                self._at(fault.at + fault.period, self._be_honest)
            case BadClock():
                self._at(fault.at, lambda: None, fault)

    def _at(self, at: Instant, act: Callable[[], object], fault: ClusterFault | None = None) -> None:
        def carry_out() -> None:
            if fault is not None:
                self.occurred.add(fault.name)
            act()

        self._cluster.world.at(at, carry_out)

    def _cut(self, fault: CutPairs | CutOneWay, links: list[Link]) -> None:
        network = self._cluster.world.network
        self._at(fault.at, partial(network.cut_links, links), fault)
        self._at(fault.at + fault.period, partial(network.mend_links, links))

    def _crash(
        self, fault: ClusterFault, node: NodeId, period: Duration, prepare: Callable[[], object] | None = None
    ) -> None:
        """The node crashes, and after a period it is prepared and starts again, unless it was not there at all."""
        cluster = self._cluster

        def is_there() -> bool:
            return node not in cluster.homes or node in cluster.journals

        def crash() -> None:
            if is_there():
                self.occurred.add(fault.name)
                cluster.world.crash(node)

        def restart() -> None:
            if is_there():
                if prepare is not None:
                    cluster.world.crash(node)
                    prepare()
                cluster.world.restart(node, cluster.new_incarnation(node))

        self._at(fault.at, crash)
        self._at(fault.at + period, restart)

    # Journals.

    def _lose_journal(self, fault: EmptyJournal) -> None:
        self._cluster.journals[fault.node].lose_everything()

    def _copy_journal(self, node: NodeId) -> None:
        if node in self._cluster.journals:
            self._copies[node] = self._cluster.journals[node].copy()

    def _schedule_second_restart(self, fault: SecondRestart) -> None:
        cluster, network = self._cluster, self._cluster.world.network
        self._at(fault.at - fault.age, partial(self._copy_journal, fault.node))
        self._crash(replace(fault, at=fault.first_at), fault.first, fault.first_period)
        self._crash(fault, fault.node, fault.period, partial(self._roll_back_journal, fault))
        self._crash(replace(fault, at=fault.at + MILLISECOND), fault.peer, fault.period + PEER_AWAY)
        pair = (fault.node, fault.peer)
        others = [site for site in cluster.sites if site not in pair]
        links = [(one, other) for one in (*pair, *cluster.plan.sources) for other in others]
        links += [(other, one) for one, other in links]
        self._at(fault.cut_at, partial(network.cut_links, links))
        self._at(fault.at + fault.period, partial(network.mend_links, links))

    def _roll_back_journal(self, fault: RolledBackJournal | SecondRestart) -> None:
        self._cluster.roll_back_journal(fault.node, self._copies.pop(fault.node, JournalCopy((), 0)))

    # The store.

    def _schedule_store_fault(self, fault: SlowStore | LateAnswers | LostAnswer | RestoredStore | LostStore) -> None:
        store, at = self._cluster.store_access, fault.at
        match fault:
            case SlowStore():
                self._at(at, partial(setattr, store, "call_delay" if fault.period else "next_call_delay", fault.delay))
                self._at(at + fault.period, partial(setattr, store, "call_delay", 0), fault)
            case LateAnswers():
                self._at(at, partial(setattr, store, "answers_late", fault.late), fault)
                self._at(at + fault.period, partial(setattr, store, "answers_late", 0))
            case LostAnswer():
                self._at(at, partial(store.answer_lost.__setitem__, fault.node, fault.gives_up_after), fault)
                self._at(fault.gone_at, partial(store.cut_off.add, fault.node))
                self._at(fault.gone_at + fault.gone_period, partial(store.cut_off.discard, fault.node))
            case RestoredStore():
                self._at(at, partial(self._restore_store, fault))
            case LostStore():
                self._at(at, store.lose, fault)
                self._at(at + fault.period, partial(self._cluster.command, OperatorVerb.ADOPT))

    def _restore_store(self, fault: RestoredStore) -> None:
        if self._cluster.store_access.restore(fault.formations):
            self.occurred.add(fault.name)

    def _copy_folder(self, fault: CopiedFolder) -> None:
        """The servers are started on another machine, with its own store."""
        cluster, plan, network = self._cluster, self._cluster.plan, self._cluster.world.network
        if not all(map(self._follows_a_store, cluster.journals)):
            return  # two machines may each begin: that is refused where a deployment is read
        self.occurred.add(fault.name)

        def move(change: Callable[[NodeId], None]) -> None:
            for server in fault.servers:
                change(server)
                cluster.world.crash(server)
                cluster.world.restart(server, cluster.new_incarnation(server))

        side = (*fault.servers, *fault.sites, plan.sources[-1])
        others = [each for each in (*cluster.sites, *plan.reformers, *plan.sources) if each not in side]
        links = [link for one in side for other in others for link in ((one, other), (other, one))]
        move(cluster.store_access.copied.add)
        self._at(fault.at + fault.period, partial(move, cluster.store_access.copied.discard))
        if fault.sites:
            network.cut_links(links)
            self._at(fault.at + fault.period, partial(network.mend_links, links))

    def _follows_a_store(self, site: NodeId) -> bool:
        """Whether a site is in a formation, or learns of one from its journal."""
        cluster = self._cluster
        if cluster.world.is_up(site):
            return cluster.site(site).formation is not None
        return cluster.journals[site].recovered().layout is not None

    # Leaders.

    def _delay_leader(self, fault: DelayedLeader) -> None:
        """The present leader dies, and its datagrams to these sites arrive when another one leads."""
        leader, world = self._cluster.leader(), self._cluster.world
        if leader is None or len(self._cluster.plan.reformers) == 1:
            return
        self.occurred.add(fault.name)
        me = leader.config.me
        for site in fault.sites:
            world.network.clog(me, site)
            self._at(fault.at + fault.period, partial(world.network.unclog, me, site))
        self._at(fault.at + fault.dies_after, partial(world.crash, me))
        self._at(fault.at + fault.period, lambda: world.restart(me, self._cluster.new_incarnation(me)))

    # Sources.

    def _publish(self, source: NodeId, size: int) -> None:
        self._cluster.publish(source, [self._chance.randbytes(size)])

    def _be_two_faced(self, fault: Equivocation) -> None:
        self._two_faced = fault.node, fault.to
        self._cluster.world.network.substitution = self._other_text

    def _be_honest(self) -> None:
        self._cluster.world.network.substitution = self._two_faced = None

    def _other_text(self, origin: NodeId, to: NodeId, datagram: bytes) -> bytes:
        """What this node says to the sites that hear it otherwise: as correctly sealed as the first text."""
        assert self._two_faced is not None
        node, sites = self._two_faced
        if origin != node or to not in sites:
            return datagram
        keys = Keys.from_secret(SECRET, (node,), (node,))
        if is_block(datagram):
            frame = decode_block(datagram)
            if frame.source != node:
                return datagram
            seal = Seal(keys.sources[node], stripe=0, source=node, incarnation=frame.incarnation)
            body = seal.open(datagram, frame.first)
            return seal.close(datagram[: BLOCK_HEADER.size], frame.first, body[:-1] + b"?")
        if datagram[2] != Kind.ACK:
            return datagram
        ack = decode_control(datagram)
        assert isinstance(ack, Ack)
        other = replace(ack, ranges=ack.ranges[::-1], marks=ack.marks[::-1])
        return Authenticator(keys.sites[node]).prove(encode_control(other, serial_of(datagram)))
