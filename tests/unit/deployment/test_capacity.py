"""How many sites a machine can run, and how more are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.errors import UserError
from fairtape.core.timing import PROFILES
from fairtape.deployment.config.capacity import BUSY_MAX, cores_wanted, refuse_overload, sites_max


@given(st.sampled_from(list(PROFILES)), st.integers(1, 128))
def test_the_largest_ring_leaves_capacity_and_one_more_site_does_not(profile: str, cores: int) -> None:
    timing = PROFILES[profile]
    most = sites_max(timing, cores)
    assert cores_wanted(most, timing) <= BUSY_MAX * cores < cores_wanted(most + 1, timing)


@given(st.sampled_from(list(PROFILES)), st.integers(1, 128))
def test_exactly_the_rings_beyond_the_largest_are_refused(profile: str, cores: int) -> None:
    most = sites_max(PROFILES[profile], cores)
    refuse_overload(sites=most, profile=profile, cores=cores)
    with pytest.raises(UserError, match=f"give at most {most} sites"):
        refuse_overload(sites=most + 1, profile=profile, cores=cores)


def test_a_refusal_names_what_was_asked_for_and_what_would_work() -> None:
    with pytest.raises(UserError) as refused:
        refuse_overload(sites=16, profile="lan", cores=2)
    sentence = str(refused.value)
    assert sentence.startswith("--sites is 16 and --profile is lan, whose tokens alone would keep 4.8 cores busy; ")
    assert sentence.endswith(
        "this machine has 2, of which tokens may use half: give at most 3 sites or --profile metro"
    )
    refuse_overload(sites=16, profile="metro", cores=2)
