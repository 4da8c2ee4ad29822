"""Child processes of one command, connected by pipes.

A child runs one function with a `ChildLink` to its parent. The parent decides when a child ends, so SIGINT of the
shared terminal is blocked in children. A child whose parent is gone, for whatever reason, reads the end of its pipe and
ends. Messages to a slow parent may be dropped: no site waits for a screen.

Children are forked from one server that has imported their modules. On a small machine nine sites start in one second
that way, and in five without.
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

START_PERIOD_MAX: Final = 60 * SECOND  # for all interpreters to start on a busy machine
STOP_PERIOD_MAX: Final = 5 * SECOND  # for a child to close its files before it is killed
CHILDREN_MAX: Final = 64

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class Ready:
    """Child to parent: started, and waiting for the first command."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Parent to child: end."""


@dataclass(frozen=True, slots=True)
class ChildFailed:
    """Child to parent: a `UserError` ended the child. The parent raises it again."""

    sentence: str


class ChildExited(Exception):
    """A child ended although it was not stopped."""


class ChildLink:
    """The child's end of the pipe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.stopped = False  # by the parent, or the parent is gone

    def send(self, news: object) -> None:
        """Send, and block until it is sent."""
        with suppress(OSError):
            self._connection.send(news)

    def try_send(self, news: object) -> bool:
        """Send if that does not block; whether it was sent."""
        try:
            if not select.select((), (self._connection,), (), 0)[1]:
                return False
            self._connection.send(news)
        except OSError:
            self.stopped = True
            return False
        return True

    def wait_for(self, kind: type[Message]) -> Message | None:
        """Wait for a command of this type; None when the child is stopped instead."""
        while not self.stopped:
            command = self._take()
            if isinstance(command, kind):
                return command
        return None

    def wait_until_stopped(self) -> None:
        """Wait until the child is stopped. A child that ends earlier counts as failed."""
        while not self.stopped:
            self._take()

    def commands(self) -> Iterator[object]:
        """The commands that have arrived since the last call."""
        while not self.stopped and self._connection.poll():
            command = self._take()
            if command is not None:
                yield command

    def _take(self) -> object | None:
        try:
            command: object = self._connection.recv()
        except (EOFError, OSError):
            command = Stop()
        if isinstance(command, Stop):
            self.stopped = True
            return None
        return command


class Interrupts:
    """Counts SIGINT and SIGTERM. While the context lasts, neither interrupts the process."""

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


Work: TypeAlias = Callable[..., None]  # takes a ChildLink, then the arguments it was started with


class ChildProcesses:
    """The children of one command, by name. Leaving the context stops all of them."""

    def __init__(self, *, imports: Sequence[str] = ()) -> None:
        """`imports` names modules that the fork server imports once for all children."""
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(imports))
        self._children: dict[str, tuple[ForkServerProcess, Connection]] = {}
        self._gone: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str, work: Work, *arguments: Any) -> None:
        """Start a child that runs `work(link, *arguments)`."""
        assert name not in self._children
        assert len(self._children) < CHILDREN_MAX
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_run, args=(work, theirs, arguments), name=f"fairtape {name}")
        with _interrupts_blocked():
            process.start()
        theirs.close()
        self._children[name] = process, ours

    def await_ready(self, names: set[str]) -> None:
        """Wait until these children have started."""
        self.collect(Ready, names, START_PERIOD_MAX)

    def collect(self, kind: type[Message], names: set[str], wait_period_max: Duration) -> dict[str, Message]:
        """Wait until each of these children has sent a message of this type. Raises `UserError` on timeout."""
        give_up_at = time.monotonic_ns() + wait_period_max
        received: dict[str, Message] = {}
        while len(received) < len(names):
            left = give_up_at - time.monotonic_ns()
            if left <= 0:
                raise UserError(
                    f"{len(names) - len(received)} of {len(names)} processes gave no answer within"
                    f" {wait_period_max // SECOND} s; try again when the machine is less busy"
                )
            received |= {name: news for name, news in self.receive(left) if isinstance(news, kind) and name in names}
        return received

    def send(self, name: str, command: object) -> None:
        """Send a command. That a child has exited is noticed by the next `receive`."""
        with suppress(OSError):
            self._children[name][1].send(command)

    def send_all(self, command: object) -> None:
        for name in self._children:
            self.send(name, command)

    def kill(self, name: str) -> None:
        """Kill a child at once, as a power failure would. Its exit is expected from then on."""
        process, _ = self._children[name]
        self._gone.add(name)
        process.kill()

    def receive(self, wait_period: Duration) -> list[tuple[str, object]]:
        """Messages, at most one of each child, as soon as there are any or the period is over.

        Raises the `UserError` that ended a child, and `ChildExited` where one ended without being stopped.
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
                raise ChildExited(f"the process of {name} ended unexpectedly, with {self._exit_text(name)}") from None
            if isinstance(news, ChildFailed):
                self._gone.add(name)
                raise UserError(news.sentence)
            heard.append((name, news))
        return heard

    def stop(self) -> None:
        """Stop all children; kill those that do not end in time."""
        self.send_all(Stop())
        give_up_at = time.monotonic() + STOP_PERIOD_MAX / SECOND
        for process, ours in self._children.values():
            while process.is_alive() and time.monotonic() < give_up_at:
                _drain(ours)  # a child that is sending must not block
                process.join(0.02)
            for end in (process.terminate, process.kill):
                if process.is_alive():
                    end()
                    process.join(1)
            ours.close()
        self._children.clear()

    def _exit_text(self, name: str) -> str:
        process, _ = self._children[name]
        process.join(1)
        return "no exit code" if process.exitcode is None else f"exit code {process.exitcode}"


def _run(work: Work, connection: Connection, arguments: tuple[Any, ...]) -> None:
    """The main function of a child. SIGINT of the terminal is for the parent, which then stops its children."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    link = ChildLink(connection)
    try:
        work(link, *arguments)
    except UserError as error:
        link.send(ChildFailed(str(error)))


def _drain(connection: Connection) -> None:
    with suppress(EOFError, OSError):
        while connection.poll():
            connection.recv_bytes()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT. A child inherits the signal mask, so it never receives SIGINT of the terminal.

    The resource tracker of multiprocessing clears the mask when it starts, so it is started before.
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
