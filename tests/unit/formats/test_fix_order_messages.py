"""FIX messages as values: exact instants and prices, and every message of order entry round-trips."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.instants import SECOND
from fairtape.formats.fix.admin_messages import LOGON, Logon
from fairtape.formats.fix.codec import BadFix, FixMessage, decode, encode
from fairtape.formats.fix.dictionary import RejectReason
from fairtape.formats.fix.fields import FIXED, INSTANT_MAX, INTEGER, TEXT, format_instant, parse_instant
from fairtape.formats.fix.order_messages import (
    ExecType,
    ExecutionReport,
    FixSide,
    FixTimeInForce,
    NewOrderSingle,
    OrderEntry,
    OrdStatus,
    OrdType,
    read,
    write,
)
from unit.formats.fix_values import entries

ORDER = NewOrderSingle(
    cl_ord_id="A1",
    symbol="MSFT",
    side=FixSide.BUY,
    transact_at=1_700_000_000_123_000_000,
    order_qty=100_000_000_000,
    ord_type=OrdType.LIMIT,
    price=101_250_000_000,
)


def altered(tag: int, value: bytes | None) -> FixMessage:
    """The order above with one field changed or removed."""
    pairs = [(each, value if each == tag else held) for each, held in write(ORDER)]
    return decode(encode([(each, held) for each, held in pairs if held is not None]))


@given(st.integers(0, INSTANT_MAX))
def test_instants_survive_their_encoding(instant: int) -> None:
    assert parse_instant(format_instant(instant)) == instant
    assert parse_instant(format_instant(instant, digits_min=9)) == instant


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001
def test_instants_are_those_of_the_calendar(moment: datetime) -> None:
    text = moment.strftime("%Y%m%d-%H:%M:%S").rjust(17, "0")
    seconds = int((moment.replace(microsecond=0) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    assert parse_instant(text.encode()) == seconds * SECOND
    assert format_instant(seconds * SECOND, digits_min=0) == text.encode()


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        (b"19700101-00:00:00", 0),
        (b"19700101-00:00:00.5", SECOND // 2),
        (b"19700101-00:00:00.000000001", 1),
        (b"20240229-12:00:00", 1_709_208_000 * SECOND),
        (b"20161231-23:59:60", 1_483_228_800 * SECOND),
        (b"20230229-12:00:00", None),
        (b"20240431-12:00:00", None),
        (b"20241301-12:00:00", None),
        (b"20240100-12:00:00", None),
        (b"20240101-24:00:00", None),
        (b"20240101-12:00:61", None),
        (b"20240101-12:00:00.", None),
        (b"20240101-12:00:00.0000000001", None),
        (b"19691231-23:59:59", None),
        (b"20240101 12:00:00", None),
        (b"", None),
    ],
)
def test_a_timestamp_is_read_or_refused(text: bytes, instant: int | None) -> None:
    assert parse_instant(text) == instant


def test_a_timestamp_has_milliseconds_or_more_digits() -> None:
    assert format_instant(0) == b"19700101-00:00:00.000"
    assert format_instant(1_000) == b"19700101-00:00:00.000001"
    assert format_instant(1) == b"19700101-00:00:00.000000001"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"101.25", 101_250_000_000),
        (b"00023.230", 23_230_000_000),
        (b"-.5", -500_000_000),
        (b"7.", 7_000_000_000),
        (b"0.000000001", 1),
        (b"0.0000000001", None),
        (b"1e5", None),
        (b"+1", None),
        (b"1,5", None),
        (b"99999999999999", None),
        (b"nan", None),
        (b".", None),
        (b"1" * 100, None),
    ],
)
def test_a_price_is_exact_or_refused(text: bytes, value: int | None) -> None:
    assert FIXED.read(text) == value


def test_numbers_and_texts_are_strict() -> None:
    assert INTEGER.read(b"0012") == 12
    assert [INTEGER.read(text) for text in (b"-1", b"1.0", b"", b" 1", b"9" * 20)] == [None] * 5
    assert [TEXT.read(text) for text in (b"", b"\x80", b"a\nb")] == [None] * 3


@given(entries())
def test_order_messages_survive_their_encoding(entry: OrderEntry) -> None:
    assert read(decode(encode(write(entry)))) == entry


def test_an_order_has_these_bytes() -> None:
    body = b"35=D\x0111=A1\x0155=MSFT\x0154=1\x0160=20231114-22:13:20.123\x0138=100\x0140=2\x0144=101.25\x01"
    assert body in encode(write(ORDER))


@pytest.mark.parametrize(
    ("tag", "value", "reason"),
    [
        (11, None, RejectReason.REQUIRED_TAG_MISSING),
        (55, None, RejectReason.REQUIRED_TAG_MISSING),
        (44, None, RejectReason.REQUIRED_TAG_MISSING),
        (54, b"9", RejectReason.VALUE_INCORRECT),
        (40, b"Z", RejectReason.VALUE_INCORRECT),
        (44, b"1e3", RejectReason.INCORRECT_DATA_FORMAT),
        (38, b"0", RejectReason.VALUE_INCORRECT),
        (38, b"-5", RejectReason.VALUE_INCORRECT),
        (60, b"yesterday", RejectReason.INCORRECT_DATA_FORMAT),
        (35, b"Z", RejectReason.INVALID_MSG_TYPE),
    ],
)
def test_a_field_that_is_missing_or_wrong_is_named(tag: int, value: bytes | None, reason: RejectReason) -> None:
    with pytest.raises(BadFix) as refusal:
        read(altered(tag, value))
    assert refusal.value.flaw is not None
    assert (refusal.value.flaw.reason, refusal.value.flaw.tag) == (reason, tag)


def test_conditions_between_fields_are_checked() -> None:
    common: dict[str, Any] = {"cl_ord_id": "A", "symbol": "B", "side": FixSide.SELL, "transact_at": 0, "order_qty": 1}
    with pytest.raises(BadFix, match="stop_px"):
        NewOrderSingle(**common, ord_type=OrdType.STOP)
    with pytest.raises(BadFix, match="expire_at"):
        NewOrderSingle(**common, ord_type=OrdType.MARKET, time_in_force=FixTimeInForce.GOOD_TILL_DATE)
    with pytest.raises(BadFix, match="last_qty"):
        ExecutionReport(
            order_id="1",
            exec_id="2",
            exec_type=ExecType.TRADE,
            ord_status=OrdStatus.FILLED,
            symbol="B",
            side=FixSide.BUY,
            leaves_qty=0,
            cum_qty=1,
            avg_px=1,
        )


def test_a_password_is_not_repeated_in_a_refusal() -> None:
    pairs = [(35, b"A"), (98, b"0"), (108, b"30"), (553, b"ann"), (554, b"se\x80cret")]
    with pytest.raises(BadFix) as refusal:
        LOGON.read(decode(encode(pairs)))
    assert "cret" not in str(refusal.value)
    assert LOGON.read(decode(encode(pairs[:4]))) == Logon(heart_bt_int=30, username="ann")


def test_values_that_cannot_be_encoded_are_refused() -> None:
    with pytest.raises(BadFix, match="symbol"):
        write(
            NewOrderSingle(
                cl_ord_id="A", symbol="", side=FixSide.BUY, transact_at=0, order_qty=1, ord_type=OrdType.MARKET
            )
        )
