"""Decision 51, Pace, in a world: a processor that is too slow for the token, then quiet."""

from functools import cache

from fairtape.core.effects import Ordered, Release
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.ring.membership.topology import PaceRule
from fairtape.simulation.overload import Overload
from fairtape.simulation.overload_run import OverloadRun
from fairtape.simulation.processors import SLICE_MAX, SOCKET_MAX, CompetingLoad, Costs
from fairtape.simulation.world import EPOCH, Observer
from fairtape.wire.frames import NodeId

SITES = (1, 2, 3)
RULE = PaceRule(window=250 * MILLISECOND, quiet_period=6 * SECOND)
BUSY_PERIOD = 4 * SECOND  # another program takes 70 % of the processor
STEP = SECOND // 2


def shared_processor(pace: PaceRule | None) -> Overload:
    """A whole deployment on one processor, in the lan profile, beside a program that takes 2 ms at a time."""
    return Overload(
        seed=1,
        profile="lan",
        healing=True,
        sites=SITES,
        sources=(101,),
        resilience=1,
        delay=80 * MICROSECOND,
        loss=0.0,
        placed=dict.fromkeys((*SITES, 101, 201, 202), 0),
        costs=Costs(turn=20_000, datagram=5_000, kib_received=3_000, kib_sent=2_000, message=1_000, append=30_000),
        slowness=(1.0,),
        loads=(CompetingLoad(processor=0, busy_slice=2 * MILLISECOND, busy_share=0.7),),
        socket_max=SOCKET_MAX,
        slice_max=SLICE_MAX,
        datagram_max=1_400,
        load=1.0,
        period=BUSY_PERIOD,
        pace=pace,
    )


class LateShares(Observer):
    """The share of late releases in each step."""

    def __init__(self) -> None:
        self._counted: dict[int, list[int]] = {}

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        counted = self._counted.setdefault((now - EPOCH) // STEP, [0, 0])
        counted[release.late] += release.count

    def share(self, since: Duration, until: Duration) -> float:
        steps = [counted for step, counted in self._counted.items() if since <= step * STEP < until]
        return sum(late for _, late in steps) / max(sum(map(sum, steps)), 1)


@cache
def outcome_of(pace: PaceRule | None) -> tuple[LateShares, list[Duration]]:
    """The late shares, and the token periods of all formations; every guarantee was checked, and nothing was fenced."""
    run = OverloadRun(shared_processor(pace))
    shares = LateShares()
    run.cluster.world.observers.append(shares)
    run.cluster.world.run(EPOCH + BUSY_PERIOD + 3 * RULE.quiet_period)
    run.run()
    formations = run.checkers.formations()
    assert not any(each.first_sequence for each in formations[1:]), "planned changes continue the sequence"
    return shares, [each.timing.token_period for each in formations]


def test_without_adaptation_a_processor_that_is_too_slow_makes_releases_late() -> None:
    shares, periods = outcome_of(None)
    assert shares.share(SECOND, BUSY_PERIOD) > 0.1
    assert periods == [MILLISECOND]


def test_the_token_is_slowed_until_no_release_is_late_and_sped_up_when_it_is_quiet() -> None:
    shares, periods = outcome_of(RULE)
    assert shares.share(0, SECOND) > 0.1
    assert shares.share(BUSY_PERIOD // 2 + SECOND, BUSY_PERIOD) == 0
    assert periods == [MILLISECOND, 2 * MILLISECOND, MILLISECOND]
