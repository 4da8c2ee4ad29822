"""The state of every order, and the events that led to it: the floor's outputs from the traders' point of view.

Orders are keyed by sequence number, because a replace changes their client id. Both tables are bounded: completed
orders are dropped in the order of completion, events in the order of arrival.
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from fairtape.core.instants import Instant
from fairtape.exchange.orders import Cancel, FloorMessage, NewOrder, OrderType, Replace, Side, TimeInForce
from fairtape.exchange.outputs import (
    BUYER_TOOK,
    SELLER_TOOK,
    Cancelled,
    Committed,
    Execution,
    FloorOutput,
    Funded,
    Rejected,
    Replaced,
    Sequenced,
    TentativeFill,
    Voided,
)
from fairtape.gateway.core.events import EventKind, OrderEvent, RequestKind
from fairtape.market.prices import ONE, Price, Quantity
from fairtape.market.symbols import Symbol

EVENTS_MAX: Final = 1 << 19
DONE_MAX: Final = 1 << 17
BREAKS_MAX: Final = 1_024

Requests: TypeAlias = Callable[[int], FloorMessage | None]
"""The message with a sequence number."""

_NUMBERS_PER_OUTPUT: Final = 2  # a trade is one event for its buyer and one for its seller


@dataclass(slots=True)
class OrderRecord:
    """The state of one order."""

    number: int
    account: str
    client_id: str
    symbol: Symbol
    side: Side
    order_type: OrderType
    time_in_force: TimeInForce
    price: Price
    stop_price: Price
    quantity: Quantity
    open: Quantity
    filled: Quantity = 0
    spent: int = 0  # in units of 1e-18
    ceiling: Price = 0  # highest price of its market; for market orders only

    @property
    def exposure(self) -> int:
        """What is still open, at its limit."""
        return (self.price or self.ceiling) * self.open // ONE


class Blotter:
    """All orders of the floor, and the latest events."""

    def __init__(
        self,
        *,
        events_max: int = EVENTS_MAX,
        done_max: int = DONE_MAX,
        ceiling: Callable[[Symbol], Price] = lambda _symbol: 0,
    ) -> None:
        """`ceiling` gives the highest price of a market, at which a resting market order counts."""
        self._ceiling = ceiling
        self._orders: dict[int, OrderRecord] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._done: OrderedDict[int, None] = OrderedDict()
        self._done_max = done_max
        self._events: deque[OrderEvent] = deque(maxlen=events_max)
        self._exposure: dict[str, int] = {}
        self._outputs = 0  # of the floor, since the start of the sequence
        self._new_events: list[OrderEvent] = []
        self._breaks: deque[tuple[int, int]] = deque(maxlen=BREAKS_MAX)  # era, last number before it
        self.forgotten = 0  # number of the latest event that is no longer kept
        self.era = 0

    # Queries.

    @property
    def last(self) -> int:
        """No event has a higher number."""
        return _NUMBERS_PER_OUTPUT * self._outputs + 1

    def order(self, account: str, client_id: str) -> OrderRecord | None:
        """The order with this client id, while it is remembered."""
        number = self._numbers.get((account, client_id))
        return None if number is None else self._orders.get(number)

    def exposure(self, account: str) -> int:
        """The value of all open orders of an account, at their limits."""
        return self._exposure.get(account, 0)

    def since(self, number: int, accounts: Collection[str]) -> Iterator[OrderEvent]:
        """The events of these accounts after a number, as far as they are kept."""
        first = bisect_right(self._events, number, key=lambda event: event.number)
        for index in range(first, len(self._events)):
            if self._events[index].account in accounts:
                yield self._events[index]

    def resume_after(self, era: int, number: int) -> int:
        """After which number a trader resumes who has seen events of an earlier era: a Break may have revoked some."""
        return min([number, *(last for broken, last in self._breaks if broken > era)])

    def drain(self) -> list[OrderEvent]:
        """The events since the last call."""
        fresh, self._new_events = self._new_events, []
        return fresh

    # Input.

    def book(self, outputs: Iterable[FloorOutput], requests: Requests, at: Instant) -> None:
        """Record the floor's outputs for a token."""
        for output in outputs:
            self._outputs += 1
            match output:
                case TentativeFill(trade):
                    self._trade(EventKind.FILLED, trade, at)
                case Committed(trade):
                    self._trade(EventKind.COMMITTED, trade, at)
                case Sequenced():
                    self._sequenced(output, requests, at)
                case Cancelled():
                    self._cancelled(output, at)
                case Replaced():
                    self._replaced(output, at)
                case Rejected():
                    self._rejected(output, requests, at)
                case Funded(_, account, asset, amount):
                    self._record(
                        OrderEvent(
                            self.era,
                            _NUMBERS_PER_OUTPUT * self._outputs,
                            EventKind.FUNDED,
                            account,
                            "",
                            symbol=asset,
                            last_quantity=amount,
                            at=at,
                        )
                    )

    def apply_break(self, era: int, outputs: Iterable[FloorOutput]) -> None:
        """A Break: report void trades once, without event numbers, because other gateways may never have seen them."""
        self._breaks.append((era, self.last))
        self.era = era
        for output in outputs:
            if isinstance(output, Voided):
                for side, number, account in _sides(output.trade):
                    self._new_events.append(self._traded(EventKind.VOIDED, output.trade, side, number, account, 0, 0))

    # One method per output.

    def _sequenced(self, output: Sequenced, requests: Requests, at: Instant) -> None:
        request = requests(output.number)
        assert isinstance(request, NewOrder)
        order = OrderRecord(
            output.number,
            request.account,
            request.client_id,
            request.symbol,
            request.side,
            request.order_type,
            request.time_in_force,
            request.price,
            request.stop_price,
            request.quantity,
            request.quantity,
            ceiling=self._ceiling(request.symbol) if request.order_type is OrderType.MARKET else 0,
        )
        self._orders[order.number] = order
        self._numbers[order.account, order.client_id] = order.number
        self._add_exposure(order.account, order.exposure)
        self._record(self._event(EventKind.SEQUENCED, order)._replace(at=at))

    def _trade(self, kind: EventKind, trade: Execution, at: Instant) -> None:
        for side, number, account in _sides(trade):
            order = self._orders.get(number)
            if kind is EventKind.FILLED and order is not None:
                self._add_exposure(order.account, -order.exposure)
                order.filled += trade.quantity
                order.open -= trade.quantity
                order.spent += trade.price * trade.quantity
                self._add_exposure(order.account, order.exposure)
                self._end_if_done(order)
            place = _NUMBERS_PER_OUTPUT * self._outputs + (side is Side.SELL)
            self._record(self._traded(kind, trade, side, number, account, place, at))

    def _traded(
        self, kind: EventKind, trade: Execution, side: Side, number: int, account: str, place: int, at: Instant
    ) -> OrderEvent:
        order = self._orders.get(number)
        took = trade.aggressor == (BUYER_TOOK if side is Side.BUY else SELLER_TOOK)
        if order is not None:
            event = self._event(kind, order)._replace(number=place)
        else:
            name = trade.buy_client_id if side is Side.BUY else trade.sell_client_id
            event = OrderEvent(self.era, place, kind, account, name, number, symbol=trade.symbol, side=side)
        return event._replace(
            trade_id=trade.trade_id, last_price=trade.price, last_quantity=trade.quantity, took=took, at=at
        )

    def _cancelled(self, output: Cancelled, at: Instant) -> None:
        order = self._orders.get(output.order)
        if order is None:
            return
        self._add_exposure(order.account, -order.exposure)
        order.open = output.open
        order.quantity = order.filled + output.open if output.open else order.quantity
        self._add_exposure(order.account, order.exposure)
        self._end_if_done(order)
        event = self._event(EventKind.CANCELLED, order)
        self._record(event._replace(last_quantity=output.quantity, reason=output.reason, at=at))

    def _replaced(self, output: Replaced, at: Instant) -> None:
        order = self._orders.get(output.order)
        if order is None:
            return
        self._add_exposure(order.account, -order.exposure)
        self._numbers.pop((order.account, order.client_id), None)
        order.client_id, order.price = output.client_id, output.price
        order.open = output.open
        order.quantity = order.filled + output.open
        self._numbers[order.account, order.client_id] = order.number
        self._add_exposure(order.account, order.exposure)
        self._record(self._event(EventKind.REPLACED, order)._replace(previous_id=output.order_id, at=at))

    def _rejected(self, output: Rejected, requests: Requests, at: Instant) -> None:
        if not output.account:
            return
        request = requests(output.number)
        if request is None or getattr(request, "gateway", output.source) != output.source:
            return  # a request that another source replayed does not concern the account
        asked, about = RequestKind.OTHER, output.client_id
        event = OrderEvent(
            self.era, _NUMBERS_PER_OUTPUT * self._outputs, EventKind.REJECTED, output.account, output.client_id, at=at
        )
        match request:
            case NewOrder(symbol=symbol, side=side, price=price, quantity=quantity):
                asked = RequestKind.ORDER
                event = event._replace(symbol=symbol, side=side, price=price, quantity=quantity)
            case Cancel():
                asked = RequestKind.CANCEL
            case Replace(order_id=order_id):
                asked, about = RequestKind.REPLACE, order_id
        stands = (output.account, output.client_id) in self._numbers
        self._record(event._replace(previous_id=about, asked=asked, stands=stands, reason=output.reason))

    # Tables.

    def _add_exposure(self, account: str, amount: int) -> None:
        self._exposure[account] = self._exposure.get(account, 0) + amount

    def _end_if_done(self, order: OrderRecord) -> None:
        if order.open:
            return
        self._done[order.number] = None
        if len(self._done) > self._done_max:
            oldest, _ = self._done.popitem(last=False)
            gone = self._orders.pop(oldest)
            self._numbers.pop((gone.account, gone.client_id), None)

    def _event(self, kind: EventKind, order: OrderRecord) -> OrderEvent:
        return OrderEvent(
            self.era,
            _NUMBERS_PER_OUTPUT * self._outputs,
            kind,
            order.account,
            order.client_id,
            order.number,
            "",
            order.symbol,
            order.side,
            order.order_type,
            order.time_in_force,
            order.price,
            order.stop_price,
            order.quantity,
            order.filled,
            order.open,
            order.spent,
        )

    def _record(self, event: OrderEvent) -> None:
        if len(self._events) == self._events.maxlen:
            self.forgotten = self._events[0].number
        self._events.append(event)
        self._new_events.append(event)


def _sides(trade: Execution) -> tuple[tuple[Side, int, str], tuple[Side, int, str]]:
    return (Side.BUY, trade.buy_order, trade.buyer), (Side.SELL, trade.sell_order, trade.seller)
