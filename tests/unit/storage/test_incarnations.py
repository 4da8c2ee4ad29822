"""Incarnations: numbers that rise across restarts, whatever the clock shows."""

from pathlib import Path

import pytest

from fairtape.core.effects import Recovered, Send
from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND
from fairtape.nodes.coordinator.server import Reformer, ReformerConfig
from fairtape.nodes.site import Site, SiteConfig
from fairtape.ring.membership.topology import LoopTopology, Topology
from fairtape.storage.incarnations import SERIALS_MAX, next_incarnation, next_incarnations
from fairtape.wire.seals import Keys
from unit.ring.loop_values import TIMING

NOW = 1_767_225_600 * SECOND
BACK = NOW - 3_600 * SECOND
KEYS = Keys.from_secret(b"sites", (1, 2, 3, 101, 999), (201,))


def test_with_a_good_clock_the_incarnation_is_the_time(tmp_path: Path) -> None:
    assert next_incarnation(tmp_path / "s1", NOW) == NOW
    assert next_incarnation(tmp_path / "s1", NOW + SECOND) == NOW + SECOND
    assert next_incarnation(tmp_path / "s2", BACK) == BACK  # each node has its own


def test_with_a_clock_set_back_it_still_rises(tmp_path: Path) -> None:
    path = tmp_path / "incarnations" / "s1"
    assert next_incarnation(path, NOW) == NOW
    assert next_incarnation(path, BACK) == NOW + 1
    assert next_incarnation(path, BACK, step=SERIALS_MAX) == NOW + 1 + SERIALS_MAX
    path.unlink()
    assert next_incarnation(path, BACK) == BACK  # without the file only the clock is left


def test_the_incarnations_of_a_group_are_distinct_and_rise(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    next_incarnation(paths[2], NOW)
    first = next_incarnations(paths, BACK)
    assert first == NOW + 1
    assert [next_incarnation(path, BACK) for path in paths] == [NOW + 2, NOW + 3, NOW + 4]


def test_a_damaged_or_unwritable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "s1").write_text("yesterday\n")
    with pytest.raises(UserError, match="'yesterday' and no number; remove it"):
        next_incarnation(tmp_path / "s1", NOW)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        next_incarnation(tmp_path / "file" / "s1", NOW)


def report(site: Site, now: int) -> bytes:
    """Its first report to the server."""
    site.wake(now)
    (datagram,) = next(effect.datagrams for effect in site.drain() if isinstance(effect, Send) and effect.to == 101)
    return datagram


@pytest.mark.parametrize(("kept", "outcome"), [(False, "replayed"), (True, "standing_by")])
def test_a_site_that_restarts_with_its_clock_set_back_is_heard(tmp_path: Path, kept: bool, outcome: str) -> None:
    """With the present time alone everything that it sends is replayed until its clock has passed the earlier start."""
    topology = Topology(loops=(LoopTopology(number=0, tour=(1, 2, 3), timing=TIMING),))
    server = Reformer(ReformerConfig(me=101, operator=999), topology, keys=KEYS, born_at=NOW)
    config = SiteConfig(me=2, reformers=(101,), timing=TIMING)
    incarnations = []
    for born_at in (NOW, BACK):
        incarnation = next_incarnation(tmp_path / "s2", born_at, step=SERIALS_MAX) if kept else None
        site = Site(config, keys=KEYS, born_at=born_at, incarnation=incarnation, recovered=Recovered.nothing())
        incarnations.append(site.incarnation)
        server.counts.clear()
        server.receive(report(site, born_at), NOW)
    assert server.counts[outcome] == 1
    assert len(set(incarnations)) == 2
