"""What each customer is sent: selections, replays, snapshots, slow customers, limits."""

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unit.journal.journal_values as values
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND
from fairtape.tape.feed import AtInstant, AtNumber, Beginning, Delivery
from fairtape.tape.records import Delayed, Prompt, Stale
from fairtape.web.broadcast import (
    NOTICES_MAX,
    PAUSE_MIN,
    QUEUE_MIN,
    ROUND_PERIOD,
    TOO_SLOW,
    BroadcastLimits,
    CustomerReplay,
    pause_after,
)
from fairtape.web.encoding import Encoding
from fairtape.web.server_loop import DELAY_GOAL, DELAY_GOOD, LATE_MIN, PROMPT_MIN, LagMonitor
from fairtape.web.subscription import Overload, Refusal, SlowPolicy, Subscription
from unit.tape.tape_values import SYMBOLS
from unit.web.web_values import NOW, RecordedConnection, WebWorld

SMALL = BroadcastLimits(queue_max=QUEUE_MIN)


def test_a_message_is_sent_when_it_is_released_and_never_before(tmp_path: Path) -> None:
    world = WebWorld(tmp_path)
    connection = world.connect_customer(Subscription())
    world.site.hold(6)
    world.run_rounds()
    assert connection.frames == []
    world.site.release(3)
    world.run_rounds()
    assert connection.numbers == list(range(1, 10))


@pytest.mark.parametrize("encoding", Encoding)
def test_all_customers_of_a_channel_get_the_very_same_frames(tmp_path: Path, encoding: Encoding) -> None:
    world = WebWorld(tmp_path, released=4)
    connections = [world.connect_customer(Subscription(encoding=encoding)) for _ in range(5)]
    for _ in range(3):
        world.site.release(7)
        world.run_rounds()
    assert world.broadcaster.channels == 1
    assert all(connection.numbers == list(range(5, 26)) for connection in connections)
    for frames in zip(*(connection.frames for connection in connections), strict=True):
        assert len({id(frame) for frame in frames}) == 1


def test_a_customer_gets_its_symbols_and_stripes_and_nothing_else(tmp_path: Path) -> None:
    world = WebWorld(tmp_path)
    some = world.connect_customer(Subscription(symbols=("ABC", "A")))
    none = world.connect_customer(Subscription(symbols=("XYZ",)))
    here, elsewhere = (
        world.connect_customer(Subscription(stripes=(3,))),
        world.connect_customer(Subscription(stripes=(4, 5))),
    )
    world.site.release(40)
    world.run_rounds()
    assert some.numbers == [number for number in range(1, 41) if SYMBOLS[number % 4] in ("ABC", "A")]
    assert here.numbers == list(range(1, 41))
    assert none.frames == elsewhere.frames == []


@settings(max_examples=40, deadline=None)
@given(
    before=st.integers(1, 400),
    start=st.integers(1, 400),
    meanwhile=st.lists(st.integers(0, 9), max_size=12),
    capacity=st.integers(1, 4),
    remembered=st.booleans(),
)
def test_a_customer_that_resumes_gets_every_number_once_and_then_is_live(
    before: int, start: int, meanwhile: list[int], capacity: int, remembered: bool
) -> None:
    """From the journal or from memory, whatever is released meanwhile, and however slowly it is read."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        world = WebWorld(Path(scratch), released=before)
        if not remembered:  # as if memory had dropped all of it
            tail = world.broadcaster.ticker.tail
            tail._forget(tail.end - tail.start)
        start = min(start, before + 1)
        connection = world.connect_customer(Subscription(start=AtNumber(start)), capacity=capacity)
        for count in meanwhile:
            if count:
                world.site.release(count)
            world.run_rounds()
            connection.empty(world.broadcaster)
        while world.broadcaster.replaying:
            world.run_rounds()
            connection.empty(world.broadcaster)
        assert connection.numbers == list(range(start, world.site.following))
        world.site.release(5)
        world.run_rounds()
        connection.empty(world.broadcaster)
        assert connection.numbers == list(range(start, world.site.following))
        assert connection.notices == []


def test_a_round_is_wanted_when_a_customer_can_be_sent_a_piece_of_the_past(tmp_path: Path) -> None:
    wanted: list[bool] = []
    world = WebWorld(tmp_path, released=4)
    world.broadcaster.on_replay = lambda: wanted.append(world.broadcaster.busy)
    world.connect_customer(Subscription())
    assert wanted == []
    connection = world.connect_customer(Subscription(start=Beginning()))
    assert wanted == [True]
    (customer,) = (each for each in world.broadcaster.customers if each.connection is connection)
    customer.pause()
    assert not world.broadcaster.busy
    world.broadcaster.resume(customer, NOW)
    assert wanted == [True, True]


def test_the_far_past_comes_from_the_journal_and_the_recent_past_from_memory(tmp_path: Path) -> None:
    world = WebWorld(tmp_path, released=300)
    tail = world.broadcaster.ticker.tail
    tail._forget(tail.end - tail.start)
    for _ in range(4):
        world.site.release(50)
        world.run_rounds()
    connection = world.connect_customer(Subscription(start=AtNumber(17), encoding=Encoding.BINARY))
    world.run_rounds(rounds=20)
    assert connection.numbers == list(range(17, 501))
    assert not world.broadcaster.replaying


def test_formations_and_breaks_are_sent_in_order_live_and_in_a_replay(tmp_path: Path) -> None:
    world = WebWorld(tmp_path, released=4)
    live = world.connect_customer(Subscription())
    world.site.change_formation()
    world.site.release(3)
    world.run_rounds()
    world.site.change_formation(broken=True)
    world.site.release(2)
    world.run_rounds()
    later = world.connect_customer(Subscription(start=AtNumber(3)))
    world.run_rounds(rounds=5)
    received = [each if isinstance(each, int) else (each["kind"], each["sequence"]) for each in live.received]
    assert received == [("reformation", 5), 5, 6, 7, ("break", 8), 8, 9]
    again = [each if isinstance(each, int) else (each["kind"], each["sequence"]) for each in later.received]
    assert again == [3, 4, *received]


def test_a_snapshot_ends_where_the_live_order_begins(tmp_path: Path) -> None:
    world = WebWorld(tmp_path, released=42)
    connection = world.connect_customer(Subscription(snapshot=True, symbols=SYMBOLS[:3]))
    world.run_rounds()
    world.site.release(4)
    world.run_rounds()
    first, *rest = connection.received
    assert first == {"kind": "snapshot", "first": 1, "through": 42, "count": 3}
    assert rest == [40, 41, 42, 44, 45, 46]  # 39 and 43 are of the fourth symbol


def test_a_lagging_customer_gets_its_snapshot_once_it_is_live(tmp_path: Path) -> None:
    world = WebWorld(tmp_path, released=8)
    connection = world.connect_customer(Subscription(), capacity=1)
    for _ in range(2):
        world.site.release(4)
        world.run_rounds()
    assert connection.customer is not None
    world.broadcaster.snapshot(connection.customer, NOW)
    assert connection.numbers == [9, 10, 11, 12]
    connection.capacity = 100
    connection.empty(world.broadcaster)
    world.run_rounds()
    assert connection.received[4:8] == [13, 14, 15, 16]
    assert connection.received[8]["through"] == 16


def test_an_outage_of_the_site_is_sent_to_all_customers(tmp_path: Path) -> None:
    world = WebWorld(tmp_path)
    connections = [
        world.connect_customer(Subscription()),
        world.connect_customer(Subscription(symbols=("XYZ",), encoding=Encoding.BINARY)),
    ]
    world.broadcaster.announce(Stale(NOW), NOW)
    assert [connection.received for connection in connections] == [
        [{"kind": "stale", "since_ns": str(NOW), "stripe": 0}]
    ] * 2


def test_a_message_that_is_no_trade_is_sent_whole_and_in_order(tmp_path: Path) -> None:
    world = WebWorld(tmp_path)
    connection = world.connect_customer(Subscription(encoding=Encoding.BINARY))
    world.site.release(2)
    world.site.publish(b"\x00\xffno trade")
    world.site.release(1)
    world.run_rounds()
    kinds = [each if isinstance(each, int) else each["kind"] for each in connection.received]
    assert kinds == [1, 2, "message", 4]
    assert connection.notices[0]["payload"] == "AP9ubyB0cmFkZQ=="


# Slow customers.


@settings(max_examples=25, deadline=None)
@given(
    policy=st.sampled_from([SlowPolicy.SKIP, SlowPolicy.CONFLATE]),
    bursts=st.lists(st.tuples(st.integers(1, 1_500), st.booleans()), min_size=1, max_size=8),
    symbols=st.sampled_from([None, ("ABC",), ("DEF", "A")]),
)
def test_a_slow_customer_is_notified_exactly_of_what_it_was_not_sent(
    policy: SlowPolicy, bursts: list[tuple[int, bool]], symbols: tuple[str, ...] | None
) -> None:
    with TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        world = WebWorld(Path(scratch), limits=SMALL)
        quick = world.connect_customer(Subscription(symbols=symbols))
        connection = world.connect_customer(Subscription(policy=policy, symbols=symbols), capacity=1)
        for count, emptied in bursts:
            world.site.release(count, per_token=100)
            world.run_rounds()
            assert connection.customer is not None
            backlog = connection.customer._backlog
            assert backlog is None or len(backlog) <= QUEUE_MIN
            if emptied:
                connection.empty(world.broadcaster)
        connection.capacity = 1 << 30
        connection.empty(world.broadcaster)
        wanted = [number for number in range(1, world.site.following) if symbols is None or _symbol(number) in symbols]
        assert quick.received == wanted
        _check_account(connection, wanted)


def _symbol(number: int) -> str:
    return SYMBOLS[number % len(SYMBOLS)]


def _check_account(connection: RecordedConnection, wanted: list[int]) -> None:
    """What was sent and what notices account for are together everything, and each number is in one of them."""
    numbers, notices = connection.numbers, connection.notices
    assert all(one < two for one, two in pairwise(numbers))
    missing = [number for number in wanted if number not in set(numbers)]
    assert sum(notice["count"] for notice in notices) == len(missing)
    assert {notice["kind"] for notice in notices} <= {"skipped", "merged"}
    for number in missing:
        assert any(notice["first"] <= number <= notice["last"] for notice in notices)


def test_a_conflating_customer_has_the_latest_trade_of_every_symbol_in_the_end(tmp_path: Path) -> None:
    world = WebWorld(tmp_path, limits=SMALL)
    connection = world.connect_customer(Subscription(policy=SlowPolicy.CONFLATE), capacity=1)
    for _ in range(5):
        world.site.release(1_000, per_token=100)
        world.run_rounds()
    connection.capacity = 1 << 30
    connection.empty(world.broadcaster)
    assert connection.numbers[-4:] == [4_997, 4_998, 4_999, 5_000]
    assert world.broadcaster.counts["merged"] == 5_000 - len(connection.numbers)


def test_a_disconnected_customer_is_sent_the_number_to_go_on_with(tmp_path: Path) -> None:
    world = WebWorld(tmp_path, limits=SMALL)
    quick = world.connect_customer(Subscription())
    connection = world.connect_customer(Subscription(policy=SlowPolicy.DISCONNECT), capacity=1)
    for _ in range(4):
        world.site.release(900, per_token=100)
        world.run_rounds()
    assert connection.numbers == list(range(1, 901))
    assert connection.ended is not None
    assert connection.ended[0] == TOO_SLOW
    assert connection.ended[1]["next"] == 901
    assert world.broadcaster.counts["too_slow"] == 1
    assert quick.numbers == list(range(1, 3_601))
    again = world.connect_customer(Subscription(start=AtNumber(901)))
    world.run_rounds(rounds=40)
    assert again.numbers == list(range(901, 3_601))


def test_a_long_message_displaces_nothing_under_the_policy_disconnect(tmp_path: Path) -> None:
    """It counts for many trades, and none of those that wait may be dropped for it."""
    world = WebWorld(tmp_path, limits=SMALL)
    connection = world.connect_customer(Subscription(policy=SlowPolicy.DISCONNECT), capacity=1)
    world.site.release(1)
    world.run_rounds()
    world.site.release(QUEUE_MIN - 1, per_token=100)
    world.run_rounds()
    before = connection.ended
    world.site.publish(bytes(60_000))
    world.run_rounds()
    assert before is None
    assert connection.ended is not None
    assert connection.ended[1]["next"] == 2
    assert world.broadcaster.counts["skipped"] == 0


def test_a_past_that_cannot_be_read_closes_only_the_customer_that_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = WebWorld(tmp_path, released=5)
    honest = world.connect_customer(Subscription())
    other = world.connect_customer(Subscription(start=AtNumber(1)))

    def damaged(_self: CustomerReplay) -> list[Delivery]:
        raise UserError("the digest of an entry does not match")

    monkeypatch.setattr(CustomerReplay, "take", damaged)
    world.site.release(3)
    world.run_rounds()
    assert other.ended is not None
    assert "does not match" in str(other.ended[1]["told"])
    assert honest.numbers == [6, 7, 8]
    assert world.broadcaster.counts["unreadable"] == 1


def test_a_customer_with_too_many_waiting_notices_is_closed(tmp_path: Path) -> None:
    world = WebWorld(tmp_path, limits=SMALL)
    connection = world.connect_customer(Subscription(), capacity=1)
    world.site.release(1)
    world.run_rounds()
    for _ in range(NOTICES_MAX + 1):
        assert connection.ended is None
        world.broadcaster.announce(Stale(NOW), NOW)
    assert connection.ended is not None


def test_slow_customers_of_every_policy_do_not_affect_the_others(tmp_path: Path) -> None:
    world = WebWorld(tmp_path, limits=SMALL)
    policy = [world.connect_customer(Subscription(policy=each), capacity=1) for each in SlowPolicy]
    quick = world.connect_customer(Subscription(encoding=Encoding.BINARY))
    for _ in range(10):
        world.site.release(1_000, per_token=250)
        world.run_rounds()
    assert quick.numbers == list(range(1, 10_001))
    assert [len(connection.frames) for connection in policy] == [1, 1, 1]


# Limits.


def test_customers_subscriptions_and_replays_are_limited(tmp_path: Path) -> None:
    limits = BroadcastLimits(customers_max=4, channels_max=2, replays_max=1)
    world = WebWorld(tmp_path, released=5, limits=limits)
    connections = [world.connect_customer() for _ in range(4)]
    with pytest.raises(Overload, match="retry later"):
        world.connect_customer()
    one, two, three, four = (connection.customer for connection in connections)
    assert one is not None
    assert two is not None
    assert three is not None
    assert four is not None
    world.broadcaster.subscribe(one, Subscription(symbols=("ABC",)))
    world.broadcaster.subscribe(two, Subscription(symbols=("DEF",)))
    with pytest.raises(Overload, match="different subscriptions"):
        world.broadcaster.subscribe(three, Subscription())
    world.broadcaster.subscribe(three, Subscription(symbols=("ABC",), start=AtNumber(1)))
    with pytest.raises(Overload, match="read the past"):
        world.broadcaster.subscribe(four, Subscription(symbols=("ABC",), start=AtNumber(1)))
    world.broadcaster.remove(two)
    world.broadcaster.subscribe(four, Subscription())
    assert len(world.broadcaster.customers) == 3


def test_a_number_that_is_still_to_come_is_refused(tmp_path: Path) -> None:
    world = WebWorld(tmp_path, released=5)
    with pytest.raises(Refusal, match="give at most 6"):
        world.connect_customer(Subscription(start=AtNumber(7)))
    assert world.connect_customer(Subscription(start=AtNumber(6))).frames == []


def test_a_new_subscription_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    world = WebWorld(tmp_path)
    connection = world.connect_customer(Subscription(symbols=("ABC",)))
    assert connection.customer is not None
    world.broadcaster.subscribe(connection.customer, Subscription(symbols=("DEF",)))
    world.site.release(8)
    world.run_rounds()
    assert connection.numbers == [1, 5]
    world.broadcaster.unsubscribe(connection.customer)
    world.site.release(8)
    world.run_rounds()
    assert connection.numbers == [1, 5]
    assert world.broadcaster.channels == 0


def test_a_pause_grows_with_the_round_within_its_bounds() -> None:
    assert pause_after(0) == PAUSE_MIN
    assert pause_after(9 * MILLISECOND) == 9 * MILLISECOND
    assert pause_after(15 * MILLISECOND) == ROUND_PERIOD - 15 * MILLISECOND
    assert pause_after(10**12) == PAUSE_MIN


def test_no_customer_is_always_served_first(tmp_path: Path) -> None:
    world = WebWorld(tmp_path)
    served: list[Any] = []

    class RecordingOrder(RecordedConnection):
        def write(self, frame: bytes) -> None:
            served.append(self)
            super().write(frame)

    connections = [RecordingOrder() for _ in range(4)]
    for connection in connections:
        connection.customer = world.broadcaster.admit(connection)
        world.broadcaster.subscribe(connection.customer, Subscription())
    for _ in range(4):
        world.site.release(1)
        world.run_rounds()
    assert {served[at] for at in range(0, 16, 4)} == set(connections)


def test_a_replay_may_begin_with_the_first_number_or_with_an_instant(tmp_path: Path) -> None:
    world = WebWorld(tmp_path, released=12)
    first, third, never = (
        world.connect_customer(Subscription(start=start))
        for start in (Beginning(), AtInstant(values.token_at(3)), AtInstant(NOW))
    )
    world.run_rounds(3)
    assert first.numbers == list(range(1, 13))
    assert third.numbers == list(range(7, 13))
    assert never.numbers == []


def test_a_customer_that_resumes_after_a_break_is_sent_the_break_and_the_numbers_again(tmp_path: Path) -> None:
    world = WebWorld(tmp_path, released=30)
    world.run_rounds()
    known = world.broadcaster.ticker.formation
    world.site.truncate_and_break(token=8, following=25)
    world.site.release(8)
    world.run_rounds(3)
    behind, aware = (
        world.connect_customer(Subscription(start=AtNumber(31), formation=each)) for each in (known, known + 1)
    )
    world.site.release(2)
    world.run_rounds(3)
    assert [each if isinstance(each, int) else each["kind"] for each in behind.received] == ["break", *range(25, 35)]
    assert aware.received == [31, 32, 33, 34]


def test_a_server_is_overloaded_when_one_round_in_a_hundred_is_late_and_not_for_a_single_one() -> None:
    lag, late, good = LagMonitor(), DELAY_GOAL + 1, DELAY_GOOD
    lag.delays.extend([late] * (LATE_MIN - 1) + [good] * 50)
    assert lag.check() is None
    lag.delays.append(late)
    assert isinstance(lag.check(), Delayed)
    lag.delays.extend([good] * (PROMPT_MIN - 1))
    assert lag.check() is None
    lag.delays.append(good)
    assert lag.check() == Prompt()
    lag.delays.extend([good] * 1_000 + [late] * LATE_MIN)
    assert lag.check() is None
