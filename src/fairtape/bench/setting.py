"""The settings of one run of one ring. Every process of the run gets the same value."""

from dataclasses import dataclass
from typing import Final

from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.ring.membership.formation import Formation
from fairtape.wire.seals import Seal

WARM_PERIOD: Final = 500 * MILLISECOND
END_PERIOD_MAX: Final = 30 * SECOND  # allowed after the end of a run
SOURCE_FIRST: Final = 101

BULK: Final = Timing(
    retry_period=30 * MILLISECOND, retries_max=33, token_period=10 * MILLISECOND, commit_delay=80 * MILLISECOND
)
"""For throughput: tokens of about a hundred blocks, and time-outs that suit two busy cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One run of one ring."""

    receivers: int = 3
    senders: int = 1
    size: int = 64
    seconds: float = 5.0
    timing: Timing = BULK
    rate: int | None = None  # messages per second of each sender; None floods
    loss: float = 0.0  # into the first receiver
    seal: type[Seal] = Seal
    real_time: bool = False  # request real-time scheduling for the processes of the ring

    @property
    def sources(self) -> range:
        """The numbers of the sources. They share one process, as the gateways of one participant do."""
        return range(SOURCE_FIRST, SOURCE_FIRST + self.senders)

    @property
    def window(self) -> Duration:
        """The measured time."""
        return int(self.seconds * SECOND)

    def window_of(self, formation: Formation) -> tuple[Instant, Instant]:
        """When the measurement begins and ends."""
        starts_at = formation.starts_at + WARM_PERIOD
        return starts_at, starts_at + self.window
