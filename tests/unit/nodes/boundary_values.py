"""Boundary values in authentic datagrams: what a member or a server with a fault can say to a site or to a leader."""

from dataclasses import fields, replace
from random import Random
from typing import Final

from fairtape.core.instants import SECOND, Instant
from fairtape.ring.membership.layout import encode_formation
from fairtape.wire.frames import NUMBER_MAX
from fairtape.wire.membership import (
    NUMBERED_MAX,
    ORDINAL_MAX,
    CatchUp,
    Fence,
    Grant,
    HistoryChunk,
    Install,
    LoopToken,
    MembershipMessage,
    MembershipRequest,
    MembershipState,
    SiteReport,
)
from unit.ring.loop_values import formation_of

_WIDE: Final = (0, 1, 2, 5, 1 << 31, 1 << 32, ORDINAL_MAX - 1, ORDINAL_MAX, ORDINAL_MAX + 1, NUMBER_MAX)
_WORD: Final = (0, 1, 2, 3, NUMBERED_MAX - 1, NUMBERED_MAX, NUMBERED_MAX + 1, (1 << 32) - 2, (1 << 32) - 1)
_HALF: Final = (0, 1, 2, 64, (1 << 16) - 1)
_NARROW: Final[dict[str, tuple[int, ...]]] = {
    **dict.fromkeys(("formation", "prepared", "incarnation", "suspect", "journal", "chunk", "known", "check"), _WORD),
    **dict.fromkeys(("loop", "chunks_max"), _HALF),
    "store": (0, 0, 1, (1 << 32) - 1),
    "chunks": (0, 1, 2, 1 << 20),
    "reason": (0, 1, 2, 5, 255),
}
_FIXED: Final = ("stripe", "sender", "membership_state", "request", "final", "layout", "data")


def varied(message: MembershipMessage, chance: Random) -> MembershipMessage:
    """The message with boundary values in up to three fields."""
    names = [each.name for each in fields(message) if each.name not in _FIXED]
    chosen = chance.sample(names, min(chance.randint(0, 3), len(names)))
    values = {name: chance.choice(_NARROW.get(name, _WIDE)) for name in chosen}
    return replace(message, **values)  # type: ignore[arg-type]  # each field has its own type


def to_a_site(chance: Random, now: Instant) -> MembershipMessage:
    """What another site or a server says to site 2."""
    second = formation_of(1, 2, 3, number=2, first_sequence=1, keeper=1)
    messages: list[MembershipMessage] = [
        CatchUp(0, 1, 3, 0, 0, 64, 0, now),
        HistoryChunk(0, 1, 3, 0, 0, 0, 1, 0, 0, chance.choice((b"", bytes(12), b"\xff" * 12)), asked_at=now),
        HistoryChunk(0, 1, 3, 0, 9, 9, 1, 0, 1, bytes(99), asked_at=now),
        LoopToken(0, 1, 3, 1, 1),
        Grant(0, 1, 101, 0, 1, now, now, 0, SECOND),
        Fence(0, 1, 101, 0, 1),
        Install(0, 2, 101, 1, final=True, layout=encode_formation(second)),
    ]
    return varied(chance.choice(messages), chance)


def to_a_leader(chance: Random, correct: SiteReport) -> MembershipMessage:
    """What a site says instead of its correct report."""
    state, request = chance.choice(list(MembershipState)), chance.choice(list(MembershipRequest))
    return varied(replace(correct, membership_state=state, request=request), chance)
