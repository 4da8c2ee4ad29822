"""A feed that hears the servers of sites on other machines, by WebSocket (`fairtape web`), one at a time.

The order is the same at all sites, so whichever server answers will do. When a line is lost, or its site does not serve
any more, the feed goes on with the next server, from the number behind the last one that it handed over. Where a site's
order had a Break meanwhile, the server begins with that: it is told which formation was known.

A reader that is too slow for its server is let go by it under the guaranteed grade, and resumes from the site's journal
once it reads again; with best effort it is sent the newest, and a `Skipped` for the rest.
"""

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from fairtape.client.errors import ClientError
from fairtape.client.selection import Selection
from fairtape.core.instants import SECOND, Instant
from fairtape.market.trades import blank_trades
from fairtape.tape.batches import PLACE_DTYPE, TradeBatch, join_batches
from fairtape.tape.feed import AtInstant, AtNumber, AtSnapshot, Beginning, Delivery, LastSales, Start, number_after
from fairtape.tape.records import Break, Fresh, Notice, Reformation, Snapshot, Stale
from fairtape.tape.serialization import BadBatch, decode_batch, parse_notice

PATH: Final = "/v1/ticker"
OPEN_PERIOD_MAX: Final = 10.0  # seconds for a connection and the answer to a subscription
LOOK_PERIOD: Final = 0.1  # seconds after which a feed that hears nothing sees whether it was stopped
RETRY_PERIOD: Final = 0.1  # seconds between two rounds of all servers, at first
RETRY_PERIOD_MAX: Final = 2.0
SILENCE_TOLD_MIN: Final = 1 * SECOND
FRAME_MAX: Final = 8 << 20  # bytes
SYMBOLS_SENT_MAX: Final = 1_000  # that a server takes; of more, all is sent and this side chooses


class RequestRefused(Exception):
    """A server does not do what it was asked for; what it says."""


class ConnectionLost(Exception):
    """A line is over; whoever was on it resumes."""


class RemoteFeed:
    """The order, from one of these servers."""

    endless: Final = True

    def __init__(self, addresses: Sequence[str], selection: Selection, *, guaranteed: bool) -> None:
        self._addresses = deque(map(_whole, addresses))  # the one that is heard, or is tried next, stands first
        self.title = " or ".join(addresses)
        self._selection = selection
        self._policy = "disconnect" if guaranteed else "skip"
        self._line: ServerConnection | None = None
        self._due = 1  # the number to go on with
        self._formation = 0  # the last one that a server knew
        self._formation_told = 0
        self._owes_snapshot = False  # it was asked for, and is not delivered yet
        self._lost_at: Instant | None = None
        self._stale = False
        self._stopped = False

    def open(self, start: Start) -> None:
        """Subscribe at the first server that answers, and whose site serves if there is one."""
        self._owes_snapshot = isinstance(start, AtSnapshot)
        why = ""
        for picky in (True, False):
            for _ in range(len(self._addresses)):
                try:
                    self._line = self._subscribed(_wish(start), picky=picky)
                except (RequestRefused, OSError) as error:
                    why = str(error)
                    self._addresses.rotate(-1)
                else:
                    return
        raise ClientError(f"target {self.title} cannot be heard: {why}; serve a site with: fairtape web")

    def run(self) -> Iterator[Delivery]:
        """What the servers send from there on; goes on until it is stopped."""
        opened = self._line
        assert opened is not None
        try:
            yield from self._state(opened)
            while not self._stopped:
                if self._line is None:
                    yield from self._resumed()
                    continue
                try:
                    yield from self._heard(self._line)
                except ConnectionLost:
                    self._drop()
        finally:
            self._drop()

    def stop(self) -> None:
        """Let `run` end."""
        self._stopped = True

    def last_sales(self) -> LastSales:
        """A snapshot of a server that answers, over a line of its own."""
        for address in list(self._addresses):
            try:
                line = ServerConnection(address)
            except (RequestRefused, OSError):
                continue
            try:
                line.subscribe(self._wish({"snapshot": True}))
                while not self._stopped:
                    for each in line.hear():
                        if isinstance(each, LastSales):
                            return each
            except (RequestRefused, ConnectionLost):
                continue
            finally:
                line.close()
        raise ClientError(f"no server of {self.title} answers; serve a site with: fairtape web")

    def _wish(self, wish: dict[str, object]) -> dict[str, object]:
        chosen = self._selection
        symbols = None if len(chosen.symbols or ()) > SYMBOLS_SENT_MAX else chosen.symbols
        wanted = {
            name: value for name, value in (("symbols", symbols), ("stripes", chosen.stripes)) if value is not None
        }
        return {"do": "subscribe", "form": "binary", "policy": self._policy, **wanted, **wish}

    def _subscribed(self, wish: dict[str, object], *, picky: bool) -> "ServerConnection":
        """A connection to the first server. Raises `RequestRefused`; if picky, also where its site does not serve."""
        line = ServerConnection(self._addresses[0])
        try:
            answer = line.subscribe(self._wish(wish), picky=picky and len(self._addresses) > 1)
        except BaseException:
            line.close()
            raise
        self._due = int(answer["next"])
        self._formation = max(self._formation, int(answer.get("formation", 0)))
        return line

    def _heard(self, line: "ServerConnection") -> Iterator[Delivery]:
        for each in line.hear():
            match each:
                case Stale() if len(self._addresses) > 1:
                    raise ConnectionLost
                case Stale() | Fresh():
                    self._stale = isinstance(each, Stale)
                case Break() | Reformation():
                    if each.formation <= self._formation_told:
                        continue  # a server that was resumed at says it again
                    self._formation_told = each.formation
            self._due = number_after(each, self._due)
            self._owes_snapshot = self._owes_snapshot and not isinstance(each, LastSales)
            yield each

    def _resumed(self) -> Iterator[Delivery]:
        """A line again, from the number that is due; says so where that takes long."""
        assert self._lost_at is not None
        period, tries = RETRY_PERIOD, 0
        while self._line is None and not self._stopped:
            self._addresses.rotate(-1)
            known = max(self._formation, self._formation_told)
            wish: dict[str, object] = (
                {"snapshot": True} if self._owes_snapshot else {"from": self._due, "formation": known}
            )
            try:
                self._line = self._subscribed(wish, picky=True)
            except (RequestRefused, OSError):
                tries += 1
            if self._line is None and not self._stale and time.time_ns() - self._lost_at > SILENCE_TOLD_MIN:
                self._stale = True
                yield Stale(self._lost_at)
            if self._line is None and tries % len(self._addresses) == 0:
                self._rest(period)
                period = min(2 * period, RETRY_PERIOD_MAX)
        if self._line is not None:
            yield from self._state(self._line)

    def _state(self, line: "ServerConnection") -> Iterator[Notice]:
        """What has changed with a new line."""
        if line.stale_since is not None and not self._stale:
            self._stale = True
            yield Stale(line.stale_since)
        elif self._stale and line.stale_since is None:
            self._stale = False
            yield Fresh()

    def _rest(self, period: float) -> None:
        ends_at = time.monotonic() + period
        while not self._stopped and (left := ends_at - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_PERIOD))

    def _drop(self) -> None:
        if self._line is not None:
            if self._line.following is not None:
                self._due = min(self._due, self._line.following)
            self._line.close()
        self._line, self._lost_at = None, time.time_ns()


class ServerConnection:
    """One connection to one server."""

    def __init__(self, address: str) -> None:
        self.following: int | None = None  # where the server says to go on, at the end
        self.stale_since: Instant | None = None  # at the subscription, where the site did not serve
        self._opened = ExitStack()
        self._snapshot: Snapshot | None = None  # whose trades are coming
        self._sales: list[TradeBatch] = []
        try:
            self._socket: ClientConnection = self._opened.enter_context(
                connect(
                    address,
                    compression=None,
                    max_size=FRAME_MAX,
                    open_timeout=OPEN_PERIOD_MAX,
                    close_timeout=LOOK_PERIOD,
                )
            )
        except InvalidStatus as error:
            raise RequestRefused(_told(error.response.body)) from None
        except (WebSocketException, TimeoutError, UnicodeError) as error:
            raise RequestRefused(str(error) or "no answer came in time") from None

    def subscribe(self, wish: dict[str, object], *, picky: bool = False) -> dict[str, Any]:
        """Request records; returns the reply. Raises `RequestRefused`; if picky, also where its site does not serve."""
        try:
            self._socket.send(json.dumps(wish))
            content = self._socket.recv(timeout=OPEN_PERIOD_MAX)
        except (ConnectionClosed, TimeoutError):
            raise RequestRefused("it did not answer") from None
        answer = _object(content)
        if answer.get("kind") != "subscribed" or not isinstance(answer.get("next"), int):
            raise RequestRefused(str(answer.get("told", "its answer is none of a ticker")))
        since = answer.get("stale_since_ns")
        self.stale_since = int(since) if isinstance(since, str) and since.isdecimal() else None
        if picky and self.stale_since is not None:
            raise RequestRefused("its site does not serve")
        return answer

    def hear(self) -> list[Delivery]:
        """What came, waiting for a moment at most. Raises `ConnectionLost` at the end."""
        try:
            content = self._socket.recv(timeout=LOOK_PERIOD)
        except TimeoutError:
            return []
        except ConnectionClosed:
            raise ConnectionLost from None
        now = time.time_ns()
        try:
            if isinstance(content, bytes):
                return self._traded(decode_batch(content, now)[0])
            told = _object(content)
            if told.get("kind") in ("end", "error"):
                return self._ended(told)
            record = parse_notice(told, now)
        except BadBatch as error:
            raise ClientError(f"a server sent what is no record ({error}); is it of this version?") from None
        if isinstance(record, Snapshot):
            self._snapshot, self._sales = record, []
            return self._traded(TradeBatch(blank_trades(0), np.zeros(0, PLACE_DTYPE)))
        return [record]

    def close(self) -> None:
        """Hang up."""
        self._opened.close()

    def _traded(self, lot: TradeBatch) -> list[Delivery]:
        """Trades of the order, or those of a snapshot, which are delivered together."""
        if self._snapshot is None:
            return [lot] if lot.rows else []
        self._sales.append(lot)
        if sum(each.rows for each in self._sales) < self._snapshot.count:
            return []
        snapshot, self._snapshot = self._snapshot, None
        return [LastSales(snapshot.first, snapshot.through, join_batches(self._sales))]

    def _ended(self, told: dict[str, Any]) -> list[Delivery]:
        following = told.get("next")
        self.following = following if isinstance(following, int) and following > 0 else None
        raise ConnectionLost


def _wish(start: Start) -> dict[str, object]:
    match start:
        case Beginning():
            return {"from": "beginning"}
        case AtNumber(sequence):
            return {"from": sequence}
        case AtInstant(instant):
            return {"since_ns": str(instant)}
        case AtSnapshot():
            return {"snapshot": True}
    return {}


def _whole(address: str) -> str:
    """An address with a path, where it has none."""
    parts = urlsplit(address)
    if not parts.hostname or parts.query or parts.fragment:
        raise ClientError(f"target is {address!r}; an address is such as 'ws://127.0.0.1:8765'")
    return urlunsplit(parts._replace(path=PATH if parts.path in ("", "/") else parts.path))


def _object(content: str | bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _told(body: bytes | bytearray | None) -> str:
    return str(_object(bytes(body or b"")).get("told", "it is no server of a ticker"))
