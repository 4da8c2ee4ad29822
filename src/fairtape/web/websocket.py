"""One WebSocket, as a protocol below uvicorn: the handshake and control frames by `websockets`, data frames ready-made.

uvicorn hands over a connection that wants to be a WebSocket to whichever class its setting `ws` names. This one speaks
to the hub and not to an ASGI application: a frame that is the same for a thousand customers is written once and goes to
each transport as it is, and the transport itself says when a customer is slow.
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
from fairtape.web.broadcast import AWAY, FULL, Broadcaster
from fairtape.web.customer import WebCustomer
from fairtape.web.encoding import packed, text_frame
from fairtape.web.subscription import Overload, Refusal, RequestVerb, Subscription, request_of, subscription_of_query

PATH: Final = "/v1/ticker"
REQUEST_MAX: Final = 64 << 10  # bytes of a message of a customer
REQUESTS_PER_S: Final = 10  # messages of a customer, in the long run
REQUESTS_BURST: Final = 40  # and at once
BUFFER_MAX: Final = 128 << 10  # bytes that wait in this process; above it the customer lags
KERNEL_BUFFER: Final = 128 << 10  # bytes that the kernel is asked to keep: old prices do no good there
WISH_PERIOD_MAX: Final = 10.0  # seconds for a first subscription
CLOSE_PERIOD_MAX: Final = 10.0  # seconds for the other side to close, too
STALL_PERIOD_MAX: Final = 60.0  # seconds for which a line may take nothing

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
        self._hub: Broadcaster = app_state["hub"]
        self._connections = cast("set[object]", server_state.connections)
        self._socket = ServerProtocol(max_size=REQUEST_MAX)
        self._customer: WebCustomer | None = None
        self._requests = TokenBucket(REQUESTS_PER_S, (REQUESTS_BURST - 1) * SECOND // REQUESTS_PER_S)
        self._stalled_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._awaits_pong = False
        self._ending = False  # it was told to come to an end

    # The transport's words.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The HTTP side of uvicorn hands over."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=BUFFER_MAX)
        self.write = self.transport.write
        found = transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
        self._connections.add(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        """It is over, whoever wanted it."""
        self._connections.discard(self)
        self._set_timer(None)
        if self._customer is not None:
            self._hub.dismiss(self._customer)
            self._customer = None

    def data_received(self, data: bytes) -> None:
        """Bytes of the customer: the request first, frames after it."""
        try:
            self._take(data)
        except Exception:
            # uvicorn hands over in the middle of a request: until then nobody else would notice that this one is over.
            self.connection_lost(None)
            self.transport.abort()
            raise

    def _take(self, data: bytes) -> None:
        self._socket.receive_data(data)
        for event in self._socket.events_received():
            if isinstance(event, Request):
                self._open(event)
            elif isinstance(event, Frame):
                self._hear(event)
        self._flush()

    def eof_received(self) -> None:
        """The customer sends nothing more: a WebSocket ends with that."""
        self._socket.receive_eof()
        self._flush()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._stalled_at = time.monotonic()
        if self._customer is not None:
            self._customer.full()

    def resume_writing(self) -> None:
        """The transport's buffer has room."""
        if self._customer is not None:
            self._hub.freed(self._customer, time.time_ns())
            self._end_if_done()

    # The hub's words.

    def end(self, code: int, reason: str, told: dict[str, object]) -> None:
        """Say why, and close."""
        if self._socket.state is State.OPEN:
            self.transport.write(text_frame(told))
            self._socket.send_close(code, reason)
            self._flush()

    def shutdown(self) -> None:
        """The server ends: let the customer have what was released, and say where to go on."""
        self._ending = True
        self._end_if_done()

    def check(self) -> None:
        """Now and then: is there still somebody? One who takes nothing and one who answers no ping is gone."""
        stalled = self._customer is not None and not self._customer.flowing
        if stalled:
            if time.monotonic() - self._stalled_at > STALL_PERIOD_MAX:
                self._give_up()
        elif self._awaits_pong:
            self._give_up()
        elif self._socket.state is State.OPEN:
            self._awaits_pong = True
            self._socket.send_ping(b"")
            self._flush()

    # The customer's words.

    def _open(self, request: Request) -> None:
        path, _, query = request.path.partition("?")
        if path != PATH:
            self._refuse(404, Refusal("path", f"there is no WebSocket at {path[:60]}; it is at {PATH}"))
            return
        try:
            customer = self._hub.admit(self)
        except Refusal as refusal:
            self._refuse(503, refusal)
            return
        response = self._socket.accept(request)
        self._socket.send_response(response)
        self._flush()
        if self._socket.state is not State.OPEN:
            self._hub.dismiss(customer)
            return
        self._customer = customer
        self._set_timer(WISH_PERIOD_MAX, self._give_up_waiting)
        if query:
            try:
                self._subscribe(customer, subscription_of_query(query))
            except Refusal as refusal:
                self._rebuke(refusal)

    def _hear(self, frame: Frame) -> None:
        self._awaits_pong = False
        if frame.opcode in (Opcode.PONG, Opcode.PING, Opcode.CLOSE) or self._customer is None:
            if frame.opcode is Opcode.PING:
                self._afford()
            return
        if not self._afford():
            return
        try:
            self._do(self._customer, frame)
        except Refusal as refusal:
            self._rebuke(refusal)

    def _do(self, customer: WebCustomer, frame: Frame) -> None:
        if frame.opcode is not Opcode.TEXT or not frame.fin:
            raise Refusal("message", "the message is binary or in parts; send JSON as one text message")
        verb, wish = request_of(bytes(frame.data))
        match verb:
            case RequestVerb.SUBSCRIBE:
                self._subscribe(customer, wish)
            case RequestVerb.UNSUBSCRIBE:
                self.transport.write(text_frame(self._hub.unsubscribe(customer)))
            case RequestVerb.SNAPSHOT:
                self._hub.snapshot(customer, time.time_ns())

    def _subscribe(self, customer: WebCustomer, wish: Subscription) -> None:
        answer = self._hub.subscribe(customer, wish)
        self._set_timer(None)
        self.transport.write(text_frame(answer))
        self._hub.give_snapshots(time.time_ns())  # before anything that is released from now on

    def _afford(self) -> bool:
        """Whether the customer may say one more thing; one who says too much is let go."""
        if self._requests.take(1, time.monotonic_ns()):
            return True
        self._hub.counts["floods"] += 1
        sentence = f"more than {REQUESTS_PER_S} messages a second; say less"
        self.end(FLOOD, "too many messages", {"kind": "error", "field": "message", "told": sentence})
        return False

    def _rebuke(self, refusal: Refusal) -> None:
        full = isinstance(refusal, Overload)
        self._hub.counts["refused" if full else "bad_requests"] += 1
        told: dict[str, object] = {"kind": "error", "field": refusal.field, "told": str(refusal)}
        self.end(FULL if full else BAD_REQUEST, "too many" if full else "bad request", told)

    def _refuse(self, status: int, refusal: Refusal) -> None:
        response = self._socket.reject(status, packed({"field": refusal.field, "told": str(refusal)}).decode() + "\n")
        response.headers["Content-Type"] = "application/json"
        self._socket.send_response(response)
        self._flush()

    # The end.

    def _end_if_done(self) -> None:
        customer = self._customer
        if self._ending and (customer is None or customer.live or customer.wish is None):
            due = self._hub.ticker.due
            self.end(AWAY, "the server ends", {"kind": "end", "next": due})

    def _give_up_waiting(self) -> None:
        self._hub.counts["half_open"] += 1
        told = f"nothing was subscribed within {WISH_PERIOD_MAX:g} seconds; send a subscribe message"
        self.end(BAD_REQUEST, "nothing subscribed", {"kind": "error", "field": "do", "told": told})

    def _give_up(self) -> None:
        self._hub.counts["half_open"] += 1
        self.transport.abort()

    def _flush(self) -> None:
        """Send what the WebSocket itself has to say; where it is over, wait for the other side only so long."""
        for data in self._socket.data_to_send():
            if data:
                self.transport.write(data)
            elif self.transport.can_write_eof():
                self.transport.write_eof()
        if self._socket.close_expected():
            if self._customer is not None:
                self._hub.dismiss(self._customer)
                self._customer = None
            self._set_timer(CLOSE_PERIOD_MAX, self.transport.abort)

    def _set_timer(self, period: float | None, work: Callable[[], object] = lambda: None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if period is None else asyncio.get_running_loop().call_later(period, work)
