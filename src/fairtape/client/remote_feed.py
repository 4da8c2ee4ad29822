"""A feed from the servers of sites on other machines, by WebSocket (`fairtape web`), one at a time.

All sites have the same order, so any server will do. When a connection is lost, or its site does not serve any more,
the feed goes on with the next server, from the number after the last one that it delivered. The request names the last
formation that the feed knows: where the order had a Break since then, the server begins with that.

Under the guaranteed grade a server disconnects a reader that is too slow; the reader resumes from the site's journal
once it reads again. With best effort the server sends the newest records, and a `Skipped` for the rest.
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
from fairtape.tape.serialization import BadBatch, decode_batch, parse_record

PATH: Final = "/v1/ticker"
OPEN_PERIOD_MAX: Final = 10.0  # seconds for a connection and the answer to a subscription
POLL_PERIOD: Final = 0.1  # seconds after which an idle feed checks whether it was stopped
RETRY_PERIOD: Final = 0.1  # seconds between two rounds of all servers, at first
RETRY_PERIOD_MAX: Final = 2.0
OUTAGE_MIN: Final = 1 * SECOND
FRAME_MAX: Final = 8 << 20  # bytes
SYMBOLS_SENT_MAX: Final = 1_000  # that a server takes; with more, it sends all of them and the client selects


class RequestRefused(Exception):
    """A server refused a request; its own sentence."""


class ConnectionLost(Exception):
    """A connection has ended, and the feed resumes elsewhere."""


class RemoteFeed:
    """The order, from one of these servers."""

    endless: Final = True

    def __init__(self, addresses: Sequence[str], selection: Selection, *, guaranteed: bool) -> None:
        self._addresses = deque(map(_with_path, addresses))  # the first one is connected, or tried next
        self.title = " or ".join(addresses)
        self._selection = selection
        self._policy = "disconnect" if guaranteed else "skip"
        self._connection: ServerConnection | None = None
        self._due = 1  # the number to go on with
        self._formation = 0  # the last one that a server named
        self._formation_delivered = 0
        self._snapshot_due = False  # it was requested and is not delivered yet
        self._lost_at: Instant | None = None
        self._stale = False
        self._stopped = False

    def open(self, start: Start) -> None:
        """Subscribe at the first server whose site serves, or else at the first that answers."""
        self._snapshot_due = isinstance(start, AtSnapshot)
        why = ""
        for require_serving in (True, False):
            for _ in range(len(self._addresses)):
                try:
                    self._connection = self._subscribed(_start_fields(start), require_serving=require_serving)
                except (RequestRefused, OSError) as error:
                    why = str(error)
                    self._addresses.rotate(-1)
                else:
                    return
        raise ClientError(f"target {self.title} cannot be reached: {why}; serve a site with: fairtape web")

    def run(self) -> Iterator[Delivery]:
        """What the servers send from there on, until `stop`."""
        opened = self._connection
        assert opened is not None
        try:
            yield from self._state(opened)
            while not self._stopped:
                if self._connection is None:
                    yield from self._resumed()
                    continue
                try:
                    yield from self._received(self._connection)
                except ConnectionLost:
                    self._drop()
        finally:
            self._drop()

    def stop(self) -> None:
        self._stopped = True

    def last_sales(self) -> LastSales:
        """A snapshot of a server that answers, over a connection of its own."""
        for address in list(self._addresses):
            try:
                connection = ServerConnection(address)
            except (RequestRefused, OSError):
                continue
            try:
                connection.subscribe(self._subscribe_request({"snapshot": True}))
                while not self._stopped:
                    for each in connection.receive():
                        if isinstance(each, LastSales):
                            return each
            except (RequestRefused, ConnectionLost):
                continue
            finally:
                connection.close()
        raise ClientError(f"no server of {self.title} answers; serve a site with: fairtape web")

    def _subscribe_request(self, start: dict[str, object]) -> dict[str, object]:
        chosen = self._selection
        symbols = None if len(chosen.symbols or ()) > SYMBOLS_SENT_MAX else chosen.symbols
        selected = {
            name: value for name, value in (("symbols", symbols), ("stripes", chosen.stripes)) if value is not None
        }
        return {"do": "subscribe", "form": "binary", "policy": self._policy, **selected, **start}

    def _subscribed(self, request: dict[str, object], *, require_serving: bool) -> "ServerConnection":
        """A connection to the first server. Raises `RequestRefused`, if required also where its site does not serve."""
        connection = ServerConnection(self._addresses[0])
        try:
            answer = connection.subscribe(
                self._subscribe_request(request), require_serving=require_serving and len(self._addresses) > 1
            )
        except BaseException:
            connection.close()
            raise
        self._due = int(answer["next"])
        self._formation = max(self._formation, int(answer.get("formation", 0)))
        return connection

    def _received(self, connection: "ServerConnection") -> Iterator[Delivery]:
        for each in connection.receive():
            match each:
                case Stale() if len(self._addresses) > 1:
                    raise ConnectionLost
                case Stale() | Fresh():
                    self._stale = isinstance(each, Stale)
                case Break() | Reformation():
                    if each.formation <= self._formation_delivered:
                        continue  # a server at which the feed resumed sends it again
                    self._formation_delivered = each.formation
            self._due = number_after(each, self._due)
            self._snapshot_due = self._snapshot_due and not isinstance(each, LastSales)
            yield each

    def _resumed(self) -> Iterator[Delivery]:
        """Connect again, from the number that is due; a `Stale` reports that it takes long."""
        assert self._lost_at is not None
        period, tries = RETRY_PERIOD, 0
        while self._connection is None and not self._stopped:
            self._addresses.rotate(-1)
            known = max(self._formation, self._formation_delivered)
            request: dict[str, object] = (
                {"snapshot": True} if self._snapshot_due else {"from": self._due, "formation": known}
            )
            try:
                self._connection = self._subscribed(request, require_serving=True)
            except (RequestRefused, OSError):
                tries += 1
            if self._connection is None and not self._stale and time.time_ns() - self._lost_at > OUTAGE_MIN:
                self._stale = True
                yield Stale(self._lost_at)
            if self._connection is None and tries % len(self._addresses) == 0:
                self._pause(period)
                period = min(2 * period, RETRY_PERIOD_MAX)
        if self._connection is not None:
            yield from self._state(self._connection)

    def _state(self, connection: "ServerConnection") -> Iterator[Notice]:
        """The notice of a change that a new connection brings."""
        if connection.stale_since is not None and not self._stale:
            self._stale = True
            yield Stale(connection.stale_since)
        elif self._stale and connection.stale_since is None:
            self._stale = False
            yield Fresh()

    def _pause(self, period: float) -> None:
        ends_at = time.monotonic() + period
        while not self._stopped and (left := ends_at - time.monotonic()) > 0:
            time.sleep(min(left, POLL_PERIOD))

    def _drop(self) -> None:
        if self._connection is not None:
            if self._connection.next_sequence is not None:
                self._due = min(self._due, self._connection.next_sequence)
            self._connection.close()
        self._connection, self._lost_at = None, time.time_ns()


class ServerConnection:
    """One connection to one server."""

    def __init__(self, address: str) -> None:
        self.next_sequence: int | None = None  # the number to go on with, which the server sends at the end
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
                    close_timeout=POLL_PERIOD,
                )
            )
        except InvalidStatus as error:
            raise RequestRefused(_error_text(error.response.body)) from None
        except (WebSocketException, TimeoutError, UnicodeError) as error:
            raise RequestRefused(str(error) or "no answer came in time") from None

    def subscribe(self, request: dict[str, object], *, require_serving: bool = False) -> dict[str, Any]:
        """Subscribe; returns the response. Raises `RequestRefused`, if required also where the site does not serve."""
        try:
            self._socket.send(json.dumps(request))
            content = self._socket.recv(timeout=OPEN_PERIOD_MAX)
        except (ConnectionClosed, TimeoutError):
            raise RequestRefused("it did not answer") from None
        answer = _object(content)
        if answer.get("kind") != "subscribed" or not isinstance(answer.get("next"), int):
            raise RequestRefused(str(answer.get("told", "its answer is none of a ticker")))
        since = answer.get("stale_since_ns")
        self.stale_since = int(since) if isinstance(since, str) and since.isdecimal() else None
        if require_serving and self.stale_since is not None:
            raise RequestRefused("its site does not serve")
        return answer

    def receive(self) -> list[Delivery]:
        """What arrived within `POLL_PERIOD`. Raises `ConnectionLost` at the end."""
        try:
            content = self._socket.recv(timeout=POLL_PERIOD)
        except TimeoutError:
            return []
        except ConnectionClosed:
            raise ConnectionLost from None
        now = time.time_ns()
        try:
            if isinstance(content, bytes):
                return self._traded(decode_batch(content, now)[0])
            fields = _object(content)
            if fields.get("kind") in ("end", "error"):
                return self._ended(fields)
            record = parse_record(fields, now)
        except BadBatch as error:
            raise ClientError(f"a server sent what is no record ({error}); is it of this version?") from None
        if isinstance(record, Snapshot):
            self._snapshot, self._sales = record, []
            return self._traded(TradeBatch(blank_trades(0), np.zeros(0, PLACE_DTYPE)))
        return [record]

    def close(self) -> None:
        self._opened.close()

    def _traded(self, batch: TradeBatch) -> list[Delivery]:
        """Trades of the order, or those of a snapshot, which are delivered together."""
        if self._snapshot is None:
            return [batch] if batch.rows else []
        self._sales.append(batch)
        if sum(each.rows for each in self._sales) < self._snapshot.count:
            return []
        snapshot, self._snapshot = self._snapshot, None
        return [LastSales(snapshot.first, snapshot.through, join_batches(self._sales))]

    def _ended(self, fields: dict[str, Any]) -> list[Delivery]:
        next_sequence = fields.get("next")
        self.next_sequence = next_sequence if isinstance(next_sequence, int) and next_sequence > 0 else None
        raise ConnectionLost


def _start_fields(start: Start) -> dict[str, object]:
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


def _with_path(address: str) -> str:
    """The address, with the default path where it has none."""
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


def _error_text(body: bytes | bytearray | None) -> str:
    return str(_object(bytes(body or b"")).get("told", "it is no server of a ticker"))
