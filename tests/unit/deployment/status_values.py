"""Statuses for tests: every field has a value, and a test names those that it is about."""

from typing import Any

from fairtape.deployment.status import DrillControls, LoadStatus, ReformerStatus, SiteStatus

SITE: dict[str, Any] = {
    "controls": DrillControls(), "home": 0, "membership_state": "member", "incarnation": 1, "formation": 2,
    "resilience": 1, "members": ("s1", "s2", "s3"), "loops": {}, "schedule": None, "token": 7, "behind": 0,
    "suspect": None, "sequence": 0, "released_sequence": 0, "digest": "", "streams": {}, "lease_left_ms": 150.0,
    "clock_bound_us": 0.0, "clock_steps": 0, "messages": 0, "late": 0, "released_at": 0, "pauses": (),
    "counts": {}, "edge": None,
}  # fmt: skip
REFORMER: dict[str, Any] = {
    "controls": DrillControls(), "leads": True, "leader": "x1", "term": 1, "phase": "steady", "formation": 2,
    "resilience": 1, "plan": 0, "members": ("s1", "s2", "s3"), "retired": (), "decisions": (), "counts": {},
}  # fmt: skip
LOAD: dict[str, Any] = {
    "controls": DrillControls(), "incarnation": 7, "published": 0, "acknowledged": 0, "settled": 0, "idle": True,
    "quiet": True, "resent": 0, "counts": {},
}  # fmt: skip


def site_status(name: str, node: int, *, written_at: int, **others: object) -> SiteStatus:
    return SiteStatus(name=name, node=node, written_at=written_at, **(SITE | others))


def reformer_status(name: str, node: int, *, written_at: int, **others: object) -> ReformerStatus:
    return ReformerStatus(name=name, node=node, written_at=written_at, **(REFORMER | others))


def load_status(name: str, node: int, *, written_at: int, **others: object) -> LoadStatus:
    return LoadStatus(name=name, node=node, written_at=written_at, **(LOAD | others))
