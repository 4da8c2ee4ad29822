"""The trace of a run: events in order, for golden traces and space-time diagrams, and its text form."""

from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import Final, TypeAlias

from fairtape.core.effects import Channel, Ordered, Release, Report
from fairtape.core.instants import MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.ring.receiver.recovery import TransitionObserver
from fairtape.ring.receiver.recovery_tables import State
from fairtape.simulation.datagram_summary import DatagramSummary, span, summarize_datagram
from fairtape.simulation.world import EPOCH, Observer, World
from fairtape.wire.frames import Kind, NodeId

TRACE_EVENTS_MAX: Final = 500_000


@dataclass(frozen=True, slots=True)
class Sent:
    """A node sent a datagram, to one node or to a channel."""

    at: Instant
    node: NodeId
    to: NodeId | Channel
    summary: DatagramSummary


@dataclass(frozen=True, slots=True)
class Flight:
    """One copy of a datagram on one link; `arrives_at` is None where it was lost."""

    at: Instant
    node: NodeId
    to: NodeId
    arrives_at: Instant | None
    summary: DatagramSummary


@dataclass(frozen=True, slots=True)
class Transition:
    """A recovery took a transition of its state table."""

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
class FaultEvent:
    """A fault hit a node."""

    at: Instant
    node: NodeId
    what: str


TraceEvent: TypeAlias = Sent | Flight | Transition | Released | Declared | FaultEvent


class Recorder(Observer):
    """Records the events between two true instants."""

    def __init__(self, world: World, *, since: Instant = 0, until: Instant = NEVER) -> None:
        self.events: list[TraceEvent] = []
        self._world = world
        self._since = since
        self._until = until
        self._last: tuple[bytes, DatagramSummary] | None = None
        world.observers.insert(0, self)  # before the checkers, so that a violating event is recorded too
        world.network.watch = self._watch

    def sent(self, node: NodeId, to: NodeId | Channel, datagram: bytes, at: Instant, /) -> None:
        self._keep(Sent(at, node, to, self._summarize(datagram)))

    def delivered(self, node: NodeId, _ordered: Ordered, release: Release, _now: Instant, /) -> None:
        self._keep(Released(self._world.now, node, release))

    def reported(self, node: NodeId, report: Report, _now: Instant, /) -> None:
        self._keep(Declared(self._world.now, node, report))

    def fault_event(self, node: NodeId, what: str, _now: Instant, /) -> None:
        self._keep(FaultEvent(self._world.now, node, what))

    def observer(self, node: NodeId) -> TransitionObserver:
        """The callback that a receiver calls at each transition of a recovery."""

        def observe(token: int, before: IntEnum, event: IntEnum, after: IntEnum, retries: int) -> None:
            self._keep(Transition(self._world.now, node, token, before, event, after, retries))

        return observe

    def _watch(self, origin: NodeId, to: NodeId, datagram: bytes, delay: Duration | None) -> None:
        now = self._world.now
        self._keep(Flight(now, origin, to, None if delay is None else now + delay, self._summarize(datagram)))

    def _keep(self, event: TraceEvent) -> None:
        if self._since <= event.at <= self._until and len(self.events) < TRACE_EVENTS_MAX:
            self.events.append(event)

    def _summarize(self, datagram: bytes) -> DatagramSummary:
        """Decode a multicast once, although it is seen once per receiver."""
        if self._last is None or self._last[0] is not datagram:
            self._last = datagram, summarize_datagram(datagram)
        return self._last[1]


def lines(events: list[TraceEvent], sites: tuple[NodeId, ...]) -> list[str]:
    """The trace as text: datagrams sent and lost, faults, recoveries and releases, one line each.

    The releases of one instant come last and share a line.
    """
    trace: list[str] = []
    for at, group in groupby(events, key=lambda event: event.at):
        released: dict[str, list[NodeId]] = {}
        for event in group:
            described = _describe(event, sites)
            if described is None:
                continue
            if isinstance(event, Released):
                released.setdefault(described[1], []).append(event.node)
            else:
                trace.append(f"{seconds(at)} {described[0]} {described[1]}")
        trace += [f"{seconds(at)} {','.join(map(str, sorted(nodes)))} {text}" for text, nodes in released.items()]
    return trace


def seconds(at: Instant) -> str:
    """Seconds since the start of the world: three decimals, or six if it is not a whole millisecond."""
    since = at - EPOCH
    return f"{since / SECOND:.3f}" if since % MILLISECOND == 0 else f"{since / SECOND:.6f}"


def _describe(event: TraceEvent, sites: tuple[NodeId, ...]) -> tuple[str, str] | None:
    """(node, text), or None for events that a trace leaves out."""
    who = str(event.node)
    match event:
        case Sent(to=Channel(), summary=summary):
            return who, f"multicast {summary.text}{_token_pass(event, sites)}"
        case Sent(to=to, summary=summary):
            return who, f"to {to}: {summary.text}"
        case Flight(to=to, arrives_at=None, summary=summary):
            return f"{who}->{to}", f"lost {summary.label}"
        case Transition(token=token, before=before, event=cause, after=after, retries=retries):
            if retries == 0 and after is State.COMPLETE:
                return None
            arrow = f"{before.name} --{cause.name.lower()}--> {after.name}"
            return who, f"Ack({token}) {arrow} retries={retries}"
        case Released(release=release):
            late = f" late by {(release.released_at - release.commit_at) / SECOND:.3f}" if release.late else ""
            return who, f"release {span(release.sequence, release.count)}{late}"
        case Declared(report=report):
            return who, f"declares site {report.suspect} failed at token {report.token}: {report.reason.value}"
        case FaultEvent(what=what):
            return who, what
    return None


def _token_pass(sent: Sent, sites: tuple[NodeId, ...]) -> str:
    if sent.summary.kind is not Kind.ACK or sent.node not in sites:
        return ""
    return f" -> token to {sites[(sites.index(sent.node) + 1) % len(sites)]}"
