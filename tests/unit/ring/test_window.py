"""Flow control of a source: the window opens and closes, the pace holds back. Figure 1 is in tests/paper."""

from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.instants import SECOND
from fairtape.ring.sender.window import GROWTH_DIVISOR, WINDOW_MAX, WINDOW_MIN, SendPace, SendWindow, packet_size

PACKET = 1_400


def test_what_is_sent_is_not_available_until_it_is_acknowledged() -> None:
    window = SendWindow(minimum=1_000, maximum=1_000, size=1_000)
    window.sent(600)
    assert window.available == 400
    window.acknowledged(600, PACKET, behind=False)
    assert window.available == 1_000


def test_nothing_is_available_when_the_window_has_closed_below_the_flight() -> None:
    window = SendWindow(minimum=100, size=1_000)
    window.sent(1_000)
    window.timed_out()
    assert window.available == 0


def test_below_the_threshold_the_window_doubles_each_round() -> None:
    window = SendWindow(size=WINDOW_MIN)
    window.sent(WINDOW_MIN)
    window.acknowledged(WINDOW_MIN, PACKET, behind=False)
    assert window.size == 2 * WINDOW_MIN


def test_above_the_threshold_the_window_grows_slowly() -> None:
    window = SendWindow(size=WINDOW_MIN, threshold=WINDOW_MIN)
    window.sent(WINDOW_MIN)
    window.acknowledged(WINDOW_MIN, PACKET, behind=False)
    assert window.size == WINDOW_MIN + WINDOW_MIN // GROWTH_DIVISOR


def test_a_small_window_grows_by_a_packet_at_least() -> None:
    window = SendWindow(minimum=PACKET, size=4 * PACKET, threshold=PACKET)
    window.sent(4 * PACKET)
    window.acknowledged(4 * PACKET, PACKET, behind=False)
    assert window.size == 5 * PACKET


def test_a_late_token_closes_the_window_by_a_quarter() -> None:
    window = SendWindow(size=8 * WINDOW_MIN)
    window.sent(PACKET)
    window.acknowledged(PACKET, PACKET, behind=True)
    assert window.size == window.threshold == 6 * WINDOW_MIN
    assert window.flight == 0


def test_a_hole_halves_the_window_but_not_below_the_minimum() -> None:
    window = SendWindow(size=8 * WINDOW_MIN)
    window.hole_reported()
    assert (window.size, window.threshold) == (4 * WINDOW_MIN, 4 * WINDOW_MIN)
    for _ in range(10):
        window.hole_reported()
    assert window.size == WINDOW_MIN


def test_a_timeout_restarts_at_the_minimum_with_half_as_threshold() -> None:
    window = SendWindow(size=8 * WINDOW_MIN)
    window.timed_out()
    assert (window.size, window.threshold) == (WINDOW_MIN, 4 * WINDOW_MIN)


@given(st.lists(st.sampled_from(["sent", "acknowledged", "behind", "lost_one", "lost_touch"]), max_size=60))
def test_the_window_stays_between_its_limits(events: list[str]) -> None:
    window = SendWindow()
    flight = 0
    for event in events:
        match event:
            case "sent":
                window.sent(PACKET)
                flight += PACKET
            case "acknowledged" | "behind" if flight:
                window.acknowledged(PACKET, PACKET, behind=event == "behind")
                flight -= PACKET
            case "lost_one":
                window.hole_reported()
            case "lost_touch":
                window.timed_out()
        assert WINDOW_MIN <= window.size <= WINDOW_MAX
        assert window.available == max(window.size - flight, 0)


def test_without_a_rate_packets_follow_at_once() -> None:
    pace = SendPace()
    pace.sent(10**9, 5)
    assert pace.next_at == 0


def test_a_rate_lets_a_burst_pass_and_then_holds_back() -> None:
    """1,000 bytes a second with a burst of 2,000: after an idle time, packets leave until the credit is spent."""
    pace = SendPace(bytes_per_s=1_000, burst=2_000)
    now, sent = 100 * SECOND, 0
    while pace.next_at <= now:
        pace.sent(500, now)
        sent += 500
    assert sent == 2_500
    assert pace.next_at == now + SECOND // 2


def test_over_time_the_rate_is_kept() -> None:
    pace = SendPace(bytes_per_s=1_000, burst=1_000)
    now, sent = 100 * SECOND, 0
    while now < 200 * SECOND:
        pace.sent(100, now)
        sent += 100
        now = max(now, pace.next_at)
    assert 100_000 <= sent <= 100_000 + 1_000 + 100


def test_a_packet_is_never_larger_than_the_available_window() -> None:
    assert packet_size(offered=10_000, window=4_000, available=300, packet_min=256, packet_max=PACKET) == 300
    assert packet_size(offered=10_000, window=4_000, available=255, packet_min=256, packet_max=PACKET) is None
