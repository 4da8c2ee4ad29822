"""What checkers, recorders and the intruder see of a world, and the exception of a broken guarantee."""

from fairtape.core.effects import FormationChange, Ordered, Release, Report
from fairtape.core.instants import Instant
from fairtape.wire.frames import NodeId


class Observer:
    """Sees every effect of every machine, and every fault of a node. Subclasses override what they need."""

    def sent(self, node: NodeId, to: int, datagram: bytes, at: Instant, /) -> None:
        """A node sent a datagram, to one node or to a channel."""

    def appended(self, node: NodeId, ordered: Ordered, now: Instant, /) -> None:
        """A node wrote Msg(e) to its journal at `now` of its own clock."""

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:
        """A node released Msg(e) at `now` of its own clock."""

    def reported(self, node: NodeId, report: Report, now: Instant, /) -> None:
        """A node declared a failure at `now` of its own clock."""

    def formation_changed(self, node: NodeId, change: FormationChange, now: Instant, /) -> None:
        """A node wrote a change of formation to its journal."""

    def noticed(self, node: NodeId, text: str, now: Instant, /) -> None:
        """A node wrote a line to its log."""

    def truncated(self, node: NodeId, token: int, now: Instant, /) -> None:
        """A node removed everything after a token from its journal."""

    def fault_event(self, node: NodeId, what: str, now: Instant, /) -> None:
        """A node had a "crash", "restart", "pause" or "resume"."""


class Violation(Exception):
    """A broken guarantee: its name, the node (if one), the true time, and what was found."""

    def __init__(self, guarantee: str, node: NodeId | None, at: Instant, text: str) -> None:
        super().__init__(guarantee, node, at, text)
        self.guarantee = guarantee
        self.node = node
        self.at = at
        self.text = text

    def __str__(self) -> str:
        where = "" if self.node is None else f" at node {self.node}"
        return f"{self.guarantee}{where}: {self.text}"
