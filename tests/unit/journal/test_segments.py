"""Segments in another journal's directory: names and order fit, so only headers and marks show the difference."""

from dataclasses import replace
from pathlib import Path

import pytest

from fairtape.journal import Damaged, History, JournalReader, JournalWriter, SyncPolicy, verify
from fairtape.journal.format import HEADER_SIZE, Owner
from fairtape.journal.segments import Place, RecordScanner, Segment
from unit.journal import journal_values as values

ENTRIES = values.first(60)
OTHER_SITE = values.SITE + 1


def swap(one: Path, other: Path, place: int) -> Path:
    """Swap the segments with this index of two journals; the path in the first one."""
    mine, theirs = values.segments(one)[place], values.segments(other)[place]
    assert mine.name == theirs.name
    content = mine.read_bytes()
    mine.write_bytes(theirs.read_bytes())
    theirs.write_bytes(content)
    return mine


@pytest.fixture
def journals(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "s1", tmp_path / "s2"
    for path, site in zip(paths, (values.SITE, OTHER_SITE), strict=True):
        values.write(path, ENTRIES, site=site, sync=SyncPolicy.TOKEN)
    assert len(values.segments(paths[0])) > 3
    return paths


@pytest.mark.parametrize("ordered", [False, True])
def test_a_reader_does_not_continue_in_the_segment_of_another_site(journals: tuple[Path, Path], ordered: bool) -> None:
    foreign = swap(*journals, 2)
    with JournalReader.open(journals[0]).entries(ordered=ordered) as cursor, pytest.raises(Damaged) as caught:
        list(cursor)
    assert (caught.value.path, caught.value.offset, caught.value.sequence) == (foreign, 0, int(foreign.stem))
    assert caught.value.reason == f"it belongs to stripe 3 of site {OTHER_SITE}, and the journal to stripe 3 of site 6"
    with pytest.raises(Damaged, match="it belongs to"):
        History(journals[0]).after(0, 1 << 30)


def test_a_reader_does_not_begin_in_the_segment_of_another_site(journals: tuple[Path, Path]) -> None:
    foreign = swap(*journals, 2)
    journal = JournalReader.open(journals[0])
    assert journal.owner() == Owner(values.STRIPE, values.SITE)
    with journal.entries(from_sequence=int(foreign.stem) + 3) as cursor, pytest.raises(Damaged, match="it belongs to"):
        list(cursor)
    with pytest.raises(Damaged, match="it belongs to"):
        RecordScanner(Place(foreign, HEADER_SIZE, int(foreign.stem), b""), Owner(values.STRIPE, values.SITE))


def test_the_owner_of_a_journal_is_known_though_its_first_header_is_damaged(journals: tuple[Path, Path]) -> None:
    first, *_ = values.segments(journals[0])
    first.write_bytes(b"?" + first.read_bytes()[1:])
    assert JournalReader.open(journals[0]).owner() == Owner(values.STRIPE, values.SITE)
    for path in values.segments(journals[0]):
        path.write_bytes(b"?" + path.read_bytes()[1:])
    with pytest.raises(Damaged, match=first.name):
        JournalReader.open(journals[0]).owner()


def test_a_segment_of_the_same_site_with_other_marks_does_not_continue_the_chain(tmp_path: Path) -> None:
    """The order and the site are the same: only the chain of the release marks differs."""
    values.write(tmp_path / "one", ENTRIES, sync=SyncPolicy.TOKEN)
    options = {"stripe": values.STRIPE, "site": values.SITE, "segment_size_max": 4 << 10}
    with JournalWriter.open(tmp_path / "other", sync=SyncPolicy.TOKEN, **options) as writer:
        for ordered in ENTRIES:
            values.append_entry(writer, ordered)
            writer.release(replace(values.released(ordered), clock_bound=1), ordered.acknowledged_at)
    names = {path.name for path in values.segments(tmp_path / "one")}
    shared = [path for path in values.segments(tmp_path / "other")[1:] if path.name in names]
    foreign = tmp_path / "one" / shared[0].name
    foreign.write_bytes(shared[0].read_bytes())
    with JournalReader.open(tmp_path / "one").entries(ordered=True) as cursor, pytest.raises(Damaged) as caught:
        list(cursor)
    assert (caught.value.path, caught.value.offset) == (foreign, 0)
    assert caught.value.reason == "the header does not continue the chain of the segment before it"
    assert not verify(tmp_path / "one").sound


def test_a_segment_of_another_owner_is_not_opened(journals: tuple[Path, Path]) -> None:
    path = values.segments(journals[1])[1]
    with Segment(path) as segment:
        assert segment.header.owner == Owner(values.STRIPE, OTHER_SITE)
    with pytest.raises(Damaged, match=f"{path.name} is damaged at byte 0, sequence {int(path.stem)}: it belongs to"):
        Segment(path, Owner(values.STRIPE, values.SITE))
