"""Prints the tape: released trades, notices and changes of formation as lines, read from the journals of sites.

A line is text in columns, or one JSON object. The journals are the queue between the sites and the reader of the lines:
a slow reader never delays a site, and no line is skipped. A thread writes to standard output. It is a daemon and calls
`os.write` directly, so the program can end while a reader that reads nothing blocks the thread in a write.
"""

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from queue import Full, Queue
from typing import TYPE_CHECKING, Final, NamedTuple

from fairtape.cli.terminal import format_instant
from fairtape.core.errors import UserError
from fairtape.journal import FormationChanged, JournalEntry, JournalFollower
from fairtape.market.notices import StatusNotice, VenueNotice, in_words, notice_in
from fairtape.market.prices import format_fixed
from fairtape.market.trades import TRADE_SIZE, BadTrade, records
from fairtape.ring.membership.layout import decode_formation
from fairtape.wire.blocks import unpack_messages
from fairtape.wire.frames import Malformed, NodeId

if TYPE_CHECKING:
    from fairtape.core.effects import FormationChange, Release

# Lines.


class TradeRecord(NamedTuple):
    """The fields of a trade's record."""

    kind: int
    version: int
    flags: int
    venue: bytes
    symbol: bytes
    price: int
    quantity: int
    traded_at: int
    trade_id: int


class TextLines:
    """Lines of text in columns."""

    def __init__(self, names: Mapping[NodeId, str]) -> None:
        self._names = names  # of sources and sites; others are printed as numbers

    def trade(self, sequence: int, committed_at: str, release: "Release", source: NodeId, trade: TradeRecord) -> str:
        mark = "  late" if release.late else ""
        name, venue, symbol = _name(source, self._names), trade.venue.decode(), trade.symbol.decode()
        return (
            f"{sequence:>9}  {committed_at}  {name:<5} {venue:<12} {symbol:<16}"
            f" {format_fixed(trade.price):>14} {format_fixed(trade.quantity):>14}{mark}\n"
        )

    def notice(self, sequence: int, committed_at: str, release: "Release", source: NodeId, notice: VenueNotice) -> str:
        mark = "  late" if release.late else ""
        return f"{sequence:>9}  {committed_at}  {_name(source, self._names):<5} {in_words(notice)}{mark}\n"

    def change(self, change: "FormationChange") -> str:
        members = " ".join(_members(change, self._names))
        text = f"formation {change.formation}{members and f' of {members}'}, from number {change.sequence} on"
        if change.broken:
            text = f"BREAK  {text}; lost sites may have assigned these numbers to other messages"
        else:
            text = f"{'FORMATION' if change.formation == 1 else 'REFORMATION'}  {text}"
        return f"{'-':>9}  {format_instant(change.installed_at)}  {text}\n"


class JsonLines:
    """One JSON object per line."""

    def __init__(self, names: Mapping[NodeId, str]) -> None:
        self._names = names

    def trade(self, sequence: int, _committed_at: str, release: "Release", source: NodeId, trade: TradeRecord) -> str:
        return _packed(
            {
                **self._place("trade", sequence, release, source),
                "venue": trade.venue.decode(),
                "symbol": trade.symbol.decode(),
                "price": format_fixed(trade.price),
                "quantity": format_fixed(trade.quantity),
                "traded_at_ns": trade.traded_at,
                "trade_id": trade.trade_id,
            }
        )

    def notice(self, sequence: int, _committed_at: str, release: "Release", source: NodeId, notice: VenueNotice) -> str:
        return _packed(
            {
                **self._place("notice", sequence, release, source),
                "revises": None if isinstance(notice, StatusNotice) else notice.number,
                "notice": in_words(notice),
            }
        )

    def change(self, change: "FormationChange") -> str:
        """The fields are those of `fairtape journal cat`."""
        return _packed(
            {
                "kind": "formation",
                "formation": change.formation,
                "broken": change.broken,
                "token": change.token,
                "sequence": change.sequence,
                "installed_at_ns": change.installed_at,
                "members": _members(change, self._names),
            }
        )

    def _place(self, kind: str, sequence: int, release: "Release", source: NodeId) -> dict[str, object]:
        return {
            "kind": kind,
            "sequence": sequence,
            "commit_at_ns": release.commit_at,
            "late": release.late,
            "source": _name(source, self._names),
        }


def _packed(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, separators=(",", ":")) + "\n"


def _name(node: NodeId, names: Mapping[NodeId, str]) -> str:
    return names.get(node) or str(node)


def _members(change: "FormationChange", names: Mapping[NodeId, str]) -> list[str]:
    """The members; none if the layout has a version that this program cannot read."""
    try:
        return [_name(member, names) for member in decode_formation(change.layout).members]
    except Malformed:
        return []


# Output.

CHUNKS_MAX: Final = 16  # waiting for the reader
PIECE_SIZE: Final = 4_096  # bytes of one write: small, so that progress of a slow reader is visible


class OutputThread:
    """Writes chunks to one file descriptor, in order, so that a slow reader never blocks the caller."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._chunks: Queue[bytes] = Queue(CHUNKS_MAX)
        self._offered = 0
        self._error: OSError | None = None
        self.written = 0  # chunks written completely
        self.pieces = 0  # writes that succeeded
        threading.Thread(target=self._write, name="standard output", daemon=True).start()

    def offer(self, chunk: bytes) -> bool:
        """Enqueue a chunk, unless the queue is full. Raises `BrokenPipeError` after the reader has closed the pipe."""
        self._check()
        try:
            self._chunks.put_nowait(chunk)
        except Full:
            return False
        self._offered += 1
        return True

    @property
    def idle(self) -> bool:
        self._check()
        return self.written == self._offered

    def _check(self) -> None:
        if isinstance(self._error, BrokenPipeError):
            raise self._error
        if self._error is not None:
            raise UserError(
                f"standard output cannot be written ({self._error.strerror}); free some space, or write elsewhere"
            )

    def _write(self) -> None:
        while self._error is None:
            chunk = memoryview(self._chunks.get())
            try:
                while chunk:
                    chunk = chunk[os.write(self._descriptor, chunk[:PIECE_SIZE]) :]
                    self.pieces += 1
                self.written += 1
            except OSError as error:
                self._error = error


# Printing.

STEP_MAX: Final = 0.05  # seconds of printing in one call of `advance`
POLL_PERIOD: Final = 0.01  # seconds between two polls of a reader that is behind
STANDSTILL_MAX: Final = 1.0  # seconds without progress after which `finish` and `flush` give up


class PrintState(Enum):
    """The state of the printing."""

    CAUGHT_UP = "nothing more is released"
    BUSY = "there is more, and the reader reads it"
    HELD_UP = "there is more, and the reader does not read"


@dataclass(slots=True)
class LineCounts:
    """What some lines contain."""

    through: int = 0  # the last sequence number
    trades: int = 0
    late: int = 0
    others: int = 0  # messages that are not trades
    breaks: int = 0

    def add(self, more: "LineCounts") -> None:
        """Add the count of lines that follow."""
        self.through = more.through
        self.trades += more.trades
        self.late += more.late
        self.others += more.others
        self.breaks += more.breaks


class TapePrinter:
    """Prints the releases of one site. It can continue with another site, because all have the same order."""

    def __init__(self, follower: JournalFollower, output: OutputThread, lines: TextLines | JsonLines) -> None:
        self._follower = follower
        self._output = output
        self._lines = lines
        self._waiting: tuple[bytes, LineCounts] | None = None  # a chunk that did not fit into the output queue
        self._offered: deque[LineCounts] = deque()  # counts of chunks that may not be written yet
        self._settled = 0  # written chunks, whose counts are in `printed`
        self.printed = LineCounts(through=follower.next_sequence - 1)

    @property
    def site(self) -> NodeId:
        return self._follower.site

    def advance(self) -> PrintState:
        """Print releases since the last call, for at most `STEP_MAX` and as far as the reader reads."""
        ends_at = time.monotonic() + STEP_MAX
        if self._waiting is not None and not self._offer(*self._waiting):
            return PrintState.HELD_UP
        for entry in self._follower.new_entries():
            if not self._offer(*self._lines_of(entry)):
                return PrintState.HELD_UP
            if time.monotonic() > ends_at:
                return PrintState.BUSY
        return PrintState.CAUGHT_UP

    def finish(self, given_up: Callable[[], bool], sites: Sequence[NodeId]) -> bool:
        """Print the rest, of this site and then of these, one of which may have released more; whether all was read.

        Gives up on a reader that reads nothing for `STANDSTILL_MAX`, or when `given_up` says so.
        """
        taken, furthest = True, self.site
        for site in dict.fromkeys((furthest, *sites)):
            before = self._follower.next_sequence
            self._follower.follow(site)
            taken = self._deliver(given_up, self.advance)
            if self._follower.next_sequence > before:
                furthest = site
            if not taken:
                break
        self._follower.follow(furthest)
        return taken

    def flush(self, given_up: Callable[[], bool]) -> bool:
        """Wait until the reader has read all offered lines; whether it did."""
        return self._deliver(given_up, self._push)

    def _push(self) -> PrintState:
        held_up = self._waiting is not None and not self._offer(*self._waiting)
        return PrintState.HELD_UP if held_up else PrintState.CAUGHT_UP

    def _deliver(self, given_up: Callable[[], bool], work: Callable[[], PrintState]) -> bool:
        pieces, moved_at = -1, 0.0
        while (state := work()) is not PrintState.CAUGHT_UP or not self._output.idle:
            if self._output.pieces > pieces:
                pieces, moved_at = self._output.pieces, time.monotonic()
            if given_up() or time.monotonic() - moved_at > STANDSTILL_MAX:
                break
            if state is not PrintState.BUSY:
                time.sleep(POLL_PERIOD)
        self._settle()
        return self._output.idle and self._waiting is None and state is PrintState.CAUGHT_UP

    def _offer(self, text: bytes, count: LineCounts) -> bool:
        self._settle()
        if not self._output.offer(text):
            self._waiting = text, count
            return False
        self._waiting = None
        self._offered.append(count)
        return True

    def _settle(self) -> None:
        """LineCounts the chunks that are written."""
        while self._settled < self._output.written:
            self.printed.add(self._offered.popleft())
            self._settled += 1

    def _lines_of(self, entry: JournalEntry | FormationChanged) -> tuple[bytes, LineCounts]:
        """The lines of one entry, and their count."""
        if isinstance(entry, JournalEntry):
            count = LineCounts(through=entry.end - 1)
            return "".join(self._trade_lines(entry, count)).encode(), count
        change = entry.change
        count = LineCounts(through=self._follower.next_sequence - 1, breaks=int(change.broken))
        return self._lines.change(change).encode(), count

    def _trade_lines(self, entry: JournalEntry, count: LineCounts) -> Iterator[str]:
        release = entry.release
        assert release is not None
        committed_at = format_instant(release.commit_at)
        count.late = release.count if release.late else 0
        for sequence, source, payloads in _bodies(entry):
            for number, (payload, trade) in enumerate(zip(payloads, _trades(payloads), strict=True), sequence):
                if trade is not None:
                    count.trades += 1
                    yield self._lines.trade(number, committed_at, release, source, trade)
                    continue
                count.others += 1
                if (notice := notice_in(payload)) is not None:
                    yield self._lines.notice(number, committed_at, release, source, notice)


def _bodies(entry: JournalEntry) -> Iterator[tuple[int, NodeId, list[bytes]]]:
    """The messages of one token, block by block. Trades are short, so fragments are not reassembled."""
    from fairtape.core.spans import blocks

    for span in entry.ordered.spans:
        for sequence, body, count, is_fragment in blocks(span):
            yield sequence, span.source, [b""] if is_fragment else unpack_messages(body, count)


def _trades(payloads: list[bytes]) -> list[TradeRecord | None]:
    """Decode trades, all at once if all messages are trades; None for a message that is not a trade."""
    if all(len(payload) == TRADE_SIZE for payload in payloads):
        try:
            return list(map(TradeRecord._make, records(b"".join(payloads)).tolist()))
        except BadTrade:
            pass
    return [None] if len(payloads) == 1 else [trade for payload in payloads for trade in _trades([payload])]
