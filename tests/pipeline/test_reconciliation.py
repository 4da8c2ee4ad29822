"""Reconciliation: one sequence is proved, and every problem is reported with its site, token and byte."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import unit.journal.journal_values as values
from pipeline import pipeline_values as pipeline

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from fairtape.cli import run as fairtape
from fairtape.cli.pipeline import reconcile as command
from fairtape.core.entries import Head
from fairtape.core.errors import UserError
from fairtape.journal import JournalWriter, SyncPolicy
from fairtape.journal.format import HEADER_SIZE, MARK_SIZE
from fairtape.journal.segments import Segment, SegmentReplay
from fairtape.pipeline.reconciliation import reconcile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def history() -> list[Any]:
    found: list[Any] = pipeline.tokens(12)
    change = replace(values.formation_change(found[6], 2), stripe=0)
    return [*found[:6], change, *(replace(token, formation=2) for token in found[6:])]


def test_one_sequence_is_proved_and_a_shorter_journal_is_reported(spark: "SparkSession", tmp_path: Path) -> None:
    for site in (1, 2, 3):
        pipeline.append(tmp_path / str(site), history(), site=site, size_max=4 << 10, keep=site - 1)
    found = reconcile(spark, [tmp_path / str(site) for site in (1, 2, 3)])
    assert (found.sound, found.level) == (True, True)
    assert [(each.site, each.first_sequence, each.last_sequence, each.entries) for each in found.extents] == [
        (site, 1, 120, 13) for site in (1, 2, 3)
    ]
    pipeline.append(tmp_path / "4", history()[:9], site=4)
    found = reconcile(spark, [tmp_path / str(site) for site in (1, 4)])
    assert (found.sound, found.level) == (True, False)


def test_the_first_difference_is_named_with_site_token_and_byte(spark: "SparkSession", tmp_path: Path) -> None:
    other = history()
    token = other[8]
    (span,) = token.spans
    body = bytearray(span.bodies[0])
    body[40] ^= 1
    other[8] = replace(token, spans=(replace(span, bodies=(bytes(body), *span.bodies[1:])),))
    for site in (1, 2, 3):
        pipeline.append(tmp_path / str(site), other if site == 2 else history(), site=site)
    found = reconcile(spark, [tmp_path / str(site) for site in (1, 2, 3)])
    (difference,) = found.differences
    assert (difference.token, difference.sequence, difference.sites) == (token.token, token.sequence, (2,))
    octets = [Path(path).read_bytes()[byte] for _, path, byte in difference.places]
    assert octets[0] ^ octets[1] == 1


def test_an_entry_that_one_site_lacks_is_a_difference(spark: "SparkSession", tmp_path: Path) -> None:
    before, after = pipeline.tokens(6), [replace(token, formation=3) for token in pipeline.tokens(6, first=61)]
    changes = [replace(values.formation_change(after[0], number), stripe=0) for number in (2, 3)]
    for site in (1, 2):
        pipeline.append(tmp_path / str(site), [*before, *changes[site - 1 :], *after], site=site)
    (difference,) = reconcile(spark, [tmp_path / "1", tmp_path / "2"]).differences
    assert (difference.sites, difference.token, difference.reason) == ((2,), 7, "it is missing there")


def test_a_missing_directory_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fairtape([str(tmp_path / "nowhere")], command) == 2
    assert "is not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("at", [3, 300, 600, 1_700, 2_500, -1])
def test_of_a_damaged_journal_the_first_cause_is_reported_with_site_token_and_byte(
    spark: "SparkSession", tmp_path: Path, at: int
) -> None:
    """In a header, in heads, in bodies, in a digest: only the first cause is reported; all entries before it count."""
    journals = pipeline.equal_journals(tmp_path, history())
    victim = values.segments(journals[1])[1]
    pipeline.flip(victim, at)
    found = reconcile(spark, journals)
    (problem,) = found.problems
    assert (problem.stripe, problem.site, problem.path) == (0, 2, str(victim))
    assert problem.offset <= at % len(victim.read_bytes())
    assert problem.token == 1 + (problem.sequence - 1) // 10
    whole, damaged = found.extents
    with Segment(values.segments(journals[0])[1]) as segment:
        behind = sum(isinstance(step.record, Head) and step.offset >= problem.offset for step in SegmentReplay(segment))
    assert damaged.entries == whole.entries - behind


def test_damage_of_a_single_journal_names_the_token_behind_which_it_stands(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its head cannot be read, and no other journal has the token."""
    pipeline.append(tmp_path, pipeline.tokens(12), size_max=4 << 10)
    victim = values.segments(tmp_path)[1]
    pipeline.flip(victim, HEADER_SIZE + 3)
    (problem,) = reconcile(spark, [tmp_path]).problems
    assert (problem.token, problem.after_token) == (None, (int(victim.stem) - 1) // 10)
    assert fairtape([str(tmp_path)], command) == 1
    assert f"DAMAGED: stripe 0 of site 1, after token {problem.after_token}, sequence" in capsys.readouterr().out


def test_problems_are_always_objects_of_one_shape(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = []
    for name, damage in (("header", 3), ("body", 600), ("mark", -1)):
        journals = pipeline.equal_journals(tmp_path / name, history())
        pipeline.flip(values.segments(journals[1])[-1], damage)
        assert fairtape([*map(str, journals), "--json"], command) == 1
        (problem,) = json.loads(capsys.readouterr().out)["problems"]
        assert (problem["stripe"], problem["site"]) == (0, 2)
        assert problem["token"] is not None
        shapes.append(set(problem))
    for path in values.segments(journals[1]):
        pipeline.flip(path, 3)
    (problem,) = (asdict(each) for each in reconcile(spark, journals).problems)
    assert (problem["stripe"], problem["site"], problem["path"]) == (None, None, str(values.segments(journals[1])[0]))
    assert shapes == [set(problem)] * 3


def test_segments_that_two_sites_swapped_are_reported(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journals = pipeline.equal_journals(tmp_path, history())
    assert reconcile(spark, journals).sound
    swapped = pipeline.swap(*journals, 1)
    found = reconcile(spark, journals)
    assert [(each.site, each.path, each.offset) for each in found.problems] == [
        (1, str(swapped[0]), 0),
        (2, str(swapped[1]), 0),
    ]
    assert all("it belongs to stripe 0 of site" in problem.reason for problem in found.problems)
    assert fairtape([str(path) for path in journals], command) == 1
    assert "one sequence" not in capsys.readouterr().out


@pytest.mark.parametrize("altered", ["digest", "released_at", "token"])
def test_a_release_mark_that_was_altered_is_reported(spark: "SparkSession", tmp_path: Path, altered: str) -> None:
    for site in (1, 2):
        values.write(tmp_path / str(site), values.first(40), site=site)
    victim = values.segments(tmp_path / "2")[1]
    offset, mark = pipeline.marks_in(victim)[-1]
    if altered == "digest":
        pipeline.flip(victim, offset + MARK_SIZE - 1)
    elif altered == "released_at":
        pipeline.alter_mark(victim, offset, replace(mark, released_at=mark.released_at + 1))
    else:
        pipeline.alter_mark(victim, offset, replace(mark, token=mark.token + 1))
    (problem,) = reconcile(spark, [tmp_path / "1", tmp_path / "2"]).problems
    assert (problem.site, problem.path, problem.offset, problem.sequence) == (2, str(victim), offset, mark.sequence)
    assert problem.token == mark.token + (altered == "token")
    assert problem.reason == "the digest of a release mark does not match its content"


def test_a_mark_that_names_no_entry_of_an_earlier_segment_is_reported(spark: "SparkSession", tmp_path: Path) -> None:
    """All marks are in the last segment, and all digests fit: only a comparison with the entries shows it."""
    tokens = pipeline.tokens(12)
    with JournalWriter.open(tmp_path, stripe=0, site=1, sync=SyncPolicy.NEVER, segment_size_max=4 << 10) as writer:
        for ordered in tokens:
            values.append_entry(writer, ordered)
        for ordered in tokens:
            values.mark(writer, replace(ordered, token=ordered.token + (ordered.token == 3)))
    assert len(values.segments(tmp_path)) > 2
    (problem,) = reconcile(spark, [tmp_path]).problems
    assert (problem.sequence, problem.token, problem.reason) == (21, 4, "a release mark names no entry")


def test_a_proof_over_nothing_is_none(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, torn, whole = (tmp_path / name for name in ("empty", "torn", "whole"))
    empty.mkdir()
    pipeline.append(torn, pipeline.tokens(1))
    (segment,) = values.segments(torn)
    segment.write_bytes(segment.read_bytes()[: HEADER_SIZE + 9])
    for journals in ([empty], [torn], [empty, torn]):
        with pytest.raises(UserError, match="nothing to prove"):
            reconcile(spark, journals)
    assert fairtape([str(torn), "--json"], command) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    pipeline.append(whole, pipeline.tokens(2), site=2)
    found = reconcile(spark, [empty, torn, whole])
    assert (found.sound, found.level, found.empty) == (True, False, (str(empty), str(torn)))
    assert fairtape([str(torn), str(whole)], command) == 3
    assert "SHORTER" in capsys.readouterr().out


def test_a_missing_segment_is_no_silent_gap(spark: "SparkSession", tmp_path: Path) -> None:
    journals = pipeline.equal_journals(tmp_path, history())
    before, gone, after = values.segments(journals[1])[:3]
    gone.unlink()
    (problem,) = reconcile(spark, journals).problems
    assert (problem.site, problem.path, problem.sequence) == (2, str(before), int(gone.stem))
    assert problem.reason == f"what follows is missing up to sequence {int(after.stem) - 1}"
