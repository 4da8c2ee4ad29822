"""Sales that can be taken back: the last sale and the volume of every symbol, as if a void trade had never been.

A sale stays *open* for as long as it may still be canceled or corrected: the latest `open_max` of all symbols are. When
one is *settled*, only what matters of it is kept: its part in the volume, and the sale itself while no later one of its
symbol is settled. So the last sale of a symbol is the later one of its last open and its last settled sale, whatever
is taken back, and memory does not grow with the day.

A corrected sale has a number of its own and the place of the wrong one: a correction of the morning's trade does not
become the last sale of the evening.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fairtape.core.instants import Instant
from fairtape.market.prices import Price, Quantity
from fairtape.market.symbols import Symbol

OPEN_MAX: Final = 1 << 18  # sales that can be taken back: at 10 a second, those of seven hours
SYMBOLS_MAX: Final = 1 << 16
VENUES_MAX: Final = 256  # of one symbol


class Sale(NamedTuple):
    """One trade of the ticker."""

    number: int  # in the order
    place: int  # where it counts: its own number, or that of the trade which it corrects
    source: int  # who published it
    venue: str
    symbol: Symbol
    price: Price
    quantity: Quantity
    traded_at: Instant


@dataclass(slots=True)
class Volume:
    """What was traded, without what was taken back."""

    quantity: int = 0  # 1e-9; as large as it gets
    trades: int = 0

    def add(self, quantity: Quantity) -> None:
        """One more trade."""
        self.quantity += quantity
        self.trades += 1

    def take_back(self, quantity: Quantity) -> None:
        """One less."""
        self.quantity -= quantity
        self.trades -= 1


@dataclass(slots=True)
class SymbolSales:
    """One line of the directory."""

    symbol: Symbol
    volume: Volume = field(default_factory=Volume)
    venues: set[str] = field(default_factory=set)  # that ever traded it, VENUES_MAX of them
    open: dict[int, Sale] = field(default_factory=dict)  # by place, ascending
    settled: Sale | None = None  # the latest one

    @property
    def last(self) -> Sale | None:
        """The last sale; None where all were taken back."""
        latest = next(reversed(self.open.values()), None)
        if latest is None or (self.settled is not None and self.settled.place > latest.place):
            return self.settled
        return latest


class Sales:
    """All symbols."""

    def __init__(self, *, open_max: int = OPEN_MAX, symbols_max: int = SYMBOLS_MAX) -> None:
        assert open_max > 0
        self.unlisted = 0  # trades of symbols beyond the limit, which nobody remembers
        self._open_max = open_max
        self._symbols_max = symbols_max
        self._symbols: dict[Symbol, SymbolSales] = {}
        self._open: OrderedDict[int, Sale] = OrderedDict()  # by number, ascending

    def __iter__(self) -> Iterator[SymbolSales]:
        return iter(self._symbols.values())

    def __len__(self) -> int:
        return len(self._symbols)

    def of(self, symbol: Symbol) -> SymbolSales | None:
        """What is known of a symbol; None where it was never traded."""
        return self._symbols.get(symbol)

    def open(self, number: int) -> Sale | None:
        """The sale with this number, if it can be taken back."""
        return self._open.get(number)

    @property
    def all_open(self) -> Iterator[Sale]:
        """Every sale that can be taken back, in the order of their numbers."""
        return iter(self._open.values())

    def add(self, sale: Sale) -> bool:
        """One more sale, with a number above all others; whether there was room for its symbol."""
        row = self._symbols.get(sale.symbol)
        if row is None:
            if len(self._symbols) >= self._symbols_max:
                self.unlisted += 1
                return False
            row = self._symbols[sale.symbol] = SymbolSales(sale.symbol)
        row.open[sale.place] = sale  # a corrected one stands where the wrong one stood
        row.volume.add(sale.quantity)
        if len(row.venues) < VENUES_MAX:
            row.venues.add(sale.venue)
        self._open[sale.number] = sale
        if len(self._open) > self._open_max:
            self._settle(self._open.popitem(last=False)[1])
        return True

    def take_back(self, sale: Sale) -> None:
        """An open sale never was."""
        row = self._symbols[sale.symbol]
        del self._open[sale.number]
        del row.open[sale.place]
        row.volume.take_back(sale.quantity)

    def replace(self, wrong: Sale, right: Sale) -> None:
        """An open sale was another one, which is open from now on."""
        assert (right.symbol, right.place) == (wrong.symbol, wrong.place)
        del self._open[wrong.number]
        self._symbols[wrong.symbol].volume.take_back(wrong.quantity)
        self.add(right)

    def _settle(self, sale: Sale) -> None:
        row = self._symbols[sale.symbol]
        del row.open[sale.place]
        if row.settled is None or row.settled.place < sale.place:
            row.settled = sale
