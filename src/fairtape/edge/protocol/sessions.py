"""Sessions of the edge: names, editions and positions, and the messages of our own inside a session.

Numbers depend on the order alone. An *edition* is one plan in force from one place of the order on; each of its stripes
is a MoldUDP64 session that begins with number 1 at that place. So every receiver of a deployment gives the same message
the same number, whenever it was started and however late it sends.

A Break in the order begins a new edition of the same plan: what one site sent before it may differ from what the others
continue with, and two different messages must never share a session and a number.

A session carries ITCH 5.0, and messages of types that ITCH does not have and its clients skip. A *mark* is an event at
a place of the order. The first message of a session is the mark `Begun`, the last one `Over`. Where one session takes
over from another, both name the same place: numbers of the order below it are in the old sessions, numbers from it on
in the new ones. So a customer of both knows exactly where one ends and the other begins, whichever arrives first.

An *opaque* message carries a payload that is neither a trade nor the cancel or correction of one. A payload that does
not fit into a datagram is cut into parts. Fragments of long messages are carried unchanged: reassembling them needs
state, which a restarted receiver does not have.
"""

import struct
from dataclasses import dataclass
from string import ascii_uppercase, digits
from typing import Final, NamedTuple, TypeAlias

from fairtape.core.instants import Instant
from fairtape.market.stripes import EdgeStripe, StripePlan

DEPLOYMENT_MAX: Final = 2  # characters
BREAKS_MAX: Final = 36**2 - 1  # of one plan; then the names wrap around
_DIGITS: Final = digits + ascii_uppercase


class BadSession(ValueError):
    """A text that is no session name; the message says what is expected."""


class SessionName(NamedTuple):
    """The name of a session in ten characters: deployment, plan, Breaks under that plan, stripe."""

    deployment: str
    version: int
    breaks: int
    stripe: int

    def __str__(self) -> str:
        plan = in_base_36(self.version, 3) + in_base_36(self.breaks, 2)
        return f"{self.deployment:_>2}{plan}{in_base_36(self.stripe, 3)}"

    @classmethod
    def parse(cls, name: str) -> "SessionName | None":
        """The session of this name; None where it has another form."""
        if len(name) != 10 or any(each not in _DIGITS for each in name[2:]):
            return None
        deployment = name[:2].lstrip("_")
        if not deployment.isascii() or not deployment.isalnum():
            return None
        return cls(deployment, int(name[2:5], 36), int(name[5:7], 36), int(name[7:], 36))


def in_base_36(value: int, width: int) -> str:
    """Digits and capital letters, padded with zeros."""
    text = ""
    for _ in range(width):
        value, digit = divmod(value, 36)
        text = _DIGITS[digit] + text
    assert value == 0
    return text


@dataclass(frozen=True)
class Edition:
    """One plan in force, from one place of the order of one core stripe on."""

    deployment: str  # 1 or 2 letters and digits
    plan: StripePlan
    core: int
    sequence: int = 1  # its first number of the order
    begun_at: Instant | None = None  # the scheduled start of its formation, equal everywhere; None: midnight
    breaks: int = 0
    after: tuple[int, int] = (0, 0)  # version and Breaks of the previous edition; version 0: none
    formation: int = 0  # the last one before it

    def __post_init__(self) -> None:
        if not 1 <= len(self.deployment) <= DEPLOYMENT_MAX or not (
            self.deployment.isascii() and self.deployment.isalnum()
        ):
            raise BadSession(
                f"deployment is {self.deployment!r}; its tag at the edge must be 1 or 2 letters and digits"
            )
        if not self.stripes:
            raise BadSession(f"core stripe is {self.core}; plan {self.plan.version} has no such stripe")

    @property
    def stripes(self) -> tuple[EdgeStripe, ...]:
        """Its edge stripes, in the order of their numbers."""
        return self.plan.of_core(self.core)

    @property
    def stamp(self) -> int:
        """Its beginning as nanoseconds since the midnight of its plan, as ITCH messages carry it."""
        return self.since_midnight(self.plan.midnight_at if self.begun_at is None else self.begun_at)

    def since_midnight(self, at: Instant) -> int:
        """An instant as ITCH messages carry it, clamped to the day."""
        return min(max(at - self.plan.midnight_at, 0), 86_400 * 10**9 - 1)

    def session(self, stripe: int) -> str:
        """The name of a stripe's session."""
        return str(SessionName(self.deployment, self.plan.version, self.breaks, stripe))

    def following(self, plan: StripePlan, *, sequence: int, at: Instant, formation: int) -> "Edition":
        """The next edition: with another plan, or after a Break with the same plan."""
        same = plan.version == self.plan.version
        breaks = (self.breaks + 1) % (BREAKS_MAX + 1) if same else 0
        after = (self.plan.version, self.breaks)
        return Edition(self.deployment, plan, self.core, sequence, at, breaks, after, formation)


@dataclass(frozen=True, slots=True)
class StripePosition:
    """A position in an edition: all that a restarted receiver needs to continue with the same numbers."""

    edition: Edition
    sequence: int  # of the order: the next one
    following: tuple[int, ...]  # of each stripe of the edition: the number of its next message
    at: Instant = 0  # the timestamp of the last token before it
    formation: int = 0  # the last one

    @classmethod
    def fresh(cls, edition: Edition) -> "StripePosition":
        """The beginning of an edition, before the opening messages of its sessions."""
        return cls(edition, edition.sequence, (1,) * len(edition.stripes), formation=edition.formation)

    @property
    def is_fresh(self) -> bool:
        """Whether the opening messages of its sessions are still to be numbered."""
        return set(self.following) == {1}


MARK: Final = b"M"
OPAQUE: Final = b"G"
_MARK: Final = struct.Struct(">cHH6sQBII")  # letter, two unused, since midnight, sequence, kind, two numbers
_OPAQUE: Final = struct.Struct(">cHH6sQIHHB")  # letter, two unused, since midnight, sequence, source, part, parts, flag
MARK_SIZE: Final = _MARK.size
OPAQUE_HEAD_SIZE: Final = _OPAQUE.size
PARTS_MAX: Final = (1 << 16) - 1
_BEGUN, _OVER, _REFORMED = 1, 2, 3


class BadMark(ValueError):
    """Bytes that are neither a mark nor an opaque message."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The session begins here, after the session of this version and Breaks; version 0: after none."""

    sequence: int
    version: int
    breaks: int


@dataclass(frozen=True, slots=True)
class Over:
    """The session ends before this place; the one of this version and Breaks follows. Version 0: none follows."""

    sequence: int
    version: int
    breaks: int


@dataclass(frozen=True, slots=True)
class Reformed:
    """From this place on another formation numbers the order; after a Break its numbers may have been used before."""

    sequence: int
    formation: int
    broken: bool


Mark: TypeAlias = Begun | Over | Reformed


@dataclass(frozen=True, slots=True)
class Opaque:
    """A payload that is no trade, or one part of it."""

    sequence: int
    source: int
    part: int  # from 0 on
    parts: int
    fragment: bool  # the payload is one fragment of a long message, as `fairtape.wire.blocks.Assembler` takes it
    payload: bytes


def encode_mark(mark: Mark, since: int) -> bytes:
    """The message of a mark, with its time since midnight."""
    match mark:
        case Begun(sequence, version, breaks):
            kind, one, other = _BEGUN, version, breaks
        case Over(sequence, version, breaks):
            kind, one, other = _OVER, version, breaks
        case Reformed(sequence, formation, broken):
            kind, one, other = _REFORMED, formation, int(broken)
    return _MARK.pack(MARK, 0, 0, since.to_bytes(6, "big"), sequence, kind, one, other)


def decode_mark(message: bytes) -> Mark:
    """Decode a message that begins with the letter of marks."""
    if len(message) != MARK_SIZE or message[:1] != MARK:
        raise BadMark(f"a mark has {len(message)} bytes; it must have {MARK_SIZE}")
    _, _, _, _, sequence, kind, one, other = _MARK.unpack(message)
    if kind == _BEGUN:
        return Begun(sequence, one, other)
    if kind == _OVER:
        return Over(sequence, one, other)
    if kind == _REFORMED and other <= 1:
        return Reformed(sequence, one, bool(other))
    raise BadMark(f"a mark is of kind {kind} with {other}, which has no meaning")


def encode_opaque(
    payload: bytes, *, sequence: int, source: int, fragment: bool, since: int, size_max: int
) -> list[bytes]:
    """The messages that carry a payload, each of at most `size_max` bytes."""
    capacity = size_max - OPAQUE_HEAD_SIZE
    parts = max(-(-len(payload) // capacity), 1)
    assert parts <= PARTS_MAX
    stamp = since.to_bytes(6, "big")
    return [
        _OPAQUE.pack(OPAQUE, 0, 0, stamp, sequence, source, part, parts, fragment)
        + payload[part * capacity : (part + 1) * capacity]
        for part in range(parts)
    ]


def decode_opaque(message: bytes) -> Opaque:
    """Decode a message that begins with the letter of opaque messages."""
    if len(message) < OPAQUE_HEAD_SIZE or message[:1] != OPAQUE:
        raise BadMark(f"an opaque message has {len(message)} bytes; it must have at least {OPAQUE_HEAD_SIZE}")
    _, _, _, _, sequence, source, part, parts, fragment = _OPAQUE.unpack_from(message)
    if part >= parts or fragment > 1:
        raise BadMark(f"an opaque message is part {part} of {parts} with flag {fragment}, which has no meaning")
    return Opaque(sequence, source, part, parts, bool(fragment), message[OPAQUE_HEAD_SIZE:])
