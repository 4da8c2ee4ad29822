"""A deployment as a client meets it: one order, from whichever site serves."""

import time
from itertools import islice
from pathlib import Path

import pytest

import fairtape
import unit.journal_values as values
from fairtape.client import Break, ClientError, Fresh, Stale, Trade
from fairtape.client.journal_feed import notices
from fairtape.core.instants import SECOND
from fairtape.deployment.config.description import read_deployment
from fairtape.deployment.config.draft import Draft, create_deployment
from fairtape.deployment.follow.journal_follower import JournalFollower
from fairtape.deployment.follow.site_failover import (
    CHOICE_PERIOD,
    SILENCE_TOLD_MIN,
    Changed,
    Restored,
    Silenced,
    SiteFailover,
)
from fairtape.deployment.follow.site_selection import FRESH_PERIOD, SiteSelection
from fairtape.deployment.lock_file import folder_lock
from fairtape.deployment.status_files import RunFolder, StatusFile
from fairtape.journal import JournalReader
from fairtape.tape.records import Record
from unit.tape.tape_values import append, order, write
from unit.test_tape import change


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return create_deployment(tmp_path / "new", Draft(loops=(3,))).folder


def page(folder: Path, number: int, *, released: int, at: int, **others: object) -> None:
    """What a site of this process says."""
    status = {"node": number, "posture": "member", "loops": {}, "released_sequence": released}
    usual = {"written_at_ns": at, "lease_left_ms": 150.0}
    StatusFile(RunFolder(folder), f"s{number}").close(status | usual | others)


def numbers(records: list[Record]) -> list[int]:
    return [record.sequence for record in records if isinstance(record, Trade)]


def test_another_site_goes_on_where_one_stopped(folder: Path) -> None:
    """And numbers that a Break gives away again are told again, behind it."""
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
        heard = numbers(list(islice(live, 3)))
        assert heard == [7, 8, 9], "what a page says of a site is old; its journal is not"
    with fairtape.connect(folder, start="snapshot") as late:
        page(folder, 1, released=9, at=time.time_ns(), ended=True, pid=0)
        assert numbers(list(late)) == [6, 7, 8, 9]


def test_what_was_read_before_a_damage_is_delivered_and_what_lies_behind_it_once_it_is_mended(folder: Path) -> None:
    """A site that cuts its journal back looks damaged for a moment; that must cost no reader a message."""
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


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 1_000 * SECOND

    def now(self) -> int:
        return self.at

    def bound(self) -> int:
        return 0


def test_silence_is_told_once_and_so_is_its_end(folder: Path) -> None:
    write(folder / "journals" / "s1", order(3))
    write(folder / "journals" / "s2", order(3))
    clock = Hand()
    audience = SiteSelection(read_deployment(folder))
    tuner = SiteFailover(audience, JournalFollower(audience.journals, site=1), clock=clock)
    page(folder, 1, released=3, at=clock.at)
    assert tuner.is_due()
    assert list(tuner.look()) == []
    assert not tuner.is_due()
    served_at = clock.at
    clock.at += FRESH_PERIOD + SILENCE_TOLD_MIN
    assert list(tuner.look()) == [Silenced(1, served_at)]
    clock.at += CHOICE_PERIOD
    assert tuner.is_due()
    assert list(tuner.look()) == []
    page(folder, 1, released=3, at=clock.at)
    assert list(tuner.look()) == [Restored(1)]
    page(folder, 1, released=3, at=clock.at, ended=True)
    page(folder, 2, released=3, at=clock.at)
    assert list(tuner.look()) == [Changed(1, 2)]


def test_what_a_client_is_told_of_silence_are_records() -> None:
    assert list(notices([Changed(1, 2), Silenced(2, 5), Restored(2)])) == [Stale(5), Fresh()]
