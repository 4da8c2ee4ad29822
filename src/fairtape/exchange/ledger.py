"""A double-entry ledger of cash and shares, in whole units of 1e-9.

Every asset of an account has two parts, available and reserved. An order reserves, a cancel releases, and a committed
trade settles: it moves the buyer's reserved cash to the seller and the seller's reserved shares to the buyer. Only
deposits and withdrawals change a balance otherwise. Each of them is booked against `outside`, so that every asset
always adds up to zero.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Final, TypeAlias

from fairtape.exchange.orders import CASH
from fairtape.market.prices import Quantity, format_fixed, format_sum
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
