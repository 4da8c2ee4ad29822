"""The live end of a journal: the last sale of every symbol, and what happens when a journal is truncated."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.market.notices import CancelNotice, encode_notice
from fairtape.tape.sales import Sales
from fairtape.web import live_ticker
from fairtape.web.history import HistoryArchive, HistoryRange
from fairtape.web.live_ticker import TAIL_ROWS_MAX, LiveTicker, Tail
from fairtape.web.subscription import Subscription
from unit.journal import journal_values as values
from unit.journal.listings import listings
from unit.tape import tape_values
from unit.web.web_values import Site, WebWorld, numbers_of


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_sales_know_the_last_trade_and_the_volume_of_every_symbol(counts: list[int]) -> None:
    sales, following = Sales(1), 1
    for count in counts:
        sales.apply(tape_values.batch_of(following, count))
        following += count
    every = [tape_values.trade(number) for number in range(1, following)]
    volumes: Counter[str] = Counter()
    for trade in every:
        volumes[trade.symbol] += trade.quantity
    assert sales.symbols() == sorted(volumes)
    assert numbers_of(sales.last_sales()) == list(range(max(following - 4, 1), following))
    for symbol, volume in volumes.items():
        found = sales.of(symbol)
        assert found is not None
        assert found.volume.quantity == volume
        assert found.volume.trades == sum(trade.symbol == symbol for trade in every)
        assert next(found.batch.records()).trade_id == max(trade.trade_id for trade in every if trade.symbol == symbol)
    assert sales.of("XYZ") is None


def test_a_volume_may_be_larger_than_any_machine_integer() -> None:
    sales = Sales(1)
    lot = tape_values.batch_of(4, 1)
    huge = lot.trades.copy()
    huge["quantity"] = (1 << 63) - 1
    for _ in range(3):
        sales.apply(lot._replace(trades=huge))
    found = sales.of("ABC")
    assert found is not None
    assert found.volume.quantity == 3 * ((1 << 63) - 1)


def test_a_server_that_starts_later_knows_what_was_sold_before(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.release(20)
    site.hold(5)
    ticker = LiveTicker(tmp_path)
    assert ticker.due == 21
    assert numbers_of(ticker.sales.last_sales()) == [17, 18, 19, 20]
    assert ticker.messages == 20
    assert ticker.advance() == []


def test_the_live_end_and_the_past_are_read_without_a_listing_of_the_journal(tmp_path: Path) -> None:
    site = Site(tmp_path, segment_size_max=1 << 10)
    site.release(60)
    assert len(values.segments(tmp_path)) > 5
    with listings(tmp_path) as found:
        ticker, archive = LiveTicker(tmp_path), HistoryArchive(tmp_path)
        for count in range(61, 81):
            site.release(1)
            ticker.advance()
            ticker.update_index()
            assert (ticker.begin(), ticker.due) == (1, count + 1)
            part = archive.read(HistoryRange.of({"from": str(count // 2), "limit": "3"}), ticker.due)
            assert part.next_sequence == count // 2 + 3
    assert found == []


def test_an_empty_journal_can_be_followed_from_its_first_entry(tmp_path: Path) -> None:
    world = WebWorld(tmp_path)
    assert world.broadcaster.ticker.due == 1
    world.site.release(3)
    world.run_rounds()
    assert world.broadcaster.ticker.due == 4


def test_late_releases_are_counted(tmp_path: Path) -> None:
    world = WebWorld(tmp_path, released=4)
    world.site.release(3, late=True)
    world.run_rounds()
    assert (world.broadcaster.ticker.messages, world.broadcaster.ticker.late) == (7, 3)


def test_numbers_after_a_break_are_published_again_and_counted_once(tmp_path: Path) -> None:
    """A site that comes back truncates what the others went on without; its customers get the Break and go on."""
    world = WebWorld(tmp_path, released=6)
    site, ticker = world.site, world.broadcaster.ticker
    token = tape_values.order(6)[-1].token
    site.release(3)
    world.run_rounds()
    assert ticker.due == 10
    site.truncate_and_break(token=token, following=7)
    site.release(8)
    connection = world.connect_customer(Subscription())
    world.run_rounds(rounds=3)
    assert [each if isinstance(each, int) else each["kind"] for each in connection.received] == ["break", *range(7, 15)]
    assert ticker.due == 15
    assert ticker.messages == 14
    assert numbers_of(ticker.sales.last_sales()) == [11, 12, 13, 14]
    assert ticker.tail.first == 7


def test_after_a_break_no_more_is_read_back_than_at_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = WebWorld(tmp_path, released=6)
    monkeypatch.setattr(live_ticker, "BACK_MAX", 4)
    world.site.release(3)
    world.run_rounds()
    world.site.truncate_and_break(token=tape_values.order(6)[-1].token, following=7)
    world.site.release(8)
    world.run_rounds(rounds=3)
    ticker = world.broadcaster.ticker
    assert (ticker.sales.since, ticker.messages, ticker.due) == (3, 12, 15)


def test_a_cancel_that_a_break_takes_out_of_the_order_counts_no_more(tmp_path: Path) -> None:
    world = WebWorld(tmp_path)
    world.site.release(8, per_token=1)
    world.site.publish(encode_notice(CancelNotice(8, tape_values.trade(8).venue_name, "ABC", 1)))
    world.run_rounds()
    assert numbers_of(world.broadcaster.ticker.sales.last_sales()) == [4, 5, 6, 7]
    world.site.truncate_and_break(token=8, following=9)
    world.site.release(1, per_token=1)
    world.run_rounds(3)
    assert numbers_of(world.broadcaster.ticker.sales.last_sales()) == [6, 7, 8, 9]


def test_the_recent_past_has_a_limit() -> None:
    tail, following = Tail(1), 1
    lot = tape_values.batch_of(1, 1_000)
    for _ in range(200):
        places = lot.places.copy()
        places["sequence"] += following - 1
        tail.add(lot._replace(places=places))
        following += 1_000
    kept = following - tail.first
    assert TAIL_ROWS_MAX - 1_000 < kept <= 2 * TAIL_ROWS_MAX
    assert tail.due == following
    assert tail.find(tail.first - 1) is None
    index = tail.find(following - 1)
    assert index == tail.end - 1
    assert tail.find(following) == tail.end
