"""Messages of fixed layout: frozen dataclasses whose annotations are the layout on the wire.

A format is described once, as the classes of its messages. The codecs of single messages and of whole columns are
derived from that description, so they cannot disagree.

Numbers are big-endian and unsigned. Text is printable ascii, padded with blanks on the right; the padding is not part
of the value.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Protocol, Self, TypeAlias, get_args, get_type_hints

from fairtape.core.errors import FormatError


@dataclass(frozen=True, slots=True)
class Number:
    """An integer; of a price, `decimals` of its digits are after the decimal point."""

    width: int
    decimals: int = 0

    @property
    def most(self) -> int:
        """The largest value that fits."""
        return (1 << 8 * self.width) - 1

    @property
    def wanted(self) -> str:
        """What a value must be."""
        return f"a whole number from 0 to {self.most}"

    def takes(self, value: object) -> bool:
        """Whether this value fits."""
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= self.most

    def read(self, octets: bytes) -> int:
        """The number in these bytes."""
        return int.from_bytes(octets, "big")

    def write(self, value: int) -> bytes:
        """The bytes of a number that fits."""
        return value.to_bytes(self.width, "big")


@dataclass(frozen=True, slots=True)
class Text:
    """Ascii text, without its padding."""

    width: int

    @property
    def wanted(self) -> str:
        """What a value must be."""
        return f"at most {self.width} printable ascii characters that do not end in a blank"

    def takes(self, value: object) -> bool:
        """Whether this value fits, and does not end like its padding."""
        return isinstance(value, str) and len(value) <= self.width and is_printable(value) and not value.endswith(" ")

    def read(self, octets: bytes) -> str:
        """The text in these bytes; `takes` checks whether it is ascii."""
        return octets.decode("latin-1").rstrip(" ")

    def write(self, value: str) -> bytes:
        """The bytes of a text that fits."""
        return value.ljust(self.width).encode("ascii")


def is_printable(text: str) -> bool:
    """Whether every character is printable ascii, blanks included."""
    return text.isascii() and text.isprintable()


FieldKind: TypeAlias = Number | Text

U16: TypeAlias = Annotated[int, Number(2)]
U32: TypeAlias = Annotated[int, Number(4)]
U48: TypeAlias = Annotated[int, Number(6)]
U64: TypeAlias = Annotated[int, Number(8)]
Price4: TypeAlias = Annotated[int, Number(4, decimals=4)]
Price8: TypeAlias = Annotated[int, Number(8, decimals=8)]
Letter: TypeAlias = Annotated[str, Text(1)]
Text2: TypeAlias = Annotated[str, Text(2)]
Text4: TypeAlias = Annotated[str, Text(4)]
Text8: TypeAlias = Annotated[str, Text(8)]


class FixedMessage(Protocol):
    """A message of fixed layout: its type letter, and annotated fields."""

    LETTER: ClassVar[str]

    def __init__(self, *values: Any) -> None: ...


@dataclass(frozen=True)
class Field:
    """One field of one message."""

    name: str
    kind: FieldKind
    start: int  # bytes from the beginning of the message

    @property
    def end(self) -> int:
        """The start of the next field."""
        return self.start + self.kind.width


@dataclass(frozen=True)
class Layout:
    """The layout of the messages of one type."""

    message: type[FixedMessage]
    fields: tuple[Field, ...]
    refusal: type[FormatError]

    @classmethod
    def of(cls, message: type[FixedMessage], refusal: type[FormatError]) -> Self:
        """From the annotations of a class, in order, base classes first."""
        hints = get_type_hints(message, include_extras=True)
        kinds = {name: get_args(hint)[1] for name, hint in hints.items() if name != "LETTER"}
        starts = accumulate((kind.width for kind in kinds.values()), initial=1)
        fields = (Field(name, kind, start) for (name, kind), start in zip(kinds.items(), starts, strict=False))
        return cls(message, tuple(fields), refusal)

    @cached_property
    def letter(self) -> str:
        """The message type: the first byte."""
        return self.message.LETTER

    @cached_property
    def size(self) -> int:
        """The size of a message in bytes, with its letter."""
        return self.fields[-1].end

    def check(self, values: object) -> None:
        """Raise the refusal for values that cannot be encoded."""
        for field in self.fields:
            value = getattr(values, field.name)
            if not field.kind.takes(value):
                raise self.refused(field, repr(value))

    def refused(self, field: Field, found: str) -> FormatError:
        """The error about one field."""
        return self.refusal(f"{field.name} of message {self.letter} is {found}; it must be {field.kind.wanted}")

    def encode(self, values: object) -> bytes:
        """The bytes of checked values."""
        parts = (field.kind.write(getattr(values, field.name)) for field in self.fields)
        return b"".join((self.letter.encode("ascii"), *parts))

    def decode(self, payload: bytes) -> FixedMessage:
        """The message in bytes that begin with its letter."""
        if len(payload) != self.size:
            raise self.refusal(f"message {self.letter} has {len(payload)} bytes; it must have {self.size}")
        return self.message(*(field.kind.read(payload[field.start : field.end]) for field in self.fields))
