"""Prices and quantities as fixed-point integers: one unit is 1e-9, the unit of DBN.

Sites must agree on every price to the last digit, so no float is used: decimal text becomes an integer and an integer
becomes decimal text, both exactly. A number without an exact integer is refused; nothing is rounded here.
"""

import re
from typing import Final, TypeAlias

Price: TypeAlias = int
Quantity: TypeAlias = int

DECIMALS: Final = 9
ONE: Final = 10**DECIMALS  # the price 1, or the quantity 1
FIXED_MAX: Final = (1 << 63) - 1
FIXED_MIN: Final = -(1 << 63)
TEXT_MAX: Final = 64  # characters: far more than any number that fits, and a bound on the work for hostile text

_DECIMAL: Final = re.compile(r"([+-]?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(?:[eE]([+-]?[0-9]{1,3}))?", re.ASCII)


class BadNumber(ValueError):
    """Text that is no decimal number, or a number that has no exact fixed-point value."""


def parse_fixed(text: str) -> int:
    """The fixed-point value of decimal text such as `61804.8`, `-0.25` or `1e-05`."""
    match = _DECIMAL.fullmatch(text) if len(text) <= TEXT_MAX else None
    if match is None:
        raise BadNumber(f"{text[:TEXT_MAX]!r} is not a decimal number such as 61804.8")
    sign, whole, decimals, only_decimals, exponent = match.groups()
    decimals = decimals or only_decimals or ""
    digits = int((whole or "") + decimals)
    value = _shifted(digits, DECIMALS - len(decimals) + int(exponent or 0))
    if value is None:
        raise BadNumber(f"{text} is finer than 1e-{DECIMALS}, the smallest step of a price or quantity")
    if sign == "-":
        value = -value
    if not FIXED_MIN <= value <= FIXED_MAX:
        raise BadNumber(f"{text} is too large; the limit is {format_fixed(FIXED_MAX)}")
    return value


def format_fixed(value: int) -> str:
    """The shortest decimal text of a fixed-point value; the inverse of `parse_fixed`."""
    if not FIXED_MIN <= value <= FIXED_MAX:
        raise BadNumber(f"{value} does not fit the 64 bits of a fixed-point value")
    whole, decimals = divmod(abs(value), ONE)
    text = f"{whole}.{decimals:0{DECIMALS}}".rstrip("0").rstrip(".")
    return f"-{text}" if value < 0 else text


def format_sum(value: int) -> str:
    """The same for the sums of a ledger, which are not negative and may exceed 64 bits."""
    whole, decimals = divmod(value, ONE)
    return f"{whole}.{decimals:0{DECIMALS}}".rstrip("0").rstrip(".")


def _shifted(digits: int, places: int) -> int | None:
    """`digits` × 10 ** `places`; None where that is not a whole number."""
    scale: int = 10 ** abs(places)
    if places >= 0:
        return digits * scale
    value, lost = divmod(digits, scale)
    return None if lost else value
