"""The last sale of every symbol, with its volume: what somebody who comes late wants to know first."""

from typing import Final, NamedTuple

import numpy as np

from fairtape.client.lots import PLACE_DTYPE, Lot
from fairtape.market.symbols import Symbol
from fairtape.market.trades import blank_trades

SYMBOLS_MAX: Final = 1 << 16  # further ones are counted and not kept
ROOM_MIN: Final = 64


class Volume(NamedTuple):
    """What was traded of a symbol."""

    quantity: int  # 1e-9; as large as it gets, so never a machine integer
    trades: int


class Sales:
    """Grows with every lot, in the order of their numbers."""

    def __init__(self, since: int) -> None:
        self.since = since  # the number from which on trades are counted
        self.unlisted = 0  # trades of symbols beyond the limit
        self._rows: dict[bytes, int] = {}
        self._volumes: list[Volume] = []
        self._last = Lot(blank_trades(ROOM_MIN), np.zeros(ROOM_MIN, PLACE_DTYPE))

    def note(self, lot: Lot) -> None:
        """Take notice of some trades."""
        latest: dict[int, int] = {}
        for at, (symbol, quantity) in enumerate(
            zip(lot.trades["symbol"].tolist(), lot.trades["quantity"].tolist(), strict=True)
        ):
            row = self._row(symbol)
            if row is None:
                self.unlisted += 1
                continue
            before = self._volumes[row]
            self._volumes[row] = Volume(before.quantity + quantity, before.trades + 1)
            latest[row] = at
        rows, places = list(latest), list(latest.values())
        self._last.trades[rows] = lot.trades[places]
        self._last.places[rows] = lot.places[places]

    def symbols(self) -> list[Symbol]:
        """All that were traded, by name."""
        return sorted(name.decode("ascii") for name in self._rows)

    def of(self, symbol: Symbol) -> tuple[Lot, Volume] | None:
        """The last sale of a symbol, a lot of one, and its volume."""
        row = self._rows.get(symbol.encode("ascii", "replace"))
        return None if row is None else (self._last.slice(row, row + 1), self._volumes[row])

    def lot(self) -> Lot:
        """The last sale of every symbol, in the order of their numbers."""
        whole = self._last.slice(0, len(self._rows))
        return whole.where(np.argsort(whole.places["sequence"], kind="stable"))

    def _row(self, symbol: bytes) -> int | None:
        row = self._rows.get(symbol)
        if row is None:
            row = len(self._rows)
            if row == SYMBOLS_MAX:
                return None
            if row == self._last.rows:
                self._last = Lot(np.resize(self._last.trades, 2 * row), np.resize(self._last.places, 2 * row))
            self._rows[symbol] = row
            self._volumes.append(Volume(0, 0))
        return row
