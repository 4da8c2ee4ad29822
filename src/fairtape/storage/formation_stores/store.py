"""What a formation store is to those who use it, and the one rule that every kind of store keeps about numbers."""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from fairtape.core.formation_log import LogEntry, StoreRequest, StoreResponse, Unavailable

PATIENCE: Final = 1.0  # seconds before a file that is locked, or an endpoint that is silent, counts as unavailable


class FormationStore(Protocol):
    """The place where reformation servers meet. It compares and sets, and has no clock."""

    def answer(self, question: StoreRequest) -> StoreResponse:
        """Carry out the question, however long it takes. Whatever happens outside becomes a value, never an error."""

    def close(self) -> None:
        """Let go of the file or of the connections. Nothing is asked afterwards."""


def follow_on(entries: tuple[LogEntry, ...], numbers: Mapping[int, int]) -> bool:
    """Whether each entry is the next of its loop, given the last number of every loop that has one.

    A loop that the log does not know may begin with any number, so that a ring can go on with an empty store.
    """
    last = dict(numbers)
    for entry in entries:
        if last.get(entry.loop, entry.number - 1) != entry.number - 1:
            return False
        last[entry.loop] = entry.number
    return True


# A desk before a store: questions are taken at once and answered later, so a driver with one thread never waits.

QUESTIONS_MAX: Final = 16  # taken and not yet collected; a reformation server seldom has two


class StoreThread:
    """One worker thread that carries out questions in the order in which they came."""

    def __init__(self, store: FormationStore, nudge: Callable[[], None]) -> None:
        """`nudge` is called from the worker's thread as soon as there is an answer to collect."""
        self._store = store
        self._nudge = nudge
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._taken: deque[Future[StoreResponse]] = deque()
        self._turned_away: list[StoreResponse] = []  # a driver collects in every turn, so it holds what one turn asked

    def ask(self, question: StoreRequest) -> None:
        """Take a question. A desk that is full turns it away: the answer is `Unavailable`, and nothing was done."""
        if len(self._taken) >= QUESTIONS_MAX:
            self._turned_away.append(Unavailable(question))
            self._nudge()
            return
        future = self._worker.submit(self._store.answer, question)
        self._taken.append(future)
        future.add_done_callback(self._tell)

    def answers(self) -> list[StoreResponse]:
        """Every answer since the last call. What a store should never raise is raised here, where somebody sees it."""
        answers, self._turned_away = self._turned_away, []
        while self._taken and self._taken[0].done():
            answers.append(self._taken.popleft().result())
        return answers

    def close(self) -> None:
        """Finish the question in hand, forget the others and close the store. Nobody is nudged afterwards."""
        self._worker.shutdown(cancel_futures=True)
        self._taken.clear()
        self._store.close()

    def _tell(self, future: Future[StoreResponse]) -> None:
        if not future.cancelled():
            self._nudge()
