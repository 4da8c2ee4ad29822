"""The formation store of a simulated deployment, and its faults.

The store is a machine of its own, reached over a network: it may be unavailable, slow for one call or for all, and it
may carry out a request whose answer comes late or never. An operator may restore it from a backup, and it may be lost.
Some servers may use another store: that of a copy of the deployment's folder. The truth stays: `recorded` has every
formation that was ever recorded, whatever the store still knows, or another one.
"""

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

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
    Unavailable,
)
from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.wire.frames import NodeId

OTHER_STORE: Final = 1 << 20  # the identity of the store of a copy of the folder


class MemoryFormationStore:
    """The formation store in memory: the reference for the SQLite and etcd stores. It survives crashes of nodes."""

    __slots__ = ("identity", "leadership", "log")

    def __init__(self, identity: int = 1) -> None:
        self.identity = identity
        self.leadership: Leadership | None = None
        self.log: list[LogEntry] = []

    def answer(self, question: StoreRequest) -> StoreResponse:
        """Answer one request. Always available: outages are simulated by `SimulatedStoreAccess`."""
        match question:
            case Recall():
                latest = {entry.loop: entry for entry in self.log}
                return Recalled(self.leadership, tuple(latest[loop] for loop in sorted(latest)), self.identity)
            case Claim():
                if self.leadership == question.expected:
                    self.leadership = question.wanted
                return Claimed(self.leadership)
            case Record():
                return self._record(question.entries)

    def probe(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing to release."""

    def _record(self, entries: tuple[LogEntry, ...]) -> Recorded | RecordRefused:
        assert len(entries) <= ENTRIES_MAX, f"{len(entries)} entries at once"
        appended = list(self.log)
        for entry in entries:
            numbers = [other.number for other in appended if other.loop == entry.loop]
            if self.leadership is None or entry.term != self.leadership.term:
                return RecordRefused(entries)
            if numbers and entry.number <= numbers[-1]:
                return RecordRefused(entries)
            appended.append(entry)
        self.log = appended
        return Recorded(entries)


class _Backup(NamedTuple):
    log: list[LogEntry]
    leadership: Leadership | None
    precedes_formation: bool  # of the primary loop


class SimulatedStoreAccess:
    """The connection of the reformation servers to the formation store, with delay, outages and other faults."""

    def __init__(self, delay: Duration, chance: Random, *, now: Callable[[], Instant] = lambda: 0) -> None:
        self.store = MemoryFormationStore()
        self.other = MemoryFormationStore(OTHER_STORE)  # of a copy of the folder
        self.copied: set[NodeId] = set()  # servers that use the other one
        self.recorded: list[LogEntry] = []  # all entries ever, also those that a restored store has lost
        self.unavailable = False  # for all servers
        self.cut_off: set[NodeId] = set()  # servers that cannot reach the store
        self.call_delay: Duration = 0  # every call takes at least this long
        self.next_call_delay: Duration = 0  # the next call takes at least this long
        self.answer_lost: dict[NodeId, Duration] = {}  # whose next claim is carried out, and after how long it gives up
        self.answers_late: Duration = 0  # claims are carried out at once, and their answers arrive this much later
        self.behind_faults = False  # servers reach it through another store, with faults of its own
        self._delay = delay
        self._chance = chance
        self._now = now
        self._answered_at: Instant = 0  # when the last request that a fault delays has an answer, or is given up
        self._backups: list[_Backup] = []  # before each request that recorded something

    @property
    def disturbed(self) -> bool:
        """Whether any server may not get its answers in time, also to a request that it made before a fault ended."""
        if self._now() < self._answered_at:
            return True
        lost = self.unavailable or self.cut_off or self.copied or self.answer_lost or self.behind_faults
        return bool(lost or self.call_delay or self.next_call_delay or self.answers_late)

    def query(self, node: NodeId, question: StoreRequest) -> tuple[Duration, StoreResponse]:
        """The response and its delay. In an outage a request may be carried out although the response is lost."""
        usual = int(self._delay * self._chance.uniform(0.5, 2.0))
        delay, response = self._respond(node, question)
        if delay:
            self._answered_at = max(self._answered_at, self._now() + delay)
        return (delay if isinstance(response, Unavailable) else max(delay, usual)), response

    def _respond(self, node: NodeId, question: StoreRequest) -> tuple[Duration, StoreResponse]:
        """The response, and the delay that a fault causes; 0: none."""
        if self.unavailable or node in self.cut_off:
            if self._chance.random() < 0.2:
                self._carry_out(node, question)
            return SECOND // 4, Unavailable(question)
        slow, self.next_call_delay = max(self.call_delay, self.next_call_delay), 0
        response = self._carry_out(node, question)
        if isinstance(question, Claim):
            if node in self.answer_lost:
                return self.answer_lost.pop(node), Unavailable(question)
            slow = max(slow, self.answers_late)
        return slow, response

    def store_of(self, node: NodeId) -> MemoryFormationStore:
        """The store that a server uses."""
        return self.other if node in self.copied else self.store

    def restore(self, formations: int) -> bool:
        """Restore a backup from before the last `formations` formations. Returns whether there is such a backup."""
        places = [place for place, backup in enumerate(self._backups) if backup.precedes_formation]
        if len(places) < formations:
            return False
        self.restore_records(len(self._backups) - places[-formations])
        return True

    def restore_records(self, records: int) -> None:
        """Restore a backup from before the last `records` requests that recorded something."""
        backup = self._backups[-records]
        self.store.log, self.store.leadership = list(backup.log), backup.leadership
        del self._backups[-records:]

    def lose(self) -> None:
        """The store and its backups are gone: the next one is empty, and has another identity."""
        self.store.log, self.store.leadership = [], None
        self.store.identity += 1
        self._backups.clear()

    def heal(self) -> None:
        """End all faults; what was lost stays lost."""
        self.unavailable = False
        self.cut_off.clear()
        self.copied.clear()
        self.answer_lost.clear()
        self.call_delay = self.next_call_delay = self.answers_late = 0

    def _carry_out(self, node: NodeId, question: StoreRequest) -> StoreResponse:
        store = self.store_of(node)
        log, leadership = store.log, store.leadership
        response = store.answer(question)
        if isinstance(response, Recorded) and store is not self.store:
            self.recorded += response.entries
        elif isinstance(response, Recorded):
            self.recorded += response.entries
            self._backups.append(_Backup(log, leadership, any(entry.loop == 0 for entry in response.entries)))
        return response
