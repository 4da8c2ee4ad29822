"""`kill -9` at moments that nobody chose: what the writer had acknowledged is there, and the journal goes on."""

import os
import random
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from fairtape.runtime.journal import Journal, Sync, Writer, verify
from unit import journal_values as values

CHILD = Path(__file__).with_name("journal_child.py")
KILLS = 8


def write_and_kill(directory: Path, policy: Sync, acknowledged: int) -> int:
    """The last sequence number that a writer acknowledged before it was killed."""
    environment = os.environ | {"PYTHONPATH": str(CHILD.parents[1])}
    command = [sys.executable, str(CHILD), str(directory), policy.value]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(acknowledged)]
        child.kill()
        lines += child.stdout.readlines()
    return max(int(line) for line in lines if line.endswith("\n"))


@pytest.mark.parametrize("policy", list(Sync))
def test_everything_acknowledged_before_the_kill_is_there_and_the_journal_goes_on(tmp_path: Path, policy: Sync) -> None:
    chance = random.Random(policy.value)
    for _ in range(KILLS):
        last = write_and_kill(tmp_path, policy, chance.randint(1, 120))
        with Writer.open(tmp_path, stripe=values.STRIPE) as writer:
            assert writer.tip is not None
            assert writer.tip.sequence > last
        report = verify(tmp_path)
        assert report.sound
        assert report.unfinished == 0
    assert report.segments > 3
    with Journal.open(tmp_path).entries(ordered=True) as cursor:
        held = [entry.ordered for entry in cursor]
    assert held == list(takewhile(lambda ordered: ordered.sequence <= held[-1].sequence, values.stream(8)))
