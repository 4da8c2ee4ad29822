"""The guarantees of a deployment in operation: who leads, what K is, how much memory is used, that the ring goes on.

*OneLeader.* Of two reformation servers with correct clocks at most one leads at an instant. *KeptAsReported.* What a
site reports to survive K losses is held by K + 1 sites, and no formation has a smaller K than the least one, unless the
operator resumed. *NumbersOnce.* No formation has a number that a member knows of another one. *BoundedMemory.* No queue
of a machine exceeds its limit. *Progress.* While a majority of the members, enough for K, reach one another, X_R and
through it the store, with correct clocks, the order goes on within three leases. A leader's lease is the one that it
claimed: after a slow store it is longer. A store that has lost formations counts as a new one: the next formation waits
for absent sites, or for the operator.

What the last two depend on is sampled from the truth: nodes, links, clocks and store as they are.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from fairtape.core.effects import Ordered
from fairtape.core.instants import Duration, Instant
from fairtape.nodes.coordinator.server import Reformer
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.topology import Excess, lease_margin
from fairtape.simulation.cluster import Cluster
from fairtape.simulation.world import Observer, Violation
from fairtape.wire.frames import Kind, NodeId
from fairtape.wire.membership import SiteReport, decode_membership

PROGRESS_LEASES: Final = 3
SAMPLES_PER_LEASE: Final = 4
LOSS_MAX: Final = 0.01  # of a link on which a majority is promised to make progress
LEADER_CHECKED: Final = frozenset((Kind.SITE_REPORT, Kind.GRANT, Kind.FENCE, Kind.INSTALL))
"""Sites report several times within a lease, and the others are what leaders send."""


class OperationCheckers(Observer):
    """Checks the operation of one cluster, at its messages and at sampled instants."""

    def __init__(self, cluster: Cluster, formations: Callable[[], list[Formation]]) -> None:
        self._cluster = cluster
        self._formations = formations
        self._checked = 0  # formations
        self._holders: dict[tuple[int, int], set[NodeId]] = defaultdict(set)
        self._kept_through: dict[NodeId, int] = defaultdict(int)  # the token up to which a report was checked
        self._progress = Progress(cluster, formations)
        self._period = max(cluster.plan.topology.primary.timing.lease_period // SAMPLES_PER_LEASE, 1)
        cluster.world.at(cluster.world.now + self._period, self._sample)

    def appended(self, node: NodeId, ordered: Ordered, now: Instant, /) -> None:  # noqa: ARG002
        self._holders[ordered.formation, ordered.token].add(node)

    def fault_event(self, node: NodeId, what: str, now: Instant, /) -> None:  # noqa: ARG002
        if what == "restart":
            self._kept_through[node] = 0
        self._progress.disturbed(node, what)

    def sent(self, node: NodeId, to: int, datagram: bytes, at: Instant, /) -> None:  # noqa: ARG002
        match datagram[2]:
            case Kind.SITE_REPORT if to == self._cluster.plan.reformers[0]:
                report = decode_membership(datagram)
                assert isinstance(report, SiteReport)
                if report.loop == 0 and report.settled_through > self._kept_through[node]:
                    self._check_kept(node, report)
            case Kind.GRANT | Kind.FENCE | Kind.INSTALL:
                self._check_formations()
        if datagram[2] in LEADER_CHECKED:
            self.check_leader()

    def _check_kept(self, node: NodeId, report: SiteReport) -> None:
        """KeptAsReported, by the sites that ever held a token. What is lost afterwards is another matter."""
        known, self._kept_through[node] = self._kept_through[node], report.settled_through
        formations = [each for each in self._formations() if each.number <= report.formation]
        for entry in reversed(self._cluster.journals[node].entries):
            if entry.token <= known:
                return
            if not isinstance(entry, Ordered) or entry.token > report.settled_through:
                continue
            needed = 1 + min((each.resilience for each in formations if each.number >= entry.formation), default=0)
            holders = self._holders[entry.formation, entry.token]
            if len(holders) < needed:
                text = f"reports that {needed} sites hold token {entry.token}; {sorted(holders)} do"
                self._violated("KeptAsReported", node, text)

    def _check_formations(self) -> None:
        """KeptAsReported and NumbersOnce, for each new formation."""
        formations = self._formations()
        topology = self._cluster.plan.topology
        for place in range(self._checked, len(formations)):
            formation = formations[place]
            before = [each for each in formations[:place] if each.number < formation.number][-1:]
            least = min([topology.least_resilience, *(each.resilience for each in before)])
            if formation.resilience < least and not self._cluster.resumed:
                text = f"formation {formation.number} has K = {formation.resilience}, and must have {least}"
                self._violated("KeptAsReported", None, text)
            if any(each.number == formation.number for each in formations[:place]):
                knowing = [site for site in formation.members if self._knows(site, formation.number)]
                if knowing:
                    text = f"there are two formations {formation.number}, and sites {knowing} knew the first"
                    self._violated("NumbersOnce", None, text)
        self._checked = len(formations)

    def _knows(self, site: NodeId, number: int) -> bool:
        """Whether a site was in a formation of this number, or a later one, when another one was recorded."""
        journal = self._cluster.journals.get(site)
        if journal is None or not self._cluster.world.is_up(site):
            return False
        present = self._cluster.site(site).formation
        return journal.recovered().number >= number or (present is not None and present.number > number)

    def check_leader(self) -> None:
        """OneLeader, now, of the servers with one store: a site follows one of them (decision 63, One store)."""
        leaders = [node for node in self._cluster.plan.reformers if self._leads(node)]
        copied = self._cluster.store_access.copied
        for group in ([node for node in leaders if (node in copied) == place] for place in (False, True)):
            if len(group) > 1:
                self._violated("OneLeader", group[-1], f"servers {group} lead at the same time")

    def _leads(self, node: NodeId) -> bool:
        """Whether a server leads with a correct clock: a lease is only as good as the clock that measures it."""
        world = self._cluster.world
        machine, shown = world.machine(node), world.now + world.clock(node).error_at(world.now)
        assert isinstance(machine, Reformer)
        runs = world.is_up(node) and not world.is_paused(node)
        return runs and machine.leads(shown) and is_correct(self._cluster, node)

    def _sample(self) -> None:
        world = self._cluster.world
        world.at(world.now + self._period, self._sample)
        for node in (*self._cluster.journals, *self._cluster.plan.sources):
            if world.is_up(node):
                machine = self._cluster.site(node) if node in self._cluster.homes else self._cluster.source(node)
                for name, size, limit in machine.queue_sizes():
                    if size > limit:
                        self._violated("BoundedMemory", node, f"{name}: {size}, at most {limit}")
        stalled = self._progress.sample()
        if stalled is not None:
            self._violated("Progress", None, stalled)

    def _violated(self, guarantee: str, node: NodeId | None, text: str) -> None:
        raise Violation(guarantee, node, self._cluster.world.now, text)


def is_correct(cluster: Cluster, node: NodeId) -> bool:
    """Whether the clock of a node is truly as good as a member's clock must be, and as it declares."""
    clock, limit = cluster.world.clock(node), cluster.plan.topology.primary.timing.clock_error_max
    return abs(clock.error_at(cluster.world.now)) <= max(clock.bound, 0) <= limit


class Progress:
    """Watches for periods in which the order must go on, and does not."""

    def __init__(self, cluster: Cluster, formations: Callable[[], list[Formation]]) -> None:
        self._cluster = cluster
        self._formations = formations
        self._since: Instant = cluster.world.now  # when the present period began
        self._common: frozenset[NodeId] = frozenset()  # the sites that were well in all of it
        self._reached = 0  # the highest token then
        self._restarted_at: dict[NodeId, Instant] = {}
        self._leader_lease: Duration = cluster.plan.leader_lease  # the longest one claimed in the period
        self._recorded_at: Instant = 0  # the latest formation
        self._count = 0  # of formations

    def disturbed(self, node: NodeId, what: str) -> None:
        """A node crashed, paused or came back: where that concerns X_R, or a site of the period, it ends."""
        if what == "restart":
            self._restarted_at[node] = self._cluster.world.now
        if node in self._common or node in self._cluster.plan.reformers:
            self._begin()

    def sample(self) -> str | None:
        """Whether the order has stood still although it must not; what is wrong then."""
        formations = self._formations()
        if len(formations) > self._count:
            self._count, self._recorded_at = len(formations), self._cluster.world.now
            self._reached = min(self._reached, formations[-1].first_token - 1)  # a Break takes tokens back
        leader = self._cluster.leader()
        self._leader_lease = max(self._leader_lease, self._claimed_lease())
        waits = leader is not None and leader.primary.waits  # at most 16 leases (decision 57, Exclusion)
        if not formations or waits or self._has_lost(formations, leader) or not self._servers_are_well():
            self._begin()
            return None
        formation = formations[-1]
        well = self._sites_that_are_well(formation)
        reached = max((self._cluster.site(site).complete_through for site in well), default=0)
        if reached > self._reached or not self._enough(self._common & well, formation):
            self._begin(well, reached)
            return None
        self._common &= well
        lasted = self._cluster.world.now - self._since
        if lasted <= PROGRESS_LEASES * self._lease(formation):
            return None
        phase = "no server leads" if leader is None else leader.primary.phase.value
        return (
            f"nothing was ordered after token {self._reached} for {lasted / 1e6:.0f} ms, although sites"
            f" {sorted(self._common)} of {formation.members} could ({phase})"
        )

    def _begin(self, well: frozenset[NodeId] = frozenset(), reached: int = 0) -> None:
        self._since, self._common = self._cluster.world.now, well
        self._reached = max(self._reached, reached)
        self._leader_lease = self._claimed_lease() or self._leader_lease

    def _lease(self, formation: Formation) -> Duration:
        """The longest of the leases on which failures are detected."""
        timing = formation.timing
        return max(timing.lease_period + lease_margin(timing), self._leader_lease)

    def _claimed_lease(self) -> Duration:
        """The lease of the latest claim, which other servers must wait for; 0: the store knows none."""
        leadership = self._cluster.store_access.store.leadership
        return 0 if leadership is None else leadership.lease

    def _has_lost(self, formations: list[Formation], leader: Reformer | None) -> bool:
        """Whether the store has lost the latest formation, and no leader goes on with what it remembers of it."""
        known = [entry.number for entry in self._cluster.store_access.store.log if entry.loop == 0]
        if known and known[-1] == formations[-1].number:
            return False
        return leader is None or leader.primary.formation != formations[-1]

    def _enough(self, sites: frozenset[NodeId], formation: Formation) -> bool:
        """Whether these sites are to go on alone: a majority of the members, with K, and with what the others had."""
        topology = self._cluster.plan.topology
        members = sites.intersection(formation.members)
        remembering = {site for site in members if self._restarted_at.get(site, 0) < self._recorded_at}
        if 2 * len(members) <= len(formation.members) or not remembering:
            return False
        if topology.resilience_of(sorted(members)) < min(topology.least_resilience, formation.resilience):
            return False
        if topology.excess is Excess.HALT:
            began = self._reached >= formation.first_token  # before that, less may be lost
            most = formation.resilience if began else min(formation.resilience, formation.resilience_before)
            return len(formation.members) - len(remembering) <= most
        return True

    def _servers_are_well(self) -> bool:
        """Whether all reformation servers that run reach the store and the sites, and one of them runs."""
        cluster, world = self._cluster, self._cluster.world
        running = [node for node in cluster.plan.reformers if world.is_up(node)]
        well = all(not world.is_paused(node) and is_correct(cluster, node) for node in running)
        return bool(running) and well and not cluster.store_access.disturbed

    def _sites_that_are_well(self, formation: Formation) -> frozenset[NodeId]:
        """The members that run with correct clocks and reach one another, all servers that run, and all sources."""
        cluster, world = self._cluster, self._cluster.world
        if cluster.plan.tree_loss:
            return frozenset()
        well = [
            site
            for site in formation.members
            if site in cluster.journals
            and world.is_up(site)
            and not world.is_paused(site)
            and is_correct(cluster, site)
            and site not in cluster.missing_keys
        ]
        servers = [node for node in cluster.plan.reformers if world.is_up(node)]
        well = [site for site in well if all(self._linked(site, server) for server in servers)]
        while well:
            unlinked = {site: sum(not self._linked(site, other) for other in well if other != site) for site in well}
            worst = max(well, key=lambda site: unlinked[site])
            if not unlinked[worst]:
                break
            well.remove(worst)
        return frozenset(well)

    def _linked(self, one: NodeId, other: NodeId) -> bool:
        network, model = self._cluster.world.network, self._cluster.plan.link_model
        links: Iterator[tuple[NodeId, NodeId]] = iter(((one, other), (other, one)))
        return all(network.is_open(*link) and model(*link).loss <= LOSS_MAX for link in links)
