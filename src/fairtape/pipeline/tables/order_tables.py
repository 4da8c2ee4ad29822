"""The order and its contents: trades, notices and orders.

Trades are decoded as arrays, notices and orders one by one with their codecs. Other payloads are skipped: a ring
carries whatever its sources send.

All modules of tables are functions from DataFrame to DataFrame without side effects. Time and money are integers
throughout (nanoseconds, billionths), so results are exact and equal on every cluster. `fairtape.pipeline.schemas` has
the meaning of each column.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_schema

from fairtape.exchange.orders import (
    CANCEL_KIND,
    NEW_ORDER_KIND,
    REPLACE_KIND,
    BadOrder,
    Cancel,
    NewOrder,
    Replace,
)
from fairtape.exchange.orders import decode as decode_order
from fairtape.formats.byte_columns import Values
from fairtape.market.notices import (
    CANCEL_NOTICE_KIND,
    CORRECTION_NOTICE_KIND,
    STATUS_NOTICE_KIND,
    BadNotice,
    CancelNotice,
    CorrectionNotice,
    StatusNotice,
    VenueNotice,
    decode_notice,
)
from fairtape.market.trades import TRADE_KIND, TRADE_SIZE
from fairtape.pipeline.schemas import MESSAGE, TABLES, Arrow
from fairtape.pipeline.source.journal_rows import trade_columns, valid_trades

_PLACE: Final = ("stripe", "sequence", "token", "source", "acknowledged_at_ns", "commit_at_ns")


def one_order(deliveries: DataFrame, part: DataFrame | None = None) -> DataFrame:
    """Every number once: contents are the same at all sites, as reconciliation proves.

    For each stripe the journal that begins first is taken to its end, the next one continues from there, and so on. So
    a site that failed or joined later leaves no gap, and most numbers come from one journal. With a `part` of the
    deliveries, only the numbers in it are returned.
    """
    extents = deliveries.groupBy("stripe", "site").agg(
        F.min("sequence").alias("first"), F.max("sequence").alias("until")
    )
    earlier = Window.partitionBy("stripe").orderBy("first", "site").rowsBetween(Window.unboundedPreceding, -1)
    ranges = extents.withColumn("begin", F.greatest("first", F.max("until").over(earlier) + 1))
    chosen = ranges.where("begin <= until").select("stripe", "site", "begin", "until")
    within = F.col("sequence").between(F.col("begin"), F.col("until"))
    rows = deliveries if part is None else part
    return rows.join(F.broadcast(chosen), ["stripe", "site"]).where(within).drop("begin", "until")


def trades(order: DataFrame) -> DataFrame:
    """Messages that are trades."""
    sized = order.where(F.length("payload") == TRADE_SIZE)
    return _decoded(sized, (TRADE_KIND,), _trades_of, "trades")


def notices(order: DataFrame) -> DataFrame:
    """Messages that are notices of venues."""
    return _decoded(order, (CANCEL_NOTICE_KIND, CORRECTION_NOTICE_KIND, STATUS_NOTICE_KIND), _notices_of, "notices")


def orders(order: DataFrame) -> DataFrame:
    """Messages that are requests to a trading floor."""
    return _decoded(order, (NEW_ORDER_KIND, CANCEL_KIND, REPLACE_KIND), _orders_of, "orders")


def _decoded(
    order: DataFrame, kinds: tuple[int, ...], decode: Callable[[Iterator[Arrow]], Iterator[Arrow]], table: str
) -> DataFrame:
    """Decode payloads of these kinds; others, known by their first byte, do not leave the JVM."""
    begins = F.substring("payload", 1, 1).isin([bytearray([kind]) for kind in kinds])
    chosen = order.where((F.col("kind") == MESSAGE) & begins).select(*_PLACE, "payload")
    return chosen.mapInArrow(decode, from_arrow_schema(TABLES[table].schema))


def _trades_of(batches: Iterator[Arrow]) -> Iterator[Arrow]:
    """Rows of `trades` from messages that have the size of one."""
    schema = TABLES["trades"].schema
    for batch in batches:
        octets = _joined(batch.column("payload"))
        found, trades = valid_trades(octets)
        kept = batch if found.all() else batch.filter(pa.array(found))
        columns = {name: kept.column(name) for name in _PLACE} | trade_columns(trades)
        yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _notices_of(batches: Iterator[Arrow]) -> Iterator[Arrow]:
    """Rows of `notices`."""
    for batch in batches:
        yield _rows("notices", batch, _notice_fields)


def _orders_of(batches: Iterator[Arrow]) -> Iterator[Arrow]:
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
        notice: VenueNotice = decode_notice(payload)
    except BadNotice:
        return None
    match notice:
        case CancelNotice(number, venue, symbol, at):
            return {"kind": "cancel", "venue": venue, "symbol": symbol, "number": number, "noticed_at_ns": at}
        case CorrectionNotice(number, trade, at):
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
        case StatusNotice(venue, status, since):
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


def entered(trades: DataFrame, orders: DataFrame) -> DataFrame:
    """The entry time of each message: of a trade when it was made, of a request when its gateway accepted it."""
    place = ("stripe", "sequence", "token", "source", "acknowledged_at_ns")
    traded = trades.select(*place, F.col("traded_at_ns").alias("entered_at_ns"))
    return traded.unionByName(orders.select(*place, "entered_at_ns"))
