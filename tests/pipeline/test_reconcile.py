"""Reconciliation: one sequence is proved, and whatever is wrong is named with its site, token and byte."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import unit.journal_values as values
from pipeline import pipeline_values as pipeline

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from fairtape.cli import run as fairtape
from fairtape.cli.pipeline_reconcile import reconcile as command
from fairtape.pipeline.reconcile import reconcile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def history() -> list[Any]:
    found: list[Any] = pipeline.tokens(12)
    change = replace(values.formation_change(found[6], 2), stripe=0)
    return [*found[:6], change, *(replace(token, formation=2) for token in found[6:])]


def test_one_sequence_is_proved_and_a_shorter_journal_is_told(spark: "SparkSession", tmp_path: Path) -> None:
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


def test_damage_in_one_journal_is_named_and_the_command_says_so(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for site in (1, 2):
        pipeline.append(tmp_path / str(site), history(), site=site, size_max=4 << 10)
    segment = sorted((tmp_path / "2").glob("*.segment"))[1]
    octets = bytearray(segment.read_bytes())
    octets[600] ^= 1
    segment.write_bytes(octets)
    problem = reconcile(spark, [tmp_path / "1", tmp_path / "2"]).problems[0]
    assert (problem.site, problem.path) == (2, str(segment))
    assert problem.offset <= 600
    assert fairtape([str(tmp_path / "nowhere")], command) == 2
    assert "is no directory" in capsys.readouterr().err


def test_a_segment_that_is_gone_is_no_silent_hole(spark: "SparkSession", tmp_path: Path) -> None:
    for site in (1, 2):
        pipeline.append(tmp_path / str(site), history(), site=site, size_max=4 << 10)
    sorted((tmp_path / "2").glob("*.segment"))[1].unlink()
    found = reconcile(spark, [tmp_path / "1", tmp_path / "2"])
    assert not found.sound
    assert json.dumps([problem.reason for problem in found.problems])
