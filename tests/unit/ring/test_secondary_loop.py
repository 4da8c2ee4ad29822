"""The token of a secondary loop. TRMP 2001 §4.1."""

from fairtape.core.effects import Reason
from fairtape.core.instants import NEVER
from fairtape.ring.membership.secondary_loop import SecondaryLoop
from unit.ring.loop_values import TIMING, formation_of

RETRY = TIMING.retry_period


def loop(me: int, stride: int = 1) -> SecondaryLoop:
    return SecondaryLoop(formation_of(2, 5, 6, loop=1, first_sequence=0, stride=stride), me=me)


def test_a_site_passes_the_token_on_once_it_holds_everything_up_to_it() -> None:
    junction = loop(2)
    assert junction.advance(10, 0) == []
    assert junction.advance(11, 0) == [11]
    assert junction.advance(30, 0) == []  # the next one is the turn of 5
    assert junction.receive_token(12, 5, 0) == "loop_token"
    assert junction.receive_token(13, 6, 0) == "loop_token"
    assert junction.advance(30, 0) == [14]


def test_a_token_out_of_turn_or_received_before_changes_nothing() -> None:
    site = loop(5)
    assert site.receive_token(11, 6, 0) == "out_of_turn"
    assert site.receive_token(10, 2, 0) == "out_of_turn"
    assert site.receive_token(11, 2, 0) == "loop_token"
    assert site.receive_token(11, 2, 0) == "duplicate"


def test_after_a_whole_round_all_are_known_to_hold_it() -> None:
    site = loop(5)
    assert site.stable_through == 10
    site.receive_token(11, 2, 0)
    site.advance(12, 0)
    site.receive_token(13, 6, 0)
    assert site.stable_through == 11


def test_with_a_stride_the_token_passes_less_often() -> None:
    junction = loop(2, stride=3)
    assert junction.advance(13, 0) == [11]
    assert junction.receive_token(12, 5, 0) == "out_of_turn"
    assert junction.receive_token(14, 5, 0) == "loop_token"


def test_a_token_that_is_not_accepted_is_repeated_and_then_its_site_is_suspected() -> None:
    junction = loop(2)
    assert junction.advance(12, 0) == [11]
    assert junction.deadline() == RETRY
    assert junction.advance(12, RETRY) == [11]
    late = TIMING.reform_delay
    junction.advance(12, late)
    assert junction.suspicion == (5, 12, Reason.TOKEN_REFUSED)
    assert junction.deadline() == NEVER


def test_no_site_is_suspected_while_the_primary_loop_is_stopped() -> None:
    junction = loop(2)
    junction.advance(11, 0)
    junction.advance(11, 10 * TIMING.reform_delay)
    assert junction.suspicion is None
    assert junction.deadline() == NEVER


def test_a_break_undoes_passes_and_restarts_the_waits() -> None:
    site = loop(5)
    site.receive_token(11, 2, 0)
    assert site.advance(40, 0) == [12]
    assert site.deadline() < NEVER
    assert site.advance(11, RETRY) == []
    assert site.deadline() == NEVER
    assert site.stable_through == 10
    assert site.advance(12, RETRY) == [12]
