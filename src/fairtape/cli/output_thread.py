"""Standard output as a place that may stand still: a thread writes, and whoever has something to write never waits.

The thread is a daemon and writes with the system call itself, so a program can end while a reader that takes nothing
holds the thread in the middle of a write.
"""

import os
import threading
from queue import Full, Queue
from typing import Final

from fairtape.core.errors import UserError

CHUNKS_MAX: Final = 16  # that wait for the reader
PIECE_SIZE: Final = 4_096  # bytes of one write: so small that a reader who takes anything is seen to


class OutputThread:
    """Writes chunks to one file descriptor, in order."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._chunks: Queue[bytes] = Queue(CHUNKS_MAX)
        self._offered = 0
        self._error: OSError | None = None
        self.written = 0  # chunks that are out as a whole
        self.pieces = 0  # writes that succeeded
        threading.Thread(target=self._write, name="standard output", daemon=True).start()

    def offer(self, chunk: bytes) -> bool:
        """Take a chunk if there is room for it. Raises `BrokenPipeError` once the reader has gone."""
        self._check()
        try:
            self._chunks.put_nowait(chunk)
        except Full:
            return False
        self._offered += 1
        return True

    @property
    def idle(self) -> bool:
        """Whether everything is out."""
        self._check()
        return self.written == self._offered

    def _check(self) -> None:
        if isinstance(self._error, BrokenPipeError):
            raise self._error
        if self._error is not None:
            raise UserError(
                f"standard output cannot be written ({self._error.strerror}); make room, or write elsewhere"
            )

    def _write(self) -> None:
        while self._error is None:
            chunk = memoryview(self._chunks.get())
            try:
                while chunk:
                    chunk = chunk[os.write(self._descriptor, chunk[:PIECE_SIZE]) :]
                    self.pieces += 1
                self.written += 1
            except OSError as error:
                self._error = error
