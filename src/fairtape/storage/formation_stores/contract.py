"""What a formation store is to those who use it, and the one rule that every kind of store keeps about numbers."""

from collections.abc import Mapping
from typing import Final, Protocol

from fairtape.core.formation_log import LogEntry, StoreRequest, StoreResponse

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
