"""Flow control of a source: the window opens and closes, the pace holds back. Figure 1 is in tests/paper."""

from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.ring.load import BACKLOG_TARGET, LAG_TARGET, NO_LOAD, SiteLoad
from fairtape.ring.sender.window import (
    BURST_MAX,
    GROWTH_DIVISOR,
    GROWTH_PERIOD,
    LOADED_WINDOW_MIN,
    RATE_MAX,
    WINDOW_MAX,
    WINDOW_MIN,
    Limit,
    SendPace,
    SendWindow,
    TokenPeriod,
    packet_size,
    window_max_of,
)

PACKET = 1_400
PERIOD = 5 * MILLISECOND
NOW = 1_000 * SECOND
LATE = SiteLoad(release_lag=2 * LAG_TARGET)


def window_of(size: int, *, threshold: int | None = None, maximum: int | None = None) -> SendWindow:
    window = SendWindow(token_period=PERIOD, packet_max=PACKET, maximum=maximum)
    window.size = size
    window.threshold = window.threshold if threshold is None else threshold
    return window


def acknowledge(window: SendWindow, size: int, load: SiteLoad | None = NO_LOAD, now: int = NOW) -> None:
    """Everything was sent, more waits, and so much is acknowledged."""
    window.sent(size)
    window.held_back()
    window.acknowledged(size, load, now)


def test_what_is_sent_is_not_available_until_it_is_acknowledged() -> None:
    window = window_of(4_000, maximum=4_000)
    window.sent(600)
    assert window.available == 3_400
    window.acknowledged(600, NO_LOAD, NOW)
    assert window.available == 4_000


def test_nothing_is_available_when_the_window_has_closed_below_the_flight() -> None:
    window = window_of(8 * WINDOW_MIN)
    window.sent(8 * WINDOW_MIN)
    window.timed_out()
    assert window.available == 0


def test_below_the_threshold_the_window_doubles_each_round() -> None:
    window = window_of(WINDOW_MIN)
    acknowledge(window, WINDOW_MIN)
    assert window.size == 2 * WINDOW_MIN


def test_the_window_doubles_no_faster_than_a_lag_is_known() -> None:
    """A lag is known a commit delay after the token. Doubling with every token overshoots by a multiple."""
    window = SendWindow(token_period=PERIOD, commit_delay=6 * PERIOD, packet_max=PACKET)
    begun = window.size
    for _ in range(6):
        acknowledge(window, window.size)
    assert 2 * begun < window.size < 3 * begun


def test_above_the_threshold_the_window_grows_by_a_constant_and_by_a_part_of_itself() -> None:
    window = window_of(WINDOW_MIN, threshold=WINDOW_MIN)
    acknowledge(window, WINDOW_MIN)
    before = window.size
    acknowledge(window, WINDOW_MIN, now=NOW + PERIOD)
    constant = window.maximum * PERIOD / GROWTH_PERIOD
    assert abs(window.size - before - constant - before / GROWTH_DIVISOR) <= 1


def test_a_window_that_held_nothing_back_does_not_grow() -> None:
    window = window_of(WINDOW_MIN)
    window.sent(WINDOW_MIN)
    window.acknowledged(WINDOW_MIN, NO_LOAD, NOW)
    assert window.size == WINDOW_MIN


def test_the_window_closes_in_proportion_to_the_load() -> None:
    """At x times the target by half of 1 - 1/x: at twice the target by a quarter, far above it by a half."""
    for load, left in (
        (LATE, 0.75),
        (SiteLoad(backlog=int(2 * BACKLOG_TARGET * PERIOD)), 0.75),
        (SiteLoad(release_lag=1_000 * LAG_TARGET), 0.5),
        (SiteLoad(release_lag=LAG_TARGET, backlog=int(BACKLOG_TARGET * PERIOD)), 1.0),
    ):
        window = window_of(8 * WINDOW_MIN, threshold=8 * WINDOW_MIN)
        window.sent(PACKET)
        window.acknowledged(PACKET, load, NOW)
        assert abs(window.size - left * 8 * WINDOW_MIN) <= WINDOW_MIN / 100
        assert window.flight == 0


def test_load_closes_the_window_once_until_the_sites_can_have_noticed() -> None:
    window = window_of(8 * WINDOW_MIN)
    for late, size in ((0, 6), (PERIOD, 6), (2 * PERIOD, 4.5)):
        acknowledge(window, PACKET, LATE, NOW + late)
        assert window.size == size * WINDOW_MIN
    assert window.limit is Limit.RELEASE_LAG


def test_two_sources_with_the_same_reports_converge() -> None:
    """They grow by the same amount and shrink by the same fraction."""
    one, two = window_of(WINDOW_MIN, threshold=0), window_of(8 * WINDOW_MIN, threshold=0)
    for step in range(20_000):
        total = one.size + two.size
        load = LATE if total > 12 * WINDOW_MIN else NO_LOAD
        for window in (one, two):
            acknowledge(window, PACKET, load, NOW + step * PERIOD)
    assert 0.8 < one.size / two.size <= 1.0


def test_below_two_packets_the_rate_alone_keeps_the_window() -> None:
    window = window_of(LOADED_WINDOW_MIN)
    assert window.available == 2 * PACKET
    assert window.bytes_per_s == LOADED_WINDOW_MIN * SECOND * 5 // (4 * PERIOD)


def test_a_hole_halves_the_window_but_not_below_the_minimum() -> None:
    window = window_of(8 * WINDOW_MIN)
    window.hole_reported()
    assert (window.size, window.threshold) == (4 * WINDOW_MIN, 4 * WINDOW_MIN)
    for _ in range(10):
        window.hole_reported()
    assert window.size == WINDOW_MIN


def test_a_timeout_restarts_at_the_minimum_with_half_as_threshold() -> None:
    window = window_of(8 * WINDOW_MIN)
    window.timed_out()
    assert (window.size, window.threshold) == (WINDOW_MIN, 4 * WINDOW_MIN)


def test_silence_is_the_reason_until_the_window_has_its_threshold_again() -> None:
    window = window_of(8 * WINDOW_MIN)
    window.timed_out()
    reasons = [window.limit]
    while window.size < window.threshold:
        acknowledge(window, window.size)
        reasons.append(window.limit)
    assert reasons == [Limit.SILENCE, Limit.SILENCE, Limit.START]


def test_without_a_report_of_load_the_window_grows_no_further_than_its_threshold() -> None:
    """Progress acknowledges, and reports no load: a source that receives nothing else must not grow into a flood."""
    window = window_of(2 * WINDOW_MIN, threshold=3 * WINDOW_MIN)
    for _ in range(100):
        acknowledge(window, window.size, None)
    assert window.size == 3 * WINDOW_MIN


def test_a_clock_that_is_set_back_does_not_keep_the_window_open() -> None:
    window = window_of(64 * WINDOW_MIN)
    acknowledge(window, 1, SiteLoad(release_lag=2 * LAG_TARGET))
    size = window.size
    acknowledge(window, 1, SiteLoad(release_lag=2 * LAG_TARGET), NOW - 3_600 * SECOND)
    assert window.size < size


def test_losses_do_not_open_a_window_that_load_has_closed() -> None:
    for lose in (SendWindow.hole_reported, SendWindow.timed_out):
        window = window_of(WINDOW_MIN // 4, threshold=WINDOW_MIN // 4)
        lose(window)
        assert (window.size, window.threshold) == (WINDOW_MIN // 4, WINDOW_MIN // 4)


def test_the_largest_window_follows_the_token_period() -> None:
    assert window_max_of(PERIOD) == RATE_MAX * PERIOD // SECOND
    assert window_max_of(SECOND) == WINDOW_MAX
    assert window_max_of(1) == WINDOW_MIN


@given(st.lists(st.sampled_from(["sent", "acknowledged", "loaded", "lost_one", "lost_touch"]), max_size=60))
def test_the_window_stays_between_its_limits(events: list[str]) -> None:
    window = window_of(WINDOW_MIN)
    flight, now = 0, NOW
    for event in events:
        now += PERIOD
        match event:
            case "sent":
                window.sent(PACKET)
                window.held_back()
                flight += PACKET
            case "acknowledged" | "loaded" if flight:
                window.acknowledged(PACKET, LATE if event == "loaded" else NO_LOAD, now)
                flight -= PACKET
            case "lost_one":
                window.hole_reported()
            case "lost_touch":
                window.timed_out()
        assert LOADED_WINDOW_MIN <= window.size <= window.maximum
        assert window.available == max(max(window.size, 2 * PACKET) - flight, 0)


def test_a_rate_lets_a_burst_pass_and_then_holds_back() -> None:
    """1,000 bytes a second with a burst of 2,000: after an idle time, packets leave until the credit is spent."""
    pace = SendPace()
    now, sent = 100 * SECOND, 0
    pace.set_rate(1_000, 2_000, now)
    while pace.next_at <= now:
        pace.sent(500, now)
        sent += 500
    assert sent == 2_500
    assert pace.next_at == now + SECOND // 2


def test_over_time_the_rate_is_kept() -> None:
    pace = SendPace(1_000)
    now, sent = 100 * SECOND, 0
    while now < 200 * SECOND:
        pace.set_rate(10**9, 1_000, now)
        pace.sent(100, now)
        sent += 100
        now = max(now, pace.next_at)
    assert 100_000 <= sent <= 100_000 + 1_000 + 100


def test_a_clock_that_is_set_back_holds_nothing_back_for_longer_than_a_burst() -> None:
    pace = SendPace()
    pace.sent(PACKET, 200 * SECOND)
    pace.set_rate(10**6, BURST_MAX, 100 * SECOND)
    assert pace.next_at <= 100 * SECOND + BURST_MAX * SECOND // 10**6


def test_a_packet_is_never_larger_than_the_available_window() -> None:
    assert packet_size(offered=10_000, window=4_000, available=300, packet_min=256, packet_max=PACKET) == 300
    assert packet_size(offered=10_000, window=4_000, available=255, packet_min=256, packet_max=PACKET) is None


def paced_period(pace: int, *, pace_max: int = 3, tokens: int = 64, late: int = 0) -> TokenPeriod:
    """What a source measures of a token at this pace, every other acknowledgment of which is late."""
    period = TokenPeriod(PERIOD, pace_max)
    for token in range(1, tokens):
        period.note(token, NOW + token * pace * PERIOD + token % 2 * late)
    return period


@given(st.integers(1, 3), st.integers(0, 35 * MILLISECOND))
def test_a_source_measures_the_pace_though_acknowledgments_are_late(pace: int, late: int) -> None:
    assert paced_period(pace, late=late).present == pace * PERIOD


def test_the_measured_period_is_at_most_the_slowest_that_is_allowed() -> None:
    assert paced_period(3, pace_max=1).present == PERIOD
    assert paced_period(9).present == 3 * PERIOD


def test_one_long_gap_does_not_change_the_measured_period() -> None:
    """A reformation, or a clock that was set."""
    period = paced_period(1)
    for token in range(64, 99):
        period.note(token, NOW + token * PERIOD + SECOND)
        assert period.present == PERIOD


def test_a_window_sends_itself_in_the_measured_period_and_may_grow_with_it() -> None:
    window = SendWindow(token_period=PERIOD, packet_max=PACKET, pace_max=3)
    rate = window.bytes_per_s
    for token in range(1, 64):
        window.token_period.note(token, NOW + 2 * token * PERIOD)
    assert (window.bytes_per_s, window.maximum) == (rate // 2, window_max_of(2 * PERIOD))


@given(st.integers(LOADED_WINDOW_MIN, WINDOW_MAX))
def test_a_packet_that_must_wait_waits_a_tenth_of_a_token_period_longer_at_most(size: int) -> None:
    """So that half a burst leaves at once; a source with a small window must not wait for whole token periods."""
    window = SendWindow(token_period=PERIOD, packet_max=PACKET)
    window.size = size
    assert window.train_delay <= PERIOD // 10
    assert window.burst <= size // 4
