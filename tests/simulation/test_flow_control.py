"""Flow control in worlds: a source slows down if the ring falls behind, but not because of its own clock."""

from collections.abc import Sequence

import pytest

from fairtape.core.effects import Channel
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.ring.load import LAG_TARGET, SiteLoad
from fairtape.simulation.clocks import RATE_MAX, DriftingClock, Piece, SimulatedClock
from fairtape.simulation.world import EPOCH, Observer
from fairtape.wire.frames import Ack, NodeId, decode_control, is_block
from unit.ring.ring_values import SOURCE, Ring

TIMING = Timing(
    retry_period=4 * MILLISECOND, retries_max=200, token_period=5 * MILLISECOND, commit_delay=20 * MILLISECOND
)
HOUR: Duration = 3_600 * SECOND
QUIET_SECONDS = 12  # long enough for the worst oscillator to gain more than T_R
MESSAGE = bytes(1_200)


def unbounded_clock(*pieces: Piece) -> SimulatedClock:
    return DriftingClock(pieces, bound=0)


CLOCKS = {
    "fast": unbounded_clock(Piece(EPOCH, 0, RATE_MAX)),
    "slow": unbounded_clock(Piece(EPOCH, 0, -RATE_MAX)),
    "far ahead": unbounded_clock(Piece(EPOCH, HOUR, 0)),
    "set ahead": unbounded_clock(Piece(EPOCH, 0, 0), Piece(EPOCH + 7 * SECOND, HOUR, 0)),
    "set ahead a little, again and again": unbounded_clock(
        *(Piece(EPOCH + n * SECOND, n * 2 * TIMING.retry_period, 0) for n in range(QUIET_SECONDS))
    ),
}


def sent_of_a_burst(ring: Ring, quiet: int = QUIET_SECONDS) -> int:
    """How much of a large burst, published after some quiet seconds, the source has sent half a second later."""
    source = ring.sources[SOURCE]
    for second in range(quiet):
        ring.publish(SOURCE, [b"a quiet market"], EPOCH + second * SECOND)
    ring.publish(SOURCE, [MESSAGE] * 10_000, EPOCH + quiet * SECOND)
    ring.run(quiet * SECOND + 500 * MILLISECOND)
    return source.next_number - quiet


@pytest.mark.parametrize("name", CLOCKS)
@pytest.mark.parametrize("timed", [True, False], ids=["TRMP", "RMP"])
def test_a_source_sends_as_much_with_any_clock_error(name: str, timed: bool) -> None:
    steady = sent_of_a_burst(Ring(3, timing=TIMING, timed=timed))
    other = Ring(3, timing=TIMING, timed=timed, clocks={SOURCE: CLOCKS[name]})
    assert sent_of_a_burst(other) >= 0.99 * steady


@pytest.mark.parametrize("timed", [True, False], ids=["TRMP", "RMP"])
def test_a_quiet_ring_does_not_count_as_late(timed: bool) -> None:
    busy, quiet = (Ring(3, timing=TIMING, timed=timed) for _ in range(2))
    assert sent_of_a_burst(quiet) >= sent_of_a_burst(busy, quiet=0)


class Acks(Observer):
    """Records every acknowledgment that a token site sent."""

    def __init__(self) -> None:
        self.seen: list[Ack] = []

    def sent(self, _node: NodeId, to: int, datagram: bytes, _at: Instant, /) -> None:
        if to is Channel.CONTROL and not is_block(datagram):
            ack = decode_control(datagram)
            assert isinstance(ack, Ack)
            self.seen.append(ack)


def acks_around_a_pause(period: Duration, *, timed: bool) -> Sequence[Ack]:
    ring, acks = Ring(3, timing=TIMING, timed=timed), Acks()
    ring.world.observers.append(acks)
    ring.world.at(EPOCH + 52 * MILLISECOND, lambda: ring.world.pause(2))
    ring.world.at(EPOCH + 52 * MILLISECOND + period, lambda: ring.world.resume(2))
    for step in range(40):
        ring.publish(SOURCE, [MESSAGE], EPOCH + step * 5 * MILLISECOND)
    ring.run(200 * MILLISECOND)
    return acks.seen


def test_a_token_that_is_late_by_half_of_the_commit_delay_counts_as_load() -> None:
    acks = acks_around_a_pause(40 * MILLISECOND, timed=True)
    lags = [ack.sent_at - (EPOCH + ack.token * TIMING.token_period) - TIMING.commit_delay // 2 for ack in acks]
    own = [(lag, ack) for lag, ack in zip(lags, acks, strict=True) if not ack.relayed]
    assert any(lag > 0 for lag, _ in own)
    for lag, ack in own:
        assert ack.release_lag_us * MICROSECOND >= min(lag + LAG_TARGET, 0)
        assert (lag <= 0) or SiteLoad.in_ack(ack).excess(TIMING.token_period) > 1


def test_the_load_of_a_member_is_reported_by_the_others_until_its_next_turn() -> None:
    """A slow member acknowledges nothing that a faster one has not acknowledged before: no source would hear it."""
    acks = acks_around_a_pause(40 * MILLISECOND, timed=True)
    loaded = [
        (ack.token, ack.release_lag_us) for ack in acks if ack.sender == 2 and ack.release_lag_us and not ack.relayed
    ]
    assert loaded
    following = {ack.token: ack for ack in acks}
    token, lag_us = loaded[0]
    for later in (following[token + 1], following[token + 2]):
        assert later.sender != 2
        assert later.release_lag_us >= lag_us
    assert acks[-1].release_lag_us == 0


def test_without_a_schedule_no_token_is_late() -> None:
    assert not any(ack.release_lag_us for ack in acks_around_a_pause(40 * MILLISECOND, timed=False))
