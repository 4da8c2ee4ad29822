"""Journals are trimmed during a run."""

from pathlib import Path

from fairtape.bench.ring import SEGMENTS_KEPT, trim, trimming
from fairtape.journal.format import segment_name


def test_only_the_last_segments_of_a_journal_are_kept(tmp_path: Path) -> None:
    names = [segment_name(sequence) for sequence in (1, 9, 10, 1_000, 20_000)]
    for name in (*names, "lock"):
        (tmp_path / name).touch()
    trim(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"lock", *names[-SEGMENTS_KEPT:]}


def test_a_missing_journal_is_ignored_by_trimming(tmp_path: Path) -> None:
    with trimming([tmp_path / "later"]):
        trim(tmp_path / "later")
