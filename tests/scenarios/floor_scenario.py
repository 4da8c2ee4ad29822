"""Floor scenarios: the faults of a cluster with a trading floor, and what happens to its trades.

The script is that of a cluster scenario, with one more command at its beginning:

    floor passes=1                             a trade commits after this many token passes

`load` then means orders: two gateways, in turns, each time a sell and a buy order that match. Every site runs a
replica. The log also has the trades that each replica made void, and what all replicas hold at the end.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from fairtape.core.effects import FormationChange
from fairtape.core.instants import SECOND, Instant
from fairtape.exchange.floor import Floor
from fairtape.exchange.orders import CASH, Funding, NewOrder, OpenMarket, Side, encode
from fairtape.exchange.outputs import Voided
from fairtape.exchange.rules import Continuous
from fairtape.market.prices import ONE
from fairtape.simulation.clocks import SimulatedClock
from fairtape.simulation.cluster import ClusterPlan
from fairtape.simulation.floor_run import FloorReplicas
from fairtape.simulation.world import EPOCH
from fairtape.wire.frames import NodeId
from scenarios.cluster_scenario import SOURCES, ClusterScenario, Script, parse
from scenarios.scenario_text import BadScenario

OPERATOR: Final = 299
FIRST_ARBITER: Final = 300
COMMAND: Final = "floor passes="
SYMBOL: Final = "XYZ"
PRICE: Final = 100 * ONE
FUNDS: Final = 1_000_000 * ONE


def play_floor(text: str) -> str:
    """The logs of a script, one for each of its seeds."""
    first, _, rest = text.partition("\n")
    while first.startswith("#"):
        first, _, rest = rest.partition("\n")
    if not first.startswith(COMMAND) or not first[len(COMMAND) :].strip().isdigit():
        raise BadScenario(f"{first!r}: expected {COMMAND}N, such as {COMMAND}1")
    script, passes = parse(rest), int(first[len(COMMAND) :])
    logs = []
    for seed in script.seeds:
        heading = f"seed {seed}\n" if len(script.seeds) > 1 else ""
        logs.append(heading + "".join(f"{line}\n" for line in FloorScenario(script, seed, passes).lines()))
    return "\n".join(logs)


class FloorScenario(ClusterScenario):
    """The cluster of one seed with a floor, running a script and writing its log."""

    def __init__(self, script: Script, seed: int, commit_passes: int) -> None:
        self._arbiters = {site: FIRST_ARBITER + site for site in script.sites}
        self._numbers: Counter[NodeId] = Counter()
        super().__init__(replace(script, load_period=0), seed)
        self.floors = _LoggedReplicas(
            self._cluster,
            lambda: Floor(commit_passes=commit_passes, operators=(OPERATOR,), arbiters=self._arbiters.values()),
            commit_passes=commit_passes,
            arbiters=self._arbiters,
        )
        self.floors.scenario = self
        self._cluster.world.observers.append(self.floors)
        self._trade(script)

    def add_void(self, node: NodeId, void: Voided) -> None:
        was = "committed" if void.committed else "tentative"
        self._add(node, f"trade {void.trade.trade_id} of token {void.trade.token}, which was {was}, is void")

    def _plan(self, seed: int, clocks: dict[NodeId, SimulatedClock]) -> ClusterPlan:  # type: ignore[override]
        return replace(super()._plan(seed, clocks), sources=(*SOURCES, OPERATOR, *self._arbiters.values()))

    def _trade(self, script: Script) -> None:
        world, cluster = self._cluster.world, self._cluster
        opening = [OpenMarket(OPERATOR, self._next(OPERATOR), SYMBOL, Continuous(), ONE // 100, ONE)]
        funding = [
            Funding(OPERATOR, self._next(OPERATOR), account, asset, FUNDS)
            for account in ("ann", "bob")
            for asset in (CASH, SYMBOL)
        ]
        world.at(
            EPOCH + SECOND // 8, partial(cluster.publish, OPERATOR, [*map(encode, opening), *map(encode, funding)])
        )
        for turn, at in enumerate(range(SECOND // 4, script.load_until, script.load_period)):
            gateway = SOURCES[turn % len(SOURCES)]
            orders = [encode(each) for each in (self._order(gateway, Side.SELL), self._order(gateway, Side.BUY))]
            world.at(EPOCH + at, partial(cluster.publish, gateway, orders))

    def _order(self, gateway: NodeId, side: Side) -> NewOrder:
        account, number = "bob" if side is Side.SELL else "ann", self._next(gateway)
        return NewOrder(gateway, number, account, f"{gateway}-{number}", SYMBOL, side, ONE, PRICE)

    def _next(self, source: NodeId) -> int:
        self._numbers[source] += 1
        return self._numbers[source]

    def lines(self) -> Iterator[str]:
        """Run the script; the lines of the log, and the final state of the replicas."""
        yield from super().lines()
        floors = {node: replica.floor for node, replica in self.floors.replicas.items()}
        self.floors.finish()
        traded = {floor.trade_count for floor in floors.values()}
        hashes = {floor.trades_hash for floor in floors.values()}
        ledgers = {floor.ledger.state_hash for floor in floors.values()}
        same = "the same" if len(hashes) == len(ledgers) == 1 else "not the same"
        lost = self.floors.counts["committed trades lost"]
        yield f"floor: {max(traded)} trades, {same} at all {len(floors)} replicas; committed trades lost: {lost}"


class _LoggedReplicas(FloorReplicas):
    """Replicas that log the trades that become void."""

    scenario: FloorScenario

    def formation_changed(self, node: NodeId, change: FormationChange, now: Instant, /) -> None:
        before = len(self.voided[node])
        super().formation_changed(node, change, now)
        for each in self.voided[node][before:]:
            self.scenario.add_void(node, each)
