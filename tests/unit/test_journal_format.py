"""The bytes of a journal: everything comes back, and nothing but `Malformed` comes out of bytes that are wrong."""

import hashlib
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.effects import Ordered, Release
from fairtape.runtime.journal.format import (
    GENESIS,
    HEAD_SIZE,
    HEADER_SIZE,
    Head,
    Header,
    Tip,
    decode_header,
    decode_ordered,
    decode_record,
    encode_header,
    encode_ordered,
    encode_release,
    link,
    segment_name,
    sequence_of,
)
from fairtape.wire.frames import NUMBER_MAX, Malformed
from unit import journal_values as values

headers = st.builds(
    Header,
    stripe=st.integers(0, 0xFFFF),
    number=st.integers(0, 0xFFFF_FFFF),
    token=values.numbers,
    sequence=values.numbers,
    released=values.numbers,
    latest_at=values.numbers,
    previous=st.binary(min_size=32, max_size=32),
)


@given(values.ordered_contents())
def test_ordered_content_comes_back_as_it_was(ordered: Ordered) -> None:
    encoded = encode_ordered(ordered)
    head = decode_record(encoded[:HEAD_SIZE])
    assert isinstance(head, Head)
    assert head.stored == len(encoded) + len(GENESIS)
    assert decode_ordered(head, encoded) == ordered


@given(values.ordered_contents())
def test_equal_content_has_equal_bytes_however_its_lack_of_fragments_is_said(ordered: Ordered) -> None:
    spelled = tuple(replace(span, fragments=span.fragments or (False,) * len(span.bodies)) for span in ordered.spans)
    assert encode_ordered(replace(ordered, spans=spelled)) == encode_ordered(ordered)


@given(values.releases)
def test_a_release_mark_comes_back_as_it_was(release: Release) -> None:
    assert decode_record(encode_release(release)) == release


@given(headers)
def test_a_header_comes_back_as_it_was(header: Header) -> None:
    assert decode_header(encode_header(header)) == header


@given(st.binary(max_size=2 * HEADER_SIZE))
def test_garbage_is_malformed_and_nothing_else(data: bytes) -> None:
    for decode in (decode_header, decode_record):
        with suppress(Malformed):
            decode(data)


@given(values.ordered_contents(), st.data())
def test_an_entry_whose_inside_is_altered_is_malformed_or_another_entry(ordered: Ordered, data: st.DataObject) -> None:
    """The digest catches every alteration; decoding must be safe without it, for whoever forges a digest too."""
    encoded = bytearray(encode_ordered(ordered))
    head = decode_record(bytes(encoded[:HEAD_SIZE]))
    assert isinstance(head, Head)
    position = data.draw(st.integers(HEAD_SIZE, len(encoded) - 1))
    encoded[position] ^= data.draw(st.integers(1, 255))
    with suppress(Malformed):
        assert decode_ordered(head, bytes(encoded)) != ordered


def test_the_chain_is_sha256_over_the_previous_digest_and_the_entry() -> None:
    assert link(b"\1" * 32, b"entry") == hashlib.sha256(b"\1" * 32 + b"entry").digest()


def test_the_canonical_encoding_never_changes() -> None:
    """A journal is read years later: a change of these bytes needs a new version."""
    encodings = b"".join(map(encode_ordered, values.first(50)))
    assert hashlib.sha256(encodings).hexdigest() == "10b6985f86c9760c54c32c8f790308e8f7ce922c9c24167f445d1fb65c585f3e"


@given(st.integers(0, NUMBER_MAX))
def test_a_segments_name_bears_its_first_sequence_number(sequence: int) -> None:
    assert sequence_of(segment_name(sequence)) == sequence


@pytest.mark.parametrize("name", ["lock", "1.segment", "+000000000000000001.segment", "0" * 19, "٠" * 19 + ".segment"])
def test_other_files_are_no_segments(name: str) -> None:
    assert sequence_of(name) is None


def test_names_sort_as_their_numbers_do() -> None:
    numbers = [NUMBER_MAX, 1, 99, 100, 10**18]
    assert sorted(map(segment_name, numbers)) == [segment_name(number) for number in sorted(numbers)]


def test_a_tip_refuses_a_gap_a_repetition_and_a_release_of_what_is_not_ordered() -> None:
    one, two = values.first(2)
    start = Tip(0, 1, 1, 0, GENESIS)
    after = follow(start, one)
    with pytest.raises(Malformed, match="is next"):
        follow(start, two)
    with pytest.raises(Malformed, match="is next"):
        follow(after, one)
    with pytest.raises(Malformed, match="after token"):
        follow(after, replace(two, token=one.token))
    with pytest.raises(Malformed, match="nothing is ordered"):
        start.release(values.released(one))
    with pytest.raises(Malformed, match="is next"):
        follow(after, two).release(values.released(two))


def follow(tip: Tip, ordered: Ordered) -> Tip:
    return tip.ordered(
        token=ordered.token,
        sequence=ordered.sequence,
        end=ordered.sequence + ordered.count,
        acknowledged_at=ordered.acknowledged_at,
        digest=b"",
    )
