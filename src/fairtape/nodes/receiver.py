"""The receiver (R_P): one site of a token loop, composed from the machines of the ring.

`Receiver` stays in one formation, and a failure ends it. `fairtape.nodes.reconfigurable_receiver` continues in the next
formation; it overrides the methods at the end of the class. The classes before `Receiver` are its parts: trace calls,
replies to sources, repairs, and the passing of RMP's token.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from fairtape.core.effects import (
    LOOP_CHANNEL,
    Append,
    Channel,
    Effect,
    Multicast,
    Notice,
    Ordered,
    Reason,
    Recovered,
    Report,
    Send,
)
from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.ring.load import LAG_TARGET, LoadReports, SiteLoad
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver.ack_lateness import AckLateness
from fairtape.ring.receiver.ack_timeout import AckTimeout
from fairtape.ring.receiver.ordering import Breach, Ordering
from fairtape.ring.receiver.receive_buffer import KeyMissing, ReceiveBuffer, Stream
from fairtape.ring.receiver.recovery import Recoveries, Recovery, TransitionObserver, combine_requests, request_targets
from fairtape.ring.receiver.recovery_tables import State
from fairtape.ring.receiver.release import ReleaseQueue
from fairtape.ring.receiver.repair import RecentAnswers, answer, hold_back
from fairtape.ring.receiver.resilience import Resilience
from fairtape.ring.receiver.token import EventToken, ranges_max, token_for, write_acks
from fairtape.ring.receiver.tracing import Tracer
from fairtape.wire.frames import (
    DATAGRAM_MAX,
    Ack,
    BlockFrame,
    Control,
    Hole,
    Malformed,
    NodeId,
    Progress,
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


class TraceCalls:
    """The calls of a receiver to its tracer, with token site, schedule and missing ranges added. No-ops without one."""

    def __init__(
        self,
        tracer: Tracer | None,
        *,
        formations: FormationHistory,
        ordering: Ordering,
        clock_bound: Callable[[], Duration],
    ) -> None:
        self._tracer = tracer
        self._formations = formations
        self._ordering = ordering
        self._clock_bound = clock_bound

    def begin(self, now: Instant) -> None:
        """A new formation begins."""
        if self._tracer is not None:
            self._tracer.end_formation(now)

    def ack_received(self, ack: Ack, now: Instant) -> None:
        """A new part of an acknowledgment was received."""
        if self._tracer is None or not self._ordering.whole(ack.token):
            return
        self._tracer.ack_received(
            ack,
            self._ordering.ranges(ack.token),
            due_at=self._due_at(ack.token),
            clock_bound=ack.clock_bound + self._clock_bound(),
            now=now,
        )

    def copied(self, ack: Ack) -> None:
        """A part was received again. Only the first part of an acknowledgment is counted."""
        if self._tracer is not None and ack.part == 0:
            self._tracer.copied(ack.token)

    def asked(self, site: NodeId, recoveries: Iterable[Recovery], now: Instant) -> None:
        """A site is asked for all that these recoveries miss."""
        if self._tracer is None:
            return
        for recovery in recoveries:
            token = recovery.token
            wants_ack = recovery.state is State.AWAIT_REQUESTED_ACK
            formation = self._formations.of(token)
            self._tracer.asked(
                token,
                site,
                None if wants_ack else self._ordering.missing(token),
                holder=formation.holder(token),
                formation=formation.number,
                due_at=self._due_at(token),
                hop=formation.timing.retry_period // 2,
                now=now,
            )

    def completed(self, token: int, now: Instant) -> None:
        """Msg(e) is complete."""
        if self._tracer is not None:
            self._tracer.completed(token, linger=self._formations.of(token).timing.retry_period, now=now)

    def _due_at(self, token: int) -> Instant:
        formation = self._formations.of(token)
        return formation.scheduled_at(token) if formation.timed else 0


class SourceReplies:
    """Progress and holes sent to sources, each at most once per T_R. Decision 5, Repeated messages and holes.

    They name the formation of the next token. A planned one is known long before its first token, and a source that
    heard of it would ignore the acknowledgments that precede that.
    """

    def __init__(self, *, me: NodeId, authenticator: MessageAuthenticator, ordering: Ordering) -> None:
        self._me = me
        self._authenticator = authenticator
        self._ordering = ordering

    def answer_duplicate(
        self, frame: BlockFrame, datagram: bytes, settled_through: int, now: Instant
    ) -> tuple[Send, ...]:
        """A source that repeats an acknowledged block missed the acknowledgment, or asks what is settled."""
        ordering = self._ordering
        formation = ordering.formation
        stream = ordering.buffer.find((frame.source, frame.incarnation))
        if stream is None or frame.first + frame.count > stream.acked:
            return ()
        if now - stream.progress_sent_at < formation.timing.retry_period:
            return ()
        stream.seal.open(datagram, frame.first)  # a dropped block needs no proof, an answered one does
        stream.progress_sent_at = now
        return (self._progress(stream, settled_through),)

    def _progress(self, stream: Stream, settled_through: int) -> Send:
        ordering = self._ordering
        progress = Progress(
            ordering.stripe,
            ordering.formation.number,
            self._me,
            stream.incarnation,
            stream.acked,
            ordering.complete_through,
            settled=ordering.first_named_after(settled_through, stream),
        )
        return self._to(stream.source, progress)

    def note_holes(self, now: Instant) -> Duration:
        """Note where holes begin and since when; how long the oldest has lasted."""
        oldest = 0
        for stream in self._ordering.buffer.with_holes():
            if stream.hole_at != stream.next:
                stream.hole_at, stream.hole_since = stream.next, now
            oldest = max(oldest, now - stream.hole_since)
        return oldest

    def ask_for_holes(self, delay: Duration, now: Instant, settled_through: int | None) -> list[Send]:
        """A site whose turn is near requests holes that have lasted for `delay` from their sources.

        The holder of the token also sends progress (`settled_through` is what it knows to be settled): a source that
        has dropped the blocks of the hole learns that they are lost.
        """
        ordering = self._ordering
        formation = ordering.formation
        asked = []
        for stream in ordering.buffer.with_holes():
            if now - stream.hole_since < delay:
                continue
            hole = stream.hole() if now - stream.asked_at >= formation.timing.retry_period else None
            if hole is not None:
                stream.asked_at = now
                asked.append(self._to(stream.source, Hole(ordering.stripe, formation.number, self._me, hole)))
            if settled_through is not None and now - stream.progress_sent_at >= formation.timing.retry_period:
                stream.progress_sent_at = now
                asked.append(self._progress(stream, settled_through))
        return asked

    def _to(self, source: NodeId, message: Control) -> Send:
        return Send(source, [self._authenticator.for_source(source, message)])


class RepairRequests:
    """When a site requests repairs, and how it answers requests. TRMP 2001 §5.2.

    Usually all receivers request at once, and the response is unicast. In a loop with several request sets the
    receivers take turns in requesting, and the response is multicast to the loop.
    """

    def __init__(self, *, me: NodeId, ordering: Ordering) -> None:
        self.home: Formation | None = (
            None  # the secondary loop in which this site requests repairs; None: the primary one
        )
        self.children: tuple[Formation, ...] = ()  # secondary loops whose members request repairs from this site
        self._me = me
        self._ordering = ordering
        self._answers = RecentAnswers()

    def hold_back(self, token: int) -> Duration:
        """How long this site waits before it requests a token."""
        return hold_back(self.home or self._ordering.formations.of(token), self._me, token)

    def answer(self, request: Request, now: Instant) -> Multicast | Send | None:
        """The response: what this site holds of the request."""
        datagrams = answer(request, ordering=self._ordering, buffer=self._ordering.buffer)
        loop = next((each for each in (*self.children, self._primary) if request.sender in each.members), None)
        if loop is not None and loop.request_sets > 1:
            unsent = self._answers.unsent(datagrams, now, loop.timing.one_way_max)
            channel = LOOP_CHANNEL + loop.loop if loop.loop else Channel.DATA
            return Multicast(channel, unsent) if unsent else None
        return Send(request.sender, datagrams) if datagrams else None

    @property
    def _primary(self) -> Formation:
        return self._ordering.formations.latest


class TokenRefused(Exception):
    """The next site has not accepted the token after all retries."""

    def __init__(self, site: NodeId, token: int) -> None:
        super().__init__(site, token)
        self.site = site
        self.token = token


class TokenPassing:
    """Passing RMP's token: retransmitted until the next site shows that it accepted it. TRMP 2001 §2."""

    def __init__(self, *, me: NodeId, authenticator: MessageAuthenticator, ordering: Ordering) -> None:
        self._me = me
        self._authenticator = authenticator
        self._ordering = ordering

    def repeat(self, token: EventToken, now: Instant) -> Send | None:
        """Pass the token again if that is due. Raises `TokenRefused` after all retries."""
        if token.passing is None or token.repeat_at() > now:
            return None
        if len(self._ordering.formations.latest.members) == 1:
            token.give_up()
            return None
        if token.repeat(now):
            return Send(token.next_site, self._ordering.datagrams(token.passing))
        token.give_up()
        raise TokenRefused(token.next_site, token.passing + 1)

    def confirm(self, token: int) -> list[Send]:
        """Confirm that the token was accepted, if there is no source message to acknowledge.

        This prevents unnecessary reformations. A TokenAck is not answered: two sites that answered an Ack with an Ack
        would never stop.
        """
        formations = self._ordering.formations
        previous = formations.holder(token)
        if previous == self._me:
            return []
        message = TokenAck(self._ordering.stripe, formations.latest.number, self._me, token)
        return [Send(previous, [self._authenticator.for_sites(message)])]


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
    ) -> None:
        assert recovered is not None or me in formation.members
        if recovered is None and born_at > formation.starts_at:
            raise JoinedTooLate(
                f"site {me} started {(born_at - formation.starts_at) / 1e9:.3f} s after formation "
                f"{formation.number}; it must join a later one"
            )
        recovered = (
            recovered if recovered is not None else Recovered.nothing(formation.first_token, formation.first_sequence)
        )
        self.me = me
        self.counts: Counter[str] = Counter()
        self.reforming: Report | None = None
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
        self._passing = TokenPassing(me=me, authenticator=self._authenticator, ordering=self._ordering)
        self._releases = ReleaseQueue(self._formations, after=recovered.released_through, clock_bound=clock_bound)
        self._lateness = AckLateness()
        self._traces = TraceCalls(tracer, formations=self._formations, ordering=self._ordering, clock_bound=clock_bound)
        self._blocks_pending = False  # new blocks may complete a token
        self._holes_due_at: Instant = NEVER  # when to see which holes have lasted
        self._timer: Instant | None = None  # the earliest deadline; None: unknown. A block alone never changes it
        self.sent_at_observer: SentAtObserver | None = None
        self._begin(formation, born_at)

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
            if self._watches_acks():
                self._ack_timeout.start_overdue(now)
            self._recoveries.wake(now)
            self._repeat_pass(now)
            if self._holes_due_at <= now:
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
        earliest = min(earliest, self._recoveries.deadline(), self._ack_due_at(), self._holes_due_at)
        if self._watches_acks():
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
    def highest_ack(self) -> int:
        """The highest token of which an acknowledgment was received."""
        return self._resilience.highest_ack

    @property
    def complete_through(self) -> int:
        """The highest token up to which everything is held."""
        return self._ordering.complete_through

    @property
    def slowest_member(self) -> tuple[NodeId, SiteLoad] | None:
        """The other member that slows the sources, by what it reports of itself; None: no one does."""
        return self._loads.slowest(self._formations.latest.timing.token_period)

    @property
    def stable_through(self) -> int:
        """The highest token up to which all members are known to hold everything."""
        return self._resilience.stable_through

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

    def renew_lease(self, until: Instant, now: Instant) -> None:
        self._timer = None
        self._releases.renew_lease(until, now)
        self._advance(now)

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
        elif outcome == "ahead" and self._holes_due_at == NEVER:
            self._ask_for_holes(now)
            self._timer = None

    def _is_token_site(self, now: Instant) -> bool:
        if self._token.held is not None:
            return True
        formation = self._ordering.formation
        return formation.timed and self._is_mine(formation.current(now))

    def _ask_for_holes(self, now: Instant) -> None:
        """Request the holes that have lasted, if this site's turn is near.

        Reordering alone makes holes that close by themselves, and while blocks wait in the sockets of this site, the
        missing ones may be among them. A request for such a hole would close the window of the source.
        """
        if not self._buffer.has_holes or not self._turn_is_near():
            self._holes_due_at = NEVER
            return
        timing = self._formations.latest.timing
        oldest, delay = self._sources.note_holes(now), timing.request_delay
        if oldest >= delay and self._backlog():
            delay = timing.retry_period
        self._holes_due_at = now + timing.request_delay
        if oldest >= delay:
            asked = self._sources.ask_for_holes(delay, now, self._settled_for_sources())
            self.counts["holes_asked"] += len(asked)
            self._effects += asked

    def _turn_is_near(self) -> bool:
        token = self._ordering.complete_through + 1
        formation = self._formations.of(token)
        if not formation.timed:
            return self._token.held is not None
        return self._is_active_in(formation) and formation.is_near(self.me, token)

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
        return self._watches_acks() and self._ack_timeout.waits_exhausted(token, now)

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
        self._ordering.drop_through(min(self._resilience.stable_through, complete_through, self._needed_through()))
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

    def _accept_token_if_mine(self, now: Instant) -> None:
        token = self._ordering.complete_through + 1
        formation = self._formations.of(token)
        if token < formation.first_token or not self._is_mine(token) or not self._may_take_turn(token):
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
        for site, recoveries in self._request_targets(wanted).items():
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
        """State 7: report, and commit nothing from this token on. Reformation servers repair the loop."""
        if self._stopped:
            return
        self.reforming = Report(suspect, token, reason, now)
        self._effects.append(self.reforming)
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

    # Overridden by the reconfigurable receiver.

    @property
    def _stopped(self) -> bool:
        return self.reforming is not None or bool(self.keys_missing)

    def _is_mine(self, token: int) -> bool:
        """Whether it is this site's turn to send Ack(token)."""
        formation = self._formations.of(token)
        return formation.holder(token) == self.me and self._is_active_in(formation)

    def _is_active_in(self, formation: Formation) -> bool:
        """Whether this site takes its turns in a formation."""
        return self.me in formation.members

    def _may_order(self, token: int) -> bool:  # noqa: ARG002 - here, always
        """Whether a complete token may be taken into the order."""
        return True

    def _may_take_turn(self, token: int) -> bool:  # noqa: ARG002 - here, always
        """Whether this site may acknowledge at its turn."""
        return True

    def _watches_acks(self) -> bool:
        """Whether this site watches for overdue acknowledgments."""
        return True

    def _settled_for_sources(self) -> int | None:
        """The settled token to report to sources along with holes; None: report none."""

    def _needed_through(self) -> int:
        """The token up to which only members may still request repairs."""
        return self._ordering.complete_through

    def _request_targets(self, wanted: list[Recovery]) -> dict[NodeId, list[Recovery]]:
        return request_targets(wanted, formations=self._formations, me=self.me, highest_ack=self.highest_ack)

    def _append(self, ordered: Ordered) -> None:
        """Append to the journal and to the queue of releases."""
        if ordered.count:
            self._effects.append(Append(ordered))
        self._releases.complete(ordered)
