"""A site (R_P or R_S): a receiver, and its duties towards reformation servers and other sites.

The receiver orders and releases. The site reports to the reformation servers and gets leases, stops when it is fenced,
installs formations, passes the tokens of secondary loops, catches up from another site's journal, and lets others
catch up from its own. If the journal holds more than the others agreed on (decision 21, Where a formation resumes), the
site rolls it back before it continues.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fairtape.core.effects import (
    LOOP_CHANNEL,
    REASONS,
    Deliver,
    Effect,
    JoinChannels,
    Multicast,
    Notice,
    Reason,
    Recovered,
    Report,
    Send,
    Truncate,
)
from fairtape.core.entries import Extract, decode_entry
from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.core.queue_sizes import QueueSize
from fairtape.core.timing import Timing
from fairtape.nodes.catchup import PENDING_MAX, CatchUpClient, CatchUpServer
from fairtape.nodes.clock_bound import ClockBoundEstimator
from fairtape.nodes.congestion_window import WINDOW_MAX
from fairtape.nodes.journal_position import Disagreement
from fairtape.nodes.membership import Membership
from fairtape.nodes.membership_tables import Participation
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.punctuality import Punctuality, SlowMembers
from fairtape.nodes.receiver import Receiver
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import decode_formation, proposal_digest
from fairtape.ring.membership.secondary_loop import SecondaryLoop
from fairtape.ring.receiver.recovery import TransitionObserver
from fairtape.ring.receiver.tracing import Tracer
from fairtape.wire.frames import DATAGRAM_MAX, Malformed, NodeId, is_block, kind_of
from fairtape.wire.membership import (
    CatchUp,
    Fence,
    Grant,
    HistoryChunk,
    Install,
    LoopToken,
    MembershipMessage,
    MembershipRequest,
    MembershipState,
    SiteReport,
    decode_membership,
    is_history,
    is_membership,
)
from fairtape.wire.seals import Keys

REPORTS_MAX: Final = 16  # pending requests for a lease
STORES_NOTED_MAX: Final = 16  # other formation stores that a notice names


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteConfig:
    """The configuration of a site."""

    me: NodeId
    reformers: tuple[NodeId, ...]
    timing: Timing  # until the first formation
    home: int = 0  # the loop that it belongs to
    deployment: int = 0  # the digest of the deployment file that it has read
    durable: bool = True  # the journal survives a restart of the machine: it proves what the site holds
    stripe: int = 0
    datagram_max: int = DATAGRAM_MAX


def suspicion(receiver: Receiver | None, loops: "LoopMemberships", loop: int) -> tuple[NodeId, int, int]:
    """The suspect of this site in a loop, the token, and the reason; zeros if there is none."""
    suspected = loops.suspicion(loop)
    if not loop and receiver is not None and receiver.reforming is not None:
        report = receiver.reforming
        suspected = report.suspect, report.token, report.reason
    elif not loop and receiver is not None and receiver.suspect is not None:
        suspected = *receiver.suspect, Reason.ACK_OVERDUE
    if suspected is None:
        return 0, 0, 0
    site, token, reason = suspected
    return site, token, REASONS.index(reason) + 1


def requested_membership(
    receiver: Receiver | None, loops: "LoopMemberships", loop: int, *, in_time: bool
) -> MembershipRequest:
    """A site with a good clock that is up to date joins; one whose clock error is too large withdraws.

    So does one that lacks a key.
    """
    if receiver is None:
        return MembershipRequest.NOTHING
    in_time = in_time and not receiver.keys_missing
    if loop in loops.memberships if loop else receiver.membership.active:
        return MembershipRequest.NOTHING if in_time else MembershipRequest.WITHDRAW
    return MembershipRequest.JOIN if in_time and not receiver.membership.stranded else MembershipRequest.NOTHING


class LoopMemberships:
    """The secondary loops of a site: its own one, and those that it joins to the loop above."""

    def __init__(self, *, me: NodeId, stripe: int, authenticator: MessageAuthenticator) -> None:
        self.memberships: dict[int, SecondaryLoop] = {}  # the loops of which this site is a member
        self._me = me
        self._stripe = stripe
        self._authenticator = authenticator
        self._formations: dict[int, Formation] = {}

    def enter(self, formation: Formation, incarnation: int) -> list[Effect]:
        """Enter a new formation of a loop."""
        if formation.number <= self.number(formation.loop):
            return []
        self._formations[formation.loop] = formation
        self.memberships.pop(formation.loop, None)
        if formation.has_member(self._me, incarnation):
            self.memberships[formation.loop] = SecondaryLoop(formation, me=self._me)
        return [JoinChannels(tuple(LOOP_CHANNEL + loop for loop in self.memberships))]

    def receive_token(self, message: LoopToken, now: Instant) -> str:
        """Another member passed a token on. Returns a counter name."""
        membership = self.memberships.get(message.loop)
        if membership is None or membership.formation.number != message.formation:
            return "foreign"
        return membership.receive_token(message.token, message.sender, now)

    def advance(self, complete_through: int, now: Instant) -> list[Effect]:
        """This site holds everything up to this primary token: pass on the tokens that it may."""
        effects: list[Effect] = []
        for loop, membership in self.memberships.items():
            for token in membership.advance(complete_through, now):
                passed = LoopToken(self._stripe, membership.formation.number, self._me, loop, token)
                effects.append(Multicast(LOOP_CHANNEL + loop, [self._authenticator.for_membership(passed)]))
        return effects

    def deadline(self) -> Instant:
        """When to retransmit a token, or to suspect the next site."""
        if not self.memberships:
            return NEVER
        return min(membership.deadline() for membership in self.memberships.values())

    def number(self, loop: int) -> int:
        """The number of the latest formation of a loop; 0: none."""
        return self._formations[loop].number if loop in self._formations else 0

    def membership_state(self, loop: int) -> MembershipState:
        return MembershipState.MEMBER if loop in self.memberships else MembershipState.OBSERVER

    def suspicion(self, loop: int) -> tuple[NodeId, int, Reason] | None:
        return self.memberships[loop].suspicion if loop in self.memberships else None

    def suspicions(self) -> int:
        """The number of loops with a suspect."""
        return sum(membership.suspicion is not None for membership in self.memberships.values())

    def connect(self, receiver: Receiver, home: int) -> None:
        """Set the repair parent of the receiver, the junction of its loop (2001 §4.1), and its repair children."""
        formation = self._formations.get(home)
        others = [member for member in receiver.formation.members if member != self._me]
        if formation is not None and formation.junction != self._me:
            others.insert(0, formation.junction)
        receiver.repairs.parent = others[0] if others else None
        receiver.repairs.home = (
            self.memberships[home].formation if home in self.memberships and not receiver.membership.active else None
        )
        receiver.repairs.children = tuple(
            membership.formation
            for membership in self.memberships.values()
            if membership.formation.junction == self._me
        )

    def needed_after(self) -> int | None:
        """The token up to which the sites that ask this one are known to hold everything; None: no site asks it."""
        children = [
            membership.stable_through
            for membership in self.memberships.values()
            if membership.formation.junction == self._me
        ]
        return min(children, default=None)


class Site:
    """One incarnation of one site."""

    def __init__(
        self,
        config: SiteConfig,
        *,
        keys: Keys,
        born_at: Instant,
        incarnation: int | None = None,
        recovered: Recovered,
        clock_bound: Callable[[], Duration] = lambda: 0,
        backlog: Callable[[], Duration] = lambda: 0,
        observe: TransitionObserver | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`incarnation` is higher than every serial number of an earlier one; None: the clock was never set back."""
        self.config = config
        self.me = config.me
        first_serial = born_at if incarnation is None else incarnation
        self.incarnation = first_serial // 1_000 & 0xFFFF_FFFF
        self.membership = Membership(me=config.me, incarnation=self.incarnation)
        self.receiver: Receiver | None = None  # in a formation
        self.late = 0
        self._punctuality = Punctuality()
        self._slow_members = SlowMembers()
        self._own_counts: Counter[str] = Counter()
        self._keys = keys
        self._born_at = born_at
        self._observe = observe
        self._tracer = tracer
        self._own_bound = clock_bound
        self._backlog = backlog
        self._clock_estimator = ClockBoundEstimator()
        self._authenticator = MessageAuthenticator(me=config.me, keys=keys, peers=keys.sites, first_serial=first_serial)
        self._effects: list[Effect] = []
        self._term = 0
        self._recovered = recovered
        layout = recovered.layout
        self._stores = () if layout is None else decode_formation(layout).stores  # that it follows, and replaced ones
        self._refused_stores: dict[int, str] = {}  # the notice about each, until this site follows another one
        self._loops = LoopMemberships(me=config.me, stripe=config.stripe, authenticator=self._authenticator)
        self._catch_up_client = CatchUpClient(me=config.me, stripe=config.stripe, authenticator=self._authenticator)
        self._catch_up_server = CatchUpServer(
            me=config.me, authenticator=self._authenticator, datagram_max=config.datagram_max
        )
        self._report_at: Instant = born_at
        self._report_period: Duration = 0  # from the last report to `_report_at`
        self._reported: Report | None = None  # the failure in the last report
        self._suspected: tuple[NodeId, int] | None = None  # the suspicion in the last report
        self._asked: dict[Instant, Duration] = {}  # time of recent reports: the clock's bound then

    # The contract.

    def receive(self, datagram: bytes, now: Instant) -> None:
        """Process one datagram. Every datagram is counted; a malformed one changes nothing."""
        self._check_clock(now)
        if not is_membership(datagram):
            if self.receiver is None or self.receiver.far_behind:
                self._own_counts["too_early"] += 1
            else:
                self.receiver.receive(datagram, now)
                self._follow_up(now)
            return
        try:
            self._receive_membership(datagram, now)
        except Malformed:
            self._own_counts["malformed"] += 1
        self._follow_up(now)

    def receive_all(self, datagrams: Sequence[bytes], now: Instant) -> None:
        if all(map(is_history, datagrams)):
            self._receive_history(datagrams, now)
        elif self.receiver is None or self.receiver.far_behind or not all(map(is_block, datagrams)):
            for datagram in datagrams:
                self.receive(datagram, now)
        else:
            self._check_clock(now)
            self.receiver.receive_all(datagrams, now)

    def _receive_history(self, datagrams: Sequence[bytes], now: Instant) -> None:
        """Chunks come by the thousand: what has to be done once for all of them is not done for each."""
        self._check_clock(now)
        for datagram in datagrams:
            try:
                self._receive_membership(datagram, now)
            except Malformed:
                self._own_counts["malformed"] += 1
        self._follow_up(now)

    def advance(self, now: Instant) -> None:
        """Release and acknowledge what is due, before what has arrived is read."""
        self._check_clock(now)
        if self._receiver_due(now):
            assert self.receiver is not None
            self.receiver.advance(now)
            self._follow_up(now)

    def wake(self, now: Instant) -> None:
        self._check_clock(now)
        if self._receiver_due(now):
            assert self.receiver is not None
            self.receiver.wake(now)
        self._follow_up(now)
        if self._report_at <= now:
            self._send_reports(now)
            self._report_trouble(now)
        if self._catch_up_client.reader.ask_at <= now:
            self._own_counts["past_asked"] += 1
            self._effects += self._catch_up_client.ask(self.receiver, now) if self.receiver is not None else []

    def _receiver_due(self, now: Instant) -> bool:
        """Whether a deadline of the receiver has passed; by how much is noted."""
        deadline = None if self.receiver is None else self.receiver.deadline()
        if deadline is None or deadline > now:
            return False
        if deadline:  # 0: blocks are pending
            self._punctuality.woken(now - deadline)
        return True

    def _report_trouble(self, now: Instant) -> None:
        receiver = self.receiver
        formation = self._number(0) if receiver is not None and receiver.membership.active else 0
        late = self._punctuality.notice(
            formation=formation, timing=self.timing, sequence=self.next_sequence, late=self.late, now=now
        )
        slowest = None if receiver is None else receiver.slowest_member
        slow = self._slow_members.notice(formation=formation, slowest=slowest, now=now)
        self._effects += [Notice(each) for each in (late, slow) if each is not None]

    def _check_clock(self, now: Instant) -> None:
        """Apply the current clock bound. A clock that was set back must not delay reports and requests."""
        if self.receiver is not None:
            self.receiver.check_clock(now, behind=self._clock_estimator.behind)
        if self._report_at - now > self._report_period:
            self._report_at = now
        self._catch_up_client.reader.check_clock(now)

    def deadline(self) -> Instant | None:
        earliest = min(self._report_at, self._catch_up_client.reader.ask_at)
        earliest = min(earliest, self._loops.deadline())
        if self.receiver is not None:
            wanted_at = self.receiver.deadline()
            earliest = earliest if wanted_at is None else min(earliest, wanted_at)
        return None if earliest == NEVER else earliest

    def drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        if self.receiver is not None:
            effects += self.receiver.drain()
        if effects:
            self.late += sum(each.release.count for each in effects if isinstance(each, Deliver) and each.release.late)
        return effects

    # Responses of the driver.

    def fetched(self, ticket: int, entries: Sequence[bytes], now: Instant) -> None:
        """The journal entries of a `Fetch`: they were not released. The ticket is 0 or below."""
        if self.receiver is not None and self.receiver.unreleased_ticket == ticket:
            self.receiver.read_unreleased(map(decode_entry, entries), now)
            self._follow_up(now)

    def fetched_chunks(self, ticket: int, extract: Extract, now: Instant) -> None:  # noqa: ARG002 - as `fetched`
        """What another site has requested of the journal."""
        pending = self._catch_up_server.end_read(ticket)
        if self.receiver is not None and pending is not None:
            self._own_counts["past_served"] += 1
            self._effects += self._catch_up_server.answer(pending, extract, self.receiver)

    def recovered(self, recovered: Recovered, now: Instant) -> None:
        self._recovered = recovered
        self.membership.journal_cut()
        waiting = self.membership.take_waiting()
        if waiting is not None:
            self._enter(waiting, now)

    # State.

    @property
    def counts(self) -> Counter[str]:
        return self._own_counts + self.receiver.counts if self.receiver is not None else self._own_counts

    @property
    def formation(self) -> Formation | None:
        """The latest formation of the primary loop."""
        return self.receiver.formation if self.receiver is not None else None

    @property
    def complete_through(self) -> int:
        """The highest token up to which everything is held."""
        return self.receiver.complete_through if self.receiver is not None else self._recovered.token

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next message."""
        return self.receiver.next_sequence if self.receiver is not None else self._recovered.sequence

    @property
    def stable_through(self) -> int:
        """The highest token up to which all members are proven to hold everything; 0: none."""
        return self.receiver.stable_through if self.receiver is not None else 0

    @property
    def membership_state(self) -> MembershipState:
        """The state of this site in its latest formation."""
        formation = self.membership.formation
        if formation is None:
            return MembershipState.NEWBORN
        if self.membership.fenced:
            return MembershipState.FENCED
        if self.membership.active:
            return MembershipState.MEMBER
        lost_memory = self.me in formation.members and self.config.durable
        return MembershipState.RESTARTED if lost_memory else MembershipState.OBSERVER

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the operator has to mend."""
        return tuple(self._refused_stores.values())

    @property
    def secondary_loops(self) -> dict[int, SecondaryLoop]:
        """The secondary loops of which it is a member."""
        return self._loops.memberships

    def clock_bound(self) -> Duration:
        """The error bound of this site's clock."""
        return self._clock_estimator.bound(self._own_bound())

    def queue_sizes(self) -> Iterator[QueueSize]:
        """The sizes of its queues and tables, and their limits."""
        yield QueueSize("chunks to catch up with", self._catch_up_client.reader.unordered, WINDOW_MAX)
        yield QueueSize("requests for history", self._catch_up_server.pending, PENDING_MAX)
        yield QueueSize("requests for a lease", len(self._asked), REPORTS_MAX)
        if self.receiver is not None:
            yield from self.receiver.queue_sizes()

    def _note_sent_at(self, sender: NodeId, sent_at: Instant, bound: Duration, now: Instant) -> None:
        """What comes from the future proves that the clock is behind; an exchange shows by how much."""
        behind, estimator, receiver = sent_at - bound - now, self._clock_estimator, self.receiver
        if receiver is None or (behind <= 0 and not estimator.has_proofs):
            return
        others = [member for member in receiver.formation.members if member != self.me]
        if estimator.heard(sender, behind, own=self._own_bound(), others=others, now=now):
            last_asked_at = next(reversed(self._asked), 0)
            self._report_at = min(self._report_at, max(last_asked_at + self.timing.retry_period, now + 1))
        receiver.check_clock(now, behind=estimator.behind)

    @property
    def timing(self) -> Timing:
        """The timing of its latest formation."""
        return self.receiver.formation.timing if self.receiver is not None else self.config.timing

    # Reports.

    def _send_reports(self, now: Instant) -> None:
        loops = [0, *self._loops.memberships]
        if self.config.home not in loops:
            loops.append(self.config.home)
        self._asked[now] = self.clock_bound()
        for earlier in list(self._asked)[:-REPORTS_MAX]:
            del self._asked[earlier]
        for loop in loops:
            report = self._authenticator.for_membership(self._report(loop, now))
            for reformer in self.config.reformers:
                self._effects.append(Send(reformer, [report]))
        period = self.timing.report_period
        settled = self.membership.participation in (Participation.OBSERVING, Participation.ACTIVE)
        if not settled or self._clock_estimator.doubted:
            period = min(period, 2 * self.timing.retry_period)
        self._report_at, self._report_period = now + period, period

    def _report(self, loop: int, now: Instant) -> SiteReport:
        suspect, token, reason = suspicion(self.receiver, self._loops, loop)
        in_time = self.clock_bound() <= self.timing.clock_error_max
        at_home = loop == self.config.home
        proposal = self.membership.proposal if loop == 0 else None
        return SiteReport(
            stripe=self.config.stripe,
            formation=self._number(loop),
            sender=self.me,
            loop=loop,
            membership_state=self._loops.membership_state(loop) if loop else self.membership_state,
            request=requested_membership(self.receiver, self._loops, loop, in_time=in_time)
            if at_home
            else MembershipRequest.NOTHING,
            prepared=proposal.number if proposal is not None else 0,
            incarnation=self.incarnation,
            asked_at=now,
            clock_bound=self.clock_bound(),
            complete_through=self.complete_through,
            sequence=self.next_sequence,
            settled_through=self.receiver.survives_through if self.receiver is not None else 0,
            late=self.late,
            suspect=suspect,
            suspect_token=token,
            reason=reason,
            proposal=proposal_digest(proposal) if proposal is not None else 0,
            journal=self._recovered.journal,
            deployment=self.config.deployment,
            term=self._term,
            store=self._stores[0] if self._stores else 0,
        )

    def _number(self, loop: int) -> int:
        if loop:
            return self._loops.number(loop)
        return self.receiver.formation.number if self.receiver is not None else self._recovered.number

    # Membership.

    def _receive_membership(self, datagram: bytes, now: Instant) -> None:
        kind_of(datagram)
        message = decode_membership(datagram)
        if message.stripe != self.config.stripe:
            raise Malformed("other stripe")
        refusal = self._authenticator.refusal(message, datagram, fresh=True) or self._refusal(message)
        if refusal is not None:
            self._own_counts[refusal] += 1
            return
        match message:
            case Grant():
                self._take_lease(message, now)
            case Fence():
                self._take_fence(message, now)
            case Install():
                self._take_formation(message, now)
            case CatchUp():
                self._serve_history(message)
            case HistoryChunk():
                self._take_history(message, now)
            case LoopToken():
                self._own_counts[self._loops.receive_token(message, now)] += 1
            case _:
                raise Malformed("not for a site")

    def _refusal(self, message: MembershipMessage) -> str | None:
        """Only reformation servers decide, and only those of the latest term."""
        if not isinstance(message, Grant | Fence | Install):
            return None
        if message.sender not in self.config.reformers:
            return "not_a_reformer"
        if self._stores and message.store != self._stores[0]:
            self._note_other_store(message)
            return "other_store"
        if message.term < self._term:
            return "outdated"
        self._term = message.term
        return None

    def _note_other_store(self, message: Grant | Fence | Install) -> None:
        """What another store decides is another history (decision 63, One store)."""
        known = message.store in self._stores or message.store in self._refused_stores
        if known or len(self._refused_stores) == STORES_NOTED_MAX:
            return
        self._refused_stores[message.store] = (
            f"server {message.sender} uses another formation store than the one that this site follows: it is refused;"
            " give all servers the same store"
        )
        self._effects.append(Notice(self._refused_stores[message.store]))

    def _take_lease(self, grant: Grant, now: Instant) -> None:
        receiver = self.receiver
        bound = self._asked.get(grant.asked_at)
        if receiver is None or grant.loop or bound is None:
            self._own_counts["outdated"] += 1
            return
        self._clock_estimator.exchanged(
            asked_at=grant.asked_at,
            received_at=grant.received_at,
            bound=grant.clock_bound,
            now=now,
            own=self._own_bound(),
        )
        if grant.formation == receiver.formation.number and grant.lease_period:
            excess = max(bound - receiver.formation.timing.clock_error_max, 0)
            until = grant.asked_at - excess + grant.lease_period
            receiver.renew_lease(max(receiver.granted_until, until), now)
            self._own_counts["leases"] += 1

    def _take_fence(self, fence: Fence, now: Instant) -> None:
        receiver = self.receiver
        if receiver is not None and fence.formation == receiver.formation.number and receiver.fence():
            self._own_counts["fences"] += 1
        self._report_at = now

    def _take_formation(self, install: Install, now: Instant) -> None:
        formation = decode_formation(install.layout)
        if formation.number != install.formation:
            raise Malformed("formation with another number")
        if install.final and not formation.loop:
            self._stores = formation.stores or (install.store,) * bool(install.store)
            for store in self._stores:
                self._refused_stores.pop(store, None)
        if formation.loop:
            self._enter_loop(formation, now)
        elif install.final:
            self._enter(formation, now)
        elif self.receiver is not None:
            self.receiver.prepare(formation, now)
        self._report_at = now

    def _enter(self, formation: Formation, now: Instant) -> None:
        if self.membership.uses_journal:
            self.membership.wait(formation)
            return
        receiver = self.receiver
        if receiver is None:
            self._enter_first(formation, now)
            return
        if formation.number <= receiver.formation.number:
            return
        if self._takes_over(formation, receiver):
            receiver.take_over(formation, now)
        elif receiver.agrees_with(formation):
            receiver.install(formation, now)
        else:
            self._roll_back(formation.first_token - 1, formation)
            return
        self._entered(formation)

    def _takes_over(self, formation: Formation, receiver: Receiver) -> bool:
        """Whether a formation is a planned change that takes over from the current one at a future token.

        A site that has stopped in the current one has stopped in this one, too, and reports it: without its turns the
        order would never reach the first token of this formation.
        """
        return (
            formation.first_sequence == 0
            and formation.number == receiver.formation.number + 1
            and formation.first_token > max(receiver.complete_through, receiver.formation.first_token)
        )

    def _enter_first(self, formation: Formation, now: Instant) -> None:
        """Enter the first formation since the site started, or since a rollback.

        Not one before the last of the journal: the store has lost formations, and this site reports the one it knows.
        """
        if formation.number < self._recovered.number:
            self._own_counts["outdated"] += 1
            return
        if self._recovered.number < formation.number and self._recovered.token >= formation.first_token:
            self._roll_back(formation.first_token - 1, formation)
            return
        self.receiver = Receiver(
            me=self.me,
            formation=formation,
            keys=self._keys,
            born_at=now,
            stripe=self.config.stripe,
            datagram_max=self.config.datagram_max,
            clock_bound=self.clock_bound,
            backlog=self._backlog,
            observe=self._observe,
            tracer=self._tracer,
            recovered=self._recovered,
            authenticator=self._authenticator,
            membership=self.membership,
        )
        self.receiver.sent_at_observer = self._note_sent_at
        self.receiver.unreleased_ticket = -self._own_counts["taken_back"]  # a rollback voids earlier requests
        self.receiver.pass_empty_tokens(now)
        self._entered(formation)

    def _entered(self, formation: Formation) -> None:
        self._own_counts["formations"] += 1
        role = "member" if self.membership.active else "observer"
        broken = ", after a Break" if formation.broken else ""
        self._effects.append(
            Notice(
                f"formation {formation.number} from token {formation.first_token}{broken}: "
                f"{len(formation.members)} members {formation.members}, here as {role}"
            )
        )
        self._connect_parent()

    def _roll_back(self, token: int, formation: Formation) -> None:
        """The others continued without what this site has beyond `token`: drop it from journal and memory."""
        if self.receiver is not None:
            self._effects += self.receiver.drain()
            self._effects.append(Notice(f"rolling back tokens {token + 1} to {self.complete_through}"))
            self.receiver = None
        self._catch_up_client.reader.stop()
        self._catch_up_server.forget()
        self.membership.roll_back(formation)
        self._own_counts["taken_back"] += 1
        self._effects.append(Truncate(token))

    # Secondary loops.

    def _enter_loop(self, formation: Formation, now: Instant) -> None:
        self._effects += self._loops.enter(formation, self.incarnation)
        self._connect_parent()
        self._pass_loop_tokens(now)

    def _connect_parent(self) -> None:
        if self.receiver is not None:
            self._loops.connect(self.receiver, self.config.home)

    def _pass_loop_tokens(self, now: Instant) -> None:
        suspicions = self._loops.suspicions()
        passed = self._loops.advance(self.complete_through, now)
        self._own_counts["loop_tokens_sent"] += len(passed)
        self._effects += passed
        if self._loops.suspicions() > suspicions:
            self._report_at = now
        if self.receiver is not None:
            self.receiver.repairs.needed_after = self._loops.needed_after()

    # Catching up.

    def _follow_up(self, now: Instant) -> None:
        """After every event: pass secondary tokens, report a failure at once, catch up if the ring cannot repair."""
        receiver = self.receiver
        if self._loops.memberships:
            self._pass_loop_tokens(now)
        if receiver is None:
            return
        if receiver.reforming is not self._reported:
            self._reported, self._report_at = receiver.reforming, now
        if receiver.suspect != self._suspected:
            self._suspected, self._report_at = receiver.suspect, now
        if receiver.keys_missing:
            self._catch_up_client.reader.stop()  # it could not read the answers
        else:
            self._catch_up_client.follow(receiver, now)

    def _serve_history(self, request: CatchUp) -> None:
        fetch = self._catch_up_server.start_read(request) if self.receiver is not None else None
        if fetch is None:
            self._own_counts["over_limit"] += 1
        else:
            self._effects.append(fetch)

    def _take_history(self, history: HistoryChunk, now: Instant) -> None:
        receiver = self.receiver
        if receiver is None:
            return
        try:
            self._own_counts[self._catch_up_client.take(history, receiver, now)] += 1
        except Disagreement as disagreement:
            self._roll_back(disagreement.token, receiver.formation)
