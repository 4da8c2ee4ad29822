"""`trade`: enter orders at a gateway and read the events of these orders, with or without asyncio.

A trader logs in under one name, sends requests, and reads events. When its connection is lost it reconnects by itself,
at the same address or the next, and resumes after the last event that it received: nothing is lost and nothing comes
twice, because an event has the same number at every gateway. Requests without an answer are sent again; an account
never uses the name of an order twice, so the order is entered once.
"""

import asyncio
import secrets
import ssl
import threading
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import Any, Final, Self, TypeAlias, TypeVar

from fairtape.client.errors import ClientError, as_client_error
from fairtape.core.addresses import format_address, parse_address
from fairtape.exchange.orders import Cancel, NewOrder, OrderType, Replace, SelfTrade, Side, TimeInForce
from fairtape.gateway.core.events import Cause, EventKind, OrderEvent
from fairtape.gateway.servers.native_messages import encode_line, event_of, parse_line, request_fields
from fairtape.market.prices import BadNumber, parse_fixed

ADDRESSES_MAX: Final = 32
LINE_MAX: Final = 64 << 10  # bytes of a server's line
EVENTS_MAX: Final = 1 << 16  # that wait to be read; with more, the connection is not read
OPEN_PERIOD: Final = 10.0  # seconds for a connection and the answer to a login
PING_PERIOD: Final = 15.0
RETRY_PERIOD: Final = 0.1
RETRY_PERIOD_MAX: Final = 2.0
ANSWER_PERIOD: Final = 30.0  # seconds for the answer to a request, across reconnections
NEWEST: Final = -1
NAME_BYTES: Final = 8  # random bytes in a generated order name

Number: TypeAlias = int | float | str | Decimal
_Choice = TypeVar("_Choice", bound=IntEnum)
_T = TypeVar("_T")


class OrderRefused(ClientError):
    """A gateway refused a request; nothing changed. `cause` is for programs."""

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause


class LoginRefused(ClientError):
    """A gateway refused the login."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A Break made events void: those after this number."""

    era: int
    number: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The gateway does not keep events up to this number any more, and some of them were not received."""

    number: int


TraderRecord: TypeAlias = OrderEvent | Broken | Forgotten


@dataclass(slots=True)
class _PendingRequest:
    request: NewOrder | Cancel | Replace
    answer: "asyncio.Future[None]"
    resent: bool = False


class AsyncTrader:
    """A trader in an event loop. `async with` connects and closes it."""

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        *,
        login: str,
        password: str,
        after: tuple[int, int] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`after` is the `position` to resume from; without it, only new events are received."""
        self._addresses = deque(addresses)
        self._login = login
        self._password = password
        self._tls = tls
        self._era, self._number = after or (0, NEWEST)  # of the last event that was read
        self._received_era, self._received = self._era, self._number  # and of the last one that was received
        self._closed = False
        self._records: asyncio.Queue[TraderRecord | None] = asyncio.Queue(EVENTS_MAX)
        self._unanswered: dict[int, _PendingRequest] = {}
        self._waiting: deque[_PendingRequest] = deque()
        self._session = ""
        self._request_number = 0
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: ClientError | None = None
        self.accounts: tuple[str, ...] = ()
        self.reconnections = 0

    async def open(self) -> Self:
        """Connect and log in. Raises `ClientError` where no gateway accepts this trader."""
        reader = await self._connected()
        self._task = asyncio.create_task(self._run(reader))
        return self

    async def close(self) -> None:
        """Disconnect. Orders stay as they are."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._writer is not None:
            self._writer.close()
        self._closed = True
        self._fail(ClientError("the trader is closed"))

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def position(self) -> tuple[int, int]:
        """The era and number of the last event that was read: `after` takes it, to resume from here later."""
        return self._era, max(self._number, 0)

    async def order(
        self,
        symbol: str,
        side: str | Side,
        quantity: Number,
        price: Number | None = None,
        *,
        client_id: str | None = None,
        account: str | None = None,
        stop_price: Number | None = None,
        time_in_force: str = "day",
        post_only: bool = False,
        self_trade: str = "cancel_newest",
    ) -> str:
        """Enter an order; returns its name. Without a price it is a market order. Raises `OrderRefused`."""
        name = client_id or _name()
        kinds = {(True, False): "LIMIT", (False, False): "MARKET", (True, True): "STOP_LIMIT", (False, True): "STOP"}
        await self._request(
            NewOrder(
                0,
                0,
                account or self._login,
                name,
                symbol,
                side if isinstance(side, Side) else _chosen("side", side, Side),
                _fixed("quantity", quantity),
                0 if price is None else _fixed("price", price),
                0 if stop_price is None else _fixed("stop_price", stop_price),
                OrderType[kinds[price is not None, stop_price is not None]],
                _chosen("time_in_force", time_in_force, TimeInForce),
                post_only,
                _chosen("self_trade", self_trade, SelfTrade),
            )
        )
        return name

    async def cancel(self, client_id: str, *, account: str | None = None) -> None:
        """Request the cancel of an order. An event confirms it."""
        await self._request(Cancel(0, 0, account or self._login, client_id))

    async def replace(
        self, client_id: str, *, quantity: Number, price: Number, new_id: str | None = None, account: str | None = None
    ) -> str:
        """Request another price and total quantity; returns the order's new name."""
        name = new_id or _name()
        terms = (_fixed("quantity", quantity), _fixed("price", price))
        await self._request(Replace(0, 0, account or self._login, client_id, name, *terms))
        return name

    async def events(self) -> AsyncIterator[TraderRecord]:
        """Events of orders, until the trader is closed."""
        while (record := await self.event()) is not None:
            yield record

    async def event(self) -> TraderRecord | None:
        """The next record; None when the trader is closed. Raises `ClientError` when a gateway refuses the login."""
        if self._failure is not None and self._records.empty():
            self._end()
        record = await self._records.get()
        match record:
            case None:
                self._end()
                if self._failure is not None and not self._closed:
                    raise self._failure
            case OrderEvent() if record.kind is not EventKind.VOIDED:
                self._era, self._number = record.era, record.number
            case Broken(era, number):
                self._era, self._number = era, number
            case Forgotten(number):
                self._number = number
        return record

    async def _request(self, request: NewOrder | Cancel | Replace) -> None:
        if self._failure is not None:
            raise self._failure
        pending = _PendingRequest(request, asyncio.get_running_loop().create_future())
        self._send(pending)
        try:
            await asyncio.wait_for(asyncio.shield(pending.answer), ANSWER_PERIOD)
        except TimeoutError:
            raise ClientError("no gateway answered the request; its events will tell whether it was taken") from None

    def _send(self, pending: _PendingRequest) -> None:
        if self._writer is None or not self._session:
            self._waiting.append(pending)
            return
        self._request_number += 1
        self._unanswered[self._request_number] = pending
        envelope = {"session": self._session, "request": self._request_number}
        self._writer.write(encode_line(request_fields(pending.request) | envelope))

    async def _run(self, reader: asyncio.StreamReader) -> None:
        """Receive, and reconnect after every loss, until the trader is closed or its login is refused."""
        while True:
            pinging = asyncio.create_task(self._ping())
            try:
                with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
                    await self._receive(reader)
            finally:
                pinging.cancel()
            self._disconnect()
            try:
                reader = await self._reconnect()
            except ClientError as failure:
                self._fail(failure)
                return

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            fields = parse_line(line)
            match fields.get("is"):
                case "event":
                    event = event_of(fields)
                    if event.kind is not EventKind.VOIDED:
                        self._received_era, self._received = event.era, event.number
                    await self._records.put(event)
                case "accepted" | "refused":
                    self._answered(fields)
                case "broken":
                    self._received_era, self._received = fields["era"], fields["number"]
                    await self._records.put(Broken(fields["era"], fields["number"]))
                case "forgotten":
                    self._received = fields["number"]
                    await self._records.put(Forgotten(fields["number"]))
                case "closed":
                    return

    def _answered(self, fields: dict[str, Any]) -> None:
        pending = self._unanswered.pop(fields.get("request", 0), None)
        if pending is None or pending.answer.done():
            return
        known = pending.resent and fields.get("cause") in (Cause.DUPLICATE.value, Cause.ORDER.value)
        if fields["is"] == "accepted" or known:
            pending.answer.set_result(None)  # a gateway that knows a resent request accepted it before
        else:
            pending.answer.set_exception(OrderRefused(str(fields.get("cause")), str(fields.get("reason"))))

    async def _ping(self) -> None:
        while self._writer is not None:
            await asyncio.sleep(PING_PERIOD)
            self._writer.write(encode_line({"do": "ping"}))

    def _disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self._session = None, ""
        for _, pending in sorted(self._unanswered.items()):
            pending.resent = True
            self._waiting.append(pending)
        self._unanswered.clear()

    async def _reconnect(self) -> asyncio.StreamReader:
        period = RETRY_PERIOD
        while True:
            self._addresses.rotate(-1)
            try:
                reader = await self._connected()
            except LoginRefused as refusal:
                raise ClientError(str(refusal)) from None
            except ClientError:
                await asyncio.sleep(period)
                period = min(2 * period, RETRY_PERIOD_MAX)
            else:
                self.reconnections += 1
                return reader

    async def _connected(self) -> asyncio.StreamReader:
        why = ""
        for _ in range(len(self._addresses)):
            address = self._addresses[0]
            try:
                async with asyncio.timeout(OPEN_PERIOD):
                    return await self._logged_in(*address)
            except LoginRefused:
                raise
            except (OSError, TimeoutError, ValueError) as error:
                why = str(error) or "it does not answer"
                self._addresses.rotate(-1)
        at = format_address(address)
        raise ClientError(f"no gateway at {at} can be reached ({why}); start one with: fairtape gateway")

    async def _logged_in(self, host: str, port: int) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection(host, port, ssl=self._tls, limit=LINE_MAX)
        era, number = self._received_era, self._received
        login = {"do": "login", "login": self._login, "password": self._password, "era": era, "after": number}
        try:
            writer.write(encode_line(login))
            self._begin(writer, _check_welcome(await reader.readline()))
        except BaseException:
            writer.close()
            raise
        return reader

    def _begin(self, writer: asyncio.StreamWriter, fields: dict[str, Any]) -> None:
        self._writer, self._session, self._request_number = writer, str(fields["session"]), 0
        self.accounts = tuple(fields["accounts"])
        if self._received != NEWEST and fields["era"] > self._received_era and fields["number"] < self._received:
            self._records.put_nowait(Broken(fields["era"], fields["number"]))
        self._received_era, self._received = fields["era"], fields["number"]
        if self._number == NEWEST:
            self._era, self._number = self._received_era, self._received
        waiting, self._waiting = self._waiting, deque()
        for pending in waiting:
            self._send(pending)

    def _fail(self, failure: ClientError) -> None:
        self._failure = failure
        for pending in [*self._unanswered.values(), *self._waiting]:
            if not pending.answer.done():
                pending.answer.set_exception(failure)
        self._end()

    def _end(self) -> None:
        """Let a reader find the end after the last record; where the queue is full, it finds it later."""
        with suppress(asyncio.QueueFull):
            self._records.put_nowait(None)


def _check_welcome(line: bytes) -> dict[str, Any]:
    fields = parse_line(line or b"{}")
    if fields.get("is") == "closed" and fields.get("cause") == "busy":
        raise OSError(str(fields.get("reason")))  # try again later, as at a gateway that is down
    if fields.get("is") == "closed":
        raise LoginRefused(str(fields.get("reason")))
    if fields.get("is") != "welcome":
        raise OSError("it is no gateway, or one that speaks TLS")
    return fields


def _name() -> str:
    return secrets.token_hex(NAME_BYTES)


def _chosen(field: str, wanted: str, choices: type[_Choice]) -> _Choice:
    known = {choice.name.lower(): choice for choice in choices}
    if wanted not in known:
        raise ClientError(f"{field} is {wanted!r}; give one of {', '.join(known)}")
    return known[wanted]


def _fixed(field: str, number: Number) -> int:
    """A float means its decimal text: 0.1 is one tenth."""
    try:
        return parse_fixed(number if isinstance(number, str) else str(number))
    except BadNumber as error:
        raise ClientError(f"{field} is refused: {error}") from None


def trade(
    target: str,
    *,
    account: str,
    password: str,
    after: tuple[int, int] | None = None,
    tls: ssl.SSLContext | None = None,
) -> "Trader":
    """A trader at a gateway: `with` for ordinary programs, `async with` for those that run an event loop.

    `target` is the address of a gateway, such as "10.0.0.7:9101"; with several, separated by commas, the next one is
    used when one fails. `account` is the login; a broker acts for its customers with `account=` in each request.
    `password` may be a token. `after` is a trader's `position`: events after it come first. Without it, only new events
    come. Give a TLS context where the network to the gateway is not your own.
    """
    return Trader(AsyncTrader(_addresses(target), login=account, password=password, after=after, tls=tls))


class Trader:
    """A trader for ordinary programs; its connection lives in a thread of its own.

    Within `async with` it is an `AsyncTrader` instead, with the same methods to await.
    """

    def __init__(self, trader: AsyncTrader) -> None:
        self._trader = trader
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def __aenter__(self) -> AsyncTrader:
        return await self._trader.open()

    async def __aexit__(self, *_: object) -> None:
        await self._trader.close()

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fairtape trader", daemon=True)
        self._thread.start()
        try:
            self._wait(self._trader.open())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect. Orders stay as they are."""
        if self._loop is not None:
            self._wait(self._trader.close())
            self._stop()

    @property
    def position(self) -> tuple[int, int]:
        """The era and number of the last event that was read: `after` takes it, to resume from here later."""
        return self._trader.position

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts that this login may act for."""
        return self._trader.accounts

    @property
    def reconnections(self) -> int:
        """How often the trader has reconnected."""
        return self._trader.reconnections

    def order(
        self, symbol: str, side: str | Side, quantity: Number, price: Number | None = None, **options: Any
    ) -> str:
        """Enter an order; returns its name. Without a price it is a market order. Raises `OrderRefused`.

        Options are those of `AsyncTrader.order`: client_id, account, stop_price, time_in_force, post_only, self_trade.
        """
        return self._wait(self._trader.order(symbol, side, quantity, price, **options))

    def cancel(self, client_id: str, *, account: str | None = None) -> None:
        """Request the cancel of an order. An event confirms it."""
        self._wait(self._trader.cancel(client_id, account=account))

    def replace(
        self, client_id: str, *, quantity: Number, price: Number, new_id: str | None = None, account: str | None = None
    ) -> str:
        """Request another price and total quantity; returns the order's new name."""
        replacement = self._trader.replace(client_id, quantity=quantity, price=price, new_id=new_id, account=account)
        return self._wait(replacement)

    def event(self, timeout: float | None = None) -> TraderRecord | None:
        """The next record; None when none came within `timeout` seconds, or the trader is closed."""
        with suppress(TimeoutError):
            return self._wait(asyncio.wait_for(self._trader.event(), timeout))
        return None

    def events(self, timeout: float | None = None) -> Iterator[TraderRecord]:
        """Events of orders, until none comes for `timeout` seconds, or the trader is closed."""
        while (record := self.event(timeout)) is not None:
            yield record

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._loop is None:
            work.close()
            raise ClientError("the trader is not connected; use it within `with`")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = None


def _addresses(target: object) -> list[tuple[str, int]]:
    if not isinstance(target, str):
        raise ClientError(f"target is {target!r}; give the address of a gateway, such as '127.0.0.1:9101'")
    addresses = []
    for address in target.split(","):
        with as_client_error():
            addresses.append(parse_address("target", address.strip()))
    if len(addresses) > ADDRESSES_MAX:
        raise ClientError(f"target names {len(addresses)} addresses; give at most {ADDRESSES_MAX}")
    return addresses
