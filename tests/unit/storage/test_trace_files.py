"""Trace files: record numbers only grow, only whole frames are read, and the size is bounded."""

from pathlib import Path

import numpy as np
import pytest

from fairtape.journal import Damaged
from fairtape.ring.receiver.tracing import Trace, TraceKind
from fairtape.storage import trace_files as tracefiles
from fairtape.storage.trace_files import INCARNATION_RECORDS, TraceWriter, file_ends, trace_files


def a_trace(number: int) -> Trace:
    return Trace(TraceKind.TOKEN, 0, 0, 1, 2, 3, 4, number, 10, 11, 12, 13, 14, 15, 16)


def written(folder: Path) -> list[tuple[int, tuple[int, ...]]]:
    files = trace_files(folder)
    found = []
    for file, end in zip(files, file_ends(files), strict=True):
        for first, records in file.read(last=end is None):
            found += [(first + place, tuple(map(int, record))) for place, record in enumerate(records.tolist())]
    return found


def numbered(begin: int, end: int) -> list[tuple[int, tuple[int, ...]]]:
    return [(number, tuple(a_trace(number))) for number in range(begin, end)]


def write(folder: Path, begin: int, end: int, **options: int) -> None:
    writer = TraceWriter(folder, stripe=2, site=7, **options)
    for number in range(begin, end):
        writer.append([a_trace(number)])
    writer.close()


def test_every_incarnation_starts_with_higher_numbers(tmp_path: Path) -> None:
    write(tmp_path, 1, 10)
    write(tmp_path, INCARNATION_RECORDS, INCARNATION_RECORDS + 2)
    write(tmp_path, 2 * INCARNATION_RECORDS, 2 * INCARNATION_RECORDS)
    write(tmp_path, 3 * INCARNATION_RECORDS, 3 * INCARNATION_RECORDS + 1)
    assert written(tmp_path) == [
        *numbered(1, 10),
        *numbered(INCARNATION_RECORDS, INCARNATION_RECORDS + 2),
        *numbered(3 * INCARNATION_RECORDS, 3 * INCARNATION_RECORDS + 1),
    ]
    assert {(each.stripe, each.site) for each in trace_files(tmp_path)} == {(2, 7)}


def test_a_torn_frame_at_the_end_of_an_incarnation_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, 1, 4)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for length in range(len(whole) - 83, len(whole)):
        path.write_bytes(whole[:length])
        assert written(tmp_path) == numbered(1, 3)
    write(tmp_path, INCARNATION_RECORDS, INCARNATION_RECORDS + 2)
    assert written(tmp_path) == [*numbered(1, 3), *numbered(INCARNATION_RECORDS, INCARNATION_RECORDS + 2)]


def test_damage_is_named_and_never_skipped_silently(tmp_path: Path) -> None:
    write(tmp_path, 1, 6)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for place in range(len(whole) - 84):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(Damaged, match=path.name):
            written(tmp_path)


def test_the_oldest_file_is_deleted_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracefiles, "FILE_BYTES_MAX", 1_000)
    write(tmp_path, 1, 201, total_max=5_000)
    left = written(tmp_path)
    assert left == numbered(left[0][0], 201)
    assert left[0][0] > 1
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 5_000


def test_another_site_s_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 1, 3)
    with pytest.raises(Damaged, match="site 7"):
        TraceWriter(tmp_path, stripe=2, site=8)


def test_numbers_beyond_a_field_are_clamped_to_its_maximum(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path, stripe=0, site=1)
    writer.append([a_trace(1)._replace(copies=1 << 20, messages=1 << 40)])
    writer.close()
    ((_, record),) = written(tmp_path)
    assert (record[2], record[13]) == (65_535, 0xFFFF_FFFF)


def test_the_record_has_the_fields_of_a_trace() -> None:
    assert tracefiles.RECORD.names == Trace._fields
    assert np.dtype(tracefiles.RECORD).itemsize == 72
