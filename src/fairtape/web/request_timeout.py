"""The door: what stands before HTTP. It lets in whoever says what it wants, soon and in few words.

A connection that says nothing, or says its request one letter a minute, costs a server a place for as long as it likes.
Here it has some seconds for the head of its request, which is handed to uvicorn whole, and a minute for the answer. A
WebSocket has rules of its own.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from fairtape.web.broadcast import Broadcaster
from fairtape.web.websocket import WebSocketConnection

HEAD_MAX: Final = 16 << 10  # bytes
HEAD_PERIOD_MAX: Final = 10.0  # seconds
ANSWER_PERIOD_MAX: Final = 60.0  # seconds
CONNECTIONS_SPARE: Final = 256  # beyond the customers: those who knock, and those who ask by HTTP
_END: Final = b"\r\n\r\n"


class Answering(H11Protocol):
    """A request that is being answered; the time for that ends with the connection."""

    def allow(self, period: float, give_up: Callable[[], None]) -> None:
        """Call this unless the connection has ended by then."""
        self._allowed = asyncio.get_running_loop().call_later(period, give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """The answer is over, one way or the other."""
        if hasattr(self, "_allowed"):
            self._allowed.cancel()
        super().connection_lost(exc)


class RequestTimeoutProtocol(asyncio.Protocol):
    """A connection before its first request."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: object = None
    ) -> None:
        self._config = config
        self._state = server_state
        self._app_state = app_state
        self._hub: Broadcaster = app_state["hub"]
        self._connections = cast("set[object]", server_state.connections)
        self._head = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody knocks."""
        self.transport = cast("asyncio.Transport", transport)
        if len(self._connections) >= self._hub.limits.customers_max + CONNECTIONS_SPARE:
            self._hub.counts["refused"] += 1
            self.transport.abort()
            return
        self._connections.add(self)
        self._timer = asyncio.get_running_loop().call_later(HEAD_PERIOD_MAX, self._give_up)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Nobody is there any more."""
        self._leave()

    def data_received(self, data: bytes) -> None:
        """A part of the request; once its head is whole, uvicorn has the rest."""
        self._head += data
        end = self._head.find(_END)
        if end > HEAD_MAX or (end < 0 and len(self._head) > HEAD_MAX):
            self._give_up()
        elif end >= 0:
            self._let_in()

    def shutdown(self) -> None:
        """The server ends."""
        self.transport.close()

    def _let_in(self) -> None:
        self._leave()
        inner = Answering(config=self._config, server_state=self._state, app_state=self._app_state)
        self.transport.set_protocol(inner)
        inner.connection_made(self.transport)
        inner.data_received(bytes(self._head))
        if not isinstance(self.transport.get_protocol(), WebSocketConnection):
            inner.allow(ANSWER_PERIOD_MAX, self._end_answer)

    def _end_answer(self) -> None:
        """Every answer closes its connection; one that is still there has a reader who does not read."""
        if not self.transport.is_closing():
            self._give_up()

    def _give_up(self) -> None:
        self._hub.counts["half_open"] += 1
        self.transport.abort()

    def _leave(self) -> None:
        self._connections.discard(self)
        if hasattr(self, "_timer"):
            self._timer.cancel()
