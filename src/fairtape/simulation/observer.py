"""Those who watch a world: checkers, recorders, intruders."""

from fairtape.core.effects import FormationChange, Ordered, Release, Report
from fairtape.core.instants import Instant
from fairtape.wire.frames import NodeId


class Observer:
    """Sees everything that machines ask of the world; changes nothing."""

    def sent(self, node: NodeId, to: int, datagram: bytes, at: Instant, /) -> None:
        """A node sent a datagram, to one node or to a channel."""

    def appended(self, node: NodeId, ordered: Ordered, now: Instant, /) -> None:
        """A node wrote Msg(e) to its journal at `now` of its own clock."""

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:
        """A node released Msg(e) at `now` of its own clock."""

    def reported(self, node: NodeId, report: Report, now: Instant, /) -> None:
        """A node declared a failure at `now` of its own clock."""

    def turned(self, node: NodeId, change: FormationChange, now: Instant, /) -> None:
        """A node noted a change of formation in its journal."""

    def noticed(self, node: NodeId, text: str, now: Instant, /) -> None:
        """A node wrote something into its log."""

    def cut(self, node: NodeId, token: int, now: Instant, /) -> None:
        """A node took everything after a token out of its journal."""

    def befell(self, node: NodeId, what: str, now: Instant, /) -> None:
        """Something happened to a node: crash, restart, pause or resume."""


class Violation(Exception):
    """A guarantee that was broken: which, by whom, when (true time), and how."""

    def __init__(self, guarantee: str, node: NodeId | None, at: Instant, text: str) -> None:
        super().__init__(guarantee, node, at, text)
        self.guarantee = guarantee
        self.node = node
        self.at = at
        self.text = text

    def __str__(self) -> str:
        where = "" if self.node is None else f" at node {self.node}"
        return f"{self.guarantee}{where}: {self.text}"
