"""OUCH 4.2: the sizes and bytes of its specification; every message round-trips; nothing but `BadOuch` is raised."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.formats import ouch
from fairtape.formats.fixed_layout import Layout
from fairtape.formats.soupbintcp import FROM_CLIENT, SoupStream, UnsequencedData
from fairtape.formats.soupbintcp import encode as in_soup
from unit.formats.itch_values import mutated, values

ORDER = ouch.EnterOrder("T1", "B", 100, "MSFT", 1_012_500, ouch.MARKET_HOURS, "FIRM", "Y", "P", "N", 0, "N", "")


def strategy(layouts: dict[str, Layout]) -> st.SearchStrategy[Any]:
    return st.one_of([st.builds(each.message, *(values(f.kind) for f in each.fields)) for each in layouts.values()])


INBOUND = strategy(dict(ouch.INBOUND))
OUTBOUND = strategy(dict(ouch.OUTBOUND))


def sizes(**octets: int) -> dict[str, int]:
    return octets


def test_messages_have_the_sizes_of_the_specification() -> None:
    assert {letter: layout.size for letter, layout in ouch.INBOUND.items()} == sizes(O=49, U=47, X=19, M=20, N=15)
    outbound = sizes(S=10, A=66, U=80, C=28, D=37, E=40, G=45, B=32, F=41, J=24, P=23, I=23, T=36, M=28, N=23)
    assert {letter: layout.size for letter, layout in ouch.OUTBOUND.items()} == outbound


def test_an_order_has_these_bytes() -> None:
    octets = b"OT1            B\x00\x00\x00dMSFT    \x00\x0f\x73\x14\x00\x01\x86\x9eFIRMYPN\x00\x00\x00\x00N "
    assert ouch.encode(ORDER) == octets
    assert ouch.decode_inbound(octets) == ORDER


@given(INBOUND)
def test_messages_of_a_client_survive_their_encoding(message: ouch.Inbound) -> None:
    assert ouch.decode_inbound(ouch.encode(message)) == message


@given(OUTBOUND)
def test_messages_of_the_market_survive_their_encoding(message: ouch.Outbound) -> None:
    assert ouch.decode_outbound(ouch.encode(message)) == message


@given(mutated((INBOUND | OUTBOUND).map(ouch.encode)))
def test_decoding_raises_nothing_but_bad_ouch(payload: bytes) -> None:
    for decode in (ouch.decode_inbound, ouch.decode_outbound):
        try:
            message = decode(payload)
        except ouch.BadOuch:
            continue
        assert ouch.encode(message) == payload


def test_an_order_is_carried_by_soupbintcp() -> None:
    (packet,) = SoupStream(allowed=FROM_CLIENT).feed(in_soup(UnsequencedData(ouch.encode(ORDER))))
    assert isinstance(packet, UnsequencedData)
    assert ouch.decode_inbound(packet.message) == ORDER


@pytest.mark.parametrize(
    ("field", "value"),
    [("shares", -1), ("shares", 1 << 32), ("stock", "TOOLONGNAME"), ("side", "\x01"), ("price", 1.5)],
)
def test_values_that_cannot_be_encoded_are_refused(field: str, value: object) -> None:
    held = {name: getattr(ORDER, name) for name in ORDER.__dataclass_fields__ if name != "LETTER"}
    with pytest.raises(ouch.BadOuch, match=field):
        ouch.EnterOrder(**{**held, field: value})


def test_a_direction_accepts_only_its_own_messages() -> None:
    with pytest.raises(ouch.BadOuch, match="type"):
        ouch.decode_outbound(ouch.encode(ORDER))
    with pytest.raises(ouch.BadOuch, match="47"):
        ouch.decode_inbound(ouch.encode(ouch.OrderModified(1, "T1", "S", 5)).replace(b"M", b"U", 1))
