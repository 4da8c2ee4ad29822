"""How many trades a second the ledger settles to SQLite with durability on.

Every token makes and commits trades between a hundred accounts; the floor computes them beforehand in the same run, and
what is timed is the bookkeeper and the store: from the floor's outputs to rows that outlive a power failure. Time is
the wall's, because the wait for the disk is part of it. Each token is one transaction, as in a live market.
"""

import tempfile
import time
from pathlib import Path
from typing import Final

from fairtape.bench.report import Figures
from fairtape.core.effects import Ordered, Span
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.exchange.floor import Floor
from fairtape.exchange.order_codec import encode
from fairtape.exchange.orders import CASH, Funding, NewOrder, OpenMarket, Side
from fairtape.exchange.rules.values import Continuous
from fairtape.exchange.transfers import Bookkeeper
from fairtape.market.prices import FIXED_MAX, ONE
from fairtape.storage.ledger_tables import LedgerStore
from fairtape.wire.blocks import pack_messages

TRADES: Final = 40_000
TOKEN_TRADES: Final = 500  # of one token: at 20,000 trades/s, one of 25 ms
ACCOUNTS: Final = 100
BLOCK_ORDERS: Final = 10
_OPERATOR: Final = 1
_GATEWAY: Final = 2


def settling_figures(*, trades: int = TRADES) -> Figures:
    """The rate, and what proves that it means something."""
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
    """An opening token, then each with offers and the bids that take them; a last one lets the rest commit."""
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
