"""Whole ITCH 5.0 files as Arrow tables, one for each message type, and back to the same bytes.

The messages of one type have one size, so they are gathered into rows of that size, and each field is converted for all
rows at once. A table has the columns of the message's class, preceded by `index`, the message's number in the file,
because the order across types is part of the data. Numbers are unsigned integers of their width (times are int64); text
is dictionary-encoded, because symbols and codes repeat.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairtape.formats.byte_columns import Rows, Values, gather, read_numbers, scatter, slot, write_numbers
from fairtape.formats.fixed_layout import Field, Layout, Number, Text, is_printable
from fairtape.formats.framing import END_MARK, PREFIX_SIZE, Octets, find_frames
from fairtape.formats.itch.messages import LAYOUTS, BadItch, StockDirectory

Table: TypeAlias = Any  # a table or an array of pyarrow, which declares no types
Tables: TypeAlias = Mapping[str, Table]  # by the letter of the messages

INDEX: Final = "index"
TEXT: Final = pa.dictionary(pa.int32(), pa.string())

_SIZES: Final = np.zeros(256, np.int64)  # of the message type with each letter; 0 where there is none
for _layout in LAYOUTS.values():
    _SIZES[ord(_layout.letter)] = _layout.size


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
