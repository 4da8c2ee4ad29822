"""The store of a FIX session: its two numbers, and the messages it sent.

A session outlives its connections, and should outlive its process. The session calls its store within a turn; the
driver makes the store durable before it writes to the network, so a number that was seen outside is never used again
for another message.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Protocol

MESSAGES_MAX: Final = 65_536  # sent messages kept for resending; a gap fill replaces older ones


class FixStore(Protocol):
    """The persistent state of one session."""

    @property
    def next_in(self) -> int:
        """The number expected from the other side."""

    @property
    def next_out(self) -> int:
        """The number of the next message to send."""

    def expect(self, number: int) -> None:
        """Set the number expected next."""

    def sent(self, octets: bytes | None) -> None:
        """Use the next number: for a message that may be resent, or (None) for a session message."""

    def kept(self, first: int, last: int) -> Iterable[tuple[int, bytes]]:
        """The stored messages with these numbers, in order."""

    def reset(self) -> None:
        """Forget everything: both sides start at 1."""


class MemoryFixStore:
    """A store in memory: for tests, and for sessions that are reset at every logon."""

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
