"""Sources of one process: one address, and incarnations that differ."""

from dataclasses import replace

import pytest

from fairtape.core.errors import UserError
from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import profile
from fairtape.deployment.publish.source_runtime import SourceConfig, group_of
from fairtape.net.clock import SharedClock
from fairtape.net.transports import Peer, Role
from fairtape.wire.seals import Keys

SITE, ONE, TWO = 1, 101, 102
SHARED = Peer("127.0.0.1", 17_000, Role.SOURCE)


def config_of(me: int) -> SourceConfig:
    return SourceConfig(
        me=me,
        keys=Keys.from_secret(b"some", (SITE,), (ONE, TWO)).for_source(me),
        timing=profile("metro"),
        resilience=1,
        address_book={SITE: Peer("127.0.0.1", 17_001, Role.SITE), ONE: SHARED, TWO: SHARED},
        groups=None,
    )


def test_the_sources_of_a_group_have_distinct_incarnations() -> None:
    """The next start is later than all of them, however many there are."""
    clock = SharedClock()
    before = clock.now()
    group = group_of([config_of(ONE), config_of(TWO)], clock)
    one, two = (group.sources[node].incarnation for node in (ONE, TWO))
    assert before <= one < two <= clock.now() + 1


def test_a_group_has_one_address() -> None:
    elsewhere = {**config_of(TWO).address_book, TWO: replace(SHARED, port=17_002)}
    with pytest.raises(UserError, match="sources 101 and 102 have two addresses; sources of one group have the same"):
        group_of([config_of(ONE), replace(config_of(TWO), address_book=elsewhere)], SharedClock())


def test_a_group_has_the_link_faults_of_one_node() -> None:
    far = replace(config_of(TWO), link_faults={SITE: LinkFaults(loss=0.1)})
    with pytest.raises(UserError, match="one address and different link faults; put them into one city"):
        group_of([config_of(ONE), far], SharedClock())
