"""MoldUDP64: the bytes of the specification, and nothing but `BadMold` for anything else."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.formats.moldudp64 import (
    DATAGRAM_MAX,
    NUMBER_MAX,
    BadMold,
    MoldRequest,
    Packet,
    decode,
    decode_request,
    encode,
    encode_request,
    pack,
)
from unit.formats.itch_values import mutated

SESSIONS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=10)
NUMBERS = st.integers(1, NUMBER_MAX - 100)
MESSAGES = st.lists(st.binary(max_size=40), max_size=20)
PACKETS = st.builds(Packet, SESSIONS, NUMBERS, MESSAGES.map(tuple)) | st.builds(
    Packet, SESSIONS, NUMBERS, st.just(()), st.booleans()
)
REQUESTS = st.builds(MoldRequest, SESSIONS, NUMBERS, st.integers(1, 65_535).filter(lambda count: count <= 100))


def test_packets_have_these_bytes() -> None:
    data = Packet("000007312A", 258, (b"AB", b""))
    assert encode(data) == b"000007312A" + bytes.fromhex("0000000000000102 0002 0002") + b"AB" + bytes(2)
    heartbeat = Packet("S", 3)
    assert encode(heartbeat) == b"S         " + bytes.fromhex("0000000000000003 0000")
    end = Packet("S", 3, ended=True)
    assert encode(end) == b"S         " + bytes.fromhex("0000000000000003 ffff")
    request = MoldRequest("S", 3, 500)
    assert encode_request(request) == b"S         " + bytes.fromhex("0000000000000003 01f4")


@given(PACKETS)
def test_an_encoded_packet_is_decoded(packet: Packet) -> None:
    assert decode(encode(packet)) == packet


@given(REQUESTS)
def test_an_encoded_request_is_decoded(request: MoldRequest) -> None:
    assert decode_request(encode_request(request)) == request


@given(mutated(PACKETS.map(encode)) | st.binary(max_size=60))
def test_a_hostile_datagram_is_refused_or_is_a_packet_with_those_bytes(datagram: bytes) -> None:
    try:
        packet = decode(datagram)
    except BadMold:
        return
    assert encode(packet) == datagram


@given(mutated(REQUESTS.map(encode_request)) | st.binary(min_size=18, max_size=22))
def test_a_hostile_request_is_refused_or_is_a_request_with_those_bytes(datagram: bytes) -> None:
    try:
        request = decode_request(datagram)
    except BadMold:
        return
    assert encode_request(request) == datagram


@given(SESSIONS, NUMBERS, MESSAGES, st.integers(62, 200))
def test_packing_keeps_every_message_and_the_size(
    session: str, number: int, messages: list[bytes], datagram_max: int
) -> None:
    datagrams = list(pack(session, number, messages, datagram_max=datagram_max))
    packets = [decode(datagram) for datagram in datagrams]
    assert [message for packet in packets for message in packet.messages] == messages
    assert [packet.number for packet in packets] == [
        number + sum(len(before.messages) for before in packets[:place]) for place in range(len(packets))
    ]
    assert all(len(datagram) <= datagram_max for datagram in datagrams)
    for one, other in pairwise(packets):
        assert len(encode(one)) + 2 + len(other.messages[0]) > datagram_max, "another message had fitted"


def test_a_message_that_fits_no_datagram_is_refused() -> None:
    with pytest.raises(BadMold, match="message 8 has 1379 bytes; a datagram can hold 1378"):
        list(pack("S", 7, [b"", bytes(DATAGRAM_MAX - 21)]))


@pytest.mark.parametrize(
    ("tail", "sentence"),
    [
        ("0000000000000000 0001", "number is 0; it must be from 1 to"),
        ("0000000000000001 0000", "count is 0; a request is for 1 to 65535"),
        ("ffffffffffffffff 0002", "that of the last message must be at most"),
        ("0000000000000001 0001 00", "size is 21 bytes; a request has 20"),
    ],
)
def test_a_request_out_of_range_is_refused(tail: str, sentence: str) -> None:
    with pytest.raises(BadMold, match=sentence):
        decode_request(b"S         " + bytes.fromhex(tail))
