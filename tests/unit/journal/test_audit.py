"""Auditing: every flipped bit is found, and the first difference between journals is named."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fairtape.core.effects import FormationChange, Ordered, Release
from fairtape.core.entries import encode_entry
from fairtape.core.instants import MILLISECOND
from fairtape.core.timing import profile
from fairtape.journal import compare, verify
from fairtape.journal.format import (
    GENESIS,
    HEADER_SIZE,
    CheckpointHead,
    SegmentCheckpoint,
    encode_checkpoint,
    encode_release,
    first_mark,
    link,
    stored_size,
)
from fairtape.journal.segments import Segment, SegmentReplay
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import encode_formation
from unit.journal import journal_values as values

ENTRIES = values.first(100)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    values.write(tmp_path / "journal", ENTRIES)
    return tmp_path / "journal"


def test_a_sound_journal_is_reported_with_its_extent_and_the_head_of_its_chain(journal: Path) -> None:
    report = verify(journal)
    digest = GENESIS
    for ordered in ENTRIES:
        digest = link(digest, encode_entry(ordered))
    assert report.sound
    assert report.segments == len(values.segments(journal))
    assert report.entries == len(ENTRIES)
    assert report.messages == sum(ordered.count for ordered in ENTRIES)
    assert (report.first_sequence, report.last_sequence) == (1, ENTRIES[-1].sequence + ENTRIES[-1].count - 1)
    assert report.released_sequence == report.last_sequence
    assert report.digest == digest
    assert report.size == sum(file.stat().st_size for file in values.segments(journal))


def test_one_flipped_bit_at_every_byte_is_found_in_its_file(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    values.write(journal, values.tiny(8), behind=1, segment_size_max=1 << 10)
    assert len(values.segments(journal)) == 2
    for file in values.segments(journal):
        content = file.read_bytes()
        for position in range(len(content)):
            flipped = bytearray(content)
            flipped[position] ^= 1 << position % 8
            file.write_bytes(flipped)
            problem = verify(journal).problems[0]
            assert problem.path == file
            assert problem.offset <= position
        file.write_bytes(content)
    assert verify(journal).sound


def test_all_damaged_segments_are_named_not_only_the_first(journal: Path) -> None:
    damaged = values.segments(journal)[1::2]
    for file in damaged:
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    assert [problem.path for problem in verify(journal).problems] == damaged


def test_a_missing_segment_is_found(journal: Path) -> None:
    values.segments(journal)[2].unlink()
    (problem,) = verify(journal).problems
    assert problem.path == values.segments(journal)[2]
    assert "follows" in problem.reason


def test_a_segment_of_another_history_does_not_fit_the_chain(journal: Path, tmp_path: Path) -> None:
    forged = [replace(ordered, formation=2) for ordered in ENTRIES]
    values.write(tmp_path / "forged", forged)
    (mine, theirs) = values.segments(journal)[2], values.segments(tmp_path / "forged")[2]
    assert mine.name == theirs.name
    mine.write_bytes(theirs.read_bytes())
    problems = verify(journal).problems
    assert [problem.path for problem in problems] == values.segments(journal)[2:4]
    assert "chain" in problems[0].reason


def forge_marks(directory: Path, alter: Callable[[Release], Release]) -> None:
    """Alter the release marks of a journal with one segment, with valid digests."""
    (file,) = values.segments(directory)
    content = file.read_bytes()
    with Segment(file) as segment:
        replay, marks, forged = SegmentReplay(segment), first_mark(values.SITE), content[:HEADER_SIZE]
        for offset, record in replay:
            if isinstance(record, Release):
                encoded = encode_release(alter(record))
                marks = link(marks, encoded)
                forged += encoded + marks
            else:
                forged += content[offset : offset + stored_size(record)]
    file.write_bytes(forged)


def test_a_release_mark_that_names_no_entry_is_found(tmp_path: Path) -> None:
    values.write(tmp_path, values.first(1), behind=0)
    forge_marks(tmp_path, lambda mark: replace(mark, token=mark.token + 1))
    (problem,) = verify(tmp_path).problems
    assert problem.reason == "a release mark names no entry"


def test_a_release_before_its_instant_is_found_once_per_segment(tmp_path: Path) -> None:
    values.write(tmp_path, values.first(9), segment_size_max=1 << 20)
    forge_marks(tmp_path, lambda mark: replace(mark, released_at=mark.commit_at - mark.token))
    (problem,) = verify(tmp_path).problems
    assert problem.sequence == 1
    assert problem.reason == "it was released 1 ns before its commit instant"


def test_a_late_release_that_is_not_marked_late_is_found(tmp_path: Path) -> None:
    values.write(tmp_path, values.first(9), segment_size_max=1 << 20)
    late = 5 * MILLISECOND
    forge_marks(tmp_path, lambda mark: replace(mark, released_at=mark.commit_at + late, late=False))
    assert verify(tmp_path).sound
    forge_marks(tmp_path, lambda mark: replace(mark, released_at=mark.commit_at + late + 1, late=mark.sequence > 1))
    (problem,) = verify(tmp_path).problems
    assert problem.sequence == 1
    assert problem.reason == "it was released 5000001 ns late and is not marked late"
    forge_marks(tmp_path, lambda mark: replace(mark, late=True))
    assert verify(tmp_path).sound
    assert verify(tmp_path).late == sum(each.count for each in values.first(9))  # messages, as everywhere


def test_a_release_mark_that_was_removed_is_detected(tmp_path: Path) -> None:
    """Its neighbours are altered so that they cover its entry; the chain of the site's marks shows it."""
    values.write(tmp_path, values.tiny(5), behind=0)
    (file,) = values.segments(tmp_path)
    content = file.read_bytes()
    at = [offset for offset in range(len(content)) if content[offset : offset + 2] in (b"R\0", b"R\1")]
    marks = [content[offset : offset + 84] for offset in at if content[offset + 2 : offset + 4] == bytes(2)]
    assert len(marks) == 5
    file.write_bytes(content.replace(marks[2], b""))
    (problem,) = verify(tmp_path).problems
    assert "does not match its content" in problem.reason
    file.write_bytes(content.replace(marks[3], b"").replace(marks[2], marks[3]))
    (problem,) = verify(tmp_path).problems
    assert "does not match its content" in problem.reason


def test_marks_of_one_site_are_not_valid_for_another(tmp_path: Path) -> None:
    values.write(tmp_path / "one", ENTRIES[:5], behind=0, site=1)
    values.write(tmp_path / "two", ENTRIES[:5], behind=0, site=2)
    (mine,), (theirs,) = values.segments(tmp_path / "one"), values.segments(tmp_path / "two")
    mine.write_bytes(mine.read_bytes()[:HEADER_SIZE] + theirs.read_bytes()[HEADER_SIZE:])
    assert "the digest of a release mark" in verify(tmp_path / "one").problems[0].reason


def test_a_commit_delay_other_than_the_formations_is_a_remark(tmp_path: Path) -> None:
    """It is a remark and no problem: a journal does not validate the layouts of formations."""
    one = values.first(1)[0]
    for delay in (values.COMMIT_DELAY, values.COMMIT_DELAY + 1):
        formation = Formation(number=1, members=(1, 2), timing=profile("lan", commit_delay=delay), starts_at=1)
        change = values.formation_change(one, 1, layout=encode_formation(formation))
        values.write(tmp_path / str(delay), [change, *values.first(3)])
        report = verify(tmp_path / str(delay))
        assert report.sound
        assert [remark.sequence for remark in report.remarks] == ([] if delay == values.COMMIT_DELAY else [1])
    assert report.remarks[0].reason == "its commit delay is 2000000 ns; its formation has 2000001 ns"


def test_formations_and_breaks_are_counted_and_in_the_chain(tmp_path: Path) -> None:
    history = values.first_with_formations(120)
    values.write(tmp_path / "journal", history)
    report = verify(tmp_path / "journal")
    digest = GENESIS
    for entry in history:
        digest = link(digest, encode_entry(entry))
    changes = [entry for entry in history if isinstance(entry, FormationChange)]
    assert report.sound
    assert report.digest == digest
    assert report.formations == len(changes) > 10
    assert report.entries == 120
    broken = [(each.formation, each.token, each.sequence) for each in changes if each.broken]
    assert [tuple(each) for each in report.breaks] == broken
    assert broken


def test_a_checkpoint_that_contradicts_the_order_is_found(journal: Path) -> None:
    file = values.segments(journal)[3]
    content = file.read_bytes()
    with Segment(file) as segment:
        replay = SegmentReplay(segment)
        offset, size = next((offset, stored_size(each)) for offset, each in replay if isinstance(each, CheckpointHead))
        list(replay)
        assert replay.checkpoint is not None
        source, (incarnation, following) = next(iter(replay.checkpoint.streams.items()))
        wrong = {**replay.checkpoint.streams, source: (incarnation, following + 1)}
        encoded = encode_checkpoint(SegmentCheckpoint(wrong, None))
        forged = encoded + link(segment.header.tip.digest, encoded)
    file.write_bytes(content[:offset] + forged + content[offset + size :])
    (problem,) = verify(journal).problems
    assert (problem.path, problem.reason) == (file, "its checkpoint is wrong")


def test_an_unfinished_entry_is_reported_and_is_no_damage(journal: Path) -> None:
    last = values.segments(journal)[-1]
    content = last.read_bytes()
    last.write_bytes(content[:-1])
    report = verify(journal)
    assert report.sound
    assert 0 < report.unfinished < 200


def test_progress_adds_up_to_the_whole_journal(journal: Path) -> None:
    steps: list[int] = []
    report = verify(journal, progress=steps.append)
    assert sum(steps) == report.size - report.segments * HEADER_SIZE


def test_other_release_times_and_segments_do_not_change_the_order(journal: Path, tmp_path: Path) -> None:
    values.write(tmp_path / "twin", ENTRIES, behind=9, segment_size_max=9_000)
    comparison = compare([journal, tmp_path / "twin"])
    assert comparison.same
    assert comparison.entries == len(ENTRIES)
    assert verify(journal).digest == verify(tmp_path / "twin").digest


def test_a_journal_that_ends_earlier_is_shorter_and_not_different(journal: Path, tmp_path: Path) -> None:
    values.write(tmp_path / "behind", ENTRIES[:40])
    comparison = compare([journal, tmp_path / "behind"])
    last = ENTRIES[39].sequence + ENTRIES[39].count - 1
    assert comparison.same
    assert not comparison.level
    assert comparison.last_sequence == last
    longer, shorter = comparison.extents
    assert longer.complete
    assert (shorter.first_sequence, shorter.last_sequence, shorter.lacks_before) == (1, last, 0)
    assert shorter.lacks_behind == longer.last_sequence - last


def test_a_site_that_joined_later_is_compared_from_there(journal: Path, tmp_path: Path) -> None:
    values.write(tmp_path / "joined", ENTRIES[30:])
    comparison = compare([tmp_path / "joined", journal])
    assert comparison.same
    assert comparison.first_sequence == ENTRIES[30].sequence
    assert comparison.entries == len(ENTRIES) - 30
    assert [extent.lacks_before for extent in comparison.extents] == [ENTRIES[30].sequence - 1, 0]


@pytest.mark.parametrize("joined", range(40))
def test_wherever_a_site_joined_formations_are_compared_too(joined: int, tmp_path: Path) -> None:
    """Also where it joined between two formations that begin at the same place."""
    history = values.first_with_formations(40)
    values.write(tmp_path / "whole", history)
    values.write(tmp_path / "joined", history[joined:], segment_size_max=1 << 10)
    for pair in (["whole", "joined"], ["joined", "whole"]):
        comparison = compare([tmp_path / name for name in pair])
        assert comparison.same
        assert comparison.entries == len(values.messages_of(history[joined:]))


def test_a_formation_that_one_site_lacks_is_a_difference(tmp_path: Path) -> None:
    history = values.first_with_formations(60)
    at = next(
        position
        for position, pair in enumerate(pairwise(history))
        if all(isinstance(entry, FormationChange) for entry in pair)
    )
    values.write(tmp_path / "one", history)
    values.write(tmp_path / "two", [*history[:at], *history[at + 1 :]])
    difference = compare([tmp_path / "one", tmp_path / "two"]).difference
    assert difference is not None
    assert difference.sequence == history[at].sequence
    assert "formation is" in difference.reason


def test_journals_without_a_common_number_have_nothing_in_common(tmp_path: Path) -> None:
    values.write(tmp_path / "one", ENTRIES[:10])
    values.write(tmp_path / "two", ENTRIES[20:30])
    comparison = compare([tmp_path / "one", tmp_path / "two"])
    assert (comparison.same, comparison.level, comparison.messages) == (True, False, 0)


def test_an_empty_journal_has_nothing_in_common_with_any(journal: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    comparison = compare([journal, tmp_path / "empty"])
    assert comparison.same
    assert comparison.entries == 0


def another_body(ordered: Ordered) -> Ordered:
    span = ordered.spans[-1]
    bodies = (*span.bodies[:-1], bytes([span.bodies[-1][0] ^ 1]) + span.bodies[-1][1:])
    return replace(ordered, spans=(*ordered.spans[:-1], replace(span, bodies=bodies)))


def another_source(ordered: Ordered) -> Ordered:
    return replace(ordered, spans=(replace(ordered.spans[0], source=77), *ordered.spans[1:]))


def another_time(ordered: Ordered) -> Ordered:
    return replace(ordered, acknowledged_at=ordered.acknowledged_at + 1)


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (another_body, "has different messages"),
        (another_source, "of source 77 in the other"),
        (another_time, "acknowledged_at is"),
    ],
)
def test_the_first_difference_is_named(journal: Path, tmp_path: Path, alter: object, reason: str) -> None:
    assert callable(alter)
    values.write(tmp_path / "other", [*ENTRIES[:50], alter(ENTRIES[50]), *ENTRIES[51:]])
    difference = compare([journal, journal, tmp_path / "other"]).difference
    assert difference is not None
    assert difference.token == ENTRIES[50].token
    assert ENTRIES[50].sequence <= difference.sequence < ENTRIES[51].sequence
    assert reason in difference.reason
    assert [path.parent for path, _ in difference.places] == [journal, tmp_path / "other"]
