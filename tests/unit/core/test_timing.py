"""Timing: the papers' formulas, and refusals that name the field, the value and the remedy."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.instants import MILLISECOND
from fairtape.core.timing import (
    PERIOD_MAX,
    PROFILES,
    RETRIES_MAX,
    SUSPECT_DELAY_MIN,
    BadTiming,
    Timing,
    profile,
)

LAN = PROFILES["lan"]
PERIODS = ("retry_period", "token_period", "commit_delay")

periods = st.integers(1, PERIOD_MAX)
timings = st.builds(
    Timing,
    retry_period=periods,
    retries_max=st.integers(1, RETRIES_MAX),
    token_period=periods,
    commit_delay=periods,
    merged=st.booleans(),
)


@given(timings)
def test_a_receiver_is_complete_or_reforming_within_n_and_a_half_retries(timing: Timing) -> None:
    """Δ_R = (n + 1/2) T_R with one retry count, (2n + 1/2) T_R with two.  T-RMP §3, TRMP 2001 §5.1."""
    counts = 1 if timing.merged else 2
    halves = (2 * counts * timing.retries_max + 1) * timing.retry_period
    assert timing.reform_delay == halves // 2


@given(timings)
def test_a_lease_ends_when_the_others_suspect_and_more_retries_make_it_no_longer(timing: Timing) -> None:
    """Decision 72, Suspicion; decision 24, Leases."""
    assert timing.lease_period == timing.suspect_delay <= timing.reform_delay
    patient = replace(timing, retries_max=min(8 * timing.retries_max, RETRIES_MAX))
    enough = max(SUSPECT_DELAY_MIN + timing.retry_period, 3 * timing.retry_period)
    assert timing.lease_period <= patient.lease_period <= max(timing.lease_period, enough)


def test_the_profiles_suspect_after_a_second_at_most() -> None:
    delays = {name: PROFILES[name].suspect_delay for name in PROFILES}
    assert delays == {"lan": LAN.reform_delay, "metro": 905 * MILLISECOND, "wan": 900 * MILLISECOND}


@given(timings)
def test_the_retries_that_fill_a_reform_delay_are_the_retries_that_made_it(timing: Timing) -> None:
    assert timing.with_reform_delay(timing.reform_delay) == timing


@given(timings, st.integers(0, RETRIES_MAX * PERIOD_MAX))
def test_retries_fill_a_reform_delay_as_far_as_whole_retries_can(timing: Timing, delay: int) -> None:
    per_retry = timing.retry_period * (1 if timing.merged else 2)
    try:
        filled = timing.with_reform_delay(delay)
    except BadTiming:
        assert not per_retry <= delay - timing.one_way_max < (RETRIES_MAX + 1) * per_retry
    else:
        assert filled.reform_delay <= delay < filled.reform_delay + per_retry


@given(timings)
def test_the_longest_delay_is_one_wait_for_the_token_and_one_for_the_commit(timing: Timing) -> None:
    """Δ_T + Δ_C.  T-RMP §5."""
    assert timing.delay_max == timing.token_period + timing.commit_delay


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("resilience", [0, 1, 2])
def test_a_commit_has_the_same_time_after_the_last_token_that_it_waits_for_whatever_k_is(
    name: str, resilience: int
) -> None:
    """t_e + Δ_C - t_(e + K).  Decision 49, Commit delay and K."""
    timing = PROFILES[name].with_resilience(resilience)
    assert timing.commit_delay - resilience * timing.token_period == PROFILES[name].commit_delay
    assert replace(timing, commit_delay=PROFILES[name].commit_delay) == PROFILES[name]


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("sets", [1, 2, 5])
def test_the_guaranteed_delay_includes_the_turns_of_the_request_sets(name: str, sets: int) -> None:
    """(k_p - 1) Δ_T.  2001 §5.2, decision 49, Commit delay and K."""
    longer = PROFILES[name].with_resilience(1, request_sets=sets)
    assert longer.delay_max == PROFILES[name].with_resilience(1).delay_max + (sets - 1) * longer.token_period
    assert longer.reform_delay == PROFILES[name].reform_delay


@given(timings)
def test_requests_are_collected_for_less_than_a_one_way_delay(timing: Timing) -> None:
    assert timing.request_delay <= timing.one_way_max <= timing.retry_period


@given(timings)
def test_a_source_waits_longer_than_a_token_and_a_round_trip_before_it_resends(timing: Timing) -> None:
    assert timing.resend_delay > timing.token_period + timing.retry_period


@pytest.mark.parametrize("name", PERIODS)
@pytest.mark.parametrize("value", [-1, 0, PERIOD_MAX + 1])
def test_a_period_out_of_bounds_is_refused_by_name_and_value(name: str, value: int) -> None:
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(BadTiming, match=rf"^{name} is {value} ns; it must be above 0 and at most"):
        replace(LAN, **wrong)


@pytest.mark.parametrize("value", [-1, 0, RETRIES_MAX + 1])
def test_retries_out_of_bounds_are_refused_by_value(value: int) -> None:
    with pytest.raises(BadTiming, match=rf"^retries_max is {value}; it must be from 1 to {RETRIES_MAX}"):
        replace(LAN, retries_max=value)


@pytest.mark.parametrize("name", PERIODS)
@pytest.mark.parametrize("value", [1, PERIOD_MAX])
def test_a_period_at_its_bounds_is_taken(name: str, value: int) -> None:
    assert getattr(profile("lan", **{name: value}), name) == value


# Profiles.


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_lets_one_lost_message_be_recovered_before_its_commit(name: str) -> None:
    timing = profile(name)
    assert timing.commit_delay >= timing.retry_period


def test_profiles_grow_with_the_distance() -> None:
    lan, metro, wan = (PROFILES[name] for name in ("lan", "metro", "wan"))
    for name in PERIODS:
        assert getattr(lan, name) < getattr(metro, name) < getattr(wan, name)


def test_a_profile_is_overridden_field_by_field() -> None:
    timing = profile("wan", token_period=5 * MILLISECOND, merged=False)
    assert timing == replace(PROFILES["wan"], token_period=5 * MILLISECOND, merged=False)
    assert profile("wan") == PROFILES["wan"]


def test_an_unknown_profile_is_refused_with_those_that_exist() -> None:
    with pytest.raises(BadTiming, match=r"^profile is 'moon'; expected one of lan, metro, wan$"):
        profile("moon")


def test_an_unknown_field_is_refused_with_those_that_exist() -> None:
    sentence = r"^timing has no field 'tokenperiod'; expected one of clock_error_max, commit_delay, merged"
    with pytest.raises(BadTiming, match=sentence):
        profile("lan", tokenperiod=1)


def test_an_override_is_checked_like_any_other_value() -> None:
    with pytest.raises(BadTiming, match=r"^token_period is 0 ns"):
        profile("lan", token_period=0)
