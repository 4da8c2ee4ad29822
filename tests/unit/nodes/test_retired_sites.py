"""Retired sites in the formation log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.formation_log import LogEntry
from fairtape.nodes.coordinator.server import (
    RETIRED_SITES_LOG,
    RetiredSites,
    decode_retired_sites,
    encode_retired_sites,
)
from fairtape.wire.frames import Malformed


@given(st.sets(st.integers(0, 0xFFFF_FFFF), max_size=40))
def test_what_is_encoded_is_decoded(retired: set[int]) -> None:
    assert decode_retired_sites(encode_retired_sites(retired)) == retired


@pytest.mark.parametrize("noise", [b"", b"\2", b"\1abc"])
def test_anything_else_is_malformed(noise: bytes) -> None:
    with pytest.raises(Malformed):
        decode_retired_sites(noise)


def test_a_change_is_proposed_until_it_is_recorded() -> None:
    retired: set[int] = set()
    register = RetiredSites(retired)
    assert register.proposal(4) is None
    retired.add(3)
    proposed = register.proposal(4)
    assert proposed == LogEntry(RETIRED_SITES_LOG, 1, 4, encode_retired_sites({3}))
    register.recorded(proposed)
    assert register.proposal(4) is None
    retired.discard(3)
    assert register.proposal(5) == LogEntry(RETIRED_SITES_LOG, 2, 5, encode_retired_sites(()))


def test_a_new_leader_takes_the_retired_sites_from_the_log() -> None:
    retired = {7}
    register = RetiredSites(retired)
    register.recall(LogEntry(RETIRED_SITES_LOG, 6, 4, encode_retired_sites({3})))
    assert retired == {3}
    assert register.proposal(5) is None
    register.recall(None)
    assert retired == set()
