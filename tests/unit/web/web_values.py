"""A site that releases while customers read, and connections with a limited capacity."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import unit.journal.journal_values as values
from fairtape.core.effects import Ordered
from fairtape.core.instants import SECOND
from fairtape.journal import JournalWriter
from fairtape.tape.batches import TradeBatch
from fairtape.tape.serialization import decode_batch
from fairtape.web.broadcast import Broadcaster, BroadcastLimits, WebCustomer
from fairtape.web.live_ticker import LiveTicker
from fairtape.web.subscription import Subscription
from unit.tape import tape_values

NOW = 1_800_000_000_000_000_000


class Site:
    """Writes a journal, as a site does."""

    def __init__(self, folder: Path, *, segment_size_max: int = 1 << 16) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.writer: JournalWriter = values.open_writer(folder, segment_size_max=segment_size_max)
        self.following = 1
        self.formation = 1
        self._held: list[Ordered] = []

    def hold(self, count: int, *, per_token: int = 3) -> None:
        """Put trades into the order that are not released yet."""
        for ordered in tape_values.order(count, per_token=per_token, first=self.following):
            placed = replace(ordered, formation=self.formation)
            self.writer.append(placed, placed.acknowledged_at)
            self._held.append(placed)
        self.following += count

    def release(self, count: int, *, per_token: int = 3, late: bool = False, at: int | None = None) -> None:
        """Put trades into the order, and release all that are in it."""
        self.hold(count, per_token=per_token)
        for ordered in self._held:
            mark = values.released(ordered, late=late)
            mark = mark if at is None else replace(mark, released_at=at)
            self.writer.release(mark, ordered.acknowledged_at)
        self._held.clear()

    def change_formation(self, *, broken: bool = False, at: int | None = None) -> None:
        """Install another formation; after a Break, from an earlier number on."""
        self.formation += 1
        self.following = at or self.following
        (first,) = tape_values.order(1, first=self.following)
        change = values.formation_change(first, self.formation, broken=broken)
        self.writer.append_formation(change, change.installed_at)

    def truncate_and_break(self, *, token: int, following: int) -> None:
        """Truncate everything after a token, as a site that comes back and finds that the others went on without it."""
        self.writer.truncate_after(token)
        self.following = following
        self.change_formation(broken=True)

    def publish(self, payload: bytes) -> None:
        """Release a message that is no trade."""
        placed = tape_values.ordered(self.following, self.following, [[payload]])
        self.writer.append(replace(placed, formation=self.formation), placed.acknowledged_at)
        self.writer.release(values.released(placed), placed.acknowledged_at)
        self.following += 1


class RecordedConnection:
    """A connection that takes `capacity` frames and then no more, until it is emptied."""

    def __init__(self, capacity: int = 1 << 30) -> None:
        self.capacity = capacity
        self.frames: list[bytes] = []
        self.ended: tuple[int, dict[str, object]] | None = None
        self.customer: WebCustomer | None = None
        self._waiting = 0

    def write(self, frame: bytes) -> None:
        self.frames.append(frame)
        self._waiting += 1
        if self._waiting >= self.capacity and self.customer is not None:
            self.customer.pause()

    def end(self, code: int, _reason: str, received: dict[str, object]) -> None:
        self.ended = code, received

    def empty(self, broadcaster: Broadcaster) -> None:
        """The peer has read everything."""
        self._waiting = 0
        if self.customer is not None and not self.customer.writable:
            broadcaster.resume(self.customer, NOW)

    @property
    def received(self) -> list[Any]:
        """Everything that was sent: numbers of trades, and objects that are no trades."""
        found: list[Any] = []
        for frame in self.frames:
            found += parsed(frame)
        return found

    @property
    def numbers(self) -> list[int]:
        """The numbers of all trades that were sent."""
        return [each for each in self.received if isinstance(each, int)]

    @property
    def notices(self) -> list[dict[str, Any]]:
        return [each for each in self.received if isinstance(each, dict)]


def payload_of(frame: bytes) -> tuple[int, bytes]:
    """The opcode and the payload of a frame that is not masked."""
    size, at = frame[1], 2
    if size >= 126:
        width = 2 if size == 126 else 8
        size, at = int.from_bytes(frame[2 : 2 + width], "big"), 2 + width
    assert len(frame) == at + size
    return frame[0] & 0x0F, frame[at:]


def parsed(frame: bytes) -> list[Any]:
    opcode, payload = payload_of(frame)
    if opcode == 2:
        batch, _ = decode_batch(payload, NOW)
        return numbers_of(batch)
    content = json.loads(payload)
    if content["kind"] == "trades":
        return [trade["sequence"] for trade in content["trades"]]
    return [content]


def numbers_of(batch: TradeBatch) -> list[int]:
    numbers: list[int] = batch.places["sequence"].tolist()
    return numbers


class WebWorld:
    """A site, and a broadcaster that follows it."""

    def __init__(self, folder: Path, *, released: int = 0, limits: BroadcastLimits | None = None) -> None:
        self.site = Site(folder)
        if released:
            self.site.release(released)
        self.broadcaster = Broadcaster(LiveTicker(folder), limits)

    def connect_customer(
        self, subscription: Subscription | None = None, *, capacity: int = 1 << 30
    ) -> RecordedConnection:
        connection = RecordedConnection(capacity)
        connection.customer = self.broadcaster.admit(connection)
        if subscription is not None:
            self.broadcaster.subscribe(connection.customer, subscription)
        return connection

    def run_rounds(self, rounds: int = 1) -> None:
        """Rounds, as a server loop runs them."""
        for _ in range(rounds):
            found = self.broadcaster.ticker.advance(60 * SECOND)  # however busy this machine is
            self.broadcaster.publish(found, NOW)
            self.broadcaster.send_replays(NOW)
