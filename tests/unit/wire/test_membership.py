"""Membership frames: what is encoded is decoded, and nothing else is."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.wire.frames import DATAGRAM_MAX, NUMBER_MAX, TAG_SIZE, Malformed
from fairtape.wire.membership import (
    NUMBERED_MAX,
    ORDINAL_MAX,
    CatchUp,
    Fence,
    Grant,
    HistoryChunk,
    Install,
    LoopToken,
    MembershipMessage,
    MembershipRequest,
    MembershipState,
    OperatorCommand,
    OperatorVerb,
    SiteReport,
    chunk_size,
    decode_membership,
    encode_membership,
    is_membership,
)
from unit.ring.loop_values import report_of

numbers = st.integers(0, NUMBER_MAX)
small = st.integers(0, 0xFFFF)
nodes = st.integers(0, 0xFFFF_FFFF)
formations = st.integers(0, NUMBERED_MAX)
ordinals = st.integers(0, ORDINAL_MAX)
heads = (small, formations, nodes)

frames = st.one_of(
    st.builds(
        SiteReport,
        *heads,
        loop=small,
        membership_state=st.sampled_from(MembershipState),
        request=st.sampled_from(MembershipRequest),
        prepared=formations,
        incarnation=nodes,
        asked_at=numbers,
        clock_bound=numbers,
        complete_through=ordinals,
        sequence=st.integers(1, ORDINAL_MAX),
        settled_through=ordinals,
        late=numbers,
        suspect=nodes,
        suspect_token=ordinals,
        reason=st.integers(0, 255),
        proposal=numbers,
        journal=nodes,
        deployment=numbers,
        term=ordinals,
        store=nodes,
    ),
    st.builds(Grant, *heads, small, ordinals, numbers, numbers, numbers, numbers, nodes),
    st.builds(Fence, *heads, small, ordinals, nodes),
    st.builds(Install, *heads, ordinals, st.booleans(), st.binary(min_size=1, max_size=200), nodes),
    st.builds(CatchUp, *heads, ordinals, st.integers(0, 1 << 19), small, st.integers(1 << 19, ORDINAL_MAX), numbers),
    st.builds(
        HistoryChunk, *heads, ordinals, ordinals, ordinals, formations, st.just(3), st.just(4), st.binary(min_size=1)
    ),
    st.builds(HistoryChunk, *heads, ordinals, ordinals, ordinals, formations, st.just(0), st.just(0), st.just(b"")),
    st.builds(LoopToken, *heads, st.integers(1, 0xFFFF), st.integers(1, ORDINAL_MAX)),
    st.builds(OperatorCommand, *heads, st.sampled_from(OperatorVerb), nodes),
)


def sealed(message: MembershipMessage, serial: int = 7) -> bytes:
    return encode_membership(message, serial) + bytes(TAG_SIZE)


@given(frames, numbers)
def test_what_is_encoded_is_decoded(message: MembershipMessage, serial: int) -> None:
    datagram = sealed(message, serial)
    assert is_membership(datagram)
    assert decode_membership(datagram) == message


@given(frames, st.data())
def test_bytes_that_were_changed_or_cut_raise_malformed_and_nothing_else(
    message: MembershipMessage, data: st.DataObject
) -> None:
    datagram = bytearray(sealed(message))
    datagram[data.draw(st.integers(3, len(datagram) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(Malformed):
        decode_membership(bytes(datagram))
    with suppress(Malformed):
        decode_membership(bytes(datagram[: data.draw(st.integers(20, len(datagram)))]))


def test_a_site_report_counts_from_one() -> None:
    with pytest.raises(Malformed, match="start at 1"):
        decode_membership(sealed(report_of(1, sequence=0)))


@pytest.mark.parametrize(
    "message",
    [
        *(
            report_of(1, **{name: ORDINAL_MAX + 1})
            for name in ("complete_through", "sequence", "settled_through", "suspect_token", "term")
        ),
        report_of(1, formation=NUMBERED_MAX + 1),
        report_of(1, prepared=NUMBERED_MAX + 1),
        Grant(0, 1, 101, 0, ORDINAL_MAX + 1, 2, 3, 4, 5),
        Fence(0, 1, 101, 0, ORDINAL_MAX + 1),
        Install(0, 1, 101, ORDINAL_MAX + 1, True, b"layout"),
        CatchUp(0, 1, 3, ORDINAL_MAX + 1, 0, 64),
        CatchUp(0, 1, 3, 0, 0, 64, number=ORDINAL_MAX + 1),
        HistoryChunk(0, 1, 3, 0, ORDINAL_MAX + 1, 0, 1, 0, 0, b""),
        LoopToken(0, 1, 3, 1, ORDINAL_MAX + 1),
    ],
)
def test_numbers_that_leave_no_room_for_those_that_follow_are_refused(message: MembershipMessage) -> None:
    with pytest.raises(Malformed, match="out of bounds"):
        decode_membership(sealed(message))


def test_a_chunk_that_precedes_the_first_number_is_refused() -> None:
    with pytest.raises(Malformed, match="before the first number"):
        decode_membership(sealed(CatchUp(0, 1, 3, 0, 5, 64, number=4)))


def test_a_token_of_no_loop_is_refused() -> None:
    with pytest.raises(Malformed, match="without a loop"):
        decode_membership(sealed(LoopToken(0, 1, 2, 0, 5)))


def test_chunks_beyond_the_last_are_refused() -> None:
    with pytest.raises(Malformed, match="chunks out of bounds"):
        decode_membership(sealed(HistoryChunk(0, 1, 2, 3, 4, 5, 6, 4, 4, b"x")))
    with pytest.raises(Malformed, match="chunks out of bounds"):
        decode_membership(sealed(HistoryChunk(0, 1, 2, 3, 4, 5, 6, 0, 1, b"")))


def test_a_chunk_fills_a_datagram() -> None:
    chunk = HistoryChunk(0, 1, 2, 3, 4, 5, 6, 0, 1, bytes(chunk_size(DATAGRAM_MAX)))
    assert len(sealed(chunk)) == DATAGRAM_MAX
