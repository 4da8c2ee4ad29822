"""The ledger as transfers: movements of one asset between two accounts or parts of one, in a batch per token.

Balances are a state; transfers are the movements that add up to it. A transfer names both its sides, so every entry has
its counterpart.
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
    """Which part of a balance a transfer moves from or to."""

    OUTSIDE = 0
    AVAILABLE = 1
    RESERVED = 2


class TransferReason(IntEnum):
    FUNDING = 1  # reference: sequence number of the message
    RESERVATION = 2  # net of what orders reserved and released in one token; reference: the token
    SETTLEMENT = 3  # reference: the trade id


class Transfer(NamedTuple):
    """An amount of one asset, moved from a giver to a taker."""

    reason: TransferReason
    reference: int
    asset: str  # empty: cash
    giver: str  # an account; empty: outside
    giver_part: BalancePart
    taker: str
    taker_part: BalancePart
    amount: int  # 1e-9, above zero


class Settlement(NamedTuple):
    """A committed trade: the buyer's reserved cash for the seller's reserved shares."""

    trade_id: int
    token: int  # the token that made it
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
    """What one token did to the ledger: its settlements, then all other transfers, and the balances after them."""

    token: int
    sequence: int  # number of the next message
    settlements: list[Settlement] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    balances: list[AccountBalance] = field(default_factory=list)


_OWNED: Final = (Sequenced, Cancelled, Replaced)  # outputs about an order of one account
_AVAILABLE, _RESERVED = BalancePart.AVAILABLE, BalancePart.RESERVED


class Bookkeeper:
    """Derives the transfers of a floor's ledger, from its first token on.

    It compares the balances before and after each token. Settlements and funding follow from the outputs; any other
    movement between available and reserved is what orders reserved or released. Other movements must not exist, which
    is asserted for every account.
    """

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
        """Book what moved between available and reserved, and assert that nothing else moved."""
        moved: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        for _, _, asset, giver, _, taker, _, amount in batch.transfers:
            moved[giver, asset][0] -= amount
            moved[taker, asset][0] += amount
        for _, _, symbol, _, quantity, amount, buyer, seller, _, _ in batch.settlements:
            moved[buyer, ""][1] -= amount
            moved[seller, ""][0] += amount
            moved[seller, symbol][1] -= quantity
            moved[buyer, symbol][0] += quantity
        for name in sorted(touched):  # a fixed order of rows, independent of the order of outputs
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
