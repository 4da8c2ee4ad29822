"""Which receiver sends to which region: the part of a reformation that customers see. TRMP 2001 §4.1, §5.3.

After a reformation every customer must receive from two receivers again. Here the addresses stay, and the receivers
behind them change: a feed whose receiver is no longer a member is taken over by the nearest member that does not send
to that region yet. Customers need no notice. One feed falls silent, they miss nothing because of the other one, and
then the first feed continues.

An assignment is a function of the formation alone. So X_R publishes it by publishing the formation, all sites compute
the same one, and a receiver that returns gets its feed back.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from fairtape.wire.frames import NodeId

FEEDS_MIN: Final = 2  # of a region
RECEIVERS_MAX: Final = 128


class BadRegion(ValueError):
    """A region that cannot be served; the message names the field, what was found and what is expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Customers that receive the same feeds."""

    name: str
    feeds: tuple[str, ...]
    receivers: tuple[NodeId, ...]  # first the home of each feed, then others, the nearest first

    def __post_init__(self) -> None:
        if len(self.feeds) < FEEDS_MIN or len(set(self.feeds)) != len(self.feeds):
            named = ", ".join(self.feeds) or "none"
            raise BadRegion(f"feeds of region {self.name} are {named}; expected at least {FEEDS_MIN}, none twice")
        if not len(self.feeds) <= len(set(self.receivers)) == len(self.receivers) <= RECEIVERS_MAX:
            raise BadRegion(
                f"region {self.name} has {len(self.receivers)} receivers for {len(self.feeds)} feeds;"
                f" expected one for each feed and up to {RECEIVERS_MAX}, none twice"
            )

    def assignment(self, members: Collection[NodeId]) -> dict[str, NodeId]:
        """The receiver of each feed; no receiver has two. With fewer members than feeds some feeds have none."""
        home = dict(zip(self.feeds, self.receivers, strict=False))
        assigned = {feed: receiver for feed, receiver in home.items() if receiver in members}
        unassigned = [feed for feed in self.feeds if feed not in assigned]
        free = [each for each in self.receivers if each in members and each not in assigned.values()]
        return assigned | dict(zip(unassigned, free, strict=False))


def feeds_of(receiver: NodeId, regions: Iterable[Region], members: Collection[NodeId]) -> tuple[str, ...]:
    """The feeds on which a receiver sends while these are the members."""
    return tuple(
        feed for region in regions for feed, sender in region.assignment(members).items() if sender == receiver
    )
