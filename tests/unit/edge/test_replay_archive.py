"""The replay archive: everything that a site released, by session and number, however old.

One that is opened again continues where it was, has everything, and trusts the journal over its file.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from fairtape.core.effects import FormationChange, Ordered
from fairtape.edge.service.replay_archive import ENTRIES_MAX, ReplayArchive
from fairtape.edge.service.stripe_plans import PlanUnknown, StripePlanStore
from fairtape.journal import JournalReader, JournalWriter, SyncPolicy
from unit.edge.edge_journals import SETTINGS, Content, change, history, plan_store, release_of, twin, write, written
from unit.edge.edge_values import NOON, edition, plan, tokens
from unit.journal.listings import listings

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


def test_the_journal_is_read_in_pieces_and_no_further_than_wanted(tmp_path: Path) -> None:
    entries = history(count=2 * ENTRIES_MAX)
    archive = ReplayArchive(written(tmp_path / "s1", entries), SETTINGS, plan_store(tmp_path))
    ordered = [each for each in entries if isinstance(each, Ordered)]
    assert archive.update_index(through=ordered[4].sequence)
    assert (archive.sequence, archive.has_more) == (ordered[5].sequence, False)
    full: list[bool] = []
    while archive.update_index():
        full.append(archive.has_more)
    assert full == [True, False]
    assert archive.sequence == ordered[-1].sequence + ordered[-1].count


def test_old_messages_are_found_without_a_listing_of_the_journal(tmp_path: Path) -> None:
    entries = history(second=SECOND_PLAN)
    journal = tmp_path / "s1"
    with JournalWriter.open(journal, stripe=0, site=1, sync=SyncPolicy.NEVER, segment_size_max=1 << 10) as writer:
        write(writer, entries)
    assert len(list(journal.glob("*.segment"))) > 20
    _, expected = twin(entries, second=SECOND_PLAN)
    with listings(journal) as found:
        archive = opened(journal, plan_store(tmp_path, plan(), SECOND_PLAN), recent_bytes_max=2_000)
        for session, messages in expected.items():
            for number in range(1, len(messages), 7):
                assert list(archive.messages(session, number, 1)) == messages[number - 1 : number]
    assert found == []


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


def caught_up(folder: Path, plans: StripePlanStore) -> ReplayArchive:
    archive = ReplayArchive(
        folder / "s1", SETTINGS, plans, snapshot=folder / "edge" / "s1.memory", recent_bytes_max=2_000
    )
    while archive.update_index():
        pass
    return archive


def save_snapshot(archive: ReplayArchive) -> None:
    write = archive.snapshot_writer()
    assert write is not None
    write()


def held(archive: ReplayArchive, sessions: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
    """Every message of these sessions, requested in small pieces."""
    found: dict[str, list[bytes]] = {}
    for session, messages in sessions.items():
        extent = archive.extent(session)
        assert extent is not None
        assert extent.following == len(messages) + 1
        found[session] = []
        while len(found[session]) < len(messages) and (piece := archive.messages(session, len(found[session]) + 1, 50)):
            found[session] += piece
    return found


@pytest.mark.parametrize("stops", [(2,), (7, 20, 21), (40, 41, 42, 43), (60,)])
def test_it_continues_where_it_was_and_has_everything(
    tmp_path: Path, stops: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, plans = history(second=SECOND_PLAN), plan_store(tmp_path, plan(), SECOND_PLAN)
    writer = JournalWriter.open(tmp_path / "s1", stripe=0, site=1, sync=SyncPolicy.NEVER)
    rest: list[Content] = list(entries)
    sequence = 0
    for stop in stops:
        part = [rest.pop(0) for _ in range(min(stop, len(rest)))]
        write(writer, part)
        archive = caught_up(tmp_path, plans)
        save_snapshot(archive)
        sequence = archive.sequence
        archive.close()
    write(writer, rest)
    writer.close()
    begun: list[int] = []
    read_entries = JournalReader.entries

    def noted(self: JournalReader, *, from_sequence: int = 1, **how: object) -> object:
        begun.append(from_sequence)
        return read_entries(self, from_sequence=from_sequence, **how)  # type: ignore[arg-type]  # passed on unchanged

    monkeypatch.setattr(JournalReader, "entries", noted)
    archive = caught_up(tmp_path, plans)
    assert sequence > 1
    assert 1 not in begun  # nothing was read twice
    _, expected = twin(entries, second=SECOND_PLAN)
    assert held(archive, expected) == expected
    assert archive.current(1) == edition(2).session(1)
    assert set(archive.plans) == {1, 2}


def test_a_journal_that_was_truncated_meanwhile_is_read_from_the_beginning(tmp_path: Path) -> None:
    orders, plans = tokens(30, 4), plan_store(tmp_path)
    writer = JournalWriter.open(tmp_path / "s1", stripe=0, site=1, sync=SyncPolicy.NEVER)
    write(writer, [change(orders[0], 1), *orders])
    archive = caught_up(tmp_path, plans)
    save_snapshot(archive)
    archive.close()
    writer.truncate_after(orders[9].token)
    after = [replace(each, formation=2) for each in tokens(25, 4, first=orders[10].sequence)]
    entries: list[Content] = [change(orders[0], 1), *orders[:10], change(after[0], 2, broken=True), *after]
    write(writer, entries[11:])
    writer.close()
    archive = caught_up(tmp_path, plans)
    _, expected = twin(entries)
    assert held(archive, expected) == expected


@pytest.mark.parametrize("spoil", ["cut", "flip", "empty", "noise", "plan"])
def test_a_damaged_snapshot_is_ignored(tmp_path: Path, spoil: str) -> None:
    entries, plans = history(second=SECOND_PLAN), plan_store(tmp_path, plan(), SECOND_PLAN)
    with JournalWriter.open(tmp_path / "s1", stripe=0, site=1, sync=SyncPolicy.NEVER) as writer:
        write(writer, entries)
    archive = caught_up(tmp_path, plans)
    save_snapshot(archive)
    archive.close()
    file = tmp_path / "edge" / "s1.memory"
    content = file.read_bytes()
    spoilt = {
        "cut": content[:-9],
        "flip": content[:-1] + bytes([content[-1] ^ 1]),
        "empty": b"",
        "noise": b"{}\n",
        "plan": content.replace(b'"tag": "FT"', b'"tag": "XX"'),
    }
    file.write_bytes(spoilt[spoil])
    _, expected = twin(entries, second=SECOND_PLAN)
    assert held(caught_up(tmp_path, plans), expected) == expected


def test_no_snapshot_is_written_before_the_first_release(tmp_path: Path) -> None:
    archive = ReplayArchive(tmp_path / "s1", SETTINGS, plan_store(tmp_path), snapshot=tmp_path / "edge" / "s1.memory")
    assert archive.snapshot_writer() is None
