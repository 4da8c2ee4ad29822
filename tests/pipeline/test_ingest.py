"""Tables from journals and traces: every number once, also after crashes, lost checkpoints and repeated batches."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import unit.journal.journal_values as values
from fairtape.core.errors import UserError
from fairtape.journal import Damaged, JournalReader, JournalWriter
from pipeline import pipeline_values as pipeline

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from deltalake import DeltaTable

from fairtape.pipeline.schemas import MESSAGES, SCHEMAS
from fairtape.pipeline.source.journal_rows import batches
from fairtape.pipeline.source.options import JournalSourceOptions
from fairtape.pipeline.source.partitions import Offset, PartitionName
from fairtape.pipeline.spark.delta import DeltaFolder, write_parquet
from fairtape.pipeline.spark.spark_session import as_user_errors
from fairtape.pipeline.tables.ingest import (
    IngestSource,
    ingest_journals,
    ingest_offset_ranges,
    ingest_traces,
    stream_journals,
)
from fairtape.ring.receiver.tracing import Trace, TraceKind
from fairtape.storage import trace_files as tracefiles
from fairtape.storage.trace_files import INCARNATION_RECORDS, TRACES, TraceWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITION = PartitionName(0, 1)


def sequences(table: Path) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table(columns=["sequence"])["sequence"].to_pylist())


def content(table: Path) -> list[dict[str, Any]]:
    return sorted(DeltaTable(table).to_pyarrow_table().to_pylist(), key=lambda row: (row["stripe"], row["sequence"]))


def test_the_table_gains_what_is_new_and_keeps_every_integer(spark: "SparkSession", tmp_path: Path) -> None:
    journal, table = tmp_path / "journal", tmp_path / "table"
    pipeline.append(journal, pipeline.tokens(10))
    assert ingest_journals(spark, journal, table, rows="trades") == 100
    assert ingest_journals(spark, journal, table, rows="trades") == 0
    pipeline.append(journal, pipeline.tokens(3, first=101))
    assert ingest_journals(spark, journal, table, rows="trades") == 30
    rows = content(table)
    assert [(row["sequence"], row["price"], row["traded_at_ns"]) for row in rows] == [
        (number, pipeline.trade(number).price, pipeline.trade(number).traded_at) for number in range(1, 131)
    ]
    folder = DeltaFolder(table, SCHEMAS["trades"])
    assert folder.offsets()[PARTITION].next == 131
    assert spark.read.parquet(*folder.files()).count() == 130


def test_compaction_and_sweeping_change_no_row_and_no_offset(spark: "SparkSession", tmp_path: Path) -> None:
    journal, table = tmp_path / "journal", tmp_path / "table"
    for first in (1, 51):
        pipeline.append(journal, pipeline.tokens(5, first=first))
        ingest_journals(spark, journal, table)
    before = content(table)
    orphan = write_parquet(table, iter(_some_batches(journal)), MESSAGES)
    assert orphan is not None
    folder = DeltaFolder(table, MESSAGES)
    offsets = folder.offsets()
    assert folder.compact()["numFilesRemoved"] == 2
    assert orphan.path in folder.sweep(hours=0)
    assert not (table / orphan.path).exists()
    assert (content(table), folder.offsets(), len(folder.files())) == (before, offsets, 1)
    assert ingest_journals(spark, journal, table) == 0


def _some_batches(journal: Path) -> list[Any]:
    options = JournalSourceOptions(journals=(str(journal),))
    return [batch for offset_range in pipeline.offset_ranges(options) for batch in batches(offset_range, options)]


def test_a_batch_that_comes_again_with_other_bounds_adds_only_what_is_missing(
    spark: "SparkSession", tmp_path: Path
) -> None:
    journal, table = tmp_path / "journal", tmp_path / "table"
    pipeline.append(journal, pipeline.tokens(10))
    feed = IngestSource.of(JournalSourceOptions(journals=(str(journal),)), table)

    def offset_ranges(first: int = 1, last: int | None = None) -> Any:
        options = replace(feed.options, rows="offset_ranges", first=first, last=last)
        return spark.read.format("fairtape").options(**options.to_texts()).load()

    assert ingest_offset_ranges(offset_ranges(last=40), feed) == 40
    assert ingest_offset_ranges(offset_ranges(last=40), feed) == 0
    assert ingest_offset_ranges(offset_ranges(first=25, last=73), feed) == 33
    with pytest.raises(UserError, match=r"continues with sequence 91, and table .* needs 74: there would be a gap"):
        ingest_offset_ranges(offset_ranges(first=91), feed)
    assert ingest_offset_ranges(offset_ranges(), feed) == 27
    assert sequences(table) == list(range(1, 101))


def test_a_table_that_is_new_does_not_begin_in_the_middle(spark: "SparkSession", tmp_path: Path) -> None:
    journal, table = tmp_path / "journal", tmp_path / "table"
    pipeline.append(journal, pipeline.tokens(10))
    feed = IngestSource.of(JournalSourceOptions(journals=(str(journal),)), table)
    later = replace(feed.options, rows="offset_ranges", first=51)
    with pytest.raises(UserError, match=r"continues with sequence 51, and table .* needs 1"):
        ingest_offset_ranges(spark.read.format("fairtape").options(**later.to_texts()).load(), feed)


def test_of_two_writers_at_once_one_wins_and_the_other_adds_nothing(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    pipeline.append(journal, pipeline.tokens(4))
    folder = DeltaFolder(tmp_path / "table", MESSAGES)
    files = [write_parquet(folder.folder, iter(_some_batches(journal)), MESSAGES) for _ in range(2)]
    before, after = {PARTITION: Offset(1)}, {PARTITION: Offset(41, "ab")}
    assert files[0] is not None
    assert files[1] is not None
    assert folder.commit([files[0]], before, after)
    assert not folder.commit([files[1]], before, after)
    assert sequences(folder.folder) == list(range(1, 41))
    with pytest.raises(UserError, match="would leave a gap or be duplicates"):
        folder.commit([files[1]], {PARTITION: Offset(51)}, {PARTITION: Offset(61)})


def test_an_incremental_table_takes_each_step_once_and_only_the_next_one(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    pipeline.append(journal, pipeline.tokens(4))
    folder = DeltaFolder(tmp_path / "table", MESSAGES)
    file = write_parquet(folder.folder, iter(_some_batches(journal)), MESSAGES)
    assert file is not None
    steps = [{PARTITION: Offset(number, "ab")} for number in (1, 41, 51)]
    folder.replace([], {}, steps[0])
    for _ in range(2):
        folder.extend([file], steps[0], steps[1])
        assert (sequences(folder.folder), folder.offsets()) == (list(range(1, 41)), steps[1])
    folder.extend([], steps[1], steps[2])  # numbers came, and none of them makes a row
    assert (len(sequences(folder.folder)), folder.offsets()) == (40, steps[2])
    with pytest.raises(UserError, match="was changed by another job while this one made rows for it"):
        folder.extend([file], steps[0], steps[1])


def test_a_break_and_changes_of_formation_are_rows(spark: "SparkSession", tmp_path: Path) -> None:
    journal, table = tmp_path / "journal", tmp_path / "table"
    history: list[Any] = pipeline.tokens(2)
    for number, broken in ((2, False), (3, True)):
        following = pipeline.token(number + 1, len(history[:2]) * 10 + 1 + (number - 2) * 10, 10, formation=number)
        history += [replace(values.formation_change(following, number, broken=broken), stripe=0), following]
    pipeline.append(journal, history)
    ingest_journals(spark, journal, table)
    rows = content(table)
    assert [(row["kind"], row["formation"], row["sequence"]) for row in rows if row["kind"] != "message"] == [
        ("formation", 2, 21),
        ("break", 3, 31),
    ]
    assert sum(row["kind"] == "message" for row in rows) == 40


def test_changes_of_formation_at_the_end_of_a_segment_are_rows_like_others(
    spark: "SparkSession", tmp_path: Path
) -> None:
    journal, table = tmp_path / "journal", tmp_path / "table"
    history: list[Any] = []
    for number, token in enumerate(pipeline.tokens(12, size=3), 1):
        change = values.formation_change(token, number)
        history += [replace(change, stripe=0, layout=bytes(4_000)), replace(token, formation=number)]
    for end in (9, 16, 24):  # the table stands now before a change, now behind a token
        pipeline.append(journal, history[:end][sum(1 for _ in _entries(journal)) :], size_max=4 << 10)
        stream_journals(spark, f"{journal}*", table, available_now=True, max_rows=3).awaitTermination()
    rows = content(table)
    assert [row["formation"] for row in rows if row["kind"] == "formation"] == list(range(1, 13))
    assert sorted(row["sequence"] for row in rows if row["kind"] == "message") == list(range(1, 37))


def _entries(journal: Path) -> list[Any]:
    if not journal.exists():
        return []
    with JournalReader.open(journal).entries(ordered=True) as cursor:
        return list(cursor.everything())


def test_a_journal_truncated_after_ingestion_is_refused(spark: "SparkSession", tmp_path: Path) -> None:
    journal, table = tmp_path / "journal", tmp_path / "table"
    pipeline.append(journal, pipeline.tokens(4))
    ingest_journals(spark, journal, table)
    with JournalWriter.open(journal, stripe=0, site=1) as writer:
        writer.truncate_after(3)
        for number, first, count in ((4, 31, 5), (5, 36, 5), (6, 41, 5)):
            again = pipeline.token(number, first, count)
            writer.append(again, again.acknowledged_at)
            values.mark(writer, again)
    with pytest.raises(Exception, match="was truncated"):
        ingest_journals(spark, journal, table)


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracefiles, "FILE_BYTES_MAX", 1_000)


def trace_site(journal: Path, begin: int, end: int, *, site: int = 1) -> None:
    """An incarnation of a site, with records of these tokens, one a frame, some ten a file."""
    writer = TraceWriter(journal / TRACES, stripe=0, site=site)
    for token in range(begin, end):
        writer.append([Trace(TraceKind.TOKEN, 0, 0, 0, 0, 2, 1, token, 5, (1 << 62) + token, 0, 0, 9, 1, 0)])
    writer.close()


def traced(table: Path) -> list[tuple[int, int, int]]:
    """Site, number and token of every row."""
    found = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert all(row["sent_at_ns"] == (1 << 62) + row["token"] and row["came_at_ns"] is None for row in found)
    return sorted((row["site"], row["number"], row["token"]) for row in found)


def test_added_records_are_ingested_once(spark: "SparkSession", tmp_path: Path) -> None:
    journals, table = [tmp_path / "j1", tmp_path / "j2"], tmp_path / TRACES
    trace_site(journals[0], 1, 31)
    trace_site(journals[1], 1, 5, site=2)
    assert ingest_traces(spark, journals, table) == 34
    assert ingest_traces(spark, journals, table) == 0
    trace_site(journals[0], 31, 40)
    assert ingest_traces(spark, journals, table) == 9
    first = [(1, token, token) for token in range(1, 31)]
    second = [(1, INCARNATION_RECORDS + place, 31 + place) for place in range(9)]
    assert traced(table) == [*first, *second, *((2, token, token) for token in range(1, 5))]


def test_a_journal_without_traces_has_none(spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / "j").mkdir()
    assert ingest_traces(spark, tmp_path / "j", tmp_path / TRACES) == 0


def test_what_a_site_dropped_is_gone_and_what_is_left_follows(spark: "SparkSession", tmp_path: Path) -> None:
    journal, table = tmp_path / "j", tmp_path / TRACES
    trace_site(journal, 1, 61)
    min((journal / TRACES).iterdir()).unlink()
    taken = ingest_traces(spark, journal, table)
    assert traced(table) == [(1, token, token) for token in range(61 - taken, 61)]


def test_a_gap_within_a_life_is_named_and_nothing_is_written(spark: "SparkSession", tmp_path: Path) -> None:
    journal, table = tmp_path / "j", tmp_path / TRACES
    trace_site(journal, 1, 61)
    sorted((journal / TRACES).iterdir())[2].unlink()
    with pytest.raises(UserError, match=r"site 1 end with number 24 and continue with 37"):
        ingest_traces(spark, journal, table)
    assert not table.exists() or not DeltaTable.is_deltatable(str(table))


def test_damage_is_reported_with_file_byte_and_number_and_a_torn_end_is_none(
    spark: "SparkSession", tmp_path: Path
) -> None:
    journal, table = tmp_path / "j", tmp_path / TRACES
    trace_site(journal, 1, 21)
    first, last = sorted((journal / TRACES).iterdir())
    last.write_bytes(last.read_bytes()[:-7])
    assert ingest_traces(spark, journal, tmp_path / "torn") == 19
    octets = bytearray(first.read_bytes())
    octets[500] ^= 1
    first.write_bytes(octets)
    with pytest.raises(Damaged, match=rf"{first.name} is damaged at byte 448, sequence 6"), as_user_errors():
        ingest_traces(spark, journal, table)
