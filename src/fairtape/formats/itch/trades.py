"""The trades in a day of ITCH 5.0, as trade records.

Four message types report trades. P and Q are self-contained. C has its own price; E has the price of an order that was
entered (A, F) or replaced (U) before. Both get the symbol from the directory (R), by the stock locate. An execution
that is marked as not printable is reported elsewhere and is left out, and so is a cross without shares. A trade that
was broken later (B) stays in.

The fields of a trade are: symbol = stock, trade_id = match number, quantity = shares, price = price, traded_at =
midnight + timestamp, venue = given by the caller. The flags name the aggressor: for E and C, the opposite side of the
resting order. P says "buy" always since 2014, so its side is ignored; Q has no sides. All values are exact, and the
trades are in the order of the file.
"""

from typing import Final

import numpy as np

from fairtape.core.instants import Instant
from fairtape.formats.byte_columns import Values
from fairtape.formats.itch.columns import Table, Tables, symbols_by_locate
from fairtape.formats.itch.messages import BadItch
from fairtape.market.prices import FIXED_MAX, ONE
from fairtape.market.symbols import BadName, checked_symbol, checked_venue
from fairtape.market.trades import TradeFlag, Trades, blank_trades

PRICE_UNIT: Final = 10**5  # of a Price4, in units of 1e-9
SHARES_MAX: Final = FIXED_MAX // ONE
_NO_SIDE, _BUY, _SELL = 0, ord("B"), ord("S")


def trades_of(tables: Tables, *, midnight_at: Instant, venue: str) -> Trades:
    """All trades in the tables of one day, made by `columns.to_arrow`."""
    found: list[tuple[Values, Trades]] = []
    orders = _Orders(tables)
    for letter, read in (("P", _plain), ("Q", _crosses), ("C", orders.priced), ("E", orders.executed)):
        if letter in tables:
            found.append(read(tables[letter], symbols_by_locate(tables)))
    indexes = np.concatenate([index for index, _ in found]) if found else np.empty(0, np.int64)
    trades: Trades = np.concatenate([each for _, each in found]) if found else blank_trades(0)
    trades = trades[np.argsort(indexes, kind="stable")]
    trades["traded_at"] += midnight_at
    trades["venue"] = checked_venue(venue).encode("ascii") if venue else b""
    return trades


def _numbers(table: Table, name: str) -> Values:
    values: Values = table[name].to_numpy()
    return values


def _blank(table: Table, shares: Values, price: Values) -> Trades:
    if len(shares) and int(shares.max()) > SHARES_MAX:
        raise BadItch(f"shares is {shares.max()}; a trade has at most {SHARES_MAX}")
    trades = blank_trades(table.num_rows)
    trades["quantity"] = shares.astype(np.int64) * ONE
    trades["price"] = price.astype(np.int64) * PRICE_UNIT
    trades["traded_at"] = _numbers(table, "timestamp_ns")
    trades["trade_id"] = _numbers(table, "match_number")
    return trades


def _named(table: Table) -> Values:
    """The symbols in the messages themselves."""
    column = table["stock"].combine_chunks()
    distinct = np.array([_symbol(text) for text in column.dictionary.to_pylist()], "S16")
    names: Values = distinct[column.indices.to_numpy()] if len(column) else distinct[:0]
    return names


def _located(table: Table, symbols: dict[int, str]) -> Values:
    """The symbols from the directory."""
    locates = _numbers(table, "stock_locate")
    names = np.zeros(1 << 16, "S16")
    for locate, symbol in symbols.items():
        names[locate] = _symbol(symbol)
    found: Values = names[locates]
    if (found == b"").any():
        raise BadItch(f"stock_locate {locates[np.argmax(found == b'')]} trades, but no directory message names it")
    return found


def _symbol(text: str) -> bytes:
    try:
        return checked_symbol(text).encode("ascii")
    except BadName as error:
        raise BadItch(str(error)) from None


def _plain(table: Table, symbols: dict[int, str]) -> tuple[Values, Trades]:
    del symbols
    trades = _blank(table, _numbers(table, "shares"), _numbers(table, "price"))
    trades["symbol"] = _named(table)
    return _numbers(table, "index"), trades


def _crosses(table: Table, symbols: dict[int, str]) -> tuple[Values, Trades]:
    del symbols
    trades = _blank(table, _numbers(table, "shares"), _numbers(table, "cross_price"))
    trades["symbol"] = _named(table)
    happened = trades["quantity"] > 0
    return _numbers(table, "index")[happened], trades[happened]


class _Orders:
    """The price and the side of every order of the day, by its reference number."""

    def __init__(self, tables: Tables) -> None:
        entered = [tables[letter] for letter in "AF" if letter in tables]
        replaced = [tables["U"]] if "U" in tables else []
        both = entered + replaced
        references = _joined([_numbers(table, "order_reference") for table in both], np.uint64)
        self._order = np.argsort(references, kind="stable")
        self._references = references[self._order]
        self._prices = _joined([_numbers(table, "price") for table in both], np.uint32)[self._order]
        sides = _joined([_letters(table, "buy_sell") for table in entered], np.uint8)
        self._sides = np.append(sides, np.full(len(references) - len(sides), _NO_SIDE, np.uint8))[self._order]
        originals = _joined([_numbers(table, "original_order_reference") for table in replaced], np.uint64)
        self._inherit_sides(originals, len(sides))

    def _inherit_sides(self, originals: Values, entered: int) -> None:
        """A replacement has the side of its original, which may be a replacement: find the roots by doubling."""
        replacements = np.argsort(self._order)[entered:]
        places, known = self._find(originals)
        roots = np.arange(len(self._references))
        roots[replacements] = np.where(known, places, replacements)
        for _ in range(len(roots).bit_length()):
            roots = roots[roots]
        self._sides = self._sides[roots]

    def _find(self, references: Values) -> tuple[Values, Values]:
        """The indexes of these orders, and which of them are known."""
        if not len(self._references):
            return np.zeros(len(references), np.int64), np.zeros(len(references), np.bool_)
        places = np.minimum(np.searchsorted(self._references, references), len(self._references) - 1)
        return places, self._references[places] == references

    def executed(self, table: Table, symbols: dict[int, str]) -> tuple[Values, Trades]:
        """E: at the price of the order."""
        places, known = self._find(references := _numbers(table, "order_reference"))
        if not known.all():
            unknown = references[int(np.argmin(known))]
            raise BadItch(f"order_reference {unknown} is executed, but no message entered it; a whole day is needed")
        trades = _blank(table, _numbers(table, "executed_shares"), self._prices[places])
        trades["symbol"] = _located(table, symbols)
        trades["flags"] = _aggressor_flags(self._sides[places])
        return _numbers(table, "index"), trades

    def priced(self, table: Table, symbols: dict[int, str]) -> tuple[Values, Trades]:
        """C: at a price of its own."""
        places, known = self._find(_numbers(table, "order_reference"))
        trades = _blank(table, _numbers(table, "executed_shares"), _numbers(table, "execution_price"))
        trades["symbol"] = _located(table, symbols)
        if known.any():
            trades["flags"] = np.where(known, _aggressor_flags(self._sides[places]), 0)
        printable = _letters(table, "printable") != ord("N")
        return _numbers(table, "index")[printable], trades[printable]


def _joined(parts: list[Values], kind: type[np.unsignedinteger]) -> Values:
    return np.concatenate(parts) if parts else np.empty(0, kind)


def _letters(table: Table, name: str) -> Values:
    column = table[name].combine_chunks()
    distinct = np.array([ord(letter or " ") for letter in column.dictionary.to_pylist()], np.uint8)
    letters: Values = distinct[column.indices.to_numpy()] if len(column) else distinct[:0]
    return letters


def _aggressor_flags(resting: Values) -> Values:
    """The flags of the aggressor, from the side of the resting order."""
    flags = np.zeros(len(resting), np.uint16)
    flags[resting == _SELL] = TradeFlag.BOUGHT
    flags[resting == _BUY] = TradeFlag.SOLD
    return flags
