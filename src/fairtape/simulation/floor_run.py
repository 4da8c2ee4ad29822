"""A trading floor in a simulated cluster: a replica at every site, arbiters that report, and the floor's guarantees.

SameTrades: replicas at the same position of the order have the same trades and the same ledger · NoFalseEvidence:
correct arbiters are never accused · Conserved: cash and shares add up exactly · HeldByN: when a trade commits, N + 1
sites hold it · TradeSurvives: a committed trade stays in the order while at most N members fail · SameAgain: a floor
rebuilt from a journal equals the floor that ran.

A floor run is a cluster run whose sources are gateways, an operator, and one arbiter per site. Gateways send random
orders under every trading rule. They overspend an account through several gateways at once, cancel orders that are
gone, reuse client ids, and send duplicates and bytes that cannot be decoded. None of it may make two replicas differ or
create cash or shares.
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
from fairtape.exchange.orders import (
    CASH,
    Action,
    Cancel,
    Control,
    Funding,
    NewOrder,
    OpenMarket,
    OrderType,
    Pulse,
    Replace,
    SelfTrade,
    Side,
    TimeInForce,
    TradeReport,
    decode,
    encode,
)
from fairtape.exchange.outputs import (
    Cancelled,
    Committed,
    Evidence,
    Execution,
    FloorOutput,
    Funded,
    MarketChanged,
    Printed,
    Rejected,
    Replaced,
    SequenceBroken,
    Sequenced,
    TentativeFill,
    Voided,
)
from fairtape.exchange.rules import (
    BatchAuction,
    CallAuction,
    Continuous,
    DutchClock,
    Pricing,
    Rounding,
    Rule,
    SecondPrice,
)
from fairtape.market.prices import ONE, Price
from fairtape.nodes.coordinator.server import Reformer
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import decode_formation
from fairtape.simulation.cluster import Cluster
from fairtape.simulation.cluster_run import ClusterRun, RunOutcome, checked
from fairtape.simulation.fault_schedule import FaultSchedule, draw
from fairtape.simulation.faults import Crash, Fault, Restart
from fairtape.simulation.world import EPOCH, Observer, Violation
from fairtape.wire.frames import NodeId

Place = tuple[int, int]
"""Formation and token: a position in the order, the same in every journal."""

OPERATOR: Final = 299
FIRST_ARBITER: Final = 300  # of site 0; that of site 1 is 301
OPENING: Final = EPOCH + 100 * MILLISECOND
OPERATOR_PERIOD: Final = 150 * MILLISECOND
TURNS_MAX: Final = 2_000_000  # events of one world: twice as many nodes as without a floor

_COUNTED: Final[Mapping[type[FloorOutput], str]] = {
    Sequenced: "orders taken",
    Replaced: "orders replaced",
    Cancelled: "orders cancelled",
    Rejected: "requests rejected",
    TentativeFill: "trades made",
    Committed: "trades committed",
    Printed: "trades printed",
    Voided: "trades void",
    SequenceBroken: "breaks",
    Evidence: "accusations",
    Funded: "fundings",
    MarketChanged: "market changes",
}


class FloorReplicas(Observer):
    """The replicas of one cluster. `arbiters` maps each site to the source through which it reports."""

    def __init__(
        self,
        cluster: Cluster,
        new: Callable[[], Floor],
        *,
        commit_passes: int,
        arbiters: dict[NodeId, NodeId],
        faulty: NodeId | None = None,  # the site whose arbiter reports wrong trade counts
    ) -> None:
        self.replicas: dict[NodeId, Replica] = {}
        self.counts: Counter[str] = Counter()  # outputs of all replicas, by name
        self.evidence: dict[NodeId, list[Evidence]] = defaultdict(list)
        self.voided: dict[NodeId, list[Voided]] = defaultdict(list)
        self._cluster = cluster
        self._new = new
        self._commit_passes = commit_passes
        self._arbiters = arbiters
        self._faulty = faulty
        self._states: dict[Place, tuple[bytes, bytes]] = {}
        self._holders: dict[Place, set[NodeId]] = defaultdict(set)
        self._made: dict[bytes, int] = {}  # the formation of each trade that was ever made
        self._committed: dict[bytes, Execution] = {}
        self._formations: dict[int, Formation] = {}
        self._silent: dict[int, tuple[NodeId, ...]] = {}  # the members that a formation was made without
        self._false_reports: set[int] = set()  # tokens

    def appended(self, node: NodeId, ordered: Ordered, now: Instant, /) -> None:  # noqa: ARG002
        self._holders[ordered.formation, ordered.token].add(node)

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        """Apply the token; if this site held it, report the result."""
        replica = self._replica(node)
        place = ordered.formation, ordered.token
        self._check_outputs(node, place, replica.deliver(ordered))
        self._compare(node, place, replica.floor)
        if self._holder(ordered) == node:
            self._report(node, replica.floor, ordered.token)

    def formation_changed(self, node: NodeId, change: FormationChange, now: Instant, /) -> None:  # noqa: ARG002
        """Apply the formation; trades of lost tokens become void."""
        self._formations[change.formation] = decode_formation(change.layout)
        self._check_outputs(node, (change.formation, change.token), self._replica(node).on_formation(change))

    def fault_event(self, node: NodeId, what: str, now: Instant, /) -> None:  # noqa: ARG002
        """A restarted site has nothing but its journal."""
        if what == "restart" and node in self.replicas:
            self.replicas[node].rebuild()

    def noticed(self, node: NodeId, text: str, now: Instant, /) -> None:  # noqa: ARG002
        """A notice of a reformation server may mean that it has made a formation."""
        server = self._cluster.world.machine(node)
        if isinstance(server, Reformer):
            for decision in server.primary.decisions:
                self._formations[decision.formation.number] = decision.formation
                self._silent[decision.formation.number] = decision.silent

    def _replica(self, node: NodeId) -> Replica:
        if node not in self.replicas:
            self.replicas[node] = Replica(self._new, partial(self._released, node))
        return self.replicas[node]

    def _released(self, node: NodeId) -> Iterator[Ordered]:
        journal = self._cluster.journals[node]
        for entry in journal.entries:
            if isinstance(entry, Ordered) and entry.token <= journal.released_through:
                yield entry

    def _holder(self, ordered: Ordered) -> NodeId | None:
        formation = self._formations.get(ordered.formation)
        return None if formation is None else formation.holder(ordered.token)

    def _report(self, node: NodeId, floor: Floor, token: int) -> None:
        payload, world = floor.report(token), self._cluster.world
        if payload is None or node not in self._arbiters:
            return
        if node == self._faulty:
            report = decode(payload)
            assert isinstance(report, TradeReport)
            payload = encode(report._replace(trade_count=report.trade_count + 1))
            self._false_reports.add(token)
        self.counts["reports"] += 1
        world.at(world.now, partial(self._cluster.publish, self._arbiters[node], [payload]))

    def _check_outputs(self, node: NodeId, place: Place, outputs: list[FloorOutput]) -> None:
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
                    if output.token not in self._false_reports:
                        self._violated("NoFalseEvidence", node, str(output))

    def _compare(self, node: NodeId, place: Place, floor: Floor) -> None:
        """SameTrades and Conserved."""
        state = floor.trades_hash, floor.ledger.state_hash
        if self._states.setdefault(place, state) != state:
            self._violated("SameTrades", node, f"token {place[1]} of formation {place[0]} gave another result here")
        if imbalance := floor.ledger.imbalance():
            self._violated("Conserved", node, f"after token {place[1]} the ledger is out of balance: {imbalance}")

    def _check_held(self, node: NodeId, trade: Execution) -> None:
        number = self._made[trade.to_bytes()]
        holders = len(self._holders[number, trade.token])
        needed = min(self._commit_passes + 1, self._members(number, max(self._formations)))
        if holders < needed:
            self._violated("HeldByN", node, f"trade {trade.trade_id} committed with {holders} holders of {needed}")

    def _members(self, since: int, until: int) -> int:
        """The size of the smallest formation between these two."""
        return min(len(each.members) for number, each in self._formations.items() if since <= number <= until)

    def finish(self) -> None:
        """After healing: SameAgain at every site, and TradeSurvives."""
        for node, replica in self.replicas.items():
            again = Replica(self._new, partial(self._released, node)).floor
            if self._break_pending(replica.floor.token, again.token):
                continue
            if again.trades_hash != replica.floor.trades_hash:
                self._violated("SameAgain", node, "its journal gives other trades than its floor had")
            if again.ledger.snapshot() != replica.floor.ledger.snapshot():
                self._violated("SameAgain", node, "its journal gives another ledger than its floor had")
        if self.replicas:
            self._check_survival(next(iter(self.replicas)))

    def _break_pending(self, applied: int, in_journal: int) -> bool:
        """Whether a Break removed tokens that the floor has applied, but has no message yet.

        A site announces a Break with its first message, so no trade can depend on the removed tokens.
        """
        return any(each.broken and in_journal < each.first_token <= applied for each in self._formations.values())

    def _check_survival(self, node: NodeId) -> None:
        final, made = self._new(), set()
        for ordered in self._released(node):
            made |= {out.trade.to_bytes() for out in final.apply(ordered) if isinstance(out, TentativeFill)}
        for name, trade in self._committed.items():
            if name not in made:
                self._check_excused(trade, self._made[name])

    def _check_excused(self, trade: Execution, made_in: int) -> None:
        """A committed trade may be lost only if more than N members failed between the trade and the Break."""
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
        self._violated("TradeSurvives", None, f"trade {trade.trade_id} of token {trade.token} is lost")

    def _violated(self, guarantee: str, node: NodeId | None, text: str) -> None:
        raise Violation(guarantee, node, self._cluster.world.now, text)


def arbiter_of(site: NodeId) -> NodeId:
    """The source through which a site reports the trades of its tokens."""
    return FIRST_ARBITER + site


class FloorRun(ClusterRun):
    """One fault schedule with a floor, built and running."""

    def __init__(self, schedule: FaultSchedule, *, faulty: NodeId | None = None) -> None:
        chance = Random(f"floor {schedule.seed}")  # noqa: S311 - a simulation
        gateways, tour = schedule.plan.sources, schedule.plan.topology.primary.tour
        self.commit_passes = chance.randint(1, 3)
        self._arbiters = {site: arbiter_of(site) for site in tour}
        sources = (*gateways, OPERATOR, *self._arbiters.values())
        faults = (*schedule.faults, *self._crashes(chance, schedule))
        super().__init__(replace(schedule, plan=replace(schedule.plan, sources=sources), faults=faults, bursts=()))
        self.cluster.world.turns_max = TURNS_MAX
        self.floors = FloorReplicas(
            self.cluster, self.new_floor, commit_passes=self.commit_passes, arbiters=self._arbiters, faulty=faulty
        )
        self.cluster.world.observers.append(self.floors)
        self._trade(schedule, chance)

    def new_floor(self) -> Floor:
        """An empty floor with the operators and arbiters that all replicas agree on."""
        return Floor(commit_passes=self.commit_passes, operators=(OPERATOR,), arbiters=self._arbiters.values())

    def _crashes(self, chance: Random, schedule: FaultSchedule) -> list[Fault]:
        """Crashes of the operator and of arbiters."""
        faults: list[Fault] = []
        for node in (OPERATOR, *self._arbiters.values()):
            if chance.random() < 0.15:
                at = EPOCH + chance.randrange(SECOND // 2, schedule.heals_at - EPOCH)
                faults += [Crash(at, node), Restart(at + chance.randrange(SECOND), node)]
        return faults

    def _trade(self, schedule: FaultSchedule, chance: Random) -> None:
        world, cluster = self.cluster.world, self.cluster
        gateways = {node: SimulatedGateway(node, chance) for node in schedule.plan.sources}
        operator = SimulatedOperator(OPERATOR, chance)
        world.at(OPENING, partial(cluster.publish, OPERATOR, operator.opening()))
        for at, node, count, _ in sorted(schedule.bursts):
            world.at(at, partial(cluster.publish, node, gateways[node].messages(count)))
        for at in range(OPENING + SECOND // 2, schedule.heals_at, OPERATOR_PERIOD):
            world.at(at, partial(cluster.publish, OPERATOR, operator.messages()))

    def run(self) -> None:
        """Both phases, then the final checks of the floor."""
        super().run()
        self.floors.finish()

    def outcome(self, broken: Violation | None) -> RunOutcome:
        counted = tuple(sorted(self.floors.counts.items()))
        return replace(super().outcome(broken), counts=counted)


def run_floor(seed: int) -> RunOutcome:
    """Draw, build and run one cluster with a floor. Never raises: an exception is an outcome."""
    return checked(seed, lambda: FloorRun(draw(seed)))


# The load.

ACCOUNTS: Final = ("ann", "bob", "cyd", "dan", "eve")
TICK: Final = ONE // 100
MIDDLE: Final = 100 * ONE
PRICE_MAX: Final = 110 * ONE
CASH_EACH: Final = 20_000 * ONE
SHARES_EACH: Final = 400 * ONE
MEMORY: Final = 40  # past client ids and messages that a gateway draws from

RULES: Final[dict[str, Rule]] = {
    "MAKER": Continuous(),
    "TAKER": Continuous(pricing=Pricing.TAKER),
    "MIDDLE": Continuous(pricing=Pricing.MIDPOINT, rounding=Rounding.EVEN),
    "CALL": CallAuction(reference=MIDDLE),
    "BATCH": BatchAuction(period=100 * MILLISECOND),
    "SEALED": SecondPrice(),
    "DUTCH": DutchClock(start=MIDDLE + 5 * TICK, decrement=TICK, step_period=50 * MILLISECOND, rewind=2 * TICK),
}


class SimulatedGateway:
    """One source of orders. Its request numbers increase, across restarts too."""

    def __init__(self, node: NodeId, chance: Random) -> None:
        self._node = node
        self._chance = chance
        self._number = 0
        self._names: list[tuple[str, str]] = []  # account and client id
        self._sent: list[bytes] = []

    def messages(self, count: int) -> list[bytes]:
        """The next `count` requests."""
        made = []
        for _ in range(count):
            made.append(self._message())
            self._sent = [*self._sent[-MEMORY:], made[-1]]
        return made

    def _message(self) -> bytes:
        chance = self._chance
        drawn = chance.random()
        if drawn < 0.01:
            return chance.randbytes(chance.choice((1, 20, 111)))
        if drawn < 0.03 and self._sent:
            return chance.choice(self._sent)
        self._number += 1
        if drawn < 0.15 and self._names:
            return encode(Cancel(self._node, self._number, *chance.choice(self._names)))
        if drawn < 0.25 and self._names:
            return encode(self._replace(*chance.choice(self._names)))
        return encode(self._order())

    def _replace(self, account: str, order_id: str) -> Replace:
        client_id = self._name(account)
        return Replace(self._node, self._number, account, order_id, client_id, self._quantity(), self._price())

    def _order(self) -> NewOrder:
        chance = self._chance
        account, symbol = chance.choice(ACCOUNTS), chance.choice(tuple(RULES))
        kind = chance.choices(tuple(OrderType), (10, 80, 5, 5))[0]
        continuous = isinstance(RULES[symbol], Continuous)
        immediate = continuous and chance.random() < 0.2
        return NewOrder(
            self._node,
            self._number,
            account,
            self._name(account),
            symbol,
            chance.choice(tuple(Side)),
            self._quantity(),
            self._price() if kind in (OrderType.LIMIT, OrderType.STOP_LIMIT) else 0,
            self._price() if kind in (OrderType.STOP, OrderType.STOP_LIMIT) else 0,
            kind,
            chance.choice((TimeInForce.IOC, TimeInForce.FOK)) if immediate else TimeInForce.DAY,
            kind is OrderType.LIMIT and continuous and not immediate and chance.random() < 0.05,
            chance.choice(tuple(SelfTrade)),
        )

    def _name(self, account: str) -> str:
        """A new client id, or sometimes one that was used."""
        mine = [name for whose, name in self._names if whose == account]
        if mine and self._chance.random() < 0.02:
            return self._chance.choice(mine)
        name = f"{self._node}-{self._number}"
        self._names = [*self._names[-MEMORY:], (account, name)]
        return name

    def _price(self) -> Price:
        return MIDDLE + self._chance.randint(-8, 8) * TICK

    def _quantity(self) -> int:
        return self._chance.choice((1, 2, 5, 20)) * ONE


class SimulatedOperator:
    """Opens the markets, funds accounts, uncrosses auctions, and sends pulses that advance time."""

    def __init__(self, node: NodeId, chance: Random) -> None:
        self._node = node
        self._chance = chance
        self._number = 0

    def opening(self) -> list[bytes]:
        """The requests that open the markets and fund the accounts."""
        return [*map(encode, self._markets()), *map(encode, self._deposits())]

    def _markets(self) -> Iterator[OpenMarket]:
        for symbol, rule in RULES.items():
            yield OpenMarket(self._node, self._next(), symbol, rule, TICK, ONE, 0, PRICE_MAX)

    def _deposits(self) -> Iterator[Funding]:
        for account in ACCOUNTS:
            yield Funding(self._node, self._next(), account, CASH, CASH_EACH)
            for symbol in RULES:
                yield Funding(self._node, self._next(), account, symbol, SHARES_EACH)

    def messages(self) -> list[bytes]:
        """The next random action."""
        chance = self._chance
        drawn = chance.random()
        if drawn < 0.4:
            return [encode(Pulse())]
        if drawn < 0.7:
            symbol = chance.choice(("CALL", "SEALED"))
            return [encode(Control(self._node, self._next(), symbol, Action.UNCROSS))]
        if drawn < 0.85:
            action = chance.choices((Action.HALT, Action.RESUME, Action.CLOSE), (3, 8, 1))[0]
            return [encode(Control(self._node, self._next(), chance.choice(tuple(RULES)), action))]
        if drawn < 0.95:
            return [encode(each) for each in self._markets()]
        asset = chance.choice((CASH, *RULES))
        amount = chance.choice((-50, -1, 1, 50)) * ONE
        return [encode(Funding(self._node, self._next(), chance.choice(ACCOUNTS), asset, amount))]

    def _next(self) -> int:
        self._number += 1
        return self._number
