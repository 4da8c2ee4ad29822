"""The stripe sequencer: numbers the messages of released tokens per stripe, over all editions.

Numbers are a function of the order alone. A change at a place of the order (the mark of a formation, a Break, a new
plan) is applied with the first token at or behind that place; changes at one place have a fixed order. So it does not
matter when a site learns of a change, as long as it is before that token; in the journal it always is.

The same sequencer numbers what a remulticaster sends, and what an archive reads from a journal again.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from fairtape.core.effects import FormationChange, Ordered, Span
from fairtape.core.instants import Instant
from fairtape.core.spans import blocks
from fairtape.edge.protocol.itch_codec import ItchEncoder
from fairtape.edge.protocol.sessions import (
    Begun,
    Edition,
    Mark,
    Over,
    Reformed,
    StripePosition,
    encode_mark,
    encode_opaque,
)
from fairtape.formats.framing import frame
from fairtape.formats.moldudp64 import DATAGRAM_MAX, HEADER_SIZE
from fairtape.market.notices import is_notice
from fairtape.market.stripes import StripePlan
from fairtape.market.trades import TRADE_SIZE
from fairtape.wire.blocks import uniform_records, unpack_messages

DUE_MAX: Final = 4_096  # formations and plans that wait for their place; beyond it the position counts as lost
SLICE_MAX: Final = 1_024  # trades that are encoded without a pause: about a millisecond
OTHERS_MAX: Final = 64  # other messages that are encoded without a pause: they cost up to sixteen times as much
MESSAGE_MAX: Final = DATAGRAM_MAX - HEADER_SIZE - 2
_RECORDS: Final = TRADE_SIZE.to_bytes(2, "big")  # the first bytes of a body of trade records


@dataclass(frozen=True, slots=True)
class StripeMessages:
    """Messages of one session with consecutive numbers."""

    stripe: int  # its index in the edition
    session: str
    first: int
    count: int
    framed: bytes  # each with its length prefix, as in a MoldUDP64 packet
    size: int  # of each message; 0 where they differ


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The sessions of this edition begin, or continue after a restart."""

    edition: Edition
    following: tuple[int, ...]  # the next number of each stripe


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The sessions of this edition have ended."""

    edition: Edition


StripeStep: TypeAlias = StripeMessages | SessionOpened | SessionClosed


class _Due(NamedTuple):
    """A change at a place of the order. At one place the formation changes first, then the plan."""

    sequence: int
    rank: int
    number: int  # of the formation, or of the plan's version
    change: FormationChange | None
    plan: StripePlan | None
    at: Instant


class _Other(NamedTuple):
    """A message that is no trade."""

    sequence: int
    source: int
    payload: bytes
    fragment: bool


class StripeSequencer:
    """Numbers the messages of all stripes of one core stripe."""

    def __init__(self, position: StripePosition, *, encoder: ItchEncoder | None = None) -> None:
        """An `encoder` for the plan of this position saves the time to set one up."""
        assert encoder is None or encoder.plan == position.edition.plan
        self.repeated = 0  # tokens that were delivered before
        self.lost = False  # the order has a hole, or was finished: nothing is numbered until `resume`
        self.at: Instant = 0  # the timestamp of the last token
        self._due: list[_Due] = []
        # By plan version: of the plan in force, and of later ones.
        self._encoders: dict[int, ItchEncoder] = {} if encoder is None else {encoder.plan.version: encoder}
        self._edition = position.edition
        self.resume(position)

    @property
    def position(self) -> StripePosition:
        """The current position, without changes that are still due."""
        return StripePosition(self._edition, self._sequence, tuple(self._following), self.at, self._formation)

    @property
    def edition(self) -> Edition:
        return self._edition

    @property
    def sequence(self) -> int:
        """The number in the order that is expected next."""
        return self._sequence

    def resume(self, position: StripePosition) -> None:
        """Continue from another position. Changes behind it must be given again, as a journal does."""
        self.lost = False
        self._due.clear()
        self._sequence, self.at = position.sequence, position.at
        self._formation = position.formation
        self._following = list(position.following)
        self._set_edition(position.edition)

    def begin(self) -> list[StripeStep]:
        """The steps before the first token: the opening of the sessions, unless it was numbered before."""
        steps: list[StripeStep] = [SessionOpened(self._edition, tuple(self._following))]
        if self.position.is_fresh:
            steps += self._opening()
        return steps

    def on_formation(self, change: FormationChange) -> None:
        """Take a change of formation at a place of the order that was not passed yet, or a Break.

        Formation numbers ascend, so one that is not above the last was given before, by a journal that is read again.
        """
        if change.formation <= self._formation:
            return
        self.lost |= change.sequence < self._sequence and not change.broken
        self._note(_Due(change.sequence, 0, change.formation, change, None, change.installed_at))

    def change_plan(
        self, plan: StripePlan, *, at_sequence: int, at: Instant, encoder: ItchEncoder | None = None
    ) -> None:
        """Take a new plan, in force from a later place on. `at` is written into the sessions, equally everywhere.

        An `encoder` for that plan saves the time to set one up.
        """
        if plan.version <= self._edition.plan.version:
            return
        self.lost |= at_sequence < self._sequence
        self._encoders[plan.version] = encoder or ItchEncoder(plan, self._edition.core)
        self._note(_Due(at_sequence, 1, plan.version, None, plan, at))

    def _note(self, due: _Due) -> None:
        if any(due[:3] == known[:3] for known in self._due):
            return
        if len(self._due) >= DUE_MAX:
            self.lost = True
        else:
            insort(self._due, due, key=_key)

    def deliver(self, ordered: Ordered) -> list[StripeStep]:
        """Number the messages of a token, after the changes that are due at its place."""
        return [step for steps in self.deliver_slices(ordered) for step in steps]

    def deliver_slices(self, ordered: Ordered) -> Iterator[list[StripeStep]]:
        """`deliver`, in slices of bounded work. The position is that of a token again when all were taken."""
        if self.lost:
            return
        broken = any(due.change and due.change.broken and due.sequence == ordered.sequence for due in self._due)
        if ordered.sequence != self._sequence and not broken:
            self.repeated += ordered.sequence < self._sequence
            self.lost = ordered.sequence > self._sequence
            return
        steps: list[StripeStep] = []
        while self._due and self._due[0].sequence <= ordered.sequence:
            steps += self._apply_change(self._due.pop(0))
        self.at = ordered.acknowledged_at
        self._sequence = ordered.sequence + ordered.count
        done = 0
        for messages, encoded in self._encode(ordered):
            steps += encoded
            done += messages
            if done >= SLICE_MAX:
                yield steps
                steps, done = [], 0
        if steps:
            yield steps

    def finish(self, at: Instant) -> list[StripeStep]:
        """End the sessions; none follows."""
        steps: list[StripeStep] = []
        for due in self._due:
            if due.sequence <= self._sequence:
                steps += self._apply_change(due)
        self._due.clear()
        self.lost = True
        return [*steps, *self._closing(Over(self._sequence, 0, 0), at), SessionClosed(self._edition)]

    def _apply_change(self, due: _Due) -> list[StripeStep]:
        if due.plan is not None:
            # A Break may have gone back before it and continued with the same plan.
            is_in_force = due.plan.version <= self._edition.plan.version
            return [] if is_in_force else self._succeed(due.plan, due)
        change = due.change
        assert change is not None
        if change.formation <= self._formation:
            return []  # a Break went back before it and removed it from the order
        self._formation = change.formation
        mark = Reformed(change.sequence, change.formation, change.broken)
        steps = self._mark(mark, due.at)
        if change.broken:
            steps += self._succeed(self._edition.plan, due)
        return steps

    def _succeed(self, plan: StripePlan, due: _Due) -> list[StripeStep]:
        """Close the sessions of one edition and open those of the next, at the same place."""
        formation = self._formation
        edition = self._edition.following(plan, sequence=due.sequence, at=due.at, formation=formation)
        over = Over(edition.sequence, edition.plan.version, edition.breaks)
        steps: list[StripeStep] = [*self._closing(over, edition.begun_at or 0), SessionClosed(self._edition)]
        self._following = [1] * len(edition.stripes)
        self._set_edition(edition)
        opened = SessionOpened(edition, tuple(self._following))
        return [*steps, opened, *self._opening()]

    def _set_edition(self, edition: Edition) -> None:
        self._edition = edition
        self._sessions = [edition.session(stripe.number) for stripe in edition.stripes]
        self._opaque = next(index for index, stripe in enumerate(edition.stripes) if stripe.opaque)
        version = edition.plan.version
        encoder = self._encoders.get(version) or ItchEncoder(edition.plan, edition.core)
        self._encoder = encoder
        self._encoders = {number: each for number, each in self._encoders.items() if number > version} | {
            version: encoder
        }

    def _opening(self) -> Iterator[StripeMessages]:
        since, mark = self._edition.stamp, Begun(self._edition.sequence, *self._edition.after)
        for index, messages in enumerate(self._encoder.openings(since)):
            yield self._frame(index, [encode_mark(mark, since), *messages])

    def _closing(self, mark: Over, at: Instant) -> Iterator[StripeMessages]:
        since = self._edition.since_midnight(at)
        for index, messages in enumerate(self._encoder.closings(since)):
            yield self._frame(index, [*messages, encode_mark(mark, since)])

    def _mark(self, mark: Mark, at: Instant) -> list[StripeStep]:
        """The same mark in every stripe."""
        message = encode_mark(mark, self._edition.since_midnight(at))
        return [self._frame(index, [message]) for index in range(len(self._sessions))]

    def _encode(self, ordered: Ordered) -> Iterator[tuple[int, list[StripeMessages]]]:
        """Yields parts of the token: how many messages as costly as a trade were encoded, and the result."""
        octets = _all_records(ordered)
        others: list[_Other] = []
        if octets is not None:
            yield from self._encode_trades(octets, range(ordered.sequence, self._sequence), ordered, others)
        else:
            for piece in _pieces(ordered.spans, others):
                if isinstance(piece, _Other):
                    yield 1, list(self._encode_notice(piece, others))
                else:
                    yield from self._encode_trades(b"".join(piece.records), piece.numbers, ordered, others)
        others.sort()
        for begin in range(0, len(others), OTHERS_MAX):
            part = others[begin : begin + OTHERS_MAX]
            yield SLICE_MAX, [self._frame(self._opaque, self._opaque_messages(part, ordered.acknowledged_at))]

    def _encode_trades(
        self, octets: bytes, numbers: Sequence[int], ordered: Ordered, others: list[_Other]
    ) -> Iterator[tuple[int, list[StripeMessages]]]:
        """Encode records of a trade's size; those that are no trades are added to `others`, and cost much more."""
        begin, size = 0, SLICE_MAX
        while begin < len(numbers):
            part = numbers[begin : begin + size]
            records = octets[begin * TRADE_SIZE : (begin + size) * TRADE_SIZE]
            begin += size
            shares, no_trades = self._encoder.encode(records, part)
            size = OTHERS_MAX if no_trades else SLICE_MAX
            for index in no_trades:
                record = records[index * TRADE_SIZE : (index + 1) * TRADE_SIZE]
                others.append(_Other(part[index], _source_of(ordered.spans, part[index]), record, fragment=False))
            framed = [self._numbered(share.stripe, share.count, share.framed, share.size) for share in shares]
            yield SLICE_MAX if no_trades else len(part), framed

    def _encode_notice(self, piece: _Other, others: list[_Other]) -> Iterator[StripeMessages]:
        """A cancel or correction goes to the stripe of its trade, behind it; other notices become opaque messages."""
        encoded = self._encoder.notice(piece.payload, piece.sequence)
        if encoded is None:
            others.append(piece)
        else:
            index, messages = encoded
            yield self._frame(index, messages)

    def _opaque_messages(self, others: Iterable[_Other], at: Instant) -> list[bytes]:
        since = self._edition.since_midnight(at)
        messages: list[bytes] = []
        for sequence, source, payload, fragment in others:
            messages += encode_opaque(
                payload, sequence=sequence, source=source, fragment=fragment, since=since, size_max=MESSAGE_MAX
            )
        return messages

    def _frame(self, index: int, messages: list[bytes]) -> StripeMessages:
        return self._numbered(index, len(messages), frame(messages), 0)

    def _numbered(self, index: int, count: int, framed: bytes, size: int) -> StripeMessages:
        first = self._following[index]
        self._following[index] = first + count
        return StripeMessages(index, self._sessions[index], first, count, framed, size)


def _key(due: _Due) -> tuple[int, int, int]:
    return due[:3]


def _all_records(ordered: Ordered) -> bytes | None:
    """The token's messages as one byte string, if all have the size of a trade: the usual case, and fast."""
    bodies = [body for span in ordered.spans for body in span.bodies]
    if any(span.fragments for span in ordered.spans) or any(body[:2] != _RECORDS for body in bodies):
        return None
    octets = b"".join([body[2:] for body in bodies])
    return octets if len(octets) == ordered.count * TRADE_SIZE else None


@dataclass(slots=True)
class _Records:
    """Messages of a trade's size with ascending numbers, up to the next notice."""

    records: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


def _pieces(spans: Iterable[Span], others: list[_Other]) -> Iterator[_Records | _Other]:
    """Runs of messages of a trade's size, and notices between them; everything else is added to `others`."""
    run = _Records()
    for span in spans:
        for sequence, body, count, fragment in blocks(span):
            uniform = None if fragment else uniform_records(body, count)
            if uniform is not None and uniform[0] == TRADE_SIZE:
                run.records.append(body[2:])
                run.numbers += range(sequence, sequence + count)
                continue
            payloads = [body] if fragment else unpack_messages(body, count)
            for number, payload in enumerate(payloads, sequence):
                if len(payload) == TRADE_SIZE and not fragment:
                    run.records.append(payload)
                    run.numbers.append(number)
                elif fragment or not is_notice(payload):
                    others.append(_Other(number, span.source, payload, fragment))
                else:
                    if run.numbers:
                        yield run
                        run = _Records()
                    yield _Other(number, span.source, payload, fragment)
    if run.numbers:
        yield run


def _source_of(spans: Iterable[Span], sequence: int) -> int:
    return next(span.source for span in spans if span.sequence <= sequence < span.sequence + span.count)
