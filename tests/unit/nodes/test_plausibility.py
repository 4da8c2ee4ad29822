"""Which reports a leader believes: decision 74, Plausible reports."""

from fairtape.core.instants import SECOND
from fairtape.nodes.coordinator.plausibility import (
    AHEAD_MAX,
    FORMATIONS_LOST_MAX,
    TERMS_LOST_MAX,
    implausible_number,
)
from fairtape.ring.membership.topology import LoopTopology
from fairtape.wire.membership import ORDINAL_MAX, SiteReport
from unit.ring.loop_values import TIMING, formation_of, report_of

LOOP = LoopTopology(number=0, tour=(1, 2, 3), timing=TIMING)
FORMATION = formation_of(1, 2, 3)
NOW = FORMATION.starts_at + 100 * SECOND
AHEAD = AHEAD_MAX // TIMING.token_period


def said(report: SiteReport, *, timed: bool = True) -> str | None:
    return implausible_number(report, FORMATION, 4, LOOP, NOW, timed=timed)


def test_a_number_that_no_correct_site_reports_is_named() -> None:
    latest = FORMATION.current(NOW) + AHEAD
    for believed, refused, text in (
        ({"term": 4 + TERMS_LOST_MAX}, {"term": 5 + TERMS_LOST_MAX}, "term"),
        ({"formation": 3 + FORMATIONS_LOST_MAX}, {"formation": 4 + FORMATIONS_LOST_MAX}, "formation"),
        ({"complete_through": latest}, {"complete_through": latest + 1}, "token"),
        ({"settled_through": latest}, {"settled_through": latest + 1}, "token"),
    ):
        assert said(report_of(2, **believed)) is None
        assert said(report_of(2, **refused)) == f"{text} {next(iter(refused.values()))}"


def test_a_ring_without_a_schedule_bounds_no_token() -> None:
    assert said(report_of(2, complete_through=ORDINAL_MAX), timed=False) is None


def test_without_a_recorded_formation_any_formation_may_be_lost() -> None:
    """A token of any schedule came after the beginning of time."""
    report = report_of(2, formation=1 << 30, complete_through=FORMATION.current(NOW))
    assert implausible_number(report, None, 4, LOOP, NOW, timed=True) is None
    beyond = report_of(2, complete_through=NOW // TIMING.token_period + AHEAD + 1)
    assert implausible_number(beyond, None, 4, LOOP, NOW, timed=True) is not None
