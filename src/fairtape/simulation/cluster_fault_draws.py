"""Draws the faults of a deployment, each kind from a random stream of its own.

A new kind leaves the histories of the others as they are, up to its own effects. Each kind is drawn for one seed in
eleven or so: a seed has one or two of them at once, and what fails can be understood.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Final

from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.simulation.cluster_faults import (
    CLOCK_FAULTS,
    BadClock,
    BusySource,
    ClockSetBack,
    ClusterFault,
    CopiedFolder,
    CutOneWay,
    CutPairs,
    DelayedLeader,
    EmptyJournal,
    Flapping,
    LargeMessages,
    LateAnswers,
    Link,
    LostAnswer,
    LostStore,
    MissingKey,
    RestoredStore,
    RolledBackJournal,
    SecondRestart,
    SlowStore,
    StoppedMachine,
)
from fairtape.simulation.world import EPOCH, chance_for
from fairtape.wire.frames import NodeId

SHARE: Final = 0.09  # of the seeds that have one kind of these faults
STORE_SHARE: Final = 0.08  # of those that disturb the store: there are five kinds
CUT_SHARE: Final = 0.2  # of those that have cut pairs: there are four kinds
LARGE: Final = (64 << 10, 128 << 10, 256 << 10)  # bytes; up to 1 MiB is permitted, and takes as long again


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnNodes:
    """What the draws know of a cluster: its nodes, and how long its faults last."""

    sites: tuple[NodeId, ...]  # those that are started at first
    reformers: tuple[NodeId, ...]
    sources: tuple[NodeId, ...]
    timing: Timing
    leader_lease: Duration
    heals_at: Instant

    def instant(self, chance: Random, *, latest: Duration = SECOND) -> Instant:
        """An instant after the start, at least `latest` before the faults end."""
        return EPOCH + chance.randrange(SECOND // 2, max(self.heals_at - EPOCH - latest, SECOND))

    def until(self, at: Instant, period: Duration) -> Duration:
        """The period from `at` on, or the part of it that ends before the faults do."""
        return max(min(period, self.heals_at - 1 - at), 0)


def draw_cluster_faults(seed: int, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    """The faults of this seed. A clock has at most one fault."""
    clocks: set[NodeId] = set()
    for name, (share, draw) in DRAWS.items():
        chance = chance_for(name, seed)
        if chance.random() >= share:
            continue
        for fault in draw(chance, nodes):
            if isinstance(fault, CLOCK_FAULTS):
                if fault.node in clocks:
                    continue
                clocks.add(fault.node)
            yield fault


def _cut_pairs(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    """A site that reaches no peer, with or without the sources; two halves that do not reach each other; any pairs.

    In the first three kinds all sites reach the servers. What a side acknowledges, the other one does not learn.
    """
    at = nodes.instant(chance)
    period = nodes.until(at, chance.choice((SECOND, 3 * SECOND, 8 * SECOND)))
    site = chance.choice(nodes.sites)
    peers = [other for other in nodes.sites if other != site]
    pairs: list[Link]
    match chance.randrange(4):
        case 0:
            pairs = [(site, other) for other in (*peers, *nodes.sources)]
        case 1:
            pairs = [(site, other) for other in peers]
        case 2:
            half = (site, *chance.sample(peers, len(nodes.sites) // 2 - 1))
            pairs = [(one, other) for one in half for other in nodes.sites if other not in half]
        case _:
            known = list(combinations((*nodes.sites, *nodes.reformers, *nodes.sources), 2))
            pairs = chance.sample(known, min(chance.choice((1, 2, 5)), len(known)))
    yield CutPairs(at, tuple(pairs), period)


def _cut_one_way(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    """A node that hears no one, or that no one hears; any links in one direction; a site that hears no other site.

    The last one is soon joined by the crash of another site: what it has not heard, a site that leaves may hold alone.
    """
    at = nodes.instant(chance)
    everyone = (*nodes.sites, *nodes.reformers, *nodes.sources)
    node = chance.choice((*nodes.sites, *nodes.reformers))
    others = [other for other in everyone if other != node]
    links: tuple[Link, ...]
    match chance.randrange(4):
        case 0:
            links = tuple((other, node) for other in others)
        case 1:
            links = tuple((node, other) for other in others)
        case 2:
            node, crashing = chance.sample(nodes.sites, 2)
            links = tuple((site, node) for site in nodes.sites if site != node)
            crashed_at = at + chance.randrange(150 * MILLISECOND)
            yield Flapping(crashed_at, crashing, ((nodes.until(crashed_at, SECOND), 0),))
        case _:
            links = tuple((node, other) for other in chance.sample(others, min(2, len(others))))
    yield CutOneWay(at, links, nodes.until(at, chance.randrange(SECOND // 4, 4 * SECOND)))


def _empty_journal(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    at = nodes.instant(chance)
    yield EmptyJournal(at, chance.choice(nodes.sites), nodes.until(at, chance.randrange(10 * MILLISECOND, SECOND)))


def _rolled_back_journal(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    at = nodes.instant(chance)
    age = chance.choice((20 * MILLISECOND, 200 * MILLISECOND, SECOND))
    period = nodes.until(at, chance.randrange(10 * MILLISECOND, SECOND))
    yield RolledBackJournal(at, chance.choice(nodes.sites), min(age, at - EPOCH), period)


def _second_restart(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    """Its own first restart is a moment before; that of another site is between the copy and the crash."""
    if len(nodes.sites) < 3:
        return
    at = nodes.instant(chance, latest=2 * SECOND)
    node, peer, other = chance.sample(nodes.sites, 3)
    own = chance.random() < 0.5
    age = chance.randrange(100 * MILLISECOND, 600 * MILLISECOND)
    before = chance.randrange(20 * MILLISECOND, 60 * MILLISECOND) if own else age // 2
    yield SecondRestart(
        at=at,
        node=node,
        age=min(age, at - EPOCH),
        period=chance.randrange(5 * MILLISECOND, 50 * MILLISECOND),
        first=node if own else other,
        first_at=max(at - before, EPOCH + 1),
        first_period=chance.randrange(2 * MILLISECOND, 20 * MILLISECOND),
        peer=peer,
        cut_at=max(at - chance.randrange(20 * MILLISECOND, 150 * MILLISECOND), EPOCH + 1),
    )


def _clock_set_back(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    at = nodes.instant(chance)
    by = chance.choice((50 * MILLISECOND, SECOND, 10 * SECOND, 100 * SECOND))
    ahead = chance.random() < 0.4
    yield ClockSetBack(
        at=at,
        node=chance.choice((*nodes.sites, *nodes.reformers)),
        period=nodes.until(at, chance.randrange(10 * MILLISECOND, SECOND)),
        by=by,
        since=EPOCH + chance.randrange(1, at - EPOCH),
        until=nodes.heals_at,
        ahead=ahead,
        declared=ahead or chance.random() < 0.5,
    )


def _stopped_machine(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    at = nodes.instant(chance, latest=SECOND)
    period = nodes.until(at, chance.choice((60, 150, 300, 600, 900)) * MILLISECOND)
    corrected_at = min(at + period + chance.randrange(SECOND // 10, 4 * SECOND), nodes.heals_at)
    yield StoppedMachine(at, chance.choice(nodes.sites), period, corrected_at, slewed=chance.random() < 0.5)


def _bad_clock(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    """In half of the seeds with a busy source, so that much waits at a site that may not release."""
    error = nodes.timing.clock_error_max * chance.choice((3, 20, 100)) * chance.choice((-1, 1))
    at = nodes.instant(chance)
    yield BadClock(at, chance.choice(nodes.sites), error, nodes.heals_at)
    if chance.random() < 0.5:
        every = max(nodes.timing.token_period // 2, MILLISECOND)
        yield BusySource(at, chance.choice(nodes.sources), every, at + nodes.until(at, 800 * every))


def _flapping(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    """It ends before the other faults do."""
    at = nodes.instant(chance, latest=2 * SECOND)
    times: list[tuple[Duration, Duration]] = []
    end = at
    for _ in range(chance.randint(3, 10)):
        down = chance.randrange(5 * MILLISECOND, SECOND // 4)
        up = chance.randrange(50 * MILLISECOND, SECOND // 2)
        if end + down >= nodes.heals_at:
            break
        times.append((down, up))
        end += down + up
    yield Flapping(at, chance.choice(nodes.sites), tuple(times))


def _slow_store(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    """Every call, or single ones, such as a write that waits for a disk."""
    if chance.random() < 0.5:
        at = nodes.instant(chance)
        delay = chance.choice((60, 150, 310)) * MILLISECOND
        yield SlowStore(at, delay, nodes.until(at, chance.randrange(SECOND // 2, 4 * SECOND)))
    else:
        for _ in range(chance.randint(1, 4)):
            yield SlowStore(nodes.instant(chance), chance.choice((100, 350)) * MILLISECOND, 0)


def _late_answers(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    at = nodes.instant(chance)
    late = int(nodes.leader_lease * chance.uniform(0.3, 1.5))
    yield LateAnswers(at, late, nodes.until(at, int(nodes.leader_lease * chance.uniform(0.5, 4))))


def _lost_answer(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    """The answer to a claim is lost, its server gives up 0.4 to 0.8 of a lease later, and then the store is gone."""
    lease = nodes.leader_lease
    for reformer in nodes.reformers:
        for _ in range(2):
            at = nodes.instant(chance, latest=2 * SECOND)
            gives_up_after = int(lease * chance.uniform(0.3, 0.8))
            gone_at = at + nodes.until(at, gives_up_after + int(lease * chance.uniform(0.1, 0.7)))
            yield LostAnswer(at, reformer, gives_up_after, gone_at, nodes.until(gone_at, 2 * lease))


def _restored_store(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    yield RestoredStore(nodes.instant(chance), chance.choice((1, 2)))


def _lost_store(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    yield LostStore(nodes.instant(chance), chance.choice((SECOND // 4, SECOND)))


def _copied_folder(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    """Long enough for a leader that would recover what its store has lost. A site alone may come to follow no store."""
    if len(nodes.reformers) == 1:
        return
    at = EPOCH + chance.randrange(SECOND // 2, SECOND * 5 // 2)
    count = chance.choice((0, *range(2, len(nodes.sites) + 1)))
    sites = chance.sample(nodes.sites, count)
    yield CopiedFolder(at, (chance.choice(nodes.reformers),), tuple(sites), nodes.until(at, 6 * SECOND))


def _delayed_leader(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    at = nodes.instant(chance, latest=2 * SECOND)
    sites = tuple(chance.sample(nodes.sites, chance.randint(1, max(len(nodes.sites) // 2, 1))))
    dies_after = chance.randrange(MILLISECOND, 300 * MILLISECOND)
    period = dies_after + int(nodes.leader_lease * chance.uniform(1.3, 4))
    yield DelayedLeader(at, sites, dies_after, nodes.until(at, period))


def _missing_key(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    at = nodes.instant(chance)
    period = nodes.until(at, chance.randrange(SECOND // 4, 3 * SECOND))
    yield MissingKey(at, chance.choice(nodes.sites), chance.choice(nodes.sources), period)


def _busy_source(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    at = nodes.instant(chance)
    every = max(nodes.timing.token_period // 4, MILLISECOND)
    yield BusySource(at, chance.choice(nodes.sources), every, at + nodes.until(at, 300 * every))


def _large_messages(chance: Random, nodes: DrawnNodes) -> Iterator[ClusterFault]:
    """Mostly while a site is away, so that it catches up with them."""
    at = nodes.instant(chance)
    sizes = tuple(chance.choice(LARGE) for _ in range(chance.choice((1, 1, 2))))
    if chance.random() < 0.7:
        down = chance.randrange(100 * MILLISECOND, SECOND)
        crashed_at = max(at - chance.randrange(50 * MILLISECOND), EPOCH + 1)
        yield Flapping(crashed_at, chance.choice(nodes.sites), ((nodes.until(crashed_at, down), 0),))
    yield LargeMessages(at, chance.choice(nodes.sources), sizes)


DRAWS: Final[dict[str, tuple[float, Callable[[Random, DrawnNodes], Iterator[ClusterFault]]]]] = {
    "cut pairs": (CUT_SHARE, _cut_pairs),
    "cut one way": (0.1, _cut_one_way),
    "empty journal": (SHARE, _empty_journal),
    "rolled-back journal": (SHARE, _rolled_back_journal),
    "second restart": (SHARE, _second_restart),
    "clock set back": (SHARE, _clock_set_back),
    "stopped machine": (SHARE, _stopped_machine),
    "bad clock": (SHARE, _bad_clock),
    "flapping": (SHARE, _flapping),
    "slow store": (STORE_SHARE, _slow_store),
    "late answers": (STORE_SHARE, _late_answers),
    "lost answer": (STORE_SHARE, _lost_answer),
    "restored store": (0.1, _restored_store),  # some have no formation to lose then
    "lost store": (STORE_SHARE, _lost_store),
    "copied folder": (0.2, _copied_folder),
    "delayed leader": (0.11, _delayed_leader),  # a third of all clusters have one reformation server
    "missing key": (SHARE, _missing_key),
    "busy source": (SHARE, _busy_source),
    "large messages": (SHARE, _large_messages),
}
