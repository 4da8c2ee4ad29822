"""The wake delay of a driver: how much earlier than a deadline its waits end."""

from fairtape.core.instants import MICROSECOND, MILLISECOND
from fairtape.net.driver import WAKE_DELAY_MAX, WakeDelay


def test_waits_are_shortened_by_what_they_last_too_long() -> None:
    delay = WakeDelay()
    for _ in range(100):
        delay.note(20 * MICROSECOND)
    assert 20 * MICROSECOND <= delay.period < 21 * MICROSECOND


def test_varying_delays_leave_a_margin() -> None:
    delay = WakeDelay()
    for _ in range(100):
        delay.note(20 * MICROSECOND)
        delay.note(40 * MICROSECOND)
    assert delay.period > 40 * MICROSECOND


def test_a_processor_that_was_taken_is_no_wake_up() -> None:
    delay = WakeDelay()
    for _ in range(100):
        delay.note(50 * MILLISECOND)
    assert delay.period == WAKE_DELAY_MAX
    for _ in range(100):
        delay.note(-MILLISECOND)  # a signal ended the wait
    assert delay.period < MICROSECOND
