"""Generated tables of the pipeline: a short day of three sites, two sources and a small floor."""

import math
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND
from fairtape.market.prices import ONE
from fairtape.pipeline.schemas import PERCENTILES, TABLES

STARTS_AT = 1_700_000_000 * SECOND
TOKENS = 240
PER_TOKEN = 5
SITES = (1, 2, 3)
CHANGED_AT = 120  # the token with which another formation begins
FARTHEST = 60 * MILLISECOND  # one-way delay between the first and the last site

Row = dict[str, Any]


def due_at(token: int) -> int:
    return STARTS_AT + token * SECOND // 4 + (SECOND if token >= CHANGED_AT else 0)


def released_at(token: int, site: int) -> int:
    wave = 1 + math.sin(token / 9)
    return (
        due_at(token) + int(site * wave * 120 * MICROSECOND) + (3 * SECOND // 100 if token == 77 and site == 3 else 0)
    )


def _release(token: int, site: int) -> Row:
    return {
        "stripe": 0,
        "site": site,
        "formation": 1 + (token >= CHANGED_AT),
        "token": token,
        "sequence": token * PER_TOKEN + 1,
        "messages": PER_TOKEN,
        "acknowledged_at_ns": due_at(token) - 50 * MILLISECOND,
        "commit_at_ns": due_at(token),
        "released_at_ns": released_at(token, site),
        "late": token == 77 and site == 3,
        "clock_bound_ns": 20 * MICROSECOND + site * 7 * MICROSECOND + token % 13 * MICROSECOND,
        "hold_ns": 50 * MILLISECOND,
    }


def _spread(token: int) -> Row:
    released = [released_at(token, site) for site in SITES]
    spread = max(released) - min(released)
    return {
        **{name: _release(token, 1)[name] for name in ("stripe", "formation", "token", "sequence", "commit_at_ns")},
        "messages": PER_TOKEN,
        "sites": len(SITES),
        "first_released_at_ns": min(released),
        "last_released_at_ns": max(released),
        "spread_ns": spread,
        "window_ns": max(spread - 60 * MICROSECOND, 0),
        "late_sites": int(token == 77),
    }


def _delivery(token: int, site: int, step: int) -> Row:
    release = _release(token, site)
    names = ("stripe", "site", "formation", "token", "acknowledged_at_ns", "commit_at_ns", "released_at_ns", "late")
    return {
        **{name: release[name] for name in names},
        "sequence": token * PER_TOKEN + 1 + step,
        "kind": "message",
        "source": 101 + step % 2,
        "incarnation": 1,
        "source_number": token * PER_TOKEN + step,
        "clock_bound_ns": release["clock_bound_ns"],
        "payload": b"",
    }


def _sale(token: int, step: int) -> Row:
    return {
        **{name: _delivery(token, 1, step)[name] for name in ("stripe", "sequence", "token", "source")},
        "acknowledged_at_ns": due_at(token) - 50 * MILLISECOND,
        "commit_at_ns": due_at(token),
        "venue": ("NYSE", "XETRA", "TSE")[step % 3],
        "symbol": ("ABC", "DEF", "GHIJ", "ABC", "KL")[step],
        "price": int((100 + 3 * math.sin(token / 25) + step / 10) * ONE),
        "quantity": (step + 1) * ONE,
        "traded_at_ns": due_at(token) - 80 * MILLISECOND,
        "trade_id": token * PER_TOKEN + step,
        "trade_flags": 0,
        "number": token * PER_TOKEN + 1 + step,
    }


def _bars() -> list[Row]:
    found: dict[int, Row] = {}
    for token in range(TOKENS):
        for step in (0, 3):
            sale = _sale(token, step)
            begins = sale["traded_at_ns"] // SECOND * SECOND
            price = sale["price"]
            bar = found.setdefault(
                begins,
                {"symbol": "ABC", "period_at_ns": begins, "open": price, "high": price, "low": price, "close": price,
                 "volume": Decimal(0), "trades": 0},
            )  # fmt: skip
            bar["high"], bar["low"], bar["close"] = max(bar["high"], price), min(bar["low"], price), price
            bar["volume"] += sale["quantity"]
            bar["trades"] += 1
    return list(found.values())


def _order(number: int, side: str) -> Row:
    return {
        "stripe": 0,
        "sequence": number,
        "token": number // PER_TOKEN,
        "source": 101,
        "acknowledged_at_ns": due_at(number // PER_TOKEN) - 50 * MILLISECOND,
        "commit_at_ns": due_at(number // PER_TOKEN),
        "kind": "new",
        "gateway": 9,
        "gateway_number": number,
        "account": f"acc{number}",
        "client_id": f"c{number}",
        "order_id": f"c{number}",
        "symbol": "ABC",
        "side": side,
        "order_type": "limit",
        "time_in_force": "day",
        "self_trade": None,
        "post_only": False,
        "quantity": 200 * ONE,
        "price": 100 * ONE,
        "stop_price": None,
        "entered_at_ns": due_at(number // PER_TOKEN) - 90 * MILLISECOND,
    }


def _event(number: int, step: int, event: str, order: int | None) -> Row:
    return {
        "stripe": 0,
        "sequence": number,
        "token": number // PER_TOKEN,
        "step": step,
        "event": event,
        "order_number": order,
        "account": f"acc{order or number}",
        "client_id": f"c{order or number}",
        "symbol": "ABC",
        "price": 100 * ONE,
        "quantity": 200 * ONE,
        "open": 0,
        "trade_id": 1 if event in ("filled", "committed") else None,
        "at_ns": due_at(number // PER_TOKEN),
        "reason": None,
    }


def _events() -> list[Row]:
    """6 and 11 trade, 16 is cancelled, 21 rejected, 26 has no event; and 31 is no order."""
    filled = [_event(11, step, "filled", order) for step, order in ((1, 6), (2, 11))]
    committed = [_event(11, step, "committed", order) | {"token": 6} for step, order in ((0, 6), (1, 11))]
    rejected = [_event(number, 0, "rejected", None) | {"reason": "no funds"} for number in (21, 31)]
    return [
        *(_event(number, 0, "sequenced", number) for number in (6, 11, 16)),
        *filled,
        *committed,
        _event(17, 0, "cancelled", 16),
        *rejected,
    ]


def _execution() -> Row:
    return {
        "stripe": 0, "trade_id": 1, "token": 2, "committed_token": 6, "symbol": "ABC", "price": 100 * ONE,
        "quantity": 200 * ONE, "buy_order": 6, "sell_order": 11, "buyer": "acc6", "seller": "acc11",
        "buy_client_id": "c6", "sell_client_id": "c11", "aggressor": "sell", "traded_at_ns": due_at(2),
    }  # fmt: skip


def _distribution(middle: int) -> Row:
    parts = {name: middle + place * MILLISECOND for place, name in enumerate(PERCENTILES)}
    return {"count": 600, "least": middle - MILLISECOND, **parts, "most": middle + 9 * MILLISECOND}


def _fairness() -> Row:
    return {
        "stripe": 0, "sites": 3, "messages": TOKENS * PER_TOKEN, "deliveries": 3 * TOKENS * PER_TOKEN,
        "late_deliveries": 5, "unlike_messages": 5, "shared_messages": TOKENS * PER_TOKEN,
        "window_0_messages": 1_150, "entered_messages": 1_200,
        "overtaken_messages": 12, "pairs": 900, "pairs_in_order": 890, "late_fraction": 5 / 3_600,
        "outbound_unfairness": 5 / 1_200, "window_0_share": 1_150 / 1_200, "inbound_unfairness": 0.01,
        "pairwise_fairness": 890 / 900, "portal_equity": 0.97,
    }  # fmt: skip


def _trace(token: int, site: int) -> Row:
    """Ack(e) of the site whose turn it was, as another site received it: 30 ms for each step between the two."""
    portal = SITES[token % len(SITES)]
    sent_at = due_at(token) - 50 * MILLISECOND
    delay = FARTHEST if token != 5 else 2 * FARTHEST  # token 5 had to be requested, so it does not count
    return {
        "stripe": 0, "site": site, "number": token, "kind": "token", "peer": portal, "token": token,
        "formation": 1 + (token >= CHANGED_AT), "sent_at_ns": sent_at,
        "came_at_ns": sent_at + delay * abs(site - portal) // 2,
        "ack_requests": int(token == 5 and abs(site - portal) == 2),
    }  # fmt: skip


def _clock(site: int) -> Row:
    low = 20 * MICROSECOND + site * 7 * MICROSECOND
    return {
        "stripe": 0, "site": site, "releases": TOKENS, "bound_min_ns": low, "bound_p50_ns": low + 6 * MICROSECOND,
        "bound_max_ns": low + 12 * MICROSECOND, "early_releases": 0, "steps_back": 0, "step_max_ns": 0,
    }  # fmt: skip


def _outage() -> Row:
    before, after = due_at(CHANGED_AT - 1), due_at(CHANGED_AT)
    return {
        "stripe": 0, "formation": 2, "broken": False, "last_token": CHANGED_AT - 1, "last_at_ns": before,
        "first_token": CHANGED_AT, "first_at_ns": after, "silence_ns": after - before,
    }  # fmt: skip


def tables() -> Mapping[str, list[Row]]:
    """Rows of every table that a report reads."""
    everywhere = [(token, site) for token in range(TOKENS) for site in SITES]
    return {
        "deliveries": [_delivery(*each, step) for each in everywhere for step in range(PER_TOKEN)],
        "sales": [_sale(token, step) for token in range(TOKENS) for step in range(PER_TOKEN)],
        "orders": [_order(number, "sell" if number == 11 else "buy") for number in (6, 11, 16, 21, 26)],
        "order_events": _events(),
        "executions": [_execution()],
        "bars_1s": _bars(),
        "releases": [_release(*each) for each in everywhere],
        "spreads": [_spread(token) for token in range(TOKENS)],
        "fairness": [_fairness()],
        "latency": [
            {"stripe": 0, "site": site, "source": source, **_distribution(130 * MILLISECOND + source * MILLISECOND)}
            for source in (101, 102)
            for site in SITES
        ],
        "clocks": [_clock(site) for site in SITES],
        "outages": [_outage()],
        "traces": [_trace(*each) for each in everywhere if SITES[each[0] % len(SITES)] != each[1]],
    }


def first_second() -> Mapping[str, list[Row]]:
    """The same of a session that ended within its first second."""
    begun = {"deliveries", "sales", "bars_1s", "releases", "spreads"}
    kept = {name: rows for name, rows in tables().items() if name not in ("outages", "orders")}
    return kept | {name: [row for row in kept[name] if _is_early(row)] for name in begun}


def _is_early(row: Row) -> bool:
    return bool((row["period_at_ns"] if "period_at_ns" in row else row["commit_at_ns"]) < STARTS_AT + SECOND)


def write_tables(folder: Path, made: Mapping[str, list[Row]] | None = None) -> Path:
    """All of them as Delta tables."""
    for name, rows in (made or tables()).items():
        schema = TABLES[name].schema
        write_deltalake(folder / name, pa.Table.from_pylist([whole(row, schema) for row in rows], schema))
    return folder


def whole(row: Row, schema: Any) -> Row:
    """A row with nothing in the columns that no report reads."""
    blank = {field.name: "" if pa.types.is_string(field.type) else 0 for field in schema if not field.nullable}
    return {**blank, **row}
