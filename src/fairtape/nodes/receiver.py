"""The receiver (R_T): one site of the ring, composed from the machines of the ring.

A receiver that is *seated* in a formation takes its turns as token site (R_P). One that is not follows the same order
and asks a parent for what it misses (R_S, and whoever is about to join); it never acknowledges and accuses nobody.

Formations come from outside: a ring without a reformation server has one for ever, and a failure ends it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from fairtape.core.effects import (
    Append,
    Channel,
    Effect,
    FormationChange,
    Multicast,
    Ordered,
    Reason,
    Recovered,
    Report,
    Send,
    Turn,
)
from fairtape.core.entries import Entry, Position
from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.nodes.postbox import Postbox
from fairtape.ring.course import Course
from fairtape.ring.formation import Formation
from fairtape.ring.holdings import Holdings, Stream
from fairtape.ring.layout import encode_formation
from fairtape.ring.ordering import Breach, Ordering
from fairtape.ring.recovery import Observer, Recovery, RecoveryDesk
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

KEPT_TOKENS_MAX: Final = 4_096  # that are kept for the repairs of those who ask this site


class BornTooLate(ValueError):
    """A site may only take part in a formation from its first token on.

    One that came later, or came back without its memory, could send a second, different Ack(e).
    """


class Disagreement(Exception):
    """The others have left the order behind after a token: what this site has beyond it must be taken back."""

    def __init__(self, token: int) -> None:
        super().__init__(token)
        self.token = token


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
        past: Recovered | None = None,
        seated: bool = True,
        postbox: Postbox | None = None,
    ) -> None:
        """With a `past`, be it empty, the receiver is governed: it needs leases, and its journal notes formations."""
        assert me in formation.members or not seated
        if past is None and born_at > formation.starts_at:
            raise BornTooLate(
                f"site {me} came {(born_at - formation.starts_at) / 1e9:.3f} s after formation "
                f"{formation.number} had started; it must join a later one"
            )
        self.me = me
        self.counts: Counter[str] = Counter()
        self.reforming: Report | None = None
        self.parent: NodeId | None = None  # whom to ask while not seated
        self.needed_after: int | None = None  # those who ask this site may still miss what comes after this token
        self._stripe = stripe
        self._datagram_max = datagram_max
        self._clock_bound = clock_bound
        self._effects: list[Effect] = []
        self._observe = observe
        self._governed = past is not None
        self._course = Course(formation)
        self._seats = {formation.number} if seated else set()  # formations in which this site takes its turns
        self._fenced = False
        self._holds_back_at: int | None = None  # the first token of a formation that is about to take over
        self._lost_at = 0  # the highest token that could not be recovered from the parent
        past = past if past is not None else Recovered.nothing(formation.first_token, formation.first_sequence)
        self._turned = self._reached = past.number  # the formation of the last entry, and of the last token
        self._noted: FormationChange | None = None  # a formation whose first messages are still to come
        self._unverified = self._governed and past.token > 0 and past.number != formation.number
        self._postbox = postbox or Postbox(me=me, keys=keys, peers=keys.sites, first_serial=born_at)
        self._holdings = Holdings(keys=keys, stripe=stripe)
        self._holdings.recover(past.streams)
        self._ordering = Ordering(
            course=self._course,
            stripe=stripe,
            holdings=self._holdings,
            after=past.token,
            next_sequence=past.sequence,
        )
        released_through = past.released_through if self._governed else past.token
        self._releases = ReleaseQueue(self._course, after=released_through, leased=self._governed)
        self._stirred = False  # blocks have come that may complete something
        self._timer: Instant | None = None  # the earliest deadline; None: not known. A block alone never changes it
        self._begin(formation, born_at)

    def _begin(self, formation: Formation, now: Instant) -> None:
        """Start to work in a formation: what belongs to one formation alone is made anew."""
        self._resilience = Resilience(self._course)
        self._token = token_for(self._course, self._holdings)
        self._desk = RecoveryDesk(
            timing=formation.timing, timed=formation.timed, ledger=self._ordering, observe=self._observe
        )
        self._watched = formation.first_token  # the lowest token whose silence has not been noticed yet
        self._timer = None
        self._accept_token_if_mine(now)

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
        if not self._stopped:
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
        if self._stopped:
            return earliest
        earliest = min(earliest, self._desk.deadline(), self._ack_due_at(), self._silence_at())
        if isinstance(self._token, EventToken):
            earliest = min(earliest, self._token.repeat_at())
        return earliest

    # What others may know.

    @property
    def formation(self) -> Formation:
        """The latest one."""
        return self._course.latest

    @property
    def seated(self) -> bool:
        """Whether this site takes its turns in the latest formation."""
        return self.formation.number in self._seats

    @property
    def fenced(self) -> bool:
        """Whether it has stopped working in the latest formation because it was told to."""
        return self._fenced

    @property
    def stranded(self) -> bool:
        """Whether the ring cannot repair what is missing here: the past must come from another site's journal."""
        return self._unverified or self.complete_through < max(self.fixed_through, self._lost_at)

    @property
    def verified(self) -> bool:
        """Whether what is in the order here is known to be in the order of the others."""
        return not self._unverified

    @property
    def fixed_through(self) -> int:
        """The order up to this token is fixed for ever: a later formation begins after it."""
        return self._course.begins_at - 1

    @property
    def position(self) -> Position:
        """Where this site stands in the order, as its journal counts: the last formation noted, the last token."""
        return Position(self._noted.formation if self._noted is not None else self._turned, self.complete_through)

    @property
    def _stopped(self) -> bool:
        return self._fenced or self.reforming is not None

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
    def survives_through(self) -> int:
        """The highest token up to which K + 1 sites are known to hold everything."""
        return self._resilience.survives_through

    @property
    def released_through(self) -> int:
        """The highest token that has committed here."""
        return self._releases.released_through

    @property
    def next_sequence(self) -> int:
        """The number that the next message in the order will have."""
        return self._ordering.next_sequence

    @property
    def lease_until(self) -> Instant:
        """When the right to acknowledge and to commit ends."""
        return self._releases.lease_until

    # What a reformation server decides.

    def renew_lease(self, until: Instant, now: Instant) -> None:
        """This site may acknowledge and commit until then."""
        self._timer = None
        self._releases.renew_lease(until, now)
        self._advance(now)

    def fence(self) -> None:
        """Do nothing more in this formation: what is complete here is what this site answers for (decision 7)."""
        self._fenced = True
        self._timer = None
        self._desk.stop()

    def hold_back_at(self, token: int | None) -> None:
        """Take no turn from this token on: another formation is about to take over there."""
        self._holds_back_at = token
        if token is not None and self._token.held is not None and self._token.held >= token:
            self._token.held = None
        self._timer = None

    def agrees_with(self, formation: Formation) -> bool:
        """Whether what is in the order here can come before this formation; what cannot must be taken back."""
        if self._reached >= formation.number:
            return True  # another site's journal has brought it there already
        beyond = self.complete_through - (formation.first_token - 1)
        if beyond > 0:
            return False
        return beyond < 0 or formation.first_sequence in (0, self.next_sequence)

    def relieve(self, formation: Formation, now: Instant, *, seated: bool) -> None:
        """From a token to come on, this formation takes over, without a stop."""
        self._timer = None
        self._course.relieve(formation)
        if seated:
            self._seats.add(formation.number)
        self._holds_back_at = None
        self._desk.timing = formation.timing
        self._accept_token_if_mine(now)
        self._advance(now)

    def install(self, formation: Formation, now: Instant, *, seated: bool) -> None:
        """Leave the present formation where it was fenced, and go on in this one."""
        assert self.agrees_with(formation)
        follows_on = formation.number == self.formation.number + 1 and not self._unverified
        self._unverified = not follows_on and formation.keeper != self.me
        self._ordering.forget_unordered()
        self._ordering.drop_through(self.complete_through)
        self._course.restart(formation)
        self._seats = {formation.number} if seated else set()
        self._fenced = False
        self._holds_back_at = None
        self.reforming = None
        self._lost_at = 0
        survives_through = self._resilience.survives_through
        if self._reached < formation.number:
            survives_through = min(survives_through, formation.first_token - 1)
        self._begin(formation, now)
        self._resilience.learn(survives_through)
        self._advance(now)

    def verify(self) -> None:
        """One who knows the latest formation says that nothing here contradicts it."""
        self._unverified = False
        self._timer = None

    def adopt(self, entry: Entry) -> None:
        """Take what another site's journal says comes next.

        `Malformed` where it does not continue the order, `Disagreement` where the others have left it behind.
        """
        self._timer = None
        if isinstance(entry, FormationChange):
            self._adopt_formation(entry)
            return
        if entry.formation != self.position.formation or entry.token <= self.complete_through:
            raise Malformed("an entry that has no place here")
        if entry.sequence != self.next_sequence:
            raise Malformed("an entry that does not continue the order")
        self._ordering.adopt(entry)
        self._desk.forget_through(entry.token)
        self._append(entry)

    def _adopt_formation(self, change: FormationChange) -> None:
        if change.formation <= self.position.formation or change.sequence != self.next_sequence:
            raise Malformed("a formation that has no place here")
        if change.formation > self._reached and change.token <= self.complete_through:
            raise Disagreement(change.token - 1)
        self._noted = change
        self._ordering.advance_to(change.token - 1)
        self._desk.forget_through(change.token - 1)

    def reclaim(self, ordered: Ordered) -> None:
        """The journal has it, but it was never released: the site stopped in between."""
        self._releases.complete(ordered)

    def catch_up_to(self, token: int, survives_through: int, now: Instant, *, known: int = 0) -> None:
        """Nothing more was put into the order up to `token`, and what K + 1 sites hold may be released.

        `known` is the formation of that token, as the one who says so knows it.
        """
        self._timer = None
        if token > self.complete_through:
            self._reached = max(self._reached, known)
        self._ordering.advance_to(token)
        self._desk.forget_through(token)
        self._resilience.learn(min(survives_through, token))
        if 0 < self._lost_at <= self.complete_through:
            self._recover_again(now)
        self._accept_token_if_mine(now)
        self._advance(now)

    def _recover_again(self, now: Instant) -> None:
        """The past has brought this site near enough for the ring to repair the rest."""
        self._lost_at = 0
        self._watched = self.complete_through + 1
        for token in self._ordering.waiting():
            if self._desk.acknowledged(token, now):
                self._ordering.completed(token)

    def _append(self, ordered: Ordered) -> None:
        """Into the journal, after the formation that it is the first of, and into the queue of releases."""
        self._reached = ordered.formation
        if ordered.count:
            if self._governed and ordered.formation != self._turned:
                self._turn(ordered)
            self._effects.append(Append(ordered))
        self._releases.complete(ordered)

    def _turn(self, first: Ordered) -> None:
        """A formation is noted with its first messages: one that never had any left no trace anywhere."""
        change, self._noted = self._noted, None
        if change is None or change.formation != first.formation:
            formation = self._course.of(first.token)
            change = FormationChange(
                stripe=self._stripe,
                formation=formation.number,
                token=formation.first_token,
                sequence=first.sequence,
                broken=formation.broken,
                layout=encode_formation(formation),
                installed_at=formation.starts_at,
            )
        assert change.formation == first.formation
        self._turned = change.formation
        self._effects.append(Turn(change))

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
        settled = self._ordering.first_named_after(self._resilience.survives_through, stream)
        told = Progress(
            self._stripe, self.formation.number, self.me, frame.incarnation, stream.acked, self.complete_through,
            settled=settled,
        )  # fmt: skip
        self._send_to_source(frame.source, told)

    def _is_token_site(self, now: Instant) -> bool:
        if self._token.held is not None:
            return True
        formation = self.formation
        return formation.timed and self.seated and formation.holder(formation.current(now)) == self.me

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
        formation = self._course.of(self.complete_through + 1)
        if not formation.timed:
            return self._token.held is not None
        if formation.number not in self._seats:
            return False
        passes = formation.passes_to(self.me, self.complete_through + 1)
        return passes * formation.timing.token_period <= formation.timing.retry_period

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
        if not self._course.has(message.formation):
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
        if self._stopped:
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
        for token in self._desk.take_failed():
            self._declare(self._course.holder(token), token, self._failure_of(token), now)
        while self._take_next(now) or self._send_ack(now):
            pass
        self._releases.settle(self._resilience.survives_through, now)
        self._effects += self._releases.due(now, self._clock_bound())
        self._ordering.drop_through(min(self.stable_through, self.complete_through, self._needed_through()))
        self._course.forget_before(self.complete_through + 1)

    def _needed_through(self) -> int:
        """What those who ask this site hold; one that stays behind for long must ask for the past instead."""
        if self.needed_after is None:
            return self.complete_through
        return max(self.needed_after, self.complete_through - KEPT_TOKENS_MAX)

    def _take_next(self, now: Instant) -> bool:
        token = self.complete_through + 1
        if self._stopped or not self._may_order(token):
            return False
        try:
            ordered = self._ordering.take_next()
        except Breach:
            self._declare(self._course.holder(token), token, Reason.BREACH, now)
            return False
        if ordered is None:
            return False
        self._append(ordered)
        self._accept_token_if_mine(now)
        return True

    def _may_order(self, token: int) -> bool:
        """Only what follows the order of the others; and one whom nobody asks takes only what cannot be taken back."""
        return not self._unverified and (self.seated or token <= self._resilience.survives_through)

    def _accept_token_if_mine(self, now: Instant) -> None:
        token = self.complete_through + 1
        formation = self._course.of(token)
        if token < formation.first_token or not self._is_mine(token) or not self._may_order(token):
            return
        if self._holds_back_at is not None and token >= self._holds_back_at:
            return
        self._token.accept(token, now)
        if not formation.timed and token > formation.first_token and not self._holdings.has_unacknowledged:
            self._send_token_ack(token - 1)

    def _ack_due_at(self) -> Instant:
        if self._releases.lapsed:
            return NEVER
        due_at = self._token.due_at(flush=not self.formation.timed and self._releases.waits_for_others)
        return due_at if due_at < self._releases.lease_until else NEVER

    def _send_ack(self, now: Instant) -> bool:
        """Take the turn: Ack(e) goes out after Msg(e) is in the journal, so that its claim is true (decision 14)."""
        token = self._token.held
        if token is None or self._stopped or self._ack_due_at() > now or now >= self._releases.lease_until:
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
        formation = self._course.of(token)
        number = formation.number
        behind = formation.timed and now - formation.scheduled_at(token) > formation.timing.retry_period
        for position, named in enumerate(parts):
            first = sequence
            marks = []
            for one in named:
                marks.append(self._holdings.marker(one.source).mark(number, token, sequence, one, behind=behind))
                sequence += one.count
            ack = Ack(
                self._stripe, number, self.me, token, first, now, self._clock_bound(), position, len(parts), named,
                tuple(marks), behind,
            )  # fmt: skip
            acks.append(ack)
        return acks

    # Recovery.

    def _silence_at(self) -> Instant:
        """When the next unheard acknowledgment is overdue: t_e + T_R / 2. RMP has no such instant."""
        if not self.formation.timed or not self._desk.has_room or (self.stranded and not self.seated):
            return NEVER
        self._watched = max(self._watched, self.complete_through + 1)
        while self._ordering.whole(self._watched):
            self._watched += 1
        formation = self._course.of(self._watched)
        return formation.scheduled_at(self._watched) + formation.timing.one_way_max

    def _notice_silence(self, now: Instant) -> None:
        while self._silence_at() <= now:
            if not self._is_mine(self._watched):  # a site that is late itself awaits nobody
                self._desk.overdue(self._watched, now)
            self._watched += 1

    def _is_mine(self, token: int) -> bool:
        formation = self._course.of(token)
        return formation.number in self._seats and formation.holder(token) == self.me

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
        for site, recoveries in self._whom_to_ask(wanted).items():
            for request in combine(
                recoveries, self._ordering, self._stripe, self.formation.number, self.me, self._datagram_max
            ):
                self.counts["requests_sent"] += 1
                self._effects.append(Send(site, [self._postbox.for_sites(request)]))

    def _whom_to_ask(self, wanted: list[Recovery]) -> dict[NodeId, list[Recovery]]:
        """A member asks the latest token site and those before it; others ask their parent. 2001 §4.1."""
        if self.seated or self.parent is None:
            return whom_to_ask(wanted, course=self._course, me=self.me, heard_through=self.heard_through)
        existing = [recovery for recovery in wanted if recovery.token <= self.heard_through + 1]
        return {self.parent: existing} if existing else {}

    def _failure_of(self, token: int) -> Reason:
        return Reason.MESSAGES_SILENT if self._ordering.whole(token) else Reason.ACK_SILENT

    def _declare(self, suspect: NodeId, token: int, reason: Reason, now: Instant) -> None:
        """State 7: report, and commit nothing from this token on. What heals the loop is not the receiver's duty.

        One that takes no turns accuses nobody: the past will tell.
        """
        if self._stopped:
            return
        if not self.seated:
            self._lost_at = max(self._lost_at, token)
            self._desk.stop()
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
        if self.complete_through >= ack.token and self._is_mine(ack.token + 1):
            self._send_token_ack(ack.token)

    def _send_token_ack(self, token: int) -> None:
        """In order to prevent unnecessary reformations: there is no source message to acknowledge. TRMP 2001 §2."""
        previous = self._course.holder(token)
        if previous != self.me:
            message = TokenAck(self._stripe, self.formation.number, self.me, token)
            self._effects.append(Send(previous, [self._postbox.for_sites(message)]))

    def _receive_token_ack(self, message: TokenAck) -> None:
        if isinstance(self._token, EventToken) and message.sender == self._course.holder(message.token + 1):
            self._token.confirmed(message.token)
