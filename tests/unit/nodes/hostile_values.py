"""Hostile datagrams: what an attacker without keys can make of everything that ever crossed the network.

A forger flips, truncates, extends, splices and replays genuine datagrams, seals with its own keys, and invents. Some of
what it sends is authentic: replays, and captured datagrams of another stripe or formation.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from random import Random
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Final, TypeAlias

from fairtape.wire.frames import (
    BLOCK_HEADER,
    HEADER,
    MAGIC,
    TAG_SIZE,
    VERSION,
    Kind,
    NodeId,
    encode_block_header,
)
from fairtape.wire.seals import Keys, Seal

NOISE_MAX: Final = 1_500
_OPAQUE: Final = (FunctionType, BuiltinFunctionType, MethodType, type)

State: TypeAlias = object


NOT_COMPARED: Final = frozenset({"counts", "_sites"})
"""Counters; and authenticators, which are created from keys on first use and hold no state."""


def snapshot(value: object, *, without: frozenset[str] = NOT_COMPARED) -> State:
    """The whole state of a machine as comparable values; keys and other opaque objects by identity."""
    return _Snapshot(without).of(value)


class _Snapshot:
    def __init__(self, without: frozenset[str]) -> None:
        self._without = without
        self._seen: dict[int, int] = {}

    def of(self, value: object) -> State:
        if value is None or isinstance(value, bool | int | float | str | bytes | bytearray):
            return value
        if isinstance(value, _OPAQUE):
            return getattr(value, "__qualname__", id(value)) if isinstance(value, MethodType) else id(value)
        if id(value) in self._seen:  # shared or cyclic: its first occurrence is enough
            return "seen", self._seen[id(value)]
        self._seen[id(value)] = len(self._seen)
        if isinstance(value, dict):
            return "dict", [(self.of(key), self.of(item)) for key, item in value.items()]
        if isinstance(value, list | tuple) or hasattr(value, "popleft"):
            return type(value).__name__, [self.of(item) for item in value]  # type: ignore[attr-defined]
        if isinstance(value, set | frozenset):
            return "set", sorted(map(repr, value))
        return self._object(value)

    def _object(self, value: object) -> State:
        names = sorted(set(_attributes(value)) - self._without)
        if not names:
            return type(value).__name__, id(value)
        return type(value).__name__, [(name, self.of(getattr(value, name))) for name in names if hasattr(value, name)]


def _attributes(value: object) -> list[str]:
    if is_dataclass(value):
        return [field.name for field in fields(value)]
    slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
    return [*slots, *getattr(value, "__dict__", ())]


class Forger:
    """Makes one hostile datagram after the other, all of them from one seed."""

    def __init__(
        self, chance: Random, *, received: Sequence[bytes], kept: Sequence[bytes], sources: Sequence[NodeId]
    ) -> None:
        self._chance = chance
        self._received = list(received)  # what the target has received: repeating it is a replay
        self._captured = [*received, *kept]  # everything that ever crossed the network
        self._kept = list(kept)  # authentic, for another stripe, formation or node
        self._seals = [
            Seal(keys.sources[node], stripe=0, source=node, incarnation=incarnation)
            for keys in [Keys.from_secret(b"the forger's own", (), sources)]
            for node in sources
            for incarnation in (1, 2)
        ]
        self._sources = list(sources)
        self._methods: list[Callable[[], bytes]] = [
            self._flip, self._flip, self._truncate, self._lengthen, self._swap, self._splice, self._overwrite,
            self._replay, self._replay_elsewhere, self._own_seal, self._wrong_tag, self._noise,
        ]  # fmt: skip

    def forge(self) -> bytes:
        return self._chance.choice(self._methods)()

    def _captured_datagram(self) -> bytes:
        return self._chance.choice(self._captured)

    def _flip(self) -> bytes:
        """Flip one to three bits, half of the time in the header."""
        datagram = bytearray(self._captured_datagram())
        end = len(datagram) if self._chance.random() < 0.5 else min(BLOCK_HEADER.size, len(datagram))
        for place in self._chance.sample(range(8 * end), self._chance.randint(1, 3)):
            datagram[place >> 3] ^= 1 << (place & 7)
        return bytes(datagram)

    def _truncate(self) -> bytes:
        datagram = self._captured_datagram()
        return datagram[: self._chance.randrange(len(datagram))]

    def _lengthen(self) -> bytes:
        return self._captured_datagram() + self._chance.randbytes(self._chance.choice((1, 4, 8, 16, 32, 200)))

    def _swap(self) -> bytes:
        """Swap two fields."""
        datagram = self._captured_datagram()
        width = self._chance.choice((1, 2, 4, 8))
        at, to = sorted(self._chance.sample(range(0, len(datagram) - width, width), 2))
        return (
            datagram[:at]
            + datagram[to : to + width]
            + datagram[at + width : to]
            + datagram[at : at + width]
            + datagram[to + width :]
        )

    def _splice(self) -> bytes:
        """The header of one and the rest of another."""
        place = self._chance.choice((HEADER.size, HEADER.size + 8, BLOCK_HEADER.size))
        return self._captured_datagram()[:place] + self._captured_datagram()[place:]

    def _overwrite(self) -> bytes:
        """Overwrite a field with a boundary value."""
        datagram = bytearray(self._captured_datagram())
        width = self._chance.choice((1, 2, 4, 8))
        at = self._chance.randrange(max(len(datagram) - width, 1))
        datagram[at : at + width] = self._chance.choice((bytes(width), b"\xff" * width, self._chance.randbytes(width)))
        return bytes(datagram)

    def _replay(self) -> bytes:
        return self._chance.choice(self._received)

    def _replay_elsewhere(self) -> bytes:
        return self._chance.choice(self._kept)

    def _own_seal(self) -> bytes:
        """A block that is correct except for the key."""
        seal, first = self._chance.choice(self._seals), self._chance.randrange(1, 40)
        node, incarnation = self._chance.choice(self._sources), self._chance.randrange(1, 3)
        return seal.close(encode_block_header(0, 0, node, incarnation, first, 1), first, b"\0\5forge")

    def _wrong_tag(self) -> bytes:
        datagram = self._captured_datagram()
        return datagram[:-TAG_SIZE] + self._chance.randbytes(TAG_SIZE)

    def _noise(self) -> bytes:
        """Random bytes, half of the time behind a plausible header."""
        noise = self._chance.randbytes(self._chance.randrange(NOISE_MAX))
        if self._chance.random() < 0.5:
            return noise
        return bytes((MAGIC, VERSION, self._chance.choice(list(Kind)), 0, 0, 0)) + noise
