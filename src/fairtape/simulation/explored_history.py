"""What an exploration remembers of the past of a deployment, as a value, and the guarantees that it checks with it.

One order · one holder and one content per acknowledgment · survives K · committed survives · fenced · one leader · one
formation per number · `halt` keeps its promise. A violation names its guarantee. They are those of `cluster_checkers`,
as far as a single state of a deployment can show that they are broken.
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Generic, TypeVar

from fairtape.core.effects import Ordered
from fairtape.core.formation_log import LogEntry
from fairtape.core.instants import Instant
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import decode_formation
from fairtape.simulation.world import Violation
from fairtape.wire.frames import Ack, NodeId, decode_control
from fairtape.wire.membership import Install

DIGEST_SIZE: Final = 8
DIGEST_MASK: Final = (1 << 8 * DIGEST_SIZE) - 1

Identity = tuple[NodeId, int, int]
"""Source, incarnation and number of a message."""


Name = TypeVar("Name", bound=Hashable)
Value = TypeVar("Value")


class Layers(Generic[Name, Value]):
    """A mapping that only grows. A later one shares the layers of an earlier one, and adds to its own."""

    __slots__ = ("_layers",)

    def __init__(self, layers: tuple[dict[Name, Value], ...] = ()) -> None:
        self._layers = (*layers, {})

    def later(self) -> "Layers[Name, Value]":
        """A mapping that begins with what this one has."""
        return Layers(self._layers if self._layers[-1] else self._layers[:-1])

    def get(self, name: Name) -> Value | None:
        for layer in reversed(self._layers):
            if name in layer:
                return layer[name]
        return None

    def put(self, name: Name, value: Value) -> None:
        self._layers[-1][name] = value

    def names(self) -> set[Name]:
        return set().union(*self._layers)


@dataclass(slots=True)
class History:
    """Acknowledgments, their contents and holders, releases, and recorded formations.

    Facts are only added. The digest is a sum over them, so histories with the same facts are equal.
    """

    digest: int = 0
    facts: Layers[Hashable, bytes] = field(default_factory=Layers)
    holders: Layers[tuple[int, int], tuple[NodeId, ...]] = field(default_factory=Layers)  # by formation and token
    released: Layers[int, dict[int, Identity]] = field(default_factory=Layers)  # by number, then by formation
    formations: tuple[Formation, ...] = ()

    def later(self) -> "History":
        """A history that begins with this one."""
        return History(self.digest, self.facts.later(), self.holders.later(), self.released.later(), self.formations)

    def add(self, name: Hashable, value: bytes) -> bytes:
        """Add a fact. Returns the first value that was added under this name."""
        known = self.facts.get(name)
        if known is None:
            self.facts.put(name, value)
            self._count(name, value)
            return value
        return known

    def hold(self, token: tuple[int, int], node: NodeId) -> None:
        known = self.holders.get(token) or ()
        if node not in known:
            self.holders.put(token, (*known, node))
            self._count("holds", token, node)

    def release(self, sequence: int, formation: int, identity: Identity) -> dict[int, Identity]:
        """Note a release; returns all messages that were released under this number, by formation."""
        known = self.released.get(sequence) or {}
        if formation not in known:
            known = {**known, formation: identity}
            self.released.put(sequence, known)
            self._count("released", sequence, formation, identity)
        return known

    def _count(self, *fact: Hashable) -> None:
        text = blake2b(repr(fact).encode(), digest_size=DIGEST_SIZE).digest()
        self.digest = self.digest + int.from_bytes(text) & DIGEST_MASK


@dataclass(frozen=True, slots=True)
class Promise:
    """What the operator was promised."""

    resilience: int
    halts: bool  # rather than lose a message, or go on with a smaller K


def ack_sent(history: History, node: NodeId, datagram: bytes, now: Instant) -> None:
    """OneHolder: Ack(e) of a formation has one content. Fenced: none of a superseded formation is new."""
    ack = decode_control(datagram)
    assert isinstance(ack, Ack)
    name = "ack", ack.formation, ack.token, ack.part
    if history.facts.get(name) is None:
        _check_fenced(history, node, ack.formation, ack.token, "acknowledged", now)
    if history.add(name, datagram) != datagram:
        raise Violation("OneHolder", node, now, f"a second Ack({ack.token}) of formation {ack.formation}")


def appended(history: History, node: NodeId, ordered: Ordered, now: Instant) -> None:
    """OneContent: a token of a formation has one content."""
    content = blake2b(repr(ordered).encode(), digest_size=DIGEST_SIZE).digest()
    if history.add(("content", ordered.formation, ordered.token), content) != content:
        text = f"token {ordered.token} of formation {ordered.formation} has another content"
        raise Violation("OneContent", node, now, text)
    history.hold((ordered.formation, ordered.token), node)


def delivered(history: History, node: NodeId, ordered: Ordered, now: Instant) -> None:
    """Fenced, SurvivesK and OneOrder."""
    _check_fenced(history, node, ordered.formation, ordered.token, "released", now)
    holders = history.holders.get((ordered.formation, ordered.token)) or ()
    needed = min(f.resilience for f in history.formations if f.number >= ordered.formation) + 1
    if len(holders) < needed:
        text = f"token {ordered.token} was released with {len(holders)} holders of {needed}"
        raise Violation("SurvivesK", node, now, text)
    for sequence, identity in _messages(ordered):
        for other, placed in history.release(sequence, ordered.formation, identity).items():
            between = min(other, ordered.formation), max(other, ordered.formation)
            if placed != identity and not _broken_between(history, *between, sequence):
                text = f"number {sequence} is {identity} and {placed}, without a Break"
                raise Violation("OneOrder", node, now, text)


def truncated(history: History, node: NodeId, token: int, released_through: int, now: Instant) -> None:
    """CommittedSurvives: a site takes back what it released only after a Break."""
    if token < released_through and not any(formation.broken for formation in history.formations):
        text = f"removed what follows token {token}, had released through {released_through}"
        raise Violation("CommittedSurvives", node, now, text)


def recorded(history: History, entries: Iterable[LogEntry], promise: Promise, now: Instant) -> None:
    """OneFormation, CommittedSurvives and KeptPromise, at each formation that the store has recorded."""
    for entry in entries:
        if entry.loop:
            continue
        if history.add(("formation", entry.number), entry.formation) != entry.formation:
            raise Violation("OneFormation", None, now, f"another formation {entry.number} was recorded")
        formation = decode_formation(entry.formation)
        history.formations += (formation,)
        _check_promise(formation, promise, now)
        if not formation.first_sequence or formation.broken:
            continue
        for sequence in sorted(history.released.names()):
            known = history.released.get(sequence) or {}
            earlier = [number for number in known if number < formation.number]
            if sequence >= formation.first_sequence and earlier and not _lost_before(history, earlier, sequence):
                text = (
                    f"formation {formation.number} begins with number {formation.first_sequence}; number {sequence} "
                    f"was released in formation {max(earlier)}"
                )
                raise Violation("CommittedSurvives", None, now, text)


def installed(history: History, node: NodeId, install: Install, now: Instant) -> None:
    """OneFormation: only recorded formations are final."""
    if install.final and history.facts.get(("formation", install.formation)) != install.layout:
        raise Violation("OneFormation", node, now, f"formation {install.formation} was installed and is not recorded")


def leading(servers: list[NodeId], now: Instant) -> None:
    """OneLeader: at most one reformation server leads at any instant."""
    if len(servers) > 1:
        raise Violation("OneLeader", None, now, f"reformation servers {servers} lead at the same time")


def _check_promise(formation: Formation, promise: Promise, now: Instant) -> None:
    if not promise.halts:
        return
    if formation.broken:
        raise Violation("KeptPromise", None, now, f"formation {formation.number} has a Break, and the loop is to halt")
    if formation.resilience < promise.resilience:
        text = f"formation {formation.number} has K = {formation.resilience}, and {promise.resilience} was promised"
        raise Violation("KeptPromise", None, now, text)


def _check_fenced(history: History, node: NodeId, number: int, token: int, did: str, now: Instant) -> None:
    """Once a formation is recorded, no site acts on tokens that it supersedes."""
    for later in history.formations:
        if later.number > number and later.first_token <= token:
            text = f"{did} token {token} of formation {number}, which formation {later.number} superseded"
            raise Violation("Fenced", node, now, text)


def _messages(ordered: Ordered) -> Iterator[tuple[int, Identity]]:
    for span in ordered.spans:
        for offset in range(span.count):
            yield span.sequence + offset, (span.source, span.incarnation, span.first + offset)


def _broken_between(history: History, earlier: int, later: int, sequence: int) -> bool:
    return any(f.broken and earlier < f.number <= later and f.first_sequence <= sequence for f in history.formations)


def _lost_before(history: History, numbers: list[int], sequence: int) -> bool:
    """Whether a Break has lost this number since each of these formations: then it is free again."""
    latest = history.formations[-1].number
    return _broken_between(history, max(numbers), latest, sequence)
