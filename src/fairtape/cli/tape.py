"""The tape: released trades and changes of formation as lines, read from the journals of sites.

The journals are the queue between the sites and the reader of the lines. A slow reader never holds up a site, and
nothing is skipped for it: what it has not taken yet waits in the journal, for as long as it takes.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from fairtape.cli.journal import format_instant
from fairtape.journal import FormationChanged, JournalEntry, JournalFollower
from fairtape.market.notices import Notice, VenueStatus, in_words, notice_in
from fairtape.market.prices import format_fixed
from fairtape.market.trades import TRADE_SIZE, BadTrade, records
from fairtape.ring.membership.layout import decode_formation
from fairtape.wire.blocks import unpack_messages
from fairtape.wire.frames import Malformed, NodeId

if TYPE_CHECKING:
    from fairtape.cli.output_thread import OutputThread
    from fairtape.core.effects import FormationChange, Release

# The lines of the tape: a trade or a change of formation, for a person or as one JSON object.


class TradeRecord(NamedTuple):
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


class TextLines:
    """Columns for a person."""

    def __init__(self, names: Mapping[NodeId, str]) -> None:
        """`names` are those of sources and sites; whoever has none is a number."""
        self._names = names

    def trade(self, sequence: int, committed_at: str, release: "Release", source: NodeId, trade: TradeRecord) -> str:
        """A trade in its place in the order, and when it was due."""
        mark = "  late" if release.late else ""
        name, venue, symbol = _name(source, self._names), trade.venue.decode(), trade.symbol.decode()
        return (
            f"{sequence:>9}  {committed_at}  {name:<5} {venue:<12} {symbol:<16}"
            f" {format_fixed(trade.price):>14} {format_fixed(trade.quantity):>14}{mark}\n"
        )

    def notice(self, sequence: int, committed_at: str, release: "Release", source: NodeId, notice: Notice) -> str:
        """What a venue says beside its trades."""
        mark = "  late" if release.late else ""
        return f"{sequence:>9}  {committed_at}  {_name(source, self._names):<5} {in_words(notice)}{mark}\n"

    def change(self, change: "FormationChange") -> str:
        """A change of formation, where it stands in the order."""
        members = " ".join(_members(change, self._names))
        text = f"formation {change.formation}{members and f' of {members}'}, from number {change.sequence} on"
        if change.broken:
            text = f"BREAK  {text}; sites that are lost may have used these numbers otherwise"
        else:
            text = f"{'FORMATION' if change.formation == 1 else 'REFORMATION'}  {text}"
        return f"{'-':>9}  {format_instant(change.installed_at)}  {text}\n"


class JsonLines:
    """One object per line, for a program."""

    def __init__(self, names: Mapping[NodeId, str]) -> None:
        self._names = names

    def trade(self, sequence: int, _committed_at: str, release: "Release", source: NodeId, trade: TradeRecord) -> str:
        """A trade in its place in the order."""
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

    def notice(self, sequence: int, _committed_at: str, release: "Release", source: NodeId, notice: Notice) -> str:
        """What a venue says beside its trades."""
        return _packed(
            {
                **self._place("notice", sequence, release, source),
                "revises": None if isinstance(notice, VenueStatus) else notice.number,
                "notice": in_words(notice),
            }
        )

    def change(self, change: "FormationChange") -> str:
        """A change of formation, with the fields that `fairtape journal cat` gives it."""
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
        """What every message has."""
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
    """Who is in it; nobody is named where the layout is of a version that this program does not read."""
    try:
        return [_name(member, names) for member in decode_formation(change.layout).members]
    except Malformed:
        return []


STEP_MAX: Final = 0.05  # seconds of printing before the caller looks at something else
POLL_PERIOD: Final = 0.01  # seconds between two looks at a reader who is behind
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
    breaks: int = 0

    def add(self, more: "Count") -> None:
        """These lines as well, which follow the others."""
        self.through = more.through
        self.trades += more.trades
        self.late += more.late
        self.others += more.others
        self.breaks += more.breaks


class TapePrinter:
    """Prints what one site has released, and can go on with another: the order is the same at all of them."""

    def __init__(self, follower: JournalFollower, output: "OutputThread", lines: TextLines | JsonLines) -> None:
        self._follower = follower
        self._output = output
        self._lines = lines
        self._waiting: tuple[bytes, Count] | None = None  # a chunk that the outlet had no room for
        self._offered: deque[Count] = deque()  # chunks that are not known to be out
        self._settled = 0  # chunks that are
        self.printed = Count(through=follower.next_sequence - 1)

    @property
    def site(self) -> NodeId:
        """The one whose releases are printed."""
        return self._follower.site

    def advance(self) -> Progress:
        """Print what has been released since the last call, for a moment at most and as far as the reader takes it."""
        ends_at = time.monotonic() + STEP_MAX
        if self._waiting is not None and not self._offer(*self._waiting):
            return Progress.HELD_UP
        for entry in self._follower.new_entries():
            if not self._offer(*self._lines_of(entry)):
                return Progress.HELD_UP
            if time.monotonic() > ends_at:
                return Progress.BUSY
        return Progress.CAUGHT_UP

    def finish(self, given_up: Callable[[], bool]) -> bool:
        """Print the rest, of whichever site released most; whether the reader took it all.

        A reader that takes nothing for a while is not waited for, nor any reader when the user gives up on it.
        """
        taken, furthest = True, self.site
        for site in self._follower.journals:
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
        """Let the reader take what is on its way, and print nothing more; whether it took it."""
        return self._deliver(given_up, self._push)

    def _push(self) -> Progress:
        held_up = self._waiting is not None and not self._offer(*self._waiting)
        return Progress.HELD_UP if held_up else Progress.CAUGHT_UP

    def _deliver(self, given_up: Callable[[], bool], work: Callable[[], Progress]) -> bool:
        pieces, moved_at = -1, 0.0
        while (progress := work()) is not Progress.CAUGHT_UP or not self._output.idle:
            if self._output.pieces > pieces:
                pieces, moved_at = self._output.pieces, time.monotonic()
            if given_up() or time.monotonic() - moved_at > STANDSTILL_MAX:
                break
            if progress is not Progress.BUSY:
                time.sleep(POLL_PERIOD)
        self._settle()
        return self._output.idle and self._waiting is None and progress is Progress.CAUGHT_UP

    def _offer(self, text: bytes, count: Count) -> bool:
        self._settle()
        if not self._output.offer(text):
            self._waiting = text, count
            return False
        self._waiting = None
        self._offered.append(count)
        return True

    def _settle(self) -> None:
        """Count what is out by now."""
        while self._settled < self._output.written:
            self.printed.add(self._offered.popleft())
            self._settled += 1

    def _lines_of(self, entry: JournalEntry | FormationChanged) -> tuple[bytes, Count]:
        """The lines of one entry, and what they are about."""
        if isinstance(entry, JournalEntry):
            count = Count(through=entry.end - 1)
            return "".join(self._trade_lines(entry, count)).encode(), count
        change = entry.change
        count = Count(through=self._follower.next_sequence - 1, breaks=int(change.broken))
        return self._lines.change(change).encode(), count

    def _trade_lines(self, entry: JournalEntry, count: Count) -> Iterator[str]:
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
    """The messages of one token, block by block. A trade is never long, so fragments need not be put together here."""
    from fairtape.core.spans import blocks

    for span in entry.ordered.spans:
        for sequence, body, count, is_fragment in blocks(span):
            yield sequence, span.source, [b""] if is_fragment else unpack_messages(body, count)


def _trades(payloads: list[bytes]) -> list[TradeRecord | None]:
    """What each message says as a trade, read all at once where all of them are; None for one that is no trade."""
    if all(len(payload) == TRADE_SIZE for payload in payloads):
        try:
            return list(map(TradeRecord._make, records(b"".join(payloads)).tolist()))
        except BadTrade:
            pass
    return [None] if len(payloads) == 1 else [trade for payload in payloads for trade in _trades([payload])]
