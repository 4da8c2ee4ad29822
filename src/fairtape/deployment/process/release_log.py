"""What a site has released: totals, the pauses between releases, and the latest releases."""

from collections import deque
from typing import Final

from fairtape.core.effects import Deliver, Ordered, Release, Report
from fairtape.core.instants import MILLISECOND, Instant

PAUSE_MIN: Final = 50 * MILLISECOND  # shorter pauses are not recorded
PAUSES_MAX: Final = 64
RELEASES_MAX: Final = 256
ORDERED_MAX: Final = 24  # tokens whose messages are kept for display; the journal has all of them


class ReleaseLog:
    """A consumer that counts. With `keeps_messages` it also holds the last tokens themselves, for display."""

    def __init__(self, *, keeps_messages: bool = False) -> None:
        self.messages = 0
        self.late = 0  # messages
        self.sequence = 0  # of the last message
        self.released_at: Instant = 0
        self.pauses: deque[tuple[Instant, Instant]] = deque(maxlen=PAUSES_MAX)
        self.releases: deque[Release] = deque(maxlen=RELEASES_MAX)  # since `clear_recent`
        self.ordered: deque[Ordered] = deque(maxlen=ORDERED_MAX)  # since `clear_recent`
        self.failure: Report | None = None  # the last one that the site declared
        self._keeps_messages = keeps_messages

    def delivered(self, delivery: Deliver) -> None:
        """Record a release. Messages are unpacked later: at the commit instant all sites of a machine need a core."""
        release = delivery.release
        self.messages += release.count
        self.late += release.count if release.late else 0
        self.sequence = release.sequence + release.count - 1
        if self.released_at and release.released_at - self.released_at > PAUSE_MIN:
            self.pauses.append((self.released_at, release.released_at))
        self.released_at = release.released_at
        self.releases.append(release)
        if self._keeps_messages:
            self.ordered.append(delivery.ordered)

    def reported(self, report: Report) -> None:
        self.failure = report

    def clear_recent(self) -> None:
        """Forget the recent releases once they are reported. Totals stay."""
        self.releases.clear()
        self.ordered.clear()
