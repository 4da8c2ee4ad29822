"""A site (R_P or R_S) of a deployment that heals: a receiver, and what it owes to the reformation servers.

The receiver orders and releases. Around it the site says how it stands and gets its lease, stops when it is fenced,
enters the formations that it is told to, passes the tokens of secondary loops, and catches up from another site's
journal, or lets others catch up from its own. What the journal holds beyond what the others agreed on is taken back
(decision 21, Where a formation resumes) before the site goes on.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fairtape.core.clock_bound import ClockBoundEstimator
from fairtape.core.effects import (
    LOOP_CHANNEL,
    Deliver,
    Effect,
    Fetch,
    JoinChannels,
    Multicast,
    Notice,
    Ordered,
    Reason,
    Recovered,
    Report,
    Send,
    Truncate,
)
from fairtape.core.entries import decode_entry
from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.nodes.catchup import CatchUpClient, CatchUpServer
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.reconfigurable_receiver import Disagreement, ReconfigurableReceiver
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import decode_formation
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
    is_membership,
)
from fairtape.wire.seals import Keys

# How a site stands: where it belongs, whom it suspects, and what it wants of the reformation servers.

REASONS: Final = tuple(Reason)  # a reason crosses the wire as its place in this list, from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteConfig:
    """Where a site belongs, and whom it answers to."""

    me: NodeId
    reformers: tuple[NodeId, ...]
    timing: Timing  # until a formation brings its own
    home: int = 0  # the loop that it is meant to be a member of
    durable: bool = True  # the journal survives whatever the site survives: it may answer for what it proves
    stripe: int = 0
    datagram_max: int = DATAGRAM_MAX


def suspicion(receiver: ReconfigurableReceiver | None, loops: "LoopMemberships", loop: int) -> tuple[NodeId, int, int]:
    """Whom this site suspects in a loop, at which token, and why; zeros where nobody."""
    suspected = loops.suspicion(loop)
    if not loop and receiver is not None and receiver.reforming is not None:
        report = receiver.reforming
        suspected = report.suspect, report.token, report.reason
    if suspected is None:
        return 0, 0, 0
    site, token, reason = suspected
    return site, token, REASONS.index(reason) + 1


def requested_membership(
    receiver: ReconfigurableReceiver | None, loops: "LoopMemberships", loop: int, *, in_time: bool
) -> MembershipRequest:
    """A site whose clock is good and that is up to date wants in; one whose clock is not wants out."""
    if receiver is None:
        return MembershipRequest.NOTHING
    if loop in loops.memberships if loop else receiver.active:
        return MembershipRequest.NOTHING if in_time else MembershipRequest.WITHDRAW
    return MembershipRequest.JOIN if in_time and not receiver.stranded else MembershipRequest.NOTHING


# A site's seats in secondary loops: in its own, and in those that it joins to the loop above.


class LoopMemberships:
    """The latest formation of each secondary loop that concerns a site, and its part in it."""

    def __init__(self, *, me: NodeId, stripe: int, authenticator: MessageAuthenticator) -> None:
        self.memberships: dict[int, SecondaryLoop] = {}  # loops that this site is a member of
        self._me = me
        self._stripe = stripe
        self._authenticator = authenticator
        self._formations: dict[int, Formation] = {}

    def enter(self, formation: Formation, incarnation: int) -> list[Effect]:
        """A new layout of a loop."""
        if formation.number <= self.number(formation.loop):
            return []
        self._formations[formation.loop] = formation
        self.memberships.pop(formation.loop, None)
        if formation.has_member(self._me, incarnation):
            self.memberships[formation.loop] = SecondaryLoop(formation, me=self._me)
        return [JoinChannels(tuple(LOOP_CHANNEL + loop for loop in self.memberships))]

    def receive_token(self, message: LoopToken, now: Instant) -> str:
        """Another member has passed a token on; the name of what that means."""
        membership = self.memberships.get(message.loop)
        if membership is None or membership.formation.number != message.formation:
            return "foreign"
        return membership.receive_token(message.token, message.sender, now)

    def advance(self, complete_through: int, now: Instant) -> list[Effect]:
        """This site holds everything up to a primary token: pass on what waits for that."""
        effects: list[Effect] = []
        for loop, membership in self.memberships.items():
            for token in membership.advance(complete_through, now):
                passed = LoopToken(self._stripe, membership.formation.number, self._me, loop, token)
                effects.append(Multicast(LOOP_CHANNEL + loop, [self._authenticator.for_membership(passed)]))
        return effects

    def deadline(self) -> Instant:
        """When to repeat a token, or to give it up."""
        return min((membership.deadline() for membership in self.memberships.values()), default=NEVER)

    def number(self, loop: int) -> int:
        """Of the latest formation of a loop; 0: none is known."""
        return self._formations[loop].number if loop in self._formations else 0

    def membership_state(self, loop: int) -> MembershipState:
        """What this site does in a loop."""
        return MembershipState.MEMBER if loop in self.memberships else MembershipState.OBSERVER

    def suspicion(self, loop: int) -> tuple[NodeId, int, Reason] | None:
        """Whom this site suspects in a loop, and at which token."""
        return self.memberships[loop].suspicion if loop in self.memberships else None

    def suspicions(self) -> int:
        """In how many loops it suspects somebody."""
        return sum(membership.suspicion is not None for membership in self.memberships.values())

    def connect(self, receiver: ReconfigurableReceiver, home: int) -> None:
        """Tell the receiver whom to ask for repairs, the junction of its own loop (2001 §4.1), and who asks it."""
        formation = self._formations.get(home)
        others = [member for member in receiver.formation.members if member != self._me]
        if formation is not None and formation.junction != self._me:
            others.insert(0, formation.junction)
        receiver.parent = others[0] if others else None
        receiver.repairs.home = (
            self.memberships[home].formation if home in self.memberships and not receiver.active else None
        )
        receiver.repairs.children = tuple(
            membership.formation
            for membership in self.memberships.values()
            if membership.formation.junction == self._me
        )

    def needed_after(self) -> int | None:
        """What those who ask this site for repairs are known to hold; None where nobody does."""
        children = [
            membership.stable_through
            for membership in self.memberships.values()
            if membership.formation.junction == self._me
        ]
        return min(children, default=None)


ASKED_MAX: Final = 16  # questions for a lease that may still be answered
UNRELEASED_READ_SIZE: Final = 1 << 20  # bytes of the own journal that are read at once


class Site:
    """One incarnation of one site."""

    def __init__(
        self,
        config: SiteConfig,
        *,
        keys: Keys,
        born_at: Instant,
        past: Recovered,
        clock_bound: Callable[[], Duration] = lambda: 0,
        observe: TransitionObserver | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.config = config
        self.me = config.me
        self.incarnation = born_at // 1_000 & 0xFFFF_FFFF
        self.receiver: ReconfigurableReceiver | None = None
        self.late = 0
        self._own_counts: Counter[str] = Counter()
        self._keys = keys
        self._born_at = born_at
        self._observe = observe
        self._tracer = tracer
        self._own_bound = clock_bound
        self._clock_estimator = ClockBoundEstimator()
        self._authenticator = MessageAuthenticator(me=config.me, keys=keys, peers=keys.sites, first_serial=born_at)
        self._effects: list[Effect] = []
        self._term = 0
        self._past = past
        self._unreleased: list[Ordered] = []
        self._busy_with_journal = False  # it reads or cuts the journal, and installs nothing meanwhile
        self._pending: Formation | None = None  # what to install when that is done
        self._prepared: Formation | None = None
        self._loops = LoopMemberships(me=config.me, stripe=config.stripe, authenticator=self._authenticator)
        self._catch_up_client = CatchUpClient(me=config.me, stripe=config.stripe, authenticator=self._authenticator)
        self._catch_up_server = CatchUpServer(
            me=config.me, authenticator=self._authenticator, datagram_max=config.datagram_max
        )
        self._report_at: Instant = born_at
        self._reported: Report | None = None  # the failure that the last standing spoke of
        self._asked: dict[Instant, Duration] = {}  # the latest questions for a lease, and the clock's bound at each
        self._read_unreleased()

    # The contract.

    def receive(self, datagram: bytes, now: Instant) -> None:
        """Take one datagram. Whatever it is, it is counted; what is wrong changes nothing."""
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
        """Take what one turn brought."""
        if self.receiver is None or self.receiver.far_behind or not all(map(is_block, datagrams)):
            for datagram in datagrams:
                self.receive(datagram, now)
        else:
            self._check_clock(now)
            self.receiver.receive_all(datagrams, now)

    def wake(self, now: Instant) -> None:
        """Let the receiver do what is due, then everything around it."""
        self._check_clock(now)
        if self.receiver is not None:
            deadline = self.receiver.deadline()
            if deadline is not None and deadline <= now:
                self.receiver.wake(now)
        self._follow_up(now)
        if self._report_at <= now:
            self._send_reports(now)
        if self._catch_up_client.reader.ask_at <= now:
            self._own_counts["past_asked"] += 1
            self._effects += self._catch_up_client.ask(self.receiver, now) if self.receiver is not None else []

    def _check_clock(self, now: Instant) -> None:
        """What the clock can be trusted with may have changed; and one that was set back must not silence the site."""
        if self.receiver is not None:
            self.receiver.check_clock(now)
        if self._report_at - now > self.timing.report_period:
            self._report_at = now
        self._catch_up_client.reader.check_clock(now)

    def deadline(self) -> Instant | None:
        """The one timer."""
        earliest = min(self._report_at, self._catch_up_client.reader.ask_at)
        earliest = min(earliest, self._loops.deadline())
        if self.receiver is not None:
            wanted_at = self.receiver.deadline()
            earliest = earliest if wanted_at is None else min(earliest, wanted_at)
        return None if earliest == NEVER else earliest

    def drain(self) -> list[Effect]:
        """Hand over the effects."""
        effects, self._effects = self._effects, []
        if self.receiver is not None:
            effects += self.receiver.drain()
        self.late += sum(each.release.count for each in effects if isinstance(each, Deliver) and each.release.late)
        return effects

    # What the driver brings.

    def fetched(self, ticket: int, entries: Sequence[bytes], now: Instant) -> None:
        """What the journal holds after the position that a `Fetch` named."""
        if ticket == 0:
            self._unreleased += [entry for entry in map(decode_entry, entries) if isinstance(entry, Ordered)]
            self._read_unreleased(now, exhausted=not entries)
            return
        if self.receiver is not None:
            self._own_counts["past_served"] += 1
            self._effects += self._catch_up_server.answer(ticket, entries, self.receiver)

    def recovered(self, past: Recovered, now: Instant) -> None:
        """The journal has been cut."""
        self._past = past
        self._unreleased.clear()
        self._read_unreleased(now)

    def _read_unreleased(self, now: Instant | None = None, *, exhausted: bool = False) -> None:
        """Read again what the journal has and was never released: it must be, before anything that follows it."""
        through = self._unreleased[-1].token if self._unreleased else self._past.released_through
        self._busy_with_journal = through < self._past.token and not exhausted
        if self._busy_with_journal:
            self._effects.append(Fetch(through, None, UNRELEASED_READ_SIZE, 0))
        elif self._pending is not None and now is not None:
            pending, self._pending = self._pending, None
            self._enter(pending, now)

    # What others may know.

    @property
    def counts(self) -> Counter[str]:
        """What became of all datagrams."""
        return self._own_counts + self.receiver.counts if self.receiver is not None else self._own_counts

    @property
    def formation(self) -> Formation | None:
        """The latest one of the primary loop."""
        return self.receiver.formation if self.receiver is not None else None

    @property
    def complete_through(self) -> int:
        """The highest token up to which everything is held."""
        return self.receiver.complete_through if self.receiver is not None else self._past.token

    @property
    def next_sequence(self) -> int:
        """The number that the next message in the order will have."""
        return self.receiver.next_sequence if self.receiver is not None else self._past.sequence

    @property
    def membership_state(self) -> MembershipState:
        """What it does in its latest formation."""
        receiver = self.receiver
        if receiver is None:
            return MembershipState.NEWBORN
        if receiver.fenced:
            return MembershipState.FENCED
        if receiver.active:
            return MembershipState.MEMBER
        lost_memory = self.me in receiver.formation.members and self.config.durable
        return MembershipState.RESTARTED if lost_memory else MembershipState.OBSERVER

    @property
    def secondary_loops(self) -> dict[int, SecondaryLoop]:
        """The secondary loops that it is a member of."""
        return self._loops.memberships

    def clock_bound(self) -> Duration:
        """How wrong this site's clock may be."""
        return self._clock_estimator.bound(self._own_bound())

    @property
    def timing(self) -> Timing:
        """Of its latest formation."""
        return self.receiver.formation.timing if self.receiver is not None else self.config.timing

    # Standing.

    def _send_reports(self, now: Instant) -> None:
        loops = [0, *self._loops.memberships]
        if self.config.home not in loops:
            loops.append(self.config.home)
        self._asked[now] = self.clock_bound()
        for earlier in list(self._asked)[:-ASKED_MAX]:
            del self._asked[earlier]
        for loop in loops:
            report = self._authenticator.for_membership(self._report(loop, now))
            for reformer in self.config.reformers:
                self._effects.append(Send(reformer, [report]))
        period = self.timing.report_period
        if self.receiver is None or self.receiver.reforming or self.receiver.fenced or self._prepared:
            period = min(period, 2 * self.timing.retry_period)
        self._report_at = now + period

    def _report(self, loop: int, now: Instant) -> SiteReport:
        suspect, token, reason = suspicion(self.receiver, self._loops, loop)
        in_time = self.clock_bound() <= self.timing.clock_error_max
        at_home = loop == self.config.home
        return SiteReport(
            stripe=self.config.stripe,
            formation=self._number(loop),
            sender=self.me,
            loop=loop,
            membership_state=self._loops.membership_state(loop) if loop else self.membership_state,
            request=requested_membership(self.receiver, self._loops, loop, in_time=in_time)
            if at_home
            else MembershipRequest.NOTHING,
            prepared=self._prepared.number if self._prepared is not None and loop == 0 else 0,
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
        )

    def _number(self, loop: int) -> int:
        if loop:
            return self._loops.number(loop)
        return self.receiver.formation.number if self.receiver is not None else self._past.number

    # Governance.

    def _receive_membership(self, datagram: bytes, now: Instant) -> None:
        kind_of(datagram)
        message = decode_membership(datagram)
        if message.stripe != self.config.stripe:
            raise Malformed("another stripe")
        verdict = self._authenticator.verdict(message, datagram, fresh=True) or self._refusal(message)
        if verdict is not None:
            self._own_counts[verdict] += 1
            return
        match message:
            case Grant():
                self._take_lease(message, now)
            case Fence():
                self._take_fence(message, now)
            case Install():
                self._take_formation(message, now)
            case CatchUp():
                self._serve(message)
            case HistoryChunk():
                self._take_history(message, now)
            case LoopToken():
                self._own_counts[self._loops.receive_token(message, now)] += 1
            case _:
                raise Malformed("not for a site")

    def _refusal(self, message: MembershipMessage) -> str | None:
        """Only reformation servers govern, and only the latest one that was heard of."""
        if not isinstance(message, Grant | Fence | Install):
            return None
        if message.sender not in self.config.reformers:
            return "not_a_reformer"
        if message.term < self._term:
            return "outdated"
        self._term = message.term
        return None

    def _take_lease(self, grant: Grant, now: Instant) -> None:
        receiver = self.receiver
        bound = self._asked.get(grant.asked_at)
        if receiver is None or grant.loop or bound is None:
            self._own_counts["outdated"] += 1
            return
        self._clock_estimator.exchanged(
            asked_at=grant.asked_at, received_at=grant.received_at, bound=grant.clock_bound, now=now
        )
        if grant.formation == receiver.formation.number and grant.lease_period:
            excess = max(bound - receiver.formation.timing.clock_error_max, 0)
            until = grant.asked_at - excess + grant.lease_period
            receiver.renew_lease(max(receiver.granted_until, until), now)
            self._own_counts["leases"] += 1

    def _take_fence(self, fence: Fence, now: Instant) -> None:
        receiver = self.receiver
        if receiver is not None and fence.formation == receiver.formation.number and receiver.has_turns:
            receiver.fence()
            self._prepared = None
            self._own_counts["fences"] += 1
        self._report_at = now

    def _take_formation(self, install: Install, now: Instant) -> None:
        formation = decode_formation(install.layout)
        if formation.number != install.formation:
            raise Malformed("a formation under another number")
        if formation.loop:
            self._enter_loop(formation, now)
        elif install.final:
            self._enter(formation, now)
        else:
            self._prepare(formation)
        self._report_at = now

    def _prepare(self, formation: Formation) -> None:
        """Be ready for a formation that takes over at a token to come: from there on, do nothing in the present one."""
        receiver = self.receiver
        if receiver is None or formation.number != receiver.formation.number + 1:
            return
        if receiver.fenced or receiver.reforming is not None:
            return
        if receiver.active and receiver.complete_through >= formation.first_token - 1:
            return  # it is too late for that one
        self._prepared = formation
        receiver.hold_back_at(formation.first_token)

    def _enter(self, formation: Formation, now: Instant) -> None:
        if self._busy_with_journal:
            self._pending = formation
            return
        receiver = self.receiver
        if receiver is None:
            self._enter_first(formation, now)
            return
        if formation.number <= receiver.formation.number:
            return
        active = formation.has_member(self.me, self.incarnation)
        if self._takes_over(formation, receiver):
            receiver.take_over(formation, now, active=active)
        elif receiver.agrees_with(formation):
            receiver.install(formation, now, active=active)
        else:
            self._roll_back(formation.first_token - 1, formation)
            return
        self._entered(formation)

    def _takes_over(self, formation: Formation, receiver: ReconfigurableReceiver) -> bool:
        """Whether it takes over from the present one in its course.

        A site that has stopped in the present one has stopped in this one, too, and says so: what it does not help to
        complete would never come to where this one begins.
        """
        return (
            formation.first_sequence == 0
            and formation.number == receiver.formation.number + 1
            and formation.first_token > max(receiver.complete_through, receiver.formation.first_token)
        )

    def _enter_first(self, formation: Formation, now: Instant) -> None:
        """The first formation since the site was born, or since it had to take something back."""
        if self._past.number < formation.number and self._past.token >= formation.first_token:
            self._roll_back(formation.first_token - 1, formation)
            return
        self.receiver = ReconfigurableReceiver(
            me=self.me,
            formation=formation,
            keys=self._keys,
            born_at=now,
            stripe=self.config.stripe,
            datagram_max=self.config.datagram_max,
            clock_bound=self.clock_bound,
            observe=self._observe,
            tracer=self._tracer,
            past=self._past,
            active=formation.has_member(self.me, self.incarnation),
            authenticator=self._authenticator,
        )
        for ordered in self._unreleased:
            self.receiver.restore_unreleased(ordered)
        self._unreleased.clear()
        self.receiver.pass_empty_tokens(now)
        self._entered(formation)

    def _entered(self, formation: Formation) -> None:
        self._prepared = None
        self._own_counts["formations"] += 1
        role = "member" if self.receiver is not None and self.receiver.active else "observer"
        broken = ", after a Break" if formation.broken else ""
        self._effects.append(
            Notice(
                f"formation {formation.number} from token {formation.first_token}{broken}: "
                f"{len(formation.members)} members {formation.members}, here as {role}"
            )
        )
        self._connect_parent()

    def _roll_back(self, token: int, formation: Formation) -> None:
        """The others went on without what this site has beyond `token`: it goes, from the journal and from memory."""
        if self.receiver is not None:
            self._effects += self.receiver.drain()
            self._effects.append(Notice(f"taking back tokens {token + 1} to {self.complete_through}"))
            self.receiver = None
        self._catch_up_client.reader.stop()
        self._busy_with_journal = True
        self._pending = formation
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
            self.receiver.needed_after = self._loops.needed_after()

    # The past.

    def _follow_up(self, now: Instant) -> None:
        """After anything happened: pass secondary tokens, report at once, catch up where the ring cannot help."""
        receiver = self.receiver
        if self._loops.memberships:
            self._pass_loop_tokens(now)
        if receiver is None:
            return
        if receiver.reforming is not self._reported:
            self._reported, self._report_at = receiver.reforming, now
        self._catch_up_client.follow(receiver, now)

    def _serve(self, question: CatchUp) -> None:
        reading = self._catch_up_server.start_read(question) if self.receiver is not None else None
        if reading is None:
            self._own_counts["over_limit"] += 1
        else:
            self._effects.append(reading)

    def _take_history(self, past: HistoryChunk, now: Instant) -> None:
        receiver = self.receiver
        if receiver is None:
            return
        try:
            self._own_counts[self._catch_up_client.take(past, receiver, now)] += 1
        except Disagreement as disagreement:
            self._roll_back(disagreement.token, receiver.formation)
