"""The contract between a machine and its driver.

A machine does no I/O. Equal inputs in equal order give equal effects. The UDP driver and the simulated world run the
same objects, so production runs no code that the simulator has not run.

The sender of a datagram is not an argument: the header names it and the seal or authenticator proves it. A network
address proves nothing.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from fairtape.core.effects import Effect, Recovered
from fairtape.core.entries import Extract
from fairtape.core.formation_log import StoreResponse
from fairtape.core.instants import Instant


class Machine(Protocol):
    """A sans-I/O state machine. Equal inputs in equal order give equal effects."""

    def receive(self, datagram: bytes, now: Instant) -> None:
        """Process one datagram as it came from the network. Never raises, whatever the bytes."""

    def receive_all(self, datagrams: Sequence[bytes], now: Instant) -> None:
        """Process a batch of datagrams: equivalent to `receive` for each, in this order."""

    def wake(self, now: Instant) -> None:
        """Do what is due. Called at or after `deadline()`; calling it early changes nothing."""

    def deadline(self) -> Instant | None:
        """When to call `wake` next: the minimum of all timers, so the driver keeps exactly one."""

    def drain(self) -> list[Effect]:
        """The effects since the last call, in the order in which they must be carried out."""


@runtime_checkable
class ReleasingMachine(Machine, Protocol):
    """A machine with instants of its own to keep, beside timeouts."""

    def advance(self, now: Instant) -> None:
        """Release and acknowledge what is due, and decide no timeout.

        A driver calls it before it reads: what a timeout waits for may have arrived, and then there is none.
        """


class JournalMachine(Machine, Protocol):
    """A machine that reads and truncates its journal."""

    def fetched(self, ticket: int, entries: Sequence[bytes], now: Instant) -> None:
        """The entries that the `Fetch` of this ticket asked for."""

    def fetched_chunks(self, ticket: int, extract: Extract, now: Instant) -> None:
        """The chunks that the `FetchChunks` of this ticket asked for."""

    def recovered(self, recovered: Recovered, now: Instant) -> None:
        """The end of the journal after a `Truncate`."""


class StoreMachine(Machine, Protocol):
    """A machine that queries the formation store."""

    def answered(self, answer: StoreResponse, now: Instant) -> None:
        """The response of the store to the pending `QueryStore`."""
