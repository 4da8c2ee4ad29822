"""A replay port as a data source: its client, its options, its offsets, its rows, and the readers that Spark calls.

A replay port serves sessions of edge stripes. It names neither the stripes nor the day; both are in the stripe plan,
which customers have. Plans that take over later are looked for beside the one that is named.

An offset is, for each session, the next message to be read. A session ends with a mark that names the plan and the
Breaks of the session that takes over (`fairtape.edge.protocol.sessions`), so a reader at the end of one knows
where to continue without a gap. Sessions that are over stay in the offsets, to show that their successors are known.

The client speaks SoupBinTCP, with one login for each range of numbers. Sequenced messages carry no number: both sides
count. A range is complete when as many messages came as it has numbers. After a disconnection the client logs in again
at the next number; when the server stays away, a `UserError` names that number. No range is ever returned incomplete.

A replay port has no release marks: there is no site, no token, and no time but the trade's own. Those columns are
there and null, so that queries over journals and over replays read alike.
"""

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from fairtape.core.addresses import Address, parse_address
from fairtape.core.errors import UserError
from fairtape.edge.protocol.archive import SESSIONS_MAX
from fairtape.edge.protocol.itch_codec import SessionReaders
from fairtape.edge.protocol.sessions import (
    DEPLOYMENT_MAX,
    MARK,
    OPAQUE,
    BadMark,
    Over,
    SessionName,
    decode_mark,
    decode_opaque,
    in_base_36,
)
from fairtape.edge.service.stripe_plans import plan_beside, read_plan
from fairtape.formats import soupbintcp as soup
from fairtape.formats.itch.messages import BadItch
from fairtape.formats.itch.ticker_messages import CanceledPrint, PrintedTrade
from fairtape.market.stripes import EDGE_MAX, StripePlan
from fairtape.market.trades import PublishedTrade, encode, records
from fairtape.pipeline.schemas import REPLAYED, Arrow
from fairtape.pipeline.source.journal_rows import trade_columns
from fairtape.pipeline.source.options import BATCH_ROWS_MAX, listed, number_in, symbol_of
from fairtape.wire.frames import NUMBER_MAX

CONNECT_SECONDS_MAX: Final = 5.0
SILENCE_SECONDS_MAX: Final = 10.0  # a server sends a heartbeat every second
HEARTBEAT_SECONDS: Final = 1.0
TRIES_MAX: Final = 5  # consecutive tries without a message; a server may be out of connections, or restarting
PAUSE_SECONDS: Final = 0.5  # between two tries
READ_MAX: Final = 256 << 10  # bytes
_RANGE: Final = struct.Struct(">cQ")

ReplayRowKind = Literal["messages", "trades"]


class ServerGone(Exception):
    """The server cannot be reached, or closed the stream. A later try may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayClient:
    """A server and the login for it. Sent to executors."""

    address: Address
    user: str = ""
    password: str = ""

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def present(self, stripe: str) -> str | None:
        """The present session of a stripe (three characters, as in names of sessions); None where there is none."""
        for time_of_day in ("235959", "000000"):  # the server answers with the session of a message near this time
            accepted = self._answer(f"{stripe}@{time_of_day}", 1)
            if accepted is not None:
                return accepted.session
        return None

    def following(self, session: str) -> int | None:
        """The number after the last released message; None where the server knows no such session."""
        accepted = self._answer(session, 0)
        return None if accepted is None else accepted.number

    def messages(self, session: str, first: int, last: int) -> Iterator[list[bytes]]:
        """The messages with these numbers in order: all of them, or a `UserError`."""
        due, tries = first, 0
        while due <= last:
            try:
                for messages in self._range(session, due, last):
                    due += len(messages)
                    tries = 0
                    yield messages
            except ServerGone as reason:
                tries += 1
                if tries == TRIES_MAX:
                    raise UserError(
                        f"replay {self} closed before message {due} of session {session} ({reason}), and the last "
                        f"wanted message is {last}; check that the server runs, and read again"
                    ) from None
                time.sleep(PAUSE_SECONDS)

    def _answer(self, session: str, number: int) -> soup.LoginAccepted | None:
        """The answer to a login; None where there is no such session."""
        for tries in range(1, TRIES_MAX + 1):
            try:
                with self._connected() as stream:
                    return stream.login(session, number)
            except ServerGone as reason:
                if tries == TRIES_MAX:
                    raise UserError(
                        f"replay {self} does not answer ({reason}); check that a retransmit server runs there"
                    ) from None
                time.sleep(PAUSE_SECONDS)
        raise AssertionError

    def _range(self, session: str, first: int, last: int) -> Iterator[list[bytes]]:
        with self._connected() as stream:
            accepted = stream.login(session, first, last)
            if accepted is None:
                raise ServerGone("unknown session or number")
            if (accepted.session, accepted.number) != (session, first):
                raise UserError(
                    f"replay {self} answers with message {accepted.number} of session {accepted.session}, and message "
                    f"{first} of {session} was requested; is it a retransmit server of fairtape?"
                )
            left = last + 1 - first
            while left:
                messages = stream.messages()[:left]  # the server may send more before it reads the end of the range
                left -= len(messages)
                yield messages

    @contextmanager
    def _connected(self) -> "Iterator[_ReplayStream]":
        try:
            connection = socket.create_connection(self.address, CONNECT_SECONDS_MAX)
        except OSError as error:
            raise ServerGone(error.strerror or str(error)) from None
        with connection:
            connection.settimeout(SILENCE_SECONDS_MAX)
            yield _ReplayStream(connection, self)


class _ReplayStream:
    def __init__(self, connection: socket.socket, replay: ReplayClient) -> None:
        self._connection = connection
        self._replay = replay
        self._packets = soup.SoupStream(allowed=soup.FROM_SERVER)
        self._early: list[soup.Packet] = []  # received together with the answer to the login
        self._sent_at = time.monotonic()

    def login(self, session: str, number: int, last: int | None = None) -> soup.LoginAccepted | None:
        """The server's acceptance; None where it knows no such session or number."""
        request = soup.LoginRequest(self._replay.user, self._replay.password, session, number)
        self._send(request, *(() if last is None else (soup.UnsequencedData(_RANGE.pack(b"E", last)),)))
        while True:
            packets = self._received()
            for place, packet in enumerate(packets, 1):
                match packet:
                    case soup.LoginAccepted():
                        self._early = packets[place:]
                        return packet
                    case soup.LoginRejected("A"):
                        raise UserError(
                            f"replay {self._replay} rejects user {self._replay.user!r}; give the user and password "
                            "of the server"
                        )
                    case soup.LoginRejected():
                        return None

    def messages(self) -> list[bytes]:
        """The next messages, at least one."""
        found: list[bytes] = []
        while not found:
            packets, self._early = self._early or self._received(), []
            found = [packet.message for packet in packets if isinstance(packet, soup.SequencedData)]
            if not found and any(isinstance(packet, soup.EndOfSession) for packet in packets):
                raise ServerGone("the session ends before it")
        return found

    def _send(self, *packets: soup.Packet) -> None:
        self._sent_at = time.monotonic()
        try:
            self._connection.sendall(b"".join(map(soup.encode, packets)))
        except OSError as error:
            raise ServerGone(error.strerror or str(error)) from None

    def _received(self) -> list[soup.Packet]:
        """The next packets; none where only a part of a packet came. Sends a heartbeat when one is due."""
        if time.monotonic() >= self._sent_at + HEARTBEAT_SECONDS:
            self._send(soup.ClientHeartbeat())
        try:
            octets = self._connection.recv(READ_MAX)
        except TimeoutError:
            raise ServerGone(f"no data for {SILENCE_SECONDS_MAX:.0f} s") from None
        except OSError as error:
            raise ServerGone(error.strerror or str(error)) from None
        if not octets:
            raise ServerGone("connection closed")
        try:
            return self._packets.feed(octets)
        except soup.BadSoup as refusal:
            raise UserError(f"replay {self._replay} is not SoupBinTCP ({refusal}); name a replay port") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySourceOptions:
    """What to read of a replay port. By default all messages of all stripes of the plan."""

    replay: ReplayClient
    plan: Path
    rows: ReplayRowKind = "messages"
    stripes: tuple[int, ...] | None = None  # of the edge
    symbols: tuple[str, ...] | None = None  # only trades of these
    max_rows: int = BATCH_ROWS_MAX  # of one micro-batch
    tag: str | None = None  # the deployment in the names of sessions; None: asked of the server

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> "ReplaySourceOptions":
        """The options that a user gave to Spark."""
        given = {name.lower(): text for name, text in texts.items()}
        if unknown := sorted(set(given) - set(_READERS) - set(_LOGIN)):
            known = ", ".join((*_READERS, *_LOGIN))
            raise UserError(f"option {unknown[0]!r} is unknown for a replay; it has {known}")
        if "plan" not in given:
            raise UserError(
                "plan is missing; name the file of the stripe plan, which has the stripes and the day: "
                ".option('plan', 'plans/00001.toml')"
            )
        login = {name: given[name] for name in _LOGIN if name in given}
        address = _address("replay", given["replay"])
        chosen = {name: read(name, given[name]) for name, read in _READERS.items() if name in given}
        options = cls(**chosen | {"replay": ReplayClient(address=address, **login)})
        options.check()
        return options

    def check(self) -> None:
        """Refuse options that cannot be sent, and stripes that the plan does not have."""
        try:
            soup.LoginRequest(self.replay.user, self.replay.password)
        except soup.BadSoup as refusal:
            raise UserError(f"user or password cannot be sent: {refusal}") from None
        plan = read_plan(self.plan)
        for number in self.stripes or ():
            if number not in plan.stripes:
                raise UserError(f"stripes names {number}; plan {plan.version} has {', '.join(map(str, plan.stripes))}")

    def plan_of(self, version: int) -> StripePlan | None:
        """The plan of this version: the one that is named, or a file beside it."""
        return plan_beside(self.plan, version)

    def stripes_of(self, plan: StripePlan) -> list[int]:
        """The stripes of a plan that are wanted."""
        return [number for number in plan.stripes if self.stripes is None or number in self.stripes]


def _address(name: str, text: str) -> Address:
    return parse_address(name, text, example="10.0.0.7:17001")


def _rows(name: str, text: str) -> str:
    if text not in get_args(ReplayRowKind):
        raise UserError(f"{name} is {text!r}; of a replay it must be one of {', '.join(get_args(ReplayRowKind))}")
    return text


def _tag(name: str, text: str) -> str:
    if not 1 <= len(text) <= DEPLOYMENT_MAX or not (text.isascii() and text.isalnum()):
        raise UserError(f"{name} is {text!r}; the tag of a deployment has 1 or 2 letters and digits, such as FT")
    return text


_LOGIN: Final = ("user", "password")
_READERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "replay": _address,
    "plan": lambda _, text: Path(text).absolute(),
    "rows": _rows,
    "stripes": lambda name, text: listed(name, text, number_in(1, EDGE_MAX)),
    "symbols": lambda name, text: listed(name, text, symbol_of),
    "max_rows": number_in(1, NUMBER_MAX),
    "tag": _tag,
}


RANGE_ROWS_MAX: Final = 1 << 18  # of one task; a server sends them in a second or two


class Reached(NamedTuple):
    """How far a session was read: the next number, and whether the session is over before it."""

    next: int = 1
    over: bool = False


class SessionRange(NamedTuple):
    """Consecutive numbers of one session."""

    session: str
    first: int
    last: int


Offsets = dict[str, Reached]


def offsets_to_json(offsets: Mapping[str, Reached]) -> dict[str, dict[str, Any]]:
    """Offsets as Spark writes them to a checkpoint."""
    return {name: reached._asdict() for name, reached in sorted(offsets.items())}


def offsets_from_json(kept: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Offsets from a checkpoint."""
    return {name: Reached(int(each["next"]), bool(each["over"])) for name, each in kept.items()}


class Sessions:
    """All sessions that a job reads."""

    def __init__(self, options: ReplaySourceOptions) -> None:
        self._options = options
        self._replay = options.replay
        self._settles = False
        self._target: Offsets | None = None

    def start(self) -> Offsets:
        """The beginning of every session of the plan."""
        plan = read_plan(self._options.plan)
        stripes = self._options.stripes_of(plan)
        tag = self._options.tag or self._tag(stripes[0])
        return {str(SessionName(tag, plan.version, 0, stripe)): Reached() for stripe in stripes}

    def settle(self) -> None:
        """Read no further than to the end at the next call of `latest` (the trigger `availableNow`)."""
        self._settles, self._target = True, None

    def latest(self, start: Offsets, rows_max: int | None = None) -> Offsets:
        """How far all sessions can be read: together at most `rows_max` messages after `start`."""
        if self._settles and self._target is None:
            self._target = self.everything(start)
        ends = self._ends(start) if self._target is None else self._target
        reached: Offsets = {}
        left = rows_max
        for name, end in ends.items():
            begin = start.get(name, Reached())
            cut = left is not None and end.next - begin.next > left
            reached[name] = Reached(begin.next + left) if cut and left is not None else end
            if left is not None:
                left -= reached[name].next - begin.next
        return reached

    def everything(self, start: Offsets) -> Offsets:
        """The present end, through all sessions that followed one another."""
        ends = self._ends(start)
        while (further := self._ends(ends)).keys() != ends.keys():
            ends = further
        return further

    def ranges(self, start: Offsets, end: Offsets) -> Iterator[SessionRange]:
        """The ranges between two offsets, in pieces that can be read in parallel."""
        for name, reached in end.items():
            for first in range(start.get(name, Reached()).next, reached.next, RANGE_ROWS_MAX):
                yield SessionRange(name, first, min(first + RANGE_ROWS_MAX, reached.next) - 1)

    def _ends(self, start: Offsets) -> Offsets:
        """The end of each known session, and the beginning of those that take over."""
        ends = dict(start)
        for name, begin in start.items():
            if begin.over:
                continue
            following = self._replay.following(name)
            if following is None:
                raise UserError(
                    f"replay {self._replay} knows no session {name}; it is still reading its journal, or serves "
                    "another deployment than that of the plan. Try again, or give the tag and the plan of this server"
                )
            if following <= begin.next:
                continue  # nothing new; a server that restarted may be behind
            mark = self._last(name, following - 1)
            ends[name] = Reached(following, over=mark is not None)
            if mark is not None and mark.version:
                self._take_over(ends, name, mark)
        return ends

    def _last(self, session: str, number: int) -> Over | None:
        """The mark that ends a session, if its last message is one."""
        ((message,),) = self._replay.messages(session, number, number)
        mark = decode_mark(message) if message[:1] == MARK else None
        return mark if isinstance(mark, Over) else None

    def _take_over(self, ends: Offsets, session: str, over: Over) -> None:
        """Begin every stripe of the plan that takes over, also those that the last plan did not have."""
        ended = SessionName.parse(session)
        plan = self._options.plan_of(over.version)
        assert ended is not None
        if plan is None:
            raise UserError(
                f"session {session} is over and plan {over.version} takes over, but its file is not beside "
                f"{str(self._options.plan)!r}; put it there"
            )
        for stripe in self._options.stripes_of(plan):
            ends.setdefault(str(SessionName(ended.deployment, over.version, over.breaks, stripe)), Reached())
        if len(ends) > SESSIONS_MAX:
            raise UserError(f"plan began more than {SESSIONS_MAX:,} sessions ago; name the one that is in force")

    def _tag(self, stripe: int) -> str:
        session = SessionName.parse(self._replay.present(in_base_36(stripe, 3)) or "")
        if session is None:
            raise UserError(
                f"replay {self._replay} knows no stripe {stripe}; is the plan that of its deployment? If so, give the "
                "deployment's tag: .option('tag', 'FT')"
            )
        return session.deployment


TRADE: Final = "trade"
CORRECTION: Final = "correction"  # the trade that replaces the one that was broken by the message before
BROKEN: Final = "broken"  # a trade is void; the message has no number of its own in the order
OPAQUE_KIND: Final = "opaque"  # a payload, or a part of it, behind the head of `fairtape.edge.protocol.sessions`
MARK_KIND: Final = "mark"
DIRECTORY: Final = "directory"  # the first and last messages of a session


class _Message(NamedTuple):
    """One decoded message."""

    number: int
    kind: str
    message: bytes
    sequence: int | None = None  # in the order, where the message names its own
    source: int | None = None
    trade: PublishedTrade | None = None


def replayed(wanted: SessionRange, options: ReplaySourceOptions) -> Iterator[Arrow]:
    """The chosen rows of a range, as record batches of the schema that `options.rows` names."""
    decoder = _Decoder(wanted.session, options)
    number = max(wanted.first - 1, 1)  # the message before shows whether the first one corrects a trade
    for messages in options.replay.messages(wanted.session, number, wanted.last):
        decoded = [decoder.decode(each, message) for each, message in enumerate(messages, number)]
        number += len(messages)
        chosen = [each for each in decoded if each.number >= wanted.first and _is_chosen(each, options)]
        if chosen:
            yield _batch(chosen, wanted.session, options)


def _is_chosen(message: _Message, options: ReplaySourceOptions) -> bool:
    if options.symbols is not None and (message.trade is None or message.trade.symbol not in options.symbols):
        return False
    return options.rows == "messages" or message.kind == TRADE


class _Decoder:
    """Decodes the messages of one session in order."""

    def __init__(self, session: str, options: ReplaySourceOptions) -> None:
        self._session = session
        self._options = options
        self._reader = SessionReaders(options.plan_of).of(session)
        self._corrects = False

    def decode(self, number: int, message: bytes) -> _Message:
        try:
            return self._decode(number, message)
        except (BadItch, BadMark) as error:
            raise UserError(
                f"replay {self._options.replay} gives message {number} of session {self._session}, which cannot be "
                f"read ({error}); is the plan the right one?"
            ) from None

    def _decode(self, number: int, message: bytes) -> _Message:
        if message[:1] == MARK:
            return _Message(number, MARK_KIND, message, decode_mark(message).sequence)
        if message[:1] == OPAQUE:
            opaque = decode_opaque(message)
            return _Message(number, OPAQUE_KIND, message, opaque.sequence, opaque.source)
        corrects, self._corrects = self._corrects, False
        match self._reader.read(message):
            case PrintedTrade(sequence, trade):
                return _Message(number, CORRECTION if corrects else TRADE, message, sequence, None, trade)
            case CanceledPrint(corrected=corrected):
                self._corrects = corrected
                return _Message(number, BROKEN, message)
            case _:
                return _Message(number, DIRECTORY, message)


def _batch(messages: Sequence[_Message], session: str, options: ReplaySourceOptions) -> Arrow:
    schema = REPLAYED[options.rows]
    name = SessionName.parse(session)
    assert name is not None
    columns: dict[str, Any] = {
        "stripe": pa.array([name.stripe] * len(messages), pa.int32()),
        "session": pa.array([session] * len(messages)),
        "stripe_number": pa.array([each.number for each in messages]),
        "sequence": pa.array([each.sequence for each in messages], pa.int64()),
        "kind": pa.array([each.kind for each in messages]),
        "source": pa.array([each.source for each in messages], pa.int64()),
        "payload": pa.array([each.message for each in messages], pa.binary()),
    }
    if options.rows == "trades":
        columns |= trade_columns(records(b"".join(encode(each.trade) for each in messages if each.trade is not None)))
    return pa.RecordBatch.from_arrays(
        [columns.get(field.name, pa.nulls(len(messages), field.type)) for field in schema], schema=schema
    )


class ReplayTask(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: SessionRange) -> None:
        self.wanted = wanted


class ReplayBatchReader(DataSourceReader):
    """Everything that was released at the time of planning, in all sessions since the plan began."""

    def __init__(self, options: ReplaySourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of sessions."""
        sessions = Sessions(self._options)
        start = sessions.start()
        return [ReplayTask(each) for each in sessions.ranges(start, sessions.everything(start))]

    def read(self, partition: InputPartition) -> Iterator[Arrow]:
        """The rows of one task."""
        return _read(partition, self._options)


class ReplayStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Messages as they are released."""

    def __init__(self, options: ReplaySourceOptions) -> None:
        self._options = options
        self._sessions = Sessions(options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where reading begins without a checkpoint."""
        return offsets_to_json(self._sessions.start())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Rows of a micro-batch."""
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the next micro-batch."""
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return offsets_to_json(self._sessions.latest(_offsets(start), rows_max))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read to the present end and stop."""
        self._sessions.settle()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch."""
        return [ReplayTask(each) for each in self._sessions.ranges(_offsets(start), _offsets(end))]

    def read(self, partition: InputPartition) -> Iterator[Arrow]:
        """The rows of one task."""
        return _read(partition, self._options)


def _offsets(kept: dict[str, Any] | str) -> Offsets:
    return offsets_from_json(json.loads(kept) if isinstance(kept, str) else kept)


def _read(partition: InputPartition | None, options: ReplaySourceOptions) -> Iterator[Arrow]:
    if isinstance(partition, ReplayTask):  # without partitions Spark runs one task with None
        yield from replayed(partition.wanted, options)
