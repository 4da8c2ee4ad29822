"""Writing: rotation, sync policies, the lock, repair of torn tails, and what a full disk does."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fairtape.core.effects import FormationChange, Ordered, Recovered
from fairtape.core.entries import LAYOUT_MAX, close_head
from fairtape.core.entries import Entry as Content
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND
from fairtape.journal import Damaged, JournalEntry, JournalReader, JournalWriter, SyncPolicy, WriteFailed, verify
from fairtape.journal.format import HEADER_SIZE, CheckpointHead, stored_size
from fairtape.journal.segments import Segment, SegmentReplay
from unit.journal import journal_values as values

FULL_DISK = """
import resource, sys
from unit.journal import journal_values as values
from fairtape.journal import SyncPolicy, WriteFailed, JournalWriter

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
writer = JournalWriter.open(sys.argv[1], stripe=values.STRIPE, site=values.SITE, sync=SyncPolicy.TOKEN)
held = 0
try:
    for ordered in values.stream(4):
        writer.append(ordered, 0)
        held = ordered.sequence + ordered.count - 1
except WriteFailed as failure:
    print(held, failure)
try:
    writer.append(ordered, 0)
except WriteFailed:
    print("still refused")
writer.close()
"""

UNPRIVILEGED = """
import os, sys
from fairtape.core.errors import UserError
from fairtape.journal import JournalWriter

if os.geteuid() == 0:
    os.seteuid(65534)
try:
    JournalWriter.open(sys.argv[1], stripe=1, site=6)
except UserError as complaint:
    print(complaint)
"""


def run(program: str, *arguments: str) -> str:
    tests = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(tests)}
    command = [sys.executable, "-c", program, *arguments]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return answer.stdout


def open_writer(directory: Path, sync: SyncPolicy = SyncPolicy.NEVER) -> JournalWriter:
    return JournalWriter.open(directory, stripe=values.STRIPE, site=values.SITE, sync=sync)


def sequences(directory: Path) -> list[int]:
    with JournalReader.open(directory).entries(ordered=True) as cursor:
        return [entry.ordered.sequence for entry in cursor]


def test_segments_rotate_by_size_and_are_named_for_their_first_sequence_number(tmp_path: Path) -> None:
    entries = values.first(200)
    values.write(tmp_path, entries)
    files = values.segments(tmp_path)
    assert len(files) > 5
    assert all(file.stat().st_size <= (4 << 10) + 84 * 10 + 200 for file in files)
    assert {int(file.stem) for file in files} <= {ordered.sequence for ordered in entries}
    assert sequences(tmp_path) == [ordered.sequence for ordered in entries]


def test_an_entry_larger_than_a_segment_has_its_own_segment(tmp_path: Path) -> None:
    entries = values.first(5, size_max=20_000)
    values.write(tmp_path, entries)
    assert sequences(tmp_path) == [ordered.sequence for ordered in entries]


def test_a_reopened_journal_continues_at_its_end(tmp_path: Path) -> None:
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
    with open_writer(tmp_path, SyncPolicy.TOKEN) as writer:
        for ordered in values.first(3):
            writer.append(ordered, ordered.acknowledged_at)
            assert writer.deadline() is None


def test_the_policy_interval_syncs_one_period_after_the_first_unsynced_write(tmp_path: Path) -> None:
    one, two, three = values.first(3)
    with JournalWriter.open(
        tmp_path, stripe=values.STRIPE, site=values.SITE, sync=SyncPolicy.INTERVAL, sync_period=10 * MILLISECOND
    ) as writer:
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
        pytest.raises(UserError, match=f"being written by process {os.getpid()}"),
    ):
        open_writer(tmp_path)
    open_writer(tmp_path).close()


def test_a_directory_of_another_stripe_is_refused(tmp_path: Path) -> None:
    values.write(tmp_path, values.first(3))
    with pytest.raises(UserError, match="belongs to stripe 3, not 4"):
        JournalWriter.open(tmp_path, stripe=4, site=values.SITE)


def test_a_new_run_cannot_continue_an_old_journal(tmp_path: Path) -> None:
    entries = values.first(3)
    values.write(tmp_path, entries)
    with open_writer(tmp_path) as writer, pytest.raises(UserError, match="directory of its own"):
        writer.append(entries[0], 0)
    assert verify(tmp_path).sound


def test_releases_out_of_order_are_a_bug_and_not_written(tmp_path: Path) -> None:
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
    with pytest.raises(UserError, match="cannot be written"):
        open_writer(tmp_path / "file")
    with pytest.raises(UserError, match="cannot be written"):
        open_writer(tmp_path / "file" / "below")


def test_a_directory_that_may_not_be_written_is_refused_in_a_sentence() -> None:
    assert "cannot be written (Permission denied)" in run(UNPRIVILEGED, "/unwritable-journal")


@pytest.mark.parametrize(("option", "value"), [("segment_size_max", 100), ("sync_period", 0)])
def test_options_that_cannot_work_are_refused(tmp_path: Path, option: str, value: int) -> None:
    with pytest.raises(UserError, match=f"{option} is {value}"):
        JournalWriter.open(tmp_path, stripe=1, site=values.SITE, **{option: value})  # type: ignore[arg-type]


def test_a_full_disk_is_one_sentence_and_earlier_entries_are_kept(tmp_path: Path) -> None:
    failure, refused = run(FULL_DISK, str(tmp_path)).splitlines()
    held, sentence = failure.split(" ", 1)
    assert "File too large" in sentence
    assert f"ends with sequence {held}" in sentence
    assert refused == "still refused"
    report = verify(tmp_path)
    assert report.sound
    assert report.unfinished == 0
    assert report.last_sequence == int(held)


def test_a_deleted_directory_is_one_sentence_when_the_next_segment_begins(tmp_path: Path) -> None:
    one, two, three = values.first(3, size_max=2_000)
    with values.open_writer(tmp_path / "journal", segment_size_max=1 << 10) as writer:
        writer.append(one, 0)
        writer.flush()
        shutil.rmtree(tmp_path / "journal")
        with pytest.raises(WriteFailed, match=r"cannot be written \(No such file or directory\).*free space or repair"):
            writer.append(two, 0)
        with pytest.raises(WriteFailed):
            writer.append_formation(values.formation_change(three, 2), 0)
        with pytest.raises(WriteFailed):
            writer.truncate_after(0)


def test_torn_at_every_byte_a_journal_reopens_to_a_valid_prefix_and_continues(tmp_path: Path) -> None:
    one, two, three, four = values.tiny(4)
    history: list[Content] = [values.formation_change(one, 1), one, two, values.formation_change(three, 2)]
    history += [replace(three, formation=2), replace(four, formation=2)]
    values.write(tmp_path / "whole", history[:-1], behind=1)
    (segment,) = values.segments(tmp_path / "whole")
    content = segment.read_bytes()
    torn = tmp_path / "torn"
    torn.mkdir()
    ends = set()
    for size in range(len(content)):
        (torn / segment.name).write_bytes(content[:size])
        with open_writer(torn) as writer:
            cut, kept = writer.torn_tail, kept_of(history, writer.recovered)
            assert cut is None or cut.offset + cut.size == size
            assert cut is None or cut.kept_in.read_bytes() == content[cut.offset : size]
            assert contents(torn) == history[:kept]
            values.append_entry(writer, history[kept])
        assert contents(torn) == history[: kept + 1]
        ends.add(kept)
        for file in torn.iterdir():
            file.unlink()
    assert ends == set(range(len(history)))


def kept_of(history: list[Content], standing: Recovered) -> int:
    """The number of entries before the end of a journal."""
    return sum(
        entry.sequence < standing.sequence if isinstance(entry, Ordered) else entry.formation <= standing.number
        for entry in history
    )


def contents(directory: Path) -> list[Content]:
    with JournalReader.open(directory).entries(ordered=True) as cursor:
        return [each.ordered if isinstance(each, JournalEntry) else each.change for each in cursor.everything()]


def test_a_segment_without_a_whole_entry_is_set_aside(tmp_path: Path) -> None:
    entries = values.first(100)
    values.write(tmp_path, entries)
    *_, before, last = values.segments(tmp_path)
    for size in (0, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 60):
        torn = values.copy(tmp_path, tmp_path.parent / f"torn-{size}")
        os.truncate(torn / last.name, size)
        with open_writer(torn) as writer:
            assert writer.tip is not None
            assert writer.tip.sequence == int(last.stem)
            assert writer.torn_tail is not None
            assert writer.torn_tail.kept_in.stat().st_size == size
        assert values.segments(torn)[-1].name == before.name
        report = verify(torn)
        assert report.sound


def test_an_unconfirmed_segment_may_be_torn_though_another_follows(tmp_path: Path) -> None:
    """A power failure between the creation of a segment and its checkpoint can tear the one before it, too."""
    entries = values.first(100)
    values.write(tmp_path / "whole", entries)
    *_, before, last = values.segments(tmp_path / "whole")
    before_size = before.stat().st_size
    for size in (HEADER_SIZE, before_size // 2, before_size - 1):
        torn = values.copy(tmp_path / "whole", tmp_path / f"torn-{size}")
        without_checkpoint(torn / last.name)
        os.truncate(torn / before.name, size)
        with open_writer(torn) as writer:
            assert writer.tip is not None
            assert writer.tip.sequence <= int(last.stem)
            kept = [ordered for ordered in entries if ordered.sequence < writer.tip.sequence]
            assert writer.recovered.streams == values.streams_after(kept)
            for ordered in entries[len(kept) :]:
                writer.append(ordered, 0)
        assert (torn / f"{last.name}.cut-0").exists()
        assert verify(torn).sound
        assert sequences(torn) == [ordered.sequence for ordered in entries]


def without_checkpoint(path: Path) -> None:
    """Remove the checkpoint of a segment."""
    content = path.read_bytes()
    with Segment(path) as segment:
        offset, record = next(step for step in SegmentReplay(segment) if isinstance(step.record, CheckpointHead))
    path.write_bytes(content[:offset] + content[offset + stored_size(record) :])


def test_a_missing_checkpoint_is_rebuilt_from_the_segment_before(tmp_path: Path) -> None:
    history = values.first_with_formations(60)
    one, both = tmp_path / "one", tmp_path / "both"
    values.write(one, history)
    *_, before, last = values.segments(one)
    whole = last.read_bytes()
    without_checkpoint(last)
    without_checkpoint(values.copy(one, both) / before.name)
    for directory in (one, both):
        with open_writer(directory) as writer:
            assert writer.torn_tail is None
            assert writer.recovered.streams == values.streams_after(history)
        assert sorted((directory / last.name).read_bytes()) == sorted(whole)
        assert verify(directory).sound


def test_damage_before_the_last_segments_is_never_removed(tmp_path: Path) -> None:
    values.write(tmp_path, values.first(100))
    *_, confirmed, before, last = values.segments(tmp_path)
    os.truncate(confirmed, confirmed.stat().st_size - 1)
    os.truncate(before, 10)
    os.truncate(last, 10)
    content = {file: file.read_bytes() for file in values.segments(tmp_path)}
    for _ in range(2):
        with pytest.raises(Damaged):
            open_writer(tmp_path)
        assert content == {file: file.read_bytes() for file in values.segments(tmp_path)}


def test_formations_are_in_the_order_and_a_journal_may_begin_with_one(tmp_path: Path) -> None:
    history: list[Content] = [values.formation_change(values.first(1)[0], 1), *values.first_with_formations(150)]
    values.write(tmp_path, history, segment_size_max=1 << 10)
    assert contents(tmp_path) == history
    assert verify(tmp_path).sound


def test_all_records_of_one_number_are_in_one_segment(tmp_path: Path) -> None:
    """However large formations are; otherwise two segments would have the same name."""
    ordered = values.first(1)[0]
    changes = [values.formation_change(ordered, number, layout=bytes(LAYOUT_MAX)) for number in range(1, 9)]
    history: list[Content] = [*changes, replace(ordered, formation=8)]
    values.write(tmp_path, history, segment_size_max=1 << 10)
    assert len(values.segments(tmp_path)) == 1
    assert verify(tmp_path).sound


def test_a_formation_that_does_not_continue_the_order_is_refused_in_a_sentence(tmp_path: Path) -> None:
    one, two = values.first(2)
    with open_writer(tmp_path) as writer:
        writer.append(one, 0)
        with pytest.raises(UserError, match="formation 1 after formation 1"):
            writer.append_formation(values.formation_change(two, 1), 0)
        writer.append_formation(values.formation_change(two, 2), 0)
        with pytest.raises(UserError, match="while formation 2 is in force"):
            writer.append(two, 0)
        writer.append(replace(two, formation=2), 0)
    assert verify(tmp_path).sound


@pytest.mark.parametrize("sync", list(SyncPolicy))
@pytest.mark.parametrize("seed", range(4))
def test_the_recovered_state_is_that_of_a_full_replay(tmp_path: Path, sync: SyncPolicy, seed: int) -> None:
    """Before and after reopening, at every entry; reopening reads only the last segment."""
    history = values.first_with_formations(50, seed=seed)
    if seed % 2:
        history.insert(0, values.formation_change(values.messages_of(history)[0], 1))
    released: list[Ordered] = []
    for position, entry in enumerate(history, 1):
        with values.open_writer(tmp_path, sync, segment_size_max=2 << 10) as writer:
            if position == 1:
                assert without_identity(writer.recovered) == Recovered.nothing()
            values.append_entry(writer, entry)
            if isinstance(entry, Ordered) and position % 3 == 0:
                for ordered in values.messages_of(history[:position])[len(released) :]:
                    values.mark(writer, ordered)
                    released.append(ordered)
            before = writer.recovered
        with values.open_writer(tmp_path, sync) as writer:
            assert writer.recovered == before
            assert without_identity(before) == replayed(history[:position], released)
    assert verify(tmp_path).sound


def without_identity(recovered: Recovered) -> Recovered:
    assert recovered.journal
    return replace(recovered, journal=0)


def replayed(history: list[Content], released: list[Ordered]) -> Recovered:
    """A simple reference of `JournalWriter.recovered`."""
    changes = [entry for entry in history if isinstance(entry, FormationChange)]
    last, change = history[-1], changes[-1] if changes else None
    return Recovered(
        token=max((ordered.token for ordered in values.messages_of(history)), default=history[0].token - 1),
        sequence=last.sequence + (last.count if isinstance(last, Ordered) else 0),
        streams=values.streams_after(history),
        number=change.formation if change else 0,
        layout=change.layout if change else None,
        released_through=released[-1].token if released else history[0].token - 1,
    )


def test_reopening_reads_only_the_last_segment(tmp_path: Path) -> None:
    values.write(tmp_path, values.first_with_formations(100))
    with open_writer(tmp_path) as writer:
        before = writer.recovered
    for file in values.segments(tmp_path)[:-1]:
        file.unlink()
    with open_writer(tmp_path) as writer:
        assert writer.recovered == before


def test_a_later_incarnation_replaces_an_earlier_one(tmp_path: Path) -> None:
    one, two = values.tiny(2)
    (span,) = two.spans
    with open_writer(tmp_path) as writer:
        writer.append(one, 0)
        writer.append(replace(two, spans=(replace(span, incarnation=9, first=1),)), 0)
        assert writer.recovered.streams == {1: (9, 2)}


def test_a_directory_of_another_site_is_refused(tmp_path: Path) -> None:
    values.write(tmp_path, values.first(3))
    with pytest.raises(UserError, match="belongs to site 6, not 7"):
        JournalWriter.open(tmp_path, stripe=values.STRIPE, site=7)


def test_a_journal_of_version_1_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "0000000000000000001.segment"
    file.write_bytes(close_head(b"FAIRTAPE\0\1".ljust(80, b"\1")) + bytes(200))
    with pytest.raises(UserError, match="is of journal version 1; this program reads version 2"):
        open_writer(tmp_path)
    assert values.segments(tmp_path) == [file]


def test_no_other_file_is_left_behind(tmp_path: Path) -> None:
    values.write(tmp_path, values.first(100))
    names = {file.name for file in values.segments(tmp_path)}
    assert {file.name for file in tmp_path.iterdir()} == {"identity", "lock", "segments.list", *names}
