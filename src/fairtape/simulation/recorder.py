"""What happened in a world, in order: the common ground of golden traces and pictures."""

from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import Final, TypeAlias

from fairtape.core.effects import Channel, Ordered, Release, Report
from fairtape.core.instants import MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.ring.receiver.recovery import TransitionObserver
from fairtape.ring.receiver.recovery_tables import State
from fairtape.simulation.datagram_summary import DatagramSummary, span, summarize_datagram
from fairtape.simulation.observer import Observer
from fairtape.simulation.world import EPOCH, World
from fairtape.wire.frames import Kind, NodeId

HAPPENINGS_MAX: Final = 500_000


@dataclass(frozen=True, slots=True)
class Sent:
    """A node sent a datagram, to one node or to a channel."""

    at: Instant
    node: NodeId
    to: NodeId | Channel
    sighting: DatagramSummary


@dataclass(frozen=True, slots=True)
class Flight:
    """One copy of a datagram on one link; `arrives_at` is None where it was lost."""

    at: Instant
    node: NodeId
    to: NodeId
    arrives_at: Instant | None
    sighting: DatagramSummary


@dataclass(frozen=True, slots=True)
class Step:
    """A recovery moved along an arrow of its figure."""

    at: Instant
    node: NodeId
    token: int
    before: IntEnum
    event: IntEnum
    after: IntEnum
    retries: int


@dataclass(frozen=True, slots=True)
class Released:
    """A site released Msg(e)."""

    at: Instant
    node: NodeId
    release: Release


@dataclass(frozen=True, slots=True)
class Declared:
    """A site declared a failure."""

    at: Instant
    node: NodeId
    report: Report


@dataclass(frozen=True, slots=True)
class Befell:
    """A fault hit a node."""

    at: Instant
    node: NodeId
    what: str


Happening: TypeAlias = Sent | Flight | Step | Released | Declared | Befell


class Recorder(Observer):
    """A witness that remembers what it sees between two true instants."""

    def __init__(self, world: World, *, since: Instant = 0, until: Instant = NEVER) -> None:
        self.happenings: list[Happening] = []
        self._world = world
        self._since = since
        self._until = until
        self._last: tuple[bytes, DatagramSummary] | None = None
        world.witnesses.insert(0, self)  # before the checkers, so that the breach itself is on record
        world.network.watch = self._watch

    def sent(self, node: NodeId, to: NodeId | Channel, datagram: bytes, at: Instant, /) -> None:
        """A datagram leaves a node."""
        self._keep(Sent(at, node, to, self._sight(datagram)))

    def appended(self, _node: NodeId, _ordered: Ordered, _now: Instant, /) -> None:
        """Journals are not told of: what is released says enough."""

    def delivered(self, node: NodeId, _ordered: Ordered, release: Release, _now: Instant, /) -> None:
        """A release."""
        self._keep(Released(self._world.now, node, release))

    def reported(self, node: NodeId, report: Report, _now: Instant, /) -> None:
        """A failure is declared."""
        self._keep(Declared(self._world.now, node, report))

    def befell(self, node: NodeId, what: str, _now: Instant, /) -> None:
        """A fault."""
        self._keep(Befell(self._world.now, node, what))

    def observer(self, node: NodeId) -> TransitionObserver:
        """What a site's recoveries tell their steps to."""

        def observe(token: int, before: IntEnum, event: IntEnum, after: IntEnum, retries: int) -> None:
            self._keep(Step(self._world.now, node, token, before, event, after, retries))

        return observe

    def _watch(self, origin: NodeId, to: NodeId, datagram: bytes, delay: Duration | None) -> None:
        now = self._world.now
        self._keep(Flight(now, origin, to, None if delay is None else now + delay, self._sight(datagram)))

    def _keep(self, happening: Happening) -> None:
        if self._since <= happening.at <= self._until and len(self.happenings) < HAPPENINGS_MAX:
            self.happenings.append(happening)

    def _sight(self, datagram: bytes) -> DatagramSummary:
        """A multicast is seen once for every listener and read once."""
        if self._last is None or self._last[0] is not datagram:
            self._last = datagram, summarize_datagram(datagram)
        return self._last[1]


def lines(happenings: list[Happening], sites: tuple[NodeId, ...]) -> list[str]:
    """A trace to read: what was sent, what was lost, what went wrong and how it was mended, what was released when.

    The releases of one instant are told together and last, whoever came first in it.
    """
    trace: list[str] = []
    for at, group in groupby(happenings, key=lambda happening: happening.at):
        released: dict[str, list[NodeId]] = {}
        for happening in group:
            told = _tell(happening, sites)
            if told is None:
                continue
            if isinstance(happening, Released):
                released.setdefault(told[1], []).append(happening.node)
            else:
                trace.append(f"{seconds(at)} {told[0]} {told[1]}")
        trace += [f"{seconds(at)} {','.join(map(str, sorted(nodes)))} {text}" for text, nodes in released.items()]
    return trace


def seconds(at: Instant) -> str:
    """An instant as seconds of the world, with three decimals, or six where they matter."""
    since = at - EPOCH
    return f"{since / SECOND:.3f}" if since % MILLISECOND == 0 else f"{since / SECOND:.6f}"


def _tell(happening: Happening, sites: tuple[NodeId, ...]) -> tuple[str, str] | None:
    """(who, what), or None for what goes without saying."""
    who = str(happening.node)
    match happening:
        case Sent(to=Channel(), sighting=sighting):
            return who, f"multicast {sighting.text}{_passes(happening, sites)}"
        case Sent(to=to, sighting=sighting):
            return who, f"to {to}: {sighting.text}"
        case Flight(to=to, arrives_at=None, sighting=sighting):
            return f"{who}->{to}", f"lost {sighting.label}"
        case Step(before=before, event=event, after=after, retries=retries):
            if retries == 0 and after is State.COMPLETE:
                return None
            arrow = f"{before.name} --{event.name.lower()}--> {after.name}"
            return who, f"Ack({happening.token}) {arrow} retries={retries}"
        case Released(release=release):
            late = f" late by {(release.released_at - release.commit_at) / SECOND:.3f}" if release.late else ""
            return who, f"release {span(release.sequence, release.count)}{late}"
        case Declared(report=report):
            return who, f"declares site {report.suspect} failed at token {report.token}: {report.reason.value}"
        case Befell(what=what):
            return who, what
    return None


def _passes(sent: Sent, sites: tuple[NodeId, ...]) -> str:
    if sent.sighting.kind is not Kind.ACK or sent.node not in sites:
        return ""
    return f" -> token to {sites[(sites.index(sent.node) + 1) % len(sites)]}"
