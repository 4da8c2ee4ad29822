"""What `fairtape status` says about the guaranteed delay."""

from fairtape.cli.status import pace_line
from fairtape.core.timing import PROFILES, Timing
from fairtape.deployment.status import TokenSchedule

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
