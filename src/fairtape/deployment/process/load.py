"""Traffic for drills and measurements: so many messages per second, no two of them the same."""

import struct
from typing import Final

from fairtape.core.instants import SECOND, Instant
from fairtape.deployment.status_files import Status
from fairtape.nodes.source import Source

SIZES: Final = (16, 1_024)  # bytes of a message
QUEUED_MAX: Final = 256 << 10  # bytes that wait in the source; while there are more, the metronome waits as well
TICKS_MIN: Final = 1_000  # per second: at high rates several messages leave together
BURST_MAX: Final = 1_000  # messages that leave together, after the source had no room
STAMP: Final = struct.Struct(">QQ")  # the message's number, and when it was due


class PacedLoad:
    """A producer that keeps time. What could not leave in time leaves as soon as it can: nothing is left out."""

    def __init__(self, source: Source, *, rate: float, size: int) -> None:
        self._source = source
        self._period = max(round(SECOND / rate), 1)
        self._tick = max(self._period, SECOND // TICKS_MIN)
        self._filling = bytes(size - STAMP.size)
        self._began_at: Instant = 0
        self._look_at: Instant = 0
        self.published = 0
        self.quiet = False

    def be_quiet(self, *, quiet: bool) -> None:
        """Publish no more, or go on."""
        self.quiet = quiet

    def deadline(self) -> Instant | None:
        """The next tick."""
        if self.quiet or self._source.queued >= QUEUED_MAX:
            return None
        return self._look_at

    def wake(self, now: Instant) -> None:
        """Publish what is due."""
        self._began_at = self._began_at or now
        self._look_at = now + self._tick
        due = min((now - self._began_at) // self._period + 1 - self.published, BURST_MAX)
        messages = [STAMP.pack(self.published + each + 1, now) + self._filling for each in range(due)]
        self.published += self._source.publish(messages, now)


def load_status(source: Source, metronome: PacedLoad) -> Status:
    """How a source of traffic fares."""
    return {
        "incarnation": source.incarnation,
        "published": metronome.published,
        "acknowledged": source.acked_through,
        "settled": source.settled_through,
        "idle": source.idle,
        "quiet": metronome.quiet,
        "resent": source.counts["resent"],
        "counts": dict(source.counts),
    }
