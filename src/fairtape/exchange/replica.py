"""One replica of the floor through everything that can befall its site: it goes on, or is rebuilt from the journal.

A floor follows one order. When the ring takes tokens back that a site has already released (after a Break), the floor
that applied them is no longer the floor of the order: what they traded is named as void, and the floor of what is left
comes from the journal. Nobody has to tell the replica which tokens were taken back: a formation that begins at or below
the last token that was applied says it, whether or not it is the one that broke.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from fairtape.core.effects import FormationChange, Ordered
from fairtape.exchange.floor import Floor
from fairtape.exchange.outputs import Output

Past: TypeAlias = Callable[[], Iterable[Ordered]]
"""What the journal of the site holds and the site has released, from the first token on."""


class Replica:
    """The floor of one site."""

    def __init__(self, new: Callable[[], Floor], past: Past) -> None:
        self._new = new
        self._past = past
        self.rebuilt = -1  # how often, since it was made
        self.floor = new()
        self.rebuild()

    def rebuild(self) -> None:
        """Begin anew, from what the journal holds. What it says of the past was said before."""
        self.floor = self._new()
        self.rebuilt += 1
        for ordered in self._past():
            self.floor.apply(ordered)

    def deliver(self, ordered: Ordered) -> list[Output]:
        """The site has released Msg(e)."""
        return self.floor.apply(ordered)

    def turn(self, change: FormationChange) -> list[Output]:
        """The site has noted a formation."""
        lost = change.token <= self.floor.token
        outputs = self.floor.turn(replace(change, broken=True) if lost else change)
        if lost:
            self.rebuild()
        return outputs
