"""The `[floor]` of a deployment file: what replicas must agree on, and one sentence for every mistake in it."""

from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.deployment.config.description import COMMIT_PASSES, FILE, FloorSettings, read_deployment
from fairtape.deployment.operations.draft import Draft, create_deployment


def made(folder: Path, fields: str) -> Path:
    """A deployment whose floor has these fields instead of those that `init` writes."""
    create_deployment(folder, Draft(loops=(3,), hosts=("192.0.2.1",), profile="metro"))
    file = folder / FILE
    written = file.read_text()
    assert f"commit_passes = {COMMIT_PASSES}" in written
    file.write_text(written.replace(f"commit_passes = {COMMIT_PASSES} ", f"{fields}\n"))
    return folder


def test_a_floor_is_read_as_it_is_written(tmp_path: Path) -> None:
    fields = 'commit_passes = 2\noperators = ["XNYS"]\narbiters = { s1 = "XLON", s3 = "XTKS" }'
    floor = read_deployment(made(tmp_path / "d", fields)).floor
    assert floor == FloorSettings(commit_passes=2, operators=(101,), arbiters={1: 102, 3: 103})


def test_without_a_floor_every_source_may_do_everything(tmp_path: Path) -> None:
    floor = read_deployment(made(tmp_path / "d", "")).floor
    assert floor == FloorSettings(commit_passes=COMMIT_PASSES)
    assert floor.new().trade_count == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("commit_passes = 128", "floor.commit_passes is 128; expected from 0 to 127"),
        ('operators = ["XPAR"]', "floor.operators is 'XPAR'; expected one of the sources XNYS, XLON, XTKS"),
        ('operators = ["s1"]', "floor.operators is 's1'; expected one of the sources"),
        ('arbiters = { s9 = "XNYS" }', "floor.arbiters.s9 is 'XNYS'; no such field is known"),
        ('arbiters = { s1 = "s2" }', "floor.arbiters.s1 is 's2'; expected one of the sources"),
        ("passes = 1", "floor.passes is 1; no such field is known"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        read_deployment(made(tmp_path / "d", text))
    assert sentence in str(refused.value)
