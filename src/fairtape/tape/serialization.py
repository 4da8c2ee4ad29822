"""Records between a server and a client: trades in binary batches, everything else as JSON objects.

A binary *batch* of trades is little-endian, without padding:

    magic 4 (`FTW1`), count 4, sent at 8
    count × trade    64 bytes each, as they were published (`fairtape.market.trades`)
    count × place    72 bytes each: sequence 8, source number 8, stripe number 8, incarnation 8, acknowledged at 8,
                     commit at 8, released at 8, clock bound 8, source 4, stripe 2, flags 2 (bit 0: late)

A time that does not exist is -1. The time of receipt is not sent; the receiver adds it.

An *object* has a `kind`. Integers that may not fit into the 53 bits of a JavaScript number are written as text: times
(nanoseconds UTC), incarnations and trade ids. Prices and quantities are decimal text.
"""

import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

import numpy as np

from fairtape.core.instants import Instant
from fairtape.market.notices import Status
from fairtape.market.prices import format_fixed, parse_fixed
from fairtape.market.trades import TRADE_SIZE, BadTrade, records
from fairtape.tape.batches import PLACE_DTYPE, TradeBatch
from fairtape.tape.records import (
    Break,
    Canceled,
    Corrected,
    Delayed,
    Fresh,
    Gap,
    Merged,
    Message,
    Notice,
    Prompt,
    Reformation,
    Single,
    Skipped,
    Snapshot,
    Stale,
    VenueStatus,
)

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

KINDS: Final[Mapping[str, type[Single | Notice]]] = {
    "gap": Gap,
    "skipped": Skipped,
    "merged": Merged,
    "reformation": Reformation,
    "break": Break,
    "stale": Stale,
    "fresh": Fresh,
    "delayed": Delayed,
    "prompt": Prompt,
    "snapshot": Snapshot,
    "message": Message,
    "canceled": Canceled,
    "corrected": Corrected,
    "status": VenueStatus,
}
_NAMES: Final[Mapping[type, str]] = {kind: name for name, kind in KINDS.items()}
_WIDE: Final = frozenset({"incarnation", "since", "trade_id"})
_DECIMAL: Final = frozenset({"price", "quantity"})
_TEXT: Final = frozenset({"symbol", "venue"})


class BadBatch(ValueError):
    """Bytes or objects that are no batch and no record."""


def encode_batch(batch: TradeBatch, sent_at: Instant) -> bytes:
    """Trades in binary form."""
    places = np.empty(batch.rows, PLACE)
    for name in _SHARED:
        places[name] = batch.places[name]
    places["flags"] = batch.places["late"]  # _LATE is 1
    return _HEADER.pack(MAGIC, batch.rows, sent_at) + batch.trades.tobytes() + places.tobytes()


def decode_batch(octets: bytes, received_at: Instant) -> tuple[TradeBatch, Instant]:
    """The trades, and when the batch was sent. Raises `BadBatch` for what `encode_batch` does not make."""
    if len(octets) < _HEADER.size:
        raise BadBatch(f"a batch has at least {_HEADER.size} bytes, this has {len(octets)}")
    magic, count, sent_at = _HEADER.unpack_from(octets)
    places_at = _HEADER.size + count * TRADE_SIZE
    if magic != MAGIC or len(octets) != places_at + count * PLACE.itemsize:
        raise BadBatch(f"{len(octets)} bytes that begin with {magic!r} are no batch of {count} trades")
    found = np.frombuffer(octets, PLACE, count, places_at)
    places = np.zeros(count, PLACE_DTYPE)
    for name in _SHARED:
        places[name] = found[name]
    places["late"] = found["flags"] & _LATE
    places["received_at"] = received_at
    try:
        return TradeBatch(records(octets[_HEADER.size : places_at]), places), sent_at
    except BadTrade as error:
        raise BadBatch(str(error)) from None


def record_fields(record: Single | Notice) -> dict[str, Any]:
    """A record that is no trade, as an object."""
    content: dict[str, Any] = {"kind": _NAMES[type(record)]}
    for each in fields(record):
        value = getattr(record, each.name)
        if each.name == "received_at":
            continue
        content[_key_of(each.name)] = _encoded(each.name, value)
    return content


def parse_record(content: Mapping[str, Any], received_at: Instant) -> Single | Notice:
    """The inverse of `record_fields`. Raises `BadBatch` if the fields are no record."""
    kind = KINDS.get(content.get("kind", ""))
    if kind is None:
        raise BadBatch(f"kind is {content.get('kind')!r}; expected one of {', '.join(KINDS)}")
    values: dict[str, Any] = {}
    for each in fields(kind):
        try:
            values[each.name] = received_at if each.name == "received_at" else _decoded(each.name, content)
        except (KeyError, ValueError, TypeError, AttributeError):
            raise BadBatch(f"{_key_of(each.name)} of a {content['kind']} is missing or has a wrong type") from None
    return kind(**values)


def _encoded(name: str, value: Any) -> Any:
    if name == "payload":
        return b64encode(value).decode()
    if name == "status":
        return value.name.lower()
    if name in _DECIMAL:
        return format_fixed(value)
    return str(value) if value is not None and (name in _WIDE or name.endswith("_at")) else value


def _decoded(name: str, content: Mapping[str, Any]) -> int | bool | bytes | str | Status | None:
    """The inverse of `_encoded`."""
    value = content[_key_of(name)]
    if name == "payload":
        return b64decode(value, validate=True)
    if name == "status":
        return Status[value.upper()]
    if name in _DECIMAL:
        return parse_fixed(value)
    if name in _TEXT or value is None or isinstance(value, bool):
        return str(value) if name in _TEXT else value
    return int(value)


def _key_of(name: str) -> str:
    """The key of a field: times have their unit, and flags the name that they have in files."""
    if name == "flags":
        return "trade_flags"
    return f"{name}_ns" if name.endswith("_at") or name in ("since", "clock_bound", "delay") else name
