"""`fairtape demo --floor`: traders on four continents share one floor, and the arbiter's site is killed.

The production state machines run in simulated time, with the delays and losses between real cities. Every site runs a
replica of the floor; the token site reports the trades. Half-way the site that holds the token, and with it the
arbiter, is killed. Trading resumes when the ring is reformed without it, and no committed trade is lost.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from fairtape.core.cities import City, city, faults_between
from fairtape.core.effects import Ordered, Release
from fairtape.core.instants import SECOND, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import PROFILES
from fairtape.exchange.floor import Floor
from fairtape.exchange.orders import CASH, Funding, NewOrder, OpenMarket, Side, encode
from fairtape.exchange.outputs import TentativeFill
from fairtape.exchange.rules import Continuous
from fairtape.market.prices import ONE
from fairtape.ring.membership.topology import Excess, LoopTopology, Topology
from fairtape.simulation.cluster import Cluster, ClusterPlan
from fairtape.simulation.cluster_checkers import ClusterCheckers
from fairtape.simulation.cluster_run import why_unsettled
from fairtape.simulation.floor_run import FloorReplicas
from fairtape.simulation.world import EPOCH, Observer
from fairtape.wire.frames import NodeId

CITIES: Final = tuple(city(name) for name in ("New York", "São Paulo", "London", "Tokyo", "Frankfurt"))
CONTINENTS: Final = ("North America", "South America", "Europe", "Asia")  # of the traders: the first four cities
SITES: Final = tuple(range(1, len(CITIES) + 1))
FIRST_GATEWAY, FIRST_ARBITER, OPERATOR, FIRST_REFORMER = 201, 301, 299, 101
COMMIT_PASSES: Final = 2
RESILIENCE: Final = 1
LOSS: Final = 0.01
SYMBOL: Final = "GLOBAL"
TICK: Final = ONE // 100
MIDDLE: Final = 100 * ONE
FUNDS: Final = 1_000_000 * ONE
ORDER_PERIOD: Final = SECOND // 10  # between two orders of one continent
OPENS_AT, KILLED_AT, BACK_AT, CLOSES_AT = (second * SECOND for second in (3, 10, 20, 26))
SETTLED_BY: Final = 90 * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorSummary:
    """The result of the session."""

    trades: int
    committed: int
    void: int
    reports: int
    accusations: int
    same: bool  # at all replicas
    conserved: bool
    longest_pause: int  # ns between two trades, at most
    shares: dict[str, int]  # per continent: trades in which its traders took part


class TradingFloor(Observer):
    """One simulated session."""

    def __init__(self, seed: int = 1) -> None:
        self._random = Random(f"trading floor {seed}")  # noqa: S311 - a simulation
        self._numbers: Counter[NodeId] = Counter()
        self._lines: list[str] = []
        self._last_at: Instant = 0
        self._longest_pause = 0
        self.cluster = Cluster(self._plan(seed))
        self.checkers = ClusterCheckers(self.cluster)
        arbiters = {site: FIRST_ARBITER + index for index, site in enumerate(SITES)}
        self.floors = FloorReplicas(self.cluster, self._floor, commit_passes=COMMIT_PASSES, arbiters=arbiters)
        self.cluster.world.observers += [self.checkers, self.floors, self]
        self.cluster.start()
        self._schedule()

    def run(self) -> Iterator[str]:
        """Run the whole session, and yield its events as lines of text."""
        world = self.cluster.world
        yield f"five sites, and traders in {', '.join(each.name for each in CITIES[: len(CONTINENTS)])}"
        while world.now < EPOCH + CLOSES_AT or (why_unsettled(self.cluster) and world.now < EPOCH + SETTLED_BY):
            world.run(world.now + SECOND // 2)
            yield from self._lines
            self._lines.clear()
        self.checkers.finish()
        self.floors.finish()

    def summary(self) -> FloorSummary:
        """Compare the final states of all replicas."""
        floors = [replica.floor for replica in self.floors.replicas.values()]
        states = {(floor.trades_hash, floor.ledger.state_hash) for floor in floors}
        tentative = sum(1 for _ in floors[0].tentative())
        return FloorSummary(
            trades=floors[0].trade_count,
            committed=floors[0].trade_count - tentative,
            void=sum(len(void) for void in self.floors.voided.values()),
            reports=self.floors.counts["reports"],
            accusations=self.floors.counts["accusations"],
            same=len(states) == 1 and len(floors) == len(SITES),
            conserved=not any(floor.ledger.imbalance() for floor in floors),
            longest_pause=self._longest_pause,
            shares=self._shares(),
        )

    def _shares(self) -> dict[str, int]:
        floor, traded = self._floor(), Counter[str]()
        for entry in self.cluster.journals[self._watched].entries:
            if isinstance(entry, Ordered):
                for output in floor.apply(entry):
                    if isinstance(output, TentativeFill):
                        traded.update({output.trade.buyer, output.trade.seller})
        return {name: traded[f"t{index}"] for index, name in enumerate(CONTINENTS)}

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        """Measure the pauses between trades at one site that is not killed."""
        if node != self._watched or not self.floors.replicas[node].floor.report(ordered.token):
            return
        at = self.cluster.world.now
        self._longest_pause = max(self._longest_pause, at - self._last_at) if self._last_at else 0
        self._last_at = at

    def noticed(self, node: NodeId, text: str, now: Instant, /) -> None:  # noqa: ARG002
        """Report the decisions of the reformation servers."""
        if node < FIRST_GATEWAY and node >= FIRST_REFORMER:
            self._report(text)

    def _report(self, text: str) -> None:
        self._lines.append(f"{(self.cluster.world.now - EPOCH) / SECOND:7.3f} s  {text}")

    def _schedule(self) -> None:
        world, cluster = self.cluster.world, self.cluster
        self._watched = SITES[-1]
        world.at(EPOCH + OPENS_AT - SECOND, partial(cluster.publish, OPERATOR, [*self._opening()]))
        for index in range(len(CONTINENTS)):
            for at in range(OPENS_AT, CLOSES_AT - SECOND, ORDER_PERIOD):
                later = self._random.randrange(ORDER_PERIOD)
                world.at(EPOCH + at + later, partial(cluster.publish, FIRST_GATEWAY + index, [self._order(index)]))
        world.at(EPOCH + KILLED_AT, self._kill)

    def _kill(self) -> None:
        leader = self.cluster.leader()
        assert leader is not None
        formation = leader.primary.formation
        assert formation is not None
        token = formation.current(self.cluster.world.now) + 1
        victim = formation.holder(token if formation.holder(token) != self._watched else token + 1)
        self._report(f"the arbiter's site in {CITIES[victim - 1].name} is killed while the token is being passed to it")
        self.cluster.world.crash(victim)
        self.cluster.world.at(EPOCH + BACK_AT, partial(self._restart, victim))

    def _restart(self, site: NodeId) -> None:
        self._report(f"{CITIES[site - 1].name} restarts with its journal as its only state")
        self.cluster.world.restart(site, self.cluster.new_incarnation(site))

    def _opening(self) -> Iterator[bytes]:
        yield encode(OpenMarket(OPERATOR, self._next(OPERATOR), SYMBOL, Continuous(), TICK, ONE))
        for index in range(len(CONTINENTS)):
            for asset in (CASH, SYMBOL):
                yield encode(Funding(OPERATOR, self._next(OPERATOR), f"t{index}", asset, FUNDS))

    def _order(self, index: int) -> bytes:
        gateway, account = FIRST_GATEWAY + index, f"t{index}"
        number, side = self._next(gateway), self._random.choice(tuple(Side))
        price = MIDDLE + self._random.randint(-3, 3) * TICK
        quantity = self._random.randint(1, 9) * ONE
        return encode(NewOrder(gateway, number, account, f"{number}", SYMBOL, side, quantity, price))

    def _next(self, source: NodeId) -> int:
        self._numbers[source] += 1
        return self._numbers[source]

    def _floor(self) -> Floor:
        return Floor(commit_passes=COMMIT_PASSES, operators=(OPERATOR,))

    def _plan(self, seed: int) -> ClusterPlan:
        timing = PROFILES["wan"]
        gateways = range(FIRST_GATEWAY, FIRST_GATEWAY + len(CONTINENTS))
        arbiters = range(FIRST_ARBITER, FIRST_ARBITER + len(SITES))
        return ClusterPlan(
            topology=Topology(
                loops=(LoopTopology(number=0, tour=SITES, timing=timing),), resilience=RESILIENCE, excess=Excess.HALT
            ),
            reformers=(FIRST_REFORMER, FIRST_REFORMER + 1),
            sources=(*gateways, OPERATOR, *arbiters),
            link_model=_link_faults,
            seed=seed,
            leader_lease=timing.lease_period,
        )


def _link_faults(origin: NodeId, to: NodeId) -> LinkFaults:
    return faults_between(_city_of(origin), _city_of(to), loss=LOSS)


def _city_of(node: NodeId) -> City:
    """Gateways and arbiters are in the cities of their sites, reformation servers in the first cities."""
    if node == OPERATOR:
        return CITIES[0]
    first = max(base for base in (1, FIRST_REFORMER, FIRST_GATEWAY, FIRST_ARBITER) if base <= node)
    return CITIES[(node - first) % len(CITIES)]
