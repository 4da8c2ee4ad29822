"""The bookkeeper of a floor: what a token did to the ledger, as transfers.

It looks at what the floor says and at how the balances stand before and after, and books the difference. Settlements
and funding are known from the outputs; whatever else moved between available and reserved is what orders set aside or
gave back. If a balance moved in any other way the books would not close, and that is asserted for every account.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from fairtape.exchange.ledger import Ledger
from fairtape.exchange.outputs import (
    Cancelled,
    Committed,
    Execution,
    Funded,
    Output,
    Replaced,
    Sequenced,
    TentativeFill,
)
from fairtape.exchange.transfers import BalancePart, Settlement, Transfer, TransferBatch, TransferReason, TransferState
from fairtape.market.prices import ONE

_OWNED: Final = (Sequenced, Cancelled, Replaced)  # told of one account's order
_OPEN, _HELD = BalancePart.AVAILABLE, BalancePart.RESERVED


class Bookkeeper:
    """The transfers of one floor's ledger, from its beginning on."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[tuple[str, str], tuple[int, int]] = {}

    def keep(self, outputs: Iterable[Output], *, token: int, sequence: int) -> TransferBatch:
        """The batch of a token, after the floor has applied it."""
        batch = TransferBatch(token, sequence)
        touched: dict[str, None] = {}
        for output in outputs:
            if isinstance(output, _OWNED):
                touched[output.account] = None
            elif isinstance(output, TentativeFill):
                touched[output.trade.buyer] = touched[output.trade.seller] = None
            elif isinstance(output, Committed):
                touched[output.trade.buyer] = touched[output.trade.seller] = None
                batch.settlements.append(_settlement(output.trade))
            elif isinstance(output, Funded):
                touched[output.account] = None
                batch.transfers.append(_funding(output))
        self._close(batch, touched)
        return batch

    def _close(self, batch: TransferBatch, touched: Iterable[str]) -> None:
        """Book what moved between available and reserved, and see that nothing else did."""
        moved: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        for _, _, asset, giver, _, taker, _, amount in batch.transfers:
            moved[giver, asset][0] -= amount
            moved[taker, asset][0] += amount
        for _, _, symbol, _, quantity, amount, buyer, seller, _, _ in batch.settlements:
            moved[buyer, ""][1] -= amount
            moved[seller, ""][0] += amount
            moved[seller, symbol][1] -= quantity
            moved[buyer, symbol][0] += quantity
        for name in sorted(touched):  # whatever else happened in the same token, the rows come in one order
            for asset, balance in sorted(self._ledger.accounts[name].balances.items()):
                now, before = (balance.available, balance.reserved), self._known.get((name, asset), (0, 0))
                if now == before and (name, asset) not in moved:
                    continue
                available, reserved = moved[name, asset]
                held = now[1] - before[1] - reserved
                assert now[0] - before[0] - available == -held
                if held:
                    places = (_OPEN, _HELD) if held > 0 else (_HELD, _OPEN)
                    sides = (name, places[0], name, places[1])
                    batch.transfers.append(Transfer(TransferReason.RESERVATION, batch.token, asset, *sides, abs(held)))
                self._known[name, asset] = now
                batch.standings.append(TransferState(name, asset, *now))


def _settlement(trade: Execution) -> Settlement:
    trade_id, token, symbol, price, quantity, buy, sell, buyer, seller, *_ = trade
    return Settlement(trade_id, token, symbol, price, quantity, price * quantity // ONE, buyer, seller, buy, sell)


def _funding(funded: Funded) -> Transfer:
    outside, inside = ("", BalancePart.OUTSIDE), (funded.account, BalancePart.AVAILABLE)
    giver, taker = (outside, inside) if funded.amount > 0 else (inside, outside)
    return Transfer(TransferReason.FUNDING, funded.number, funded.asset, *giver, *taker, abs(funded.amount))
