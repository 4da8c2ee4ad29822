"""What a customer is sent: the order as WebSocket messages, in JSON or with binary trades.

A *text* message is one JSON object with a `kind`. A whole number that may not fit the 53 bits of a JavaScript number is
written as text, and so is a decimal: times (nanoseconds UTC), prices, quantities, trade ids, incarnations. A *binary*
message is a batch of trades. Notices, and messages that are no trades, are text in either encoding, in order between
the batches. `fairtape.tape.serialization` describes both.
"""

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from websockets.frames import Frame, Opcode

from fairtape.client.backlog import Item
from fairtape.core.instants import Instant
from fairtape.market.prices import format_fixed
from fairtape.tape.batches import TradeBatch
from fairtape.tape.records import Trade
from fairtape.tape.serialization import encode_batch, record_fields

ROWS_MAX: Final = 1_024  # trades of one message: 140 kB of binary, less than half a megabyte of JSON


class Encoding(Enum):
    """How trades are written."""

    JSON = "json"
    BINARY = "binary"


def encode_frame(item: Item, encoding: Encoding, sent_at: Instant) -> bytes:
    """One message as a whole WebSocket frame of a server: encoded once for all customers of a subscription."""
    if not isinstance(item, TradeBatch):
        return text_frame(record_fields(item))
    if encoding is Encoding.JSON:
        return text_frame(encode_trades(item, sent_at))
    return bytes(Frame(Opcode.BINARY, encode_batch(item, sent_at)).serialize(mask=False))


def text_frame(content: Mapping[str, Any]) -> bytes:
    return bytes(Frame(Opcode.TEXT, json_bytes(content)).serialize(mask=False))


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """An object as compact JSON."""
    return json.dumps(content, separators=(",", ":")).encode()


def encode_trades(batch: TradeBatch, sent_at: Instant) -> dict[str, Any]:
    return {"kind": "trades", "sent_at_ns": str(sent_at), "trades": [encode_trade(trade) for trade in batch.records()]}


def encode_trade(trade: Trade) -> dict[str, Any]:
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


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)
