"""Sales of the ticker, the client and the web server: the same last sales and volumes, whatever is revised."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import fairtape
import unit.journal.journal_values as values
from fairtape.client import Canceled, Corrected, Gap, Message, Trade, VenueStatus
from fairtape.client.backlog import Backlog, Policy
from fairtape.client.journal_feed import last_sales
from fairtape.client.selection import Selection
from fairtape.core.effects import Deliver, Ordered
from fairtape.journal import JournalEntry, JournalReader
from fairtape.market.notices import CancelNotice, CorrectionNotice, Status, StatusNotice
from fairtape.market.prices import ONE
from fairtape.tape.batches import TradeBatch
from fairtape.tape.decoding import EntryDecoder
from fairtape.tape.feed import Delivery
from fairtape.tape.sales import Sales
from fairtape.tape.ticker import Ticker
from fairtape.web.live_ticker import LiveTicker as WebTicker
from unit.tape.sales_twin import ACTIONS, SYMBOLS, Action, SalesTwin, tokens
from unit.tape.ticker_values import NOON, NYSE, SourceMessage, a_trade, notice_of, sold, token

Known = tuple[tuple[object, ...] | None, int, int]


def deliveries(tokens: Sequence[Deliver]) -> list[Delivery]:
    decoder = EntryDecoder(1)
    found: list[Delivery] = []
    for each in tokens:
        found += decoder.decode([JournalEntry(each.ordered, each.release, b"", Path(), 0)], 7)
    return found


def expected(twin: SalesTwin) -> dict[str, Known]:
    """The last sale, the volume and the trades of every symbol that was ever traded."""
    found: dict[str, Known] = {}
    for symbol in twin.symbols:
        last = twin.last_of(symbol)
        found[symbol] = (last and (last.number, *last[2:]), *twin.volume_of(symbol))
    return found


def known(sales: Sales) -> dict[str, Known]:
    found: dict[str, Known] = {}
    for symbol in sales.symbols():
        each = sales.of(symbol)
        assert each is not None
        found[symbol] = (next(map(facts, each.batch.records()), None), each.volume.quantity, each.volume.trades)
    return found


def facts(trade: Trade) -> tuple[object, ...]:
    place = trade.sequence, trade.source, trade.venue, trade.symbol
    return *place, trade.price, trade.quantity, trade.traded_at


@given(st.lists(ACTIONS, max_size=60), st.integers(1, 12), st.integers(1, 4), st.lists(st.integers(1, 7), min_size=1))
def test_sales_are_those_of_the_twin_whatever_is_canceled_or_corrected(
    actions: Sequence[Action], open_max: int, symbols_max: int, sizes: Sequence[int]
) -> None:
    sales = Sales(open_max=open_max, symbols_max=symbols_max)
    for delivery in deliveries(tokens(actions, sizes)):
        sales.apply(delivery)
    twin = SalesTwin(actions, open_max=open_max, symbols_max=symbols_max)
    assert known(sales) == expected(twin)
    assert (len(sales), sales.unlisted) == (len(twin.symbols), twin.unlisted)
    last = sorted(fact for fact, _, _ in expected(twin).values() if fact is not None)
    assert [facts(trade) for trade in sales.last_sales().records()] == last


@settings(max_examples=25)
@given(st.lists(ACTIONS, min_size=1, max_size=40), st.lists(st.integers(1, 7), min_size=1))
def test_client_server_and_ticker_have_the_same_sales(actions: Sequence[Action], sizes: Sequence[int]) -> None:
    ticker = Ticker()
    with tempfile.TemporaryDirectory() as folder, values.open_writer(Path(folder)) as writer:
        for each in tokens(actions, sizes):
            ordered = replace(each.ordered, stripe=values.STRIPE)
            writer.append(ordered, ordered.acknowledged_at)
            writer.release(each.release, ordered.acknowledged_at)
            ticker.apply(each)
        journal = JournalReader.open(Path(folder))
        client = [facts(trade) for trade in last_sales(journal, len(actions) + 1).batch.records()]
        web = WebTicker(Path(folder))
        assert known(web.sales) == known(ticker.sales) == expected(SalesTwin(actions))
        assert client == [facts(trade) for trade in web.sales.last_sales().records()]
        web.close()


@given(st.lists(ACTIONS, max_size=60), st.integers(1, 12))
def test_rows_of_sales_are_those_of_the_columns(actions: Sequence[Action], open_max: int) -> None:
    sales = Sales(open_max=open_max)
    for delivery in deliveries(tokens(actions, [5])):
        sales.apply(delivery)
    rows = sales.busiest(len(SYMBOLS))
    assert [row.volume.trades for row in rows] == sorted((row.volume.trades for row in rows), reverse=True)
    assert sorted(row.symbol for row in rows) == sales.symbols()
    numbers = [sale.number for sale in sales.open_sales()]
    assert numbers == sorted(numbers)
    assert len(numbers) <= open_max
    for row in rows:
        each = [sale for sale in sales.open_sales() if sale.symbol == row.symbol]
        each += [sale for sale in (sales.settled(row.symbol),) if sale is not None]
        assert row.last == max(each, key=lambda sale: sale.place, default=None)


def journal_of(folder: Path, *messages: SourceMessage) -> None:
    with values.open_writer(folder) as writer:
        ordered: Ordered = replace(token(1, messages).ordered, stripe=values.STRIPE)
        writer.append(ordered, ordered.acknowledged_at)
        writer.release(values.released(ordered), ordered.acknowledged_at)


MESSAGES = (
    sold("A", 10),
    sold("A", 12),
    notice_of(CancelNotice(2, "XNYS", "A", NOON + 5)),
    notice_of(CorrectionNotice(1, a_trade("A", 11, 50), NOON + 6)),
    notice_of(StatusNotice("XNYS", Status.HALTED, NOON + 7)),
    SourceMessage(NYSE, b"other"),
    sold("B", 7),
)


def test_notices_of_a_venue_arrive_as_records_with_their_places(tmp_path: Path) -> None:
    journal_of(tmp_path, *MESSAGES)
    with fairtape.connect(tmp_path, start="beginning") as tape:
        found = list(tape)
    kinds = [Trade, Trade, Canceled, Corrected, VenueStatus, Message, Trade]
    assert [type(each) for each in found] == kinds
    canceled, corrected, status = found[2:5]
    assert isinstance(canceled, Canceled)
    assert (canceled.number, canceled.venue, canceled.symbol, canceled.canceled_at) == (2, "XNYS", "A", NOON + 5)
    assert (canceled.sequence, canceled.source, canceled.source_number, canceled.stripe_number) == (3, NYSE, 3, 3)
    assert canceled.commit_at is not None
    assert (canceled.released_at, canceled.clock_bound) == (canceled.commit_at + 7, 1_000)
    assert isinstance(corrected, Corrected)
    assert (corrected.number, corrected.sequence) == (1, 4)
    assert facts(corrected.trade) == (4, NYSE, "XNYS", "A", 11 * ONE, 50 * ONE, NOON)
    assert corrected.trade.released_at == corrected.released_at
    assert isinstance(status, VenueStatus)
    assert (status.venue, status.status, status.since) == ("XNYS", Status.HALTED, NOON + 7)


def test_a_choice_of_symbols_applies_to_cancels_and_corrections_and_a_status_is_for_all(tmp_path: Path) -> None:
    journal_of(tmp_path, *MESSAGES)
    for symbols, numbers in (("A", [1, 2, 3, 4, 5]), ("B", [5, 7])):
        with fairtape.connect(tmp_path, symbols, start="beginning") as tape:
            assert [each.sequence for each in tape if not isinstance(each, Gap)] == numbers  # type: ignore[union-attr]


def test_readers_of_batches_get_cancels_and_corrections_as_notices(tmp_path: Path) -> None:
    journal_of(tmp_path, *MESSAGES)
    with fairtape.connect(tmp_path, start="beginning") as tape:
        assert [row for batch in tape.batches() for row in batch["sequence"].to_pylist()] == [1, 2, 7]
        assert [type(each) for each in tape.notices] == [Canceled, Corrected, VenueStatus]
        assert tape.following == 8


def test_a_snapshot_has_the_sale_before_a_canceled_one_as_it_was_corrected(tmp_path: Path) -> None:
    journal_of(tmp_path, *MESSAGES)
    with fairtape.connect(tmp_path, start="snapshot") as tape:
        snapshot = tape.snapshot()
    assert {symbol: facts(trade)[:1] for symbol, trade in snapshot.items()} == {"A": (4,), "B": (7,)}
    assert snapshot["A"].price == 11 * ONE


def test_cancels_that_a_slow_reader_was_not_given_are_counted() -> None:
    """A cancel is never merged, and one that is skipped is counted, as for other messages."""
    found = deliveries([token(1, MESSAGES)])
    for policy, size_max in ((Policy.SKIP, 2), (Policy.CONFLATE, 5)):
        backlog = Backlog(policy=policy, size_max=size_max)
        for delivery in found:
            for item in Selection(None, None).items(delivery):
                backlog.put(item)
        backlog.finish()
        taken, rows = 0, 0
        while (lent := backlog.borrow(taken)) is not None:
            taken, item = lent
            rows += (
                item.rows
                if isinstance(item, TradeBatch)
                else isinstance(item, Canceled | Corrected | VenueStatus | Message)
            )
        assert rows + backlog.skipped + backlog.merged == len(MESSAGES)
        assert (backlog.skipped, backlog.merged) == ((5, 0) if policy is Policy.SKIP else (1, 1))
