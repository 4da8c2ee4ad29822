"""Ordering: acknowledgments become the sequence.

Ack(e) names ranges; together with the numbers before it they get s … s + k - 1 (decision 3). Acks may arrive in any
order and in parts; tokens are taken into the order strictly one after the other.
"""

from typing import Final

from fairtape.core.effects import Ordered, Span
from fairtape.ring.formation import Formation
from fairtape.ring.holdings import Holdings
from fairtape.wire.frames import Ack, Malformed, Range

TOKENS_AHEAD_MAX: Final = 65_536
"""How far above the last token in the order an acknowledgment may be to be kept."""


class Breach(Exception):
    """A token site has broken the protocol: its acknowledgment does not continue the order."""


class Acknowledgment:
    """Ack(e) as it comes together from its parts."""

    __slots__ = ("complete", "parts", "ranges", "sent_at", "sequence")

    def __init__(self) -> None:
        self.parts: dict[int, tuple[Ack, bytes]] = {}
        self.complete = False  # all of Msg(e) is held
        self.ranges: tuple[Range, ...] = ()
        self.sequence = 0
        self.sent_at = 0

    @property
    def whole(self) -> bool:
        """All parts are held (decision 4)."""
        return self.sequence != 0

    def add(self, ack: Ack, datagram: bytes) -> None:
        """Keep a part that is not held yet."""
        for other, _ in self.parts.values():
            if (other.parts, other.sent_at) != (ack.parts, ack.sent_at):
                raise Malformed("a part that does not belong to the others")
            break
        self.parts[ack.part] = ack, datagram
        if len(self.parts) == ack.parts:
            self._join()

    def _join(self) -> None:
        acks = [self.parts[part][0] for part in sorted(self.parts)]
        self.ranges = tuple(named for ack in acks for named in ack.ranges)
        self.sent_at = acks[0].sent_at
        self.sequence = acks[0].sequence

    @property
    def datagrams(self) -> list[bytes]:
        """The parts as they were sent, for repairs."""
        return [datagram for _, datagram in self.parts.values()]


class Ordering:
    """The acknowledgments of one formation, from the first that is not yet held by all to the latest heard."""

    def __init__(self, *, formation: Formation, stripe: int, holdings: Holdings) -> None:
        self._formation = formation
        self._stripe = stripe
        self._holdings = holdings
        self._acks: dict[int, Acknowledgment] = {}
        self._dropped_through = formation.first_token - 1
        self.complete_through = formation.first_token - 1
        self.next_sequence = formation.first_sequence

    def accept(self, ack: Ack, datagram: bytes) -> str:
        """Take one part of an acknowledgment; the name of what became of it."""
        token = ack.token
        if ack.sender != self._formation.holder(token) or token < self._formation.first_token:
            return "out_of_turn"
        if token <= self._dropped_through:
            return "duplicate"
        if token > self.complete_through + TOKENS_AHEAD_MAX:
            return "over_limit"
        acknowledgment = self._acks.get(token) or Acknowledgment()
        if ack.part in acknowledgment.parts:
            return "duplicate"
        for named in ack.ranges:
            self._holdings.name(named)
        acknowledgment.add(ack, datagram)
        self._acks[token] = acknowledgment
        return "ack"

    def whole(self, token: int) -> bool:
        """Whether all parts of Ack(token) are, or were, held."""
        if token <= self.complete_through:
            return True
        known = self._acks.get(token)
        return known is not None and known.whole

    def holds_messages(self, token: int) -> bool:
        """Whether all of Msg(token) is held."""
        acknowledgment = self._acks.get(token)
        if acknowledgment is None or not acknowledgment.whole:
            return token <= self.complete_through
        return all(self._holdings.named(named).next >= named.end for named in acknowledgment.ranges)

    def missing(self, token: int) -> list[Range]:
        """What of Msg(token) is not held."""
        ranges = self._acks[token].ranges
        return [gap for named in ranges for gap in self._holdings.named(named).missing(named.first, named.end)]

    def completed(self, token: int) -> None:
        """All of Msg(token) is held."""
        self._acks[token].complete = True

    def take_next(self) -> Ordered | None:
        """Take the next token into the order, if all of it is held. `Breach` where it does not continue the order."""
        token = self.complete_through + 1
        acknowledgment = self._acks.get(token)
        if acknowledgment is None or not acknowledgment.complete:
            return None
        if acknowledgment.sequence != self.next_sequence:
            raise Breach
        sequence = self.next_sequence
        spans = self._take_spans(acknowledgment)
        self.complete_through = token
        timed = self._formation.timed
        return Ordered(
            stripe=self._stripe,
            formation=self._formation.number,
            token=token,
            sequence=sequence,
            count=self.next_sequence - sequence,
            acknowledged_at=self._formation.scheduled_at(token) if timed else acknowledgment.sent_at,
            spans=spans,
        )

    def _take_spans(self, acknowledgment: Acknowledgment) -> tuple[Span, ...]:
        spans = []
        for named in acknowledgment.ranges:
            if not self._holdings.fits(named):
                raise Breach
            spans.append(self._holdings.take(named, self.next_sequence))
            self.next_sequence += named.count
        return tuple(spans)

    def datagrams(self, token: int) -> list[bytes]:
        """The parts of Ack(token), as far as they are held."""
        acknowledgment = self._acks.get(token)
        return acknowledgment.datagrams if acknowledgment is not None else []

    def drop_through(self, token: int) -> None:
        """Every member holds everything up to `token`: keep none of it for repairs."""
        while self._dropped_through < token:
            self._dropped_through += 1
            self._holdings.drop(self._acks.pop(self._dropped_through).ranges)
