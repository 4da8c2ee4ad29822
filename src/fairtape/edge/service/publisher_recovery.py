"""Recovery: where the outlet of a site stands, as its journal proves it.

From the last checkpoint whose entry is still in the journal, or from the beginning, everything that the site has
released is numbered again. What it holds and has not released is left to the site, which will release it; the changes
of formation among that were noted before, and are told again. Nothing is guessed: where a plan is missing or the
journal cannot be read, there is no standing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fairtape.core.effects import FormationChange
from fairtape.edge.service.checkpoints import EdgeCheckpoint, load
from fairtape.edge.service.settings import EdgeSettings
from fairtape.edge.service.stripe_numbering import StripeNumbering
from fairtape.edge.service.stripe_plans import StripePlanStore
from fairtape.journal import JournalEntry, JournalReader
from fairtape.wire.frames import NUMBER_MAX


@dataclass(frozen=True, slots=True)
class RecoveredPosition:
    """Where the released order ends, and the changes of formation that are noted behind it."""

    checkpoint: EdgeCheckpoint | None  # None: no plan is in force
    changes: tuple[FormationChange, ...]


class PositionLost(Exception):
    """The journal does not follow on; it is being cut, or is damaged."""


def recover(
    journal: JournalReader,
    sidecar: Path,
    settings: EdgeSettings,
    catalogue: StripePlanStore,
    *,
    before: Callable[[], int] = lambda: NUMBER_MAX,
) -> RecoveredPosition:
    """Find the place. Raises `Unplanned`, `PositionLost`, `Damaged` or OSError where there is none to be had now.

    A site that releases meanwhile says from which sequence number on it keeps what it releases: the place is `before`.
    """
    checkpoint = load(sidecar, settings, catalogue)
    if checkpoint is not None and (checkpoint.standing.sequence > before() or not is_proved(checkpoint, journal)):
        checkpoint = None
    reckoning = StripeNumbering(settings, catalogue, None if checkpoint is None else checkpoint.standing)
    formation, token = (0, 0) if checkpoint is None else (checkpoint.formation, checkpoint.token)
    begin = 1 if checkpoint is None else checkpoint.standing.sequence
    changes: list[FormationChange] = []
    held = False
    with journal.entries(from_sequence=begin, ordered=True) as cursor:
        for each in cursor.everything():
            if not isinstance(each, JournalEntry):
                changes.append(each.change)
            elif held or each.release is None or each.ordered.sequence >= before():
                held = True
            else:
                for change in changes:
                    reckoning.turn(change)
                changes.clear()
                reckoning.deliver(each.ordered)
                formation, token = each.ordered.formation, each.ordered.token
                if reckoning.lost:
                    raise PositionLost(f"sequence {each.ordered.sequence} does not follow on")
    if reckoning.standing is None:
        for change in changes:
            reckoning.turn(change)  # one of them may name the first plan of all
    standing = reckoning.standing
    return RecoveredPosition(None if standing is None else EdgeCheckpoint(standing, formation, token), tuple(changes))


def is_proved(checkpoint: EdgeCheckpoint, journal: JournalReader) -> bool:
    """Whether the entry that a checkpoint counts in last stands where it says, and was released."""
    sequence = checkpoint.standing.sequence
    if sequence <= 1:
        return False
    with journal.seek(sequence - 1) as cursor:
        entry = next(iter(cursor), None)
    if entry is None or entry.end != sequence:
        return False
    return (entry.ordered.formation, entry.ordered.token) == (checkpoint.formation, checkpoint.token)
