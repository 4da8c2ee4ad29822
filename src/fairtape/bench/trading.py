"""All figures of `fairtape bench floor`: the engine beside its peers, FIX beside simplefix, the ledger on its disk."""

from typing import Final

from fairtape.bench.fix import fix_figures
from fairtape.bench.floor import ORDERS, ROUNDS, floor_figures
from fairtape.bench.report import Figures, Step
from fairtape.bench.settling import TRADES, settling_figures
from fairtape.core.errors import UserError

ORDERS_PER_S_PROMISED: Final = 150_000
RATIO_PROMISED: Final = 1.2
FIX_RATIO_PROMISED: Final = 10
SETTLED_PER_S_PROMISED: Final = 20_000
FIX_MESSAGES: Final = 6_000

_PROMISES: Final = {
    "orders_per_s": (ORDERS_PER_S_PROMISED, "orders/s of the engine"),
    "ratio": (RATIO_PROMISED, "times the fastest peer"),
    "fix_ratio": (FIX_RATIO_PROMISED, "times simplefix"),
    "settled_trades_per_s": (SETTLED_PER_S_PROMISED, "trades/s settled"),
}


def trading_figures(
    *, orders: int = ORDERS, rounds: int = ROUNDS, trades: int = TRADES, step: Step = lambda _: None
) -> Figures:
    """Every figure, what is wrong with them, and which of them fall short of what is promised."""
    figures = floor_figures(orders=orders, rounds=rounds, step=step)
    step("FIX beside simplefix")
    try:
        figures |= {name: round(value, 2) for name, value in fix_figures(messages=FIX_MESSAGES).items()}
    except UserError as complaint:
        figures["fix_peer"] = str(complaint)
    for number in range(1, rounds + 1):
        step(f"round {number} of {rounds}: the ledger")
        settled = settling_figures(trades=trades)
        if _number(settled, "settled_trades_per_s") > _number(figures, "settled_trades_per_s"):
            figures |= settled
    problems = [] if figures["settled_sound"] else ["the ledger in the database is not the floor's"]
    if figures.get("peer_same_trades") is False:
        problems.append(f"{figures['peer']} made other trades of the same orders, so the ratio means nothing")
    return figures | {"problems": problems, "shortfalls": _shortfalls(figures)}


def _shortfalls(figures: Figures) -> list[str]:
    return [
        f"{_number(figures, name):,} {words}; {least:,} are promised"
        for name, (least, words) in _PROMISES.items()
        if name in figures and _number(figures, name) < least
    ]


def _number(figures: Figures, name: str) -> float:
    value = figures.get(name, 0)
    return value if isinstance(value, int | float) else 0
