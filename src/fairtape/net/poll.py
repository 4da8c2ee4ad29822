"""Waiting for sockets, to the microsecond and for any number of them.

epoll has a resolution of milliseconds, and `select` takes only descriptors below 1,024. `ppoll` has neither limit, and
costs as much as `select`. Its cost grows with the number of descriptors, so where there are many, it waits for an epoll
descriptor, which then names those that are ready.
"""

import ctypes
import errno
import os
import select
from collections.abc import Collection, Sequence
from typing import Final

from fairtape.core.instants import SECOND, Duration

POLLED_MAX: Final = 16  # descriptors that are polled one by one


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_ppoll: Final = ctypes.CDLL(None, use_errno=True).ppoll


class Poll:
    """Waits until one of these descriptors is ready to be read."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self._epoll: select.epoll | None = None
        if len(descriptors) > POLLED_MAX:
            self._epoll = select.epoll()
            for each in descriptors:
                self._epoll.register(each, select.EPOLLIN)
            descriptors = (self._epoll.fileno(),)
        self._entries = (_PollFd * len(descriptors))(*(_PollFd(each, select.POLLIN, 0) for each in descriptors))
        self._time = _TimeSpec(0, 0)
        self._arguments = self._entries, len(descriptors), ctypes.byref(self._time), None

    def wait(self, period: Duration) -> Collection[int]:
        """Wait for at most this long; the descriptors that are ready. A signal may end the wait early."""
        self._time.seconds, self._time.nanoseconds = divmod(period, SECOND)
        found = _ppoll(*self._arguments)
        if found == 0:
            return ()
        if found < 0:
            failure = ctypes.get_errno()
            if failure != errno.EINTR:
                raise OSError(failure, os.strerror(failure))
            return ()
        if self._epoll is not None:
            return [each for each, _ in self._epoll.poll(0)]
        return [entry.fd for entry in self._entries if entry.revents]

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
