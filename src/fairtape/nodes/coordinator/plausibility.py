"""Which reports a leader believes (decision 74, Plausible reports): a function of values.

What the sites report decides the numbers that follow. A site with a fault, or one that lies, may report any number, and
the highest one counts. So a leader sets a bound that no correct site exceeds, whatever the store has lost.
"""

from typing import Final

from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.topology import LoopTopology
from fairtape.wire.membership import SiteReport

FORMATIONS_LOST_MAX: Final = 1 << 20  # by a store that was restored from a backup
TERMS_LOST_MAX: Final = 1 << 32
AHEAD_MAX: Final[Duration] = 86_400 * SECOND  # of the schedule: more than any clock is wrong by


def implausible_number(
    report: SiteReport, recorded: Formation | None, term: int, loop: LoopTopology, now: Instant, *, timed: bool
) -> str | None:
    """The number that no correct site reports; None: there is none.

    `recorded` is the latest formation of the loop of the report, `loop` the primary one. A store that has no formation
    bounds none.
    """
    if report.term > term + TERMS_LOST_MAX:
        return f"term {report.term}"
    if recorded is not None and max(report.formation, report.prepared) > recorded.number + FORMATIONS_LOST_MAX:
        return f"formation {max(report.formation, report.prepared)}"
    highest = max(report.complete_through, report.settled_through, report.suspect_token)
    if timed and highest > _token_max(recorded, loop, now):
        return f"token {highest}"
    return None


def _token_max(recorded: Formation | None, loop: LoopTopology, now: Instant) -> int:
    """The highest token that a schedule with the shortest period can have reached, with a margin."""
    if recorded is None or recorded.loop:
        return (now + AHEAD_MAX) // loop.timing.token_period
    period = min(recorded.timing.token_period, loop.timing.token_period)
    return recorded.first_token + (max(now - recorded.starts_at, 0) + AHEAD_MAX) // period
