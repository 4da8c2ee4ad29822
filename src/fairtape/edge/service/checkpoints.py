"""Checkpoints: the position of an edge publisher, in a file beside the journal that it was computed from.

The file saves time and proves nothing. It names the last entry that it includes, and the reader looks for that entry in
the journal: a journal that was truncated since does not have it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fairtape.edge.protocol.sessions import BadSession, Edition, StripePosition
from fairtape.edge.service.settings import EdgeSettings
from fairtape.edge.service.stripe_plans import PlanUnknown, StripePlanStore, mark_of
from fairtape.storage.files import write_atomically

EDGE: Final = "edge"
_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class EdgeCheckpoint:
    """A position, and the formation and token of the last entry before it."""

    position: StripePosition
    formation: int
    token: int


def checkpoint_path(folder: Path, site: str) -> Path:
    """The checkpoint file of the publisher of a site."""
    return folder / EDGE / f"{site}.json"


def snapshot_path(folder: Path, site: str) -> Path:
    """The snapshot file of the replay archive beside a site."""
    return folder / EDGE / f"{site}.memory"


def save(path: Path, checkpoint: EdgeCheckpoint) -> None:
    """Write the file atomically. Raises OSError."""
    write_edge_file(path, json.dumps(_fields(checkpoint)).encode())


def write_edge_file(path: Path, *content: bytes) -> None:
    """Write a file of the edge, or leave the old one. Raises OSError."""
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, *content, sync=True)


def load(path: Path, settings: EdgeSettings, plan_store: StripePlanStore) -> EdgeCheckpoint | None:
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
