"""The flow control algorithm that determines the size of the packet to be sent: RMP (paper 004) Figure 1, by line."""

from hypothesis import given
from hypothesis import strategies as st

from fairtape.ring.sender.window import packet_size

MIN, MAX = 256, 1_400


def size(*, offered: int, window: int, available: int) -> int | None:
    return packet_size(offered=offered, window=window, available=available, packet_min=MIN, packet_max=MAX)


def test_too_small_an_available_window_delays_the_packet() -> None:
    """if (A < MIN_PACKET && A < W) then delay sending packet until an ACK is received.  RMP Figure 1."""
    assert size(offered=1_000, window=2_000, available=MIN - 1) is None
    assert size(offered=1_000, window=2_000, available=MIN) is not None


def test_a_window_that_is_all_free_delays_nothing_however_small() -> None:
    """A < MIN_PACKET but A = W: nothing is in flight, so no ACK would come.  RMP Figure 1."""
    assert size(offered=1_000, window=100, available=100) == 100


def test_up_to_half_of_the_window_is_sent_at_a_time() -> None:
    """S = min(P, W/2).  RMP Figure 1."""
    assert size(offered=1_200, window=2_000, available=2_000) == 1_000
    assert size(offered=900, window=2_000, available=2_000) == 900


def test_at_least_the_smallest_packet_is_sent() -> None:
    """S = max(S, MIN_PACKET).  RMP Figure 1."""
    assert size(offered=1_000, window=300, available=300) == MIN
    assert size(offered=10, window=2_000, available=2_000) == MIN


def test_no_more_is_sent_than_the_available_window() -> None:
    """S = min(S, A).  RMP Figure 1."""
    assert size(offered=1_000, window=2_000, available=700) == 700


def test_no_packet_is_larger_than_the_largest() -> None:
    """S = min(S, MAX_PACKET): reduce effect of lost packets.  RMP Figure 1."""
    assert size(offered=100_000, window=100_000, available=100_000) == MAX


@given(
    offered=st.integers(1, 10_000),
    window=st.integers(1, 10_000),
    flight=st.integers(0, 10_000),
    packet_min=st.integers(1, 500),
    packet_max=st.integers(500, 2_000),
)
def test_the_function_is_the_figure(offered: int, window: int, flight: int, packet_min: int, packet_max: int) -> None:
    """All lines together, for any numbers.  RMP Figure 1."""
    available = max(window - flight, 0)
    found = packet_size(
        offered=offered, window=window, available=available, packet_min=packet_min, packet_max=packet_max
    )
    if available < packet_min and available < window:
        assert found is None
    else:
        assert found == min(min(max(min(offered, window // 2), packet_min), available), packet_max)
