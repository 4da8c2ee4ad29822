"""One side of one FIX 4.4 session: logon, heartbeats, test requests, gaps and their repair, rejects, logout.

The session outlives its connections: its numbers and what it sent are in a store. A message that arrives too early is
dropped, and a ResendRequest asks for everything from the gap on. So no message needs to be queued, and the application
receives every number once, in order.

Before the logon nothing changes: invalid bytes, messages of another client and refused logons leave the expected number
as it is. A refused logon is answered with the reason, which uses one of our numbers; the legitimate client fills that
gap in the usual way.

Application messages are resent with their number, PossDupFlag and the original SendingTime. Messages of the session
itself are never resent but covered by gap fills: an old heartbeat is useless, and an old logon would do harm.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol, TypeAlias

from fairtape.core.instants import NEVER, SECOND, Duration, Instant
from fairtape.formats.fix.admin_messages import (
    BUSINESS_REJECT,
    ENCRYPT_NONE,
    HEARTBEAT,
    LOGON,
    LOGOUT,
    REJECT,
    RESEND_REQUEST,
    SEQUENCE_RESET,
    TEST_REQUEST,
    BusinessReject,
    Heartbeat,
    Logon,
    Logout,
    Reject,
    ResendRequest,
    SequenceReset,
    TestRequest,
)
from fairtape.formats.fix.codec import (
    BEGIN_STRING,
    BadFix,
    FixMessage,
    FixStream,
    Flaw,
    Pair,
    StreamCounts,
    decode,
    encode,
)
from fairtape.formats.fix.dictionary import ADMIN_TYPES, APPLICATION_TYPES, HEADER, BusinessReason, RejectReason, Tag
from fairtape.formats.fix.fields import POSITIVE, TEXT, format_instant, parse_instant
from fairtape.formats.fix.order_messages import FROM_TRADERS, OrderEntry, write
from fairtape.gateway.session.effects import (
    Disconnect,
    FixEffect,
    LoggedOff,
    LoggedOn,
    MessageRejected,
    Received,
    Transmit,
)

Authenticate: TypeAlias = Callable[[str, str, str], str | None]
"""Takes a client's CompID, user name and password; returns why the logon is refused, or None."""


class FixStore(Protocol):
    """The persistent state of one session: its two numbers, and the messages it sent.

    A session outlives its connections, and should outlive its process. The session calls its store within a turn; the
    driver makes the store durable before it writes to the network, so a number that was seen outside is never used
    again for another message.
    """

    @property
    def next_in(self) -> int:
        """The number expected from the other side."""

    @property
    def next_out(self) -> int:
        """The number of the next message to send."""

    def expect(self, number: int) -> None:
        """Set the number expected next."""

    def sent(self, octets: bytes | None) -> None:
        """Use the next number: for a message that may be resent, or (None) for a session message."""

    def kept(self, first: int, last: int) -> Iterable[tuple[int, bytes]]:
        """The stored messages with these numbers, in order."""

    def reset(self) -> None:
        """Forget everything: both sides start at 1."""


class FixRole(Enum):
    ACCEPTOR = "acceptor"
    INITIATOR = "initiator"


class FixState(Enum):
    DISCONNECTED = "disconnected"
    LOGGING_ON = "logging on"
    LOGGED_ON = "logged on"
    LOGGING_OUT = "logging out"


@dataclass(frozen=True, slots=True, kw_only=True)
class FixOptions:
    """Options of a session."""

    accepts: frozenset[bytes] = FROM_TRADERS  # message types that the application supports
    logon_delay: Duration = 10 * SECOND  # from the connection to the logon
    logout_delay: Duration = 5 * SECOND  # for the other side to confirm
    resend_delay: Duration = 5 * SECOND  # without progress, before a gap is requested again
    sending_time_error_max: Duration = 120 * SECOND
    heartbeat_min: Duration = SECOND  # accepted by an acceptor
    heartbeat_max: Duration = 300 * SECOND
    heartbeat_period: Duration = 30 * SECOND  # requested by an initiator, in whole seconds
    reset_on_logon: bool = False  # an initiator starts at 1 each time
    username: str | None = None  # sent by an initiator
    password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.heartbeat_min <= self.heartbeat_period <= self.heartbeat_max or self.heartbeat_period % SECOND:
            raise ValueError(
                f"heartbeat_period is {self.heartbeat_period} ns; it must be whole seconds "
                f"from {self.heartbeat_min} to {self.heartbeat_max} ns"
            )


# Messages.


def header(ours: str, theirs: str, number: int, now: Instant, *, first_sent: bytes | None = None) -> list[Pair]:
    """The fields that follow MsgType in every message."""
    pairs: list[Pair] = [
        (Tag.SENDER_COMP_ID, ours.encode("ascii")),
        (Tag.TARGET_COMP_ID, theirs.encode("ascii")),
        (Tag.MSG_SEQ_NUM, b"%d" % number),
    ]
    if first_sent is not None:
        pairs += [(Tag.POSS_DUP_FLAG, b"Y"), (Tag.ORIG_SENDING_TIME, first_sent)]
    pairs.append((Tag.SENDING_TIME, format_instant(now)))
    return pairs


def compose(fields: Iterable[Pair], head: Iterable[Pair]) -> bytes:
    """The bytes of a message from its type, header and body."""
    kind, *body = fields
    return encode([kind, *head, *body])


def resent_messages(
    kept: Iterable[tuple[int, bytes]], first: int, last: int, *, ours: str, theirs: str, now: Instant
) -> Iterator[bytes]:
    """The numbers from first to last again: stored messages, and gap fills between them."""

    def fill(begin: int, end: int) -> bytes:
        gap = SEQUENCE_RESET.write(SequenceReset(gap_fill=True, new_seq_no=end))
        return compose(gap, header(ours, theirs, begin, now, first_sent=format_instant(now)))

    following = first
    for number, octets in kept:
        if number > following:
            yield fill(following, number)
        message = decode(octets)
        first_sent = message.get(Tag.SENDING_TIME) or format_instant(now)
        body = [pair for pair in message.pairs if pair[0] not in HEADER or pair[0] == Tag.MSG_TYPE]
        yield compose(body, header(ours, theirs, number, now, first_sent=first_sent))
        following = number + 1
    if following <= last:
        yield fill(following, last + 1)


# Header checks.


def header_flaw(message: FixMessage, now: Instant, *, ours: str, theirs: str, error_max: Duration) -> Flaw | None:
    """Return why a header does not belong to this session, or not to the current time."""
    for tag, expected in ((Tag.SENDER_COMP_ID, theirs), (Tag.TARGET_COMP_ID, ours)):
        if message.get(tag) != expected.encode("ascii"):
            return Flaw(RejectReason.COMP_ID_PROBLEM, tag, f"{tag.name} ({tag}) is not that of this session")
    sending_time = message.get(Tag.SENDING_TIME)
    if sending_time is None:
        return Flaw(RejectReason.REQUIRED_TAG_MISSING, Tag.SENDING_TIME, "SendingTime (52) is missing")
    sent_at = parse_instant(sending_time)
    if sent_at is None:
        return Flaw(RejectReason.INCORRECT_DATA_FORMAT, Tag.SENDING_TIME, "SendingTime (52) is not a timestamp")
    if abs(now - sent_at) > error_max:
        seconds = error_max // SECOND
        text = f"SendingTime (52) is more than {seconds} s away from the time here"
        return Flaw(RejectReason.SENDING_TIME_ACCURACY, Tag.SENDING_TIME, text)
    first_sent_at = parse_instant(message.get(Tag.ORIG_SENDING_TIME) or b"")
    if first_sent_at is not None and first_sent_at > sent_at:
        text = "OrigSendingTime (122) is later than SendingTime (52)"
        return Flaw(RejectReason.SENDING_TIME_ACCURACY, Tag.ORIG_SENDING_TIME, text)
    return None


def poss_dup_flaw(message: FixMessage) -> Flaw | None:
    """A repeated message must name its first SendingTime; a gap fill was never sent before."""
    repeated = message.get(Tag.POSS_DUP_FLAG) == b"Y" and message.msg_type != SequenceReset.MSG_TYPE
    if repeated and message.get(Tag.ORIG_SENDING_TIME) is None:
        text = "OrigSendingTime (122) is missing; a message with PossDupFlag (43) must have one"
        return Flaw(RejectReason.REQUIRED_TAG_MISSING, Tag.ORIG_SENDING_TIME, text)
    return None


RESEND_BATCH_MAX: Final = 256  # numbers resent in one turn, so that other sessions get theirs
NUMBER_MAX: Final = 1 << 62  # of a message; stores hold 63 bits


class FixSession:
    """A session between two CompIDs, seen from `ours`."""

    def __init__(
        self,
        ours: str,
        theirs: str,
        store: FixStore,
        *,
        role: FixRole,
        options: FixOptions | None = None,
        authenticate: Authenticate | None = None,
    ) -> None:
        self.ours = ours
        self.theirs = theirs
        self.state = FixState.DISCONNECTED
        self._store = store
        self._role = role
        self._options = options or FixOptions()
        self._authenticate = authenticate
        self._stream = FixStream()
        self._heartbeat_period = self._options.heartbeat_period
        self._state_since: Instant = NEVER
        self._received_at: Instant = NEVER
        self._sent_at: Instant = NEVER
        self._test_sent_at: Instant = NEVER  # NEVER: no test request is unanswered
        self._gap_through = 0  # highest number that arrived too early
        self._resend_requested_at: Instant = NEVER  # when the gap was requested, or last shrank
        self._resend: tuple[int, int] | None = None  # first and last number to resend
        self._resent_at: Instant = NEVER  # instant of the last turn that resent something
        self._write_blocked = False  # the connection's write buffer is full
        self._effects: list[FixEffect] = []

    @property
    def counts(self) -> StreamCounts:
        return self._stream.counts

    def connected(self, now: Instant, stream: FixStream | None = None) -> None:
        """A connection was made; `stream` may have read its first message."""
        assert self.state is FixState.DISCONNECTED
        self._stream = stream or FixStream()
        self._gap_through, self._resend_requested_at, self._test_sent_at = 0, NEVER, NEVER
        self._resend, self._write_blocked = None, False
        self._heartbeat_period = self._options.heartbeat_period
        self._become(FixState.LOGGING_ON, now)
        self._received_at = self._sent_at = now
        if self._role is FixRole.INITIATOR:
            if self._options.reset_on_logon:
                self._store.reset()
            self._send_logon(reset=self._options.reset_on_logon, now=now)

    def disconnected(self, now: Instant) -> None:
        self._disconnect("the connection ended", now)

    def receive(self, octets: bytes, now: Instant) -> None:
        """Receive bytes of the other side. Never raises, whatever they are."""
        for message in self._stream.feed(octets):
            self.receive_message(message, now)

    def receive_message(self, message: FixMessage, now: Instant) -> None:
        """Receive one message of the other side. After a disconnect it is ignored."""
        if self.state is FixState.DISCONNECTED:
            return
        number = POSITIVE.read(message.get(Tag.MSG_SEQ_NUM) or b"")
        if number is None:
            self._fail("MsgSeqNum (34) is missing or not a number", now)
        elif self._is_trusted(message, number, now):
            self._received_at, self._test_sent_at = now, NEVER
            if message.msg_type == Logon.MSG_TYPE:
                self._handle_logon(message, number, now)
            elif self.state is not FixState.LOGGING_ON:
                self._handle_numbered(message, number, now)
            elif message.msg_type == Logout.MSG_TYPE and self._role is FixRole.INITIATOR:
                self._handle_refusal(message, number, now)
            else:
                self._fail("the first message must be a Logon", now)

    def send(self, value: OrderEntry, now: Instant) -> int:
        """Number and send an application message; without a connection it is stored until the client requests it."""
        return self._send(write(value), now)

    def reject(self, received: Received, reason: BusinessReason, text: str, now: Instant) -> None:
        """Send a BusinessReject: the application does not support this message."""
        self._business_reject(received.message, received.number, reason, text, now)

    def refuse(self, received: Received, flaw: Flaw, now: Instant) -> None:
        """Send a Reject that names an invalid field."""
        self._send_reject(received.message, received.number, flaw, now)

    def logout(self, text: str | None, now: Instant) -> None:
        """Send a Logout and wait for the answer."""
        if self.state is FixState.LOGGED_ON:
            self._send(LOGOUT.write(Logout(text=text)), now)
            self._become(FixState.LOGGING_OUT, now)

    def wake(self, now: Instant) -> None:
        """Send heartbeats, and disconnect if the other side is silent for too long."""
        options = self._options
        if self.state is FixState.LOGGING_ON and now >= self._state_since + options.logon_delay:
            self._fail("no Logon came in time", now)
        elif self.state is FixState.LOGGING_OUT and now >= self._state_since + options.logout_delay:
            self._disconnect("no answer to Logout came in time", now, close=True)
        elif self.state is FixState.LOGGED_ON:
            self._continue_resend(now)
            self._check_liveness(now)

    def set_write_blocked(self, *, blocked: bool) -> None:
        """The connection's write buffer is full, or has space again. Only resending waits for space."""
        self._write_blocked = blocked

    def deadline(self) -> Instant:
        """When `wake` is next due; 0: at once."""
        match self.state:
            case FixState.LOGGING_ON:
                return self._state_since + self._options.logon_delay
            case FixState.LOGGING_OUT:
                return self._state_since + self._options.logout_delay
            case FixState.LOGGED_ON:
                if self._resend is not None and not self._write_blocked:
                    return 0
                listening_since = self._received_at if self._test_sent_at == NEVER else self._test_sent_at
                return min(self._sent_at + self._heartbeat_period, listening_since + self._receive_timeout)
            case _:
                return NEVER

    def drain(self) -> list[FixEffect]:
        effects, self._effects = self._effects, []
        return effects

    # Header.

    def _is_trusted(self, message: FixMessage, number: int, now: Instant) -> bool:
        """Whether the header belongs to this session and to the current time. Otherwise the session disconnects."""
        if message.begin_string != BEGIN_STRING:
            self._fail("BeginString (8) must be FIX.4.4", now)
            return False
        flaw = header_flaw(
            message, now, ours=self.ours, theirs=self.theirs, error_max=self._options.sending_time_error_max
        )
        if flaw is None:
            return True
        if self.state is not FixState.LOGGING_ON:
            self._reject(message, number, flaw, now)
        self._fail(flaw.text, now)
        return False

    # Logon and logout.

    def _handle_logon(self, message: FixMessage, number: int, now: Instant) -> None:
        if message.flaw is not None:
            self._fail(message.flaw.text, now)
            return
        try:
            logon = LOGON.read(message)
        except BadFix as refusal:
            self._fail(str(refusal), now)
            return
        if self.state is not FixState.LOGGING_ON:
            self._handle_second_logon(logon, number, now)
            return
        refusal_text = self._logon_refusal(logon, number)
        if refusal_text is not None:
            self._send_logout_and_disconnect(refusal_text, now)
            return
        if logon.reset_seq_num and self._role is FixRole.ACCEPTOR:
            self._store.reset()
        if number < self._store.next_in:
            self._refuse_low(number, now)
            return
        self._heartbeat_period = logon.heart_bt_int * SECOND
        self._become(FixState.LOGGED_ON, now)
        if self._role is FixRole.ACCEPTOR:
            self._send_logon(reset=bool(logon.reset_seq_num), now=now)
        self._effects.append(LoggedOn())
        self._note_logon(number, now)

    def _note_logon(self, number: int, now: Instant) -> None:
        if number == self._store.next_in:
            self._store.expect(number + 1)
        else:
            self._request_resend(number, now)

    def _logon_refusal(self, logon: Logon, number: int) -> str | None:
        """Return why a logon is refused."""
        options = self._options
        asked_to_reset = self._role is FixRole.INITIATOR and options.reset_on_logon
        if logon.encrypt_method != ENCRYPT_NONE:
            return "EncryptMethod (98) must be 0"
        if not options.heartbeat_min <= logon.heart_bt_int * SECOND <= options.heartbeat_max:
            least, most = options.heartbeat_min // SECOND, options.heartbeat_max // SECOND
            return f"HeartBtInt (108) is {logon.heart_bt_int}; it must be from {least} to {most}"
        if logon.reset_seq_num and number != 1:
            return "ResetSeqNumFlag (141) is Y; MsgSeqNum (34) must then be 1"
        if self._role is FixRole.INITIATOR and bool(logon.reset_seq_num) != asked_to_reset:
            return "ResetSeqNumFlag (141) is not what was asked for"
        if self._authenticate is None:
            return None
        return self._authenticate(self.theirs, logon.username or "", logon.password or "")

    def _handle_second_logon(self, logon: Logon, number: int, now: Instant) -> None:
        """A Logon within the session requests a reset."""
        if self.state is not FixState.LOGGED_ON or not logon.reset_seq_num or number != 1:
            self._fail("a second Logon must come with ResetSeqNumFlag (141) and the number 1", now)
            return
        self._store.reset()
        self._gap_through, self._resend_requested_at = 0, NEVER
        self._send_logon(reset=True, now=now)
        self._store.expect(2)

    def _send_logon(self, *, reset: bool, now: Instant) -> None:
        options, initiates = self._options, self._role is FixRole.INITIATOR
        logon = Logon(
            heart_bt_int=self._heartbeat_period // SECOND,
            reset_seq_num=True if reset else None,
            username=options.username if initiates else None,
            password=options.password if initiates else None,
        )
        self._send(LOGON.write(logon), now)

    def _handle_refusal(self, message: FixMessage, number: int, now: Instant) -> None:
        """A Logout in place of a Logon."""
        if number == self._store.next_in:
            self._store.expect(number + 1)
        text = message.get(58) or b"no reason given"
        self._disconnect(f"the logon was refused: {text.decode('ascii', 'backslashreplace')}", now, close=True)

    def _handle_logout(self, now: Instant) -> None:
        if self.state is FixState.LOGGED_ON:
            self._send(LOGOUT.write(Logout()), now)
        self._disconnect("the other side logged out", now, close=True)

    def _refuse_low(self, number: int, now: Instant) -> None:
        """A number that is too low cannot be repaired within the session."""
        text = f"MsgSeqNum too low, expecting {self._store.next_in} but received {number}"
        self._send_logout_and_disconnect(text, now)

    def _fail(self, reason: str, now: Instant) -> None:
        """Disconnect; after the logon, with a Logout that gives the reason."""
        if self.state is FixState.LOGGED_ON:
            self._send_logout_and_disconnect(reason, now)
        else:
            self._disconnect(reason, now, close=True)

    def _send_logout_and_disconnect(self, reason: str, now: Instant) -> None:
        self._send(LOGOUT.write(Logout(text=reason)), now)
        self._disconnect(reason, now, close=True)

    def _disconnect(self, reason: str, now: Instant, *, close: bool = False) -> None:
        if self.state is FixState.DISCONNECTED:
            return
        if close:
            self._effects.append(Disconnect(reason))
        if self.state is not FixState.LOGGING_ON or self._role is FixRole.INITIATOR:
            self._effects.append(LoggedOff(reason))
        self._become(FixState.DISCONNECTED, now)

    def _become(self, state: FixState, now: Instant) -> None:
        self.state, self._state_since = state, now

    # Sequence numbers.

    def _handle_numbered(self, message: FixMessage, number: int, now: Instant) -> None:
        expected = self._store.next_in
        if message.msg_type == SequenceReset.MSG_TYPE and message.get(123) != b"Y" and message.flaw is None:
            self._handle_reset(message, number, now)
        elif number > expected:
            self._handle_early(message, number, now)
        elif number < expected:
            if message.get(Tag.POSS_DUP_FLAG) != b"Y":
                self._refuse_low(number, now)
        else:
            self._handle_in_order(message, number, now)

    def _handle_early(self, message: FixMessage, number: int, now: Instant) -> None:
        """A message is missing before it. A ResendRequest is served at once: both sides may be waiting."""
        if message.msg_type == Logout.MSG_TYPE:
            self._handle_logout(now)
            return
        if message.msg_type == ResendRequest.MSG_TYPE and message.flaw is None:
            try:
                self._start_resend(RESEND_REQUEST.read(message), now)
            except BadFix as refusal:
                self._send_reject(message, number, _flaw_of(refusal), now)
        self._request_resend(number, now)

    def _handle_in_order(self, message: FixMessage, number: int, now: Instant) -> None:
        flaw = message.flaw or poss_dup_flaw(message) or self._act_or_flaw(message, number, now)
        if flaw is not None:
            self._reject(message, number, flaw, now)
        if self._store.next_in > self._gap_through:
            self._resend_requested_at = NEVER
        elif self._resend_requested_at != NEVER:
            self._resend_requested_at = now

    def _act_or_flaw(self, message: FixMessage, number: int, now: Instant) -> Flaw | None:
        try:
            self._store.expect(self._following(message, number))
            self._act(message, number, now)
        except BadFix as refusal:
            return _flaw_of(refusal)
        return None

    def _following(self, message: FixMessage, number: int) -> int:
        """The number that follows this message; a gap fill names it."""
        if message.msg_type != SequenceReset.MSG_TYPE:
            return number + 1
        new = SEQUENCE_RESET.read(message).new_seq_no
        if not number < new <= NUMBER_MAX:
            text = f"NewSeqNo (36) is {new}; it must be more than {number}, and at most {NUMBER_MAX}"
            raise BadFix.of(RejectReason.VALUE_INCORRECT, Tag.NEW_SEQ_NO, text)
        return new

    def _act(self, message: FixMessage, number: int, now: Instant) -> None:
        """Act on a valid message that is in order."""
        kind = message.msg_type
        if kind in self._options.accepts:
            repeated = message.get(Tag.POSS_DUP_FLAG) == b"Y"
            self._effects.append(Received(message, number, repeated, message.get(Tag.POSS_RESEND) == b"Y"))
        elif kind == TestRequest.MSG_TYPE:
            answer = Heartbeat(test_req_id=TEST_REQUEST.read(message).test_req_id)
            self._send(HEARTBEAT.write(answer), now)
        elif kind == ResendRequest.MSG_TYPE:
            self._start_resend(RESEND_REQUEST.read(message), now)
        elif kind in (Reject.MSG_TYPE, BusinessReject.MSG_TYPE):
            self._effects.append(MessageRejected(message))
        elif kind == Logout.MSG_TYPE:
            self._handle_logout(now)
        elif kind in APPLICATION_TYPES:
            self._business_reject(
                message, number, BusinessReason.UNSUPPORTED_TYPE, "this type is not supported here", now
            )
        elif kind not in ADMIN_TYPES:
            raise BadFix.of(RejectReason.INVALID_MSG_TYPE, Tag.MSG_TYPE, "MsgType (35) is not defined in FIX 4.4")

    def _handle_reset(self, message: FixMessage, number: int, now: Instant) -> None:
        """A reset without gap fill is valid whatever its own number is; it never goes back."""
        try:
            new = SEQUENCE_RESET.read(message).new_seq_no
            if not self._store.next_in <= new <= NUMBER_MAX:
                text = f"NewSeqNo (36) is {new}; it must be from {self._store.next_in} to {NUMBER_MAX}"
                raise BadFix.of(RejectReason.VALUE_INCORRECT, Tag.NEW_SEQ_NO, text)
        except BadFix as refusal:
            self._send_reject(message, number, _flaw_of(refusal), now)
            return
        self._store.expect(new)
        self._gap_through, self._resend_requested_at = 0, NEVER

    def _request_resend(self, number: int, now: Instant) -> None:
        """Request everything from the gap on, once; again only after `resend_delay` without progress."""
        self._gap_through = max(self._gap_through, number)
        if self._resend_requested_at == NEVER or now >= self._resend_requested_at + self._options.resend_delay:
            self._resend_requested_at = now
            self._send(RESEND_REQUEST.write(ResendRequest(begin_seq_no=self._store.next_in)), now)

    def _start_resend(self, request: ResendRequest, now: Instant) -> None:
        first, newest = request.begin_seq_no, self._store.next_out - 1
        last = min(request.end_seq_no or newest, newest)
        if first > last:
            text = f"BeginSeqNo (7) is {first}; it must not be more than EndSeqNo (16) or {newest}, the last one sent"
            raise BadFix.of(RejectReason.VALUE_INCORRECT, Tag.BEGIN_SEQ_NO, text)
        self._resend = first, last
        if now != self._resent_at:  # at most one batch per turn, however many requests come
            self._continue_resend(now)

    def _continue_resend(self, now: Instant) -> None:
        """Resend the next batch. Messages sent for the first time meanwhile are appended to the range."""
        if self._resend is None or self._write_blocked:
            return
        self._resent_at = now
        first, last = self._resend
        end = min(first + RESEND_BATCH_MAX - 1, last)
        self._resend = (end + 1, last) if end < last else None
        resent = resent_messages(self._store.kept(first, end), first, end, ours=self.ours, theirs=self.theirs, now=now)
        self._transmit(b"".join(resent), now)

    # Sending.

    def _reject(self, message: FixMessage, number: int, flaw: Flaw, now: Instant) -> None:
        """Reject a message; its number is used up."""
        if number == self._store.next_in:
            self._store.expect(number + 1)
        self._send_reject(message, number, flaw, now)

    def _send_reject(self, message: FixMessage, number: int, flaw: Flaw, now: Instant) -> None:
        reject = Reject(
            ref_seq_num=number,
            ref_tag_id=flaw.tag,
            ref_msg_type=_printable(message.msg_type),
            reason=flaw.reason,
            text=flaw.text,
        )
        self._send(REJECT.write(reject), now)

    def _business_reject(
        self, message: FixMessage, number: int, reason: BusinessReason, text: str, now: Instant
    ) -> None:
        reject = BusinessReject(
            ref_seq_num=number, ref_msg_type=_printable(message.msg_type) or "?", reason=reason, text=text
        )
        self._send(BUSINESS_REJECT.write(reject), now)

    def _send(self, fields: Iterable[Pair], now: Instant) -> int:
        """Number a message, store it if it can be resent, and transmit it if a session is up."""
        fields = list(fields)
        number, kind = self._store.next_out, fields[0][1]
        octets = compose(fields, header(self.ours, self.theirs, number, now))
        admin = kind in ADMIN_TYPES
        self._store.sent(None if admin else octets)
        if self._resend is not None and self.state is FixState.LOGGED_ON and kind != Logout.MSG_TYPE:
            self._resend = self._resend[0], number
            self._sent_at = now
            return number
        self._resend = None
        if self.state is FixState.LOGGED_ON or (admin and self.state is not FixState.DISCONNECTED):
            self._transmit(octets, now)
        return number

    def _transmit(self, octets: bytes, now: Instant) -> None:
        self._sent_at = now
        self._effects.append(Transmit(octets))

    @property
    def _receive_timeout(self) -> Duration:
        """A heartbeat period, and a fifth of it for the network."""
        return self._heartbeat_period + self._heartbeat_period // 5

    def _check_liveness(self, now: Instant) -> None:
        if self._test_sent_at != NEVER and now >= self._test_sent_at + self._receive_timeout:
            self._disconnect("the other side is silent", now, close=True)
        elif self._test_sent_at == NEVER and now >= self._received_at + self._receive_timeout:
            self._test_sent_at = now
            self._send(TEST_REQUEST.write(TestRequest(test_req_id=f"{self._store.next_out}")), now)
        elif now >= self._sent_at + self._heartbeat_period:
            self._send(HEARTBEAT.write(Heartbeat()), now)


def _flaw_of(refusal: BadFix) -> Flaw:
    return refusal.flaw or Flaw(RejectReason.OTHER, None, str(refusal))


def _printable(kind: bytes) -> str | None:
    """A message type as it may be quoted in a message of ours."""
    return TEXT.read(kind)
