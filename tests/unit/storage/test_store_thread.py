"""The thread of a store: never blocks the caller, answers in order, rejects when full, and hides no bug."""

import threading

import pytest

from fairtape.core.formation_log import (
    Claim,
    Claimed,
    Leadership,
    Recall,
    Recalled,
    StoreRequest,
    StoreResponse,
    Unavailable,
)
from fairtape.simulation.simulated_store import MemoryFormationStore
from fairtape.storage.formation_stores import REQUESTS_MAX, StoreThread

PATIENCE = 60.0
LEADER = Leadership(1, 1, 0)


class GatedStore(MemoryFormationStore):
    """A store that answers only after `opened` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()
        self.closed = False

    def answer(self, request: StoreRequest) -> StoreResponse:
        assert self.opened.wait(PATIENCE)
        return super().answer(request)

    def close(self) -> None:
        self.closed = True


class Notifier:
    """Counts calls and lets a test wait for one."""

    def __init__(self) -> None:
        self.calls = threading.Semaphore(0)

    def __call__(self) -> None:
        self.calls.release()

    def wait(self) -> None:
        assert self.calls.acquire(timeout=PATIENCE)


def test_a_request_returns_at_once_and_its_answer_is_notified() -> None:
    store, notifier = GatedStore(), Notifier()
    thread = StoreThread(store, notifier)
    thread.ask(Claim(None, LEADER))
    thread.ask(Recall())
    assert thread.answers() == []
    store.opened.set()
    notifier.wait()
    notifier.wait()
    assert thread.answers() == [Claimed(LEADER), Recalled(LEADER, ())]
    assert thread.answers() == []
    thread.close()
    assert store.closed


def test_a_full_thread_rejects_requests_with_an_answer() -> None:
    store, notifier = GatedStore(), Notifier()
    thread = StoreThread(store, notifier)
    for _ in range(REQUESTS_MAX):
        thread.ask(Recall())
    thread.ask(Claim(None, LEADER))
    notifier.wait()
    assert thread.answers() == [Unavailable(Claim(None, LEADER))]
    store.opened.set()
    for _ in range(REQUESTS_MAX):
        notifier.wait()
    assert thread.answers() == [Recalled(None, ())] * REQUESTS_MAX
    thread.ask(Recall())
    notifier.wait()
    assert thread.answers() == [Recalled(None, ())]
    thread.close()


def test_a_closed_thread_drops_waiting_requests_without_notification() -> None:
    store = GatedStore()
    thread = StoreThread(store, Notifier())
    thread.ask(Claim(None, LEADER))
    thread.ask(Claim(LEADER, Leadership(1, 1, 1)))
    store.opened.set()
    thread.close()
    assert store.closed
    assert thread.answers() == []


def test_a_bug_of_a_store_is_raised_where_the_answers_are_collected() -> None:
    class Broken(MemoryFormationStore):
        def answer(self, request: StoreRequest) -> StoreResponse:
            raise AssertionError(f"a bug about {request}")

    notifier = Notifier()
    thread = StoreThread(Broken(), notifier)
    thread.ask(Recall())
    notifier.wait()
    with pytest.raises(AssertionError, match="a bug about"):
        thread.answers()
    thread.close()
