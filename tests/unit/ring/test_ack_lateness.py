"""Decision 50, Request thresholds: what is measured, what fades, and how long the first request waits."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.timing import PROFILES, Timing
from fairtape.ring.receiver.ack_lateness import FADING_PERIOD, LATENESS_MAX, REQUESTED_MAX, AckLateness, wait_max
from fairtape.wire.frames import Range, Request
from unit.ring.ring_values import STARTS_AT, Signer, block, controls, formation, named, receive, receiver, run_until

TIMING = replace(PROFILES["metro"], commit_delay=45 * MILLISECOND)
T_R = TIMING.retry_period
HALF = TIMING.one_way_max
SOON = TIMING.request_delay
STALL = 14 * MILLISECOND  # longer than T_R, and below the limits
NOW = 1_000 * SECOND


def arrived(lateness: AckLateness, late: Duration, *, token: int = 1, sent: Duration = 0, now: Instant = NOW) -> None:
    lateness.arrived(token, possible_at=now - late, sent_at=now - late + sent, timing=TIMING, now=now)


def test_without_a_stall_the_first_request_waits_half_a_retry_period() -> None:
    lateness = AckLateness()
    assert lateness.wait(TIMING) == HALF
    arrived(lateness, HALF)
    assert lateness.wait(TIMING) == HALF


def test_the_first_request_waits_as_long_as_the_latest_acknowledgment() -> None:
    lateness = AckLateness()
    for late in (1, STALL, 2):
        arrived(lateness, late)
    assert lateness.wait(TIMING) == STALL


def test_a_stall_is_still_known_after_a_thousand_acknowledgments_in_time() -> None:
    """Stalls are rare: a mean and its deviation would have forgotten this one."""
    lateness = AckLateness()
    arrived(lateness, STALL)
    for number in range(1_000):
        arrived(lateness, 0, now=NOW + number * TIMING.token_period)
    assert STALL * 3 // 4 < lateness.wait(TIMING) < STALL


def test_a_stall_is_forgotten_at_last() -> None:
    lateness = AckLateness()
    arrived(lateness, STALL)
    arrived(lateness, 0, now=NOW + FADING_PERIOD)
    assert lateness.wait(TIMING) == HALF


def test_a_clock_that_was_set_back_lets_nothing_fade() -> None:
    lateness = AckLateness()
    arrived(lateness, STALL)
    arrived(lateness, 0, now=NOW - FADING_PERIOD)
    assert lateness.wait(TIMING) == STALL


def test_the_arrival_of_a_repair_does_not_count() -> None:
    """Karn's rule: it was lost, and requested; its sender had sent it in time."""
    lateness = AckLateness()
    lateness.requested(1)
    arrived(lateness, STALL, sent=0)
    assert lateness.wait(TIMING) == HALF


def test_an_acknowledgment_that_was_sent_late_counts_although_it_was_requested() -> None:
    lateness = AckLateness()
    lateness.requested(1)
    arrived(lateness, STALL, sent=STALL - 1)
    assert lateness.wait(TIMING) == STALL


def test_a_second_copy_shows_that_the_request_was_needless() -> None:
    lateness = AckLateness()
    lateness.requested(1)
    arrived(lateness, STALL, sent=0)
    lateness.copied(1, NOW)
    assert lateness.wait(TIMING) == STALL


def test_a_second_copy_of_what_was_not_requested_shows_nothing() -> None:
    lateness = AckLateness()
    arrived(lateness, 0)
    lateness.copied(1, NOW)
    assert lateness.wait(TIMING) == HALF


def test_the_requests_that_are_remembered_have_a_limit() -> None:
    lateness = AckLateness()
    for token in range(REQUESTED_MAX + 1):
        lateness.requested(token)
    arrived(lateness, STALL, token=0, sent=0)
    assert lateness.wait(TIMING) == STALL, "the first one is forgotten, so it counts as not requested"


@pytest.mark.parametrize(("retries", "waits"), [(3, 0), (4, 1), (7, 1), (8, 2), (100, 2)])
def test_at_most_a_quarter_of_the_waits_is_given_up(retries: int, waits: int) -> None:
    timing = replace(PROFILES["lan"], retries_max=retries)
    assert wait_max(timing) == timing.one_way_max + waits * timing.retry_period


@given(st.sampled_from(list(PROFILES.values())), st.integers(0, 10 * SECOND))
def test_the_wait_is_between_half_a_retry_period_and_its_limits(timing: Timing, late: Duration) -> None:
    lateness = AckLateness()
    lateness.arrived(1, possible_at=NOW - late, sent_at=NOW - late, timing=timing, now=NOW)
    assert timing.one_way_max <= lateness.wait(timing) <= max(timing.one_way_max, LATENESS_MAX)


# At a receiver.

MEMBERS = tuple(range(1, 9))
LAST = 8  # its own turn is far away
NEXT = 3  # its turn follows Ack(2)


class Stalled:
    """A receiver that knows a stall: Ack(1) came late, and the request for it was needless."""

    def __init__(self, me: int, *, commit_delay: Duration = TIMING.commit_delay) -> None:
        self.layout = formation(MEMBERS, timing=replace(TIMING, commit_delay=commit_delay, token_period=5 * T_R))
        self.site = receiver(me, self.layout)
        self._signer = Signer()
        late = self._signer.ack(self.layout, 1, 1)
        assert self.requests(1, STALL) == [(HALF + SOON, (1,), ())]
        for _ in range(2):
            receive(self.site, late, STARTS_AT + STALL)
        assert self.site.complete_through == 1

    def ack(self, token: int, late: Duration, *ranges: Range) -> None:
        """Ack(token) arrives this long after t_e."""
        receive(self.site, self._signer.ack(self.layout, token, 1, ranges), self.layout.scheduled_at(token) + late)

    def requests(self, token: int, until: Duration) -> list[tuple[Duration, tuple[int, ...], tuple[Range, ...]]]:
        """What is requested until this long after t_e: when, counted from t_e, and what."""
        t_e = self.layout.scheduled_at(token)
        sent = [(at - t_e, controls([effect])) for at, effect in run_until(self.site, t_e + until)]
        return [
            (at, request.tokens, request.ranges)
            for at, messages in sent
            for request in messages
            if isinstance(request, Request)
        ]


def test_a_site_far_from_its_turn_waits_for_an_acknowledgment_as_long_as_the_last_stall() -> None:
    stalled = Stalled(LAST)
    assert stalled.requests(2, STALL + SOON - 1) == []
    assert stalled.requests(2, STALL + SOON) == [(STALL + SOON, (2,), ())]


def test_the_next_token_site_waits_one_retry_period_at_most() -> None:
    """It delays the ring, so it must not wait for long."""
    assert Stalled(NEXT).requests(2, STALL) == [(T_R + SOON, (2,), ())]


def test_the_next_token_site_leaves_time_for_a_repair_before_the_commit() -> None:
    stalled = Stalled(NEXT, commit_delay=2 * T_R - 2 * MILLISECOND)
    assert stalled.requests(2, T_R) == [(T_R - 2 * MILLISECOND + SOON, (2,), ())]
    assert Stalled(NEXT, commit_delay=T_R).requests(2, T_R) == [(HALF + SOON, (2,), ())]


def test_what_a_later_acknowledgment_shows_to_be_missing_is_requested_within_one_retry_period() -> None:
    stalled = Stalled(LAST)
    stalled.ack(3, -4 * T_R)
    assert stalled.requests(2, STALL) == [(T_R + SOON, (2,), ())]


def test_messages_that_an_acknowledgment_names_are_requested_within_one_retry_period() -> None:
    """Their blocks may be as late as acknowledgments are."""
    stalled = Stalled(LAST)
    stalled.ack(2, 1, named(1))
    assert stalled.requests(2, STALL) == [(T_R + SOON, (), (named(1),))]


def test_blocks_that_come_meanwhile_are_not_requested() -> None:
    stalled = Stalled(LAST)
    stalled.ack(2, 1, named(1))
    receive(stalled.site, block(1), stalled.layout.scheduled_at(2) + T_R - 1)
    assert stalled.site.complete_through == 2
    assert stalled.requests(2, STALL) == []


def test_waits_that_pass_before_the_first_request_count_as_made() -> None:
    """A failure is declared at t_e + (n + 1/2) T_R, whatever was measured.  T-RMP §3."""
    for shown in (0, 1):
        stalled = Stalled(LAST)
        deadline = stalled.layout.scheduled_at(2) + stalled.layout.timing.reform_delay - shown
        if shown:
            stalled.ack(2, HALF - 1, named(1))
        run_until(stalled.site, deadline - 1)
        assert stalled.site.reforming is None
        run_until(stalled.site, deadline)
        assert stalled.site.reforming is not None
