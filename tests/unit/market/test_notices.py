"""Notices: encoding round-trips, and other bytes are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.market.notices import (
    BadNotice,
    CancelNotice,
    CorrectionNotice,
    Status,
    StatusNotice,
    VenueNotice,
    decode_notice,
    encode_notice,
    is_notice,
)
from fairtape.market.trades import TRADE_SIZE
from unit.formats.trade_values import trades

NUMBERS = st.integers(1, (1 << 63) - 1)
INSTANTS = st.integers(0, (1 << 63) - 1)
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
NOTICES: st.SearchStrategy[VenueNotice] = st.one_of(
    st.builds(CancelNotice, NUMBERS, NAMES | st.just(""), NAMES, INSTANTS),
    st.builds(CorrectionNotice, NUMBERS, trades(), INSTANTS),
    st.builds(StatusNotice, NAMES, st.sampled_from(Status), INSTANTS),
)


@given(NOTICES)
def test_a_notice_survives_its_encoding(notice: VenueNotice) -> None:
    payload = encode_notice(notice)
    assert is_notice(payload)
    assert len(payload) != TRADE_SIZE
    assert decode_notice(payload) == notice


@given(st.binary(max_size=100) | st.builds(lambda n, at, octet: _spoilt(encode_notice(n), at, octet), NOTICES,
       st.integers(0, 200), st.integers(0, 255)))  # fmt: skip
def test_other_bytes_are_refused_or_are_the_canonical_bytes_of_a_notice(payload: bytes) -> None:
    try:
        notice = decode_notice(payload)
    except BadNotice:
        return
    assert encode_notice(notice) == payload


def _spoilt(payload: bytes, at: int, octet: int) -> bytes:
    place = at % len(payload)
    return payload[:place] + bytes([octet]) + payload[place + 1 :]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: CancelNotice(0, "XNYS", "ACME", 1), "number is 0; it must be from 1"),
        (lambda: CancelNotice(1, "XNYS", "", 1), "symbol is ''; it must be 1 to 16"),
        (lambda: CancelNotice(1, "X NYS", "ACME", 1), "venue is 'X NYS'"),
        (lambda: StatusNotice("", Status.OPEN, 1), "venue is ''"),
        (lambda: StatusNotice("XNYS", Status.OPEN, -1), "since is -1; it must be from 0"),
    ],
)
def test_a_bad_field_of_a_notice_is_refused_in_one_sentence(make: object, sentence: str) -> None:
    assert callable(make)
    with pytest.raises(BadNotice, match=sentence):
        make()
