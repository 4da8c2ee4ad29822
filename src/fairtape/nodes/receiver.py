"""The receiver (R_P, R_S): one site of a token loop, composed from the machines of the ring.

A receiver asks its `Membership` what it may do. In a ring without reformation servers the membership is fixed: the
receiver stays in one formation, and a failure ends it. In a deployment reformation servers decide the formations. A
site that is *active* in a formation takes its turns as token site (R_P). One that is not follows the same order and
requests repairs from a parent (R_S, and sites about to join); it never acknowledges and suspects no site. Both need a
lease to act. What the ring cannot repair comes from another site's journal, entry by entry, and is *adopted*.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from fairtape.core.effects import (
    Append,
    AppendFormation,
    Channel,
    Effect,
    FormationChange,
    Multicast,
    Notice,
    Ordered,
    Reason,
    Recovered,
    Report,
    Send,
)
from fairtape.core.entries import Entry, Position
from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.core.queue_sizes import QueueSize
from fairtape.nodes.journal_position import JournalPosition
from fairtape.nodes.membership import Membership
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.source_replies import SourceReplies
from fairtape.ring.load import LAG_TARGET, LoadReports, SiteLoad
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.membership.layout import decode_formation
from fairtape.ring.receiver.ack_lateness import AckLateness
from fairtape.ring.receiver.ack_timeout import AckTimeout
from fairtape.ring.receiver.ordering import TOKENS_AHEAD_MAX, Breach, Ordering
from fairtape.ring.receiver.receive_buffer import HELD_BLOCKS_MAX, STREAMS_MAX, KeyMissing, ReceiveBuffer, StreamKey
from fairtape.ring.receiver.recovery import RECOVERIES_MAX, Recoveries, TransitionObserver, combine_requests
from fairtape.ring.receiver.recovery_tables import State
from fairtape.ring.receiver.release import HELD_MAX, ReleaseQueue
from fairtape.ring.receiver.repair import RepairRequests
from fairtape.ring.receiver.resilience import Resilience
from fairtape.ring.receiver.token import EventToken, TokenPassing, TokenRefused, ranges_max, token_for, write_acks
from fairtape.ring.receiver.tracing import TraceCalls, Tracer
from fairtape.wire.frames import (
    DATAGRAM_MAX,
    Ack,
    BlockFrame,
    Malformed,
    NodeId,
    Request,
    TokenAck,
    decode_block,
    decode_control,
    is_block,
    kind_of,
)
from fairtape.wire.seals import Keys

SentAtObserver: TypeAlias = Callable[[NodeId, Instant, Duration, Instant], None]
"""Called with the sender of a datagram, when it was sent, the bound of its sender's clock, and the present time."""


class JoinedTooLate(ValueError):
    """A site may join a formation only before its first token (decision 17, No second first token).

    One that joins later, or restarts without its memory, could send a second, different Ack(e).
    """


class Receiver:
    """Holds blocks, takes its turn as token site, recovers what it missed, and releases on time."""

    def __init__(
        self,
        *,
        me: NodeId,
        formation: Formation,
        keys: Keys,
        born_at: Instant,
        stripe: int = 0,
        datagram_max: int = DATAGRAM_MAX,
        clock_bound: Callable[[], Duration] = lambda: 0,
        backlog: Callable[[], Duration] = lambda: 0,
        observe: TransitionObserver | None = None,
        tracer: Tracer | None = None,
        recovered: Recovered | None = None,
        authenticator: MessageAuthenticator | None = None,
        membership: Membership | None = None,
    ) -> None:
        """Without `membership` it is fixed: the receiver stays in this formation."""
        membership = Membership.fixed(me) if membership is None else membership
        if not membership.changes and born_at > formation.starts_at:
            raise JoinedTooLate(
                f"site {me} started {(born_at - formation.starts_at) / 1e9:.3f} s after formation "
                f"{formation.number}; it must join a later one"
            )
        if recovered is None:
            recovered = Recovered.nothing(formation.first_token, formation.first_sequence, number=formation.number)
        self.me = me
        self.membership = membership
        self.counts: Counter[str] = Counter()
        self.keys_missing: set[NodeId] = set()  # the sources whose messages it would have to read, and cannot
        self._stripe = stripe
        self._datagram_max = datagram_max
        self._clock_bound = clock_bound
        self._backlog = backlog
        self._effects: list[Effect] = []
        self._observe = observe
        self._formations = FormationHistory(formation)
        self._authenticator = authenticator or MessageAuthenticator(
            me=me, keys=keys, peers=keys.sites, first_serial=born_at
        )
        self._buffer = ReceiveBuffer(keys=keys, stripe=stripe)
        self._buffer.recover(recovered.streams)
        self._ordering = Ordering(
            formations=self._formations,
            stripe=stripe,
            buffer=self._buffer,
            after=recovered.token,
            next_sequence=recovered.sequence,
        )
        self.repairs = RepairRequests(me=me, ordering=self._ordering)
        self._sources = SourceReplies(me=me, authenticator=self._authenticator, ordering=self._ordering)
        self._passing = TokenPassing(me=me, ordering=self._ordering, authenticated=self._authenticator.for_sites)
        self._releases = ReleaseQueue(self._formations, after=recovered.released_through, clock_bound=clock_bound)
        self._lateness = AckLateness()
        self._traces = TraceCalls(tracer, formations=self._formations, ordering=self._ordering, clock_bound=clock_bound)
        self._blocks_pending = False  # new blocks may complete a token
        self._timer: Instant | None = None  # the earliest deadline; None: unknown. A block alone never changes it
        self.sent_at_observer: SentAtObserver | None = None
        self._journal = JournalPosition(recovered.number, recovered.token, stripe=stripe)
        self._enter_first(formation, recovered, born_at)

    def _enter_first(self, formation: Formation, recovered: Recovered, now: Instant) -> None:
        membership = self.membership
        membership.enter_first(formation, self._ordering, recovered)
        assert membership.changes or membership.active
        self._begin(formation, now)
        if recovered.layout is not None:
            self._formations.note(decode_formation(recovered.layout))
        if membership.changes:
            self._releases.held_max = HELD_MAX
            self._releases.continue_unread(recovered.token)
            self._releases.require_lease()
        self._releases.unverified = not self.membership.verified

    def _begin(self, formation: Formation, now: Instant) -> None:
        """Start working in a formation: create the state that belongs to one formation."""
        self._resilience = Resilience(self._formations)
        self._loads = LoadReports()
        self._token = token_for(self._formations, self._buffer)
        self._recoveries = Recoveries(
            timing=formation.timing, timed=formation.timed, tokens=self._ordering, observe=self._observe
        )
        self._recoveries.hold_back = self.repairs.hold_back
        self._ack_timeout = AckTimeout(
            formations=self._formations,
            ordering=self._ordering,
            resilience=self._resilience,
            recoveries=self._recoveries,
            lateness=self._lateness,
            is_mine=self._is_mine,
        )
        self._recoveries.requests_from = self._ack_timeout.requests_from
        self._timer = None
        self._traces.begin(now)
        self._accept_token_if_mine(now)

    # The contract.

    def receive(self, datagram: bytes, now: Instant) -> None:
        """Process one datagram. Every datagram is counted; a malformed one changes nothing."""
        try:
            if is_block(datagram):
                self._receive_block(datagram, now)
            else:
                self._receive_control(datagram, now)
        except Malformed:
            self.counts["malformed"] += 1

    def receive_all(self, datagrams: Sequence[bytes], now: Instant) -> None:
        """Process a batch: runs of consecutive blocks on a fast path, everything else one by one."""
        if len(datagrams) == 1:
            self.receive(datagrams[0], now)
            return
        position = 0
        while position < len(datagrams):
            taken = self._buffer.accept_run(datagrams, position, self._datagram_max)
            if taken:
                self.counts["block"] += taken
                self._note_blocks()
            else:
                self.receive(datagrams[position], now)
            position += taken or 1

    def advance(self, now: Instant) -> None:
        """Release and acknowledge what is due, before what has arrived is read.

        Blocks that were read may have completed a token, and it may be this site's turn then.
        """
        self._timer = None
        self._ack_timeout.note_time(now)
        if self._blocks_pending:
            self._completes_tokens(now)
        self._advance(now)

    def wake(self, now: Instant) -> None:
        """Handle overdue acknowledgments and expired waits, take the turn, release, and send requests."""
        if self._blocks_pending and not self._completes_tokens(now) and self._formations.latest.timed:
            deadline = self.deadline()
            if deadline is None or deadline > now:
                return
        self._timer = None
        if not self._stopped:
            if self.membership.watches_acks:
                self._ack_timeout.start_overdue(now)
            self._recoveries.wake(now)
            self._repeat_pass(now)
            if self._sources.holes_due_at <= now:
                self._ask_for_holes(now)
        self._advance(now)
        self._send_requests(now)

    def _completes_tokens(self, now: Instant) -> bool:
        """Whether the new blocks complete a token."""
        self._blocks_pending = False
        completed = self._recoveries.messages_arrived(now)
        for token in completed:
            self._complete(token, now)
        return bool(completed)

    def deadline(self) -> Instant | None:
        if self._blocks_pending:
            return 0
        if self._timer is None:
            self._timer = self._earliest()
        return None if self._timer == NEVER else self._timer

    def drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def _earliest(self) -> Instant:
        earliest = self._releases.deadline()
        if self._stopped:
            return earliest
        earliest = min(earliest, self._recoveries.deadline(), self._ack_due_at(), self._sources.holes_due_at)
        if self.membership.watches_acks:
            earliest = min(earliest, self._ack_timeout.deadline())
        if isinstance(self._token, EventToken):
            earliest = min(earliest, self._token.repeat_at())
        return earliest

    # State.

    @property
    def formation(self) -> Formation:
        """The latest formation."""
        return self._formations.latest

    @property
    def reforming(self) -> Report | None:
        """The failure that this site has declared in this formation."""
        return self.membership.report

    @property
    def position(self) -> Position:
        """The position of this site in the order: the last formation in its journal, and the last token."""
        return Position(self._journal.number, self.complete_through)

    @property
    def journal_end(self) -> Position:
        """The position of the last entry with messages."""
        return self._journal.end

    @property
    def highest_ack(self) -> int:
        """The highest token of which an acknowledgment was received."""
        return self._resilience.highest_ack

    @property
    def complete_through(self) -> int:
        """The highest token up to which everything is held."""
        return self._ordering.complete_through

    def holds_block(self, stream: StreamKey, first: int, datagram: bytes) -> bool:
        """Whether it holds this block of a stream, as this datagram."""
        known = self._buffer.find(stream)
        held = None if known is None else known.find(first)
        return held is not None and held[2] == datagram

    def formation_numbered(self, number: int) -> Formation | None:
        """The formation with this number; None if it is not remembered."""
        return self._formations.numbered(number)

    def queue_sizes(self) -> Iterator[QueueSize]:
        """The sizes of its queues, and their limits."""
        blocks, incarnations = self._buffer.sizes
        yield QueueSize("blocks of one stream", blocks, HELD_BLOCKS_MAX + 1)  # and the one that closes a hole
        yield QueueSize("incarnations of one source", incarnations, 2 * STREAMS_MAX)  # those that were named as well
        yield QueueSize("acknowledgments ahead", self._ordering.ahead, TOKENS_AHEAD_MAX)
        yield QueueSize("recoveries", len(self._recoveries), RECOVERIES_MAX)
        yield from self._releases.queue_sizes()

    @property
    def suspect(self) -> tuple[NodeId, int] | None:
        """The site that does not acknowledge, and its token, before a failure is declared (decision 72, Suspicion)."""
        token = self._recoveries.suspected_at
        if token is None or not self.membership.active or self._releases.clock_untrusted:
            return None
        return self._formations.holder(token), token

    @property
    def slowest_member(self) -> tuple[NodeId, SiteLoad] | None:
        """The other member that slows the sources, by what it reports of itself; None: no one does."""
        return self._loads.slowest(self._formations.latest.timing.token_period)

    @property
    def stable_through(self) -> int:
        """The highest token up to which all members are known to hold everything; 0: none.

        Only what acknowledgments prove: members of a new formation may still be catching up.
        """
        stable_through = self._resilience.stable_through
        return stable_through if stable_through > self.membership.fixed_through else 0

    @property
    def survives_through(self) -> int:
        """The highest token up to which K + 1 sites are known to hold everything."""
        return self._resilience.survives_through

    @property
    def released_through(self) -> int:
        """The highest token committed here."""
        return self._releases.released_through

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next message."""
        return self._ordering.next_sequence

    @property
    def lease_until(self) -> Instant:
        """When the right to acknowledge and to commit ends."""
        return self._releases.lease_until

    @property
    def granted_until(self) -> Instant:
        """The end of the lease for a clock within its error bound."""
        return self._releases.granted_until

    @property
    def far_behind(self) -> bool:
        """Whether it drops what the ring sends now: too far behind (decision 31, Far behind), or unable to read it."""
        return self.membership.far_behind or (bool(self.keys_missing) and not self.membership.active)

    @property
    def _stopped(self) -> bool:
        """Whether it takes nothing into the order and acknowledges nothing."""
        return self.membership.stopped or bool(self.keys_missing)

    # Decisions of reformation servers.

    def renew_lease(self, until: Instant, now: Instant) -> None:
        self._timer = None
        self._releases.renew_lease(until, now)
        self._advance(now)

    def check_clock(self, now: Instant, *, behind: Duration = 0) -> None:
        """A clock error bound above `clock_error_max` shortens the lease and stops releases.

        A release is late by what the clock is proved to be `behind`.
        """
        self._releases.clock_behind = behind
        excess = max(self._clock_bound() - self.formation.timing.clock_error_max, 0)
        if self._releases.set_clock_excess(excess, now):
            self._timer = None

    def fence(self) -> bool:
        """Stop: the site reports what is complete now (decision 21, Where a formation resumes).

        Returns whether that concerns this site.
        """
        if not self.membership.fence():
            return False
        self._timer = None
        self._recoveries.stop()
        return True

    def prepare(self, formation: Formation, now: Instant) -> None:
        """Take no turn from the first token of a proposed formation on: it takes over there.

        It may replace a proposal with an earlier first token, so that the present turn is this site's again.
        """
        if not self.membership.prepare(formation):
            return
        if self._token.held is not None and self._token.held >= formation.first_token:
            self._token.held = None
        self._timer = None
        self._accept_token_if_mine(now)
        self._advance(now)

    def agrees_with(self, formation: Formation) -> bool:
        """Whether the order here can precede this formation. If not, a part must be rolled back."""
        return self._journal.agrees_with(formation, self._ordering)

    def take_over(self, formation: Formation, now: Instant) -> None:
        """A planned change: this formation takes over at a future token, without a stop."""
        self._timer = None
        self.membership.take_over(formation)
        self._formations.take_over(formation)
        self._recoveries.timing = formation.timing
        self._accept_token_if_mine(now)
        self._advance(now)

    def install(self, formation: Formation, now: Instant) -> None:
        """A reformation: leave the current formation where it was fenced, and continue in this one."""
        assert self.agrees_with(formation)
        self.membership.enter(formation)
        self._releases.unverified = not self.membership.verified
        self._ordering.forget_unordered()
        self._ordering.drop_through(self.complete_through)
        self._formations.restart(formation)
        survives_through = self._resilience.survives_through
        if self._journal.reached < formation.number:
            survives_through = min(survives_through, formation.first_token - 1)
        self._begin(formation, now)
        self._resilience.learn(survives_through)
        self._advance(now)
        self.pass_empty_tokens(now)

    def pass_empty_tokens(self, now: Instant) -> None:
        """Skip empty tokens before a formation, if all sequence numbers before its first one are held.

        Journals have no empty tokens, so a restarted site, and those that ask it, could not learn of them otherwise.
        """
        fixed_through = self.membership.fixed_through
        if not self.membership.verified or self._journal.pending_change is not None:
            return
        if self.complete_through >= fixed_through:
            return
        if self.next_sequence == self._formations.of(self._formations.begins_at).first_sequence:
            self.catch_up_to(fixed_through, 0, now)

    # What comes from journals.

    def verify(self, now: Instant) -> None:
        """A site that knows the latest formation confirms that nothing here contradicts it."""
        if self.membership.agreement.confirm():
            self._releases.verify(now)
            self.pass_empty_tokens(now)
        self._timer = None

    def compare(self, complete_through: int) -> None:
        """Another site holds everything up to this token: compare, and note whether this site has caught up."""
        if self.membership.agreement.measure(complete_through):
            self._ordering.forget_unordered()
            self._buffer.forget_unordered()
            self._recoveries.stop()
        if self.membership.agreement.compare(complete_through):
            self._timer = None

    def adopt(self, entry: Entry) -> None:
        """Take the next entry of another site's journal.

        Raises `Malformed` if it does not continue the order, `Disagreement` if the others abandoned a part of ours.
        """
        self._timer = None
        if isinstance(entry, FormationChange):
            self._journal.check_change(entry, self._ordering)
            self._formations.note(decode_formation(entry.layout))
            self._journal.pending_change = entry
            self._ordering.advance_to(entry.token - 1)
            self._recoveries.forget_through(entry.token - 1)
            return
        self._journal.check_ordered(entry, self._ordering)
        try:
            self._ordering.adopt(entry)
        except KeyMissing as missing:
            self._note_missing_key(missing.source)
            raise
        self._recoveries.forget_through(entry.token)
        self._append(entry)

    @property
    def unreleased_ticket(self) -> int:
        """The ticket of its requests for entries of the journal that are not released yet."""
        return self._releases.ticket

    @unreleased_ticket.setter
    def unreleased_ticket(self, ticket: int) -> None:
        self._releases.ticket = ticket

    def read_unreleased(self, entries: Iterable[Entry], now: Instant) -> None:
        """The entries of the journal that it requested."""
        self._timer = None
        self._releases.add_read(entries, now)
        self._advance(now)

    def catch_up_to(self, token: int, survives_through: int, now: Instant, *, known: int = 0) -> None:
        """No messages follow up to `token`, and what K + 1 sites hold may be released.

        `known` is the formation of that token, as far as the other site knows.
        """
        self._timer = None
        if token > self.complete_through:
            self._journal.reached = max(self._journal.reached, known)
        self._ordering.advance_to(token)
        self._recoveries.forget_through(token)
        self._resilience.learn(min(survives_through, token))
        if self.membership.agreement.take_recoverable():
            self._recover_again(now)
        self._accept_token_if_mine(now)
        self._advance(now)

    def _recover_again(self, now: Instant) -> None:
        """Catching up has brought this site near enough for the ring to repair the rest."""
        self._ack_timeout.restart()
        for token in self._ordering.waiting():
            if self._recoveries.acknowledged(token, now):
                self._complete(token, now)

    # Blocks.

    def _receive_block(self, datagram: bytes, now: Instant) -> None:
        frame = decode_block(datagram)
        if frame.stripe != self._stripe or len(datagram) > self._datagram_max:
            raise Malformed("other stripe, or too long")
        outcome = self._buffer.accept(frame, datagram)
        if outcome != "block":
            self._respond_to_block(outcome, frame, datagram, now)
        self.counts[outcome] += 1
        if outcome in ("block", "ahead"):
            self._note_blocks()

    def _note_blocks(self) -> None:
        """A batch has many blocks: what they complete is checked once, in the `wake` after it."""
        if self._recoveries.running or not self._formations.latest.timed:
            self._blocks_pending = True

    def _respond_to_block(self, outcome: str, frame: BlockFrame, datagram: bytes, now: Instant) -> None:
        if outcome == "duplicate" and self._is_token_site(now):
            settled_through = self._resilience.survives_through
            self._effects += self._sources.answer_duplicate(frame, datagram, settled_through, now)
        elif outcome == "ahead" and self._sources.holes_due_at == NEVER:
            self._ask_for_holes(now)
            self._timer = None

    def _is_token_site(self, now: Instant) -> bool:
        """A stranded site does not speak as token site: its order may be abandoned."""
        if self.membership.stranded:
            return False
        if self._token.held is not None:
            return True
        formation = self._ordering.formation
        return formation.timed and self._is_mine(formation.current(now))

    def _ask_for_holes(self, now: Instant) -> None:
        """Request the holes that have lasted, if this site's turn is near."""
        if not self._buffer.has_holes or not self._turn_is_near():
            self._sources.holes_due_at = NEVER
            return
        asked = self._sources.ask_for_holes(self._backlog, self._settled_for_sources(), now)
        self.counts["holes_asked"] += len(asked)
        self._effects += asked

    def _turn_is_near(self) -> bool:
        token = self._ordering.complete_through + 1
        formation = self._formations.of(token)
        if not formation.timed:
            return self._token.held is not None
        return self.membership.active_in(formation) and formation.is_near(self.me, token)

    def _settled_for_sources(self) -> int | None:
        """After a Break the source may have dropped the blocks of a hole: only progress shows it that they are lost."""
        if self._token.held is None or not self.membership.changes:
            return None
        return self._resilience.survives_through

    # Control.

    def _receive_control(self, datagram: bytes, now: Instant) -> None:
        kind_of(datagram)
        message = decode_control(datagram)
        if message.stripe != self._stripe:
            raise Malformed("other stripe")
        if not self._formations.has(message.formation):
            refusal: str | None = "foreign"
        else:
            refusal = self._authenticator.refusal(message, datagram, fresh=not isinstance(message, Ack))
        if refusal is not None:
            self.counts[refusal] += 1
            return
        self._timer = None
        if isinstance(message, Ack | Request) and self.sent_at_observer is not None:
            self.sent_at_observer(message.sender, message.sent_at, message.clock_bound, now)
        match message:
            case Ack():
                self._receive_ack(message, datagram, now)
            case Request():
                self.counts["requests"] += 1
                if (repair := self.repairs.answer(message, now)) is not None:
                    self.counts["repairs"] += len(repair.datagrams)
                    self._effects.append(repair)
            case TokenAck():
                if isinstance(self._token, EventToken) and message.sender == self._formations.holder(message.token + 1):
                    self._token.confirmed(message.token)
            case _:
                raise Malformed("not for a site")

    def _receive_ack(self, ack: Ack, datagram: bytes, now: Instant) -> None:
        try:
            outcome = self._ordering.accept(ack, datagram)
        except KeyMissing as missing:
            self.counts["acks_without_key"] += 1
            self._note_missing_key(missing.source)
            return
        self.counts[outcome] += 1
        if outcome == "ack":
            self._traces.ack_received(ack, now)
            self._loads.heard(ack)
            if ack.token > self._resilience.highest_ack:
                self._ack_timeout.ack_received(ack.token, ack.sent_at, now)
            self._heard(ack.token, now)
            self._advance(now)
            self._ask_for_holes(now)
        elif outcome == "duplicate":
            self._traces.copied(ack)
            self._lateness.copied(ack.token, now)
            if self._formations.latest.timed or ack.token > self.complete_through:
                return
            # Its sender has not seen that the token was accepted.
            self._effects += self._passing.confirm(ack.token) if self._is_mine(ack.token + 1) else []

    def _note_missing_key(self, source: NodeId) -> None:
        """Others read this source, so no site has failed: this one can no longer take part. Decision 61, Missing keys.

        Blocks alone are no reason: anyone may send one in the name of a source that does not exist.
        """
        if source not in self.keys_missing:
            self.keys_missing.add(source)
            self._recoveries.stop()
            self._effects.append(
                Notice(
                    f"site {self.me} lacks the key of source {source} and cannot read what the others order, so it "
                    "withdraws; give it a key file with that source, and restart it"
                )
            )

    def _heard(self, token: int, now: Instant) -> None:
        if token > self._resilience.highest_ack:
            self._resilience.ack_received(token)
        if self._stopped:
            return
        if isinstance(self._token, EventToken):
            self._token.confirmed(token - 1)
            self._ack_timeout.start_overtaken(now)
        if not self._ordering.whole(token) or self._came_too_late(token, now):
            return
        if self._recoveries.acknowledged(token, now):
            self._complete(token, now)

    def _complete(self, token: int, now: Instant) -> None:
        self._ordering.completed(token)
        self._traces.completed(token, now)

    def _came_too_late(self, token: int, now: Instant) -> bool:
        """Whether no time is left to request the messages that an acknowledgment names."""
        if not self._formations.of(token).timed or self._ordering.holds_messages(token):
            return False
        return self.membership.watches_acks and self._ack_timeout.waits_exhausted(token, now)

    # The order.

    def _advance(self, now: Instant) -> None:
        """Release what is due, take complete tokens into the order, and acknowledge if it is this site's turn.

        Releases come first: whatever is done before them makes them later.
        """
        self._effects += self._releases.due(now)
        for token in self._recoveries.take_failed():
            reason = Reason.MESSAGES_SILENT if self._ordering.whole(token) else Reason.ACK_SILENT
            self._declare(self._formations.holder(token), token, reason, now)
        while self._take_next(now) or self._send_ack(now):
            pass
        self._releases.settle(self._resilience.survives_through, now)
        self._effects += self._releases.due(now)
        if (read := self._releases.wanted_read()) is not None:
            self._effects.append(read)
        complete_through = self._ordering.complete_through
        self._ordering.drop_through(
            min(self._resilience.stable_through, complete_through, self.repairs.needed_through())
        )
        self._formations.forget_before(complete_through + 1)

    def _take_next(self, now: Instant) -> bool:
        token = self._ordering.complete_through + 1
        if self._stopped or not self._may_order(token):
            return False
        try:
            ordered = self._ordering.take_next()
        except Breach:
            self._declare(self._formations.holder(token), token, Reason.BREACH, now)
            return False
        if ordered is None:
            return False
        self._append(ordered)
        self._accept_token_if_mine(now)
        return True

    def _may_order(self, token: int) -> bool:
        return self.membership.may_order(token, self._formations.of(token), self._resilience.survives_through)

    def _append(self, ordered: Ordered) -> None:
        """Append to the journal, a formation before its first messages, and to the queue of releases."""
        change = self._journal.append(ordered, self._formations.of(ordered.token))
        if change is not None:
            self._effects.append(AppendFormation(change))
        if ordered.count:
            self._effects.append(Append(ordered))
        self._releases.complete(ordered)

    def _is_mine(self, token: int) -> bool:
        """Whether it is this site's turn to send Ack(token)."""
        formation = self._formations.of(token)
        return formation.holder(token) == self.me and self.membership.active_in(formation)

    def _accept_token_if_mine(self, now: Instant) -> None:
        token = self._ordering.complete_through + 1
        formation = self._formations.of(token)
        if token < formation.first_token or not self._is_mine(token):
            return
        if not self.membership.may_take_turn(token, formation, self._resilience.survives_through):
            return
        self._token.accept(token, now)
        if not formation.timed and token > formation.first_token and not self._buffer.has_unacknowledged:
            self._effects += self._passing.confirm(token - 1)

    def _ack_due_at(self) -> Instant:
        if self._releases.lease_expired:
            return NEVER
        due_at = self._token.due_at(flush=not self._formations.latest.timed and self._releases.waits_for_others)
        return due_at if due_at < self._releases.lease_until else NEVER

    def _send_ack(self, now: Instant) -> bool:
        """Send Ack(e) after Msg(e) is in the journal (decision 14, Append before Ack)."""
        token = self._token.held
        if token is None or self._stopped or self._ack_due_at() > now or now >= self._releases.lease_until:
            return False
        formation = self._formations.of(token)
        load = SiteLoad(self._lag(token, now), self._backlog())
        acks = write_acks(
            token,
            self._token.ranges(ranges_max(self._datagram_max)),
            formation=formation,
            stripe=self._stripe,
            me=self.me,
            sequence=self._ordering.next_sequence,
            buffer=self._buffer,
            datagram_max=self._datagram_max,
            clock_bound=self._clock_bound(),
            load=self._loads.worst(load, formation.number, formation.timing.token_period),
            now=now,
        )
        datagrams = [self._authenticator.for_sites(ack) for ack in acks]
        self._token.passed(now)
        for ack, datagram in zip(acks, datagrams, strict=True):
            outcome = self._ordering.accept(ack, datagram)
            assert outcome == "ack"
        self._ack_timeout.ack_sent(now)
        self._heard(token, now)
        taken = self._take_next(now)
        assert taken
        self._effects.append(Multicast(Channel.CONTROL, datagrams))
        self.counts["acks_sent"] += 1
        return True

    def _lag(self, token: int, now: Instant) -> Duration:
        """How far this site is behind: by its last release, or because this acknowledgment endangers the next ones.

        An acknowledgment that is late by half of what the commit delay has besides its K tokens counts like a release
        at its target, whatever made it late: what it names has little time left to be repaired.
        """
        formation = self._formations.of(token)
        if not formation.timed:
            return 0
        timing = formation.timing
        spare = max(timing.commit_delay - formation.resilience * timing.token_period, timing.token_period)
        behind = now - formation.scheduled_at(token) - spare // 2
        return max(self._releases.take_lag(), behind + LAG_TARGET, 0)

    # Recovery.

    def _send_requests(self, now: Instant) -> None:
        wanted = self._recoveries.due_requests(now)
        if not wanted:
            return
        targets = self.repairs.targets(wanted, self.highest_ack, active=self.membership.active)
        for site, recoveries in targets.items():
            self._traces.asked(site, recoveries, now)
            for recovery in recoveries:
                if recovery.state is State.AWAIT_REQUESTED_ACK:
                    self._lateness.requested(recovery.token)
            for request in combine_requests(
                recoveries, self._ordering, self._stripe, self._formations.latest.number, self.me, self._datagram_max
            ):
                self.counts["requests_sent"] += 1
                dated = replace(request, sent_at=now, clock_bound=self._clock_bound())
                self._effects.append(Send(site, [self._authenticator.for_sites(dated)]))

    def _declare(self, suspect: NodeId, token: int, reason: Reason, now: Instant) -> None:
        """State 7: report, and commit nothing from this token on. Reformation servers repair the loop.

        A site that is not active, or whose clock is untrusted, suspects no site: it catches up instead.
        """
        if self._stopped:
            return
        failure = Report(suspect, token, reason, now)
        if not self._releases.clock_untrusted and self.membership.declare(failure):
            self._effects.append(failure)
        else:
            self.membership.agreement.not_recovered(token)
        self._recoveries.stop()

    # The event-driven token (RMP).

    def _repeat_pass(self, now: Instant) -> None:
        if not isinstance(self._token, EventToken):
            return
        try:
            repeated = self._passing.repeat(self._token, now)
        except TokenRefused as refused:
            self._declare(refused.site, refused.token, Reason.TOKEN_REFUSED, now)
            return
        if repeated is not None:
            self.counts["passes_repeated"] += 1
            self._effects.append(repeated)
