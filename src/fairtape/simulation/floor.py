"""The floor in a simulated realm: a replica at every site, arbiters that report, and guarantees that are watched.

SameTrades: replicas at one place of the order have made the same trades and hold the same ledger · NoFalseEvidence:
honest arbiters are never accused · Conserved: cash and shares add up to the last unit · HeldByN: when a trade commits,
N + 1 sites hold it · TradeSurvives: a committed trade is in the order for ever while at most N members fail ·
SameAgain: the floor that a journal gives is the floor that was alive.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final

from fairtape.core.effects import FormationChange, Ordered, Release
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.exchange.floor import Floor, Replica
from fairtape.exchange.order_codec import decode, encode
from fairtape.exchange.orders import TradeReport
from fairtape.exchange.outputs import (
    Broken,
    Cancelled,
    Committed,
    Evidence,
    Execution,
    Funded,
    MarketChanged,
    Output,
    Printed,
    Rejected,
    Replaced,
    Sequenced,
    TentativeFill,
    Voided,
)
from fairtape.nodes.coordinator.server import Reformer
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import decode_formation
from fairtape.simulation.cluster import EPOCH, Cluster
from fairtape.simulation.cluster_run import ClusterRun, judged
from fairtape.simulation.fault_schedule import FaultSchedule, draw
from fairtape.simulation.faults import Crash, Fault, Restart
from fairtape.simulation.observer import Observer, Violation
from fairtape.simulation.ring_run import RunOutcome
from fairtape.simulation.traders import SimulatedGateway, SimulatedOperator
from fairtape.wire.frames import NodeId

Place = tuple[int, int]
"""Formation and token: names one place in every journal."""

_COUNTED: Final[Mapping[type[Output], str]] = {
    Sequenced: "orders taken",
    Replaced: "orders replaced",
    Cancelled: "orders cancelled",
    Rejected: "requests rejected",
    TentativeFill: "trades made",
    Committed: "trades committed",
    Printed: "trades printed",
    Voided: "trades void",
    Broken: "breaks",
    Evidence: "accusations",
    Funded: "fundings",
    MarketChanged: "market changes",
}


class FloorReplicas(Observer):
    """The replicas of one realm. `arbiters` names the source through which each site reports."""

    def __init__(
        self,
        realm: Cluster,
        new: Callable[[], Floor],
        *,
        commit_passes: int,
        arbiters: dict[NodeId, NodeId],
        liar: NodeId | None = None,
    ) -> None:
        self.replicas: dict[NodeId, Replica] = {}
        self.counts: Counter[str] = Counter()  # outputs of all replicas, by name
        self.evidence: dict[NodeId, list[Evidence]] = defaultdict(list)
        self.voided: dict[NodeId, list[Voided]] = defaultdict(list)
        self._realm = realm
        self._new = new
        self._commit_passes = commit_passes
        self._arbiters = arbiters
        self._liar = liar
        self._states: dict[Place, tuple[bytes, bytes]] = {}
        self._holders: dict[Place, set[NodeId]] = defaultdict(set)
        self._made: dict[bytes, int] = {}  # each trade that was ever made, and its formation
        self._committed: dict[bytes, Execution] = {}
        self._formations: dict[int, Formation] = {}
        self._silent: dict[int, tuple[NodeId, ...]] = {}  # who was missing when a formation was made
        self._lies: set[int] = set()  # tokens that were lied about

    # What is seen.

    def appended(self, node: NodeId, ordered: Ordered, now: Instant, /) -> None:  # noqa: ARG002
        """A site holds a token."""
        self._holders[ordered.formation, ordered.token].add(node)

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        """Apply it; if this site held the token, report what came of it."""
        replica = self._replica(node)
        place = ordered.formation, ordered.token
        self._heed(node, place, replica.deliver(ordered))
        self._compare(node, place, replica.floor)
        if self._holder(ordered) == node:
            self._report(node, replica.floor, ordered.token)

    def turned(self, node: NodeId, change: FormationChange, now: Instant, /) -> None:  # noqa: ARG002
        """A formation takes over; what it lost is void here."""
        self._formations[change.formation] = decode_formation(change.layout)
        self._heed(node, (change.formation, change.token), self._replica(node).turn(change))

    def befell(self, node: NodeId, what: str, now: Instant, /) -> None:  # noqa: ARG002
        """A site that comes back has a journal and nothing else."""
        if what == "restart" and node in self.replicas:
            self.replicas[node].rebuild()

    def noticed(self, node: NodeId, text: str, now: Instant, /) -> None:  # noqa: ARG002
        """A reformation server says something: perhaps that it has made a formation, and without whom."""
        server = self._realm.world.machine(node)
        if isinstance(server, Reformer):
            for ruling in server.primary.rulings:
                self._formations[ruling.formation.number] = ruling.formation
                self._silent[ruling.formation.number] = ruling.silent

    def _replica(self, node: NodeId) -> Replica:
        if node not in self.replicas:
            self.replicas[node] = Replica(self._new, partial(self._released, node))
        return self.replicas[node]

    def _released(self, node: NodeId) -> Iterator[Ordered]:
        shelf = self._realm.shelves[node]
        for entry in shelf.entries:
            if isinstance(entry, Ordered) and entry.token <= shelf.released_through:
                yield entry

    # Arbiters.

    def _holder(self, ordered: Ordered) -> NodeId | None:
        formation = self._formations.get(ordered.formation)
        return None if formation is None else formation.holder(ordered.token)

    def _report(self, node: NodeId, floor: Floor, token: int) -> None:
        payload, world = floor.report(token), self._realm.world
        if payload is None or node not in self._arbiters:
            return
        if node == self._liar:
            report = decode(payload)
            assert isinstance(report, TradeReport)
            payload = encode(report._replace(trade_count=report.trade_count + 1))
            self._lies.add(token)
        self.counts["reports"] += 1
        world.at(world.now, partial(self._realm.publish, self._arbiters[node], [payload]))

    # What is checked.

    def _heed(self, node: NodeId, place: Place, outputs: list[Output]) -> None:
        for output in outputs:
            self.counts[_COUNTED[type(output)]] += 1
            match output:
                case TentativeFill(trade):
                    self._made.setdefault(trade.to_bytes(), place[0])
                case Committed(trade):
                    self._check_held(node, trade)
                    self._committed[trade.to_bytes()] = trade
                case Voided():
                    self.voided[node].append(output)
                case Evidence():
                    self.evidence[node].append(output)
                    if output.token not in self._lies:
                        self._violated("NoFalseEvidence", node, str(output))

    def _compare(self, node: NodeId, place: Place, floor: Floor) -> None:
        """SameTrades and Conserved."""
        state = floor.trades_hash, floor.ledger.state_hash
        if self._states.setdefault(place, state) != state:
            self._violated("SameTrades", node, f"token {place[1]} of formation {place[0]} came out otherwise here")
        if imbalance := floor.ledger.imbalance():
            self._violated("Conserved", node, f"after token {place[1]} there is too much of {imbalance}")

    def _check_held(self, node: NodeId, trade: Execution) -> None:
        number = self._made[trade.to_bytes()]
        holders = len(self._holders[number, trade.token])
        needed = min(self._commit_passes + 1, self._members(number, max(self._formations)))
        if holders < needed:
            self._violated("HeldByN", node, f"trade {trade.trade_id} committed with {holders} holders of {needed}")

    def _members(self, since: int, until: int) -> int:
        """The members of the smallest formation between these two."""
        return min(len(each.members) for number, each in self._formations.items() if since <= number <= until)

    def finish(self) -> None:
        """After all is healed: SameAgain at every site, and TradeSurvives."""
        for node, replica in self.replicas.items():
            again = Replica(self._new, partial(self._released, node)).floor
            if self._awaits_word(replica.floor.token, again.token):
                continue
            if again.trades_hash != replica.floor.trades_hash:
                self._violated("SameAgain", node, "its journal gives other trades than it made")
            if again.ledger.snapshot() != replica.floor.ledger.snapshot():
                self._violated("SameAgain", node, "its journal gives another ledger than it kept")
        if self.replicas:
            self._check_survival(next(iter(self.replicas)))

    def _awaits_word(self, alive: int, in_journal: int) -> bool:
        """Whether a Break took back what is alive here, and has had no message yet: a site tells of it with its first.

        So nobody can have traded on it either.
        """
        return any(each.broken and in_journal < each.first_token <= alive for each in self._formations.values())

    def _check_survival(self, node: NodeId) -> None:
        final, report = self._new(), set()
        for ordered in self._released(node):
            report |= {out.trade.to_bytes() for out in final.apply(ordered) if isinstance(out, TentativeFill)}
        for name, trade in self._committed.items():
            if name not in report:
                self._check_excused(trade, self._made[name])

    def _check_excused(self, trade: Execution, made_in: int) -> None:
        """More than N members failed between the making of a committed trade and the Break that took it."""
        breaks = [
            number
            for number, each in self._formations.items()
            if number > made_in and each.broken and each.first_token <= trade.token
        ]
        for number in breaks:
            failed = {site for since, gone in self._silent.items() if made_in < since <= number for site in gone}
            if len(failed) > min(self._commit_passes, self._members(made_in, number) - 1):
                self.counts["committed trades lost"] += 1
                return
        self._violated("TradeSurvives", None, f"trade {trade.trade_id} of token {trade.token} is gone")

    def _violated(self, guarantee: str, node: NodeId | None, text: str) -> None:
        raise Violation(guarantee, node, self._realm.world.now, text)


# A floor's ordeal: an upheaval whose sources are gateways, an operator and the arbiters of its sites.
#
# Whatever befalls the realm, its replicas must agree after each token, and what they agree on must add up.

OPERATOR: Final = 299
FIRST_ARBITER: Final = 300  # of site 0; that of site 1 is 301
OPENING: Final = EPOCH + 100 * MILLISECOND
OPERATOR_PERIOD: Final = 150 * MILLISECOND
TURNS_MAX: Final = 2_000_000  # events of one world: there are twice as many nodes as in one without a floor


def arbiter_of(site: NodeId) -> NodeId:
    """The source through which a site reports what its tokens traded."""
    return FIRST_ARBITER + site


class FloorRun(ClusterRun):
    """An upheaval with a floor in it, built and running."""

    def __init__(self, upheaval: FaultSchedule, *, liar: NodeId | None = None) -> None:
        chance = Random(f"floor {upheaval.seed}")  # noqa: S311 - a simulation
        gateways, tour = upheaval.plan.sources, upheaval.plan.topology.primary.tour
        self.commit_passes = chance.randint(1, 3)
        self._arbiters = {site: arbiter_of(site) for site in tour}
        sources = (*gateways, OPERATOR, *self._arbiters.values())
        faults = (*upheaval.faults, *self._crashes(chance, upheaval))
        super().__init__(replace(upheaval, plan=replace(upheaval.plan, sources=sources), faults=faults, bursts=()))
        self.realm.world.turns_max = TURNS_MAX
        self.floors = FloorReplicas(
            self.realm, self.new_floor, commit_passes=self.commit_passes, arbiters=self._arbiters, liar=liar
        )
        self.realm.world.witnesses.append(self.floors)
        self._trade(upheaval, chance)

    def new_floor(self) -> Floor:
        """An empty floor with the rights that everybody agrees on."""
        return Floor(commit_passes=self.commit_passes, operators=(OPERATOR,), arbiters=self._arbiters.values())

    def _crashes(self, chance: Random, upheaval: FaultSchedule) -> list[Fault]:
        """Operators and arbiters fail, too."""
        faults: list[Fault] = []
        for node in (OPERATOR, *self._arbiters.values()):
            if chance.random() < 0.15:
                at = EPOCH + chance.randrange(SECOND // 2, upheaval.heals_at - EPOCH)
                faults += [Crash(at, node), Restart(at + chance.randrange(SECOND), node)]
        return faults

    def _trade(self, upheaval: FaultSchedule, chance: Random) -> None:
        world, realm = self.realm.world, self.realm
        gateways = {node: SimulatedGateway(node, chance) for node in upheaval.plan.sources}
        operator = SimulatedOperator(OPERATOR, chance)
        world.at(OPENING, partial(realm.publish, OPERATOR, operator.opening()))
        for at, node, count in sorted(upheaval.bursts):
            world.at(at, partial(realm.publish, node, gateways[node].messages(count)))
        for at in range(OPENING + SECOND // 2, upheaval.heals_at, OPERATOR_PERIOD):
            world.at(at, partial(realm.publish, OPERATOR, operator.messages()))

    def run(self) -> None:
        """Both phases, and the floor's own judgment."""
        super().run()
        self.floors.finish()

    def outcome(self, broken: Violation | None) -> RunOutcome:
        """What became of it; what the floors did is counted under its own names."""
        counted = tuple(sorted(self.floors.counts.items()))
        return replace(super().outcome(broken), counts=counted)


def run_floor(seed: int) -> RunOutcome:
    """Draw, build and run one realm with a floor. Never raises: what goes wrong is the outcome."""
    return judged(seed, lambda: FloorRun(draw(seed)))
