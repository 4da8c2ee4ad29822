"""Journals of a bounded size: a flood fills a segment a second at every site, and nobody will read them.

What the benchmark proves about the order it proves by the end of each hash chain, which covers what was removed too.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Final

from fairtape.journal.format import SUFFIX

SEGMENTS_KEPT: Final = 3  # of each journal; the last one is being written
LOOK_SECONDS: Final = 0.5


def trim(journal: Path) -> None:
    """Remove all but the last segments. Names sort as numbers do."""
    for segment in sorted(journal.glob(f"*{SUFFIX}"))[:-SEGMENTS_KEPT]:
        segment.unlink()


@contextmanager
def kept_short(journals: Sequence[Path]) -> Iterator[None]:
    """While it lasts, these journals are trimmed, by a thread of this process: no site waits for the disk to forget."""
    over = Event()

    def work() -> None:
        while not over.wait(LOOK_SECONDS):
            for journal in journals:
                trim(journal)

    thread = Thread(target=work, name="journal-trim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
