"""A process that shares a store with others: increments the renewals, or records endlessly until it is killed."""

import os
import sys

from fairtape.core.formation_log import Claim, Claimed, Leadership, LogEntry, Recall, Recalled, Record, Recorded
from fairtape.storage.formation_stores import FormationStore, open_store


def count(store: FormationStore, times: int) -> None:
    """Add this many renewals, each by compare and set."""
    held: Leadership | None = None
    while times:
        wanted = Leadership(os.getpid(), 1, 1 if held is None else held.renewal + 1)
        answer = store.answer(Claim(held, wanted))
        if isinstance(answer, Claimed):
            times -= answer.leadership == wanted
            held = answer.leadership


def append(store: FormationStore) -> None:
    """Record one formation after another in two loops at once, and print each number."""
    recalled = store.answer(Recall())
    assert isinstance(recalled, Recalled)
    number = recalled.latest[0].number if recalled.latest else 0
    store.answer(Claim(recalled.leadership, Leadership(1, 1, 1)))
    while True:
        number += 1
        entries = tuple(LogEntry(loop, number, 1, bytes(500)) for loop in (1, 2))
        assert isinstance(store.answer(Record(entries)), Recorded)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


def main(url: str, times: str = "") -> None:
    """Start when a line arrives on standard input, so that all processes start together."""
    sys.stdin.readline()
    store = open_store(url, timeout=60.0)
    if times:
        count(store, int(times))
        store.close()
    else:
        append(store)


main(*sys.argv[1:])
