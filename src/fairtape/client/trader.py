"""`trade`: enter orders at a gateway and hear what becomes of them, with or without asyncio."""

import asyncio
import ssl
import threading
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

from fairtape.client.async_trader import AsyncTrader, Number, TraderRecord
from fairtape.client.errors import ClientError
from fairtape.exchange.orders import Side

ADDRESSES_MAX: Final = 32
PORT_MAX: Final = 65_535
_T = TypeVar("_T")


def trade(
    target: str,
    *,
    account: str,
    password: str,
    after: tuple[int, int] | None = None,
    tls: ssl.SSLContext | None = None,
) -> "Trader":
    """A trader at a gateway: `with` for ordinary programs, `async with` for those that run an event loop.

    `target` is the address of a gateway, such as "10.0.0.7:9101"; of several with commas between them, another one is
    asked when one fails. `account` is the login; a broker acts for its customers with `account=` in each request.
    `password` may be a token. `after` is a trader's `position`: events behind it are heard first. Without it, what
    happens from now on is heard. Where the way to the gateway is not your own, give a TLS context.
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
        """Hang up. Orders stay as they are."""
        if self._loop is not None:
            self._wait(self._trader.close())
            self._stop()

    @property
    def position(self) -> tuple[int, int]:
        """The era and number of the last event that was read: what `after` takes, to go on from here another day."""
        return self._trader.position

    @property
    def accounts(self) -> tuple[str, ...]:
        """Those that this login may act for."""
        return self._trader.accounts

    @property
    def reconnections(self) -> int:
        """How often the connection was lost and found again."""
        return self._trader.reconnections

    def order(
        self, symbol: str, side: str | Side, quantity: Number, price: Number | None = None, **options: Any
    ) -> str:
        """Enter an order; the answer is its name. Without a price it takes any. Raises `OrderRefused`.

        Options are those of `AsyncTrader.order`: client_id, account, stop_price, time_in_force, post_only, self_trade.
        """
        return self._wait(self._trader.order(symbol, side, quantity, price, **options))

    def cancel(self, client_id: str, *, account: str | None = None) -> None:
        """Ask for an order to be taken out. That it was, an event says."""
        self._wait(self._trader.cancel(client_id, account=account))

    def replace(
        self, client_id: str, *, quantity: Number, price: Number, new_id: str | None = None, account: str | None = None
    ) -> str:
        """Ask for another price and whole quantity; the answer is the order's new name."""
        wish = self._trader.replace(client_id, quantity=quantity, price=price, new_id=new_id, account=account)
        return self._wait(wish)

    def event(self, timeout: float | None = None) -> TraderRecord | None:
        """The next record; None when none came within so many seconds, or the trader is closed."""
        with suppress(TimeoutError):
            return self._wait(asyncio.wait_for(self._trader.event(), timeout))
        return None

    def events(self, timeout: float | None = None) -> Iterator[TraderRecord]:
        """What becomes of orders, until none comes for so many seconds, or the trader is closed."""
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
        host, colon, port = address.strip().rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) <= PORT_MAX:
            raise ClientError(f"target is {address.strip()!r}; an address is such as '127.0.0.1:9101'")
        addresses.append((host, int(port)))
    if len(addresses) > ADDRESSES_MAX:
        raise ClientError(f"target names {len(addresses)} addresses; give at most {ADDRESSES_MAX}")
    return addresses
