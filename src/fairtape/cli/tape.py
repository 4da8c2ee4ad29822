"""The tape: released trades as lines, read from the journals of a ring's sites.

The journals are the queue between the ring and the reader of the lines. A slow reader never holds up a site, and
nothing is skipped for it: what it has not taken yet waits in the journal, for as long as it takes.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from fairtape.cli.journal import format_instant
from fairtape.cli.outlet import Outlet
from fairtape.core.effects import Release
from fairtape.deployment.folder import SOURCES
from fairtape.market.prices import format_fixed
from fairtape.market.trades import TRADE_SIZE, BadTrade, records
from fairtape.runtime.journal import Cursor, Entry, Journal
from fairtape.wire.blocks import unpack_messages
from fairtape.wire.frames import NodeId

STEP_MAX: Final = 0.05  # seconds of printing before the caller looks at something else
LOOK_PERIOD: Final = 0.01  # seconds between two looks at a reader who is behind
STANDSTILL_MAX: Final = 1.0  # seconds for which a reader may take nothing when there is nothing else to wait for


class Progress(Enum):
    """How far the printing has come."""

    CAUGHT_UP = "nothing more is released"
    BUSY = "there is more, and the reader takes it"
    HELD_UP = "there is more, and the reader takes nothing"


@dataclass(slots=True)
class Count:
    """What the lines of some tokens are about."""

    through: int = 0  # the last sequence number
    trades: int = 0
    late: int = 0
    others: int = 0  # messages that are no trades

    def add(self, more: "Count") -> None:
        """These lines as well, which follow the others."""
        self.through = more.through
        self.trades += more.trades
        self.late += more.late
        self.others += more.others


class Tape:
    """Prints what one site has released, and can go on with another: the order is the same at all of them."""

    def __init__(self, journals: Mapping[NodeId, Path], outlet: Outlet, *, as_json: bool) -> None:
        self._journals = journals
        self._outlet = outlet
        self._line = _json_line if as_json else _line
        self._next = 1  # sequence number
        self._waiting: tuple[bytes, Count] | None = None  # a chunk that the outlet had no room for
        self._offered: deque[Count] = deque()  # chunks that are not known to be out
        self._settled = 0  # chunks that are
        self.printed = Count()
        self.site = next(iter(journals))
        self._entries = self._opened(self.site)

    def advance(self) -> Progress:
        """Print what has been released since the last call, for a moment at most and as far as the reader takes it."""
        ends_at = time.monotonic() + STEP_MAX
        if self._waiting is not None and not self._offer(*self._waiting):
            return Progress.HELD_UP
        for entry in self._entries:
            count = Count(through=entry.end - 1)
            text = "".join(self._lines(entry, count)).encode()
            self._next = entry.end
            if not self._offer(text, count):
                return Progress.HELD_UP
            if time.monotonic() > ends_at:
                return Progress.BUSY
        return Progress.CAUGHT_UP

    def finish(self, given_up: Callable[[], bool]) -> bool:
        """Print the rest, of whichever site released most; whether the reader took it all.

        A reader that takes nothing for a while is not waited for, nor any reader when the user gives up on it.
        """
        for site in self._journals:
            self._entries.close()
            self._entries = self._opened(site)
            before = self._next
            taken = self._deliver(given_up)
            if self._next > before:
                self.site = site
            if not taken:
                return False
        return True

    def _deliver(self, given_up: Callable[[], bool]) -> bool:
        pieces, moved_at = -1, 0.0
        while (progress := self.advance()) is not Progress.CAUGHT_UP or not self._outlet.idle:
            if self._outlet.pieces > pieces:
                pieces, moved_at = self._outlet.pieces, time.monotonic()
            if given_up() or time.monotonic() - moved_at > STANDSTILL_MAX:
                break
            if progress is not Progress.BUSY:
                time.sleep(LOOK_PERIOD)
        self._settle()
        return self._outlet.idle and self._waiting is None and progress is Progress.CAUGHT_UP

    def _opened(self, site: NodeId) -> Cursor:
        return Journal.open(self._journals[site]).entries(from_sequence=self._next)

    def _offer(self, text: bytes, count: Count) -> bool:
        self._settle()
        if not self._outlet.offer(text):
            self._waiting = text, count
            return False
        self._waiting = None
        self._offered.append(count)
        return True

    def _settle(self) -> None:
        """Count what is out by now."""
        while self._settled < self._outlet.written:
            self.printed.add(self._offered.popleft())
            self._settled += 1

    def _lines(self, entry: Entry, count: Count) -> Iterator[str]:
        release = entry.release
        assert release is not None
        committed_at = format_instant(release.commit_at)
        count.late = release.count if release.late else 0
        for sequence, source, payloads in _bodies(entry):
            for number, trade in enumerate(_trades(payloads), sequence):
                if trade is None:
                    count.others += 1
                else:
                    count.trades += 1
                    yield self._line(number, committed_at, release, source, trade)


class _Trade(NamedTuple):
    """A trade as its record has it."""

    kind: int
    version: int
    flags: int
    venue: bytes
    symbol: bytes
    price: int
    quantity: int
    traded_at: int
    trade_id: int


def _bodies(entry: Entry) -> Iterator[tuple[int, NodeId, list[bytes]]]:
    """The messages of one token, block by block. A trade is never long, so fragments need not be put together here."""
    for span in entry.ordered.spans:
        sequence = span.sequence
        fragments = span.fragments or (False,) * len(span.bodies)
        for body, count, fragment in zip(span.bodies, span.counts, fragments, strict=True):
            yield sequence, span.source, [b""] if fragment else unpack_messages(body, count)
            sequence += count


def _trades(payloads: list[bytes]) -> list[_Trade | None]:
    """What each message says as a trade, read all at once where all of them are; None for one that is no trade."""
    if all(len(payload) == TRADE_SIZE for payload in payloads):
        try:
            return list(map(_Trade._make, records(b"".join(payloads)).tolist()))
        except BadTrade:
            pass
    return [None] if len(payloads) == 1 else [trade for payload in payloads for trade in _trades([payload])]


def _line(sequence: int, committed_at: str, release: Release, source: NodeId, trade: _Trade) -> str:
    mark = "  late" if release.late else ""
    venue, symbol = trade.venue.decode(), trade.symbol.decode()
    return (
        f"{sequence:>9}  {committed_at}  {_source_name(source):<5} {venue:<12} {symbol:<16}"
        f" {format_fixed(trade.price):>14} {format_fixed(trade.quantity):>14}{mark}\n"
    )


def _json_line(sequence: int, _committed_at: str, release: Release, source: NodeId, trade: _Trade) -> str:
    fields = {
        "sequence": sequence,
        "commit_at_ns": release.commit_at,
        "late": release.late,
        "source": _source_name(source),
        "venue": trade.venue.decode(),
        "symbol": trade.symbol.decode(),
        "price": format_fixed(trade.price),
        "quantity": format_fixed(trade.quantity),
        "traded_at_ns": trade.traded_at,
        "trade_id": trade.trade_id,
    }
    return json.dumps(fields, separators=(",", ":")) + "\n"


def _source_name(source: NodeId) -> str:
    return SOURCES[source].name if source in SOURCES else str(source)
