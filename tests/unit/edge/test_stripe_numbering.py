"""Recovery: a restarted publisher has the position that its journal proves, or none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairtape.core.effects import Ordered
from fairtape.edge.protocol.sessions import StripePosition
from fairtape.edge.service.stripe_numbering import EdgeCheckpoint, load_checkpoint, recover, save_checkpoint
from fairtape.edge.service.stripe_plans import PlanUnknown, StripePlanStore
from fairtape.journal import JournalReader
from unit.edge.edge_journals import SETTINGS, Content, change, history, plan_store, twin, written
from unit.edge.edge_values import edition, plan

SECOND_PLAN = plan(2, stripes=3)


def ordered(entries: list[Content]) -> list[Ordered]:
    return [each for each in entries if isinstance(each, Ordered)]


def until(entries: list[Content], tokens: int) -> list[Content]:
    """The history up to its token of this index."""
    kept: list[Content] = []
    for each in entries:
        if not tokens:
            break
        kept.append(each)
        tokens -= isinstance(each, Ordered)
    return kept


@pytest.mark.parametrize("released", [1, 19, 20, 21, 40, 41, 60])
def test_the_position_is_that_of_a_publisher_that_never_stopped(tmp_path: Path, released: int) -> None:
    entries = history(second=SECOND_PLAN)
    journal = JournalReader(written(tmp_path / "s1", entries, unreleased=60 - released))
    found = recover(journal, tmp_path / "none", SETTINGS, plan_store(tmp_path, plan(), SECOND_PLAN))
    sequencer, _ = twin(until(entries, released), second=SECOND_PLAN)
    assert found.checkpoint is not None
    assert found.checkpoint.position == sequencer.position
    # Changes behind the last release were noted before the restart, and will not be given again.
    noted = [each.formation for each in found.changes]
    assert noted == [each for each, at in ((1, 0), (2, 20), (3, 40)) if at >= released]


@given(at=st.integers(1, 30), released=st.integers(30, 60))
@settings(max_examples=15, deadline=None)
def test_a_checkpoint_saves_time_and_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, at: int, released: int
) -> None:
    folder = tmp_path_factory.mktemp("edge")
    entries = history(second=SECOND_PLAN)
    journal = JournalReader(written(folder / "s1", entries, unreleased=60 - released))
    plans = plan_store(folder, plan(), SECOND_PLAN)
    sequencer, _ = twin(until(entries, at), second=SECOND_PLAN)
    last = ordered(entries)[at - 1]
    save_checkpoint(folder / "sidecar", EdgeCheckpoint(sequencer.position, last.formation, last.token))
    loaded = load_checkpoint(folder / "sidecar", SETTINGS, plans)
    assert loaded is not None
    assert loaded.position == sequencer.position
    fresh = recover(journal, folder / "none", SETTINGS, plans)
    assert recover(journal, folder / "sidecar", SETTINGS, plans) == fresh


def test_a_checkpoint_of_what_was_truncated_is_not_used(tmp_path: Path) -> None:
    entries = history()
    lost, _ = twin(entries)
    last = ordered(entries)[-1]
    save_checkpoint(tmp_path / "sidecar", EdgeCheckpoint(lost.position, last.formation, last.token))
    kept = until(entries, 50)
    following = [replace(each, formation=9) for each in ordered(entries)[50:]]
    survived = [*kept, change(following[0], 9, broken=True), *following]
    found = recover(
        JournalReader(written(tmp_path / "s1", survived)), tmp_path / "sidecar", SETTINGS, plan_store(tmp_path)
    )
    assert found.checkpoint is not None
    assert found.checkpoint.position.edition.breaks == 1
    assert found.checkpoint.position == twin(survived)[0].position


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1}', "null", '{"version": 1, "tag": "FT", "core": 0}'])
def test_a_checkpoint_file_without_a_meaning_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "sidecar").write_text(text)
    assert load_checkpoint(tmp_path / "sidecar", SETTINGS, plan_store(tmp_path)) is None


def test_a_checkpoint_file_of_another_deployment_is_ignored(tmp_path: Path) -> None:
    entries = history()
    sequencer, _ = twin(entries)
    save_checkpoint(tmp_path / "sidecar", EdgeCheckpoint(sequencer.position, 3, ordered(entries)[-1].token))
    assert load_checkpoint(tmp_path / "sidecar", replace(SETTINGS, tag="XY"), plan_store(tmp_path)) is None
    fields = json.loads((tmp_path / "sidecar").read_text())
    (tmp_path / "sidecar").write_text(json.dumps({**fields, "following": [1]}))
    assert load_checkpoint(tmp_path / "sidecar", SETTINGS, plan_store(tmp_path)) is None


def test_where_a_plan_is_missing_there_is_no_position(tmp_path: Path) -> None:
    journal = JournalReader(written(tmp_path / "s1", history(second=SECOND_PLAN)))
    with pytest.raises(PlanUnknown, match="plan 2 is not here"):
        recover(journal, tmp_path / "none", SETTINGS, plan_store(tmp_path, plan()))


def test_another_plan_of_the_same_version_is_not_used(tmp_path: Path) -> None:
    journal = JournalReader(written(tmp_path / "s1", history(second=SECOND_PLAN)))
    with pytest.raises(PlanUnknown, match="is another plan than the one that was ordered"):
        recover(journal, tmp_path / "none", SETTINGS, plan_store(tmp_path, plan(), plan(2, stripes=2)))


def test_before_the_first_release_the_sessions_are_still_to_be_opened(tmp_path: Path) -> None:
    (tmp_path / "s1").mkdir()
    found = recover(JournalReader(tmp_path / "s1"), tmp_path / "none", SETTINGS, plan_store(tmp_path))
    assert found.checkpoint is not None
    assert found.checkpoint.position == StripePosition.fresh(edition())


def test_without_any_plan_there_is_no_checkpoint(tmp_path: Path) -> None:
    journal = JournalReader(written(tmp_path / "s1", history()))
    found = recover(journal, tmp_path / "none", replace(SETTINGS, first_plan=0), StripePlanStore(tmp_path, 0))
    assert found.checkpoint is None
