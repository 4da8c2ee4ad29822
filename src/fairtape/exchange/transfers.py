"""The ledger as transfers: an amount of one asset leaves one place and comes to another, in one batch for each token.

Balances say how things stand; transfers say how they came to stand so, and add up to them. A transfer names both its
sides, so that no entry can ever be without its counterpart.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

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
from fairtape.market.prices import ONE, Price, Quantity
from fairtape.market.symbols import Symbol


class BalancePart(IntEnum):
    """Where an amount lies."""

    OUTSIDE = 0
    AVAILABLE = 1
    RESERVED = 2


class TransferReason(IntEnum):
    """Why an amount moved."""

    FUNDING = 1  # the reference is the place of the message
    RESERVATION = 2  # what orders set aside and gave back in one token; the reference is the token
    SETTLEMENT = 3  # the reference is the trade


class Transfer(NamedTuple):
    """An amount of one asset on its way from one place to another."""

    reason: TransferReason
    reference: int
    asset: str  # empty: cash
    giver: str  # an account; empty: the outside
    giver_part: BalancePart
    taker: str
    taker_part: BalancePart
    amount: int  # 1e-9, above zero


class Settlement(NamedTuple):
    """A committed trade: the buyer's reserved cash for the seller's reserved shares."""

    trade_id: int
    token: int  # that made it
    symbol: Symbol
    price: Price
    quantity: Quantity
    amount: int  # of cash, 1e-9
    buyer: str
    seller: str
    buy_order: int
    sell_order: int


class AccountBalance(NamedTuple):
    """One asset of one account, after a token."""

    account: str
    asset: str
    available: int
    reserved: int


@dataclass(slots=True)
class TransferBatch:
    """What one token did to the ledger: first its settlements, then everything else."""

    token: int
    sequence: int  # the number of the next message
    settlements: list[Settlement] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    balances: list[AccountBalance] = field(default_factory=list)


# The bookkeeper of a floor: what a token did to the ledger, as transfers.
#
# It looks at what the floor says and at how the balances stand before and after, and books the difference. Settlements
# and funding are known from the outputs; whatever else moved between available and reserved is what orders set aside or
# gave back. If a balance moved in any other way the books would not close, and that is asserted for every account.

_OWNED: Final = (Sequenced, Cancelled, Replaced)  # told of one account's order
_AVAILABLE, _RESERVED = BalancePart.AVAILABLE, BalancePart.RESERVED


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
                reserved_more = now[1] - before[1] - reserved
                assert now[0] - before[0] - available == -reserved_more
                if reserved_more:
                    places = (_AVAILABLE, _RESERVED) if reserved_more > 0 else (_RESERVED, _AVAILABLE)
                    sides = (name, places[0], name, places[1])
                    batch.transfers.append(
                        Transfer(TransferReason.RESERVATION, batch.token, asset, *sides, abs(reserved_more))
                    )
                self._known[name, asset] = now
                batch.balances.append(AccountBalance(name, asset, *now))


def _settlement(trade: Execution) -> Settlement:
    trade_id, token, symbol, price, quantity, buy, sell, buyer, seller, *_ = trade
    return Settlement(trade_id, token, symbol, price, quantity, price * quantity // ONE, buyer, seller, buy, sell)


def _funding(funded: Funded) -> Transfer:
    outside, inside = ("", BalancePart.OUTSIDE), (funded.account, BalancePart.AVAILABLE)
    giver, taker = (outside, inside) if funded.amount > 0 else (inside, outside)
    return Transfer(TransferReason.FUNDING, funded.number, funded.asset, *giver, *taker, abs(funded.amount))
