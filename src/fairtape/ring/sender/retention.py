"""Keeping: blocks that are acknowledged and not yet settled.

Ack(e) proves that one site holds what it names. Should that site die before another one has the block, only its source
can send it again. So a source keeps an acknowledged block until it is *settled*: known to be held by K + 1 sites, the
same number that a site wants to know of before it releases anything.

Two things prove it. The sites of e, e + 1, … e + K hold everything up to their own token when they speak, so an
acknowledgment of e + K or above, in the same formation, settles what Ack(e) named. And a site that knows as much says
so in a `Progress`. A later formation, on the other hand, may have begun before Ack(e), and then nobody knows of the
block: what is kept under an earlier formation is given back, to be sent until it is acknowledged again.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fairtape.core.instants import Duration, Instant

KEPT_MAX: Final = 64 << 20  # bytes; a source that keeps as much sends nothing new, and forgets nothing
KEPT_BLOCKS_MAX: Final = 1 << 16


@dataclass(slots=True)
class Block:
    """A block that was sent, as it will be repeated: byte for byte."""

    first: int
    end: int  # the number after its last message
    datagram: bytes
    due_at: Instant  # when it is repeated unless it is acknowledged
    delay: Duration
    answered_until: Instant = 0  # a hole that is named before then has been answered


class RetentionBuffer:
    """What one formation has acknowledged and not yet settled."""

    def __init__(self, resilience: int) -> None:
        self._resilience = resilience
        self._blocks: deque[Block] = deque()  # in the order of their numbers
        self._proofs: deque[tuple[int, int]] = deque()  # (e, end): Ack(e) acknowledged everything below `end`
        self._size = 0  # bytes
        self.settled_by = 0  # the token that acknowledged the last of what is settled

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks)

    @property
    def full(self) -> bool:
        """Whether nothing more should be sent until something is settled."""
        return self._size >= KEPT_MAX or len(self._blocks) >= KEPT_BLOCKS_MAX

    @property
    def last(self) -> Block:
        """The one with the highest number."""
        return self._blocks[-1]

    def keep(self, blocks: Sequence[Block], size: int, token: int) -> None:
        """These blocks, of `size` bytes together, follow on and are acknowledged by Ack(token) at the latest."""
        self._blocks += blocks
        self._proofs.append((token, blocks[-1].end))
        self._size += size

    def ack_received(self, token: int) -> None:
        """Ack(token) of this formation was heard: K sites before it hold what was acknowledged K tokens ago."""
        end = 0
        while self._proofs and self._proofs[0][0] <= token - self._resilience:
            self.settled_by, end = self._proofs.popleft()
        self._forget(end)

    def settle(self, end: int) -> None:
        """Everything below `end` is known to be held by K + 1 sites."""
        while self._proofs and self._proofs[0][1] <= end:
            self.settled_by, _ = self._proofs.popleft()
        if self._proofs and self._blocks[0].end <= end:
            self.settled_by = self._proofs[0][0]
        self._forget(end)

    def take_all(self) -> list[Block]:
        """A later formation may not know any of these: keep none."""
        blocks = list(self._blocks)
        self._blocks.clear()
        self._proofs.clear()
        self._size = 0
        return blocks

    def _forget(self, end: int) -> None:
        blocks = self._blocks
        while blocks and blocks[0].end <= end:
            self._size -= len(blocks.popleft().datagram)
