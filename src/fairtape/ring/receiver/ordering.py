"""Ordering: acknowledgments become the sequence.

Ack(e) names ranges, whose messages get the next sequence numbers s … s + k - 1 (decision 3, Numbering). Acks may arrive
in any order and in parts; tokens enter the order strictly one after the other.
"""

from typing import Final

from fairtape.core.effects import Ordered, Span
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver.receive_buffer import ReceiveBuffer, Stream
from fairtape.wire.frames import Ack, Malformed, Range

TOKENS_AHEAD_MAX: Final = 65_536
"""Acknowledgments further above the last ordered token are refused."""


class Breach(Exception):
    """A token site violated the protocol: its acknowledgment does not continue the order."""


class Acknowledgment:
    """Ack(e), assembled from its parts."""

    __slots__ = ("complete", "parts", "ranges", "sent_at", "sequence")

    def __init__(self) -> None:
        self.parts: dict[int, tuple[Ack, bytes]] = {}
        self.complete = False  # all of Msg(e) is held
        self.ranges: tuple[Range, ...] = ()
        self.sequence = 0
        self.sent_at = 0

    @property
    def whole(self) -> bool:
        """All parts are held (decision 4, Ranges)."""
        return self.sequence != 0

    def add(self, ack: Ack, datagram: bytes) -> None:
        """Add a part that is not held yet. Raises `Malformed` if it does not match the others."""
        for other, _ in self.parts.values():
            if (other.parts, other.sent_at) != (ack.parts, ack.sent_at):
                raise Malformed("part of another acknowledgment")
            break
        self.parts[ack.part] = ack, datagram
        if len(self.parts) == ack.parts:
            self._join()

    def _join(self) -> None:
        acks = [self.parts[part][0] for part in sorted(self.parts)]
        self.ranges = acks[0].ranges if len(acks) == 1 else tuple(named for ack in acks for named in ack.ranges)
        self.sent_at = acks[0].sent_at
        self.sequence = acks[0].sequence

    @property
    def datagrams(self) -> list[bytes]:
        """The original datagrams, for repairs."""
        return [datagram for _, datagram in self.parts.values()]


class Ordering:
    """The acknowledgments from the first that not all members hold to the latest received."""

    def __init__(
        self, *, formations: FormationHistory, stripe: int, buffer: ReceiveBuffer, after: int, next_sequence: int
    ) -> None:
        """Tokens up to `after` are in the order already; `next_sequence` is the next number."""
        self.formations = formations
        self.stripe = stripe
        self.buffer = buffer
        self._acks: dict[int, Acknowledgment] = {}
        self._dropped_through = after
        self.complete_through = after
        self.next_sequence = next_sequence

    @property
    def ahead(self) -> int:
        """The acknowledgments that are held and not in the order yet."""
        return sum(1 for token in self._acks if token > self.complete_through)

    @property
    def formation(self) -> Formation:
        """The formation of the next token."""
        return self.formations.of(self.complete_through + 1)

    def accept(self, ack: Ack, datagram: bytes) -> str:
        """Add one part of an acknowledgment. Returns a counter name."""
        token = ack.token
        formation = self.formations.of(token)
        if token < formation.first_token or ack.formation != formation.number or ack.sender != formation.holder(token):
            return "out_of_turn"
        if token <= self._dropped_through or (token <= self.complete_through and token not in self._acks):
            return "duplicate"
        if token > self.complete_through + TOKENS_AHEAD_MAX:
            return "over_limit"
        acknowledgment = self._acks.get(token) or Acknowledgment()
        if ack.part in acknowledgment.parts:
            return "duplicate"
        for named in ack.ranges:
            self.buffer.note_named(named)
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
        return all(self.buffer.named(named).next >= named.end for named in acknowledgment.ranges)

    def holds_all_through(self, token: int) -> bool:
        """Whether everything up to `token` is held, in the order or not yet."""
        following = range(self.complete_through + 1, token + 1)
        return all(each in self._acks and self._acks[each].complete for each in following)

    def ranges(self, token: int) -> tuple[Range, ...]:
        return self._acks[token].ranges

    def missing(self, token: int) -> list[Range]:
        """The ranges of Msg(token) that are not held."""
        ranges = self._acks[token].ranges
        return [gap for named in ranges for gap in self.buffer.named(named).missing(named.first, named.end)]

    def completed(self, token: int) -> None:
        self._acks[token].complete = True

    def first_named_after(self, token: int, stream: Stream) -> int:
        """The lowest number of this stream that a token above `token` ordered; its next number if none did."""
        for later in range(token + 1, self.complete_through + 1):
            acknowledgment = self._acks.get(later)
            if acknowledgment is None:
                return 1  # adopted from another site: unknown here, and a lower number is always safe
            for named in acknowledgment.ranges:
                if (named.source, named.incarnation) == stream.key:
                    return named.first
        return stream.acked

    def take_next(self) -> Ordered | None:
        """Order the next token if all of it is held. Raises `Breach` if it does not continue the order."""
        token = self.complete_through + 1
        acknowledgment = self._acks.get(token)
        if acknowledgment is None or not acknowledgment.complete:
            return None
        if acknowledgment.sequence != self.next_sequence:
            raise Breach
        sequence = self.next_sequence
        spans = self._take_spans(acknowledgment)
        self.complete_through = token
        formation = self.formations.of(token)
        return Ordered(
            stripe=self.stripe,
            formation=formation.number,
            token=token,
            sequence=sequence,
            count=self.next_sequence - sequence,
            acknowledged_at=formation.scheduled_at(token) if formation.timed else acknowledgment.sent_at,
            spans=spans,
        )

    def _take_spans(self, acknowledgment: Acknowledgment) -> tuple[Span, ...]:
        spans = []
        for named in acknowledgment.ranges:
            if not self.buffer.continues_order(named):
                raise Breach
            spans.append(self.buffer.take(named, self.next_sequence))
            self.next_sequence += named.count
        return tuple(spans)

    def datagrams(self, token: int) -> list[bytes]:
        """The held parts of Ack(token)."""
        acknowledgment = self._acks.get(token)
        return acknowledgment.datagrams if acknowledgment is not None else []

    def drop_through(self, token: int) -> None:
        """All members hold everything up to `token`: drop it."""
        while self._dropped_through < token:
            self._dropped_through += 1
            acknowledgment = self._acks.pop(self._dropped_through, None)
            if acknowledgment is not None:  # adopted tokens have no datagrams for repairs
                self.buffer.drop(acknowledgment.ranges)

    def adopt(self, ordered: Ordered) -> None:
        """Append an entry from another site's journal, which continues the order here."""
        assert ordered.token > self.complete_through
        assert ordered.sequence == self.next_sequence
        for span in ordered.spans:
            self.buffer.adopt(span)
        self.next_sequence += ordered.count
        self._acks.pop(ordered.token, None)  # its blocks are not kept for repairs
        self.complete_through = ordered.token

    def advance_to(self, token: int) -> None:
        """No messages follow up to `token`. An acknowledgment that says otherwise belongs to an abandoned formation."""
        if token <= self.complete_through:
            return
        for void in [known for known in self._acks if self.complete_through < known <= token]:
            del self._acks[void]
        self.complete_through = token

    def waiting(self) -> list[int]:
        """Tokens above the order whose acknowledgments are complete."""
        return sorted(token for token, known in self._acks.items() if token > self.complete_through and known.whole)

    def forget_unordered(self) -> None:
        """Drop acknowledgments above the order: their formation was abandoned."""
        for token in [token for token in self._acks if token > self.complete_through]:
            del self._acks[token]
        self.buffer.forget_names()
