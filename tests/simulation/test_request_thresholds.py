"""Decision 50, Request thresholds, in worlds: needless requests end, and what is lost is repaired as before."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import PROFILES, Timing
from fairtape.ring.receiver.ack_lateness import AckLateness
from fairtape.simulation.overload import Overload
from fairtape.simulation.overload_run import OverloadRun
from fairtape.simulation.processors import SLICE_MAX, SOCKET_MAX, CompetingLoad, Costs
from fairtape.simulation.world import EPOCH
from unit.ring.ring_values import SOURCE, Ring

SITES = (1, 2, 3)
SEEDS = (1, 2)
RETRY_PERIODS = 1_000  # simulated
STALL_EVERY = 30  # retry periods between two stalls of one processor, on the average


def stalls(seed: int, processor: int, retry_period: Duration) -> Iterator[tuple[Instant, Duration]]:
    """A processor that stops now and then, for T_R / 2 to T_R."""
    chance = Random(f"stalls {seed} {processor}")
    at = EPOCH
    while at < EPOCH + RETRY_PERIODS * retry_period:
        at += int(chance.expovariate(1 / (STALL_EVERY * retry_period)))
        yield at, chance.randint(retry_period // 2, retry_period)


def busy_machine(seed: int, profile: str, *, loss: float = 0.0) -> Overload:
    """Three sites on processors that stop now and then, and little load."""
    return Overload(
        seed=seed,
        profile=profile,
        healing=False,
        sites=SITES,
        sources=(101,),
        resilience=1,
        delay=80 * MICROSECOND,
        loss=loss,
        placed={1: 0, 2: 1, 3: 2, 101: 3},
        costs=Costs(turn=15_000, datagram=3_000, kib_received=3_000, kib_sent=2_000, message=1_000, append=30_000),
        slowness=(1.0,) * 4,
        loads=tuple(
            CompetingLoad(processor=each, stalls=tuple(stalls(seed, each, PROFILES[profile].retry_period)))
            for each in range(3)
        ),
        socket_max=SOCKET_MAX,
        slice_max=SLICE_MAX,
        datagram_max=1_400,
        load=0.01,
        period=RETRY_PERIODS * PROFILES[profile].retry_period,
    )


def outcome(profile: str, *, loss: float = 0.0) -> tuple[int, float]:
    """The requests, and the share of releases that were late, of some worlds; every guarantee is checked."""
    requests = late = released = 0
    for seed in SEEDS:
        run = OverloadRun(busy_machine(seed, profile, loss=loss))
        run.run()
        assert run.all_delivered
        requests += sum(run.cluster.receiver(site).counts["requests_sent"] for site in SITES)
        late, released = late + run.checkers.late, released + run.checkers.releases
    return requests, late / released


def unmeasured(_: AckLateness, timing: Timing) -> Duration:
    """The threshold of TRMP 2001 §5.1."""
    return timing.one_way_max


@pytest.mark.parametrize(("profile", "fewer"), [("lan", 3), ("metro", 6)])
def test_stalls_of_a_processor_cause_few_requests_once_they_are_known(
    profile: str, fewer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lan profile leaves the next token site little time before the commit: it still asks after long stalls."""
    requests, late = outcome(profile)
    monkeypatch.setattr(AckLateness, "wait", unmeasured)
    requests_before, late_before = outcome(profile)
    assert requests_before > 30
    assert fewer * requests < requests_before
    assert late < late_before + 0.0005


@pytest.mark.parametrize("profile", ["lan", "metro"])
def test_losses_are_repaired_in_time_where_processors_stall(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repair of 1 % of all datagrams makes hardly more releases late than with the threshold of the paper."""
    _, late = outcome(profile, loss=0.01)
    monkeypatch.setattr(AckLateness, "wait", unmeasured)
    _, late_before = outcome(profile, loss=0.01)
    assert late < late_before + 0.002


def test_a_network_slower_than_its_profile_causes_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both copies of a requested acknowledgment come, so the receiver learns that it asked in vain."""
    link_faults = LinkFaults(delay=6 * MILLISECOND, jitter=MILLISECOND)
    requests = []
    for _ in range(2):
        ring = Ring(4, timing=replace(PROFILES["metro"], token_period=20 * MILLISECOND), link_faults=link_faults)
        for second in range(4):
            ring.publish(SOURCE, [b"a message"], EPOCH + second * SECOND)
        ring.run(4 * SECOND)
        requests.append(sum(each.counts["requests_sent"] for each in ring.receivers.values()))
        monkeypatch.setattr(AckLateness, "wait", unmeasured)
    assert requests[1] > 200
    assert 20 * requests[0] < requests[1]
