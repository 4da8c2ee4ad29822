"""Frames: decoding inverts encoding, and raises nothing but `Malformed`."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairtape.wire import frames
from fairtape.wire.frames import (
    ACK_PARTS_MAX,
    BLOCK_HEADER,
    CONTROL_SIZE,
    COUNT_MAX,
    DATAGRAM_LIMIT,
    DATAGRAM_MIN,
    HEADER,
    MAGIC,
    NUMBER_MAX,
    RANGE_COUNT_MAX,
    TAG_SIZE,
    VERSION,
    Ack,
    BlockFrame,
    Control,
    Flag,
    Hole,
    Kind,
    Malformed,
    Progress,
    Range,
    Request,
    TokenAck,
    ack_ranges_max,
    decode_block,
    decode_control,
    encode_block_header,
    encode_control,
    is_block,
    kind_of,
    request_items_max,
    serial_of,
)
from unit.wire import wire_values as wire

TAG = bytes(TAG_SIZE)
WIDE = Range(frames.NODE_MAX, NUMBER_MAX, NUMBER_MAX - RANGE_COUNT_MAX, RANGE_COUNT_MAX)
ACK = Ack(3, 4, 5, 6, 7, 8, 9, 0, 1, (Range(1, 2, 3, 4),), (b"8 bytes.",))
BLOCK = BlockFrame(0, 3, 4, 5, 6, 7)
KINDS = {Ack: Kind.ACK, Request: Kind.REQUEST, Hole: Kind.HOLE, Progress: Kind.PROGRESS, TokenAck: Kind.TOKEN_ACK}


def datagram_of(message: Control, serial: int = 1) -> bytes:
    return encode_control(message, serial) + TAG


def block_of(frame: BlockFrame, body: bytes = b"body") -> bytes:
    header = encode_block_header(frame.flags, frame.stripe, frame.source, frame.incarnation, frame.first, frame.count)
    return header + body + TAG


def decode(datagram: bytes) -> BlockFrame | Control:
    """As a node decodes: the kind first, then the rest."""
    return decode_block(datagram) if kind_of(datagram) is Kind.BLOCK else decode_control(datagram)


def check_only_malformed_escapes(datagram: bytes) -> None:
    """What is accepted must also be canonical: encoding the value again gives the very same bytes."""
    try:
        value = decode(datagram)
    except Malformed:
        return
    if not isinstance(value, BlockFrame):
        assert datagram_of(value, serial_of(datagram))[:-TAG_SIZE] == datagram[:-TAG_SIZE]


def with_byte(datagram: bytes, position: int, value: int) -> bytes:
    return datagram[:position] + bytes([value]) + datagram[position + 1 :]


# Encoding and decoding.


@given(wire.controls, wire.serials)
def test_every_control_message_survives_the_wire(message: Control, serial: int) -> None:
    datagram = datagram_of(message, serial)
    assert kind_of(datagram) is KINDS[type(message)]
    assert decode_control(datagram) == message
    assert serial_of(datagram) == serial


@given(wire.blocks(), st.binary(min_size=1, max_size=64))
def test_every_block_header_survives_the_wire(frame: BlockFrame, body: bytes) -> None:
    datagram = block_of(frame, body)
    assert kind_of(datagram) is Kind.BLOCK
    assert decode_block(datagram) == frame


@given(wire.controls, wire.controls, wire.serials, wire.serials)
def test_two_different_messages_never_share_their_bytes(one: Control, other: Control, first: int, second: int) -> None:
    assert (datagram_of(one, first) == datagram_of(other, second)) == ((one, first) == (other, second))


@given(wire.ranges())
def test_the_end_of_a_range_is_the_number_after_its_last(named: Range) -> None:
    assert named.end - named.first == named.count


# Hostile bytes.


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_malformed(noise: bytes) -> None:
    check_only_malformed_escapes(noise)


@given(st.sampled_from(Kind), st.integers(0, 1), st.binary(max_size=200))
def test_arbitrary_bytes_behind_a_plausible_header_raise_nothing_but_malformed(
    kind: Kind, flags: int, noise: bytes
) -> None:
    check_only_malformed_escapes(bytes([MAGIC, VERSION, kind, flags]) + noise)


@given(st.binary(max_size=80))
def test_a_block_of_noise_read_without_its_kind_raises_nothing_but_malformed(noise: bytes) -> None:
    """The fast path of nearly all datagrams: `is_block`, then `decode_block`."""
    datagram = bytes([MAGIC, VERSION, Kind.BLOCK]) + noise
    assert is_block(datagram)
    try:
        decode_block(datagram)
    except Malformed:
        return
    assert kind_of(datagram) is Kind.BLOCK


@given(wire.controls)
def test_a_control_datagram_is_never_taken_for_a_block(message: Control) -> None:
    assert not is_block(datagram_of(message))


@given(wire.controls, st.data())
def test_a_damaged_message_is_malformed_or_another_message(message: Control, data: st.DataObject) -> None:
    datagram = datagram_of(message)
    position = data.draw(st.integers(0, len(datagram) - 1))
    check_only_malformed_escapes(with_byte(datagram, position, data.draw(st.integers(0, 255))))


@given(wire.controls, st.data())
def test_a_truncated_message_is_never_accepted(message: Control, data: st.DataObject) -> None:
    whole = encode_control(message, 1)
    part = whole[: data.draw(st.integers(0, len(whole) - 1))] + TAG
    with pytest.raises(Malformed):
        decode(part)


@given(wire.controls, st.binary(min_size=1, max_size=40))
def test_a_message_with_trailing_bytes_is_malformed(message: Control, excess: bytes) -> None:
    with pytest.raises(Malformed):
        decode_control(encode_control(message, 1) + excess + TAG)


# Bounds: one field out of its bounds, everything else right.


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("offset", [1, 255])
def test_another_magic_or_version_is_refused(position: int, offset: int) -> None:
    datagram = datagram_of(ACK)
    with pytest.raises(Malformed, match="not a fairtape datagram"):
        kind_of(with_byte(datagram, position, (datagram[position] + offset) % 256))


@pytest.mark.parametrize("kind", sorted(set(range(256)) - set(Kind)))
def test_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(Malformed, match="unknown kind"):
        kind_of(with_byte(datagram_of(ACK), 2, kind))


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("bit", range(8))
def test_a_flag_that_its_kind_does_not_know_is_refused(kind: Kind, bit: int) -> None:
    datagram = with_byte(with_byte(datagram_of(ACK), 2, kind), 3, 1 << bit)
    if (kind, 1 << bit) in ((Kind.BLOCK, Flag.FRAGMENT), (Kind.ACK, Flag.RELAYED)):
        assert kind_of(datagram) is kind
    else:
        with pytest.raises(Malformed, match="unknown flag"):
            kind_of(datagram)


@pytest.mark.parametrize("size", range(HEADER.size + TAG_SIZE))
def test_a_datagram_shorter_than_a_header_and_a_tag_is_refused(size: int) -> None:
    with pytest.raises(Malformed, match="shorter than"):
        kind_of(datagram_of(ACK)[:size])


@pytest.mark.parametrize(
    "frame",
    [
        BLOCK._replace(count=0),
        BLOCK._replace(first=0),
        BLOCK._replace(first=NUMBER_MAX),
        BLOCK._replace(first=NUMBER_MAX - BLOCK.count + 1),
        BLOCK._replace(first=(1 << 64) - 1),
        BLOCK._replace(incarnation=NUMBER_MAX + 1),
        BLOCK._replace(flags=int(Flag.FRAGMENT), count=2),
        BLOCK._replace(flags=2),
        BLOCK._replace(flags=128 | int(Flag.FRAGMENT), count=1),
    ],
    ids=str,
)
def test_a_block_with_a_number_out_of_bounds_is_refused(frame: BlockFrame) -> None:
    with pytest.raises(Malformed):
        decode_block(block_of(frame))


@pytest.mark.parametrize("size", range(BLOCK_HEADER.size + TAG_SIZE + 1))
def test_a_block_without_a_body_is_refused(size: int) -> None:
    with pytest.raises(Malformed, match="without a body"):
        decode_block(block_of(BLOCK)[:size])


@pytest.mark.parametrize(
    "message",
    [
        replace(ACK, token=NUMBER_MAX + 1),
        replace(ACK, sequence=0),
        replace(ACK, sequence=NUMBER_MAX + 1),
        replace(ACK, sequence=NUMBER_MAX - 3),
        replace(ACK, sent_at=NUMBER_MAX + 1),
        replace(ACK, clock_bound=NUMBER_MAX + 1),
        replace(ACK, parts=0),
        replace(ACK, part=1),
        replace(ACK, part=ACK_PARTS_MAX, parts=ACK_PARTS_MAX + 1),
        replace(ACK, part=0, parts=ACK_PARTS_MAX + 1),
        Request(1, 2, 3, (), ()),
        Request(1, 2, 3, (NUMBER_MAX + 1,), ()),
        Request(1, 2, 3, (1,), (), sent_at=NUMBER_MAX + 1),
        Request(1, 2, 3, (1,), (), clock_bound=NUMBER_MAX + 1),
        Request(1, 2, 3, (1, 2, (1 << 64) - 1), (Range(1, 2, 3, 4),)),
        Progress(1, 2, 3, NUMBER_MAX + 1, 5, 6, 5),
        Progress(1, 2, 3, 4, NUMBER_MAX + 1, 6, 5),
        Progress(1, 2, 3, 4, 5, NUMBER_MAX + 1, 5),
        Progress(1, 2, 3, 4, 5, 6, 0),
        Progress(1, 2, 3, 4, 5, 6, 6),
        TokenAck(1, 2, 3, NUMBER_MAX + 1),
    ],
    ids=str,
)
def test_a_message_with_a_number_out_of_bounds_is_refused(message: Control) -> None:
    with pytest.raises(Malformed):
        decode_control(datagram_of(message))


@pytest.mark.parametrize(
    "bad",
    [
        Range(1, 2, 3, 0),
        Range(1, 2, 0, 4),
        Range(1, NUMBER_MAX + 1, 3, 4),
        Range(1, 2, NUMBER_MAX, 1),
        Range(1, 2, (1 << 64) - 1, 1),
        Range(1, 2, NUMBER_MAX - RANGE_COUNT_MAX + 1, RANGE_COUNT_MAX),
    ],
    ids=str,
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_range_out_of_bounds_is_refused_at_any_position(bad: Range, place: int) -> None:
    named = (bad, WIDE) if place == 0 else (WIDE, bad)
    two_marks = (ACK.marks[0],) * 2
    for message in (replace(ACK, ranges=named, marks=two_marks), Request(1, 2, 3, (), named), Hole(1, 2, 3, bad)):
        with pytest.raises(Malformed):
            decode_control(datagram_of(message))


@pytest.mark.parametrize("serial", [NUMBER_MAX + 1, (1 << 64) - 1])
def test_a_serial_out_of_bounds_is_refused(serial: int) -> None:
    with pytest.raises(Malformed, match="serial"):
        decode_control(datagram_of(ACK, serial))


@pytest.mark.parametrize("message", [ACK, Hole(1, 2, 3, WIDE), TokenAck(1, 2, 3, 4)], ids=str)
def test_a_count_in_the_header_of_a_control_message_is_refused(message: Control) -> None:
    with pytest.raises(Malformed, match="with a count"):
        decode_control(with_byte(datagram_of(message), 7, 1))


@pytest.mark.parametrize("announced", [0, 2, 3, COUNT_MAX])
def test_an_acknowledgment_with_other_than_the_announced_ranges_is_refused(announced: int) -> None:
    datagram = datagram_of(ACK)
    place = len(encode_control(replace(ACK, ranges=(), marks=()), 1)) - 2
    with pytest.raises(Malformed, match="its range count"):
        decode_control(datagram[:place] + announced.to_bytes(2) + datagram[place + 2 :])


@pytest.mark.parametrize(("tokens", "named"), [(0, 1), (1, 0), (2, 1), (5, 0), (COUNT_MAX, COUNT_MAX)])
def test_a_request_with_other_than_the_announced_items_is_refused(tokens: int, named: int) -> None:
    datagram = datagram_of(Request(1, 2, 3, (4,), (WIDE,)))
    place = CONTROL_SIZE + 16  # after the instant and the bound of the clock
    forged = datagram[:place] + tokens.to_bytes(2) + named.to_bytes(2) + datagram[place + 4 :]
    with pytest.raises(Malformed, match="its token and range counts"):
        decode_control(forged)


@pytest.mark.parametrize("kind", [Kind.HOLE, Kind.PROGRESS, Kind.TOKEN_ACK])
@pytest.mark.parametrize("size", [0, 1, 7, 9, 23, 25, 48])
def test_a_body_of_another_size_than_its_kind_has_is_refused(kind: Kind, size: int) -> None:
    start = with_byte(datagram_of(ACK)[:CONTROL_SIZE], 2, kind)
    with pytest.raises(Malformed):
        decode_control(start + bytes(size) + TAG)


def test_a_block_is_not_a_control_message() -> None:
    with pytest.raises(Malformed):
        decode_control(with_byte(datagram_of(TokenAck(1, 2, 3, 4)), 2, Kind.BLOCK))


@pytest.mark.parametrize("excess", [0, 7])
def test_a_control_datagram_without_a_serial_is_refused(excess: int) -> None:
    with pytest.raises(Malformed, match="without a serial"):
        decode_control(datagram_of(ACK)[: HEADER.size + excess] + TAG)


# How much fits.


@given(st.integers(DATAGRAM_MIN, DATAGRAM_LIMIT))
@example(DATAGRAM_MIN)
@example(DATAGRAM_LIMIT)
def test_an_acknowledgment_of_the_most_ranges_fits_and_one_more_does_not(datagram_max: int) -> None:
    most = ack_ranges_max(datagram_max)
    assert most >= 1
    for ranges, fits in ((most, True), (most + 1, False)):
        message = replace(ACK, ranges=ACK.ranges * ranges, marks=ACK.marks * ranges)
        assert (len(datagram_of(message)) <= datagram_max) is fits


@given(st.integers(DATAGRAM_MIN, DATAGRAM_LIMIT), st.integers(0, DATAGRAM_LIMIT))
@example(DATAGRAM_MIN, 0)
@example(DATAGRAM_LIMIT, 0)
def test_a_request_of_the_most_items_fits_whatever_they_are(datagram_max: int, tokens: int) -> None:
    most = request_items_max(datagram_max)
    assert most >= 1
    tokens = min(tokens, most)
    assert len(datagram_of(Request(1, 2, 3, (4,) * tokens, (WIDE,) * (most - tokens)))) <= datagram_max
