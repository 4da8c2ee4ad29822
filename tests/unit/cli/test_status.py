"""What `fairtape status` says about a site, and about the guaranteed delay."""

from pathlib import Path

from fairtape.cli.status import SILENT_MIN, excess_line, pace_line, site_row
from fairtape.core.timing import PROFILES, Timing
from fairtape.deployment.config.description import Node, NodeKind
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.deployment.status import TokenSchedule
from unit.deployment.status_values import site_status

CONFIGURED = PROFILES["metro"].with_resilience(1)


def schedule_of(timing: Timing) -> TokenSchedule:
    return TokenSchedule(first_token=1, starts_at=0, token_period=timing.token_period, delay_max=timing.delay_max)


def test_at_the_configured_pace_only_the_guaranteed_delay_is_printed() -> None:
    assert pace_line(CONFIGURED, schedule_of(CONFIGURED)) == "guaranteed delay 35 ms"


def test_another_pace_is_printed_with_the_delay_that_it_costs() -> None:
    assert pace_line(CONFIGURED, schedule_of(CONFIGURED.slowed(3, 1))) == (
        "guaranteed delay 55 ms instead of 35 ms: the token passes every 15 ms instead of 5 ms, because sites released"
        " late"
    )


def test_the_rule_for_more_than_k_silent_sites_is_printed_with_its_reason(tmp_path: Path) -> None:
    alone = create_deployment(tmp_path / "alone", Draft(loops=(3,), profile="lan"))
    assert excess_line(alone) == (
        "with more than K silent sites the ring goes on, with a Break: the default on one machine without a trading"
        " floor"
    )
    stated = create_deployment(tmp_path / "stated", Draft(loops=(3,), profile="lan", excess="halt"))
    assert excess_line(stated) == "with more than K silent sites the ring halts: as the deployment's file says"


def test_a_site_that_runs_and_does_not_report_is_not_shown_with_what_it_reported_last() -> None:
    node, status = Node("s1", NodeKind.SITE, 1, "127.0.0.1", 7001), site_status("s1", 1, written_at=1)
    assert site_row(node, status, SILENT_MIN)[:4] == ("s1", "2", "member", "7")
    assert site_row(node, status, 5.2) == ("s1", "-", "silent for 5 s")
    assert site_row(node, None, 5.2) == ("s1", "-", "not running")
