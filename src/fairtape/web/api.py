"""HTTP: the status of the server, the symbols, the last sale of one, and ranges of the past.

Every response closes its connection; a client that wants each trade uses the WebSocket. A bad request gets status 400
and an object that names the field and the remedy.
"""

from asyncio import CancelledError, create_task
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from functools import wraps
from importlib.resources import files
from time import time_ns
from typing import Any, Final

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fairtape.client.errors import ClientError
from fairtape.market.prices import DECIMALS, ONE
from fairtape.market.symbols import BadName, checked_symbol
from fairtape.web.encoding import encode_trade
from fairtape.web.history import HistoryArchive, HistoryRange
from fairtape.web.server_loop import ServerLoop
from fairtape.web.subscription import Refusal
from fairtape.web.websocket import PATH as TICKER

ARROW: Final = "application/vnd.apache.arrow.stream"
READERS_MAX: Final = 4  # threads that read the past; other requests wait
RESPONSES_MAX: Final = 16  # ranges of the past under way, of at most some 15 MB each; others get status 503
UPGRADE: Final = {"upgrade": "websocket"}
RETRY: Final = {"retry-after": "1"}
CLOSES: Final = {"connection": "close", "cache-control": "no-store"}
PAGE_RULES: Final = (
    "default-src 'none'; connect-src 'self' ws: wss:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)

Handler = Callable[[Request], Any]


class StreamedResponse(StreamingResponse):
    """A long response: written piece by piece in another thread, as fast as it is read, and counted while it lasts."""

    def __init__(
        self, pieces: Iterator[bytes], counted: Callable[[], AbstractContextManager[None]], **options: Any
    ) -> None:
        super().__init__(pieces, **options)
        self._counted = counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counted():
            await super().__call__(scope, receive, send)


class Api:
    """Answers requests from the state of one server loop."""

    def __init__(self, server_loop: ServerLoop, archive: HistoryArchive, title: str) -> None:
        self.fail: Callable[[], None] = lambda: None  # how to end the server when it cannot go on
        self._server_loop = server_loop
        self._archive = archive
        self._title = title
        self._readers = CapacityLimiter(READERS_MAX)
        self._responses = 0  # ranges of the past that are under way
        self._page = files("fairtape.web").joinpath("page.html").read_text()

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/", self.page),
            Route("/v1/status", _with_errors(self.status)),
            Route("/v1/symbols", _with_errors(self.symbols)),
            Route("/v1/last", _with_errors(self.last)),
            Route("/v1/trades", _with_errors(self.trades)),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan, exception_handlers={404: _not_found})

    async def page(self, _request: Request) -> Response:
        headers = CLOSES | {"content-security-policy": PAGE_RULES, "x-content-type-options": "nosniff"}
        return HTMLResponse(self._page, headers=headers)

    async def status(self, _request: Request) -> dict[str, Any]:
        server_loop, broadcaster = self._server_loop, self._server_loop.broadcaster
        ticker = broadcaster.ticker
        return {
            "title": self._title,
            "now_ns": str(time_ns()),
            "began_at_ns": str(server_loop.began_at),
            "next": ticker.due,
            "since": ticker.sales.since,
            "messages": ticker.messages,
            "late": ticker.late,
            "stale": server_loop.stale,
            "customers": len(broadcaster.customers),
            "lagging": sum(customer.lags for customer in broadcaster.customers),
            "waiting": sum(customer.waiting for customer in broadcaster.customers),
            "replaying": broadcaster.replaying,
            "subscriptions": broadcaster.channels,
            "overloaded": server_loop.overloaded,
            **server_loop.delays(),
            "counts": dict(broadcaster.counts),
        }

    async def symbols(self, _request: Request) -> dict[str, Any]:
        sales = self._server_loop.broadcaster.ticker.sales
        return {"symbols": sales.symbols(), "since": sales.since, "unlisted_trades": sales.unlisted}

    async def last(self, request: Request) -> dict[str, Any]:
        """The last sale of a symbol, none where all were taken back, and its volume."""
        symbol = request.query_params.get("symbol", "")
        try:
            checked_symbol(symbol)
        except BadName as error:
            raise Refusal("symbol", str(error)) from None
        ticker = self._server_loop.broadcaster.ticker
        found = ticker.sales.of(symbol)
        if found is None:
            raise Refusal("symbol", f"symbol {symbol} was not traded from number {ticker.sales.since} on")
        return {
            "symbol": symbol,
            "last": encode_trade(next(found.batch.records())) if found.batch.rows else None,
            "volume": _decimal(found.volume.quantity),
            "trades": found.volume.trades,
            "since": ticker.sales.since,
            "through": ticker.due - 1,
        }

    async def trades(self, request: Request) -> Response:
        query = dict(request.query_params)
        encoding = query.pop("format", "json")
        if encoding not in ("json", "arrow"):
            raise Refusal("format", f"format is {encoding[:40]!r}; expected json or arrow")
        requested, due = HistoryRange.of(query), self._server_loop.broadcaster.ticker.due
        if self._responses >= RESPONSES_MAX:
            sentence = f"{RESPONSES_MAX} others read the past; retry in a moment"
            return JSONResponse({"field": "path", "told": sentence}, status_code=503, headers=CLOSES | RETRY)
        with self._counted():
            part = await to_thread.run_sync(self._archive.read, requested, due, limiter=self._readers)
        if encoding == "arrow":
            headers = CLOSES | {"fairtape-next": str(part.next_sequence)}
            return StreamedResponse(part.arrow(), self._counted, media_type=ARROW, headers=headers)
        return StreamedResponse(part.json(), self._counted, media_type="application/json", headers=CLOSES)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._responses += 1
        try:
            yield
        finally:
            self._responses -= 1

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[dict[str, Any]]:
        rounds = create_task(self._server_loop.run(lambda: self.fail()))
        yield {"broadcaster": self._server_loop.broadcaster}
        rounds.cancel()
        with suppress(CancelledError):
            await rounds


async def _not_found(request: Request, _error: Exception) -> Response:
    if request.url.path == TICKER:
        sentence = f"{TICKER} is a WebSocket; connect to it as ws://{request.url.netloc[:60]}{TICKER}"
        return JSONResponse({"field": "path", "told": sentence}, status_code=426, headers=CLOSES | UPGRADE)
    sentence = f"there is nothing at {request.url.path[:60]}; / is the page, and names of the API begin with /v1/"
    return JSONResponse({"field": "path", "told": sentence}, status_code=404, headers=CLOSES)


def _decimal(quantity: int) -> str:
    """A quantity as decimal text, however large a sum it is."""
    whole, decimals = divmod(quantity, ONE)
    return f"{whole}.{decimals:0{DECIMALS}}".rstrip("0").rstrip(".")


def _with_errors(handler: Handler) -> Handler:
    """Turn a refusal into a response with status 400."""

    @wraps(handler)
    async def with_errors(request: Request) -> Response:
        try:
            found = await handler(request)
        except Refusal as refusal:
            content = {"field": refusal.field, "told": str(refusal)}
            return JSONResponse(content, status_code=400, headers=CLOSES)
        except ClientError as error:
            return JSONResponse({"field": "symbols", "told": str(error)}, status_code=400, headers=CLOSES)
        return found if isinstance(found, Response) else JSONResponse(found, headers=CLOSES)

    return with_errors
