"""`fairtape bench edge`: WebSocket customers, the Python client and ITCH, each beside a bare program."""

import tempfile
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Final

from fairtape.bench.reading import measure_client, measure_itch
from fairtape.bench.results import Results, Step
from fairtape.bench.web import DELAY_GOAL_MS, WebSetting, measure_websocket, run_fanout
from fairtape.market.trades import TRADE_SIZE
from fairtape.tape.serialization import PLACE

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
