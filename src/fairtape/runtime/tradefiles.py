"""Trades in files: CSV and Parquet become batches of records and back, exactly and in bounded memory.

A file needs a time, a symbol, a price and a quantity; a venue and a trade number are welcome. Columns are found by
name, whatever their case, and other columns are ignored:

- time: whole nanoseconds since 1970 UTC, or ISO 8601 text, or a Parquet timestamp; without a zone it is UTC;
- price and quantity: decimal text, decimals or whole numbers, taken exactly. A float column in Parquet cannot be exact:
  its values are rounded to the nearest 1e-9, so above some eight million the binary noise of a float shows;
- venue: a number, or a name. The names of `fairtape.market.symbols.VENUES` keep their numbers, others are numbered in
  the order in which the file names them. Without a venue it is 0;
- trade number: without one, a trade is numbered by its row.

Rows keep the order of the file. They are counted from 1, the header not included. Whatever is wrong with a file is one
`Complaint`; a file that is written is complete or absent, never half there.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from fairtape.market.prices import DECIMALS, FIXED_MAX, ONE, format_fixed, parse_fixed
from fairtape.market.symbols import SYMBOL_MAX, VENUE_NUMBER_MAX, VENUES, checked_symbol
from fairtape.market.trades import FLAGS_ALLOWED, TRADE_ID_MAX, Trades, blank_trades
from fairtape.runtime.complaints import Complaint

ROWS_MAX: Final = 65_536  # of one batch that is read from Parquet
CSV_BLOCK: Final = 1 << 20  # bytes of CSV that one batch is read from
HEADER_MAX: Final = 1 << 16  # bytes of the first line of a CSV file
NAMED_VENUES_FROM: Final = 1_000  # where the numbers of venues that only a file names begin

# The names under which each field is looked for, the preferred one first. `recv_ns` stands where a recorder stamped
# trades itself: it keeps the bursts that a venue's milliseconds would flatten.
COLUMN_NAMES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "traded_at": ("traded_at_ns", "time", "ts", "timestamp", "ts_event", "recv_ns"),
        "symbol": ("symbol",),
        "price": ("price",),
        "quantity": ("quantity", "size", "qty"),
        "venue": ("venue",),
        "trade_id": ("trade_id", "id"),
        "flags": ("trade_flags",),
    }
)
_REQUIRED: Final = ("traded_at", "symbol", "price", "quantity")

_FIXED_EXPECTED: Final = f"a decimal number from 0 to {format_fixed(FIXED_MAX)} with at most {DECIMALS} decimals"
_EXPECTED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "traded_at": "whole nanoseconds since 1970 or a time such as 2024-08-09T00:00:00.123456789Z",
        "symbol": f"1 to {SYMBOL_MAX} printable ascii characters without blanks",
        "price": _FIXED_EXPECTED,
        "quantity": _FIXED_EXPECTED,
        "venue": f"a name or a number from 0 to {VENUE_NUMBER_MAX}",
        "trade_id": f"a whole number from 0 to {TRADE_ID_MAX}",
        "flags": f"a whole number from 0 to {FLAGS_ALLOWED}",
    }
)

_SCHEMA: Final = pa.schema(
    [
        ("traded_at_ns", pa.int64()),
        ("symbol", pa.string()),
        ("price", pa.decimal128(19, DECIMALS)),
        ("quantity", pa.decimal128(19, DECIMALS)),
        ("venue", pa.uint16()),
        ("trade_id", pa.uint64()),
        ("trade_flags", pa.uint32()),
    ]
)
_ZONE: Final = r"(Z|[+-][0-9]{2}:?[0-9]{2})$"
_RAGGED: Final = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
_PLAIN: Final = r"^[0-9]{1,10}(\.[0-9]{0,9})?$"
_DIGITS: Final = r"^[0-9]{1,20}$"
_WIDE: Final = pa.decimal128(38, DECIMALS)

Columns: TypeAlias = Mapping[str, str]  # the name that each field has in one file
Arrow: TypeAlias = Any  # an array or a batch of pyarrow, which declares no types
Values: TypeAlias = npt.NDArray[Any]


class VenueNumbers:
    """The number of each venue that files name; pass one to several readers and they agree."""

    def __init__(self) -> None:
        self._numbers = {venue.name: venue.number for venue in VENUES}
        self._next = NAMED_VENUES_FROM

    def number(self, name: str) -> int:
        """The number of this name; a new one where it has none yet."""
        if re.fullmatch(_DIGITS, name):
            return int(name)
        if not name or self._next > VENUE_NUMBER_MAX:
            raise ValueError("a venue without a name, or more venues than numbers")
        if name not in self._numbers:
            self._numbers[name] = self._next
            self._next += 1
        return self._numbers[name]

    @property
    def names(self) -> Mapping[int, str]:
        """The name of each number that has one."""
        return {number: name for name, number in self._numbers.items()}


def read_trades(path: Path, *, venues: VenueNumbers | None = None) -> Iterator[Trades]:
    """The trades of a CSV or Parquet file, batch by batch, in the order of the file.

    A missing file, a foreign format or a missing column is complained about at once, a bad value when it is reached.
    """
    opened = {".csv": _open_csv, ".parquet": _open_parquet}[_suffix(path)]
    try:
        if path.stat().st_size == 0:
            raise Complaint(f"{path} is empty; it must hold the column names and at least one trade")
        columns, batches = opened(path)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None
    return _Reader(path, columns, venues or VenueNumbers()).trades(batches)


def write_trades(path: Path, batches: Iterable[Trades]) -> int:
    """Write trades to a CSV or Parquet file and say how many. The file appears when it is complete."""
    write = {".csv": _write_csv, ".parquet": _write_parquet}[_suffix(path)]
    partial = path.with_name(path.name + ".part")
    try:
        try:
            count = write(partial, batches)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise Complaint(f"{path} cannot be written: {_reason(error)}") from None
    return count


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in {".csv", ".parquet"}:
        raise Complaint(f"{path} is no trade file by its name; it must end in .csv or .parquet")
    return suffix


def _unreadable(path: Path, error: Exception) -> Complaint:
    if ragged := _RAGGED.search(str(error)):
        row, expected, found = map(int, ragged.groups())  # Arrow counts the header as a row
        return Complaint(f"{path}, row {row - 1} has {found} values; the header names {expected} columns")
    kind = "Parquet" if _suffix(path) == ".parquet" else "CSV"
    return Complaint(f"{path} cannot be read as {kind}: {_reason(error)}")


def _reason(error: Exception) -> str:
    """The first line of what the library or the system says, without its full stop."""
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
        raise Complaint(f"{path} cannot be read as CSV: its first line is not a list of column names") from None


def _columns(path: Path, names: Sequence[str]) -> Columns:
    """Which column holds which field."""
    known = [name.strip().lower() for name in names]
    columns = {}
    for field, accepted in COLUMN_NAMES.items():
        for name in accepted:
            if known.count(name) > 1:
                raise Complaint(f"{path} has {known.count(name)} columns named {name!r}; keep one of them")
            if name in known:
                columns[field] = names[known.index(name)]
                break
        else:
            if field in _REQUIRED:
                found = ", ".join(known) or "none"
                raise Complaint(f"{path} has no column {' or '.join(accepted)}; its columns are {found}")
    return columns


class _Reader:
    """Turns the batches of one file into records."""

    def __init__(self, path: Path, columns: Columns, venues: VenueNumbers) -> None:
        self._path = path
        self._columns = columns
        self._converters: Mapping[str, Callable[[Arrow], Values]] = {
            "traded_at": _instants,
            "symbol": _symbols,
            "price": _fixed,
            "quantity": _fixed,
            "venue": lambda column: _venues(column, venues),
            "trade_id": _whole,
            "flags": lambda column: _at_most(_whole(column), FLAGS_ALLOWED),
        }

    def trades(self, batches: Iterator[Arrow]) -> Iterator[Trades]:
        rows = 0
        for batch in self._guarded(batches):
            yield self._converted(batch, rows + 1)
            rows += batch.num_rows
        if not rows:
            raise Complaint(f"{self._path} has no rows; it must hold at least one trade")

    def _guarded(self, batches: Iterator[Arrow]) -> Iterator[Arrow]:
        try:
            yield from batches
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(self._path, error) from None

    def _converted(self, batch: Arrow, first_row: int) -> Trades:
        trades = blank_trades(batch.num_rows)
        trades["trade_id"] = np.arange(first_row, first_row + batch.num_rows)
        for field, name in self._columns.items():
            column = batch.column(name)
            try:
                trades[field] = _converted(column, self._converters[field])
            except (TypeError, NotImplementedError):
                raise Complaint(
                    f"{self._path}, column {name} has the type {column.type}; expected {_EXPECTED[field]}"
                ) from None
            except ValueError:
                bad = _first_bad(column, self._converters[field])
                raise Complaint(
                    f"{self._path}, row {first_row + bad}: {name} is {_shown(column[bad])}; expected {_EXPECTED[field]}"
                ) from None
        return trades


def _converted(column: Arrow, convert: Callable[[Arrow], Values]) -> Values:
    if column.null_count:
        raise ValueError("a value is missing")
    return convert(column)


def _first_bad(column: Arrow, convert: Callable[[Arrow], Values]) -> int:
    """The first row that cannot be converted, found by halving: converters look at each row by itself."""
    good, bad = 0, len(column)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _converted(column[:middle], convert)
            good = middle
        except ValueError:
            bad = middle
    return bad - 1


def _shown(value: Arrow) -> str:
    """A value as a complaint shows it: short, and on one line."""
    return repr(value.as_py())[:80] if value.is_valid else "missing"


def _text(column: Arrow) -> Arrow:
    """The column as plain strings, whichever of Arrow's kinds of text it has; None if it is no text."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return column.cast(pa.string()) if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None


def _all_match(text: Arrow, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(text, pattern), min_count=0).as_py())


def _at_most(values: Values, most: int) -> Values:
    if len(values) and (values.min() < 0 or values.max() > most):
        raise ValueError("a value is out of bounds")
    return values


def _by_distinct(text: Arrow, convert: Callable[[str], Any], kind: str) -> Values:
    """Convert each distinct text once: a column names few symbols and venues, many times over."""
    coded = text.dictionary_encode()
    distinct = np.array([convert(name) for name in coded.dictionary.to_pylist()], kind)
    values: Values = distinct[coded.indices.to_numpy(zero_copy_only=False)]
    return values


def _symbols(column: Arrow) -> Values:
    text = _text(column)
    if text is None:
        raise TypeError("not text")
    return _by_distinct(text, checked_symbol, f"S{SYMBOL_MAX}")


def _venues(column: Arrow, venues: VenueNumbers) -> Values:
    text = _text(column)
    values = _whole(column) if text is None else _by_distinct(text, venues.number, "O")
    return _at_most(values, VENUE_NUMBER_MAX)


def _whole(column: Arrow) -> Values:
    """Whole numbers from 0 on."""
    text = _text(column)
    if text is None and not pa.types.is_integer(column.type):
        raise TypeError("not whole numbers")
    if text is not None and not _all_match(text, _DIGITS):  # Arrow would take 0x10 for a number
        raise ValueError("not digits")
    values: Values = (column if text is None else text).cast(pa.uint64()).to_numpy(zero_copy_only=False)
    return values


def _instants(column: Arrow) -> Values:
    """Nanoseconds since 1970 UTC."""
    text = _text(column)
    if text is not None:
        column = _parsed_instants(text)
    elif pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ns", column.type.tz))
    elif not pa.types.is_integer(column.type):
        raise TypeError("not a time")
    return _at_most(column.cast(pa.int64()).to_numpy(zero_copy_only=False), FIXED_MAX)


def _parsed_instants(text: Arrow) -> Arrow:
    """Row by row: digits are nanoseconds, anything else is ISO 8601, in UTC where it names no zone."""
    digits = pc.match_substring_regex(text, _DIGITS)
    zoned = pc.match_substring_regex(text, _ZONE)
    written = pc.if_else(zoned, text, pc.binary_join_element_wise(text, "Z", ""))
    counted = pc.if_else(digits, text, None).cast(pa.int64())
    stamped = pc.if_else(digits, None, written).cast(pa.timestamp("ns", "UTC")).cast(pa.int64())
    return pc.coalesce(counted, stamped)


def _fixed(column: Arrow) -> Values:
    """Fixed-point values: exact for text, decimals and whole numbers, the nearest for floats."""
    if pa.types.is_floating(column.type):
        return _at_most(_nearest(column.cast(pa.float64()).to_numpy(zero_copy_only=False)), FIXED_MAX)
    text = _text(column)
    if text is not None:
        return _at_most(_parsed_fixed(text), FIXED_MAX)
    return _at_most(_narrowed(column.cast(_WIDE)), FIXED_MAX)


def _parsed_fixed(text: Arrow) -> Values:
    """What `parse_fixed` makes of each text. Arrow does plain ones at once, but it would take 1e-92 for a number."""
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
    """Floats to the nearest 1e-9. The whole part goes apart, because a float has no room for both beyond 2**53."""
    if not (np.isfinite(values) & (np.abs(values) < FIXED_MAX // ONE)).all():
        raise ValueError("not a finite number that fits")
    whole = np.floor(values)
    return whole.astype(np.int64) * ONE + np.rint((values - whole) * ONE).astype(np.int64)


def _write_parquet(path: Path, batches: Iterable[Trades]) -> int:
    count = 0
    with pq.ParquetWriter(path, _SCHEMA) as writer:
        for trades in batches:
            writer.write_batch(_arrow(trades))
            count += len(trades)
    return count


def _arrow(trades: Trades) -> Arrow:
    columns = [
        pa.array(trades["traded_at"]),
        pa.array(trades["symbol"]).cast(pa.string()),
        _decimals(trades["price"]),
        _decimals(trades["quantity"]),
        pa.array(trades["venue"]),
        pa.array(trades["trade_id"]),
        pa.array(trades["flags"]),
    ]
    return pa.record_batch(columns, schema=_SCHEMA)


def _decimals(values: Values) -> Arrow:
    """Fixed-point values as decimals, by widening each integer to 128 bits."""
    halves = np.stack([values, values >> 63], axis=1)
    return pa.Array.from_buffers(pa.decimal128(19, DECIMALS), len(values), [None, pa.py_buffer(halves.tobytes())])


def _write_csv(path: Path, batches: Iterable[Trades]) -> int:
    count = 0
    with path.open("w", encoding="ascii", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_SCHEMA.names)
        for trades in batches:
            writer.writerows(_rows(trades))
            count += len(trades)
    return count


def _rows(trades: Trades) -> Iterator[tuple[object, ...]]:
    return zip(
        trades["traded_at"].tolist(),
        trades["symbol"].astype(str).tolist(),
        map(format_fixed, trades["price"].tolist()),
        map(format_fixed, trades["quantity"].tolist()),
        trades["venue"].tolist(),
        trades["trade_id"].tolist(),
        trades["flags"].tolist(),
        strict=True,
    )
