"""A cluster run: the fault schedule of one seed, built, run and checked.

In the safety phase every fault is on and no guarantee may break. Then all faults end: every site must become a member
again, every message must be in every journal, and all journals must be equal.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final, Protocol

from fairtape.core.instants import SECOND
from fairtape.ring.membership.formation import Formation
from fairtape.simulation.cluster import Cluster
from fairtape.simulation.cluster_checkers import ClusterCheckers
from fairtape.simulation.cluster_faults import ClusterFaults
from fairtape.simulation.configuration import chance_for
from fairtape.simulation.fairness_checkers import FairnessCheckers
from fairtape.simulation.fault_schedule import FaultSchedule, Outage, draw
from fairtape.simulation.faults import Intruder, schedule_fault
from fairtape.simulation.operation_checkers import OperationCheckers
from fairtape.simulation.ring_run import NEVER_RAISES, RunOutcome, exception_text
from fairtape.simulation.world import EPOCH, Spinning, Storm, Violation
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import MembershipState, OperatorVerb

HEALING_MAX: Final = 60 * SECOND  # of virtual time, after which a healed cluster that has not settled is stuck


class ClusterRun:
    """One fault schedule, built and running."""

    def __init__(self, schedule: FaultSchedule) -> None:
        self.schedule = schedule
        self.cluster = Cluster(schedule.plan)
        self.checkers = ClusterCheckers(self.cluster)
        self.cluster.world.observers += [
            self.checkers,
            FairnessCheckers(self.cluster),
            OperationCheckers(self.cluster, self.checkers.formations),
        ]
        self.faults = ClusterFaults(self.cluster, chance_for("published by faults", schedule.seed))
        self._text = Random(f"text {schedule.seed}")  # noqa: S311
        self.cluster.start()
        self._schedule()

    def _schedule(self) -> None:
        world, cluster = self.cluster.world, self.cluster
        for at, source, count in self.schedule.bursts:
            messages = [self._text.randbytes(self._text.choice((8, 64, 500))) for _ in range(count)]
            world.at(at, partial(cluster.publish, source, messages))
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
        world = self.cluster.world
        world.run(self.schedule.heals_at)
        self._heal()
        until = world.now + HEALING_MAX
        while (unsettled := why_unsettled(self.cluster)) is not None:
            if world.now > until:
                raise Violation("HealsAtAll", None, world.now, unsettled)
            self._operate()
            world.run(world.now + SECOND // 4)
        self.checkers.finish()

    def _heal(self) -> None:
        world, cluster = self.cluster.world, self.cluster
        world.network.heal()
        cluster.store_access.heal()
        for site in cluster.plan.late_sites:
            cluster.start_site(site)
        for node in (*cluster.sites, *cluster.plan.reformers, *cluster.plan.sources):
            world.resume(node)
            if not world.is_up(node):
                world.restart(node, cluster.new_incarnation(node))

    def _operate(self) -> None:
        """Act as the operator: restart abandoned sources, resume a halted ring, admit retired sites."""
        for node in self.cluster.plan.sources:
            if self.cluster.source(node).must_restart:
                self.cluster.world.restart(node, self.cluster.new_incarnation(node))
        leader = self.cluster.leader()
        if leader is None:
            return
        if leader.primary.phase.name == "HALTED":
            self.cluster.command(OperatorVerb.RESUME)
        for site in sorted(leader.primary.retired):
            self.cluster.command(OperatorVerb.ADMIT, site)

    def outcome(self, broken: Violation | None) -> RunOutcome:
        return RunOutcome(
            seed=self.schedule.seed,
            guarantee=broken.guarantee if broken else None,
            node=broken.node if broken else None,
            text=f"{(broken.at - EPOCH) / 1e9:.6f} s: {broken}" if broken else "",
            all_delivered=broken is None,
            reforming=sum(each.number > 1 and each.first_sequence > 0 for each in self.checkers.formations()),
            deliveries=self.cluster.world.deliveries,
            messages=sum(map(len, self.cluster.published.values())),
            late=self.checkers.late,
            simulated=self.cluster.world.now - EPOCH,
            digest=self.cluster.world.digest,
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


def run_cluster(seed: int) -> RunOutcome:
    """Draw, build and run one cluster. Never raises: an exception is an outcome."""
    return checked(seed, lambda: ClusterRun(draw(seed)))


class CheckedRun(Protocol):
    """A run of one cluster with its checkers."""

    cluster: Cluster

    def run(self) -> None:
        """Raises `Violation` if a guarantee breaks."""

    def outcome(self, broken: Violation | None) -> RunOutcome:
        """The result of a run that ended, with the broken guarantee if there is one."""


def checked(seed: int, build: Callable[[], CheckedRun]) -> RunOutcome:
    """Build a run and run it. Never raises: an exception is an outcome."""
    try:
        running = build()
    except Exception as raised:  # noqa: BLE001 - a cluster that cannot be built is a failure, too
        return RunOutcome(seed=seed, guarantee=NEVER_RAISES, text=exception_text(raised))
    world = running.cluster.world
    try:
        running.run()
    except Violation as broken:
        return running.outcome(broken)
    except (Spinning, Storm) as runaway:
        return running.outcome(Violation(type(runaway).__name__, None, world.now, str(runaway)))
    except Exception as raised:  # noqa: BLE001 - any exception of a machine is a failure
        return running.outcome(Violation(NEVER_RAISES, None, world.now, exception_text(raised)))
    return running.outcome(None)
