"""Messages of FIX for tests: strategies derived from the same descriptions as the codec."""

from enum import Enum
from typing import Any

from hypothesis import strategies as st

from fairtape.formats.fix.codec import FixStream, encode
from fairtape.formats.fix.dictionary import DATA, HEADER, LENGTH_OF, REPEATABLE
from fairtape.formats.fix.fields import (
    INSTANT_MAX,
    CodeKind,
    FixedKind,
    FixKind,
    FixLayout,
    FlagKind,
    InstantKind,
    IntegerKind,
)
from fairtape.formats.fix.order_messages import LAYOUTS, OrderEntry
from fairtape.market.prices import FIXED_MAX, FIXED_MIN
from unit.formats.itch_values import INK

TAGS = st.integers(1, 956).filter(
    lambda tag: tag not in HEADER and tag not in DATA and tag not in LENGTH_OF and tag not in REPEATABLE and tag != 10
)
TEXTS = st.binary(min_size=1, max_size=12).map(lambda octets: octets.replace(b"\x01", b"="))
BODIES = st.dictionaries(TAGS, TEXTS, max_size=8).map(lambda fields: [(35, b"D"), (34, b"7"), *fields.items()])


@st.composite
def with_data(draw: st.DrawFn) -> list[tuple[int, bytes]]:
    """A body with a data field of any bytes."""
    pairs = draw(BODIES)
    length_tag = draw(st.sampled_from([95, 354, 348, 618]))
    data = draw(
        st.binary(min_size=1, max_size=24) | st.sampled_from([b"\x0110=000\x01", b"8=FIX.4.4\x019=5\x0135=0\x01"])
    )
    place = draw(st.integers(2, len(pairs)))
    return [*pairs[:place], (length_tag, b"%d" % len(data)), (DATA[length_tag], data), *pairs[place:]]


def values(kind: FixKind[Any]) -> st.SearchStrategy[Any]:
    match kind:
        case IntegerKind():
            return st.integers(kind.least, kind.most)
        case FixedKind():
            return (
                st.integers(1, FIXED_MAX) | st.integers(FIXED_MIN, FIXED_MAX) | st.integers(1, 1_000).map(_times_cent)
            )
        case InstantKind():
            return st.integers(0, INSTANT_MAX)
        case FlagKind():
            return st.booleans()
        case CodeKind():
            codes: type[Enum] = kind.codes
            return st.sampled_from(codes)
        case _:
            return st.text(INK, min_size=1, max_size=12)


def _times_cent(value: int) -> int:
    return value * 10_000_000


@st.composite
def entries(draw: st.DrawFn) -> OrderEntry:
    """Any message of order entry, with any of its optional fields."""
    layout: FixLayout[OrderEntry] = draw(st.sampled_from(list(LAYOUTS.values())))
    chosen: dict[str, Any] = {}
    always = {"price", "stop_px", "expire_at", "last_qty", "last_px"}  # required under some conditions
    for each in layout.attributes:
        if each.required or each.name in always or draw(st.booleans()):
            wanted = st.integers(1, FIXED_MAX) if each.name == "order_qty" else values(each.kind)
            chosen[each.name] = draw(wanted)
    return layout.message(**chosen)


def in_one_piece(octets: bytes) -> tuple[list[list[tuple[int, bytes]]], int, int]:
    """The result of a stream for these bytes: the fields of its messages, garbled ones, and junk."""
    stream = FixStream()
    messages = stream.feed(octets)
    return [list(message.pairs) for message in messages], stream.counts.garbled, stream.counts.junk


def spoiled(pairs: list[tuple[int, bytes]], *, length: int = 0, total: int = 0) -> bytes:
    """A message whose length or check sum is off by these amounts."""
    whole = encode(pairs)
    head, _, rest = whole.partition(b"\x0135=")
    name, _, said = head.rpartition(b"=")
    body = b"\x0135=" + rest[:-7]
    octets = b"%b=%d%b" % (name, int(said) + length, body)
    return octets + b"10=%03d\x01" % ((sum(octets) + total) % 256)
