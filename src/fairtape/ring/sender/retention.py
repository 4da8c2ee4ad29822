"""Retention: blocks that are acknowledged and not yet settled. Decision 20, Settled.

Ack(e) proves that one site holds what it names. If that site fails before another one has the block, only its source
can send it again. So a source keeps an acknowledged block until it is *settled*: known to be held by K + 1 sites, which
is also the condition of its release.

There are two proofs. The sites of e, e + 1, … e + K hold everything up to their own tokens, so an acknowledgment of
e + K or above, in the same formation, settles what Ack(e) named. And a site that knows it sends a `Progress`. A later
formation may have begun before Ack(e), and then no site may have the block: blocks kept under an earlier formation are
sent again until they are acknowledged again.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fairtape.core.instants import Duration, Instant

KEPT_MAX: Final = 64 << 20  # bytes; at this limit a source sends nothing new, and forgets nothing
KEPT_BLOCKS_MAX: Final = 1 << 16


@dataclass(slots=True)
class Block:
    """A sent block. Retransmissions are identical, byte for byte."""

    first: int
    end: int  # the number after its last message
    datagram: bytes
    due_at: Instant  # when it is retransmitted unless it is acknowledged
    delay: Duration
    answered_until: Instant = 0  # requests before then have been answered already


class RetentionBuffer:
    """Blocks that one formation has acknowledged and not yet settled."""

    def __init__(self, resilience: int) -> None:
        self._resilience = resilience
        self._blocks: deque[Block] = deque()  # ascending
        self._proofs: deque[tuple[int, int]] = deque()  # (e, end): Ack(e) acknowledged everything below `end`
        self._size = 0  # bytes
        self.settled_by = 0  # the token that acknowledged the last settled block

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks)

    @property
    def full(self) -> bool:
        """Whether nothing new may be sent until something is settled."""
        return self._size >= KEPT_MAX or len(self._blocks) >= KEPT_BLOCKS_MAX

    @property
    def last(self) -> Block:
        """The block with the highest number."""
        return self._blocks[-1]

    @property
    def settling_token(self) -> int | None:
        """The acknowledgment that settles the first blocks; None if there are none."""
        return self._proofs[0][0] + self._resilience if self._proofs else None

    def keep(self, blocks: Sequence[Block], size: int, token: int) -> None:
        """Add the next blocks, of `size` bytes together, acknowledged by Ack(token) at the latest."""
        self._blocks += blocks
        self._proofs.append((token, blocks[-1].end))
        self._size += size

    def ack_received(self, token: int) -> bool:
        """Ack(token) of this formation was received: what was acknowledged K tokens before it is settled, if any."""
        end = 0
        while self._proofs and self._proofs[0][0] <= token - self._resilience:
            self.settled_by, end = self._proofs.popleft()
        return self._forget(end)

    def settle(self, end: int) -> bool:
        """K + 1 sites are known to hold everything below `end`. Whether that was new."""
        while self._proofs and self._proofs[0][1] <= end:
            self.settled_by, _ = self._proofs.popleft()
        if self._proofs and self._blocks[0].end <= end:
            self.settled_by = self._proofs[0][0]
        return self._forget(end)

    def take_all(self) -> list[Block]:
        """Remove and return all blocks, because a later formation may not have them."""
        blocks = list(self._blocks)
        self._blocks.clear()
        self._proofs.clear()
        self._size = 0
        return blocks

    def _forget(self, end: int) -> bool:
        blocks, forgotten = self._blocks, False
        while blocks and blocks[0].end <= end:
            self._size -= len(blocks.popleft().datagram)
            forgotten = True
        return forgotten
