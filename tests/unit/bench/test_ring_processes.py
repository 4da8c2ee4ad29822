"""The tally of a receiver: which deliveries are samples, and what is counted."""

from fairtape.bench.ring_processes import STAMP, ReceiverTally
from fairtape.core.effects import Deliver, Ordered, Release, Span
from fairtape.core.instants import MILLISECOND
from fairtape.wire.blocks import pack_messages


def delivery(published_at: int, commit_at: int, *, late: bool = False) -> Deliver:
    body = pack_messages([STAMP.pack(published_at) + bytes(8)])
    ordered = Ordered(0, 1, 1, 1, 1, 0, (Span(101, 1, 1, 1, 1, (body,), (1,)),))
    return Deliver(ordered, Release(1, 1, 1, commit_at, commit_at, late=late, clock_bound=1))


def test_late_releases_are_included_in_all_samples_and_counted() -> None:
    tally = ReceiverTally(0, MILLISECOND, stamped=True)
    tally.take(delivery(100, 200), 250)
    tally.take(delivery(100, 200, late=True), 900)
    assert list(tally.errors) == [50, 700]
    assert list(tally.latencies) == [150, 800]
    assert (tally.messages, tally.late_messages, tally.late_releases) == (2, 1, 1)


def test_deliveries_outside_the_measured_time_are_not_samples() -> None:
    tally = ReceiverTally(1_000, 2_000, stamped=False)
    for delivered_at in (999, 2_000):
        tally.take(delivery(0, 500), delivered_at)
    assert tally.messages == len(tally.errors) == 0
