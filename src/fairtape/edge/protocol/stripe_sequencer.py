"""The striper: released tokens become numbered messages of stripes, over all editions. A function of the order alone.

What is due at a place of the order (the mark of a formation, a Break, a new plan) is carried out with the first token
at or behind that place, in one fixed order. So it does not matter when a site was told of it, as long as that was
before that token; and in the journal it always is.

The same striper numbers what an outlet sends, and numbers it again when an archive reads it from a journal.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from fairtape.core.effects import FormationChange, Ordered, Span
from fairtape.core.instants import Instant
from fairtape.core.spans import blocks
from fairtape.edge.protocol.itch_encoder import ItchEncoder
from fairtape.edge.protocol.session_marks import Begun, Mark, Over, Reformed, encode_mark, encode_opaque
from fairtape.edge.protocol.sessions import Edition, StripePosition
from fairtape.formats.framing import frame
from fairtape.formats.moldudp64 import DATAGRAM_MAX, HEADER_SIZE
from fairtape.market.notices import is_notice
from fairtape.market.stripes import StripePlan
from fairtape.market.trades import TRADE_SIZE
from fairtape.wire.blocks import uniform_records, unpack_messages

DUE_MAX: Final = 4_096  # formations and plans that wait for their place; a site that is told of more has lost its place
MESSAGE_MAX: Final = DATAGRAM_MAX - HEADER_SIZE - 2
_RECORDS: Final = TRADE_SIZE.to_bytes(2, "big")  # how a body of trade records begins


@dataclass(frozen=True, slots=True)
class StripeMessages:
    """Messages of one session with consecutive numbers."""

    stripe: int  # its position in the edition
    session: str
    first: int
    count: int
    framed: bytes  # each behind its length, as a MoldUDP64 packet has them
    size: int  # of each message; 0 where they differ


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The sessions of this edition begin, or go on after a restart."""

    edition: Edition
    following: tuple[int, ...]  # of each stripe: the number of its next message


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The sessions of this edition are over; nothing will be added to them."""

    edition: Edition


Step: TypeAlias = StripeMessages | SessionOpened | SessionClosed


class _Due(NamedTuple):
    """What happens at a place of the order. At one place the formation turns first, then the plan."""

    sequence: int
    rank: int
    number: int  # of the formation, or of the plan's version
    change: FormationChange | None
    plan: StripePlan | None
    at: Instant


class _Other(NamedTuple):
    """A payload that is no trade."""

    sequence: int
    source: int
    payload: bytes
    fragment: bool


class StripeSequencer:
    """Numbers the messages of all stripes of one core stripe."""

    def __init__(self, standing: StripePosition, *, press: ItchEncoder | None = None) -> None:
        """Whoever has a `press` for the plan of this place saves the time to set one up."""
        assert press is None or press.plan == standing.edition.plan
        self.repeated = 0  # tokens that came again
        self.lost = False  # the order has a hole here, or is finished: nothing can be numbered until `resume`
        self.at: Instant = 0  # the timestamp of the last token
        self._due: list[_Due] = []
        # Of the plan in force, and of those to come.
        self._presses: dict[int, ItchEncoder] = {} if press is None else {press.plan.version: press}
        self._edition = standing.edition
        self.resume(standing)

    @property
    def standing(self) -> StripePosition:
        """Where it is; what is still due is not part of it."""
        return StripePosition(self._edition, self._sequence, tuple(self._following), self.at, self._formation)

    @property
    def edition(self) -> Edition:
        """The one in force."""
        return self._edition

    @property
    def sequence(self) -> int:
        """The number in the order that is expected next."""
        return self._sequence

    def resume(self, standing: StripePosition) -> None:
        """Go on from another place. What is due behind it must be told again, as a journal tells it."""
        self.lost = False
        self._due.clear()
        self._sequence, self.at = standing.sequence, standing.at
        self._formation = standing.formation
        self._following = list(standing.following)
        self._take_over(standing.edition)

    def begin(self) -> list[Step]:
        """What comes before the first token: the opening of the sessions, unless it was numbered before."""
        steps: list[Step] = [SessionOpened(self._edition, tuple(self._following))]
        if self.standing.is_fresh:
            steps += self._opening()
        return steps

    def turn(self, change: FormationChange) -> None:
        """Another formation takes over at a place of the order that was not passed yet, or behind a Break.

        Formations ascend, so one that is not above the last was told before, as a journal that is read again tells it.
        """
        if change.formation <= self._formation:
            return
        self.lost |= change.sequence < self._sequence and not change.broken
        self._note(_Due(change.sequence, 0, change.formation, change, None, change.installed_at))

    def change_plan(self, plan: StripePlan, *, at_sequence: int, at: Instant, press: ItchEncoder | None = None) -> None:
        """Another plan takes over at a place to come. `at` goes into the sessions, so it must be equal everywhere.

        A `press` for that plan takes a while to set up; whoever is in a hurry brings one.
        """
        if plan.version <= self._edition.plan.version:
            return
        self.lost |= at_sequence < self._sequence
        self._presses[plan.version] = press or ItchEncoder(plan, self._edition.core)
        self._note(_Due(at_sequence, 1, plan.version, None, plan, at))

    def _note(self, due: _Due) -> None:
        if any(due[:3] == known[:3] for known in self._due):
            return
        if len(self._due) >= DUE_MAX:
            self.lost = True
        else:
            insort(self._due, due, key=_place)

    def deliver(self, ordered: Ordered) -> list[Step]:
        """The messages of a token, and before them whatever was due at its place."""
        if self.lost:
            return []
        broken = any(due.change and due.change.broken and due.sequence == ordered.sequence for due in self._due)
        if ordered.sequence != self._sequence and not broken:
            self.repeated += ordered.sequence < self._sequence
            self.lost = ordered.sequence > self._sequence
            return []
        steps: list[Step] = []
        while self._due and self._due[0].sequence <= ordered.sequence:
            steps += self._carry_out(self._due.pop(0))
        self.at = ordered.acknowledged_at
        self._sequence = ordered.sequence + ordered.count
        steps += self._print(ordered)
        return steps

    def finish(self, at: Instant) -> list[Step]:
        """The sessions end here, and none follows."""
        steps: list[Step] = []
        for due in self._due:
            if due.sequence <= self._sequence:
                steps += self._carry_out(due)
        self._due.clear()
        self.lost = True
        return [*steps, *self._closing(Over(self._sequence, 0, 0), at), SessionClosed(self._edition)]

    def _carry_out(self, due: _Due) -> list[Step]:
        if due.plan is not None:
            taken = due.plan.version <= self._edition.plan.version  # a Break went back behind it, with the same plan
            return [] if taken else self._succeed(due.plan, due)
        change = due.change
        assert change is not None
        if change.formation <= self._formation:
            return []  # a Break went back behind it, and it never was
        self._formation = change.formation
        mark = Reformed(change.sequence, change.formation, change.broken)
        steps = self._mark(mark, due.at)
        if change.broken:
            steps += self._succeed(self._edition.plan, due)
        return steps

    def _succeed(self, plan: StripePlan, due: _Due) -> list[Step]:
        """Close the sessions of one edition and open those of the next, at one place."""
        formation = self._formation
        edition = self._edition.following(plan, sequence=due.sequence, at=due.at, formation=formation)
        over = Over(edition.sequence, edition.plan.version, edition.breaks)
        steps: list[Step] = [*self._closing(over, edition.begun_at or 0), SessionClosed(self._edition)]
        self._following = [1] * len(edition.stripes)
        self._take_over(edition)
        opened = SessionOpened(edition, tuple(self._following))
        return [*steps, opened, *self._opening()]

    def _take_over(self, edition: Edition) -> None:
        self._edition = edition
        self._sessions = [edition.session(stripe.number) for stripe in edition.stripes]
        self._opaque = next(position for position, stripe in enumerate(edition.stripes) if stripe.opaque)
        version = edition.plan.version
        press = self._presses.get(version) or ItchEncoder(edition.plan, edition.core)
        self._press = press
        self._presses = {number: each for number, each in self._presses.items() if number > version} | {version: press}

    def _opening(self) -> Iterator[StripeMessages]:
        since, mark = self._edition.stamp, Begun(self._edition.sequence, *self._edition.after)
        for position, messages in enumerate(self._press.openings(since)):
            yield self._lot(position, [encode_mark(mark, since), *messages])

    def _closing(self, mark: Over, at: Instant) -> Iterator[StripeMessages]:
        since = self._edition.since_midnight(at)
        for position, messages in enumerate(self._press.closings(since)):
            yield self._lot(position, [*messages, encode_mark(mark, since)])

    def _mark(self, mark: Mark, at: Instant) -> list[Step]:
        """The same mark in each stripe."""
        message = encode_mark(mark, self._edition.since_midnight(at))
        return [self._lot(position, [message]) for position in range(len(self._sessions))]

    def _print(self, ordered: Ordered) -> Iterator[StripeMessages]:
        octets = _all_records(ordered)
        others: list[_Other] = []
        if octets is not None:
            yield from self._press_trades(octets, range(ordered.sequence, self._sequence), ordered, others)
        else:
            for piece in _pieces(ordered.spans, others):
                if isinstance(piece, _Other):
                    yield from self._print_notice(piece, others)
                else:
                    yield from self._press_trades(b"".join(piece.records), piece.numbers, ordered, others)
        if others:
            yield self._lot(self._opaque, self._opaque_messages(sorted(others), ordered.acknowledged_at))

    def _press_trades(
        self, octets: bytes, listed: Sequence[int], ordered: Ordered, others: list[_Other]
    ) -> Iterator[StripeMessages]:
        """Records of a trade's size; those that are none are added to `others`."""
        numbers = np.array(listed, np.uint64)
        shares, strays = self._press.press(octets, numbers)
        for share in shares:
            yield self._numbered(share.stripe, share.count, share.framed, share.size)
        for place in strays:
            sequence, start = int(numbers[place]), place * TRADE_SIZE
            source = _source_of(ordered.spans, sequence)
            others.append(_Other(sequence, source, octets[start : start + TRADE_SIZE], fragment=False))

    def _print_notice(self, piece: _Other, others: list[_Other]) -> Iterator[StripeMessages]:
        """What is said about a trade goes where the trade went, behind it; what ITCH has no word for is opaque."""
        printed = self._press.notice(piece.payload, piece.sequence)
        if printed is None:
            others.append(piece)
        else:
            position, messages = printed
            yield self._lot(position, messages)

    def _opaque_messages(self, others: Iterable[_Other], at: Instant) -> list[bytes]:
        since = self._edition.since_midnight(at)
        messages: list[bytes] = []
        for sequence, source, payload, fragment in others:
            messages += encode_opaque(
                payload, sequence=sequence, source=source, fragment=fragment, since=since, size_max=MESSAGE_MAX
            )
        return messages

    def _lot(self, position: int, messages: list[bytes]) -> StripeMessages:
        return self._numbered(position, len(messages), frame(messages), 0)

    def _numbered(self, position: int, count: int, framed: bytes, size: int) -> StripeMessages:
        first = self._following[position]
        self._following[position] = first + count
        return StripeMessages(position, self._sessions[position], first, count, framed, size)


def _place(due: _Due) -> tuple[int, int, int]:
    return due[:3]


def _all_records(ordered: Ordered) -> bytes | None:
    """The token's messages back to back, if all of them have the size of a trade; the usual case, and quick."""
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
    """The messages of a trade's size, cut wherever a notice stands between them; all else is added to `others`."""
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
