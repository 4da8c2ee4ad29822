"""The faults of deployments: how they are drawn, and what each does."""

from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from fairtape.core.effects import Ordered, Release, Span
from fairtape.core.formation_log import Claim, Claimed, Leadership, LogEntry, Recall, Record, Recorded, Unavailable
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.core.link_faults import LinkFaults
from fairtape.nodes.coordinator import primary_loop
from fairtape.simulation import cluster_fault_draws
from fairtape.simulation.clocks import Offset, OffsetClock, TrueClock, drifting_clock
from fairtape.simulation.cluster import Cluster
from fairtape.simulation.cluster_checkers import ClusterCheckers
from fairtape.simulation.cluster_fault_draws import DRAWS, DrawnNodes, draw_cluster_faults
from fairtape.simulation.cluster_faults import (
    BadClock,
    BusySource,
    ClockSetBack,
    ClusterFault,
    ClusterFaults,
    CopiedFolder,
    CutOneWay,
    CutPairs,
    DelayedLeader,
    EmptyJournal,
    Equivocation,
    Flapping,
    LargeMessages,
    LateAnswers,
    LostAnswer,
    LostStore,
    MissingKey,
    RestoredStore,
    RolledBackJournal,
    SecondRestart,
    SlowStore,
    StoppedMachine,
    with_offsets,
)
from fairtape.simulation.network import Network
from fairtape.simulation.simulated_journal import SimulatedJournal
from fairtape.simulation.simulated_store import SimulatedStoreAccess
from fairtape.simulation.world import EPOCH, Violation
from scenarios.cluster_scenario import play
from simulation.fault_free_cluster import SOURCES, TIMING, fault_free_cluster, load

NODES = DrawnNodes(
    sites=(1, 2, 3, 4),
    reformers=(101, 102),
    sources=SOURCES,
    timing=TIMING,
    leader_lease=TIMING.lease_period,
    heals_at=EPOCH + 5 * SECOND,
)
SEEDS = range(600)
SCENARIOS = Path(__file__).parents[1] / "scenarios" / "clusters"


def test_each_fault_is_drawn_in_at_least_one_seed_of_twenty() -> None:
    drawn = Counter(name for seed in SEEDS for name in {fault.name for fault in draw_cluster_faults(seed, NODES)})
    assert set(drawn) == {*DRAWS}
    assert min(drawn.values()) >= 0.05 * len(SEEDS), drawn


def test_a_seed_has_few_of_these_faults() -> None:
    counts = [len({fault.name for fault in draw_cluster_faults(seed, NODES)}) for seed in SEEDS]
    assert sum(counts) / len(counts) < 2
    assert sum(count == 0 for count in counts) > 0.1 * len(counts)  # each kind is in 5 %, so few seeds have none


def test_each_fault_has_a_random_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {seed: list(draw_cluster_faults(seed, NODES)) for seed in range(100)}
    monkeypatch.setattr(cluster_fault_draws, "DRAWS", {name: DRAWS[name] for name in DRAWS if name != "cut pairs"})
    for seed, faults in before.items():
        assert list(draw_cluster_faults(seed, NODES)) == [each for each in faults if each.name != "cut pairs"]


def test_all_faults_end_when_the_cluster_heals() -> None:
    for seed in SEEDS:
        for fault in draw_cluster_faults(seed, NODES):
            period = getattr(fault, "period", 0)
            assert EPOCH < fault.at < NODES.heals_at
            assert fault.at + period < NODES.heals_at
            if isinstance(fault, Flapping):
                assert fault.at + sum(map(sum, fault.times)) < NODES.heals_at + SECOND


def test_equivocation_is_excluded() -> None:
    assert not any(isinstance(fault, Equivocation) for seed in SEEDS for fault in draw_cluster_faults(seed, NODES))


def test_every_fault_takes_place_in_a_run() -> None:
    at = EPOCH + SECOND
    faults: list[ClusterFault] = [
        CutPairs(at, ((3, 1),), SECOND),
        CutOneWay(at, ((3, 2),), SECOND),
        EmptyJournal(at, 4, 50 * MILLISECOND),
        RolledBackJournal(at + SECOND, 4, SECOND // 2, 50 * MILLISECOND),
        SecondRestart(
            at=at + 3 * SECOND,
            node=4,
            age=SECOND // 2,
            period=10 * MILLISECOND,
            first=4,
            first_at=at + 3 * SECOND - 30 * MILLISECOND,
            first_period=5 * MILLISECOND,
            peer=1,
            cut_at=at + 3 * SECOND - 50 * MILLISECOND,
        ),
        ClockSetBack(at, 1, 50 * MILLISECOND, SECOND, EPOCH, at + SECOND, ahead=False, declared=True),
        StoppedMachine(at, 2, 300 * MILLISECOND, at + SECOND, slewed=True),
        BadClock(at, 3, SECOND, at + SECOND),
        Flapping(at + 2 * SECOND, 3, ((50 * MILLISECOND, 50 * MILLISECOND),) * 2),
        SlowStore(at, 50 * MILLISECOND, SECOND),
        LateAnswers(at, 50 * MILLISECOND, SECOND),
        LostAnswer(at, 101, 50 * MILLISECOND, at + 60 * MILLISECOND, 50 * MILLISECOND),
        RestoredStore(at + 4 * SECOND, 1),
        LostStore(at + 5 * SECOND),
        CopiedFolder(at + 5 * SECOND, (102,), (), SECOND // 2),
        DelayedLeader(at + 3 * SECOND, (1,), 50 * MILLISECOND, SECOND),
        MissingKey(at + 3 * SECOND, 2, 201, SECOND // 2),
        BusySource(at, 201, 5 * MILLISECOND, at + SECOND),
        LargeMessages(at, 202, (64 << 10,)),
    ]
    cluster, _ = fault_free_cluster(clocks=with_offsets({}, faults))
    carried_out = ClusterFaults(cluster, Random(1))
    for fault in faults:
        carried_out.schedule(fault)
    load(cluster, since=SECOND // 4, until=6 * SECOND)
    with suppress(Violation):  # a store that was lost, on top of all others
        cluster.run(7 * SECOND)
    assert carried_out.occurred == {*DRAWS}


def two_faced(node: int) -> tuple[Cluster, ClusterCheckers]:
    cluster, checkers = fault_free_cluster()
    ClusterFaults(cluster, Random(1)).schedule(Equivocation(EPOCH + SECOND, node, (3, 4), SECOND))
    load(cluster, since=SECOND // 4, until=2 * SECOND)
    return cluster, checkers


@pytest.mark.parametrize("node", [201, 1])
def test_two_texts_under_one_number_break_the_order_and_are_noticed_by_no_machine(node: int) -> None:
    cluster, _ = two_faced(node)
    with pytest.raises(Violation, match="OneOrder"):
        cluster.run(5 * SECOND)


seeds = some.integers(0, 100_000)
instants = some.integers(EPOCH, EPOCH + 20 * SECOND)


@given(seed=seeds, since=instants, ahead=some.integers(-SECOND, 3 * SECOND), offset=some.integers(-SECOND, SECOND))
def test_when_is_the_first_instant_at_which_a_clock_with_offsets_shows_a_time(
    seed: int, since: int, ahead: int, offset: int
) -> None:
    base = drifting_clock(Random(seed), since=EPOCH, until=EPOCH + 20 * SECOND, bound=50 * MILLISECOND, steps=True)
    clock = OffsetClock(base, [Offset(EPOCH + 5 * SECOND, offset, abs(offset)), Offset(EPOCH + 15 * SECOND, 0)])
    at = clock.when(since + ahead, since)
    assert at >= since
    assert clock.read(at) >= since + ahead
    assert at == since or clock.read(at - 1) < since + ahead
    assert clock.error_at(at) == clock.read(at) - at


def test_a_machine_that_stands_still_has_a_clock_that_is_behind_until_it_is_corrected() -> None:
    stopped = StoppedMachine(EPOCH, 1, SECOND, EPOCH + 2 * SECOND, slewed=False)
    clock = with_offsets({}, [stopped])[1]
    assert clock.read(EPOCH + SECOND) == EPOCH
    assert clock.read(EPOCH + 2 * SECOND) == EPOCH + 2 * SECOND
    assert clock.bound == TrueClock().bound


def test_a_link_is_cut_in_one_direction_until_it_is_mended_as_often() -> None:
    arrived: list[tuple[int, int, bytes]] = []
    network = Network(
        link_model=lambda _origin, _to: LinkFaults(delay=1),
        chance=Random(1),
        deliver=lambda delay, to, datagram: arrived.append((delay, to, datagram)),
    )
    network.cut_links([(1, 2), (1, 2)])
    network.send(1, 2, b"lost" * 10)
    network.send(2, 1, b"back" * 10)
    network.mend_links([(1, 2)])
    assert not network.is_open(1, 2)
    assert network.is_open(2, 1)
    network.heal()
    network.send(1, 2, b"open" * 10)
    assert [(to, datagram[:4]) for _, to, datagram in arrived] == [(1, b"back"), (2, b"open")]


def entry(token: int) -> Ordered:
    span = Span(source=201, incarnation=1, first=token, count=1, sequence=token, bodies=(b"\0\1x",), counts=(1,))
    return Ordered(stripe=0, formation=1, token=token, sequence=token, count=1, acknowledged_at=token, spans=(span,))


def test_a_restored_journal_keeps_its_identity_and_an_empty_one_gets_another() -> None:
    journal = SimulatedJournal(identity=7)
    journal.append(entry(1))
    copy = journal.copy()
    journal.append(entry(2))
    journal.release(Release(token=2, sequence=2, count=1, commit_at=2, released_at=2, late=False, clock_bound=0))
    journal.restore(copy)
    assert (journal.recovered().token, journal.released_through, journal.identity) == (1, 0, 7)
    journal.lose_everything()
    assert (journal.entries, journal.encoded) == ([], [])
    assert journal.identity != 7


def test_a_store_forgets_and_the_truth_stays() -> None:
    access = SimulatedStoreAccess(MILLISECOND, Random(1))
    leader = Leadership(101, 1, 0)
    access.query(101, Claim(None, leader))
    for number in (1, 2, 3):
        assert isinstance(access.query(101, Record((LogEntry(0, number, 1, b"f"),)))[1], Recorded)
    assert access.restore(2)
    assert [each.number for each in access.store.log] == [1]
    assert not access.restore(2)
    access.lose()
    assert (access.store.log, access.store.leadership) == ([], None)
    assert [each.number for each in access.recorded] == [1, 2, 3]


def test_a_store_is_disturbed_until_the_requests_made_in_an_outage_are_given_up() -> None:
    now = [SECOND]
    access = SimulatedStoreAccess(MILLISECOND, Random(1), now=lambda: now[-1])
    disturbed = []
    for access.unavailable in (False, True):
        delay, _ = access.query(101, Recall())
        disturbed.append(access.disturbed)
    access.unavailable = False
    for after in (delay - 1, delay):
        now.append(SECOND + after)
        disturbed.append(access.disturbed)
    assert disturbed == [False, True, True, False]


def test_an_answer_may_be_lost_or_late_while_the_claim_was_carried_out() -> None:
    access = SimulatedStoreAccess(MILLISECOND, Random(1))
    first, second = Leadership(101, 1, 0), Leadership(101, 1, 1)
    access.answer_lost[101] = 70 * MILLISECOND
    delay, answer = access.query(101, Claim(None, first))
    assert (delay, type(answer), access.store.leadership) == (70 * MILLISECOND, Unavailable, first)
    access.answers_late = 90 * MILLISECOND
    assert access.query(101, Claim(first, second)) == (90 * MILLISECOND, Claimed(second))
    access.heal()
    access.next_call_delay = 350 * MILLISECOND
    assert access.query(101, Claim(second, second))[0] == 350 * MILLISECOND
    assert access.query(101, Claim(second, second))[0] < 5 * MILLISECOND


def test_only_what_a_site_had_not_reported_is_excused_after_a_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that forgets what a site had reported breaks One order.  Decision 52, Identity of a journal."""
    monkeypatch.setattr(primary_loop, "lost_journal", lambda *_: False)
    for name in ("rolled_back_to_earlier_formation", "rolled_back_at_second_restart"):
        text = (SCENARIOS / f"{name}.txt").read_text().partition("----")[0]
        with pytest.raises(Violation, match="without a Break"):
            play(text)
