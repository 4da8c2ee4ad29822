"""A/B arbitration: the packets of several feeds of one session become one sequence, each message once and in order.

The first copy of a number is delivered, whichever feed brought it. Messages ahead of a gap are held, within limits,
until the gap is filled or given up. A gap that is given up becomes a `SequenceGap` in the output, so delivered and
missing numbers together are always complete up to some number. Runs of messages are handled as a whole: the work is per
packet, not per message.

There is no clock here. The caller decides when to request what is `missing` and when to `give_up`.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from fairtape.formats.moldudp64 import Packet

AHEAD_MAX: Final = 1 << 16  # numbers between the next one to deliver and the farthest one that is held
HELD_BYTES_MAX: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Run:
    """Messages with consecutive numbers."""

    first: int
    messages: tuple[bytes, ...]

    @property
    def following(self) -> int:
        """The number after the last one."""
        return self.first + len(self.messages)

    @property
    def size(self) -> int:
        """The total size of the messages in bytes."""
        return sum(map(len, self.messages))

    def between(self, first: int, following: int) -> "Run":
        """The part within these bounds."""
        first = max(first, self.first)
        return Run(first, self.messages[first - self.first : max(following - self.first, 0)])


@dataclass(frozen=True, slots=True)
class SequenceGap:
    """Consecutive numbers of missing messages."""

    first: int
    count: int


Output: TypeAlias = Run | SequenceGap


class FeedArbitration:
    """One session as a customer receives it. Without a `first` number it begins with the first packet."""

    def __init__(
        self,
        session: str,
        *,
        first: int | None = 1,
        ahead_max: int = AHEAD_MAX,
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        self.session = session
        self.next: int | None = first  # the number to deliver next; None before the first packet
        self.highest = 0 if first is None else first - 1  # the highest number known to exist
        self.ended = False  # whether the highest number is the session's last
        self._ahead_max = ahead_max
        self._held_bytes_max = held_bytes_max
        self._held: list[Run] = []  # in order, disjoint, all after a gap
        self._held_bytes = 0

    @property
    def complete(self) -> bool:
        """Whether the session is over and all of it was delivered or given up."""
        return self.ended and self.next == self.highest + 1

    def receive(self, packet: Packet) -> list[Output]:
        """What can be delivered after this packet of any feed."""
        if packet.session != self.session:
            return []
        if self.next is None:
            self.next = packet.number
            self.highest = packet.number - 1
        self.highest = max(self.highest, packet.following - 1)
        self.ended |= packet.ended
        if packet.messages:
            self._hold(Run(packet.number, packet.messages), self.next)
        return list(self._ready())

    def missing(self) -> Iterator[SequenceGap]:
        """The gaps up to the highest known number, as far as the missing messages could be held."""
        if self.next is None:
            return
        at, end = self.next, min(self.highest + 1, self.next + self._ahead_max)
        for run in self._held:
            if run.first > at:
                yield SequenceGap(at, run.first - at)
            at = run.following
        if end > at:
            yield SequenceGap(at, end - at)

    def give_up(self, through: int) -> list[Output]:
        """Stop waiting for anything up to this number: held messages are delivered, the rest becomes gaps."""
        output: list[Output] = []
        through = min(through, self.highest)
        while self.next is not None and self.next <= through:
            end = min(self._held[0].first if self._held else through + 1, through + 1)
            output.append(SequenceGap(self.next, end - self.next))
            self.next = end
            output += self._ready()
        return output

    def _ready(self) -> Iterator[Run]:
        """Deliver what no gap precedes."""
        while self._held and self._held[0].first == self.next:
            run = self._held.pop(0)
            self._held_bytes -= run.size
            self.next = run.following
            yield run

    def _hold(self, run: Run, following: int) -> None:
        """Hold the messages of a run that are new and within the limits."""
        for piece in list(self._new_parts(run.between(following, following + self._ahead_max))):
            # The next piece in order is delivered at once, so that no limit can stop the sequence.
            if piece.first != following and self._held_bytes + piece.size > self._held_bytes_max:
                continue
            self._held.insert(bisect_right(self._held, piece.first, key=_first), piece)
            self._held_bytes += piece.size

    def _new_parts(self, run: Run) -> Iterator[Run]:
        """The parts of a run that are not held yet."""
        at = run.first
        place = max(bisect_right(self._held, at, key=_first) - 1, 0)
        for held in self._held[place:]:
            if at >= run.following:
                return
            if held.first > at:
                yield run.between(at, min(held.first, run.following))
            at = max(at, held.following)
        if at < run.following:
            yield run.between(at, run.following)


def _first(run: Run) -> int:
    return run.first
