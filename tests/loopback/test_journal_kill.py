"""`kill -9` at random moments: everything acknowledged by the writer is there, and the journal continues."""

import os
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from fairtape.core.entries import Entry as Content
from fairtape.core.entries import decode_entry, position_of
from fairtape.journal import FormationChanged, History, JournalEntry, JournalReader, JournalWriter, SyncPolicy, verify
from fairtape.journal.segment_list import SegmentList, first_sequences
from unit.journal import journal_values as values

CHILD = Path(__file__).with_name("journal_child.py")
KILLS = 8


def start_child(directory: Path, policy: SyncPolicy, cuts: str) -> "subprocess.Popen[str]":
    paths = [str(CHILD.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, str(CHILD), str(directory), policy.value, cuts]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def write_and_kill(directory: Path, policy: SyncPolicy, cuts: str, acknowledged: int) -> int:
    """The last sequence number that a writer acknowledged before it was killed."""
    with start_child(directory, policy, cuts) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(acknowledged)]
        child.kill()
        lines += child.stdout.readlines()
    return [int(line) for line in lines if line.endswith("\n")][-1]


@pytest.mark.parametrize("cuts", ["", "cuts"])
@pytest.mark.parametrize("policy", list(SyncPolicy))
def test_everything_acknowledged_before_the_kill_is_there_and_the_journal_continues(
    tmp_path: Path, policy: SyncPolicy, cuts: str
) -> None:
    chance = random.Random(policy.value + cuts)
    for _ in range(KILLS):
        last = write_and_kill(tmp_path, policy, cuts, chance.randint(1, 120))
        with JournalWriter.open(tmp_path, stripe=values.STRIPE, site=values.SITE) as writer:
            assert writer.tip is not None
            assert writer.tip.sequence >= last
            recovered = writer.recovered
        report = verify(tmp_path)
        assert report.sound
        assert report.unfinished == 0
        with SegmentList(tmp_path) as listed:
            assert list(listed) == first_sequences(tmp_path)
        held = contents(tmp_path)
        assert held == list(islice(values.stream_with_formations(8), len(held)))
        assert held[-1].sequence >= last
        assert recovered.streams == values.streams_after(held)
    assert report.segments > 3


def test_readers_beside_a_writer_that_is_killed_find_every_entry_and_follow_each_once(tmp_path: Path) -> None:
    """They search while segments begin, before the writer has appended them to the list, and while it recovers."""
    chance = random.Random(5)
    history, journal, followed = History(tmp_path), JournalReader.open(tmp_path), list[Content]()
    with journal.entries(ordered=True) as cursor:
        for _ in range(KILLS):
            with start_child(tmp_path, SyncPolicy.NEVER, "") as child:
                assert child.stdout is not None
                for _ in range(chance.randint(5, 60)):
                    last = int(child.stdout.readline())
                    followed += [_content(each) for each in cursor.everything()]
                    if len(followed) < 2:
                        continue
                    at = chance.randrange(len(followed) - 1)
                    held, following = followed[at : at + 2]
                    for reader in (journal, JournalReader.open(tmp_path)):
                        place = reader.place(held.sequence, None)
                        assert place is not None
                        assert place.sequence == held.sequence
                    formation, token = position_of(held)
                    (found,) = chance.choice([history, History(tmp_path)]).after(token, 1, formation=formation)
                    assert decode_entry(found) == following
                    history.update_index()
                child.kill()
            assert followed[-1].sequence >= last
        followed += [_content(each) for each in cursor.everything()]
    assert followed == list(islice(values.stream_with_formations(8), len(followed)))
    assert len(values.segments(tmp_path)) > 10


def _content(each: JournalEntry | FormationChanged) -> Content:
    return each.ordered if isinstance(each, JournalEntry) else each.change


def contents(directory: Path) -> list[Content]:
    with JournalReader.open(directory).entries(ordered=True) as cursor:
        return [_content(each) for each in cursor.everything()]
