"""Payloads as columns: trades decoded as arrays, notices and orders one by one with their codecs.

Other payloads are skipped: a ring carries whatever its sources send.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from fairtape.exchange.order_codec import decode as decode_order
from fairtape.exchange.orders import BadOrder, Cancel, NewOrder, Replace
from fairtape.formats.byte_columns import Values
from fairtape.market.notices import BadNotice, Correction, Notice, VenueStatus, decode_notice
from fairtape.market.notices import Cancel as TradeCancel
from fairtape.market.trades import TRADE_DTYPE, TRADE_KIND, TRADE_SIZE, TRADE_VERSION, BadTrade, Trades, records
from fairtape.pipeline.schemas import TABLES, Arrow

_PLACE: Final = ("stripe", "sequence", "token", "source", "acknowledged_at_ns", "commit_at_ns")


def trades_of(batches: Iterator[Arrow]) -> Iterator[Arrow]:
    """Rows of `trades` from messages that have the size of one."""
    schema = TABLES["trades"].schema
    for batch in batches:
        octets = _joined(batch.column("payload"))
        found, trades = valid_trades(octets)
        kept = batch if found.all() else batch.filter(pa.array(found))
        columns = {name: kept.column(name) for name in _PLACE} | trade_columns(trades)
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def notices_of(batches: Iterator[Arrow]) -> Iterator[Arrow]:
    """Rows of `notices`."""
    for batch in batches:
        yield _rows("notices", batch, _notice_fields)


def orders_of(batches: Iterator[Arrow]) -> Iterator[Arrow]:
    """Rows of `orders`."""
    for batch in batches:
        yield _rows("orders", batch, _order_fields)


def _rows(table: str, batch: Arrow, read: Any) -> Arrow:
    places = batch.select(list(_PLACE)).to_pylist()
    fields = map(read, batch.column("payload").to_pylist())
    rows = [place | found for place, found in zip(places, fields, strict=True) if found is not None]
    return pa.RecordBatch.from_pylist(rows, schema=TABLES[table].schema)


def _notice_fields(payload: bytes) -> dict[str, Any] | None:
    try:
        notice: Notice = decode_notice(payload)
    except BadNotice:
        return None
    match notice:
        case TradeCancel(number, venue, symbol, at):
            return {"kind": "cancel", "venue": venue, "symbol": symbol, "number": number, "noticed_at_ns": at}
        case Correction(number, trade, at):
            return {
                "kind": "correction",
                "venue": trade.venue_name,
                "symbol": trade.symbol,
                "number": number,
                "price": trade.price,
                "quantity": trade.quantity,
                "traded_at_ns": trade.traded_at,
                "noticed_at_ns": at,
            }
        case VenueStatus(venue, status, since):
            return {"kind": status.name.lower(), "venue": venue, "noticed_at_ns": since}


def _order_fields(payload: bytes) -> dict[str, Any] | None:
    try:
        request = decode_order(payload)
    except BadOrder:
        return None
    match request:
        case NewOrder():
            names = ("side", "order_type", "time_in_force", "self_trade")
            choices = {name: getattr(request, name).name.lower() for name in names}
            amounts = {
                name: getattr(request, name) for name in ("symbol", "post_only", "quantity", "price", "stop_price")
            }
            return _request("new", request, request.client_id) | choices | amounts
        case Cancel():
            return _request("cancel", request, request.order_id) | {"order_id": request.order_id}
        case Replace():
            amounts = {name: getattr(request, name) for name in ("order_id", "quantity", "price")}
            return _request("replace", request, request.client_id) | amounts
        case _:
            return None


def _request(kind: str, request: NewOrder | Cancel | Replace, client_id: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "gateway": request.gateway,
        "gateway_number": _signed(request.gateway_number),
        "account": request.account,
        "client_id": client_id,
        "entered_at_ns": request.entered_at,
    }


def _signed(number: int) -> int:
    """64 bits as a BIGINT: negative values stand for 2^63 and more."""
    return number - (1 << 64) if number >> 63 else number


def _joined(payloads: Arrow) -> Values:
    """The bytes of payloads of one size, concatenated, without a copy."""
    _, offsets, octets = payloads.buffers()
    if octets is None:
        return np.empty(0, np.uint8)
    first = np.frombuffer(offsets, np.int32)[payloads.offset]
    return np.frombuffer(octets, np.uint8)[first : first + len(payloads) * TRADE_SIZE]


def valid_trades(octets: Values) -> tuple[Values, Trades]:
    """Which of these records are trades, and the trades. Usually all of them are."""
    candidates = octets.view(TRADE_DTYPE)
    found = (candidates["kind"] == TRADE_KIND) & (candidates["version"] == TRADE_VERSION)
    chosen = octets if found.all() else candidates[found].view(np.uint8)
    try:
        return found, records(chosen.data)
    except BadTrade:
        good = np.array([_is_trade(candidate.tobytes()) for candidate in candidates])
        return good, candidates[good]


def _is_trade(payload: bytes) -> bool:
    try:
        records(payload)
    except BadTrade:
        return False
    return True


def trade_columns(trades: Trades) -> dict[str, Arrow]:
    """The columns of trades."""
    return {
        "venue": names_of(trades["venue"]),
        "symbol": names_of(trades["symbol"]),
        "price": pa.array(trades["price"]),
        "quantity": pa.array(trades["quantity"]),
        "traded_at_ns": pa.array(trades["traded_at"]),
        "trade_id": pa.array(trades["trade_id"].view(np.int64)),
        "trade_flags": pa.array(trades["flags"].astype(np.int32)),
    }


def fixed_names(padded: Values) -> Arrow:
    """Padded names as Arrow's fixed-size binary, which is hashed fast."""
    width = padded.dtype.itemsize
    return pa.Array.from_buffers(pa.binary(width), len(padded), [None, pa.py_buffer(np.ascontiguousarray(padded))])


def names_of(padded: Values) -> Arrow:
    """Names as text. Each distinct name is decoded once: a batch has few of them, repeated often."""
    coded = fixed_names(padded).dictionary_encode()
    texts = [name.rstrip(b"\0").decode("ascii") for name in coded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(coded.indices)
