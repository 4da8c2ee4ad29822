"""`kill -9` at random moments: everything acknowledged by the writer is there, and the journal continues."""

import os
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from fairtape.core.entries import Entry as Content
from fairtape.journal import JournalEntry, JournalReader, JournalWriter, SyncPolicy, verify
from fairtape.journal.segment_list import SegmentList, first_sequences
from unit.journal import journal_values as values

CHILD = Path(__file__).with_name("journal_child.py")
KILLS = 8


def write_and_kill(directory: Path, policy: SyncPolicy, cuts: str, acknowledged: int) -> int:
    """The last sequence number that a writer acknowledged before it was killed."""
    environment = os.environ | {"PYTHONPATH": str(CHILD.parents[1])}
    command = [sys.executable, str(CHILD), str(directory), policy.value, cuts]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
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


def contents(directory: Path) -> list[Content]:
    with JournalReader.open(directory).entries(ordered=True) as cursor:
        return [each.ordered if isinstance(each, JournalEntry) else each.change for each in cursor.everything()]
