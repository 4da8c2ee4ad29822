"""Truncating a journal: at any place, atomically, and it can be continued afterwards."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairtape.core.effects import FormationChange, Ordered, Recovered
from fairtape.core.entries import Entry as Content
from fairtape.core.entries import encode_entry
from fairtape.journal import Damaged, JournalEntry, JournalReader, SyncPolicy, verify
from fairtape.journal.truncation import PLAN_NAME, plan_truncation, truncate
from unit.journal import journal_values as values

HISTORY = values.first_with_formations(40, seed=5)
TOKENS = [ordered.token for ordered in values.messages_of(HISTORY)]


def contents(directory: Path) -> list[Content]:
    with JournalReader.open(directory).entries(ordered=True) as cursor:
        return [each.ordered if isinstance(each, JournalEntry) else each.change for each in cursor.everything()]


def released(directory: Path) -> list[Ordered]:
    with JournalReader.open(directory).entries() as cursor:
        return [each.ordered for each in cursor]


def write(directory: Path, history: list[Content], *, behind: int = 3, segment_size_max: int = 2 << 10) -> None:
    """A journal with an unreleased end."""
    with values.open_writer(directory, segment_size_max=segment_size_max) as writer:
        unreleased: list[Ordered] = []
        for entry in history:
            values.append_entry(writer, entry)
            unreleased += values.messages_of([entry])
            if len(unreleased) > behind:
                values.mark(writer, unreleased.pop(0))


def kept(history: list[Content], token: int) -> list[Content]:
    """A simple reference: formations without a message after them are removed, too."""
    stays = list(history)
    while stays and (isinstance(stays[-1], FormationChange) or stays[-1].token > token):
        stays.pop()
    return stays


def recovered(directory: Path) -> Recovered:
    with values.open_writer(directory) as writer:
        return writer.recovered


@settings(max_examples=60)
@given(
    token=st.integers(0, TOKENS[-1] + 1),
    behind=st.integers(0, 12),
    segment_size_max=st.sampled_from((1 << 10, 3 << 10, 1 << 20)),
)
def test_a_truncated_journal_equals_one_without_the_removed_entries(
    token: int, behind: int, segment_size_max: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Release marks of the remaining entries are kept, also those that were after removed entries."""
    path = tmp_path_factory.mktemp("cut")
    write(path / "cut", HISTORY, behind=behind, segment_size_max=segment_size_max)
    marked = len(released(path / "cut"))
    stays = kept(HISTORY, token)
    with values.open_writer(path / "cut", segment_size_max=segment_size_max) as writer:
        now = writer.truncate_after(token)
        assert now == writer.recovered
    assert contents(path / "cut") == stays
    expected = values.messages_of(stays)[:marked]
    assert released(path / "cut") == expected
    with values.open_writer(path / "twin") as writer:
        for entry in stays:
            values.append_entry(writer, entry)
        for ordered in expected:
            values.mark(writer, ordered)
        assert replace(now, journal=0) == replace(writer.recovered, journal=0)
    report = verify(path / "cut")
    assert report.sound
    assert report.digest == verify(path / "twin").digest
    assert recovered(path / "cut") == now


@pytest.mark.parametrize("token", [0, TOKENS[20], TOKENS[-2]])
def test_a_journal_continues_after_a_truncation_and_may_be_truncated_again(tmp_path: Path, token: int) -> None:
    write(tmp_path, HISTORY)
    number = 100
    for _ in range(3):
        with values.open_writer(tmp_path, segment_size_max=2 << 10) as writer:
            now = writer.truncate_after(token)
            number += 1
            following = values.stream(number, sequence=now.sequence, token=now.token + 1)
            entries = [replace(next(following), formation=number) for _ in range(20)]
            writer.append_formation(values.formation_change(entries[0], number, broken=True), 0)
            for ordered in entries:
                writer.append(ordered, 0)
        assert verify(tmp_path).sound
        assert values.messages_of(contents(tmp_path))[-20:] == entries


def test_nothing_changes_where_nothing_is_above_the_token(tmp_path: Path) -> None:
    write(tmp_path, HISTORY)
    files = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir() if file.name != "lock"}
    with values.open_writer(tmp_path) as writer:
        before = writer.recovered
        assert writer.truncate_after(TOKENS[-1]) == before
    assert files == {file: file.stat().st_mtime_ns for file in tmp_path.iterdir() if file.name != "lock"}


def test_an_empty_journal_can_be_truncated(tmp_path: Path) -> None:
    with values.open_writer(tmp_path) as writer:
        assert replace(writer.truncate_after(5), journal=0) == Recovered.nothing()


def test_formations_without_a_message_are_removed_even_where_nothing_is_above(tmp_path: Path) -> None:
    one, two = values.first(2)
    history: list[Content] = [values.formation_change(one, 1), one, values.formation_change(two, 2)]
    history.append(values.formation_change(two, 3))
    with values.open_writer(tmp_path) as writer:
        for entry in history:
            values.append_entry(writer, entry)
        assert (writer.recovered.number, writer.recovered.token) == (3, one.token)
        now = writer.truncate_after(two.token)
        assert (now.number, now.token, now.sequence) == (1, one.token, two.sequence)
        assert writer.truncate_after(two.token) == now
        assert contents(tmp_path) == history[:2]
        assert replace(writer.truncate_after(0), journal=0) == Recovered.nothing()
    assert contents(tmp_path) == []


def test_removed_bytes_are_kept_and_never_overwritten(tmp_path: Path) -> None:
    write(tmp_path, HISTORY)
    entry = encode_entry(HISTORY[-1])
    for _ in range(2):
        with values.open_writer(tmp_path, segment_size_max=2 << 10) as writer:
            writer.truncate_after(TOKENS[10])
            for again in HISTORY[len(kept(HISTORY, TOKENS[10])) :]:
                values.append_entry(writer, again)
    aside = [file.read_bytes() for file in tmp_path.iterdir() if ".cut-" in file.name]
    assert sum(content.count(entry) for content in aside) == 2


@pytest.mark.parametrize("behind", [0, 8])
@pytest.mark.parametrize("token", [0, TOKENS[7], TOKENS[25], TOKENS[-4]])
def test_a_truncation_is_atomic_at_every_step(tmp_path: Path, token: int, behind: int) -> None:
    write(tmp_path / "whole", HISTORY, behind=behind)
    before = recovered(tmp_path / "whole")
    with values.open_writer(values.copy(tmp_path / "whole", tmp_path / "cut")) as writer:
        after = writer.truncate_after(token)
    marks = released(tmp_path / "whole"), released(tmp_path / "cut")
    states = []
    for steps in range(100):
        torn = values.copy(tmp_path / "whole", tmp_path / f"torn-{steps}")
        done = len(list(islice(truncate(torn, plan_truncation(torn, token)), steps)))
        decided = (torn / PLAN_NAME).exists() or done < steps
        assert verify(torn).sound  # for a reader in between
        for _ in range(2):
            assert recovered(torn) == (after if decided else before)
            assert contents(torn) == (kept(HISTORY, token) if decided else HISTORY)
            assert released(torn) == marks[decided]
            assert verify(torn).sound
        assert not list(torn.glob("cut.*"))
        states.append(decided)
        if done < steps:
            break
    assert states == sorted(states)
    assert set(states) == {False, True}
    assert len(states) > 5


def test_a_partially_executed_plan_is_executed_again_from_the_start(tmp_path: Path) -> None:
    """Also where only a part of the rewritten records is there."""
    write(tmp_path / "whole", HISTORY, behind=8)
    token = TOKENS[-6]
    plan = plan_truncation(tmp_path / "whole", token)
    assert len(plan.records) > 84
    for size in range(0, len(plan.records), 41):
        torn = values.copy(tmp_path / "whole", tmp_path / f"torn-{size}")
        steps = truncate(torn, plan)
        while not (torn / PLAN_NAME).exists():
            next(steps)
        segment = torn / f"{plan.sequence:019d}.segment"
        segment.write_bytes(segment.read_bytes()[: plan.offset] + plan.records[:size])
        with values.open_writer(torn):
            pass
        assert contents(torn) == kept(HISTORY, token)
        assert verify(torn).sound


def test_a_draft_that_was_not_renamed_is_deleted(tmp_path: Path) -> None:
    write(tmp_path, HISTORY)
    (tmp_path / "cut.draft").write_bytes(b"half a pl")
    (tmp_path / "cut.tail").write_bytes(b"half a tail")
    with values.open_writer(tmp_path):
        pass
    assert contents(tmp_path) == HISTORY
    assert not list(tmp_path.glob("cut.*"))


def test_a_malformed_plan_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    write(tmp_path, HISTORY)
    for content in (b"", b"FAIRTCUT", b"FAIRTCUT" + bytes(20)):
        (tmp_path / PLAN_NAME).write_bytes(content)
        with pytest.raises(Damaged, match="not a truncation plan"):
            values.open_writer(tmp_path)
    assert contents(tmp_path) == HISTORY


def test_with_the_policy_token_a_truncation_is_as_durable_as_an_append(tmp_path: Path) -> None:
    write(tmp_path, HISTORY)
    with values.open_writer(tmp_path, SyncPolicy.TOKEN) as writer:
        writer.truncate_after(TOKENS[10])
        assert writer.deadline() is None
    assert contents(tmp_path) == kept(HISTORY, TOKENS[10])


def test_a_following_reader_survives_the_truncation_of_unreleased_entries(tmp_path: Path) -> None:
    history = values.messages_of(values.first_with_formations(1)) + values.first(30)[1:]
    for segment_size_max in (1 << 10, 1 << 20):
        path = tmp_path / str(segment_size_max)
        with values.open_writer(path, segment_size_max=segment_size_max) as writer:
            for ordered in history[:20]:
                writer.append(ordered, 0)
            for ordered in history[:5]:
                values.mark(writer, ordered)
            with JournalReader.open(path).entries() as cursor:
                assert [entry.ordered for entry in cursor] == history[:5]
                writer.truncate_after(history[9].token)
                assert list(cursor) == []
                for ordered in history[10:]:
                    writer.append(ordered, 0)
                for ordered in history[5:]:
                    values.mark(writer, ordered)
                assert [entry.ordered for entry in cursor] == history[5:]
                writer.truncate_after(history[9].token)
                with pytest.raises(Damaged, match="truncated while it was being read"):
                    list(cursor)
