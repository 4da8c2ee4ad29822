"""Export: the trades of a journal as a file, in the format that its suffix names.

Trades are written as published: cancels and corrections are not applied. The file is written beside its name and
renamed, so that a file of that name is always complete.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from fairtape.core.errors import FormatError, UserError
from fairtape.core.instants import SECOND
from fairtape.formats.dbn import write_dbn
from fairtape.formats.framing import frame
from fairtape.formats.itch.ticker_messages import Listing, TickerItch, fits_directory
from fairtape.journal import Damaged, JournalReader
from fairtape.journal.follow import JournalFollower, first_sequence
from fairtape.market.trades import Trades, blank_trades
from fairtape.tape.batches import ROWS_MAX, TradeBatch, trades_to_arrow
from fairtape.tape.decoding import EntryDecoder
from fairtape.tape.records import Placed

SUFFIXES: Final = (".parquet", ".csv", ".dbn", ".itch")
DAY: Final = 86_400 * SECOND

Numbers: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class ExportedTrades:
    """What a file got."""

    trades: int
    others: int  # messages that are not trades, and were left out


def export_trades(directory: Path, file: Path) -> ExportedTrades:
    """Write the trades of the journal in `directory` to a new file."""
    if file.suffix.lower() not in SUFFIXES:
        raise UserError(f"FILE is {str(file)!r}; its name must end in {', '.join(SUFFIXES)}")
    if file.exists():
        raise UserError(f"FILE is {str(file)!r}, which exists; choose another name")
    numbers, trades, others = _read(JournalReader.open(directory))
    partial = file.with_name(f".{file.name}.partial")
    try:
        _write(partial, file.suffix.lower(), numbers, trades)
        partial.rename(file)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None
    except FormatError as refused:
        raise UserError(f"{file} cannot represent these trades: {refused}; choose .parquet or .itch") from None
    finally:
        partial.unlink(missing_ok=True)
    return ExportedTrades(len(trades), others)


def _read(journal: JournalReader) -> tuple[Numbers, Trades, int]:
    parts, others = [], 0
    try:
        for delivery in _deliveries(journal):
            if isinstance(delivery, TradeBatch):
                parts.append(delivery)
            else:
                others += isinstance(delivery, Placed)
    except Damaged as damage:
        raise UserError(f"the journal cannot be read: {damage}; see `fairtape journal verify`") from None
    trades: Trades = np.concatenate([part.trades for part in parts]) if parts else blank_trades(0)
    numbers = np.concatenate([part.places["sequence"] for part in parts]) if parts else np.zeros(0, np.uint64)
    return numbers.astype(np.uint64), trades, others


def _deliveries(journal: JournalReader) -> Iterator[object]:
    decoder = EntryDecoder(first_sequence(journal))
    with closing(JournalFollower.of_journal(journal, from_sequence=decoder.due)) as follower:
        while found := follower.read(ROWS_MAX):
            yield from decoder.decode(found, time.time_ns())


def _write(path: Path, suffix: str, numbers: Numbers, trades: Trades) -> None:
    match suffix:
        case ".parquet":
            pq.write_table(trades_to_arrow(trades), path)
        case ".csv":
            pyarrow.csv.write_csv(_plain(trades_to_arrow(trades)), path)
        case ".dbn":
            path.write_bytes(write_dbn(trades))
        case _:
            path.write_bytes(_itch(numbers, trades))


def _plain(table: Any) -> Any:
    """Decode dictionary columns, which CSV does not support."""
    columns = [each.cast(each.type.value_type) if pa.types.is_dictionary(each.type) else each for each in table.columns]
    return pa.table(columns, names=table.column_names)


def _itch(numbers: Numbers, trades: Trades) -> bytes:
    """One session, on the day of the first trade."""
    first_at = int(trades["traded_at"].min()) if len(trades) else 0
    last_at = int(trades["traded_at"].max()) if len(trades) else 0
    names = np.unique(trades[["venue", "symbol"]]).tolist()
    listings = [Listing(symbol.decode("ascii"), venue.decode("ascii")) for venue, symbol in names]
    midnight_at = first_at - first_at % DAY
    writer = TickerItch(filter(fits_directory, listings), midnight_at=midnight_at)
    closing = writer.closing(min(last_at, midnight_at + DAY - 1))
    return frame([*writer.opening(first_at), *writer.trades(numbers, trades), closing])
