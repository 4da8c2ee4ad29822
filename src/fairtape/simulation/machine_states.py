"""Machine states as values: how an exhaustive exploration handles machines that are ordinary objects.

Machines are pure: the same state and the same input give the same next state and the same effects. So each transition
of each machine is computed once, whatever the other nodes of a deployment do meanwhile, and a state of a deployment
names the states of its machines by small numbers.

A machine state is a pickle in which everything that no transition changes is shared: keys, configuration, functions.
Serial numbers, replay windows and counts are no part of it. An exploration delivers no datagram twice, so they decide
nothing, and two histories that differ in nothing else lead to one state.
"""

import io
import pickle
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from types import FunctionType
from typing import Any, Final, TypeAlias, cast
from zlib import compress, decompress

from fairtape.core.effects import Effect, Ordered, Recovered, Release
from fairtape.core.entries import Entry, EntryChunk, Extract, Position, position_of
from fairtape.core.formation_log import StoreResponse
from fairtape.core.instants import NEVER, Instant
from fairtape.core.machine import JournalMachine, Machine, StoreMachine
from fairtape.core.state_table import StateTable
from fairtape.nodes.coordinator.primary_loop import FormationDecision
from fairtape.nodes.coordinator.server import Reformer, ReformerConfig
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.punctuality import Punctuality, SlowMembers
from fairtape.nodes.site import SiteConfig
from fairtape.nodes.source import Source
from fairtape.ring.membership.topology import LoopTopology, Topology
from fairtape.simulation.simulated_journal import SimulatedJournal
from fairtape.wire.frames import Control, NodeId
from fairtape.wire.membership import MembershipMessage
from fairtape.wire.seals import Authenticator, Keys, Marker, ReplayWindow, Seal

PICKLE_PROTOCOL: Final = 5
COMPRESSION: Final = 1  # a state is read back once for every ten that are written
DIGEST_SIZE: Final = 16
DOWN: Final = 0
"""The state of a node that has crashed. Others are numbered from 1."""

MachineInput: TypeAlias = tuple[str, Hashable]
"""The name of a method of the machine, and its argument beside the instant; None: it has no other one."""


class SerialFreeAuthenticator(MessageAuthenticator):
    """Gives all datagrams of a node one serial number, and accepts that again and again."""

    def __init__(self, me: NodeId, keys: Keys) -> None:
        super().__init__(me=me, keys=keys, peers=keys.sites, first_serial=0)

    def for_sites(self, message: Control) -> bytes:
        self._serial = 0
        return super().for_sites(message)

    def for_membership(self, message: MembershipMessage) -> bytes:
        self._serial = 0
        return super().for_membership(message)

    def for_source(self, source: NodeId, message: Control) -> bytes:
        self._serial = 0
        return super().for_source(source, message)

    def refusal(self, message: Control | MembershipMessage, datagram: bytes, *, fresh: bool) -> str | None:
        del fresh  # what repeats a serial number is no replay here
        return super().refusal(message, datagram, fresh=False)


class OpenWindow(ReplayWindow):
    """Accepts every serial number."""

    def accept(self, serial: int) -> bool:  # noqa: ARG002
        return True


class NamedSeal(Seal):
    """A seal that is the same for all who open the blocks of one incarnation of a source."""

    __slots__ = ("name",)

    def __init__(self, key: bytes, *, stripe: int, source: NodeId, incarnation: int) -> None:
        super().__init__(key, stripe=stripe, source=source, incarnation=incarnation)
        self.name = (source, incarnation)


@dataclass(frozen=True, slots=True)
class Transition:
    """What one input does to one machine."""

    state: int
    effects: tuple[Effect, ...]


@dataclass(slots=True)
class _KnownState:
    """A settled state is a pickle; any other one is a settled state and the inputs since then."""

    node: NodeId
    deadline: Instant  # NEVER: none
    leads: bool
    pickled: bytes = b""
    base: int = DOWN
    inputs: tuple[MachineInput, ...] = ()
    settled: int = DOWN  # its number at the end of the instant, once that is known


# What machine states share: by type, the part of its name that tells its values apart. The node is in every name.
_OF_NODE: Final = frozenset(
    {
        *(Keys, MessageAuthenticator, Authenticator, Marker, SiteConfig, ReformerConfig),
        *(Topology, LoopTopology, Counter, Punctuality, SlowMembers, ReplayWindow, FormationDecision),
    }
)
_REPLACED: Final[Mapping[type, type]] = {SerialFreeAuthenticator: MessageAuthenticator, OpenWindow: ReplayWindow}
_NOT_HASHABLE: Final = frozenset({Recovered})


@cache
def _is_value(kind: type) -> bool:
    """Whether equal objects of this type need only be kept once."""
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen and kind not in _NOT_HASHABLE


def shared_value(name: Hashable) -> object:
    """Stands in pickles for a shared value."""
    raise AssertionError(f"{name} outside of a machine state")


class _Pickler(pickle.Pickler):
    def __init__(
        self, file: io.BytesIO, shared: dict[Hashable, object], values: dict[Hashable, int], node: NodeId
    ) -> None:
        super().__init__(file, PICKLE_PROTOCOL)
        self._shared = shared
        self._values = values
        self._node = node

    def reducer_override(self, value: object) -> Any:
        kind = _REPLACED.get(type(value), type(value))
        if kind in _OF_NODE:
            name: Hashable = (self._node, kind.__name__)
        elif _is_value(kind):
            name = self._values.setdefault(value, len(self._values))
        elif kind is StateTable:  # a constant of a module
            name = self._values.setdefault(id(value), len(self._values))
        elif kind is NamedSeal:
            name = cast(NamedSeal, value).name
        elif kind is FunctionType and "<" in cast(FunctionType, value).__qualname__:
            assert cast(FunctionType, value).__closure__ is None
            name = cast(FunctionType, value).__qualname__
        else:
            return NotImplemented
        if name not in self._shared:
            self._shared[name] = value
        return shared_value, (name,)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, classes: dict[tuple[str, str], object]) -> None:
        super().__init__(file)
        self._classes = classes

    def find_class(self, module: str, name: str) -> object:
        known = self._classes.get((module, name))
        if known is None:
            known = self._classes[module, name] = super().find_class(module, name)
        return known


class MachineStates:
    """All states of all machines that were seen, and the transitions between them.

    A machine gets several inputs in one instant. The states between them are numbered like all others, but only the
    one at the end, which is *settled*, is kept as a pickle. The others are computed again from the settled state before
    them if one more input follows them.
    """

    def __init__(self) -> None:
        self.computed = 0  # transitions that were not known
        self.looked_up = 0
        self._shared: dict[Hashable, object] = {}  # by name
        self._values: dict[Hashable, int] = {}  # the names of values that are equal wherever they are
        self._classes: dict[tuple[str, str], object] = {
            (shared_value.__module__, shared_value.__name__): self._shared.__getitem__
        }
        self._numbers: dict[bytes, int] = {}  # of settled states, by digest
        self._known: list[_KnownState] = [_KnownState(0, NEVER, leads=False)]
        self._transitions: dict[tuple[int, Instant, MachineInput], Transition] = {}
        self._at_hand: dict[NodeId, tuple[int, Machine]] = {}  # the machine of each node that was used last

    def add(self, node: NodeId, machine: Machine, keys: Keys, now: Instant) -> Transition:
        """The first state of a new machine, with the effects of its start."""
        self._shared.setdefault((node, MessageAuthenticator.__name__), SerialFreeAuthenticator(node, keys))
        self._shared.setdefault((node, ReplayWindow.__name__), OpenWindow())
        effects = tuple(machine.drain())
        return Transition(self._keep(node, machine, now), effects)

    def apply(self, state: int, machine_input: MachineInput, now: Instant) -> Transition:
        """The transition of this state with this input."""
        name = state, now, machine_input
        transition = self._transitions.get(name)
        if transition is not None:
            self.looked_up += 1
            return transition
        self.computed += 1
        before = self._known[state]
        machine = self._machine_for_use(state, now)
        _give(machine, machine_input, now)
        effects = tuple(machine.drain())
        base, inputs = (state, ()) if before.pickled else (before.base, before.inputs)
        after = self._note(before.node, machine, now)
        after.base, after.inputs = base, (*inputs, machine_input)
        number = len(self._known) - 1
        self._at_hand[before.node] = number, machine
        transition = self._transitions[name] = Transition(number, effects)
        return transition

    def settle(self, state: int, now: Instant) -> int:
        """The number of this state at the end of an instant: equal states have the same one."""
        known = self._known[state]
        if state == DOWN or known.pickled:
            return state
        if known.settled == DOWN:
            machine = self._machine_for_use(state, now)
            known.settled = self._keep(known.node, machine, now)
            if not isinstance(machine, Source):  # its replay windows are real ones until it is read back
                self._at_hand[known.node] = known.settled, machine
        return known.settled

    def deadline(self, state: int) -> Instant:
        return self._known[state].deadline

    def leads(self, state: int, now: Instant) -> bool:
        """Whether a reformation server in this state leads. Before its deadline that does not change."""
        known = self._known[state]
        if not known.leads or now < known.deadline:
            return known.leads
        server = self._copy(state, now)
        assert isinstance(server, Reformer)
        return server.leads(now)

    def machine(self, state: int) -> Machine:
        """A copy of the machine in this settled state."""
        pickled = decompress(self._known[state].pickled)
        return cast(Machine, _Unpickler(io.BytesIO(pickled), self._classes).load())

    @property
    def distinct(self) -> int:
        """The number of settled machine states."""
        return len(self._numbers)

    def _machine_for_use(self, state: int, now: Instant) -> Machine:
        """The machine in this state, to be changed."""
        known = self._known[state]
        at_hand, machine = self._at_hand.pop(known.node, (DOWN, None))
        if machine is not None and at_hand == state:
            return machine
        return self._copy(state, now)

    def _copy(self, state: int, now: Instant) -> Machine:
        known = self._known[state]
        if known.pickled:
            return self.machine(state)
        machine = self.machine(known.base)
        for machine_input in known.inputs:
            _give(machine, machine_input, now)
            machine.drain()
        return machine

    def _keep(self, node: NodeId, machine: Machine, now: Instant) -> int:
        file = io.BytesIO()
        _Pickler(file, self._shared, self._values, node).dump(machine)
        pickled = file.getvalue()
        digest = blake2b(pickled, digest_size=DIGEST_SIZE).digest()
        number = self._numbers.get(digest)
        if number is None:
            self._note(node, machine, now).pickled = compress(pickled, COMPRESSION)
            number = self._numbers[digest] = len(self._known) - 1
        return number

    def _note(self, node: NodeId, machine: Machine, now: Instant) -> _KnownState:
        deadline = machine.deadline()
        leads = isinstance(machine, Reformer) and machine.leads(now)
        self._known.append(_KnownState(node, NEVER if deadline is None else deadline, leads=leads))
        return self._known[-1]


def _give(machine: Machine, machine_input: MachineInput, now: Instant) -> None:
    name, argument = machine_input
    match name:
        case "receive":
            machine.receive(cast(bytes, argument), now)
        case "wake":
            machine.wake(now)
        case "publish":
            assert isinstance(machine, Source)
            machine.publish([cast(bytes, argument)], now)
        case "answered":
            cast(StoreMachine, machine).answered(cast(StoreResponse, argument), now)
        case "fetched":
            ticket, entries = cast(tuple[int, tuple[bytes, ...]], argument)
            cast(JournalMachine, machine).fetched(ticket, entries, now)
        case "fetched_chunks":
            ticket, chunks, end, counted, exhausted = cast(ChunksRead, argument)
            extract = Extract(list(chunks), end, counted, exhausted)
            cast(JournalMachine, machine).fetched_chunks(ticket, extract, now)
        case "recovered":
            cast(JournalMachine, machine).recovered(cast(JournalState, argument).recovered(), now)
        case _:
            raise AssertionError(machine_input)


ChunksRead: TypeAlias = tuple[int, tuple[EntryChunk, ...], Position, int, bool]
"""A ticket, and an `Extract` as an immutable value."""


@dataclass(frozen=True, slots=True)
class JournalState:
    """A journal as a value. What it does is what `SimulatedJournal` does."""

    identity: int
    released_through: int = 0  # token
    entries: tuple[Entry, ...] = ()

    def journal(self) -> SimulatedJournal:
        journal = SimulatedJournal(_WRITTEN, identity=self.identity)
        for entry in self.entries:
            journal.append(entry)
        journal.released_through = self.released_through
        return journal

    @classmethod
    def of(cls, journal: SimulatedJournal) -> "JournalState":
        return cls(journal.identity, journal.released_through, tuple(journal.entries))

    def appended(self, entry: Entry) -> "JournalState":
        assert not self.entries or position_of(entry) > position_of(self.entries[-1])
        return replace(self, entries=(*self.entries, entry))

    def released(self, release: Release) -> "JournalState":
        assert release.token > self.released_through
        return replace(self, released_through=release.token)

    def truncated(self, token: int) -> "JournalState":
        journal = self.journal()
        journal.truncate_after(token)
        return self.of(journal)

    def recovered(self) -> Recovered:
        return self.journal().recovered()

    def last_token(self) -> int:
        """The token of the last messages; 0: it has none."""
        return max((entry.token for entry in self.entries if isinstance(entry, Ordered)), default=0)


_WRITTEN: Final[dict[bytes, tuple[bytes, Entry]]] = {}  # equal entries are kept, and encoded, once
