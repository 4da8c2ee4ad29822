"""The probability of an erroneous reformation, exactly: the real tables walked as a Markov chain, in fractions.

T-RMP §4 loses every message independently with probability P_L. Its three probabilities are

    P_A = P_L                  Ack(e) does not arrive by itself,
    P_S = 1 - (1 - P_L)^k      at least one of its k messages does not arrive by itself,
    P_R = 1 - (1 - P_L)^2      a request, or the whole answer to it, is lost.

The chain starts in state 1, knows beforehand whether all messages are held (the losses are independent of Ack(e)'s),
and lets each wait end with its answer (1 - P_R) or its time out (P_R). What ends in state 7 is the erroneous
reformation. No interpretation beyond these is needed: P_R,1 is "one of two independent recoveries of n attempts fails",
and P_R,2 is "n attempts do not contain the one or two successes that are needed": when both are missing, that is
P_R^n + n P_R^(n-1) (1 - P_R), whence the odd-looking last bracket of the paper's formula. The formulas are no
approximations of the drawn machine. They are the machine.
"""

from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairtape.core.state_table import StateTable
from fairtape.ring.receiver.recovery import Recoveries, Recovery
from fairtape.ring.receiver.recovery_tables import FIGURE_3_MERGED, FIGURE_3_SEPARATE, Event, State
from unit.ring.recovery_values import TIMING, E, HeldTokens

LOSSES = [Fraction(1, 1_000), Fraction(1, 100), Fraction(1, 20), Fraction(1, 5), Fraction(1, 2), Fraction(9, 10)]


class Losses(NamedTuple):
    """The paper's three probabilities."""

    ack: Fraction
    messages: Fraction
    attempt: Fraction

    @classmethod
    def of(cls, loss: Fraction, k: int) -> "Losses":
        return cls(loss, 1 - (1 - loss) ** k, 1 - (1 - loss) ** 2)


def separate(n: int, p: Losses) -> Fraction:
    """P_R,1(n) = (P_A + P_S) P_R^n - P_A P_S P_R^2n, as printed."""
    return (p.ack + p.messages) * p.attempt**n - p.ack * p.messages * p.attempt ** (2 * n)


def merged(n: int, p: Losses) -> Fraction:
    """P_R,2(n) = (P_A + P_S) P_R^n + P_A P_S (n P_R^(n-1) (1 - P_R) - P_R^n), as printed."""
    twice = n * p.attempt ** (n - 1) * (1 - p.attempt) - p.attempt**n
    return (p.ack + p.messages) * p.attempt**n + p.ack * p.messages * twice


class Place(NamedTuple):
    """Where the chain can be: a state of the figure, what was counted, and whether the messages are held."""

    state: State
    ack_retries: int
    message_retries: int
    holds: bool


def step(table: StateTable[Recovery], retries_max: int, place: Place, event: Event) -> Place:
    """What the real table does to a real recovery in this place."""
    held_tokens = HeldTokens({E} if place.holds else set())
    recovery = Recovery(E, Recoveries(timing=TIMING, timed=True, tokens=held_tokens))
    recovery.retries_max = retries_max
    recovery.state, recovery.ack_retries, recovery.message_retries = (
        place.state,
        place.ack_retries,
        place.message_retries,
    )
    assert table.fire(recovery, event)
    return Place(State(recovery.state), recovery.ack_retries, recovery.message_retries, place.holds)


def outcomes(place: Place, p: Losses) -> list[tuple[Fraction, Place, Event]]:
    """How a wait may end."""
    if place.state is State.AWAIT_ACK:
        return [(1 - p.ack, place, Event.ACK), (p.ack, place, Event.TIMEOUT)]
    if place.state is State.AWAIT_REQUESTED_ACK:
        return [(1 - p.attempt, place, Event.ACK), (p.attempt, place, Event.TIMEOUT)]
    assert place.state is State.AWAIT_REQUESTED_MESSAGES
    return [(1 - p.attempt, place._replace(holds=True), Event.MESSAGES), (p.attempt, place, Event.TIMEOUT)]


def walk(table: StateTable[Recovery], retries_max: int, p: Losses) -> dict[State, Fraction]:
    """The probability of each end."""
    chain = {
        Place(State.AWAIT_ACK, 0, 0, True): 1 - p.messages,
        Place(State.AWAIT_ACK, 0, 0, False): p.messages,
    }
    ends: dict[State, Fraction] = {State.COMPLETE: Fraction(0), State.REFORM: Fraction(0)}
    while chain:
        following: dict[Place, Fraction] = {}
        for place, weight in chain.items():
            for probability, before, event in outcomes(place, p):
                after = step(table, retries_max, before, event)
                if after.state in ends:
                    ends[after.state] += weight * probability
                else:
                    following[after] = following.get(after, Fraction(0)) + weight * probability
        chain = following
    return ends


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("k", [0, 1, 2, 10, 40])
def test_the_separate_table_reforms_with_exactly_the_printed_probability(loss: Fraction, k: int) -> None:
    """P_R,1(n) = (P_A + P_S) P_R^n - P_A P_S P_R^2n, an identity.  T-RMP §4."""
    p = Losses.of(loss, k)
    for n in range(1, 9):
        ends = walk(FIGURE_3_SEPARATE, n, p)
        assert ends[State.REFORM] == separate(n, p)
        assert sum(ends.values()) == 1


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("k", [0, 1, 2, 10, 40])
def test_the_merged_table_reforms_with_exactly_the_printed_probability(loss: Fraction, k: int) -> None:
    """P_R,2(n) = (P_A + P_S) P_R^n + P_A P_S (n P_R^(n-1) (1 - P_R) - P_R^n), an identity.  T-RMP §4."""
    p = Losses.of(loss, k)
    for n in range(1, 9):
        ends = walk(FIGURE_3_MERGED, n, p)
        assert ends[State.REFORM] == merged(n, p)
        assert sum(ends.values()) == 1


@settings(max_examples=60)
@given(
    ack=st.fractions(0, 1, max_denominator=50),
    messages=st.fractions(0, 1, max_denominator=50),
    attempt=st.fractions(0, 1, max_denominator=50),
    n=st.integers(1, 12),
)
def test_both_formulas_hold_for_any_three_probabilities(
    ack: Fraction, messages: Fraction, attempt: Fraction, n: int
) -> None:
    """The identities need nothing but the independence of the losses.  T-RMP §4."""
    p = Losses(ack, messages, attempt)
    assert walk(FIGURE_3_SEPARATE, n, p)[State.REFORM] == separate(n, p)
    assert walk(FIGURE_3_MERGED, n, p)[State.REFORM] == merged(n, p)


@pytest.mark.parametrize("k", [1, 2, 10, 40])
def test_small_losses_give_the_printed_first_terms(k: int) -> None:
    """P_R,1 ≈ (k+1)/2 (2 P_L)^(n+1) and P_R,2 ≈ ((k+1)/2 + k n/4) (2 P_L)^(n+1) for P_L ≪ 1.  T-RMP §4."""
    loss = Fraction(1, 10**9)
    p = Losses.of(loss, k)
    for n in range(1, 6):
        power = (2 * loss) ** (n + 1)
        assert abs(separate(n, p) / (Fraction(k + 1, 2) * power) - 1) < Fraction(1, 10**6)
        assert abs(merged(n, p) / ((Fraction(k + 1, 2) + Fraction(k * n, 4)) * power) - 1) < Fraction(1, 10**6)


@settings(max_examples=300)
@given(
    loss=st.fractions(Fraction(1, 10**6), Fraction(99, 100), max_denominator=10**6),
    k=st.integers(1, 100),
    n=st.integers(1, 20),
)
def test_one_merged_count_is_worse_than_two_counts_as_large(loss: Fraction, k: int, n: int) -> None:
    """P_R,2(n) > P_R,1(n): for every loss, since n > P_R + … + P_R^n.  T-RMP §4."""
    p = Losses.of(loss, k)
    assert merged(n, p) > separate(n, p)


@settings(max_examples=300)
@given(data=st.data(), k=st.integers(1, 100), n=st.integers(1, 20))
def test_one_retry_more_makes_the_merged_count_better(data: st.DataObject, k: int, n: int) -> None:
    """P_R,1(n₁) > P_R,2(n₁ + 1) for n₂ P_L < 1: erroneous reformations are less likely.  T-RMP §4."""
    loss = data.draw(st.fractions(Fraction(1, 10**6), Fraction(1, n + 1), max_denominator=10**6))
    p = Losses.of(loss, k)
    assert separate(n, p) > merged(n + 1, p)


def test_beyond_the_printed_limit_one_retry_more_is_not_enough() -> None:
    """The condition n₂ P_L < 1 is needed: with 12 % loss and eleven attempts the sum is worse.  T-RMP §4."""
    n, k = 10, 100
    p = Losses.of(Fraction(12, 100), k)
    assert (n + 1) * p.ack > 1
    assert separate(n, p) < merged(n + 1, p)
