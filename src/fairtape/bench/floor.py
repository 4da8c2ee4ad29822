"""Orders per second of the matching engine and of the whole floor, beside other Python engines.

All engines apply one flow: 45 % cancels, 45 % passive orders, 10 % aggressive orders, around a price that follows a
random walk. All must make the same trades, or the comparison is invalid. The engines run in turn. Each result is the
best of its rounds in processor time, so that other programs of the machine do not count.
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from random import Random
from time import process_time_ns
from typing import Any, Final, NamedTuple, TypeAlias

from fairtape.bench.results import Results, Step
from fairtape.core.effects import Ordered, Span
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.exchange.book import BUYS, SELLS, Order
from fairtape.exchange.floor import Floor
from fairtape.exchange.market import Market
from fairtape.exchange.orders import CASH, Cancel, Funding, NewOrder, OpenMarket, Side, encode
from fairtape.exchange.rules import Continuous
from fairtape.market.prices import FIXED_MAX, ONE, Price, Quantity
from fairtape.wire.blocks import pack_messages

ORDERS: Final = 200_000
ROUNDS: Final = 3
OPEN_MAX: Final = 5_000  # open orders before the flow cancels one
SLOW_ORDERS: Final = 2_000  # of the flow, for a peer that needs a millisecond per order
TICK: Final = ONE // 100
ACCOUNTS: Final = 100
TOKEN_ORDERS: Final = 250  # of one token of 10 ms
BLOCK_ORDERS: Final = 10
OPERATOR: Final = 1
GATEWAY: Final = 2
NONE: Final = -1

_MIDDLE: Final = 10_000  # ticks
_CANCELS: Final = 0.45
_PASSIVE: Final = 0.9
_SPREAD: Final = 0.15  # 1 / mean distance from the middle, in ticks
_REACH: Final = 8  # how far an aggressive order crosses the middle, in ticks


class FlowEvent(NamedTuple):
    """One step of the flow: a new order, or the cancel of an earlier one."""

    cancels: int  # the step that entered the order to cancel; NONE: a new order
    buys: bool
    price: Price  # in units of 1e-9, as the quantity: all engines get the same integers
    quantity: Quantity


Rate: TypeAlias = tuple[float, int]
"""Steps per second, and the number of trades."""

Engine: TypeAlias = Callable[[Sequence[FlowEvent]], Rate]


def flow(count: int, seed: int = 1) -> list[FlowEvent]:
    """Orders and cancels. Equal seeds give equal flows."""
    chance = Random(seed)  # noqa: S311 - a benchmark
    middle, open_orders, events = _MIDDLE, list[int](), list[FlowEvent]()
    for number in range(count):
        draw = chance.random()
        if open_orders and (draw < _CANCELS or len(open_orders) > OPEN_MAX):
            place = chance.randrange(len(open_orders))
            open_orders[place], open_orders[-1] = open_orders[-1], open_orders[place]
            events.append(FlowEvent(open_orders.pop(), buys=False, price=0, quantity=0))
            continue
        buys, quantity = chance.random() < 0.5, 100 * chance.randrange(1, 10)
        distance = 1 + int(chance.expovariate(_SPREAD)) if draw < _PASSIVE else -_REACH
        middle += chance.choice((-1, 0, 1)) if draw >= _PASSIVE else 0
        price = middle - distance if buys else middle + distance
        events.append(FlowEvent(NONE, buys, price * TICK, quantity * ONE))
        open_orders.append(number)
    return events


def run_engine(events: Sequence[FlowEvent]) -> Rate:
    """The continuous matching engine alone."""
    market = Market(OpenMarket(OPERATOR, 1, "XYZ", Continuous(), TICK, ONE))
    enter, cancel, reductions, trades = market.enter, market.cancel, market.reductions, 0
    orders: dict[int, Order] = {}
    began = process_time_ns()
    for number, (cancels, buys, price, quantity) in enumerate(events):
        if cancels >= 0:
            order = orders.pop(cancels)
            if order.queue is not None:
                cancel(order)
                reductions.clear()
        else:
            order = orders[number] = Order(number, number, BUYS if buys else SELLS, price, quantity)
            trades += len(enter(order))
    return _rate(events, began), trades


def run_floor(events: Sequence[FlowEvent]) -> Rate:
    """The whole floor: decode, reserve funds, match, commit and settle."""
    tokens = _tokens(events)
    floor = Floor(commit_passes=3)
    floor.apply(tokens[0])
    began = process_time_ns()
    for ordered in tokens[1:]:
        floor.apply(ordered)
    rate = _rate(events, began)
    assert not floor.ledger.imbalance()
    return rate, floor.trade_count


def _rate(events: Sequence[FlowEvent], began: int) -> float:
    return len(events) * SECOND / max(process_time_ns() - began, 1)


def _tokens(events: Sequence[FlowEvent]) -> list[Ordered]:
    """The flow as a ring delivers it: an opening token, then tokens of `TOKEN_ORDERS` requests."""
    opening = [encode(OpenMarket(OPERATOR, 1, "XYZ", Continuous(), TICK, ONE))]
    for number in range(2 * ACCOUNTS):
        asset, account = (CASH, "XYZ")[number % 2], f"account{number // 2}"
        opening.append(encode(Funding(OPERATOR, number + 2, account, asset, FIXED_MAX // 2)))
    tokens, sequence = [_token(1, 1, OPERATOR, opening)], 1 + len(opening)
    payloads = [_payload(number, event) for number, event in enumerate(events)]
    for first in range(0, len(payloads), TOKEN_ORDERS):
        batch = payloads[first : first + TOKEN_ORDERS]
        tokens.append(_token(len(tokens) + 1, sequence, GATEWAY, batch))
        sequence += len(batch)
    return tokens


def _payload(number: int, event: FlowEvent) -> bytes:
    """Accounts alternate, so that few orders meet an order of the same account."""
    if event.cancels >= 0:
        account = f"account{event.cancels % ACCOUNTS}"
        return encode(Cancel(GATEWAY, number + 1, account, str(event.cancels)))
    side, account = Side.BUY if event.buys else Side.SELL, f"account{number % ACCOUNTS}"
    return encode(NewOrder(GATEWAY, number + 1, account, str(number), "XYZ", side, event.quantity, event.price))


def _token(token: int, sequence: int, source: int, payloads: Sequence[bytes]) -> Ordered:
    spans, number = [], sequence
    for first in range(0, len(payloads), BLOCK_ORDERS):
        block = payloads[first : first + BLOCK_ORDERS]
        spans.append(Span(source, 1, number, len(block), number, (pack_messages(block),), (len(block),)))
        number += len(block)
    return Ordered(0, 1, token, sequence, len(payloads), token * 10 * MILLISECOND, tuple(spans))


# Peers: pure Python packages that match orders by price and time. Each runs if it is installed.


def run_akhil4n(events: Sequence[FlowEvent]) -> Rate:
    """akhil4n-orderbook, with integer prices, which are faster than the decimals of its documentation."""
    peer: Any = import_module("orderbook")
    book, ids = peer.OrderBook(), dict[int, str]()
    began = process_time_ns()
    for number, (cancels, buys, price, quantity) in enumerate(events):
        if cancels >= 0:
            book.cancel_order(ids[cancels])
        else:
            order = peer.Order(peer.OrderSide.BID if buys else peer.OrderSide.ASK, price, quantity)
            ids[number] = order.order_id
            book.add_limit_order(order)
    return _rate(events, began), len(book.trade_log)


def run_order_matching(events: Sequence[FlowEvent]) -> Rate:
    """order-matching, one order at a time."""
    engine_module: Any = import_module("order_matching.matching_engine")
    order_module: Any = import_module("order_matching.order")
    orders_module: Any = import_module("order_matching.orders")
    side: Any = import_module("order_matching.enums").Side
    import_module("loguru").logger.disable("order_matching")  # it logs every order
    at = datetime(2026, 1, 1)  # noqa: DTZ001 - the package expects naive times
    engine, trades = engine_module.MatchingEngine(seed=1), 0
    events = events[:SLOW_ORDERS]
    began = process_time_ns()
    for number, (cancels, buys, price, quantity) in enumerate(events):
        if cancels >= 0:
            with suppress(ValueError):  # the order is filled
                engine.cancel_order(order_id=str(cancels))
            continue
        order = order_module.LimitOrder(
            side=side.BUY if buys else side.SELL,
            price=float(price),
            size=float(quantity),
            timestamp=at,
            order_id=str(number),
            trader_id=str(number),
        )
        engine.place(orders=orders_module.Orders([order]))
        trades += len(engine.match(timestamp=at).trades)
    return _rate(events, began), trades


PEERS: Final[dict[str, tuple[str, Engine]]] = {
    "akhil4n-orderbook": ("orderbook", run_akhil4n),
    "order-matching": ("order_matching.matching_engine", run_order_matching),
}


def measure_engines(*, orders: int = ORDERS, rounds: int = ROUNDS, step: Step = lambda _: None) -> Results:
    """The best rate of each engine, and the ratio to the fastest installed peer."""
    events = flow(orders)
    peers = {name: run for name, (module, run) in PEERS.items() if _is_installed(module)}
    engines: dict[str, Engine] = {"engine": run_engine, **peers, "floor": run_floor}
    best: dict[str, Rate] = {}
    for number in range(1, rounds + 1):
        for name, run in engines.items():
            step(f"round {number} of {rounds}: {name}")
            gc.collect()
            best[name] = max(best.get(name, (0.0, 0)), run(events))
    results: Results = {
        "orders": orders,
        "rounds": rounds,
        "orders_per_s": round(best["engine"][0]),
        "trades": best["engine"][1],
        "floor_orders_per_s": round(best["floor"][0]),
    }
    return results | _peer_results(best)


def _peer_results(best: dict[str, Rate]) -> Results:
    """The fastest peer, and whether it made the same trades."""
    peers = {name: rate for name, (rate, _) in best.items() if name in PEERS}
    if not peers:
        return {"peer": "none is installed: see the extra `peers`"}
    peer = max(peers, key=lambda name: peers[name])
    results: Results = {f"peer_{name}_per_s": round(rate) for name, rate in peers.items()}
    return results | {
        "peer": peer,
        "peer_orders_per_s": round(peers[peer]),
        "peer_same_trades": best[peer][1] == best["engine"][1],
        "ratio": round(best["engine"][0] / peers[peer], 2),
    }


def _is_installed(module: str) -> bool:
    try:
        import_module(module)
    except ImportError:
        return False
    return True
