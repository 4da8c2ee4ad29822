"""The earliest of many deadlines, at a cost that does not grow with their number.

Every timer knows its own deadline and may change it at any time. Most changes are postponements: what was sent is
acknowledged, and the retransmission is not due any more. So a timer stands in a heap at an instant that is never later
than its deadline, and its deadline is looked up when that instant is the earliest one. A postponement costs nothing
until then. Only a deadline that may have become earlier must be noted.
"""

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Final, Generic, TypeVar

from fairtape.core.instants import Instant

Key = TypeVar("Key", bound=Hashable)

REPLACED_MAX: Final = 64  # entries of the heap that are replaced by earlier ones, beyond as many as there are timers


class Deadlines(Generic[Key]):
    """Finds the timers that are due. Equal deadlines are due in the order in which they were noted."""

    def __init__(self, deadline_of: Callable[[Key], Instant | None]) -> None:
        """`deadline_of` gives the deadline of a timer, if it has one."""
        self._deadline_of = deadline_of
        self._noted: dict[Key, tuple[Instant, int]] = {}  # the entry of each timer in the heap
        self._heap: list[tuple[Instant, int, Key]] = []
        self._tick = count().__next__

    def note(self, key: Key) -> None:
        """The deadline of this timer may be earlier than before. Also to be called after a timer was due."""
        deadline = self._deadline_of(key)
        noted = self._noted.get(key)
        if deadline is None or (noted is not None and noted[0] <= deadline):
            return
        noted = self._noted[key] = deadline, self._tick()
        heappush(self._heap, (*noted, key))
        if len(self._heap) > 2 * len(self._noted) + REPLACED_MAX:
            self._heap[:] = [(*entry, known) for known, entry in self._noted.items()]
            heapify(self._heap)

    def earliest(self) -> Instant | None:
        """The earliest deadline of all timers; None if none has one."""
        heap = self._heap
        while heap:
            at, tick, key = heap[0]
            if self._noted.get(key) == (at, tick):
                deadline = self._deadline_of(key)
                if deadline is not None:
                    if deadline <= at:
                        return deadline
                    postponed = self._noted[key] = deadline, self._tick()
                    heapreplace(heap, (*postponed, key))
                    continue
                del self._noted[key]
            heappop(heap)
        return None

    def due(self, now: Instant) -> list[Key]:
        """The timers whose deadlines have passed, earliest first. They must be noted again."""
        found = []
        while (earliest := self.earliest()) is not None and earliest <= now:
            _, _, key = heappop(self._heap)
            del self._noted[key]
            found.append(key)
        return found
