"""Each checker of fairness and of operation detects a machine that breaks its guarantee."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from fairtape.core.effects import Ordered
from fairtape.core.formation_log import Leadership
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.nodes.clock_bound import ClockBoundEstimator
from fairtape.nodes.coordinator.leadership import Lead
from fairtape.nodes.coordinator.primary_loop import PrimaryLoopCoordinator
from fairtape.nodes.site import Site
from fairtape.ring.membership.formation import Formation
from fairtape.ring.receiver.release import ReleaseQueue
from fairtape.ring.receiver.token import TimedToken
from fairtape.simulation.cluster import Cluster
from fairtape.simulation.cluster_faults import (
    BadClock,
    ClusterFault,
    ClusterFaults,
    Flapping,
    LostAnswer,
    StoppedMachine,
    with_offsets,
)
from fairtape.simulation.fairness_checkers import FairnessCheckers
from fairtape.simulation.operation_checkers import OperationCheckers
from fairtape.simulation.world import EPOCH, Violation
from fairtape.wire.frames import NodeId, Range
from fairtape.wire.membership import SiteReport
from simulation.fault_free_cluster import fault_free_cluster, load

AT = EPOCH + SECOND
STOPPED = StoppedMachine(AT, 2, 300 * MILLISECOND, AT + 2 * SECOND, slewed=False)
GONE = LostAnswer(AT, 102, 10 * MILLISECOND, AT + 10 * MILLISECOND, 2 * SECOND)  # the store, for the leader
DOUBTFUL = BadClock(AT, 2, 10 * MILLISECOND, AT + 10 * SECOND)
CRASHED = Flapping(AT, 3, ((5 * SECOND, 0),))


def checked_cluster(*faults: ClusterFault, resilience: int = 1) -> Cluster:
    """A cluster with these faults and with all checkers, under a steady load."""
    cluster, checkers = fault_free_cluster(clocks=with_offsets({}, faults), resilience=resilience)
    cluster.world.observers += [FairnessCheckers(cluster), OperationCheckers(cluster, checkers.formations)]
    carried_out = ClusterFaults(cluster, Random(1))
    for fault in faults:
        carried_out.schedule(fault)
    load(cluster, since=SECOND // 4, until=4 * SECOND)
    return cluster


def names_sources_by_number(token: TimedToken, ranges_max: int) -> list[Range]:
    return sorted(token._buffer.unacknowledged(ranges_max))


report = Site._report


def reports_what_it_holds_as_settled(site: Site, loop: int, now: Instant) -> SiteReport:
    return replace(report(site, loop, now), settled_through=site.complete_through)


send_reports = Site._send_reports


def remembers_all_reports(site: Site, now: Instant) -> None:
    site._asked.update({now - step: 0 for step in range(1, 20)})
    known = dict(site._asked)
    send_reports(site, now)
    site._asked.update(known)


def holds_everything(queue: ReleaseQueue, ordered: Ordered) -> None:
    queue.held_max = 50_000
    queue._hold(ordered, queue._formations.numbered(ordered.formation))


def believes_its_own_clock(_estimator: ClockBoundEstimator, own: Duration) -> Duration:
    return own


show = Lead.show


def leads_a_second_longer(lead: Lead, leadership: Leadership | None, now: Instant) -> None:
    show(lead, leadership, now)
    lead.until += SECOND


decide = PrimaryLoopCoordinator._decide


def waits_for_all(
    loop: PrimaryLoopCoordinator, formation: Formation, answered: dict[NodeId, SiteReport], now: Instant
) -> None:
    if len(answered) == len(formation.members):
        decide(loop, formation, answered, now)


@pytest.mark.parametrize(
    "faults", [(), (GONE,), (CRASHED,), (DOUBTFUL,)], ids=["no fault", "no store", "a crash", "a bad clock for long"]
)
def test_without_a_broken_machine_nothing_is_detected(faults: tuple[ClusterFault, ...]) -> None:
    checked_cluster(*faults).run(5 * SECOND)


@pytest.mark.parametrize(
    ("machine", "part", "broken", "faults", "guarantee"),
    [
        (TimedToken, "ranges", names_sources_by_number, (), "PlacedByArrival"),
        (Site, "_report", reports_what_it_holds_as_settled, (), "KeptAsReported"),
        (Site, "_send_reports", remembers_all_reports, (), "BoundedMemory"),
        (ReleaseQueue, "complete", holds_everything, (DOUBTFUL,), "BoundedMemory"),
        (ClockBoundEstimator, "bound", believes_its_own_clock, (STOPPED,), "LateIsMarked"),
        (Lead, "show", leads_a_second_longer, (GONE,), "OneLeader"),
        (PrimaryLoopCoordinator, "_decide", waits_for_all, (CRASHED,), "Progress"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_machine_is_detected_by(
    machine: type,
    part: str,
    broken: Callable[..., object],
    faults: tuple[ClusterFault, ...],
    guarantee: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, part, broken)
    with pytest.raises(Violation) as found:
        checked_cluster(*faults).run(5 * SECOND)
    assert found.value.guarantee == guarantee, str(found.value)
