"""Fair entry under unequal load, measured: is a source first more often because it sends all the time?

Some sources of a ring send all the time: at every site but the one that has just acknowledged, they always have
something unacknowledged. The other sources are quiet. All links have the same delay, so all sources are equally far
from each token site. In a race all of them send one message at the same instant, and it arrives shortly after a token
was sent. So it is the first message of its source that this token has not acknowledged, for busy sources, too, and all
have the same chance (decision 65, Place within a token), unless a source keeps the place of what is acknowledged.

A message that a busy source sent earlier, and that is not acknowledged yet, is rightly in front: it arrived earlier.
So these links lose nothing: after a loss the token site acknowledges what it missed one token later.
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from fairtape.core.effects import Ordered, Release
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.spans import messages
from fairtape.core.timing import Timing
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.topology import LoopTopology, Topology
from fairtape.simulation.cluster import Cluster, ClusterPlan
from fairtape.simulation.fair_entry import EVENTS_MAX, EntryPath, in_processes
from fairtape.simulation.world import EPOCH, Observer
from fairtape.wire.frames import NodeId

SITES: Final = (1, 2, 3, 4)
QUIET: Final = (101, 102, 103)
BUSY: Final = (104, 105, 106)
SOURCES: Final = QUIET + BUSY
LINK: Final = LinkFaults(delay=20 * MILLISECOND, jitter=MILLISECOND // 2)  # of every pair of nodes
TIMING: Final = Timing(
    retry_period=60 * MILLISECOND, retries_max=20, token_period=60 * MILLISECOND, commit_delay=250 * MILLISECOND
)
BUSY_PERIOD: Final = 16 * MILLISECOND  # less than an acknowledgment takes: one message is always unacknowledged
ARRIVAL: Final = (4 * MILLISECOND, 11 * MILLISECOND)  # of the messages of a race, after a token: the first since then
RACE_TOKENS: Final = 3  # from one race to the next: each site acknowledges a quarter of them
FIRST_RACE: Final = 20  # the token before the first race; the busy sources have begun by then

_OTHER: Final = b"-"  # what a busy source sends between races


class UnequalRaces(Observer):
    """One world and all its races."""

    def __init__(self, *, races: int, seed: int) -> None:
        self._chance = Random(f"unequal load {seed}")  # noqa: S311 - a simulation
        self._formation = Formation(number=1, members=SITES, timing=TIMING, starts_at=EPOCH + SECOND, resilience=1)
        self._firsts: dict[int, tuple[NodeId, Instant]] = {}  # by race: the source that is first, and when
        self._began_at = tuple(self._draw_instants(races))
        self._cluster = Cluster(self._plan(seed))
        self._cluster.world.turns_max = EVENTS_MAX
        self._cluster.world.observers.append(self)

    def run(self) -> EntryPath:
        """How often each source was first."""
        self._cluster.start()
        for race in range(len(self._began_at)):
            self._schedule(race)
        self._cluster.world.run(self._began_at[-1] + 2 * SECOND)
        counts = dict.fromkeys(SOURCES, 0)
        delays = []
        for race, began_at in enumerate(self._began_at):
            source, at = self._firsts[race]
            counts[source] += 1
            delays.append(at - began_at)
        return EntryPath("unequal load", tuple(counts.values()), tuple(delays))

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        """Read the order at one site; it is the same at all."""
        if node != SITES[0]:
            return
        for span in ordered.spans:
            for _, payload in messages(span):
                if payload != _OTHER:
                    self._firsts.setdefault(int.from_bytes(payload), (span.source, ordered.acknowledged_at))

    def _draw_instants(self, races: int) -> Iterator[Instant]:
        for race in range(races):
            token_at = self._formation.scheduled_at(FIRST_RACE + race * RACE_TOKENS)
            yield token_at + self._chance.randrange(*ARRIVAL) - LINK.delay

    def _schedule(self, race: int) -> None:
        """One race, and what the busy sources have sent since the one before it, in equal periods."""
        world, began_at = self._cluster.world, self._began_at[race]
        since = self._began_at[race - 1] if race else self._formation.starts_at
        count = -(-(began_at - since) // BUSY_PERIOD)
        for place in range(1, count):
            world.at(since + place * (began_at - since) // count, self._send_others)
        world.at(began_at, lambda: self._start(race))

    def _send_others(self) -> None:
        for source in BUSY:
            self._cluster.publish(source, [_OTHER])

    def _start(self, race: int) -> None:
        """All sources send at once; the order of events within this instant is random."""
        for source in self._chance.sample(SOURCES, len(SOURCES)):
            self._cluster.publish(source, [race.to_bytes(4)])

    def _plan(self, seed: int) -> ClusterPlan:
        return ClusterPlan(
            topology=Topology(loops=(LoopTopology(number=0, tour=SITES, timing=TIMING),), resilience=1),
            formation=self._formation,
            reformers=(),
            sources=SOURCES,
            link_model=lambda _origin, _to: LINK,
            seed=seed,
            stream="unequal load",
        )


def unequal_races(seed: int, races: int) -> tuple[EntryPath]:
    """Run all races of one world."""
    return (UnequalRaces(races=races, seed=seed).run(),)


def run_unequal_worlds(seed: int, worlds: Sequence[int], *, jobs: int) -> Iterator[tuple[EntryPath, ...]]:
    """Run these numbers of races, each in a world of its own, in `jobs` processes."""
    return in_processes(unequal_races, seed, worlds, jobs=jobs)


def groups(path: EntryPath) -> tuple[EntryPath, EntryPath, EntryPath]:
    """The quiet sources, the busy ones, and all."""
    quiet, busy = path.firsts[: len(QUIET)], path.firsts[len(QUIET) :]
    return EntryPath("quiet sources", quiet), EntryPath("busy sources", busy), EntryPath("all sources", path.firsts)
