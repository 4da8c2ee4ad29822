"""The edge as a whole: lossy feeds, repairs, silent receivers, plan changes, late joins, and hostile senders."""

from collections.abc import Sequence

import pytest

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.core.link_faults import NO_FAULTS
from fairtape.edge.protocol.customer import (
    Customer,
    CustomerOptions,
    Delivered,
    Ended,
    PlanChange,
    Silent,
    StripeBreak,
    StripeGap,
    StripeReformation,
    StripeStale,
)
from fairtape.edge.protocol.effects import RepairRefused
from fairtape.edge.protocol.remulticast import RemulticastOptions
from fairtape.edge.protocol.retransmitter import Grade, RetransmitterOptions
from fairtape.edge.protocol.sessions import Edition, StripePosition
from fairtape.edge.protocol.stripe_sequencer import StripeSequencer
from fairtape.formats.moldudp64 import MoldRequest, encode_request
from simulation.edge_region import SERVERS, CustomerNode, SimulatedRegion
from unit.edge.edge_values import NOON, edition, formation_change, plan, sequences, tokens

GUARANTEED = CustomerOptions(patience=None)
TRADES = (1, 2)  # the stripes of the plan that carry them
BOTH = (SERVERS["A"], SERVERS["B"])


def guaranteed(servers: Sequence[tuple[str, int]] = BOTH) -> Customer:
    return Customer("FT", servers=servers, options=GUARANTEED)


def check_account(node: CustomerNode) -> None:
    """In each session every number from 1 on is delivered or a gap, once and in order."""
    following: dict[str, int] = {}
    for record in node.records:
        if isinstance(record, Delivered | StripeGap):
            count = len(record.messages) if isinstance(record, Delivered) else record.count
            assert record.first == following.get(record.session, 1)
            following[record.session] = record.first + count


def region_of(*customers: Customer, loss: float = 0.0, seed: int = 1, of: Edition | None = None) -> SimulatedRegion:
    region = SimulatedRegion(of or edition(), loss=loss, seed=seed)
    for customer in customers:
        node = region.add_customer(customer)
        region.follow(node, (of or edition()).plan, TRADES, starts={1: 1, 2: 1})
    return region


def test_two_feeds_that_lose_a_fifth_each_leave_a_twenty_fifth_missing_as_gaps() -> None:
    """Best effort only delivers the messages that are not lost in the regional area. TRMP 2001 §4.1."""
    region = region_of(*(Customer("FT") for _ in range(12)), loss=0.2)
    region.start()
    region.run(region.release(tokens(1_500, 3)) + 2 * SECOND)
    numbered = sum(region.sites["A"].remulticaster.position.following[:2]) - 2
    for node in region.customers:
        check_account(node)
        assert len(node.delivered()) + node.missing() == numbered
        assert len(set(node.numbers())) == len(node.numbers())
    missing = sum(node.missing() for node in region.customers) / (numbered * len(region.customers))
    assert 0.035 <= missing <= 0.045


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_guaranteed_customer_misses_nothing_and_gets_it_in_order(seed: int) -> None:
    """When an R detects a missing sequence number, it can request the message from R_x. TRMP 2001 §4.1."""
    region = region_of(guaranteed(), loss=0.2, seed=seed)
    region.start()
    orders = tokens(1_000, 3)
    region.run(region.release(orders) + 2 * SECOND)
    (node,) = region.customers
    check_account(node)
    assert node.missing() == 0
    assert sorted(node.numbers()) == sequences(orders)
    for stripe in TRADES:
        numbers = [number for number in map(_number, node.delivered(stripe)) if number]
        assert numbers == sorted(numbers)


def _number(message: bytes) -> int:
    return int.from_bytes(message[36:44], "big") if message[:1] == b"P" else 0


def test_best_effort_may_ask_too_and_then_misses_far_less() -> None:
    region = region_of(Customer("FT", servers=BOTH), loss=0.2)
    region.start()
    region.run(region.release(tokens(1_000, 3)) + 2 * SECOND)
    (node,) = region.customers
    check_account(node)
    assert 0 < node.missing() < 0.02 * len(node.delivered())


def test_nothing_is_missed_when_one_receiver_falls_silent() -> None:
    region = region_of(Customer("FT"))
    region.link_faults = NO_FAULTS
    region.start()
    orders = tokens(500, 3)
    end = region.release(orders)
    region.run(NOON + 200 * MILLISECOND)
    region.sites["A"].alive = False
    region.run(end + 5 * SECOND)
    (node,) = region.customers
    assert node.missing() == 0
    assert sorted(node.numbers()) == sequences(orders)
    assert {record.feed for record in node.all_of(Silent) if isinstance(record, Silent)} == {"A"}
    assert not node.all_of(StripeStale)
    region.sites["B"].alive = False
    region.run(end + 10 * SECOND)
    assert {record.stripe for record in node.all_of(StripeStale) if isinstance(record, StripeStale)} == set(TRADES)


def test_another_server_is_asked_when_one_is_silent() -> None:
    region = region_of(guaranteed(), loss=0.3, seed=5)
    region.sites["A"].mute = True
    region.start()
    orders = tokens(300, 3)
    region.run(region.release(orders) + 2 * SECOND)
    (node,) = region.customers
    assert node.missing() == 0
    assert sorted(node.numbers()) == sequences(orders)
    assert region.sites["B"].server.counts.messages > 0


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_a_plan_changes_under_load_without_a_lost_or_doubled_message(loss: float) -> None:
    region = region_of(guaranteed(), loss=loss, seed=7)
    new = plan(2, stripes=3)
    region.start()
    orders = tokens(600, 3)
    middle = orders[300].sequence

    def change() -> None:
        for site in region.sites.values():
            site.remulticaster.change_plan(new, at_sequence=middle, at=NOON + middle)
            site.server.follow(new)

    end = region.release(orders)
    region.at(NOON + 250 * MILLISECOND, change)
    region.at(NOON + 260 * MILLISECOND, lambda: region.follow(region.customers[0], new, (1, 2, 3)))
    region.run(end + 3 * SECOND)
    (node,) = region.customers
    check_account(node)
    assert node.missing() == 0
    numbers = node.numbers()
    assert sorted(numbers) == sequences(orders)
    turn = next(place for place, number in enumerate(numbers) if number >= middle)
    assert max(numbers[:turn]) < middle <= min(numbers[turn:])
    ends = [record for record in node.records if isinstance(record, Ended)]
    assert [record.complete for record in ends] == [True, True]


def test_a_customer_that_learns_of_a_plan_late_still_misses_nothing() -> None:
    region = region_of(guaranteed())
    new = plan(2, stripes=3)
    region.start()
    orders = tokens(400, 3)
    for site in region.sites.values():
        site.remulticaster.change_plan(new, at_sequence=orders[100].sequence, at=NOON)
        site.server.follow(new)
    end = region.release(orders)
    region.run(end)
    (node,) = region.customers
    assert PlanChange(2, orders[100].sequence) in node.records
    region.follow(node, new, (1, 2, 3))
    region.run(end + 2 * SECOND)
    assert node.missing() == 0
    assert sorted(node.numbers()) == sequences(orders)


def test_reformations_are_reported_and_a_break_begins_new_sessions() -> None:
    region = region_of(guaranteed(), loss=0.1, seed=3)
    region.start()
    orders = tokens(300, 3)
    for site in region.sites.values():
        site.remulticaster.on_formation(formation_change(orders[100].sequence, 2))
        site.remulticaster.on_formation(formation_change(orders[200].sequence, 3, broken=True))
    region.run(region.release(orders) + 2 * SECOND)
    (node,) = region.customers
    check_account(node)
    assert sorted(node.numbers()) == sequences(orders)
    assert {(r.sequence, r.formation) for r in node.records if isinstance(r, StripeReformation)} == {
        (orders[100].sequence, 2)
    }
    assert {(r.sequence, r.formation) for r in node.records if isinstance(r, StripeBreak)} == {
        (orders[200].sequence, 3)
    }
    assert len({record.session for record in node.records if isinstance(record, Delivered)}) == 4


def test_a_late_joiner_begins_where_it_joins_and_one_that_resumes_where_it_left() -> None:
    region = region_of(loss=0.1, seed=9)
    region.start()
    orders = tokens(600, 3)
    end = region.release(orders)
    region.run(NOON + 300 * MILLISECOND)
    late, resumed = region.add_customer(guaranteed()), region.add_customer(guaranteed())
    region.follow(late, edition().plan, TRADES)
    region.follow(resumed, edition().plan, TRADES, starts={1: 100, 2: 1})
    region.run(end + 2 * SECOND)
    for node in (late, resumed):
        assert node.missing() == 0
        numbers = [number for number in node.numbers() if number > 1_000]
        assert sorted(numbers) == [number for number in sequences(orders) if number > 1_000]
    assert min(late.numbers()) > 850
    firsts = {record.session: record.first for record in reversed(resumed.records) if isinstance(record, Delivered)}
    assert sorted(firsts.values()) == [1, 100]


def test_a_customer_that_returns_after_a_plan_and_a_break_still_gets_everything() -> None:
    farewell = RemulticastOptions(closing_period=50 * MILLISECOND)
    region = SimulatedRegion(edition(), loss=0.1, seed=13, remulticast_options=farewell)
    new = plan(2, stripes=3)
    region.start()
    orders = tokens(900, 3)
    for site in region.sites.values():
        site.remulticaster.change_plan(new, at_sequence=orders[300].sequence, at=NOON)
        site.remulticaster.on_formation(formation_change(orders[600].sequence, 2, broken=True))
        site.server.follow(new)
    end = region.release(orders)
    region.run(NOON + 700 * MILLISECOND)
    returned, late = region.add_customer(guaranteed()), region.add_customer(guaranteed())
    region.follow(returned, edition().plan, TRADES, starts={1: 20, 2: 20})
    region.follow(returned, new, (1, 2, 3))
    region.follow(late, new, (1, 2, 3))
    region.run(end + 3 * SECOND)
    for node, first in ((returned, 60), (late, 2_200)):
        assert node.missing() == 0
        numbers = node.numbers()
        assert len(set(numbers)) == len(numbers)
        assert {number for number in numbers if number >= first} == set(range(first, 2_701))


def test_a_restarted_remulticaster_continues_with_the_same_numbers() -> None:
    region = region_of(guaranteed())
    region.start()
    orders = tokens(400, 3)
    region.release(orders[:200])
    region.run(NOON + 200 * MILLISECOND)
    sequencer = StripeSequencer(StripePosition.fresh(edition()))
    sequencer.begin()
    for ordered in orders[:250]:
        sequencer.deliver(ordered)
    region.sites["B"].alive = False
    region.release(orders[200:250])
    region.run(NOON + 300 * MILLISECOND)
    region.sites["B"].alive = True
    region.sites["B"].remulticaster.resume(sequencer.position, region.now)
    end = region.release(orders[250:])
    region.run(NOON + 350 * MILLISECOND)
    region.sites["A"].alive = False
    region.run(end + SECOND)
    (node,) = region.customers
    assert node.missing() == 0
    assert sorted(node.numbers()) == sequences(orders)


def test_floods_and_malformed_requests_are_refused_while_others_are_served() -> None:
    options = RetransmitterOptions(requests_per_s=500)
    region = SimulatedRegion(edition(), loss=0.2, seed=4, server_options=options)
    node = region.add_customer(guaranteed(servers=(SERVERS["A"],)))
    region.follow(node, edition().plan, TRADES, starts={1: 1, 2: 1})
    server = region.sites["A"].server
    server.accounts.register(node.address[0], Grade.GUARANTEED)
    region.start()
    orders = tokens(300, 3)
    end = region.release(orders)
    session = edition().session(1)
    foes = [(f"10.9.0.{host}", 666) for host in range(5)]

    def attack() -> None:
        for foe in foes:
            server.receive(region.chance.randbytes(20), region.now, origin=foe)
            server.receive(b"short", region.now, origin=foe)
            server.receive(encode_request(MoldRequest(session, 1 << 60, 9)), region.now, origin=foe)
            server.receive(encode_request(MoldRequest(session, 1, 65_535)), region.now, origin=foe)
            server.receive(encode_request(MoldRequest(session, 1, 5)), region.now, origin=foe)

    for at in range(NOON, end, MILLISECOND):
        region.at(at, attack)
    region.run(end + 2 * SECOND)
    counts = server.counts
    assert min(counts.malformed, counts.absurd, counts.floods, counts.crossed) > 0
    assert node.missing() == 0
    assert sorted(node.numbers()) == sequences(orders)
    assert not any(isinstance(effect, RepairRefused) for effect in server.drain())


def test_equal_seeds_give_equal_records() -> None:
    def play() -> list[object]:
        region = region_of(Customer("FT"), guaranteed(), loss=0.2, seed=11)
        region.start()
        region.run(region.release(tokens(100, 3)) + SECOND)
        return [node.records for node in region.customers]

    assert play() == play()
