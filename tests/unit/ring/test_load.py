"""The load of a site: what an acknowledgment reports, and how another member's load is relayed."""

from dataclasses import replace

import pytest

from fairtape.core.instants import MICROSECOND, MILLISECOND
from fairtape.ring.load import BACKLOG_TARGET, LAG_TARGET, NO_LOAD, LoadReports, SiteLoad
from fairtape.wire.frames import LOAD_MAX, Ack
from unit.ring.ring_values import ack, formation

LAYOUT = formation()
PERIOD = 5 * MILLISECOND
SLOW = SiteLoad(release_lag=3 * LAG_TARGET)
SLOWER = SiteLoad(backlog=2 * PERIOD)


def report(sender: int, load: SiteLoad, *, relayed: bool = False) -> Ack:
    reported = ack(LAYOUT, 1, 1, release_lag_us=load.release_lag_us, backlog_us=load.backlog_us)
    return replace(reported, sender=sender, relayed=relayed)


@pytest.mark.parametrize(
    ("load", "excess"),
    [
        (NO_LOAD, 0.0),
        (SiteLoad(release_lag=LAG_TARGET), 1.0),
        (SiteLoad(backlog=int(BACKLOG_TARGET * PERIOD)), 1.0),
        (SLOW, 3.0),
        (SLOWER, 2 / BACKLOG_TARGET),
    ],
)
def test_the_larger_of_lag_and_backlog_counts(load: SiteLoad, excess: float) -> None:
    assert load.excess(PERIOD) == pytest.approx(excess)


def test_a_load_survives_an_acknowledgment_in_microseconds() -> None:
    load = SiteLoad(release_lag=1_700 * MICROSECOND + 999, backlog=250 * MICROSECOND)
    assert SiteLoad.in_ack(report(1, load)) == SiteLoad(1_700 * MICROSECOND, 250 * MICROSECOND)


def test_what_exceeds_the_field_is_reported_as_its_maximum() -> None:
    load = SiteLoad(release_lag=LOAD_MAX * MICROSECOND * 2, backlog=LOAD_MAX * MICROSECOND * 2)
    assert (load.release_lag_us, load.backlog_us) == (LOAD_MAX, LOAD_MAX)


def test_a_member_reports_the_most_loaded_one_that_it_knows() -> None:
    reports = LoadReports()
    assert reports.worst(SLOW, LAYOUT.number, PERIOD) == (SLOW, False)
    reports.heard(report(2, SLOWER))
    assert reports.worst(SLOW, LAYOUT.number, PERIOD) == (SLOWER, True)
    reports.heard(report(3, SLOW))
    assert reports.worst(NO_LOAD, LAYOUT.number, PERIOD) == (SLOWER, True)


def test_a_report_replaces_the_one_before() -> None:
    reports = LoadReports()
    for load in (SLOWER, SLOW, NO_LOAD):
        reports.heard(report(2, load))
        assert reports.worst(NO_LOAD, LAYOUT.number, PERIOD) == (load, load is not NO_LOAD)


def test_a_relayed_report_is_not_relayed_again() -> None:
    """Otherwise two members would repeat each other's load forever."""
    reports = LoadReports()
    reports.heard(report(2, SLOW))
    reports.heard(report(2, SLOWER, relayed=True))
    assert reports.worst(NO_LOAD, LAYOUT.number, PERIOD) == (NO_LOAD, False)


def test_a_later_formation_drops_what_members_reported() -> None:
    """One that was removed by a planned change reports no more, and would slow the sources forever."""
    reports = LoadReports()
    reports.heard(report(2, SLOW))
    assert reports.worst(NO_LOAD, LAYOUT.number + 1, PERIOD) == (NO_LOAD, False)
    reports.heard(report(2, SLOW))
    assert reports.worst(NO_LOAD, LAYOUT.number + 1, PERIOD) == (NO_LOAD, False)


def test_the_slowest_member_is_the_one_that_reports_most_of_itself() -> None:
    reports = LoadReports()
    assert reports.slowest(PERIOD) is None
    reports.heard(report(2, SiteLoad(release_lag=LAG_TARGET)))
    assert reports.slowest(PERIOD) is None
    reports.heard(report(3, SLOW))
    reports.heard(report(4, SLOWER, relayed=True))
    assert reports.slowest(PERIOD) == (3, SLOW)
