"""Concurrent commits to a table: no row is duplicated or lost."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake", reason="the extra `pipeline` is not installed")

import pyarrow as pa
from deltalake import DeltaTable

from fairtape.core.errors import UserError
from fairtape.pipeline.source.partitions import Offset, Offsets, PartitionName
from fairtape.pipeline.spark.delta import DeltaFolder, Written, write_parquet

SCHEMA: Any = pa.schema([pa.field("stripe", pa.int32()), pa.field("sequence", pa.int64())])
ONE, OTHER = PartitionName(0, 1), PartitionName(0, 2)


class Folder(DeltaFolder):
    """A table whose view is older than its last commit."""

    view: DeltaTable | None = None

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SCHEMA)

    def look(self) -> None:
        self.view = super()._open()

    def _open(self) -> DeltaTable | None:
        seen, self.view = self.view, None
        return seen or super()._open()

    def write(self, begin: int, end: int) -> Written:
        columns = [pa.array([0] * (end - begin), pa.int32()), pa.array(range(begin, end), pa.int64())]
        found = write_parquet(self.folder, iter([pa.RecordBatch.from_arrays(columns, schema=SCHEMA)]), SCHEMA)
        assert found is not None
        return found

    def take(self, begin: int, end: int, name: PartitionName = ONE) -> None:
        assert self.commit([self.write(begin, end)], {name: Offset(begin)}, {name: Offset(end, "ab")})

    @property
    def rows(self) -> list[int]:
        return sorted(DeltaTable(self.folder).to_pyarrow_table()["sequence"].to_pylist())


def at(number: int) -> Offsets:
    return {ONE: Offset(number, "ab")}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "table")


@pytest.mark.parametrize("keep", ["compact", "sweep"])
def test_offsets_are_right_though_rows_came_while_the_table_was_compacted(folder: Folder, keep: str) -> None:
    for begin in (1, 11, 21):
        folder.take(begin, begin + 10)
    folder.write(100, 101)  # of a writer who died
    folder.look()
    Folder(folder.folder).take(31, 41)
    if keep == "compact":
        assert folder.compact()["numFilesRemoved"] == 3
    else:
        folder.sweep(hours=1)
    assert folder.offsets() == at(41)
    folder.take(41, 51)
    assert folder.rows == list(range(1, 51))


def test_an_incremental_table_gains_each_row_once_though_it_was_compacted_meanwhile(folder: Folder) -> None:
    folder.replace([folder.write(1, 11)], {}, at(11))
    folder.extend([folder.write(11, 21)], at(11), at(21))
    folder.look()
    Folder(folder.folder).extend([folder.write(21, 31)], at(21), at(31))
    folder.compact()
    assert folder.offsets() == at(31)
    folder.extend([folder.write(21, 31)], folder.offsets(), at(31))
    assert folder.rows == list(range(1, 31))


def test_a_compaction_of_files_that_were_replaced_meanwhile_joins_what_is_there_now(folder: Folder) -> None:
    folder.replace([folder.write(1, 6), folder.write(6, 11)], {}, at(11))
    folder.look()
    Folder(folder.folder).replace([folder.write(1, 11), folder.write(11, 21)], at(11), at(21))
    folder.compact()
    assert (folder.rows, folder.offsets(), len(folder.files())) == (list(range(1, 21)), at(21), 1)


def test_files_and_offsets_of_a_snapshot_belong_together(folder: Folder) -> None:
    folder.take(1, 11)
    folder.look()
    other = Folder(folder.folder)
    other.take(1, 6, OTHER)
    other.take(11, 21)
    files, offsets = folder.snapshot()
    assert (len(files), offsets) == (3, {**at(21), OTHER: Offset(6, "ab")})


def test_the_older_of_two_jobs_does_not_replace_what_the_newer_one_made(folder: Folder) -> None:
    older, newer = folder.write(1, 11), folder.write(1, 21)
    folder.replace([newer], {}, at(21))
    with pytest.raises(UserError, match="was changed by another job"):
        folder.replace([older], {}, at(11))
    folder.replace([newer], {}, at(21))  # who made the same has nothing to do
    assert (folder.rows, folder.offsets()) == (list(range(1, 21)), at(21))


def test_a_file_deleted_before_its_commit_is_reported_and_nothing_is_committed(folder: Folder) -> None:
    folder.take(1, 11)
    file = folder.write(11, 21)
    (folder.folder / file.path).unlink()
    with pytest.raises(UserError, match="was deleted before the commit"):
        folder.commit([file], {ONE: Offset(11)}, at(21))
    assert (folder.rows, folder.offsets()) == (list(range(1, 11)), at(11))
