"""Cancels and corrections for every customer: the ticker of the order is the twin of every snapshot."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import fairtape
import unit.journal_values as values
from fairtape.client import Canceled, Corrected, Gap, Message, Trade, VenueStatus
from fairtape.client.backlog import Backlog, Policy
from fairtape.client.journal_feed import last_sales
from fairtape.client.selection import Selection
from fairtape.core.effects import Deliver, Ordered
from fairtape.journal import JournalEntry, JournalReader
from fairtape.market import notices
from fairtape.market.notices import Cancel, Correction, Status
from fairtape.market.prices import ONE
from fairtape.tape.batches import TradeBatch
from fairtape.tape.decoding import EntryDecoder
from fairtape.tape.feed import Delivery
from fairtape.tape.sales_columns import ColumnSales
from fairtape.tape.ticker import Ticker, TickerOptions
from fairtape.web.ticker import LiveTicker as WebTicker
from unit.tape.ticker_values import LONDON, NOON, NYSE, VENUE_OF, Said, a_trade, said, sold, token

SYMBOLS = ("A", "B", "C")
DEEDS = st.tuples(
    st.sampled_from(["sell", "sell", "sell", "cancel", "correct", "status", "other"]),
    st.integers(1, 40),
    st.sampled_from(SYMBOLS),
    st.integers(1, 9),
    st.integers(0, 9),
    st.sampled_from([NYSE, LONDON]),
)
Deed = tuple[str, int, str, int, int, int]
Known = tuple[tuple[object, ...] | None, int, int]


def message(deed: Deed) -> Said:
    kind, target, symbol, price, quantity, source = deed
    match kind:
        case "sell":
            return sold(symbol, price, quantity, source=source)
        case "cancel":
            return said(Cancel(target, VENUE_OF[source], symbol, NOON), source=source)
        case "correct":
            return said(Correction(target, a_trade(symbol, price, quantity, source=source), NOON), source=source)
        case "status":
            return said(notices.VenueStatus(VENUE_OF[source], Status.HALTED, NOON), source=source)
    return Said(source, b"no trade")


def tokens(deeds: Sequence[Deed], sizes: Sequence[int]) -> list[Deliver]:
    messages = [message(deed) for deed in deeds]
    found: list[Deliver] = []
    at = 0
    while at < len(messages):
        size = sizes[len(found) % len(sizes)]
        found.append(token(at + 1, messages[at : at + size]))
        at += size
    return found


def deliveries(tokens: Sequence[Deliver]) -> list[Delivery]:
    opener = EntryDecoder(1)
    found: list[Delivery] = []
    for each in tokens:
        found += opener.opened([JournalEntry(each.ordered, each.release, b"", Path(), 0)], 7)
    return found


def in_truth(ticker: Ticker) -> dict[str, Known]:
    """The last sale, the volume and the trades of every symbol that was ever sold."""
    return {
        row.symbol: (
            row.last and (row.last.number, *row.last[2:]),
            row.volume.quantity,
            row.volume.trades,
        )
        for row in ticker.directory()
    }


def known(sales: ColumnSales) -> dict[str, Known]:
    found: dict[str, Known] = {}
    for symbol in sales.symbols():
        told = sales.of(symbol)
        assert told is not None
        lot, volume = told
        found[symbol] = (next(map(facts, lot.records()), None), volume.quantity, volume.trades)
    return found


def facts(trade: Trade) -> tuple[object, ...]:
    place = trade.sequence, trade.source, trade.venue, trade.symbol
    return *place, trade.price, trade.quantity, trade.traded_at


@given(st.lists(DEEDS, max_size=60), st.integers(1, 12), st.integers(1, 4), st.lists(st.integers(1, 7), min_size=1))
def test_sales_by_columns_are_those_of_the_ticker_whatever_is_taken_back(
    deeds: Sequence[Deed], open_max: int, symbols_max: int, sizes: Sequence[int]
) -> None:
    ticker = Ticker(options=TickerOptions(open_max=open_max, symbols_max=symbols_max))
    sales = ColumnSales(1, open_max=open_max, symbols_max=symbols_max)
    for each in tokens(deeds, sizes):
        ticker.apply(each)
        for delivery in deliveries([each]):
            sales.note(delivery)
    assert known(sales) == in_truth(ticker)
    assert sales.unlisted == ticker.sales.unlisted
    last = sorted(fact for fact, _, _ in in_truth(ticker).values() if fact is not None)
    assert [facts(trade) for trade in sales.lot().records()] == last


@settings(max_examples=25)
@given(st.lists(DEEDS, min_size=1, max_size=40), st.lists(st.integers(1, 7), min_size=1))
def test_client_server_and_ticker_know_the_same(deeds: Sequence[Deed], sizes: Sequence[int]) -> None:
    ticker = Ticker()
    with tempfile.TemporaryDirectory() as folder, values.open_writer(Path(folder)) as writer:
        for each in tokens(deeds, sizes):
            ordered = replace(each.ordered, stripe=values.STRIPE)
            writer.append(ordered, ordered.acknowledged_at)
            writer.release(each.release, ordered.acknowledged_at)
            ticker.apply(each)
        client = [facts(trade) for trade in last_sales(JournalReader.open(Path(folder)), len(deeds) + 1).lot.records()]
        web = WebTicker(Path(folder))
        assert known(web.sales) == in_truth(ticker)
        assert client == [facts(trade) for trade in web.sales.lot().records()]
        web.close()


def journal_of(folder: Path, *messages: Said) -> None:
    with values.open_writer(folder) as writer:
        ordered: Ordered = replace(token(1, messages).ordered, stripe=values.STRIPE)
        writer.append(ordered, ordered.acknowledged_at)
        writer.release(values.released(ordered), ordered.acknowledged_at)


STORY = (
    sold("A", 10),
    sold("A", 12),
    said(Cancel(2, "XNYS", "A", NOON + 5)),
    said(Correction(1, a_trade("A", 11, 50), NOON + 6)),
    said(notices.VenueStatus("XNYS", Status.HALTED, NOON + 7)),
    Said(NYSE, b"other"),
    sold("B", 7),
)


def test_what_a_venue_says_arrives_as_records_with_their_places(tmp_path: Path) -> None:
    journal_of(tmp_path, *STORY)
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
    journal_of(tmp_path, *STORY)
    for symbols, numbers in (("A", [1, 2, 3, 4, 5]), ("B", [5, 7])):
        with fairtape.connect(tmp_path, symbols, start="beginning") as tape:
            assert [each.sequence for each in tape if not isinstance(each, Gap)] == numbers  # type: ignore[union-attr]


def test_readers_of_batches_are_told_beside_them_what_is_void(tmp_path: Path) -> None:
    journal_of(tmp_path, *STORY)
    with fairtape.connect(tmp_path, start="beginning") as tape:
        assert [row for batch in tape.batches() for row in batch["sequence"].to_pylist()] == [1, 2, 7]
        assert [type(each) for each in tape.notices] == [Canceled, Corrected, VenueStatus]
        assert tape.following == 8


def test_a_snapshot_has_the_sale_before_a_canceled_one_as_it_was_corrected(tmp_path: Path) -> None:
    journal_of(tmp_path, *STORY)
    with fairtape.connect(tmp_path, start="snapshot") as tape:
        snapshot = tape.snapshot()
    assert {symbol: facts(trade)[:1] for symbol, trade in snapshot.items()} == {"A": (4,), "B": (7,)}
    assert snapshot["A"].price == 11 * ONE


def test_a_slow_reader_is_told_of_cancels_it_was_not_given() -> None:
    """A cancel is never merged, and one that is skipped is counted, as for other messages."""
    found = deliveries([token(1, STORY)])
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
        assert rows + backlog.skipped + backlog.merged == len(STORY)
        assert (backlog.skipped, backlog.merged) == ((5, 0) if policy is Policy.SKIP else (1, 1))
