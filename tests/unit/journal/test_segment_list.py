"""The list of segments: no answer depends on it, and with it no directory is listed."""

import os
import random
import shutil
from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairtape.client.journal_feed import JournalFeed
from fairtape.core.effects import Ordered
from fairtape.core.entries import Entry, Position, position_of
from fairtape.journal import Damaged, History, JournalEntry, JournalFollower, JournalReader, SyncPolicy, verify
from fairtape.journal.follow import first_sequence, released_end
from fairtape.journal.format import HEADER_SIZE
from fairtape.journal.segment_list import (
    LIST_HEADER_SIZE,
    LIST_NAME,
    SegmentList,
    count_before,
    first_after,
    first_sequences,
    firsts_between,
    has_segments,
    journals_below,
    write_list,
)
from fairtape.journal.truncation import plan_truncation, truncate
from fairtape.tape.feed import Live
from unit.journal import journal_values as values
from unit.journal.listings import listings

HISTORY = values.first_with_formations(160)
MESSAGES = values.messages_of(HISTORY)
WRITTEN = 120  # entries of the history; the others are appended by tests
LAST = MESSAGES[-1].sequence + MESSAGES[-1].count


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("journal") / "original"
    values.write(directory, HISTORY)
    assert len(values.segments(directory)) > 20
    return directory


def answers(directory: Path) -> list[object]:
    """What readers find in a journal: by number, by time, by position, and at its ends."""
    found: list[object] = []
    found += [JournalReader.open(directory).place(sequence, None) for sequence in range(0, LAST + 30, 13)]
    for ordered in MESSAGES[::9]:
        found.append(JournalReader.open(directory).place(1, ordered.acknowledged_at))
        found.append(History(directory).after(ordered.token, 2_000))
    found += [JournalReader.open(directory).place_after(position_of(entry)) for entry in HISTORY[::9]]
    journal = JournalReader.open(directory)
    found += [journal.owner(), first_sequence(journal), released_end(journal), journal.last_path(listed=True)]
    found += [has_segments(directory), list(journals_below(directory.parent))]
    return found


def all_answers(directory: Path) -> list[object]:
    """Also those of one reader for many searches, which keeps what it has found."""
    journal = JournalReader.open(directory)
    repeated = [journal.place(sequence, None) for sequence in (LAST, 1, LAST // 2, 1, LAST)]
    with journal.entries(from_sequence=LAST // 2, ordered=True) as cursor:
        rest = list(cursor.everything())
    return [*answers(directory), repeated, rest]


Damage = Callable[[bytearray], None]


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """Anything that can become of a file: cut, overwritten, numbers removed, repeated, exchanged, added."""
    kind = draw(st.sampled_from(("cut", "overwrite", "remove", "repeat", "exchange", "add", "reverse", "empty")))
    one, other = draw(st.integers(0, 400)), draw(st.integers(0, 40))
    octets = draw(st.binary(min_size=1, max_size=40))

    def damage(content: bytearray) -> None:
        records = max((len(content) - LIST_HEADER_SIZE) // 8, 1)
        at = LIST_HEADER_SIZE + one % records * 8
        to = LIST_HEADER_SIZE + other % records * 8
        match kind:
            case "cut":
                del content[one:]
            case "overwrite":
                content[one : one + len(octets)] = octets
            case "remove":
                del content[at : at + 8 * (other + 1)]
            case "repeat":
                content[at:at] = content[at : at + 8]
            case "exchange":
                content[at : at + 8], content[to : to + 8] = content[to : to + 8], content[at : at + 8]
            case "add":
                content += octets
            case "reverse":
                content[LIST_HEADER_SIZE:] = content[LIST_HEADER_SIZE:][::-1]
            case "empty":
                content.clear()

    return damage


def apply(directory: Path, harm: list[Damage]) -> None:
    path = directory / LIST_NAME
    content = bytearray(path.read_bytes())
    for damage in harm:
        damage(content)
    path.write_bytes(content)  # the same file: its header stays current unless it is hit


FIXTURE = [HealthCheck.function_scoped_fixture]


@given(st.lists(damages(), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_whatever_becomes_of_the_list_readers_find_the_same(
    copied: tuple[Path, list[object]], harm: list[Damage]
) -> None:
    directory, expected = copied
    whole = (directory / LIST_NAME).read_bytes()
    apply(directory, harm)
    assert all_answers(directory) == expected
    ahead = {first_after(directory, sequence) for sequence in range(0, LAST, 31)}
    assert ahead <= {None, *first_sequences(directory)}  # a wrong list may hide that a segment is missing
    (directory / LIST_NAME).write_bytes(whole)


@pytest.fixture(scope="module")
def copied(original: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[object]]:
    """A journal, and what readers find in it by its list and without it."""
    directory = values.copy(original, tmp_path_factory.mktemp("copied") / "journal")
    expected = all_answers(directory)
    (directory / LIST_NAME).rename(directory / "kept")
    assert all_answers(directory) == expected
    (directory / "kept").rename(directory / LIST_NAME)
    return directory, expected


@given(st.lists(damages(), max_size=3), st.integers(0, 6), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=FIXTURE)
def test_whatever_becomes_of_the_list_a_writer_continues_at_the_end(
    tmp_path_factory: pytest.TempPathFactory, harm: list[Damage], missing: int, torn: bool
) -> None:
    """Also where the last segments are not in it, and the last record was cut short."""
    directory = tmp_path_factory.mktemp("copy") / "journal"
    values.write(directory, HISTORY[:WRITTEN])
    firsts = first_sequences(directory)
    if missing:
        write_list(directory, firsts[:-missing])
    apply(directory, harm)
    if torn:
        last = values.segments(directory)[-1]
        os.truncate(last, last.stat().st_size - 1)
    with SegmentList(directory) as listed:
        overwritten = len(listed) == len(firsts) and listed.is_current and listed[-1] == firsts[-1] and not torn
        overwritten = overwritten and listed[:] != firsts
    continue_to_end(directory, overwritten=overwritten)
    shutil.rmtree(directory)


def continue_to_end(directory: Path, *, overwritten: bool = False) -> None:
    """Append what the history has beyond this journal, and check everything.

    Numbers that were `overwritten` in the middle of the list are found by a verification, and not by a writer.
    """
    with values.open_writer(directory) as writer:
        assert writer.tip is not None
        released = writer.tip.released
        position = writer.tip.position
        for entry in HISTORY:
            if position_of(entry) > position:
                values.append_entry(writer, entry)
        for ordered in MESSAGES:
            if ordered.sequence >= released:
                values.mark(writer, ordered)
    report = verify(directory)
    assert report.sound
    assert report.last_sequence == LAST - 1
    assert contents(directory) == HISTORY
    assert len(report.remarks) == overwritten
    with SegmentList(directory) as listed:
        assert listed.is_current
        assert (list(listed) == first_sequences(directory)) != overwritten


def contents(directory: Path) -> list[Entry]:
    with JournalReader.open(directory).entries(ordered=True) as cursor:
        return [each.ordered if isinstance(each, JournalEntry) else each.change for each in cursor.everything()]


@given(st.integers(0, 4), st.integers(0, 1 << 16), st.integers(0, 400))
@settings(max_examples=40, deadline=None, suppress_health_check=FIXTURE)
def test_after_a_loss_of_power_the_list_is_not_used(
    tmp_path_factory: pytest.TempPathFactory, missing: int, lost: int, cut: int
) -> None:
    """A loss of power can cut the last two segments at any byte, also between records, and lose any part of the list.

    The end of such a segment does not name the next one.
    """
    directory = tmp_path_factory.mktemp("copy") / "journal"
    values.write(directory, HISTORY[:WRITTEN])
    *_, before, last = values.segments(directory)
    without_checkpoint(last)
    os.truncate(before, before.stat().st_size - lost % (before.stat().st_size // 2))
    write_list(directory, first_sequences(directory)[: -missing or None])
    apply(directory, [lambda content: content.__setitem__(slice(8, 10), b"??")])  # another boot
    os.truncate(directory / LIST_NAME, max((directory / LIST_NAME).stat().st_size - cut, 0))
    continue_to_end(directory)
    shutil.rmtree(directory)


def without_checkpoint(path: Path) -> None:
    """Make the segment one that the disk had not confirmed."""
    from fairtape.journal.format import CheckpointHead, stored_size
    from fairtape.journal.segments import Segment, SegmentReplay

    content = path.read_bytes()
    with Segment(path) as segment:
        offset, record = next(step for step in SegmentReplay(segment) if isinstance(step.record, CheckpointHead))
    path.write_bytes(content[:offset] + content[offset + stored_size(record) :])


@pytest.mark.parametrize("token", [HISTORY[-1].token - 1, HISTORY[120].token, 1])
def test_a_truncation_that_is_stopped_anywhere_gives_the_same_answers_as_a_listing(
    original: Path, tmp_path: Path, token: int
) -> None:
    for steps in range(100):
        directory = values.copy(original, tmp_path / "journal")
        write_list(directory, first_sequences(directory))
        plan = plan_truncation(directory, token)
        carried_out = sum(1 for _ in islice(truncate(directory, plan), steps))
        found = [JournalReader.open(directory).place(sequence, None) for sequence in range(1, LAST, 29)]
        if (directory / LIST_NAME).exists():
            (directory / LIST_NAME).rename(directory / "kept")
            assert found == [JournalReader.open(directory).place(sequence, None) for sequence in range(1, LAST, 29)]
            (directory / "kept").rename(directory / LIST_NAME)
        with values.open_writer(directory) as writer:
            writer.truncate_after(token)
        continue_to_end(directory)
        shutil.rmtree(directory)
        if carried_out < steps:
            return
    pytest.fail("the truncation has no end")


def test_a_copy_of_the_list_and_the_list_of_another_boot_are_not_current(original: Path, tmp_path: Path) -> None:
    with SegmentList(original) as listed:
        assert listed.is_current
    with SegmentList(values.copy(original, tmp_path / "copy")) as copied:
        assert list(copied) == first_sequences(original)
        assert not copied.is_current
    with SegmentList(tmp_path / "nothing") as missing:
        assert not missing
        assert not missing.is_current


def test_a_journal_of_an_older_release_gets_a_list_when_it_is_opened_for_writing(tmp_path: Path) -> None:
    values.write(tmp_path, HISTORY[:WRITTEN])
    (tmp_path / LIST_NAME).unlink()
    assert [entry.ordered for entry in JournalReader.open(tmp_path).entries()] == values.messages_of(HISTORY[:WRITTEN])
    assert not (tmp_path / LIST_NAME).exists()
    continue_to_end(tmp_path)


def test_an_older_release_may_write_in_between(tmp_path: Path) -> None:
    """It leaves the list as it was, which then lacks segments, or names segments that were truncated."""
    values.write(tmp_path, HISTORY[:40])
    stale = (tmp_path / LIST_NAME).read_bytes()
    values.write(tmp_path, HISTORY[40:WRITTEN])
    (tmp_path / LIST_NAME).write_bytes(stale)
    continue_to_end(tmp_path)
    longer = (tmp_path / LIST_NAME).read_bytes()
    with values.open_writer(tmp_path) as writer:
        writer.truncate_after(HISTORY[50].token)
    (tmp_path / LIST_NAME).write_bytes(longer)
    continue_to_end(tmp_path)


def test_a_list_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / LIST_NAME).mkdir()
    values.write(tmp_path, HISTORY[:WRITTEN])
    values.write(tmp_path, HISTORY[WRITTEN:])
    assert contents(tmp_path) == HISTORY
    assert verify(tmp_path).sound


def test_a_verification_remarks_a_list_that_names_other_segments(tmp_path: Path) -> None:
    values.write(tmp_path, HISTORY)
    assert not verify(tmp_path).remarks
    apply(tmp_path, [lambda content: content.__delitem__(slice(LIST_HEADER_SIZE + 40, LIST_HEADER_SIZE + 48))])
    report = verify(tmp_path)
    assert report.sound
    (remark,) = report.remarks
    assert remark.path.name == LIST_NAME
    assert "remove it" in remark.reason


@pytest.mark.parametrize("with_list", [True, False])
def test_old_segments_may_be_removed_while_the_journal_is_written_and_read(tmp_path: Path, with_list: bool) -> None:
    with values.open_writer(tmp_path) as writer:
        for entry in HISTORY[:WRITTEN]:
            values.append_entry(writer, entry)
        if not with_list:
            (tmp_path / LIST_NAME).unlink()
        journal = JournalReader.open(tmp_path)
        with journal.entries(from_sequence=HISTORY[WRITTEN - 1].sequence, ordered=True) as cursor:
            assert len(list(cursor.everything())) <= 2
            kept = first_sequences(tmp_path)[-3:]
            for segment in values.segments(tmp_path)[:-3]:
                segment.unlink()
            for entry in HISTORY[WRITTEN:]:
                values.append_entry(writer, entry)
            assert len(list(cursor.everything())) == len(HISTORY) - WRITTEN
        assert first_sequence(journal) == first_sequence(JournalReader.open(tmp_path)) == kept[0]
        assert journal.place(LAST - 1, None) is not None
    reader = JournalReader.open(tmp_path)
    assert reader.owner() == (values.STRIPE, values.SITE)
    with values.open_writer(tmp_path) as writer, SegmentList(tmp_path) as listed:
        assert list(listed) == first_sequences(tmp_path)
        assert listed[0] == kept[0]


@pytest.mark.parametrize("with_list", [True, False])
def test_a_follower_reports_a_segment_that_was_removed_before_it_was_read(tmp_path: Path, with_list: bool) -> None:
    with values.open_writer(tmp_path) as writer:
        for entry in HISTORY[:20]:
            values.append_entry(writer, entry)
        if not with_list:
            (tmp_path / LIST_NAME).unlink()
        with JournalReader.open(tmp_path).entries(ordered=True) as cursor:
            assert len(list(cursor.everything())) == 20
            read = len(values.segments(tmp_path))
            for entry in HISTORY[20:WRITTEN]:
                values.append_entry(writer, entry)
            values.segments(tmp_path)[read + 2].unlink()
            with pytest.raises(Damaged, match="what follows is missing up to sequence"):
                list(cursor.everything())


def test_segments_after_a_number_are_those_of_the_directory(original: Path) -> None:
    chance = random.Random(7)
    firsts = first_sequences(original)
    for _ in range(50):
        after, before = sorted(chance.sample(range(LAST), 2))
        assert firsts_between(original, after, before) == [first for first in firsts if after < first < before]
        assert first_after(original, after) == next((first for first in firsts if first > after), None)


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=200), st.integers(-5, 1 << 41), st.booleans())
def test_a_search_finds_the_same_as_a_bisection(keys: list[int], target: int, ascending: bool) -> None:
    """Where keys are in order. Where they are not, the neighbours of the result are still on their sides."""
    if ascending:
        keys.sort()
    probed: list[int] = []

    def probe(index: int) -> tuple[int, bool]:
        probed.append(index)
        return keys[index], keys[index] > target

    found = count_before(range(len(keys)), target, probe)
    assert found == bisect_right(keys, target) or not ascending
    assert found == 0 or keys[found - 1] <= target
    assert found == len(keys) or keys[found] > target
    assert len(probed) <= 2 + 2 * len(keys).bit_length()


@pytest.mark.parametrize("count", [10, 100_000])
def test_the_probes_of_a_search_do_not_depend_on_the_number_of_segments(count: int) -> None:
    for target in range(0, count * 1_000, count * 7):
        probed: list[int] = []

        def probe(first: int, target: int = target, probed: list[int] = probed) -> tuple[int, bool]:
            probed.append(first)
            return first, first > target

        assert count_before(range(0, count * 1_000, 1_000), target, probe) == target // 1_000 + 1
        assert len(probed) <= 5


def test_damage_in_the_first_entry_does_not_hinder_a_search_by_time(original: Path, tmp_path: Path) -> None:
    directory = values.copy(original, tmp_path / "journal")
    first, wanted = values.segments(directory)[0], MESSAGES[100]
    with first.open("r+b") as file:
        file.seek(HEADER_SIZE + 1)
        file.write(b"?????")
    assert next(iter(JournalReader.open(directory).entries(since=wanted.acknowledged_at))).ordered == wanted


def test_journals_are_found_below_a_folder_also_beside_what_cannot_be_read(original: Path, tmp_path: Path) -> None:
    for name in ("b", "a"):
        values.copy(original, tmp_path / "site" / name)
    (tmp_path / "site" / "c").mkdir()
    (tmp_path / "site" / "link").symlink_to(tmp_path / "site" / "a")
    assert list(journals_below(tmp_path)) == [tmp_path / "site" / "a", tmp_path / "site" / "b"]
    assert list(journals_below(tmp_path / "site" / "a")) == [tmp_path / "site" / "a"]
    assert list(journals_below(tmp_path / "nothing")) == []
    assert list(journals_below(tmp_path / "site" / "a" / LIST_NAME)) == []


# Listings.


def test_listings_are_noticed(original: Path) -> None:
    with listings(original) as found:
        first_sequences(original)
        list(original.glob("*.segment"))
    assert len(found) == 2


@pytest.mark.parametrize("sync", list(SyncPolicy))
def test_writing_and_following_a_journal_never_lists_it(tmp_path: Path, sync: SyncPolicy) -> None:
    values.write(tmp_path, HISTORY[:WRITTEN])
    follower = JournalFollower.of_journal(tmp_path, from_sequence=HISTORY[WRITTEN - 10].sequence)
    history = History(tmp_path)
    now = 0
    with listings(tmp_path) as found, closing(follower), values.open_writer(tmp_path, sync) as writer:
        read = len(follower.read(1_000_000))
        for entry in HISTORY[WRITTEN:]:
            values.append_entry(writer, entry)
            if isinstance(entry, Ordered):
                values.mark(writer, entry)
            now += 10**10
            writer.wake(now)
            history.update_index()
            assert follower.read(1_000_000) or not isinstance(entry, Ordered)
            assert not follower.read(1_000_000)
            assert not history.after(entry.token, 1_000, formation=entry.formation)
        writer.flush()
        assert read
    assert found == []
    assert len(values.segments(tmp_path)) > 25


def test_opening_a_journal_anywhere_and_catching_up_from_it_never_lists_it(original: Path) -> None:
    with listings(original) as found:
        for ordered in MESSAGES[::5]:
            journal = JournalReader.open(original)
            with journal.entries(from_sequence=ordered.sequence) as cursor:
                assert next(iter(cursor)).ordered == ordered
            assert next(iter(journal.entries(since=ordered.acknowledged_at))).ordered == ordered
            assert History(original).after(ordered.token, 1, formation=ordered.formation) or ordered == MESSAGES[-1]
        assert released_end(JournalReader.open(original)) == LAST
        assert first_sequence(JournalReader.open(original)) == 1
        place = JournalReader.open(original).place_after(Position(HISTORY[-1].formation, HISTORY[-1].token))
        assert place is not None
        assert place.sequence == LAST
        JournalFeed(original, endless=True).open(Live())
        assert has_segments(original)
        assert len(firsts_between(original, 1, LAST)) == len(first_sequences_of(original)) - 1
    assert found == []


def first_sequences_of(directory: Path) -> list[int]:
    with SegmentList(directory) as listed:
        return list(listed)


def test_without_a_list_a_reader_lists_the_directory_once(original: Path, tmp_path: Path) -> None:
    directory = values.copy(original, tmp_path / "journal")
    (directory / LIST_NAME).unlink()
    journal = JournalReader.open(directory)
    with listings(directory) as found:
        for sequence in range(1, LAST, 11):
            assert journal.place(sequence, None) is not None
    assert len(found) == 1
    with journal.entries(from_sequence=LAST - 1, ordered=True) as cursor, listings(directory) as found:
        for _ in range(10):
            list(cursor.everything())
    assert len(found) <= 3  # one for the owner of the journal, and one for each of the two scanners
