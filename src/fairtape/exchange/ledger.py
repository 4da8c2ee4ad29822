"""A double-entry ledger of cash and shares, in whole units of 1e-9: its balances, and the transfers that change them.

Every asset of an account has two parts, available and reserved. An order reserves, a cancel releases, and a committed
trade settles: it moves the buyer's reserved cash to the seller and the seller's reserved shares to the buyer. Only
deposits and withdrawals change a balance otherwise. Each of them is booked against `outside`, so that every asset
always adds up to zero.

Balances are a state; transfers are the movements that add up to it, between two accounts or two parts of one, in a
batch per token. A transfer names both its sides, so every entry has its counterpart.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from typing import Final, NamedTuple, TypeAlias

from fairtape.exchange.orders import CASH
from fairtape.exchange.outputs import (
    Cancelled,
    Committed,
    Execution,
    FloorOutput,
    Funded,
    Replaced,
    Sequenced,
    TentativeFill,
)
from fairtape.market.prices import ONE, Price, Quantity, format_fixed, format_sum
from fairtape.market.symbols import Symbol

ACCOUNTS_MAX: Final = 1 << 20
ASSET_MAX: Final = (1 << 96) - 1  # units of one asset in all accounts together
ASSETS_MAX: Final = 1 << 12  # of one account, including cash

_Balances: TypeAlias = Mapping[str, list[int]]


class BadLedger(ValueError):
    """An invalid snapshot, or an entry that no ledger can hold; the text says which and why."""


class Balance:
    """One asset of one account."""

    __slots__ = ("available", "reserved")

    def __init__(self, available: int = 0, reserved: int = 0) -> None:
        self.available = available
        self.reserved = reserved

    @property
    def total(self) -> int:
        return self.available + self.reserved

    def reserve(self, amount: int) -> bool:
        """Reserve an amount. False, and no change, if less is available."""
        if amount > self.available:
            return False
        self.available -= amount
        self.reserved += amount
        return True

    def release(self, amount: int) -> None:
        assert 0 <= amount <= self.reserved
        self.reserved -= amount
        self.available += amount


class LedgerAccount:
    """The balances of one account."""

    __slots__ = ("balances", "cash", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.cash = Balance()
        self.balances: dict[str, Balance] = {CASH: self.cash}

    def balance(self, asset: str) -> Balance:
        """The balance of an asset, created empty where it is missing."""
        found = self.balances.get(asset)
        if found is None:
            found = self.balances[asset] = Balance()
        return found


class Ledger:
    """All accounts, and `outside`, the counterparty of deposits and withdrawals."""

    def __init__(self, *, accounts_max: int = ACCOUNTS_MAX, assets_max: int = ASSETS_MAX) -> None:
        self._accounts_max = accounts_max
        self._assets_max = assets_max
        self.accounts: dict[str, LedgerAccount] = {}
        self.outside: dict[str, int] = {}  # per asset, the negative of its net deposits

    def fund(self, name: str, asset: str, amount: int) -> str | None:
        """Deposit into an account, or withdraw (below zero), or return why not."""
        account = self.accounts.get(name)
        balance = None if account is None else account.balances.get(asset)
        available = 0 if balance is None else balance.available
        if amount < 0 and available < -amount:
            return f"amount is {format_fixed(amount)}; only {format_sum(available)} are available to withdraw"
        if amount > 0 and amount - self.outside.get(asset, 0) > ASSET_MAX:
            return f"amount is {format_fixed(amount)}; with it there would be more than {format_sum(ASSET_MAX)} in all"
        if account is None:
            if len(self.accounts) == self._accounts_max:
                return f"account is {name}; the ledger has its limit of {self._accounts_max} accounts"
            account = self.accounts[name] = LedgerAccount(name)
        if asset not in account.balances and len(account.balances) == self._assets_max:
            return f"asset is {asset}; the account has its limit of {self._assets_max} assets"
        account.balance(asset).available += amount
        self.outside[asset] = self.outside.get(asset, 0) - amount
        return None

    def settle(
        self, buyer: LedgerAccount, seller: LedgerAccount, symbol: Symbol, quantity: Quantity, amount: int
    ) -> None:
        """Settle a committed trade: the buyer's reserved cash against the seller's reserved shares."""
        shares, cash = seller.balances[symbol], buyer.cash
        assert shares.reserved >= quantity
        assert cash.reserved >= amount
        cash.reserved -= amount
        seller.cash.available += amount
        shares.reserved -= quantity
        buyer.balance(symbol).available += quantity

    def imbalance(self) -> Mapping[str, int]:
        """Per asset that does not add up to zero, the difference: empty unless the ledger is corrupt."""
        sums = dict(self.outside)
        for account in self.accounts.values():
            for asset, balance in account.balances.items():
                assert balance.available >= 0
                assert balance.reserved >= 0
                sums[asset] = sums.get(asset, 0) + balance.total
        return {asset: total for asset, total in sums.items() if total}

    def snapshot(self) -> bytes:
        """The whole state in canonical form: equal ledgers have equal snapshots."""
        accounts = {
            name: {
                asset: [balance.available, balance.reserved]
                for asset, balance in account.balances.items()
                if balance.total
            }
            for name, account in self.accounts.items()
        }
        outside = {asset: amount for asset, amount in self.outside.items() if amount}
        whole = {"accounts": accounts, "outside": outside}
        return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode("ascii")

    @property
    def state_hash(self) -> bytes:
        return sha256(self.snapshot()).digest()

    @classmethod
    def restore(cls, snapshot: bytes, *, accounts_max: int = ACCOUNTS_MAX, assets_max: int = ASSETS_MAX) -> "Ledger":
        """The ledger of a snapshot. Raises `BadLedger` for bytes that `snapshot` does not produce."""
        ledger = cls(accounts_max=accounts_max, assets_max=assets_max)
        try:
            whole = json.loads(snapshot)
            for name, balances in whole["accounts"].items():
                ledger.accounts[name] = _restored(name, balances)
            ledger.outside = dict(whole["outside"])
            same = ledger.snapshot() == snapshot
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadLedger(f"the snapshot of a ledger cannot be read: {error}") from None
        if not same or ledger.imbalance():
            raise BadLedger("the snapshot of a ledger is not in canonical form, or does not add up to zero")
        return ledger


def _restored(name: str, balances: _Balances) -> LedgerAccount:
    account = LedgerAccount(name)
    for asset, (available, reserved) in balances.items():
        if type(available) is not int or type(reserved) is not int or min(available, reserved) < 0:
            raise BadLedger(f"the balance of {asset or 'cash'} of {name} is {available}, {reserved}")
        balance = account.balance(asset)
        balance.available, balance.reserved = available, reserved
    return account


class BalancePart(IntEnum):
    """Which part of a balance a transfer moves from or to."""

    OUTSIDE = 0
    AVAILABLE = 1
    RESERVED = 2


class TransferReason(IntEnum):
    FUNDING = 1  # reference: sequence number of the message
    RESERVATION = 2  # net of what orders reserved and released in one token; reference: the token
    SETTLEMENT = 3  # reference: the trade id


class Transfer(NamedTuple):
    """An amount of one asset, moved from a giver to a taker."""

    reason: TransferReason
    reference: int
    asset: str  # empty: cash
    giver: str  # an account; empty: outside
    giver_part: BalancePart
    taker: str
    taker_part: BalancePart
    amount: int  # 1e-9, above zero


class Settlement(NamedTuple):
    """A committed trade: the buyer's reserved cash for the seller's reserved shares."""

    trade_id: int
    token: int  # the token that made it
    symbol: Symbol
    price: Price
    quantity: Quantity
    amount: int  # of cash, 1e-9
    buyer: str
    seller: str
    buy_order: int
    sell_order: int


class AccountBalance(NamedTuple):
    """One asset of one account, after a token."""

    account: str
    asset: str
    available: int
    reserved: int


@dataclass(slots=True)
class TransferBatch:
    """What one token did to the ledger: its settlements, then all other transfers, and the balances after them."""

    token: int
    sequence: int  # number of the next message
    settlements: list[Settlement] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    balances: list[AccountBalance] = field(default_factory=list)


_OWNED: Final = (Sequenced, Cancelled, Replaced)  # outputs about an order of one account
_AVAILABLE, _RESERVED = BalancePart.AVAILABLE, BalancePart.RESERVED


class Bookkeeper:
    """Derives the transfers of a floor's ledger, from its first token on.

    It compares the balances before and after each token. Settlements and funding follow from the outputs; any other
    movement between available and reserved is what orders reserved or released. Other movements must not exist, which
    is asserted for every account.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[tuple[str, str], tuple[int, int]] = {}

    def keep(self, outputs: Iterable[FloorOutput], *, token: int, sequence: int) -> TransferBatch:
        """The batch of a token, after the floor has applied it."""
        batch = TransferBatch(token, sequence)
        touched: dict[str, None] = {}
        for output in outputs:
            if isinstance(output, _OWNED):
                touched[output.account] = None
            elif isinstance(output, TentativeFill):
                touched[output.trade.buyer] = touched[output.trade.seller] = None
            elif isinstance(output, Committed):
                touched[output.trade.buyer] = touched[output.trade.seller] = None
                batch.settlements.append(_settlement(output.trade))
            elif isinstance(output, Funded):
                touched[output.account] = None
                batch.transfers.append(_funding(output))
        self._close(batch, touched)
        return batch

    def _close(self, batch: TransferBatch, touched: Iterable[str]) -> None:
        """Book what moved between available and reserved, and assert that nothing else moved."""
        moved: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        for _, _, asset, giver, _, taker, _, amount in batch.transfers:
            moved[giver, asset][0] -= amount
            moved[taker, asset][0] += amount
        for _, _, symbol, _, quantity, amount, buyer, seller, _, _ in batch.settlements:
            moved[buyer, ""][1] -= amount
            moved[seller, ""][0] += amount
            moved[seller, symbol][1] -= quantity
            moved[buyer, symbol][0] += quantity
        for name in sorted(touched):  # a fixed order of rows, independent of the order of outputs
            for asset, balance in sorted(self._ledger.accounts[name].balances.items()):
                now, before = (balance.available, balance.reserved), self._known.get((name, asset), (0, 0))
                if now == before and (name, asset) not in moved:
                    continue
                available, reserved = moved[name, asset]
                reserved_more = now[1] - before[1] - reserved
                assert now[0] - before[0] - available == -reserved_more
                if reserved_more:
                    places = (_AVAILABLE, _RESERVED) if reserved_more > 0 else (_RESERVED, _AVAILABLE)
                    sides = (name, places[0], name, places[1])
                    batch.transfers.append(
                        Transfer(TransferReason.RESERVATION, batch.token, asset, *sides, abs(reserved_more))
                    )
                self._known[name, asset] = now
                batch.balances.append(AccountBalance(name, asset, *now))


def _settlement(trade: Execution) -> Settlement:
    trade_id, token, symbol, price, quantity, buy, sell, buyer, seller, *_ = trade
    return Settlement(trade_id, token, symbol, price, quantity, price * quantity // ONE, buyer, seller, buy, sell)


def _funding(funded: Funded) -> Transfer:
    outside, inside = ("", BalancePart.OUTSIDE), (funded.account, BalancePart.AVAILABLE)
    giver, taker = (outside, inside) if funded.amount > 0 else (inside, outside)
    return Transfer(TransferReason.FUNDING, funded.number, funded.asset, *giver, *taker, abs(funded.amount))
