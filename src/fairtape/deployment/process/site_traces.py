"""The traces of a site that runs: taken from its machine a few times a second, and written beside its journal.

A site serves its customers whether or not anybody can plan from its traces: where they cannot be written, it says so
once in the log, and goes on without.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fairtape.core.errors import UserError
from fairtape.core.instants import Instant
from fairtape.ring.receiver.tracing import Tracer
from fairtape.storage.trace_files import TOTAL_BYTES_MAX, TRACES, TraceWriter


class SiteTraces:
    """A tracer for a machine, and the files that its records go to."""

    def __init__(
        self,
        journal: Path,
        *,
        stripe: int,
        site: int,
        note: Callable[[str], None],
        total_max: int = TOTAL_BYTES_MAX,
    ) -> None:
        """With a `total_max` of 0 nothing is traced."""
        self._note = note
        self._writer: TraceWriter | None = None
        if total_max:
            with self._forgiving("begun"):
                self._writer = TraceWriter(journal / TRACES, stripe=stripe, site=site, total_max=total_max)
        self.tracer = None if self._writer is None else Tracer()

    def write(self, now: Instant) -> None:
        """What was traced since the last time."""
        if self._writer is None or self.tracer is None:
            return
        traces = self.tracer.take(now)
        if traces:
            with self._forgiving("written"):
                self._writer.append(traces)

    def close(self, now: Instant) -> None:
        """The last ones."""
        if self.tracer is not None:
            self.tracer.end_formation(now)
        self.write(now)
        if self._writer is not None:
            self._writer.close()

    @contextmanager
    def _forgiving(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, UserError) as error:
            self._writer = None
            self._note(f"traces cannot be {what}, and this site goes on without: {error}")
