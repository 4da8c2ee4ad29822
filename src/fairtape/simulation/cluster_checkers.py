"""The checkers of a cluster, and what they observe besides: notices, and how long failures took to repair."""

from collections import Counter
from collections.abc import Iterator
from functools import partial

from fairtape.core.instants import MICROSECOND, Duration, Instant
from fairtape.core.spans import StreamId
from fairtape.nodes.coordinator.server import Reformer
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import decode_formation
from fairtape.simulation.checkers import Checkers, Facts
from fairtape.simulation.cluster import Cluster
from fairtape.wire.frames import NodeId


class ClusterCheckers(Checkers):
    """Checks all guarantees of one cluster, as an observer of its world."""

    def __init__(self, cluster: Cluster) -> None:
        self.notices: list[tuple[Instant, NodeId, str]] = []
        self._cluster = cluster
        self._formations = [] if cluster.plan.formation is None else [cluster.plan.formation]
        self._decoded = 0  # entries of the store's log
        self._grains: dict[NodeId, Duration] = {}
        self._crashed_at: dict[NodeId, Instant] = {}  # by true time, of sites that were members
        super().__init__(
            Facts(
                sites=cluster.sites,
                formations=self.formations,
                is_fixed=cluster.plan.formation is not None,
                published=cluster.published,
                journals=cluster.journals,
                complete=lambda node: cluster.receiver(node).complete_through,
                claim=self._claim,
                settled={source: partial(self._settled, source) for source in cluster.plan.sources},
                used=cluster.numbers_used,
                grain=self._grain,
                true_time=lambda: cluster.world.now,
                rolled_back=cluster.rolled_back,
                is_deceived=self._is_deceived,
            )
        )

    @property
    def releases(self) -> int:
        """The count of releases, at all sites."""
        return self.facts.released

    @property
    def late_at(self) -> Counter[NodeId]:
        """The count of releases marked late, by site."""
        return self.facts.late_at

    @property
    def late(self) -> int:
        """The count of releases marked late, at all sites."""
        return self.facts.late_at.total()

    def released_through(self, node: NodeId) -> int:
        """The token."""
        return self.facts.released_through[node]

    def noticed(self, node: NodeId, text: str, now: Instant, /) -> None:  # noqa: ARG002
        self.notices.append((self._cluster.world.now, node, text))

    def fault_event(self, node: NodeId, what: str, now: Instant, /) -> None:
        super().fault_event(node, what, now)
        if what == "crash" and self.formations() and node in self.formations()[-1].members:
            self._crashed_at[node] = self._cluster.world.now

    def formations(self) -> list[Formation]:
        """The fixed formation, or all that were ever recorded for the primary loop."""
        recorded = self._cluster.store_access.recorded
        for entry in recorded[self._decoded :]:
            if entry.loop == 0:
                self._formations.append(decode_formation(entry.formation))
        self._decoded = len(recorded)
        return self._formations

    def durations(self) -> Iterator[tuple[str, Duration]]:
        """How long it took to detect the crash of a member ("detect"), and then to record a formation ("reform")."""
        cluster = self._cluster
        for node in cluster.plan.reformers:
            server = cluster.world.machine(node)
            assert isinstance(server, Reformer)
            for decision in server.primary.decisions:
                if decision.formation.first_sequence and decision.formation.number > 1:
                    yield "reform", decision.decided_at - decision.began_at
                    began = [self._crashed_at[site] for site in decision.silent if site in self._crashed_at]
                    if began and decision.began_at > max(began):
                        yield "detect", decision.began_at - max(began)

    def _claim(self, node: NodeId) -> tuple[int, int]:
        """The formation that a site is in, and what it says that all members hold."""
        if self._cluster.plan.formation is not None:
            return self._cluster.plan.formation.number, self._cluster.receiver(node).stable_through
        site = self._cluster.site(node)
        return 0 if site.formation is None else site.formation.number, site.stable_through

    def _settled(self, source: NodeId) -> tuple[StreamId, int]:
        machine = self._cluster.source(source)
        return (source, machine.incarnation), machine.settled_through

    def _is_deceived(self, node: NodeId) -> bool:
        if self._cluster.plan.formation is not None:
            return False
        clock, timing = self._cluster.world.clock(node), self._cluster.plan.topology.primary.timing
        return abs(clock.error_at(self._cluster.world.now)) > max(clock.bound, timing.clock_error_max)

    def _grain(self, node: NodeId) -> Duration:
        """How late a correct clock may be at a deadline; a step beyond the permitted clock error does not count."""
        if node not in self._grains:
            grain = self._cluster.world.clock(node).grain
            if self._cluster.plan.formation is None:  # a site of a fixed formation cannot withdraw
                grain = min(grain, 2 * self._cluster.plan.topology.primary.timing.clock_error_max + MICROSECOND)
            self._grains[node] = grain
        return self._grains[node]
