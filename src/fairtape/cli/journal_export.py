"""`fairtape journal export`: the trades of a journal as a file that others read."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from fairtape.client.journal_feed import EntryBatcher, first_number
from fairtape.core.errors import FormatError, UserError
from fairtape.core.instants import SECOND
from fairtape.formats.dbn import write_dbn
from fairtape.formats.framing import frame
from fairtape.formats.itch.ticker import Listing, TickerItch, fits_directory
from fairtape.journal import Damaged, JournalReader
from fairtape.market.trades import Trades, blank_trades
from fairtape.tape.batches import TradeBatch, trades_to_arrow
from fairtape.tape.decoding import EntryDecoder
from fairtape.tape.records import Placed

SUFFIXES: Final = (".parquet", ".csv", ".dbn", ".itch")
DAY: Final = 86_400 * SECOND

Numbers: TypeAlias = npt.NDArray[np.uint64]


def export_trades(directory: Path, file: Path) -> str:
    """Write the file; what came of it, in words."""
    if file.suffix.lower() not in SUFFIXES:
        raise UserError(f"FILE is {str(file)!r}; its name must end in {', '.join(SUFFIXES)}")
    if file.exists():
        raise UserError(f"FILE is {str(file)!r}, which exists; name another one")
    numbers, trades, others = _read(JournalReader.open(directory))
    partial = file.with_name(f".{file.name}.partial")
    try:
        _write(partial, file.suffix.lower(), numbers, trades)
        partial.rename(file)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}") from None
    except FormatError as refused:
        raise UserError(f"{file} cannot hold these trades: {refused}; choose .parquet or .itch") from None
    finally:
        partial.unlink(missing_ok=True)
    left = f"; {others:,} other messages have no place in it" if others else ""
    return f"{len(trades):,} trades in {file}{left}"


def _read(journal: JournalReader) -> tuple[Numbers, Trades, int]:
    lots, others = [], 0
    try:
        for delivery in _deliveries(journal):
            if isinstance(delivery, TradeBatch):
                lots.append(delivery)
            else:
                others += isinstance(delivery, Placed)
    except Damaged as damage:
        raise UserError(f"the journal cannot be read: {damage}; see `fairtape journal verify`") from None
    trades: Trades = np.concatenate([lot.trades for lot in lots]) if lots else blank_trades(0)
    numbers = np.concatenate([lot.places["sequence"] for lot in lots]) if lots else np.zeros(0, np.uint64)
    return numbers.astype(np.uint64), trades, others


def _deliveries(journal: JournalReader) -> Iterator[object]:
    opener, bunches = EntryDecoder(first_number(journal)), EntryBatcher()
    with journal.entries(from_sequence=opener.due) as cursor:
        while found := bunches.take(cursor.everything()):
            yield from opener.opened(found, time.time_ns())


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
    """Without dictionaries, which CSV does not have."""
    columns = [each.cast(each.type.value_type) if pa.types.is_dictionary(each.type) else each for each in table.columns]
    return pa.table(columns, names=table.column_names)


def _itch(numbers: Numbers, trades: Trades) -> bytes:
    """One session: its day is that of the first trade."""
    first_at = int(trades["traded_at"].min()) if len(trades) else 0
    last_at = int(trades["traded_at"].max()) if len(trades) else 0
    names = np.unique(trades[["venue", "symbol"]]).tolist()
    listings = [Listing(symbol.decode("ascii"), venue.decode("ascii")) for venue, symbol in names]
    midnight_at = first_at - first_at % DAY
    writer = TickerItch(filter(fits_directory, listings), midnight_at=midnight_at)
    closing = writer.closing(min(last_at, midnight_at + DAY - 1))
    return frame([*writer.opening(first_at), *writer.trades(numbers, trades), closing])
