"""Proof: every flipped bit is found, and journals of several sites are told apart at the first difference."""

from dataclasses import replace
from pathlib import Path

import pytest

from fairtape.core.effects import Ordered
from fairtape.runtime.journal import compare, verify
from fairtape.runtime.journal.format import GENESIS, encode_ordered, encode_release, link
from unit import journal_values as values

ENTRIES = values.first(100)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    values.write(tmp_path / "journal", ENTRIES)
    return tmp_path / "journal"


def test_a_sound_journal_is_reported_with_its_extent_and_the_head_of_its_chain(journal: Path) -> None:
    report = verify(journal)
    digest = GENESIS
    for ordered in ENTRIES:
        digest = link(digest, encode_ordered(ordered))
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


def test_a_release_mark_that_names_no_entry_is_found(tmp_path: Path) -> None:
    one, two = values.first(2)
    values.write(tmp_path, [one], behind=0)
    (file,) = values.segments(tmp_path)
    right = encode_release(values.released(one, late=one.token % 5 == 0))
    wrong = encode_release(replace(values.released(one), token=two.token))
    file.write_bytes(file.read_bytes().replace(right, wrong))
    (problem,) = verify(tmp_path).problems
    assert problem.reason == "a release mark names no entry"


def test_an_unfinished_entry_is_told_and_is_no_damage(journal: Path) -> None:
    last = values.segments(journal)[-1]
    content = last.read_bytes()
    last.write_bytes(content[:-1])
    report = verify(journal)
    assert report.sound
    assert 0 < report.unfinished < 52


def test_progress_adds_up_to_the_whole_journal(journal: Path) -> None:
    told: list[int] = []
    report = verify(journal, progress=told.append)
    assert sum(told) == report.size - report.segments * 84


def test_sites_that_released_at_other_moments_and_rotated_elsewhere_hold_the_same_order(
    journal: Path, tmp_path: Path
) -> None:
    values.write(tmp_path / "twin", ENTRIES, behind=9, segment_size_max=9_000)
    comparison = compare([journal, tmp_path / "twin"])
    assert comparison.same
    assert comparison.entries == len(ENTRIES)
    assert verify(journal).digest == verify(tmp_path / "twin").digest


def test_a_site_that_has_not_come_as_far_does_not_differ(journal: Path, tmp_path: Path) -> None:
    values.write(tmp_path / "behind", ENTRIES[:40])
    comparison = compare([journal, tmp_path / "behind"])
    assert comparison.same
    assert comparison.last_sequence == ENTRIES[39].sequence + ENTRIES[39].count - 1


def test_a_site_that_joined_later_is_compared_from_there(journal: Path, tmp_path: Path) -> None:
    values.write(tmp_path / "joined", ENTRIES[30:])
    comparison = compare([tmp_path / "joined", journal])
    assert comparison.same
    assert comparison.first_sequence == ENTRIES[30].sequence
    assert comparison.entries == len(ENTRIES) - 30


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
        (another_body, "says different things"),
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
