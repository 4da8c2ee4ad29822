"""What a FIX session must remember: its two numbers, and what it sent.

A session lives longer than its connections, and should live longer than its process. The session calls its store within
a turn; the driver makes the store durable before it writes to the network, so a number that was seen outside is never
used again for something else.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Protocol

MESSAGES_MAX: Final = 65_536  # sent messages that are kept to be sent again; a gap fill stands for older ones


class FixStore(Protocol):
    """The memory of one session."""

    @property
    def next_in(self) -> int:
        """The number that is expected from the other side."""

    @property
    def next_out(self) -> int:
        """The number of the next message that is sent."""

    def expect(self, number: int) -> None:
        """From now on this number is expected."""

    def sent(self, octets: bytes | None) -> None:
        """The next number is used: for a message that may be asked for again, or (None) for one of the session's."""

    def kept(self, first: int, last: int) -> Iterable[tuple[int, bytes]]:
        """The messages with these numbers that may still be sent again, in their order."""

    def reset(self) -> None:
        """Forget everything: both sides begin at 1."""


class MemoryFixStore:
    """A memory that ends with the process: for tests, and for sessions that are reset at every logon."""

    def __init__(self, *, messages_max: int = MESSAGES_MAX) -> None:
        self._messages_max = messages_max
        self.reset()

    @property
    def next_in(self) -> int:
        """The number that is expected from the other side."""
        return self._next_in

    @property
    def next_out(self) -> int:
        """The number of the next message that is sent."""
        return self._next_out

    def expect(self, number: int) -> None:
        """From now on this number is expected."""
        self._next_in = number

    def sent(self, octets: bytes | None) -> None:
        """The next number is used."""
        if octets is not None:
            self._messages[self._next_out] = octets
            if len(self._messages) > self._messages_max:
                self._messages.popitem(last=False)
        self._next_out += 1

    def kept(self, first: int, last: int) -> Iterable[tuple[int, bytes]]:
        """The messages with these numbers that may still be sent again, in their order."""
        return [(number, octets) for number, octets in self._messages.items() if first <= number <= last]

    def reset(self) -> None:
        """Forget everything: both sides begin at 1."""
        self._next_in = self._next_out = 1
        self._messages: OrderedDict[int, bytes] = OrderedDict()
