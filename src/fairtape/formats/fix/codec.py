"""FIX tag=value: messages out of a stream of bytes, and back. The words are those of FIX 4.4.

Two kinds of wrong are told apart, as the specification does. A *garbled* message (its first three fields, its length or
its check sum are not right) is as if it had never come: it is skipped and counted, and so is whatever stands between
messages. A *flawed* one is whole, but breaks a rule about its fields: it is handed on with its flaw, because its number
counts and its sender must be told.

How it is fast: most messages of a stream are of few shapes. A shape is the tags of a message in their order, and all
that can be said about the tags alone (the header comes first, nothing stands there twice, what lies where) is said once
per shape. A shape that keeps coming becomes an expression, which takes a message apart in one match. The check sum is
one call, too: Adler-32 of at most 256 bytes holds their sum. Fields that may hold separators (data fields) are read one
by one, by the length that stands before them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from zlib import adler32

from fairtape.core.errors import FormatError
from fairtape.formats.fix.dictionary import (
    DATA,
    HEADER,
    LENGTH_OF,
    REPEATABLE,
    TAG_MAX,
    RejectReason,
    Tag,
    is_defined,
)

BEGIN_STRING: Final = b"FIX.4.4"
SOH: Final = b"\x01"
MESSAGE_MAX: Final = 64 << 10  # bytes of one message's body
SHAPES_MAX: Final = 256  # that one stream remembers; others are worked out each time
USUAL_SHAPES_MAX: Final = 32  # that become expressions: making one costs as much as reading hundreds of messages
USUAL_OF_TYPE_MAX: Final = 4  # expressions that are tried for a message
USUAL_AFTER: Final = 32  # messages of one shape
BODY_MIN: Final = len(b"35=0\x01")

Pair: TypeAlias = tuple[int, bytes]
_Matcher: TypeAlias = Callable[[bytes], "re.Match[bytes] | None"]

_TRAILER_SIZE: Final = len(b"10=000\x01")
_TRAILERS: Final = tuple(b"10=%03d\x01" % total for total in range(256))
_SUMMED_AT_ONCE: Final = 256  # bytes: 256 × 255 is the last sum below Adler's modulus, 65521

# A whole beginning, or (without a length) what may become one when more comes.
_HEAD: Final = re.compile(
    rb"8=(FIX[^\x01=]{1,12})\x019=([0-9]{1,6})\x01(?=35=)"
    rb"|8(?:=(?:F(?:I(?:X[^\x01=]{0,12}(?:\x01(?:9(?:=(?:[0-9]{1,6}(?:\x01(?:35?)?)?)?)?)?)?)?)?)?)?\Z"
)
_TAG: Final = re.compile(rb"[1-9][0-9]{0,4}")
_TYPE_SIZE: Final = len(b"35=AE")  # where types differ
_USUAL_FIELDS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong with the fields of a message that is otherwise whole."""

    reason: RejectReason
    tag: int | None  # the field in question
    text: str


class BadFix(FormatError):
    """Bytes that are no message of FIX, or values that none can carry."""

    def __init__(self, text: str, flaw: Flaw | None = None) -> None:
        super().__init__(text)
        self.flaw = flaw  # None: garbled

    @classmethod
    def of(cls, reason: RejectReason, tag: int | None, text: str) -> "BadFix":
        """The refusal of one field."""
        return cls(text, Flaw(reason, tag, text))


@dataclass(frozen=True, slots=True)
class Shape:
    """The tags of a message, and what follows from them."""

    tags: tuple[int, ...]
    places: Mapping[int, int]  # of each tag, where it first stands
    flaw: Flaw | None

    @classmethod
    def of(cls, tags: tuple[int, ...]) -> "Shape":
        """Look at the tags once."""
        places: dict[int, int] = {}
        for place, tag in enumerate(tags):
            places.setdefault(tag, place)
        return cls(tags, places, _flaw_of(tags, places))


@dataclass(slots=True)
class FixMessage:
    """A whole message, from its type to the last field before its check sum.

    A value that nobody changes; that it is not frozen saves a tenth of the time that reading takes.
    """

    begin_string: bytes
    shape: Shape
    values: tuple[bytes, ...]
    flaw: Flaw | None = None

    @property
    def msg_type(self) -> bytes:
        """MsgType, which is always the first."""
        return self.values[0]

    @property
    def pairs(self) -> Iterator[Pair]:
        """All fields in their order."""
        return zip(self.shape.tags, self.values, strict=True)

    def get(self, tag: int) -> bytes | None:
        """The value of a field; of a repeated one the first."""
        place = self.shape.places.get(tag)
        return None if place is None else self.values[place]


def checksum(octets: bytes) -> int:
    """The sum of all bytes, modulo 256."""
    if len(octets) <= _SUMMED_AT_ONCE:
        return adler32(octets, 0) & 0xFF
    parts = range(0, len(octets), _SUMMED_AT_ONCE)
    return sum(adler32(octets[at : at + _SUMMED_AT_ONCE], 0) & 0xFFFF for at in parts) & 0xFF


def encode(pairs: Iterable[Pair], *, begin_string: bytes = BEGIN_STRING) -> bytes:
    """The bytes of a message: its fields from MsgType on, with the length before and the check sum behind them."""
    parts: list[bytes] = []
    before: Pair = (0, b"")
    for tag, value in pairs:
        _check_value(tag, value, before)
        parts.append(b"%d=%b\x01" % (tag, value))
        before = (tag, value)
    body = b"".join(parts)
    if not body.startswith(b"35="):
        raise BadFix("the first field is not MsgType (35); every message must begin with its type")
    if len(body) > MESSAGE_MAX:
        raise BadFix(f"the message has {len(body)} bytes; it must have at most {MESSAGE_MAX}")
    octets = b"8=%b\x019=%d\x01%b" % (begin_string, len(body), body)
    return octets + _TRAILERS[checksum(octets)]


def decode(octets: bytes) -> FixMessage:
    """The one message in these bytes. Raises `BadFix` for anything else, and for a flawed one."""
    stream = FixStream()
    messages = stream.feed(octets)
    if len(messages) != 1 or stream.counts != StreamCounts(messages=1) or stream.waiting:
        raise BadFix(f"{octets[:64]!r} is not one whole message of FIX with its length and check sum")
    (message,) = messages
    if message.flaw is not None:
        raise BadFix(message.flaw.text, message.flaw)
    return message


@dataclass(slots=True)
class StreamCounts:
    """What came of the bytes."""

    messages: int = 0
    garbled: int = 0  # messages whose length or check sum is wrong
    junk: int = 0  # bytes between messages


@dataclass(slots=True)
class _Met:
    """A shape, and how often it came."""

    shape: Shape
    times: int = 0


@dataclass(slots=True)
class FixStream:
    """The messages in one direction of a connection, however the bytes are cut. Never raises.

    No more than one message is kept. A message whose length is wrong is looked through for the next one; a message
    whose check sum alone is wrong is skipped as a whole, for what stands in its data fields is not to be believed. The
    sum is only taken where the trailer is, so hostile bytes cost no more than good ones.
    """

    body_max: int = MESSAGE_MAX
    counts: StreamCounts = field(default_factory=StreamCounts)
    _rest: bytearray = field(default_factory=bytearray)
    _wanted: int = 0  # bytes without which another look at the rest is in vain
    _shapes: dict[tuple[int, ...], _Met] = field(default_factory=dict)
    _usual: dict[bytes, list[tuple[_Matcher, Shape]]] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """The bytes of a message that has begun."""
        return len(self._rest)

    def feed(self, octets: bytes) -> list[FixMessage]:
        """The messages that these bytes complete."""
        if self._rest:
            self._rest += octets
            if len(self._rest) < self._wanted:
                return []
            octets = bytes(self._rest)
        messages: list[FixMessage] = []
        done = self._read_all(octets, messages)
        self._rest = bytearray(octets[done:])
        self.counts.messages += len(messages)
        return messages

    def _read_all(self, buffer: bytes, messages: list[FixMessage]) -> int:
        """How much of the buffer is over and done with."""
        at, size, find = 0, len(buffer), _HEAD.search
        while at < size:
            head = find(buffer, at)
            if head is None:
                self.counts.junk += size - at
                return size
            begun, start = head.span()
            if begun != at:
                self.counts.junk += begun - at
            if head[2] is None:
                self._wanted = 0
                return begun
            length = int(head[2])
            end = start + length
            at = end + _TRAILER_SIZE
            if not BODY_MIN <= length <= self.body_max:
                self.counts.garbled += 1
                at = start
            elif at > size:
                self._wanted = at - begun
                return begun
            elif not buffer.startswith(b"\x0110=", end - 1):
                self.counts.garbled += 1
                at = start
            elif buffer.startswith(_TRAILERS[checksum(buffer[begun:end])], end):
                messages.append(self._message(head[1], buffer[start : end - 1]))
            else:
                self.counts.garbled += 1
        return at

    def _message(self, begin_string: bytes, body: bytes) -> FixMessage:
        """The message with this body, which lacks its last separator."""
        for match, shape in self._usual.get(body[:_TYPE_SIZE], ()):
            if found := match(body):
                return FixMessage(begin_string, shape, found.groups(), shape.flaw)
        tags, values, flaw = _read_fields(body)
        met = self._shapes.get(tags)
        if met is None:
            met = _Met(Shape.of(tags))
            if len(self._shapes) < SHAPES_MAX and len(tags) <= _USUAL_FIELDS_MAX:
                self._shapes[tags] = met
        met.times += 1
        if met.times == USUAL_AFTER:
            self._expect(body[:_TYPE_SIZE], met.shape)
        return FixMessage(begin_string, met.shape, values, flaw or met.shape.flaw)

    def _expect(self, type_: bytes, shape: Shape) -> None:
        """More messages of this shape will come."""
        usual = self._usual.setdefault(type_, [])
        room = len(usual) < USUAL_OF_TYPE_MAX and sum(map(len, self._usual.values())) < USUAL_SHAPES_MAX
        plain = all(tag not in DATA and tag not in LENGTH_OF for tag in shape.tags)
        if room and plain:
            expression = SOH.join(b"%d=([^\x01]+)" % tag for tag in shape.tags)
            usual.append((re.compile(expression).fullmatch, shape))


def _flaw_of(tags: Sequence[int], places: Mapping[int, int]) -> Flaw | None:
    """The first rule about tags that these break."""
    in_header = True
    for place, tag in enumerate(tags):
        if places[tag] != place and tag not in REPEATABLE:
            return Flaw(RejectReason.TAG_TWICE, tag, f"field {tag} appears more than once")
        if tag == Tag.CHECK_SUM or (tag in HEADER and not in_header):
            return Flaw(RejectReason.TAG_OUT_OF_ORDER, tag, f"field {tag} is out of the required order")
        in_header = in_header and tag in HEADER
        if not is_defined(tag):
            return Flaw(RejectReason.INVALID_TAG, tag, f"field {tag} is not defined in FIX 4.4")
    return None


def _read_fields(body: bytes) -> tuple[tuple[int, ...], tuple[bytes, ...], Flaw | None]:
    """Field by field. The first flaw is the one that is told; what stands behind it is read as far as it can be."""
    tags: list[int] = []
    values: list[bytes] = []
    flaw: Flaw | None = None
    at = 0
    while at <= len(body):
        try:
            tag, start = _tag_at(body, at)
            end = _end_of_value(body, start, tag, tags, values)
        except BadFix as refusal:
            flaw = flaw or refusal.flaw
            end = body.find(SOH, at)
            at = (end if end >= 0 else len(body)) + 1
            continue
        tags.append(tag)
        values.append(body[start:end])
        if end == start and flaw is None:
            flaw = Flaw(RejectReason.TAG_WITHOUT_VALUE, tag, f"field {tag} has no value")
        at = end + 1
    if flaw is None and tags[-1] in DATA:
        flaw = _unfollowed(tags[-1])
    return tuple(tags), tuple(values), flaw


def _tag_at(body: bytes, at: int) -> tuple[int, int]:
    """The tag of the field that begins here, and where its value begins."""
    match = _TAG.match(body, at)
    if match is None or body[match.end() : match.end() + 1] != b"=":
        shown = body[at : at + 16].partition(SOH)[0]
        raise BadFix.of(RejectReason.INVALID_TAG, None, f"{shown!r} does not begin with a number and an equals sign")
    return int(match[0]), match.end() + 1


def _end_of_value(body: bytes, start: int, tag: int, tags: Sequence[int], values: Sequence[bytes]) -> int:
    """Where the value ends: at the next separator, or as many bytes on as the field before says."""
    if tags and tags[-1] in DATA and DATA[tags[-1]] != tag:
        flaw = _unfollowed(tags[-1])
        raise BadFix(flaw.text, flaw)
    if tag not in LENGTH_OF:
        end = body.find(SOH, start)
        return end if end >= 0 else len(body)
    length_tag = LENGTH_OF[tag]
    if not tags or tags[-1] != length_tag:
        text = f"field {length_tag}, the length, must stand before field {tag}"
        raise BadFix.of(RejectReason.REQUIRED_TAG_MISSING, length_tag, text)
    said = values[-1]
    end = start + int(said) if said.isdigit() and len(said) <= 6 else -1
    if not start < end <= len(body) or body[end : end + 1] not in (SOH, b""):
        text = f"field {length_tag} is {said[:16]!r}, which is not the length of field {tag}"
        raise BadFix.of(RejectReason.INCORRECT_DATA_FORMAT, length_tag, text)
    return end


def _unfollowed(length_tag: int) -> Flaw:
    data_tag = DATA[length_tag]
    return Flaw(RejectReason.REQUIRED_TAG_MISSING, data_tag, f"field {data_tag} must follow field {length_tag}")


def _check_value(tag: int, value: bytes, before: Pair) -> None:
    """Refuse what a reader would not take for this field."""
    if not 1 <= tag <= TAG_MAX:
        raise BadFix(f"the tag is {tag}; it must be from 1 to {TAG_MAX}")
    if not value:
        raise BadFix(f"field {tag} is empty; leave out a field that has no value")
    if tag in LENGTH_OF:
        if before != (LENGTH_OF[tag], b"%d" % len(value)):
            raise BadFix(f"field {tag} has {len(value)} bytes; field {LENGTH_OF[tag]} before it must say so")
    elif SOH in value:
        raise BadFix(f"field {tag} is {value[:64]!r}; it must not hold the separator, byte 1")
