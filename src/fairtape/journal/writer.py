"""Writing a journal: append entries and release marks, with the durability that the sync policy promises.

What each sync policy promises of an entry once `append` or `append_formation` has returned:

    policy     kill -9 of this process     loss of power
    token      kept                        kept: the site counts as a holder only after the disk has confirmed it
    interval   kept                        entries since the start of the last sync, one `sync_period` ago, may be lost
    never      kept                        whatever the kernel had not written may be lost, not only at the end

Release marks are local and can be made again, so no policy waits for them; they reach the disk with the next sync.

Only the policy `token` waits for the disk. The file of the next segment is created ahead, in the background: a spare
file without a segment's name, which no reader opens. It is renamed once its header and first entry are written. The old
segment is synced in the background; then the new one gets its checkpoint, which says so, and only after that may a
third one begin. Opening a journal for writing repairs it first; `torn_tail` says what was removed.

No cost depends on the number of segments: the list file (`fairtape.journal.segment_list`) gets each new one in the
background, and tells the last ones when the journal is opened.
"""

import fcntl
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, Self, TypeVar

from fairtape.core.effects import FormationChange, Ordered, Recovered, Release
from fairtape.core.entries import encode_entry
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.journal.crash_recovery import MissingCheckpoint, TornTail, recover
from fairtape.journal.format import (
    SegmentCheckpoint,
    SegmentHeader,
    Tip,
    encode_checkpoint,
    encode_header,
    encode_release,
    link,
    segment_name,
)
from fairtape.journal.identity import journal_identity
from fairtape.journal.segment_list import SegmentListWriter
from fairtape.journal.segments import update_streams
from fairtape.journal.truncation import plan_truncation, sync_directory, truncate
from fairtape.wire.frames import NODE_MAX, STRIPE_MAX, Malformed, NodeId

SEGMENT_SIZE_MAX: Final = 64 << 20
SEGMENT_SIZE_MIN: Final = 1 << 10
SEGMENT_ENTRIES_MAX: Final = 1 << 14  # so that a scan of its heads stays quick, however small the entries are
SYNC_PERIOD: Final = 100 * MILLISECOND  # of the policy `interval`
LOCK_NAME: Final = "lock"
SPARE_NAME: Final = "spare"

_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
_T = TypeVar("_T")


class SyncPolicy(Enum):
    """When the disk has to confirm what was appended."""

    TOKEN = "token"  # noqa: S105 - a token of the ring
    INTERVAL = "interval"
    NEVER = "never"


class WriteFailed(UserError):
    """The journal could not be written. Nothing more is written; what was confirmed before stays."""


class SegmentFile:
    """The segment that is being written. Raises `OSError`; an incomplete write is undone."""

    __slots__ = ("ends_with_formation", "entries", "file", "path", "size")

    def __init__(
        self, path: Path, file: int, *, size: int = 0, entries: int = 0, ends_with_formation: bool = False
    ) -> None:
        self.path = path
        self.file = file
        self.size = size  # bytes
        self.entries = entries
        self.ends_with_formation = (
            ends_with_formation  # the last entry changes the formation; what follows must be in the same segment
        )

    def is_full(self, size: int, size_max: int) -> bool:
        """Whether an entry of this size starts a new segment."""
        return not self.ends_with_formation and (self.size + size > size_max or self.entries >= SEGMENT_ENTRIES_MAX)

    def write(self, buffers: list[bytes]) -> None:
        """Write all buffers or none: what a full disk accepted of a record is truncated."""
        size = sum(map(len, buffers))
        try:
            written = os.writev(self.file, buffers)
            if written < size:
                rest = memoryview(b"".join(buffers))
                while written < size:
                    written += os.write(self.file, rest[written:])
        except OSError:
            with suppress(OSError):
                os.ftruncate(self.file, self.size)
            raise
        self.size += size

    def write_entry(self, buffers: list[bytes], changes_formation: bool) -> None:
        self.write(buffers)
        self.entries += 1
        self.ends_with_formation = changes_formation

    def rename(self, path: Path) -> None:
        self.path.rename(path)
        self.path = path


def open_segment(path: Path, *, size: int, entries: int, ends_with_formation: bool) -> SegmentFile:
    """Open an existing segment to append to it."""
    return SegmentFile(path, os.open(path, _FLAGS), size=size, entries=entries, ends_with_formation=ends_with_formation)


def create_spare(directory: Path) -> SegmentFile:
    """An empty file for the next segment. What a killed writer left in it was never part of the journal."""
    path = directory / SPARE_NAME
    return SegmentFile(path, os.open(path, _FLAGS | os.O_CREAT | os.O_TRUNC, 0o644))


class _Task(NamedTuple):
    """Background work on a file."""

    future: Future[list[bytes]]
    path: Path


class JournalWriter:
    """The single writer of a journal; a lock file keeps out a second one."""

    def __init__(
        self,
        directory: Path,
        lock: int,
        *,
        stripe: int,
        site: NodeId,
        sync: SyncPolicy,
        sync_period: Duration,
        size_max: int,
    ) -> None:
        self.directory = directory
        self._lock = lock
        self._stripe = stripe
        self._site = site
        self._sync = sync
        self._sync_period = sync_period
        self._size_max = size_max
        self._identity = 0
        self._tip: Tip | None = None
        self._ordered_through = 0  # the token of the last messages
        self._streams: dict[NodeId, tuple[int, int]] = {}
        self._change: FormationChange | None = None
        self._output: SegmentFile | None = None
        self._number = -1  # of the last segment
        self._list: SegmentListWriter | None = None
        self._torn_tail: TornTail | None = None
        self._unsynced_since: Instant | None = None
        self._background = ThreadPoolExecutor(1, thread_name_prefix="journal")  # one thread: tasks end in order
        self._spare: Future[SegmentFile] | None = None  # for the next segment
        self._syncing: _Task | None = None
        self._confirming: _Task | None = None  # syncs what precedes the current segment; returns its checkpoint
        self._failure: WriteFailed | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: Path | str,
        *,
        stripe: int,
        site: NodeId,
        sync: SyncPolicy = SyncPolicy.INTERVAL,
        sync_period: Duration = SYNC_PERIOD,
        segment_size_max: int = SEGMENT_SIZE_MAX,
    ) -> "JournalWriter":
        """Create or continue the journal in this directory; repairs what a crash left torn (`torn_tail`)."""
        assert 0 <= stripe <= STRIPE_MAX
        assert 0 <= site <= NODE_MAX
        if segment_size_max < SEGMENT_SIZE_MIN:
            raise UserError(f"segment_size_max is {segment_size_max}; it must be at least {SEGMENT_SIZE_MIN} bytes")
        if sync_period <= 0:
            raise UserError(f"sync_period is {sync_period} ns; it must be above 0")
        directory = Path(directory)
        lock = _lock(directory)
        writer = cls(
            directory, lock, stripe=stripe, site=site, sync=sync, sync_period=sync_period, size_max=segment_size_max
        )
        try:
            writer._identity = journal_identity(directory)
            writer._resume()
        except BaseException:
            writer._close_files()
            raise
        return writer

    @property
    def tip(self) -> Tip | None:
        """The end of the journal; None before its first entry."""
        return self._tip

    @property
    def recovered(self) -> Recovered:
        """The state at the end of the journal, for a site that continues from it."""
        tip, change = self._tip, self._change
        if tip is None:
            return replace(Recovered.nothing(), journal=self._identity)
        return Recovered(
            token=self._ordered_through,
            sequence=tip.sequence,
            streams=MappingProxyType(dict(self._streams)),
            number=0 if change is None else change.formation,
            layout=None if change is None else change.layout,
            released_through=tip.released_token,
            journal=self._identity,
        )

    @property
    def torn_tail(self) -> TornTail | None:
        """What opening removed, if anything was torn."""
        return self._torn_tail

    def append(self, ordered: Ordered, now: Instant) -> None:
        """Append Msg(e). With the policy `token`, returns only when the disk has confirmed it."""
        self._check_usable()
        assert ordered.count > 0
        assert ordered.stripe == self._stripe
        encoded = encode_entry(ordered)
        before = self._tip or Tip.before(ordered, self._site)
        digest = link(before.digest, encoded)
        try:
            after = before.after_messages(
                formation=ordered.formation,
                token=ordered.token,
                sequence=ordered.sequence,
                end=ordered.sequence + ordered.count,
                acknowledged_at=ordered.acknowledged_at,
                digest=digest,
            )
        except Malformed as error:
            raise self._discontinuity(before, error) from None
        self._write_entry(before, [encoded, digest], changes_formation=False)
        self._tip = after
        self._ordered_through = ordered.token
        update_streams(self._streams, ordered)
        self._after_entry(now)

    def append_formation(self, change: FormationChange, now: Instant) -> None:
        """Append a change of formation, with the same durability."""
        self._check_usable()
        assert change.stripe == self._stripe
        encoded = encode_entry(change)
        before = self._tip or Tip.before(change, self._site)
        digest = link(before.digest, encoded)
        try:
            after = before.after_formation(
                formation=change.formation, token=change.token, sequence=change.sequence, digest=digest
            )
        except Malformed as error:
            raise self._discontinuity(before, error) from None
        self._write_entry(before, [encoded, digest], changes_formation=True)
        if self._tip is None:
            self._ordered_through = before.token
        self._tip = after
        self._change = change
        self._after_entry(now)

    def release(self, release: Release, now: Instant) -> None:
        """Append this site's release mark. Marks are in the order of the entries, without gaps."""
        self._check_usable()
        assert self._tip is not None, "a release before anything was ordered"
        assert self._output is not None
        assert release.sequence == self._tip.released, f"released {release.sequence}, due is {self._tip.released}"
        encoded = encode_release(release)
        digest = link(self._tip.marks, encoded)
        tip = self._tip.after_release(release, digest)
        self._write([encoded, digest])
        self._tip = tip
        self._note_unsynced(now)
        self._add_checkpoint(wait=False)

    def truncate_after(self, token: int) -> Recovered:
        """Remove every message above this token, and formations after the last message; the state that is left.

        Atomic: after a crash the journal is as before or fully truncated.
        """
        self._check_usable()
        if self._output is None or (self._ordered_through <= token and not self._output.ends_with_formation):
            return self.recovered
        self.flush()
        plan = plan_truncation(self.directory, token)
        self._close_output()
        try:
            for _ in truncate(self.directory, plan):
                pass
            self._resume()
        except OSError as error:
            raise self._fail(self.directory, error) from None
        except UserError as complaint:
            self._failure = WriteFailed(str(complaint))
            raise
        return self.recovered

    def deadline(self) -> Instant | None:
        """When to call `wake` next."""
        if self._sync is not SyncPolicy.INTERVAL or self._unsynced_since is None:
            return None
        return self._unsynced_since + self._sync_period

    def wake(self, now: Instant) -> None:
        """Start a sync if one is due."""
        due_at = self.deadline()
        if due_at is None or now < due_at:
            return
        self._check_usable()
        self._add_checkpoint(wait=False)
        if self._syncing is not None and not self._syncing.future.done():
            self._unsynced_since = now  # a slow disk: try again one period later
            return
        self._end_sync()
        assert self._output is not None
        self._syncing = self._start(self._output.path, _confirm, self._output.file)
        self._unsynced_since = None

    def flush(self) -> None:
        """Sync everything that was written, whatever the policy."""
        self._check_usable()
        self._end_sync()
        self._add_checkpoint(wait=True)
        if self._output is not None and self._unsynced_since is not None:
            self._attempt(self._output.path, os.fdatasync, self._output.file)
        self._unsynced_since = None

    def close(self) -> None:
        """Sync (unless the policy is `never`), close the files and release the lock."""
        if self._closed:
            return
        try:
            if self._failure is None:
                self._add_checkpoint(wait=True)
                if self._sync is not SyncPolicy.NEVER:
                    self.flush()
        finally:
            self._close_files()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Entries.

    def _check_usable(self) -> None:
        assert not self._closed, "the journal is closed"
        if self._failure is not None:
            raise self._failure

    def _discontinuity(self, tip: Tip, error: Malformed) -> UserError:
        """A new run that starts from the beginning cannot continue an old journal."""
        return UserError(
            f"journal directory {str(self.directory)!r} holds the order up to sequence {tip.sequence - 1}, "
            f"token {tip.token} ({error}); give every new run a directory of its own"
        )

    def _write_entry(self, before: Tip, buffers: list[bytes], *, changes_formation: bool) -> None:
        output = self._output
        if output is None or output.is_full(sum(map(len, buffers)), self._size_max):
            self._begin_segment(before, buffers, changes_formation=changes_formation)
        else:
            self._attempt(output.path, output.write_entry, buffers, changes_formation)

    def _after_entry(self, now: Instant) -> None:
        self._note_unsynced(now)
        if self._sync is SyncPolicy.TOKEN:
            self.flush()
        else:
            self._add_checkpoint(wait=False)

    def _note_unsynced(self, now: Instant) -> None:
        if self._unsynced_since is None:
            self._unsynced_since = now

    def _write(self, buffers: list[bytes]) -> None:
        assert self._output is not None
        self._attempt(self._output.path, self._output.write, buffers)

    # Segments.

    def _begin_segment(self, before: Tip, buffers: list[bytes], *, changes_formation: bool) -> None:
        """Write the header and the first entry to the spare file, rename it, and start to sync what came before."""
        self._add_checkpoint(wait=True)
        spare, self._spare = self._spare or self._background.submit(create_spare, self.directory), None
        following = self._attempt(self.directory, spare.result)
        header = encode_header(SegmentHeader(self._stripe, self._site, self._number + 1, before))
        self._attempt(following.path, following.write_entry, [header, *buffers], changes_formation)
        self._attempt(following.path, following.rename, self.directory / segment_name(before.sequence))
        assert self._list is not None
        self._background.submit(self._list.append, before.sequence)  # done before this segment has its checkpoint
        self._confirm_before(before)
        self._output = following
        self._number += 1
        self._spare = self._background.submit(create_spare, self.directory)

    def _confirm_before(self, tip: Tip) -> None:
        """Sync everything before a new segment in the background, and encode its checkpoint there."""
        checkpoint = SegmentCheckpoint(dict(self._streams), self._change)
        finished = self._output
        file = None if finished is None else finished.file
        path = self.directory if finished is None else finished.path
        directory = None if self._sync is SyncPolicy.NEVER else self.directory
        self._confirming = self._start(path, _confirm_segment, file, directory, checkpoint, tip.digest)

    def _add_checkpoint(self, *, wait: bool) -> None:
        """Append the checkpoint of the current segment, once everything before it is confirmed."""
        task = self._confirming
        if task is None or not (wait or task.future.done()):
            return
        self._confirming = None
        record = self._attempt(task.path, task.future.result)
        if self._number > 0:
            self._write(record)

    # The disk.

    def _start(self, path: Path, work: Callable[..., list[bytes]], *arguments: object) -> _Task:
        return _Task(self._background.submit(work, *arguments), path)

    def _end_sync(self) -> None:
        """Wait for the sync in the background; raise if it failed."""
        task, self._syncing = self._syncing, None
        if task is not None:
            self._attempt(task.path, task.future.result)

    def _attempt(self, path: Path, work: Callable[..., _T], *arguments: object) -> _T:
        """Run disk work. A failure is final and never retried: the kernel may have dropped unwritten pages."""
        try:
            return work(*arguments)
        except OSError as error:
            raise self._fail(path, error) from None

    def _fail(self, path: Path, error: OSError) -> WriteFailed:
        kept = self._tip.sequence - 1 if self._tip else 0
        self._failure = WriteFailed(
            f"journal file {str(path)!r} cannot be written ({error.strerror}); "
            f"it ends with sequence {kept}: free space or repair the disk, then start this site again"
        )
        return self._failure

    def _close_output(self) -> None:
        if self._output is not None:
            os.close(self._output.file)
            self._output = None

    def _close_files(self) -> None:
        """Close every file, and the lock last."""
        self._closed = True
        self._background.shutdown()
        with suppress(OSError):
            if self._spare is not None:
                spare = self._spare.result()
                os.close(spare.file)
                spare.path.unlink()
        self._close_output()
        self._close_list()
        os.close(self._lock)

    def _close_list(self) -> None:
        if self._list is not None:
            self._list.close()
            self._list = None

    def _resume(self) -> None:
        """Continue at the end of the journal, after crash recovery."""
        self._close_list()
        resumption, torn = recover(self.directory, stripe=self._stripe, site=self._site)
        self._list = SegmentListWriter(self.directory)
        self._torn_tail = self._torn_tail or torn
        self._tip, self._ordered_through, self._streams, self._change, self._number = None, 0, {}, None, -1
        if resumption is None:
            return
        self._tip, self._number, self._ordered_through = resumption.tip, resumption.number, resumption.ordered_through
        self._streams, self._change = dict(resumption.state.streams), resumption.state.change
        try:
            self._output = open_segment(
                resumption.path,
                size=resumption.size,
                entries=resumption.entries,
                ends_with_formation=resumption.ends_with_formation,
            )
            self._finish_confirmation(self._output, resumption.missing_checkpoint)
        except OSError as error:
            raise UserError(f"journal file {str(resumption.path)!r} cannot be written ({error.strerror})") from None

    def _finish_confirmation(self, output: SegmentFile, missing: MissingCheckpoint | None) -> None:
        """Sync what was recovered, and write a missing checkpoint: the site counts as a holder of it from now on."""
        directory = None if self._sync is SyncPolicy.NEVER else self.directory
        if missing is not None:
            file = os.open(missing.preceding, os.O_RDONLY | os.O_CLOEXEC)
            output.write(_confirm_segment(file, directory, missing.checkpoint, missing.previous))
        if directory is not None:
            os.fdatasync(output.file)


def _confirm(file: int) -> list[bytes]:
    os.fdatasync(file)
    return []


def _confirm_segment(
    file: int | None, directory: Path | None, checkpoint: SegmentCheckpoint, previous: bytes
) -> list[bytes]:
    """Sync and close a segment (without a directory: only close it); the checkpoint record of the next one."""
    try:
        if directory is not None:
            if file is not None:
                os.fdatasync(file)
            sync_directory(directory)
    finally:
        if file is not None:
            os.close(file)
    encoded = encode_checkpoint(checkpoint)
    return [encoded, link(previous, encoded)]


def _lock(directory: Path) -> int:
    """Create the directory and take its lock; a second writer is refused."""
    try:
        if not directory.is_dir():
            directory.mkdir(parents=True, exist_ok=True)  # a retransmit server may have created it
            sync_directory(directory.parent)
        lock = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UserError(
            f"journal directory {str(directory)!r} cannot be written ({error.strerror}); "
            "name one in which this user may create files"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise UserError(
            f"journal directory {str(directory)!r} is being written by process {holder}; "
            "stop that site or name another directory"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock
