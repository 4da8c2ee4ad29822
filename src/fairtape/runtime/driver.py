"""Turns machines in one thread: wait, read the clock once, hand over datagrams, wake what is due, carry out effects.

The driver knows no protocol. There is one timer, the earliest deadline of everything in every seat, and one wait, which
ends with that deadline or with the first datagram.

Two orders matter. Effects are carried out in the order in which the machine gave them. And an acknowledgment never
overtakes the messages it names merely because two sockets are read in turn: control sockets are read *before* data
sockets and handed over *after* them, so whatever an acknowledgment names had arrived before the data sockets were read.

The wait must be precise, because a release is only as simultaneous as its timers. epoll counts milliseconds; `select`
counts microseconds, but the kernel lets a long wait end late by a thousandth of its length. So a long wait is cut a
little short and a second, short one finishes it, and the thread asks for no timer slack.
"""

import ctypes
import gc
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Final, Protocol

from fairtape.core.effects import Append, Deliver, Effect, Multicast, Ordered, Release, Report, Send
from fairtape.core.instants import MICROSECOND, MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.core.machine import Machine
from fairtape.runtime.carriers import Carrier
from fairtape.runtime.clock import Clock
from fairtape.runtime.complaints import Complaint
from fairtape.runtime.udp import UdpSocket
from fairtape.runtime.weather import InjectedWeather

HOUSEKEEPING_PERIOD: Final = 50 * MILLISECOND  # the longest wait: the stop condition and a stepped clock are noticed
DATAGRAMS_MAX: Final = 1_024  # read from one socket in one turn: a few milliseconds of work at full rate
DRAINS_MAX: Final = 16  # a consumer may feed the machine whose delivery it hears; the rest waits for the next turn
STALLED_TURNS_MAX: Final = 1_000  # wakes without any movement before we call it a bug of the machine
COLLECTED_AFTER: Final = 100_000  # new objects that outlive their makers, before the collector looks at them
WATCHED_MAX: Final = 1_024  # FD_SETSIZE: file descriptors from this one on are beyond `select`

_ROUGH_WAIT_MIN: Final = 500 * MICROSECOND  # a wait above this is taken in two steps
_ROUGH_SHIFT: Final = 8  # the first step leaves 1/256, well above the kernel's thousandth
_PR_SET_TIMERSLACK: Final = 29
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Journal(Protocol):
    """What a driver asks of a journal. `append` returns when the order is as safe as the journal promises."""

    def append(self, ordered: Ordered, now: Instant) -> None:
        """Write Msg(e)."""

    def release(self, release: Release, now: Instant) -> None:
        """Write when this site released it."""

    def deadline(self) -> Instant | None:
        """When `wake` is wanted next."""

    def wake(self, now: Instant) -> None:
        """Do what has fallen due, such as a sync."""

    def close(self) -> None:
        """Write everything and let go."""


class Producer(Protocol):
    """Feeds the machine of its seat: asked in every turn, woken when its own deadline has come."""

    def deadline(self) -> Instant | None:
        """When it next has something to submit; None while the machine takes no more."""

    def wake(self, now: Instant) -> None:
        """Submit what is due."""


class Seat:
    """One machine and its part of the world."""

    __slots__ = ("_stalled_turns", "carrier", "consumer", "journal", "machine", "producer", "reporter", "weather")

    def __init__(
        self,
        machine: Machine,
        carrier: Carrier,
        *,
        weather: InjectedWeather | None = None,
        journal: Journal | None = None,
        producer: Producer | None = None,
        consumer: Callable[[Deliver], None] | None = None,
        reporter: Callable[[Report], None] | None = None,
    ) -> None:
        self.machine = machine
        self.carrier = carrier
        self.weather = weather
        self.journal = journal
        self.producer = producer
        self.consumer = consumer
        self.reporter = reporter
        self._stalled_turns = 0

    def deadline(self) -> Instant:
        """The earliest of all deadlines in this seat."""
        earliest = NEVER
        for timed in (self.machine, self.weather, self.journal, self.producer):
            if timed is not None:
                wanted_at = timed.deadline()
                if wanted_at is not None and wanted_at < earliest:
                    earliest = wanted_at
        return earliest

    def turn(self, ready: Collection[int], now: Instant, *, gathers: bool = False) -> bool:
        """Take what arrived, do what is due, and carry out what the machine asks for; whether it asked for anything.

        A driver that `gathers` is not told of data, so it is looked for in every turn.
        """
        arrived = self._listen(ready, now, gathers=gathers)
        if arrived:
            self.machine.receive_all(arrived, now)
        if self.producer is not None and _is_due(self.producer, now):
            self.producer.wake(now)
        wanted_at = self.machine.deadline()
        woken = wanted_at is not None and wanted_at <= now
        if woken:
            self.machine.wake(now)
        acted = self._act(now)
        if self.journal is not None and _is_due(self.journal, now):
            self.journal.wake(now)
        self._expect_movement(stalled=woken and not (arrived or acted) and self.machine.deadline() == wanted_at)
        return acted

    def close(self) -> None:
        """Close the carrier, and the journal if there is one."""
        self.carrier.close()
        if self.journal is not None:
            self.journal.close()

    def _listen(self, ready: Collection[int], now: Instant, *, gathers: bool) -> list[bytes]:
        """Read control before data, hand over data before control."""
        carrier, weather = self.carrier, self.weather
        after = _read(carrier.control, ready)
        # Behind a control datagram there may be data that arrived since the wait ended: look, whatever it said.
        arrived = _read(carrier.data, None if after or gathers else ready)
        arrived += after
        if weather is None:
            return arrived
        due = weather.due(now)
        due += weather.admit(arrived, now)
        return due

    def _act(self, now: Instant) -> bool:
        """Drain until the machine is silent, for a consumer may have given it new work; whether there was any."""
        for drains in range(DRAINS_MAX):
            effects = self.machine.drain()
            if not effects:
                return drains > 0
            for effect in effects:
                self._carry_out(effect, now)
        return True  # the rest waits for the next turn, so that sockets and timers get theirs

    def _carry_out(self, effect: Effect, now: Instant) -> None:
        match effect:
            case Multicast():
                self.carrier.multicast(effect.channel, effect.datagrams)
            case Send():
                self.carrier.send(effect.to, effect.datagrams)
            case Append():
                if self.journal is not None:
                    self.journal.append(effect.ordered, now)
            case Deliver():
                if self.journal is not None:
                    self.journal.release(effect.release, now)
                if self.consumer is not None:
                    self.consumer(effect)
            case Report():
                if self.reporter is not None:
                    self.reporter(effect)

    def _expect_movement(self, *, stalled: bool) -> None:
        self._stalled_turns = self._stalled_turns + 1 if stalled else 0
        assert self._stalled_turns < STALLED_TURNS_MAX, (
            f"{type(self.machine).__name__} asks to be woken at {self.machine.deadline()} and does nothing"
        )


class Driver:
    """Runs the seats of one process."""

    def __init__(
        self, seats: Sequence[Seat], clock: Clock, *, spin_period: Duration = 0, gather_period: Duration = 0
    ) -> None:
        """With a `spin_period` the driver polls instead of sleeping when a deadline is that near: exact, and hot.

        With a `gather_period` data wakes nobody for that long after the last turn. Nobody is in a hurry for it: it is
        read in every turn, so before the site acknowledges and before it hears what an acknowledgment names.
        """
        self._seats = tuple(seats)
        self._clock = clock
        self._spin_period = spin_period
        self._gather_period = gather_period
        self._stopping = False
        self._acted = True  # a consumer may have given any seat new work: then the next wait is only a look
        self._wakened, self._waker = socket.socketpair()
        self._wakened.settimeout(0)
        self._waker.settimeout(0)
        self._urgent = [self._wakened.fileno()]
        for seat in self._seats:
            self._urgent += [each.fd for each in seat.carrier.control]
        self._watched = self._urgent + [each.fd for seat in self._seats for each in seat.carrier.data]
        highest = max(self._watched)
        if highest >= WATCHED_MAX:
            self._wakened.close()
            self._waker.close()
            raise Complaint(
                f"sockets of this process are numbered up to {highest}; they must stay below {WATCHED_MAX}: run fewer"
                " sites in one process"
            )

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Turn until the condition holds (`event.is_set` will do), `stop` is called, or SIGINT or SIGTERM comes.

        The condition is looked at before every turn, at least once in each housekeeping period. A driver that was
        stopped stays stopped.
        """
        _refuse_timer_slack()
        with _signals_calling(self.stop, self._waker.fileno()):
            while not self._stopping and not (until is not None and until()):
                self.turn()

    def turn(self) -> None:
        """Wait for the first datagram or deadline, then let every seat take its turn, at one reading of the clock each.

        A reading for all seats would date the releases of the last one by the time the first one began.
        """
        ready = self._wait()
        self._acted = False
        for seat in self._seats:
            self._acted |= seat.turn(ready, self._clock.now(), gathers=self._gather_period > 0)

    def nudge(self) -> None:
        """End the present wait. May be called from any thread, after giving a producer something to do."""
        with suppress(BlockingIOError):  # full of nudges that have not been heard yet
            self._waker.send(b"\0")

    def stop(self) -> None:
        """End `run` after the present turn. May be called from any thread."""
        self._stopping = True
        self.nudge()

    def close(self) -> None:
        """Close every seat, even where the journal of another one fails to, and what the driver itself holds."""
        with ExitStack() as closing:
            closing.enter_context(self._wakened)
            closing.enter_context(self._waker)
            for seat in self._seats:
                closing.callback(seat.close)

    def _wait(self) -> Collection[int]:
        """Wait until something arrives or falls due; a long wait is cut a little short and finished by a second one."""
        left = self._time_left()
        if self._gather_period:
            ready, _, _ = select.select(self._urgent, (), (), min(left, self._gather_period) / SECOND)
            if ready or left <= self._gather_period:
                return self._heard(ready)
            left = self._time_left()
        if left > _ROUGH_WAIT_MIN:
            ready, _, _ = select.select(self._watched, (), (), (left - (left >> _ROUGH_SHIFT)) / SECOND)
            if ready:
                return self._heard(ready)
            left = self._time_left()
        ready, _, _ = select.select(self._watched, (), (), left / SECOND)
        return self._heard(ready)

    def _time_left(self) -> Duration:
        """Until the earliest deadline; nothing where one seat may have given another something to do."""
        if self._acted and len(self._seats) > 1:
            return 0
        deadline = min((seat.deadline() for seat in self._seats), default=NEVER)
        left = min(deadline - self._clock.now(), HOUSEKEEPING_PERIOD) - self._spin_period
        return max(left, 0)

    def _heard(self, ready: list[int]) -> Collection[int]:
        if ready and self._wakened.fileno() in ready:
            with suppress(BlockingIOError):
                self._wakened.recv(4_096)
        return ready


class _Timed(Protocol):
    def deadline(self) -> Instant | None: ...


def _is_due(timed: _Timed, now: Instant) -> bool:
    wanted_at = timed.deadline()
    return wanted_at is not None and wanted_at <= now


def _read(sockets: Sequence[UdpSocket], ready: Collection[int] | None) -> list[bytes]:
    """What has arrived on those that are ready; on all of them where `ready` is None."""
    datagrams: list[bytes] = []
    for each in sockets:
        if ready is None or each.fd in ready:
            datagrams += each.receive(DATAGRAMS_MAX)
    return datagrams


def spare_the_collector() -> None:
    """Let the garbage collector come seldom, in a process that does nothing but drive.

    No cycle is made in the path of a datagram, so there is little to find, and a search in the middle of a token makes
    it late. What exists now is never searched again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER)


def run_in_real_time() -> bool:
    """Ask the kernel to prefer this process to ordinary ones, as the releases of a site deserve; whether it does.

    It needs a privilege (CAP_SYS_NICE). Processes in real time take turns, and the kernel keeps a share for the others.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except OSError:
        return False
    return True


def may_run_in_real_time() -> bool:
    """Whether `run_in_real_time` would be granted; nothing changes by asking."""
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    granted = run_in_real_time()
    if granted:
        os.sched_setscheduler(0, before, parameters)
    return granted


def _refuse_timer_slack() -> None:
    """Ask that timers of this thread not be put off to be served together; where that fails, waits are less exact."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)


@contextmanager
def _signals_calling(stop: Callable[[], None], waker: int) -> Iterator[None]:
    """While it lasts, SIGINT and SIGTERM stop the driver. Only the main thread of a program hears signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop()

    # The descriptor ends a wait that has begun between the signal and the moment Python calls its handler.
    previous_waker = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    previous = {number: signal.signal(number, on_signal) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(previous_waker)
