"""Datagrams in short: what can be read without keys. Drop rules match it, traces print it."""

from dataclasses import dataclass

from fairtape.wire.frames import (
    Ack,
    Control,
    Flag,
    Hole,
    Kind,
    Malformed,
    Progress,
    Range,
    Request,
    TokenAck,
    decode_block,
    decode_control,
    kind_of,
)

NAMES: dict[Kind, str] = {
    Kind.BLOCK: "Block",
    Kind.ACK: "Ack",
    Kind.REQUEST: "Request",
    Kind.HOLE: "Hole",
    Kind.PROGRESS: "Progress",
    Kind.TOKEN_ACK: "TokenAck",
}


@dataclass(frozen=True, slots=True)
class DatagramSummary:
    """The fields of one datagram that need no key."""

    kind: Kind | None  # None: not a valid datagram
    tokens: tuple[int, ...]
    label: str  # short, for an arrow of a diagram: Ack(7)
    text: str  # complete, for a line of a trace: Ack(7) 12..14 = 101:5..7


def span(first: int, count: int) -> str:
    """`7`, or `7..9`."""
    return str(first) if count == 1 else f"{first}..{first + count - 1}"


def named(wanted: Range) -> str:
    """`101:5..7`, with the incarnation where it is not the first: `101.2:5..7`."""
    incarnation = f".{wanted.incarnation}" if wanted.incarnation > 1 else ""
    return f"{wanted.source}{incarnation}:{span(wanted.first, wanted.count)}"


def summarize_datagram(datagram: bytes) -> DatagramSummary:
    """Decode one datagram; one that cannot be decoded is summarized as noise."""
    try:
        if kind_of(datagram) is Kind.BLOCK:
            return _summarize_block(datagram)
        return _summarize_control(decode_control(datagram))
    except Malformed as fault:
        return DatagramSummary(None, (), "noise", f"noise of {len(datagram)} bytes ({fault})")


def _summarize_block(datagram: bytes) -> DatagramSummary:
    block = decode_block(datagram)
    what = "Fragment" if block.flags & Flag.FRAGMENT else "Block"
    name = named(Range(block.source, block.incarnation, block.first, block.count))
    return DatagramSummary(Kind.BLOCK, (), name, f"{what} {name}")


def _summarize_control(control: Control) -> DatagramSummary:
    match control:
        case Ack(token=token):
            label = f"Ack({token})" if control.parts == 1 else f"Ack({token}, part {control.part + 1}/{control.parts})"
            return DatagramSummary(Kind.ACK, (token,), label, label + _ranges(control))
        case Request(tokens=tokens, ranges=ranges):
            wants = [f"Ack({token})" for token in tokens] + [named(wanted) for wanted in ranges]
            label = f"want {wants[0]}" + ("…" if len(wants) > 1 else "")
            return DatagramSummary(Kind.REQUEST, tokens, label, f"Request {' '.join(wants)}")
        case Hole(missing=missing):
            return DatagramSummary(Kind.HOLE, (), f"hole {named(missing)}", f"Hole {named(missing)}")
        case Progress(next=following, token=token):
            settled = f", settled below {control.settled}" if control.settled < following else ""
            text = f"Progress below {following}{settled}"
            return DatagramSummary(Kind.PROGRESS, (token,), f"through {following - 1}", text)
        case TokenAck(token=token):
            return DatagramSummary(Kind.TOKEN_ACK, (token,), f"TokenAck({token})", f"TokenAck({token})")


def _ranges(ack: Ack) -> str:
    if not ack.ranges:
        return " empty"
    total = sum(wanted.count for wanted in ack.ranges)
    return f" seq {span(ack.sequence, total)} = {' '.join(named(wanted) for wanted in ack.ranges)}"
