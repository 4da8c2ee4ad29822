"""The replay archive: everything that a site released, by session and number, however old."""

from dataclasses import replace
from pathlib import Path

import pytest

from fairtape.core.effects import FormationChange, Ordered
from fairtape.edge.service.replay_archive import ReplayArchive
from fairtape.edge.service.stripe_plans import PlanUnknown, StripePlanStore
from fairtape.journal import JournalWriter, SyncPolicy
from unit.edge.edge_journals import SETTINGS, change, history, plan_store, release_of, twin, write, written
from unit.edge.edge_values import NOON, edition, plan, tokens

SECOND_PLAN = plan(2, stripes=3)


def opened(journal: Path, plans: StripePlanStore, *, recent_bytes_max: int = 1 << 20) -> ReplayArchive:
    archive = ReplayArchive(journal, SETTINGS, plans, recent_bytes_max=recent_bytes_max)
    while archive.update_index():
        pass
    return archive


@pytest.mark.parametrize("recent_bytes_max", [1 << 20, 2_000])
def test_every_message_of_every_session_is_there_and_the_same_as_in_memory(
    tmp_path: Path, recent_bytes_max: int
) -> None:
    entries = history(second=SECOND_PLAN)
    archive = opened(
        written(tmp_path / "s1", entries), plan_store(tmp_path, plan(), SECOND_PLAN), recent_bytes_max=recent_bytes_max
    )
    _, expected = twin(entries, second=SECOND_PLAN)
    assert len(expected) >= 5
    for session, messages in expected.items():
        extent = archive.extent(session)
        assert extent is not None
        assert extent.following == len(messages) + 1
        found: list[bytes] = []
        while len(found) < len(messages):
            piece = archive.messages(session, len(found) + 1, 50)
            assert piece
            found += piece
        assert found == messages
    assert archive.current(1) == edition(2).session(1)


def test_what_is_held_and_not_released_is_not_in_the_archive(tmp_path: Path) -> None:
    entries = history(count=12)
    folder = tmp_path / "s1"
    writer = JournalWriter.open(folder, stripe=0, site=1, sync=SyncPolicy.NEVER)
    write(writer, entries, unreleased=5)
    archive = opened(folder, plan_store(tmp_path))
    unreleased = [each for each in entries if isinstance(each, Ordered)][-5:]
    assert archive.sequence == unreleased[0].sequence
    _, expected = twin(entries)
    session = edition().session(1)
    known = archive.extent(session)
    assert known is not None
    assert known.following < len(expected[session]) + 1
    assert not archive.messages(session, known.following, 10)
    for each in unreleased:
        writer.release(release_of(each), NOON)
    assert archive.update_index()
    assert list(archive.messages(session, 1, 1_000)) == expected[session]
    writer.close()


def test_a_plan_that_is_missing_is_waited_for(tmp_path: Path) -> None:
    entries = history(second=SECOND_PLAN)
    plans = plan_store(tmp_path, plan())
    archive = opened(written(tmp_path / "s1", entries), plans)
    assert "plan 2 is not here" in archive.trouble
    assert archive.plan == 1
    plans.add(SECOND_PLAN)
    while archive.update_index():
        pass
    assert (archive.plan, archive.trouble) == (2, "")


def test_without_its_first_plan_there_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "s1").mkdir()
    with pytest.raises(PlanUnknown, match="plan 1 is not here; put it at"):
        ReplayArchive(tmp_path / "s1", SETTINGS, StripePlanStore(tmp_path, 0))


def test_without_a_first_plan_numbers_begin_with_the_first_installed_plan(tmp_path: Path) -> None:
    entries = history(second=SECOND_PLAN)
    journal = written(tmp_path / "s1", entries)
    archive = ReplayArchive(journal, replace(SETTINGS, first_plan=0), plan_store(tmp_path, SECOND_PLAN))
    while archive.update_index():
        pass
    assert archive.plan == 2
    begun = next(each for each in entries if isinstance(each, FormationChange) and each.formation == 3)
    assert archive.current(1) == edition(2).session(1)
    last = [each for each in entries if isinstance(each, Ordered)][-1]
    assert archive.sequence == last.sequence + last.count
    assert begun.sequence > 1


def test_a_truncated_journal_is_read_again_from_the_beginning(tmp_path: Path) -> None:
    folder = tmp_path / "s1"
    orders = tokens(30, 4)
    writer = JournalWriter.open(folder, stripe=0, site=1, sync=SyncPolicy.NEVER)
    write(writer, [change(orders[0], 1), *orders])
    archive = opened(folder, plan_store(tmp_path))
    writer.truncate_after(orders[9].token)
    rest = [replace(each, formation=2) for each in tokens(25, 4, first=orders[10].sequence)]
    write(writer, [change(rest[0], 2, broken=True), *rest])
    for _ in range(20):
        archive.update_index()
    assert archive.restarts >= 1
    assert archive.sequence == rest[-1].sequence + rest[-1].count
    assert archive.current(1) == replace(edition(), breaks=1).session(1)
    writer.close()
