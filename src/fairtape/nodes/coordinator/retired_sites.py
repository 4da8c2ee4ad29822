"""The register of sites that the operator has retired.

It is kept in the log beside the formations, so that it outlives whoever was told, and numbered like the formations of a
loop, under a number that no loop has.
"""

from collections.abc import Collection
from typing import Final

from fairtape.core.formation_log import LogEntry
from fairtape.ring.membership.formation import LOOPS_MAX
from fairtape.wire.frames import Malformed, NodeId

REGISTER: Final = LOOPS_MAX
_VERSION: Final = b"\1"


class RetiredSites:
    """Who is retired, and whether the log says so."""

    def __init__(self, retired: set[NodeId]) -> None:
        """The set is shared with those who act by it."""
        self.retired = retired
        self._number = 0
        self._recorded: bytes = encode_retired_sites(())

    def recall(self, entry: LogEntry | None) -> None:
        """What the log says counts; where it has no register, nobody is retired."""
        self.retired.clear()
        self._number, self._recorded = 0, encode_retired_sites(())
        if entry is not None:
            self.retired |= decode_retired_sites(entry.formation)
            self.recorded(entry)

    def recorded(self, entry: LogEntry) -> None:
        """This is in the log."""
        self._number, self._recorded = entry.number, entry.formation

    def proposal(self, term: int) -> LogEntry | None:
        """What is to be recorded, if anything."""
        wanted = encode_retired_sites(self.retired)
        return None if wanted == self._recorded else LogEntry(REGISTER, self._number + 1, term, wanted)


def encode_retired_sites(retired: Collection[NodeId]) -> bytes:
    """The canonical bytes."""
    return _VERSION + b"".join(site.to_bytes(4) for site in sorted(retired))


def decode_retired_sites(encoded: bytes) -> set[NodeId]:
    """The sites; `Malformed` for anything else."""
    body = encoded[1:]
    if encoded[:1] != _VERSION or len(body) % 4:
        raise Malformed("not a register of this version")
    return {int.from_bytes(body[start : start + 4]) for start in range(0, len(body), 4)}
