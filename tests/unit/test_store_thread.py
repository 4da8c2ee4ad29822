"""The desk before a store: never waits, answers in order, says when it is full, and hides no bug."""

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
from fairtape.simulation.cluster import MemoryFormationStore
from fairtape.storage.formation_stores import REQUESTS_MAX, StoreThread

PATIENCE = 60.0
LEADER = Leadership(1, 1, 0)


class Gate(MemoryFormationStore):
    """A store that answers only while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()
        self.closed = False

    def answer(self, question: StoreRequest) -> StoreResponse:
        assert self.opened.wait(PATIENCE)
        return super().answer(question)

    def close(self) -> None:
        self.closed = True


class Bell:
    """Counts the on_answers and lets a test wait for one."""

    def __init__(self) -> None:
        self.rings = threading.Semaphore(0)

    def __call__(self) -> None:
        self.rings.release()

    def wait(self) -> None:
        assert self.rings.acquire(timeout=PATIENCE)


def test_a_question_returns_at_once_and_its_answer_comes_with_a_on_answer() -> None:
    store, bell = Gate(), Bell()
    desk = StoreThread(store, bell)
    desk.ask(Claim(None, LEADER))
    desk.ask(Recall())
    assert desk.answers() == []
    store.opened.set()
    bell.wait()
    bell.wait()
    assert desk.answers() == [Claimed(LEADER), Recalled(LEADER, ())]
    assert desk.answers() == []
    desk.close()
    assert store.closed


def test_a_full_desk_turns_questions_away_with_an_answer() -> None:
    store, bell = Gate(), Bell()
    desk = StoreThread(store, bell)
    for _ in range(REQUESTS_MAX):
        desk.ask(Recall())
    desk.ask(Claim(None, LEADER))
    bell.wait()
    assert desk.answers() == [Unavailable(Claim(None, LEADER))]
    store.opened.set()
    for _ in range(REQUESTS_MAX):
        bell.wait()
    assert desk.answers() == [Recalled(None, ())] * REQUESTS_MAX
    desk.ask(Recall())
    bell.wait()
    assert desk.answers() == [Recalled(None, ())]
    desk.close()


def test_a_desk_that_closes_forgets_what_was_not_begun_and_on_answers_nobody() -> None:
    store = Gate()
    desk = StoreThread(store, Bell())
    desk.ask(Claim(None, LEADER))
    desk.ask(Claim(LEADER, Leadership(1, 1, 1)))
    store.opened.set()
    desk.close()
    assert store.closed
    assert desk.answers() == []


def test_a_bug_of_a_store_is_raised_where_the_answers_are_collected() -> None:
    class Broken(MemoryFormationStore):
        def answer(self, question: StoreRequest) -> StoreResponse:
            raise AssertionError(f"a bug of ours about {question}")

    bell = Bell()
    desk = StoreThread(Broken(), bell)
    desk.ask(Recall())
    bell.wait()
    with pytest.raises(AssertionError, match="a bug of ours"):
        desk.answers()
    desk.close()
