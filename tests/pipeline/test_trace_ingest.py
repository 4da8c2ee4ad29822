"""Traces into a table: each record once, whatever is added, dropped, torn or damaged."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from deltalake import DeltaTable

from fairtape.core.errors import UserError
from fairtape.journal import Damaged
from fairtape.pipeline.spark.session import as_user_errors
from fairtape.pipeline.tables.trace_ingest import ingest_traces
from fairtape.ring.receiver.tracing import Trace, TraceKind
from fairtape.storage import trace_files as tracefiles
from fairtape.storage.trace_files import INCARNATION_RECORDS, TRACES, TraceWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracefiles, "FILE_BYTES_MAX", 1_000)


def live(journal: Path, begin: int, end: int, *, site: int = 1) -> None:
    """A life of a site, with records of these tokens, one a frame, some ten a file."""
    writer = TraceWriter(journal / TRACES, stripe=0, site=site)
    for token in range(begin, end):
        writer.append([Trace(TraceKind.TOKEN, 0, 0, 0, 0, 2, 1, token, 5, (1 << 62) + token, 0, 0, 9, 1, 0)])
    writer.close()


def rows(table: Path) -> list[tuple[int, int, int]]:
    """Site, number and token of every row."""
    found = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert all(row["sent_at_ns"] == (1 << 62) + row["token"] and row["came_at_ns"] is None for row in found)
    return sorted((row["site"], row["number"], row["token"]) for row in found)


def test_added_records_are_ingested_once(spark: "SparkSession", tmp_path: Path) -> None:
    journals, table = [tmp_path / "j1", tmp_path / "j2"], tmp_path / TRACES
    live(journals[0], 1, 31)
    live(journals[1], 1, 5, site=2)
    assert ingest_traces(spark, journals, table) == 34
    assert ingest_traces(spark, journals, table) == 0
    live(journals[0], 31, 40)
    assert ingest_traces(spark, journals, table) == 9
    first = [(1, token, token) for token in range(1, 31)]
    second = [(1, INCARNATION_RECORDS + place, 31 + place) for place in range(9)]
    assert rows(table) == [*first, *second, *((2, token, token) for token in range(1, 5))]


def test_a_journal_without_traces_has_none(spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / "j").mkdir()
    assert ingest_traces(spark, tmp_path / "j", tmp_path / TRACES) == 0


def test_what_a_site_dropped_is_gone_and_what_is_left_follows(spark: "SparkSession", tmp_path: Path) -> None:
    journal, table = tmp_path / "j", tmp_path / TRACES
    live(journal, 1, 61)
    min((journal / TRACES).iterdir()).unlink()
    taken = ingest_traces(spark, journal, table)
    assert rows(table) == [(1, token, token) for token in range(61 - taken, 61)]


def test_a_gap_within_a_life_is_named_and_nothing_is_written(spark: "SparkSession", tmp_path: Path) -> None:
    journal, table = tmp_path / "j", tmp_path / TRACES
    live(journal, 1, 61)
    sorted((journal / TRACES).iterdir())[2].unlink()
    with pytest.raises(UserError, match=r"site 1 end with number 24 and continue with 37"):
        ingest_traces(spark, journal, table)
    assert not table.exists() or not DeltaTable.is_deltatable(str(table))


def test_damage_is_reported_with_file_byte_and_number_and_a_torn_end_is_none(
    spark: "SparkSession", tmp_path: Path
) -> None:
    journal, table = tmp_path / "j", tmp_path / TRACES
    live(journal, 1, 21)
    first, last = sorted((journal / TRACES).iterdir())
    last.write_bytes(last.read_bytes()[:-7])
    assert ingest_traces(spark, journal, tmp_path / "torn") == 19
    octets = bytearray(first.read_bytes())
    octets[500] ^= 1
    first.write_bytes(octets)
    with pytest.raises(Damaged, match=rf"{first.name} is damaged at byte 448, sequence 6"), as_user_errors():
        ingest_traces(spark, journal, table)
