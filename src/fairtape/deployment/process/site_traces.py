"""Traces of a running site: taken from its tracer a few times a second, and written beside its journal.

Traces are optional. A site that cannot write them logs that once and goes on without.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fairtape.core.errors import UserError
from fairtape.core.instants import Instant
from fairtape.ring.receiver.tracing import Tracer
from fairtape.storage.trace_files import TRACES, TraceWriter


class SiteTraces:
    """A tracer for a receiver, and the files of its records."""

    def __init__(
        self,
        journal: Path,
        *,
        stripe: int,
        site: int,
        note: Callable[[str], None],
        total_max: int,
    ) -> None:
        """`total_max` limits the bytes of all trace files; 0: nothing is traced."""
        self._note = note
        self._writer: TraceWriter | None = None
        if total_max:
            with self._or_without("created"):
                self._writer = TraceWriter(journal / TRACES, stripe=stripe, site=site, total_max=total_max)
        self.tracer = None if self._writer is None else Tracer()

    def write(self, now: Instant) -> None:
        """Write what was traced since the last call."""
        if self._writer is None or self.tracer is None:
            return
        traces = self.tracer.take(now)
        if traces:
            with self._or_without("written"):
                self._writer.append(traces)

    def close(self, now: Instant) -> None:
        """Write the last records and close the files."""
        if self.tracer is not None:
            self.tracer.end_formation(now)
        self.write(now)
        if self._writer is not None:
            self._writer.close()

    @contextmanager
    def _or_without(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, UserError) as error:
            self._writer = None
            self._note(f"traces cannot be {what}; the site goes on without them: {error}")
