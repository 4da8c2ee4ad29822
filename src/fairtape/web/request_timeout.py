"""Closes connections whose request head is too slow or too large, or whose response is not read.

A connection that sends nothing, or its request one byte a minute, would occupy a server for as long as it likes. Here
it has some seconds for the head of its request, which is passed to uvicorn whole, and a minute for the response. A
WebSocket has limits of its own (`fairtape.web.websocket`).
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
RESPONSE_PERIOD_MAX: Final = 60.0  # seconds
CONNECTIONS_SPARE: Final = 256  # beyond the customers: connections before their request, and HTTP requests
_END: Final = b"\r\n\r\n"


class TimedResponse(H11Protocol):
    """A request that is being answered, with a timeout."""

    def start_timeout(self, period: float, give_up: Callable[[], None]) -> None:
        """Call `give_up` after this period unless the connection has ended by then."""
        self._timeout = asyncio.get_running_loop().call_later(period, give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        if hasattr(self, "_timeout"):
            self._timeout.cancel()
        super().connection_lost(exc)


class RequestTimeoutProtocol(asyncio.Protocol):
    """A connection before the head of its request is whole."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: object = None
    ) -> None:
        self._config = config
        self._state = server_state
        self._app_state = app_state
        self._broadcaster: Broadcaster = app_state["broadcaster"]
        self._connections = cast("set[object]", server_state.connections)
        self._head = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if len(self._connections) >= self._broadcaster.limits.customers_max + CONNECTIONS_SPARE:
            self._broadcaster.counts["refused"] += 1
            self.transport.abort()
            return
        self._connections.add(self)
        self._timer = asyncio.get_running_loop().call_later(HEAD_PERIOD_MAX, self._abort)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._leave()

    def data_received(self, data: bytes) -> None:
        """Collect the head of the request; once it is whole, hand over to uvicorn."""
        self._head += data
        end = self._head.find(_END)
        if end > HEAD_MAX or (end < 0 and len(self._head) > HEAD_MAX):
            self._abort()
        elif end >= 0:
            self._hand_over()

    def shutdown(self) -> None:
        self.transport.close()

    def _hand_over(self) -> None:
        self._leave()
        inner = TimedResponse(config=self._config, server_state=self._state, app_state=self._app_state)
        self.transport.set_protocol(inner)
        inner.connection_made(self.transport)
        inner.data_received(bytes(self._head))
        if not isinstance(self.transport.get_protocol(), WebSocketConnection):
            inner.start_timeout(RESPONSE_PERIOD_MAX, self._end_response)

    def _end_response(self) -> None:
        """Every response closes its connection; one that is still open has a client that does not read."""
        if not self.transport.is_closing():
            self._abort()

    def _abort(self) -> None:
        self._broadcaster.counts["half_open"] += 1
        self.transport.abort()

    def _leave(self) -> None:
        self._connections.discard(self)
        if hasattr(self, "_timer"):
            self._timer.cancel()
