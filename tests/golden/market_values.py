"""Fixed values of the market: orders, trades and notices as messages, and what traders and clients are sent."""

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np

from fairtape.exchange import rules
from fairtape.exchange.orders import (
    Action,
    Cancel,
    Control,
    FloorMessage,
    Funding,
    NewOrder,
    OpenMarket,
    OrderType,
    Pulse,
    Replace,
    SelfTrade,
    Side,
    TimeInForce,
    TradeReport,
    encode,
)
from fairtape.exchange.outputs import Execution
from fairtape.gateway.core.events import EventKind, OrderEvent, RequestKind
from fairtape.gateway.servers.native_messages import encode_line, event_fields, request_fields
from fairtape.market.notices import CancelNotice, CorrectionNotice, Status, StatusNotice, VenueNotice, encode_notice
from fairtape.market.trades import PublishedTrade, TradeFlag, records
from fairtape.market.trades import encode as encode_trade
from fairtape.tape.batches import PLACE_DTYPE, TradeBatch
from fairtape.tape.serialization import KINDS, encode_batch, record_fields

AT = 1_750_000_000_123_456_789
TRADES = {
    "of a listed venue": PublishedTrade(1, "IBM", 101_250_000_000, 5_000_000_000, AT, 77, int(TradeFlag.BOUGHT)),
    "of another venue, below zero": PublishedTrade(0, "POWER", -1, 1, AT, (1 << 64) - 1, int(TradeFlag.SOLD), "VENUE"),
    "without a venue": PublishedTrade(0, "X", 0, 0, 0),
}
NOTICES: dict[str, VenueNotice] = {
    "cancel": CancelNotice(7, "XNYS", "IBM", AT),
    "correction": CorrectionNotice(3, TRADES["of a listed venue"], AT),
    "venue is halted": StatusNotice("XNYS", Status.HALTED, AT),
}
RULES: dict[str, rules.Rule] = {
    "continuous": rules.Continuous(pricing=rules.Pricing.MIDPOINT, rounding=rules.Rounding.EVEN, step=5),
    "call auction": rules.CallAuction(candidates=rules.Candidates.BEYOND, reference=100),
    "batch auction": rules.BatchAuction(period=10**8, rounding=rules.Rounding.UP),
    "second price": rules.SecondPrice(),
    "dutch clock": rules.DutchClock(start=100, decrement=1, step_period=10**9, rewind=2),
}
LIMIT = NewOrder(101, 9, "ALICE", "order-1", "IBM", Side.BUY, 5 * 10**9, 101 * 10**9, post_only=True, entered_at=AT)
STOP = LIMIT._replace(
    side=Side.SELL, price=0, stop_price=99 * 10**9, order_type=OrderType.STOP, time_in_force=TimeInForce.FOK,
    post_only=False, self_trade=SelfTrade.DECREMENT,
)  # fmt: skip
CANCEL = Cancel(101, 10, "ALICE", "order-1", AT)
REPLACE = Replace(101, 11, "ALICE", "order-1", "order-2", 4 * 10**9, 100 * 10**9, AT)
TRADE = Execution(1, 40, "IBM", 101 * 10**9, 10**9, 17, 18, "ALICE", "BOB", "order-1", "b", int(Side.SELL), AT)


def orders() -> Iterator[tuple[str, bytes]]:
    messages: dict[str, FloorMessage] = {
        "limit order": LIMIT,
        "stop order": STOP,
        "cancel": CANCEL,
        "replace": REPLACE,
        "funding with cash": Funding(101, 3, "ALICE", "", 10**12),
        "funding with shares": Funding(101, 4, "ALICE", "IBM", -(10**9)),
        "pulse": Pulse(),
        "trade report": TradeReport(7, 40, 2, bytes(range(32))),
    }
    messages |= {
        f"open market, {name}": OpenMarket(101, 1, "IBM", rule, 10, 100, 1, 99) for name, rule in RULES.items()
    }
    messages |= {f"control with action {each:d}": Control(101, 2, "IBM", each) for each in Action}
    yield from ((name, encode(message)) for name, message in messages.items())


def trades() -> Iterator[tuple[str, bytes]]:
    yield from ((f"trade {name}", encode_trade(trade)) for name, trade in TRADES.items())
    yield from ((f"notice {name}", encode_notice(notice)) for name, notice in NOTICES.items())
    yield "trade in the digest of a token", TRADE.to_bytes()


def native() -> Iterator[tuple[str, str]]:
    for name, request in (("limit order", LIMIT), ("stop order", STOP), ("cancel", CANCEL), ("replace", REPLACE)):
        yield name, encode_line(request_fields(request)).decode()
    event = OrderEvent(
        8, 5, EventKind.FILLED, "ALICE", "order-2", 17, "order-1", "IBM", Side.SELL, OrderType.STOP_LIMIT
    )
    event = event._replace(
        price=10**9, quantity=5 * 10**9, spent=10**30, asked=RequestKind.REPLACE, reason="why", at=AT
    )
    for kind in EventKind:
        yield f"event {kind.value}", encode_line(event_fields(event._replace(kind=kind))).decode()


def client() -> Iterator[tuple[str, bytes | str]]:
    published = b"".join(map(encode_trade, TRADES.values()))
    places = np.zeros(len(TRADES), PLACE_DTYPE)
    for number, name in enumerate(PLACE_DTYPE.names or (), 1):
        places[name] = [number, 1, -1 if name.endswith("_at") else number << 8]
    yield "bundle", encode_batch(TradeBatch(records(published), places), AT)
    given: dict[str, Any] = {"payload": bytes(range(9)), "status": Status.OPEN, "symbol": "IBM", "venue": "XNYS"}
    given |= {"late": True, "commit_at": None, "acknowledged_at": AT}
    for kind, record in KINDS.items():
        values = {each.name: given.get(each.name, place) for place, each in enumerate(fields(record), 1)}
        yield kind, json.dumps(record_fields(record(**values)), separators=(",", ":"))
