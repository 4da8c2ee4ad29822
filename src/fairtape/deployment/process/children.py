"""Children of a command: started together, spoken with over pipes, and never left behind.

A child runs one function with a `ChildLink` to its parent. The parent decides when it ends, so a child does not hear
the Ctrl-C of the terminal that both share; but a child whose parent is gone, however it went, reads the end of its
pipe and ends by itself. News may be dropped when the parent is slow: no site ever waits for a screen.

Children are forked from one server that has imported what they need, which on a small machine is the difference
between one second and five before nine sites are there.
"""

import multiprocessing
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from types import FrameType
from typing import Any, Final, Self, TypeAlias, TypeVar

from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Duration

START_PERIOD_MAX: Final = 60 * SECOND  # for all interpreters to start, on a machine that is busy with other things
STOP_PERIOD_MAX: Final = 5 * SECOND  # for a child to close its files before it is ended by force
CHILDREN_MAX: Final = 64

Order = TypeVar("Order")


@dataclass(frozen=True, slots=True)
class Ready:
    """The child has started and waits for its first order."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The order to end."""


@dataclass(frozen=True, slots=True)
class ChildFailed:
    """A complaint that ended the child: the parent's user has to hear it."""

    sentence: str


class ParentGone(Exception):
    """A child ended although nobody had asked it to."""


class ChildLink:
    """The child's end of the pipe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.stopped = False  # told to stop, or the parent is gone

    def tell(self, news: object) -> None:
        """Send, and wait until it is sent."""
        with suppress(OSError):
            self._connection.send(news)

    def offer(self, news: object) -> bool:
        """Send if that needs no waiting; whether it was sent."""
        try:
            if not select.select((), (self._connection,), (), 0)[1]:
                return False
            self._connection.send(news)
        except OSError:
            self.stopped = True
            return False
        return True

    def expect(self, kind: type[Order]) -> Order | None:
        """Wait for an order of this kind; None when the child is to end instead."""
        while not self.stopped:
            order = self._take()
            if isinstance(order, kind):
                return order
        return None

    def rest(self) -> None:
        """Wait for the order to end: a child that ends before it would seem to have deserted."""
        while not self.stopped:
            self._take()

    def orders(self) -> Iterator[object]:
        """What has been ordered since the last look."""
        while not self.stopped and self._connection.poll():
            order = self._take()
            if order is not None:
                yield order

    def _take(self) -> object | None:
        try:
            order: object = self._connection.recv()
        except (EOFError, OSError):
            order = Stop()
        if isinstance(order, Stop):
            self.stopped = True
            return None
        return order


class Interrupts:
    """How often the user asked for the end, by Ctrl-C or a polite kill. While it lasts, nothing is torn by either."""

    def __init__(self) -> None:
        self.count = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._add) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _add(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1


Work: TypeAlias = Callable[..., None]  # takes a Link, then the arguments it was started with


class ChildProcesses:
    """The children of one command, by name. Leaving the context ends all of them."""

    def __init__(self, *, imports: Sequence[str] = ()) -> None:
        """`imports` names the modules that the children have in common."""
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(imports))
        self._children: dict[str, tuple[ForkServerProcess, Connection]] = {}
        self._gone: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()

    def start(self, name: str, work: Work, *arguments: Any) -> None:
        """Start a child that runs `work(link, *arguments)`."""
        assert name not in self._children
        assert len(self._children) < CHILDREN_MAX
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_run, args=(work, theirs, arguments), name=f"fairtape {name}")
        with _interrupts_held_back():
            process.start()
        theirs.close()
        self._children[name] = process, ours

    def await_ready(self, names: set[str]) -> None:
        """Wait until these children have started."""
        self.collect(Ready, names, START_PERIOD_MAX)

    def collect(self, kind: type[Order], names: set[str], wait_period_max: Duration) -> dict[str, Order]:
        """Wait until each of these children has told something of this kind."""
        give_up_at = time.monotonic_ns() + wait_period_max
        told: dict[str, Order] = {}
        while len(told) < len(names):
            left = give_up_at - time.monotonic_ns()
            if left <= 0:
                raise UserError(
                    f"{len(names) - len(told)} of {len(names)} processes gave no answer within"
                    f" {wait_period_max // SECOND} s; try again when the machine is less busy"
                )
            told |= {name: news for name, news in self.hear(left) if isinstance(news, kind) and name in names}
        return told

    def tell(self, name: str, order: object) -> None:
        """Give an order. A child that has gone is noticed when it is next listened to."""
        with suppress(OSError):
            self._children[name][1].send(order)

    def tell_all(self, order: object) -> None:
        """Give the same order to everyone."""
        for name in self._children:
            self.tell(name, order)

    def kill(self, name: str) -> None:
        """End a child at once, as a power failure would; nobody is told, and it counts as no desertion."""
        process, _ = self._children[name]
        self._gone.add(name)
        process.kill()

    def hear(self, wait_period: Duration) -> list[tuple[str, object]]:
        """News, at most one from each child, once there is any or the period is over.

        Raises `UserError` with what a child complains of, and `ParentGone` where one ended unasked.
        """
        names = {id(ours): name for name, (_, ours) in self._children.items() if name not in self._gone}
        open_ends = [ours for name, (_, ours) in self._children.items() if name not in self._gone]
        heard = []
        for ready in wait(open_ends, timeout=wait_period / SECOND):
            assert isinstance(ready, Connection)
            name = names[id(ready)]
            try:
                news = ready.recv()
            except (EOFError, OSError):
                self._gone.add(name)
                raise ParentGone(f"the process of {name} ended unasked, with {self._how(name)}") from None
            if isinstance(news, ChildFailed):
                self._gone.add(name)
                raise UserError(news.sentence)
            heard.append((name, news))
        return heard

    def dismiss(self) -> None:
        """Order everyone to stop, and see to it that they do."""
        self.tell_all(Stop())
        give_up_at = time.monotonic() + STOP_PERIOD_MAX / SECOND
        for process, ours in self._children.values():
            while process.is_alive() and time.monotonic() < give_up_at:
                _read_away(ours)  # a child that is telling something must not wait for us
                process.join(0.02)
            for end in (process.terminate, process.kill):
                if process.is_alive():
                    end()
                    process.join(1)
            ours.close()
        self._children.clear()

    def _how(self, name: str) -> str:
        process, _ = self._children[name]
        process.join(1)
        return "no exit code" if process.exitcode is None else f"exit code {process.exitcode}"


def _run(work: Work, connection: Connection, arguments: tuple[Any, ...]) -> None:
    """What a child does. The terminal's Ctrl-C is for the parent alone, which then tells its children."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    link = ChildLink(connection)
    try:
        work(link, *arguments)
    except UserError as complaint:
        link.tell(ChildFailed(str(complaint)))


def _read_away(connection: Connection) -> None:
    with suppress(EOFError, OSError):
        while connection.poll():
            connection.recv_bytes()


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """A child keeps the signal mask under which it was started, so it never hears the terminal's Ctrl-C.

    The tracker of multiprocessing lifts the mask when it starts, so it has to be there before.
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
