"""One formation has one encoding."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.ring.membership.formation import JOURNALS_MAX, LEAVING_MAX, MEMBERS_MAX, BadFormation
from fairtape.ring.membership.layout import decode_formation, encode_formation, proposal_digest
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
    primary = sites[:JOURNALS_MAX]
    largest = formation_of(*primary, roll=primary, journals=primary, leaving=leaving, plan=7)
    assert len(encode_formation(largest)) <= LAYOUT_MAX


def test_a_primary_loop_with_more_journals_than_fit_is_refused() -> None:
    sites = tuple(range(1, JOURNALS_MAX + 2))
    with pytest.raises(BadFormation, match=f"up to {JOURNALS_MAX}"):
        formation_of(*sites, journals=sites)


@pytest.mark.parametrize(("version", "plan"), [(1, 0), (2, 9)])
def test_a_formation_of_an_older_release_keeps_its_bytes(version: int, plan: int) -> None:
    """Its entries in the journals of all sites are equal whichever site wrote them."""
    older = formation_of(1, 2, 3, roll=(7, 8, 9), layout_version=version, plan=plan)
    encoded = encode_formation(older)
    assert encoded[0] == version
    assert decode_formation(encoded) == older
    with pytest.raises(Malformed):
        decode_formation(encoded + bytes(7))


def test_a_field_that_this_release_does_not_know_is_refused() -> None:
    encoded = encode_formation(formation_of(1, 2, 3, journals=(7, 8, 9)))
    with pytest.raises(Malformed, match="field 4"):
        decode_formation(encoded + b"\x04\x00\x04" + bytes(4))


def test_fields_in_another_order_are_refused() -> None:
    formation = formation_of(1, 2, 3, plan=5, journals=(7, 8, 9))
    encoded = encode_formation(formation)
    plan, journals = encoded[-22:-15], encoded[-15:]
    assert decode_formation(encoded[:-22] + plan + journals) == formation
    with pytest.raises(Malformed):
        decode_formation(encoded[:-22] + journals + plan)


def test_a_member_answers_with_the_journal_it_was_admitted_with() -> None:
    formation = formation_of(1, 2, 3, journals=(7, 0, 9))
    assert formation.has_journal(1, 7)
    assert not formation.has_journal(1, 8)
    assert formation.has_journal(2, 8)
    assert formation_of(1, 2, 3).has_journal(1, 8)


def test_proposals_with_one_number_have_different_digests() -> None:
    digests = {proposal_digest(formation_of(1, 2, 3, first_token=token)) for token in (40, 41)}
    assert len(digests) == 2
    assert 0 not in digests
