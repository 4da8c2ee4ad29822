"""Writing: rotation, sync policies, the lock, repair of torn tails, and what a full disk does."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fairtape.core.instants import MILLISECOND
from fairtape.runtime.complaints import Complaint
from fairtape.runtime.journal import Damaged, Journal, Sync, Writer, verify
from fairtape.runtime.journal.format import HEADER_SIZE
from unit import journal_values as values

FULL_DISK = """
import resource, sys
from unit import journal_values as values
from fairtape.runtime.journal import Sync, Unwritten, Writer

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
writer = Writer.open(sys.argv[1], stripe=values.STRIPE, sync=Sync.TOKEN)
held = 0
try:
    for ordered in values.stream(4):
        writer.append(ordered, 0)
        held = ordered.sequence + ordered.count - 1
except Unwritten as failure:
    print(held, failure)
try:
    writer.append(ordered, 0)
except Unwritten:
    print("still refused")
writer.close()
"""

AS_NOBODY = """
import os, sys
from fairtape.runtime.complaints import Complaint
from fairtape.runtime.journal import Writer

if os.geteuid() == 0:
    os.seteuid(65534)
try:
    Writer.open(sys.argv[1], stripe=1)
except Complaint as complaint:
    print(complaint)
"""


def run(program: str, *arguments: str) -> str:
    tests = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(tests)}
    command = [sys.executable, "-c", program, *arguments]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return answer.stdout


def open_writer(directory: Path, sync: Sync = Sync.NEVER) -> Writer:
    return Writer.open(directory, stripe=values.STRIPE, sync=sync)


def sequences(directory: Path) -> list[int]:
    with Journal.open(directory).entries(ordered=True) as cursor:
        return [entry.ordered.sequence for entry in cursor]


def test_segments_rotate_by_size_and_are_named_for_their_first_sequence_number(tmp_path: Path) -> None:
    entries = values.first(200)
    values.write(tmp_path, entries)
    files = values.segments(tmp_path)
    assert len(files) > 5
    assert all(file.stat().st_size <= (4 << 10) + 52 * 10 for file in files)
    assert {int(file.stem) for file in files} <= {ordered.sequence for ordered in entries}
    assert sequences(tmp_path) == [ordered.sequence for ordered in entries]


def test_an_entry_larger_than_a_segment_has_one_for_itself(tmp_path: Path) -> None:
    entries = values.first(5, size_max=20_000)
    values.write(tmp_path, entries)
    assert sequences(tmp_path) == [ordered.sequence for ordered in entries]


def test_a_journal_goes_on_where_it_ended(tmp_path: Path) -> None:
    entries = values.first(60)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    values.write(whole, entries)
    for start in range(0, 60, 7):
        values.write(parts, entries[start : start + 7])
    assert verify(parts).digest == verify(whole).digest
    assert verify(parts).sound


def test_a_journal_may_begin_anywhere(tmp_path: Path) -> None:
    late = values.stream(3, sequence=1_000_000, token=77)
    values.write(tmp_path, [next(late) for _ in range(20)])
    assert verify(tmp_path).first_sequence == 1_000_000
    assert verify(tmp_path).sound


def test_the_policy_token_leaves_nothing_to_sync(tmp_path: Path) -> None:
    with open_writer(tmp_path, Sync.TOKEN) as writer:
        for ordered in values.first(3):
            writer.append(ordered, ordered.acknowledged_at)
            assert writer.deadline() is None


def test_the_policy_interval_syncs_one_period_after_the_first_unsynced_write(tmp_path: Path) -> None:
    one, two, three = values.first(3)
    with Writer.open(tmp_path, stripe=values.STRIPE, sync=Sync.INTERVAL, sync_period=10 * MILLISECOND) as writer:
        assert writer.deadline() is None
        writer.append(one, 5 * MILLISECOND)
        writer.append(two, 9 * MILLISECOND)
        assert writer.deadline() == 15 * MILLISECOND
        writer.wake(14 * MILLISECOND)
        assert writer.deadline() == 15 * MILLISECOND
        writer.wake(15 * MILLISECOND)
        assert writer.deadline() is None
        writer.append(three, 40 * MILLISECOND)
        assert writer.deadline() == 50 * MILLISECOND


def test_the_policy_never_wants_no_wake(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.append(values.first(1)[0], 0)
        assert writer.deadline() is None


def test_a_second_writer_is_refused_while_the_first_is_there(tmp_path: Path) -> None:
    with (
        open_writer(tmp_path),
        pytest.raises(Complaint, match=f"being written by process {os.getpid()}"),
    ):
        open_writer(tmp_path)
    open_writer(tmp_path).close()


def test_a_directory_of_another_stripe_is_refused(tmp_path: Path) -> None:
    values.write(tmp_path, values.first(3))
    with pytest.raises(Complaint, match="belongs to stripe 3, not 4"):
        Writer.open(tmp_path, stripe=4)


def test_a_run_that_starts_anew_is_refused_an_old_directory(tmp_path: Path) -> None:
    entries = values.first(3)
    values.write(tmp_path, entries)
    with open_writer(tmp_path) as writer, pytest.raises(Complaint, match="directory of its own"):
        writer.append(entries[0], 0)
    assert verify(tmp_path).sound


def test_releases_without_order_are_a_bug_and_not_written(tmp_path: Path) -> None:
    one, two = values.first(2)
    with open_writer(tmp_path) as writer:
        with pytest.raises(AssertionError):
            writer.release(values.released(one), 0)
        writer.append(one, 0)
        writer.append(two, 0)
        with pytest.raises(AssertionError):
            writer.release(values.released(two), 0)
    assert verify(tmp_path).sound


def test_tokens_without_messages_are_never_appended(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer, pytest.raises(AssertionError):
        writer.append(replace(values.first(1)[0], count=0, spans=()), 0)


def test_a_path_that_is_a_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Complaint, match="cannot be written"):
        open_writer(tmp_path / "file")
    with pytest.raises(Complaint, match="cannot be written"):
        open_writer(tmp_path / "file" / "below")


def test_a_directory_that_may_not_be_written_is_refused_in_a_sentence() -> None:
    assert "cannot be written (Permission denied)" in run(AS_NOBODY, "/journal-of-nobody")


@pytest.mark.parametrize(("option", "value"), [("segment_size_max", 100), ("sync_period", 0)])
def test_options_that_cannot_work_are_refused(tmp_path: Path, option: str, value: int) -> None:
    with pytest.raises(Complaint, match=f"{option} is {value}"):
        Writer.open(tmp_path, stripe=1, **{option: value})  # type: ignore[arg-type]


def test_a_full_disk_is_told_in_a_sentence_and_what_was_held_before_is_kept(tmp_path: Path) -> None:
    failure, refused = run(FULL_DISK, str(tmp_path)).splitlines()
    held, sentence = failure.split(" ", 1)
    assert "File too large" in sentence
    assert f"ends with sequence {held}" in sentence
    assert refused == "still refused"
    report = verify(tmp_path)
    assert report.sound
    assert report.unfinished == 0
    assert report.last_sequence == int(held)


def test_cut_at_every_byte_a_journal_reopens_to_a_valid_prefix_and_goes_on(tmp_path: Path) -> None:
    entries = values.tiny(4)
    values.write(tmp_path / "whole", entries[:3], behind=1)
    (segment,) = values.segments(tmp_path / "whole")
    content = segment.read_bytes()
    torn = tmp_path / "torn"
    torn.mkdir()
    ends = set()
    for size in range(len(content)):
        (torn / segment.name).write_bytes(content[:size])
        with open_writer(torn) as writer:
            tip, cut = writer.tip, writer.cut
            kept = 0 if tip is None else tip.sequence - 1
            assert cut is None or cut.offset + cut.size == size
            assert cut is None or cut.kept_in.read_bytes() == content[cut.offset : size]
            assert sequences(torn) == [ordered.sequence for ordered in entries[:kept]]
            writer.append(entries[kept], 0)
        assert verify(torn).sound
        assert sequences(torn) == [ordered.sequence for ordered in entries[: kept + 1]]
        ends.add(kept)
        for file in torn.iterdir():
            file.unlink()
    assert ends == {0, 1, 2, 3}


def test_a_segment_torn_at_its_birth_is_set_aside_as_a_whole(tmp_path: Path) -> None:
    entries = values.first(100)
    values.write(tmp_path, entries)
    *_, before, last = values.segments(tmp_path)
    for size in (0, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 60):
        torn = values.copy(tmp_path, tmp_path.parent / f"torn-{size}")
        os.truncate(torn / last.name, size)
        with open_writer(torn) as writer:
            assert writer.tip is not None
            assert writer.tip.sequence == int(last.stem)
            assert writer.cut is not None
            assert writer.cut.kept_in.stat().st_size == size
        assert values.segments(torn)[-1].name == before.name
        report = verify(torn)
        assert report.sound


def test_damage_before_the_last_segment_is_not_a_crash_and_is_never_cut_off(tmp_path: Path) -> None:
    values.write(tmp_path, values.first(100))
    *_, before, last = values.segments(tmp_path)
    os.truncate(before, before.stat().st_size - 1)
    os.truncate(last, 10)
    for _ in range(2):
        with pytest.raises(Damaged, match=f"does not reach up to {last.name}"):
            open_writer(tmp_path)
