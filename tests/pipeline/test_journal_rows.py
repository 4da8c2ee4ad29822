"""Rows of the source, without Spark, compared with the plain reader of journals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import unit.journal.journal_values as values
from fairtape.core.effects import Ordered, Span
from fairtape.core.errors import UserError
from fairtape.journal import Damaged, JournalWriter, SyncPolicy
from fairtape.journal.format import MARK_SIZE
from fairtape.market.trades import encode
from fairtape.pipeline.source.journal_rows import entries_of
from fairtape.pipeline.source.options import JournalSourceOptions
from fairtape.pipeline.source.partitions import Partitions
from fairtape.wire.blocks import pack_messages
from pipeline import pipeline_values as pipeline
from unit.journal.listings import listings

EVERY = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


@EVERY
@given(seed=st.integers(0, 1 << 32), rows_max=st.integers(1, 300), segment=st.integers(1 << 10, 1 << 14))
def test_every_number_has_one_row_as_the_plain_reader_reads_it(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rows_max: int, segment: int
) -> None:
    journal = tmp_path_factory.mktemp("storm")
    history = values.first_with_formations(40, seed=seed)
    values.write(journal, history, segment_size_max=segment)
    found = pipeline.rows(JournalSourceOptions(journals=(str(journal),)), rows_max)
    assert [pipeline.as_expected(row) for row in found if row["kind"] != "fragment"] == pipeline.expected_rows(journal)
    numbered = [row["sequence"] for row in found if row["kind"] in ("message", "fragment")]
    assert numbered == list(range(1, values.messages_of(history)[-1].sequence + values.messages_of(history)[-1].count))


def test_nanoseconds_and_billionths_survive(tmp_path: Path) -> None:
    pipeline.append(tmp_path, pipeline.tokens(5))
    rows = pipeline.rows(JournalSourceOptions(journals=(str(tmp_path),), rows="trades"))
    assert len(rows) == 50
    for row in rows:
        trade = pipeline.trade(row["sequence"])
        assert (row["price"], row["quantity"], row["traded_at_ns"]) == (trade.price, trade.quantity, trade.traded_at)
        assert (row["trade_id"] % (1 << 64), row["symbol"], row["venue"]) == (
            trade.trade_id,
            trade.symbol,
            trade.venue_name,
        )
        assert row["trade_flags"] == trade.flags


def test_messages_that_are_no_trades_are_no_trades(tmp_path: Path) -> None:
    bad = encode(pipeline.trade(3))[:8] + b"\xff" + encode(pipeline.trade(3))[9:]
    payloads = [encode(pipeline.trade(1)), b"", bytes(64), bad, b"T" * 64, encode(pipeline.trade(6)), b"longer" * 20]
    span = Span(1, 1, 1, len(payloads), 1, (pack_messages(payloads),), (len(payloads),))
    pipeline.append(tmp_path, [Ordered(0, 1, 1, 1, len(payloads), values.token_at(1), (span,))])
    trades = pipeline.rows(JournalSourceOptions(journals=(str(tmp_path),), rows="trades"))
    assert [row["sequence"] for row in trades] == [1, 6]
    messages = pipeline.rows(JournalSourceOptions(journals=(str(tmp_path),)))
    assert [row["payload"] for row in messages] == payloads


@pytest.mark.parametrize("rows", ["messages", "trades"])
def test_ranges_and_symbols_choose_rows(tmp_path: Path, rows: str) -> None:
    pipeline.append(tmp_path, pipeline.tokens(20))
    options = JournalSourceOptions.of(
        {"journals": str(tmp_path), "rows": rows, "first": "23", "last": "177", "symbols": "ABC,A"}
    )
    chosen = [row["sequence"] for row in pipeline.rows(options, 50)]
    assert chosen == [number for number in range(23, 178) if pipeline.trade(number).symbol in ("ABC", "A")]


def test_a_time_range_chooses_whole_tokens(tmp_path: Path) -> None:
    pipeline.append(tmp_path, pipeline.tokens(20))
    since, until = values.token_at(5), values.token_at(8)
    options = JournalSourceOptions.of({"journals": str(tmp_path), "since": str(since), "until": str(until)})
    assert [row["sequence"] for row in pipeline.rows(options)] == list(range(41, 71))


def test_a_journal_that_is_written_is_read_up_to_its_last_released_token(tmp_path: Path) -> None:
    pipeline.append(tmp_path, pipeline.tokens(10), keep=3)
    (last,) = sorted(tmp_path.glob("*.segment"))[-1:]
    with last.open("ab") as segment:
        segment.write(b"O\0\0\0half a head")
    options = JournalSourceOptions(journals=(str(tmp_path),))
    assert [row["sequence"] for row in pipeline.rows(options)] == list(range(1, 71))
    held = pipeline.rows(replace(options, ordered=True))
    assert [row["sequence"] for row in held] == list(range(1, 101))
    assert [row["released_at_ns"] is None for row in held] == [row["sequence"] > 70 for row in held]


def test_an_empty_journal_has_no_rows_and_one_message_is_one_row(tmp_path: Path) -> None:
    options = JournalSourceOptions(journals=(str(tmp_path),))
    assert pipeline.rows(options) == []
    pipeline.append(tmp_path, pipeline.tokens(1, size=1))
    assert [row["sequence"] for row in pipeline.rows(options)] == [1]


@EVERY
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_an_altered_byte_is_named_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, at: float, bit: int
) -> None:
    journal = tmp_path_factory.mktemp("altered")
    pipeline.append(journal, pipeline.tokens(40, size=8), size_max=4 << 10)
    options = JournalSourceOptions(journals=(str(journal),))
    before = pipeline.rows(options)
    segments = sorted(journal.glob("*.segment"))
    victim = segments[len(segments) // 2]
    octets = bytearray(victim.read_bytes())
    octets[int(at * len(octets))] ^= 1 << bit
    victim.write_bytes(octets)
    found, damage = _rows_or_damage(options)
    if damage is None:
        assert found == before
    else:
        assert damage.path in segments
        assert damage.sequence >= 1
        assert f"byte {damage.offset}, sequence {damage.sequence}" in str(damage)


def _rows_or_damage(options: JournalSourceOptions) -> tuple[list[dict[str, Any]], Damaged | None]:
    try:
        return pipeline.rows(options), None
    except Damaged as damage:
        return [], damage


def test_a_segment_that_is_cut_short_in_the_middle_is_named(tmp_path: Path) -> None:
    pipeline.append(tmp_path, pipeline.tokens(40, size=8), size_max=4 << 10)
    victim = sorted(tmp_path.glob("*.segment"))[2]
    victim.write_bytes(victim.read_bytes()[:-40])
    with pytest.raises(Damaged, match=rf"{victim.name} is damaged at byte \d+, sequence \d+"):
        pipeline.rows(JournalSourceOptions(journals=(str(tmp_path),)))


@pytest.mark.parametrize("rows_max", [1, 7, 1 << 20])
@pytest.mark.parametrize("place", [1, 2, -1])
def test_segments_of_two_sites_that_were_swapped_are_refused(tmp_path: Path, place: int, rows_max: int) -> None:
    journals = pipeline.equal_journals(tmp_path, pipeline.tokens(40, size=8))
    mine, _ = pipeline.swap(*journals, place)
    with pytest.raises(Damaged, match=rf"{mine.name} is damaged at byte 0, sequence {int(mine.stem)}: it belongs to"):
        pipeline.rows(JournalSourceOptions(journals=(str(journals[0]),)), rows_max)


def test_a_task_that_begins_in_the_segment_of_another_site_refuses_it(tmp_path: Path) -> None:
    """It was planned before they were swapped."""
    journals = tmp_path / "s1", tmp_path / "s2"
    for site, path in enumerate(journals, 1):
        values.write(path, values.first(60), site=site, sync=SyncPolicy.TOKEN)
    planned = list(pipeline.offset_ranges(JournalSourceOptions(journals=(str(journals[0]),)), 20))
    mine, _ = pipeline.swap(*journals, 2)
    within = [offset_range for offset_range in planned if offset_range.segment == str(mine)]
    assert len(within) > 2
    for offset_range in within:
        with pytest.raises(Damaged, match="it belongs to stripe 3 of site 2, and the journal to stripe 3 of site 1"):
            list(entries_of(offset_range))


@pytest.mark.parametrize("altered", ["digest", "content"])
def test_marks_that_were_altered_are_named(tmp_path: Path, altered: str) -> None:
    values.write(tmp_path, values.first(80))
    for path in values.segments(tmp_path)[1:4]:
        content = path.read_bytes()
        for offset, mark in pipeline.marks_in(path):
            if altered == "digest":
                pipeline.flip(path, offset + MARK_SIZE - 1)
            else:
                pipeline.alter_mark(path, offset, replace(mark, released_at=mark.released_at + 1))
            with pytest.raises(Damaged, match="the digest of a release mark does not match its content") as caught:
                pipeline.rows(JournalSourceOptions(journals=(str(tmp_path),)))
            assert (caught.value.path, caught.value.offset) == (path, offset)
            path.write_bytes(content)


def test_a_segment_that_is_missing_is_named(tmp_path: Path) -> None:
    pipeline.append(tmp_path, pipeline.tokens(40, size=8), size_max=4 << 10)
    sorted(tmp_path.glob("*.segment"))[2].unlink()
    with pytest.raises(Damaged, match="what follows is missing up to sequence"):
        pipeline.rows(JournalSourceOptions(journals=(str(tmp_path),)))


def test_a_journal_that_was_truncated_is_not_read_on_silently(tmp_path: Path) -> None:
    pipeline.append(tmp_path, pipeline.tokens(10))
    partitions = Partitions(JournalSourceOptions(journals=(str(tmp_path),)))
    reached = partitions.latest(partitions.start())
    with JournalWriter.open(tmp_path, stripe=0, site=1) as writer:
        writer.truncate_after(8)
        change = values.formation_change(pipeline.token(9, 81, 5), 2, broken=True)
        writer.append_formation(replace(change, stripe=0), values.token_at(9))
        for number, first in ((9, 81), (10, 86), (11, 91), (12, 96), (13, 101)):
            again = pipeline.token(number, first, 5, formation=2)
            writer.append(again, again.acknowledged_at)
            values.mark(writer, again)
    again_partitions = Partitions(JournalSourceOptions(journals=(str(tmp_path),)))
    with pytest.raises(Damaged, match="was truncated"):
        again_partitions.tasks(reached, again_partitions.latest(reached))


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ({}, "journals is missing"),
        ({"journals": "x", "path": "y"}, "option 'path' is unknown"),
        ({"journals": "x", "first": "0"}, "first is '0'"),
        ({"journals": "x", "since": "2026-01-01"}, "since is '2026-01-01'"),
        ({"journals": "x", "since": "2026-01-01T00:00:00.0000000001Z"}, "nine decimals of a second at most"),
        ({"journals": "[]"}, "not a list of directories"),
        ({"journals": '[""]'}, "not a list of directories"),
        ({"journals": "x", "first": "1_0"}, "first is '1_0'; it must be a whole number"),
        ({"journals": "x", "rows": "ticks"}, "rows is 'ticks'"),
        ({"journals": "x", "symbols": " , "}, "symbols names none"),
        ({"journals": "x", "stripes": "a"}, "stripes is 'a'"),
        ({"journals": "x", "start": "{1"}, "start is"),
        ({"journals": "x", "first": "9", "last": "3"}, "last is 3, below first"),
    ],
)
def test_a_wrong_option_is_refused_in_one_sentence(texts: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        JournalSourceOptions.of(texts)


def test_options_survive_their_text(tmp_path: Path) -> None:
    options = JournalSourceOptions(
        journals=("a,b", "c*"),
        rows="trades",
        first=3,
        last=9,
        since=5,
        until=10**18,
        symbols=("A", "B"),
        stripes=(1, 2),
        sites=(4,),
        max_rows=7,
        start={"0/1": {"next": 5, "digest": "ab"}},
    )
    assert JournalSourceOptions.of(options.to_texts()) == options


def test_two_journals_of_one_partition_are_refused_and_a_missing_directory_is_named(tmp_path: Path) -> None:
    for name in ("one", "other"):
        pipeline.append(tmp_path / name, pipeline.tokens(1))
    with pytest.raises(UserError, match="are both of stripe 0 and site 1"):
        pipeline.rows(JournalSourceOptions(journals=(str(tmp_path / "*"),)))
    with pytest.raises(UserError, match="which is not a directory"):
        pipeline.rows(JournalSourceOptions(journals=(str(tmp_path / "none"),)))


@EVERY
@given(limit=st.integers(1, 400), sizes=st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_a_limit_moves_every_partition_on_and_ends_with_whole_tokens(
    tmp_path_factory: pytest.TempPathFactory, limit: int, sizes: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("partitions")
    ends = set()
    for stripe in range(2):
        first, history = 1, []
        for number, size in enumerate(sizes, 1):
            history.append(pipeline.token(number, first, size, stripe=stripe))
            first += size
            ends.add(first)
        pipeline.append(folder / str(stripe), history, stripe=stripe)
    partitions = Partitions(JournalSourceOptions(journals=(str(folder / "*"),)))
    at = partitions.start()
    while (following := partitions.latest(at, limit)) != at:
        assert all(following[name].next in {at[name].next, *ends} for name in at)
        assert sum(following[name].next - at[name].next for name in at) <= limit + 2 * max(sizes)
        at = following
    assert {mark.next for mark in at.values()} == {sum(sizes) + 1}


@pytest.mark.parametrize("rows_max", [1, 3, 7, 40])
def test_every_step_ends_where_the_next_begins_whatever_the_limit_and_whatever_turns(
    tmp_path: Path, rows_max: int
) -> None:
    """Changes of formation belong to the number behind them, in the middle of a segment and at its end."""
    history = values.first_with_formations(80, seed=4)
    values.write(tmp_path, history)
    partitions = Partitions(JournalSourceOptions(journals=(str(tmp_path),)))
    reached, found = partitions.start(), []
    while (end := partitions.latest(reached, rows_max)) != reached:
        for offset_range in (each for task in partitions.tasks(reached, end) for each in task):
            found += [
                entry.head
                for entry in entries_of(offset_range)
                if offset_range.first <= entry.head.sequence < offset_range.end
            ]
        reached = end
    assert [(head.formation, head.token, head.changes_formation) for head in found] == [
        (entry.formation, entry.token, not isinstance(entry, Ordered)) for entry in history
    ]


def test_batches_of_a_stream_never_list_a_journal(tmp_path: Path) -> None:
    journal = tmp_path / "s1"
    pipeline.append(journal, pipeline.tokens(40), size_max=2 << 10)
    assert len(values.segments(journal)) > 10
    options = JournalSourceOptions.of({"journals": str(tmp_path / "*"), "since": str(values.token_at(3))})
    with listings(journal) as found:
        partitions = Partitions(options)
        reached = partitions.start()
        for number in range(40, 80):
            pipeline.append(journal, pipeline.tokens(1, first=number * 10 + 1), size_max=2 << 10)
            end = partitions.latest(reached, 25)
            for offset_range in (each for task in partitions.tasks(reached, end) for each in task):
                assert list(entries_of(offset_range))
            reached = end
    assert found == []
    assert [mark.next for mark in reached.values()] == [801]


@pytest.mark.parametrize(("decimals", "nanoseconds"), [("", 0), (".5", 500_000_000), (".000001", 1_000)])
@pytest.mark.parametrize("zone", ["Z", "+00:00"])
def test_an_instant_has_as_many_decimals_as_a_journal(decimals: str, nanoseconds: int, zone: str) -> None:
    for fine in range(3):
        more = f"{decimals or '.'}".ljust(7, "0") + "123456789"[:fine] if fine else decimals
        expected = nanoseconds + int("123"[:fine].ljust(3, "0")) if fine else nanoseconds
        options = JournalSourceOptions.of({"journals": "x", "since": f"1970-01-01T00:00:01{more}{zone}"})
        assert options.since == 1_000_000_000 + expected
