"""Venues as the order shows them: who speaks for each, by which clock, how much it trades, and whether it does at all.

The only clock here is that of the order: the timestamps of its tokens, equal everywhere. So all replicas call a venue
silent at the same place of the order, and none of them because its own machine was slow.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.tape.sales import Volume

VENUES_MAX: Final = 1_024
SILENCE_PERIOD: Final = 30 * SECOND


class VenueState(Enum):
    """How a venue stands."""

    OPEN = "open"
    HALTED = "halted"  # it said so
    SILENT = "silent"  # it says nothing, and did not say why


@dataclass(slots=True)
class VenueRecord:
    """One venue."""

    name: str  # empty: trades that name none
    source: int  # who spoke for it first: its identity
    incarnation: int  # of that source, the latest
    heard_at: Instant  # the time of the last token with a message of it
    volume: Volume = field(default_factory=Volume)
    canceled: int = 0
    corrected: int = 0
    foreign: int = 0  # trades in its name that another source published
    halted: bool = False
    standing: VenueState = VenueState.OPEN
    delay_min: Duration | None = None  # from a trade, by the venue's clock, to its token, by the order's

    @property
    def clock_ahead(self) -> Duration:
        """How far its clock is ahead at least: no trade happens after it was put into the order."""
        return max(-(self.delay_min or 0), 0)


class Venues:
    """All venues."""

    def __init__(self, *, silence_period: Duration = SILENCE_PERIOD, venues_max: int = VENUES_MAX) -> None:
        self.unlisted = 0  # messages of venues beyond the limit
        self._silence_period = silence_period
        self._venues_max = venues_max
        self._venues: dict[str, VenueRecord] = {}

    def __iter__(self) -> Iterator[VenueRecord]:
        return iter(self._venues.values())

    def of(self, name: str) -> VenueRecord | None:
        """What is known of a venue; None where it never spoke."""
        return self._venues.get(name)

    def hear(self, name: str, source: int, incarnation: int, at: Instant) -> VenueRecord | None:
        """A message in a venue's name; None where there is no room for another one."""
        venue = self._venues.get(name)
        if venue is None:
            if len(self._venues) >= self._venues_max:
                self.unlisted += 1
                return None
            venue = self._venues[name] = VenueRecord(name, source, incarnation, at)
        if venue.source == source:
            venue.incarnation = incarnation
            venue.heard_at = at
        return venue

    def look(self, now: Instant) -> list[VenueRecord]:
        """Those whose standing is another one since the last look, at this time of the order."""
        changed = []
        for venue in self._venues.values():
            if venue.halted:
                standing = VenueState.HALTED
            else:
                silent = now - venue.heard_at > self._silence_period
                standing = VenueState.SILENT if silent else VenueState.OPEN
            if standing is not venue.standing:
                venue.standing = standing
                changed.append(venue)
        return changed
