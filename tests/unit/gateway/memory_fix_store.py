"""A FIX store in memory, for sessions of tests."""

from collections import OrderedDict
from collections.abc import Iterable

from fairtape.gateway.storage.fix_store import MESSAGES_MAX


class MemoryFixStore:
    """Forgets everything with the process."""

    def __init__(self, *, messages_max: int = MESSAGES_MAX) -> None:
        self._messages_max = messages_max
        self.reset()

    @property
    def next_in(self) -> int:
        return self._next_in

    @property
    def next_out(self) -> int:
        return self._next_out

    def expect(self, number: int) -> None:
        self._next_in = number

    def sent(self, octets: bytes | None) -> None:
        if octets is not None:
            self._messages[self._next_out] = octets
            if len(self._messages) > self._messages_max:
                self._messages.popitem(last=False)
        self._next_out += 1

    def kept(self, first: int, last: int) -> Iterable[tuple[int, bytes]]:
        return [(number, octets) for number, octets in self._messages.items() if first <= number <= last]

    def reset(self) -> None:
        self._next_in = self._next_out = 1
        self._messages: OrderedDict[int, bytes] = OrderedDict()
