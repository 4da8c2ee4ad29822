"""The formation store in etcd: for deployments whose store must survive the loss of any one machine.

    PREFIX/leadership     the leader, with the count of renewals
    PREFIX/term           the term alone, so that a renewal does not conflict with a Record
    PREFIX/log/SERIAL     the entries of one Record; serials have no gap, and nothing is ever deleted
    PREFIX/latest/LOOP    the latest entry of one loop
    PREFIX/identity       the identity of the store, made with it

A Claim is one transaction: compare the leadership, put the next one. A Record reads first and decides. Then it writes
on the condition that the term is unchanged and the next serial is free, so that nothing has changed since it read.
Values are JSON, readable with `etcdctl`.
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
    BAD_ANSWER,
    NO_ANSWER,
    OPEN,
    EtcdAccess,
    EtcdEndpoint,
    EtcdHttpClient,
    Json,
    Unreachable,
)
from fairtape.storage.formation_stores.formation_store import TIMEOUT, new_identity, numbers_increase

RECORD_TRIES_MAX: Final = 8  # another attempt means that another server wrote in the meantime

_SERIAL_DIGITS: Final = 16
_LOOP_DIGITS: Final = 10


class EtcdStore:
    """A store in an etcd cluster."""

    def __init__(
        self, endpoints: Sequence[EtcdEndpoint], prefix: str, *, timeout: float = TIMEOUT, access: EtcdAccess = OPEN
    ) -> None:
        self._client = EtcdHttpClient(endpoints, timeout=timeout, access=access)
        self._keys = _Keys(prefix)
        try:
            self._read()
        except (Unreachable, *BAD_ANSWER) as error:
            self.close()
            named = ",".join(format_address((endpoint.host, endpoint.port)) for endpoint in endpoints)
            reason = error if isinstance(error, Unreachable) else Unreachable(NO_ANSWER)
            raise UserError(f"store is etcd at {named}, where {reason}") from None

    def answer(self, request: StoreRequest) -> StoreResponse:
        """Carry out the request. Failures of the network or the cluster are responses, not exceptions."""
        try:
            match request:
                case Recall():
                    state = self._read()
                    return Recalled(state.leadership, state.latest, state.identity)
                case Claim():
                    return self._claim(request)
                case Record():
                    return self._record(request)
        except (Unreachable, *BAD_ANSWER):
            return Unavailable(request)

    def probe(self) -> bool:
        """Put a key that no request reads."""
        try:
            self._client.transact({"success": [_put(self._keys.probe, b"")]}, only_reads=False)
        except (Unreachable, *BAD_ANSWER):
            return False
        return True

    def close(self) -> None:
        self._client.close()

    def _read(self) -> "_State":
        """The store; a new one gets its identity, of which the first of several servers decides."""
        answer = self._client.transact({"success": self._keys.read_requests()}, only_reads=True)
        state = _State.of(answer)
        if state.identity:
            return state
        identity = self._keys.identity
        transaction = {
            "compare": [_compare(identity, None)],
            "success": [_put(identity, _to_json({"store": new_identity()}))],
        }
        self._client.transact(transaction, only_reads=False)
        return _State.of(self._client.transact({"success": self._keys.read_requests()}, only_reads=True))

    def _claim(self, claim: Claim) -> Claimed:
        keys = self._keys
        transaction = {
            "compare": [_compare(keys.leadership, _leadership_json(claim.expected) if claim.expected else None)],
            "success": [
                _put(keys.leadership, _leadership_json(claim.wanted)),
                _put(keys.term, _to_json(claim.wanted.term)),
            ],
            "failure": keys.read_requests(),
        }
        answer = self._client.transact(transaction, only_reads=False)
        return Claimed(claim.wanted if _succeeded(answer) else _State.of(answer).leadership)

    def _record(self, record: Record) -> Recorded | RecordRefused | Unavailable:
        entries = record.entries
        assert len(entries) <= ENTRIES_MAX, f"{len(entries)} entries at once"
        state = self._read()
        for _ in range(RECORD_TRIES_MAX):
            if not state.accepts(entries):
                return RecordRefused(entries)
            answer = self._client.transact(self._append_transaction(entries, state), only_reads=False)
            if _succeeded(answer):
                return Recorded(entries)
            state = _State.of(answer)
        return Unavailable(record)

    def _append_transaction(self, entries: tuple[LogEntry, ...], state: "_State") -> Json:
        keys = self._keys
        latest = {entry.loop: entry for entry in entries}
        serial = keys.serial(state.serial + 1)
        term = None if state.leadership is None else _to_json(state.leadership.term)
        return {
            "compare": [_compare(keys.term, term), _compare(serial, None)],
            "success": [
                _put(serial, _to_json([_entry_json(entry) for entry in entries])),
                *(_put(keys.loop(entry.loop), _to_json(_entry_json(entry))) for entry in latest.values()),
            ],
            "failure": keys.read_requests(),
        }


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys of the store."""

    prefix: str

    @property
    def leadership(self) -> str:
        return f"{self.prefix}/leadership"

    @property
    def term(self) -> str:
        return f"{self.prefix}/term"

    @property
    def identity(self) -> str:
        return f"{self.prefix}/identity"

    @property
    def probe(self) -> str:
        return f"{self.prefix}/probe"

    def serial(self, serial: int) -> str:
        return f"{self.prefix}/log/{serial:0{_SERIAL_DIGITS}}"

    def loop(self, loop: int) -> str:
        return f"{self.prefix}/latest/{loop:0{_LOOP_DIGITS}}"

    def read_requests(self) -> list[Json]:
        """All that a decision needs, in one snapshot: leadership, latest entries, last serial, identity."""
        last = {"sort_order": "DESCEND", "sort_target": "KEY", "limit": 1, "keys_only": True}
        return [
            {"request_range": {"key": _encode_key(self.leadership)}},
            {"request_range": _prefix_range(f"{self.prefix}/latest/")},
            {"request_range": _prefix_range(f"{self.prefix}/log/") | last},
            {"request_range": {"key": _encode_key(self.identity)}},
        ]


@dataclass(frozen=True, slots=True)
class _State:
    """A snapshot of the store."""

    leadership: Leadership | None
    latest: tuple[LogEntry, ...]
    serial: int  # of the last Record; 0 where there is none
    identity: int  # of the store; 0 where it is being made

    @classmethod
    def of(cls, answer: Json) -> "_State":
        """From the response to `_Keys.read_requests`."""
        leaders, loops, records, identities = (each["response_range"].get("kvs", []) for each in answer["responses"])
        latest = [
            LogEntry(**(plain | {"formation": _from_base64(plain["formation"])})) for plain in map(_from_json, loops)
        ]
        return cls(
            leadership=Leadership(**_from_json(leaders[0])) if leaders else None,
            latest=tuple(sorted(latest, key=lambda entry: entry.loop)),
            serial=int(_from_base64(records[0]["key"]).rpartition(b"/")[2]) if records else 0,
            identity=int(_from_json(identities[0])["store"]) if identities else 0,
        )

    def accepts(self, entries: tuple[LogEntry, ...]) -> bool:
        """Whether these entries may be appended."""
        leadership = self.leadership
        if any(leadership is None or entry.term != leadership.term for entry in entries):
            return False
        return numbers_increase(entries, {entry.loop: entry.number for entry in self.latest})


def _compare(key: str, value: bytes | None) -> Json:
    """The condition that a key has this value, or (None) does not exist."""
    if value is None:
        return {"key": _encode_key(key), "target": "VERSION", "result": "EQUAL", "version": "0"}
    return {"key": _encode_key(key), "target": "VALUE", "result": "EQUAL", "value": _to_base64(value)}


def _put(key: str, value: bytes) -> Json:
    return {"request_put": {"key": _encode_key(key), "value": _to_base64(value)}}


def _prefix_range(folder: str) -> dict[str, Any]:
    """The range of all keys with this prefix: up to the prefix with its last character incremented."""
    return {"key": _encode_key(folder), "range_end": _encode_key(folder[:-1] + chr(ord(folder[-1]) + 1))}


def _succeeded(answer: Json) -> bool:
    return answer.get("succeeded", False) is True


def _entry_json(entry: LogEntry) -> Json:
    return asdict(entry) | {"formation": _to_base64(entry.formation)}


def _leadership_json(leadership: Leadership) -> bytes:
    """Without a lease where none is stated, as an older release wrote it: a Claim compares bytes."""
    plain = asdict(leadership)
    return _to_json(plain if leadership.lease else {name: plain[name] for name in plain if name != "lease"})


def _to_json(value: object) -> bytes:
    """Canonical JSON: a Claim compares bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _from_json(pair: Json) -> dict[str, Any]:
    value = json.loads(_from_base64(pair["value"]))
    if not isinstance(value, dict):
        raise TypeError("no JSON object")
    return value


def _encode_key(key: str) -> str:
    return _to_base64(key.encode())


def _to_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
