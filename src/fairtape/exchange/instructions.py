"""What operators and arbiters put into the sequence: markets, money and reports.

Markets open, halt and close, and accounts are funded, by messages in the order itself. So the whole state of a floor is
a projection of the sequence: whoever replays it from the first message holds the same books and the same balances.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from fairtape.exchange.rules.values import Rule
from fairtape.market.prices import Price, Quantity
from fairtape.market.symbols import Symbol

CASH: Final = ""  # the asset that no symbol can name
DIGEST_SIZE: Final = 32  # bytes of SHA-256


class OpenMarket(NamedTuple):
    """From here on this symbol trades under this rule.

    A price times a quantity must be exact in units of 1e-9, so `tick` times `lot` has to be a whole number of them.
    """

    gateway: int
    gateway_number: int
    symbol: Symbol
    rule: Rule
    tick: Price  # every limit is a multiple of it
    lot: Quantity  # every quantity is a multiple of it
    price_min: Price = 0  # the lowest limit; 0: one tick
    price_max: Price = 0  # the highest limit, at which a market order in an auction is reserved; 0: none


class Action(IntEnum):
    """What an operator does to an open market."""

    HALT = 1  # cancels are taken, nothing else is
    RESUME = 2
    UNCROSS = 3  # a call or sealed auction ends its round
    CLOSE = 4  # all its orders are cancelled, and the symbol is free again


class Control(NamedTuple):
    """An operator's hand on one market."""

    gateway: int
    gateway_number: int
    symbol: Symbol
    action: Action


class Funding(NamedTuple):
    """Cash or shares enter an account from outside, or leave it."""

    gateway: int
    gateway_number: int
    account: str
    asset: str  # a symbol, or CASH
    amount: int  # 1e-9; above zero is a deposit, below is a withdrawal


class Pulse(NamedTuple):
    """Nothing but the passing of time: it makes a token that moves the clocks of auctions while nobody trades."""


class TradeReport(NamedTuple):
    """The arbiter's word on one token: how many trades it made, and the digest of all trades up to and including it.

    The token is named with its formation, because a Break may take the token away and give its number to another one:
    an arbiter that reported in good faith must not be accused for what the ring has lost.
    """

    formation: int
    token: int
    trade_count: int
    trades_hash: bytes
