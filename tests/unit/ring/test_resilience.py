"""What received acknowledgments prove, at the edges of a formation."""

import pytest

from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver.resilience import Resilience
from unit.ring.ring_values import formation


def test_without_acknowledgments_nothing_is_known() -> None:
    proofs = Resilience(FormationHistory(formation(first_token=50, resilience=2)))
    assert proofs.highest_ack == 49
    assert proofs.stable_through == proofs.known_stable_through == 49
    assert proofs.survives_through < 50


def test_the_highest_acknowledgment_counts_whatever_the_order_of_arrival() -> None:
    proofs = Resilience(FormationHistory(formation()))
    for token in (3, 1, 7, 2):
        proofs.ack_received(token)
    assert proofs.highest_ack == 7


def test_one_round_after_the_first_token_all_members_hold_it() -> None:
    proofs = Resilience(FormationHistory(formation((1, 2, 3), first_token=50)))
    proofs.ack_received(51)
    assert proofs.stable_through == 49
    proofs.ack_received(52)
    assert proofs.stable_through == 50


def test_two_rounds_less_one_after_the_first_token_all_members_know_it() -> None:
    proofs = Resilience(FormationHistory(formation((1, 2, 3), first_token=50)))
    proofs.ack_received(53)
    assert proofs.known_stable_through == 49
    proofs.ack_received(54)
    assert proofs.known_stable_through == 50


@pytest.mark.parametrize("resilience", [0, 1, 2])
def test_a_message_survives_k_failures_once_k_more_tokens_were_received(resilience: int) -> None:
    proofs = Resilience(FormationHistory(formation((1, 2, 3), resilience=resilience)))
    proofs.ack_received(10)
    assert proofs.survives_through == 10 - resilience


def test_in_a_loop_of_one_everything_is_known_at_once() -> None:
    proofs = Resilience(FormationHistory(formation((1,))))
    proofs.ack_received(4)
    assert proofs.stable_through == proofs.known_stable_through == proofs.survives_through == 4


def test_a_formation_that_takes_over_later_proves_nothing_before_its_members_have_acknowledged() -> None:
    """Otherwise sites drop messages that others still need, as soon as a planned change is known."""
    formations = FormationHistory(formation((1, 2, 3), first_token=50))
    proofs = Resilience(formations)
    proofs.ack_received(60)
    formations.take_over(formation((1, 2, 3), first_token=1_000))
    assert proofs.known_stable_through == 56
    proofs.ack_received(61)
    assert proofs.known_stable_through == 57
    proofs.ack_received(1_003)
    assert proofs.known_stable_through == 57
    proofs.ack_received(1_004)
    assert proofs.known_stable_through == 1_000
