"""Messages of FIX as values: a frozen dataclass whose annotations say which field is which, and of what kind.

A message is described once; what reads and what writes it are derived from the description. A field without a default
is required. Reading takes what the description names and leaves the rest alone, because a sender may say more than a
reader needs; what is named must be of its kind, or the message is refused with the reason that FIX has for it.

Prices and quantities are fixed-point integers (one unit is 1e-9), instants are integer nanoseconds: exact, both ways.
"""

import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Generic, Protocol, TypeVar, get_args, get_origin, get_type_hints

from fairtape.core.instants import Instant
from fairtape.formats.fix.codec import BadFix, FixMessage, Pair
from fairtape.formats.fix.dictionary import RejectReason
from fairtape.formats.fix.timestamps import INSTANT_MAX, format_instant, parse_instant
from fairtape.formats.fixed_layout import is_ink
from fairtape.market.prices import FIXED_MAX, FIXED_MIN, BadNumber, format_fixed, parse_fixed

INTEGER_MAX: Final = (1 << 63) - 1
_INTEGER: Final = re.compile(rb"-?[0-9]{1,19}")
_DECIMAL: Final = re.compile(rb"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")  # FIX knows no exponents and no plus

_V = TypeVar("_V")


class Kind(Protocol[_V]):
    """How the value of a field is written."""

    wanted: str  # what a value must be

    def read(self, octets: bytes) -> _V | None:
        """The value; None where these bytes are none of this kind."""

    def write(self, value: _V) -> bytes | None:
        """The bytes; None where the value has none."""


@dataclass(frozen=True, slots=True)
class TextKind:
    """Printable ascii."""

    wanted: str = "printable ascii characters"

    def read(self, octets: bytes) -> str | None:
        """The text in these bytes."""
        text = octets.decode("latin-1")
        return text if text and is_ink(text) else None

    def write(self, value: str) -> bytes | None:
        """The bytes of this text."""
        return value.encode("ascii") if value and is_ink(value) else None


@dataclass(frozen=True, slots=True)
class IntegerKind:
    """A whole number."""

    least: int = 0
    most: int = INTEGER_MAX
    wanted: str = "a whole number that is neither negative nor beyond 63 bits"

    def read(self, octets: bytes) -> int | None:
        """The number in these bytes."""
        value = int(octets) if _INTEGER.fullmatch(octets) else None
        return value if value is not None and self.least <= value <= self.most else None

    def write(self, value: int) -> bytes | None:
        """The bytes of this number."""
        return b"%d" % value if self.least <= value <= self.most else None


@dataclass(frozen=True, slots=True)
class FixedKind:
    """A decimal number, exactly."""

    wanted: str = "a decimal number with at most 9 digits behind its point"

    def read(self, octets: bytes) -> int | None:
        """The number in these bytes, in units of 1e-9."""
        if not _DECIMAL.fullmatch(octets):
            return None
        try:
            return parse_fixed(octets.decode("ascii"))
        except BadNumber:
            return None

    def write(self, value: int) -> bytes | None:
        """The bytes of this number."""
        return format_fixed(value).encode("ascii") if FIXED_MIN <= value <= FIXED_MAX else None


@dataclass(frozen=True, slots=True)
class InstantKind:
    """A UTCTimestamp."""

    wanted: str = "a timestamp such as 20240105-14:30:00.123"

    def read(self, octets: bytes) -> Instant | None:
        """The instant in these bytes."""
        return parse_instant(octets)

    def write(self, value: Instant) -> bytes | None:
        """The bytes of this instant."""
        return format_instant(value) if 0 <= value <= INSTANT_MAX else None


@dataclass(frozen=True, slots=True)
class FlagKind:
    """Y or N."""

    wanted: str = "Y or N"

    def read(self, octets: bytes) -> bool | None:
        """Whether these bytes say yes."""
        return {b"Y": True, b"N": False}.get(octets)

    def write(self, value: bool) -> bytes | None:
        """The bytes of yes and no."""
        return b"Y" if value else b"N"


_E = TypeVar("_E", bound=Enum)


@dataclass(frozen=True)
class CodeKind(Generic[_E]):
    """One of the codes that an enumeration names: text, or whole numbers."""

    codes: type[_E]

    @cached_property
    def wanted(self) -> str:
        """All codes."""
        return "one of " + ", ".join(str(code.value) for code in self.codes)

    @cached_property
    def _known(self) -> dict[bytes, _E]:
        return {str(code.value).encode("ascii"): code for code in self.codes}

    def read(self, octets: bytes) -> _E | None:
        """The code in these bytes."""
        return self._known.get(octets)

    def write(self, value: _E) -> bytes | None:
        """The bytes of a code."""
        return str(value.value).encode("ascii")


@dataclass(frozen=True, slots=True)
class FixField:
    """Which field of FIX an attribute is."""

    tag: int
    kind: Kind[Any]


TEXT: Final = TextKind()
INTEGER: Final = IntegerKind()
POSITIVE: Final = IntegerKind(least=1, wanted="a whole number from 1 on")
FIXED: Final = FixedKind()
INSTANT: Final = InstantKind()
FLAG: Final = FlagKind()


class Described(Protocol):
    """A message of FIX: the type that it has, and annotated fields."""

    MSG_TYPE: ClassVar[bytes]

    def __init__(self, **values: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Attribute:
    """One field of one message."""

    name: str
    tag: int
    kind: Kind[Any]
    required: bool


_D = TypeVar("_D", bound=Described)


@dataclass(frozen=True, slots=True)
class FixLayout(Generic[_D]):
    """Which fields the messages of one type have."""

    message: type[_D]
    attributes: tuple[Attribute, ...]

    @classmethod
    def of(cls, message: type[_D]) -> "FixLayout[_D]":
        """Read off the annotations of a dataclass."""
        hints = get_type_hints(message, include_extras=True)
        attributes = []
        for each in fields(message):  # type: ignore[arg-type]  # a dataclass, which a protocol cannot say
            field = _field_of(hints[each.name])
            attributes.append(Attribute(each.name, field.tag, field.kind, each.default is MISSING))
        return cls(message, tuple(attributes))

    def read(self, message: FixMessage) -> _D:
        """The value of a message of this type. Raises `BadFix` with the flaw of a field that is missing or wrong."""
        values: dict[str, Any] = {}
        for each in self.attributes:
            octets = message.get(each.tag)
            if octets is not None:
                value = each.kind.read(octets)
                if value is None:
                    raise BadFix.of(*_wrong(each, octets))
                values[each.name] = value
            elif each.required:
                reason = RejectReason.REQUIRED_TAG_MISSING
                raise BadFix.of(reason, each.tag, f"field {each.tag} ({each.name}) is missing")
        return self.message(**values)

    def write(self, value: _D) -> Iterator[Pair]:
        """The fields of a value, from its type on. Raises `BadFix` where it has no bytes."""
        yield 35, value.MSG_TYPE
        for each in self.attributes:
            held = getattr(value, each.name)
            if held is not None:
                octets = each.kind.write(held)
                if octets is None:
                    raise BadFix(
                        f"{each.name} of message {value.MSG_TYPE!r} is {held!r}; it must be {each.kind.wanted}"
                    )
                yield each.tag, octets


def _field_of(hint: Any) -> FixField:
    """The field in an annotation, which may say that it is optional."""
    for each in (hint, *get_args(hint)):
        if get_origin(each) is Annotated:
            field = get_args(each)[1]
            assert isinstance(field, FixField)
            return field
    raise TypeError(f"{hint} names no field of FIX")


def _wrong(attribute: Attribute, octets: bytes) -> tuple[RejectReason, int, str]:
    coded = isinstance(attribute.kind, CodeKind)
    reason = RejectReason.VALUE_INCORRECT if coded else RejectReason.INCORRECT_DATA_FORMAT
    # A password is not repeated: complaints end up in logs.
    found = "not" if attribute.name == "password" else f"{octets[:32].decode('ascii', 'backslashreplace')!r}, not"
    return reason, attribute.tag, f"field {attribute.tag} ({attribute.name}) is {found} {attribute.kind.wanted}"
