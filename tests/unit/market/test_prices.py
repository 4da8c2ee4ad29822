"""Decimal text and fixed-point integers are the same number, or one of them is refused."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.market.prices import FIXED_MAX, FIXED_MIN, ONE, BadNumber, format_fixed, parse_fixed

fixed_values = st.integers(FIXED_MIN, FIXED_MAX)


@given(fixed_values)
def test_every_fixed_point_value_survives_its_text(value: int) -> None:
    assert parse_fixed(format_fixed(value)) == value


@given(fixed_values)
def test_the_text_is_the_same_number_without_trailing_zeros(value: int) -> None:
    text = format_fixed(value)
    assert Decimal(text) * ONE == value
    assert text.isdecimal() or text.startswith("-") or not text.endswith(("0", "."))
    assert "e" not in text.lower()


@given(st.decimals(min_value=-9_000_000_000, max_value=9_000_000_000, places=9))
def test_any_notation_of_a_number_gives_the_same_value(number: Decimal) -> None:
    expected = int(number * ONE)
    assert parse_fixed(f"{number:f}") == parse_fixed(f"{number:E}") == parse_fixed(f"{number:f}000") == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("61804.8", 61_804_800_000_000),
        ("1e-05", 10_000),
        ("+2", 2 * ONE),
        (".5", ONE // 2),
        ("7.", 7 * ONE),
        ("-0", 0),
        ("0.000000001", 1),
        ("1.00000000000", ONE),
        ("9223372036.854775807", FIXED_MAX),
        ("-9223372036.854775808", FIXED_MIN),
    ],
)
def test_text_becomes_its_exact_value(text: str, value: int) -> None:
    assert parse_fixed(text) == value


@pytest.mark.parametrize("text", ["", ".", "-", "1,5", "1 ", " 1", "1_0", "nan", "inf", "0x1", "1e", "1e5000", "١"])
def test_text_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(BadNumber, match="not a decimal number"):
        parse_fixed(text)


@pytest.mark.parametrize("text", ["0.0000000001", "1e-10", "1.0000000005"])
def test_a_number_finer_than_the_unit_is_refused_rather_than_rounded(text: str) -> None:
    with pytest.raises(BadNumber, match="finer than 1e-9"):
        parse_fixed(text)


@pytest.mark.parametrize("text", ["9223372036.854775808", "-9223372036.854775809", "1e10", "1e999"])
def test_a_number_that_does_not_fit_is_refused(text: str) -> None:
    with pytest.raises(BadNumber, match="too large"):
        parse_fixed(text)


def test_endless_text_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadNumber) as refused:
        parse_fixed("9" * 1_000_000)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("value", [FIXED_MAX + 1, FIXED_MIN - 1])
def test_a_value_beyond_64_bits_has_no_text(value: int) -> None:
    with pytest.raises(BadNumber, match="64 bits"):
        format_fixed(value)
