"""The gateway core on one sequence: which requests it accepts and refuses, and which events it reports."""

from fairtape.core.effects import FormationChange
from fairtape.core.instants import SECOND
from fairtape.exchange.orders import Side, encode
from fairtape.gateway.core.events import Cause, EventKind, RequestKind
from fairtape.gateway.core.limits import GatewayLimits
from fairtape.market.prices import ONE
from unit.exchange.floor_values import fixed
from unit.gateway.gateway_values import NOW, Sequence, buy, cancel, gateway_of, kinds, order, replace, sell


def world(count: int = 1, limits: GatewayLimits | None = None) -> Sequence:
    return Sequence([gateway_of(101 + number, limits) for number in range(count)]).open("ann", "bob", "cyd")


def state(sequence: Sequence) -> list[bytes]:
    return [gateway.floor.ledger.state_hash for gateway in sequence.gateways]


def test_a_trade_is_reported_as_the_sequence_decides_it() -> None:
    sequence = world()
    (gateway,) = sequence.gateways
    assert gateway.enter("ann", sell("ann", "a1", 10, 5), NOW).entered
    assert gateway.enter("bob", buy("bob", "b1", 4, 5), NOW).entered
    assert sequence.new_events() == []  # nothing is sequenced yet
    sequence.settle()
    events = sequence.new_events()
    assert kinds(events) == [
        ("a1", "sequenced"),
        ("b1", "sequenced"),
        ("b1", "filled"),
        ("a1", "filled"),
        ("b1", "committed"),
        ("a1", "committed"),
    ]
    assert [event.number for event in events] == sorted({event.number for event in events})
    filled = events[3]
    assert (filled.open, filled.filled, filled.average, filled.took) == (fixed(6), fixed(4), fixed(5), False)
    assert len(gateway.pending) == 0


def test_an_order_that_is_not_sequenced_yet_holds_its_funds() -> None:
    sequence = world()
    (gateway,) = sequence.gateways
    assert gateway.enter("ann", buy("ann", "a1", 1_000, 9), NOW).entered
    refused = gateway.enter("ann", buy("ann", "a2", 1_000, 2), NOW)
    assert (refused.cause, refused.reason) == (Cause.FUNDS, "1000 of cash is available; the request needs 2000")
    assert gateway.enter("ann", sell("ann", "a3", 1_000, 20), NOW).entered
    assert gateway.enter("ann", sell("ann", "a4", 1, 20), NOW).cause is Cause.FUNDS
    sequence.next_token()
    assert gateway.enter("ann", buy("ann", "a5", 1_000, 2), NOW).cause is Cause.FUNDS  # now the floor has reserved them
    assert gateway.enter("ann", buy("ann", "a6", 500, 2), NOW).entered


def test_the_same_funds_through_two_gateways_at_once_are_spent_once() -> None:
    """Both accept the order, as neither can know of the other; the sequence decides, equally at every replica."""
    sequence = world(2)
    first, second = sequence.gateways
    assert first.enter("ann", buy("ann", "a1", 1_000, 9), NOW).entered
    assert second.enter("ann", buy("ann", "a2", 1_000, 9), NOW).entered
    sequence.next_token()
    one, other = sequence.new_events()
    assert (one.client_id, one.kind) == ("a1", EventKind.SEQUENCED)
    assert (other.client_id, other.kind, other.asked) == ("a2", EventKind.REJECTED, RequestKind.ORDER)
    assert other.reason == "1000 of cash is available; the order may cost more"
    assert not other.stands
    assert len(set(state(sequence))) == 1
    assert [len(gateway.pending) for gateway in sequence.gateways] == [0, 0]
    assert first.floor.ledger.accounts["ann"].cash.reserved == fixed(9_000)


def test_a_login_without_permission_changes_nothing() -> None:
    sequence = world()
    (gateway,) = sequence.gateways
    before = state(sequence)
    assert gateway.enter("bob", buy("ann", "x", 1, 5), NOW).reason == "account is ann; bob may not act for it"
    assert gateway.cancel("bob", cancel("ann", "x"), NOW).cause is Cause.ACCOUNT
    assert gateway.replace("broker", replace("ann", "x", "y", 1, 5), NOW).cause is Cause.ACCOUNT
    assert gateway.enter("broker", buy("cyd", "c1", 1, 5), NOW).entered  # a broker vouches for its own customers
    assert gateway.enter("dan", buy("dan", "d1", 1, 5), NOW).reason == "account is dan; it was never funded"
    assert len(gateway.payloads()) == 1
    assert state(sequence) == before


def test_rate_open_orders_and_notional_have_limits() -> None:
    limits = GatewayLimits(requests_per_s=2, burst_period=SECOND, open_orders_max=3, notional_max=100 * ONE)
    sequence = world(limits=limits)
    (gateway,) = sequence.gateways
    answers = [gateway.enter("ann", buy("ann", f"a{number}", 1, 5), NOW) for number in range(4)]
    assert [answer.cause for answer in answers] == [None, None, None, Cause.RATE]
    assert answers[3].reason == "the account sends more than 2 requests a second, its limit"
    later = NOW + 10 * SECOND
    assert gateway.enter("ann", buy("ann", "b", 1, 5), later).reason == "the account has 3 open orders, its limit"
    over = gateway.enter("bob", sell("bob", "c", 11, 10), NOW)
    assert over.reason == "the open orders would come to 110; the limit is 100"
    assert gateway.enter("bob", sell("bob", "d", 10, 10), NOW).entered
    sequence.settle()
    assert (
        gateway.enter("bob", sell("bob", "e", 1, 1), later).cause is Cause.LIMIT
    )  # the floor's open orders count, too
    assert gateway.cancel("bob", cancel("bob", "d"), later).entered
    sequence.settle()
    assert gateway.enter("bob", sell("bob", "e", 1, 1), later + SECOND).entered


def test_a_client_id_is_never_used_twice() -> None:
    sequence = world()
    (gateway,) = sequence.gateways
    assert gateway.enter("ann", buy("ann", "a1", 1, 5), NOW).entered
    assert gateway.enter("ann", buy("ann", "a1", 1, 5), NOW).cause is Cause.DUPLICATE  # while it is pending
    sequence.next_token()
    assert gateway.enter("ann", buy("ann", "a1", 1, 5), NOW).cause is Cause.DUPLICATE
    assert gateway.cancel("ann", cancel("ann", "a1"), NOW).entered
    sequence.next_token()
    assert gateway.enter("ann", buy("ann", "a1", 1, 5), NOW).cause is Cause.DUPLICATE  # and when it is over


def test_a_replayed_order_changes_nothing_at_all() -> None:
    sequence = world()
    (gateway,) = sequence.gateways
    gateway.enter("ann", buy("ann", "a1", 1, 5), NOW)
    captured = gateway.payloads()
    sequence.deliver([(101, captured)])
    sequence.new_events()
    before = state(sequence)
    sequence.deliver([(101, captured)])  # by its own source
    (event,) = sequence.new_events()
    assert (event.kind, event.stands) == (EventKind.REJECTED, True)
    assert event.reason == "gateway_number is 1; it must be above 1: the request is a replay"
    sequence.deliver([(102, captured)])  # by another source: its account gets no event
    assert sequence.new_events() == []
    assert state(sequence) == before


def test_a_pending_order_can_be_replaced_and_cancelled() -> None:
    sequence = world()
    (gateway,) = sequence.gateways
    assert gateway.enter("ann", buy("ann", "a1", 10, 5), NOW).entered
    assert gateway.replace("ann", replace("ann", "a1", "a2", 2_000, 6), NOW).cause is Cause.FUNDS
    assert gateway.replace("ann", replace("ann", "a1", "a2", 20, 6), NOW).entered
    assert gateway.pending.totals("ann").assets[""] == fixed(120)
    assert gateway.cancel("ann", cancel("ann", "a2"), NOW).entered
    assert gateway.cancel("ann", cancel("ann", "a3"), NOW).cause is Cause.ORDER
    sequence.next_token()
    events = sequence.new_events()
    assert kinds(events) == [("a1", "sequenced"), ("a2", "replaced"), ("a2", "cancelled")]
    assert (events[1].previous_id, events[1].open, events[2].open) == ("a1", fixed(20), 0)
    assert gateway.floor.ledger.accounts["ann"].cash.available == fixed(10_000)
    assert gateway.blotter.exposure("ann") == 0


def test_a_replace_of_a_waiting_order_takes_only_the_difference() -> None:
    sequence = world()
    (gateway,) = sequence.gateways
    gateway.enter("ann", buy("ann", "a1", 1_000, 9), NOW)
    sequence.next_token()
    assert gateway.replace("ann", replace("ann", "a1", "a2", 1_000, 11), NOW).cause is Cause.FUNDS
    assert gateway.replace("ann", replace("ann", "a1", "a2", 1_000, 10), NOW).entered
    sequence.next_token()
    assert gateway.floor.ledger.accounts["ann"].cash.reserved == fixed(10_000)
    assert gateway.blotter.exposure("ann") == fixed(10_000)


def test_invalid_values_are_refused_with_their_field() -> None:
    (gateway,) = world().gateways
    assert gateway.enter("ann", buy("ann", "a 1", 1, 5), NOW).cause is Cause.VALUE
    assert (
        gateway.enter("ann", buy("ann", "a1", 1, 5.001), NOW).reason
        == "price is 5.001; it must be a multiple of the tick 0.01"
    )
    assert gateway.enter("ann", buy("ann", "a1", 1, 5, symbol="ABC"), NOW).cause is Cause.SYMBOL
    assert gateway.enter("ann", order("ann", "a1", Side.BUY, 0, 5), NOW).cause is Cause.VALUE
    assert gateway.payloads() == []


def test_a_full_gateway_refuses_requests() -> None:
    (gateway,) = world(limits=GatewayLimits(pending_max=1)).gateways
    assert gateway.enter("ann", buy("ann", "a1", 1, 5), NOW).entered
    assert gateway.enter("bob", buy("bob", "b1", 1, 5), NOW).cause is Cause.BUSY


def test_a_request_of_an_earlier_process_is_sequenced_once() -> None:
    """A gateway that was killed enters again what is not in the sequence; the late original is rejected."""
    sequence = world()
    (gateway,) = sequence.gateways
    gateway.enter("ann", buy("ann", "a1", 1, 5), NOW)
    gateway.enter("ann", buy("ann", "a2", 1, 5), NOW)
    entered = gateway.pending.requests()
    payloads = gateway.payloads()
    sequence.deliver([(101, payloads[:1])])
    sequence.new_events()
    reborn = gateway_of(101, first_number=NOW)
    for ordered in sequence.sent:
        reborn.apply(ordered)
    reborn.events()
    sequence.gateways = [reborn]
    assert [reborn.reenter(request, NOW).entered for request in entered] == [False, True]
    sequence.next_token()
    sequence.deliver([(101, payloads[1:])])
    first, second = sequence.new_events()
    assert (first.client_id, first.kind) == ("a2", EventKind.SEQUENCED)
    assert (second.client_id, second.kind, second.stands) == ("a2", EventKind.REJECTED, True)
    assert len(reborn.floor.accounts["ann"].orders) == 2


def test_events_can_be_read_again_from_any_number_on() -> None:
    sequence = world(2)
    first, second = sequence.gateways
    first.enter("ann", sell("ann", "a1", 10, 5), NOW)
    second.enter("bob", buy("bob", "b1", 4, 5), NOW)
    sequence.settle()
    events = [event for event in sequence.new_events() if event.account == "ann"]
    for gateway in sequence.gateways:
        for index, event in enumerate(events):
            assert list(gateway.blotter.since(event.number, {"ann"})) == events[index + 1 :]


def test_after_a_break_numbers_go_back_in_a_new_era() -> None:
    sequence = world()
    (gateway,) = sequence.gateways
    gateway.enter("ann", sell("ann", "a1", 10, 5), NOW)
    sequence.next_token()
    kept = sequence.sent[:]
    gateway.enter("bob", buy("bob", "b1", 4, 5), NOW)
    sequence.next_token()
    last = sequence.new_events()[-1]
    change = FormationChange(0, 2, 3, sequence.sent[-1].sequence, True, b"", 0)
    gateway.on_formation(change)
    assert gateway.stale
    assert kinds(gateway.events()) == [("b1", "voided"), ("a1", "voided")]
    assert gateway.enter("ann", sell("ann", "a2", 1, 5), NOW).cause is Cause.BUSY
    rebuilt = gateway_of(101, first_number=NOW)
    for ordered in kept:
        rebuilt.apply(ordered)
    rebuilt.on_formation(change)
    assert not rebuilt.stale
    assert rebuilt.blotter.era == 2
    heard = rebuilt.blotter.resume_after(last.era, last.number)
    assert heard == rebuilt.blotter.last < last.number
    assert rebuilt.blotter.resume_after(2, heard + 10) == heard + 10  # of this era: nothing was revoked


def test_the_tables_of_orders_and_events_are_bounded() -> None:
    from fairtape.gateway.core.blotter import Blotter

    gateway = gateway_of(101)
    gateway.blotter = Blotter(events_max=4, done_max=1)
    sequence = Sequence([gateway]).open("ann")
    for number in range(4):
        gateway.enter("ann", buy("ann", f"a{number}", 1, 5), NOW)
        gateway.cancel("ann", cancel("ann", f"a{number}"), NOW)
        sequence.next_token()
    assert len(list(gateway.blotter.since(0, {"ann"}))) == 4
    assert gateway.blotter.forgotten > 0
    assert gateway.blotter.order("ann", "a2") is None
    assert gateway.blotter.order("ann", "a3") is not None


def test_payloads_are_the_floors_own_messages() -> None:
    (gateway,) = world().gateways
    wanted = buy("ann", "a1", 1, 5)
    number = gateway.enter("ann", wanted, NOW).gateway_number
    assert gateway.payloads() == [encode(wanted._replace(gateway=101, gateway_number=number, entered_at=NOW))]
