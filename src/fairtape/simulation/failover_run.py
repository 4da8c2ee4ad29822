"""A failover: no link faults, steady load, and then one or two members crash at once. How long does it take?

The promised times: a survivor detects the crash within the reformation delay of the first missing token. Then every
survivor installs a formation without the crashed members within two round trips (2 T_R) after the reformation server
has received the report. If the lease of a crashed member has not expired by then, the two round trips count from its
end plus the lease margin for clock errors. All other guarantees hold meanwhile: no message is lost, and there is one
order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from fairtape.simulation.cluster import ClusterPlan
from fairtape.simulation.cluster_run import ClusterRun, RunOutcome, checked
from fairtape.simulation.fault_schedule import FaultSchedule
from fairtape.simulation.world import EPOCH, Observer, Violation
from fairtape.wire.frames import NodeId

SOURCES: Final = (201, 202)
REFORMERS: Final = (101, 102)
SETTLING_MAX: Final = 30 * SECOND
JITTER: Final = 20  # the mean queueing delay of a link is its delay divided by this
QUEUEING_MAX: Final = 12  # times the mean: no datagram is queued for longer
AT_THE_LATEST: Final = " at the latest"  # added to the name of a duration, it names the promised one
PROMISES: Final = ("detect", "install")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Everything that a seed draws."""

    seed: int
    plan: ClusterPlan
    victims: int  # the count of members that crash: the token site at that instant, and those after it
    delay: Duration  # of the links
    at: Instant
    load_period: Duration

    @property
    def delay_max(self) -> Duration:
        """The longest time that a datagram takes on a link."""
        return self.delay + QUEUEING_MAX * (self.delay // JITTER)

    def describe(self) -> str:
        """One line for the output of `fairtape check`."""
        topology = self.plan.topology
        timing = topology.primary.timing
        return (
            f"{len(topology.primary.tour)} sites, K={topology.resilience}, {self.victims} crash, "
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
        link_model=lambda _origin, _to: link_faults,
        seed=seed,
        leader_lease=timing.lease_period,
        store_delay=retry // 10,
    )
    at = EPOCH + SECOND + chance.randrange(timing.token_period * len(sites))
    return Failure(seed=seed, plan=plan, victims=victims, delay=delay, at=at, load_period=timing.token_period // 2)


class FailoverRun(ClusterRun, Observer):
    """A failure, built and running."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(FaultSchedule(seed=failure.seed, plan=failure.plan, heals_at=failure.at))
        self.failure = failure
        self.stall: Duration = 0  # the longest time without a release at a survivor
        self._timing = failure.plan.topology.primary.timing
        self._crashed: tuple[NodeId, ...] = ()
        self._detected_at: Instant | None = None  # when the first survivor declared a failure
        self._awaited = 0  # the number of the formation without the crashed members
        self._released_at: dict[NodeId, Instant] = {}
        self._entered: dict[NodeId, Instant] = {}
        self._durations: list[tuple[str, Duration]] = []
        self.cluster.world.observers.append(self)

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        at = self.cluster.world.now
        if node not in self._crashed:
            self.stall = max(self.stall, at - self._released_at.get(node, at))
        self._released_at[node] = at

    def reported(self, node: NodeId, report: Report, now: Instant, /) -> None:  # noqa: ARG002
        if self._crashed and self._detected_at is None:
            self._detected_at = self.cluster.world.now

    def noticed(self, node: NodeId, text: str, now: Instant, /) -> None:  # noqa: ARG002
        """Record when a site enters the formation without the crashed members."""
        if self._awaited and text.startswith(f"formation {self._awaited} ") and node in self.cluster.sites:
            self._entered[node] = self.cluster.world.now

    def run(self) -> None:
        """Crash the members, check the times, restart them; `Violation` if a time was exceeded."""
        world, at = self.cluster.world, self.failure.at
        load_until = at + 3 * self._timing.lease_period
        for number, instant in enumerate(range(EPOCH + SECOND // 2, load_until, self.failure.load_period)):
            message = f"message {number}".encode()
            world.at(instant, partial(self.cluster.publish, SOURCES[number % len(SOURCES)], [message]))
        world.run(at)
        formation = self._formation()
        self._crash(formation)
        world.run(load_until)
        self._check_times(formation)
        for node in self._crashed:
            world.restart(node, self.cluster.new_incarnation(node))
        self._wait_until_settled(SETTLING_MAX)
        self.checkers.finish()
        self.all_delivered = True

    def _formation(self) -> Formation:
        leader = self.cluster.leader()
        assert leader is not None
        assert leader.primary.formation is not None
        return leader.primary.formation

    def _crash(self, formation: Formation) -> None:
        first = formation.current(self.cluster.world.now) + 1
        self._crashed = tuple(formation.holder(first + later) for later in range(self.failure.victims))
        self._awaited = formation.number + 1
        for node in self._crashed:
            self.cluster.world.crash(node)

    def _check_times(self, before: Formation) -> None:
        """Compare the times of detection and installation with the promised ones."""
        leader = self.cluster.leader()
        if leader is None:
            raise Violation("ReformedInTime", None, self.cluster.world.now, "no reformation server leads")
        decision = next((each for each in leader.primary.decisions if each.formation.number == self._awaited), None)
        if decision is None:
            raise Violation("ReformedInTime", None, self.cluster.world.now, "no formation without the crashed sites")
        missing = [member for member in decision.formation.members if member not in self._entered]
        if missing:
            raise Violation("ReformedInTime", missing[0], self.cluster.world.now, "a survivor never entered it")
        timing, failure = self._timing, self.failure
        # A server that receives nothing from a member for a whole lease detects the failure itself.
        detected_at = min(self._detected_at or decision.began_at, decision.began_at)
        detected_by = before.scheduled_at(before.current(failure.at) + 1) + timing.reform_delay
        leases_end_at = failure.at + failure.delay_max + timing.lease_period + lease_margin(timing)
        can_install_at = max(detected_at + failure.delay_max, leases_end_at)
        installed_at = max(self._entered.values())
        installed_by = can_install_at + 2 * timing.retry_period + 2 * failure.plan.store_delay
        self._durations = [
            ("detect", detected_at - failure.at),
            ("detect" + AT_THE_LATEST, detected_by - failure.at),
            ("install", installed_at - detected_at),
            ("install" + AT_THE_LATEST, installed_by - detected_at),
            ("install after the lease", max(installed_at - can_install_at, 0)),
            ("go on", self.stall),
        ]
        if detected_at > detected_by:
            late = (detected_at - detected_by) / 1e6
            raise Violation("DetectedInTime", self._crashed[0], detected_at, f"detected {late:.3f} ms after Δ_R")
        if installed_at > installed_by:
            late = (installed_at - installed_by) / 1e6
            raise Violation("ReformedInTime", self._crashed[0], installed_at, f"installed {late:.3f} ms too late")

    def outcome(self, broken: Violation | None) -> RunOutcome:
        return replace(super().outcome(broken), durations=tuple(self._durations))


def run_failover(seed: int) -> RunOutcome:
    """Draw, build and run one failure. Never raises: an exception is an outcome."""
    return checked(seed, lambda: FailoverRun(draw(seed)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromisedTime:
    """How long something took in many failures, compared with the promised time of each."""

    name: str
    least: Duration
    median: Duration
    p99: Duration
    longest: Duration
    shares: tuple[float, ...]  # measured / promised, ascending, one per world
    worlds: int  # including those that ended before it was measured

    @property
    def within(self) -> float:
        """The share of worlds in which the promise was kept."""
        return sum(share <= 1.0 for share in self.shares) / self.worlds

    @classmethod
    def of(cls, name: str, outcomes: Sequence[RunOutcome]) -> "PromisedTime | None":
        """Over all these worlds; None if none of them measured it."""
        durations = [dict(outcome.durations) for outcome in outcomes]
        pairs = [(each[name], each[name + AT_THE_LATEST]) for each in durations if name in each]
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
