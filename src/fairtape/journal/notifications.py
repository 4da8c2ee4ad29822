"""Notifications: a site announces how far its journal has come, so that its readers need not poll it.

The site listens on a Unix socket in its journal directory. A reader connects, registers for one level and gets a
datagram whenever that level has changed. A datagram has three sequence numbers:

    ordered_through   this site's journal has every message up to this number
    stable_through    acknowledgments prove that all members of the primary loop hold every message up to this number
    released_through  this site has released every message up to this number, and its journal has the release marks

The numbers are of the moment of the datagram. They usually rise, and fall when the site truncates its journal.
`stable_through` is a lower bound: it is 0 until the token that was the last one when the first reader registered is
stable, and it does not rise while the members of a new formation may still be catching up.

A notification says only that it is time to look at the journal. It is sent after the journal has what it announces. A
reader first takes all notifications that wait and looks then, so a notification that is dropped because the buffer of
its reader is full costs nothing: others wait there, and the look after them finds everything. Only where few waited is
the last one taken for the end of the journal, which saves the search for it. If a look does not end with what was
announced, one more follows after a millisecond, and then the reader polls until both agree. A reader without
notifications polls: the site may be down or of an earlier version, the journal may be a copy, or the reader may lack
the permission.

The socket is of type SOCK_SEQPACKET: datagrams on a connection. A connection needs no lease and no address of the
reader, another process cannot send on it, either end learns at once that the other is gone, and each reader has a send
buffer of its own, so that one that does not read takes nothing from the others. The permission to connect is that to
read the journal. The site never waits: it sends without blocking, and reads registrations in its housekeeping only.

    registration  magic "FTR1", level u8
    notification  magic "FTN1", ordered_through u64, stable_through u64, released_through u64; big-endian
"""

import errno
import os
import select
import socket
import stat
import struct
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.journal.format import Tip
from fairtape.wire.frames import NUMBER_MAX, Malformed

if TYPE_CHECKING:
    import asyncio

SOCKET_NAME: Final = "notify"  # in the journal directory
SUBSCRIBERS_MAX: Final = 64  # of one site; further readers poll
ACCEPTS_MAX: Final = 8  # connections that are accepted in one call
LOOKS_MAX: Final = 20  # housekeeping rounds in which a new reader has to register; it takes up a place
SEND_BUFFER: Final = 8 << 10  # bytes of the kernel for each subscriber: some ten notifications
UNSTABLE_MAX: Final = 1_024  # tokens whose numbers are kept until they are stable

POLL_PERIOD: Final = 10 * MILLISECOND  # between two looks at a journal without notifications
IDLE_PERIOD: Final = 50 * MILLISECOND  # between two looks at a journal with notifications, while none comes
LOOK_AGAIN_PERIOD: Final = 1 * MILLISECOND  # after a look that did not end with what was announced
CONNECT_PERIOD: Final = 1 * SECOND  # between two attempts to connect
RECEIVES_MAX: Final = 64  # notifications that are taken at once: more than the buffer of the site holds
COMPLETE_MAX: Final = 4  # with more of them, the buffer may have been full, and later ones may be lost

_REGISTRATION: Final = struct.Struct(">4sB")
_REGISTERS: Final = b"FTR1"
_NOTIFICATION: Final = struct.Struct(">4sQQQ")
_NOTIFIES: Final = b"FTN1"


class Level(IntEnum):
    """What a message has reached; the index of its number in a notification."""

    ORDERED = 0
    STABLE = 1
    RELEASED = 2


class Notification(NamedTuple):
    """How far a site's journal has come, as sequence numbers; 0: nowhere."""

    ordered_through: int
    stable_through: int
    released_through: int


def encode_registration(level: Level) -> bytes:
    return _REGISTRATION.pack(_REGISTERS, level)


def decode_registration(datagram: bytes) -> Level:
    if len(datagram) != _REGISTRATION.size or datagram[:4] != _REGISTERS:
        raise Malformed("not a registration")
    try:
        return Level(datagram[4])
    except ValueError:
        raise Malformed("registration for an unknown level") from None


def encode_notification(notification: Notification) -> bytes:
    return _NOTIFICATION.pack(_NOTIFIES, *notification)


def decode_notification(datagram: bytes) -> Notification:
    if len(datagram) != _NOTIFICATION.size or datagram[:4] != _NOTIFIES:
        raise Malformed("not a notification")
    return Notification(*_NOTIFICATION.unpack(datagram)[1:])


class _Subscriber:
    """A connection of a reader."""

    __slots__ = ("announced", "connection", "level", "looks")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.level: Level | None = None  # None: it has not registered yet
        self.announced = -1  # the number of its level
        self.looks = 0  # for its registration


class NotificationSender:
    """The notifications of one site, which writes the journal."""

    def __init__(
        self, directory: Path, tip: Callable[[], Tip | None], stable_token: Callable[[], int] = lambda: 0
    ) -> None:
        """`stable_token` is the last token that is known to be stable; 0: none. Raises `UserError` without a socket."""
        self.counts: Counter[str] = Counter()
        self._tip = tip
        self._stable_token = stable_token
        self._subscribers: list[_Subscriber] = []
        self._latest: Notification | None = None
        self._forget_tokens()
        try:
            self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._listener = _listen(self._directory)
            except BaseException:
                os.close(self._directory)
                raise
        except OSError as error:
            raise UserError(
                f"{str(directory / SOCKET_NAME)!r} cannot be made a socket ({error.strerror}): readers of this journal"
                " poll it; remove a file of that name, or keep journals on a file system with sockets"
            ) from None

    @property
    def subscribers(self) -> int:
        """Readers that are connected."""
        return len(self._subscribers)

    def notify(self) -> None:
        """Announce what has changed. To be called after the journal has it; costs nothing without a subscriber."""
        if not self._subscribers:
            return
        latest = self._progress()
        if latest == self._latest:
            return
        self._latest = latest
        datagram = encode_notification(latest)
        gone = []
        for each in self._subscribers:
            if each.level is not None and each.announced != latest[each.level]:
                each.announced = latest[each.level]
                if not self._send(each, datagram):
                    gone.append(each)
        self._drop(gone)

    def update_subscribers(self) -> None:
        """Accept readers, read their registrations and drop those that are gone. Not to be called for every token."""
        self._drop([each for each in self._subscribers if not self._read(each)])
        self._accept()
        if not self._subscribers:
            self._forget_tokens()

    def close(self) -> None:
        """Disconnect the readers and remove the socket. The caller still holds the lock of the journal."""
        self._drop(list(self._subscribers))
        self._listener.close()
        with suppress(OSError):
            os.unlink(SOCKET_NAME, dir_fd=self._directory)
        os.close(self._directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # none waits, or the system is out of resources
                return
            if len(self._subscribers) >= SUBSCRIBERS_MAX:
                connection.close()
                self.counts["subscribers_refused"] += 1
                continue
            connection.settimeout(0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            accepted = _Subscriber(connection)
            self._subscribers.append(accepted)
            if not self._read(accepted):
                self._drop([accepted])

    def _read(self, subscriber: _Subscriber) -> bool:
        """Read one registration if there is one, and answer with the present state; False if the reader is gone.

        One that sends anything else is disconnected.
        """
        try:
            datagram = subscriber.connection.recv(_REGISTRATION.size + 1)
        except BlockingIOError:
            subscriber.looks += 1
            return subscriber.level is not None or subscriber.looks <= LOOKS_MAX
        except OSError:
            return False
        try:
            subscriber.level = decode_registration(datagram)
        except Malformed:
            self.counts["registrations_refused"] += int(datagram != b"")
            return False
        progress = self._progress()
        subscriber.announced = progress[subscriber.level]
        return self._send(subscriber, encode_notification(progress))

    def _send(self, subscriber: _Subscriber, datagram: bytes) -> bool:
        """Send without waiting; False if the reader is gone."""
        try:
            subscriber.connection.send(datagram)
        except BlockingIOError:
            self.counts["notifications_lost"] += 1
        except OSError as error:
            if error.errno not in (errno.ENOBUFS, errno.ENOMEM):
                return False
            self.counts["notifications_lost"] += 1
        else:
            self.counts["notifications_sent"] += 1
        return True

    def _drop(self, subscribers: list[_Subscriber]) -> None:
        for each in subscribers:
            self._subscribers.remove(each)
            each.connection.close()

    # The numbers.

    def _forget_tokens(self) -> None:
        self._unstable: deque[tuple[int, int]] = deque(maxlen=UNSTABLE_MAX)  # tokens, and the number each ends with
        self._noted = self._stable = 0

    def _progress(self) -> Notification:
        tip = self._tip()
        if tip is None:
            return Notification(0, 0, 0)
        ordered = tip.sequence - 1
        return Notification(ordered, self._stable_number(tip.token, ordered), tip.released - 1)

    def _stable_number(self, token: int, ordered: int) -> int:
        """The last number of the tokens that are stable. The journal ends with this token and this number."""
        if ordered < self._noted:  # it was truncated
            while self._unstable and self._unstable[-1][1] > ordered:
                self._unstable.pop()
            self._noted, self._stable = ordered, min(self._stable, ordered)
        if ordered > self._noted:
            self._noted = ordered
            self._unstable.append((token, ordered))
        stable = self._stable_token()
        while self._unstable and self._unstable[0][0] <= stable:
            self._stable = self._unstable.popleft()[1]
        return self._stable


def _listen(directory: int) -> socket.socket:
    """A listening socket in this directory. Only a socket is replaced: one that a killed site has left. Raises OSError.

    The path of a Unix socket has at most 107 bytes, and that of a journal may have more.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(SOCKET_NAME, dir_fd=directory).st_mode):
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        os.unlink(SOCKET_NAME, dir_fd=directory)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{SOCKET_NAME}")
        _let_readers_connect(directory)
        listener.listen(SUBSCRIBERS_MAX)
        listener.settimeout(0)
    except BaseException:
        listener.close()
        raise
    return listener


def _let_readers_connect(directory: int) -> None:
    """A process that may read new files of this directory may connect, which takes the permission to write.

    `bind` has given the socket all permissions that the umask allows, as the journal gives its segments.
    """
    opened = os.open(SOCKET_NAME, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        may_read = os.fstat(opened).st_mode & 0o444
        os.chmod(f"/proc/self/fd/{opened}", may_read | may_read >> 1)  # noqa: PTH101 - not a path of a file
    finally:
        os.close(opened)


class NotificationReceiver:
    """The notifications of one site, for one reader. It connects by itself, again and again while that fails.

    A reader waits until `fileno` is readable, for `wait_period` at most, then calls `receive`, and then looks at the
    journal. `wait` and `wait_in_loop` do the first two, for threads and for event loops.
    """

    def __init__(self, directory: Path, *, level: Level = Level.RELEASED) -> None:
        """`directory` is the journal of the site, whether there is one yet or not."""
        self.latest: Notification | None = None  # None: no site notifies this reader
        self._directory = directory
        self._level = level
        self._connection: socket.socket | None = None
        self._connect_at: Instant = 0
        self._looked_again = False
        self._is_lossy = False  # later notifications than the latest may be lost
        self._is_new = False  # a notification came while the event loop did not wait for one
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: asyncio.Future[None] | None = None  # of the present `wait_in_loop`
        self._readable = select.epoll()  # one descriptor for all connections, one after the other

    def fileno(self) -> int:
        """A descriptor that becomes readable with a notification. It stays the same until `close`."""
        return self._readable.fileno()

    def follow(self, directory: Path) -> None:
        """Go on with the journal of another site."""
        if directory != self._directory:
            self._disconnect()
            self._directory, self._connect_at = directory, 0

    def wait_period(self, seen: int, *, poll_period: Duration = POLL_PERIOD) -> Duration:
        """How long to wait for a notification after a look at the journal that found the numbers up to `seen`."""
        if self._connection is None:
            self._connect()
        if self.latest is None:
            return poll_period
        if self.latest[self._level] == seen:
            return IDLE_PERIOD
        if self._looked_again:
            return poll_period
        self._looked_again = True
        return LOOK_AGAIN_PERIOD

    def announced_after(self, due: int) -> int:
        """The last number that a look will find which begins with the number `due`; NUMBER_MAX where it is unknown."""
        announced = 0 if self.latest is None or self._is_lossy else self.latest[self._level]
        return announced if announced >= max(due, 1) else NUMBER_MAX

    def is_complete(self, seen: int) -> bool:
        """Whether a look that found the numbers up to `seen` has found everything that was announced."""
        return self.latest is not None and not self._is_lossy and self.latest[self._level] == seen

    def receive(self) -> None:
        """Take all notifications that wait. To be followed by a look at the journal."""
        try:
            for count in range(1, RECEIVES_MAX + 1):
                if self._connection is None:
                    return
                self.latest = decode_notification(self._connection.recv(_NOTIFICATION.size + 1))
                self._looked_again, self._is_lossy = False, count > COMPLETE_MAX
        except BlockingIOError:
            pass
        except (OSError, Malformed):  # the site has ended, or it is no site
            self._disconnect()

    def wait(self, seen: int, period: Duration = IDLE_PERIOD, *, poll_period: Duration = POLL_PERIOD) -> None:
        """Return when it is time to look at the journal again, and after `period` at the latest."""
        period = min(self.wait_period(seen, poll_period=poll_period), period)
        if self._readable.poll(max(period, 0) / SECOND):
            self.receive()

    async def wait_in_loop(
        self, seen: int, period: Duration = IDLE_PERIOD, *, poll_period: Duration = POLL_PERIOD
    ) -> None:
        """`wait`, in an event loop, and always in the same one. `end_wait` ends it."""
        loop = self._loop or self._attach()
        is_new, self._is_new = self._is_new, False
        if is_new and not self.is_complete(seen):
            return
        period = min(self.wait_period(seen, poll_period=poll_period), period)
        self._woken = loop.create_future()
        timer = loop.call_later(max(period, 0) / SECOND, self.end_wait)
        try:
            await self._woken
        finally:
            timer.cancel()
            self._woken, self._is_new = None, False

    def end_wait(self) -> None:
        """End the present `wait_in_loop` at once. To be called in its event loop."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def _attach(self) -> "asyncio.AbstractEventLoop":
        from asyncio import get_running_loop  # a program that does not use it need not load it

        self._loop = get_running_loop()
        self._loop.add_reader(self.fileno(), self._notified)
        return self._loop

    def _notified(self) -> None:
        self.receive()
        self._is_new = True
        self.end_wait()

    def close(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self.fileno())
        self._loop = None
        self._disconnect()
        self._readable.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> None:
        now = time.monotonic_ns()
        if now < self._connect_at:
            return
        self._connect_at = now + CONNECT_PERIOD
        with suppress(OSError):
            self._connection = _connect(self._directory)
            self._readable.register(self._connection, select.EPOLLIN)
            self._connection.send(encode_registration(self._level))

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()  # which also takes it out of the epoll set
        self._connection = self.latest = None


def _connect(directory: Path) -> socket.socket:
    """A connection to the site that writes this journal. Follows no link to another socket. Raises OSError."""
    opened = os.open(directory / SOCKET_NAME, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.settimeout(0)
            connection.connect(f"/proc/self/fd/{opened}")
        except BaseException:
            connection.close()
            raise
    finally:
        os.close(opened)
    return connection
