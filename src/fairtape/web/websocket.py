"""One WebSocket, as a protocol below uvicorn: `websockets` does the handshake and control frames.

uvicorn passes an upgraded connection to the class that its setting `ws` names. This one talks to the broadcaster and
not to an ASGI application: a frame that is the same for a thousand customers is encoded once and written to each
transport as it is, and the transport itself reports when a customer is slow.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any, Final, cast

from uvicorn.config import Config
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from fairtape.core.instants import SECOND
from fairtape.core.token_bucket import TokenBucket
from fairtape.web.broadcast import FULL, GOING_AWAY, Broadcaster, WebCustomer
from fairtape.web.encoding import json_bytes, text_frame
from fairtape.web.subscription import Overload, Refusal, RequestVerb, Subscription, request_of, subscription_of_query

PATH: Final = "/v1/ticker"
REQUEST_MAX: Final = 64 << 10  # bytes of a message of a customer
REQUESTS_PER_S: Final = 10  # messages of a customer, on average
REQUESTS_BURST: Final = 40
BUFFER_MAX: Final = 128 << 10  # bytes that wait in this process; above it the customer lags
KERNEL_BUFFER: Final = 128 << 10  # bytes of the send buffer; a larger one would only hold old prices
SUBSCRIBE_PERIOD_MAX: Final = 10.0  # seconds for a first subscription
CLOSE_PERIOD_MAX: Final = 10.0  # seconds for the other side to close, too
STALL_PERIOD_MAX: Final = 60.0  # seconds for which a connection may take nothing

BAD_REQUEST: Final = 4400
FLOOD: Final = 4429


class WebSocketConnection(asyncio.Protocol):
    """The connection of one customer."""

    def __init__(
        self,
        config: Config,  # noqa: ARG002 - uvicorn gives all four by name
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: object = None,
    ) -> None:
        self._broadcaster: Broadcaster = app_state["broadcaster"]
        self._connections = cast("set[object]", server_state.connections)
        self._socket = ServerProtocol(max_size=REQUEST_MAX)
        self._customer: WebCustomer | None = None
        self._requests = TokenBucket(REQUESTS_PER_S, (REQUESTS_BURST - 1) * SECOND // REQUESTS_PER_S)
        self._stalled_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._awaits_pong = False
        self._ending = False  # the server shuts down

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=BUFFER_MAX)
        self.write = self.transport.write
        found = transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
        self._connections.add(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._connections.discard(self)
        self._set_timer(None)
        if self._customer is not None:
            self._broadcaster.remove(self._customer)
            self._customer = None

    def data_received(self, data: bytes) -> None:
        try:
            self._receive_data(data)
        except Exception:
            # uvicorn hands over in the middle of a request: until that is done, it would not see that this one failed.
            self.connection_lost(None)
            self.transport.abort()
            raise

    def _receive_data(self, data: bytes) -> None:
        self._socket.receive_data(data)
        for event in self._socket.events_received():
            if isinstance(event, Request):
                self._open(event)
            elif isinstance(event, Frame):
                self._receive(event)
        self._flush()

    def eof_received(self) -> None:
        """A WebSocket ends when its peer stops sending."""
        self._socket.receive_eof()
        self._flush()

    def pause_writing(self) -> None:
        self._stalled_at = time.monotonic()
        if self._customer is not None:
            self._customer.pause()

    def resume_writing(self) -> None:
        if self._customer is not None:
            self._broadcaster.resume(self._customer, time.time_ns())
            self._close_if_done()

    # Calls of the broadcaster and the server loop.

    def end(self, code: int, reason: str, notice: dict[str, object]) -> None:
        """Send a notice with the reason, and close."""
        if self._socket.state is State.OPEN:
            self.transport.write(text_frame(notice))
            self._socket.send_close(code, reason)
            self._flush()

    def shutdown(self) -> None:
        """The server ends: send the customer what was released, then the number to go on with."""
        self._ending = True
        self._close_if_done()

    def ping(self) -> None:
        """Abort a customer that takes nothing, or did not answer the last ping; else send the next one."""
        stalled = self._customer is not None and not self._customer.writable
        if stalled:
            if time.monotonic() - self._stalled_at > STALL_PERIOD_MAX:
                self._abort()
        elif self._awaits_pong:
            self._abort()
        elif self._socket.state is State.OPEN:
            self._awaits_pong = True
            self._socket.send_ping(b"")
            self._flush()

    # Requests of the customer.

    def _open(self, request: Request) -> None:
        path, _, query = request.path.partition("?")
        if path != PATH:
            self._reject(404, Refusal("path", f"there is no WebSocket at {path[:60]}; it is at {PATH}"))
            return
        try:
            customer = self._broadcaster.admit(self)
        except Refusal as refusal:
            self._reject(503, refusal)
            return
        response = self._socket.accept(request)
        self._socket.send_response(response)
        self._flush()
        if self._socket.state is not State.OPEN:
            self._broadcaster.remove(customer)
            return
        self._customer = customer
        self._set_timer(SUBSCRIBE_PERIOD_MAX, self._close_idle)
        if query:
            try:
                self._subscribe(customer, subscription_of_query(query))
            except Refusal as refusal:
                self._close_refused(refusal)

    def _receive(self, frame: Frame) -> None:
        self._awaits_pong = False
        if frame.opcode in (Opcode.PONG, Opcode.PING, Opcode.CLOSE) or self._customer is None:
            if frame.opcode is Opcode.PING:
                self._within_rate()
            return
        if not self._within_rate():
            return
        try:
            self._execute(self._customer, frame)
        except Refusal as refusal:
            self._close_refused(refusal)

    def _execute(self, customer: WebCustomer, frame: Frame) -> None:
        if frame.opcode is not Opcode.TEXT or not frame.fin:
            raise Refusal("message", "the message is binary or in parts; send JSON as one text message")
        verb, subscription = request_of(bytes(frame.data))
        match verb:
            case RequestVerb.SUBSCRIBE:
                self._subscribe(customer, subscription)
            case RequestVerb.UNSUBSCRIBE:
                self.transport.write(text_frame(self._broadcaster.unsubscribe(customer)))
            case RequestVerb.SNAPSHOT:
                self._broadcaster.snapshot(customer, time.time_ns())

    def _subscribe(self, customer: WebCustomer, subscription: Subscription) -> None:
        answer = self._broadcaster.subscribe(customer, subscription)
        self._set_timer(None)
        self.transport.write(text_frame(answer))
        self._broadcaster.send_snapshots(time.time_ns())  # before anything that is released from now on

    def _within_rate(self) -> bool:
        """Whether the customer may send one more message; above the rate the connection is closed."""
        if self._requests.take(1, time.monotonic_ns()):
            return True
        self._broadcaster.counts["floods"] += 1
        sentence = f"more than {REQUESTS_PER_S} messages a second; say less"
        self.end(FLOOD, "too many messages", {"kind": "error", "field": "message", "told": sentence})
        return False

    def _close_refused(self, refusal: Refusal) -> None:
        overload = isinstance(refusal, Overload)
        self._broadcaster.counts["refused" if overload else "bad_requests"] += 1
        notice: dict[str, object] = {"kind": "error", "field": refusal.field, "told": str(refusal)}
        code, reason = (FULL, "too many") if overload else (BAD_REQUEST, "bad request")
        self.end(code, reason, notice)

    def _reject(self, status: int, refusal: Refusal) -> None:
        response = self._socket.reject(
            status, json_bytes({"field": refusal.field, "told": str(refusal)}).decode() + "\n"
        )
        response.headers["Content-Type"] = "application/json"
        self._socket.send_response(response)
        self._flush()

    # The end.

    def _close_if_done(self) -> None:
        customer = self._customer
        if self._ending and (customer is None or customer.live or customer.subscription is None):
            due = self._broadcaster.ticker.due
            self.end(GOING_AWAY, "the server ends", {"kind": "end", "next": due})

    def _close_idle(self) -> None:
        self._broadcaster.counts["half_open"] += 1
        sentence = f"nothing was subscribed within {SUBSCRIBE_PERIOD_MAX:g} seconds; send a subscribe message"
        self.end(BAD_REQUEST, "nothing subscribed", {"kind": "error", "field": "do", "told": sentence})

    def _abort(self) -> None:
        self._broadcaster.counts["half_open"] += 1
        self.transport.abort()

    def _flush(self) -> None:
        """Send control frames; once the WebSocket is closed, wait at most `CLOSE_PERIOD_MAX` for the peer."""
        for data in self._socket.data_to_send():
            if data:
                self.transport.write(data)
            elif self.transport.can_write_eof():
                self.transport.write_eof()
        if self._socket.close_expected():
            if self._customer is not None:
                self._broadcaster.remove(self._customer)
                self._customer = None
            self._set_timer(CLOSE_PERIOD_MAX, self.transport.abort)

    def _set_timer(self, period: float | None, callback: Callable[[], object] = lambda: None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if period is None else asyncio.get_running_loop().call_later(period, callback)
