"""`fairtape bench floor`: the engine beside its peers, FIX beside simplefix, and settlement to SQLite.

Engines: all apply one flow: 45 % cancels, 45 % passive orders, 10 % aggressive orders, around a price that follows a
random walk. All must make the same trades, or the comparison is invalid. The engines run in turn. Each result is the
best of its rounds in processor time, so that other programs of the machine do not count.

FIX: our reader and `simplefix` alternate on one file of order entry (orders, cancels, reports), in pieces of the same
size. Both parse the messages and return the type and the ClOrdID of each, which must be equal. Ours also checks body
length, check sum and field order. Time is processor time; results are medians of the rounds.

Settlement: every token makes and commits trades between a hundred accounts. The floor computes them outside of the
measured time. Measured are the bookkeeper and the store, from the outputs of the floor to durable rows. Time is wall
time, because the wait for the disk is part of it. Each token is one transaction, as in a live market.
"""

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from pathlib import Path
from random import Random
from statistics import median
from time import process_time_ns
from typing import Any, Final, NamedTuple, TypeAlias

from fairtape.bench.results import Results, Step
from fairtape.core.effects import Ordered, Span
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND, Duration
from fairtape.exchange.book import BUYS, SELLS, Order
from fairtape.exchange.floor import Floor
from fairtape.exchange.ledger import Bookkeeper
from fairtape.exchange.market import Market
from fairtape.exchange.orders import CASH, Cancel, Funding, NewOrder, OpenMarket, Side, encode
from fairtape.exchange.rules import Continuous
from fairtape.formats.fix.codec import FixStream
from fairtape.formats.fix.order_messages import (
    ExecType,
    ExecutionReport,
    FixSide,
    FixTimeInForce,
    NewOrderSingle,
    OrderCancelRequest,
    OrderEntry,
    OrdStatus,
    OrdType,
    write,
)
from fairtape.gateway.session.fix_session import compose, header
from fairtape.market.prices import FIXED_MAX, ONE, Price, Quantity
from fairtape.storage.ledger_tables import LedgerStore
from fairtape.wire.blocks import pack_messages

ORDERS: Final = 200_000
ROUNDS: Final = 3
TRADES: Final = 40_000
FIX_MESSAGES: Final = 6_000
FIX_ROUNDS: Final = 5
ACCOUNTS: Final = 100
BLOCK_ORDERS: Final = 10
OPERATOR: Final = 1
GATEWAY: Final = 2

ORDERS_PER_S_GOAL: Final = 150_000
RATIO_GOAL: Final = 1.2
FIX_RATIO_GOAL: Final = 10
SETTLED_PER_S_GOAL: Final = 20_000

_GOALS: Final = {
    "orders_per_s": (ORDERS_PER_S_GOAL, "orders/s of the engine"),
    "ratio": (RATIO_GOAL, "times the fastest peer"),
    "fix_ratio": (FIX_RATIO_GOAL, "times simplefix"),
    "settled_trades_per_s": (SETTLED_PER_S_GOAL, "trades/s settled"),
}


def measure_floor(
    *, orders: int = ORDERS, rounds: int = ROUNDS, trades: int = TRADES, step: Step = lambda _: None
) -> Results:
    """All results, with the reasons why they are invalid and the goals that they miss."""
    results = measure_engines(orders=orders, rounds=rounds, step=step)
    step("FIX beside simplefix")
    try:
        results |= {name: round(value, 2) for name, value in measure_fix().items()}
    except UserError as error:
        results["fix_peer"] = str(error)
    for number in range(1, rounds + 1):
        step(f"round {number} of {rounds}: the ledger")
        settled = measure_settling(trades=trades)
        if _number(settled, "settled_trades_per_s") > _number(results, "settled_trades_per_s"):
            results |= settled
    problems = [] if results["settled_sound"] else ["the ledger in the database differs from that of the floor"]
    if results.get("peer_same_trades") is False:
        problems.append(f"{results['peer']} made other trades from the same orders, so the ratio is invalid")
    return results | {"problems": problems, "shortfalls": _shortfalls(results)}


def _shortfalls(results: Results) -> list[str]:
    return [
        f"{_number(results, name):,} {label}; the goal is {goal:,}"
        for name, (goal, label) in _GOALS.items()
        if name in results and _number(results, name) < goal
    ]


def _number(results: Results, name: str) -> float:
    value = results.get(name, 0)
    return value if isinstance(value, int | float) else 0


def _token(token: int, sequence: int, source: int, payloads: Sequence[bytes], period: Duration) -> Ordered:
    """These requests as a ring delivers them, in blocks of `BLOCK_ORDERS`; tokens are a period apart."""
    spans, number = [], sequence
    for first in range(0, len(payloads), BLOCK_ORDERS):
        block = payloads[first : first + BLOCK_ORDERS]
        spans.append(Span(source, 1, number, len(block), number, (pack_messages(block),), (len(block),)))
        number += len(block)
    return Ordered(0, 1, token, sequence, len(payloads), token * period, tuple(spans))


# Engines.

OPEN_MAX: Final = 5_000  # open orders before the flow cancels one
SLOW_ORDERS: Final = 2_000  # of the flow, for a peer that needs a millisecond per order
TICK: Final = ONE // 100
TOKEN_ORDERS: Final = 250  # of one token
TOKEN_PERIOD: Final = 10 * MILLISECOND
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
    tokens = _engine_tokens(events)
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


def _engine_tokens(events: Sequence[FlowEvent]) -> list[Ordered]:
    """The flow as a ring delivers it: an opening token, then tokens of `TOKEN_ORDERS` requests."""
    opening = [encode(OpenMarket(OPERATOR, 1, "XYZ", Continuous(), TICK, ONE))]
    for number in range(2 * ACCOUNTS):
        asset, account = (CASH, "XYZ")[number % 2], f"account{number // 2}"
        opening.append(encode(Funding(OPERATOR, number + 2, account, asset, FIXED_MAX // 2)))
    tokens, sequence = [_token(1, 1, OPERATOR, opening, TOKEN_PERIOD)], 1 + len(opening)
    payloads = [_payload(number, event) for number, event in enumerate(events)]
    for first in range(0, len(payloads), TOKEN_ORDERS):
        batch = payloads[first : first + TOKEN_ORDERS]
        tokens.append(_token(len(tokens) + 1, sequence, GATEWAY, batch, TOKEN_PERIOD))
        sequence += len(batch)
    return tokens


def _payload(number: int, event: FlowEvent) -> bytes:
    """Accounts alternate, so that few orders meet an order of the same account."""
    if event.cancels >= 0:
        account = f"account{event.cancels % ACCOUNTS}"
        return encode(Cancel(GATEWAY, number + 1, account, str(event.cancels)))
    side, account = Side.BUY if event.buys else Side.SELL, f"account{number % ACCOUNTS}"
    return encode(NewOrder(GATEWAY, number + 1, account, str(number), "XYZ", side, event.quantity, event.price))


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


# FIX.

FIX_PIECE: Final = 4_096  # bytes, as from a socket; about the best size for simplefix
_FIX_BEGINS_AT: Final = 1_704_465_000 * SECOND

Identity: TypeAlias = tuple[bytes, bytes]  # type and ClOrdID
Reader: TypeAlias = Callable[[bytes], list[Identity]]


def measure_fix(*, messages: int = FIX_MESSAGES, rounds: int = FIX_ROUNDS) -> dict[str, float]:
    """Messages per second of one core of both readers, and their ratio; medians of all rounds."""
    day = fix_day(messages)
    ours: list[int] = []
    theirs: list[int] = []
    simplefix = _simplefix_reader()
    for _ in range(rounds):
        period, identities = _timed(_read, day)
        ours.append(period)
        period, others = _timed(simplefix, day)
        theirs.append(period)
        assert len(identities) == messages
        assert identities == others
    ratios = [slow / fast for fast, slow in zip(ours, theirs, strict=True)]
    return {
        "fix_messages_per_s": messages * SECOND / median(ours),
        "simplefix_messages_per_s": messages * SECOND / median(theirs),
        "fix_ratio": median(ratios),
    }


def fix_day(messages: int) -> bytes:
    """A file of messages as in the log of a session."""
    return b"".join(
        compose(write(entry), header("TRADER", "FAIRTAPE", number, _FIX_BEGINS_AT + number * MILLISECOND))
        for number, entry in enumerate(_entries(messages), 1)
    )


def _entries(messages: int) -> Iterator[OrderEntry]:
    """Of ten messages, six are orders, two are cancels and two are reports."""
    for number in range(messages):
        at = _FIX_BEGINS_AT + number * MILLISECOND
        name, side = f"T{number:08}", FixSide.BUY if number % 2 else FixSide.SELL
        price = (10_000 + number % 500) * SECOND // 100
        quantity = (100 + number % 900) * SECOND
        match number % 10:
            case 3 | 7:
                yield OrderCancelRequest(
                    orig_cl_ord_id=f"T{number - 1:08}", cl_ord_id=name, symbol="MSFT", side=side, transact_at=at
                )
            case 5 | 9:
                yield ExecutionReport(
                    order_id=f"F{number}",
                    cl_ord_id=name,
                    exec_id=f"X{number}",
                    exec_type=ExecType.TRADE,
                    ord_status=OrdStatus.FILLED,
                    symbol="MSFT",
                    side=side,
                    last_qty=quantity,
                    last_px=price,
                    leaves_qty=0,
                    cum_qty=quantity,
                    avg_px=price,
                    transact_at=at,
                )
            case _:
                yield NewOrderSingle(
                    cl_ord_id=name,
                    account="ACCOUNT7",
                    symbol="MSFT",
                    side=side,
                    transact_at=at,
                    order_qty=quantity,
                    ord_type=OrdType.LIMIT,
                    price=price,
                    time_in_force=FixTimeInForce.DAY,
                )


def _timed(reader: Reader, day: bytes) -> tuple[int, list[Identity]]:
    begun = time.thread_time_ns()
    identities = reader(day)
    return time.thread_time_ns() - begun, identities


def _read(day: bytes) -> list[Identity]:
    stream = FixStream()
    return [
        (message.msg_type, message.get(11) or b"")
        for at in range(0, len(day), FIX_PIECE)
        for message in stream.feed(day[at : at + FIX_PIECE])
    ]


def _simplefix_reader() -> Reader:
    try:
        from simplefix import FixParser
    except ImportError:
        raise UserError(
            "simplefix is not installed; FIX is measured against it: pip install 'fairtape[bench]'"
        ) from None

    def read(day: bytes) -> list[Identity]:
        parser = FixParser()
        identities: list[Identity] = []
        for at in range(0, len(day), FIX_PIECE):
            parser.append_buffer(day[at : at + FIX_PIECE])
            while (message := parser.get_message()) is not None:
                identities.append((message.get(35), message.get(11)))
        return identities

    return read


# Settlement.

TOKEN_TRADES: Final = 500  # of one token: 20,000 trades/s
SETTLING_PERIOD: Final = 25 * MILLISECOND  # of one token


def measure_settling(*, trades: int = TRADES) -> Results:
    """Settled trades per second, and whether the stored ledger equals that of the floor."""
    floor = Floor(commit_passes=1)
    books = Bookkeeper(floor.ledger)
    with tempfile.TemporaryDirectory(prefix="fairtape-ledger-") as folder:
        store = LedgerStore(Path(folder) / "ledger.sqlite")
        spent = 0
        for ordered in _settling_tokens(trades):
            outputs = floor.apply(ordered)
            begun = time.perf_counter_ns()
            store.write([books.keep(outputs, token=ordered.token, sequence=ordered.sequence + ordered.count)])
            spent += time.perf_counter_ns() - begun
        sound = store.ledger().state_hash == floor.ledger.state_hash and not store.imbalance()
        settled = store.settled
        store.close()
    return {
        "settled_trades": settled,
        "settled_trades_per_s": round(settled * SECOND / max(spent, 1)),
        "settled_token_trades": TOKEN_TRADES,
        "settled_sound": sound,
    }


def _settling_tokens(trades: int) -> list[Ordered]:
    """An opening token, tokens of offers and the bids that take them, and a last one that commits the rest."""
    opening = [encode(OpenMarket(OPERATOR, 1, "XYZ", Continuous(), ONE // 100, ONE))]
    for number in range(2 * ACCOUNTS):
        asset = (CASH, "XYZ")[number % 2]
        opening.append(encode(Funding(OPERATOR, number + 2, f"account{number // 2}", asset, FIXED_MAX // 4)))
    tokens, number = [_token(1, 1, OPERATOR, opening, SETTLING_PERIOD)], 0
    for _ in range(max(trades // TOKEN_TRADES, 1)):
        payloads = []
        for _ in range(TOKEN_TRADES):
            for side, shift in ((Side.SELL, 0), (Side.BUY, 1)):
                number += 1
                name = f"account{(number // 2 + shift * 7) % ACCOUNTS}"
                terms = ("XYZ", side, 10 * ONE, (100 + number % 7) * ONE if side is Side.SELL else 110 * ONE)
                payloads.append(encode(NewOrder(GATEWAY, number, name, str(number), *terms)))
        tokens.append(_next_token(tokens, GATEWAY, payloads))
    last = encode(Funding(OPERATOR, 1_000_000, "account0", CASH, ONE))
    tokens.append(_next_token(tokens, OPERATOR, [last]))
    return tokens


def _next_token(tokens: Sequence[Ordered], source: int, payloads: Sequence[bytes]) -> Ordered:
    last = tokens[-1]
    return _token(last.token + 1, last.sequence + last.count, source, payloads, SETTLING_PERIOD)
