"""FIX tag=value: decodes messages from a stream of bytes, and encodes them. The terms are those of FIX 4.4.

Two kinds of errors are distinguished, as in the specification. A *garbled* message (its first three fields, its length
or its check sum are wrong) is ignored: it is skipped and counted, and so are bytes between messages. A *flawed*
message is complete, but breaks a rule about its fields: it is returned with its flaw, because its sequence number
counts and its sender must get a reject.

Performance: most messages of a stream have one of few shapes. A shape is the sequence of tags of a message. Everything
that depends on the tags alone (the header comes first, no tag is repeated, the index of each tag) is computed once per
shape. A frequent shape is compiled to a regular expression, which parses a message in one match. The check sum is one
call: Adler-32 of at most 256 bytes contains their sum. Data fields, which may contain separators, are read one by one,
by the length field before them.
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
SHAPES_MAX: Final = 256  # cached per stream; others are computed each time
USUAL_SHAPES_MAX: Final = 32  # compiled to expressions: compiling one costs as much as reading hundreds of messages
USUAL_OF_TYPE_MAX: Final = 4  # expressions that are tried for a message
USUAL_AFTER: Final = 32  # messages of one shape before it is compiled
BODY_MIN: Final = len(b"35=0\x01")

Pair: TypeAlias = tuple[int, bytes]
_Matcher: TypeAlias = Callable[[bytes], "re.Match[bytes] | None"]

_TRAILER_SIZE: Final = len(b"10=000\x01")
_TRAILERS: Final = tuple(b"10=%03d\x01" % total for total in range(256))
_SUMMED_AT_ONCE: Final = 256  # bytes: 256 × 255 is the last sum below Adler's modulus, 65521

# A complete beginning, or (without a length) a prefix of one at the end of the buffer.
_HEAD: Final = re.compile(
    rb"8=(FIX[^\x01=]{1,12})\x019=([0-9]{1,6})\x01(?=35=)"
    rb"|8(?:=(?:F(?:I(?:X[^\x01=]{0,12}(?:\x01(?:9(?:=(?:[0-9]{1,6}(?:\x01(?:35?)?)?)?)?)?)?)?)?)?)?\Z"
)
_TAG: Final = re.compile(rb"[1-9][0-9]{0,4}")
_TYPE_SIZE: Final = len(b"35=AE")  # enough to distinguish types
_USUAL_FIELDS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong with the fields of a complete message."""

    reason: RejectReason
    tag: int | None  # the field in question
    text: str


class BadFix(FormatError):
    """Bytes that are no FIX message, or values that cannot be encoded."""

    def __init__(self, text: str, flaw: Flaw | None = None) -> None:
        super().__init__(text)
        self.flaw = flaw  # None: garbled

    @classmethod
    def of(cls, reason: RejectReason, tag: int | None, text: str) -> "BadFix":
        """The refusal of one field."""
        return cls(text, Flaw(reason, tag, text))


@dataclass(frozen=True, slots=True)
class Shape:
    """The tags of a message, and everything that depends on them alone."""

    tags: tuple[int, ...]
    places: Mapping[int, int]  # the first index of each tag
    flaw: Flaw | None

    @classmethod
    def of(cls, tags: tuple[int, ...]) -> "Shape":
        places: dict[int, int] = {}
        for place, tag in enumerate(tags):
            places.setdefault(tag, place)
        return cls(tags, places, _flaw_of(tags, places))


@dataclass(slots=True)
class FixMessage:
    """A complete message, from its type to the last field before its check sum.

    Treated as immutable. It is not frozen, because that would add 10 % to the time of decoding.
    """

    begin_string: bytes
    shape: Shape
    values: tuple[bytes, ...]
    flaw: Flaw | None = None

    @property
    def msg_type(self) -> bytes:
        """MsgType, which is always the first field."""
        return self.values[0]

    @property
    def pairs(self) -> Iterator[Pair]:
        """All fields in order."""
        return zip(self.shape.tags, self.values, strict=True)

    def get(self, tag: int) -> bytes | None:
        """The value of a field; the first one of a repeated field."""
        place = self.shape.places.get(tag)
        return None if place is None else self.values[place]


def checksum(octets: bytes) -> int:
    """The sum of all bytes, modulo 256."""
    if len(octets) <= _SUMMED_AT_ONCE:
        return adler32(octets, 0) & 0xFF
    parts = range(0, len(octets), _SUMMED_AT_ONCE)
    return sum(adler32(octets[at : at + _SUMMED_AT_ONCE], 0) & 0xFFFF for at in parts) & 0xFF


def encode(pairs: Iterable[Pair], *, begin_string: bytes = BEGIN_STRING) -> bytes:
    """The bytes of a message: its fields from MsgType on, with the length before and the check sum after them."""
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
    """The single message in these bytes. Raises `BadFix` for anything else, and for a flawed message."""
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
    """Counts of a stream."""

    messages: int = 0
    garbled: int = 0  # messages whose length or check sum is wrong
    junk: int = 0  # bytes between messages


@dataclass(slots=True)
class _SeenShape:
    """A shape, and how often it occurred."""

    shape: Shape
    times: int = 0


@dataclass(slots=True)
class FixStream:
    """The messages in one direction of a connection, from chunks of any size. Never raises.

    At most one message is buffered. A message with a wrong length is searched for the next one. A message with only a
    wrong check sum is skipped as a whole, because its data fields could contain a forged message. The sum is computed
    only where a trailer is, so hostile bytes cost no more than good ones.
    """

    body_max: int = MESSAGE_MAX
    counts: StreamCounts = field(default_factory=StreamCounts)
    _rest: bytearray = field(default_factory=bytearray)
    _wanted: int = 0  # bytes that the rest must have before it is worth parsing
    _shapes: dict[tuple[int, ...], _SeenShape] = field(default_factory=dict)
    _usual: dict[bytes, list[tuple[_Matcher, Shape]]] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """The number of buffered bytes of an incomplete message."""
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
        """Append the messages of the buffer; the number of bytes that are done."""
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
        seen = self._shapes.get(tags)
        if seen is None:
            seen = _SeenShape(Shape.of(tags))
            if len(self._shapes) < SHAPES_MAX and len(tags) <= _USUAL_FIELDS_MAX:
                self._shapes[tags] = seen
        seen.times += 1
        if seen.times == USUAL_AFTER:
            self._compile(body[:_TYPE_SIZE], seen.shape)
        return FixMessage(begin_string, seen.shape, values, flaw or seen.shape.flaw)

    def _compile(self, type_: bytes, shape: Shape) -> None:
        """Compile a frequent shape to an expression, within the limits."""
        usual = self._usual.setdefault(type_, [])
        allowed = len(usual) < USUAL_OF_TYPE_MAX and sum(map(len, self._usual.values())) < USUAL_SHAPES_MAX
        plain = all(tag not in DATA and tag not in LENGTH_OF for tag in shape.tags)
        if allowed and plain:
            expression = SOH.join(b"%d=([^\x01]+)" % tag for tag in shape.tags)
            usual.append((re.compile(expression).fullmatch, shape))


def _flaw_of(tags: Sequence[int], places: Mapping[int, int]) -> Flaw | None:
    """The first broken rule about tags."""
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
    """Parse field by field. The first flaw is returned; the fields after it are read as far as possible."""
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
        flaw = _missing_data(tags[-1])
    return tuple(tags), tuple(values), flaw


def _tag_at(body: bytes, at: int) -> tuple[int, int]:
    """The tag of the field at this position, and the start of its value."""
    match = _TAG.match(body, at)
    if match is None or body[match.end() : match.end() + 1] != b"=":
        shown = body[at : at + 16].partition(SOH)[0]
        raise BadFix.of(RejectReason.INVALID_TAG, None, f"{shown!r} does not begin with a number and an equals sign")
    return int(match[0]), match.end() + 1


def _end_of_value(body: bytes, start: int, tag: int, tags: Sequence[int], values: Sequence[bytes]) -> int:
    """The end of the value: at the next separator, or by the length field before it."""
    if tags and tags[-1] in DATA and DATA[tags[-1]] != tag:
        flaw = _missing_data(tags[-1])
        raise BadFix(flaw.text, flaw)
    if tag not in LENGTH_OF:
        end = body.find(SOH, start)
        return end if end >= 0 else len(body)
    length_tag = LENGTH_OF[tag]
    if not tags or tags[-1] != length_tag:
        text = f"field {length_tag}, the length, must stand before field {tag}"
        raise BadFix.of(RejectReason.REQUIRED_TAG_MISSING, length_tag, text)
    length = values[-1]
    end = start + int(length) if length.isdigit() and len(length) <= 6 else -1
    if not start < end <= len(body) or body[end : end + 1] not in (SOH, b""):
        text = f"field {length_tag} is {length[:16]!r}, which is not the length of field {tag}"
        raise BadFix.of(RejectReason.INCORRECT_DATA_FORMAT, length_tag, text)
    return end


def _missing_data(length_tag: int) -> Flaw:
    data_tag = DATA[length_tag]
    return Flaw(RejectReason.REQUIRED_TAG_MISSING, data_tag, f"field {data_tag} must follow field {length_tag}")


def _check_value(tag: int, value: bytes, before: Pair) -> None:
    """Raise `BadFix` for what a decoder would not accept."""
    if not 1 <= tag <= TAG_MAX:
        raise BadFix(f"the tag is {tag}; it must be from 1 to {TAG_MAX}")
    if not value:
        raise BadFix(f"field {tag} is empty; leave out a field that has no value")
    if tag in LENGTH_OF:
        if before != (LENGTH_OF[tag], b"%d" % len(value)):
            raise BadFix(f"field {tag} has {len(value)} bytes; field {LENGTH_OF[tag]} before it must say so")
    elif SOH in value:
        raise BadFix(f"field {tag} is {value[:64]!r}; it must not hold the separator, byte 1")
