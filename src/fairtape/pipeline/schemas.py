"""Every schema of the pipeline: what the data source gives, and the tables that are made of it.

Times count nanoseconds, prices and quantities billionths, all as BIGINT: Spark has no finer timestamp than a
microsecond, and integers survive every step. What adds up may grow beyond 64 bits and is DECIMAL(38,0). A share stands
beside the two counts that it is made of, so that nothing is lost by dividing. Names are those of `fairtape.client`.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa

Arrow: TypeAlias = Any  # an array, a batch or a schema of pyarrow, which declares no types

MESSAGE: Final = "message"
FRAGMENT: Final = "fragment"  # a part of a long message, which stands with its last number
FORMATION: Final = "formation"  # a change of formation; its payload is the layout, its token and number the first ones
BREAK: Final = "break"  # a change after which numbers may have been used otherwise

PERCENTILES: Final = {
    "p10": 1_000,
    "p50": 5_000,
    "p90": 9_000,
    "p95": 9_500,
    "p99": 9_900,
    "p999": 9_990,
    "p9999": 9_999,
}
"""Columns of a distribution, and of how many of 10,000 values each is the greatest (the nearest rank: a value that
occurred, never one between two)."""

_NAMES: Final = {"venue": pa.string(), "symbol": pa.string(), "account": pa.string(), "client_id": pa.string()}
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

STRETCHES: Final = pa.schema(
    [
        pa.field("task", pa.int32(), nullable=False),
        _STRIPE,
        *_fields("site first end"),
        *_fields("digest segment", pa.string()),
        *_fields("offset sequence"),
        pa.field("previous", pa.binary(), nullable=False),
    ]
)
"""A row for every stretch that a task would read; it begins with the fields of `Stretch`."""

SCHEMAS: Final = {"messages": MESSAGES, "trades": TRADES, "stretches": STRETCHES}
"""What the option `rows` of the data source chooses from."""

_REPLAYED_PLACE: Final = [
    pa.field("stripe", pa.int32(), nullable=False),  # of the edge
    *_fields("site formation token", optional=True),
    pa.field("sequence", pa.int64()),  # none where a message does not say its own
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
"""What the data source gives of a replay port: the columns of MESSAGES and TRADES, and where it stands at the edge.

`site`, `formation`, `token`, `incarnation`, `source_number` and the times of the order are always null, because a
replay port carries no release marks; `source` is null but for opaque payloads, `sequence` for what does not say its
own."""

_ONCE: Final = [_STRIPE, *_fields("sequence token source acknowledged_at_ns commit_at_ns")]
"""Where a message stands in the order, without the site that told it: contents are the same everywhere."""

_NOTICE: Final = [
    pa.field("kind", pa.string(), nullable=False),  # cancel, correction, open, halted
    pa.field("venue", pa.string(), nullable=False),
    pa.field("symbol", pa.string()),
    *_fields("number price quantity traded_at_ns", optional=True),  # of the trade that is meant, and as it really was
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
    """One table: what a row is, and its columns in their order."""

    row: str
    schema: Arrow

    @property
    def columns(self) -> list[str]:
        """Their names."""
        return list(self.schema.names)


def _table(row: str, *fields: Arrow) -> TableSchema:
    return TableSchema(row, pa.schema(list(fields)))


TABLES: Final[dict[str, TableSchema]] = {
    # What was delivered.
    "deliveries": TableSchema("a number of the order at a site, or a change of formation", MESSAGES),
    # What it says.
    "trades": _table("a trade, as its venue first told it", *_ONCE, *_TRADE),
    "notices": _table("what a venue said beside its trades", *_ONCE, *_NOTICE),
    "sales": _table(
        "a trade as it really was, where the first word of it stands; void ones are left out",
        *_ONCE,
        *_TRADE,
        *_fields("number"),  # of the message that said so last
    ),
    "orders": _table("a request of a trader", *_ONCE, *_ORDER),
    "order_events": _table(
        "what a floor makes of a request",
        _STRIPE,
        *_fields("sequence token step"),  # the message that caused it, and the how-manieth it is of its token
        pa.field("event", pa.string(), nullable=False),
        *_fields("order_number", optional=True),  # the place of the order that it happened to
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
        pa.field("notional", _SUM, nullable=True),  # 1e-18; none where it is beyond 38 digits
        pa.field("volume", _SUM, nullable=False),
        pa.field("vwap", pa.int64(), nullable=True),  # 1e-9, rounded toward zero; none where nothing was traded
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
        *_fields(
            "window_ns"
        ),  # what of it remains when every clock erred by its bound: 0, nobody can be shown to be first
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
        "a source at a site: from when a message was entered to its release, in ns",
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
        "the clock of a site, as its releases tell it",
        _STRIPE,
        *_fields("site releases bound_min_ns bound_p50_ns bound_max_ns early_releases steps_back step_max_ns"),
    ),
    "formations": _table(
        "a change of formation",
        _STRIPE,
        *_fields("formation token sequence installed_at_ns sites"),  # how many journals note it
        pa.field("broken", pa.bool_(), nullable=False),
        pa.field("members", pa.list_(pa.int64()), nullable=True),  # none where the layout is another's
        *_fields("resilience plan", optional=True),
    ),
    "outages": _table(
        "a change of formation, with the silence around it",
        _STRIPE,
        *_fields("formation"),
        pa.field("broken", pa.bool_(), nullable=False),
        *_fields("last_token last_at_ns first_token first_at_ns silence_ns", optional=True),
    ),
    # How the ring fared, for those who plan its timing.
    "traces": _table(
        "a record of a site: a token of another, a request, or what came of a source",
        _STRIPE,
        *_fields("site number"),  # records of a site are counted for ever
        pa.field("kind", pa.string(), nullable=False),  # token, request, source
        *_fields("peer formation token"),  # peer: whose turn it was, who was asked, or the source
        *_fields("due_at_ns sent_at_ns came_at_ns complete_at_ns", optional=True),  # none: it did not happen
        *_fields("clock_bound_ns ack_requests message_requests premature copies messages missing"),
    ),
    "links": _table(
        "a site that heard another's acknowledgments; of those that came unasked, the delay in ns",
        _STRIPE,
        *_fields("from_site to_site tokens unasked lost late absent"),
        pa.field("loss", pa.float64(), nullable=False),
        *_fields("clock_bound_max_ns"),
        *_DISTRIBUTION_IF_ANY,
    ),
    "source_links": _table(
        "a source and a site that was to hear it",
        _STRIPE,
        *_fields("source site messages missing"),
        pa.field("loss", pa.float64(), nullable=True),
    ),
    "token_losses": _table(
        "a token, as the sites that waited for it tell",
        _STRIPE,
        *_fields("formation token portal sites lost late requests requests_max messages missing"),
    ),
    "retries": _table("a site that made so many requests for a token", _STRIPE, *_fields("site requests tokens")),
    "requests": _table(
        "a site that asked another; of first requests that were answered, the time until then in ns",
        _STRIPE,
        *_fields("site asked"),
        pa.field("wanted", pa.string(), nullable=False),  # acknowledgment, messages
        *_fields("requests answered"),
        *_DISTRIBUTION_IF_ANY,
    ),
}
"""Every table that `fairtape pipeline run` makes, in the order in which they are made."""
