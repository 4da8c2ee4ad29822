"""Entries: decoding inverts encoding, an entry has one encoding, hostile bytes do no harm."""

import hashlib
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.entries import (
    HEAD_SIZE,
    LAYOUT_MAX,
    Entry,
    Position,
    close_head,
    decode_entry,
    decode_head,
    encode_entry,
    position_of,
)
from fairtape.wire.frames import Malformed
from unit.journal import journal_values as values

CHANGE = FormationChange(values.STRIPE, 7, 100, 2_000, True, b"layout", values.STARTS_AT)


@given(values.contents)
def test_a_decoded_entry_equals_the_encoded_one(entry: Entry) -> None:
    encoded = encode_entry(entry)
    head = decode_head(encoded[:HEAD_SIZE])
    assert head.encoded_size == len(encoded)
    assert head.position == position_of(entry)
    assert head.changes_formation == isinstance(entry, FormationChange)
    assert decode_entry(encoded) == entry


@given(values.ordered_contents())
def test_equal_content_has_equal_bytes_whether_fragments_are_empty_or_all_false(ordered: Ordered) -> None:
    spelled = tuple(replace(span, fragments=span.fragments or (False,) * len(span.bodies)) for span in ordered.spans)
    assert encode_entry(replace(ordered, spans=spelled)) == encode_entry(ordered)


@given(st.binary(max_size=4 * HEAD_SIZE))
def test_garbage_is_malformed_and_nothing_else(data: bytes) -> None:
    for crafted in (data, close_head(b"O" + data[:47].ljust(47, b"\0")) + data[47:]):
        with suppress(Malformed):
            decode_entry(crafted)


@settings(max_examples=300)
@given(values.contents, st.data())
def test_an_entry_altered_with_its_checksum_is_refused_or_is_another_entry(entry: Entry, data: st.DataObject) -> None:
    """Bytes from the network are decoded before they are authenticated; every entry has exactly one encoding."""
    encoded = bytearray(encode_entry(entry))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        encoded = encoded[: data.draw(st.integers(0, len(encoded)))]
    forged = close_head(bytes(encoded[: HEAD_SIZE - 4])) + bytes(encoded[HEAD_SIZE:])
    with suppress(Malformed):
        assert encode_entry(decode_entry(forged)) == forged
    if bytes(encoded) != encode_entry(entry):
        with suppress(Malformed):
            assert decode_entry(bytes(encoded)) != entry


@pytest.mark.parametrize("size", [0, 1, HEAD_SIZE - 1, HEAD_SIZE, HEAD_SIZE + len(CHANGE.layout) + 1])
def test_an_entry_of_another_length_than_its_head_says_is_refused(size: int) -> None:
    with pytest.raises(Malformed):
        decode_entry((encode_entry(CHANGE) + b"\0")[:size])


def test_a_layout_longer_than_allowed_is_never_written_and_never_read() -> None:
    encode_entry(replace(CHANGE, layout=bytes(LAYOUT_MAX)))
    with pytest.raises(AssertionError):
        encode_entry(replace(CHANGE, layout=bytes(LAYOUT_MAX + 1)))
    head = bytearray(encode_entry(CHANGE)[: HEAD_SIZE - 4])
    head[16:20] = (LAYOUT_MAX + 1).to_bytes(4)
    with pytest.raises(Malformed, match="contradicts itself"):
        decode_entry(close_head(bytes(head)) + bytes(LAYOUT_MAX + 1))


def test_positions_ascend_strictly_over_all_formations() -> None:
    positions = [position_of(entry) for entry in values.first_with_formations(200)]
    assert all(one < other for one, other in pairwise(positions))
    assert position_of(CHANGE) == Position(7, 99)


def test_the_canonical_encoding_never_changes() -> None:
    """A journal is read years later, and compared with others: a change of these bytes needs a new version."""
    encodings = b"".join(map(encode_entry, values.first(50)))
    assert hashlib.sha256(encodings).hexdigest() == "10b6985f86c9760c54c32c8f790308e8f7ce922c9c24167f445d1fb65c585f3e"
    assert encode_entry(CHANGE).hex() == (
        "4601000300000007000000000000000000000006000000000000000000000064"
        "00000000000007d018493fba64ef000010d2e4686c61796f7574"
    )
