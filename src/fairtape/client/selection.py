"""What a reader wants of the order: some symbols, some stripes, or everything. Chosen by columns, before any record."""

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

SYMBOLS_MAX: Final = 1 << 16  # that can be chosen
SHOWN_MAX: Final = 5  # names that a summary shows


class Selection:
    """Which records are wanted.

    A choice of symbols leaves out messages that have none, but for the status of a venue, which is about all of them.
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
        """What is wanted of a delivery; a snapshot is announced with the number of trades that are."""
        match delivery:
            case LastSales(first, through, lot):
                wanted = self.of_batch(lot)
                yield Snapshot(first, through, wanted.rows)
                yield wanted
            case TradeBatch():
                yield self.of_batch(delivery)
            case Placed():
                if self._wants(delivery):
                    yield delivery
            case _:
                yield delivery

    def of_batch(self, lot: TradeBatch) -> TradeBatch:
        """The trades that are wanted."""
        if self.stripes is not None and lot.rows:
            lot = lot.where(np.isin(lot.places["stripe"], self.stripes))
        return lot if self._symbol_set is None or not lot.rows else lot.only(self._symbol_set)

    def _wants(self, single: Single) -> bool:
        if self.stripes is not None and single.stripe not in self.stripes:
            return False
        match single:
            case Canceled() | Corrected():
                # On a stripe a cancel may not say whose it is; whoever has the trade knows it by its number.
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
