"""One leader: no two reformation servers of a cluster lead at the same true time.

The leases that this follows from are measured by the clocks of the servers, so a server whose clock declares a larger
error than is permitted does not count: it gives up its lead when it notices.
"""

from typing import Final

from fairtape.core.instants import Instant
from fairtape.nodes.coordinator.server import Reformer
from fairtape.simulation.cluster import Cluster
from fairtape.simulation.world import Observer, Violation
from fairtape.wire.frames import Kind, NodeId

CHECKED: Final = frozenset((Kind.SITE_REPORT, Kind.GRANT, Kind.FENCE, Kind.INSTALL))
"""Sites report several times within a lease, and the others are what leaders send."""


class LeaderChecker(Observer):
    """OneLeader, as an observer of the world of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def sent(self, node: NodeId, to: int, datagram: bytes, at: Instant, /) -> None:  # noqa: ARG002
        if datagram[2] in CHECKED:
            self.check()

    def check(self) -> None:
        """Raises `Violation` if two servers lead now."""
        leaders = [server for server in self._cluster.plan.reformers if self._leads(server)]
        if len(leaders) > 1:
            text = f"servers {leaders} lead at the same time"
            raise Violation("OneLeader", leaders[-1], self._cluster.world.now, text)

    def _leads(self, node: NodeId) -> bool:
        world = self._cluster.world
        machine, clock = world.machine(node), world.clock(node)
        assert isinstance(machine, Reformer)
        now = clock.read(world.now)
        trusted = clock.bound <= self._cluster.plan.topology.primary.timing.clock_error_max
        return world.is_up(node) and trusted and machine.leads(now)
