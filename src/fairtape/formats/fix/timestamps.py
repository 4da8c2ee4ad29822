"""UTCTimestamp of FIX: `20240105-14:30:00.123456789`, to and from integer nanoseconds since 1970.

The fraction may have up to nine digits, or none. A second may be the sixtieth, as leap seconds are; it is the instant
that follows, because a count of nanoseconds has no room for it.
"""

import re
from functools import lru_cache
from typing import Final

from fairtape.core.instants import SECOND, Instant

_STAMP: Final = re.compile(
    rb"([0-9]{4})(0[1-9]|1[0-2])([0-2][0-9]|3[01])-([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9]|60)(?:\.([0-9]{1,9}))?"
)
_DAYS_IN_MONTH: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAYS_BEFORE_MONTH: Final = tuple(sum(_DAYS_IN_MONTH[:month]) for month in range(12))
_DAYS_BEFORE_1970: Final = 719_162  # since the first of January of the year 1
_DAYS_IN_400_YEARS: Final = 146_097
_DAY: Final = 86_400 * SECOND
YEAR_MAX: Final = 9_999
INSTANT_MAX: Final = (3_652_059 - _DAYS_BEFORE_1970) * _DAY - 1  # the last nanosecond of that year


def parse_instant(octets: bytes) -> Instant | None:
    """The instant of a UTCTimestamp; None where it is none, or lies before 1970."""
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
    """The UTCTimestamp with the fewest digits (of 0, 3, 6 or 9, at least `digits_min`) that say all of it."""
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
    """The date that lies so many days after the first of January of the year 1."""
    year = days * 400 // _DAYS_IN_400_YEARS + 1  # or the one after, or the one before
    while _days_before_year(year) > days:
        year -= 1
    while _days_before_year(year + 1) <= days:
        year += 1
    rest = days - _days_before_year(year)
    month = next(each for each in range(12, 0, -1) if _days_before_month(year, each) <= rest)
    return year, month, rest - _days_before_month(year, month) + 1
