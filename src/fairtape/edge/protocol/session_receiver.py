"""One session as a customer hears it: arbitration, and the patience with what is missing.

A hole is *noticed* when something behind it is heard. A little later it is asked for: the other feed may bring it, or
the network has changed the order. What was asked for and did not come is asked for again; what nobody asks for, or has
been missing for longer than the customer's patience, is given up and becomes a gap.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fairtape.core.instants import MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.formats.arbitration import AHEAD_MAX, HELD_BYTES_MAX, FeedArbitration, Output
from fairtape.formats.moldudp64 import MoldRequest, Packet

_STEPS: Final = 4  # notices within a part of `ask_delay` are one


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomerOptions:
    """How long a customer waits for what, and how much it keeps. Best effort is patience; guaranteed is none of it."""

    patience: Duration | None = 50 * MILLISECOND  # with a hole, before it is a gap; None: guaranteed, for ever
    ask_delay: Duration = 3 * MILLISECOND  # from noticing a hole to asking for it
    retry_period: Duration = 30 * MILLISECOND  # from a request to the next one; at least a round trip
    silence_max: int = 2  # requests without any answer, before another server is asked
    stale_delay: Duration = 3 * SECOND  # of silence; more than a heartbeat
    request_max: int = 256  # messages of one request
    requests_max: int = 16  # at once, of one session
    ahead_max: int = AHEAD_MAX  # numbers that are held behind a hole
    held_bytes_max: int = HELD_BYTES_MAX  # held behind a hole, or behind the end of an older session

    def __post_init__(self) -> None:
        for name in ("ask_delay", "retry_period", "silence_max", "stale_delay", "request_max", "requests_max"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.patience is not None and self.patience <= 0:
            raise ValueError(f"patience is {self.patience} ns; it must be above 0, or None where nothing is given up")


class _Notice(NamedTuple):
    highest: int
    at: Instant


class SessionReceiver:
    """One session of one stripe."""

    def __init__(
        self,
        stripe: int,
        session: str,
        *,
        first: int | None,
        feeds: Sequence[str],
        options: CustomerOptions,
        now: Instant,
    ) -> None:
        self.stripe = stripe
        self.arbiter = FeedArbitration(
            session, first=first, ahead_max=options.ahead_max, held_bytes_max=options.held_bytes_max
        )
        self.told_end = False
        self.scheduled_at: Instant = NEVER  # the earliest entry in the customer's schedule
        self.stale = False
        self.heard_at = dict.fromkeys(feeds, now)
        self.silent: set[str] = set()
        self.asks = False  # whether there is anybody to ask
        self.probed_through = 0  # the last number beyond the known ones that was asked for, to find the session's end
        self._options = options
        self._notices: deque[_Notice] = deque()
        self._asked_through = 0  # holes up to here were asked for
        self._asked_end = 0  # the last number of the latest requests
        self._retry_at: Instant = NEVER

    @property
    def missing(self) -> bool:
        """Whether there is a hole."""
        return self.arbiter.next is not None and self.arbiter.next <= self.arbiter.highest

    @property
    def due_at(self) -> Instant:
        """When a hole wants attention."""
        if not self.missing:
            return NEVER
        due_at = self._retry_at
        for notice in self._notices:
            if self.asks and notice.highest > self._asked_through:
                due_at = min(due_at, notice.at + self._options.ask_delay)
                break
        if self._options.patience is not None and self._notices:
            due_at = min(due_at, self._notices[0].at + self._options.patience)
        return due_at

    @property
    def silence_at(self) -> Instant:
        """When one of its feeds will have been silent for too long."""
        if self.told_end or len(self.silent) == len(self.heard_at):
            return NEVER
        heard_at = min(at for feed, at in self.heard_at.items() if feed not in self.silent)
        return heard_at + self._options.stale_delay

    def receive(self, packet: Packet, now: Instant) -> list[Output]:
        """What can be delivered now."""
        outputs = self.arbiter.receive(packet)
        following = self.arbiter.next or 0
        while self._notices and self._notices[0].highest < following:
            self._notices.popleft()
        if not self.missing:
            self._retry_at = NEVER
        else:
            self._note(now)
            if self._retry_at < NEVER and following > self._asked_end:
                self._retry_at = now  # all that was asked for has come: ask for what follows it
        return outputs

    def give_up(self, now: Instant) -> list[Output]:
        """The holes that have been there for too long are gaps."""
        outputs: list[Output] = []
        patience = self._options.patience
        while patience is not None and self._notices and self._notices[0].at + patience <= now:
            outputs += self.arbiter.give_up(self._notices.popleft().highest)
        return outputs

    def requests(self, now: Instant) -> tuple[list[MoldRequest], bool]:
        """What to ask for now, and whether that is for the second time."""
        if not self.asks or not self.missing:
            return [], False
        if now >= self._retry_at:
            self._retry_at = NEVER
            return self._ask(0, max(self._asked_through, self._ripe(now)), now), True
        asked_through, ripe = self._asked_through, self._ripe(now)
        return (self._ask(asked_through, ripe, now), False) if ripe > asked_through else ([], False)

    def _note(self, now: Instant) -> None:
        highest = self.arbiter.highest
        if not self._notices or highest > self._notices[-1].highest:
            near = self._notices and now - self._notices[-1].at < self._options.ask_delay // _STEPS
            at = self._notices.pop().at if near else now
            self._notices.append(_Notice(highest, at))
        if self._options.patience is None:
            while len(self._notices) > 1 and self._notices[0].highest <= self._asked_through:
                self._notices.popleft()

    def _ripe(self, now: Instant) -> int:
        """Holes up to here were noticed long enough ago."""
        ask_delay = self._options.ask_delay
        return max((notice.highest for notice in self._notices if notice.at + ask_delay <= now), default=0)

    def _ask(self, after: int, through: int, now: Instant) -> list[MoldRequest]:
        wanted: list[MoldRequest] = []
        for request in self._wanted(after, through):
            wanted.append(request)
            if len(wanted) == self._options.requests_max:
                break
        self._asked_through = max(self._asked_through, through)
        if wanted:
            self._asked_end = wanted[-1].number + wanted[-1].count - 1
        self._retry_at = min(self._retry_at, now + self._options.retry_period)
        return wanted

    def _wanted(self, after: int, through: int) -> Iterator[MoldRequest]:
        """The holes within these bounds, in requests of a size that a server answers at once."""
        for gap in self.arbiter.missing():
            if gap.first > through:
                return
            end = min(gap.first + gap.count, through + 1)
            for first in range(max(gap.first, after + 1), end, self._options.request_max):
                yield MoldRequest(self.arbiter.session, first, min(self._options.request_max, end - first))
