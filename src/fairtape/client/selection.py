"""Which records of the order a reader selects: by symbol, by stripe, or all. Filters columns, not single records."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from fairtape.client.backlog import Item
from fairtape.client.errors import ClientError
from fairtape.market.symbols import BadName, Symbol, checked_symbol
from fairtape.tape.batches import TradeBatch, symbol_set
from fairtape.tape.feed import Delivery, LastSales
from fairtape.tape.records import Canceled, Corrected, Message, Placed, Single, Snapshot
from fairtape.wire.frames import STRIPE_MAX

SYMBOLS_MAX: Final = 1 << 16  # of one selection
SHOWN_MAX: Final = 5  # names that a summary shows


class Selection:
    """Symbols and stripes; None selects all.

    A selection of symbols drops messages without a symbol, except the status of a venue, which concerns all symbols.
    """

    def __init__(self, symbols: tuple[Symbol, ...] | None, stripes: tuple[int, ...] | None) -> None:
        self.symbols = symbols
        self.stripes = stripes
        self._names = frozenset(symbols or ())
        self._symbol_set = None if symbols is None else symbol_set(symbols)

    @classmethod
    def of(cls, symbols: Iterable[str] | str | None, stripes: Iterable[int] | int | None) -> "Selection":
        """The selection that a user names: one symbol or stripe, or several; in one text, with commas."""
        names = symbols.split(",") if isinstance(symbols, str) else symbols
        chosen = None if names is None else _checked_symbols(names)
        return cls(chosen, None if stripes is None else _checked_stripes(stripes))

    def __str__(self) -> str:
        named = [_shown("symbols", self.symbols), _shown("stripes", self.stripes)]
        return " of ".join(name for name in named if name) or "everything"

    def items(self, delivery: Delivery) -> Iterator[Item]:
        """The selected part of a delivery; a `Snapshot` with the number of its trades precedes those of a snapshot."""
        match delivery:
            case LastSales(first, through, batch):
                selected = self.of_batch(batch)
                yield Snapshot(first, through, selected.rows)
                yield selected
            case TradeBatch():
                yield self.of_batch(delivery)
            case Placed():
                if self._wants(delivery):
                    yield delivery
            case _:
                yield delivery

    def of_batch(self, batch: TradeBatch) -> TradeBatch:
        if self.stripes is not None and batch.rows:
            batch = batch.where(np.isin(batch.places["stripe"], self.stripes))
        return batch if self._symbol_set is None or not batch.rows else batch.only(self._symbol_set)

    def _wants(self, single: Single) -> bool:
        if self.stripes is not None and single.stripe not in self.stripes:
            return False
        match single:
            case Canceled() | Corrected():
                # On a stripe a cancel may lack its symbol; a reader that has the trade knows it by its number.
                return self.symbols is None or not single.symbol or single.symbol in self._names
            case Message():
                return self.symbols is None
        return True


def _checked_symbols(symbols: Any) -> tuple[Symbol, ...]:
    try:
        names = tuple(dict.fromkeys(symbols))
    except TypeError:
        raise ClientError(f"symbols is {symbols!r}; give a name such as 'ABC', or several") from None
    for name in names:
        if not isinstance(name, str):
            raise ClientError(f"symbols has {name!r}; a symbol is text such as 'ABC'")
        try:
            checked_symbol(name)
        except BadName as error:
            raise ClientError(f"symbols: {error}") from None
    if not 1 <= len(names) <= SYMBOLS_MAX:
        raise ClientError(f"symbols names {len(names):,}; give from 1 to {SYMBOLS_MAX:,}, or None for all")
    return names


def _checked_stripes(stripes: Any) -> tuple[int, ...]:
    try:
        numbers = (stripes,) if isinstance(stripes, int) else tuple(dict.fromkeys(stripes))
    except TypeError:
        raise ClientError(f"stripes is {stripes!r}; give a number, or several") from None
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= STRIPE_MAX:
            raise ClientError(f"stripes has {number!r}; a stripe is a whole number from 0 to {STRIPE_MAX}")
    if not numbers:
        raise ClientError("stripes names none; give at least one, or None for all")
    return numbers


def _shown(what: str, names: tuple[object, ...] | None) -> str:
    if names is None:
        return ""
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return f"{what} {', '.join(map(str, names[:SHOWN_MAX]))}{more}"
