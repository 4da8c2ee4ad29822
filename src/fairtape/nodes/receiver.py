"""The receiver (R_P): one site of a token loop, composed from the machines of the ring."""

from collections import Counter
from collections.abc import Callable, Sequence

from fairtape.core.effects import Append, Channel, Effect, Multicast, Reason, Report, Send
from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.nodes.postbox import Postbox
from fairtape.ring.formation import Formation
from fairtape.ring.holdings import Holdings, Stream
from fairtape.ring.ordering import Breach, Ordering
from fairtape.ring.recovery import Observer, RecoveryDesk
from fairtape.ring.release import ReleaseQueue
from fairtape.ring.repair import answer
from fairtape.ring.requests import combine, whom_to_ask
from fairtape.ring.resilience import Resilience
from fairtape.ring.token import EventToken, token_for
from fairtape.wire.frames import (
    ACK_PARTS_MAX,
    DATAGRAM_MAX,
    Ack,
    BlockFrame,
    Control,
    Hole,
    Malformed,
    NodeId,
    Progress,
    Range,
    Request,
    TokenAck,
    ack_ranges_max,
    decode_block,
    decode_control,
    is_block,
    kind_of,
)
from fairtape.wire.seals import Keys


class BornTooLate(ValueError):
    """A site may only take part in a formation from its first token on.

    One that came later, or came back without its memory, could send a second, different Ack(e).
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
        observe: Observer | None = None,
    ) -> None:
        assert me in formation.members
        if born_at > formation.starts_at:
            raise BornTooLate(
                f"site {me} came {(born_at - formation.starts_at) / 1e9:.3f} s after formation "
                f"{formation.number} had started; it must join a later one"
            )
        self.me = me
        self.formation = formation
        self.counts: Counter[str] = Counter()
        self.reforming: Report | None = None
        self._stripe = stripe
        self._datagram_max = datagram_max
        self._clock_bound = clock_bound
        self._effects: list[Effect] = []
        self._postbox = Postbox(me=me, keys=keys, peers=formation.members, first_serial=born_at)
        self._holdings = Holdings(keys=keys, stripe=stripe)
        self._ordering = Ordering(formation=formation, stripe=stripe, holdings=self._holdings)
        self._resilience = Resilience(formation)
        self._releases = ReleaseQueue(formation)
        self._token = token_for(formation, self._holdings)
        self._desk = RecoveryDesk(
            timing=formation.timing, timed=formation.timed, ledger=self._ordering, observe=observe
        )
        self._stirred = False  # blocks have come that may complete something
        self._timer: Instant | None = None  # the earliest deadline; None: not known. A block alone never changes it
        self._watched = formation.first_token  # the lowest token whose silence has not been noticed yet
        self._accept_token_if_mine(born_at)

    # The contract.

    def receive(self, datagram: bytes, now: Instant) -> None:
        """Take one datagram. Whatever it is, it is counted; what is wrong changes nothing."""
        try:
            if is_block(datagram):
                self._receive_block(datagram, now)
            else:
                self._receive_control(datagram, now)
        except Malformed:
            self.counts["malformed"] += 1

    def receive_all(self, datagrams: Sequence[bytes], now: Instant) -> None:
        """Take what one turn brought: runs of blocks that simply follow on, and whatever comes between them."""
        if len(datagrams) == 1:
            self.receive(datagrams[0], now)
            return
        position = 0
        while position < len(datagrams):
            taken = self._holdings.accept_run(datagrams, position, self._datagram_max)
            if taken:
                self.counts["block"] += taken
                self._stir()
            else:
                self.receive(datagrams[position], now)
            position += taken or 1

    def wake(self, now: Instant) -> None:
        """Notice silence, end waits, send what has gathered, take the turn, release."""
        if self._stirred and not self._completes_something(now) and self.formation.timed and not self._is_due(now):
            return
        self._timer = None
        if self.reforming is None:
            self._notice_silence(now)
            self._desk.wake(now)
            self._repeat_pass(now)
        self._advance(now)
        self._send_requests(now)

    def _completes_something(self, now: Instant) -> bool:
        """Whether the blocks of this turn complete a token."""
        self._stirred = False
        completed = self._desk.messages_arrived(now)
        for token in completed:
            self._ordering.completed(token)
        return bool(completed)

    def _is_due(self, now: Instant) -> bool:
        deadline = self.deadline()
        return deadline is not None and deadline <= now

    def deadline(self) -> Instant | None:
        """The one timer."""
        if self._stirred:
            return 0
        if self._timer is None:
            self._timer = self._earliest()
        return None if self._timer == NEVER else self._timer

    def drain(self) -> list[Effect]:
        """Hand over the effects."""
        effects, self._effects = self._effects, []
        return effects

    def _earliest(self) -> Instant:
        earliest = self._releases.deadline()
        if self.reforming is not None:
            return earliest
        earliest = min(earliest, self._desk.deadline(), self._ack_due_at(), self._silence_at())
        if isinstance(self._token, EventToken):
            earliest = min(earliest, self._token.repeat_at())
        return earliest

    # What others may know.

    @property
    def heard_through(self) -> int:
        """The highest token of which an acknowledgment was heard."""
        return self._resilience.heard_through

    @property
    def complete_through(self) -> int:
        """The highest token up to which everything is held."""
        return self._ordering.complete_through

    @property
    def stable_through(self) -> int:
        """The highest token up to which all members are known to hold everything."""
        return self._resilience.stable_through

    @property
    def released_through(self) -> int:
        """The highest token that has committed here."""
        return self._releases.released_through

    @property
    def next_sequence(self) -> int:
        """The number that the next message in the order will have."""
        return self._ordering.next_sequence

    def renew_lease(self, until: Instant, now: Instant) -> None:
        """This site may commit until then."""
        self._timer = None
        self._releases.renew_lease(until, now)
        self._advance(now)

    # Blocks.

    def _receive_block(self, datagram: bytes, now: Instant) -> None:
        frame = decode_block(datagram)
        if frame.stripe != self._stripe or len(datagram) > self._datagram_max:
            raise Malformed("another stripe, or longer than agreed")
        outcome = self._holdings.accept(frame, datagram)
        if outcome != "block":
            self._look_into(outcome, frame, datagram, now)
        self.counts[outcome] += 1
        if outcome in ("block", "ahead"):
            self._stir()

    def _stir(self) -> None:
        """A turn brings many blocks: what they complete is looked at once, in the wake that ends it."""
        if self._desk.running or not self.formation.timed:
            self._stirred = True

    def _look_into(self, outcome: str, frame: BlockFrame, datagram: bytes, now: Instant) -> None:
        if outcome == "duplicate":
            self._answer_duplicate(frame, datagram, now)
        elif outcome == "ahead":
            self._ask_for_holes(now)

    def _answer_duplicate(self, frame: BlockFrame, datagram: bytes, now: Instant) -> None:
        """Decision 5: a source that repeats an acknowledged message has missed its acknowledgment."""
        stream = self._holdings.find((frame.source, frame.incarnation))
        if stream is None or frame.first + frame.count > stream.acked or not self._is_token_site(now):
            return
        if now - stream.told_at < self.formation.timing.retry_period:
            return
        stream.seal.open(datagram, frame.first)  # what is dropped needs no proof, what is answered does
        stream.told_at = now
        told = Progress(
            self._stripe, self.formation.number, self.me, frame.incarnation, stream.acked, self.complete_through
        )
        self._send_to_source(frame.source, told)

    def _is_token_site(self, now: Instant) -> bool:
        if self._token.held is not None:
            return True
        return self.formation.timed and self.formation.holder(self.formation.current(now)) == self.me

    def _ask_for_holes(self, now: Instant) -> None:
        """Decision 5: a site whose turn is near, and who sees a hole in a source's numbers, asks the source at once."""
        holed = self._holdings.with_holes()
        if not holed or not self._turn_is_near():
            return
        for stream in holed:
            hole = stream.hole() if now - stream.asked_at >= self.formation.timing.retry_period else None
            if hole is not None:
                self._ask_source(stream, hole, now)

    def _turn_is_near(self) -> bool:
        """Near is within T_R: what the source sends again now is here when the token is."""
        if not self.formation.timed:
            return self._token.held is not None
        passes = self.formation.passes_to(self.me, self.complete_through + 1)
        return passes * self.formation.timing.token_period <= self.formation.timing.retry_period

    def _ask_source(self, stream: Stream, hole: Range, now: Instant) -> None:
        stream.asked_at = now
        self.counts["holes_asked"] += 1
        self._send_to_source(stream.source, Hole(self._stripe, self.formation.number, self.me, hole))

    def _send_to_source(self, source: NodeId, message: Control) -> None:
        self._effects.append(Send(source, [self._postbox.for_source(source, message)]))

    # Control.

    def _receive_control(self, datagram: bytes, now: Instant) -> None:
        kind_of(datagram)
        message = decode_control(datagram)
        if message.stripe != self._stripe:
            raise Malformed("another stripe")
        if message.formation != self.formation.number:
            verdict: str | None = "foreign"
        else:
            verdict = self._postbox.verdict(message, datagram, fresh=not isinstance(message, Ack))
        if verdict is not None:
            self.counts[verdict] += 1
            return
        self._timer = None
        match message:
            case Ack():
                self._receive_ack(message, datagram, now)
            case Request():
                self._receive_request(message)
            case TokenAck():
                self._receive_token_ack(message)
            case _:
                raise Malformed("not for a site")

    def _receive_ack(self, ack: Ack, datagram: bytes, now: Instant) -> None:
        outcome = self._ordering.accept(ack, datagram)
        self.counts[outcome] += 1
        if outcome == "ack":
            self._heard(ack.token, now)
            self._advance(now)
            self._ask_for_holes(now)
        elif outcome == "duplicate" and not self.formation.timed:
            self._answer_repeated_pass(ack)

    def _heard(self, token: int, now: Instant) -> None:
        self._resilience.hear(token)
        if self.reforming is not None:
            return
        if isinstance(self._token, EventToken):
            self._token.confirmed(token - 1)
            self._notice_overtaken(now)
        if self._ordering.whole(token) and self._desk.acknowledged(token, now):
            self._ordering.completed(token)

    def _receive_request(self, request: Request) -> None:
        datagrams = answer(request, ordering=self._ordering, holdings=self._holdings)
        self.counts["requests"] += 1
        self.counts["repairs"] += len(datagrams)
        if datagrams:
            self._effects.append(Send(request.sender, datagrams))

    # The order.

    def _advance(self, now: Instant) -> None:
        """Take complete tokens into the order, take the turn when it has come, release what is due."""
        for token in self._desk.failed:
            self._declare(self.formation.holder(token), token, self._failure_of(token), now)
        while self._take_next(now) or self._send_ack(now):
            pass
        self._releases.settle(self._resilience.survives_through, now)
        self._effects += self._releases.due(now, self._clock_bound())
        self._ordering.drop_through(min(self.stable_through, self.complete_through))

    def _take_next(self, now: Instant) -> bool:
        if self.reforming is not None:
            return False
        try:
            ordered = self._ordering.take_next()
        except Breach:
            token = self.complete_through + 1
            self._declare(self.formation.holder(token), token, Reason.BREACH, now)
            return False
        if ordered is None:
            return False
        if ordered.count:
            self._effects.append(Append(ordered))
        self._releases.complete(ordered)
        self._accept_token_if_mine(now)
        return True

    def _accept_token_if_mine(self, now: Instant) -> None:
        token = self.complete_through + 1
        if self.formation.holder(token) != self.me:
            return
        self._token.accept(token, now)
        if not self.formation.timed and token > self.formation.first_token and not self._holdings.has_unacknowledged:
            self._send_token_ack(token - 1)

    def _ack_due_at(self) -> Instant:
        return self._token.due_at(flush=not self.formation.timed and self._releases.waits_for_others)

    def _send_ack(self, now: Instant) -> bool:
        """Take the turn: Ack(e) goes out after Msg(e) is in the journal, so that its claim is true (decision 14)."""
        token = self._token.held
        if token is None or self.reforming is not None or self._ack_due_at() > now:
            return False
        per_part = ack_ranges_max(self._datagram_max)
        ranges = self._token.ranges(per_part * ACK_PARTS_MAX)
        acks = self._acks(token, ranges, per_part, now)
        datagrams = [self._postbox.for_sites(ack) for ack in acks]
        self._token.passed(now)
        for ack, datagram in zip(acks, datagrams, strict=True):
            outcome = self._ordering.accept(ack, datagram)
            assert outcome == "ack"
        self._heard(token, now)
        taken = self._take_next(now)
        assert taken
        self._effects.append(Multicast(Channel.CONTROL, datagrams))
        self.counts["acks_sent"] += 1
        return True

    def _acks(self, token: int, ranges: list[Range], per_part: int, now: Instant) -> list[Ack]:
        parts = [tuple(ranges[start : start + per_part]) for start in range(0, len(ranges), per_part)] or [()]
        acks = []
        sequence = self.next_sequence
        number = self.formation.number
        for position, named in enumerate(parts):
            first = sequence
            marks = []
            for one in named:
                marks.append(self._holdings.marker(one.source).mark(number, token, sequence, one))
                sequence += one.count
            ack = Ack(
                self._stripe, number, self.me, token, first, now, self._clock_bound(), position, len(parts), named,
                tuple(marks),
            )  # fmt: skip
            acks.append(ack)
        return acks

    # Recovery.

    def _silence_at(self) -> Instant:
        """When the next unheard acknowledgment is overdue: t_e + T_R / 2. RMP has no such instant."""
        if not self.formation.timed or not self._desk.has_room:
            return NEVER
        while self._watched <= self.complete_through or self._ordering.whole(self._watched):
            self._watched += 1
        return self.formation.scheduled_at(self._watched) + self.formation.timing.one_way_max

    def _notice_silence(self, now: Instant) -> None:
        while self._silence_at() <= now:
            if self.formation.holder(self._watched) != self.me:  # a site that is late itself awaits nobody
                self._desk.overdue(self._watched, now)
            self._watched += 1

    def _notice_overtaken(self, now: Instant) -> None:
        """RMP: an acknowledgment above the expected one was received, so those between are missing."""
        self._watched = max(self._watched, self.complete_through + 1)
        while self._watched < self.heard_through and self._desk.has_room:
            if not self._ordering.whole(self._watched):
                self._desk.overtaken(self._watched, now)
            self._watched += 1

    def _send_requests(self, now: Instant) -> None:
        wanted = self._desk.wants(now)
        if not wanted:
            return
        asked = whom_to_ask(wanted, formation=self.formation, me=self.me, heard_through=self.heard_through)
        for site, recoveries in asked.items():
            for request in combine(
                recoveries, self._ordering, self._stripe, self.formation.number, self.me, self._datagram_max
            ):
                self.counts["requests_sent"] += 1
                self._effects.append(Send(site, [self._postbox.for_sites(request)]))

    def _failure_of(self, token: int) -> Reason:
        return Reason.MESSAGES_SILENT if self._ordering.whole(token) else Reason.ACK_SILENT

    def _declare(self, suspect: NodeId, token: int, reason: Reason, now: Instant) -> None:
        """State 7: report, and commit nothing from this token on. What heals the loop is not the receiver's duty."""
        if self.reforming is not None:
            return
        self.reforming = Report(suspect, token, reason, now)
        self._effects.append(self.reforming)
        self._desk.stop()

    # The event-driven token (RMP).

    def _repeat_pass(self, now: Instant) -> None:
        token = self._token
        if not isinstance(token, EventToken) or token.passing is None or token.repeat_at() > now:
            return
        if len(self.formation.members) == 1:
            token.give_up()
        elif token.repeat(now):
            self.counts["passes_repeated"] += 1
            self._effects.append(Send(token.next_site, self._ordering.datagrams(token.passing)))
        else:
            token.give_up()
            self._declare(token.next_site, token.passing + 1, Reason.TOKEN_REFUSED, now)

    def _answer_repeated_pass(self, ack: Ack) -> None:
        """A repeated acknowledgment means that its sender has not seen the token taken up. TRMP 2001 §2.

        The answer is one that nobody answers: two sites that answered an Ack with an Ack would never stop.
        """
        if self.complete_through >= ack.token and self.formation.holder(ack.token + 1) == self.me:
            self._send_token_ack(ack.token)

    def _send_token_ack(self, token: int) -> None:
        """In order to prevent unnecessary reformations: there is no source message to acknowledge. TRMP 2001 §2."""
        previous = self.formation.holder(token)
        if previous != self.me:
            message = TokenAck(self._stripe, self.formation.number, self.me, token)
            self._effects.append(Send(previous, [self._postbox.for_sites(message)]))

    def _receive_token_ack(self, message: TokenAck) -> None:
        if isinstance(self._token, EventToken) and message.sender == self.formation.holder(message.token + 1):
            self._token.confirmed(message.token)
