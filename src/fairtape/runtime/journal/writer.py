"""Writing a journal: append what is ordered, mark what is released, and promise no more than the disk has confirmed.

What each sync policy promises of an entry once `append` has returned:

    policy     kill -9 of this process     loss of power
    token      kept                        kept: the site counts as a holder only after the disk has confirmed it
    interval   kept                        what came after the last sync began, one `sync_period` ago, may be lost
    never      kept                        whatever the kernel had not written may be lost, not only at the end

Release marks are local and can be made again, so no policy waits for them; they reach the disk with the next sync.
Every segment is confirmed before the next one begins (except under `never`), so that only the last one can be torn.
Under `interval` the disk confirms in the background, so that a release waits for it only where a segment ends.
Opening a journal for writing repairs it first; `cut` says what was torn.
"""

import fcntl
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Self

from fairtape.core.effects import Ordered, Release
from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.runtime.complaints import Complaint
from fairtape.runtime.journal.format import (
    GENESIS,
    Header,
    Tip,
    encode_header,
    encode_ordered,
    encode_release,
    link,
    segment_name,
)
from fairtape.runtime.journal.repair import Cut, recover, sync_directory
from fairtape.wire.frames import STRIPE_MAX, Malformed

SEGMENT_SIZE_MAX: Final = 64 << 20
SEGMENT_ENTRIES_MAX: Final = 1 << 14  # so that hopping over a segment stays quick, however small its entries are
SEGMENT_SIZE_MIN: Final = 1 << 10
SYNC_PERIOD: Final = 100 * MILLISECOND
LOCK_NAME: Final = "lock"


class Sync(Enum):
    """When the disk has to confirm what was appended."""

    TOKEN = "token"  # noqa: S105 - a token of the ring
    INTERVAL = "interval"
    NEVER = "never"


class Unwritten(Complaint):
    """The journal could not be written: nothing more will be, and what was confirmed before stays."""


@dataclass(slots=True)
class _Output:
    """The segment that is being written."""

    path: Path
    file: int
    size: int  # bytes
    entries: int


class Writer:
    """The one writer of a journal. `open` it; `append`, `release` and `wake` as effects come; `close` it."""

    def __init__(self, directory: Path, lock: int, *, stripe: int, sync: Sync, sync_period: Duration, size_max: int):
        self.directory = directory
        self._lock = lock
        self._stripe = stripe
        self._sync = sync
        self._sync_period = sync_period
        self._size_max = size_max
        self._tip: Tip | None = None
        self._output: _Output | None = None
        self._number = -1  # of the last segment
        self._cut: Cut | None = None
        self._unsynced_since: Instant | None = None
        self._background = ThreadPoolExecutor(1, thread_name_prefix="journal-sync")  # starts no thread until used
        self._syncing: Future[None] | None = None
        self._failure: Unwritten | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: Path | str,
        *,
        stripe: int,
        sync: Sync = Sync.INTERVAL,
        sync_period: Duration = SYNC_PERIOD,
        segment_size_max: int = SEGMENT_SIZE_MAX,
    ) -> "Writer":
        """Begin or continue the journal in this directory. `cut` says what a crash had left torn."""
        assert 0 <= stripe <= STRIPE_MAX
        if segment_size_max < SEGMENT_SIZE_MIN:
            raise Complaint(f"segment_size_max is {segment_size_max}; it must be at least {SEGMENT_SIZE_MIN} bytes")
        if sync_period <= 0:
            raise Complaint(f"sync_period is {sync_period} ns; it must be above 0")
        directory = Path(directory)
        lock = _lock(directory)
        writer = cls(directory, lock, stripe=stripe, sync=sync, sync_period=sync_period, size_max=segment_size_max)
        try:
            writer._resume()
        except BaseException:
            os.close(lock)
            raise
        return writer

    @property
    def tip(self) -> Tip | None:
        """Where the journal stands; None before its first entry."""
        return self._tip

    @property
    def cut(self) -> Cut | None:
        """What opening cut off, if anything was torn."""
        return self._cut

    def append(self, ordered: Ordered, now: Instant) -> None:
        """Write Msg(e). Under the policy `token`, returns only when the disk has confirmed it."""
        self._check_usable()
        assert ordered.count > 0
        assert ordered.stripe == self._stripe
        tip = self._tip or Tip(ordered.token - 1, ordered.sequence, ordered.sequence, 0, GENESIS)
        encoded = encode_ordered(ordered)
        digest = link(tip.digest, encoded)
        following = self._following(tip, ordered, digest)
        if self._output is not None and self._is_full(self._output, len(encoded) + len(digest)):
            self._finish_segment()
        if self._output is None:
            self._output = self._begin_segment(ordered, tip, [encoded, digest])
        else:
            self._write(self._output, [encoded, digest])
        self._output.entries += 1
        self._tip = following
        self._written(now)
        if self._sync is Sync.TOKEN:
            self.flush()

    def release(self, release: Release, now: Instant) -> None:
        """Write this site's release mark. Marks follow one another without a gap, as the entries do."""
        self._check_usable()
        assert self._tip is not None, "a release before anything was ordered"
        assert self._output is not None
        assert release.sequence == self._tip.released, f"released {release.sequence}, due is {self._tip.released}"
        tip = self._tip.release(release)
        self._write(self._output, [encode_release(release)])
        self._tip = tip
        self._written(now)

    def deadline(self) -> Instant | None:
        """When `wake` is wanted next."""
        if self._sync is not Sync.INTERVAL or self._unsynced_since is None:
            return None
        return self._unsynced_since + self._sync_period

    def wake(self, now: Instant) -> None:
        """Sync if that has fallen due."""
        due_at = self.deadline()
        if due_at is None or now < due_at:
            return
        if self._syncing is not None and not self._syncing.done():
            self._unsynced_since = now  # a slow disk: try again a period later
            return
        self._settle()
        if self._output is not None:
            self._syncing = self._background.submit(os.fdatasync, self._output.file)
        self._unsynced_since = None

    def _settle(self) -> None:
        """Wait for the disk to end what it was asked in the background, and hear how it went."""
        syncing, self._syncing = self._syncing, None
        if syncing is None:
            return
        try:
            syncing.result()
        except OSError as error:
            assert self._output is not None
            raise self._fail(self._output.path, error) from None

    def flush(self) -> None:
        """Have the disk confirm everything that was written, whatever the policy."""
        self._check_usable()
        self._settle()
        if self._output is not None and self._unsynced_since is not None:
            self._confirm(self._output.file, self._output.path)
        self._unsynced_since = None

    def close(self) -> None:
        """Sync (unless the policy is `never`), and let the next writer in."""
        if self._closed:
            return
        try:
            if self._failure is None and self._sync is not Sync.NEVER:
                self.flush()
        finally:
            self._closed = True
            self._background.shutdown()
            if self._output is not None:
                os.close(self._output.file)
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        assert not self._closed, "the journal is closed"
        if self._failure is not None:
            raise self._failure

    def _written(self, now: Instant) -> None:
        if self._unsynced_since is None:
            self._unsynced_since = now

    def _following(self, tip: Tip, ordered: Ordered, digest: bytes) -> Tip:
        """The tip after this entry; a run that began anew does not continue an old journal."""
        try:
            return tip.ordered(
                token=ordered.token,
                sequence=ordered.sequence,
                end=ordered.sequence + ordered.count,
                acknowledged_at=ordered.acknowledged_at,
                digest=digest,
            )
        except Malformed as error:
            raise Complaint(
                f"journal directory {str(self.directory)!r} holds the order up to sequence {tip.sequence - 1}, "
                f"token {tip.token} ({error}); give every run that starts anew a directory of its own"
            ) from None

    def _is_full(self, output: _Output, size: int) -> bool:
        return output.size + size > self._size_max or output.entries == SEGMENT_ENTRIES_MAX

    def _begin_segment(self, ordered: Ordered, tip: Tip, first: list[bytes]) -> _Output:
        """The file, its header and its first entry come into being together; then the directory knows it for good."""
        header = Header(
            self._stripe, self._number + 1, ordered.token, ordered.sequence, tip.released, tip.latest_at, tip.digest
        )
        path = self.directory / segment_name(ordered.sequence)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._fail(path, error) from None
        output = _Output(path, file, 0, 0)
        try:
            self._write(output, [encode_header(header), *first])
            self._confirm_directory()
        except Unwritten:
            os.close(file)
            with suppress(OSError):
                path.unlink()
            raise
        self._number += 1
        return output

    def _finish_segment(self) -> None:
        assert self._output is not None
        if self._sync is not Sync.NEVER:
            self.flush()
        os.close(self._output.file)
        self._output = None

    def _write(self, output: _Output, buffers: list[bytes]) -> None:
        """All of it, or none: what a full disk accepted of an entry is taken back."""
        try:
            size = sum(map(len, buffers))
            written = os.writev(output.file, buffers)
            if written < size:
                rest = memoryview(b"".join(buffers))
                while written < size:
                    written += os.write(output.file, rest[written:])
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(output.file, output.size)
            raise self._fail(output.path, error) from None
        output.size += size

    def _confirm(self, file: int, path: Path) -> None:
        """A sync that failed is never tried again: the kernel may have dropped what it could not write."""
        try:
            os.fdatasync(file)
        except OSError as error:
            raise self._fail(path, error) from None

    def _confirm_directory(self) -> None:
        try:
            sync_directory(self.directory)
        except OSError as error:
            raise self._fail(self.directory, error) from None

    def _fail(self, path: Path, error: OSError) -> Unwritten:
        kept = self._tip.sequence - 1 if self._tip else 0
        self._failure = Unwritten(
            f"journal file {str(path)!r} cannot be written ({error.strerror}); "
            f"it ends with sequence {kept}: make room or repair the disk, then start this site again"
        )
        return self._failure

    def _resume(self) -> None:
        """Go on where the journal ended, once what a crash left unfinished there has been cut off."""
        whole, self._cut = recover(self.directory, stripe=self._stripe)
        if whole is None:
            return
        try:
            file = os.open(whole.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise Complaint(f"journal file {str(whole.path)!r} cannot be written ({error.strerror})") from None
        self._output = _Output(whole.path, file, whole.end, whole.entries)
        self._number = whole.number
        self._tip = whole.tip


def _lock(directory: Path) -> int:
    """Make the directory and hold its lock; a second writer is refused."""
    try:
        if not directory.is_dir():
            directory.mkdir(parents=True)
            sync_directory(directory.parent)
        lock = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Complaint(
            f"journal directory {str(directory)!r} cannot be written ({error.strerror}); "
            "name one in which this user may create files"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise Complaint(
            f"journal directory {str(directory)!r} is being written by process {holder}; "
            "stop that site or name another directory"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock
