"""What the benchmark makes of what it measured: nothing left out, nothing absurd passed off as a figure."""

from pathlib import Path

import pytest

from fairtape.bench import edge
from fairtape.bench.reading import MIX, PER_TOKEN, itch_day, write_journal
from fairtape.bench.receivers import ReceiverTally
from fairtape.bench.report import problems_of
from fairtape.bench.results import Processors, Results
from fairtape.bench.ring import SEGMENTS_KEPT, trim, trimming
from fairtape.bench.senders import STAMP
from fairtape.client import connect
from fairtape.core.effects import Deliver, Ordered, Release, Span
from fairtape.core.instants import MILLISECOND
from fairtape.formats.itch.columns import from_arrow, to_arrow
from fairtape.journal.format import segment_name
from fairtape.wire.blocks import pack_messages
from unit.tape.tape_values import trades

SOUND: Results = {
    "messages_per_s": 1_000_000,
    "bare_packets_per_s": 60_000,
    "one_order": True,
    "single_releases": 500,
    "single_late_releases": 0,
    "failures": [],
}


def delivery(published_at: int, commit_at: int, *, late: bool = False) -> Deliver:
    body = pack_messages([STAMP.pack(published_at) + bytes(8)])
    ordered = Ordered(0, 1, 1, 1, 1, 0, (Span(101, 1, 1, 1, 1, (body,), (1,)),))
    return Deliver(ordered, Release(1, 1, 1, commit_at, commit_at, late=late, clock_bound=1))


def test_late_releases_are_in_every_figure_and_counted() -> None:
    tally = ReceiverTally(0, MILLISECOND, stamped=True)
    tally.take(delivery(100, 200), 250)
    tally.take(delivery(100, 200, late=True), 900)
    assert list(tally.errors) == [50, 700]
    assert list(tally.latencies) == [150, 800]
    assert (tally.messages, tally.late_messages, tally.late_releases) == (2, 1, 1)


def test_what_is_handed_over_outside_the_measured_time_is_no_sample() -> None:
    tally = ReceiverTally(1_000, 2_000, stamped=False)
    for handed_at in (999, 2_000):
        tally.take(delivery(0, 500), handed_at)
    assert tally.messages == len(tally.errors) == 0


def test_sound_figures_raise_no_problem() -> None:
    assert problems_of(SOUND) == []


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ({"one_order": False}, "one_order is false: not every receiver delivered all that was published"),
        ({"one_order_1kb": False}, "one_order_1kb is false"),
        ({"messages_per_s": 0}, "messages_per_s is 0: nothing was delivered in the measured time"),
        ({"bare_packets_per_s": 0}, "bare_packets_per_s is 0: nothing arrived in the measured time"),
        ({"single_releases": 0}, "single_releases is 0: nothing arrived in the measured time"),
        ({"failures": ["site 2: it was silent"]}, "a failure was declared (failures), site 2: it was silent"),
    ],
)
def test_figures_that_mean_nothing_are_told_in_a_sentence(broken: Results, sentence: str) -> None:
    (problem,) = problems_of(SOUND | broken)
    assert problem.startswith(sentence)


def test_only_the_last_segments_of_a_journal_are_kept(tmp_path: Path) -> None:
    names = [segment_name(sequence) for sequence in (1, 9, 10, 1_000, 20_000)]
    for name in (*names, "lock"):
        (tmp_path / name).touch()
    trim(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"lock", *names[-SEGMENTS_KEPT:]}


def test_a_journal_that_is_not_there_yet_is_no_hindrance(tmp_path: Path) -> None:
    with trimming([tmp_path / "later"]):
        trim(tmp_path / "later")


def test_the_share_that_the_host_took_is_that_of_the_time_between() -> None:
    assert Processors(30, 1_000).stolen_since(Processors(10, 800)) == 0.1
    assert Processors(10, 800).stolen_since(Processors(10, 800)) == 0.0
    assert 0 <= Processors.read().stolen <= Processors.read().total


EDGE: Results = {
    "websocket_kept_up": True,
    "websocket_customers": 1_000,
    "websocket_customers_asked": 1_000,
    "websocket_customers_tried": 1_000,
    "arrow_messages_per_s": 1_000_000,
    "itch_messages_per_s": 1_000_000,
}


@pytest.mark.parametrize(
    ("broken", "problems", "shortfalls"),
    [
        ({}, 0, 0),
        ({"arrow_messages_per_s": 999_999}, 0, 1),
        ({"websocket_customers": 500}, 0, 1),
        ({"websocket_customers": 0, "websocket_kept_up": False}, 1, 1),
    ],
)
def test_what_the_edge_does_not_reach_is_told(broken: Results, problems: int, shortfalls: int) -> None:
    assert len(edge.problems_of(EDGE | broken)) == problems
    assert len(edge.shortfalls_of(EDGE | broken)) == shortfalls


def test_a_generated_day_has_the_mix_and_is_itch_to_the_last_byte() -> None:
    octets = itch_day(20_000)
    tables = to_arrow(octets)
    assert {letter: round(table.num_rows / 20_000, 2) for letter, table in tables.items()} == {
        letter: pytest.approx(share, abs=0.011) for letter, share in MIX.items()
    }
    assert from_arrow(tables, end_mark=True) == octets


def test_the_journal_that_is_read_holds_all_its_trades_in_blocks_of_a_datagram(tmp_path: Path) -> None:
    written = trades(1, 2 * PER_TOKEN + 7)
    write_journal(tmp_path, written)
    with connect(tmp_path, start="beginning") as tape:
        found = tape.to_arrow()
    assert found["sequence"].to_pylist() == list(range(1, len(written) + 1))
    assert found["trade_id"].to_pylist() == written["trade_id"].tolist()
