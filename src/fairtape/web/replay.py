"""The past, then the present: what a customer who resumes from a number gets before it is live.

The far past comes from the journal, the recent one from memory. It is taken piece by piece, at the customer's own pace;
where it ends, in the same step, the customer joins those who are live.
"""

from typing import Final

from fairtape.tape.batches import TradeBatch
from fairtape.tape.feed import Delivery
from fairtape.web.journal_position import JournalPosition
from fairtape.web.ticker import LiveTicker

BITE_ROWS: Final = 256  # of the recent past that are taken at once: some milliseconds of JSON


class CustomerReplay:
    """The order from a number on, up to its live end."""

    def __init__(self, ticker: LiveTicker, start: int) -> None:
        self._ticker = ticker
        self._due = start
        self._reading: JournalPosition | None = None
        self._index = ticker.tail.find(start)  # of the next delivery in memory; None where it has to be read

    @property
    def is_over(self) -> bool:
        """Whether the live end is reached."""
        return self._index == self._ticker.tail.end

    def take(self) -> list[Delivery]:
        """The next piece; may be empty before the end."""
        tail = self._ticker.tail
        if self._index is not None and self._index < tail.start:
            # Memory has moved on. Behind a Break numbers begin anew; who is beyond it goes on with the Break itself.
            self._index = tail.start if tail.first < self._due else tail.find(self._due)
        if self._index is None:
            return self._read()
        found: list[Delivery] = []
        rows = 0
        while self._index < tail.end and rows < BITE_ROWS:
            delivery, after = tail.at(self._index)
            self._index += 1
            if isinstance(delivery, TradeBatch) and delivery.first < self._due <= delivery.last:
                delivery = delivery.where(delivery.places["sequence"] >= self._due)
            found.append(delivery)
            rows += delivery.rows if isinstance(delivery, TradeBatch) else 1
            self._due = after
        return found

    def close(self) -> None:
        """Give the files back."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def _read(self) -> list[Delivery]:
        """From the journal, until memory goes on with the number that is due."""
        if self._reading is None:
            self._reading = JournalPosition(self._ticker.journal, self._due)
        found = self._reading.take()
        self._due = self._reading.due
        if self._reading.settled or not found:
            self._index = self._ticker.tail.find(self._due)
        if self._index is not None:
            self.close()
        return found
