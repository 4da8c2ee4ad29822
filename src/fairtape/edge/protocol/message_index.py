"""Where in the order a number of a stripe lies: a sparse index, and the way from there to the message.

The index keeps standings, some messages apart. From the last one before a number the journal is read again, through
the same striper, until the number comes; so the index may be thin, may be lost, and may be made anew at any time. When
it is full every other place goes, and new ones are noted half as often.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.instants import Instant
from fairtape.edge.protocol.archive import RecentMessages
from fairtape.edge.protocol.itch_encoder import ItchEncoder
from fairtape.edge.protocol.sessions import Edition, StripePosition
from fairtape.edge.protocol.stripe_sequencer import StripeSequencer

NUMBERS_MAX: Final = 1 << 20  # numbers of stripes in all places together
SPACING: Final = 4_096  # messages between two places, at first
EDITIONS_MAX: Final = 1_024


class MessageIndex:
    """All editions of one core stripe."""

    def __init__(self, *, numbers_max: int = NUMBERS_MAX, spacing: int = SPACING) -> None:
        self._numbers_max = numbers_max
        self._numbers = 0
        self._spacing = spacing
        self._places: list[StripePosition] = []
        self._editions: list[Edition] = []

    @property
    def editions(self) -> Sequence[Edition]:
        """Those that are remembered, the oldest first."""
        return self._editions

    @property
    def standings(self) -> Sequence[StripePosition]:
        """The places, in order."""
        return self._places

    @property
    def spacing(self) -> int:
        """Messages between two places, by now."""
        return self._spacing

    @classmethod
    def restored(cls, editions: Iterable[Edition], standings: Iterable[StripePosition], spacing: int) -> "MessageIndex":
        """An index as it was; its standings are of these very editions."""
        places = cls(spacing=spacing)
        places._editions = list(editions)
        places._places = list(standings)
        places._numbers = sum(len(place.following) for place in places._places)
        return places

    def note(self, standing: StripePosition) -> None:
        """Remember a place, unless it is near the last one. Called once per token, in order."""
        if not self._editions or self._editions[-1] is not standing.edition:
            self._editions = [*self._editions[1 - EDITIONS_MAX :], standing.edition]
        elif self._places and standing.sequence < self._places[-1].sequence + self._spacing:
            return
        self._places.append(standing)
        self._numbers += len(standing.following)
        if self._numbers > self._numbers_max:
            del self._places[1::2]
            self._numbers = sum(len(place.following) for place in self._places)
            self._spacing *= 2

    def before(self, session: str, number: int) -> StripePosition | None:
        """The last place from which on this number is still to come."""
        found = self._within(session)
        if found is None:
            return None
        places, position = found
        return places[bisect_right(places, number, key=lambda place: place.following[position]) - 1]

    def before_time(self, session: str, at: Instant) -> StripePosition | None:
        """The last place at which no token of this time or later had been numbered."""
        found = self._within(session)
        if found is None:
            return None
        places, _ = found
        return places[max(bisect_right(places, at - 1, key=lambda place: place.at) - 1, 0)]

    def successor(self, edition: Edition) -> Edition | None:
        """The edition that took over from this one."""
        for one, other in zip(self._editions, self._editions[1:], strict=False):
            if one is edition:
                return other
        return None

    def _within(self, session: str) -> tuple[list[StripePosition], int] | None:
        """The places of a session's edition, and the position of its stripe."""
        for edition in reversed(self._editions):
            names = [edition.session(stripe.number) for stripe in edition.stripes]
            if session in names:
                places = [place for place in self._places if place.edition is edition]
                return [StripePosition.fresh(edition), *places], names.index(session)
        return None


def reread(
    place: StripePosition,
    entries: Iterable[Ordered | FormationChange],
    session: str,
    first: int,
    count: int,
    successor: Edition | None = None,
    presses: Mapping[int, ItchEncoder] | None = None,
) -> list[bytes]:
    """The messages of a session, out of what a journal holds from a place on; as many as the entries yield.

    `presses`, by the versions of their plans, are there for whoever reads often: to set one up takes a while.
    """
    known = presses or {}
    shelf = RecentMessages()
    striper = StripeSequencer(place, press=known.get(place.edition.plan.version))
    for step in striper.begin():
        shelf.take(step, striper.at)
    if successor is not None and successor.plan.version != place.edition.plan.version:
        press = known.get(successor.plan.version)
        striper.change_plan(successor.plan, at_sequence=successor.sequence, at=successor.begun_at or 0, press=press)
    for entry in entries:
        extent = shelf.extent(session)
        if extent is None or extent.ended or extent.following >= first + count:
            break
        if isinstance(entry, FormationChange):
            striper.turn(entry)
        else:
            for step in striper.deliver(entry):
                shelf.take(step, striper.at)
    return list(shelf.messages(session, first, count))
