"""The formation store of a simulated world: what SQLite and etcd do, said as plainly as it can be."""

from fairtape.core.formation_log import (
    ENTRIES_MAX,
    Claim,
    Claimed,
    Leadership,
    LogEntry,
    Recall,
    Recalled,
    Record,
    Recorded,
    RecordRefused,
    StoreRequest,
    StoreResponse,
)


class MemoryFormationStore:
    """Survives every crash of a simulated node, as a disk does."""

    __slots__ = ("leadership", "log")

    def __init__(self) -> None:
        self.leadership: Leadership | None = None
        self.log: list[LogEntry] = []

    def answer(self, question: StoreRequest) -> StoreResponse:
        """Carry out one question. Always available: an outage is a fault of the world, not of the store."""
        match question:
            case Recall():
                latest = {entry.loop: entry for entry in self.log}
                return Recalled(self.leadership, tuple(latest[loop] for loop in sorted(latest)))
            case Claim():
                if self.leadership == question.expected:
                    self.leadership = question.wanted
                return Claimed(self.leadership)
            case Record():
                return self._record(question.entries)

    def close(self) -> None:
        """Nothing is held."""

    def _record(self, entries: tuple[LogEntry, ...]) -> Recorded | RecordRefused:
        assert len(entries) <= ENTRIES_MAX, f"{len(entries)} entries at once"
        appended = list(self.log)
        for entry in entries:
            numbers = [other.number for other in appended if other.loop == entry.loop]
            if self.leadership is None or entry.term != self.leadership.term:
                return RecordRefused(entries)
            if numbers and entry.number != numbers[-1] + 1:
                return RecordRefused(entries)
            appended.append(entry)
        self.log = appended
        return Recorded(entries)
