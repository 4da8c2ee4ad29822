"""Deadlines: the earliest of many timers, found as a search through all of them would find it."""

from hypothesis import given
from hypothesis import strategies as st

from fairtape.core import deadlines as module
from fairtape.core.deadlines import Deadlines
from fairtape.core.instants import Instant

NEVER = 100  # in a test, later than every instant
INSTANTS = st.one_of(st.integers(0, 20), st.just(NEVER))


class Timers:
    """Timers that a test sets, and the deadlines that are looked up."""

    def __init__(self) -> None:
        self.at: dict[int, Instant] = {}
        self.looked_up = 0
        self.deadlines = Deadlines(self._deadline_of)

    def _deadline_of(self, key: int) -> Instant | None:
        self.looked_up += 1
        return None if self.at.get(key, NEVER) == NEVER else self.at[key]

    def set(self, key: int, at: Instant) -> None:
        self.at[key] = at
        self.deadlines.note(key)


@given(st.lists(st.tuples(st.sampled_from(["set", "postpone", "due"]), st.integers(0, 5), INSTANTS), max_size=60))
def test_the_earliest_is_what_a_search_through_all_timers_finds(acts: list[tuple[str, int, Instant]]) -> None:
    timers = Timers()
    for act, key, at in acts:
        if act == "set":
            timers.set(key, at)
        elif act == "postpone":  # not noted
            timers.at[key] = max(timers.at.get(key, NEVER), at)
        elif at < NEVER:
            found = timers.deadlines.due(at)
            assert sorted(found) == sorted(known for known, deadline in timers.at.items() if deadline <= at)
            assert [timers.at[known] for known in found] == sorted(timers.at[known] for known in found)
            for known in found:
                timers.set(known, NEVER)
        earliest = timers.deadlines.earliest()
        assert (NEVER if earliest is None else earliest) == min(timers.at.values(), default=NEVER)


def test_equal_deadlines_are_due_in_turn() -> None:
    timers = Timers()
    for key in (3, 1, 2):
        timers.set(key, 5)
    for _ in range(2):
        found = timers.deadlines.due(5)
        assert found == [3, 1, 2]
        for key in found:
            timers.set(key, 5)


def test_a_postponed_deadline_costs_nothing_until_it_would_have_been_the_earliest() -> None:
    timers = Timers()
    for key in range(100):
        timers.set(key, key + 1)
    timers.looked_up = 0
    for at in range(101, 1_101):
        timers.at[50] = at
        assert timers.deadlines.earliest() == 1
    assert timers.looked_up == 1_000


def test_replaced_entries_do_not_accumulate() -> None:
    timers = Timers()
    timers.set(1, 1)
    for at in range(10_000, NEVER, -1):
        timers.set(2, at)
    assert len(timers.deadlines._heap) <= 2 * 2 + module.REPLACED_MAX
    assert timers.deadlines.due(NEVER + 1) == [1, 2]
