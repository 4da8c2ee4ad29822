"""The floor out of journals: replayed from the first message, then followed as sites release more.

The journal of a site is enough to compute the whole floor: books, trades and ledger.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.instants import Duration
from fairtape.exchange.floor import Floor, Replica
from fairtape.exchange.outputs import FloorOutput
from fairtape.journal import JournalEntry, JournalFollower, NotificationReceiver


@dataclass(frozen=True, slots=True)
class FloorStep:
    """One entry of the order, and the outputs of the floor."""

    entry: Ordered | FormationChange
    outputs: list[FloorOutput]


class FloorReader:
    """The floor, computed from the journal that a follower reads."""

    def __init__(self, follower: JournalFollower, new: Callable[[], Floor]) -> None:
        self._follower = follower
        self._rebuilt_below = 0  # of a rebuild after a Break: the first token that is void
        self._replica = Replica(new, self._past)

    @classmethod
    def of_journal(cls, directory: Path, new: Callable[[], Floor]) -> "FloorReader":
        return cls(JournalFollower.of_journal(directory), new)

    @property
    def floor(self) -> Floor:
        return self._replica.floor

    def steps(self) -> Iterator[FloorStep]:
        """What was released since the last call."""
        for each in self._follower.new_entries():
            if isinstance(each, JournalEntry):
                yield FloorStep(each.ordered, self._replica.deliver(each.ordered))
            else:
                self._rebuilt_below = each.change.token
                yield FloorStep(each.change, self._replica.on_formation(each.change))

    def catch_up(self) -> None:
        """Read what is new, for the floor alone."""
        for _ in self.steps():
            pass

    def wait(self, *, poll_period: Duration) -> None:
        """Return when it is time to read again, as `JournalFollower.wait`."""
        self._follower.wait(poll_period=poll_period)

    @property
    def notifications(self) -> NotificationReceiver:
        """The notifications of the site that is followed."""
        return self._follower.notifications

    @property
    def sequence(self) -> int:
        """The last number that was read."""
        return self._follower.next_sequence - 1

    def close(self) -> None:
        self._follower.close()

    def _past(self) -> Iterator[Ordered]:
        """What stays valid after the Break: everything before its token."""
        if not self._rebuilt_below:
            return
        with self._follower.journal.entries() as entries:
            valid = takewhile(lambda entry: entry.ordered.token < self._rebuilt_below, entries)
            yield from (entry.ordered for entry in valid)
