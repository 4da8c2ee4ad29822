"""`fairtape bench journal`: its journals are real ones, both are used alike, and misses of a goal are reported."""

import tempfile
from pathlib import Path

import pytest

from fairtape.bench.journal import (
    OPERATIONS,
    RATIO_MAX,
    SITE,
    SOURCE,
    STRIPE,
    UsedJournal,
    measure_costs,
    measure_journal,
    problems_of,
    shortfalls_of,
    write_filler,
)
from fairtape.bench.results import Results
from fairtape.journal import JournalReader, compare, verify
from fairtape.journal.segment_list import SegmentList, first_sequences

SEGMENTS = 120


def ignore(_: str) -> None:
    pass


def test_filler_is_a_sound_journal_with_a_segment_for_each_token(tmp_path: Path) -> None:
    write_filler({SITE: tmp_path}, SEGMENTS, ignore)
    report = verify(tmp_path)
    assert report.sound
    assert not report.remarks
    assert (report.segments, report.entries, report.released_sequence) == (SEGMENTS, SEGMENTS, SEGMENTS)
    with SegmentList(tmp_path) as listed:
        assert listed.is_current
        assert list(listed) == first_sequences(tmp_path)
    assert JournalReader.open(tmp_path).owner() == (STRIPE, SITE)
    assert {each.source for each in JournalReader.open(tmp_path).messages()} == {SOURCE}


def test_filler_continues_several_journals_in_the_same_order(tmp_path: Path) -> None:
    journals = {site: tmp_path / str(site) for site in (1, 2, 3)}
    for count in (4, 20):
        write_filler(journals, count, ignore)
    comparison = compare(list(journals.values()))
    assert comparison.same
    assert comparison.last_sequence == 24


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_can_be_repeated_and_leaves_a_sound_journal(tmp_path: Path, name: str) -> None:
    """The operations themselves check what they find."""
    write_filler({SITE: tmp_path}, SEGMENTS, ignore)
    with UsedJournal(tmp_path, SEGMENTS) as journal:
        for _ in range(5):
            assert OPERATIONS[name].measure(journal) > 0
    assert verify(tmp_path).sound


def test_the_results_have_the_documented_keys_and_one_ratio_for_each_operation(tmp_path: Path) -> None:
    results = measure_costs(tmp_path, segments=SEGMENTS, rounds=1, step=ignore)
    assert {"append_ratio", "sync_ratio", "poll_ratio", "open_ratio"} <= results.keys()
    for name in OPERATIONS:
        old, new, ratio = (results[f"{name}_{each}"] for each in ("us", "new_us", "ratio"))
        assert isinstance(old, float)
        assert isinstance(new, float)
        assert ratio == pytest.approx(old / new, rel=0.05)


def test_an_interrupted_benchmark_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shown: list[str] = []

    def interrupt(text: str) -> None:
        shown.append(text)
        if "writing" in text:
            assert list(tmp_path.iterdir())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_journal(segments=SEGMENTS, rounds=1, seconds=1.0, only="costs", step=interrupt)
    assert len(shown) > 2
    assert list(tmp_path.iterdir()) == []


GOOD: Results = {"append_ratio": 1.0, "poll_ratio": RATIO_MAX, "ring_late_fraction": 0.0, "ring_new_late_fraction": 0.0}


def test_results_that_reach_their_goals_are_not_remarked() -> None:
    assert problems_of(GOOD | {"ring_messages": 1}) == []
    assert shortfalls_of(GOOD) == []
    assert shortfalls_of({}) == []


@pytest.mark.parametrize(
    ("low", "sentence"),
    [
        ({"sync_ratio": 1.21}, "sync_ratio is 1.21; the goal is at most 1.2"),
        ({"ring_late_fraction": 0.3}, "ring_late_fraction is 0.3 with old journals and 0 with new ones"),
    ],
)
def test_a_result_that_misses_its_goal_is_remarked(low: Results, sentence: str) -> None:
    assert shortfalls_of(GOOD | low) == [sentence]


def test_a_ring_that_releases_nothing_is_a_problem() -> None:
    assert problems_of({"ring_messages": 0}) == ["ring_messages is 0: the ring with old journals released nothing"]
