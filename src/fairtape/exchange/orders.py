"""Messages of a floor as values: requests of traders, commands of operators, reports of arbiters.

Every request names the gateway (S_P) that vouches for it and that gateway's own number for it. The number only
increases, so a replayed request is recognised wherever it comes from: the floor compares the gateway with the source
that the ring proves, and the number with the last one. It needs no table of past requests.

Markets open, halt and close, and accounts are funded, by messages in the sequence itself. So the whole state of a floor
is a projection of the sequence: replaying it from the first message gives the same books and the same balances.

These are plain tuples because hundreds of thousands of them pass each second. `fairtape.exchange.order_codec` rejects
invalid ones in both directions.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from fairtape.core.instants import Instant
from fairtape.exchange.rules import Rule
from fairtape.market.prices import Price, Quantity
from fairtape.market.symbols import Symbol

ACCOUNT_MAX: Final = 16  # characters
CLIENT_ID_MAX: Final = 20  # characters, enough for FIX engines and OUCH tokens


class BadOrder(ValueError):
    """Bytes or values that are no message of a floor; the text names the field, the value and the remedy."""


class Side(IntEnum):
    """Side of an order. The numbers are those of FIX tag 54."""

    BUY = 1
    SELL = 2


class OrderType(IntEnum):
    """Type of an order. The numbers are those of FIX tag 40."""

    MARKET = 1  # at any price; never rests in a continuous market
    LIMIT = 2
    STOP = 3  # becomes a market order when a trade reaches the stop price
    STOP_LIMIT = 4  # becomes a limit order then


class TimeInForce(IntEnum):
    """How long an order stays open. The numbers are those of FIX tag 59."""

    DAY = 0  # until the market closes
    IOC = 3  # immediate or cancel: what is not filled at once is cancelled
    FOK = 4  # fill or kill: filled at once and completely, or cancelled


class SelfTrade(IntEnum):
    """What happens when an order meets another one of the same account. The policy of the arriving order decides."""

    ALLOW = 0
    CANCEL_NEWEST = 1  # cancel what is left of the arriving order
    CANCEL_OLDEST = 2  # cancel the resting order, and let the arriving one continue
    CANCEL_BOTH = 3
    DECREMENT = 4  # reduce both by the smaller of the two quantities, without a trade


class NewOrder(NamedTuple):
    """A new order, as its gateway enters it."""

    gateway: int  # the source that vouches for it
    gateway_number: int  # that source's own number of this request; increases with each
    account: str
    client_id: str  # the trader's own id of the order; an account never reuses one
    symbol: Symbol
    side: Side
    quantity: Quantity  # 1e-9
    price: Price = 0  # 1e-9; 0 for market and stop orders
    stop_price: Price = 0  # 1e-9; 0 for orders without a stop
    order_type: OrderType = OrderType.LIMIT
    time_in_force: TimeInForce = TimeInForce.DAY
    post_only: bool = False  # rest or be cancelled: never take
    self_trade: SelfTrade = SelfTrade.CANCEL_NEWEST
    entered_at: Instant = 0  # when the gateway accepted it


class Cancel(NamedTuple):
    """Cancel what is left of an order."""

    gateway: int
    gateway_number: int
    account: str
    order_id: str  # client id of the order
    entered_at: Instant = 0


class Replace(NamedTuple):
    """Change price and quantity of an order. It keeps its priority only if nothing but the quantity falls."""

    gateway: int
    gateway_number: int
    account: str
    order_id: str  # current client id of the order
    client_id: str  # its new client id
    quantity: Quantity  # new total quantity, including what has been filled
    price: Price = 0  # new limit
    entered_at: Instant = 0


CASH: Final = ""  # no symbol is empty
DIGEST_SIZE: Final = 32  # bytes of SHA-256


class OpenMarket(NamedTuple):
    """Open a market: from here on this symbol trades under this rule.

    A price times a quantity must be exact in units of 1e-9, so `tick` times `lot` must be a whole number of units.
    """

    gateway: int
    gateway_number: int
    symbol: Symbol
    rule: Rule
    tick: Price  # every limit is a multiple of it
    lot: Quantity  # every quantity is a multiple of it
    price_min: Price = 0  # the lowest limit; 0: one tick
    price_max: Price = 0  # the highest limit, at which an auction reserves for a market order; 0: none


class Action(IntEnum):
    """What an operator does to an open market."""

    HALT = 1  # only cancels are accepted
    RESUME = 2
    UNCROSS = 3  # ends the round of a call or sealed auction
    CLOSE = 4  # cancels all orders; the symbol can be opened again


class Control(NamedTuple):
    """An operator's command for one market."""

    gateway: int
    gateway_number: int
    symbol: Symbol
    action: Action


class Funding(NamedTuple):
    """A deposit of cash or shares into an account, or a withdrawal."""

    gateway: int
    gateway_number: int
    account: str
    asset: str  # a symbol, or CASH
    amount: int  # 1e-9; above zero a deposit, below zero a withdrawal


class Pulse(NamedTuple):
    """An empty message: it makes a token, whose instant advances the clocks of auctions while there are no orders."""


class TradeReport(NamedTuple):
    """The arbiter's report on one token: how many trades it made, and the digest of all trades up to and including it.

    The token is named with its formation, because a Break may revoke the token and reuse its number: an arbiter that
    reported correctly must not be accused for what the ring has lost.
    """

    formation: int
    token: int
    trade_count: int
    trades_hash: bytes
