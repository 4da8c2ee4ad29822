"""Trades that were recorded, whatever the format of their file: what a publisher reads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fairtape.core.instants import Instant
from fairtape.formats.dbn import read_dbn
from fairtape.formats.itch_columns import to_arrow
from fairtape.formats.itch_trades import trades_of
from fairtape.formats.refusal import Refused
from fairtape.market.trades import Trades
from fairtape.runtime.complaints import Complaint
from fairtape.runtime.tradefiles import ignored_columns, read_trades

DBN: Final = (".dbn", ".dbn.zst")
ITCH: Final = (".itch", ".itch50", ".nasdaq_itch50")


def is_feed(path: Path) -> bool:
    """Whether a file is one of DBN or ITCH, by its name."""
    return path.name.lower().endswith((*DBN, *ITCH))


def recorded_trades(path: Path, *, time_unit: str | None, midnight_at: Instant | None, venue: str) -> Iterator[Trades]:
    """The trades of a CSV, Parquet, DBN or ITCH 5.0 file, in its order.

    `midnight_at` and `venue` are what a day of ITCH does not say: where its times begin, and whose it is.
    """
    if not is_feed(path):
        return read_trades(path, time_unit=time_unit)
    is_itch = path.name.lower().endswith(ITCH)
    if is_itch and midnight_at is None:
        raise Complaint(f"{path} counts its times from midnight; say which one: --midnight 2019-12-30T00:00:00-05:00")
    try:
        octets = path.read_bytes()
        trades = trades_of(to_arrow(octets), midnight_at=midnight_at or 0, venue=venue) if is_itch else _of_dbn(octets)
    except OSError as error:
        raise Complaint(f"{path} cannot be read: {error.strerror}") from None
    except Refused as refused:
        raise Complaint(f"{path} cannot be read: {refused}") from None
    return iter([trades])


def unpublished_columns(path: Path) -> tuple[str, ...]:
    """The columns of a file that a trade has no place for; what a feed says beside trades is not counted."""
    return () if is_feed(path) else ignored_columns(path)


def _of_dbn(octets: bytes) -> Trades:
    return read_dbn(octets).trades
