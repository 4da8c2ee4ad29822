"""Whole ITCH 5.0 files as Arrow tables, one for each message type, and back to the same bytes; the trades in them.

The messages of one type have one size, so they are gathered into rows of that size, and each field is converted for all
rows at once. A table has the columns of the message's class, preceded by `index`, the message's number in the file,
because the order across types is part of the data. Numbers are unsigned integers of their width (times are int64); text
is dictionary-encoded, because symbols and codes repeat.

Four message types report trades. P and Q are self-contained. C has its own price; E has the price of an order that was
entered (A, F) or replaced (U) before. Both get the symbol from the directory (R), by the stock locate. An execution
that is marked as not printable is reported elsewhere and is left out, and so is a cross without shares. A trade that
was broken later (B) stays in.

The fields of a trade are: symbol = stock, trade_id = match number, quantity = shares, price = price, traded_at =
midnight + timestamp, venue = given by the caller. The flags name the aggressor: for E and C, the opposite side of the
resting order. P says "buy" always since 2014, so its side is ignored; Q has no sides. All values are exact, and the
trades are in the order of the file.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairtape.core.instants import Instant
from fairtape.formats.byte_columns import Rows, Values, gather, read_numbers, scatter, slot, write_numbers
from fairtape.formats.fixed_layout import Field, Layout, Number, Text, is_printable
from fairtape.formats.framing import END_MARK, PREFIX_SIZE, Octets, find_frames
from fairtape.formats.itch.messages import LAYOUTS, PRICE_UNIT, BadItch, StockDirectory
from fairtape.market.prices import FIXED_MAX, ONE
from fairtape.market.symbols import BadName, checked_symbol, checked_venue
from fairtape.market.trades import TradeFlag, Trades, blank_trades

Table: TypeAlias = Any  # a table or an array of pyarrow, which declares no types
Tables: TypeAlias = Mapping[str, Table]  # by the letter of the messages

INDEX: Final = "index"
TEXT: Final = pa.dictionary(pa.int32(), pa.string())

_SIZES: Final = np.zeros(256, np.int64)  # of the message type with each letter; 0 where there is none
for _layout in LAYOUTS.values():
    _SIZES[ord(_layout.letter)] = _layout.size

SHARES_MAX: Final = FIXED_MAX // ONE
_NO_SIDE, _BUY, _SELL = 0, ord("B"), ord("S")


def to_arrow(buffer: Octets, *, first_index: int = 0) -> dict[str, Table]:
    """The messages of a file, or of message blocks of MoldUDP64, in one table per message type.

    Raises `BadItch` or `BadFraming` where a single message would be refused.
    """
    frames = find_frames(buffer)
    octets = np.frombuffer(buffer, np.uint8)
    letters = octets[frames.starts]
    wanted = _SIZES[letters]
    if (wanted != frames.sizes).any():
        raise _size_error(int(np.argmax(wanted != frames.sizes)), letters, frames.sizes)
    tables = {}
    for letter in np.flatnonzero(np.bincount(letters, minlength=256)).tolist():
        layout = LAYOUTS[chr(letter)]
        places = np.flatnonzero(letters == letter)
        rows = gather(octets, frames.starts[places], layout.size)
        columns = {field.name: _column(rows, layout, field) for field in layout.fields}
        tables[layout.letter] = pa.table({INDEX: pa.array(places + first_index), **columns})
    return tables


def from_arrow(tables: Tables, *, end_mark: bool = False) -> bytes:
    """The file with these tables, optionally with the end mark. The inverse of `to_arrow`.

    The messages are in the order of their indexes. The indexes may have gaps, so tables may be filtered first.
    """
    layouts = [_layout_of(letter) for letter in tables]
    rows = [_packed(table, layout) for table, layout in zip(tables.values(), layouts, strict=True)]
    indexes = [_numbers(table, INDEX, layout.letter) for table, layout in zip(tables.values(), layouts, strict=True)]
    if not rows:
        return END_MARK if end_mark else b""
    every = np.concatenate(indexes)
    order = np.argsort(every, kind="stable")
    if (repeated := np.flatnonzero(np.diff(every[order]) == 0)).size:
        raise BadItch(f"index {every[order][repeated[0]]} is in two rows; every message has an index of its own")
    sizes = np.repeat([each.shape[1] for each in rows], [len(each) for each in rows])
    starts = np.empty(len(every), np.int64)
    starts[order] = np.cumsum(sizes[order]) - sizes[order]
    octets = np.zeros(int(sizes.sum()) + (PREFIX_SIZE if end_mark else 0), np.uint8)
    taken = 0
    for each in rows:
        scatter(octets, starts[taken : taken + len(each)], each)
        taken += len(each)
    return octets.tobytes()


def symbols_by_locate(tables: Tables) -> dict[int, str]:
    """The symbol of each stock locate, from the directory messages; the last one applies."""
    directory = tables.get(StockDirectory.LETTER)
    if directory is None:
        return {}
    return dict(zip(directory["stock_locate"].to_pylist(), directory["stock"].to_pylist(), strict=True))


def _size_error(index: int, letters: Values, sizes: Values) -> BadItch:
    letter = chr(letters[index])
    if letter not in LAYOUTS:
        return BadItch(f"type of message {index} is {letter!r}; it must be one of {''.join(LAYOUTS)}")
    found, wanted = sizes[index], LAYOUTS[letter].size
    return BadItch(f"message {index} of type {letter} has {found} bytes; it must have {wanted}")


def _column(rows: Rows, layout: Layout, field: Field) -> Table:
    if isinstance(field.kind, Text):
        return _text_column(rows, layout, field, field.kind)
    return pa.array(read_numbers(rows, field.start, field.kind.width))


def _text_column(rows: Rows, layout: Layout, field: Field, kind: Text) -> Table:
    """Encode the bytes as integers first, so that each distinct text is decoded and checked once."""
    width = kind.width
    coded = pa.array(np.ascontiguousarray(slot(rows, field.start, f"u{width}"))).dictionary_encode()
    octets = coded.dictionary.to_numpy().tobytes()
    texts = [kind.read(octets[at : at + width]) for at in range(0, len(octets), width)]
    for text in texts:
        if not is_printable(text):
            raise layout.refused(field, repr(text))
    return pa.DictionaryArray.from_arrays(coded.indices, pa.array(texts, pa.string()))


def _layout_of(letter: str) -> Layout:
    if letter not in LAYOUTS:
        raise BadItch(f"type is {letter!r}; it must be one of {''.join(LAYOUTS)}")
    return LAYOUTS[letter]


def _packed(table: Table, layout: Layout) -> Rows:
    """The messages of one table with their length prefixes, one per row."""
    rows: Rows = np.zeros((table.num_rows, PREFIX_SIZE + layout.size), np.uint8)
    slot(rows, 0, ">u2")[:] = layout.size
    rows[:, PREFIX_SIZE] = ord(layout.letter)
    for field in layout.fields:
        if isinstance(field.kind, Text):
            _put_text(rows, table, layout, field)
        else:
            _put_number(rows, table, layout, field, field.kind)
    return rows


def _put_number(rows: Rows, table: Table, layout: Layout, field: Field, kind: Number) -> None:
    values = _numbers(table, field.name, layout.letter)
    if len(values) and int(values.max()) > kind.most:
        raise layout.refused(field, str(values.max()))
    write_numbers(rows, PREFIX_SIZE + field.start, kind.width, values)


def _put_text(rows: Rows, table: Table, layout: Layout, field: Field) -> None:
    column = _single_chunk(table, field.name, layout.letter)
    if not (pa.types.is_dictionary(column.type) or pa.types.is_string(column.type)):
        raise BadItch(f"{field.name} of message {layout.letter} has the type {column.type}; it must hold text")
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    texts = coded.dictionary.to_pylist()
    for text in texts:
        if not field.kind.takes(text):
            raise layout.refused(field, repr(text))
    width = field.kind.width
    distinct = np.frombuffer(b"".join(text.ljust(width).encode("ascii") for text in texts), f"u{width}")
    if len(rows):
        slot(rows, PREFIX_SIZE + field.start, f"u{width}")[:] = distinct[coded.indices.to_numpy()]


def _numbers(table: Table, name: str, letter: str) -> Values:
    """A column of whole numbers from 0 on."""
    column = _single_chunk(table, name, letter)
    try:
        values: Values = pc.cast(column, pa.uint64()).to_numpy()
    except pa.ArrowException:
        raise BadItch(
            f"{name} of message {letter} has the type {column.type}; it must hold whole numbers from 0 on"
        ) from None
    return values


def _single_chunk(table: Table, name: str, letter: str) -> Table:
    """One column of a table as a single chunk, with one dictionary."""
    if name not in table.column_names:
        raise BadItch(f"the table of message {letter} has no column {name}")
    column = table.select([name]).unify_dictionaries().combine_chunks().column(0)
    if column.null_count:
        raise BadItch(f"{name} of message {letter} has {column.null_count} nulls; every message has every field")
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def trades_of(tables: Tables, *, midnight_at: Instant, venue: str) -> Trades:
    """All trades in the tables of one day, made by `to_arrow`."""
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


def _values(table: Table, name: str) -> Values:
    values: Values = table[name].to_numpy()
    return values


def _blank(table: Table, shares: Values, price: Values) -> Trades:
    if len(shares) and int(shares.max()) > SHARES_MAX:
        raise BadItch(f"shares is {shares.max()}; a trade has at most {SHARES_MAX}")
    trades = blank_trades(table.num_rows)
    trades["quantity"] = shares.astype(np.int64) * ONE
    trades["price"] = price.astype(np.int64) * PRICE_UNIT
    trades["traded_at"] = _values(table, "timestamp_ns")
    trades["trade_id"] = _values(table, "match_number")
    return trades


def _named(table: Table) -> Values:
    """The symbols in the messages themselves."""
    column = table["stock"].combine_chunks()
    distinct = np.array([_symbol(text) for text in column.dictionary.to_pylist()], "S16")
    names: Values = distinct[column.indices.to_numpy()] if len(column) else distinct[:0]
    return names


def _located(table: Table, symbols: dict[int, str]) -> Values:
    """The symbols from the directory."""
    locates = _values(table, "stock_locate")
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
    trades = _blank(table, _values(table, "shares"), _values(table, "price"))
    trades["symbol"] = _named(table)
    return _values(table, "index"), trades


def _crosses(table: Table, symbols: dict[int, str]) -> tuple[Values, Trades]:
    del symbols
    trades = _blank(table, _values(table, "shares"), _values(table, "cross_price"))
    trades["symbol"] = _named(table)
    happened = trades["quantity"] > 0
    return _values(table, "index")[happened], trades[happened]


class _Orders:
    """The price and the side of every order of the day, by its reference number."""

    def __init__(self, tables: Tables) -> None:
        entered = [tables[letter] for letter in "AF" if letter in tables]
        replaced = [tables["U"]] if "U" in tables else []
        both = entered + replaced
        references = _joined([_values(table, "order_reference") for table in both], np.uint64)
        self._order = np.argsort(references, kind="stable")
        self._references = references[self._order]
        self._prices = _joined([_values(table, "price") for table in both], np.uint32)[self._order]
        sides = _joined([_letters(table, "buy_sell") for table in entered], np.uint8)
        self._sides = np.append(sides, np.full(len(references) - len(sides), _NO_SIDE, np.uint8))[self._order]
        originals = _joined([_values(table, "original_order_reference") for table in replaced], np.uint64)
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
        places, known = self._find(references := _values(table, "order_reference"))
        if not known.all():
            unknown = references[int(np.argmin(known))]
            raise BadItch(f"order_reference {unknown} is executed, but no message entered it; a whole day is needed")
        trades = _blank(table, _values(table, "executed_shares"), self._prices[places])
        trades["symbol"] = _located(table, symbols)
        trades["flags"] = _aggressor_flags(self._sides[places])
        return _values(table, "index"), trades

    def priced(self, table: Table, symbols: dict[int, str]) -> tuple[Values, Trades]:
        """C: at a price of its own."""
        places, known = self._find(_values(table, "order_reference"))
        trades = _blank(table, _values(table, "executed_shares"), _values(table, "execution_price"))
        trades["symbol"] = _located(table, symbols)
        if known.any():
            trades["flags"] = np.where(known, _aggressor_flags(self._sides[places]), 0)
        printable = _letters(table, "printable") != ord("N")
        return _values(table, "index")[printable], trades[printable]


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
