"""FIX 4.4 messages as requests to a gateway, and order events as execution reports.

A client logs on under the name of its login. Its order is reported as PENDING_NEW when the gateway has accepted it, as
NEW with its sequence number (20001) when it is in the sequence, as TRADE with certainty T (20002) when it traded, and
as ORDER_STATUS with certainty C when that trade is committed and settled. A trade that a Break revoked is reported as
TRADE_CANCEL.

The ExecID of a report is the number of its event, and a session stores what it sent. So the store says which events
were reported, and a gateway that restarts continues exactly there. A client that resets its session at each logon gives
that up.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from fairtape.core.instants import Instant
from fairtape.exchange.orders import Cancel, NewOrder, OrderType, Replace, Side, TimeInForce
from fairtape.formats.fix import order_messages as fix
from fairtape.formats.fix.dictionary import BusinessReason
from fairtape.gateway.core.events import Answer, Cause, EventKind, OrderEvent, RequestKind
from fairtape.gateway.servers.fix_server import FixServer
from fairtape.gateway.servers.order_gateway import OrderGateway
from fairtape.gateway.session.effects import FixEvent, LoggedOn, Received
from fairtape.gateway.session.fix_session import FixStore

VENUE: Final = "FLOOR"  # the only valid ExDestination
CANCELS_MAX: Final = 65_536  # ClOrdIDs of cancels without a report
SCAN_BATCH: Final = 1_024  # messages read at a time when searching for the last event
NO_ORDER: Final = "NONE"
_EXEC_ID: Final = b"\x0117="

_REJECTIONS: Final[Mapping[Cause, fix.OrdRejReason]] = {
    Cause.ACCOUNT: fix.OrdRejReason.UNKNOWN_ACCOUNT,
    Cause.SYMBOL: fix.OrdRejReason.UNKNOWN_SYMBOL,
    Cause.VALUE: fix.OrdRejReason.OTHER,
    Cause.DUPLICATE: fix.OrdRejReason.DUPLICATE_ORDER,
    Cause.ORDER: fix.OrdRejReason.UNKNOWN_ORDER,
    Cause.FUNDS: fix.OrdRejReason.EXCEEDS_LIMIT,
    Cause.RATE: fix.OrdRejReason.EXCEEDS_LIMIT,
    Cause.LIMIT: fix.OrdRejReason.EXCEEDS_LIMIT,
    Cause.BUSY: fix.OrdRejReason.BROKER_OPTION,
}


class Unsupported(ValueError):
    """A request that this market does not support; the text names the field."""


class FixOrders:
    """The application behind the sessions of one acceptor."""

    def __init__(self, gateway: OrderGateway) -> None:
        self._gateway = gateway
        self._server: FixServer | None = None
        self._reported: dict[str, int] = {}  # client -> number of the last event reported
        self._cancels: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._local = 0

    def serve(self, server: FixServer, stores: Mapping[str, FixStore]) -> None:
        """Answer through this server, and report to clients of earlier sessions what they have not received yet."""
        self._server = server
        blotter = self._gateway.core.blotter
        for client, store in stores.items():
            era, number = last_reported(store)
            self._reported[client] = blotter.last if era < 0 else blotter.resume_after(era, number)
        self._gateway.add_listener(self)
        self._catch_up()

    # Requests of clients.

    def entered(self, client: str, value: fix.OrderEntry, received: Received, now: Instant) -> None:
        """A client sent this message; each number once, in order."""
        account = getattr(value, "account", None) or client
        try:
            match value:
                case fix.NewOrderSingle():
                    self._new(client, account, value, received, now)
                case fix.OrderCancelRequest():
                    self._cancel(client, account, value, now)
                case fix.OrderCancelReplaceRequest():
                    self._replace(client, account, value, now)
                case fix.OrderStatusRequest():
                    self._status(client, account, value, now)
                case _:
                    self._reject_type(client, received, now)
        except Unsupported as error:
            self._refuse(client, account, value, Answer(0, Cause.VALUE, str(error)), now)

    def changed(self, client: str, event: FixEvent, now: Instant) -> None:  # noqa: ARG002 - of `Application`
        """A client logged on or off. A new client gets events from now on."""
        if isinstance(event, LoggedOn):
            self._reported.setdefault(client, self._gateway.core.blotter.last)

    def _new(self, client: str, account: str, value: fix.NewOrderSingle, received: Received, now: Instant) -> None:
        answer = self._gateway.submit(client, order_of(account, value))
        if answer.cause is Cause.DUPLICATE and (received.repeated or received.resent):
            # The order was accepted, and the session lost it in a crash: its events report what became of it.
            if self._gateway.core.pending.find(account, value.cl_ord_id) is None:
                return
            answer = Answer(0)
        if not answer.entered:
            self._refuse(client, account, value, answer, now)
            return
        report = self._local_report(account, value, fix.ExecType.PENDING_NEW, fix.OrdStatus.PENDING_NEW, now)
        self._send(client, report)

    def _cancel(self, client: str, account: str, value: fix.OrderCancelRequest, now: Instant) -> None:
        answer = self._gateway.submit(client, Cancel(0, 0, account, value.orig_cl_ord_id))
        if answer.entered:
            self._cancels[account, value.orig_cl_ord_id] = value.cl_ord_id
            if len(self._cancels) > CANCELS_MAX:
                self._cancels.popitem(last=False)
        else:
            self._refuse(client, account, value, answer, now)

    def _replace(self, client: str, account: str, value: fix.OrderCancelReplaceRequest, now: Instant) -> None:
        if value.ord_type is not fix.OrdType.LIMIT or value.price is None:
            raise Unsupported("OrdType (40) must be 2; only limit orders can be replaced")
        names = (account, value.orig_cl_ord_id, value.cl_ord_id)
        answer = self._gateway.submit(client, Replace(0, 0, *names, value.order_qty, value.price))
        if not answer.entered:
            self._refuse(client, account, value, answer, now)

    def _status(self, client: str, account: str, value: fix.OrderStatusRequest, now: Instant) -> None:
        order = None
        if self._gateway.accounts.acts_for(client, account):
            order = self._gateway.core.blotter.order(account, value.cl_ord_id)
        status = fix.OrdStatus.REJECTED if order is None else _status_of(order.filled, order.open)
        report = fix.ExecutionReport(
            order_id=NO_ORDER if order is None else str(order.number),
            cl_ord_id=value.cl_ord_id,
            exec_id=self._local_id("S", now),
            exec_type=fix.ExecType.ORDER_STATUS,
            ord_status=status,
            account=account,
            symbol=value.symbol,
            side=value.side,
            leaves_qty=0 if order is None else order.open,
            cum_qty=0 if order is None else order.filled,
            avg_px=0 if order is None or not order.filled else order.spent // order.filled,
            transact_at=now,
            text="no such order" if order is None else None,
        )
        self._send(client, report)

    def _reject_type(self, client: str, received: Received, now: Instant) -> None:
        assert self._server is not None
        self._server.reject(client, received, BusinessReason.UNSUPPORTED_TYPE, "traders do not send this type", now)

    def _refuse(self, client: str, account: str, value: fix.OrderEntry, answer: Answer, now: Instant) -> None:
        assert answer.cause is not None
        if isinstance(value, fix.NewOrderSingle):
            report = self._local_report(account, value, fix.ExecType.REJECTED, fix.OrdStatus.REJECTED, now, answer)
            self._send(client, report)
        elif isinstance(value, fix.OrderCancelRequest | fix.OrderCancelReplaceRequest):
            replaces = isinstance(value, fix.OrderCancelReplaceRequest)
            self._send(
                client, self._cancel_reject(account, value.orig_cl_ord_id, value.cl_ord_id, replaces, answer, now)
            )

    def _cancel_reject(
        self, account: str, about: str, name: str, replaces: bool, answer: Answer, now: Instant
    ) -> fix.OrderCancelReject:
        order = self._gateway.core.blotter.order(account, about)
        duplicate, unknown = answer.cause is Cause.DUPLICATE, order is None
        reason = fix.CxlRejReason.UNKNOWN_ORDER if unknown else fix.CxlRejReason.OTHER
        return fix.OrderCancelReject(
            order_id=NO_ORDER if order is None else str(order.number),
            cl_ord_id=name,
            orig_cl_ord_id=about,
            ord_status=fix.OrdStatus.REJECTED if order is None else _status_of(order.filled, order.open),
            account=account,
            transact_at=now,
            response_to=fix.CxlRejResponseTo.REPLACE if replaces else fix.CxlRejResponseTo.CANCEL,
            reason=fix.CxlRejReason.DUPLICATE_ID if duplicate else reason,
            text=answer.reason or None,
        )

    def _local_report(
        self,
        account: str,
        value: fix.NewOrderSingle,
        exec_type: fix.ExecType,
        status: fix.OrdStatus,
        now: Instant,
        answer: Answer | None = None,
    ) -> fix.ExecutionReport:
        refused = answer is not None and answer.cause is not None
        return fix.ExecutionReport(
            order_id=NO_ORDER,
            cl_ord_id=value.cl_ord_id,
            exec_id=self._local_id("R" if refused else "P", now),
            exec_type=exec_type,
            ord_status=status,
            ord_rej_reason=_REJECTIONS[answer.cause] if answer is not None and answer.cause is not None else None,
            account=account,
            symbol=value.symbol,
            side=value.side,
            order_qty=value.order_qty,
            leaves_qty=0 if refused else value.order_qty,
            cum_qty=0,
            avg_px=0,
            transact_at=now,
            text=answer.reason if answer is not None else None,
        )

    def _local_id(self, letter: str, now: Instant) -> str:
        self._local += 1
        return f"{letter}{now}-{self._local}"

    # Events of the sequence.

    def on_events(self, events: Sequence[OrderEvent]) -> None:
        for event in events:
            if event.kind is EventKind.VOIDED:
                for client in self._reported:
                    if event.account in self._gateway.accounts.scope(client):
                        self._report(client, event)
        self._catch_up()

    def on_break(self) -> None:
        """Events were revoked; the ones that follow reuse their numbers, in another era."""
        last = self._gateway.core.blotter.last
        self._reported = {client: min(reported, last) for client, reported in self._reported.items()}
        self._catch_up()

    def _catch_up(self) -> None:
        blotter = self._gateway.core.blotter
        for client, reported in self._reported.items():
            if reported < blotter.last:
                self._reported[client] = blotter.last
                scope: Collection[str] = self._gateway.accounts.scope(client)
                for event in blotter.since(reported, scope):
                    self._report(client, event)

    def _report(self, client: str, event: OrderEvent) -> None:
        if event.kind is EventKind.REJECTED and event.asked in (RequestKind.CANCEL, RequestKind.REPLACE):
            replaces, about = event.asked is RequestKind.REPLACE, event.previous_id
            if self._is_settled(event):
                return
            name = event.client_id if replaces else self._cancels.pop((event.account, about), about)
            answer = Answer(0, Cause.ORDER, event.reason)
            self._send(client, self._cancel_reject(event.account, about, name, replaces, answer, event.at))
        elif event.kind is EventKind.REJECTED and (event.asked is not RequestKind.ORDER or event.stands):
            return  # concerns no FIX order, or one that exists
        elif event.kind is not EventKind.FUNDED:
            self._send(client, self._event_report(event))

    def _is_settled(self, event: OrderEvent) -> bool:
        """Whether the cancel is a duplicate, and the first one succeeded.

        A gateway that was killed enters again what is not in the sequence yet, while its first copy may still arrive.
        The order is cancelled as requested, and no client waits for another answer.
        """
        order = self._gateway.core.blotter.order(event.account, event.previous_id)
        waits = (event.account, event.previous_id) in self._cancels
        cancelled = order is not None and not order.open and order.filled < order.quantity
        return event.asked is RequestKind.CANCEL and cancelled and not waits

    def _event_report(self, event: OrderEvent) -> fix.ExecutionReport:
        exec_type, certainty = _KINDS[event.kind]
        name, previous = event.client_id, event.previous_id or None
        if event.kind is EventKind.CANCELLED:
            if event.open:
                exec_type = fix.ExecType.RESTATED
            elif asked := self._cancels.pop((event.account, name), None):
                name, previous = asked, name
        traded = event.kind in (EventKind.FILLED, EventKind.COMMITTED, EventKind.VOIDED)
        rejected = event.kind is EventKind.REJECTED
        cancelled = event.kind is EventKind.CANCELLED and not event.open
        status = _status_of(event.filled, event.open, cancelled=cancelled)
        return fix.ExecutionReport(
            order_id=str(event.order) if event.order else NO_ORDER,
            cl_ord_id=name,
            orig_cl_ord_id=previous,
            exec_id=_event_id(event),
            exec_type=exec_type,
            ord_status=fix.OrdStatus.REJECTED if rejected else status,
            ord_rej_reason=fix.OrdRejReason.OTHER if rejected else None,
            account=event.account,
            symbol=event.symbol,
            side=fix.FixSide.BUY if event.side is Side.BUY else fix.FixSide.SELL,
            order_qty=event.quantity or None,
            price=event.price or None,
            last_qty=event.last_quantity if traded else None,
            last_px=event.last_price if traded else None,
            leaves_qty=event.open,
            cum_qty=event.filled,
            avg_px=event.average,
            transact_at=event.at or None,
            text=f"trade {event.trade_id}" if traded else event.reason or None,
            sequence=event.order or None,
            certainty=certainty,
        )

    def _send(self, client: str, value: fix.OrderEntry) -> None:
        assert self._server is not None
        self._server.send(client, value)


_KINDS: Final[Mapping[EventKind, tuple[fix.ExecType, fix.Certainty | None]]] = {
    EventKind.SEQUENCED: (fix.ExecType.NEW, None),
    EventKind.REPLACED: (fix.ExecType.REPLACED, None),
    EventKind.FILLED: (fix.ExecType.TRADE, fix.Certainty.TENTATIVE),
    EventKind.COMMITTED: (fix.ExecType.ORDER_STATUS, fix.Certainty.COMMITTED),
    EventKind.VOIDED: (fix.ExecType.TRADE_CANCEL, None),
    EventKind.CANCELLED: (fix.ExecType.CANCELED, None),
    EventKind.REJECTED: (fix.ExecType.REJECTED, None),
}
_TYPES: Final[Mapping[fix.OrdType, OrderType]] = {each: OrderType(int(each.value)) for each in fix.OrdType}
_TIMES: Final[Mapping[fix.FixTimeInForce | None, TimeInForce]] = {
    None: TimeInForce.DAY,
    fix.FixTimeInForce.DAY: TimeInForce.DAY,
    fix.FixTimeInForce.IMMEDIATE_OR_CANCEL: TimeInForce.IOC,
    fix.FixTimeInForce.FILL_OR_KILL: TimeInForce.FOK,
}
_SIDES: Final[Mapping[fix.FixSide, Side]] = {fix.FixSide.BUY: Side.BUY, fix.FixSide.SELL: Side.SELL}


def order_of(account: str, value: fix.NewOrderSingle) -> NewOrder:
    """The order in a message. Raises `Unsupported` for a request that this market does not support."""
    if value.side not in _SIDES:
        raise Unsupported(f"Side (54) is {value.side.value}; only 1 and 2 are supported")
    if value.time_in_force not in _TIMES:
        raise Unsupported("TimeInForce (59) must be 0, 3 or 4")
    if value.exec_inst not in (None, "6"):
        raise Unsupported(f"ExecInst (18) is {value.exec_inst}; only 6 (post-only) is supported")
    if value.min_qty is not None:
        raise Unsupported("MinQty (110) is given; it is not supported")
    if value.ex_destination not in (None, VENUE):
        raise Unsupported(f"ExDestination (100) is {value.ex_destination}; this gateway enters orders into {VENUE}")
    return NewOrder(
        0,
        0,
        account,
        value.cl_ord_id,
        value.symbol,
        _SIDES[value.side],
        value.order_qty,
        value.price or 0,
        value.stop_px or 0,
        _TYPES[value.ord_type],
        _TIMES[value.time_in_force],
        value.exec_inst == "6",
    )


def last_reported(store: FixStore) -> tuple[int, int]:
    """The era and number of the last event that a session sent; (-1, 0) if it has stored none."""
    last = store.next_out - 1
    while last > 0:
        first = max(last - SCAN_BATCH + 1, 1)
        kept = list(store.kept(first, last))
        for _, octets in reversed(kept):
            if (found := _event_in(octets)) is not None:
                return found
        last = first - 1
    return -1, 0


def _event_id(event: OrderEvent) -> str:
    return f"{event.era}.{event.number}" if event.number else f"V{event.era}.{event.trade_id}.{event.side.name}"


def _event_in(octets: bytes) -> tuple[int, int] | None:
    _, _, rest = octets.partition(_EXEC_ID)
    era, _, number = rest.partition(b"\x01")[0].partition(b".")
    return (int(era), int(number)) if era.isdigit() and number.isdigit() else None


def _status_of(filled: int, left: int, *, cancelled: bool = False) -> fix.OrdStatus:
    if cancelled:
        return fix.OrdStatus.CANCELED
    if not filled:
        return fix.OrdStatus.NEW if left else fix.OrdStatus.CANCELED
    return fix.OrdStatus.PARTIALLY_FILLED if left else fix.OrdStatus.FILLED
