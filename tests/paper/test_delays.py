"""The papers' own numbers, from the timing that production uses: T-RMP §6 and TRMP 2001 §5.1."""

from dataclasses import replace
from fractions import Fraction

from fairtape.core.instants import SECOND
from fairtape.core.timing import Timing

N_R = 3  # in typical ARQ protocols

ORIGINAL = Timing(retry_period=SECOND, retries_max=N_R, token_period=1, commit_delay=1, merged=False)
INITIAL = replace(ORIGINAL, token_period=ORIGINAL.reform_delay, commit_delay=ORIGINAL.reform_delay)
_MERGED = replace(ORIGINAL, retries_max=N_R + 1, merged=True)
COMBINED = replace(_MERGED, token_period=_MERGED.reform_delay, commit_delay=_MERGED.reform_delay)


def test_the_guaranteed_delivery_time_is_2_17_times_that_of_a_single_link() -> None:
    """(2 n_max + 1/2) T_R against n_max T_R is 2.17 when n_max = 3.  TRMP 2001 §5.1."""
    assert Fraction(ORIGINAL.reform_delay, N_R * ORIGINAL.retry_period) == Fraction(13, 6)
    assert round(13 / 6, 2) == 2.17


def test_the_original_system_takes_13_seconds_at_most() -> None:
    """Δ_T = Δ_C = (2 n_r + .5) Δ_N: with n_r = 3 and a round trip of one second Δ_S is 13 seconds.  T-RMP §6."""
    assert INITIAL.delay_max == 13 * SECOND


def test_the_combined_system_takes_9_seconds_at_most() -> None:
    """Δ_T = (n_r + 1.5) Δ_N when the counts are combined and one retry is added: 9 seconds.  T-RMP §6.

    The paper calls this 4.5 / 7.5 = .6 of the original; by its own seconds it is 4.5 / 6.5 = 9 / 13.
    """
    assert COMBINED.reform_delay == 4_500_000_000
    assert COMBINED.delay_max == 9 * SECOND
    assert Fraction(COMBINED.delay_max, INITIAL.delay_max) == Fraction(9, 13)


def test_three_independent_intervals_take_2_625_seconds_at_most() -> None:
    """Δ_T = 3 μ_S, Δ_C = 11 μ_S, Δ_R = 28 μ_S where 24 μ_S was 4.5 s: Δ_S falls from 48 to 14, 2.625 s.  T-RMP §6."""
    mean = COMBINED.reform_delay // 24
    assert COMBINED.delay_max == 48 * mean
    separated = replace(COMBINED, token_period=3 * mean, commit_delay=11 * mean).with_reform_delay(28 * mean)
    assert separated.delay_max == 14 * mean == 2_625_000_000
    assert separated.reform_delay <= 28 * mean < separated.reform_delay + separated.retry_period


def test_the_two_modifications_together_save_nearly_80_percent() -> None:
    """The two modifications reduce the delivery delay, in this example, by nearly 80 %.  T-RMP §6."""
    saved = 1 - Fraction(2_625_000_000, INITIAL.delay_max)
    assert Fraction(79, 100) < saved < Fraction(80, 100)


def test_five_merged_retries_instead_of_three_and_three_save_one_retry_period() -> None:
    """A maximum of 5 in both states, rather than 3 and 3, reduces Δ_A by T_R.  TRMP 2001 §5.1."""
    five = replace(ORIGINAL, retries_max=5, merged=True)
    assert ORIGINAL.reform_delay - five.reform_delay == ORIGINAL.retry_period


def test_four_recovery_intervals_do_what_six_did() -> None:
    """3 separate tries must allow 6 recovery intervals; the sum performs better with 4.  T-RMP §4."""
    assert (ORIGINAL.reform_delay - ORIGINAL.one_way_max) // ORIGINAL.retry_period == 6
    assert (COMBINED.reform_delay - COMBINED.one_way_max) // COMBINED.retry_period == 4
