"""A desk before a store: questions are taken at once and answered later, so a driver with one thread never waits."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from fairtape.core.formation_log import StoreRequest, StoreResponse, Unavailable
from fairtape.storage.formation_stores.contract import FormationStore

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
