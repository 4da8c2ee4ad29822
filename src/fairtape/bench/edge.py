"""`fairtape bench edge`: WebSocket customers, the Python client and ITCH, each beside a bare program.

WebSocket customers are measured by `websocket_customers`, the other two here: how fast the Python client reads a
journal, and how fast an ITCH file becomes Arrow tables. A rate is messages per second of *processor time* of all
threads of this process: what one core can do, independent of other programs. The baseline of each rate is a bare Python
program on the same bytes in memory, without following a journal, checks, ordering or filters.

The ITCH file has the message mix of an exchange's day: mostly orders and their ends, one execution in thirty messages,
thousands of stocks. Values have realistic sizes, because only these affect a decoder. Orders are not consistent over
their lifetime.
"""

import gc
import struct
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from fairtape.bench.results import Results, Step
from fairtape.bench.websocket_customers import DELAY_GOAL_MS, WebSetting, measure_websocket, run_fanout
from fairtape.client import connect
from fairtape.core.effects import Ordered, Release, Span
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.formats.fixed_layout import Field, Text
from fairtape.formats.itch.columns import INDEX, TEXT, from_arrow, to_arrow
from fairtape.formats.itch.messages import LAYOUTS
from fairtape.journal import JournalWriter, SyncPolicy
from fairtape.market.flow import Flow, batches
from fairtape.market.symbols import universe
from fairtape.market.trades import TRADE_SIZE, Trades, records
from fairtape.tape.batches import PLACE_DTYPE, ROWS_MAX, TradeBatch
from fairtape.tape.serialization import PLACE
from fairtape.wire.blocks import pack_records, records_max
from fairtape.wire.frames import DATAGRAM_MAX
from fairtape.wire.seals import SEAL_OVERHEAD

TRIES_MAX: Final = 3  # with one number of customers: the speed of a virtual machine varies
CUSTOMERS_DIVISOR: Final = 2  # applied when the server does not keep up
CUSTOMERS_MIN: Final = 8
ROUNDS: Final = 3
BARE_SECONDS_MAX: Final = 2.0
GOALS: Final = {"arrow_messages_per_s": 1_000_000, "record_messages_per_s": 200_000, "itch_messages_per_s": 1_000_000}
"""Minimum rates of one core."""


def measure_edge(*, customers: int, seconds: float, messages: int, only: str, step: Step) -> Results:
    results: Results = {"seconds": seconds, "rounds": ROUNDS}
    if only in ("all", "websocket"):
        results |= _websocket(customers, seconds, step)
    if only in ("all", "client"):
        step(f"the Python client, {messages:,} trades of {TRADE_SIZE} bytes from a journal")
        with tempfile.TemporaryDirectory(prefix="fairtape-client-", ignore_cleanup_errors=True) as scratch:
            results |= measure_client(Path(scratch), messages=messages, rounds=ROUNDS)
    if only in ("all", "itch"):
        step(f"a file of ITCH 5.0, {messages:,} messages")
        results |= measure_itch(messages=messages, rounds=ROUNDS)
    return results | {"problems": problems_of(results), "shortfalls": shortfalls_of(results)}


def problems_of(results: Results) -> list[str]:
    """Why these results are invalid, one sentence each."""
    if results.get("websocket_kept_up") is False:
        tried = results["websocket_customers_tried"]
        late = f"more than 1 % of them later than {DELAY_GOAL_MS:g} ms"
        return [f"websocket_customers is 0: with {tried} customers, messages were missing or repeated, or {late}"]
    return []


def shortfalls_of(results: Results) -> list[str]:
    """Which results are below their goals, one sentence each. The machine may be too slow or too busy."""
    found = []
    served, asked = (results.get(f"websocket_customers{each}", 0) for each in ("", "_asked"))
    if served != asked:
        found.append(
            f"websocket_customers is {served}; {asked} were requested, and the server did not keep up with them"
        )
    for name, goal in GOALS.items():
        result = results.get(name, goal)
        assert isinstance(result, int | float)
        if result < goal:
            found.append(f"{name} is {result:,}; the goal is {goal:,}")
    return found


def _websocket(asked: int, seconds: float, step: Step) -> Results:
    """Serve the requested number of customers, or fewer until the server keeps up."""
    for tried in _customer_counts(asked):
        setting = WebSetting(customers=tried, seconds=seconds)
        step(f"{tried:,} WebSocket customers of one stripe, {setting.rate:,} messages/s")
        found = measure_websocket(setting)
        if found["websocket_kept_up"]:
            break
    step(f"a bare program that writes to {tried:,} sockets")
    share = found["websocket_server_core_share"]
    rows = max(found["websocket_deliveries"] // max(found["websocket_frames"], 1), 1)
    size = rows * (TRADE_SIZE + PLACE.itemsize)
    bare = run_fanout(customers=tried, size=size, seconds=min(seconds, BARE_SECONDS_MAX))
    return found | {
        "websocket_customers": tried if found["websocket_kept_up"] else 0,
        "websocket_customers_asked": asked,
        "websocket_customers_tried": tried,
        "websocket_frames_per_core_s": round(found["websocket_frames_per_s"] / max(share, 1e-9)),
        "bare_websocket_frames_per_core_s": round(bare),
    }


def _customer_counts(asked: int) -> Iterator[int]:
    """The number of customers of each try."""
    customers = asked
    while True:
        yield from repeat(customers, TRIES_MAX)
        if customers <= CUSTOMERS_MIN:
            return
        customers = max(customers // CUSTOMERS_DIVISOR, CUSTOMERS_MIN)


# The Python client and ITCH.

PER_TOKEN: Final = 1_000
PER_BLOCK: Final = records_max(DATAGRAM_MAX - SEAL_OVERHEAD, TRADE_SIZE)  # fills a sealed datagram
SOURCE: Final = 101
STARTS_AT: Final = 1_750_000_000 * SECOND
TOKEN_PERIOD: Final = 1 * MILLISECOND
RATE: Final = 50_000  # trades per second of the written flow

Rates: TypeAlias = dict[str, float]
Reader: TypeAlias = Callable[[], int]  # reads everything once; returns the number of messages

_ROW: Final = struct.Struct("<BBH12s16sqqqQ")
_LENGTH: Final = struct.Struct(">H")


def measure_client(folder: Path, *, messages: int, rounds: int) -> Rates:
    """Arrow batches and single records from a journal, and the same from memory."""
    trades = _trades(messages)
    write_journal(folder, trades)
    octets = trades.tobytes()
    return {
        **_rates("arrow_messages_per_s", lambda: _read_batches(folder), rounds),
        **_rates("record_messages_per_s", lambda: _read_records(folder), rounds),
        **_rates("bare_arrow_messages_per_s", lambda: _columns_of(octets), rounds),
        **_rates("bare_record_messages_per_s", lambda: _tuples_of(octets), rounds),
    }


def measure_itch(*, messages: int, rounds: int) -> Rates:
    """A file of ITCH 5.0 as Arrow tables, and a loop that only steps from length to length."""
    octets = itch_day(messages)
    return {
        **_rates("itch_messages_per_s", lambda: sum(table.num_rows for table in to_arrow(octets).values()), rounds),
        **_rates("bare_itch_messages_per_s", lambda: _steps_through(octets), rounds),
    }


def write_journal(folder: Path, trades: Trades) -> None:
    """Write a site's journal of these trades: tokens of `PER_TOKEN`, blocks of one datagram, all released."""
    with JournalWriter.open(folder, stripe=0, site=1, sync=SyncPolicy.NEVER) as writer:
        for token, start in enumerate(range(0, len(trades), PER_TOKEN), 1):
            part = trades[start : start + PER_TOKEN]
            blocks = [part[at : at + PER_BLOCK] for at in range(0, len(part), PER_BLOCK)]
            bodies = tuple(pack_records(block.tobytes(), TRADE_SIZE) for block in blocks)
            sequence, at = start + 1, STARTS_AT + token * TOKEN_PERIOD
            span = Span(SOURCE, 1, sequence, len(part), sequence, bodies, tuple(map(len, blocks)))
            writer.append(Ordered(0, 1, token, sequence, len(part), at, (span,)), at)
            writer.release(Release(token, sequence, len(part), at, at, late=False, clock_bound=0), at)


def _trades(messages: int) -> Trades:
    flow = Flow(rate=RATE, starts_at=STARTS_AT, session_period=(1 + 2 * messages // RATE) * SECOND)
    found: list[Trades] = []
    for batch in batches(flow, np.random.default_rng(1)):
        found.append(batch)
        if sum(map(len, found)) >= messages:
            break
    return np.concatenate(found)[:messages]


def _rates(name: str, read: Reader, rounds: int) -> Rates:
    """Messages per second of processor time: the median of the rounds, the minimum and the maximum."""
    found = []
    for _ in range(rounds):
        with _garbage_collected():
            began = time.process_time()
            messages = read()
            spent = time.process_time() - began
        found.append(round(messages / max(spent, 1e-9)))
    return {name: round(median(found)), f"{name}_min": min(found), f"{name}_max": max(found)}


@contextmanager
def _garbage_collected() -> Iterator[None]:
    """Collect the garbage of earlier work first, so that it is not collected in the measured time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _read_batches(folder: Path) -> int:
    with connect(folder, start="beginning") as tape:
        return sum(batch.num_rows for batch in tape.batches())


def _read_records(folder: Path) -> int:
    count = 0
    with connect(folder, start="beginning") as tape:
        for _ in tape:
            count += 1
    return count


def _columns_of(octets: bytes) -> int:
    """The same columns from trades in memory."""
    trades, rows = records(octets), 0
    for start in range(0, len(trades), ROWS_MAX):
        part = trades[start : start + ROWS_MAX]
        rows += TradeBatch(part, np.zeros(len(part), PLACE_DTYPE)).to_arrow().num_rows
    return rows


def _tuples_of(octets: bytes) -> int:
    deque(_ROW.iter_unpack(octets), maxlen=0)
    return len(octets) // TRADE_SIZE


def _steps_through(octets: bytes) -> int:
    at = count = 0
    while (size := _LENGTH.unpack_from(octets, at)[0]) > 0:
        at += 2 + size
        count += 1
    return count


# The ITCH file.

STOCKS: Final = 5_000
DAY: Final = 23_400 * 10**9  # nanoseconds from the open to the close
OPEN: Final = 34_200 * 10**9  # after midnight

MIX: Final[Mapping[str, float]] = {
    "A": 0.425,  # orders
    "F": 0.010,
    "D": 0.410,  # their ends
    "X": 0.015,
    "U": 0.085,
    "E": 0.030,  # executions and trades
    "C": 0.001,
    "P": 0.008,
    "I": 0.014,  # imbalances before the crosses
    "Q": 0.002,
}
"""The share of each message type. Rare types, such as the stock directory, are left out."""

_LETTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "buy_sell": ("B", "S"),
    "printable": ("Y", "N"),
    "imbalance_direction": ("B", "S", "N", "O"),
    "cross_type": ("O", "C", "H"),
    "price_variation": ("L", "1", "2", "A"),
    "attribution": ("NITE", "CDEL", "UBSS", "GSCO"),
}


def itch_day(messages: int, *, seed: int = 1) -> bytes:
    """A file of this many messages. Equal seeds give equal files."""
    chance = np.random.default_rng(seed)
    letters = chance.choice(len(MIX), size=messages, p=np.array(list(MIX.values())) / sum(MIX.values()))
    times = OPEN + np.sort(chance.integers(0, DAY, messages))
    tables = {}
    for place, letter in enumerate(MIX):
        rows = np.flatnonzero(letters == place)
        columns = {each.name: _column(each, len(rows), chance) for each in LAYOUTS[letter].fields}
        tables[letter] = pa.table({INDEX: rows, **columns, "timestamp_ns": times[rows]})
    return from_arrow(tables, end_mark=True)


def _column(field: Field, rows: int, chance: np.random.Generator) -> Any:
    if field.name == "stock":
        ranks = np.minimum(chance.zipf(1.2, rows) - 1, STOCKS - 1)
        names = pa.array(universe(STOCKS))
        return pa.DictionaryArray.from_arrays(pa.array(ranks, pa.int32()), names)
    if isinstance(field.kind, Text):
        texts = _LETTERS[field.name]
        return pa.array([texts[each] for each in chance.integers(0, len(texts), rows)], TEXT)
    return chance.integers(0, min(field.kind.most, 1 << 40), rows)
