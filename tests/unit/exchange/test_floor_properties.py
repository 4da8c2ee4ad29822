"""Random requests under every rule: nothing is lost, nothing is reserved twice, and all replicas agree."""

from collections import Counter
from random import Random

import pytest

from fairtape.core.instants import SECOND
from fairtape.exchange.floor import Floor
from fairtape.exchange.orders import CASH, Action, FloorMessage, Pulse, SelfTrade, TimeInForce
from fairtape.exchange.outputs import Committed, TentativeFill
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
from fairtape.market.prices import ONE
from unit.exchange.floor_values import ScriptedFloor, fixed, scripted_floor

RULES: list[Rule] = [
    *[
        Continuous(pricing=pricing, rounding=rounding)
        for pricing in Pricing
        for rounding in (Rounding.MAKER, Rounding.EVEN)
    ],
    CallAuction(reference=fixed(5)),
    BatchAuction(period=2 * SECOND),
    SecondPrice(),
    DutchClock(start=fixed(9), decrement=fixed(1), step_period=SECOND, rewind=fixed(2)),
]

TRADERS = ("ann", "bob", "cyd")
QUANTITIES = (1, 2, 5, 5, 7, 20, 900, 0.5)
PRICES = (3, 4, 5, 5, 5.01, 6, 7, 99, 5.001)


class Crowd:
    """Traders and operators that send random requests."""

    def __init__(self, seed: int, scripted: ScriptedFloor, rule: Rule) -> None:
        self._chance = Random(seed)
        self._script = scripted.script
        self._floor = scripted.floor
        self._rule = rule
        self._number = 0

    def asks(self) -> list[FloorMessage]:
        """The messages of one token."""
        return [self._message() for _ in range(self._chance.randrange(1, 5))]

    def _message(self) -> FloorMessage:
        chance, script = self._chance, self._script
        self._number += 1
        draw = chance.random()
        market = self._floor.markets.get("XYZ")
        if market is None and draw < 0.5:
            return script.open(self._rule, high=100)
        if market is not None and market.halted and draw < 0.3:
            return script.control(Action.RESUME)
        if draw < 0.7:
            return self._order()
        if draw < 0.9:
            who, order_id = self._victim()
            if draw < 0.8:
                return script.cancel(who, order_id)
            new_id = f"o{self._number}"
            return script.replace(who, order_id, new_id, chance.choice((1, 3, 9, 900)), chance.choice((3, 5, 7)))
        if draw < 0.92:
            return script.fund(chance.choice(TRADERS), cash=-chance.choice((1, 9_000)))[0]
        if draw < 0.94:
            return script.open(self._rule, high=100)
        if draw < 0.945:
            return script.control(Action.CLOSE)
        return script.control(Action.HALT if draw < 0.95 else Action.UNCROSS)

    def _victim(self) -> tuple[str, str]:
        """A random open order, if there is one."""
        waiting = [(name, order_id) for name, each in self._floor.accounts.items() for order_id in each.orders]
        return self._chance.choice(waiting) if waiting else ("ann", "o1")

    def _order(self) -> FloorMessage:
        chance, script = self._chance, self._script
        price = chance.choice(PRICES) if chance.random() < 0.9 else 0
        stop = chance.choice((4, 5, 6)) if chance.random() < 0.1 else 0
        wait = chance.choice(list(TimeInForce)) if chance.random() < 0.3 else TimeInForce.DAY
        post_only = chance.random() < 0.1 and wait is TimeInForce.DAY and not stop and price > 0
        enter = script.buy if chance.random() < 0.5 else script.sell
        other = {
            "stop": stop,
            "time_in_force": wait,
            "post_only": post_only,
            "self_trade": chance.choice(list(SelfTrade)),
        }
        return enter(chance.choice(TRADERS), f"o{self._number}", chance.choice(QUANTITIES), price, **other)


def owed(scripted: ScriptedFloor) -> Counter[tuple[str, str]]:
    """What each account must have reserved: for open orders, and for trades that have not committed."""
    sums: Counter[tuple[str, str]] = Counter()
    for name, account in scripted.floor.accounts.items():
        for market, order in account.orders.values():
            assert order.queue is not None
            if order.sign < 0:
                sums[name, "XYZ"] += order.open
            elif not order.is_market:
                sums[name, CASH] += order.price * order.open // ONE
            elif not order.stop_price:
                sums[name, CASH] += market.terms.price_max * order.open // ONE
    for trade in scripted.floor.tentative():
        sums[trade.buyer, CASH] += trade.price * trade.quantity // ONE
        sums[trade.seller, "XYZ"] += trade.quantity
    return sums


def reserved(scripted: ScriptedFloor) -> Counter[tuple[str, str]]:
    return Counter(
        {
            (name, asset): balance.reserved
            for name, account in scripted.floor.ledger.accounts.items()
            for asset, balance in account.balances.items()
            if balance.reserved
        }
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{type(rule).__name__}{RULES.index(rule)}")
def test_cash_and_shares_are_conserved_and_a_replay_is_equal(rule: Rule, seed: int) -> None:
    commit_passes = seed
    scripted = scripted_floor(rule, commit_passes=commit_passes, high=100)
    crowd = Crowd(seed, scripted, rule)
    said = []
    for _ in range(150):
        outputs = scripted.play(*crowd.asks())
        assert scripted.floor.ledger.imbalance() == {}
        assert reserved(scripted) == owed(scripted)
        said.append((outputs, scripted.floor.trades_hash))
    assert scripted.floor.trade_count > (0 if isinstance(rule, SecondPrice | DutchClock) else 5)
    replica = Floor(commit_passes=commit_passes)
    first, *rest = scripted.script.tokens
    replica.apply(first)
    for ordered, expected in zip(rest, said, strict=True):
        assert (replica.apply(ordered), replica.trades_hash) == expected
    assert replica.ledger.snapshot() == scripted.floor.ledger.snapshot()


@pytest.mark.parametrize("commit_passes", range(4))
def test_every_trade_commits_once_after_exactly_n_tokens(commit_passes: int) -> None:
    scripted = scripted_floor(commit_passes=commit_passes)
    crowd = Crowd(7, scripted, Continuous())
    made: dict[int, int] = {}
    committed: dict[int, int] = {}
    for number in range(50):
        for output in scripted.play(*(crowd.asks() if number < 45 else [Pulse()])):
            if isinstance(output, TentativeFill):
                made[output.trade.trade_id] = output.trade.token
            elif isinstance(output, Committed):
                assert output.trade.trade_id not in committed
                committed[output.trade.trade_id] = output.token
    assert committed == {trade: token + max(commit_passes, 1) for trade, token in made.items()}
    assert committed
