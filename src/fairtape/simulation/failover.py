"""A failover: calm weather, steady load, and then one or two members die at once. How long does it take?

The numbers that are promised: a survivor notices within the reformation delay of the first token that does not come;
then a formation without the dead is installed at every survivor within two round trips (2 T_R) of the reformation
server's hearing of it, or, where a dead member's lease is not over by then, within as much of the end of that lease and
what clocks may be wrong by. Meanwhile the rest goes on as always: nothing is lost, one order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from fairtape.core.effects import Ordered, Release, Report
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.percentiles import Rank, percentile
from fairtape.core.timing import Timing
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.topology import LoopTopology, Topology, lease_margin
from fairtape.simulation.cluster import EPOCH, Cluster, ClusterPlan
from fairtape.simulation.cluster_checkers import ClusterCheckers
from fairtape.simulation.cluster_run import judged, why_unsettled
from fairtape.simulation.observer import Observer, Violation
from fairtape.simulation.ring_run import RunOutcome
from fairtape.wire.frames import NodeId

SOURCES: Final = (201, 202)
REFORMERS: Final = (101, 102)
SETTLING_MAX: Final = 30 * SECOND
JITTER: Final = 20  # the mean queueing of a link is this part of its delay
QUEUEING_MAX: Final = 12  # means: weather queues no datagram for longer
AT_THE_LATEST: Final = " at the latest"  # names the promise beside what was measured
PROMISES: Final = ("detect", "install")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Everything that a seed decides."""

    seed: int
    plan: ClusterPlan
    victims: int  # how many die: the token site of that moment, and the ones that follow it
    delay: Duration  # of the links
    at: Instant
    load_period: Duration

    @property
    def delay_max(self) -> Duration:
        """The longest that a datagram is under way."""
        return self.delay + QUEUEING_MAX * (self.delay // JITTER)

    def describe(self) -> str:
        """One line for a person."""
        topology = self.plan.topology
        timing = topology.primary.timing
        return (
            f"{len(topology.primary.tour)} sites, K={topology.resilience}, {self.victims} die, "
            f"T_R={timing.retry_period / 1e6:g} ms, n={timing.retries_max}, token {timing.token_period / 1e6:g} ms"
        )


def draw(seed: int) -> Failure:
    """The failure of a seed."""
    chance = Random(f"failover {seed}")  # noqa: S311 - a simulation
    retry = chance.choice((2, 10, 40)) * MILLISECOND
    timing = Timing(
        retry_period=retry,
        retries_max=chance.randint(8, 30),
        token_period=chance.choice((retry // 2, retry)),
        commit_delay=3 * retry,
        merged=chance.random() < 0.8,
        clock_error_max=retry // 4,
    )
    victims = chance.choice((1, 1, 1, 2))
    sites = tuple(range(1, chance.randint(3, 7) + 1))
    delay = retry // chance.choice((3, 5, 10))
    link_faults = LinkFaults(delay=delay, jitter=delay // JITTER, loss=0.0)
    plan = ClusterPlan(
        topology=Topology(
            loops=(LoopTopology(number=0, tour=sites, timing=timing),), resilience=max(victims, chance.randint(1, 2))
        ),
        reformers=REFORMERS,
        sources=SOURCES,
        sky=lambda _origin, _to: link_faults,
        seed=seed,
        leader_lease=timing.lease_period,
        store_delay=retry // 10,
    )
    at = EPOCH + SECOND + chance.randrange(timing.token_period * len(sites))
    return Failure(seed=seed, plan=plan, victims=victims, delay=delay, at=at, load_period=timing.token_period // 2)


class Failover(Observer):
    """A failure, built and running."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        self.realm = Cluster(failure.plan)
        self.guardians = ClusterCheckers(self.realm)
        self.stall: Duration = 0  # the longest silence at a survivor
        self._timing = failure.plan.topology.primary.timing
        self._dead: tuple[NodeId, ...] = ()
        self._detected_at: Instant | None = None  # when the first survivor declared a failure
        self._awaited = 0  # the number of the formation without the dead
        self._released_at: dict[NodeId, Instant] = {}
        self._entered: dict[NodeId, Instant] = {}
        self._figures: list[tuple[str, Duration]] = []
        self.realm.world.witnesses += [self.guardians, self]
        self.realm.settle()

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        """Measure the silence between two releases."""
        at = self.realm.world.now
        if node not in self._dead:
            self.stall = max(self.stall, at - self._released_at.get(node, at))
        self._released_at[node] = at

    def reported(self, node: NodeId, report: Report, now: Instant, /) -> None:  # noqa: ARG002
        """Note who was the first to miss the dead."""
        if self._dead and self._detected_at is None:
            self._detected_at = self.realm.world.now

    def noticed(self, node: NodeId, text: str, now: Instant, /) -> None:  # noqa: ARG002
        """Note when a site enters the formation without the dead."""
        if self._awaited and text.startswith(f"formation {self._awaited} ") and node in self.realm.sites:
            self._entered[node] = self.realm.world.now

    def run(self) -> None:
        """Die, be replaced, come back; `Violation` where it took longer than was promised."""
        world, at = self.realm.world, self.failure.at
        load_until = at + 3 * self._timing.lease_period
        for number, instant in enumerate(range(EPOCH + SECOND // 2, load_until, self.failure.load_period)):
            message = f"message {number}".encode()
            world.at(instant, partial(self.realm.publish, SOURCES[number % len(SOURCES)], [message]))
        world.run(at)
        formation = self._formation()
        self._kill(formation)
        world.run(load_until)
        self._judge(formation)
        for node in self._dead:
            world.restart(node, self.realm.reborn(node))
        until = world.now + SETTLING_MAX
        while (unsettled := why_unsettled(self.realm)) is not None:
            if world.now > until:
                raise Violation("HealsAtAll", None, world.now, unsettled)
            world.run(world.now + SECOND // 4)
        self.guardians.finish()

    def _formation(self) -> Formation:
        leader = self.realm.leader()
        assert leader is not None
        assert leader.primary.formation is not None
        return leader.primary.formation

    def _kill(self, formation: Formation) -> None:
        first = formation.current(self.realm.world.now) + 1
        self._dead = tuple(formation.holder(first + later) for later in range(self.failure.victims))
        self._awaited = formation.number + 1
        for node in self._dead:
            self.realm.world.crash(node)

    def _judge(self, before: Formation) -> None:
        """When it should have been noticed, and when the survivors should have gone on."""
        leader = self.realm.leader()
        assert leader is not None
        ruling = next((each for each in leader.primary.rulings if each.formation.number == self._awaited), None)
        if ruling is None:
            raise Violation("ReformedInTime", None, self.realm.world.now, "there is no formation without the dead")
        missing = [member for member in ruling.formation.members if member not in self._entered]
        if missing:
            raise Violation("ReformedInTime", missing[0], self.realm.world.now, "a survivor never entered it")
        timing, failure = self._timing, self.failure
        # A server that misses a member's word for a whole lease notices by itself, though no member may have.
        detected_at = min(self._detected_at or ruling.began_at, ruling.began_at)
        detected_by = before.scheduled_at(before.current(failure.at) + 1) + timing.reform_delay
        leases_over = failure.at + failure.delay_max + timing.lease_period + lease_margin(timing)
        from_then_on = max(detected_at + failure.delay_max, leases_over)
        going_at = max(self._entered.values())
        going_by = from_then_on + 2 * timing.retry_period + 2 * failure.plan.store_delay
        self._figures = [
            ("detect", detected_at - failure.at),
            ("detect" + AT_THE_LATEST, detected_by - failure.at),
            ("install", going_at - detected_at),
            ("install" + AT_THE_LATEST, going_by - detected_at),
            ("install after the lease", max(going_at - from_then_on, 0)),
            ("go on", self.stall),
        ]
        if detected_at > detected_by:
            late = (detected_at - detected_by) / 1e6
            raise Violation("DetectedInTime", self._dead[0], detected_at, f"noticed {late:.3f} ms after Δ_R")
        if going_at > going_by:
            late = (going_at - going_by) / 1e6
            raise Violation("ReformedInTime", self._dead[0], going_at, f"installed {late:.3f} ms too late")

    def outcome(self, broken: Violation | None) -> RunOutcome:
        """What became of it."""
        world = self.realm.world
        return RunOutcome(
            seed=self.failure.seed,
            guarantee=broken.guarantee if broken else None,
            node=broken.node if broken else None,
            text=f"{(broken.at - EPOCH) / 1e9:.6f} s: {broken}" if broken else "",
            lively=broken is None,
            reforming=sum(each.number > 1 and each.first_sequence > 0 for each in self.guardians.formations()),
            deliveries=world.deliveries,
            messages=sum(map(len, self.realm.published.values())),
            late=self.guardians.late,
            simulated=world.now - EPOCH,
            digest=world.digest,
            figures=tuple(self._figures),
        )


def run_failover(seed: int) -> RunOutcome:
    """Draw, build and run one failure. Never raises: what goes wrong is the outcome."""
    return judged(seed, lambda: Failover(draw(seed)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How long something took in many failures, beside what was promised in each."""

    name: str
    least: Duration
    median: Duration
    p99: Duration
    longest: Duration
    shares: tuple[float, ...]  # of the time that was promised, what it took: in rising order, one of each world
    worlds: int  # of which some may have come to an end before it was measured

    @property
    def within(self) -> float:
        """The share of worlds in which the promise was kept."""
        return sum(share <= 1.0 for share in self.shares) / self.worlds

    @classmethod
    def of(cls, name: str, outcomes: Sequence[RunOutcome]) -> "Kept | None":
        """Over all these worlds; None where none of them came so far."""
        figures = [dict(outcome.figures) for outcome in outcomes]
        pairs = [(each[name], each[name + AT_THE_LATEST]) for each in figures if name in each]
        if not pairs:
            return None
        took = [measured for measured, _ in pairs]
        return cls(
            name=name,
            least=min(took),
            median=percentile(took, 0.5, 0, rank=Rank.LOWER),
            p99=percentile(took, 0.99, 0, rank=Rank.HIGHER),
            longest=max(took),
            shares=tuple(sorted(measured / promised for measured, promised in pairs)),
            worlds=len(outcomes),
        )
