"""The load of a simulated floor: random orders under every trading rule, and an operator that runs the markets.

Orders overspend an account through several gateways at once, cancel orders that are gone, and reuse client ids.
Gateways also send duplicates and bytes that cannot be decoded. None of it may make two replicas differ or create cash
or shares.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

from fairtape.core.instants import MILLISECOND
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
    encode,
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
from fairtape.wire.frames import NodeId

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
