"""Following journals while sites write them: every message once, again behind a Break, and damage that is repaired."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import unit.journal.journal_values as values
from fairtape.core.effects import Ordered
from fairtape.core.instants import SECOND
from fairtape.journal import Damaged, FormationChanged, JournalEntry, JournalFollower, JournalReader
from fairtape.journal.follow import first_sequence, released_end
from unit.cli.test_tape_printer import change
from unit.tape.tape_values import append, order, write

ROWS_MAX = 100


def found(entries: Sequence[JournalEntry | FormationChanged]) -> list[int | str]:
    """Sequence numbers, and the names of changes of formation."""
    return [
        each.ordered.sequence if isinstance(each, JournalEntry) else f"formation {each.change.formation}"
        for each in entries
    ]


def damage(journal: Path, entry: int) -> bytes:
    """Spoil an entry; what the segment held before."""
    (segment,) = values.segments(journal)
    whole = segment.read_bytes()
    with JournalReader.open(journal).entries() as cursor:
        offset = list(cursor)[entry - 1].offset
    segment.write_bytes(whole[: offset + 70] + b"\xff" + whole[offset + 71 :])
    return whole


def in_formation(number: int, entries: Sequence[Ordered]) -> list[Ordered]:
    return [replace(each, formation=number) for each in entries]


def test_a_follower_reads_what_is_new_since_its_last_read(tmp_path: Path) -> None:
    write(tmp_path, order(3, per_token=1))
    follower = JournalFollower.of_journal(tmp_path, from_sequence=2)
    assert found(follower.read(ROWS_MAX)) == [2, 3]
    assert follower.read(ROWS_MAX) == []
    append(tmp_path, *order(2, per_token=1, first=4))
    assert found(follower.read(1)) == [4]
    assert found(follower.read(ROWS_MAX, period=0)) == [5]
    assert (follower.next_sequence, follower.formation) == (6, 1)
    follower.close()


def test_a_follower_that_begins_beyond_the_end_skips_what_comes_before_its_first_number(tmp_path: Path) -> None:
    lost = order(5, per_token=1)
    write(tmp_path, lost[:2], change(lost[2], 2, broken=True), lost[2:])
    follower = JournalFollower.of_journal(tmp_path, from_sequence=7)
    with values.open_writer(tmp_path) as writer:
        (six, seven) = in_formation(3, order(2, per_token=1, first=6))
        for entry in (change(six, 3, broken=True), six, seven):
            values.append_entry(writer, entry)
            if isinstance(entry, Ordered):
                values.mark(writer, entry)
    assert found(follower.read(ROWS_MAX)) == [7]
    follower.close()


@pytest.mark.parametrize("held", [3, 5])
def test_a_break_that_comes_after_the_position_was_found_takes_the_follower_back(tmp_path: Path, held: int) -> None:
    """The other site is behind, and installs the Break only after the follower has turned to it."""
    lost = order(9, per_token=1)
    journals = {1: write(tmp_path / "s1", lost), 2: write(tmp_path / "s2", lost[:held])}
    follower = JournalFollower(journals)
    assert found(follower.read(ROWS_MAX)) == list(range(1, 10))
    follower.follow(2)
    assert follower.read(ROWS_MAX) == []
    others = in_formation(2, order(2, per_token=1, first=held + 1))
    with values.open_writer(journals[2]) as writer:
        values.append_entry(writer, change(others[0], 2, broken=True))
        for entry in others:
            values.append_entry(writer, entry)
            values.mark(writer, entry)
    assert found(follower.read(ROWS_MAX)) == ["formation 2", held + 1, held + 2]
    assert follower.next_sequence == held + 3
    follower.close()


def test_what_lies_before_damage_is_returned_first_and_then_the_damage_is_raised(tmp_path: Path) -> None:
    write(tmp_path, order(5, per_token=1))
    damage(tmp_path, 4)
    follower = JournalFollower.of_journal(tmp_path)
    assert found(follower.read(ROWS_MAX)) == [1, 2, 3]
    for _ in range(2):
        with pytest.raises(Damaged, match="sequence 4"):
            follower.read(ROWS_MAX)
    follower.close()


def test_damage_that_is_repaired_in_time_costs_no_message(tmp_path: Path) -> None:
    write(tmp_path, order(5, per_token=1))
    whole = damage(tmp_path, 4)
    follower = JournalFollower.of_journal(tmp_path, repair_period=3_600 * SECOND)
    assert found(follower.read(ROWS_MAX)) == [1, 2, 3]
    assert follower.read(ROWS_MAX) == []
    (segment,) = values.segments(tmp_path)
    segment.write_bytes(whole)
    assert found(follower.read(ROWS_MAX)) == [4, 5]
    follower.close()


def test_the_ends_of_a_journal_are_found_without_reading_it_all(tmp_path: Path) -> None:
    journal = JournalReader.open(write(tmp_path, order(5, first=3)))
    assert (first_sequence(journal), released_end(journal)) == (3, 8)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert (first_sequence(JournalReader.open(empty)), released_end(JournalReader.open(empty))) == (1, 1)


def test_a_change_of_formation_behind_the_first_number_is_not_handed_out(tmp_path: Path) -> None:
    one, two, three = order(3, per_token=1)
    write(tmp_path, one, change(two, 2), two, three)
    follower = JournalFollower.of_journal(tmp_path, from_sequence=3)
    assert follower.formation == 2
    assert found(follower.read(ROWS_MAX)) == [3]
    follower.close()
