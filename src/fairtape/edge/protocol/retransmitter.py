"""The retransmit server R_x: customers request what they missed, by number. TRMP 2001 §4.1, §7.1.

A request is twenty bytes from any address. So cheap checks come first, every table has a limit, and answers stay within
the rate limit of the requesting host. Refusals are counted; those of guaranteed customers are also reported.

Many receivers of a region are likely to lose the same messages, so retransmissions should be multicast, too (§7.1).
Requests therefore gather for a moment. They seldom name exactly the same messages; what counts is how many customers
request a number.

The sender of a request *is* an argument here, unlike in the core: MoldUDP64 has no sender field, and the answer must go
somewhere. Only released messages are served, because the archive holds no others.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from fairtape.core.addresses import Address
from fairtape.core.instants import MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.core.token_bucket import TokenBucket
from fairtape.edge.protocol.archive import MessageArchive, SessionExtent
from fairtape.edge.protocol.effects import (
    EdgeEffect,
    RefusalReason,
    RepairRefused,
    SendMulticast,
    SendUnicast,
)
from fairtape.edge.protocol.sessions import SessionName
from fairtape.edge.status import RetransmitterCounts
from fairtape.formats.framing import frame
from fairtape.formats.moldudp64 import BadMold, MoldRequest, bare, decode_request, packets, session_field
from fairtape.market.stripes import UDP_OVERHEAD, EdgeStripe, StripePlan


class Grade(Enum):
    """The two grades of service. TRMP 2001 §4.1."""

    BEST_EFFORT = "best effort"  # repairs while there is capacity
    GUARANTEED = "guaranteed"  # repairs are queued first, and refusals are reported


class RepairRequest(NamedTuple):
    """A customer requests these numbers."""

    by: Address
    first: int
    end: int  # the number after the last one


class Repair(NamedTuple):
    """Numbers to send to one customer, or by multicast where `to` is None."""

    to: Address | None
    first: int
    end: int
    hosts: frozenset[str] = frozenset()  # the requesters of a multicast repair: it counts as queued for each of them


def merge_requests(requests: Iterable[RepairRequest], *, multicast_min: int) -> list[Repair]:
    """Numbers that at least `multicast_min` customers request are multicast; others go to each that requests them.

    No customer gets a number twice.
    """
    repairs: dict[Address | None, list[Repair]] = {}
    for first, end, requesters in _segments(requests):
        is_multicast = len(requesters) >= multicast_min
        hosts = frozenset(host for host, _ in requesters) if is_multicast else frozenset[str]()
        for to in (None,) if is_multicast else sorted(requesters):
            known = repairs.setdefault(to, [])
            before = known.pop() if known and known[-1].end == first else Repair(to, first, end)
            known.append(Repair(to, before.first, end, before.hosts | hosts))
    return [repair for each in repairs.values() for repair in each]


def _segments(requests: Iterable[RepairRequest]) -> Iterator[tuple[int, int, Counter[Address]]]:
    """The numbers cut wherever a request begins or ends, and the requesters of each segment."""
    edges = sorted(
        edge for request in requests for edge in ((request.first, 1, request.by), (request.end, -1, request.by))
    )
    requesters: Counter[Address] = Counter()
    at = 0
    for edge, step, by in edges:
        if requesters and edge > at:
            yield at, edge, requesters
        at = edge
        requesters[by] += step
        if not requesters[by]:
            del requesters[by]


UNREGISTERED_MAX: Final = 10_000  # accounts of hosts that are not registered; the least recently used is dropped
REGISTERED_MAX: Final = 100_000


class CustomerAccount:
    """The grade and the limits of one host. MoldUDP64 identifies no customer, and a host address proves nothing."""

    __slots__ = ("bits", "grade", "refused", "requests", "waiting")

    def __init__(self, grade: Grade, *, requests_per_s: int, bits_per_s: int, burst_period: Duration) -> None:
        self.grade = grade
        self.requests = TokenBucket(requests_per_s, burst_period)
        self.bits = TokenBucket(bits_per_s, burst_period)
        self.waiting = 0  # its queued repairs
        self.refused = 0


class CustomerAccounts:
    """The registered hosts, and those that sent requests recently."""

    def __init__(
        self,
        *,
        requests_per_s: int,
        bits_per_s: int,
        burst_period: Duration = SECOND // 10,
        unregistered_max: int = UNREGISTERED_MAX,
    ) -> None:
        self._requests_per_s = requests_per_s
        self._bits_per_s = bits_per_s
        self._burst_period = burst_period
        self._unregistered_max = unregistered_max
        self._registered: dict[str, CustomerAccount] = {}
        self._unregistered: OrderedDict[str, CustomerAccount] = OrderedDict()

    def register(self, host: str, grade: Grade, *, bits_per_s: int | None = None) -> None:
        """Requests from this host get this grade."""
        assert len(self._registered) < REGISTERED_MAX or host in self._registered
        self._registered[host] = self._account(grade, bits_per_s or self._bits_per_s)

    def of(self, host: str) -> CustomerAccount:
        """The account of a host; a host that is not registered gets best effort."""
        account = self._registered.get(host) or self._unregistered.get(host)
        if account is None:
            account = self._unregistered[host] = self._account(Grade.BEST_EFFORT, self._bits_per_s)
            if len(self._unregistered) > self._unregistered_max:
                self._unregistered.popitem(last=False)
        elif host in self._unregistered:
            self._unregistered.move_to_end(host)
        return account

    def _account(self, grade: Grade, bits_per_s: int) -> CustomerAccount:
        return CustomerAccount(
            grade, requests_per_s=self._requests_per_s, bits_per_s=bits_per_s, burst_period=self._burst_period
        )


PLANS_MAX: Final = 8  # plans whose groups are known; the oldest is dropped first
LINGERING_MAX: Final = 256  # recent multicast repairs
GROUPS_MAX: Final = 16_384  # sessions with a rate limit for multicast repairs; beyond it all limits are reset


@dataclass(frozen=True, slots=True, kw_only=True)
class RetransmitterOptions:
    """Delays and limits."""

    gather_delay: Duration = 2 * MILLISECOND  # for which requests gather
    multicast_min: int = 2  # requesters of a number from which on it is multicast
    linger_period: Duration = 10 * MILLISECOND  # a request this soon after a multicast repair has crossed it
    answer_messages_max: int = 512  # of one request; the rest must be requested again
    wake_datagrams_max: int = 16  # per repair and wake, for fairness
    bits_per_s: int = 200_000_000  # of all repairs together
    group_share: int = 4  # multicast repairs get at most this part (1 / share) of a stripe's bit rate
    burst_period: Duration = 20 * MILLISECOND
    best_effort_max: int = 256  # queued repairs, from which on best effort is refused
    jobs_max: int = 4_096  # queued repairs
    gathered_max: int = 4_096  # gathered requests
    queue_max: int = 64  # queued repairs of one host
    requests_per_s: int = 2_000  # of one host
    customer_bits_per_s: int = 20_000_000  # of one host


class _Job(NamedTuple):
    session: str
    repair: Repair
    stripe: EdgeStripe | None  # None: its plan is no longer known, so it cannot be multicast


class Retransmitter:
    """Serves the customers of one region."""

    def __init__(self, archive: MessageArchive, *, feed: str, options: RetransmitterOptions | None = None) -> None:
        self.counts = RetransmitterCounts()
        self._options = options or RetransmitterOptions()
        self.accounts = CustomerAccounts(
            requests_per_s=self._options.requests_per_s, bits_per_s=self._options.customer_bits_per_s
        )
        self._archive = archive
        self._feed = feed
        self._plans: dict[int, StripePlan] = {}
        self._pacer = TokenBucket(self._options.bits_per_s, self._options.burst_period)
        self._gather_at: Instant = NEVER
        self._gathering: dict[str, list[RepairRequest]] = {}
        self._gathered = 0
        self._guaranteed: deque[_Job] = deque()
        self._best_effort: deque[_Job] = deque()
        # Multicast repairs: when they expire, session, first number and end.
        self._lingering: deque[tuple[Instant, str, int, int]] = deque(maxlen=LINGERING_MAX)
        self._groups: dict[str, TokenBucket] = {}
        self._postponed_until: Instant = NEVER  # when the rate limit of a postponed job allows it
        self._effects: list[EdgeEffect] = []

    def follow(self, plan: StripePlan) -> None:
        """Take the groups of a plan, for multicast repairs."""
        assert self._feed in plan.feeds
        self._plans[plan.version] = plan
        while len(self._plans) > PLANS_MAX:
            del self._plans[min(self._plans)]

    def follows(self, version: int) -> bool:
        """Whether the groups of this plan are known, or were dropped as too old."""
        return version in self._plans or (len(self._plans) >= PLANS_MAX and version < min(self._plans))

    def receive(self, datagram: bytes, now: Instant, *, origin: Address) -> None:
        """Take a request. Never raises, whatever the bytes."""
        self.counts.requests += 1
        try:
            request = decode_request(datagram)
        except BadMold:
            self.counts.malformed += 1
            return
        account = self.accounts.of(origin[0])
        if not account.requests.take(1, now):
            self.counts.floods += 1
            self._refuse(origin, request, RefusalReason.FLOOD)
            return
        extent = self._archive.extent(request.session)
        if extent is None:
            self.counts.strangers += 1
        elif request.number >= extent.following:
            self._send_extent(request, extent, origin, now)
        elif self._has_capacity(request, origin):
            self._gather(request, extent.following, origin, now)

    def wake(self, now: Instant) -> None:
        """Queue gathered requests that are due, and serve the queues."""
        if now >= self._gather_at:
            self._close_gathering()
        self._serve(now)

    def deadline(self) -> Instant | None:
        """When gathered requests are due, or the next repair may be sent."""
        due_at = self._gather_at
        if self._best_effort or self._guaranteed:
            ready_at = self._pacer.ready_at
            if self._postponed_until < NEVER:
                ready_at = max(ready_at, self._postponed_until)
            due_at = min(due_at, ready_at)
        return None if due_at == NEVER else due_at

    def drain(self) -> list[EdgeEffect]:
        effects, self._effects = self._effects, []
        return effects

    def _send_extent(self, request: MoldRequest, extent: SessionExtent, origin: Address, now: Instant) -> None:
        """Answer a request for the next number with that number, or with the end of the session."""
        if request.number > extent.following:
            self.counts.absurd += 1
            return
        datagram = bare(session_field(request.session), extent.following, ended=extent.ended)
        self._pacer.charge(8 * (len(datagram) + UDP_OVERHEAD), now)
        self._effects.append(SendUnicast(origin, [datagram]))

    def _has_capacity(self, request: MoldRequest, origin: Address) -> bool:
        account, options = self.accounts.of(origin[0]), self._options
        queued = len(self._best_effort) + len(self._guaranteed)
        if account.waiting >= options.queue_max or self._gathered >= options.gathered_max or queued >= options.jobs_max:
            self._refuse(origin, request, RefusalReason.QUEUE)
        elif account.grade is Grade.BEST_EFFORT and queued >= options.best_effort_max:
            self._refuse(origin, request, RefusalReason.LOAD)
        else:
            return True
        self.counts.refused += 1
        return False

    def _refuse(self, origin: Address, request: MoldRequest, why: RefusalReason) -> None:
        account = self.accounts.of(origin[0])
        account.refused += 1
        if account.grade is Grade.GUARANTEED:
            self._effects.append(RepairRefused(origin, request, why))

    def _gather(self, request: MoldRequest, following: int, origin: Address, now: Instant) -> None:
        first, end = request.number, min(request.number + request.count, following)
        while self._lingering and self._lingering[0][0] <= now:
            self._lingering.popleft()
        for _, session, sent_first, sent_end in self._lingering:
            if session == request.session and sent_first <= first < sent_end:
                first = sent_end
        if first >= end:
            self.counts.crossed += 1
            return
        end = min(end, first + self._options.answer_messages_max)
        self._gathering.setdefault(request.session, []).append(RepairRequest(origin, first, end))
        self._gathered += 1
        self.accounts.of(origin[0]).waiting += 1
        self._gather_at = min(self._gather_at, now + self._options.gather_delay)

    def _close_gathering(self) -> None:
        for session, requests in self._gathering.items():
            guaranteed = set()
            for request in requests:
                account = self.accounts.of(request.by[0])
                account.waiting = max(account.waiting - 1, 0)
                if account.grade is Grade.GUARANTEED:
                    guaranteed.add(request.by)
            stripe = self._stripe(session)
            multicast_min = self._options.multicast_min if stripe else len(requests) + 1
            for repair in merge_requests(requests, multicast_min=multicast_min):
                is_guaranteed = repair.to in guaranteed or (repair.to is None and guaranteed)
                (self._guaranteed if is_guaranteed else self._best_effort).append(_Job(session, repair, stripe))
                for host in _hosts(repair):
                    self.accounts.of(host).waiting += 1
        self._gathering.clear()
        self._gathered = 0
        self._gather_at = NEVER

    def _serve(self, now: Instant) -> None:
        """Serve guaranteed repairs first; one beyond its rate limit goes to the end of the queue."""
        self._postponed_until = NEVER
        postponed_until = NEVER
        for queue in (self._guaranteed, self._best_effort):
            for _ in range(len(queue)):
                if self._pacer.ready_at > now:
                    return
                job = queue.popleft()
                ready_at = self._ready_at(job)
                if ready_at > now:
                    postponed_until = min(postponed_until, ready_at)
                    queue.append(job)
                else:
                    rest = self._repair(job, now)
                    if rest is not None:
                        queue.append(rest)
        self._postponed_until = postponed_until

    def _ready_at(self, job: _Job) -> Instant:
        to = job.repair.to
        return (self._group_pacer(job) if to is None else self.accounts.of(to[0]).bits).ready_at

    def _group_pacer(self, job: _Job) -> TokenBucket:
        """Limits multicast repairs of a stripe: its rate must suit its least capable customer."""
        pacer = self._groups.get(job.session)
        if pacer is None:
            if len(self._groups) >= GROUPS_MAX:
                self._groups.clear()
            assert job.stripe is not None
            rate = max(job.stripe.bits_per_s_max // self._options.group_share, 1)
            pacer = self._groups[job.session] = TokenBucket(rate, self._options.burst_period)
        return pacer

    def _repair(self, job: _Job, now: Instant) -> _Job | None:
        """Send a repair; returns the rest of it for the next wake."""
        session, (_, first, end, _), _ = job
        messages = self._archive.messages(session, first, end - first)
        datagrams: list[bytes] = []
        count = 0
        for datagram, carried in packets(session_field(session), first, frame(messages), 0):
            if len(datagrams) == self._options.wake_datagrams_max:
                break
            datagrams.append(datagram)
            count += carried
        self.counts.messages += count
        if datagrams:
            self._send(job, datagrams, first + count, now)
        if 0 < count < len(messages):
            return job._replace(repair=job.repair._replace(first=first + count))
        self.counts.gone += not messages
        for host in _hosts(job.repair):
            account = self.accounts.of(host)
            account.waiting = max(account.waiting - 1, 0)
        return None

    def _send(self, job: _Job, datagrams: list[bytes], end: int, now: Instant) -> None:
        bits = 8 * sum(len(datagram) + UDP_OVERHEAD for datagram in datagrams)
        self._pacer.charge(bits, now)
        session, (to, first, _, _), stripe = job
        if to is not None:
            self.counts.unicasts += 1
            self.accounts.of(to[0]).bits.charge(bits, now)
            self._effects.append(SendUnicast(to, datagrams))
        else:
            assert stripe is not None
            self.counts.multicasts += 1
            self._group_pacer(job).charge(bits, now)
            self._effects.append(SendMulticast(stripe.endpoint(self._feed), datagrams))
            self._lingering.append((now + self._options.linger_period, session, first, end))

    def _stripe(self, session: str) -> EdgeStripe | None:
        """The stripe of a session; None where its plan is no longer known."""
        name = SessionName.parse(session)
        plan = self._plans.get(name.version) if name else None
        return plan.stripes.get(name.stripe) if plan and name else None


def _hosts(repair: Repair) -> Iterable[str]:
    """The hosts that a repair is queued for."""
    return repair.hosts if repair.to is None else (repair.to[0],)
