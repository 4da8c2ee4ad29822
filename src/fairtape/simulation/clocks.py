"""Simulated clocks. True time is the world's; each node reads only its own clock.

A clock is a piecewise linear function of true time, fixed in advance: each piece has a constant rate and its own
offset. Where two pieces do not meet, the clock steps. Because the function is known, the instant at which a clock will
show a given time can be computed, and no ticks need to be simulated.

A correct clock stays within the bound that it declares; a faulty clock does not. The declared bound may change: it
grows while a clock has lost its reference.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Final, Protocol

from fairtape.core.instants import NEVER, SECOND, Duration, Instant

BILLION: Final = 1_000_000_000
DRIFT_STAGES: Final = 8  # small steps that stand for a drift
RATE_MAX: Final = 500_000  # parts per billion; a worse oscillator is broken hardware


class SimulatedClock(Protocol):
    """The clock of one node."""

    bound: Duration  # the declared maximum error

    def read(self, at: Instant) -> Instant:
        """What the clock shows at the true instant `at`."""

    def when(self, shown: Instant, since: Instant) -> Instant:
        """The first true instant, not before `since`, at which the clock shows at least `shown`."""

    def error_at(self, at: Instant) -> Duration:
        """How far ahead of the truth the clock is, without its noise: for checkers, which change nothing."""

    @property
    def grain(self) -> Duration:
        """How far beyond a deadline the clock may be when its node is woken for it."""


class TrueClock:
    """Shows the true time."""

    __slots__ = ("bound",)

    def __init__(self, bound: Duration = 0) -> None:
        self.bound = bound

    def read(self, at: Instant) -> Instant:
        return at

    def when(self, shown: Instant, since: Instant) -> Instant:
        return max(shown, since)

    def error_at(self, at: Instant) -> Duration:  # noqa: ARG002 - never any
        return 0

    @property
    def grain(self) -> Duration:
        return 0


@dataclass(frozen=True, slots=True)
class Piece:
    """From true instant `since` on, the clock is `offset` ahead and gains `rate` parts per billion."""

    since: Instant
    offset: Duration
    rate: int
    bound: Duration | None = None  # the bound declared during this piece; None: the usual one

    def shows(self, at: Instant) -> Instant:
        elapsed = at - self.since
        return at + self.offset + elapsed * self.rate // BILLION

    def reaches(self, shown: Instant) -> Instant:
        """The first instant of this piece at which the clock shows at least `shown`."""
        wanted = shown - self.since - self.offset
        if wanted <= 0:
            return self.since
        at = self.since + wanted * BILLION // (BILLION + self.rate)
        while self.shows(at) < shown:
            at += 1
        while at > self.since and self.shows(at - 1) >= shown:
            at -= 1
        return at


class DriftingClock:
    """A clock that drifts and steps as its pieces say. Noise makes readings up to `noise` too high."""

    __slots__ = (
        "_at", "_chance", "_declared", "_floor", "_noise", "_offset", "_pieces", "_rate", "_since", "_until", "bound",
    )  # fmt: skip

    def __init__(
        self, pieces: Sequence[Piece], *, bound: Duration, noise: Duration = 0, chance: Random | None = None
    ) -> None:
        assert pieces
        assert all(abs(piece.rate) <= RATE_MAX for piece in pieces)
        assert all(earlier.since < later.since for earlier, later in pairwise(pieces))
        assert noise == 0 or chance is not None
        self.bound = self._declared = bound
        self._pieces = tuple(pieces)
        self._noise = noise
        self._chance = chance
        self._enter(0)

    def _enter(self, at: int) -> None:
        self._at = at
        piece = self._pieces[at]
        self._since, self._offset, self._rate = piece.since, piece.offset, piece.rate
        self.bound = self._declared if piece.bound is None else piece.bound
        self._until = self._pieces[at + 1].since if at + 1 < len(self._pieces) else NEVER
        self._floor = 0  # noise never makes a clock go backwards; only a step may

    def _find(self, at: Instant) -> None:
        self._enter(max(bisect_right(self._pieces, at, key=lambda piece: piece.since) - 1, 0))

    def read(self, at: Instant) -> Instant:
        if not self._since <= at < self._until:
            self._find(at)
        shown = at + self._offset + (at - self._since) * self._rate // BILLION  # Piece.shows, inlined for speed
        if self._noise:
            assert self._chance is not None
            shown = self._floor = max(shown + int(self._chance.random() * self._noise), self._floor)
        return shown

    def when(self, shown: Instant, since: Instant) -> Instant:
        if not self._since <= since < self._until:
            self._find(since)
        for position in range(self._at, len(self._pieces)):
            piece = self._pieces[position]
            begins = max(since, piece.since)
            if piece.shows(begins) >= shown:
                return begins
            reached = piece.reaches(shown)
            last = position + 1 == len(self._pieces)
            if last or reached < self._pieces[position + 1].since:
                return reached
        raise AssertionError("the last piece has no end")

    def error_at(self, at: Instant) -> Duration:
        return self._pieces[max(bisect_right(self._pieces, at, key=lambda piece: piece.since) - 1, 0)].shows(at) - at

    @property
    def grain(self) -> Duration:
        return self._noise + self.step_max + 2

    @property
    def step_max(self) -> Duration:
        """The largest jump between two pieces."""
        jumps = (later.since + later.offset - earlier.shows(later.since) for earlier, later in pairwise(self._pieces))
        return max(map(abs, jumps), default=0)


@dataclass(frozen=True, slots=True)
class Offset:
    """From true instant `since` on, a clock shows `offset` more than it would otherwise."""

    since: Instant
    offset: Duration
    declared: Duration = 0  # by how much it declares a larger bound


class OffsetClock:
    """Another clock with offsets: it was set, or it stood still with its machine."""

    __slots__ = ("_base", "_offsets", "bound")

    def __init__(self, base: SimulatedClock, offsets: Sequence[Offset]) -> None:
        assert all(earlier.since < later.since for earlier, later in pairwise(offsets))
        self._base = base
        self._offsets = (Offset(0, 0), *offsets)
        self.bound = base.bound

    def _position(self, at: Instant) -> int:
        return max(bisect_right(self._offsets, at, key=lambda offset: offset.since) - 1, 0)

    def read(self, at: Instant) -> Instant:
        present = self._offsets[self._position(at)]
        shown = self._base.read(at) + present.offset
        self.bound = self._base.bound + present.declared
        return shown

    def when(self, shown: Instant, since: Instant) -> Instant:
        for position in range(self._position(since), len(self._offsets)):
            present = self._offsets[position]
            reached = self._base.when(shown - present.offset, max(since, present.since))
            last = position + 1 == len(self._offsets)
            if last or reached < self._offsets[position + 1].since:
                return reached
        raise AssertionError("the last offset has no end")

    def error_at(self, at: Instant) -> Duration:
        return self._base.error_at(at) + self._offsets[self._position(at)].offset

    @property
    def grain(self) -> Duration:
        steps = (abs(later.offset - earlier.offset) for earlier, later in pairwise(self._offsets))
        return self._base.grain + max(steps, default=0)


def drifting_clock(
    chance: Random,
    *,
    since: Instant,
    until: Instant,
    bound: Duration,
    within: Duration | None = None,
    steps: bool = False,
    noise: Duration = 0,
) -> DriftingClock:
    """A clock that stays within `within` of true time; it is correct if `within` is at most `bound`.

    A time daemon corrects it every second or so: it sets the rate that leads to a new random error, or, with `steps`,
    sometimes steps there.
    """
    reach = max((bound if within is None else within) - noise, 0)
    pieces = []
    at, offset = since, chance.randint(-reach, reach)
    while at < until:
        period = chance.randint(SECOND // 5, 2 * SECOND)
        aim = chance.randint(-reach, reach)
        rate = max(-RATE_MAX, min((aim - offset) * BILLION // period, RATE_MAX))
        if steps and chance.random() < 0.3:
            offset, rate = aim, 0
        pieces.append(Piece(at, offset, rate))
        offset += period * rate // BILLION
        at += period
    pieces.append(Piece(at, offset, 0))
    return DriftingClock(pieces, bound=bound, noise=noise, chance=chance)


def clock_losing_reference(
    *, at: Instant, period: Duration, error: Duration, bound: Duration, step: bool
) -> DriftingClock:
    """A clock that loses its reference for a period and drifts or steps to `error`.

    The declared bound covers the error at all times, and shrinks again when the clock has been corrected.
    """
    returns_at = at + period
    stages = 1 if step else DRIFT_STAGES
    pieces = [Piece(0, 0, 0)]
    for stage in range(stages):
        reached = error * (stage + 1) // stages
        since = at + period // 2 * stage // stages
        pieces.append(Piece(since, reached, 0, abs(reached) + bound))
    pieces.append(Piece(returns_at, 0, 0))
    return DriftingClock(pieces, bound=bound)


def clock_standing_still(*, at: Instant, period: Duration, corrected_at: Instant, bound: Duration) -> DriftingClock:
    """The clock of a virtual machine that stands still: after the pause it goes on where it stopped.

    It declares its usual bound all the time, until it is stepped forward. The node has to be paused for the same time.
    """
    assert at + period < corrected_at
    return DriftingClock([Piece(0, 0, 0), Piece(at + period, -period, 0), Piece(corrected_at, 0, 0)], bound=bound)
