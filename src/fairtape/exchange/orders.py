"""Messages of a floor, as values and as bytes: requests of traders, commands of operators, reports of arbiters.

Every request names the gateway (S_P) that vouches for it and that gateway's own number for it. The number only
increases, so a replayed request is recognised wherever it comes from: the floor compares the gateway with the source
that the ring proves, and the number with the last one. It needs no table of past requests.

Markets open, halt and close, and accounts are funded, by messages in the sequence itself. So the whole state of a floor
is a projection of the sequence: replaying it from the first message gives the same books and the same balances.

The values are plain tuples because hundreds of thousands of them pass each second. `encode` and `decode` reject invalid
ones.

The bytes have fixed layouts, a kind and a version first, little-endian. Every message but the pulse and the report
starts with the same twenty bytes: kind, version, five option bytes, a zero, the gateway and its own number. `decode`
raises `BadOrder` for any bytes that `encode` does not produce, so equal values have equal bytes. The rule in an
`OpenMarket` is three option bytes and four numbers; unused ones are zero.
"""

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple, NoReturn, TypeAlias, TypeVar

from fairtape.core.instants import Instant
from fairtape.exchange.rules import (
    BadRule,
    BatchAuction,
    CallAuction,
    Candidates,
    Continuous,
    DutchClock,
    Pricing,
    Rounding,
    Rule,
    SecondPrice,
)
from fairtape.market.prices import FIXED_MAX, Price, Quantity, format_fixed
from fairtape.market.symbols import SYMBOL_MAX, Symbol

ACCOUNT_MAX: Final = 16  # characters
CLIENT_ID_MAX: Final = 20  # characters, enough for FIX engines and OUCH tokens
new_tuple: Final = tuple.__new__  # builds a named tuple in a third of the time of calling its class


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


# Kinds of rules in an `OpenMarket`.

CONTINUOUS: Final = 1
CALL_AUCTION: Final = 2
BATCH_AUCTION: Final = 3
SECOND_PRICE: Final = 4
DUTCH_CLOCK: Final = 5

RuleOptions: TypeAlias = tuple[int, int, int]
RuleParameters: TypeAlias = tuple[int, int, int, int]


def rule_fields(rule: Rule) -> tuple[RuleOptions, RuleParameters]:
    """A rule as the option bytes and numbers of a message."""
    match rule:
        case Continuous():
            return (CONTINUOUS, rule.pricing, rule.rounding), (rule.step, 0, 0, 0)
        case CallAuction():
            return (CALL_AUCTION, rule.candidates, 0), (rule.reference, 0, 0, 0)
        case BatchAuction():
            return (BATCH_AUCTION, 0, rule.rounding), (rule.period, 0, 0, 0)
        case SecondPrice():
            return (SECOND_PRICE, 0, 0), (0, 0, 0, 0)
        case DutchClock():
            return (DUTCH_CLOCK, 0, 0), (rule.start, rule.decrement, rule.step_period, rule.rewind)


def rule_of(options: RuleOptions, parameters: RuleParameters) -> Rule:
    """The rule in these fields. Raises `BadRule` for fields that `rule_fields` does not produce."""
    rule = _read(options, parameters)
    if rule_fields(rule) != (options, parameters):
        raise BadRule(f"options {options} and parameters {parameters} hold more than a {type(rule).__name__} has")
    return rule


def _read(options: RuleOptions, parameters: RuleParameters) -> Rule:
    kind, first, second = options
    try:
        match kind:
            case 1:
                return Continuous(pricing=Pricing(first), rounding=Rounding(second), step=parameters[0])
            case 2:
                return CallAuction(candidates=Candidates(first), reference=parameters[0])
            case 3:
                return BatchAuction(period=parameters[0], rounding=Rounding(second))
            case 4:
                return SecondPrice()
            case 5:
                start, decrement, step_period, rewind = parameters
                return DutchClock(start=start, decrement=decrement, step_period=step_period, rewind=rewind)
    except BadRule:
        raise
    except ValueError as error:
        raise BadRule(f"an option is refused: {error}") from None
    raise BadRule(f"kind is {kind}; rules are numbered from {CONTINUOUS} to {DUTCH_CLOCK}")


NEW_ORDER_KIND: Final = 0x4F  # O
CANCEL_KIND: Final = 0x58  # X
REPLACE_KIND: Final = 0x55  # U
OPEN_MARKET_KIND: Final = 0x4D  # M
CONTROL_KIND: Final = 0x48  # H
FUNDING_KIND: Final = 0x46  # F
PULSE_KIND: Final = 0x50  # P
TRADE_REPORT_KIND: Final = 0x52  # R
FLOOR_VERSION: Final = 1

FloorMessage: TypeAlias = NewOrder | Cancel | Replace | OpenMarket | Control | Funding | Pulse | TradeReport

_HEAD: Final = "<BBBBBBBBIQ"
_NEW_ORDER: Final = struct.Struct(f"{_HEAD}{ACCOUNT_MAX}s{CLIENT_ID_MAX}s{SYMBOL_MAX}sqqqq")
_CANCEL: Final = struct.Struct(f"{_HEAD}{ACCOUNT_MAX}s{CLIENT_ID_MAX}sq")
_REPLACE: Final = struct.Struct(f"{_HEAD}{ACCOUNT_MAX}s{CLIENT_ID_MAX}s{CLIENT_ID_MAX}sqqq")
_OPEN_MARKET: Final = struct.Struct(f"{_HEAD}{SYMBOL_MAX}sqqqqqqqq")
_CONTROL: Final = struct.Struct(f"{_HEAD}{SYMBOL_MAX}s")
_FUNDING: Final = struct.Struct(f"{_HEAD}{ACCOUNT_MAX}s{SYMBOL_MAX}sq")
_PULSE: Final = struct.Struct("<BB")
_TRADE_REPORT: Final = struct.Struct(f"<BBHIIQ{DIGEST_SIZE}s")

_Choice = TypeVar("_Choice", bound=IntEnum)


def _numbered(choices: type[_Choice]) -> Mapping[int, _Choice]:
    return {choice.value: choice for choice in choices}


_SIDES: Final = _numbered(Side)
_TYPES: Final = _numbered(OrderType)
_TIMES: Final = _numbered(TimeInForce)
_POLICIES: Final = _numbered(SelfTrade)
_ACTIONS: Final = _numbered(Action)
_PRICED: Final = frozenset((OrderType.LIMIT, OrderType.STOP_LIMIT))
_STOPPED: Final = frozenset((OrderType.STOP, OrderType.STOP_LIMIT))


def encode(message: FloorMessage) -> bytes:
    """The bytes of a message. Raises `BadOrder` for values that cannot be encoded."""
    try:
        payload = _encoded(message)
    except (struct.error, UnicodeEncodeError, BadRule) as error:
        raise BadOrder(f"{type(message).__name__} has a value that does not fit its field: {error}") from None
    if (decoded := decode(payload)) != message:
        name = next(name for name, one, other in zip(message._fields, message, decoded, strict=True) if one != other)
        raise BadOrder(f"{name} of {type(message).__name__} is longer than its field; shorten it")
    return payload


def decode(payload: bytes) -> FloorMessage:
    """The message in these bytes. Raises `BadOrder` for anything that `encode` does not produce."""
    reader = _READERS.get(payload[0]) if payload else None
    if reader is None:
        raise BadOrder(f"kind is {payload[:1].hex() or 'missing'}; no message of a floor begins with it")
    layout, read = reader
    if len(payload) != layout.size:
        raise BadOrder(f"size is {len(payload)} bytes; this kind has {layout.size}")
    if payload[1] != FLOOR_VERSION:
        raise BadOrder(f"version is {payload[1]}; it must be {FLOOR_VERSION}")
    return read(payload)


def _encoded(message: FloorMessage) -> bytes:
    match message:
        case NewOrder():
            return _new_order_bytes(message)
        case Cancel(gateway, number, account, order_id, entered_at):
            head = (CANCEL_KIND, FLOOR_VERSION, 0, 0, 0, 0, 0, 0, gateway, number)
            return _CANCEL.pack(*head, account.encode("ascii"), order_id.encode("ascii"), entered_at)
        case Replace(gateway, number, account, order_id, client_id, quantity, price, entered_at):
            head = (REPLACE_KIND, FLOOR_VERSION, 0, 0, 0, 0, 0, 0, gateway, number)
            names = (account.encode("ascii"), order_id.encode("ascii"), client_id.encode("ascii"))
            return _REPLACE.pack(*head, *names, quantity, price, entered_at)
        case OpenMarket(gateway, number, symbol, rule, tick, lot, low, high):
            options, parameters = rule_fields(rule)
            head = (OPEN_MARKET_KIND, FLOOR_VERSION, *options, 0, 0, 0, gateway, number)
            return _OPEN_MARKET.pack(*head, symbol.encode("ascii"), tick, lot, low, high, *parameters)
        case Control(gateway, number, symbol, action):
            head = (CONTROL_KIND, FLOOR_VERSION, action, 0, 0, 0, 0, 0, gateway, number)
            return _CONTROL.pack(*head, symbol.encode("ascii"))
        case Funding(gateway, number, account, asset, amount):
            head = (FUNDING_KIND, FLOOR_VERSION, 0, 0, 0, 0, 0, 0, gateway, number)
            return _FUNDING.pack(*head, account.encode("ascii"), asset.encode("ascii"), amount)
        case TradeReport(formation, token, count, trades_hash):
            return _TRADE_REPORT.pack(TRADE_REPORT_KIND, FLOOR_VERSION, 0, formation, count, token, trades_hash)
        case Pulse():
            return _PULSE.pack(PULSE_KIND, FLOOR_VERSION)


def _new_order_bytes(order: NewOrder) -> bytes:
    options = (order.side, order.order_type, order.time_in_force, order.self_trade, order.post_only, 0)
    return _NEW_ORDER.pack(
        NEW_ORDER_KIND,
        FLOOR_VERSION,
        *options,
        order.gateway,
        order.gateway_number,
        order.account.encode("ascii"),
        order.client_id.encode("ascii"),
        order.symbol.encode("ascii"),
        order.price,
        order.stop_price,
        order.quantity,
        order.entered_at,
    )


def _read_new_order(payload: bytes) -> NewOrder:
    _, _, side, kind, wait, policy, post, zero, gateway, number, *texts, price, stop, quantity, at = _NEW_ORDER.unpack(
        payload
    )
    possible = side in _SIDES and kind in _TYPES and wait in _TIMES and policy in _POLICIES and post <= 1 and not zero
    priced = (price > 0) == (kind in _PRICED) and (stop > 0) == (kind in _STOPPED) and price >= 0 and stop >= 0
    promised = not post or (kind == OrderType.LIMIT and wait == TimeInForce.DAY)
    if not (possible and priced and promised and quantity > 0 and at >= 0):
        raise BadOrder(_flaw_of_new_order(payload))
    names = _text("account", texts[0]), _text("client_id", texts[1]), _text("symbol", texts[2])
    choices = _TYPES[kind], _TIMES[wait], post == 1, _POLICIES[policy]
    return new_tuple(NewOrder, (gateway, number, *names, _SIDES[side], quantity, price, stop, *choices, at))


def _flaw_of_new_order(payload: bytes) -> str:
    """What is wrong with an invalid order: the field, the value and what is expected."""
    *head, _, _, _, price, stop, quantity, at = _NEW_ORDER.unpack(payload)
    for field, number, choices in (
        ("side", head[2], _SIDES),
        ("order_type", head[3], _TYPES),
        ("time_in_force", head[4], _TIMES),
        ("self_trade", head[5], _POLICIES),
        ("post_only", head[6], (0, 1)),
        ("options", head[7], (0,)),
    ):
        if number not in choices:
            return f"{field} is {number}; it must be one of {', '.join(map(str, choices))}"
    if quantity <= 0:
        return f"quantity is {format_fixed(quantity)}; it must be above 0"
    if at < 0:
        return f"entered_at is {at}; it must be at least 0"
    kind = _TYPES[head[3]]
    for field, number, kinds in (("price", price, _PRICED), ("stop_price", stop, _STOPPED)):
        if number < 0 or (number > 0) != (kind in kinds):
            return (
                f"{field} is {format_fixed(number)}; a {kind.name} order has {'one above 0' if kind in kinds else '0'}"
            )
    return "post_only is set; only a day limit order can be post-only"


def _read_cancel(payload: bytes) -> Cancel:
    *head, account, order_id, at = _CANCEL.unpack(payload)
    _refuse_options(head[2:8])
    if at < 0:
        _refused("entered_at", at)
    return Cancel(head[8], head[9], _text("account", account), _text("order_id", order_id), at)


def _read_replace(payload: bytes) -> Replace:
    *head, account, order_id, client_id, quantity, price, at = _REPLACE.unpack(payload)
    _refuse_options(head[2:8])
    for field, value, least in (("quantity", quantity, 1), ("price", price, 1), ("entered_at", at, 0)):
        if value < least:
            _refused(field, value)
    names = (_text("account", account), _text("order_id", order_id), _text("client_id", client_id))
    return Replace(head[8], head[9], *names, quantity, price, at)


def _read_open_market(payload: bytes) -> OpenMarket:
    *head, symbol, tick, lot, low, high, first, second, third, fourth = _OPEN_MARKET.unpack(payload)
    _refuse_options(head[5:8])
    for field, value, least in (("tick", tick, 1), ("lot", lot, 1), ("price_min", low, 0), ("price_max", high, 0)):
        if not least <= value <= FIXED_MAX:
            _refused(field, value)
    try:
        rule = rule_of((head[2], head[3], head[4]), (first, second, third, fourth))
    except BadRule as error:
        raise BadOrder(f"rule is refused: {error}") from None
    return OpenMarket(head[8], head[9], _text("symbol", symbol), rule, tick, lot, low, high)


def _read_control(payload: bytes) -> Control:
    *head, symbol = _CONTROL.unpack(payload)
    _refuse_options(head[3:8])
    action = _ACTIONS.get(head[2]) or _refused("action", head[2])
    return Control(head[8], head[9], _text("symbol", symbol), action)


def _read_funding(payload: bytes) -> Funding:
    *head, account, asset, amount = _FUNDING.unpack(payload)
    _refuse_options(head[2:8])
    if amount == 0:
        _refused("amount", amount)
    name = CASH if not asset.strip(b"\0") else _text("asset", asset)
    return Funding(head[8], head[9], _text("account", account), name, amount)


def _read_pulse(_payload: bytes) -> Pulse:
    return Pulse()


def _read_trade_report(payload: bytes) -> TradeReport:
    _, _, zero, formation, count, token, trades_hash = _TRADE_REPORT.unpack(payload)
    if zero:
        _refused("options", zero)
    return TradeReport(formation, token, count, trades_hash)


def _text(field: str, padded: bytes) -> str:
    """One or more printable ascii characters without blanks, padded with zeros only."""
    text = padded.rstrip(b"\0").decode("latin-1")
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise BadOrder(f"{field} is {text!r}; it must be printable ascii characters without blanks, at least one")
    return text


def _refused(field: str, value: int) -> NoReturn:
    raise BadOrder(f"{field} is {value}; that is not a valid value")


def _refuse_options(options: list[int]) -> None:
    for option in options:
        if option:
            _refused("options", option)


_READERS: Final[Mapping[int, tuple[struct.Struct, Callable[[bytes], FloorMessage]]]] = {
    NEW_ORDER_KIND: (_NEW_ORDER, _read_new_order),
    CANCEL_KIND: (_CANCEL, _read_cancel),
    REPLACE_KIND: (_REPLACE, _read_replace),
    OPEN_MARKET_KIND: (_OPEN_MARKET, _read_open_market),
    CONTROL_KIND: (_CONTROL, _read_control),
    FUNDING_KIND: (_FUNDING, _read_funding),
    PULSE_KIND: (_PULSE, _read_pulse),
    TRADE_REPORT_KIND: (_TRADE_REPORT, _read_trade_report),
}
FLOOR_KINDS: Final = frozenset(_READERS)
