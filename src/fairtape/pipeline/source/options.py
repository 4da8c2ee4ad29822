"""Options of the data source over journals, parsed from the text that Spark passes. Each error is one sentence.

Ranges, symbols, stripes and sites are options because pushing filters down into a Python source is not safe in Spark
4.3.0: a relation that is used twice is read with the filters of its first use.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

from fairtape.core.errors import UserError
from fairtape.core.instants import MICROSECOND, Instant
from fairtape.market.symbols import BadName, checked_symbol
from fairtape.wire.frames import NODE_MAX, NUMBER_MAX, STRIPE_MAX

RowKind = Literal["messages", "trades", "offset_ranges"]

BATCH_ROWS_MAX: Final = 4_000_000  # of a micro-batch, unless `max_rows` says otherwise
_WHOLE: Final = re.compile(r"-?[0-9]{1,30}")
_FINE: Final = re.compile(r"(\d\d:\d\d:\d\d[.,])(\d{7,})(.*)")  # more digits of a second than Python reads
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSourceOptions:
    """What to read. By default all released messages."""

    journals: tuple[str, ...]
    rows: RowKind = "messages"
    first: int = 1
    last: int | None = None
    since: Instant | None = None  # of the token
    until: Instant | None = None  # exclusive
    symbols: tuple[str, ...] | None = None  # only trades of these
    stripes: tuple[int, ...] | None = None
    sites: tuple[int, ...] | None = None
    max_rows: int = BATCH_ROWS_MAX  # of one micro-batch, about: tokens are not split
    ordered: bool = False  # also messages that are ordered and not released yet (batch only: no release times)
    start: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # offsets as `offsets_to_json` writes them

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> "JournalSourceOptions":
        """The options that a user gave to Spark."""
        given = {name.lower(): text for name, text in texts.items()}
        if "journals" not in given:
            raise UserError(
                "journals is missing; name the directories of journals: .option('journals', 'site-1,site-2'), or a "
                "replay port: .option('replay', 'HOST:PORT')"
            )
        if unknown := sorted(set(given) - set(_READERS)):
            raise UserError(f"option {unknown[0]!r} is unknown; the source fairtape has {', '.join(_READERS)}")
        options = cls(**{name: _READERS[name](name, text) for name, text in given.items()})
        if options.last is not None and options.last < options.first - 1:
            raise UserError(f"last is {options.last}, below first, which is {options.first}; give a later number")
        return options

    def wants(self, stripe: int, site: int) -> bool:
        """Whether this partition is chosen."""
        return (self.stripes is None or stripe in self.stripes) and (self.sites is None or site in self.sites)

    def to_texts(self) -> dict[str, str]:
        """The inverse of `of`, for `DataFrameReader.options(**…)`."""
        texts = {"journals": json.dumps(self.journals), "rows": self.rows, "max_rows": str(self.max_rows)}
        texts["first"] = str(self.first)
        for name in ("last", "since", "until"):
            if (number := getattr(self, name)) is not None:
                texts[name] = str(number)
        for name in ("symbols", "stripes", "sites"):
            if (chosen := getattr(self, name)) is not None:
                texts[name] = ",".join(map(str, chosen))
        if self.ordered:
            texts["ordered"] = "true"
        if self.start:
            texts["start"] = json.dumps(self.start)
        return texts


def journal_names(journals: Iterable[Path | str] | Path | str) -> tuple[str, ...]:
    """One or several directories and patterns, as the option holds them."""
    several = (journals,) if isinstance(journals, Path | str) else journals
    return tuple(str(journal) for journal in several)


def _directories(name: str, text: str) -> tuple[str, ...]:
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except ValueError:
            names = None
        if not isinstance(names, list) or not names or not all(isinstance(each, str) and each for each in names):
            raise UserError(f"{name} is {text!r}, which is not a list of directories; separate names by commas")
        return tuple(names)
    return listed(name, text, lambda _, each: each)


def listed(name: str, text: str, read: Callable[[str, str], _T]) -> tuple[_T, ...]:
    """Values separated by commas, without duplicates."""
    found = tuple(dict.fromkeys(read(name, each.strip()) for each in text.split(",") if each.strip()))
    if not found:
        raise UserError(f"{name} names none; leave the option out, or give at least one")
    return found


def number_in(least: int, most: int) -> Callable[[str, str], int]:
    """A reader of whole numbers within these bounds."""

    def read(name: str, text: str) -> int:
        number = int(text) if _WHOLE.fullmatch(text.strip()) else least - 1
        if not least <= number <= most:
            raise UserError(f"{name} is {text!r}; it must be a whole number from {least} to {most}")
        return number

    return read


def _instant(name: str, text: str) -> Instant:
    """Nanoseconds UTC, or an ISO 8601 time with its zone."""
    if text.isdigit():
        return number_in(0, NUMBER_MAX)(name, text)
    coarse, nanoseconds = text, 0
    if (fine := _FINE.search(text)) is not None and len(fine[2]) <= 9:
        coarse = text[: fine.start()] + fine[1] + fine[2][:6] + fine[3]
        nanoseconds = int(fine[2].ljust(9, "0")[6:])
    try:
        moment = None if fine is not None and coarse == text else datetime.fromisoformat(coarse)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UserError(
            f"{name} is {text!r}; give nanoseconds UTC, or a time such as 2026-01-31T14:30:00+00:00, with nine "
            "decimals of a second at most"
        )
    return (moment - _EPOCH) // timedelta(microseconds=1) * MICROSECOND + nanoseconds


def symbol_of(name: str, text: str) -> str:
    """The text, if it is a valid symbol."""
    try:
        checked_symbol(text)
    except BadName as error:
        raise UserError(f"{name}: {error}") from None
    return text


def _rows(name: str, text: str) -> str:
    if text not in get_args(RowKind):
        raise UserError(f"{name} is {text!r}; it must be one of {', '.join(get_args(RowKind))}")
    return text


def _yes(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UserError(f"{name} is {text!r}; it must be true or false")
    return text.lower() == "true"


def _start(name: str, text: str) -> Mapping[str, Mapping[str, Any]]:
    try:
        kept = json.loads(text)
        return {name: {"next": int(each["next"]), "digest": str(each["digest"])} for name, each in kept.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{name} is {text!r}; give offsets as a checkpoint or a table keeps them") from None


_READERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "journals": _directories,
    "rows": _rows,
    "first": number_in(1, NUMBER_MAX),
    "last": number_in(0, NUMBER_MAX),
    "since": _instant,
    "until": _instant,
    "symbols": lambda name, text: listed(name, text, symbol_of),
    "stripes": lambda name, text: listed(name, text, number_in(0, STRIPE_MAX)),
    "sites": lambda name, text: listed(name, text, number_in(0, NODE_MAX)),
    "max_rows": number_in(1, NUMBER_MAX),
    "ordered": _yes,
    "start": _start,
}
