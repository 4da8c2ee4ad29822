"""The unified ticker: canceled trades do not count, replicas are equal, and every table has its limit."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.core.effects import Deliver, FormationChange, Ordered, Span
from fairtape.core.instants import SECOND
from fairtape.market.notices import CancelNotice, CorrectionNotice, Status, StatusNotice
from fairtape.market.prices import ONE
from fairtape.market.trades import TRADE_SIZE, blank_trades
from fairtape.tape.sales import NoticeRefusal
from fairtape.tape.ticker import (
    NoticeRefused,
    Sold,
    Ticker,
    TickerOptions,
    TradeCanceled,
    TradeCorrected,
    VenueChange,
    VenueState,
)
from fairtape.wire.blocks import pack_records
from unit.tape.sales_twin import ACTIONS, Action, SalesTwin, tokens
from unit.tape.ticker_values import LONDON, NOON, NYSE, VENUE_OF, SourceMessage, a_trade, notice_of, sold, token


def ticker_of(*messages: SourceMessage) -> Ticker:
    ticker = Ticker()
    ticker.apply(token(1, messages))
    return ticker


def cancel(number: int, symbol: str = "ACME", *, source: int = NYSE) -> SourceMessage:
    return notice_of(CancelNotice(number, VENUE_OF[source], symbol, NOON), source=source)


def correct(
    number: int, symbol: str = "ACME", *, price: int = 11, quantity: int = 50, source: int = NYSE
) -> SourceMessage:
    return notice_of(CorrectionNotice(number, a_trade(symbol, price, quantity, source=source), NOON), source=source)


def state_of(ticker: Ticker, symbol: str = "ACME") -> tuple[int | None, int, int]:
    """The last price, the volume and the number of trades, in whole shares."""
    row = ticker.sales.of(symbol)
    assert row is not None
    return (row.last.price // ONE if row.last else None), row.volume.quantity // ONE, row.volume.trades


def test_the_last_sale_is_the_last_in_the_order_and_volumes_add_up() -> None:
    ticker = ticker_of(sold(price=10), sold(price=12, quantity=30, source=LONDON), sold("OTHER", 7))
    assert state_of(ticker) == (12, 130, 2)
    assert [(row.symbol, set(row.venues)) for row in ticker.directory()] == [
        ("ACME", {"XNYS", "XLON"}),
        ("OTHER", {"XNYS"}),
    ]
    assert {venue.name: venue.volume.trades for venue in ticker.venues} == {"XNYS": 2, "XLON": 1}


def test_a_canceled_trade_does_not_count() -> None:
    ticker = ticker_of(sold(price=10), sold(price=12, quantity=30))
    (output,) = ticker.apply(token(3, [cancel(2)]))
    assert isinstance(output, TradeCanceled)
    assert output.sale.number == 2
    assert output.last is not None
    assert output.last.number == 1
    assert state_of(ticker) == (10, 100, 1)
    venue = ticker.venues.of("XNYS")
    assert venue is not None
    assert (venue.volume.quantity, venue.volume.trades, venue.canceled) == (100 * ONE, 1, 1)


def test_where_all_trades_are_canceled_there_is_no_last_sale() -> None:
    ticker = ticker_of(sold())
    ticker.apply(token(2, [cancel(1)]))
    assert state_of(ticker) == (None, 0, 0)
    assert ticker.last_sale("ACME") is None
    assert ticker.last_sale("NEVER") is None


def test_a_corrected_trade_keeps_its_place_and_gets_a_number_of_its_own() -> None:
    ticker = ticker_of(sold(price=10), sold(price=12))
    (output,) = ticker.apply(token(3, [correct(1, price=9, quantity=1)]))
    assert isinstance(output, TradeCorrected)
    assert (output.wrong.number, output.sale.number, output.sale.place) == (1, 3, 1)
    assert state_of(ticker) == (12, 101, 2)
    ticker.apply(token(4, [correct(2, price=13)]))
    assert state_of(ticker) == (13, 51, 2)
    ticker.apply(token(5, [cancel(4)]))
    assert state_of(ticker) == (9, 1, 1)


@pytest.mark.parametrize(
    ("notice", "why"),
    [
        (cancel(7), NoticeRefusal.UNKNOWN),
        (cancel(1, source=LONDON), NoticeRefusal.FOREIGN),
        (cancel(1, "OTHER"), NoticeRefusal.OTHER),
        (correct(7), NoticeRefusal.UNKNOWN),
        (correct(1, source=LONDON), NoticeRefusal.FOREIGN),
        (correct(1, "OTHER"), NoticeRefusal.OTHER),
    ],
)
def test_a_notice_that_is_not_its_trades_own_is_refused_and_changes_nothing(
    notice: SourceMessage, why: NoticeRefusal
) -> None:
    ticker = ticker_of(sold())
    before = state_of(ticker)
    assert ticker.apply(token(2, [notice])) == [NoticeRefused(2, why)]
    assert state_of(ticker) == before


def test_no_trade_is_revised_twice() -> None:
    ticker = ticker_of(sold(), sold())
    outputs = ticker.apply(token(3, [cancel(1), cancel(1), correct(1), correct(2), cancel(2)]))
    assert [type(output) for output in outputs] == [
        TradeCanceled,
        NoticeRefused,
        NoticeRefused,
        TradeCorrected,
        NoticeRefused,
    ]
    assert state_of(ticker) == (11, 50, 1)


def test_a_venue_is_halted_by_its_notice_and_silent_when_the_order_goes_on_without_it() -> None:
    ticker = Ticker(options=TickerOptions(silence_period=5 * SECOND))
    ticker.apply(token(1, [sold(), sold(source=LONDON)], at=NOON))
    halt, resume = (notice_of(StatusNotice("XNYS", status, NOON)) for status in (Status.HALTED, Status.OPEN))
    assert ticker.apply(token(3, [halt], at=NOON + SECOND)) == [VenueChange("XNYS", VenueState.HALTED, NOON + SECOND)]
    at = NOON + 7 * SECOND
    assert ticker.apply(token(4, [sold()], at=at))[1:] == [VenueChange("XLON", VenueState.SILENT, at)]
    assert ticker.apply(token(5, [resume], at=at)) == [VenueChange("XNYS", VenueState.OPEN, at)]
    assert ticker.apply(token(6, [sold(source=LONDON)], at=at))[1:] == [VenueChange("XLON", VenueState.OPEN, at)]
    stranger = notice_of(StatusNotice("XNYS", Status.HALTED, NOON), source=LONDON)
    assert ticker.apply(token(7, [stranger], at=at)) == [NoticeRefused(7, NoticeRefusal.FOREIGN)]


def test_a_clock_that_runs_ahead_is_found_by_the_order() -> None:
    ticker = Ticker()
    ticker.apply(token(1, [sold(at=NOON + SECOND), sold(source=LONDON, at=NOON - SECOND)], at=NOON))
    assert {venue.name: venue.clock_ahead for venue in ticker.venues} == {"XNYS": SECOND, "XLON": 0}
    assert {venue.name: venue.delay_min for venue in ticker.venues} == {"XNYS": -SECOND, "XLON": SECOND}


def test_a_full_block_is_decoded_at_once_without_what_is_no_trade() -> None:
    trades = blank_trades(3)
    trades["symbol"] = [b"ACME", b"", b"ACME"]  # the second one is none
    trades["quantity"] = ONE
    span = Span(NYSE, 1, 1, 3, 1, (pack_records(trades.tobytes(), TRADE_SIZE),), (3,))
    ticker = Ticker()
    outputs = ticker.apply(Deliver(Ordered(0, 1, 1, 1, 3, NOON, (span,)), token(1, [sold()]).release))
    assert [output.sale.number for output in outputs if isinstance(output, Sold)] == [1, 3]
    assert ticker.others == 1


def test_other_messages_of_the_order_are_counted_and_change_nothing() -> None:
    ticker = Ticker()
    spoilt = bytearray(cancel(1).payload)
    spoilt[39] = 255  # a number below zero
    others = [SourceMessage(NYSE, b"hello"), SourceMessage(NYSE, bytes(spoilt)), SourceMessage(NYSE, bytes(TRADE_SIZE))]
    assert ticker.apply(token(1, others)) == []
    assert (ticker.others, ticker.due) == (3, 4)


def test_a_token_that_comes_again_changes_nothing() -> None:
    ticker = ticker_of(sold(), sold())
    before = ticker.digest()
    assert ticker.apply(token(1, [sold(), sold()])) == []
    assert ticker.digest() == before


def test_a_break_before_what_was_counted_makes_the_state_unsound() -> None:
    for sequence, sound in ((3, True), (2, False)):
        ticker = ticker_of(sold(), sold())
        ticker.on_formation(FormationChange(0, 2, 9, sequence, True, b"", NOON))
        assert (ticker.sound, ticker.due) == (sound, sequence)


def test_every_table_has_its_limit() -> None:
    ticker = Ticker(options=TickerOptions(open_max=2, symbols_max=2, venues_max=1))
    ticker.apply(token(1, [sold("A"), sold("B"), sold("C"), sold("A", price=12, source=LONDON)]))
    assert ticker.sales.unlisted == 1
    assert ticker.venues.unlisted == 1
    assert [sale.number for sale in ticker.sales.open_sales()] == [2, 4]
    assert ticker.apply(token(5, [cancel(1, "A")])) == [NoticeRefused(5, NoticeRefusal.UNKNOWN)]
    assert ticker.apply(token(6, [notice_of(StatusNotice("XLON", Status.HALTED, NOON), source=LONDON)])) == [
        NoticeRefused(6, NoticeRefusal.CROWDED)
    ]


@given(st.lists(ACTIONS, max_size=40), st.integers(1, 12), st.lists(st.integers(1, 5), min_size=1))
def test_cancels_and_corrections_leave_what_a_twin_adds_up_from_the_beginning(
    actions: Sequence[Action], open_max: int, sizes: Sequence[int]
) -> None:
    twin = SalesTwin(actions, open_max=open_max)
    options = TickerOptions(open_max=open_max)
    ticker, replica = Ticker(options=options), Ticker(options=options)
    for each in tokens(actions, [1], at=NOON):
        ticker.apply(each)
    assert [row.symbol for row in ticker.directory()] == twin.symbols
    for row in ticker.directory():
        assert row.last == twin.last_of(row.symbol)
        assert (row.volume.quantity, row.volume.trades) == twin.volume_of(row.symbol)
    for venue in ticker.venues:
        assert (venue.volume.quantity, venue.volume.trades) == twin.volume_at(venue.name)
    for each in tokens(actions, sizes, at=NOON):
        replica.apply(each)
    assert replica.digest() == ticker.digest()


@given(st.lists(ACTIONS, min_size=1, max_size=12))
def test_replicas_that_differ_in_one_message_differ_in_their_digests(actions: Sequence[Action]) -> None:
    messages = [sold(each.symbol, each.price, each.quantity, source=each.source) for each in actions]
    one, other = Ticker(), Ticker()
    one.apply(token(1, messages))
    other.apply(token(1, [*messages[:-1], sold("A", 77)]))
    assert one.digest() != other.digest()
