"""A cluster run: the fault schedule of one seed, built, run and checked.

In the safety phase every fault is on and no guarantee may break. Then all faults end: every site must become a member
again, every message must be in every journal, and all journals must be equal. A fixed formation cannot reform: there,
every message must arrive unless a site crashed, had a faulty clock or declared a failure; then only safety is required.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Final, Protocol

from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.ring.membership.formation import Formation
from fairtape.simulation.cluster import Cluster
from fairtape.simulation.cluster_checkers import ClusterCheckers
from fairtape.simulation.cluster_faults import ClusterFaults
from fairtape.simulation.fairness_checkers import FairnessCheckers
from fairtape.simulation.fault_schedule import Burst, FaultSchedule, Outage, draw
from fairtape.simulation.faults import Intruder, schedule_fault
from fairtape.simulation.operation_checkers import OperationCheckers
from fairtape.simulation.recorder import Recorder
from fairtape.simulation.ring_schedule import draw_ring
from fairtape.simulation.world import EPOCH, Spinning, Storm, Violation, chance_for
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import MembershipState, OperatorVerb

HEALING_MAX: Final = 60 * SECOND  # of virtual time, after which a healed cluster that has not settled is stuck
PATIENCE: Final = 60  # token or retry periods without a release, after which a healed ring is stuck
SIZES: Final = (8, 64, 500)  # bytes of a message, where a burst does not say it

NEVER_RAISES: Final = "NeverRaises"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The result of one seed."""

    seed: int
    guarantee: str | None = None  # the one that was broken
    node: NodeId | None = None
    text: str = ""
    all_delivered: bool = False  # whether every message arrived; else only safety was required
    reforming: int = 0  # reformations; in a fixed formation, the sites that declared a failure
    deliveries: int = 0  # datagrams delivered to nodes
    messages: int = 0  # messages published; in a fixed formation, those in the order
    late: int = 0  # releases marked late
    simulated: Duration = 0
    digest: int = 0
    durations: tuple[tuple[str, Duration], ...] = ()  # named durations, for distributions over many seeds
    counts: tuple[tuple[str, int], ...] = ()  # named counts, for sums over many seeds
    faults: tuple[str, ...] = ()  # the kinds of faults that took place

    @property
    def failed(self) -> bool:
        """Whether a guarantee was broken."""
        return self.guarantee is not None


class ClusterRun:
    """One fault schedule, built and running."""

    def __init__(self, schedule: FaultSchedule, *, record: tuple[Instant, Instant] | None = None) -> None:
        self.schedule = schedule
        self.cluster = Cluster(schedule.plan)
        self.checkers = ClusterCheckers(self.cluster)
        self.cluster.world.observers.append(self.checkers)
        if schedule.plan.formation is None:
            self.cluster.world.observers += [
                FairnessCheckers(self.cluster),
                OperationCheckers(self.cluster, self.checkers.formations),
            ]
        self.faults = ClusterFaults(self.cluster, chance_for("published by faults", schedule.seed))
        self.recorder: Recorder | None = None
        if record is not None:
            self.recorder = Recorder(self.cluster.world, since=record[0], until=record[1])
            self.cluster.observe = self.recorder.observer
        self.all_delivered = False  # whether nothing excused that something is missing
        self._text = Random(f"text {schedule.seed}")  # noqa: S311
        self.cluster.start()
        self._schedule()

    def _schedule(self) -> None:
        world, cluster = self.cluster.world, self.cluster
        for burst in self.schedule.bursts:
            world.at(burst.at, partial(cluster.publish, burst.source, self._messages(burst)))
        for fault in self.schedule.faults:
            schedule_fault(world, fault, cluster.new_incarnation)
        for outage in self.schedule.outages:
            world.at(outage.at, partial(self._close_store, outage))
            world.at(outage.at + outage.period, partial(self._open_store, outage))
        for cluster_fault in self.schedule.cluster_faults:
            self.faults.schedule(cluster_fault)
        for at, site in self.schedule.arrivals:
            world.at(at, partial(cluster.start_site, site))
        for at, verb, site in self.schedule.commands:
            world.at(at, partial(cluster.command, verb, site))
        if self.schedule.intruder_period:
            self._start_intruder()

    def _messages(self, burst: Burst) -> list[bytes]:
        if not burst.sizes:
            return [self._text.randbytes(self._text.choice(SIZES)) for _ in range(burst.messages)]
        text = self._text.randbytes(sum(burst.sizes))
        return [text[end - size : end] for size, end in zip(burst.sizes, accumulate(burst.sizes), strict=True)]

    def _start_intruder(self) -> None:
        cluster = self.cluster
        started = tuple(site for site in cluster.sites if site not in cluster.plan.late_sites)
        intruder = Intruder(
            cluster.world,
            targets=(*started, *cluster.plan.reformers, *cluster.plan.sources),
            period=self.schedule.intruder_period,
            chance=Random(f"intruder {self.schedule.seed}"),  # noqa: S311
        )
        cluster.world.observers.append(intruder)
        intruder.start(self.schedule.heals_at)

    def _close_store(self, outage: Outage) -> None:
        if outage.node is None:
            self.cluster.store_access.unavailable = True
        else:
            self.cluster.store_access.cut_off.add(outage.node)

    def _open_store(self, outage: Outage) -> None:
        if outage.node is None:
            self.cluster.store_access.unavailable = False
        else:
            self.cluster.store_access.cut_off.discard(outage.node)

    def run(self) -> None:
        """Both phases; `Violation` if a guarantee breaks."""
        world, cluster = self.cluster.world, self.cluster
        world.run(self.schedule.heals_at)
        self._heal()
        if cluster.plan.formation is None:
            self._wait_until_settled(HEALING_MAX)
        else:
            self._wait_for_arrival(cluster.plan.formation)
        self.checkers.ended({site: world.clock(site).read(world.now) for site in cluster.sites})
        if self._excused():
            return
        self.checkers.finish()
        if cluster.pending() or not self._settled():
            raise Violation("EverythingArrives", None, world.now, "a source has messages that are not settled")
        self.all_delivered = True

    def _wait_until_settled(self, at_most: Duration) -> None:
        world = self.cluster.world
        until = world.now + at_most
        while (unsettled := why_unsettled(self.cluster)) is not None:
            if world.now > until:
                raise Violation("HealsAtAll", None, world.now, unsettled)
            self._operate()
            world.run(world.now + SECOND // 4)

    def _wait_for_arrival(self, formation: Formation) -> None:
        """Run until all messages have arrived, or until nothing was released for `PATIENCE` steps."""
        world, timing = self.cluster.world, formation.timing
        delay_max = self.schedule.plan.link_model(formation.members[0], formation.members[0]).delay
        step = max(timing.token_period, timing.retry_period, delay_max)
        patience, progress = PATIENCE, -1
        while patience and not self._excused() and not ((arrived := self._arrived()) and self._settled()):
            patience = patience - 1 if self.checkers.releases == progress else PATIENCE
            progress = self.checkers.releases
            if not arrived and not formation.timed:  # RMP detects a lost acknowledgment only by a later one (2001 §2)
                self.cluster.publish_filler(self.schedule.plan.sources[0])
            world.run(world.now + step)

    def _arrived(self) -> bool:
        """Whether every message was sent, and released everywhere."""
        unsent = self.cluster.pending() or any(source.queued for source in self.cluster.running_sources())
        return not unsent and self.checkers.missing() is None

    def _settled(self) -> bool:
        """Whether every source knows that K + 1 sites hold all its messages."""
        return all(source.idle for source in self.cluster.running_sources())

    def _excused(self) -> bool:
        """Whether only safety is required: a fixed formation cannot replace a site."""
        if self.cluster.plan.formation is None:
            return False
        sites_down = any(not self.cluster.world.is_up(site) for site in self.cluster.sites)
        return sites_down or bool(self.checkers.facts.reported) or bool(self.schedule.faulty_clocks)

    def _heal(self) -> None:
        """End all faults. In a fixed formation crashed nodes stay down; a source may have a restart scheduled."""
        world, cluster = self.cluster.world, self.cluster
        world.network.heal()
        cluster.store_access.heal()
        for site in cluster.plan.late_sites:
            cluster.start_site(site)
        for node in (*cluster.sites, *cluster.plan.reformers, *cluster.plan.sources):
            world.resume(node)
            if not world.is_up(node) and cluster.plan.formation is None:
                world.restart(node, cluster.new_incarnation(node))

    def _operate(self) -> None:
        """Act as the operator: restart abandoned sources, resume a halted ring, admit retired sites."""
        for node in self.cluster.plan.sources:
            if self.cluster.source(node).must_restart:
                self.cluster.world.restart(node, self.cluster.new_incarnation(node))
        leader = self.cluster.leader()
        if leader is None:
            return
        if leader.sites_of_other_stores:
            self.cluster.command(OperatorVerb.ADOPT)
        if leader.primary.phase.name == "HALTED":
            self.cluster.command(OperatorVerb.RESUME)
        for site in sorted(leader.primary.retired):
            self.cluster.command(OperatorVerb.ADMIT, site)

    def outcome(self, broken: Violation | None) -> RunOutcome:
        cluster, facts, formation = self.cluster, self.checkers.facts, self.cluster.plan.formation
        if formation is None:
            reforming = sum(each.number > 1 and each.first_sequence > 0 for each in self.checkers.formations())
            messages = sum(map(len, cluster.published.values()))
        else:
            reforming = len(facts.reported)
            messages = max(cluster.receiver(site).next_sequence for site in cluster.sites) - formation.first_sequence
        return RunOutcome(
            seed=self.schedule.seed,
            guarantee=broken.guarantee if broken else None,
            node=broken.node if broken else None,
            text=f"{(broken.at - EPOCH) / 1e9:.6f} s: {broken}" if broken else "",
            all_delivered=self.all_delivered and broken is None,
            reforming=reforming,
            deliveries=cluster.world.deliveries,
            messages=messages,
            late=self.checkers.late,
            simulated=cluster.world.now - EPOCH,
            digest=cluster.world.digest,
            durations=tuple(self.checkers.durations()),
            faults=tuple(sorted(self.faults.occurred | self.schedule.kinds())),
        )


def why_unsettled(cluster: Cluster) -> str | None:
    """Why a cluster without faults has not reached its final state yet; None if it has."""
    leader = cluster.leader()
    if leader is None:
        return "no reformation server leads"
    formation = leader.primary.formation
    if formation is None or leader.primary.phase.name != "STEADY":
        return f"the primary loop is {leader.primary.phase.value}"
    absent = next(filter(None, (_why_absent(cluster, node, formation) for node in cluster.sites)), None)
    if absent is not None:
        return absent
    if cluster.pending() or not all(cluster.source(node).idle for node in cluster.plan.sources):
        return "a source has unsettled messages"
    lengths = {node: len(journal.entries) for node, journal in cluster.journals.items()}
    if len(set(lengths.values())) > 1:
        return f"journals have {lengths} entries"
    released = {node: journal.released_through for node, journal in cluster.journals.items()}
    tokens = {node: journal.recovered().token for node, journal in cluster.journals.items()}
    return None if released == tokens else f"released {released} of {tokens}"


def _why_absent(cluster: Cluster, node: NodeId, formation: Formation) -> str | None:
    site, home = cluster.site(node), cluster.homes[node]
    if site.formation != formation:
        return f"site {node} is not in formation {formation.number}"
    if home == 0 and site.membership_state is not MembershipState.MEMBER:
        return f"site {node} is {site.membership_state.name}, not a member"
    if home and home not in site.secondary_loops and node not in formation.members:
        return f"site {node} is not in its loop {home}"
    return None


class CheckedRun(Protocol):
    """A run of one cluster with its checkers."""

    cluster: Cluster

    def run(self) -> None:
        """Raises `Violation` if a guarantee breaks."""

    def outcome(self, broken: Violation | None) -> RunOutcome:
        """The result of a run that ended, with the broken guarantee if there is one."""


def run_cluster(seed: int) -> RunOutcome:
    """Draw, build and run one deployment. Never raises: an exception is an outcome."""
    return checked(seed, lambda: ClusterRun(draw(seed)))


def run_ring(seed: int, *, loss: float | None = None) -> RunOutcome:
    """Draw, build and run one ring of a fixed formation. Never raises: an exception is an outcome."""
    return checked(seed, lambda: ClusterRun(draw_ring(seed, loss=loss)))


def checked(seed: int, build: Callable[[], CheckedRun]) -> RunOutcome:
    """Build a run and run it. Never raises: an exception is an outcome."""
    try:
        running = build()
    except Exception as raised:  # noqa: BLE001 - a cluster that cannot be built is a failure, too
        return RunOutcome(seed=seed, guarantee=NEVER_RAISES, text=exception_text(raised))
    return running.outcome(violation_of(running))


def violation_of(running: CheckedRun) -> Violation | None:
    """Run it: the guarantee that was broken, which may be that no machine raises an exception."""
    world = running.cluster.world
    try:
        running.run()
    except Violation as broken:
        return broken
    except (Spinning, Storm) as runaway:
        return Violation(type(runaway).__name__, None, world.now, str(runaway))
    except Exception as raised:  # noqa: BLE001 - any exception of a machine is a failure
        return Violation(NEVER_RAISES, None, world.now, exception_text(raised))
    return None


def exception_text(raised: Exception) -> str:
    """The exception and where it was raised, in one line."""
    frame = traceback.extract_tb(raised.__traceback__)[-1]
    return f"{type(raised).__name__}: {raised} ({Path(frame.filename).name}:{frame.lineno}, in {frame.name})"
