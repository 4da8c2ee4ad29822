"""Release: the commit of Msg(e), at the same instant at every site.

Decision 6, Commit: a message commits at its commit instant if it and everything before it is held, K + 1 sites hold it,
and this site's lease is valid. A message that becomes ready later is released at once and marked late. It is never
reordered.

A site that may not release for long, as with a doubtful clock, would keep everything that is ordered meanwhile. So what
waits beyond a limit is only in the journal, and is read again, in pieces, when what precedes it has been released
(decision 60, Long release queues).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from fairtape.core.effects import Deliver, Fetch, FormationChange, Ordered, Release
from fairtape.core.entries import Entry, position_of
from fairtape.core.instants import MILLISECOND, NEVER, Duration, Instant
from fairtape.core.queue_sizes import QueueSize
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.membership.layout import decode_formation

HELD_MAX: Final = 64 << 20  # bytes of the tokens in memory; one that is longer is held alone
TOKEN_SIZE: Final = 1_024  # bytes that a token takes beside its messages, about
READ_MAX: Final = 1 << 20  # bytes of the journal that are read at once
POSITIONS_MAX: Final = 65_536  # tokens in the journal of which it is known whether they were ready in time
SLICE_SIZE: Final = 1 << 20  # bytes that are released without a look at anything else
SLICE_TOKENS: Final = 256
WORST_LAG_WEIGHT: Final = 0.5  # a single release may lag by twice as much as the usual one
LATE_AFTER: Final = 5 * MILLISECOND
"""A release delayed by more than this is late, whatever the cause, such as a process that did not run."""


def size_of(ordered: Ordered) -> int:
    """The bytes that a token takes in memory, about."""
    return TOKEN_SIZE + sum(len(body) for span in ordered.spans for body in span.bodies)


class UnreadTokens:
    """The tokens after those in memory. They are in the journal, and only what decides on their lateness is kept.

    What is forgotten here has waited for so long that it is late anyway.
    """

    def __init__(self, *, formation: Formation | None, through: int = 0) -> None:
        """`formation` is that of the last token in memory."""
        self.formation = formation
        self.through = through  # the last one with messages
        self.is_requested = False  # the next entries
        self._unsettled: deque[tuple[int, Instant]] = deque(maxlen=POSITIONS_MAX)  # token and commit instant
        self._in_time: dict[int, None] = {}  # tokens that were ready before their commit instant, ascending

    def add(self, ordered: Ordered, commit_at: Instant) -> None:
        if ordered.count:
            self.through = ordered.token
            self._unsettled.append((ordered.token, commit_at))

    def settle(self, survives_through: int, now: Instant) -> None:
        while self._unsettled and self._unsettled[0][0] <= survives_through:
            token, commit_at = self._unsettled.popleft()
            if now <= commit_at:
                self._in_time[token] = None
        while len(self._in_time) > POSITIONS_MAX:
            del self._in_time[next(iter(self._in_time))]

    def was_in_time(self, token: int) -> bool:
        """Whether a token that was read was ready before its commit instant."""
        while self._unsettled and self._unsettled[0][0] <= token:
            self._unsettled.popleft()
        return self._in_time.pop(token, 0) is None

    @property
    def positions(self) -> int:
        """The tokens of which anything is kept."""
        return len(self._unsettled) + len(self._in_time)


class ReleaseQueue:
    """Tokens that are complete and not yet committed."""

    def __init__(
        self, formations: FormationHistory, *, after: int, clock_bound: Callable[[], Duration] = lambda: 0
    ) -> None:
        """Tokens up to `after` have been released."""
        self._formations = formations
        self._clock_bound = clock_bound
        self._complete: deque[tuple[Ordered, Formation | None]] = deque()  # not yet known to survive K failures
        self._ready: deque[tuple[Ordered, Instant, bool]] = deque()  # waiting only for the clock
        self._lease_until: Instant = NEVER
        self.lease_expired = False  # the lease has expired: no timer for a release
        self._renewed_at: Instant = 0  # when an expired lease was renewed
        self.unverified = False  # the order here may differ from that of the others: release nothing
        self.clock_behind: Duration = 0  # by how much the clock is proved to be behind
        self._clock_excess: Duration = 0  # by how much the clock's error bound exceeds what a lease allows for
        self._lag: Duration = 0  # how long after its instant the last release was made that was ready in time
        self._worst_lag: Duration = 0  # the largest since it was taken
        self.released_through = after
        self.held_max: int | None = None  # bytes in memory; None: there is no journal to read the others from
        self.ticket = 0  # of the requests for entries of the journal
        self.held = 0  # bytes in memory
        self.unread: UnreadTokens | None = None
        self._survives_through = 0
        self._last: tuple[int | None, int] = (None, after)  # formation and token of the last entry in memory
        self._last_formation: Formation | None = None

    def complete(self, ordered: Ordered) -> None:
        """This site holds Msg(e) and everything before it.

        It commits by the timing of its own formation, which may have ended.
        """
        formation = self._formations.numbered(ordered.formation)
        if self.unread is None and self.held_max is not None and self.held >= self.held_max:
            self.unread = UnreadTokens(formation=self._last_formation)
        if self.unread is not None:
            self.unread.add(ordered, self._commit_at(ordered, formation, NEVER))
        else:
            self._hold(ordered, formation)

    def _hold(self, ordered: Ordered, formation: Formation | None) -> None:
        self._complete.append((ordered, formation))
        self.held += size_of(ordered)
        if ordered.count:
            self._last = ordered.formation, ordered.token
            self._last_formation = formation

    def continue_unread(self, through: int) -> None:
        """After a start: what the journal holds through this token was not released yet."""
        if through > self.released_through:
            self.unread = UnreadTokens(formation=None, through=through)

    def wanted_read(self) -> Fetch | None:
        """The entries of the journal to read now. At most one request is pending."""
        unread = self.unread
        if unread is None or unread.is_requested or self.held_max is None or self.held > self.held_max // 2:
            return None
        unread.is_requested = True
        formation, token = self._last
        return Fetch(token, formation, READ_MAX, self.ticket)

    def add_read(self, entries: Iterable[Entry], now: Instant) -> None:
        """The entries of the last request; none: nothing follows."""
        unread = self.unread
        assert unread is not None
        before = self._last
        for entry in entries:
            if isinstance(entry, FormationChange):
                unread.formation = decode_formation(entry.layout)
                self._last = position_of(entry)
                continue
            known = unread.formation
            is_known = known is not None and known.number == entry.formation
            formation = known if is_known else self._formations.numbered(entry.formation)
            in_time = unread.was_in_time(entry.token)
            self._hold(entry, formation)
            if in_time or entry.token <= self._survives_through:
                self._settle_next(now, in_time=in_time)
        unread.is_requested = False
        if self._last == before or self._last[1] >= unread.through:
            self.unread = None

    def queue_sizes(self) -> Iterator[QueueSize]:
        """What waits in memory, apart from the last token, which may have any size; and what is kept of unread ones."""
        if self.held_max is not None:
            last = self._complete[-1][0] if self._complete else self._ready[-1][0] if self._ready else None
            held = self.held if last is None else self.held - size_of(last)
            yield QueueSize("bytes to be released", held, self.held_max)
        if self.unread is not None:
            yield QueueSize("tokens to be read", self.unread.positions, 2 * POSITIONS_MAX)

    @property
    def waits_for_others(self) -> bool:
        """Whether complete messages are not known to survive K failures."""
        if self.unread is not None and self.unread.through > self._survives_through:
            return True
        return any(ordered.count for ordered, _ in self._complete)

    @property
    def lease_until(self) -> Instant:
        """When the right to commit ends: earlier by the excess of the clock's error bound."""
        return self._lease_until - self._clock_excess

    @property
    def granted_until(self) -> Instant:
        """The end of the lease for a clock within its error bound."""
        return self._lease_until

    @property
    def clock_untrusted(self) -> bool:
        """Whether the clock's error bound is too large: then nothing is released."""
        return self._clock_excess > 0

    def set_clock_excess(self, excess: Duration, now: Instant) -> bool:
        """Set by how much the clock's error bound is too large. Returns whether it changed."""
        if excess == self._clock_excess:
            return False
        if not excess:
            self._renewed_at = now
        self._clock_excess = excess
        self.lease_expired = now >= self.lease_until
        return True

    def verify(self, now: Instant) -> None:
        """The order here is confirmed to be that of the others."""
        self.unverified = False
        self._renewed_at = now

    def require_lease(self) -> None:
        """Release nothing before a lease is granted."""
        self._lease_until = 0
        self.lease_expired = True

    def renew_lease(self, until: Instant, now: Instant) -> None:
        if now >= self.lease_until:
            self._renewed_at = now
        self._lease_until = until
        self.lease_expired = now >= self.lease_until

    def settle(self, survives_through: int, now: Instant) -> None:
        """Queue for the clock everything up to the token that is known to survive K failures."""
        self._survives_through = survives_through
        while self._complete and self._complete[0][0].token <= survives_through:
            self._settle_next(now)
        if self.unread is not None:
            self.unread.settle(survives_through, now)

    def _settle_next(self, now: Instant, *, in_time: bool = False) -> None:
        """The next token survives K failures since now, or was found `in_time` before it was read."""
        ordered, formation = self._complete.popleft()
        unknown = formation is None  # a formation of long ago: the others have released its tokens
        commit_at = self._commit_at(ordered, formation, now)
        self._ready.append((ordered, commit_at, unknown or (now > commit_at and not in_time)))

    def _commit_at(self, ordered: Ordered, formation: Formation | None, now: Instant) -> Instant:
        """By the timing of its formation; without a schedule it is the present time."""
        formation = self._formations.latest if formation is None else formation
        return ordered.acknowledged_at + formation.timing.commit_delay if formation.timed else now

    def deadline(self) -> Instant:
        """The next commit instant. A token without messages needs no timer: it passes with the next one."""
        if self.lease_expired or self._clock_excess or self.unverified:
            return NEVER
        for ordered, commit_at, _ in self._ready:
            if ordered.count:
                return commit_at if commit_at < self._lease_until else NEVER
        return NEVER

    def take_lag(self) -> Duration:
        """How long after its instant the last release was made; or half of the longest since the last call.

        It shows how late this site acts, because of its load: a release that waited for another site does not count.
        The longest counts because stalls are short, and the next release is in time again; and only a part of it,
        because a single release may have to wait for a time slice of another program.
        """
        worst, self._worst_lag = self._worst_lag, 0
        return max(self._lag, int(WORST_LAG_WEIGHT * worst))

    def due(self, now: Instant) -> list[Deliver]:
        """What commits now, up to a slice: the rest is due at once. Tokens without messages are skipped."""
        delivered: list[Deliver] = []
        held_min = self.held - SLICE_SIZE
        self.lease_expired = now >= self.lease_until
        if self._clock_excess or self.unverified:
            return delivered
        while self._ready and self._ready[0][1] <= now < self._lease_until:
            if len(delivered) >= SLICE_TOKENS or self.held <= held_min:
                break
            ordered, commit_at, late = self._ready.popleft()
            self.held -= size_of(ordered)
            self.released_through = ordered.token
            late = late or self._renewed_at > commit_at
            self._lag = now - commit_at if ordered.count and not late else 0
            self._worst_lag = max(self._worst_lag, self._lag)
            if ordered.count:
                late = late or now + self.clock_behind - commit_at > LATE_AFTER
                release = Release(
                    token=ordered.token,
                    sequence=ordered.sequence,
                    count=ordered.count,
                    commit_at=commit_at,
                    released_at=now,
                    late=late,
                    clock_bound=self._clock_bound(),
                    clock_behind=self.clock_behind,
                )
                delivered.append(Deliver(ordered, release))
        return delivered
