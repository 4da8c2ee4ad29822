"""The state-table interpreter: runs the state machines that the papers draw as figures.

Two rules. A subject changes its state only here, along an edge of its table. After each external event, edges marked
ALWAYS are followed until none applies. So a *test* state is left in the step that enters it, and between events a
subject is always in a *wait* or an *end* state.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Generic, Protocol, TypeVar

STEPS_MAX: Final = 16
"""More steps than this mean that a table has a cycle of test states."""


class Subject(Protocol):
    """An object whose state a table changes."""

    state: IntEnum


S = TypeVar("S", bound=Subject)


@dataclass(frozen=True, slots=True)
class Edge(Generic[S]):
    """One arrow of the figure; `actions` are those that it marks with an asterisk."""

    at: IntEnum
    on: IntEnum
    guard: Callable[[S], bool]
    to: IntEnum
    actions: tuple[Callable[[S], None], ...] = ()


class StateTable(Generic[S]):
    """All arrows of one figure, and an invariant per state that holds on entry."""

    def __init__(
        self, edges: Iterable[Edge[S]], *, always: IntEnum, holds: Mapping[IntEnum, Callable[[S], bool]]
    ) -> None:
        self.edges: Final = tuple(edges)
        self._always = always
        self._holds = dict(holds)
        self._index: dict[tuple[IntEnum, IntEnum], list[Edge[S]]] = {}
        for edge in self.edges:
            self._index.setdefault((edge.at, edge.on), []).append(edge)

    def fire(self, subject: S, event: IntEnum) -> bool:
        """Apply `event` to the subject. False if the figure has no arrow for it: the event is ignored."""
        edge = self._choose(subject, event)
        if edge is None:
            return False
        for _ in range(STEPS_MAX):
            for action in edge.actions:
                action(subject)
            subject.state = edge.to
            invariant = self._holds.get(edge.to)
            assert invariant is None or invariant(subject), f"{edge.to!r} was entered without its invariant"
            following = self._choose(subject, self._always)
            if following is None:
                return True
            edge = following
        raise AssertionError("a table did not reach a wait or an end state")

    def _choose(self, subject: S, event: IntEnum) -> Edge[S] | None:
        for edge in self._index.get((subject.state, event), ()):
            if edge.guard(subject):
                return edge
        return None
