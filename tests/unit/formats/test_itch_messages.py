"""ITCH 5.0 messages: the layouts of the specification, and nothing but `BadItch` for anything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.errors import FormatError
from fairtape.formats.fixed_layout import Number
from fairtape.formats.itch import messages as itch
from fairtape.formats.itch.messages import LAYOUTS, BadItch
from unit.formats.itch_values import messages, mutated

# The length of every message, by the specification of the exchange.
SPECIFIED = {
    "S": 12, "R": 39, "H": 25, "Y": 20, "L": 26, "V": 35, "W": 12, "K": 28, "J": 35, "h": 21, "A": 36, "F": 40,
    "E": 31, "C": 36, "X": 23, "D": 19, "U": 35, "P": 44, "Q": 40, "B": 19, "I": 50, "N": 20, "O": 48,
}  # fmt: skip


def test_every_message_has_the_length_of_the_specification() -> None:
    assert {letter: layout.size for letter, layout in LAYOUTS.items()} == SPECIFIED


def test_fields_have_the_offsets_of_the_specification() -> None:
    """One offset near the end of each long message; a wrong width before it would move it."""
    offsets = {(letter, field.name): field.start for letter, layout in LAYOUTS.items() for field in layout.fields}
    assert {offsets[letter, "timestamp_ns"] for letter in LAYOUTS} == {5}
    assert offsets["R", "etp_leverage_factor"] == 34
    assert offsets["H", "reason"] == 21
    assert offsets["L", "participant_state"] == 25
    assert offsets["K", "price"] == 24
    assert offsets["J", "extension"] == 31
    assert offsets["F", "attribution"] == 36
    assert offsets["C", "execution_price"] == 32
    assert offsets["U", "price"] == 31
    assert offsets["P", "match_number"] == 36
    assert offsets["Q", "cross_type"] == 39
    assert offsets["I", "reference_price"] == 44
    assert offsets["O", "upper_collar"] == 44


def test_an_add_order_has_these_bytes() -> None:
    message = itch.AddOrder(7, 1, 0x123456789ABC, 0x1122334455667788, "B", 100, "AAPL", 1_895_000)
    octets = bytes.fromhex("41 0007 0001 123456789abc 1122334455667788 42 00000064 4141504c20202020 001cea58")
    assert itch.encode(message) == octets
    assert itch.decode(octets) == message


def test_a_price_with_eight_decimals_has_eight_bytes() -> None:
    levels = itch.MwcbDeclineLevel(0, 0, 0, 1, 2, 4_000_12345678)
    assert itch.encode(levels)[-8:] == (4_000_12345678).to_bytes(8, "big")
    kinds = {field.name: field.kind for field in LAYOUTS["V"].fields}
    assert kinds["level_1"] == Number(8, decimals=8)


@given(messages())
def test_an_encoded_message_is_decoded(message: itch.ItchMessage) -> None:
    octets = itch.encode(message)
    assert itch.decode(octets) == message
    assert itch.encode(itch.decode(octets)) == octets


@given(mutated(messages().map(itch.encode)) | st.binary(max_size=60))
def test_hostile_bytes_are_refused_or_are_a_message_with_those_bytes(octets: bytes) -> None:
    try:
        message = itch.decode(octets)
    except FormatError:
        return
    assert itch.encode(message) == octets


@pytest.mark.parametrize(
    ("octets", "sentence"),
    [
        (b"", "type is ''; it must be one of SRHY"),
        (b"?" + bytes(11), "type is '?'"),
        (b"S" + bytes(10), "message S has 11 bytes; it must have 12"),
        (b"S" + bytes(10) + b"\xe9", "event_code of message S is 'é'; it must be at most 1 printable ascii"),
        (b"S" + bytes(10) + b"\x00", "event_code of message S is '\\x00'"),
    ],
)
def test_a_refusal_names_the_type_and_the_field(octets: bytes, sentence: str) -> None:
    with pytest.raises(BadItch) as refusal:
        itch.decode(octets)
    assert sentence in str(refusal.value)


def test_a_value_that_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(BadItch, match="stock_locate of message D is 65536; it must be a whole number from 0 to 65535"):
        itch.OrderDelete(65_536, 0, 0, 0)
    with pytest.raises(BadItch, match="stock of message N is 'TOOLONGNAME'"):
        itch.RetailInterest(0, 0, 0, "TOOLONGNAME", "B")
    with pytest.raises(BadItch, match=r"price of message U is 1\.5"):
        itch.OrderReplace(0, 0, 0, 1, 2, 3, 1.5)  # type: ignore[arg-type]
