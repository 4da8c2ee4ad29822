"""The trading floor as its replicas compute it: order handling, funds, commits, replays, rules and limits."""

import pytest

from fairtape.core.instants import SECOND
from fairtape.exchange.floor import Floor, FloorLimits, OutOfOrder
from fairtape.exchange.orders import CASH, Action, Funding, Pulse, SelfTrade, TimeInForce, TradeReport, encode
from fairtape.exchange.outputs import (
    Cancelled,
    Committed,
    FloorOutput,
    Printed,
    Replaced,
    Sequenced,
    TentativeFill,
)
from fairtape.exchange.rules import BatchAuction, CallAuction, Continuous, DutchClock, Pricing, SecondPrice
from fairtape.market.trades import TradeFlag
from unit.exchange.floor_values import (
    GATEWAY,
    OPERATOR,
    Script,
    ScriptedFloor,
    fixed,
    kinds,
    scripted_floor,
    the_rejection,
)


def balance(scripted: ScriptedFloor, account: str, asset: str = CASH) -> tuple[float, float]:
    found = scripted.floor.ledger.accounts[account].balance(asset)
    return found.available / 1e9, found.reserved / 1e9


def test_an_order_is_sequenced_with_its_number_and_reserves_what_it_may_cost() -> None:
    scripted = scripted_floor()
    place = scripted.script.sequence
    outputs = scripted.play(scripted.script.buy("ann", "a1", 10, 99.5))
    assert outputs == [Sequenced(place, GATEWAY, 1, "ann", "a1")]
    assert balance(scripted, "ann") == (9_005, 995)


def test_a_cancel_releases_to_the_last_unit() -> None:
    scripted = scripted_floor()
    scripted.play(scripted.script.buy("ann", "a1", 10, 99.5))
    (cancelled,) = scripted.play(scripted.script.cancel("ann", "a1"))
    assert isinstance(cancelled, Cancelled)
    assert (cancelled.client_id, cancelled.quantity, cancelled.open) == ("a1", fixed(10), 0)
    assert balance(scripted, "ann") == (10_000, 0)


def test_a_trade_is_tentative_until_n_tokens_have_passed_and_settles_then() -> None:
    """By waiting N token passes a trade survives N failures. TRMP 2001 §7.3."""
    scripted = scripted_floor(commit_passes=2)
    script = scripted.script
    scripted.play(script.sell("bob", "b1", 10, 100))
    made_at = script.token + 1
    outputs = scripted.play(script.buy("ann", "a1", 10, 101))
    assert kinds(outputs) == ["Sequenced", "TentativeFill"]
    assert balance(scripted, "ann") == (9_000, 1_000)
    assert balance(scripted, "bob", "XYZ") == (990, 10)
    assert scripted.play(Pulse()) == []
    committed, printed = scripted.play(Pulse())
    assert isinstance(committed, Committed)
    assert committed.token == made_at + 2
    assert isinstance(printed, Printed)
    assert printed.trade.flags == TradeFlag.BOUGHT
    assert printed.trade.venue_name == "FLOOR"
    assert balance(scripted, "ann") == (9_000, 0)
    assert balance(scripted, "ann", "XYZ") == (1_010, 0)
    assert balance(scripted, "bob") == (11_000, 0)
    assert scripted.floor.ledger.imbalance() == {}


def test_the_proceeds_of_a_trade_cannot_be_spent_before_it_commits() -> None:
    scripted = scripted_floor(commit_passes=3)
    script = scripted.script
    scripted.play(
        *script.fund("eve", cash=0, shares=10), script.sell("eve", "e1", 10, 100), script.buy("ann", "a1", 10, 100)
    )
    assert "0 of cash is available" in the_rejection(scripted.play(script.buy("eve", "e2", 1, 1)))
    scripted.play(Pulse())
    assert kinds(scripted.play(script.buy("eve", "e3", 1, 1))) == ["Committed", "Printed", "Sequenced"]


def test_passing_empty_tokens_changes_only_when_commits_are_reported() -> None:
    informed, uninformed = scripted_floor(commit_passes=1), scripted_floor(commit_passes=1)
    for scripted in (informed, uninformed):
        script = scripted.script
        scripted.play(script.sell("bob", "b1", 10, 100), script.buy("ann", "a1", 10, 100))
        script.token += 1
    assert kinds(informed.floor.pass_token(informed.script.token)) == ["Committed", "Printed"]
    for scripted in (informed, uninformed):
        scripted.play(scripted.script.sell("ann", "a2", 1_005, 100))
    assert informed.floor.trades_hash == uninformed.floor.trades_hash
    assert informed.floor.ledger.state_hash == uninformed.floor.ledger.state_hash


def test_the_same_funds_through_two_gateways_are_spent_once() -> None:
    scripted = scripted_floor()
    script = scripted.script
    first = script.buy("ann", "a1", 60, 100, gateway=101)
    second = script.buy("ann", "a2", 60, 100, gateway=102)
    outputs = scripted.play(first, second)
    assert kinds(outputs) == ["Sequenced", "Rejected"]
    assert "4000 of cash is available" in the_rejection(outputs)
    assert balance(scripted, "ann") == (4_000, 6_000)


def test_shares_are_not_sold_twice() -> None:
    scripted = scripted_floor()
    outputs = scripted.play(
        scripted.script.sell("bob", "b1", 600, 100), scripted.script.sell("bob", "b2", 600, 100, gateway=7)
    )
    assert "400 XYZ are available" in the_rejection(outputs)


def test_a_client_id_is_used_once_even_after_the_order_is_gone() -> None:
    scripted = scripted_floor()
    scripted.play(scripted.script.buy("ann", "a1", 1, 1), scripted.script.cancel("ann", "a1"))
    before = scripted.floor.ledger.state_hash
    assert "used it before" in the_rejection(scripted.play(scripted.script.buy("ann", "a1", 1, 1)))
    assert scripted.floor.ledger.state_hash == before


def test_a_replayed_order_changes_nothing_at_all() -> None:
    scripted = scripted_floor()
    order = scripted.script.buy("ann", "a1", 1, 1)
    scripted.play(order)
    before = scripted.floor.ledger.state_hash
    assert "is a replay" in the_rejection(scripted.play(order))
    assert "only from its own gateway" in the_rejection(scripted.play(order, source=102))
    assert scripted.floor.ledger.state_hash == before


def test_money_cannot_be_deposited_again_by_a_replay() -> None:
    scripted = scripted_floor()
    (deposit,) = scripted.script.fund("ann", cash=5)
    scripted.play(deposit)
    assert "is a replay" in the_rejection(scripted.play(deposit))
    assert balance(scripted, "ann") == (10_005, 0)


@pytest.mark.parametrize(
    ("account", "symbol", "word"),
    [("eve", "XYZ", "no such account"), ("ann", "ABC", "no such market")],
)
def test_an_order_for_an_unknown_account_or_symbol_is_rejected(account: str, symbol: str, word: str) -> None:
    scripted = scripted_floor()
    assert word in the_rejection(scripted.play(scripted.script.buy(account, "a1", 1, 1, symbol=symbol)))


@pytest.mark.parametrize(
    ("quantity", "price", "word"), [(1.5, 1, "a multiple of the lot 1"), (1, 1.005, "a multiple of the tick 0.01")]
)
def test_ticks_and_lots_are_kept(quantity: float, price: float, word: str) -> None:
    scripted = scripted_floor()
    assert word in the_rejection(scripted.play(scripted.script.buy("ann", "a1", quantity, price)))


def test_prices_outside_the_market_are_rejected() -> None:
    scripted = scripted_floor(high=200)
    assert "it must be from" in the_rejection(scripted.play(scripted.script.buy("ann", "a1", 1, 200.01)))


def test_only_operators_administer_and_only_arbiters_report() -> None:
    floor, script = Floor(commit_passes=1, operators=[OPERATOR], arbiters=[3]), Script()
    (deposit,) = script.fund("ann", cash=5)
    forged = deposit._replace(gateway=GATEWAY)
    assert "is not an operator" in the_rejection(floor.apply(script.ordered(forged, source=GATEWAY)))
    assert "is not an arbiter" in the_rejection(floor.apply(script.ordered(TradeReport(1, 1, 0, bytes(32)), source=4)))
    assert floor.ledger.accounts == {}


def test_bytes_that_are_no_message_are_rejected_and_ticker_records_are_not_ours() -> None:
    scripted = scripted_floor()
    assert "kind is" in the_rejection(scripted.play(b"?"))
    assert scripted.play(b"\x54" + bytes(63)) == []


def test_a_halted_market_accepts_only_cancels() -> None:
    scripted = scripted_floor()
    script = scripted.script
    scripted.play(script.buy("ann", "a1", 1, 1), script.control(Action.HALT))
    assert "halted" in the_rejection(scripted.play(script.buy("ann", "a2", 1, 1)))
    assert "halted" in the_rejection(scripted.play(script.replace("ann", "a1", "a3", 1, 2)))
    assert kinds(scripted.play(script.cancel("ann", "a1"), script.control(Action.RESUME))) == [
        "Cancelled",
        "MarketChanged",
    ]
    assert kinds(scripted.play(script.buy("ann", "a4", 1, 1))) == ["Sequenced"]


def test_closing_a_market_cancels_all_orders_and_frees_the_symbol() -> None:
    scripted = scripted_floor()
    script = scripted.script
    scripted.play(script.buy("ann", "a1", 1, 1), script.sell("bob", "b1", 5, 200, stop=150))
    assert kinds(scripted.play(script.control(Action.CLOSE))) == ["MarketChanged", "Cancelled", "Cancelled"]
    assert balance(scripted, "ann") == (10_000, 0)
    assert balance(scripted, "bob", "XYZ") == (1_000, 0)
    assert kinds(scripted.play(script.open(SecondPrice()))) == ["MarketChanged"]


def test_a_replace_keeps_its_place_when_only_the_quantity_falls() -> None:
    scripted = scripted_floor()
    script = scripted.script
    scripted.play(script.buy("ann", "a1", 10, 100), script.buy("bob", "b1", 10, 100))
    replaced, cancelled = scripted.play(script.replace("ann", "a1", "a2", 4, 100))
    assert isinstance(replaced, Replaced)
    assert isinstance(cancelled, Cancelled)
    assert (replaced.client_id, replaced.open, cancelled.open) == ("a2", fixed(4), fixed(4))
    assert balance(scripted, "ann") == (9_600, 400)
    *_, fill = scripted.play(script.sell("cyd", "c1", 4, 100))
    assert isinstance(fill, TentativeFill)
    assert fill.trade.buy_client_id == "a2"


def test_a_replace_with_more_quantity_or_another_price_goes_to_the_end() -> None:
    for quantity, price in ((11, 100), (10, 100)):
        scripted = scripted_floor()
        script = scripted.script
        scripted.play(script.buy("ann", "a1", 10, 99 if price == 100 and quantity == 10 else 100))
        scripted.play(script.buy("bob", "b1", 10, 100), script.replace("ann", "a1", "a2", quantity, price))
        *_, fill = scripted.play(script.sell("cyd", "c1", 4, 100))
        assert isinstance(fill, TentativeFill)
        assert fill.trade.buyer == "bob"


def test_a_replace_that_cannot_be_paid_leaves_the_order_as_it_was() -> None:
    scripted = scripted_floor()
    script = scripted.script
    scripted.play(script.buy("ann", "a1", 10, 100))
    before = scripted.floor.ledger.state_hash
    assert "may cost more" in the_rejection(scripted.play(script.replace("ann", "a1", "a2", 200, 100)))
    assert scripted.floor.ledger.state_hash == before
    assert kinds(scripted.play(script.cancel("ann", "a1"))) == ["Cancelled"]


def test_a_replace_below_what_is_filled_ends_the_order() -> None:
    scripted = scripted_floor()
    script = scripted.script
    scripted.play(script.buy("ann", "a1", 10, 100), script.sell("bob", "b1", 6, 100))
    assert kinds(scripted.play(script.replace("ann", "a1", "a2", 5, 101))) == ["Replaced", "Cancelled"]
    assert scripted.floor.accounts["ann"].orders == {}
    assert balance(scripted, "ann") == (9_400, 600)


def test_a_replace_that_crosses_trades() -> None:
    scripted = scripted_floor()
    script = scripted.script
    scripted.play(script.buy("ann", "a1", 10, 99), script.sell("bob", "b1", 6, 100))
    assert kinds(scripted.play(script.replace("ann", "a1", "a2", 10, 100))) == ["Replaced", "TentativeFill"]
    assert balance(scripted, "ann") == (9_000, 1_000)


def test_a_market_order_reserves_what_the_book_asks_and_gives_back_the_rest() -> None:
    scripted = scripted_floor()
    script = scripted.script
    scripted.play(script.sell("bob", "b1", 10, 100), script.sell("bob", "b2", 10, 110))
    outputs = scripted.play(script.buy("ann", "a1", 25))
    assert kinds(outputs) == ["Sequenced", "TentativeFill", "TentativeFill", "Cancelled"]
    assert balance(scripted, "ann") == (7_900, 2_100)


def test_a_market_order_that_the_account_cannot_pay_is_rejected_whole() -> None:
    scripted = scripted_floor()
    script = scripted.script
    scripted.play(script.sell("bob", "b1", 100, 100), script.sell("cyd", "c1", 1, 101))
    assert "may cost more" in the_rejection(scripted.play(script.buy("ann", "a1", 101)))


def test_stops_follow_one_another_and_one_without_funds_is_cancelled() -> None:
    scripted = scripted_floor()
    script = scripted.script
    scripted.play(
        script.sell("bob", "b1", 1, 100),
        script.sell("bob", "b2", 1, 101),
        script.sell("bob", "b3", 100, 102),
        script.buy("cyd", "c1", 1, stop=100),
        script.buy("dan", "d1", 99, stop=101),
    )
    outputs = scripted.play(script.buy("ann", "a1", 1, 100))
    assert kinds(outputs) == ["Sequenced", "TentativeFill", "TentativeFill", "Cancelled"]
    last = outputs[-1]
    assert isinstance(last, Cancelled)
    assert last.reason == "its stop was triggered, and the account cannot pay"
    assert balance(scripted, "dan") == (10_000, 0)


def test_a_stop_limit_order_rests_once_it_is_triggered() -> None:
    scripted = scripted_floor()
    script = scripted.script
    scripted.play(
        script.sell("dan", "d1", 5, 99.5, stop=99), script.buy("ann", "a1", 1, 99), script.sell("bob", "b1", 1, 99)
    )
    assert scripted.floor.markets["XYZ"].book.depth(1) == ([], [(fixed(99.5), fixed(5))])


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (SelfTrade.CANCEL_NEWEST, ["Sequenced", "Cancelled"]),
        (SelfTrade.CANCEL_OLDEST, ["Sequenced", "Cancelled"]),
        (SelfTrade.CANCEL_BOTH, ["Sequenced", "Cancelled", "Cancelled"]),
        (SelfTrade.DECREMENT, ["Sequenced", "Cancelled", "Cancelled"]),
        (SelfTrade.ALLOW, ["Sequenced", "TentativeFill"]),
    ],
)
def test_self_trade_prevention_leaves_reserved_just_what_is_open(policy: SelfTrade, words: list[str]) -> None:
    scripted = scripted_floor()
    script = scripted.script
    scripted.play(script.sell("ann", "a1", 10, 100))
    assert kinds(scripted.play(script.buy("ann", "a2", 4, 100, self_trade=policy))) == words
    book = scripted.floor.markets["XYZ"].book
    tentative = sum(trade.quantity for trade in scripted.floor.tentative())
    assert balance(scripted, "ann")[1] == 100 * (sum(order.open for order in book.bids) + tentative) / 1e9
    assert balance(scripted, "ann", "XYZ")[1] == (sum(order.open for order in book.asks) + tentative) / 1e9


def test_limits_are_named_when_they_are_reached() -> None:
    limits = FloorLimits(accounts_max=4, symbols_max=2, gateways_max=2, open_orders_max=1, client_ids_max=2)
    scripted = scripted_floor(limits=limits)
    script = scripted.script
    assert "4 accounts" in the_rejection(scripted.play(*script.fund("eve", cash=1)))
    scripted.play(script.open(symbol="ABC"))
    assert "2 markets" in the_rejection(scripted.play(script.open(symbol="DEF")))
    scripted.play(script.buy("ann", "a1", 1, 1))
    assert "open orders" in the_rejection(scripted.play(script.buy("ann", "a2", 1, 1)))
    assert "gateway is 9" in the_rejection(scripted.play(script.buy("ann", "a3", 1, 1, gateway=9)))


def test_tentative_trades_have_a_limit() -> None:
    scripted = scripted_floor(limits=FloorLimits(tentative_max=1), commit_passes=9)
    script = scripted.script
    scripted.play(script.sell("bob", "b1", 1, 1), script.buy("ann", "a1", 1, 1))
    assert "wait for their commit" in the_rejection(scripted.play(script.buy("ann", "a2", 1, 1)))


def test_a_withdrawal_takes_only_what_is_available() -> None:
    scripted = scripted_floor()
    script = scripted.script
    scripted.play(script.buy("ann", "a1", 90, 100))
    (much,) = script.fund("ann", cash=-1_001)
    assert "are available to withdraw" in the_rejection(scripted.play(much))
    (exact,) = script.fund("ann", cash=-1_000)
    assert kinds(scripted.play(exact)) == ["Funded"]
    assert scripted.floor.ledger.imbalance() == {}


def test_an_opening_auction_passes_into_continuous_trading() -> None:
    scripted = scripted_floor(CallAuction())
    script = scripted.script
    scripted.play(script.buy("ann", "a1", 10, 102), script.sell("bob", "b1", 6, 100))
    assert "cross" in the_rejection(scripted.play(script.open(Continuous())))
    assert kinds(scripted.play(script.control(Action.UNCROSS))) == ["TentativeFill", "MarketChanged"]
    assert kinds(scripted.play(script.open(Continuous()), script.sell("cyd", "c1", 4, 102))) == [
        "MarketChanged",
        "Sequenced",
        "TentativeFill",
    ]
    assert balance(scripted, "ann") == (8_980, 1_020)


def test_a_market_order_in_an_auction_reserves_the_highest_price_and_pays_the_auction_price() -> None:
    scripted = scripted_floor(CallAuction(), high=200)
    script = scripted.script
    scripted.play(script.buy("ann", "a1", 10), script.sell("bob", "b1", 10, 100))
    assert balance(scripted, "ann") == (8_000, 2_000)
    scripted.play(script.control(Action.UNCROSS))
    assert balance(scripted, "ann") == (9_000, 1_000)


def test_a_market_order_without_a_bound_is_rejected_in_an_auction() -> None:
    scripted = scripted_floor(CallAuction())
    assert "no price_max" in the_rejection(scripted.play(scripted.script.buy("ann", "a1", 10)))
    assert "auction" in the_rejection(
        scripted.play(scripted.script.buy("ann", "a2", 1, 1, time_in_force=TimeInForce.IOC))
    )
    assert "no rounds" in the_rejection(staged_and_uncrossed())


def staged_and_uncrossed() -> list[FloorOutput]:
    scripted = scripted_floor()
    return scripted.play(scripted.script.control(Action.UNCROSS))


def test_a_batch_clears_when_a_token_has_passed_its_end() -> None:
    scripted = scripted_floor(BatchAuction(period=SECOND))
    script = scripted.script
    scripted.play(script.buy("ann", "a1", 10, 102), script.sell("bob", "b1", 10, 100), at=10 * SECOND)
    assert scripted.play(Pulse(), at=11 * SECOND - 1) == []
    assert kinds(scripted.play(Pulse(), at=11 * SECOND)) == ["TentativeFill"]
    assert [trade.price for trade in scripted.floor.tentative()] == [fixed(101)]
    assert balance(scripted, "ann") == (8_990, 1_010)


def test_a_sealed_round_sells_at_the_second_price_and_ends() -> None:
    scripted = scripted_floor(SecondPrice())
    script = scripted.script
    offer = script.sell("dan", "d1", 1, 10)
    bids = [script.buy(name, f"{name}1", 1, price) for name, price in (("ann", 30), ("bob", 50), ("cyd", 40))]
    scripted.play(offer, *bids)
    assert scripted.floor.markets["XYZ"].is_sealed
    assert "offer the next one when it is sold" in the_rejection(scripted.play(script.sell("ann", "a9", 1, 1)))
    outputs = scripted.play(script.control(Action.UNCROSS))
    assert kinds(outputs) == ["TentativeFill", "MarketChanged", "Cancelled", "Cancelled"]
    (trade,) = scripted.floor.tentative()
    assert (trade.buyer, trade.price) == ("bob", fixed(40))
    assert balance(scripted, "bob") == (9_960, 40)
    assert balance(scripted, "ann") == (10_000, 0)


def test_the_dutch_clock_falls_with_the_instants_of_tokens_and_stands_still_in_a_halt() -> None:
    rule = DutchClock(start=fixed(100), decrement=fixed(1), step_period=SECOND)
    scripted = scripted_floor(rule, commit_passes=9)
    script = scripted.script
    scripted.play(script.sell("dan", "d1", 10, 50), at=100 * SECOND)
    scripted.play(script.control(Action.HALT), at=110 * SECOND)
    scripted.play(script.control(Action.RESUME), at=150 * SECOND)
    assert scripted.floor.markets["XYZ"].clock_price(151 * SECOND) == fixed(89)
    outputs = scripted.play(script.buy("ann", "a1", 4), at=152 * SECOND)
    assert kinds(outputs) == ["Sequenced", "TentativeFill"]
    assert balance(scripted, "ann") == (10_000 - 4 * 88, 4 * 88)
    assert scripted.play(script.buy("bob", "b1", 6, 80), at=153 * SECOND)[1:] == []
    assert kinds(scripted.play(Pulse(), at=170 * SECOND)) == ["TentativeFill"]
    assert [trade.price for trade in scripted.floor.tentative()][-1] == fixed(80)


def test_the_price_of_a_trade_is_the_takers_where_the_rule_says_so() -> None:
    scripted = scripted_floor(Continuous(pricing=Pricing.TAKER))
    script = scripted.script
    scripted.play(script.sell("bob", "b1", 1, 100), script.buy("ann", "a1", 1, 103))
    assert balance(scripted, "ann") == (9_897, 103)


def test_tokens_come_in_order() -> None:
    scripted = scripted_floor()
    with pytest.raises(OutOfOrder, match="tokens must increase"):
        scripted.floor.apply(scripted.script.tokens[0])


def test_a_fragment_is_no_message_of_a_floor() -> None:
    scripted = scripted_floor()
    ordered = scripted.script.ordered(Pulse())
    (span,) = ordered.spans
    broken = span.__class__(7, 1, 1, 1, span.sequence, (b"x" * 40,), (1,), (True,))
    outputs = scripted.floor.apply(ordered.__class__(0, 1, ordered.token, 1, 1, 0, (broken,)))
    assert kinds(outputs) == ["Rejected"]


def test_funding_of_nothing_is_no_message() -> None:
    scripted = scripted_floor()
    payload = bytearray(encode(Funding(OPERATOR, 50, "ann", CASH, 1)))
    payload[-8:] = bytes(8)
    assert "amount is 0" in the_rejection(scripted.play(bytes(payload)))
