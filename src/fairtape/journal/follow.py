"""The one order out of the journals of several sites: what one of them has released, then what another has.

The order is the same at all of them, so whoever reads it can go on with another site when one fails. Each message and
each change of formation is handed out once. Where another site's order had a Break meanwhile, numbers may be used
otherwise from there on: they are handed out again, behind the Break that says so.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from fairtape.core.effects import FormationChange
from fairtape.journal import Cursor, FormationChanged, JournalEntry, JournalReader
from fairtape.wire.frames import NodeId

REWIND_MAX: Final = 100_000  # sequence numbers that are searched for a Break which other sites had meanwhile


class JournalFollower:
    """Reads the journal of one site, and can go on with another."""

    def __init__(self, journals: Mapping[NodeId, Path], *, site: NodeId | None = None, from_sequence: int = 1) -> None:
        self.journals = journals
        self.site = next(iter(journals)) if site is None else site
        self.following = from_sequence  # the number of the next message
        self._formation = 0  # the last one that was handed out, or that is past
        self._formation = max((change.formation for change in self._changes_behind(self.site)), default=0)
        self._entries = self._opened(self.site)

    def everything(self) -> Iterator[JournalEntry | FormationChanged]:
        """What has been released since the last time, and the changes of formation between."""
        for each in self._entries.everything():
            if isinstance(each, JournalEntry):
                self.following = each.end
            elif each.change.formation <= self._formation:
                continue  # another site's journal told it
            else:
                self._formation = each.change.formation
            yield each

    def follow(self, site: NodeId) -> None:
        """Go on with the journal of this site; where its order had a Break meanwhile, from there on once more."""
        broken = [each.sequence for each in self._changes_behind(site) if each.broken]
        self.following = min([self.following, *broken])
        self._entries.close()
        self.site = site
        self._entries = self._opened(site)

    def close(self) -> None:
        """Give the files back."""
        self._entries.close()

    def _opened(self, site: NodeId) -> Cursor:
        return JournalReader.open(self.journals[site]).entries(from_sequence=self.following)

    def _changes_behind(self, site: NodeId) -> Iterator[FormationChange]:
        """Changes of formation before the next number that a journal notes and nobody here was told of."""
        begin = max(self.following - REWIND_MAX, 1)
        with JournalReader.open(self.journals[site]).entries(from_sequence=begin) as past:
            for each in past.everything():
                if isinstance(each, JournalEntry):
                    if each.end >= self.following:
                        return
                elif self._formation < each.change.formation and each.change.sequence < self.following:
                    yield each.change
