"""The interface of a formation store, its identity, the rule about numbers, and a thread that runs a store."""

import secrets
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from fairtape.core.formation_log import STORE_BITS, LogEntry, StoreRequest, StoreResponse, Unavailable

TIMEOUT: Final = 1.0  # seconds before a locked file or a silent endpoint counts as unavailable
REQUESTS_MAX: Final = 16  # accepted and not yet collected; a reformation server seldom has two


class FormationStore(Protocol):
    """Shared by all reformation servers. It compares and sets, and has no clock."""

    def answer(self, request: StoreRequest) -> StoreResponse:
        """Carry out the request; blocks. An outside failure is a response (`Unavailable`), never an exception."""

    def probe(self) -> bool:
        """Make a durable write, as slow as a Claim, that changes no response; whether it was carried out."""

    def close(self) -> None:
        """Close the file or the connections. No request may follow."""


def new_identity() -> int:
    """A random identity for a store that is being made (decision 63, One store). Never 0."""
    return 1 + secrets.randbelow((1 << STORE_BITS) - 1)


def numbers_increase(entries: tuple[LogEntry, ...], numbers: Mapping[int, int]) -> bool:
    """Whether each entry has a number above the last of its loop, given the last number of every loop in the log.

    Numbers may be skipped, so that a ring can continue with an empty store, or one that was restored from a backup.
    """
    last = dict(numbers)
    for entry in entries:
        if entry.number <= last.get(entry.loop, entry.number - 1):
            return False
        last[entry.loop] = entry.number
    return True


class StoreThread:
    """One worker thread that carries out requests in order, so that a driver never waits for a store."""

    def __init__(self, store: FormationStore, on_answer: Callable[[], None]) -> None:
        """`on_answer` is called on the worker's thread as soon as there is a response to collect."""
        self._store = store
        self._on_answer = on_answer
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._accepted: deque[Future[StoreResponse]] = deque()
        self._rejected: list[StoreResponse] = []  # bounded: a driver collects in every step

    def ask(self, request: StoreRequest) -> None:
        """Accept a request. If too many are outstanding it is rejected: the response is `Unavailable`."""
        if len(self._accepted) >= REQUESTS_MAX:
            self._rejected.append(Unavailable(request))
            self._on_answer()
            return
        future = self._worker.submit(self._store.answer, request)
        self._accepted.append(future)
        future.add_done_callback(self._notify)

    def answers(self) -> list[StoreResponse]:
        """Every response since the last call. An exception of the store, which would be a bug, is raised here."""
        answers, self._rejected = self._rejected, []
        while self._accepted and self._accepted[0].done():
            answers.append(self._accepted.popleft().result())
        return answers

    def close(self) -> None:
        """Finish the current request, drop the others and close the store. `on_answer` is not called afterwards."""
        self._worker.shutdown(cancel_futures=True)
        self._accepted.clear()
        self._store.close()

    def _notify(self, future: Future[StoreResponse]) -> None:
        if not future.cancelled():
            self._on_answer()
