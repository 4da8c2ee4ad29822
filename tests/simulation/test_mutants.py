"""A simulator that has never found anything proves nothing: broken machines must be found out, each by its checker."""

import pytest

from fairtape.ring.formation import Formation
from fairtape.ring.resilience import Resilience
from fairtape.simulation.trial import run_seed

SEEDS = range(1, 60)


def claims_too_much(resilience: Resilience) -> int:
    return max(resilience.heard_through - resilience._members + 2, resilience._first - 1)


def trusts_one_site_too_few(resilience: Resilience) -> int:
    return resilience.heard_through - max(resilience._resilience - 1, 0)


def commits_a_nanosecond_early(formation: Formation, token: int) -> int:
    return formation.scheduled_at(token) + formation.timing.commit_delay - 1


@pytest.mark.parametrize(
    ("machine", "part", "broken", "guarantee"),
    [
        (Resilience, "stable_through", property(claims_too_much), "TrueClaims"),
        (Resilience, "survives_through", property(trusts_one_site_too_few), "SurvivesK"),
        (Formation, "commit_at", commits_a_nanosecond_early, "NeverEarly"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_machine_is_found_by(
    machine: type, part: str, broken: object, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, part, broken)
    outcomes = (run_seed(seed) for seed in SEEDS)
    found = next(outcome for outcome in outcomes if outcome.failed)
    assert found.guarantee == guarantee, found.text
