"""Removes old segments of journals while a benchmark runs: a flood fills a segment per second at every site."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Final

from fairtape.journal.format import SUFFIX

SEGMENTS_KEPT: Final = 3  # of each journal; the last one is being written
TRIM_SECONDS: Final = 0.5


def trim(journal: Path) -> None:
    """Remove all but the last segments. Segment names sort by number."""
    for segment in sorted(journal.glob(f"*{SUFFIX}"))[:-SEGMENTS_KEPT]:
        segment.unlink()


@contextmanager
def trimming(journals: Sequence[Path]) -> Iterator[None]:
    """Trim these journals from a thread of this process, so that no site waits for a deletion."""
    over = Event()

    def work() -> None:
        while not over.wait(TRIM_SECONDS):
            for journal in journals:
                trim(journal)

    thread = Thread(target=work, name="journal-trim", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
