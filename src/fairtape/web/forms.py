"""What a customer gets: the order as WebSocket messages, in JSON or with binary trades.

A *text* message is one JSON object whose `kind` says what it is. A whole number that may not fit the 53 bits of a
JavaScript number is written as text, and so is a decimal: times (nanoseconds UTC), prices, quantities, trade ids,
incarnations.

A *binary* message is a bundle of trades, little-endian, without padding:

    magic 4 (`FTW1`), count 4, sent at 8
    count × trade    64 bytes each, as they were published (`fairtape.market.trades`)
    count × place    72 bytes each: sequence 8, source number 8, stripe number 8, incarnation 8, acknowledged at 8,
                     commit at 8, released at 8, clock bound 8, source 4, stripe 2, flags 2 (bit 0: late)

A time that does not exist is -1. So with the trade's own time every trade has the four times of the order (the fourth,
when it was received, only the receiver knows), the clock bound, and its number in the order, of its source and in its
stripe. Notices, and messages that are no trades, are text in either form, at their places between the bundles.
"""

import json
import struct
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, Final

import numpy as np
from websockets.frames import Frame, Opcode

from fairtape.client.backlog import Item
from fairtape.client.lots import PLACE_DTYPE, Lot
from fairtape.client.records import (
    Break,
    Fresh,
    Gap,
    Merged,
    Message,
    Notice,
    Reformation,
    Skipped,
    Snapshot,
    Stale,
    Trade,
)
from fairtape.core.instants import Instant
from fairtape.market.prices import format_fixed
from fairtape.market.trades import TRADE_SIZE, BadTrade, records

ROWS_MAX: Final = 1_024  # trades of one message: 140 kB of binary, less than half a megabyte of JSON
MAGIC: Final = b"FTW1"
_HEADER: Final = struct.Struct("<4sIq")
_LATE: Final = 1

PLACE: Final = np.dtype(
    [
        ("sequence", "<i8"),
        ("source_number", "<i8"),
        ("stripe_number", "<i8"),
        ("incarnation", "<i8"),
        ("acknowledged_at", "<i8"),
        ("commit_at", "<i8"),
        ("released_at", "<i8"),
        ("clock_bound", "<i8"),
        ("source", "<u4"),
        ("stripe", "<u2"),
        ("flags", "<u2"),
    ]
)
_SHARED: Final = [name for name in PLACE.names or () if name != "flags"]

_KINDS: Final[Mapping[type, str]] = {
    Gap: "gap",
    Skipped: "skipped",
    Merged: "merged",
    Reformation: "reformation",
    Break: "break",
    Stale: "stale",
    Fresh: "fresh",
    Snapshot: "snapshot",
    Message: "message",
}
_WIDE: Final = frozenset({"incarnation", "since", "installed_at", "acknowledged_at", "commit_at", "released_at"})


class Form(Enum):
    """How trades are written."""

    JSON = "json"
    BINARY = "binary"


class BadBundle(ValueError):
    """Bytes that are no bundle of trades."""


def framed(item: Item, form: Form, sent_at: Instant) -> bytes:
    """One message as a whole WebSocket frame, as a server sends it: written once, for everybody who wants the same."""
    if not isinstance(item, Lot):
        return text_frame(told(item))
    if form is Form.JSON:
        return text_frame(trades_told(item, sent_at))
    return bytes(Frame(Opcode.BINARY, bundle(item, sent_at)).serialize(mask=False))


def text_frame(content: Mapping[str, Any]) -> bytes:
    """An object as a WebSocket frame."""
    return bytes(Frame(Opcode.TEXT, packed(content)).serialize(mask=False))


def packed(content: Mapping[str, Any]) -> bytes:
    """An object as JSON, without blanks."""
    return json.dumps(content, separators=(",", ":")).encode()


def bundle(lot: Lot, sent_at: Instant) -> bytes:
    """The binary form of some trades."""
    places = np.empty(lot.rows, PLACE)
    for name in _SHARED:
        places[name] = lot.places[name]
    places["flags"] = lot.places["late"]  # _LATE is 1
    return _HEADER.pack(MAGIC, lot.rows, sent_at) + lot.trades.tobytes() + places.tobytes()


def unbundled(octets: bytes, received_at: Instant) -> tuple[Lot, Instant]:
    """The trades of a bundle, and when it was sent. Raises `BadBundle` for anything that `bundle` does not make."""
    if len(octets) < _HEADER.size:
        raise BadBundle(f"a bundle has at least {_HEADER.size} bytes, this has {len(octets)}")
    magic, count, sent_at = _HEADER.unpack_from(octets)
    places_at = _HEADER.size + count * TRADE_SIZE
    if magic != MAGIC or len(octets) != places_at + count * PLACE.itemsize:
        raise BadBundle(f"{len(octets)} bytes that begin with {magic!r} are no bundle of {count} trades")
    found = np.frombuffer(octets, PLACE, count, places_at)
    places = np.zeros(count, PLACE_DTYPE)
    for name in _SHARED:
        places[name] = found[name]
    places["late"] = found["flags"] & _LATE
    places["received_at"] = received_at
    try:
        return Lot(records(octets[_HEADER.size : places_at]), places), sent_at
    except BadTrade as error:
        raise BadBundle(str(error)) from None


def told(record: Message | Notice) -> dict[str, Any]:
    """A notice, or a message that is no trade, as an object."""
    content: dict[str, Any] = {"kind": _KINDS[type(record)]}
    for each in fields(record):
        value = getattr(record, each.name)
        if each.name == "received_at":
            continue
        if isinstance(value, bytes):
            value = b64encode(value).decode()
        elif each.name in _WIDE and value is not None:
            value = str(value)
        content[_spelled(each.name)] = value
    return content


def trades_told(lot: Lot, sent_at: Instant) -> dict[str, Any]:
    """Some trades as an object."""
    return {"kind": "trades", "sent_at_ns": str(sent_at), "trades": [trade_told(trade) for trade in lot.records()]}


def trade_told(trade: Trade) -> dict[str, Any]:
    """One trade as an object."""
    return {
        "sequence": trade.sequence,
        "source": trade.source,
        "incarnation": str(trade.incarnation),
        "source_number": trade.source_number,
        "stripe": trade.stripe,
        "stripe_number": trade.stripe_number,
        "symbol": trade.symbol,
        "venue": trade.venue,
        "price": format_fixed(trade.price),
        "quantity": format_fixed(trade.quantity),
        "trade_id": str(trade.trade_id),
        "trade_flags": trade.flags,
        "traded_at_ns": str(trade.traded_at),
        "acknowledged_at_ns": _text(trade.acknowledged_at),
        "commit_at_ns": _text(trade.commit_at),
        "released_at_ns": _text(trade.released_at),
        "clock_bound_ns": trade.clock_bound,
        "late": trade.late,
    }


def _spelled(name: str) -> str:
    """At a border the unit is spelled."""
    return f"{name}_ns" if name.endswith("_at") or name in ("since", "clock_bound") else name


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)
