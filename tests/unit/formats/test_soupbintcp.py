"""SoupBinTCP: packets from a stream in any chunks, in bounded memory, and nothing but `BadSoup`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.formats.soupbintcp import (
    FROM_CLIENT,
    FROM_SERVER,
    NUMBER_MAX,
    BadSoup,
    ClientHeartbeat,
    Debug,
    EndOfSession,
    LoginAccepted,
    LoginRejected,
    LoginRequest,
    LogoutRequest,
    Packet,
    SequencedData,
    ServerHeartbeat,
    SoupStream,
    UnsequencedData,
    encode,
)
from unit.formats.itch_values import mutated

EVERY = FROM_SERVER | FROM_CLIENT


def names(size: int) -> st.SearchStrategy[str]:
    return st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=size).map(
        lambda text: text.strip(" ")
    )


PACKETS: st.SearchStrategy[Packet] = st.one_of(
    st.builds(Debug, st.binary(max_size=30)),
    st.builds(LoginAccepted, names(10), st.integers(1, NUMBER_MAX)),
    st.builds(LoginRejected, st.sampled_from("AS")),
    st.builds(SequencedData, st.binary(max_size=30)),
    st.builds(UnsequencedData, st.binary(max_size=30)),
    st.just(ServerHeartbeat()),
    st.just(EndOfSession()),
    st.builds(
        LoginRequest, names(6), names(10), names(10), st.integers(0, NUMBER_MAX), st.none() | st.integers(0, 99_999)
    ),
    st.just(ClientHeartbeat()),
    st.just(LogoutRequest()),
)


def test_packets_have_these_bytes() -> None:
    login = b"user  " + b"secret    " + b" " * 10 + b"1".rjust(20)
    assert encode(LoginRequest("user", "secret", "", 1)) == b"\x00\x2fL" + login
    later = b"user  " + b"secret    " + b"S1".rjust(10) + b"7".rjust(20) + b" 1500"
    assert encode(LoginRequest("user", "secret", "S1", 7, 1_500)) == b"\x00\x34L" + later
    assert encode(LoginAccepted("S1", 42)) == b"\x00\x1fA        S1" + b"                  42"
    assert encode(LoginRejected("A")) == b"\x00\x02JA"
    assert encode(SequencedData(b"xyz")) == b"\x00\x04Sxyz"
    assert encode(UnsequencedData(b"")) == b"\x00\x01U"
    assert encode(Debug(b"hi")) == b"\x00\x03+hi"
    letters = [encode(each) for each in (ServerHeartbeat(), EndOfSession(), ClientHeartbeat(), LogoutRequest())]
    assert letters == [b"\x00\x01H", b"\x00\x01Z", b"\x00\x01R", b"\x00\x01O"]


@given(st.lists(PACKETS, max_size=10), st.data())
def test_a_stream_may_be_split_anywhere(packets: list[Packet], data: st.DataObject) -> None:
    octets = b"".join(map(encode, packets))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(octets)), max_size=8)))
    stream = SoupStream(allowed=EVERY)
    heard: list[Packet] = []
    for start, end in zip([0, *cuts], [*cuts, len(octets)], strict=True):
        heard += stream.feed(octets[start:end])
    assert heard == packets


@given(
    mutated(st.lists(PACKETS, max_size=5).map(lambda packets: b"".join(map(encode, packets)))) | st.binary(max_size=40)
)
def test_hostile_bytes_are_refused_and_nothing_else(octets: bytes) -> None:
    stream = SoupStream(allowed=EVERY, payload_max=64)
    try:
        stream.feed(octets)
    except BadSoup:
        with pytest.raises(BadSoup):
            stream.feed(b"")
    assert len(stream._rest) <= 2 + 1 + 64


def test_a_session_may_be_padded_on_either_side() -> None:
    octets = b"\x00\x1fAS1        " + b"42                  "
    assert SoupStream(allowed=FROM_SERVER).feed(octets) == [LoginAccepted("S1", 42)]


@pytest.mark.parametrize(
    ("octets", "sentence"),
    [
        (b"\x00\x00", "length is 0; it must be from 1 to 65"),
        (b"\xff\xff", "length is 65535; it must be from 1 to 65"),
        (b"\x00\x05S", "type is 'S'; from this side it must be one of"),
        (b"\x00\x02Rx", "payload of packet R has 1 bytes; it must have 0"),
        (b"\x00\x03Lxx", "payload of packet L has 2 bytes; it must have 46 or 51"),
        (b"\x00\x2fL" + b" " * 46, "number is '                    '; it must be ascii digits"),
        (b"\x00\x2fL" + b" " * 24 + b"\xff " + b"1" * 20, "session is"),
        (b"\x00\x2fL" + b" " * 26 + b"9" * 20, "number is 99999999999999999999; it must be from 0 to"),
    ],
)
def test_a_client_that_breaks_the_rules_is_refused(octets: bytes, sentence: str) -> None:
    stream = SoupStream(allowed=FROM_CLIENT, payload_max=64)
    with pytest.raises(BadSoup) as refusal:
        stream.feed(octets)
    assert sentence in str(refusal.value)


def test_a_refusal_does_not_repeat_a_password() -> None:
    with pytest.raises(BadSoup) as refusal:
        LoginRequest("user", "hunter2-and-more")
    assert "hunter2" not in str(refusal.value)
