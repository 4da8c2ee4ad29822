"""`kill -9` at random moments: the file has every synced turn completely, and no other."""

import random
import subprocess
import sys
from pathlib import Path

from fairtape.gateway.storage.fix_store import FixFile

CHILD = Path(__file__).with_name("fix_store_child.py")
KILLS = 5


def count_and_kill(path: Path, turns: int) -> int:
    """The last number that the child printed before it was killed."""
    with subprocess.Popen([sys.executable, str(CHILD), str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(turns)]
        child.kill()
        lines += child.stdout.readlines()
    return [int(line) for line in lines if line.endswith("\n")][-1]


def test_every_synced_turn_survives_a_kill(tmp_path: Path) -> None:
    chance = random.Random(6)
    path = tmp_path / "sessions"
    for _ in range(KILLS):
        said = count_and_kill(path, chance.randint(1, 60))
        file = FixFile(path)
        store = file.session("FLOOR", "ANN")
        assert store.next_out in (said, said + 2)
        assert store.next_out - 1 == 2 * (store.next_in - 1)
        kept = list(store.kept(1, store.next_out))
        assert kept == [(number, b"message %d" % number) for number in range(1, store.next_out)]
        file.close()
