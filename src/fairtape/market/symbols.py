"""Names of symbols and venues: their rules, a generator of tickers, and a table of venues."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from string import ascii_uppercase
from types import MappingProxyType
from typing import Final, TypeAlias

Symbol: TypeAlias = str

SYMBOL_MAX: Final = 16  # characters in a trade record
VENUE_NAME_MAX: Final = 12  # characters in a trade record
UNIVERSE_MAX: Final = 1 << 16  # symbols: an index into a universe fits 16 bits

_PRINTABLE: Final = re.compile(r"[!-~]+")  # printable ascii without the blank

# Lengths of tickers in the proportions of the companies that are listed in the United States.
_LENGTHS: Final = (4, 3, 4, 3, 4, 4, 3, 2, 4, 3, 4, 3, 4, 4, 3, 1, 4, 3, 4, 3, 4, 4, 3, 4)
_STRIDE: Final = 282_427  # coprime to 26: visits every name of a length once, in no visible order
_OFFSET: Final = 1_009  # between lengths, so that PSL and PSLA are not neighbours


class BadName(ValueError):
    """A text that is no valid name of a symbol or a venue; the message states the rule."""


def checked_symbol(text: str) -> Symbol:
    """The text, if it is 1 to 16 printable ascii characters without blanks; else raises `BadName`."""
    return _checked("symbol", text, SYMBOL_MAX)


def checked_venue(text: str) -> str:
    """The text, if it is 1 to 12 printable ascii characters without blanks; else raises `BadName`."""
    return _checked("venue", text, VENUE_NAME_MAX)


def _checked(field: str, text: str, size_max: int) -> str:
    if len(text) > size_max or not _PRINTABLE.fullmatch(text):
        shown = text[: 2 * size_max]
        raise BadName(f"{field} is {shown!r}; it must be 1 to {size_max} printable ascii characters without blanks")
    return text


def universe(count: int) -> tuple[Symbol, ...]:
    """The first `count` of one endless list of distinct tickers, so a larger universe begins with a smaller one."""
    if not 1 <= count <= UNIVERSE_MAX:
        raise ValueError(f"symbols is {count}; it must be from 1 to {UNIVERSE_MAX}")
    return tuple(islice(_tickers(), count))


def _tickers() -> Iterator[Symbol]:
    taken = [0] * (max(_LENGTHS) + 2)
    while True:
        for wanted in _LENGTHS:
            length = wanted
            while taken[length] == len(ascii_uppercase) ** length:
                length += 1
            yield _ticker(taken[length], length)
            taken[length] += 1


def _ticker(position: int, length: int) -> Symbol:
    """The name with this index among all names of this length."""
    letters = []
    rest = (position + length * _OFFSET) * _STRIDE % len(ascii_uppercase) ** length
    for _ in range(length):
        rest, letter = divmod(rest, len(ascii_uppercase))
        letters.append(ascii_uppercase[letter])
    return "".join(letters)


@dataclass(frozen=True, slots=True)
class Venue:
    """A trading venue."""

    number: int  # from 1 on; 0 stands for any venue that is not in the table
    name: str  # its market identifier code, ISO 10383: what a trade record carries
    city: str


VENUES: Final = (  # the first nine are in the nine cities, the busiest regions first
    Venue(1, "XNYS", "New York"),
    Venue(2, "XLON", "London"),
    Venue(3, "XTKS", "Tokyo"),
    Venue(4, "XCHI", "Chicago"),
    Venue(5, "XETR", "Frankfurt"),
    Venue(6, "XSES", "Singapore"),
    Venue(7, "XASX", "Sydney"),
    Venue(8, "XNSE", "Mumbai"),
    Venue(9, "BVMF", "São Paulo"),
    Venue(10, "XHKG", "Hong Kong"),
    Venue(11, "XTSE", "Toronto"),
    Venue(12, "XPAR", "Paris"),
    Venue(13, "XSWX", "Zurich"),
    Venue(14, "XKRX", "Seoul"),
    Venue(15, "XJSE", "Johannesburg"),
    Venue(16, "XMEX", "Mexico City"),
)
VENUE_NAMES: Final[Mapping[int, str]] = MappingProxyType({venue.number: venue.name for venue in VENUES})
VENUE_NUMBERS: Final[Mapping[str, int]] = MappingProxyType({venue.name: venue.number for venue in VENUES})
