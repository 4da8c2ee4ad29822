"""A failover: calm weather, steady load, and then one or two members die at once. How long does it take?

The numbers that are promised: the failure is noticed within the reformation delay of the first token that does not
come; then a formation without the dead is installed within two round trips, or, where a dead member's lease is not over
by then, within as much of the end of that lease. Meanwhile the rest goes on as always: nothing is lost, one order.
"""

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from fairtape.core.effects import Ordered, Release
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.core.weather import Weather
from fairtape.ring.charter import Charter, LoopCharter, lease_margin
from fairtape.ring.formation import Formation
from fairtape.simulation.facts import Violation
from fairtape.simulation.guardians import Guardians
from fairtape.simulation.ordeal import judged, why_unsettled
from fairtape.simulation.realm import EPOCH, Realm, RealmPlan
from fairtape.simulation.trial import Outcome
from fairtape.simulation.witness import Witness
from fairtape.wire.frames import NodeId

SOURCES: Final = (201, 202)
REFORMERS: Final = (101, 102)
SETTLING_MAX: Final = 30 * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Everything that a seed decides."""

    seed: int
    plan: RealmPlan
    victims: int  # how many die: the token site of that moment, and the ones that follow it
    delay: Duration  # of the links
    at: Instant
    load_period: Duration

    def describe(self) -> str:
        """One line for a person."""
        charter = self.plan.charter
        timing = charter.primary.timing
        return (
            f"{len(charter.primary.tour)} sites, K={charter.resilience}, {self.victims} die, "
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
    weather = Weather(delay=delay, jitter=delay // 20, loss=0.0)
    plan = RealmPlan(
        charter=Charter(
            loops=(LoopCharter(number=0, tour=sites, timing=timing),), resilience=max(victims, chance.randint(1, 2))
        ),
        reformers=REFORMERS,
        sources=SOURCES,
        sky=lambda _origin, _to: weather,
        seed=seed,
        leader_lease=timing.lease_period,
        store_delay=retry // 10,
    )
    at = EPOCH + SECOND + chance.randrange(timing.token_period * len(sites))
    return Failure(seed=seed, plan=plan, victims=victims, delay=delay, at=at, load_period=timing.token_period // 2)


class Failover(Witness):
    """A failure, built and running."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        self.realm = Realm(failure.plan)
        self.guardians = Guardians(self.realm)
        self.stall: Duration = 0  # the longest silence at a survivor
        self._timing = failure.plan.charter.primary.timing
        self._dead: tuple[NodeId, ...] = ()
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

    def noticed(self, node: NodeId, text: str, now: Instant, /) -> None:  # noqa: ARG002
        """Note when a site enters a formation."""
        if text.startswith("formation 2 ") and node in self.realm.sites:
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
        for node in self._dead:
            self.realm.world.crash(node)

    def _judge(self, before: Formation) -> None:
        """When it should have been noticed, and when the survivors should have gone on."""
        leader = self.realm.leader()
        assert leader is not None
        ruling = next((each for each in leader.primary.rulings if each.formation.number == before.number + 1), None)
        timing, died_at = self._timing, self.failure.at
        if ruling is None:
            raise Violation("ReformedInTime", None, self.realm.world.now, "there is no formation without the dead")
        due_at = before.scheduled_at(before.current(died_at) + 1)
        noticed_by = due_at + timing.reform_delay + self.failure.delay * 2
        leases_over = died_at + timing.lease_period + lease_margin(timing) + self.failure.delay * 2
        going_by = max(ruling.began_at, leases_over) + 2 * timing.retry_period + 2 * self.failure.plan.store_delay
        going_at = max(self._entered.values(), default=self.realm.world.now)
        self._figures = [
            ("detect", ruling.began_at - died_at),
            ("install", going_at - ruling.began_at),
            ("install after the lease", max(going_at - max(ruling.began_at, leases_over), 0)),
            ("go on", self.stall),
        ]
        if ruling.began_at > noticed_by:
            late = (ruling.began_at - noticed_by) / 1e6
            raise Violation("DetectedInTime", self._dead[0], ruling.began_at, f"noticed {late:.3f} ms after Δ_R")
        if going_at > going_by:
            late = (going_at - going_by) / 1e6
            raise Violation("ReformedInTime", self._dead[0], going_at, f"installed {late:.3f} ms too late")

    def outcome(self, broken: Violation | None) -> Outcome:
        """What became of it."""
        world = self.realm.world
        return Outcome(
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


def run_failover(seed: int) -> Outcome:
    """Draw, build and run one failure. Never raises: what goes wrong is the outcome."""
    return judged(seed, lambda: Failover(draw(seed)))
