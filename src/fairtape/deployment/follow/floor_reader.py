"""The floor out of journals: replayed from the first message, then followed as sites release more.

Nothing is asked of a site. Whoever reads its journal has the floor: books, trades and ledger, to the last unit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from fairtape.core.effects import FormationChange, Ordered
from fairtape.exchange.floor import Floor, Replica
from fairtape.exchange.outputs import Output
from fairtape.journal import JournalEntry, JournalFollower
from fairtape.wire.frames import NodeId


@dataclass(frozen=True, slots=True)
class FloorStep:
    """One entry of the order, and what the floor said to it."""

    entry: Ordered | FormationChange
    outputs: list[Output]


class FloorReader:
    """The floor as the journals of a deployment give it, of one site or of whichever serves."""

    def __init__(self, following: JournalFollower, new: Callable[[], Floor]) -> None:
        self._following = following
        self._rebuilt_below = 0  # of a rebuild: the token from which on the order is another one
        self._replica = Replica(new, self._past)

    @classmethod
    def of_journal(cls, directory: Path, new: Callable[[], Floor]) -> "FloorReader":
        """The floor of one journal, wherever it lies."""
        return cls(JournalFollower.of_journal(directory), new)

    @property
    def floor(self) -> Floor:
        """As far as it was read."""
        return self._replica.floor

    @property
    def site(self) -> NodeId:
        """Whose journal is read."""
        return self._following.site

    def steps(self) -> Iterator[FloorStep]:
        """What was released since the last time."""
        for each in self._following.new_entries():
            if isinstance(each, JournalEntry):
                yield FloorStep(each.ordered, self._replica.deliver(each.ordered))
            else:
                self._rebuilt_below = each.change.token
                yield FloorStep(each.change, self._replica.turn(each.change))

    def catch_up(self) -> None:
        """Read what there is, and keep only the floor."""
        for _ in self.steps():
            pass

    def close(self) -> None:
        """Give the files back."""
        self._following.close()

    def _past(self) -> Iterator[Ordered]:
        """What stands: everything below the token from which on the order is another one."""
        if not self._rebuilt_below:
            return
        with self._following.journal.entries() as entries:
            report = takewhile(lambda entry: entry.ordered.token < self._rebuilt_below, entries)
            yield from (entry.ordered for entry in report)
