"""OUCH 4.2 as requests to a gateway, and events as the messages that OUCH has for them.

OUCH knows whole shares and prices with four decimals; what has no such form here is rejected. It knows nothing of
tentative trades: an Executed is sent when the sequence has made the trade, and a Broken Trade in the rare case that a
Break takes it away again before it commits.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from fairtape.core.instants import SECOND, Instant
from fairtape.exchange.orders import Cancel, NewOrder, OpenMarket, OrderType, Replace, Side, TimeInForce
from fairtape.exchange.rules.values import Continuous
from fairtape.formats import ouch
from fairtape.gateway.core.events import Asked, Cause, EventKind, OrderEvent
from fairtape.market.prices import ONE

PRICE_UNIT: Final = ONE // 10_000
DAY_PERIOD: Final = 86_400 * SECOND
U32_MAX: Final = (1 << 32) - 1
_SIDES: Final[Mapping[str, Side]] = {"B": Side.BUY, "S": Side.SELL}
_LETTERS: Final[Mapping[Side, str]] = {Side.BUY: "B", Side.SELL: "S"}
_REASONS: Final[Mapping[Cause, str]] = {  # of Rejected: the letters of the specification, as far as they fit
    Cause.ACCOUNT: "O",
    Cause.SYMBOL: "S",
    Cause.VALUE: "X",
    Cause.FUNDS: "Z",
    Cause.RATE: "L",
    Cause.LIMIT: "Z",
    Cause.BUSY: "H",
}
OTHER: Final = "O"
# What OUCH says of an order and this market does not know is always the same.
_NO_FIRM: Final = ""
_DISPLAYED: Final = "Y"
_UNKNOWN_HERE: Final = ("O", "N", 0, "N")  # capacity, intermarket sweep, minimum quantity, cross type
_LIVE: Final = "L"
_NO_WEIGHT: Final = ""
_Terms: TypeAlias = tuple[str, str, int, str, int, int, str, str, int, str, str, int, str, str]


class NotExpressible(ValueError):
    """A wish that this market does not know, with the letter of its rejection."""


def order_of(account: str, message: ouch.EnterOrder) -> NewOrder:
    """The order that a client enters. Raises `NotExpressible` for what this market does not know."""
    if message.side not in _SIDES or message.cross_type != "N" or message.minimum_quantity:
        raise NotExpressible("X")
    immediate = message.time_in_force == ouch.IMMEDIATE
    if not immediate and message.time_in_force not in (ouch.MARKET_HOURS, ouch.SYSTEM_HOURS):
        raise NotExpressible("X")
    market = message.price == ouch.MARKET_PRICE
    return NewOrder(
        0,
        0,
        account,
        message.order_token,
        message.stock,
        _SIDES[message.side],
        message.shares * ONE,
        0 if market else message.price * PRICE_UNIT,
        0,
        OrderType.MARKET if market else OrderType.LIMIT,
        TimeInForce.IOC if immediate else TimeInForce.DAY,
        message.display == "P" and not immediate,
    )


def check_tellable(terms: OpenMarket) -> None:
    """Raise `NotExpressible` for a market whose quantities or prices are finer than OUCH can express."""
    step = terms.rule.step if isinstance(terms.rule, Continuous) and terms.rule.step else terms.tick
    if terms.lot % ONE or step % PRICE_UNIT or terms.price_max > U32_MAX * PRICE_UNIT:
        raise NotExpressible("X")


def replace_of(account: str, message: ouch.ReplaceOrder) -> Replace:
    """Other terms for an order."""
    names = (account, message.existing_token, message.replacement_token)
    return Replace(0, 0, *names, message.shares * ONE, message.price * PRICE_UNIT)


def cancel_of(account: str, message: ouch.CancelOrder) -> Cancel:
    """Take an order out. Raises `NotExpressible` where some of it should stay: a replace says that better."""
    if message.shares:
        raise NotExpressible("X")
    return Cancel(0, 0, account, message.order_token)


def rejected(token: str, cause: Cause | None, now: Instant) -> ouch.Outbound:
    """The gateway's own no."""
    return ouch.Rejected(now % DAY_PERIOD, token, OTHER if cause is None else _REASONS.get(cause, OTHER))


def message_of(event: OrderEvent) -> ouch.Outbound | None:
    """What a client is told of an event; None where OUCH has no words for it."""
    at = event.at % DAY_PERIOD
    match event.kind:
        case EventKind.SEQUENCED:
            return ouch.Accepted(at, *_terms(event, event.quantity), _NO_WEIGHT)
        case EventKind.REPLACED:
            return ouch.Replaced(at, *_terms(event, event.open), event.previous_id, _NO_WEIGHT)
        case EventKind.FILLED:
            flag = "R" if event.took else "A"
            terms = (_shares(event.last_quantity), _price(event.last_price), flag, event.trade_id)
            return ouch.Executed(at, event.client_id, *terms)
        case EventKind.VOIDED:
            return ouch.BrokenTrade(at, event.client_id, event.trade_id, "S")
        case EventKind.CANCELLED:
            return ouch.Canceled(at, event.client_id, _shares(event.last_quantity), _cancel_reason(event))
        case EventKind.REJECTED if event.asked is Asked.ORDER and not event.stands:
            return ouch.Rejected(at, event.client_id, OTHER)
        case EventKind.REJECTED if event.asked in (Asked.CANCEL, Asked.REPLACE):
            return ouch.CancelReject(at, event.previous_id)
    return None


def _terms(event: OrderEvent, shares: int) -> _Terms:
    """An order as Accepted and Replaced name it, from its token to its state."""
    ours = (event.client_id, _LETTERS[event.side], _shares(shares), event.symbol, _limit(event), _force(event))
    return *ours, _NO_FIRM, _DISPLAYED, event.order, *_UNKNOWN_HERE, _LIVE


def _limit(event: OrderEvent) -> int:
    return ouch.MARKET_PRICE if event.order_type is OrderType.MARKET else _price(event.price)


def _force(event: OrderEvent) -> int:
    return ouch.MARKET_HOURS if event.time_in_force is TimeInForce.DAY else ouch.IMMEDIATE


def _shares(quantity: int) -> int:
    return min(quantity // ONE, U32_MAX)


def _price(price: int) -> int:
    return min(price // PRICE_UNIT, U32_MAX)


def _cancel_reason(event: OrderEvent) -> str:
    if event.time_in_force is not TimeInForce.DAY or event.order_type is OrderType.MARKET:
        return "I"
    return "Q" if "own account" in event.reason else "U"
