"""The processes of a benchmark: started together, begun at one instant, heard out, and never left behind."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from fairtape.runtime.complaints import Complaint

ANSWER_WAIT_MAX = 60.0  # seconds beyond the length of the run

Task = tuple[Callable[..., None], tuple[Any, ...]]


class Crew:
    """Child processes, each with a pipe."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        context = multiprocessing.get_context("spawn")
        self._members: list[tuple[BaseProcess, Connection]] = []
        for task, arguments in tasks:
            ours, theirs = context.Pipe()
            process = context.Process(target=task, args=(theirs, *arguments), daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, ours))

    def __len__(self) -> int:
        return len(self._members)

    def hear(self, member: int, wait_max: float = ANSWER_WAIT_MAX) -> Any:
        """What one member says next."""
        process, pipe = self._members[member]
        try:
            if pipe.poll(wait_max):
                return pipe.recv()
        except EOFError:
            pass
        raise Complaint(f"a process of the benchmark ({process.name}) gave no answer within {wait_max:.0f} s")

    def hear_all(self, wait_max: float = ANSWER_WAIT_MAX) -> list[Any]:
        """What each member says next."""
        return [self.hear(member, wait_max) for member in range(len(self))]

    def tell(self, member: int, word: object) -> None:
        """Say something to one member."""
        self._members[member][1].send(word)

    def tell_all(self, word: object) -> None:
        """Say something to everyone."""
        for member in range(len(self)):
            self.tell(member, word)

    def dismiss(self) -> None:
        """End whatever still runs."""
        for process, pipe in self._members:
            pipe.close()
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


@contextmanager
def crew(tasks: Iterable[Task]) -> Iterator[Crew]:
    """A crew that is gone afterwards, whatever happened."""
    members = Crew(tasks)
    try:
        yield members
    finally:
        members.dismiss()
