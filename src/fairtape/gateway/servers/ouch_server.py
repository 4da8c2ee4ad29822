"""OUCH 4.2 over SoupBinTCP: requests as unsequenced data, reports as sequenced data.

The reports of a login are numbered from 1 in a session that lasts as long as this process. A client that reconnects
asks for the next number it expects and gets every later message once. A new process starts a new session, with all that
it still knows of the login's orders.

Only the account of the login itself is traded: OUCH has no field for another one.

OUCH has whole shares and prices with four decimals; a market that needs more is refused. It has no tentative trades: an
Executed is sent when the trade is made, and a Broken Trade in the rare case that a Break revokes it before it commits.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.exchange.orders import Cancel, NewOrder, OpenMarket, OrderType, Replace, Side, TimeInForce
from fairtape.exchange.rules import Continuous
from fairtape.formats import ouch
from fairtape.formats import soupbintcp as soup
from fairtape.gateway.core.events import Answer, Cause, EventKind, OrderEvent, RequestKind
from fairtape.gateway.servers.authenticator import LoginAuthenticator
from fairtape.gateway.servers.order_gateway import OrderGateway
from fairtape.gateway.servers.streams import StreamWriter
from fairtape.market.prices import ONE

# Requests and events as OUCH messages.

PRICE_UNIT: Final = ONE // 10_000
DAY_PERIOD: Final = 86_400 * SECOND
U32_MAX: Final = (1 << 32) - 1
_SIDES: Final[Mapping[str, Side]] = {"B": Side.BUY, "S": Side.SELL}
_LETTERS: Final[Mapping[Side, str]] = {Side.BUY: "B", Side.SELL: "S"}
_REASONS: Final[Mapping[Cause, str]] = {  # of Rejected: the closest letters of the specification
    Cause.ACCOUNT: "O",
    Cause.SYMBOL: "S",
    Cause.VALUE: "X",
    Cause.FUNDS: "Z",
    Cause.RATE: "L",
    Cause.LIMIT: "Z",
    Cause.BUSY: "H",
}
OTHER: Final = "O"
# Constant values of OUCH fields that this market does not have.
_NO_FIRM: Final = ""
_DISPLAYED: Final = "Y"
_UNSUPPORTED: Final = ("O", "N", 0, "N")  # capacity, intermarket sweep, minimum quantity, cross type
_LIVE: Final = "L"
_NO_WEIGHT: Final = ""
_Terms: TypeAlias = tuple[str, str, int, str, int, int, str, str, int, str, str, int, str, str]


class NotExpressible(ValueError):
    """A request that this market does not support; the text is the letter of its rejection."""


def order_of(account: str, message: ouch.EnterOrder) -> NewOrder:
    """The order in a message. Raises `NotExpressible` for what this market does not support."""
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


def check_expressible(terms: OpenMarket) -> None:
    """Raise `NotExpressible` for a market whose quantities or prices are finer than OUCH can express."""
    step = terms.rule.step if isinstance(terms.rule, Continuous) and terms.rule.step else terms.tick
    if terms.lot % ONE or step % PRICE_UNIT or terms.price_max > U32_MAX * PRICE_UNIT:
        raise NotExpressible("X")


def replace_of(account: str, message: ouch.ReplaceOrder) -> Replace:
    names = (account, message.existing_token, message.replacement_token)
    return Replace(0, 0, *names, message.shares * ONE, message.price * PRICE_UNIT)


def cancel_of(account: str, message: ouch.CancelOrder) -> Cancel:
    """The cancel in a message. Raises `NotExpressible` for a partial cancel: clients use a replace for that."""
    if message.shares:
        raise NotExpressible("X")
    return Cancel(0, 0, account, message.order_token)


def rejected(token: str, cause: Cause | None, now: Instant) -> ouch.Outbound:
    """The rejection of an order that the gateway refused."""
    return ouch.OuchRejected(now % DAY_PERIOD, token, OTHER if cause is None else _REASONS.get(cause, OTHER))


def message_of(event: OrderEvent) -> ouch.Outbound | None:
    """The message that reports an event; None if OUCH has none for it."""
    at = event.at % DAY_PERIOD
    match event.kind:
        case EventKind.SEQUENCED:
            return ouch.Accepted(at, *_terms(event, event.quantity), _NO_WEIGHT)
        case EventKind.REPLACED:
            return ouch.OuchReplaced(at, *_terms(event, event.open), event.previous_id, _NO_WEIGHT)
        case EventKind.FILLED:
            flag = "R" if event.took else "A"
            terms = (_shares(event.last_quantity), _price(event.last_price), flag, event.trade_id)
            return ouch.Executed(at, event.client_id, *terms)
        case EventKind.VOIDED:
            return ouch.BrokenTrade(at, event.client_id, event.trade_id, "S")
        case EventKind.CANCELLED:
            return ouch.OuchCanceled(at, event.client_id, _shares(event.last_quantity), _cancel_reason(event))
        case EventKind.REJECTED if event.asked is RequestKind.ORDER and not event.stands:
            return ouch.OuchRejected(at, event.client_id, OTHER)
        case EventKind.REJECTED if event.asked in (RequestKind.CANCEL, RequestKind.REPLACE):
            return ouch.CancelReject(at, event.previous_id)
    return None


def _terms(event: OrderEvent, shares: int) -> _Terms:
    """The fields that Accepted and Replaced share, from the token to the state."""
    ours = (event.client_id, _LETTERS[event.side], _shares(shares), event.symbol, _limit(event), _force(event))
    return *ours, _NO_FIRM, _DISPLAYED, event.order, *_UNSUPPORTED, _LIVE


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


FROM_CLIENT_MAX: Final = 256  # bytes of a packet; the longest valid one has 51
OUTBOX_MAX: Final = 1 << 16  # messages kept per login
LOGINS_MAX: Final = 10_000  # logins whose messages are kept
MESSAGES_AT_ONCE: Final = 512
HEARTBEAT_PERIOD: Final[Duration] = 1 * SECOND
SILENCE_MAX: Final[Duration] = 15 * SECOND
_SESSION_SPAN: Final = 10**10
_UNAUTHORISED: Final = "A"
_NO_SESSION: Final = "S"


class OuchOutbox:
    """The sequenced messages of one login."""

    def __init__(self) -> None:
        self.first = 1  # number of the first message that is kept
        self.reported = 0  # number of the last event in it
        self._messages: deque[bytes] = deque()

    @property
    def following(self) -> int:
        """The number of the next message."""
        return self.first + len(self._messages)

    def add(self, message: ouch.Outbound) -> None:
        self._messages.append(ouch.encode(message))
        if len(self._messages) > OUTBOX_MAX:
            self._messages.popleft()
            self.first += 1

    def since(self, number: int) -> Iterator[bytes]:
        """The messages from a number on, as far as they are kept."""
        for index in range(number - self.first, len(self._messages)):
            yield self._messages[index]


class OuchServer:
    """The OUCH server of one gateway, and its sessions."""

    def __init__(self, gateway: OrderGateway, authenticator: LoginAuthenticator) -> None:
        self.gateway = gateway
        self.authenticator = authenticator
        self.session = str(gateway.now() // SECOND % _SESSION_SPAN)
        self._outboxes: dict[str, OuchOutbox] = {}
        self._sessions: set[OuchSession] = set()
        gateway.add_listener(self)

    def open_session(self, writer: StreamWriter) -> "OuchSession":
        session = OuchSession(self, writer)
        self._sessions.add(session)
        return session

    def forget(self, session: "OuchSession") -> None:
        self._sessions.discard(session)

    def outbox(self, login: str) -> OuchOutbox | None:
        """The messages of a login, from the first on; None if the limit of logins is reached."""
        outbox = self._outboxes.get(login)
        if outbox is None and len(self._outboxes) < LOGINS_MAX:
            outbox = self._outboxes[login] = OuchOutbox()
            self._fill(login, outbox)
        return outbox

    def on_events(self, events: Sequence[OrderEvent]) -> None:
        for event in events:
            if event.kind is EventKind.VOIDED and (outbox := self._outboxes.get(event.account)) is not None:
                _add_event(outbox, event)
        for login, outbox in self._outboxes.items():
            self._fill(login, outbox)
        for session in list(self._sessions):
            session.writable()

    def on_break(self) -> None:
        """Events were revoked. Messages already sent stay; Broken Trades have reported what is void."""
        for outbox in self._outboxes.values():
            outbox.reported = min(outbox.reported, self.gateway.core.blotter.last)

    def _fill(self, login: str, outbox: OuchOutbox) -> None:
        blotter = self.gateway.core.blotter
        if outbox.reported < blotter.last:
            for event in blotter.since(outbox.reported, {login}):
                _add_event(outbox, event)
            outbox.reported = blotter.last


class OuchSession:
    """The session of one connection."""

    def __init__(self, server: OuchServer, writer: StreamWriter) -> None:
        self._server = server
        self._writer = writer
        self._stream = soup.SoupStream(allowed=soup.FROM_CLIENT, payload_max=FROM_CLIENT_MAX)
        self._login = ""
        self._outbox: OuchOutbox | None = None
        self._number = 0  # of the next sequenced message
        self._packets: deque[soup.Packet] = deque()
        self._login_check: asyncio.Task[None] | None = None
        self._heartbeat_timer: asyncio.TimerHandle | None = None

    @property
    def logged_in(self) -> bool:
        return self._outbox is not None

    def received(self, octets: bytes) -> None:
        """Handle packets; an invalid one closes the connection."""
        try:
            self._packets.extend(self._stream.feed(octets))
        except soup.BadSoup:
            self._writer.close()
            return
        self._handle_packets()

    def writable(self) -> None:
        """Send messages, while the client reads them."""
        if self._outbox is None:
            return
        self._number = max(self._number, self._outbox.first)
        while self._number < self._outbox.following and self._writer.can_write:
            packets = []
            for message in self._outbox.since(self._number):
                packets.append(soup.encode(soup.SequencedData(message)))
                if len(packets) >= MESSAGES_AT_ONCE:
                    break
            self._number += len(packets)
            self._writer.write(b"".join(packets))

    def disconnected(self) -> None:
        if self._login_check is not None:
            self._login_check.cancel()
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
        self._server.forget(self)

    def _handle_packets(self) -> None:
        submitted = False
        while self._packets and self._login_check is None:
            packet = self._packets.popleft()
            match packet:
                case soup.Debug() | soup.ClientHeartbeat():
                    pass
                case soup.LoginRequest() if not self._login:
                    self._writer.pause()
                    self._login_check = asyncio.get_running_loop().create_task(self._check_login(packet))
                case soup.UnsequencedData(message) if self._outbox is not None:
                    self._handle_request(message, self._outbox)
                    submitted = True
                case _:
                    self._writer.close()
                    return
        if submitted:
            self._server.gateway.sync()
            self.writable()

    def _handle_request(self, message: bytes, outbox: OuchOutbox) -> None:
        """Submit a request. What OUCH has no rejection for is ignored, as it prescribes."""
        now = self._server.gateway.now()
        try:
            request = ouch.decode_inbound(message)
        except ouch.BadOuch:
            self._writer.close()
            return
        match request:
            case ouch.EnterOrder():
                self._enter(request, outbox, now)
            case ouch.ReplaceOrder():
                self._server.gateway.submit(self._login, replace_of(self._login, request))
            case ouch.CancelOrder():
                try:
                    self._server.gateway.submit(self._login, cancel_of(self._login, request))
                except NotExpressible:
                    outbox.add(ouch.CancelReject(now % (86_400 * SECOND), request.order_token))

    def _enter(self, request: ouch.EnterOrder, outbox: OuchOutbox, now: Instant) -> None:
        market = self._server.gateway.core.floor.markets.get(request.stock)
        try:
            if market is not None:
                check_expressible(market.terms)
            answer = self._server.gateway.submit(self._login, order_of(self._login, request))
        except NotExpressible:
            answer = Answer(0, Cause.VALUE)
        if answer.cause is not None and answer.cause is not Cause.DUPLICATE:  # a reused token is ignored
            outbox.add(rejected(request.order_token, answer.cause, now))

    async def _check_login(self, login: soup.LoginRequest) -> None:
        """Accept or refuse a login; packets received meanwhile are handled afterwards."""
        refusal = await self._server.authenticator.refusal(login.username, login.password)
        self._login_check = None
        outbox = None if refusal is not None else self._server.outbox(login.username)
        if outbox is None or login.session not in ("", self._server.session):
            reason = _UNAUTHORISED if outbox is None else _NO_SESSION
            self._writer.write(soup.encode(soup.LoginRejected(reason)))
            self._writer.close()
            return
        number = min(login.number or outbox.following, outbox.following)
        self._login, self._outbox, self._number = login.username, outbox, max(number, outbox.first)
        self._writer.write(soup.encode(soup.LoginAccepted(self._server.session, self._number)))
        self._writer.resume()
        self._heartbeat()
        self.writable()
        self._handle_packets()

    def _heartbeat(self) -> None:
        if self._heartbeat_timer is not None:
            self._writer.write(soup.encode(soup.ServerHeartbeat()))
        self._heartbeat_timer = asyncio.get_running_loop().call_later(HEARTBEAT_PERIOD / SECOND, self._heartbeat)


def _add_event(outbox: OuchOutbox, event: OrderEvent) -> None:
    """Add the message of an event; ids that are too long for OUCH belong to orders of another protocol."""
    with suppress(ouch.BadOuch):
        if (message := message_of(event)) is not None:
            outbox.add(message)
