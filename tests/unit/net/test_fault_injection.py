"""Injected link faults: every datagram passes, is delayed or is counted as lost; delayed ones keep their order."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.core.link_faults import NO_FAULTS, LinkFaults
from fairtape.net.fault_injection import FaultInjector
from fairtape.wire.frames import HEADER, MAGIC, VERSION, Kind

NOW = 1_767_225_600 * SECOND
NEAR, FAR = 1, 2

RATES = st.floats(0.0, 1.0)
WEATHERS = st.builds(
    LinkFaults,
    delay=st.integers(0, 200 * MILLISECOND),
    jitter=st.integers(0, 20 * MILLISECOND),
    loss=RATES,
    duplication=RATES,
)


def datagram(sender: int, number: int) -> bytes:
    return HEADER.pack(MAGIC, VERSION, Kind.ACK, 0, 0, 0, 1, sender) + number.to_bytes(4)


def admit(link_faults: FaultInjector, arrivals: list[bytes], now: Instant) -> list[bytes]:
    """Without sender addresses, so that the header decides."""
    return link_faults.admit(arrivals, [None] * len(arrivals), now)


def far_away(link_faults: LinkFaults, *, seed: int = 0, waiting_max: int = 1_000) -> FaultInjector:
    return FaultInjector({FAR: link_faults}, Random(seed), waiting_max=waiting_max)


def test_datagrams_of_links_without_faults_pass_at_once() -> None:
    link_faults = FaultInjector({NEAR: NO_FAULTS, FAR: LinkFaults(delay=SECOND)}, Random(0))
    arrivals = [datagram(NEAR, 0), datagram(99, 1)]
    assert admit(link_faults, arrivals, NOW) == arrivals
    assert link_faults.deadline() is None


def test_a_repair_has_the_faults_of_its_sender_and_not_of_its_author() -> None:
    link_faults = FaultInjector({NEAR: LinkFaults(loss=1.0), FAR: LinkFaults(delay=SECOND)}, Random(0))
    written_near, written_far = datagram(NEAR, 0), datagram(FAR, 1)
    assert link_faults.admit([written_near, written_far], [FAR, NEAR], NOW) == []
    assert link_faults.lost == 1
    assert link_faults.due(NOW + SECOND) == [written_near]


@given(st.lists(st.binary(max_size=15)))
def test_bytes_without_a_whole_header_pass_at_once(arrivals: list[bytes]) -> None:
    assert admit(far_away(LinkFaults(loss=1.0)), arrivals, NOW) == arrivals


def test_a_constant_delay_keeps_the_order_and_releases_exactly_when_due() -> None:
    link_faults = far_away(LinkFaults(delay=10 * MILLISECOND))
    early, late = [datagram(FAR, n) for n in range(5)], [datagram(FAR, n) for n in range(5, 9)]
    assert admit(link_faults, early, NOW) == []
    assert admit(link_faults, late, NOW + MILLISECOND) == []
    assert link_faults.deadline() == NOW + 10 * MILLISECOND
    assert link_faults.due(NOW + 10 * MILLISECOND - 1) == []
    assert link_faults.due(NOW + 10 * MILLISECOND) == early
    assert link_faults.deadline() == NOW + 11 * MILLISECOND
    assert link_faults.due(NOW + SECOND) == late
    assert link_faults.deadline() is None


@given(WEATHERS, st.integers(0, 60), st.integers(0, 1_000))
def test_nothing_is_invented_and_every_loss_is_counted(link_faults: LinkFaults, count: int, seed: int) -> None:
    injected = far_away(link_faults, seed=seed, waiting_max=40)
    arrivals = [datagram(FAR, n) for n in range(count)]
    came = admit(injected, arrivals, NOW) + injected.due(NOW + 10 * SECOND)
    assert set(came) <= set(arrivals)
    assert all(came.count(each) <= 2 for each in arrivals)
    copies = len(came) + injected.overflowed
    assert count - injected.lost <= copies <= 2 * (count - injected.lost)


@given(WEATHERS, st.integers(0, 1_000))
def test_equal_seeds_give_equal_faults(link_faults: LinkFaults, seed: int) -> None:
    arrivals = [datagram(FAR, n) for n in range(30)]
    one, other = far_away(link_faults, seed=seed), far_away(link_faults, seed=seed)
    assert admit(one, arrivals, NOW) == admit(other, arrivals, NOW)
    assert one.deadline() == other.deadline()
    assert one.due(NOW + SECOND) == other.due(NOW + SECOND)


@given(st.integers(0, 1_000))
def test_many_steps_give_the_same_order_as_one_large_step(seed: int) -> None:
    link_faults = LinkFaults(delay=MILLISECOND, jitter=5 * MILLISECOND, duplication=0.2)
    stepped, leapt = far_away(link_faults, seed=seed), far_away(link_faults, seed=seed)
    arrivals = [datagram(FAR, n) for n in range(30)]
    admit(stepped, arrivals, NOW)
    admit(leapt, arrivals, NOW)
    came: list[bytes] = []
    while (deadline := stepped.deadline()) is not None:
        assert stepped.due(deadline - 1) == []
        came += stepped.due(deadline)
    assert came == leapt.due(NOW + SECOND)


def test_total_loss_loses_everything_and_counts_it() -> None:
    link_faults = far_away(LinkFaults(loss=1.0, delay=MILLISECOND))
    assert admit(link_faults, [datagram(FAR, n) for n in range(7)], NOW) == []
    assert link_faults.lost == 7
    assert link_faults.deadline() is None


def test_a_full_queue_loses_what_comes_after_and_counts_it() -> None:
    link_faults = far_away(LinkFaults(delay=MILLISECOND), waiting_max=3)
    arrivals = [datagram(FAR, n) for n in range(5)]
    admit(link_faults, arrivals, NOW)
    assert link_faults.overflowed == 2
    assert link_faults.due(NOW + SECOND) == arrivals[:3]


def test_a_queue_of_no_capacity_and_a_sender_out_of_range_are_refused() -> None:
    with pytest.raises(UserError, match="waiting_max is 0; at least one"):
        far_away(NO_FAULTS, waiting_max=0)
    with pytest.raises(UserError, match="link faults name the sender -1; node numbers go from 0"):
        FaultInjector({-1: NO_FAULTS}, Random(0))
