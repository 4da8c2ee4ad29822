"""Who speaks to which region: the part of a reformation that customers notice. TRMP 2001 §4.1, §5.3.

After a reformation every customer must hear two receivers again, as it did before. Here an address stays where it is,
and the receiver behind it changes: a feed whose receiver is no longer a member is taken over by the nearest member that
does not speak to that region yet. Customers need not be told. They hear a feed fall silent, miss nothing because they
hear the other one, and hear it again.

An assignment is a function of the formation alone. So X_R publishes it by publishing the formation, all sites find the
same one, and a receiver that comes back has its feed again.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from fairtape.wire.frames import NodeId

FEEDS_MIN: Final = 2  # that a customer hears at once
RECEIVERS_MAX: Final = 128


class BadRegion(ValueError):
    """A region that cannot be served; the message names the field, what was found and what is expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Customers who hear the same feeds."""

    name: str
    feeds: tuple[str, ...]
    receivers: tuple[NodeId, ...]  # who can be heard there: the first ones are at home on the feeds, the next are near

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
        """The receiver of each feed; without one where fewer members than feeds are near. No one has two feeds."""
        at_home = dict(zip(self.feeds, self.receivers, strict=False))
        assigned = {feed: receiver for feed, receiver in at_home.items() if receiver in members}
        orphans = [feed for feed in self.feeds if feed not in assigned]
        free = [each for each in self.receivers if each in members and each not in assigned.values()]
        return assigned | dict(zip(orphans, free, strict=False))


def feeds_of(receiver: NodeId, regions: Iterable[Region], members: Collection[NodeId]) -> tuple[str, ...]:
    """The feeds on which a receiver speaks while these are the members."""
    return tuple(
        feed for region in regions for feed, speaks in region.assignment(members).items() if speaks == receiver
    )
