"""One formation has one encoding."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.ring.membership.formation import LEAVING_MAX, MEMBERS_MAX
from fairtape.ring.membership.layout import decode_formation, encode_formation
from fairtape.wire.frames import Malformed
from fairtape.wire.membership import LAYOUT_MAX
from unit.ring.loop_values import formation_of

members = st.lists(st.integers(1, 1 << 30), min_size=1, max_size=20, unique=True)


@given(members, st.booleans(), st.booleans(), st.integers(0, 60_000), st.integers(1, 100))
def test_what_is_encoded_is_decoded(sites: list[int], broken: bool, timed: bool, loop: int, stride: int) -> None:
    formation = formation_of(
        *sites,
        broken=broken,
        timed=timed,
        loop=loop,
        stride=stride,
        roll=tuple(range(len(sites))),
        leaving=(1 << 31, 5 + (1 << 31)),
        keeper=sites[-1],
        resilience_before=2,
    )
    assert decode_formation(encode_formation(formation)) == formation


@given(st.binary(max_size=300))
def test_anything_else_is_malformed(noise: bytes) -> None:
    with pytest.raises(Malformed):
        decode_formation(noise)


@given(members, st.data())
def test_a_changed_byte_is_refused_or_is_another_formation(sites: list[int], data: st.DataObject) -> None:
    encoded = encode_formation(formation_of(*sites))
    place = data.draw(st.integers(0, len(encoded) - 1))
    changed = bytearray(encoded)
    changed[place] ^= data.draw(st.integers(1, 255))
    with suppress(Malformed):
        assert encode_formation(decode_formation(bytes(changed))) == changed


def test_the_largest_formation_fits_a_datagram() -> None:
    sites = tuple(range(1, MEMBERS_MAX + 1))
    leaving = tuple(range(1_000, 1_000 + LEAVING_MAX))
    assert len(encode_formation(formation_of(*sites, roll=sites, leaving=leaving))) <= LAYOUT_MAX
