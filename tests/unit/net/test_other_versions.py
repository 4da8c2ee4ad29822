"""Peers of another wire version are named. Decision 64, One deployment file."""

from fairtape.core.addresses import Address
from fairtape.net.other_versions import HEAD, NOTICE_PERIOD, PEERS_MAX, OtherVersions
from fairtape.wire.frames import MAGIC, VERSION

OURS = HEAD + bytes(20)
OLDER = bytes((MAGIC, VERSION - 1)) + bytes(20)
PEER: Address = ("192.0.2.7", 17_201)
OTHER: Address = ("192.0.2.8", 17_202)
NOW = 1_000 * NOTICE_PERIOD


def test_a_peer_of_another_version_is_named_with_both_versions() -> None:
    versions = OtherVersions()
    traced = [versions.traces]
    assert versions.look([OLDER], (), NOW) == []
    traced.append(versions.traces)
    (notice,) = versions.look([OURS, OLDER], [OTHER, PEER], NOW)
    assert [*traced, versions.traces] == [False, True, False]
    assert f"192.0.2.7:17201 sends wire version {VERSION - 1}, and this node has {VERSION}" in notice
    assert versions.warnings(NOW) == (notice,)
    assert versions.warnings(NOW + 3 * NOTICE_PERIOD) == ()


def test_a_peer_is_named_once_in_a_period() -> None:
    versions = OtherVersions()
    named = [
        at for at in range(NOW, NOW + 3 * NOTICE_PERIOD, NOTICE_PERIOD // 10) if versions.look([OLDER], [PEER], at)
    ]
    assert named == [NOW, NOW + NOTICE_PERIOD, NOW + 2 * NOTICE_PERIOD]


def test_what_is_no_datagram_of_ours_names_no_one() -> None:
    versions = OtherVersions()
    for datagram in (b"", b"noise", bytes((MAGIC,))[:0], OURS):
        versions.look([datagram], (), NOW)
        assert versions.look([datagram], [PEER], NOW) == []
    assert not versions.traces


def test_what_it_remembers_has_a_limit() -> None:
    versions = OtherVersions()
    for port in range(1, 3 * PEERS_MAX):
        versions.look([OLDER], [("192.0.2.7", port)], NOW)
    assert len(versions.warnings(NOW)) == PEERS_MAX
