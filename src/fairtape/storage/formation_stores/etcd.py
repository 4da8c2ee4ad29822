"""The formation store in etcd: for a real deployment, whose store must outlive any one machine.

    PREFIX/leadership     who leads, with the count of renewals
    PREFIX/term           the term alone, so that a renewal does not disturb a Record
    PREFIX/log/SERIAL     the entries of one Record; serials have no gap, and nothing is ever deleted
    PREFIX/latest/LOOP    the latest entry of one loop

A Claim is one transaction: compare the leadership, put the next one. A Record reads first and decides, then writes on
the condition that the term is still the same and the next serial still free: then nothing has changed since it read.
Values are JSON, for people who look with `etcdctl`.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from fairtape.core.addresses import format_address
from fairtape.core.errors import UserError
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
from fairtape.storage.formation_stores.etcd_http import (
    NO_ANSWER,
    NONSENSE,
    OPEN,
    EtcdAccess,
    EtcdEndpoint,
    EtcdHttpClient,
    Json,
    Unreachable,
)
from fairtape.storage.formation_stores.store import PATIENCE, follow_on

RECORD_TRIES_MAX: Final = 8  # each further one means that another server wrote in the meantime

_SERIAL_DIGITS: Final = 16
_LOOP_DIGITS: Final = 10


class EtcdStore:
    """A store in a cluster of etcd."""

    def __init__(
        self, endpoints: Sequence[EtcdEndpoint], prefix: str, *, patience: float = PATIENCE, access: EtcdAccess = OPEN
    ) -> None:
        self._gateway = EtcdHttpClient(endpoints, patience=patience, access=access)
        self._keys = _Keys(prefix)
        try:
            self._read()
        except (Unreachable, *NONSENSE) as error:
            self.close()
            named = ",".join(format_address((endpoint.host, endpoint.port)) for endpoint in endpoints)
            trouble = error if isinstance(error, Unreachable) else Unreachable(NO_ANSWER)
            raise UserError(f"store is etcd at {named}, where {trouble}") from None

    def answer(self, question: StoreRequest) -> StoreResponse:
        """Carry it out; whatever the network or the cluster does, the answer is a value."""
        try:
            match question:
                case Recall():
                    state = self._read()
                    return Recalled(state.leadership, state.latest)
                case Claim():
                    return self._claim(question)
                case Record():
                    return self._record(question)
        except (Unreachable, *NONSENSE):
            return Unavailable(question)

    def close(self) -> None:
        """Hang up."""
        self._gateway.close()

    def _read(self) -> "_State":
        answer = self._gateway.transact({"success": self._keys.reading()}, only_reads=True)
        return _State.of(answer)

    def _claim(self, claim: Claim) -> Claimed:
        keys = self._keys
        transaction = {
            "compare": [_holds(keys.leadership, _packed(asdict(claim.expected)) if claim.expected else None)],
            "success": [
                _put(keys.leadership, _packed(asdict(claim.wanted))),
                _put(keys.term, _packed(claim.wanted.term)),
            ],
            "failure": keys.reading(),
        }
        answer = self._gateway.transact(transaction, only_reads=False)
        return Claimed(claim.wanted if _succeeded(answer) else _State.of(answer).leadership)

    def _record(self, record: Record) -> Recorded | RecordRefused | Unavailable:
        entries = record.entries
        assert len(entries) <= ENTRIES_MAX, f"{len(entries)} entries at once"
        state = self._read()
        for _ in range(RECORD_TRIES_MAX):
            if not state.takes(entries):
                return RecordRefused(entries)
            answer = self._gateway.transact(self._writing(entries, state), only_reads=False)
            if _succeeded(answer):
                return Recorded(entries)
            state = _State.of(answer)
        return Unavailable(record)

    def _writing(self, entries: tuple[LogEntry, ...], state: "_State") -> Json:
        keys = self._keys
        latest = {entry.loop: entry for entry in entries}
        serial = keys.serial(state.serial + 1)
        term = None if state.leadership is None else _packed(state.leadership.term)
        return {
            "compare": [_holds(keys.term, term), _holds(serial, None)],
            "success": [
                _put(serial, _packed([_plain(entry) for entry in entries])),
                *(_put(keys.loop(entry.loop), _packed(_plain(entry))) for entry in latest.values()),
            ],
            "failure": keys.reading(),
        }


@dataclass(frozen=True, slots=True)
class _Keys:
    """The names under which things are kept."""

    prefix: str

    @property
    def leadership(self) -> str:
        return f"{self.prefix}/leadership"

    @property
    def term(self) -> str:
        return f"{self.prefix}/term"

    def serial(self, serial: int) -> str:
        return f"{self.prefix}/log/{serial:0{_SERIAL_DIGITS}}"

    def loop(self, loop: int) -> str:
        return f"{self.prefix}/latest/{loop:0{_LOOP_DIGITS}}"

    def reading(self) -> list[Json]:
        """All that a decision needs, as of one instant: who leads, every loop's latest entry, the last serial."""
        last = {"sort_order": "DESCEND", "sort_target": "KEY", "limit": 1, "keys_only": True}
        return [
            {"request_range": {"key": _coded(self.leadership)}},
            {"request_range": _under(f"{self.prefix}/latest/")},
            {"request_range": _under(f"{self.prefix}/log/") | last},
        ]


@dataclass(frozen=True, slots=True)
class _State:
    """What the store held at one instant."""

    leadership: Leadership | None
    latest: tuple[LogEntry, ...]
    serial: int  # of the last Record; 0 where there is none

    @classmethod
    def of(cls, answer: Json) -> "_State":
        """From the answer to `_Keys.reading`."""
        leaders, loops, records = (each["response_range"].get("kvs", []) for each in answer["responses"])
        latest = [LogEntry(**(plain | {"formation": _decoded(plain["formation"])})) for plain in map(_unpacked, loops)]
        return cls(
            leadership=Leadership(**_unpacked(leaders[0])) if leaders else None,
            latest=tuple(sorted(latest, key=lambda entry: entry.loop)),
            serial=int(_decoded(records[0]["key"]).rpartition(b"/")[2]) if records else 0,
        )

    def takes(self, entries: tuple[LogEntry, ...]) -> bool:
        """Whether these entries may be appended to it."""
        leadership = self.leadership
        if any(leadership is None or entry.term != leadership.term for entry in entries):
            return False
        return follow_on(entries, {entry.loop: entry.number for entry in self.latest})


def _holds(key: str, value: bytes | None) -> Json:
    """The condition that a key has this value, or that there is no such key."""
    if value is None:
        return {"key": _coded(key), "target": "VERSION", "result": "EQUAL", "version": "0"}
    return {"key": _coded(key), "target": "VALUE", "result": "EQUAL", "value": _base64(value)}


def _put(key: str, value: bytes) -> Json:
    return {"request_put": {"key": _coded(key), "value": _base64(value)}}


def _under(folder: str) -> dict[str, Any]:
    """The range of all keys that begin with this: up to the same with its last character's successor."""
    return {"key": _coded(folder), "range_end": _coded(folder[:-1] + chr(ord(folder[-1]) + 1))}


def _succeeded(answer: Json) -> bool:
    return answer.get("succeeded", False) is True


def _plain(entry: LogEntry) -> Json:
    return asdict(entry) | {"formation": _base64(entry.formation)}


def _packed(value: object) -> bytes:
    """One value, one spelling: a Claim compares bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _unpacked(pair: Json) -> dict[str, Any]:
    value = json.loads(_decoded(pair["value"]))
    if not isinstance(value, dict):
        raise TypeError("no JSON object")
    return value


def _coded(key: str) -> str:
    return _base64(key.encode())


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
