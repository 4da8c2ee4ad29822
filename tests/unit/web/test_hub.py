"""Who gets what: filters, resumption, snapshots, slow customers, limits."""

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unit.journal_values as values
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND
from fairtape.tape.feed import AtInstant, AtNumber, Beginning, Delivery
from fairtape.tape.records import Delayed, Prompt, Stale
from fairtape.web.broadcast import PAUSE_MIN, ROUND_PERIOD, TOO_SLOW, Limits, pause_after
from fairtape.web.customer import NOTICES_MAX, QUEUE_MIN, CustomerReplay
from fairtape.web.encoding import Encoding
from fairtape.web.server_loop import DELAY_GOAL, DELAY_GOOD, LATE_MIN, PROMPT_MIN, LagMonitor
from fairtape.web.subscription import Overload, Refusal, Slow, Subscription
from unit.tape.tape_values import SYMBOLS
from unit.web.web_values import NOW, House, Pipe

SMALL = Limits(queue_max=QUEUE_MIN)


def test_a_message_is_sent_when_it_is_released_and_never_before(tmp_path: Path) -> None:
    house = House(tmp_path)
    pipe = house.enter(Subscription())
    house.site.hold(6)
    house.play()
    assert pipe.frames == []
    house.site.release(3)
    house.play()
    assert pipe.numbers == list(range(1, 10))


@pytest.mark.parametrize("form", Encoding)
def test_everybody_of_a_channel_gets_the_very_same_frames(tmp_path: Path, form: Encoding) -> None:
    house = House(tmp_path, released=4)
    pipes = [house.enter(Subscription(form=form)) for _ in range(5)]
    for _ in range(3):
        house.site.release(7)
        house.play()
    assert house.hub.channels == 1
    assert all(pipe.numbers == list(range(5, 26)) for pipe in pipes)
    for frames in zip(*(pipe.frames for pipe in pipes), strict=True):
        assert len({id(frame) for frame in frames}) == 1


def test_a_customer_gets_its_symbols_and_stripes_and_nothing_else(tmp_path: Path) -> None:
    house = House(tmp_path)
    some = house.enter(Subscription(symbols=("ABC", "A")))
    none = house.enter(Subscription(symbols=("XYZ",)))
    here, elsewhere = house.enter(Subscription(stripes=(3,))), house.enter(Subscription(stripes=(4, 5)))
    house.site.release(40)
    house.play()
    assert some.numbers == [number for number in range(1, 41) if SYMBOLS[number % 4] in ("ABC", "A")]
    assert here.numbers == list(range(1, 41))
    assert none.frames == elsewhere.frames == []


@settings(max_examples=40, deadline=None)
@given(
    before=st.integers(1, 400),
    start=st.integers(1, 400),
    meanwhile=st.lists(st.integers(0, 9), max_size=12),
    room=st.integers(1, 4),
    remembered=st.booleans(),
)
def test_who_resumes_gets_every_number_once_and_then_is_live(
    before: int, start: int, meanwhile: list[int], room: int, remembered: bool
) -> None:
    """From the journal or from memory, whatever is released meanwhile, and however slowly it is read."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        house = House(Path(scratch), released=before)
        if not remembered:  # as if all of it had been forgotten
            tail = house.hub.ticker.tail
            tail._forget(tail.end - tail.start)
        start = min(start, before + 1)
        pipe = house.enter(Subscription(start=AtNumber(start)), room=room)
        for count in meanwhile:
            if count:
                house.site.release(count)
            house.play()
            pipe.empty(house.hub)
        while house.hub.replaying:
            house.play()
            pipe.empty(house.hub)
        assert pipe.numbers == list(range(start, house.site.following))
        house.site.release(5)
        house.play()
        pipe.empty(house.hub)
        assert pipe.numbers == list(range(start, house.site.following))
        assert pipe.notices == []


def test_the_far_past_comes_from_the_journal_and_joins_what_is_remembered(tmp_path: Path) -> None:
    house = House(tmp_path, released=300)
    tail = house.hub.ticker.tail
    tail._forget(tail.end - tail.start)
    for _ in range(4):
        house.site.release(50)
        house.play()
    pipe = house.enter(Subscription(start=AtNumber(17), form=Encoding.BINARY))
    house.play(rounds=20)
    assert pipe.numbers == list(range(17, 501))
    assert not house.hub.replaying


def test_formations_and_breaks_stand_in_their_places_also_for_those_who_resume(tmp_path: Path) -> None:
    house = House(tmp_path, released=4)
    live = house.enter(Subscription())
    house.site.turn()
    house.site.release(3)
    house.play()
    house.site.turn(broken=True)
    house.site.release(2)
    house.play()
    later = house.enter(Subscription(start=AtNumber(3)))
    house.play(rounds=5)
    told = [each if isinstance(each, int) else (each["kind"], each["sequence"]) for each in live.told]
    assert told == [("reformation", 5), 5, 6, 7, ("break", 8), 8, 9]
    again = [each if isinstance(each, int) else (each["kind"], each["sequence"]) for each in later.told]
    assert again == [3, 4, *told]


def test_a_snapshot_ends_where_the_live_order_begins(tmp_path: Path) -> None:
    house = House(tmp_path, released=42)
    pipe = house.enter(Subscription(snapshot=True, symbols=SYMBOLS[:3]))
    house.play()
    house.site.release(4)
    house.play()
    first, *rest = pipe.told
    assert first == {"kind": "snapshot", "first": 1, "through": 42, "count": 3}
    assert rest == [40, 41, 42, 44, 45, 46]  # 39 and 43 are of the fourth symbol


def test_who_is_behind_gets_its_snapshot_once_it_is_not(tmp_path: Path) -> None:
    house = House(tmp_path, released=8)
    pipe = house.enter(Subscription(), room=1)
    for _ in range(2):
        house.site.release(4)
        house.play()
    assert pipe.customer is not None
    house.hub.snapshot(pipe.customer, NOW)
    assert pipe.numbers == [9, 10, 11, 12]
    pipe.room = 100
    pipe.empty(house.hub)
    house.play()
    assert pipe.told[4:8] == [13, 14, 15, 16]
    assert pipe.told[8]["through"] == 16


def test_what_a_site_says_about_itself_is_told_to_everybody(tmp_path: Path) -> None:
    house = House(tmp_path)
    pipes = [house.enter(Subscription()), house.enter(Subscription(symbols=("XYZ",), form=Encoding.BINARY))]
    house.hub.announce(Stale(NOW), NOW)
    assert [pipe.told for pipe in pipes] == [[{"kind": "stale", "since_ns": str(NOW), "stripe": 0}]] * 2


def test_a_message_that_is_no_trade_comes_whole_and_in_its_place(tmp_path: Path) -> None:
    house = House(tmp_path)
    pipe = house.enter(Subscription(form=Encoding.BINARY))
    house.site.release(2)
    house.site.say(b"\x00\xffno trade")
    house.site.release(1)
    house.play()
    kinds = [each if isinstance(each, int) else each["kind"] for each in pipe.told]
    assert kinds == [1, 2, "message", 4]
    assert pipe.notices[0]["payload"] == "AP9ubyB0cmFkZQ=="


# Slow customers.


@settings(max_examples=25, deadline=None)
@given(
    slow=st.sampled_from([Slow.SKIP, Slow.CONFLATE]),
    bursts=st.lists(st.tuples(st.integers(1, 1_500), st.booleans()), min_size=1, max_size=8),
    symbols=st.sampled_from([None, ("ABC",), ("DEF", "A")]),
)
def test_a_slow_customer_is_told_exactly_what_it_was_not_sent(
    slow: Slow, bursts: list[tuple[int, bool]], symbols: tuple[str, ...] | None
) -> None:
    with TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        house = House(Path(scratch), limits=SMALL)
        quick = house.enter(Subscription(symbols=symbols))
        pipe = house.enter(Subscription(slow=slow, symbols=symbols), room=1)
        for count, emptied in bursts:
            house.site.release(count, per_token=100)
            house.play()
            assert pipe.customer is not None
            backlog = pipe.customer._backlog
            assert backlog is None or len(backlog) <= QUEUE_MIN
            if emptied:
                pipe.empty(house.hub)
        pipe.room = 1 << 30
        pipe.empty(house.hub)
        wanted = [number for number in range(1, house.site.following) if symbols is None or _symbol(number) in symbols]
        assert quick.told == wanted
        _check_account(pipe, wanted)


def _symbol(number: int) -> str:
    return SYMBOLS[number % len(SYMBOLS)]


def _check_account(pipe: Pipe, wanted: list[int]) -> None:
    """What was sent and what notices account for are together everything, and each number is in one of them."""
    numbers, notices = pipe.numbers, pipe.notices
    assert all(one < two for one, two in pairwise(numbers))
    missing = [number for number in wanted if number not in set(numbers)]
    assert sum(notice["count"] for notice in notices) == len(missing)
    assert {notice["kind"] for notice in notices} <= {"skipped", "merged"}
    for number in missing:
        assert any(notice["first"] <= number <= notice["last"] for notice in notices)


def test_who_conflates_has_the_latest_of_every_symbol_in_the_end(tmp_path: Path) -> None:
    house = House(tmp_path, limits=SMALL)
    pipe = house.enter(Subscription(slow=Slow.CONFLATE), room=1)
    for _ in range(5):
        house.site.release(1_000, per_token=100)
        house.play()
    pipe.room = 1 << 30
    pipe.empty(house.hub)
    assert pipe.numbers[-4:] == [4_997, 4_998, 4_999, 5_000]
    assert house.hub.counts["merged"] == 5_000 - len(pipe.numbers)


def test_who_wants_to_be_disconnected_is_told_from_which_number_to_go_on(tmp_path: Path) -> None:
    house = House(tmp_path, limits=SMALL)
    quick = house.enter(Subscription())
    pipe = house.enter(Subscription(slow=Slow.DISCONNECT), room=1)
    for _ in range(4):
        house.site.release(900, per_token=100)
        house.play()
    assert pipe.numbers == list(range(1, 901))
    assert pipe.ended is not None
    assert pipe.ended[0] == TOO_SLOW
    assert pipe.ended[1]["next"] == 901
    assert house.hub.counts["too_slow"] == 1
    assert quick.numbers == list(range(1, 3_601))
    again = house.enter(Subscription(start=AtNumber(901)))
    house.play(rounds=40)
    assert again.numbers == list(range(901, 3_601))


def test_who_wants_to_be_disconnected_loses_nothing_to_a_long_message(tmp_path: Path) -> None:
    """It takes the room of many trades, and none of those that wait may go for it."""
    house = House(tmp_path, limits=SMALL)
    pipe = house.enter(Subscription(slow=Slow.DISCONNECT), room=1)
    house.site.release(1)
    house.play()
    house.site.release(QUEUE_MIN - 1, per_token=100)
    house.play()
    before = pipe.ended
    house.site.say(bytes(60_000))
    house.play()
    assert before is None
    assert pipe.ended is not None
    assert pipe.ended[1]["next"] == 2
    assert house.hub.counts["skipped"] == 0


def test_a_past_that_cannot_be_read_ends_with_whoever_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(tmp_path, released=5)
    honest = house.enter(Subscription())
    other = house.enter(Subscription(start=AtNumber(1)))

    def damaged(_self: CustomerReplay) -> list[Delivery]:
        raise UserError("the digest of an entry does not match")

    monkeypatch.setattr(CustomerReplay, "take", damaged)
    house.site.release(3)
    house.play()
    assert other.ended is not None
    assert "does not match" in str(other.ended[1]["told"])
    assert honest.numbers == [6, 7, 8]
    assert house.hub.counts["unreadable"] == 1


def test_notices_are_never_left_out_so_who_lets_too_many_wait_is_let_go(tmp_path: Path) -> None:
    house = House(tmp_path, limits=SMALL)
    pipe = house.enter(Subscription(), room=1)
    house.site.release(1)
    house.play()
    for _ in range(NOTICES_MAX + 1):
        assert pipe.ended is None
        house.hub.announce(Stale(NOW), NOW)
    assert pipe.ended is not None


def test_slow_customers_of_every_kind_leave_the_others_alone(tmp_path: Path) -> None:
    house = House(tmp_path, limits=SMALL)
    slow = [house.enter(Subscription(slow=each), room=1) for each in Slow]
    quick = house.enter(Subscription(form=Encoding.BINARY))
    for _ in range(10):
        house.site.release(1_000, per_token=250)
        house.play()
    assert quick.numbers == list(range(1, 10_001))
    assert [len(pipe.frames) for pipe in slow] == [1, 1, 1]


# Limits.


def test_there_are_no_more_customers_subscriptions_and_replays_than_may_be(tmp_path: Path) -> None:
    limits = Limits(customers_max=4, channels_max=2, replays_max=1)
    house = House(tmp_path, released=5, limits=limits)
    pipes = [house.enter() for _ in range(4)]
    with pytest.raises(Overload, match="come back later"):
        house.enter()
    one, two, three, four = (pipe.customer for pipe in pipes)
    assert one is not None
    assert two is not None
    assert three is not None
    assert four is not None
    house.hub.subscribe(one, Subscription(symbols=("ABC",)))
    house.hub.subscribe(two, Subscription(symbols=("DEF",)))
    with pytest.raises(Overload, match="different subscriptions"):
        house.hub.subscribe(three, Subscription())
    house.hub.subscribe(three, Subscription(symbols=("ABC",), start=AtNumber(1)))
    with pytest.raises(Overload, match="read the past"):
        house.hub.subscribe(four, Subscription(symbols=("ABC",), start=AtNumber(1)))
    house.hub.dismiss(two)
    house.hub.subscribe(four, Subscription())
    assert len(house.hub.customers) == 3


def test_a_number_that_is_still_to_come_is_refused(tmp_path: Path) -> None:
    house = House(tmp_path, released=5)
    with pytest.raises(Refusal, match="give at most 6"):
        house.enter(Subscription(start=AtNumber(7)))
    assert house.enter(Subscription(start=AtNumber(6))).frames == []


def test_a_new_subscription_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    house = House(tmp_path)
    pipe = house.enter(Subscription(symbols=("ABC",)))
    assert pipe.customer is not None
    house.hub.subscribe(pipe.customer, Subscription(symbols=("DEF",)))
    house.site.release(8)
    house.play()
    assert pipe.numbers == [1, 5]
    house.hub.unsubscribe(pipe.customer)
    house.site.release(8)
    house.play()
    assert pipe.numbers == [1, 5]
    assert house.hub.channels == 0


def test_a_pause_grows_with_the_round_within_its_bounds() -> None:
    assert pause_after(0) == PAUSE_MIN
    assert pause_after(9 * MILLISECOND) == 9 * MILLISECOND
    assert pause_after(15 * MILLISECOND) == ROUND_PERIOD - 15 * MILLISECOND
    assert pause_after(10**12) == PAUSE_MIN


def test_nobody_is_always_served_first(tmp_path: Path) -> None:
    house = House(tmp_path)
    served: list[Any] = []

    class Noting(Pipe):
        def write(self, frame: bytes) -> None:
            served.append(self)
            super().write(frame)

    pipes = [Noting() for _ in range(4)]
    for pipe in pipes:
        pipe.customer = house.hub.admit(pipe)
        house.hub.subscribe(pipe.customer, Subscription())
    for _ in range(4):
        house.site.release(1)
        house.play()
    assert {served[at] for at in range(0, 16, 4)} == set(pipes)


def test_one_may_begin_with_the_first_number_or_with_an_instant(tmp_path: Path) -> None:
    house = House(tmp_path, released=12)
    first, third, never = (
        house.enter(Subscription(start=start)) for start in (Beginning(), AtInstant(values.token_at(3)), AtInstant(NOW))
    )
    house.play(3)
    assert first.numbers == list(range(1, 13))
    assert third.numbers == list(range(7, 13))
    assert never.numbers == []


def test_who_comes_back_behind_a_break_is_told_of_it_and_gets_what_has_the_numbers_now(tmp_path: Path) -> None:
    house = House(tmp_path, released=30)
    house.play()
    known = house.hub.ticker.formation
    house.site.go_back(token=8, following=25)
    house.site.release(8)
    house.play(3)
    behind, aware = (house.enter(Subscription(start=AtNumber(31), formation=each)) for each in (known, known + 1))
    house.site.release(2)
    house.play(3)
    assert [each if isinstance(each, int) else each["kind"] for each in behind.told] == ["break", *range(25, 35)]
    assert aware.told == [31, 32, 33, 34]


def test_a_server_is_overloaded_when_one_round_in_a_hundred_is_late_and_not_for_a_single_one() -> None:
    pace, late, good = LagMonitor(), DELAY_GOAL + 1, DELAY_GOOD
    pace.delays.extend([late] * (LATE_MIN - 1) + [good] * 50)
    assert pace.look() is None
    pace.delays.append(late)
    assert isinstance(pace.look(), Delayed)
    pace.delays.extend([good] * (PROMPT_MIN - 1))
    assert pace.look() is None
    pace.delays.append(good)
    assert pace.look() == Prompt()
    pace.delays.extend([good] * 1_000 + [late] * LATE_MIN)
    assert pace.look() is None
