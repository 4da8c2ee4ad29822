"""FIX tag=value: exact bytes, streams in any chunks, strict checks, and nothing but `BadFix`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.formats.fix.codec import (
    MESSAGE_MAX,
    SHAPES_MAX,
    USUAL_AFTER,
    USUAL_SHAPES_MAX,
    BadFix,
    FixStream,
    checksum,
    decode,
    encode,
)
from fairtape.formats.fix.dictionary import RejectReason
from unit.formats.fix_values import BODIES, in_one_piece, spoiled, with_data
from unit.formats.itch_values import mutated

HEARTBEAT = [(35, b"0"), (49, b"A"), (56, b"B"), (34, b"2"), (52, b"20240105-14:30:00.123")]
ANY = BODIES | with_data()


def raw(body: bytes) -> bytes:
    """A message with a correct length and check sum, and any body."""
    octets = b"8=FIX.4.4\x019=%d\x01%b" % (len(body), body)
    return octets + b"10=%03d\x01" % (sum(octets) % 256)


def flaw_of(body: bytes) -> tuple[RejectReason, int | None]:
    (message,) = FixStream().feed(raw(body))
    assert message.flaw is not None
    with pytest.raises(BadFix) as refusal:
        decode(raw(body))
    assert refusal.value.flaw == message.flaw
    return message.flaw.reason, message.flaw.tag


def test_a_message_has_these_bytes() -> None:
    octets = b"8=FIX.4.4\x019=45\x0135=0\x0149=A\x0156=B\x0134=2\x0152=20240105-14:30:00.123\x0110=069\x01"
    assert encode(HEARTBEAT) == octets
    message = decode(octets)
    assert list(message.pairs) == HEARTBEAT
    assert message.begin_string == b"FIX.4.4"
    assert message.msg_type == b"0"
    assert message.get(34) == b"2"
    assert message.get(112) is None


@given(st.binary(max_size=2_000))
def test_the_check_sum_is_the_sum(octets: bytes) -> None:
    assert checksum(octets) == sum(octets) % 256


def test_the_check_sum_of_the_largest_bytes_is_the_sum() -> None:
    for size in (255, 256, 257, 512, 65_536):
        assert checksum(b"\xff" * size) == 255 * size % 256


@given(ANY)
def test_an_encoded_message_is_decoded(pairs: list[tuple[int, bytes]]) -> None:
    message = decode(encode(pairs))
    assert list(message.pairs) == pairs
    assert all(message.get(tag) == value for tag, value in pairs)


@given(st.lists(ANY, max_size=5), st.lists(st.integers(1, 60), max_size=12), st.binary(max_size=20))
def test_a_stream_may_be_split_anywhere(bodies: list[list[tuple[int, bytes]]], cuts: list[int], between: bytes) -> None:
    octets = between.join(map(encode, bodies))
    whole = in_one_piece(octets)
    stream = FixStream()
    pairs = []
    for size in [*cuts, len(octets)]:
        pairs += [list(message.pairs) for message in stream.feed(octets[:size])]
        octets = octets[size:]
    assert (pairs, stream.counts.garbled, stream.counts.junk) == whole
    if b"8" not in between:
        assert pairs == bodies
        assert stream.counts.junk == len(between) * max(len(bodies) - 1, 0)


@given(BODIES)
def test_compiled_shapes_are_read_like_others(pairs: list[tuple[int, bytes]]) -> None:
    stream = FixStream()
    octets = encode(pairs)
    messages = stream.feed(octets * (USUAL_AFTER + 3))
    assert len(messages) == USUAL_AFTER + 3
    assert all(list(message.pairs) == pairs for message in messages)
    assert len(stream._usual[octets.partition(b"35=")[1] + b"D\x01"[:2]]) == 1


def test_a_compiled_shape_detects_an_empty_value_and_another_tag() -> None:
    stream = FixStream()
    stream.feed(raw(b"35=D\x0134=1\x0155=A\x0158=x=y\x01") * USUAL_AFTER)
    empty, other, longer = stream.feed(
        raw(b"35=D\x0134=1\x0155=\x0158=x\x01")
        + raw(b"35=D\x0134=1\x0155=A\x01588=x\x01")
        + raw(b"35=D\x0134=1\x0155=A\x0158=x\x0144=1\x01")
    )
    assert empty.flaw is not None
    assert empty.flaw.reason is RejectReason.TAG_WITHOUT_VALUE
    assert list(other.pairs)[-1] == (588, b"x")
    assert list(longer.pairs)[-1] == (44, b"1")


@pytest.mark.parametrize(
    ("body", "reason", "tag"),
    [
        (b"35=D\x0134=1\x0155=\x01", RejectReason.TAG_WITHOUT_VALUE, 55),
        (b"35=D\x0134=1\x01abc=x\x01", RejectReason.INVALID_TAG, None),
        (b"35=D\x0134=1\x01055=x\x01", RejectReason.INVALID_TAG, None),
        (b"35=D\x0134=1\x01-5=x\x01", RejectReason.INVALID_TAG, None),
        (b"35=D\x0134=1\x0155\x01", RejectReason.INVALID_TAG, None),
        (b"35=D\x0134=1\x01=x\x01", RejectReason.INVALID_TAG, None),
        (b"35=D\x0134=1\x0158=a=44\x011\x01", RejectReason.INVALID_TAG, None),
        (b"35=D\x0134=1\x01999=x\x01", RejectReason.INVALID_TAG, 999),
        (b"35=D\x0134=1\x0155=x\x0155=y\x01", RejectReason.TAG_TWICE, 55),
        (b"35=D\x0155=x\x0134=1\x01", RejectReason.TAG_OUT_OF_ORDER, 34),
        (b"35=D\x0134=1\x0110=000\x01", RejectReason.TAG_OUT_OF_ORDER, 10),
        (b"35=D\x0134=1\x0196=x\x01", RejectReason.REQUIRED_TAG_MISSING, 95),
        (b"35=D\x0134=1\x0195=1\x0155=x\x01", RejectReason.REQUIRED_TAG_MISSING, 96),
        (b"35=D\x0134=1\x0195=1\x01", RejectReason.REQUIRED_TAG_MISSING, 96),
        (b"35=D\x0134=1\x0195=9\x0196=x\x01", RejectReason.INCORRECT_DATA_FORMAT, 95),
        (b"35=D\x0134=1\x0195=1\x0196=xyz\x01", RejectReason.INCORRECT_DATA_FORMAT, 95),
        (b"35=D\x0134=1\x0195=x\x0196=x\x01", RejectReason.INCORRECT_DATA_FORMAT, 95),
    ],
)
def test_a_flaw_has_its_reason_and_its_field(body: bytes, reason: RejectReason, tag: int | None) -> None:
    assert flaw_of(body) == (reason, tag)


def test_repeating_groups_and_user_defined_fields_are_no_flaw() -> None:
    parties = b"453=2\x01448=A\x01447=D\x01452=1\x01448=B\x01447=D\x01452=3\x01"
    message = decode(raw(b"35=D\x0134=1\x01" + parties + b"20001=7\x01"))
    assert message.get(448) == b"A"
    assert [value for tag, value in message.pairs if tag == 448] == [b"A", b"B"]
    assert message.get(20_001) == b"7"


def test_a_data_field_may_contain_a_message() -> None:
    inner = encode(HEARTBEAT)
    pairs = [(35, b"B"), (34, b"3"), (95, b"%d" % len(inner)), (96, inner), (58, b"after")]
    assert in_one_piece(encode(pairs)) == ([pairs], 0, 0)


@pytest.mark.parametrize("off", [{"length": 1}, {"length": -1}, {"length": 40}, {"length": -40}, {"total": 1}])
def test_a_garbled_message_is_skipped_and_the_next_one_is_read(off: dict[str, int]) -> None:
    octets = spoiled(HEARTBEAT, **off) + encode(HEARTBEAT)
    messages, garbled, _ = in_one_piece(octets)
    assert messages == [HEARTBEAT]
    assert garbled == 1
    with pytest.raises(BadFix):
        decode(spoiled(HEARTBEAT, **off))


def test_the_data_field_of_a_garbled_message_is_not_parsed() -> None:
    inner = encode(HEARTBEAT)
    pairs = [(35, b"B"), (34, b"3"), (95, b"%d" % len(inner)), (96, inner)]
    assert in_one_piece(spoiled(pairs, total=1)) == ([], 1, 0)


def test_junk_between_messages_is_skipped_and_counted() -> None:
    octets = b"8=FIX" + b"\x00 8= 38=" + encode(HEARTBEAT) + b"hello 8" + encode(HEARTBEAT) + b"9=5\x01"
    assert in_one_piece(octets) == ([HEARTBEAT, HEARTBEAT], 0, 5 + 8 + 7 + 4)


def test_the_third_field_must_be_the_type() -> None:
    octets = b"8=FIX.4.4\x019=5\x0134=1\x0110=000\x01"
    assert in_one_piece(octets)[0] == []


def test_a_length_beyond_the_limit_is_refused_at_once() -> None:
    stream = FixStream(body_max=100)
    assert stream.feed(b"8=FIX.4.4\x019=101\x0135=0\x01") == []
    assert stream.counts.garbled == 1
    assert stream.waiting == 0


def test_a_stream_keeps_no_more_than_a_message_and_few_shapes() -> None:
    stream = FixStream()
    for octet in b"x8" * 1_000:
        stream.feed(bytes([octet]))
    assert stream.waiting <= 1
    for tag in range(5_000, 5_000 + 2 * SHAPES_MAX):
        stream.feed(raw(b"35=D\x0134=1\x01%d=x\x01" % tag) * (USUAL_AFTER + 1))
    assert len(stream._shapes) == SHAPES_MAX
    assert sum(map(len, stream._usual.values())) <= USUAL_SHAPES_MAX


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [(34, b"1")],
        [(35, b"")],
        [(35, b"D"), (55, b"a\x01b")],
        [(35, b"D"), (0, b"x")],
        [(35, b"D"), (100_000, b"x")],
        [(35, b"D"), (96, b"x")],
        [(35, b"D"), (95, b"2"), (96, b"x")],
        [(35, b"D"), (58, b"x" * MESSAGE_MAX)],
    ],
)
def test_values_that_cannot_be_encoded_are_refused(pairs: list[tuple[int, bytes]]) -> None:
    with pytest.raises(BadFix):
        encode(pairs)


@given(st.lists(mutated(ANY.map(encode)) | st.binary(max_size=80), max_size=6))
def test_a_stream_never_raises_for_any_bytes(pieces: list[bytes]) -> None:
    stream = FixStream()
    for piece in pieces:
        for message in stream.feed(piece):
            assert len(list(message.pairs)) == len(message.values) >= 1


@given(mutated(ANY.map(encode)))
def test_decoding_raises_nothing_but_bad_fix(octets: bytes) -> None:
    try:
        message = decode(octets)
    except BadFix:
        return
    again = decode(encode(message.pairs, begin_string=message.begin_string))
    assert list(again.pairs) == list(message.pairs)
