"""Simulated clocks: correct ones keep their bound, and the instant of a reading can be computed."""

from random import Random

from hypothesis import given
from hypothesis import strategies as some

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND
from fairtape.simulation.clocks import RATE_MAX, DriftingClock, Piece, TrueClock, drifting_clock
from fairtape.simulation.world import EPOCH

UNTIL = EPOCH + 20 * SECOND
seeds = some.integers(0, 100_000)
instants = some.integers(EPOCH, UNTIL)


@given(piece=some.builds(Piece, some.just(EPOCH), some.integers(-SECOND, SECOND), some.integers(-RATE_MAX, RATE_MAX)),
       shown=instants)  # fmt: skip
def test_a_piece_reaches_a_time_at_the_first_instant_that_shows_it(piece: Piece, shown: int) -> None:
    at = piece.reaches(shown)
    assert piece.shows(at) >= shown
    assert at == piece.since or piece.shows(at - 1) < shown


@given(seed=seeds, at=instants, steps=some.booleans())
def test_a_correct_clock_stays_within_its_bound(seed: int, at: int, steps: bool) -> None:
    clock = drifting_clock(Random(seed), since=EPOCH, until=UNTIL, bound=MILLISECOND, steps=steps, noise=200)
    assert abs(clock.read(at) - at) <= clock.bound + 1


@given(seed=seeds, since=instants, ahead=some.integers(-SECOND, 3 * SECOND))
def test_when_is_the_first_instant_at_which_a_stepping_clock_shows_a_time(seed: int, since: int, ahead: int) -> None:
    clock = drifting_clock(Random(seed), since=EPOCH, until=UNTIL, bound=50 * MILLISECOND, steps=True)
    shown = since + ahead
    at = clock.when(shown, since)
    assert at >= since
    assert clock.read(at) >= shown
    assert at == since or clock.read(at - 1) < shown


@given(seed=seeds)
def test_noise_alone_never_turns_a_clock_back(seed: int) -> None:
    clock = DriftingClock([Piece(EPOCH, 0, 0)], bound=MICROSECOND, noise=500, chance=Random(seed))
    shown = [clock.read(EPOCH + step) for step in range(100)]
    assert shown == sorted(shown)


def test_a_faulty_clock_leaves_its_bound() -> None:
    clock = drifting_clock(Random(3), since=EPOCH, until=UNTIL, bound=MILLISECOND, within=SECOND)
    assert any(abs(clock.read(EPOCH + second * SECOND) - EPOCH - second * SECOND) > clock.bound for second in range(20))


def test_the_true_clock_is_true() -> None:
    assert TrueClock().read(EPOCH) == EPOCH
    assert TrueClock().when(EPOCH - 1, EPOCH) == EPOCH
