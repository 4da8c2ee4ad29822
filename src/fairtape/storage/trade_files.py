"""Trades in files: CSV and Parquet in batches of bounded size, DBN and ITCH files as a whole. All values are exact.

A CSV or Parquet file needs a time, a symbol, a price and a quantity; a venue, a trade number and a side are optional.
Columns are found by name, in any case; other columns are ignored (`ignored_columns` names them):

- time: a number since 1970 UTC, or ISO 8601 text, or a Parquet timestamp; without a zone it is UTC. A number counts
  whole nanoseconds unless another unit is named. A number that would be in the first years after 1970 is refused,
  because it has another unit;
- price and quantity: decimal text, decimals or whole numbers, taken exactly. A float column in Parquet cannot be exact:
  its values are rounded to the nearest 1e-9, so above some eight million the binary noise of a float shows. A price may
  be negative;
- venue: a name of up to 12 characters, copied to the record; a number is a name like any other. Without a venue the
  name is empty;
- trade number: without one, a trade is numbered by its row;
- side: the aggressor, as a word of `SIDES` or as the bits of `TradeFlag`.

Rows keep the order of the file. They are counted from 1, without the header. Every error in a file is one `UserError`.

A day of ITCH and a DBN file are read whole, because the price of an execution may be anywhere before it.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from fairtape.core.errors import FormatError, UserError
from fairtape.core.instants import Instant
from fairtape.formats.byte_columns import Values
from fairtape.formats.dbn import read_dbn
from fairtape.formats.itch.columns import to_arrow, trades_of
from fairtape.market.prices import DECIMALS, FIXED_MAX, FIXED_MIN, ONE, format_fixed, parse_fixed
from fairtape.market.symbols import SYMBOL_MAX, VENUE_NAME_MAX, checked_symbol, checked_venue
from fairtape.market.trades import FLAGS_ALLOWED, TRADE_ID_MAX, TradeFlag, Trades, blank_trades

ROWS_MAX: Final = 65_536  # of one batch that is read from Parquet
CSV_BLOCK: Final = 1 << 20  # bytes of CSV that one batch is read from
HEADER_MAX: Final = 1 << 16  # bytes of the first line of a CSV file
TIME_UNITS: Final[Mapping[str, int]] = MappingProxyType({"s": 9, "ms": 6, "us": 3, "ns": 0})
"""The units of a numeric time, and the decimals that make it nanoseconds."""

# A count of nanoseconds below this is before March 1973, when nothing was recorded in them; a count of microseconds
# stays below it until the year 5138, one of milliseconds or seconds for longer.
NANOSECONDS_MIN: Final = 10**17

# The accepted names of each field, the preferred one first. `recv_ns` is the time stamp of a recorder: it keeps the
# bursts that a venue's milliseconds would flatten.
COLUMN_NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "traded_at": ("traded_at_ns", "time", "ts", "timestamp", "ts_event", "recv_ns"),
        "symbol": ("symbol",),
        "price": ("price",),
        "quantity": ("quantity", "size", "qty"),
        "venue": ("venue",),
        "trade_id": ("trade_id", "id"),
        "flags": ("trade_flags", "side"),
    }
)
SIDES: Final[Mapping[str, TradeFlag]] = MappingProxyType(
    {
        **dict.fromkeys(("buy", "b", "bought"), TradeFlag.BOUGHT),
        **dict.fromkeys(("sell", "s", "sold", "a"), TradeFlag.SOLD),  # a: DBN's code of an aggressor on the ask side
        **dict.fromkeys(("", "n", "none", "unknown"), TradeFlag(0)),
    }
)
"""The values of a column named side, in any case."""
_REQUIRED: Final = ("traded_at", "symbol", "price", "quantity")

_NAME_EXPECTED: Final = "1 to {} printable ascii characters without blanks"
_FIXED_EXPECTED: Final = f"a decimal number from {{}} to {format_fixed(FIXED_MAX)} with at most {DECIMALS} decimals"
_EXPECTED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "traded_at": "a time such as 2024-08-09T00:00:00.123456789Z, or a number since 1970 in the unit that"
        " --time-unit names, else in whole nanoseconds",
        "symbol": _NAME_EXPECTED.format(SYMBOL_MAX),
        "price": _FIXED_EXPECTED.format(format_fixed(FIXED_MIN)),
        "quantity": _FIXED_EXPECTED.format(0),
        "venue": _NAME_EXPECTED.format(VENUE_NAME_MAX),
        "trade_id": f"a whole number from 0 to {TRADE_ID_MAX}",
        "flags": f"buy, sell or nothing, or a whole number from 0 to {FLAGS_ALLOWED}",
    }
)

_ZONE: Final = r"(Z|[+-][0-9]{2}:?[0-9]{2})$"
_RAGGED: Final = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
_PLAIN: Final = r"^-?[0-9]{1,10}(\.[0-9]{0,9})?$"
_DIGITS: Final = r"^[0-9]{1,20}$"
_COUNT: Final = r"^[0-9]{1,20}(\.[0-9]{1,9})?$"
_WIDE: Final = pa.decimal128(38, DECIMALS)

Columns: TypeAlias = Mapping[str, str]  # the name that each field has in one file
Arrow: TypeAlias = Any  # an array or a batch of pyarrow, which declares no types


class _OtherUnit(ValueError):
    """A number that is no plausible time in nanoseconds."""


def read_trades(path: Path, *, time_unit: str | None = None) -> Iterator[Trades]:
    """The trades of a CSV or Parquet file, batch by batch, in the order of the file.

    `time_unit` is one of TIME_UNITS; without it, numeric times must be plausible nanoseconds. A missing file, an
    unknown format or a missing column raises at once, a bad value when it is reached.
    """
    opened = {".csv": _open_csv, ".parquet": _open_parquet}[_suffix(path)]
    try:
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty; it must hold the column names and at least one trade")
        columns, batches = opened(path)
    except (OSError, pa.ArrowException) as error:
        raise _read_error(path, error) from None
    return _Reader(path, columns, time_unit).trades(batches)


def ignored_columns(path: Path) -> tuple[str, ...]:
    """The columns of a trade file that are not used."""
    names = pq.read_schema(path).names if _suffix(path) == ".parquet" else _header(path)
    used = set(_columns(path, names).values())
    return tuple(name for name in names if name not in used)


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in {".csv", ".parquet"}:
        raise UserError(f"{path} does not have the name of a trade file; it must end in .csv or .parquet")
    return suffix


def _read_error(path: Path, error: Exception) -> UserError:
    if ragged := _RAGGED.search(str(error)):
        row, expected, found = map(int, ragged.groups())  # Arrow counts the header as a row
        return UserError(f"{path}, row {row - 1} has {found} values; the header names {expected} columns")
    kind = "Parquet" if _suffix(path) == ".parquet" else "CSV"
    return UserError(f"{path} cannot be read as {kind}: {_reason(error)}")


def _reason(error: Exception) -> str:
    """The first sentence of the error message, without its full stop."""
    system = error.strerror if isinstance(error, OSError) else None
    return (system or str(error)).partition("\n")[0].partition(". ")[0].rstrip(".")


def _open_parquet(path: Path) -> tuple[Columns, Iterator[Arrow]]:
    file = pq.ParquetFile(path)
    columns = _columns(path, file.schema_arrow.names)
    return columns, file.iter_batches(ROWS_MAX, columns=list(columns.values()))


def _open_csv(path: Path) -> tuple[Columns, Iterator[Arrow]]:
    """Every column is read as text, because what Arrow would guess from text is often a float."""
    columns = _columns(path, _header(path))
    used = list(columns.values())
    stream = pacsv.open_csv(
        path,
        read_options=pacsv.ReadOptions(use_threads=False, block_size=CSV_BLOCK),
        convert_options=pacsv.ConvertOptions(
            column_types=dict.fromkeys(used, pa.string()), include_columns=used, strings_can_be_null=False
        ),
    )
    return columns, stream


def _header(path: Path) -> list[str]:
    with path.open("rb") as file:
        line = file.readline(HEADER_MAX)
    try:
        return next(csv.reader([line.decode("utf-8-sig")]), [])
    except (UnicodeDecodeError, csv.Error):
        raise UserError(f"{path} cannot be read as CSV: its first line is not a list of column names") from None


def _columns(path: Path, names: Sequence[str]) -> Columns:
    """The column of each field."""
    known = [name.strip().lower() for name in names]
    columns = {}
    for field, accepted in COLUMN_NAMES.items():
        for name in accepted:
            if known.count(name) > 1:
                raise UserError(f"{path} has {known.count(name)} columns named {name!r}; keep one of them")
            if name in known:
                columns[field] = names[known.index(name)]
                break
        else:
            if field in _REQUIRED:
                found = ", ".join(known) or "none"
                raise UserError(f"{path} has no column {' or '.join(accepted)}; its columns are {found}")
    return columns


class _Reader:
    """Converts the batches of one file to records."""

    def __init__(self, path: Path, columns: Columns, time_unit: str | None) -> None:
        self._path = path
        self._columns = columns
        self._converters: Mapping[str, Callable[[Arrow], Values]] = {
            "traded_at": lambda column: _instants(column, time_unit),
            "symbol": _symbols,
            "price": _fixed,
            "quantity": lambda column: _at_most(_fixed(column), FIXED_MAX),
            "venue": _venues,
            "trade_id": _whole,
            "flags": _flags,
        }

    def trades(self, batches: Iterator[Arrow]) -> Iterator[Trades]:
        rows = 0
        for batch in self._checked_batches(batches):
            yield self._convert(batch, rows + 1)
            rows += batch.num_rows
        if not rows:
            raise UserError(f"{self._path} has no rows; it must hold at least one trade")

    def _checked_batches(self, batches: Iterator[Arrow]) -> Iterator[Arrow]:
        try:
            yield from batches
        except (OSError, pa.ArrowException) as error:
            raise _read_error(self._path, error) from None

    def _convert(self, batch: Arrow, first_row: int) -> Trades:
        trades = blank_trades(batch.num_rows)
        trades["trade_id"] = np.arange(first_row, first_row + batch.num_rows)
        for field, name in self._columns.items():
            column = batch.column(name)
            try:
                trades[field] = _convert(column, self._converters[field])
            except (TypeError, NotImplementedError):
                raise UserError(
                    f"{self._path}, column {name} has the type {column.type}; expected {_EXPECTED[field]}"
                ) from None
            except ValueError:
                bad = _first_bad_row(column, self._converters[field])
                found = f"{self._path}, row {first_row + bad}: {name} is {_shown(column[bad])}"
                raise UserError(f"{found}; {_remedy(field, column[bad : bad + 1], self._converters[field])}") from None
        return trades


def _convert(column: Arrow, convert: Callable[[Arrow], Values]) -> Values:
    if column.null_count:
        raise ValueError("a value is missing")
    return convert(column)


def _first_bad_row(column: Arrow, convert: Callable[[Arrow], Values]) -> int:
    """The first row that cannot be converted, by binary search: converters handle each row by itself."""
    good, bad = 0, len(column)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _convert(column[:middle], convert)
            good = middle
        except ValueError:
            bad = middle
    return bad - 1


def _remedy(field: str, bad: Arrow, convert: Callable[[Arrow], Values]) -> str:
    try:
        _convert(bad, convert)
    except _OtherUnit as error:
        return str(error)
    except ValueError:
        pass
    return f"expected {_EXPECTED[field]}"


def _shown(value: Arrow) -> str:
    """A value as an error message shows it: short, and on one line."""
    return repr(value.as_py())[:80] if value.is_valid else "missing"


def _text(column: Arrow) -> Arrow:
    """The column as plain strings, whichever of Arrow's text types it has; None if it is not text."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return column.cast(pa.string()) if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None


def _all_match(text: Arrow, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(text, pattern), min_count=0).as_py())


def _at_most(values: Values, most: int) -> Values:
    if len(values) and (values.min() < 0 or values.max() > most):
        raise ValueError("a value is out of bounds")
    return values


def _convert_distinct(text: Arrow, convert: Callable[[str], Any], kind: str) -> Values:
    """Convert each distinct text once: a column has few different symbols and venues."""
    coded = text.dictionary_encode()
    distinct = np.array([convert(name) for name in coded.dictionary.to_pylist()], kind)
    values: Values = distinct[coded.indices.to_numpy(zero_copy_only=False)]
    return values


def _symbols(column: Arrow) -> Values:
    text = _text(column)
    if text is None:
        raise TypeError("not text")
    return _convert_distinct(text, checked_symbol, f"S{SYMBOL_MAX}")


def _venues(column: Arrow) -> Values:
    text = _text(column)
    if text is None and not pa.types.is_integer(column.type):
        raise TypeError("neither a name nor a number")
    return _convert_distinct(column.cast(pa.string()) if text is None else text, checked_venue, f"S{VENUE_NAME_MAX}")


def _flags(column: Arrow) -> Values:
    """The aggressor's side: as words, or as bits."""
    text = _text(column)
    if text is None or _all_match(text, _DIGITS):
        return _at_most(_whole(column), FLAGS_ALLOWED)
    return _convert_distinct(text, _side, "u2")


def _side(word: str) -> int:
    known = SIDES.get(word.strip().lower())
    if known is None:
        raise ValueError("not a side")
    return int(known)


def _whole(column: Arrow) -> Values:
    """Whole numbers from 0 on."""
    text = _text(column)
    if text is None and not pa.types.is_integer(column.type):
        raise TypeError("not whole numbers")
    if text is not None and not _all_match(text, _DIGITS):  # Arrow would accept 0x10 as a number
        raise ValueError("not digits")
    values: Values = (column if text is None else text).cast(pa.uint64()).to_numpy(zero_copy_only=False)
    return values


def _instants(column: Arrow, unit: str | None) -> Values:
    """Nanoseconds since 1970 UTC."""
    text = _text(column)
    if text is not None:
        return _at_most(_parsed_instants(text, unit), FIXED_MAX)
    if pa.types.is_timestamp(column.type):
        stamps = column.cast(pa.timestamp("ns", column.type.tz)).cast(pa.int64())
        return _at_most(stamps.to_numpy(zero_copy_only=False), FIXED_MAX)
    if not pa.types.is_integer(column.type):
        raise TypeError("not a time")
    return _counted(column, unit)


def _parsed_instants(text: Arrow, unit: str | None) -> Values:
    """Row by row: a number counts units, anything else is ISO 8601, in UTC where it has no zone."""
    counts = pc.match_substring_regex(text, _COUNT)
    zoned = pc.match_substring_regex(text, _ZONE)
    written = pc.if_else(zoned, text, pc.binary_join_element_wise(text, "Z", ""))
    stamps = pc.if_else(counts, None, written).cast(pa.timestamp("ns", "UTC")).cast(pa.int64())
    instants: Values = pc.fill_null(stamps, 0).to_numpy(zero_copy_only=False).copy()
    instants[counts.to_numpy(zero_copy_only=False)] = _counted(text.filter(counts), unit)
    return instants


def _counted(counts: Arrow, unit: str | None) -> Values:
    """Numbers that count units of time, as nanoseconds: the unscaled integer of a decimal with the unit's decimals."""
    instants = _at_most(_narrowed(counts.cast(pa.decimal128(38, TIME_UNITS[unit or "ns"]))), FIXED_MAX)
    if unit is None and len(instants) and instants.min() < NANOSECONDS_MIN:
        unit, name = _likely_unit(int(instants.min()))
        raise _OtherUnit(f"as nanoseconds that is in the early 1970s: if it counts {name}, say --time-unit {unit}")
    return instants


def _likely_unit(count: int) -> tuple[str, str]:
    """The unit in which this count is between 1973 and 5138."""
    if count >= NANOSECONDS_MIN // 10**3:
        return "us", "microseconds"
    return ("ms", "milliseconds") if count >= NANOSECONDS_MIN // 10**6 else ("s", "seconds")


def _fixed(column: Arrow) -> Values:
    """Fixed-point values: exact for text, decimals and whole numbers, the nearest for floats."""
    if pa.types.is_float32(column.type):  # through text: a plain cast would turn 190.1 into 190.100006104
        column = column.cast(pa.string()).cast(pa.float64())
    if pa.types.is_floating(column.type):
        return _nearest(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    text = _text(column)
    return _narrowed(column.cast(_WIDE)) if text is None else _parsed_fixed(text)


def _parsed_fixed(text: Arrow) -> Values:
    """`parse_fixed` of each text. Arrow converts plain numbers in bulk, but would accept 1e-92."""
    if _all_match(text, _PLAIN):
        return _narrowed(text.cast(_WIDE))
    return np.array([parse_fixed(value) for value in text.to_pylist()], np.int64)


def _narrowed(wide: Arrow) -> Values:
    """The integers of a decimal column, unscaled."""
    # A decimal is one integer of 128 bits; it fits 64 where the upper half only repeats the sign.
    halves = np.frombuffer(wide.buffers()[1], np.int64).reshape(-1, 2)[wide.offset : wide.offset + len(wide)]
    lower, upper = halves[:, 0], halves[:, 1]
    if (upper != lower >> 63).any():
        raise ValueError("too large")
    values: Values = lower
    return values


def _nearest(values: npt.NDArray[np.float64]) -> Values:
    """Floats to the nearest 1e-9. The whole part is converted apart, because a float cannot hold both beyond 2**53."""
    if not (np.isfinite(values) & (np.abs(values) < FIXED_MAX // ONE)).all():
        raise ValueError("not a finite number that fits")
    whole = np.floor(values)
    return whole.astype(np.int64) * ONE + np.rint((values - whole) * ONE).astype(np.int64)


# Files of any supported format, as a publisher and a client read them.

TABLES: Final = (".csv", ".parquet")
DBN: Final = (".dbn", ".dbn.zst")
ITCH: Final = (".itch", ".itch50", ".nasdaq_itch50")
BROKEN: Final = "B"  # the ITCH message that makes a trade void


class Recording(NamedTuple):
    """The contents of a DBN or ITCH file."""

    trades: Trades
    received_at: Values | None = None  # where the file has it
    broken: Values = np.zeros(0, np.uint64)  # the match numbers of void trades


def has_suffix(path: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether a file's name ends in one of these suffixes, in any case."""
    return path.name.lower().endswith(suffixes)


def read_recording(path: Path, *, midnight_at: Instant, venue: str) -> Recording:
    """Read a DBN or ITCH file. Raises `FormatError` where it is malformed.

    `midnight_at` and `venue` are missing in a day of ITCH: the start of its times, and its venue.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if has_suffix(path, DBN):
        found = read_dbn(data)
        return Recording(found.trades, found.received_at)
    tables = to_arrow(data)
    trades = trades_of(tables, midnight_at=midnight_at, venue=venue)
    return (
        Recording(trades, broken=tables[BROKEN]["match_number"].to_numpy()) if BROKEN in tables else Recording(trades)
    )


def recorded_trades(path: Path, *, time_unit: str | None, midnight_at: Instant | None, venue: str) -> Iterator[Trades]:
    """The trades of a CSV, Parquet, DBN or ITCH 5.0 file, in the order of the file. Raises `UserError`."""
    if not has_suffix(path, (*DBN, *ITCH)):
        return read_trades(path, time_unit=time_unit)
    if midnight_at is None and has_suffix(path, ITCH):
        raise UserError(f"{path} counts its times from midnight; say which one: --midnight 2019-12-30T00:00:00-05:00")
    try:
        return iter([read_recording(path, midnight_at=midnight_at or 0, venue=venue).trades])
    except FormatError as refused:
        raise UserError(f"{path} cannot be read: {refused}") from None


def unpublished_columns(path: Path) -> tuple[str, ...]:
    """The columns of a CSV or Parquet file that are not used; empty for other formats."""
    return ignored_columns(path) if has_suffix(path, TABLES) else ()
