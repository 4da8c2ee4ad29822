"""Stripe numbering: the numbers of all stripes computed from a journal, and the checkpoints that save time for it.

The plan in force follows from the order, too: the first plan from the first message on, if the deployment has one, and
each later plan from the formation that names it. So two sites with the same order and the same plans compute the same
numbers, at any time.

A checkpoint is the position of a publisher in a file beside the journal that it was computed from. It proves nothing:
it names the last entry that it includes, and the reader looks for that entry in the journal. A journal that was
truncated since does not have it.

`recover` finds the position of a publisher as its journal proves it. From the last checkpoint whose entry is still in
the journal, or from the beginning, everything that the site released is numbered again. The site will release what it
holds and has not released; changes of formation among that are returned, to be applied again. Nothing is guessed: where
a plan is missing or the journal cannot be read, there is no position.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairtape.core.effects import FormationChange, Ordered
from fairtape.edge.protocol.sessions import BadSession, Edition, StripePosition
from fairtape.edge.protocol.stripe_sequencer import StripeSequencer, StripeStep
from fairtape.edge.service.settings import EdgeSettings
from fairtape.edge.service.stripe_plans import PlanUnknown, StripePlanStore, mark_in, mark_of, version_of
from fairtape.journal import JournalEntry, JournalReader
from fairtape.market.stripes import StripePlan
from fairtape.storage.files import write_atomically
from fairtape.wire.frames import NUMBER_MAX

EDGE_FOLDER: Final = "edge"
_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class EdgeCheckpoint:
    """A position, and the formation and token of the last entry before it."""

    position: StripePosition
    formation: int
    token: int


def checkpoint_path(folder: Path, site: str) -> Path:
    """The checkpoint file of the publisher of a site."""
    return folder / EDGE_FOLDER / f"{site}.json"


def save_checkpoint(path: Path, checkpoint: EdgeCheckpoint) -> None:
    """Write the file atomically. Raises OSError."""
    write_edge_file(path, json.dumps(_fields(checkpoint)).encode())


def write_edge_file(path: Path, *content: bytes) -> None:
    """Write a file of the edge, or leave the old one. Raises OSError."""
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, *content, sync=True)


def load_checkpoint(path: Path, settings: EdgeSettings, plan_store: StripePlanStore) -> EdgeCheckpoint | None:
    """The saved checkpoint; None where there is none, or where it is not of this edge."""
    try:
        return _checkpoint(json.loads(path.read_text()), settings, plan_store)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BadSession, PlanUnknown):
        return None


def _fields(checkpoint: EdgeCheckpoint) -> dict[str, Any]:
    position, edition = checkpoint.position, checkpoint.position.edition
    return {
        "version": _VERSION,
        "tag": edition.deployment,
        "core": edition.core,
        "edition": edition_fields(edition),
        "sequence": position.sequence,
        "following": position.following,
        "at": position.at,
        "formation": position.formation,
        "entry": [checkpoint.formation, checkpoint.token],
    }


def _checkpoint(fields: dict[str, Any], settings: EdgeSettings, plan_store: StripePlanStore) -> EdgeCheckpoint | None:
    if (fields["version"], fields["tag"], fields["core"]) != (_VERSION, settings.tag, settings.core):
        return None
    edition = edition_of(fields["edition"], settings, plan_store)
    following = tuple(map(int, fields["following"]))
    if len(following) != len(edition.stripes):
        return None
    formation, token = map(int, fields["entry"])
    position = StripePosition(edition, int(fields["sequence"]), following, int(fields["at"]), int(fields["formation"]))
    return EdgeCheckpoint(position, formation, token)


def edition_fields(edition: Edition) -> dict[str, Any]:
    """An edition as JSON fields."""
    return {
        "plan": mark_of(edition.plan),
        "sequence": edition.sequence,
        "begun_at": edition.begun_at,
        "breaks": edition.breaks,
        "after": edition.after,
        "formation": edition.formation,
    }


def edition_of(fields: dict[str, Any], settings: EdgeSettings, plan_store: StripePlanStore) -> Edition:
    """The inverse of `edition_fields`. Raises `PlanUnknown`, or errors of malformed fields."""
    plan, _ = plan_store.by_mark(int(fields["plan"]))
    one, other = fields["after"]
    return Edition(
        settings.tag,
        plan,
        settings.core,
        sequence=int(fields["sequence"]),
        begun_at=None if fields["begun_at"] is None else int(fields["begun_at"]),
        breaks=int(fields["breaks"]),
        after=(int(one), int(other)),
        formation=int(fields["formation"]),
    )


class StripeNumbering:
    """Numbers one core stripe, from the beginning or from a position on. Raises `PlanUnknown` for a missing plan."""

    def __init__(
        self, settings: EdgeSettings, plan_store: StripePlanStore, position: StripePosition | None = None
    ) -> None:
        self._settings = settings
        self._plan_store = plan_store
        self._sequencer: StripeSequencer | None = None
        self._begun: list[StripeStep] = []
        self._unopened: StripePosition | None = None  # a fresh position, until the first token
        if position is None and settings.first_plan:
            plan, _ = plan_store.by_version(settings.first_plan)
            position = StripePosition.fresh(Edition(settings.tag, plan, settings.core))
        if position is not None:
            self._begin(position)

    @property
    def position(self) -> StripePosition | None:
        """The current position; None while no plan is in force. It stays fresh until the first token."""
        return self._unopened if self._unopened is not None or self._sequencer is None else self._sequencer.position

    @property
    def lost(self) -> bool:
        """Whether the order that it was given has a hole."""
        return self._sequencer is not None and self._sequencer.lost

    @property
    def at(self) -> int:
        """The timestamp of the last token."""
        return 0 if self._sequencer is None else self._sequencer.at

    def begun(self) -> list[StripeStep]:
        """The steps that open the sessions, returned once."""
        steps, self._begun = self._begun, []
        return steps

    def on_formation(self, change: FormationChange) -> None:
        """Take a change of formation, which may name a new plan."""
        mark = mark_in(change)
        if self._sequencer is None:
            if mark:
                plan, _ = self._plan_store.by_mark(mark)
                self._begin(StripePosition.fresh(first_edition(self._settings, plan, change)))
            return
        newer = version_of(mark) > self._sequencer.edition.plan.version
        new_plan = self._plan_store.by_mark(mark) if newer else None
        self._sequencer.on_formation(change)
        if new_plan is not None:
            plan, encoder = new_plan
            self._sequencer.change_plan(plan, at_sequence=change.sequence, at=change.installed_at, encoder=encoder)

    def deliver(self, ordered: Ordered) -> list[StripeStep]:
        steps = [] if self._sequencer is None else self._sequencer.deliver(ordered)
        if steps:
            self._unopened = None
        return steps

    def _begin(self, position: StripePosition) -> None:
        _, encoder = self._plan_store.by_version(position.edition.plan.version)
        self._sequencer = StripeSequencer(position, encoder=encoder)
        self._begun = self._sequencer.begin()
        self._unopened = position if position.is_fresh else None


def first_edition(settings: EdgeSettings, plan: StripePlan, change: FormationChange) -> Edition:
    """The edition that begins with a formation, where no plan was in force before."""
    return Edition(
        settings.tag,
        plan,
        settings.core,
        sequence=change.sequence,
        begun_at=change.installed_at,
        formation=change.formation,
    )


@dataclass(frozen=True, slots=True)
class RecoveredPosition:
    """The end of the released order, and the changes of formation after it."""

    checkpoint: EdgeCheckpoint | None  # None: no plan is in force
    changes: tuple[FormationChange, ...]


class PositionLost(Exception):
    """The journal has a hole: it is being truncated, or is damaged."""


def recover(
    journal: JournalReader,
    checkpoint_file: Path,
    settings: EdgeSettings,
    plan_store: StripePlanStore,
    *,
    before: Callable[[], int] = lambda: NUMBER_MAX,
) -> RecoveredPosition:
    """Find the position. Raises `PlanUnknown`, `PositionLost`, `Damaged` or OSError where it cannot be found now.

    A site that releases meanwhile keeps its releases from some sequence number on, which `before` returns. The position
    is at or before it.
    """
    checkpoint = load_checkpoint(checkpoint_file, settings, plan_store)
    if checkpoint is not None and (checkpoint.position.sequence > before() or not is_proved(checkpoint, journal)):
        checkpoint = None
    numbering = StripeNumbering(settings, plan_store, None if checkpoint is None else checkpoint.position)
    formation, token = (0, 0) if checkpoint is None else (checkpoint.formation, checkpoint.token)
    begin = 1 if checkpoint is None else checkpoint.position.sequence
    changes: list[FormationChange] = []
    unreleased = False
    with journal.entries(from_sequence=begin, ordered=True) as cursor:
        for each in cursor.everything():
            if not isinstance(each, JournalEntry):
                changes.append(each.change)
            elif unreleased or each.release is None or each.ordered.sequence >= before():
                unreleased = True
            else:
                for change in changes:
                    numbering.on_formation(change)
                changes.clear()
                numbering.deliver(each.ordered)
                formation, token = each.ordered.formation, each.ordered.token
                if numbering.lost:
                    raise PositionLost(f"sequence {each.ordered.sequence} does not follow the one before it")
    if numbering.position is None:
        for change in changes:
            numbering.on_formation(change)  # one of them may name the first plan
    position = numbering.position
    return RecoveredPosition(None if position is None else EdgeCheckpoint(position, formation, token), tuple(changes))


def is_proved(checkpoint: EdgeCheckpoint, journal: JournalReader) -> bool:
    """Whether the journal has the last entry of a checkpoint at its place, released."""
    sequence = checkpoint.position.sequence
    if sequence <= 1:
        return False
    with journal.entries(from_sequence=sequence - 1) as cursor:
        entry = next(iter(cursor), None)
    if entry is None or entry.end != sequence:
        return False
    return (entry.ordered.formation, entry.ordered.token) == (checkpoint.formation, checkpoint.token)
