"""The edge as a whole: lossy feeds, repairs, silent receivers, plan changes, late joins, and hostile neighbours."""

from collections.abc import Sequence

import pytest

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.core.link_faults import NO_FAULTS
from fairtape.edge.protocol.customer import Customer, CustomerOptions
from fairtape.edge.protocol.customer_records import (
    Break,
    Delivered,
    Ended,
    Gap,
    PlanChange,
    Reformation,
    Silent,
    Stale,
)
from fairtape.edge.protocol.effects import Grade, Refusal
from fairtape.edge.protocol.remulticast import RemulticastOptions
from fairtape.edge.protocol.retransmitter import RetransmitterOptions
from fairtape.edge.protocol.sessions import Edition, StripePosition
from fairtape.edge.protocol.stripe_sequencer import StripeSequencer
from fairtape.formats.moldudp64 import MoldRequest, encode_request
from simulation.edge_town import SERVERS, Household, Town
from unit.edge.edge_values import NOON, edition, plan, sequences, tokens, turning

GUARANTEED = CustomerOptions(patience=None)
TRADES = (1, 2)  # the stripes of the plan that carry them
BOTH = (SERVERS["A"], SERVERS["B"])


def guaranteed(servers: Sequence[tuple[str, int]] = BOTH) -> Customer:
    return Customer("FT", servers=servers, options=GUARANTEED)


def check_account(home: Household) -> None:
    """In each session every number from 1 on is delivered or a gap, once and in order."""
    following: dict[str, int] = {}
    for record in home.records:
        if isinstance(record, Delivered | Gap):
            count = len(record.messages) if isinstance(record, Delivered) else record.count
            assert record.first == following.get(record.session, 1)
            following[record.session] = record.first + count


def town_of(*customers: Customer, loss: float = 0.0, seed: int = 1, of: Edition | None = None) -> Town:
    town = Town(of or edition(), loss=loss, seed=seed)
    for customer in customers:
        home = town.household(customer)
        town.follow(home, (of or edition()).plan, TRADES, starts={1: 1, 2: 1})
    return town


def test_two_feeds_that_lose_a_fifth_each_leave_a_twenty_fifth_missing_and_all_of_it_is_told() -> None:
    """Best effort only delivers the messages that are not lost in the regional area. TRMP 2001 §4.1."""
    town = town_of(*(Customer("FT") for _ in range(12)), loss=0.2)
    town.start()
    town.run(town.release(tokens(1_500, 3)) + 2 * SECOND)
    numbered = sum(town.stations["A"].outlet.standing.following[:2]) - 2
    for home in town.households:
        check_account(home)
        assert len(home.delivered()) + home.missing() == numbered
        assert len(set(home.numbers())) == len(home.numbers())
    missing = sum(home.missing() for home in town.households) / (numbered * len(town.households))
    assert 0.035 <= missing <= 0.045


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_guaranteed_customer_misses_nothing_and_gets_it_in_order(seed: int) -> None:
    """When an R detects a missing sequence number, it can request the message from R_x. TRMP 2001 §4.1."""
    town = town_of(guaranteed(), loss=0.2, seed=seed)
    town.start()
    orders = tokens(1_000, 3)
    town.run(town.release(orders) + 2 * SECOND)
    (home,) = town.households
    check_account(home)
    assert home.missing() == 0
    assert sorted(home.numbers()) == sequences(orders)
    for stripe in TRADES:
        numbers = [number for number in map(_number, home.delivered(stripe)) if number]
        assert numbers == sorted(numbers)


def _number(message: bytes) -> int:
    return int.from_bytes(message[36:44], "big") if message[:1] == b"P" else 0


def test_best_effort_may_ask_too_and_then_misses_far_less() -> None:
    town = town_of(Customer("FT", servers=BOTH), loss=0.2)
    town.start()
    town.run(town.release(tokens(1_000, 3)) + 2 * SECOND)
    (home,) = town.households
    check_account(home)
    assert 0 < home.missing() < 0.02 * len(home.delivered())


def test_nothing_is_missed_when_one_receiver_falls_silent() -> None:
    town = town_of(Customer("FT"))
    town.link_faults = NO_FAULTS
    town.start()
    orders = tokens(500, 3)
    end = town.release(orders)
    town.run(NOON + 200 * MILLISECOND)
    town.stations["A"].alive = False
    town.run(end + 5 * SECOND)
    (home,) = town.households
    assert home.missing() == 0
    assert sorted(home.numbers()) == sequences(orders)
    assert {record.feed for record in home.all_of(Silent) if isinstance(record, Silent)} == {"A"}
    assert not home.all_of(Stale)
    town.stations["B"].alive = False
    town.run(end + 10 * SECOND)
    assert {record.stripe for record in home.all_of(Stale) if isinstance(record, Stale)} == set(TRADES)


def test_another_server_is_asked_when_one_is_silent() -> None:
    town = town_of(guaranteed(), loss=0.3, seed=5)
    town.stations["A"].mute = True
    town.start()
    orders = tokens(300, 3)
    town.run(town.release(orders) + 2 * SECOND)
    (home,) = town.households
    assert home.missing() == 0
    assert sorted(home.numbers()) == sequences(orders)
    assert town.stations["B"].server.counts.messages > 0


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_a_plan_changes_under_load_without_a_lost_or_doubled_message(loss: float) -> None:
    town = town_of(guaranteed(), loss=loss, seed=7)
    new = plan(2, stripes=3)
    town.start()
    orders = tokens(600, 3)
    middle = orders[300].sequence

    def change() -> None:
        for station in town.stations.values():
            station.outlet.change_plan(new, at_sequence=middle, at=NOON + middle)
            station.server.follow(new)

    end = town.release(orders)
    town.at(NOON + 250 * MILLISECOND, change)
    town.at(NOON + 260 * MILLISECOND, lambda: town.follow(town.households[0], new, (1, 2, 3)))
    town.run(end + 3 * SECOND)
    (home,) = town.households
    check_account(home)
    assert home.missing() == 0
    numbers = home.numbers()
    assert sorted(numbers) == sequences(orders)
    turn = next(place for place, number in enumerate(numbers) if number >= middle)
    assert max(numbers[:turn]) < middle <= min(numbers[turn:])
    ends = [record for record in home.records if isinstance(record, Ended)]
    assert [record.complete for record in ends] == [True, True]


def test_a_customer_that_learns_of_a_plan_late_still_misses_nothing() -> None:
    town = town_of(guaranteed())
    new = plan(2, stripes=3)
    town.start()
    orders = tokens(400, 3)
    for station in town.stations.values():
        station.outlet.change_plan(new, at_sequence=orders[100].sequence, at=NOON)
        station.server.follow(new)
    end = town.release(orders)
    town.run(end)
    (home,) = town.households
    assert PlanChange(2, orders[100].sequence) in home.records
    town.follow(home, new, (1, 2, 3))
    town.run(end + 2 * SECOND)
    assert home.missing() == 0
    assert sorted(home.numbers()) == sequences(orders)


def test_reformations_are_told_and_a_break_begins_new_sessions() -> None:
    town = town_of(guaranteed(), loss=0.1, seed=3)
    town.start()
    orders = tokens(300, 3)
    for station in town.stations.values():
        station.outlet.turn(turning(orders[100].sequence, 2))
        station.outlet.turn(turning(orders[200].sequence, 3, broken=True))
    town.run(town.release(orders) + 2 * SECOND)
    (home,) = town.households
    check_account(home)
    assert sorted(home.numbers()) == sequences(orders)
    assert {(r.sequence, r.formation) for r in home.records if isinstance(r, Reformation)} == {
        (orders[100].sequence, 2)
    }
    assert {(r.sequence, r.formation) for r in home.records if isinstance(r, Break)} == {(orders[200].sequence, 3)}
    assert len({record.session for record in home.records if isinstance(record, Delivered)}) == 4


def test_a_late_joiner_begins_where_it_joins_and_one_that_resumes_where_it_left() -> None:
    town = town_of(loss=0.1, seed=9)
    town.start()
    orders = tokens(600, 3)
    end = town.release(orders)
    town.run(NOON + 300 * MILLISECOND)
    late, resumed = town.household(guaranteed()), town.household(guaranteed())
    town.follow(late, edition().plan, TRADES)
    town.follow(resumed, edition().plan, TRADES, starts={1: 100, 2: 1})
    town.run(end + 2 * SECOND)
    for home in (late, resumed):
        assert home.missing() == 0
        numbers = [number for number in home.numbers() if number > 1_000]
        assert sorted(numbers) == [number for number in sequences(orders) if number > 1_000]
    assert min(late.numbers()) > 850
    firsts = {record.session: record.first for record in reversed(resumed.records) if isinstance(record, Delivered)}
    assert sorted(firsts.values()) == [1, 100]


def test_who_returns_after_a_plan_and_a_break_came_and_went_still_gets_everything() -> None:
    farewell = RemulticastOptions(farewell_period=50 * MILLISECOND)
    town = Town(edition(), loss=0.1, seed=13, outlet_options=farewell)
    new = plan(2, stripes=3)
    town.start()
    orders = tokens(900, 3)
    for station in town.stations.values():
        station.outlet.change_plan(new, at_sequence=orders[300].sequence, at=NOON)
        station.outlet.turn(turning(orders[600].sequence, 2, broken=True))
        station.server.follow(new)
    end = town.release(orders)
    town.run(NOON + 700 * MILLISECOND)
    returned, late = town.household(guaranteed()), town.household(guaranteed())
    town.follow(returned, edition().plan, TRADES, starts={1: 20, 2: 20})
    town.follow(returned, new, (1, 2, 3))
    town.follow(late, new, (1, 2, 3))
    town.run(end + 3 * SECOND)
    for home, first in ((returned, 60), (late, 2_200)):
        assert home.missing() == 0
        numbers = home.numbers()
        assert len(set(numbers)) == len(numbers)
        assert {number for number in numbers if number >= first} == set(range(first, 2_701))


def test_a_restarted_outlet_goes_on_with_the_same_numbers() -> None:
    town = town_of(guaranteed())
    town.start()
    orders = tokens(400, 3)
    town.release(orders[:200])
    town.run(NOON + 200 * MILLISECOND)
    striper = StripeSequencer(StripePosition.fresh(edition()))
    striper.begin()
    for ordered in orders[:250]:
        striper.deliver(ordered)
    town.stations["B"].alive = False
    town.release(orders[200:250])
    town.run(NOON + 300 * MILLISECOND)
    town.stations["B"].alive = True
    town.stations["B"].outlet.resume(striper.standing, town.now)
    end = town.release(orders[250:])
    town.run(NOON + 350 * MILLISECOND)
    town.stations["A"].alive = False
    town.run(end + SECOND)
    (home,) = town.households
    assert home.missing() == 0
    assert sorted(home.numbers()) == sequences(orders)


def test_floods_and_nonsense_are_refused_while_others_are_served() -> None:
    options = RetransmitterOptions(requests_per_s=500)
    town = Town(edition(), loss=0.2, seed=4, server_options=options)
    home = town.household(guaranteed(servers=(SERVERS["A"],)))
    town.follow(home, edition().plan, TRADES, starts={1: 1, 2: 1})
    server = town.stations["A"].server
    server.accounts.register(home.address[0], Grade.GUARANTEED)
    town.start()
    orders = tokens(300, 3)
    end = town.release(orders)
    session = edition().session(1)
    foes = [(f"10.9.0.{host}", 666) for host in range(5)]

    def attack() -> None:
        for foe in foes:
            server.receive(town.chance.randbytes(20), town.now, origin=foe)
            server.receive(b"short", town.now, origin=foe)
            server.receive(encode_request(MoldRequest(session, 1 << 60, 9)), town.now, origin=foe)
            server.receive(encode_request(MoldRequest(session, 1, 65_535)), town.now, origin=foe)
            server.receive(encode_request(MoldRequest(session, 1, 5)), town.now, origin=foe)

    for at in range(NOON, end, MILLISECOND):
        town.at(at, attack)
    town.run(end + 2 * SECOND)
    counts = server.counts
    assert min(counts.malformed, counts.absurd, counts.floods, counts.crossed) > 0
    assert home.missing() == 0
    assert sorted(home.numbers()) == sequences(orders)
    assert not any(isinstance(effect, Refusal) for effect in server.drain())


def test_equal_seeds_give_equal_records() -> None:
    def play() -> list[object]:
        town = town_of(Customer("FT"), guaranteed(), loss=0.2, seed=11)
        town.start()
        town.run(town.release(tokens(100, 3)) + SECOND)
        return [home.records for home in town.households]

    assert play() == play()
