"""Every schema of the pipeline: the rows of the data source, and the tables that are made of them.

Times are nanoseconds, prices and quantities billionths, all as BIGINT: Spark's timestamps end at the microsecond, and
integers stay exact. Sums may need more than 64 bits and are DECIMAL(38,0). A share stands beside the two counts that it
is the quotient of. Names are those of `fairtape.client`.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa

Arrow: TypeAlias = Any  # an array, a batch or a schema of pyarrow, which declares no types

MESSAGE: Final = "message"
FRAGMENT: Final = "fragment"  # a part of a long message; the message has the number of its last part
FORMATION: Final = "formation"  # a change of formation: the payload is the layout, token and number are the first ones
BREAK: Final = "break"  # a change after which numbers may have been used for other messages

PERCENTILES: Final = {
    "p10": 1_000,
    "p50": 5_000,
    "p90": 9_000,
    "p95": 9_500,
    "p99": 9_900,
    "p999": 9_990,
    "p9999": 9_999,
}
"""Columns of a distribution, and of how many of 10,000 values each is the greatest (nearest rank: a measured value)."""

_SUM: Final = pa.decimal128(38, 0)


def _fields(names: str, kind: Arrow = None, *, optional: bool = False) -> list[Arrow]:
    """Fields of these names: BIGINT unless a kind is given."""
    return [pa.field(name, kind or pa.int64(), nullable=optional) for name in names.split()]


_PLACE: Final = [
    pa.field("stripe", pa.int32(), nullable=False),
    pa.field("site", pa.int64(), nullable=False),  # whose journal it is
    *_fields("formation token sequence"),
]
_SOURCE: Final = ("source", "incarnation", "source_number")
_TIMES: Final = [
    pa.field("acknowledged_at_ns", pa.int64(), nullable=False),  # of a formation: when it was to start
    pa.field("commit_at_ns", pa.int64()),
    pa.field("released_at_ns", pa.int64()),
    pa.field("late", pa.bool_()),
    pa.field("clock_bound_ns", pa.int64()),
]
_TRADE: Final = [
    *_fields("venue symbol", pa.string()),
    *_fields("price quantity traded_at_ns"),  # 1e-9, 1e-9
    pa.field("trade_id", pa.int64(), nullable=False),  # the venue's 64 bits: below zero stands for 2^63 and more
    pa.field("trade_flags", pa.int32(), nullable=False),
]
_STRIPE: Final = pa.field("stripe", pa.int32(), nullable=False)
_MEASURES: Final = ("count", "least", *PERCENTILES, "most")
_DISTRIBUTION: Final = _fields(" ".join(_MEASURES))
_DISTRIBUTION_IF_ANY: Final = _fields(" ".join(_MEASURES), optional=True)

MESSAGES: Final = pa.schema(
    [
        *_PLACE,
        pa.field("kind", pa.string(), nullable=False),
        *(pa.field(name, pa.int64()) for name in _SOURCE),
        *_TIMES,
        pa.field("payload", pa.binary()),
    ]
)
"""A row for every number and for every change of formation."""

TRADES: Final = pa.schema([*_PLACE, *_fields(" ".join(_SOURCE)), *_TIMES, *_TRADE])
"""A row for every message that is a trade."""

OFFSET_RANGES: Final = pa.schema(
    [
        pa.field("task", pa.int32(), nullable=False),
        _STRIPE,
        *_fields("site first end"),
        *_fields("digest segment", pa.string()),
        *_fields("offset sequence"),
        pa.field("previous", pa.binary(), nullable=False),
    ]
)
"""A row for every offset range that a task would read: the task, and the fields of `OffsetRange`."""

SCHEMAS: Final = {"messages": MESSAGES, "trades": TRADES, "offset_ranges": OFFSET_RANGES}
"""The values of the option `rows` of the data source."""

_REPLAYED_PLACE: Final = [
    pa.field("stripe", pa.int32(), nullable=False),  # of the edge
    *_fields("site formation token", optional=True),
    pa.field("sequence", pa.int64()),  # null where a message does not carry its own
]
_REPLAYED_NUMBER: Final = [pa.field("session", pa.string(), nullable=False), *_fields("stripe_number")]
_ABSENT: Final = [pa.field(field.name, field.type) for field in _TIMES]

REPLAYED: Final = {
    "messages": pa.schema(
        [
            *_REPLAYED_PLACE,
            pa.field("kind", pa.string(), nullable=False),  # trade, correction, broken, opaque, mark, directory
            *_fields(" ".join(_SOURCE), optional=True),
            *_ABSENT,
            pa.field("payload", pa.binary(), nullable=False),  # as it is at the edge
            *_REPLAYED_NUMBER,
        ]
    ),
    "trades": pa.schema(
        [*_REPLAYED_PLACE, *_fields(" ".join(_SOURCE), optional=True), *_ABSENT, *_TRADE, *_REPLAYED_NUMBER]
    ),
}
"""Rows of a replay port: the columns of MESSAGES and TRADES, and the place at the edge.

`site`, `formation`, `token`, `incarnation`, `source_number` and the times of the order are always null, because a
replay port has no release marks. `source` is null except for opaque payloads, `sequence` where a message does not carry
its own."""

_ONCE: Final = [_STRIPE, *_fields("sequence token source acknowledged_at_ns commit_at_ns")]
"""The place of a message in the order, without a site: contents are the same at all sites."""

_NOTICE: Final = [
    pa.field("kind", pa.string(), nullable=False),  # cancel, correction, open, halted
    pa.field("venue", pa.string(), nullable=False),
    pa.field("symbol", pa.string()),
    *_fields("number price quantity traded_at_ns", optional=True),  # of the trade that is meant, and its correct values
    *_fields("noticed_at_ns"),
]
_ORDER: Final = [
    pa.field("kind", pa.string(), nullable=False),  # new, cancel, replace
    *_fields("gateway gateway_number"),
    *_fields("account client_id", pa.string()),
    *_fields("order_id symbol side order_type time_in_force self_trade", pa.string(), optional=True),
    pa.field("post_only", pa.bool_()),
    *_fields("quantity price stop_price", optional=True),
    *_fields("entered_at_ns"),
]
_BAR: Final = [
    pa.field("symbol", pa.string(), nullable=False),
    *_fields("period_at_ns open high low close"),
    pa.field("volume", _SUM, nullable=False),
    *_fields("trades"),
]


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One table: what a row is, and its columns."""

    row: str
    schema: Arrow

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return list(self.schema.names)


def _table(row: str, *fields: Arrow) -> TableSchema:
    return TableSchema(row, pa.schema(list(fields)))


TABLES: Final[dict[str, TableSchema]] = {
    # What was delivered.
    "deliveries": TableSchema("a number of the order at a site, or a change of formation", MESSAGES),
    # What it says.
    "trades": _table("a trade as its venue first reported it", *_ONCE, *_TRADE),
    "notices": _table("a notice of a venue: cancel, correction, open, halted", *_ONCE, *_NOTICE),
    "sales": _table(
        "a trade with its corrections, at the place of its first report; cancelled ones are left out",
        *_ONCE,
        *_TRADE,
        *_fields("number"),  # of the message that said so last
    ),
    "orders": _table("a request of a trader", *_ONCE, *_ORDER),
    "order_events": _table(
        "an event on a trading floor that a request caused",
        _STRIPE,
        *_fields("sequence token step"),  # the message that caused it, and the index of the event within its token
        pa.field("event", pa.string(), nullable=False),
        *_fields("order_number", optional=True),  # the place of the order that it concerns
        *_fields("account client_id symbol", pa.string(), optional=True),
        *_fields("price quantity open trade_id", optional=True),
        *_fields("at_ns"),
        pa.field("reason", pa.string()),
    ),
    "executions": _table(
        "a committed trade of a floor",
        _STRIPE,
        *_fields("trade_id token committed_token"),
        pa.field("symbol", pa.string(), nullable=False),
        *_fields("price quantity buy_order sell_order"),
        *_fields("buyer seller buy_client_id sell_client_id", pa.string()),
        pa.field("aggressor", pa.string(), nullable=False),  # buy, sell, or auction
        *_fields("traded_at_ns"),
    ),
    # What was traded.
    "bars_1s": _table("a second of a symbol in which it traded", *_BAR),
    "bars_1m": _table("a minute of a symbol in which it traded", *_BAR),
    "bars_1d": _table("a day (UTC) of a symbol on which it traded", *_BAR),
    "vwap": _table(
        "a day (UTC) of a symbol: what was paid, and for how much",
        pa.field("symbol", pa.string(), nullable=False),
        *_fields("period_at_ns"),
        pa.field("notional", _SUM, nullable=True),  # 1e-18; null beyond 38 digits
        pa.field("volume", _SUM, nullable=False),
        pa.field("vwap", pa.int64(), nullable=True),  # 1e-9, rounded toward zero; null where the volume is 0
        *_fields("trades"),
    ),
    "last_sales": _table("the last sale of a symbol", *_ONCE, *_TRADE, *_fields("number")),
    "volumes": _table(
        "a day (UTC) of a symbol at a venue, or (venue is *) at all of them",
        pa.field("symbol", pa.string(), nullable=False),
        *_fields("period_at_ns"),
        pa.field("venue", pa.string(), nullable=False),
        pa.field("volume", _SUM, nullable=False),
        *_fields("trades"),
    ),
    # How fair it was.
    "releases": _table(
        "a token at a site",
        _STRIPE,
        *_fields("site formation token sequence messages acknowledged_at_ns commit_at_ns released_at_ns"),
        pa.field("late", pa.bool_(), nullable=False),
        *_fields("clock_bound_ns hold_ns"),  # from its acknowledgment to its release
    ),
    "spreads": _table(
        "a token at all sites",
        _STRIPE,
        *_fields("formation token sequence messages sites acknowledged_at_ns commit_at_ns"),
        *_fields("first_released_at_ns last_released_at_ns"),
        *_fields("spread_ns"),  # between the first and the last release
        *_fields("window_ns"),  # what remains of it when every clock errs by its bound; 0: no site was provably first
        *_fields("late_sites"),
    ),
    "fairness": _table(
        "a stripe",
        _STRIPE,
        *_fields("sites messages deliveries late_deliveries unlike_messages"),
        *_fields("shared_messages window_0_messages"),
        *_fields("entered_messages overtaken_messages pairs pairs_in_order"),
        *_fields(
            "late_fraction outbound_unfairness window_0_share inbound_unfairness pairwise_fairness portal_equity",
            pa.float64(),
            optional=True,
        ),
    ),
    "spread_distribution": _table(
        "a measure of a stripe over its messages that several sites released, in ns",
        _STRIPE,
        pa.field("measure", pa.string(), nullable=False),  # spread, window
        *_DISTRIBUTION,
    ),
    "latency": _table(
        "a source at a site: from the entry of a message to its release, in ns",
        _STRIPE,
        *_fields("site source"),
        *_DISTRIBUTION,
    ),
    "hold": _table(
        "a site: from a token's acknowledgment to its release, per message, in ns",
        _STRIPE,
        *_fields("site"),
        *_DISTRIBUTION,
    ),
    "delays": _table(
        "a source and the site through which its messages entered the order: from their entry to there, in ns",
        _STRIPE,
        *_fields("source portal"),
        *_DISTRIBUTION,
    ),
    "lateness": _table(
        "a site", _STRIPE, *_fields("site deliveries late"), pa.field("late_fraction", pa.float64(), nullable=False)
    ),
    "pairs": _table(
        "two sources: messages of the second that were entered directly after one of the first, at another instant",
        _STRIPE,
        *_fields("earlier_source later_source pairs in_order"),
    ),
    "portals": _table(
        "a site as the portal of a source", _STRIPE, *_fields("portal source tokens messages source_messages")
    ),
    "clocks": _table(
        "the clock of a site, according to its releases",
        _STRIPE,
        *_fields("site releases bound_min_ns bound_p50_ns bound_max_ns early_releases steps_back step_max_ns"),
    ),
    "formations": _table(
        "a change of formation",
        _STRIPE,
        *_fields("formation token sequence installed_at_ns sites"),  # in how many journals it is
        pa.field("broken", pa.bool_(), nullable=False),
        pa.field("members", pa.list_(pa.int64()), nullable=True),  # null where the layout cannot be read
        *_fields("resilience plan", optional=True),
    ),
    "outages": _table(
        "a change of formation, with the pause around it",
        _STRIPE,
        *_fields("formation"),
        pa.field("broken", pa.bool_(), nullable=False),
        *_fields("last_token last_at_ns first_token first_at_ns silence_ns", optional=True),
    ),
    # Loss and delay in the ring, for planning its timing.
    "traces": _table(
        "a record of a site: a token of another site, a request, or counts of a source",
        _STRIPE,
        *_fields("site number"),  # records of a site are numbered and numbers are never used again
        pa.field("kind", pa.string(), nullable=False),  # token, request, source
        *_fields("peer formation token"),  # peer: the token site, the site that was asked, or the source
        *_fields("due_at_ns sent_at_ns came_at_ns complete_at_ns", optional=True),  # null: it did not happen
        *_fields("clock_bound_ns ack_requests message_requests premature copies messages missing"),
    ),
    "links": _table(
        "a link between two sites, one way: losses, and the delay in ns of acknowledgments that came without a request",
        _STRIPE,
        *_fields("from_site to_site tokens unasked lost late absent"),
        pa.field("loss", pa.float64(), nullable=False),
        *_fields("clock_bound_max_ns"),
        *_DISTRIBUTION_IF_ANY,
    ),
    "source_links": _table(
        "a link from a source to a site",
        _STRIPE,
        *_fields("source site messages missing"),
        pa.field("loss", pa.float64(), nullable=True),
    ),
    "token_losses": _table(
        "a token, according to the sites that waited for it",
        _STRIPE,
        *_fields("formation token portal sites lost late requests requests_max messages missing"),
    ),
    "retries": _table(
        "a site and a number of requests: how many tokens took that many", _STRIPE, *_fields("site requests tokens")
    ),
    "requests": _table(
        "a site that sent requests to another; for first requests that were answered, the time to the answer in ns",
        _STRIPE,
        *_fields("site asked"),
        pa.field("wanted", pa.string(), nullable=False),  # acknowledgment, messages
        *_fields("requests answered"),
        *_DISTRIBUTION_IF_ANY,
    ),
}
"""Every table that `fairtape pipeline run` makes, in this order."""
