"""The jury: all checkers as one witness of a world."""

from collections.abc import Callable, Mapping, Sequence

from fairtape.core.effects import Channel, Ordered, Release, Report
from fairtape.core.instants import Instant
from fairtape.simulation.checkers import GUARANTEES, Checker
from fairtape.simulation.facts import Facts, Releasing, Writing
from fairtape.simulation.observer import Observer
from fairtape.wire.frames import Kind, NodeId, decode_control


class RingCheckers(Observer):
    """Keeps the facts, and lets each checker hear only what it asked for."""

    def __init__(self, facts: Facts, guarantees: Sequence[type[Checker]] = GUARANTEES) -> None:
        self.facts = facts
        self.checkers = [guarantee(facts) for guarantee in guarantees]
        self._placed_through = facts.formation.first_token - 1
        self._on_block = self._asking("block_sent")
        self._on_ack = self._asking("ack_sent")
        self._on_placed = self._asking("placed")
        self._on_appended = self._asking("appended")
        self._on_delivered = self._asking("delivered")
        self._on_declared = self._asking("declared")

    def _asking(self, hook: str) -> list[Callable[..., None]]:
        return [getattr(c, hook) for c in self.checkers if getattr(type(c), hook) is not getattr(Checker, hook)]

    def sent(self, node: NodeId, _to: NodeId | Channel, datagram: bytes, at: Instant, /) -> None:
        """A datagram crosses the network."""
        self.facts.at = at
        kind = datagram[2]
        if kind == Kind.BLOCK:
            for check in self._on_block:
                check(node, datagram)
        elif kind == Kind.ACK:
            ack = decode_control(datagram)
            for check in self._on_ack:
                check(node, ack)

    def appended(self, node: NodeId, ordered: Ordered, now: Instant, /) -> None:
        """Msg(e) is in a journal."""
        if ordered.token > self._placed_through:
            self._placed_through = ordered.token
            self.facts.placed.append(ordered.token)
            for check in self._on_placed:
                check(ordered)
        writing = Writing(node, ordered, now)
        for check in self._on_appended:
            check(writing)
        self._note(node, ordered, now)  # after the checks: they see what was before

    def _note(self, node: NodeId, ordered: Ordered, now: Instant) -> None:
        facts = self.facts
        facts.appended_through[node] = ordered.token
        facts.appended_at[node, ordered.token] = now
        for span in ordered.spans:
            facts.held.setdefault((span.source, span.incarnation), {})[node] = span.first + span.count - 1

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:
        """Msg(e) is released."""
        self.facts.released += 1
        self.facts.late += release.late
        releasing = Releasing(node, ordered, release, now)
        for check in self._on_delivered:
            check(releasing)

    def reported(self, node: NodeId, report: Report, _now: Instant, /) -> None:
        """A failure is declared."""
        self.facts.reported.setdefault(node, report)
        for check in self._on_declared:
            check(node, report)

    def befell(self, node: NodeId, what: str, now: Instant, /) -> None:
        """A fault."""
        facts = self.facts
        match what:
            case "crash":
                facts.down.add(node)
                facts.paused.discard(node)
            case "restart":
                facts.down.discard(node)
            case "pause":
                facts.paused.add(node)
            case "resume":
                facts.paused.discard(node)
                facts.resumed_at[node] = now

    def finished(self, clocks: Mapping[NodeId, Instant]) -> None:
        """The run is over."""
        for checker in self.checkers:
            checker.finished(clocks)
