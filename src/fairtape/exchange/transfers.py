"""The ledger as transfers: an amount of one asset leaves one place and comes to another, in one batch for each token.

Balances say how things stand; transfers say how they came to stand so, and add up to them. A transfer names both its
sides, so that no entry can ever be without its counterpart.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from fairtape.market.prices import Price, Quantity
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


class TransferState(NamedTuple):
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
    standings: list[TransferState] = field(default_factory=list)
