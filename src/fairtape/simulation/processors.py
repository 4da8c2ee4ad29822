"""Simulated processors: turns take time, several nodes share a core, and other programs compete for it.

Without a processor a turn of a node takes no time: it acts at one instant on everything that has arrived. A node that
is placed on a processor acts only when it is served. Until then datagrams collect in its sockets, and its deadlines
pass. So overload is a fault like any other: it is drawn from the seed, and it happens before it is handled.

A processor serves one task at a time, in the order in which they became ready, and never interrupts a turn. A turn is
a generator: it yields how long it needs the processor and goes on after that time, so what it does happens at the
simulated instant that it has reached. Two things compete with the nodes. A busy program takes slices in its turn. A
stall stops the whole processor, as when a virtual machine is paused: it also prolongs the turn that is running.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from random import Random
from typing import Final, Protocol

from fairtape.core.instants import MICROSECOND, Duration, Instant
from fairtape.net.node_runtime import Producer
from fairtape.net.read_rate import ReadRate
from fairtape.wire.frames import is_block

KIB: Final = 1 << 10
TASKS_MAX: Final = 64  # on one processor
CALLS_MAX: Final = 1_000  # of applications and stores, that wait for the next turn of one node
SOCKET_MAX: Final = 4 << 20  # bytes: what nodes request from the kernel
DATAGRAM_OVERHEAD: Final = 512  # bytes of a socket's limit that a datagram takes besides its own, as in Linux

SLICE_MAX: Final = 48 * KIB  # bytes that a node reads of one socket in one turn: a train of 32 full datagrams
SLICE_UNBOUNDED: Final = 1 << 40  # a node that empties its sockets in one turn, however long that takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """How long the work of a node takes."""

    turn: Duration  # to be scheduled, to poll the sockets and to read the clock
    datagram: Duration  # to read and check one datagram
    kib_received: Duration  # to open, store and order 1,024 bytes of it
    kib_sent: Duration  # to seal 1,024 bytes and send them
    message: Duration  # to hand one message to the application
    append: Duration  # to write Msg(e) to the journal

    def __post_init__(self) -> None:
        assert self.turn > 0, f"turn is {self.turn} ns; it must be above 0, or time would stand still"
        for field in fields(self):
            value = getattr(self, field.name)
            assert value >= 0, f"{field.name} is {value} ns; it must not be negative"

    def receiving(self, count: int, size: int) -> Duration:
        """For `count` datagrams of `size` bytes together."""
        return count * self.datagram + size * self.kib_received // KIB

    def sending(self, size: int) -> Duration:
        return size * self.kib_sent // KIB

    def scaled(self, *, work: float, data: float) -> "Costs":
        """The work on turns, datagrams and appends costs `work` times as much, and the work on data `data` times."""
        return Costs(
            turn=max(int(self.turn * work), 1),
            datagram=int(self.datagram * work),
            append=int(self.append * work),
            kib_received=int(self.kib_received * data),
            kib_sent=int(self.kib_sent * data),
            message=int(self.message * data),
        )

    @classmethod
    def draw(cls, chance: Random) -> "Costs":
        """From a fast server to a small virtual machine with an application in its process.

        Measured on a fast one: 4.5 µs for a block of 1,400 bytes, 100 to 300 µs for a token.
        """
        speed = chance.uniform(1.0, 2.5)  # of one machine: what is slow there is slow in every respect

        def between(low: int, high: int) -> Duration:
            return int(chance.uniform(low, high) * speed)

        return cls(
            turn=between(12 * MICROSECOND, 25 * MICROSECOND),
            datagram=between(2 * MICROSECOND, 8 * MICROSECOND),
            kib_received=between(2_500, 4_000),
            kib_sent=between(1_500, 3_000),
            message=between(500, 4_000),
            append=between(25 * MICROSECOND, 60 * MICROSECOND),
        )


class Timeline(Protocol):
    """Virtual time, as the world keeps it."""

    now: Instant

    def at(self, instant: Instant, plan: Callable[[], None], /) -> None:
        """Call `plan` at a true instant."""


class Task(Protocol):
    """Something that needs a processor from time to time."""

    def turn(self) -> Iterator[Duration]:
        """One turn: yields each period for which it needs the processor, and acts between them."""

    def turn_ended(self) -> bool:
        """Whether it is ready for its next turn at once."""


class Processor:
    """One core: serves its tasks in the order in which they became ready, one turn at a time."""

    def __init__(self, timeline: Timeline) -> None:
        self.busy: Duration = 0  # the time of all turns, without stalls
        self.stalled: Duration = 0  # the time of all stalls
        self._timeline = timeline
        self._queue: deque[Task] = deque()
        self._running: Task | None = None
        self._turn: Iterator[Duration] = iter(())
        self._stolen: Duration = 0  # of the running turn, by stalls
        self._serial = 0  # of the running turn: a dropped one never goes on

    def ready(self, task: Task) -> None:
        """Queue a task for its next turn. One that is queued or running stays where it is."""
        if task is self._running or task in self._queue:
            return
        assert len(self._queue) < TASKS_MAX, f"{len(self._queue)} tasks wait for one processor"
        self._queue.append(task)
        if self._running is None:
            self._serve_next()

    def drop(self, task: Task) -> None:
        """Remove a task: its turn ends where it is."""
        if task in self._queue:
            self._queue.remove(task)
        if task is self._running:
            self._running = None
            self._serve_next()

    def stall(self, period: Duration) -> None:
        """Nothing runs here for this period."""
        self.stalled += period
        if self._running is None:
            self._begin(_Stall(period))
        else:
            self._stolen += period

    def _serve_next(self) -> None:
        if self._queue:
            self._begin(self._queue.popleft())

    def _begin(self, task: Task) -> None:
        self._running = task
        self._turn = task.turn()
        self._stolen = 0
        self._serial += 1
        self._go_on(self._serial)

    def _go_on(self, serial: int) -> None:
        """Continue the running turn until it needs the processor for some time, or ends."""
        if serial != self._serial or self._running is None:
            return
        if self._stolen:
            self._wait(self._stolen)
            self._stolen = 0
            return
        for period in self._turn:
            if serial != self._serial or self._running is None:
                return  # dropped by what it did
            if period:
                self.busy += 0 if isinstance(self._running, _Stall) else period
                self._wait(period)
                return
        task, self._running = self._running, None
        if task is not None and task.turn_ended():
            self._queue.append(task)
        self._serve_next()

    def _wait(self, period: Duration) -> None:
        self._timeline.at(self._timeline.now + period, partial(self._go_on, self._serial))


class _Stall:
    """A stall of an idle processor."""

    def __init__(self, period: Duration) -> None:
        self._period = period

    def turn(self) -> Iterator[Duration]:
        yield self._period

    def turn_ended(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompetingLoad:
    """What other programs take of one processor."""

    processor: int
    busy_slice: Duration = 0  # of a busy program; 0: there is none
    busy_share: float = 0.0  # of the time
    stalls: tuple[tuple[Instant, Duration], ...] = ()  # when the whole processor stops, and for how long


class BusyProgram:
    """Another program: takes its slice when its turn comes, and sleeps so that it gets its share of the time."""

    def __init__(
        self, timeline: Timeline, processor: Processor, *, busy_slice: Duration, share: float, ends_at: Instant
    ) -> None:
        assert 0 < share < 1, f"share is {share}; it must be between 0 and 1"
        self._timeline = timeline
        self._processor = processor
        self._slice = busy_slice
        self._sleep = int(busy_slice * (1 / share - 1))
        self._ends_at = ends_at

    def start(self) -> None:
        if self._timeline.now < self._ends_at:
            self._processor.ready(self)

    def turn(self) -> Iterator[Duration]:
        yield self._slice

    def turn_ended(self) -> bool:
        self._timeline.at(self._timeline.now + self._sleep, self.start)
        return False


def start_load(timeline: Timeline, processor: Processor, load: CompetingLoad, ends_at: Instant) -> None:
    """Schedule the competing load of one processor."""
    if load.busy_slice:
        BusyProgram(timeline, processor, busy_slice=load.busy_slice, share=load.busy_share, ends_at=ends_at).start()
    for at, period in load.stalls:
        timeline.at(at, partial(processor.stall, period))


class SocketBuffer:
    """The datagrams that have arrived at one socket. Beyond its limit they are lost and counted."""

    __slots__ = ("_datagrams", "_size", "_size_max", "lost")

    def __init__(self, size_max: int) -> None:
        self.lost = 0
        self._datagrams: deque[bytes] = deque()
        self._size = 0
        self._size_max = size_max

    def __len__(self) -> int:
        return len(self._datagrams)

    @property
    def waiting(self) -> int:
        """The bytes that wait, without the overhead of the kernel."""
        return self._size - DATAGRAM_OVERHEAD * len(self._datagrams)

    def put(self, datagram: bytes) -> None:
        size = len(datagram) + DATAGRAM_OVERHEAD
        if self._size + size > self._size_max:
            self.lost += 1
            return
        self._size += size
        self._datagrams.append(datagram)

    def take(self, size_max: int) -> list[bytes]:
        """The datagrams that arrived first, up to `size_max` bytes together, but at least one."""
        taken: list[bytes] = []
        while self._datagrams and (not taken or len(self._datagrams[0]) <= size_max):
            datagram = self._datagrams.popleft()
            size_max -= len(datagram)
            self._size -= len(datagram) + DATAGRAM_OVERHEAD
            taken.append(datagram)
        return taken

    def clear(self) -> None:
        self._datagrams.clear()
        self._size = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a node runs, and within which limits."""

    processor: Processor
    costs: Costs
    socket_max: int = SOCKET_MAX  # bytes that wait in each of its two sockets
    slice_max: int = SLICE_MAX  # bytes that it reads of each socket in one turn
    producer: Producer | None = None  # gives its machine work in its own turns


class PlacedNode:
    """A node on a processor: what waits for its next turn, and since when."""

    def __init__(
        self, placement: Placement, *, turn: Callable[[], Iterator[Duration]], turn_ended: Callable[[], bool]
    ) -> None:
        self.placement = placement
        self.data = SocketBuffer(placement.socket_max)
        self.control = SocketBuffer(placement.socket_max)
        self.calls: deque[Callable[[Instant], None]] = deque()
        self.began_at: Instant = 0  # the current or last turn
        self.due_since: Instant = 0  # the earliest instant since which something may have waited for this turn
        self.idle_turns = 0  # in a row, without any input or effect
        self.read_rate = ReadRate()
        self._taken = 0  # bytes, in the current turn
        self._busy_since: Instant = 0  # the end of the last turn, if something waited then; else the begin of this one
        self._idle = True
        self._waits_since: Instant = 0
        self._turn = turn
        self._turn_ended = turn_ended

    @property
    def lost(self) -> int:
        """The datagrams that found a socket full."""
        return self.data.lost + self.control.lost

    @property
    def has_input(self) -> bool:
        return bool(self.data) or bool(self.control) or bool(self.calls)

    def arrived(self, datagram: bytes) -> None:
        (self.data if is_block(datagram) else self.control).put(datagram)

    def call(self, act: Callable[[Instant], None]) -> None:
        """Call this in the next turn."""
        assert len(self.calls) < CALLS_MAX, f"{len(self.calls)} calls wait for one node"
        self.calls.append(act)

    def take_slice(self) -> list[bytes]:
        """Data before control, as the driver hands it over: no acknowledgment overtakes the blocks that it names."""
        blocks = self.data.take(self.placement.slice_max)
        self._taken = sum(map(len, blocks))
        return blocks + self.control.take(self.placement.slice_max)

    def ready(self, now: Instant) -> None:
        """Queue for a turn."""
        if self._idle:
            self._idle = False
            self._waits_since = now
        self.placement.processor.ready(self)

    def stop(self) -> None:
        """Lose what waits and give up the processor: the node has crashed."""
        self.data.clear()
        self.control.clear()
        self.calls.clear()
        self._idle = True
        self.placement.processor.drop(self)

    def begin(self, now: Instant) -> None:
        """A turn begins. What became due in the last turn, after it had looked, has waited since that one began."""
        self.due_since, self.began_at = self._waits_since, now
        self._busy_since = self._busy_since or now

    def end(self, now: Instant) -> None:
        """A turn has ended: what it took has kept this node busy since then."""
        self.read_rate.note(self._taken, now - self._busy_since)
        self._taken = 0
        self._busy_since = now if self.data else 0

    def turn(self) -> Iterator[Duration]:
        return self._turn()

    def turn_ended(self) -> bool:
        again = self._turn_ended()
        self._idle = not again
        self._waits_since = self.began_at
        return again
