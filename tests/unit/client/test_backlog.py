"""The backlog is bounded; the items read and those that notices account for are together everything, in order."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairtape.client.backlog import Backlog, BacklogClosed, Item, Policy
from fairtape.tape.batches import TradeBatch
from fairtape.tape.records import Break, Gap, Merged, Message, Skipped
from unit.tape.tape_values import batch_of, trade


def message(sequence: int) -> Message:
    return Message(
        sequence=sequence, source=1, incarnation=1, source_number=1, stripe=0, stripe_number=1, payload=b"x",
        acknowledged_at=1, commit_at=2, released_at=3, received_at=4, clock_bound=5, late=False,
    )  # fmt: skip


@dataclass
class Reader:
    """Reads items, and keeps every record and notice."""

    backlog: Backlog
    loan: int = 0
    numbers: list[int] = field(default_factory=list)
    notices: list[Item] = field(default_factory=list)
    left_out: int = 0

    def take(self, *, wait: bool = False) -> bool:
        lent = self.backlog.borrow(self.loan, wait=wait)
        if lent is None:
            return False
        assert self.backlog.borrow(self.loan, wait=False) == lent, "what is lent is lent again until it is settled"
        self.loan, item = lent
        match item:
            case TradeBatch():
                self.numbers += item.places["sequence"].tolist()
                assert item.trades["trade_id"].tolist() == item.places["sequence"].tolist()
            case Message():
                self.numbers.append(item.sequence)
            case Skipped() | Merged():
                self.left_out += item.count
                assert item.first <= item.last
                assert item.count <= item.last - item.first + 1
            case _:
                self.notices.append(item)
        return True


# What a feed brings: lots by their sizes, a message (0), a notice (-1); and how many items the reader then takes.
steps = st.lists(st.tuples(st.integers(-1, 9), st.integers(0, 2)), max_size=60)


@given(steps=steps, size_max=st.integers(1, 12), policy=st.sampled_from([Policy.SKIP, Policy.CONFLATE]))
def test_items_read_and_notices_account_for_everything(
    steps: Sequence[tuple[int, int]], size_max: int, policy: Policy
) -> None:
    backlog = Backlog(policy=policy, size_max=size_max)
    reader = Reader(backlog)
    following = 1
    notices: list[Item] = []
    for kind, taken in steps:
        if kind > 0:
            backlog.put(batch_of(following, kind))
        elif kind == 0:
            backlog.put(message(following))
        elif len(notices) - len(reader.notices) < size_max - 1:  # one more would block
            notices.append(Break(following, 2))
            backlog.put(notices[-1])
        following += max(kind, 0) + (kind == 0)
        assert len(backlog) <= size_max
        for _ in range(taken):
            reader.take()
    backlog.finish()
    while reader.take():
        pass
    assert reader.notices == notices
    assert reader.numbers == sorted(set(reader.numbers))
    assert len(reader.numbers) + reader.left_out == following - 1
    assert reader.left_out == backlog.skipped + backlog.merged
    assert backlog.size_peak <= size_max
    if policy is Policy.SKIP:
        assert not backlog.merged


@given(steps=steps, size_max=st.integers(1, 12))
def test_a_blocked_feed_loses_nothing(steps: Sequence[tuple[int, int]], size_max: int) -> None:
    backlog = Backlog(policy=Policy.BLOCK, size_max=size_max)
    items: list[Item] = []
    following = 1
    for kind, _ in steps:
        items.append(batch_of(following, kind) if kind > 0 else message(following) if kind == 0 else Gap(following, 1))
        following += max(kind, 0) + (kind == 0)

    def feed() -> None:
        for item in items:
            backlog.put(item)
        backlog.finish()

    feeder = Thread(target=feed)
    feeder.start()
    reader = Reader(backlog)
    while reader.take(wait=True):
        pass
    feeder.join()
    assert reader.numbers == list(range(1, following))
    assert backlog.size_peak <= size_max
    assert reader.notices == [item for item in items if isinstance(item, Gap)]


def test_skipping_replaces_the_oldest_records_by_a_notice() -> None:
    backlog = Backlog(policy=Policy.SKIP, size_max=5)
    for item in (batch_of(1, 3), Break(4, 2), batch_of(4, 4)):
        backlog.put(item)
    items = _drained(backlog)
    assert items == [Skipped(1, 3, 3), Break(4, 2), [4, 5, 6, 7]]


def test_conflating_keeps_the_latest_of_each_symbol() -> None:
    backlog = Backlog(policy=Policy.CONFLATE, size_max=8)
    backlog.put(batch_of(1, 6))
    backlog.put(batch_of(7, 6))
    assert {trade(number).symbol for number in (3, 4, 5, 6)} == {trade(number).symbol for number in range(1, 13)}
    backlog.put(batch_of(13, 1))
    assert _drained(backlog) == [Merged(1, 8, 8), [9, 10, 11, 12], [13]]


def test_more_symbols_than_space_are_skipped_from_the_oldest_on() -> None:
    backlog = Backlog(policy=Policy.CONFLATE, size_max=3)
    for first in range(1, 13, 3):
        backlog.put(batch_of(first, 3))
    items = _drained(backlog)
    assert items[-1] == [10, 11, 12]
    assert {type(item) for item in items[:-1]} == {Merged, Skipped}
    assert len(items) == 3, "notices of dropped records are combined"
    assert backlog.skipped + backlog.merged == 9


def test_small_waiting_batches_are_joined() -> None:
    backlog = Backlog(policy=Policy.BLOCK, size_max=10_000)
    for number in range(1, 3_001):
        backlog.put(batch_of(number, 1))
    items = _drained(backlog)
    assert items[0] == list(range(1, 2_050))
    assert len(items) < 1_025


def test_a_long_message_counts_for_many_trades() -> None:
    long = replace(message(1), payload=bytes(160 * 9))
    for policy in Policy:
        backlog = Backlog(policy=policy, size_max=12)
        backlog.put(long)
        assert len(backlog) == 10
        backlog.put(batch_of(2, 2))
        if policy is not Policy.BLOCK:
            backlog.put(batch_of(4, 1))
            assert (len(backlog), backlog.skipped) == (3, 1)
    small = Backlog(policy=Policy.BLOCK, size_max=5)
    small.put(long)
    assert _drained(small) == [long], "one that is larger than all room has it alone"


def test_closing_a_backlog_wakes_a_blocked_feed() -> None:
    backlog = Backlog(policy=Policy.BLOCK, size_max=2)
    ended: list[type[Exception]] = []

    def feed() -> None:
        try:
            while True:
                backlog.put(batch_of(1, 1))
        except BacklogClosed as closed:
            ended.append(type(closed))

    feeder = Thread(target=feed)
    feeder.start()
    backlog.close()
    feeder.join()
    assert ended == [BacklogClosed]
    assert backlog.borrow(0) is None


def test_an_error_of_the_feed_follows_everything_that_it_brought() -> None:
    backlog = Backlog(policy=Policy.BLOCK, size_max=5)
    backlog.put(batch_of(1, 1))
    backlog.finish(KeyError("x"))
    assert backlog.borrow(0) is not None
    for _ in range(2):
        with pytest.raises(KeyError):
            backlog.borrow(1)


def _drained(backlog: Backlog) -> list[object]:
    backlog.finish()
    found: list[object] = []
    loan = 0
    while (lent := backlog.borrow(loan, wait=False)) is not None:
        loan, item = lent
        found.append(item.places["sequence"].tolist() if isinstance(item, TradeBatch) else item)
    return found
