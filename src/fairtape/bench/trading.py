"""`fairtape bench floor`: the engine beside its peers, FIX beside simplefix, and settlement to SQLite.

FIX: our reader and `simplefix` alternate on one file of order entry (orders, cancels, reports), in pieces of the same
size. Both parse the messages and return the type and the ClOrdID of each, which must be equal. Ours also checks body
length, check sum and field order. Time is processor time; results are medians of the rounds.

Settlement: every token makes and commits trades between a hundred accounts. The floor computes them outside of the
measured time. Measured are the bookkeeper and the store, from the outputs of the floor to durable rows. Time is wall
time, because the wait for the disk is part of it. Each token is one transaction, as in a live market.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

from fairtape.bench.floor import ORDERS, ROUNDS, measure_engines
from fairtape.bench.results import Results, Step
from fairtape.core.effects import Ordered, Span
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.exchange.floor import Floor
from fairtape.exchange.ledger import Bookkeeper
from fairtape.exchange.orders import CASH, Funding, NewOrder, OpenMarket, Side, encode
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
from fairtape.market.prices import FIXED_MAX, ONE
from fairtape.storage.ledger_tables import LedgerStore
from fairtape.wire.blocks import pack_messages

# FIX.

MESSAGES: Final = 6_000
FIX_ROUNDS: Final = 5
PIECE: Final = 4_096  # bytes, as from a socket; about the best size for simplefix
_BEGIN: Final = 1_704_465_000 * SECOND

Identity: TypeAlias = tuple[bytes, bytes]  # type and ClOrdID
Reader: TypeAlias = Callable[[bytes], list[Identity]]


def measure_fix(*, messages: int = MESSAGES, rounds: int = FIX_ROUNDS) -> dict[str, float]:
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
        compose(write(entry), header("TRADER", "FAIRTAPE", number, _BEGIN + number * MILLISECOND))
        for number, entry in enumerate(_entries(messages), 1)
    )


def _entries(messages: int) -> Iterator[OrderEntry]:
    """Of ten messages, six are orders, two are cancels and two are reports."""
    for number in range(messages):
        at = _BEGIN + number * MILLISECOND
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
        for at in range(0, len(day), PIECE)
        for message in stream.feed(day[at : at + PIECE])
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
        for at in range(0, len(day), PIECE):
            parser.append_buffer(day[at : at + PIECE])
            while (message := parser.get_message()) is not None:
                identities.append((message.get(35), message.get(11)))
        return identities

    return read


# Settlement.

TRADES: Final = 40_000
TOKEN_TRADES: Final = 500  # of one token: at 20,000 trades/s, one of 25 ms
ACCOUNTS: Final = 100
BLOCK_ORDERS: Final = 10
_OPERATOR: Final = 1
_GATEWAY: Final = 2


def measure_settling(*, trades: int = TRADES) -> Results:
    """Settled trades per second, and whether the stored ledger equals that of the floor."""
    floor = Floor(commit_passes=1)
    books = Bookkeeper(floor.ledger)
    with tempfile.TemporaryDirectory(prefix="fairtape-ledger-") as folder:
        store = LedgerStore(Path(folder) / "ledger.sqlite")
        spent = 0
        for ordered in _tokens(trades):
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


def _tokens(trades: int) -> list[Ordered]:
    """An opening token, tokens of offers and the bids that take them, and a last one that commits the rest."""
    opening = [encode(OpenMarket(_OPERATOR, 1, "XYZ", Continuous(), ONE // 100, ONE))]
    for number in range(2 * ACCOUNTS):
        asset = (CASH, "XYZ")[number % 2]
        opening.append(encode(Funding(_OPERATOR, number + 2, f"account{number // 2}", asset, FIXED_MAX // 4)))
    tokens, number = [_token(1, 1, _OPERATOR, opening)], 0
    for _ in range(max(trades // TOKEN_TRADES, 1)):
        payloads = []
        for _ in range(TOKEN_TRADES):
            for side, shift in ((Side.SELL, 0), (Side.BUY, 1)):
                number += 1
                name = f"account{(number // 2 + shift * 7) % ACCOUNTS}"
                terms = ("XYZ", side, 10 * ONE, (100 + number % 7) * ONE if side is Side.SELL else 110 * ONE)
                payloads.append(encode(NewOrder(_GATEWAY, number, name, str(number), *terms)))
        tokens.append(_token(len(tokens) + 1, tokens[-1].sequence + tokens[-1].count, _GATEWAY, payloads))
    last = encode(Funding(_OPERATOR, 1_000_000, "account0", CASH, ONE))
    tokens.append(_token(len(tokens) + 1, tokens[-1].sequence + tokens[-1].count, _OPERATOR, [last]))
    return tokens


def _token(token: int, sequence: int, source: int, payloads: list[bytes]) -> Ordered:
    spans, number = [], sequence
    for first in range(0, len(payloads), BLOCK_ORDERS):
        block = payloads[first : first + BLOCK_ORDERS]
        spans.append(Span(source, 1, number, len(block), number, (pack_messages(block),), (len(block),)))
        number += len(block)
    return Ordered(0, 1, token, sequence, len(payloads), token * 25 * MILLISECOND, tuple(spans))


# All results.

ORDERS_PER_S_GOAL: Final = 150_000
RATIO_GOAL: Final = 1.2
FIX_RATIO_GOAL: Final = 10
SETTLED_PER_S_GOAL: Final = 20_000
FIX_MESSAGES: Final = 6_000

_GOALS: Final = {
    "orders_per_s": (ORDERS_PER_S_GOAL, "orders/s of the engine"),
    "ratio": (RATIO_GOAL, "times the fastest peer"),
    "fix_ratio": (FIX_RATIO_GOAL, "times simplefix"),
    "settled_trades_per_s": (SETTLED_PER_S_GOAL, "trades/s settled"),
}


def measure_trading(
    *, orders: int = ORDERS, rounds: int = ROUNDS, trades: int = TRADES, step: Step = lambda _: None
) -> Results:
    """All results, with the reasons why they are invalid and the goals that they miss."""
    results = measure_engines(orders=orders, rounds=rounds, step=step)
    step("FIX beside simplefix")
    try:
        results |= {name: round(value, 2) for name, value in measure_fix(messages=FIX_MESSAGES).items()}
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
