"""Edge cases of a floor: partial fills of fill-or-kill orders, trades above the reservation, sums too large."""

import pytest

from fairtape.core.effects import FormationChange
from fairtape.exchange.ledger import ASSET_MAX, Ledger
from fairtape.exchange.market import flaw_of
from fairtape.exchange.orders import CASH, Funding, OpenMarket, SelfTrade, TimeInForce, encode
from fairtape.exchange.outputs import Cancelled, TentativeFill
from fairtape.exchange.rules import CallAuction, Continuous
from fairtape.gateway.core.limits import GatewayLimits
from fairtape.market.prices import FIXED_MAX, ONE
from unit.exchange.floor_values import OPERATOR, fixed, scripted_floor, the_rejection
from unit.gateway.gateway_values import NOW, Sequence, buy, gateway_of, replace


@pytest.mark.parametrize(
    ("policy", "whole"),
    [
        (SelfTrade.ALLOW, True),
        (SelfTrade.CANCEL_NEWEST, False),
        (SelfTrade.CANCEL_OLDEST, True),
        (SelfTrade.CANCEL_BOTH, False),
        (SelfTrade.DECREMENT, False),
    ],
)
def test_an_order_to_be_filled_whole_is_never_filled_in_part(policy: SelfTrade, whole: bool) -> None:
    """An order of its own account is in between, where self-trade prevention would stop it."""
    scripted = scripted_floor()
    script = scripted.script
    scripted.play(script.sell("bob", "b1", 5, 100), script.sell("ann", "own", 5, 101), script.sell("bob", "b2", 5, 102))
    outputs = scripted.play(script.buy("ann", "fok", 10, 102, time_in_force=TimeInForce.FOK, self_trade=policy))
    filled = sum(each.trade.quantity for each in outputs if isinstance(each, TentativeFill))
    assert filled == (fixed(10) if whole else 0)
    assert any(isinstance(each, Cancelled) and each.client_id == "fok" for each in outputs) is not whole


def test_a_reference_outside_the_bounds_opens_no_market() -> None:
    terms = OpenMarket(OPERATOR, 1, "XYZ", CallAuction(reference=fixed(200)), fixed(0.01), ONE, 0, fixed(100))
    assert "reference is 200; it must not be outside" in str(flaw_of(terms))
    assert flaw_of(terms._replace(price_max=fixed(200))) is None


def test_no_limit_reaches_the_price_of_market_orders() -> None:
    scripted = scripted_floor()
    script = scripted.script
    scripted.play(OpenMarket(OPERATOR, script.next_number(OPERATOR), "FINE", Continuous(), 1, ONE))
    order = script.buy("ann", "a1", 1, 1, symbol="FINE")._replace(price=FIXED_MAX)
    assert "it must be from 0 to 9223372036.854775806" in the_rejection(scripted.play(order))


def test_an_account_may_be_rich_and_still_lack_something() -> None:
    scripted = scripted_floor()
    script = scripted.script
    for _ in range(2):
        scripted.play(Funding(OPERATOR, script.next_number(OPERATOR), "ann", CASH, FIXED_MAX))
    rejection = the_rejection(scripted.play(script.buy("ann", "a1", 9_000_000_000, 9_000_000_000)))
    assert rejection == "18446754073.709551614 of cash is available; the order may cost more"


def test_there_is_no_more_of_an_asset_than_a_ledger_counts() -> None:
    ledger = Ledger()
    assert ledger.fund("ann", CASH, ASSET_MAX) is None
    assert "there would be more than 79228162514264337593.543950335 in all" in str(ledger.fund("bob", CASH, 1))
    assert "bob" not in ledger.accounts


def test_refused_withdrawals_leave_nothing_behind() -> None:
    ledger = Ledger()
    ledger.fund("ann", CASH, 5)
    for number in range(50):
        assert ledger.fund("ann", f"X{number}", -1) is not None
    assert list(ledger.accounts["ann"].balances) == [CASH]


def test_a_replace_frees_nothing_of_the_limit_before_the_floor_accepts_it() -> None:
    gateway = gateway_of(101, GatewayLimits(notional_max=fixed(1_000)))
    sequence = Sequence([gateway]).open("ann")
    assert gateway.enter("ann", buy("ann", "a1", 10, 100), NOW).entered
    sequence.settle()
    assert gateway.replace("ann", replace("ann", "a1", "a2", 1, 1), NOW).entered
    assert "would come to 1900" in gateway.enter("ann", buy("ann", "a3", 9, 100), NOW).reason
    sequence.settle()
    assert gateway.enter("ann", buy("ann", "a3", 9, 100), NOW).entered


def test_a_resting_market_order_counts_at_the_highest_price() -> None:
    gateway = gateway_of(101, GatewayLimits(notional_max=fixed(1_000)))
    sequence = Sequence([gateway]).open("ann")
    terms = OpenMarket(1, 1_000, "CALL", CallAuction(), fixed(0.01), ONE, 0, fixed(100))
    sequence.deliver([(1, [encode(terms)])])
    assert gateway.enter("ann", buy("ann", "a1", 9, symbol="CALL"), NOW).entered
    sequence.settle()
    assert "would come to 1100" in gateway.enter("ann", buy("ann", "a2", 2, symbol="CALL"), NOW).reason
    assert gateway.enter("ann", buy("ann", "a3", 1, symbol="CALL"), NOW).entered


def test_a_formation_that_revokes_applied_tokens_makes_a_gateway_stale_without_a_break_of_its_own() -> None:
    gateway = gateway_of(101)
    sequence = Sequence([gateway]).open("ann")
    gateway.on_formation(FormationChange(0, 2, sequence.token + 1, sequence.number, False, b"", 0))
    assert not gateway.stale
    gateway.on_formation(FormationChange(0, 3, sequence.token, 1, False, b"", 0))
    assert gateway.stale
