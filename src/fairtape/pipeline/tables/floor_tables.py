"""Tables of a trading floor: events of orders and committed trades, from a replay of the sequence.

A floor is a pure function of the sequence (`fairtape.exchange.floor`), so a replay has the same books, trades and
balances as every site. One task replays one stripe row by row, and holds no more than the floor itself does. Stripes
without a request to a floor are not replayed.
"""

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_schema

from fairtape.core.effects import FormationChange, Ordered, Span
from fairtape.exchange.floor import Floor
from fairtape.exchange.orders import Side
from fairtape.exchange.outputs import (
    Cancelled,
    Committed,
    Evidence,
    Execution,
    FloorOutput,
    Rejected,
    Replaced,
    Sequenced,
    TentativeFill,
    Voided,
)
from fairtape.pipeline.schemas import BREAK, FORMATION, TABLES, Arrow
from fairtape.ring.membership.layout import decode_formation
from fairtape.wire.blocks import pack_messages
from fairtape.wire.frames import Malformed

RESILIENCE: Final = 1  # N where no formation has it: the default of a deployment
PAYLOAD_MAX: Final = 1 << 10  # bytes: no request to a floor is longer, so longer payloads are left out of the shuffle
BATCH_ROWS: Final = 4_096

Row: TypeAlias = dict[str, Any]
RowMaker: TypeAlias = Callable[[list[FloorOutput], Row], Iterator[Row]]

_COLUMNS: Final = (
    "stripe", "formation", "token", "sequence", "kind", "source", "incarnation", "source_number",
    "acknowledged_at_ns", "payload",
)  # fmt: skip


def order_events(order: DataFrame, orders: DataFrame) -> DataFrame:
    """The events of every request."""
    return _replayed(order, orders, "order_events", _event_rows)


def executions(order: DataFrame, orders: DataFrame) -> DataFrame:
    """The trades that were committed."""
    return _replayed(order, orders, "executions", _execution_rows)


def _replayed(order: DataFrame, orders: DataFrame, table: str, rows: RowMaker) -> DataFrame:
    floors = order.join(F.broadcast(orders.select("stripe").distinct()), "stripe", "left_semi")
    short = F.when(F.length("payload") <= PAYLOAD_MAX, F.col("payload")).alias("payload")
    turns = (~F.col("kind").isin(FORMATION, BREAK)).cast("int")
    chosen = floors.select(*_COLUMNS[:-1], short).repartition("stripe")
    in_order = chosen.sortWithinPartitions("stripe", "sequence", turns, "formation")
    return in_order.mapInArrow(_replay(table, rows), from_arrow_schema(TABLES[table].schema))


def _replay(table: str, rows: RowMaker) -> Callable[[Iterator[Arrow]], Iterator[Arrow]]:
    schema = TABLES[table].schema

    def replay(batches: Iterator[Arrow]) -> Iterator[Arrow]:
        all_rows = (row for batch in batches for row in batch.to_pylist())
        made: list[Row] = []
        for _, of_stripe in groupby(all_rows, key=lambda row: row["stripe"]):
            for outputs, place in _floor(of_stripe):
                made += rows(outputs, place)
                if len(made) >= BATCH_ROWS:
                    yield pa.RecordBatch.from_pylist(made, schema=schema)
                    made = []
        yield pa.RecordBatch.from_pylist(made, schema=schema)

    return replay


def _floor(rows: Iterator[Row]) -> Iterator[tuple[list[FloorOutput], Row]]:
    """The outputs of the floor of one stripe, token by token, with the last row of each token."""
    floor: Floor | None = None
    for (token, turns), group in groupby(rows, key=lambda row: (row["token"], row["kind"] in (FORMATION, BREAK))):
        of_token = list(group)
        floor = floor or Floor(commit_passes=_resilience(of_token[0]))
        if turns:
            for row in of_token:
                yield floor.on_formation(_change(row)), row
        else:
            yield floor.apply(_ordered(token, of_token)), of_token[-1]


def _resilience(row: Row) -> int:
    try:
        return decode_formation(row["payload"] or b"").resilience
    except Malformed:
        return RESILIENCE


def _change(row: Row) -> FormationChange:
    place = row["stripe"], row["formation"], row["token"], row["sequence"]
    return FormationChange(*place, row["kind"] == BREAK, row["payload"] or b"", row["acknowledged_at_ns"])


def _ordered(token: int, rows: list[Row]) -> Ordered:
    first = rows[0]
    spans = tuple(
        Span(
            row["source"],
            row["incarnation"],
            row["source_number"],
            1,
            row["sequence"],
            (pack_messages([row["payload"] or b""]),),
            (1,),
        )
        for row in rows
    )
    at = first["acknowledged_at_ns"]
    return Ordered(first["stripe"], first["formation"], token, first["sequence"], len(rows), at, spans)


def _execution_rows(outputs: list[FloorOutput], place: Row) -> Iterator[Row]:
    for output in outputs:
        if isinstance(output, Committed):
            trade = output.trade._asdict()
            aggressor = Side(trade["aggressor"]).name.lower() if trade["aggressor"] else "auction"
            yield trade | {
                "stripe": place["stripe"],
                "committed_token": output.token,
                "aggressor": aggressor,
                "traded_at_ns": trade["traded_at"],
            }


def _event_rows(outputs: list[FloorOutput], place: Row) -> Iterator[Row]:
    at = {"stripe": place["stripe"], "token": place["token"], "at_ns": place["acknowledged_at_ns"]}
    events = (event for output in outputs for event in _events(output))
    for step, event in enumerate(events):
        yield at | {"step": step} | event


def _events(output: FloorOutput) -> Iterator[Row]:
    match output:
        case Sequenced():
            yield _event("sequenced", output.number, output.number, output.account, output.client_id)
        case Replaced():
            terms = {"price": output.price, "open": output.open, "reason": f"was {output.order_id}"}
            yield _event("replaced", output.number, output.order, output.account, output.client_id) | terms
        case Cancelled():
            terms = {"quantity": output.quantity, "open": output.open, "reason": output.reason}
            yield _event("cancelled", output.number, output.order, output.account, output.client_id) | terms
        case Rejected():
            reason = {"reason": output.reason}
            yield _event("rejected", output.number, None, output.account, output.client_id) | reason
        case TentativeFill(trade):
            yield from _sides("filled", trade)
        case Committed(trade, _):
            yield from _sides("committed", trade)
        case Voided(trade, _):
            yield from _sides("voided", trade)
        case Evidence():
            found = f"{output.field}: expected {output.expected}, found {output.found}"
            yield _event("evidence", output.number, None, None, None) | {"reason": found}
        case _:
            pass  # prints, funds and markets are not events of an order


def _event(event: str, sequence: int, order: int | None, account: str | None, client_id: str | None) -> Row:
    return {
        "event": event,
        "sequence": sequence,
        "order_number": order,
        "account": account,
        "client_id": client_id,
    }


def _sides(event: str, trade: Execution) -> Iterator[Row]:
    """An event of a trade for each of its two orders."""
    later = max(trade.buy_order, trade.sell_order)
    terms = {name: getattr(trade, name) for name in ("symbol", "price", "quantity", "trade_id")}
    yield _event(event, later, trade.buy_order, trade.buyer, trade.buy_client_id) | terms
    yield _event(event, later, trade.sell_order, trade.seller, trade.sell_client_id) | terms
