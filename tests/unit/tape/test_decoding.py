"""Decoded entries hold the same as the journal's own reader yields, whatever the entries hold."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import unit.journal.journal_values as values
from fairtape.core.effects import FormationChange
from fairtape.journal import JournalMessage, JournalReader
from fairtape.market.trades import PublishedTrade, encode
from fairtape.tape.batches import TradeBatch
from fairtape.tape.decoding import EntryDecoder
from fairtape.tape.feed import Delivery
from fairtape.tape.records import Break, Gap, Message, Reformation, Trade
from unit.tape.tape_values import order, ordered, trade, write

AT = 77


def flattened(deliveries: Iterable[Delivery]) -> list[Trade | Message | Break | Reformation | Gap]:
    found: list[Trade | Message | Break | Reformation | Gap] = []
    for each in deliveries:
        if isinstance(each, TradeBatch):
            found += each.records()
        else:
            assert isinstance(each, Message | Break | Reformation | Gap)
            found.append(each)
    return found


def decoded(folder: Path, due: int = 1) -> list[Trade | Message | Break | Reformation | Gap]:
    with JournalReader.open(folder).entries(from_sequence=due) as cursor:
        return flattened(EntryDecoder(due).decode(list(cursor.everything()), AT))


@settings(max_examples=25)
@given(seed=st.integers(0, 1_000), count=st.integers(1, 20))
def test_any_message_is_decoded_as_the_journal_reads_it(seed: int, count: int) -> None:
    """Formations, Breaks and long messages included: the reader of the journal is the twin."""
    with tempfile.TemporaryDirectory() as folder:
        values.write(Path(folder), values.first_with_formations(count, seed=seed))
        found = decoded(Path(folder))
        records = list(JournalReader.open(folder).messages_and_formations())
        assert len(found) == len(records)
        for each, expected in zip(found, records, strict=True):
            if isinstance(expected, FormationChange):
                assert each == (Break if expected.broken else Reformation)(
                    expected.sequence, expected.formation, expected.installed_at, expected.stripe
                )
                continue
            assert isinstance(expected, JournalMessage)
            assert isinstance(each, Message)
            numbers = each.sequence, each.source, each.source_number
            assert numbers == (expected.sequence, expected.source, expected.number)
            assert (each.payload, each.late, each.received_at) == (expected.payload, expected.late, AT)
            times = each.acknowledged_at, each.commit_at, each.released_at
            assert times == (expected.acknowledged_at, expected.commit_at, expected.released_at)


def test_trades_have_four_times_the_bound_and_three_numbers(tmp_path: Path) -> None:
    write(tmp_path, order(7))
    found = decoded(tmp_path)
    assert [each.sequence for each in found if isinstance(each, Trade)] == list(range(1, 8))
    fifth = found[4]
    assert isinstance(fifth, Trade)
    assert (fifth.sequence, fifth.source, fifth.incarnation, fifth.source_number) == (5, 102, 5, 1_005)
    assert (fifth.stripe, fifth.stripe_number) == (values.STRIPE, 5)
    assert fifth.traded_at == trade(5).traded_at
    assert fifth.acknowledged_at == values.token_at(2)
    assert fifth.commit_at == values.token_at(2) + values.COMMIT_DELAY
    assert fifth.released_at == values.token_at(2) + values.COMMIT_DELAY + 7
    assert (fifth.received_at, fifth.clock_bound, fifth.late) == (AT, 1_000, False)
    assert (fifth.symbol, fifth.price, fifth.quantity) == (trade(5).symbol, trade(5).price, trade(5).quantity)


@given(due=st.integers(1, 9))
def test_reading_begins_with_the_number_that_is_due(due: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), order(9, per_token=4))
        found = decoded(Path(folder), due)
        assert [each.sequence for each in found if isinstance(each, Trade)] == list(range(due, 10))


def test_numbers_that_are_missing_are_a_gap(tmp_path: Path) -> None:
    write(tmp_path, order(4, first=10))
    found = decoded(tmp_path, 3)
    assert found[0] == Gap(3, 7, values.STRIPE)
    assert [each.sequence for each in found[1:] if isinstance(each, Trade)] == [10, 11, 12, 13]


def test_what_is_no_trade_is_a_message_among_trades(tmp_path: Path) -> None:
    """Some are too long, and one has the size of a trade and is none."""
    first, second = encode(PublishedTrade(1, "ABC", 1, 2, 3)), encode(PublishedTrade(1, "DEF", 1, 2, 3))
    write(tmp_path, ordered(1, 1, [[first, b"note", second], [b"x" * 64, first]]))
    kinds = [(type(each).__name__, each.sequence) for each in decoded(tmp_path) if not isinstance(each, Gap)]
    assert kinds == [("Trade", 1), ("Message", 2), ("Trade", 3), ("Message", 4), ("Trade", 5)]
