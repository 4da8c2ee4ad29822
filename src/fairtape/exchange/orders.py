"""What traders ask of a floor: orders, cancels and replaces, as values.

Every request names the gateway (S_P) that vouches for it and that gateway's own number for it. The number only ever
rises, so a captured request that is played again is known as old wherever it comes from: the floor compares the name
with the source that the ring proves, and the number with the last one. No table of past requests is needed for that.

These are plain tuples because hundreds of thousands of them pass each second; `fairtape.exchange.order_codec` refuses
the impossible ones at the border, in both directions.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from fairtape.core.instants import Instant
from fairtape.exchange.rules.values import Rule
from fairtape.market.prices import Price, Quantity
from fairtape.market.symbols import Symbol

ACCOUNT_MAX: Final = 16  # characters
CLIENT_ID_MAX: Final = 20  # characters: what FIX engines and OUCH tokens need


class BadOrder(ValueError):
    """Bytes or values that are no request to a floor; the message names the field, what was found and the remedy."""


class Side(IntEnum):
    """Which way the shares go. The numbers are those of FIX tag 54."""

    BUY = 1
    SELL = 2


class OrderType(IntEnum):
    """What the price of an order means. The numbers are those of FIX tag 40."""

    MARKET = 1  # whatever the other side asks; never rests in a continuous market
    LIMIT = 2
    STOP = 3  # becomes a market order when a trade reaches the stop price
    STOP_LIMIT = 4  # becomes a limit order then


class TimeInForce(IntEnum):
    """How long an order waits. The numbers are those of FIX tag 59."""

    DAY = 0  # until the market closes
    IOC = 3  # what is not filled at once is cancelled
    FOK = 4  # filled at once and whole, or cancelled


class SelfTrade(IntEnum):
    """What happens when an order meets another one of the same account. The arriving order's policy decides."""

    ALLOW = 0
    CANCEL_NEWEST = 1  # the rest of the arriving order goes
    CANCEL_OLDEST = 2  # the resting order goes, and the arriving one looks on
    CANCEL_BOTH = 3
    DECREMENT = 4  # both lose the smaller of the two quantities, without a trade


class NewOrder(NamedTuple):
    """An order as its gateway enters it."""

    gateway: int  # the source that vouches for it
    gateway_number: int  # that source's own number of this request; rises with each
    account: str
    client_id: str  # the trader's own name of the order, never used twice by an account
    symbol: Symbol
    side: Side
    quantity: Quantity  # 1e-9
    price: Price = 0  # 1e-9; 0 for market and stop orders
    stop_price: Price = 0  # 1e-9; 0 for orders that do not stop
    order_type: OrderType = OrderType.LIMIT
    time_in_force: TimeInForce = TimeInForce.DAY
    post_only: bool = False  # rest or be refused: never take
    self_trade: SelfTrade = SelfTrade.CANCEL_NEWEST
    entered_at: Instant = 0  # when the gateway took it


class Cancel(NamedTuple):
    """Take what is left of an order out of the market."""

    gateway: int
    gateway_number: int
    account: str
    order_id: str  # the client id of the order
    entered_at: Instant = 0


class Replace(NamedTuple):
    """Change an order's price and quantity. It keeps its place when only the quantity falls, and loses it otherwise."""

    gateway: int
    gateway_number: int
    account: str
    order_id: str  # the client id that the order has
    client_id: str  # and the one that it will have
    quantity: Quantity  # the new whole one, which counts what has been filled
    price: Price = 0  # the new limit
    entered_at: Instant = 0


# What operators and arbiters put into the sequence: markets, money and reports.
#
# Markets open, halt and close, and accounts are funded, by messages in the order itself. So the whole state of a floor
# is a projection of the sequence: whoever replays it from the first message holds the same books and the same
# balances.

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
