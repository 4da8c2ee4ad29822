"""The unified ticker as ITCH: one message per trade, without loss, and with the same bytes at every site."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.errors import FormatError
from fairtape.formats.itch import messages as itch
from fairtape.formats.itch.messages import BadItch
from fairtape.formats.itch.ticker_messages import (
    WIDE_SIZE,
    CanceledPrint,
    Listing,
    PrintedTrade,
    SessionEvent,
    TickerItch,
    TickerReader,
    fits_directory,
)
from fairtape.market.prices import ONE
from fairtape.market.trades import PublishedTrade, TradeFlag
from unit.formats.itch_values import messages, mutated
from unit.formats.trade_values import MIDNIGHT, as_records, trades

LISTINGS = (Listing("AAPL", "XNYS"), Listing("AAPL", "XLON"), Listing("MSFT", ""), Listing("BRK.B", "MINE"))
TRADE = PublishedTrade(1, "AAPL", 189_500_000_000, 100 * ONE, MIDNIGHT + 34_200_000_000_123, 77, TradeFlag.BOUGHT)
NUMBERS = st.integers(0, (1 << 64) - 1)


def session() -> tuple[TickerItch, TickerReader]:
    writer, reader = TickerItch(LISTINGS, midnight_at=MIDNIGHT), TickerReader(midnight_at=MIDNIGHT)
    for message in writer.opening(MIDNIGHT + 5):
        reader.read(message)
    return writer, reader


def test_a_trade_is_this_message() -> None:
    writer, _ = session()
    assert itch.decode(writer.trade(9_000, TRADE)) == itch.ItchTrade(
        stock_locate=1,
        tracking_number=TradeFlag.BOUGHT,
        timestamp_ns=34_200_000_000_123,
        order_reference=77,
        buy_sell="S",
        shares=100,
        stock="AAPL",
        price=1_895_000,
        match_number=9_000,
    )


def test_a_session_begins_with_its_directory_and_ends_with_an_event() -> None:
    writer, reader = TickerItch(LISTINGS, midnight_at=MIDNIGHT), TickerReader(midnight_at=MIDNIGHT)
    records = [reader.read(message) for message in writer.opening(MIDNIGHT + 5)]
    assert records[0] == SessionEvent("O", MIDNIGHT + 5)
    assert records[1:4] == [Listing("AAPL", ""), Listing("AAPL", "XNYS"), Listing("AAPL", "")]
    assert len(records) == 1 + len(LISTINGS) + 3
    assert reader.read(writer.closing(MIDNIGHT + 6)) == SessionEvent("C", MIDNIGHT + 6)


@given(st.lists(st.tuples(NUMBERS, trades()), max_size=12))
def test_every_trade_is_one_message_without_loss(numbered: list[tuple[int, PublishedTrade]]) -> None:
    writer, reader = session()
    numbers = np.array([number for number, _ in numbered], np.uint64)
    written = writer.trades(numbers, as_records([trade for _, trade in numbered]))
    assert [reader.read(message) for message in written] == [PrintedTrade(*each) for each in numbered]
    assert written == [writer.trade(number, trade) for number, trade in numbered]
    assert all(message[0] == ord("T") or itch.encode(itch.decode(message)) == message for message in written)


@pytest.mark.parametrize(
    "trade",
    [
        replace(TRADE, symbol="LONGERTHAN8"),
        replace(TRADE, venue=0, other_venue="ELSEWHERE"),
        replace(TRADE, symbol="NEWS"),
        replace(TRADE, price=-1_000_000_000),
        replace(TRADE, price=TRADE.price + 1),
        replace(TRADE, price=(1 << 32) * 100_000),
        replace(TRADE, quantity=ONE // 2),
        replace(TRADE, quantity=(1 << 32) * ONE),
        replace(TRADE, traded_at=MIDNIGHT - 1),
        replace(TRADE, traded_at=MIDNIGHT + (1 << 48)),
    ],
)
def test_a_trade_that_does_not_fit_into_itch_is_sent_wide(trade: PublishedTrade) -> None:
    writer, reader = session()
    message = writer.trade(5, trade)
    assert len(message) == WIDE_SIZE
    assert reader.read(message) == PrintedTrade(5, trade)


def test_a_cancel_is_a_broken_trade_and_a_correction_also_a_new_trade() -> None:
    writer, reader = session()
    assert reader.read(writer.cancel(9, at=MIDNIGHT + 7)) == CanceledPrint(9, MIDNIGHT + 7)
    named = Listing("AAPL", "XNYS")
    assert reader.read(writer.cancel(9, at=MIDNIGHT + 7, listing=named)) == CanceledPrint(9, MIDNIGHT + 7, named)
    broken, corrected = writer.correct(9, at=MIDNIGHT + 8, number=12, trade=TRADE)
    assert itch.decode(broken) == itch.ItchBrokenTrade(1, 1, 8, 9)
    record = reader.read(broken)
    assert isinstance(record, CanceledPrint)
    assert record.corrected
    assert reader.read(corrected) == PrintedTrade(12, TRADE)


@given(mutated(trades().map(lambda trade: session()[0].trade(1, trade)) | messages().map(itch.encode)))
def test_hostile_messages_are_refused_and_nothing_else(message: bytes) -> None:
    _, reader = session()
    try:
        reader.read(message)
    except FormatError:
        return


def test_a_directory_that_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(BadItch, match="listing is 'LONGERTHAN8' at ''"):
        TickerItch([Listing("LONGERTHAN8", "")], midnight_at=0)
    with pytest.raises(BadItch, match="twice"):
        TickerItch([Listing("A", ""), Listing("A", "")], midnight_at=0)
    assert not fits_directory(Listing("A", "ELSEWHERE"))


def test_a_trade_of_an_unknown_listing_is_refused() -> None:
    writer, _ = session()
    with pytest.raises(BadItch, match="stock 'AAPL' has locate 1, which is nothing in the directory"):
        TickerReader(midnight_at=MIDNIGHT).read(writer.trade(1, TRADE))
