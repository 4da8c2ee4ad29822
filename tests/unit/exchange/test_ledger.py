"""The ledger: reservations, settlement, conservation, and the canonical form of its state."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.exchange.ledger import BadLedger, Ledger
from fairtape.exchange.orders import CASH

NAMES = ("ann", "bob", "cyd")
ASSETS = (CASH, "ABC", "XYZ")


def funded() -> Ledger:
    ledger = Ledger()
    for name in NAMES:
        for asset in ASSETS:
            assert ledger.fund(name, asset, 1_000) is None
    return ledger


def test_an_order_reserves_a_cancel_releases_and_a_trade_settles() -> None:
    ledger = funded()
    buyer, seller = ledger.accounts["ann"], ledger.accounts["bob"]
    assert buyer.cash.reserve(600)
    assert seller.balance("XYZ").reserve(5)
    ledger.settle(buyer, seller, "XYZ", 5, 400)
    buyer.cash.release(200)
    assert (buyer.cash.available, buyer.cash.reserved) == (600, 0)
    assert (seller.cash.available, buyer.balance("XYZ").available, seller.balance("XYZ").total) == (1_400, 1_005, 995)
    assert ledger.imbalance() == {}


def test_nothing_is_reserved_beyond_what_is_available() -> None:
    balance = funded().accounts["ann"].cash
    assert not balance.reserve(1_001)
    assert (balance.available, balance.reserved) == (1_000, 0)


def test_withdrawals_take_only_what_is_available_in_an_existing_account() -> None:
    ledger = funded()
    ledger.accounts["ann"].cash.reserve(900)
    assert ledger.fund("ann", CASH, -101) is not None
    assert ledger.fund("eve", CASH, -1) is not None
    assert "eve" not in ledger.accounts
    assert ledger.fund("ann", CASH, -100) is None
    assert ledger.outside[CASH] == -2_900


def test_tables_have_limits() -> None:
    ledger = Ledger(accounts_max=1, assets_max=2)
    assert ledger.fund("ann", CASH, 1) is None
    assert ledger.fund("ann", "ABC", 1) is None
    assert "2 assets" in str(ledger.fund("ann", "XYZ", 1))
    assert "1 accounts" in str(ledger.fund("bob", CASH, 1))


steps = st.lists(
    st.tuples(
        st.sampled_from(["fund", "reserve", "release", "settle"]),
        st.sampled_from(NAMES),
        st.sampled_from(NAMES),
        st.sampled_from(ASSETS),
        st.integers(1, 700),
    ),
    max_size=40,
)


@given(steps)
def test_every_asset_adds_up_to_zero_and_a_snapshot_gives_the_same_ledger(
    script: list[tuple[str, str, str, str, int]],
) -> None:
    ledger = funded()
    for what, one, other, asset, amount in script:
        account, partner = ledger.accounts[one], ledger.accounts[other]
        balance = account.balance(asset)
        if what == "fund":
            ledger.fund(one, asset, amount if amount % 2 else -amount)
        elif what == "reserve":
            balance.reserve(amount)
        elif what == "release":
            balance.release(min(amount, balance.reserved))
        elif asset != CASH:
            shares = min(amount, partner.balance(asset).reserved)
            ledger.settle(account, partner, asset, shares, min(amount, account.cash.reserved))
        assert ledger.imbalance() == {}
    again = Ledger.restore(ledger.snapshot())
    assert again.snapshot() == ledger.snapshot()
    assert again.state_hash == ledger.state_hash


def test_a_corrupt_ledger_shows_an_imbalance() -> None:
    ledger = funded()
    ledger.accounts["ann"].cash.available += 1
    assert ledger.imbalance() == {CASH: 1}
    with pytest.raises(BadLedger, match="add up"):
        Ledger.restore(ledger.snapshot())


@pytest.mark.parametrize(
    "snapshot",
    [
        b"",
        b"[]",
        b"{}",
        b'{"accounts":{"ann":{"":[1]}},"outside":{}}',
        b'{"accounts":{"ann":{"":[-1,0]}},"outside":{"":1}}',
        b'{"accounts":{"ann":{"":[1.0,0]}},"outside":{"":-1}}',
        b'{"accounts": {},"outside":{}}',
        b'{"accounts":[],"outside":{}}',
    ],
)
def test_bytes_that_are_no_ledger_snapshot_are_refused(snapshot: bytes) -> None:
    with pytest.raises(BadLedger):
        Ledger.restore(snapshot)


def test_empty_balances_leave_no_trace_in_a_snapshot() -> None:
    ledger = funded()
    ledger.accounts["ann"].balance("NEW")
    assert ledger.snapshot() == funded().snapshot()
    assert json.loads(ledger.snapshot())["outside"] == dict.fromkeys(ASSETS, -3_000)
