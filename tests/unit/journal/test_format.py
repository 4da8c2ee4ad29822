"""The bytes of a journal: encoding round-trips, and malformed bytes raise `Malformed` and nothing else."""

import hashlib
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.effects import Ordered, Release
from fairtape.core.entries import HEAD_SIZE, close_head, decode_head, encode_entry
from fairtape.journal.format import (
    GENESIS,
    HEADER_SIZE,
    CheckpointHead,
    OtherVersion,
    SegmentCheckpoint,
    SegmentHeader,
    Tip,
    decode_checkpoint,
    decode_header,
    decode_record,
    encode_checkpoint,
    encode_header,
    encode_release,
    first_mark,
    link,
    segment_name,
    sequence_of,
    stored_size,
)
from fairtape.wire.frames import NODE_MAX, NUMBER_MAX, Malformed
from unit.journal import journal_values as values

digests = st.binary(min_size=32, max_size=32)
tips = st.builds(
    Tip,
    formation=st.integers(-1, 0xFFFF_FFFF),
    token=values.numbers,
    sequence=st.integers(1, NUMBER_MAX),
    latest_at=values.numbers,
    digest=digests,
    released=values.numbers,
    released_token=values.numbers,
    marks=digests,
)
headers = st.builds(
    SegmentHeader,
    stripe=st.integers(0, 0xFFFF),
    site=st.integers(0, NODE_MAX),
    number=st.integers(0, 0xFFFF_FFFF),
    tip=tips,
)
checkpoints = st.builds(
    SegmentCheckpoint,
    streams=st.dictionaries(
        st.integers(0, NODE_MAX), st.tuples(values.numbers, st.integers(1, NUMBER_MAX)), max_size=20
    ),
    change=st.one_of(st.none(), values.formation_changes),
)


@given(values.releases)
def test_a_release_mark_survives_encoding(release: Release) -> None:
    assert decode_record(encode_release(release)) == release


@given(headers)
def test_a_segment_header_survives_encoding(header: SegmentHeader) -> None:
    assert decode_header(encode_header(header)) == header


@given(checkpoints)
def test_a_checkpoint_survives_its_encoding(checkpoint: SegmentCheckpoint) -> None:
    encoded = encode_checkpoint(checkpoint)
    head = decode_record(encoded[:HEAD_SIZE])
    assert isinstance(head, CheckpointHead)
    assert stored_size(head) == len(encoded) + len(GENESIS)
    assert decode_checkpoint(head, encoded) == checkpoint


@given(checkpoints, st.data())
def test_an_altered_checkpoint_is_malformed_or_another_one(checkpoint: SegmentCheckpoint, data: st.DataObject) -> None:
    encoded = bytearray(encode_checkpoint(checkpoint))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    forged = close_head(bytes(encoded[: HEAD_SIZE - 4])) + bytes(encoded[HEAD_SIZE:])
    with suppress(Malformed):
        head = decode_record(forged[:HEAD_SIZE])
        assert isinstance(head, CheckpointHead)
        assert encode_checkpoint(decode_checkpoint(head, forged)) == forged


@given(st.binary(max_size=2 * HEADER_SIZE))
def test_garbage_is_malformed_and_nothing_else(data: bytes) -> None:
    for decode in (decode_header, decode_record):
        for kind in (b"", b"O", b"F", b"R", b"C", b"FAIRTAPE\x00\x01", b"FAIRTAPE\x00\x02"):
            with suppress(Malformed):
                decode(kind + data)


def test_version_1_is_distinguished_from_a_corrupted_version_number() -> None:
    header = bytearray(encode_header(SegmentHeader(3, 1, 0, Tip.before(values.first(1)[0], 1))))
    header[9] = 1
    with pytest.raises(Malformed, match="checksum"):
        decode_header(bytes(header))
    with pytest.raises(OtherVersion, match="journal version 1; this program reads version 2"):
        decode_header(close_head(bytes(header[:80])) + bytes(52))


def test_the_chain_is_sha256_over_the_previous_digest_and_the_entry() -> None:
    assert link(b"\1" * 32, b"entry") == hashlib.sha256(b"\1" * 32 + b"entry").digest()


def test_every_site_has_its_own_chain_of_marks() -> None:
    assert first_mark(1) != first_mark(2)


@given(st.integers(0, NUMBER_MAX))
def test_the_name_of_a_segment_is_its_first_sequence_number(sequence: int) -> None:
    assert sequence_of(segment_name(sequence)) == sequence


@pytest.mark.parametrize("name", ["lock", "1.segment", "+000000000000000001.segment", "0" * 19, "٠" * 19 + ".segment"])
def test_other_files_are_no_segments(name: str) -> None:
    assert sequence_of(name) is None


def test_names_sort_as_their_numbers_do() -> None:
    numbers = [NUMBER_MAX, 1, 99, 100, 10**18]
    assert sorted(map(segment_name, numbers)) == [segment_name(number) for number in sorted(numbers)]


def test_a_tip_refuses_a_gap_a_repetition_and_a_release_of_what_is_not_ordered() -> None:
    one, two = values.first(2)
    start = Tip.before(one, 1)
    after = follow(start, one)
    with pytest.raises(Malformed, match="is next"):
        follow(start, two)
    with pytest.raises(Malformed, match="is next"):
        follow(after, one)
    with pytest.raises(Malformed, match="after token"):
        follow(after, replace(two, token=one.token))
    with pytest.raises(Malformed, match="nothing is ordered"):
        start.after_release(values.released(one), b"")
    with pytest.raises(Malformed, match="is next"):
        follow(after, two).after_release(values.released(two), b"")


def test_a_formation_changes_only_by_its_entry_and_moves_no_sequence_number() -> None:
    one, two = values.first(2)
    after = follow(Tip.before(one, 1), one)
    change = values.formation_change(two, 2)
    changed = after.after_entry(decode_head(encode_entry(change)[:HEAD_SIZE]), b"digest")
    assert changed == after._replace(formation=2, token=two.token - 1, digest=b"digest")
    follow(changed, replace(two, formation=2))
    with pytest.raises(Malformed, match="while formation 2 is in force"):
        follow(changed, two)
    with pytest.raises(Malformed, match="while formation 1 is in force"):
        follow(after, replace(two, formation=2))
    for wrong, reason in (
        (replace(change, formation=1), "formation 1 after formation 1"),
        (replace(change, token=one.token), "after token"),
        (replace(change, sequence=one.sequence), "is next"),
    ):
        with pytest.raises(Malformed, match=reason):
            after.after_entry(decode_head(encode_entry(wrong)[:HEAD_SIZE]), b"")


def follow(tip: Tip, ordered: Ordered) -> Tip:
    return tip.after_entry(decode_head(encode_entry(ordered)[:HEAD_SIZE]), b"digest")
