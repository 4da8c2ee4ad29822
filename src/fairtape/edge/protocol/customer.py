"""The customer: receives its stripes on two or more feeds, delivers the first copy of each number, requests the rest.

Where a new edition of the sessions takes over, its records wait until everything of the old edition was delivered or
given up: a symbol may have moved to another stripe, and its trades stay in order. Both editions name the same place of
the order (see `sessions`), so nothing is lost and nothing is delivered twice.

After a Break the next edition has the same plan, and the customer follows it by itself. For a new plan it needs to know
its stripes, so it reports `PlanChange` and waits for `follow`. It requests what it missed meanwhile.

A hole is *noticed* when a number behind it is received. It is requested a little later, because the other feed may have
it, or the network may have reordered packets. A request without an answer is repeated. A hole that cannot be requested,
or is older than the customer's patience, is given up and becomes a gap.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeAlias

from fairtape.core.addresses import Address
from fairtape.core.instants import MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.edge.protocol.arbitration import AHEAD_MAX, HELD_BYTES_MAX, FeedArbitration, Output, Run
from fairtape.edge.protocol.effects import SendUnicast
from fairtape.edge.protocol.sessions import MARK, BadMark, Begun, Over, Reformed, SessionName, decode_mark
from fairtape.formats.moldudp64 import BadMold, MoldRequest, Packet, decode, encode_request
from fairtape.market.stripes import StripePlan

# The records of a customer, in order: messages, gaps, and the state of its feeds.


@dataclass(frozen=True, slots=True)
class Delivered:
    """Messages of a stripe with consecutive numbers, each once and in order."""

    stripe: int
    session: str
    first: int
    messages: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class StripeGap:
    """Consecutive numbers whose messages are missing and will not come."""

    stripe: int
    session: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class StripeReformation:
    """From this place of the order on another formation numbers it. Nothing is missing."""

    stripe: int
    sequence: int
    formation: int


@dataclass(frozen=True, slots=True)
class StripeBreak:
    """Like a reformation, but other messages may have had the numbers of the order from this place on."""

    stripe: int
    sequence: int
    formation: int


@dataclass(frozen=True, slots=True)
class PlanChange:
    """Another plan takes over at this place of the order (0: unknown yet). `follow` it."""

    version: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The session of a stripe has ended. Complete: all of it up to its end was delivered or is a gap."""

    stripe: int
    session: str
    following: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Silent:
    """One feed of a stripe is silent; others are not."""

    stripe: int
    feed: str
    since: Instant


@dataclass(frozen=True, slots=True)
class Heard:
    """A feed that was silent sends again."""

    stripe: int
    feed: str


@dataclass(frozen=True, slots=True)
class StripeStale:
    """All feeds of a stripe are silent: what is known may be out of date."""

    stripe: int
    since: Instant


@dataclass(frozen=True, slots=True)
class StripeFresh:
    """A stripe that was stale is received again."""

    stripe: int


StripeRecord: TypeAlias = (
    Delivered
    | StripeGap
    | StripeReformation
    | StripeBreak
    | PlanChange
    | Ended
    | Silent
    | Heard
    | StripeStale
    | StripeFresh
)

_STEPS: Final = 4  # holes noticed within this part (1 / steps) of `ask_delay` are one


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomerOptions:
    """Delays and limits. With `patience` the grade is best effort; without, it is guaranteed."""

    patience: Duration | None = 50 * MILLISECOND  # from noticing a hole to giving it up; None: never (guaranteed)
    ask_delay: Duration = 3 * MILLISECOND  # from noticing a hole to requesting it
    retry_period: Duration = 30 * MILLISECOND  # from a request to the next one; at least a round trip
    silence_max: int = 2  # requests without an answer before the next server is asked
    stale_delay: Duration = 3 * SECOND  # without a packet; longer than the heartbeat period
    request_max: int = 256  # messages per request
    requests_max: int = 16  # of one session at once
    ahead_max: int = AHEAD_MAX  # numbers held behind a hole
    held_bytes_max: int = HELD_BYTES_MAX  # held behind a hole, or behind the end of an older edition

    def __post_init__(self) -> None:
        for name in ("ask_delay", "retry_period", "silence_max", "stale_delay", "request_max", "requests_max"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.patience is not None and self.patience <= 0:
            raise ValueError(f"patience is {self.patience} ns; it must be above 0, or None to give nothing up")


class _HoleNoticed(NamedTuple):
    highest: int
    at: Instant


class SessionReceiver:
    """Receives one session of one stripe: arbitration between feeds, and requests for holes."""

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
        self.arbitration = FeedArbitration(
            session, first=first, ahead_max=options.ahead_max, held_bytes_max=options.held_bytes_max
        )
        self.end_reported = False
        self.scheduled_at: Instant = NEVER  # the earliest entry in the customer's schedule
        self.stale = False
        self.heard_at = dict.fromkeys(feeds, now)
        self.silent: set[str] = set()
        self.can_ask = False  # whether there is a server to ask
        self.probed_through = 0  # the highest number requested beyond the known ones, to find the session's end
        self._options = options
        self._notices: deque[_HoleNoticed] = deque()
        self._asked_through = 0  # holes up to this number were requested
        self._asked_end = 0  # the last number of the latest requests
        self._retry_at: Instant = NEVER

    @property
    def missing(self) -> bool:
        return self.arbitration.next is not None and self.arbitration.next <= self.arbitration.highest

    @property
    def due_at(self) -> Instant:
        """When a hole is to be requested or given up."""
        if not self.missing:
            return NEVER
        due_at = self._retry_at
        for notice in self._notices:
            if self.can_ask and notice.highest > self._asked_through:
                due_at = min(due_at, notice.at + self._options.ask_delay)
                break
        if self._options.patience is not None and self._notices:
            due_at = min(due_at, self._notices[0].at + self._options.patience)
        return due_at

    @property
    def silence_at(self) -> Instant:
        """When a feed will have been silent for `stale_delay`."""
        if self.end_reported or len(self.silent) == len(self.heard_at):
            return NEVER
        heard_at = min(at for feed, at in self.heard_at.items() if feed not in self.silent)
        return heard_at + self._options.stale_delay

    def receive(self, packet: Packet, now: Instant) -> list[Output]:
        """Take a packet; returns what can be delivered now."""
        outputs = self.arbitration.receive(packet)
        following = self.arbitration.next or 0
        while self._notices and self._notices[0].highest < following:
            self._notices.popleft()
        if not self.missing:
            self._retry_at = NEVER
        else:
            self._note_hole(now)
            if self._retry_at < NEVER and following > self._asked_end:
                self._retry_at = now  # everything requested has come: request what follows
        return outputs

    def give_up(self, now: Instant) -> list[Output]:
        """Turn holes older than the patience into gaps."""
        outputs: list[Output] = []
        patience = self._options.patience
        while patience is not None and self._notices and self._notices[0].at + patience <= now:
            outputs += self.arbitration.give_up(self._notices.popleft().highest)
        return outputs

    def requests(self, now: Instant) -> tuple[list[MoldRequest], bool]:
        """The requests to send now, and whether they are repeated ones."""
        if not self.can_ask or not self.missing:
            return [], False
        if now >= self._retry_at:
            self._retry_at = NEVER
            return self._ask(0, max(self._asked_through, self._due_through(now)), now), True
        asked_through, due_through = self._asked_through, self._due_through(now)
        return (self._ask(asked_through, due_through, now), False) if due_through > asked_through else ([], False)

    def _note_hole(self, now: Instant) -> None:
        highest = self.arbitration.highest
        if not self._notices or highest > self._notices[-1].highest:
            near = self._notices and now - self._notices[-1].at < self._options.ask_delay // _STEPS
            at = self._notices.pop().at if near else now
            self._notices.append(_HoleNoticed(highest, at))
        if self._options.patience is None:
            while len(self._notices) > 1 and self._notices[0].highest <= self._asked_through:
                self._notices.popleft()

    def _due_through(self, now: Instant) -> int:
        """The highest number whose holes were noticed at least `ask_delay` ago."""
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
        """Requests for the holes within these bounds, each of a size that a server answers at once."""
        for gap in self.arbitration.missing():
            if gap.first > through:
                return
            end = min(gap.first + gap.count, through + 1)
            for first in range(max(gap.first, after + 1), end, self._options.request_max):
                yield MoldRequest(self.arbitration.session, first, min(self._options.request_max, end - first))


EDITIONS_MAX: Final = 16  # editions received at once; beyond it the oldest is given up
REPAIR: Final = "repair"  # the feed name of answers from a retransmit server

CustomerEffect: TypeAlias = StripeRecord | SendUnicast


@dataclass(slots=True)
class CustomerCounts:
    """Counters of a customer."""

    packets: int = 0
    malformed: int = 0
    strangers: int = 0  # packets of sessions that are not followed
    postponed: int = 0  # packets of the next edition dropped for lack of space, to be requested later
    requests: int = 0
    delivered: int = 0  # messages
    missing: int = 0  # messages


@dataclass(slots=True)
class _FollowedEdition:
    version: int
    breaks: int
    stripes: tuple[int, ...]
    receivers: dict[str, SessionReceiver]
    begun_at: Instant = NEVER  # when its first packet came
    waiting: list[StripeRecord] = field(default_factory=list)
    waiting_bytes: int = 0

    @property
    def complete(self) -> bool:
        """Whether the ends of all its sessions were reported."""
        return all(receiver.end_reported for receiver in self.receivers.values())

    @property
    def is_unreceived(self) -> bool:
        """Whether no packet of it came."""
        return all(receiver.arbitration.next is None for receiver in self.receivers.values())


class Customer:
    """One customer of one deployment. A driver hands it datagrams and carries out its effects."""

    def __init__(
        self,
        deployment: str,
        *,
        feeds: Sequence[str] = ("A", "B"),
        servers: Sequence[Address] = (),
        options: CustomerOptions | None = None,
    ) -> None:
        """Without `servers` nothing is requested; when one does not answer, the next one is asked."""
        self.counts = CustomerCounts()
        self._deployment = deployment
        self._feeds = tuple(feeds)
        self._servers = tuple(servers)
        self._options = options or CustomerOptions()
        assert self._servers or self._options.patience is not None
        self._editions: list[_FollowedEdition] = []
        self._server = 0  # the index of the server to ask
        self._unanswered = 0
        self._announced = 0  # the latest version that was reported
        self._probe_at: Instant = NEVER  # when to request the end of an old edition
        self._schedule: list[tuple[Instant, str]] = []  # when each session is due
        self._effects: list[CustomerEffect] = []

    def follow(
        self,
        plan: StripePlan,
        stripes: Iterable[int],
        now: Instant,
        *,
        starts: Mapping[int, int] | None = None,
        breaks: int = 0,
    ) -> None:
        """Receive these stripes of a plan.

        The first plan begins with the numbers in `starts`, or with the first packet that comes. A customer that resumes
        with earlier numbers also gives the number of Breaks in the name of that session. A later plan is received from
        its beginning, so that nothing is missed between the two.
        """
        joins = not self._editions or (len(self._editions) == 1 and self._editions[0].is_unreceived)
        if joins:
            self._editions.clear()
        elif plan.version <= self._editions[-1].version:
            return
        self._announced = max(self._announced, plan.version)
        self._open(plan.version, breaks if joins else 0, tuple(stripes), now, starts=(starts or {}) if joins else None)

    def receive(self, datagram: bytes, now: Instant, *, feed: str = REPAIR) -> None:
        """Take one datagram of a feed or of a server. Never raises, whatever the bytes."""
        try:
            packet = decode(datagram)
        except BadMold:
            self.counts.packets += 1
            self.counts.malformed += 1
            return
        self.receive_packet(packet, now, feed=feed)

    def receive_packet(self, packet: Packet, now: Instant, *, feed: str = REPAIR) -> None:
        """The same as `receive`, for a datagram that was decoded once for many customers."""
        self.counts.packets += 1
        edition = self._edition_of(packet.session, now)
        if edition is None:
            self.counts.strangers += 1
            return
        if edition.begun_at == NEVER:
            self._begin(edition, now)
        receiver = edition.receivers[packet.session]
        if feed == REPAIR:
            if packet.messages or packet.number > receiver.arbitration.highest:
                self._unanswered = 0  # otherwise the server lags behind, which counts as no answer
        else:
            self._note_feed(receiver, feed, now)
        if edition.waiting_bytes > self._options.held_bytes_max:
            self.counts.postponed += 1
            return
        self._hand_over(edition, receiver, receiver.receive(packet, now))
        if self._probe_at < NEVER and receiver.arbitration.highest >= receiver.probed_through > 0:
            self._probe_at = now  # the old session continues: request what follows
        self._schedule_wake(edition, receiver)

    def receive_all(self, datagrams: Iterable[bytes], now: Instant, *, feed: str = REPAIR) -> None:
        for datagram in datagrams:
            self.receive(datagram, now, feed=feed)

    def wake(self, now: Instant) -> None:
        """Request holes, give up old ones, and detect silent feeds."""
        while self._schedule and self._schedule[0][0] <= now:
            at, session = heappop(self._schedule)
            edition = next((each for each in self._editions if session in each.receivers), None)
            if edition is None or at != edition.receivers[session].scheduled_at:
                continue
            receiver = edition.receivers[session]
            receiver.scheduled_at = NEVER
            if receiver.due_at <= now:
                self._hand_over(edition, receiver, receiver.give_up(now))
                self._ask(*receiver.requests(now))
            if self._is_open(edition):
                self._check_silence(receiver, now)
            self._schedule_wake(edition, receiver)
        self._probe_old_edition(now)

    def deadline(self) -> Instant | None:
        """The earliest due time of any session."""
        due_at = min(self._probe_at, self._schedule[0][0] if self._schedule else NEVER)
        return None if due_at == NEVER else due_at

    def drain(self) -> list[CustomerEffect]:
        effects, self._effects = self._effects, []
        return effects

    def _open(
        self, version: int, breaks: int, stripes: tuple[int, ...], now: Instant, *, starts: Mapping[int, int] | None
    ) -> None:
        receivers = {}
        for stripe in stripes:
            name = str(SessionName(self._deployment, version, breaks, stripe))
            first = 1 if starts is None else starts.get(stripe)
            receiver = SessionReceiver(stripe, name, first=first, feeds=self._feeds, options=self._options, now=now)
            receiver.can_ask = bool(self._servers)
            receivers[name] = receiver
        edition = _FollowedEdition(version, breaks, stripes, receivers)
        self._editions.append(edition)
        if len(self._editions) > EDITIONS_MAX:
            self._abandon(self._editions[0])
        self._schedule_all(edition)

    def _edition_of(self, session: str, now: Instant) -> _FollowedEdition | None:
        """The edition of a session. The first packet after a Break opens a new one."""
        for edition in self._editions:
            if session in edition.receivers:
                return edition
        name = SessionName.parse(session)
        if name is None or name.deployment != self._deployment or not self._editions:
            return None
        last = self._editions[-1]
        if name.version > last.version:
            self._announce(name.version, 0)
        elif name.version == last.version and name.stripe in last.stripes and name.breaks > last.breaks:
            joins = len(self._editions) == 1 and last.is_unreceived
            if joins:
                self._editions.clear()
            for breaks in range(name.breaks if joins else last.breaks + 1, name.breaks + 1)[-EDITIONS_MAX:]:
                self._open(last.version, breaks, last.stripes, now, starts={} if joins else None)
            return self._editions[-1]
        return None

    def _begin(self, edition: _FollowedEdition, now: Instant) -> None:
        edition.begun_at = now
        for receiver in edition.receivers.values():
            receiver.heard_at = dict.fromkeys(self._feeds, now)
        self._schedule_all(edition)
        if edition is not self._editions[0]:
            self._probe_at = min(self._probe_at, now + self._options.retry_period)

    def _hand_over(self, edition: _FollowedEdition, receiver: SessionReceiver, outputs: list[Output]) -> None:
        """Deliver records, or hold them until the end of an older edition."""
        records: list[StripeRecord] = []
        stripe, session = receiver.stripe, receiver.arbitration.session
        for output in outputs:
            if isinstance(output, Run):
                self.counts.delivered += len(output.messages)
                records.append(Delivered(stripe, session, output.first, output.messages))
                records += self._notices(stripe, output.messages)
            else:
                self.counts.missing += output.count
                records.append(StripeGap(stripe, session, output.first, output.count))
        if receiver.arbitration.complete and not receiver.end_reported:
            receiver.end_reported = True
            records.append(Ended(stripe, session, receiver.arbitration.highest + 1, complete=True))
        if edition is self._editions[0]:
            self._effects += records
        else:
            edition.waiting += records
            edition.waiting_bytes += sum(output.size for output in outputs if isinstance(output, Run))
        self._advance()

    @property
    def _overtaken_at(self) -> Instant:
        """When a packet of a later edition than the first came."""
        return min((edition.begun_at for edition in self._editions[1:]), default=NEVER)

    def _advance(self) -> None:
        """Drop complete editions, and deliver what waited for their end."""
        while len(self._editions) > 1 and self._editions[0].complete:
            self._editions.pop(0)
            first = self._editions[0]
            self._probe_at = self._overtaken_at
            self._schedule_all(first)
            self._effects += first.waiting
            first.waiting, first.waiting_bytes = [], 0

    def _notices(self, stripe: int, messages: tuple[bytes, ...]) -> list[StripeRecord]:
        """The records of the marks among these messages."""
        notices: list[StripeRecord] = []
        for message in messages:
            if message[:1] != MARK:
                continue
            try:
                mark = decode_mark(message)
            except BadMark:
                self.counts.malformed += 1
                continue
            match mark:
                case Reformed(sequence, formation, broken):
                    notices.append((StripeBreak if broken else StripeReformation)(stripe, sequence, formation))
                case Over(sequence, version, _) if version:
                    self._announce(version, sequence)
                case Over() | Begun():
                    pass
        return notices

    def _announce(self, version: int, sequence: int) -> None:
        if version > max(self._announced, self._editions[-1].version):
            self._announced = version
            self._effects.append(PlanChange(version, sequence))

    def _note_feed(self, receiver: SessionReceiver, feed: str, now: Instant) -> None:
        if feed not in receiver.heard_at:
            return
        receiver.heard_at[feed] = now
        if receiver.stale:
            receiver.stale = False
            self._effects.append(StripeFresh(receiver.stripe))
        if feed in receiver.silent:
            receiver.silent.remove(feed)
            self._effects.append(Heard(receiver.stripe, feed))

    def _check_silence(self, receiver: SessionReceiver, now: Instant) -> None:
        if receiver.end_reported:
            return
        for feed, heard_at in receiver.heard_at.items():
            if feed not in receiver.silent and now >= heard_at + self._options.stale_delay:
                receiver.silent.add(feed)
                self._effects.append(Silent(receiver.stripe, feed, heard_at))
        if not receiver.stale and len(receiver.silent) == len(receiver.heard_at):
            receiver.stale = True
            self._effects.append(StripeStale(receiver.stripe, max(receiver.heard_at.values())))

    def _ask(self, requests: list[MoldRequest], again: bool) -> None:
        if not requests:
            return
        self._unanswered += again
        if self._unanswered >= self._options.silence_max:
            self._unanswered = 0
            self._server += 1
        self.counts.requests += len(requests)
        server = self._servers[self._server % len(self._servers)]
        self._effects.append(SendUnicast(server, [encode_request(request) for request in requests]))

    def _probe_old_edition(self, now: Instant) -> None:
        """The next edition has begun before the end of the old one came: request that end, or give it up."""
        if now < self._probe_at:
            return
        self._probe_at = NEVER
        overtaken_at = self._overtaken_at
        if overtaken_at == NEVER:
            return
        old, patience = self._editions[0], self._options.patience
        if patience is not None and now >= overtaken_at + self._options.stale_delay + patience:
            self._abandon(old)
            return
        self._probe_at = now + self._options.retry_period
        for receiver in old.receivers.values():
            arbitration = receiver.arbitration
            if arbitration.next is None:  # it joined too late to receive any of it
                receiver.end_reported = True
            elif not arbitration.ended and self._servers:
                receiver.probed_through = arbitration.highest + self._options.request_max
                self._ask(
                    [MoldRequest(arbitration.session, arbitration.highest + 1, self._options.request_max)], again=True
                )
        self._advance()

    def _abandon(self, edition: _FollowedEdition) -> None:
        """Give up what is missing of an edition, including its end."""
        for receiver in edition.receivers.values():
            if not receiver.end_reported:
                self._hand_over(edition, receiver, receiver.arbitration.give_up(receiver.arbitration.highest))
            if not receiver.end_reported:
                receiver.end_reported = True
                arbitration = receiver.arbitration
                self._effects.append(
                    Ended(receiver.stripe, arbitration.session, arbitration.highest + 1, complete=False)
                )
        self._advance()

    def _schedule_wake(self, edition: _FollowedEdition, receiver: SessionReceiver) -> None:
        """Keep at most one valid entry per session; a stale entry is skipped in `wake`."""
        due_at = receiver.due_at
        if self._is_open(edition):
            due_at = min(due_at, receiver.silence_at)
        if due_at < receiver.scheduled_at:
            receiver.scheduled_at = due_at
            heappush(self._schedule, (due_at, receiver.arbitration.session))

    def _schedule_all(self, edition: _FollowedEdition) -> None:
        for receiver in edition.receivers.values():
            self._schedule_wake(edition, receiver)

    def _is_open(self, edition: _FollowedEdition) -> bool:
        """Whether packets of it are expected: a plan that is known ahead is silent until it takes over."""
        return edition is self._editions[0] or edition.begun_at < NEVER
