"""FIX messages as frozen dataclasses, whose annotations name the tag and the type of each field.

A message is described once; reading and writing are derived from the description. A field without a default is
required. Reading ignores fields that are not described, because a sender may send more than a reader needs. A
described field must have its type, or the message is refused with the FIX reject reason for it.

Prices and quantities are fixed-point integers (one unit is 1e-9), instants are integer nanoseconds; both are exact. A
UTCTimestamp may have up to nine digits of a fraction, or none. A second may be 60, for leap seconds; it becomes the
instant after it, because nanoseconds since 1970 have no value for it.
"""

import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from functools import cached_property, lru_cache
from typing import Annotated, Any, ClassVar, Final, Generic, Protocol, TypeVar, get_args, get_origin, get_type_hints

from fairtape.core.instants import SECOND, Instant
from fairtape.formats.fix.codec import BadFix, FixMessage, Pair
from fairtape.formats.fix.dictionary import RejectReason
from fairtape.formats.fixed_layout import is_printable
from fairtape.market.prices import FIXED_MAX, FIXED_MIN, BadNumber, format_fixed, parse_fixed

# UTCTimestamp: `20240105-14:30:00.123456789`.

_STAMP: Final = re.compile(
    rb"([0-9]{4})(0[1-9]|1[0-2])([0-2][0-9]|3[01])-([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9]|60)(?:\.([0-9]{1,9}))?"
)
_DAYS_IN_MONTH: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAYS_BEFORE_MONTH: Final = tuple(sum(_DAYS_IN_MONTH[:month]) for month in range(12))
_DAYS_BEFORE_1970: Final = 719_162  # since the first of January of the year 1
_DAYS_IN_400_YEARS: Final = 146_097
_DAY: Final = 86_400 * SECOND
INSTANT_MAX: Final = (3_652_059 - _DAYS_BEFORE_1970) * _DAY - 1  # the last nanosecond of the year 9999


def parse_instant(octets: bytes) -> Instant | None:
    """The instant of a UTCTimestamp; None where it is malformed, or before 1970."""
    match = _STAMP.fullmatch(octets)
    if match is None:
        return None
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    if year < 1970 or not 1 <= day <= _days_in_month(year, month):
        return None
    fraction = int((match[7] or b"0").ljust(9, b"0"))
    days = _days_before_year(year) + _days_before_month(year, month) + day - 1 - _DAYS_BEFORE_1970
    return days * _DAY + (hour * 3_600 + minute * 60 + second) * SECOND + fraction


def format_instant(instant: Instant, *, digits_min: int = 3) -> bytes:
    """The UTCTimestamp with the fewest digits (of 0, 3, 6 or 9, at least `digits_min`) that are exact."""
    assert 0 <= instant <= INSTANT_MAX
    days, within = divmod(instant, _DAY)
    seconds, fraction = divmod(within, SECOND)
    year, month, day = _date(days + _DAYS_BEFORE_1970)
    text = f"{year:04}{month:02}{day:02}-{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    digits = max(digits_min, next(each for each in (0, 3, 6, 9) if fraction % 10 ** (9 - each) == 0))
    return (f"{text}.{fraction:09}"[: len(text) + 1 + digits] if digits else text).encode("ascii")


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _days_in_month(year: int, month: int) -> int:
    return _DAYS_IN_MONTH[month - 1] + (month == 2 and _is_leap(year))


def _days_before_year(year: int) -> int:
    passed = year - 1
    return passed * 365 + passed // 4 - passed // 100 + passed // 400


def _days_before_month(year: int, month: int) -> int:
    return _DAYS_BEFORE_MONTH[month - 1] + (month > 2 and _is_leap(year))


@lru_cache(maxsize=16)  # a session stays within a day
def _date(days: int) -> tuple[int, int, int]:
    """The date (year, month, day) this many days after the first of January of the year 1."""
    year = days * 400 // _DAYS_IN_400_YEARS + 1  # an estimate: off by at most one
    while _days_before_year(year) > days:
        year -= 1
    while _days_before_year(year + 1) <= days:
        year += 1
    rest = days - _days_before_year(year)
    month = next(each for each in range(12, 0, -1) if _days_before_month(year, each) <= rest)
    return year, month, rest - _days_before_month(year, month) + 1


INTEGER_MAX: Final = (1 << 63) - 1
_INTEGER: Final = re.compile(rb"-?[0-9]{1,19}")
_DECIMAL: Final = re.compile(rb"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")  # FIX has no exponents and no plus sign

_V = TypeVar("_V")


class FixKind(Protocol[_V]):
    """The type of a field."""

    wanted: str  # what a value must be

    def read(self, octets: bytes) -> _V | None:
        """The value; None where the bytes do not have this type."""

    def write(self, value: _V) -> bytes | None:
        """The bytes; None where the value cannot be encoded."""


@dataclass(frozen=True, slots=True)
class TextKind:
    """Printable ascii."""

    wanted: str = "printable ascii characters"

    def read(self, octets: bytes) -> str | None:
        text = octets.decode("latin-1")
        return text if text and is_printable(text) else None

    def write(self, value: str) -> bytes | None:
        return value.encode("ascii") if value and is_printable(value) else None


@dataclass(frozen=True, slots=True)
class IntegerKind:
    """A whole number."""

    least: int = 0
    most: int = INTEGER_MAX
    wanted: str = "a whole number that is neither negative nor beyond 63 bits"

    def read(self, octets: bytes) -> int | None:
        value = int(octets) if _INTEGER.fullmatch(octets) else None
        return value if value is not None and self.least <= value <= self.most else None

    def write(self, value: int) -> bytes | None:
        return b"%d" % value if self.least <= value <= self.most else None


@dataclass(frozen=True, slots=True)
class FixedKind:
    """A decimal number, exact."""

    wanted: str = "a decimal number with at most 9 digits behind its point"

    def read(self, octets: bytes) -> int | None:
        """In units of 1e-9."""
        if not _DECIMAL.fullmatch(octets):
            return None
        try:
            return parse_fixed(octets.decode("ascii"))
        except BadNumber:
            return None

    def write(self, value: int) -> bytes | None:
        return format_fixed(value).encode("ascii") if FIXED_MIN <= value <= FIXED_MAX else None


@dataclass(frozen=True, slots=True)
class InstantKind:
    """A UTCTimestamp."""

    wanted: str = "a timestamp such as 20240105-14:30:00.123"

    def read(self, octets: bytes) -> Instant | None:
        return parse_instant(octets)

    def write(self, value: Instant) -> bytes | None:
        return format_instant(value) if 0 <= value <= INSTANT_MAX else None


@dataclass(frozen=True, slots=True)
class FlagKind:
    """Y or N."""

    wanted: str = "Y or N"

    def read(self, octets: bytes) -> bool | None:
        return {b"Y": True, b"N": False}.get(octets)

    def write(self, value: bool) -> bytes | None:
        return b"Y" if value else b"N"


_E = TypeVar("_E", bound=Enum)


@dataclass(frozen=True)
class CodeKind(Generic[_E]):
    """One of the codes that an enumeration names: text, or whole numbers."""

    codes: type[_E]

    @cached_property
    def wanted(self) -> str:
        return "one of " + ", ".join(str(code.value) for code in self.codes)

    @cached_property
    def _known(self) -> dict[bytes, _E]:
        return {str(code.value).encode("ascii"): code for code in self.codes}

    def read(self, octets: bytes) -> _E | None:
        return self._known.get(octets)

    def write(self, value: _E) -> bytes | None:
        return str(value.value).encode("ascii")


@dataclass(frozen=True, slots=True)
class FixField:
    """The tag and the type of an attribute."""

    tag: int
    kind: FixKind[Any]


TEXT: Final = TextKind()
INTEGER: Final = IntegerKind()
POSITIVE: Final = IntegerKind(least=1, wanted="a whole number from 1 on")
FIXED: Final = FixedKind()
INSTANT: Final = InstantKind()
FLAG: Final = FlagKind()


class TypedFixMessage(Protocol):
    """A FIX message: its type, and annotated fields."""

    MSG_TYPE: ClassVar[bytes]

    def __init__(self, **values: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Attribute:
    """One field of one message."""

    name: str
    tag: int
    kind: FixKind[Any]
    required: bool


_D = TypeVar("_D", bound=TypedFixMessage)


@dataclass(frozen=True, slots=True)
class FixLayout(Generic[_D]):
    """The fields of one message type."""

    message: type[_D]
    attributes: tuple[Attribute, ...]

    @classmethod
    def of(cls, message: type[_D]) -> "FixLayout[_D]":
        """From the annotations of a dataclass."""
        hints = get_type_hints(message, include_extras=True)
        attributes = []
        for each in fields(message):  # type: ignore[arg-type]  # a dataclass, which a protocol cannot say
            field = _field_of(hints[each.name])
            attributes.append(Attribute(each.name, field.tag, field.kind, each.default is MISSING))
        return cls(message, tuple(attributes))

    def read(self, message: FixMessage) -> _D:
        """The value of a message of this type. Raises `BadFix` with a flaw for a missing or wrong field."""
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
        """The fields of a value, from its type on. Raises `BadFix` where it cannot be encoded."""
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
    """The field in an annotation, which may be optional."""
    for each in (hint, *get_args(hint)):
        if get_origin(each) is Annotated:
            field = get_args(each)[1]
            assert isinstance(field, FixField)
            return field
    raise TypeError(f"{hint} names no field of FIX")


def _wrong(attribute: Attribute, octets: bytes) -> tuple[RejectReason, int, str]:
    coded = isinstance(attribute.kind, CodeKind)
    reason = RejectReason.VALUE_INCORRECT if coded else RejectReason.INCORRECT_DATA_FORMAT
    # A password is not repeated: errors end up in logs.
    found = "not" if attribute.name == "password" else f"{octets[:32].decode('ascii', 'backslashreplace')!r}, not"
    return reason, attribute.tag, f"field {attribute.tag} ({attribute.name}) is {found} {attribute.kind.wanted}"
