"""The frames of membership and of catching up: control datagrams like those of `frames`.

Sites report their state; a reformation server (X_R) grants leases, fences members and installs formations. A site that
missed more than the ring can repair reads another site's journal. PROTOCOL.md defines the layouts.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final, TypeAlias

from fairtape.wire.frames import (
    CONTROL_SIZE,
    HEADER,
    MAGIC,
    NUMBER_MAX,
    TAG_SIZE,
    VERSION,
    Kind,
    Malformed,
    NodeId,
    control_body,
)

LAYOUT_MAX: Final = 1_240  # bytes of an encoded formation, so that an Install always fits a datagram
CHUNKS_MAX: Final = 1 << 20  # of one journal entry
ORDINAL_MAX: Final = 1 << 62  # tokens, sequence numbers, chunk numbers and terms: what follows them must fit, too
NUMBERED_MAX: Final = 1 << 31  # formations, likewise

_SITE_REPORT: Final = struct.Struct(">HBBIIQQQQQQIQBQIQQI")
_GRANT: Final = struct.Struct(">HQQQQQI")
_FENCE: Final = struct.Struct(">HQI")
_INSTALL: Final = struct.Struct(">QBI")
_CATCH_UP: Final = struct.Struct(">QIHQQ")
POSITION: Final = struct.Struct(">IQ")  # a formation and a token
_HISTORY_CHUNK: Final = struct.Struct(">QQQIIIIQQ")
_LOOP_TOKEN: Final = struct.Struct(">HQ")
_OPERATOR_COMMAND: Final = struct.Struct(">BI")


class MembershipState(IntEnum):
    """The state of a site in its latest formation."""

    OBSERVER = 0  # follows the order and takes no turns: not a member, or not yet
    MEMBER = 1  # takes its turns
    FENCED = 2  # a member that has stopped working in this formation
    RESTARTED = 3  # a member that lost its memory; its journal proves what it holds
    NEWBORN = 4  # has entered no formation since it started


class MembershipRequest(IntEnum):
    """What a site requests of the reformation server."""

    NOTHING = 0
    JOIN = 1
    WITHDRAW = 2  # its clock error is too large


class OperatorVerb(IntEnum):
    """The commands of an operator."""

    RETIRE = 1  # remove this site from its loop and keep it out
    ADMIT = 2  # allow it to join again
    RESUME = 3  # continue after a halt, with a Break in the order
    PLAN = 4  # activate the stripe plan whose name is in the site field
    ADOPT = 5  # the store that the sites follow is lost: continue with the one whose identity is in the site field


@dataclass(frozen=True, slots=True)
class SiteReport:
    """Site to X_R: its state in one loop. Requests a lease, and names a suspect if there is one."""

    stripe: int
    formation: int  # the latest one it knows; 0: none
    sender: NodeId
    loop: int
    membership_state: MembershipState
    request: MembershipRequest
    prepared: int  # the formation it is prepared to enter; 0: none
    incarnation: int  # changes each time the site starts
    asked_at: int  # by the site's clock
    clock_bound: int
    complete_through: int  # token
    sequence: int  # the number after the last message it holds in order
    settled_through: int  # token: K + 1 sites hold everything up to it
    late: int  # messages released late since it started
    suspect: NodeId
    suspect_token: int  # 0: no suspect
    reason: int
    proposal: int = 0  # the digest of the formation that it is prepared to enter; 0: none
    journal: int = 0  # the identity of its journal; 0: none
    deployment: int = 0  # the digest of the deployment file that it has read; 0: none
    term: int = 0  # the highest of a reformation server that it has heard of; 0: none
    store: int = 0  # the identity of the formation store that it follows; 0: none


@dataclass(frozen=True, slots=True)
class Grant:
    """X_R to site: a lease. It starts at the time of the site's report, `asked_at`."""

    stripe: int
    formation: int
    sender: NodeId
    loop: int
    term: int
    asked_at: int  # copied from the report
    received_at: int  # by the clock of X_R
    clock_bound: int  # of X_R
    lease_period: int
    store: int = 0  # the identity of the formation store in whose name it is sent


@dataclass(frozen=True, slots=True)
class Fence:
    """X_R to member: stop working in this formation and report."""

    stripe: int
    formation: int
    sender: NodeId
    loop: int
    term: int
    store: int = 0  # the identity of the formation store in whose name it is sent


@dataclass(frozen=True, slots=True)
class Install:
    """X_R to site: a formation. If not `final`, it is a proposal to prepare for."""

    stripe: int
    formation: int
    sender: NodeId
    term: int
    final: bool
    layout: bytes
    store: int = 0  # the identity of the formation store in whose name it is sent


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Site to site: send chunks of the entries after this position.

    Chunks are counted from the start of the entry after the position through all that follow, so a request may name
    what is ahead of entries that the requester does not know yet.
    """

    stripe: int
    formation: int  # the last one in the requester's journal
    sender: NodeId
    token: int  # the last one the requester has in order
    chunk: int  # the first one that is requested
    chunks_max: int
    number: int = 0  # of that chunk, as the requester numbers all chunks that it requests
    asked_at: int = 0  # by the requester's clock


@dataclass(frozen=True, slots=True)
class HistoryChunk:
    """Site to site: one chunk of the entry after a position, or without chunks: there is no such entry yet."""

    stripe: int
    formation: int
    sender: NodeId
    after: int  # token: with the formation, the position
    complete_through: int  # token: of the sender
    settled_through: int
    known: int  # the latest formation that the sender agrees with; 0: none
    chunk: int
    chunks: int  # 0: nothing follows up to `complete_through`
    data: bytes  # if nothing follows: the position of the sender's last entry, or empty
    check: int = 0  # from the digest of the entry: after a Break, two entries may follow one position
    number: int = 0  # of the chunk, or of the first one that does not exist yet, as the request numbers them
    asked_at: int = 0  # copied from the request


@dataclass(frozen=True, slots=True)
class LoopToken:
    """The token of a secondary loop: its sender holds everything up to this primary token. TRMP 2001 §4.1."""

    stripe: int
    formation: int
    sender: NodeId
    loop: int
    token: int


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """Operator to X_R."""

    stripe: int
    formation: int
    sender: NodeId
    verb: OperatorVerb
    site: NodeId


MembershipMessage: TypeAlias = (
    SiteReport | Grant | Fence | Install | CatchUp | HistoryChunk | LoopToken | OperatorCommand
)

KINDS: Final = frozenset(
    (
        Kind.SITE_REPORT,
        Kind.GRANT,
        Kind.FENCE,
        Kind.INSTALL,
        Kind.CATCH_UP,
        Kind.HISTORY_CHUNK,
        Kind.LOOP_TOKEN,
        Kind.OPERATOR_COMMAND,
    )
)


_HISTORY_KIND: Final = bytes((Kind.HISTORY_CHUNK,))


def is_membership(datagram: bytes) -> bool:
    return len(datagram) > 2 and datagram[2] in KINDS


def is_history(datagram: bytes) -> bool:
    return datagram[2:3] == _HISTORY_KIND


def chunk_size(datagram_max: int) -> int:
    """The bytes of an entry that one datagram carries."""
    return datagram_max - CONTROL_SIZE - _HISTORY_CHUNK.size - TAG_SIZE


def encode_membership(message: MembershipMessage, serial: int) -> bytes:
    """The datagram without its authenticator."""
    kind, body = _body(message)
    head = HEADER.pack(MAGIC, VERSION, kind, 0, message.stripe, 0, message.formation, message.sender)
    return head + serial.to_bytes(8) + body


def _body(message: MembershipMessage) -> tuple[Kind, bytes]:
    match message:
        case SiteReport():
            return Kind.SITE_REPORT, _SITE_REPORT.pack(
                message.loop, message.membership_state, message.request, message.prepared, message.incarnation,
                message.asked_at, message.clock_bound, message.complete_through, message.sequence,
                message.settled_through, message.late, message.suspect, message.suspect_token, message.reason,
                message.proposal, message.journal, message.deployment, message.term, message.store,
            )  # fmt: skip
        case Grant():
            return Kind.GRANT, _GRANT.pack(
                message.loop, message.term, message.asked_at, message.received_at, message.clock_bound,
                message.lease_period, message.store,
            )  # fmt: skip
        case Fence():
            return Kind.FENCE, _FENCE.pack(message.loop, message.term, message.store)
        case Install():
            return Kind.INSTALL, _INSTALL.pack(message.term, message.final, message.store) + message.layout
        case CatchUp():
            return Kind.CATCH_UP, _CATCH_UP.pack(
                message.token, message.chunk, message.chunks_max, message.number, message.asked_at
            )
        case HistoryChunk():
            return Kind.HISTORY_CHUNK, _HISTORY_CHUNK.pack(
                message.after,
                message.complete_through,
                message.settled_through,
                message.known,
                message.chunk,
                message.chunks,
                message.check,
                message.number,
                message.asked_at,
            ) + message.data
        case LoopToken():
            return Kind.LOOP_TOKEN, _LOOP_TOKEN.pack(message.loop, message.token)
        case OperatorCommand():
            return Kind.OPERATOR_COMMAND, _OPERATOR_COMMAND.pack(message.verb, message.site)


def decode_membership(datagram: bytes) -> MembershipMessage:
    """Decode a datagram whose kind has been checked. The caller checks the authenticator."""
    _, _, kind, _, stripe, count, formation, sender = HEADER.unpack_from(datagram)
    body = control_body(datagram, count)
    try:
        return _decode(kind, stripe, formation, sender, body)
    except (struct.error, ValueError) as error:
        raise Malformed(str(error)) from None


def _decode(kind: int, stripe: int, formation: int, sender: NodeId, body: bytes) -> MembershipMessage:
    decode = _DECODERS.get(kind)
    if decode is None:
        raise Malformed("not a membership frame")
    _check_formations(formation)
    return decode(stripe, formation, sender, body)


def _decode_grant(stripe: int, formation: int, sender: NodeId, body: bytes) -> Grant:
    grant = Grant(stripe, formation, sender, *_checked(_GRANT.unpack(body)))
    _check_ordinals(grant.term)
    return grant


def _decode_fence(stripe: int, formation: int, sender: NodeId, body: bytes) -> Fence:
    fence = Fence(stripe, formation, sender, *_checked(_FENCE.unpack(body)))
    _check_ordinals(fence.term)
    return fence


def _decode_install(stripe: int, formation: int, sender: NodeId, body: bytes) -> Install:
    term, final, store = _checked(_INSTALL.unpack_from(body))
    _check_ordinals(term)
    layout = body[_INSTALL.size :]
    if final > 1 or not 0 < len(layout) <= LAYOUT_MAX:
        raise Malformed("install without a layout")
    return Install(stripe, formation, sender, term, bool(final), layout, store)


def _decode_catch_up(stripe: int, formation: int, sender: NodeId, body: bytes) -> CatchUp:
    request = CatchUp(stripe, formation, sender, *_checked(_CATCH_UP.unpack(body)))
    _check_ordinals(request.token, request.number)
    if request.chunk > request.number:
        raise Malformed("chunk before the first number")
    return request


def _decode_loop_token(stripe: int, formation: int, sender: NodeId, body: bytes) -> LoopToken:
    loop, token = _checked(_LOOP_TOKEN.unpack(body))
    if not loop or not token:
        raise Malformed("loop token without a loop or a token")
    _check_ordinals(token)
    return LoopToken(stripe, formation, sender, loop, token)


def _decode_operator_command(stripe: int, formation: int, sender: NodeId, body: bytes) -> OperatorCommand:
    verb, site = _OPERATOR_COMMAND.unpack(body)
    return OperatorCommand(stripe, formation, sender, OperatorVerb(verb), site)


def _decode_site_report(stripe: int, formation: int, sender: NodeId, body: bytes) -> SiteReport:
    loop, membership_state, request, *numbers = _checked(_SITE_REPORT.unpack(body))
    report = SiteReport(
        stripe, formation, sender, loop, MembershipState(membership_state), MembershipRequest(request), *numbers
    )
    if not report.sequence:
        raise Malformed("number 0; numbers start at 1")
    _check_formations(report.prepared)
    _check_ordinals(report.complete_through, report.sequence, report.settled_through, report.suspect_token, report.term)
    return report


def _decode_history_chunk(stripe: int, formation: int, sender: NodeId, body: bytes) -> HistoryChunk:
    after, complete, settled, known, chunk, chunks, check, number, asked_at = _checked(_HISTORY_CHUNK.unpack_from(body))
    _check_formations(known)
    _check_ordinals(after, complete, settled, number)
    data = body[_HISTORY_CHUNK.size :]
    if chunks > CHUNKS_MAX or (chunk >= chunks or not data if chunks else chunk or len(data) not in (0, POSITION.size)):
        raise Malformed("chunks out of bounds")
    return HistoryChunk(
        stripe, formation, sender, after, complete, settled, known, chunk, chunks, data, check, number, asked_at
    )


def _check_formations(formation: int) -> None:
    if formation > NUMBERED_MAX:
        raise Malformed("formation out of bounds")


def _check_ordinals(*ordinals: int) -> None:
    if max(ordinals) > ORDINAL_MAX:
        raise Malformed("ordinal out of bounds")


def _checked(numbers: tuple[int, ...]) -> tuple[int, ...]:
    if max(numbers) > NUMBER_MAX:
        raise Malformed("number out of bounds")
    return numbers


_DECODERS: Final[Mapping[int, Callable[[int, int, NodeId, bytes], MembershipMessage]]] = MappingProxyType(
    {
        Kind.SITE_REPORT: _decode_site_report,
        Kind.GRANT: _decode_grant,
        Kind.FENCE: _decode_fence,
        Kind.INSTALL: _decode_install,
        Kind.CATCH_UP: _decode_catch_up,
        Kind.HISTORY_CHUNK: _decode_history_chunk,
        Kind.LOOP_TOKEN: _decode_loop_token,
        Kind.OPERATOR_COMMAND: _decode_operator_command,
    }
)
