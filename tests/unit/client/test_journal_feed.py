"""A deployment as a feed: one order, from a site that serves."""

import time
from itertools import islice
from pathlib import Path

import pytest

import fairtape
import unit.journal.journal_values as values
from fairtape.client import Break, ClientError, Fresh, Stale, Trade
from fairtape.client.journal_feed import notices
from fairtape.deployment.follow.site_failover import SiteChanged, SiteRestored, SiteSilent
from fairtape.deployment.lock_file import folder_lock
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.deployment.status_files import RunFolder, StatusFile
from fairtape.journal import JournalReader
from fairtape.tape.records import Record
from unit.cli.test_tape_printer import change
from unit.deployment.status_values import site_status
from unit.tape.tape_values import append, order, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return create_deployment(tmp_path / "new", Draft(loops=(3,))).folder


def page(folder: Path, number: int, *, released: int, at: int, **others: object) -> None:
    """Write the status file of a site, as this process."""
    status = site_status(f"s{number}", number, written_at=at, released_sequence=released, **others)
    StatusFile(RunFolder(folder), f"s{number}").close(status)


def numbers(records: list[Record]) -> list[int]:
    return [record.sequence for record in records if isinstance(record, Trade)]


def test_another_site_goes_on_where_one_stopped(folder: Path) -> None:
    """Numbers after a Break are delivered again, behind it."""
    whole = order(9, per_token=1)
    others = order(4, per_token=1, first=8)
    write(folder / "journals" / "s1", whole)
    write(folder / "journals" / "s2", whole[:7], change(others[0], 2, broken=True), others)
    page(folder, 1, released=9, at=time.time_ns())
    page(folder, 2, released=7, at=time.time_ns())
    with folder_lock(folder), fairtape.connect(folder, start="beginning") as tape:
        assert numbers(list(islice(tape, 9))) == list(range(1, 10))
        page(folder, 1, released=9, at=time.time_ns(), ended=True)
        again = list(islice(tape, 5))
        assert isinstance(again[0], Break)
        assert numbers(again) == [8, 9, 10, 11]
        with pytest.raises(ClientError, match="has no end; say how many rows"):
            tape.to_arrow()
        assert tape.snapshot()["ABC"].sequence == 8


def test_a_tape_begins_with_what_comes_next_and_ends_with_the_deployment(folder: Path) -> None:
    journal = write(folder / "journals" / "s1", order(6))
    page(folder, 1, released=3, at=time.time_ns())
    with folder_lock(folder), fairtape.connect(folder) as live:
        append(journal, *order(3, first=7))
        received = numbers(list(islice(live, 3)))
        assert received == [7, 8, 9], "the status file of a site is older than its journal"
    with fairtape.connect(folder, start="snapshot") as late:
        (RunFolder(folder).path / "s1.json").unlink()
        assert numbers(list(late)) == [6, 7, 8, 9]


def test_damage_that_is_repaired_in_time_costs_a_reader_nothing(folder: Path) -> None:
    """While a site truncates its journal, it looks damaged for a moment."""
    journal = write(folder / "journals" / "s1", order(9, per_token=1))
    (segment,) = values.segments(journal)
    whole = segment.read_bytes()
    with JournalReader.open(journal).entries() as cursor:
        sixth = list(cursor)[5]
    segment.write_bytes(whole[: sixth.offset + 70] + b"\xff" + whole[sixth.offset + 71 :])
    page(folder, 1, released=9, at=time.time_ns())
    with folder_lock(folder), fairtape.connect(folder, start="beginning") as tape:
        records = iter(tape)
        assert numbers(list(islice(records, 5))) == [1, 2, 3, 4, 5]
        segment.write_bytes(whole)
        assert numbers(list(islice(records, 4))) == [6, 7, 8, 9]


def test_an_outage_and_its_end_are_records_for_a_client() -> None:
    assert list(notices([SiteChanged(1, 2), SiteSilent(2, 5), SiteRestored(2)])) == [Stale(5), Fresh()]
