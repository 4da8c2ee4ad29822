"""A thread that writes to standard output, so that a slow reader never blocks the caller.

The thread is a daemon and calls `os.write` directly, so the program can end while a reader that reads nothing blocks
the thread in a write.
"""

import os
import threading
from queue import Full, Queue
from typing import Final

from fairtape.core.errors import UserError

CHUNKS_MAX: Final = 16  # waiting for the reader
PIECE_SIZE: Final = 4_096  # bytes of one write: small, so that progress of a slow reader is visible


class OutputThread:
    """Writes chunks to one file descriptor, in order."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._chunks: Queue[bytes] = Queue(CHUNKS_MAX)
        self._offered = 0
        self._error: OSError | None = None
        self.written = 0  # chunks written completely
        self.pieces = 0  # writes that succeeded
        threading.Thread(target=self._write, name="standard output", daemon=True).start()

    def offer(self, chunk: bytes) -> bool:
        """Enqueue a chunk, unless the queue is full. Raises `BrokenPipeError` after the reader has closed the pipe."""
        self._check()
        try:
            self._chunks.put_nowait(chunk)
        except Full:
            return False
        self._offered += 1
        return True

    @property
    def idle(self) -> bool:
        self._check()
        return self.written == self._offered

    def _check(self) -> None:
        if isinstance(self._error, BrokenPipeError):
            raise self._error
        if self._error is not None:
            raise UserError(
                f"standard output cannot be written ({self._error.strerror}); free some space, or write elsewhere"
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
