"""The one contract between a machine and whatever drives it.

A machine does no input or output. Equal inputs in equal order give equal effects: the UDP driver and the simulated
world turn the very same objects, so production never runs code that the simulator has not run.

The sender of a datagram is not an argument: it is named in the header and proved by the seal or the authenticator,
and a network address proves nothing.
"""

from collections.abc import Sequence
from typing import Protocol

from fairtape.core.effects import Effect, Recovered
from fairtape.core.formation_log import StoreResponse
from fairtape.core.instants import Instant


class Machine(Protocol):
    """Sans I/O. Equal inputs in equal order give equal effects."""

    def receive(self, datagram: bytes, now: Instant) -> None:
        """Take one datagram as it came from the network. Never raises, whatever the bytes."""

    def receive_all(self, datagrams: Sequence[bytes], now: Instant) -> None:
        """Take what one turn brought: the same as `receive` for each, in this order."""

    def wake(self, now: Instant) -> None:
        """Do what has fallen due. Called at or after `deadline()`; calling it early changes nothing."""

    def deadline(self) -> Instant | None:
        """When `wake` is wanted next: the minimum of all timers, so the outside keeps exactly one."""

    def drain(self) -> list[Effect]:
        """The effects since the last call, in the order in which they must be carried out."""


class JournalMachine(Machine, Protocol):
    """A machine that has a journal, and hears what it asks of it."""

    def fetched(self, ticket: int, entries: Sequence[bytes], now: Instant) -> None:
        """What the journal holds: the answer to the `Fetch` of this ticket."""

    def recovered(self, past: Recovered, now: Instant) -> None:
        """What is left of the journal: the answer to a `Cut`."""


class StoreMachine(Machine, Protocol):
    """A machine that asks the formation store."""

    def answered(self, answer: StoreResponse, now: Instant) -> None:
        """What the store says: the answer to the `Consult` under way."""
