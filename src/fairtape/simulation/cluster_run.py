"""An ordeal: an upheaval, built, run and judged.

First every fault is on, and nothing wrong may happen. Then all is healed, and what is right must happen: every site a
member again, every message in every journal, and all journals the same.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final, Protocol

from fairtape.core.instants import SECOND
from fairtape.ring.membership.formation import Formation
from fairtape.simulation.cluster import EPOCH, Cluster
from fairtape.simulation.cluster_checkers import ClusterCheckers
from fairtape.simulation.fault_schedule import FaultSchedule, Outage, draw
from fairtape.simulation.faults import Intruder, schedule_fault
from fairtape.simulation.observer import Violation
from fairtape.simulation.ring_run import NEVER_RAISES, RunOutcome, where
from fairtape.simulation.world import Spinning, Storm
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import MembershipState, OperatorVerb

HEALING_MAX: Final = 60 * SECOND  # of virtual time, after which a healed realm that has not settled is stuck


class ClusterRun:
    """An upheaval, built and running."""

    def __init__(self, upheaval: FaultSchedule) -> None:
        self.upheaval = upheaval
        self.realm = Cluster(upheaval.plan)
        self.guardians = ClusterCheckers(self.realm)
        self.realm.world.witnesses.append(self.guardians)
        self._retired: set[NodeId] = set()  # as the operator remembers it
        self._text = Random(f"text {upheaval.seed}")  # noqa: S311
        self.realm.settle()
        self._schedule()

    def _schedule(self) -> None:
        world, realm = self.realm.world, self.realm
        for at, source, count in self.upheaval.bursts:
            messages = [self._text.randbytes(self._text.choice((8, 64, 500))) for _ in range(count)]
            world.at(at, partial(realm.publish, source, messages))
        for fault in self.upheaval.faults:
            schedule_fault(world, fault, realm.reborn)
        for outage in self.upheaval.outages:
            world.at(outage.at, partial(self._close_store, outage))
            world.at(outage.at + outage.period, partial(self._open_store, outage))
        for at, site in self.upheaval.arrivals:
            world.at(at, partial(realm.seat, site))
        for at, verb, site in self.upheaval.orders:
            world.at(at, partial(self._order, verb, site))
        if self.upheaval.hostile_period:
            self._let_stranger_in()

    def _let_stranger_in(self) -> None:
        realm = self.realm
        there = tuple(site for site in realm.sites if site not in realm.plan.latecomers)
        stranger = Intruder(
            realm.world,
            targets=(*there, *realm.plan.reformers, *realm.plan.sources),
            period=self.upheaval.hostile_period,
            chance=Random(f"intruder {self.upheaval.seed}"),  # noqa: S311
        )
        realm.world.witnesses.append(stranger)
        stranger.start(self.upheaval.heals_at)

    def _order(self, verb: OperatorVerb, site: NodeId) -> None:
        """The operator orders, and repeats it as long as nobody has said that it was understood."""
        if verb is OperatorVerb.RETIRE:
            self._retired.add(site)
        else:
            self._retired.discard(site)
        self.realm.order(verb, site)

    def _close_store(self, outage: Outage) -> None:
        if outage.node is None:
            self.realm.store.closed = True
        else:
            self.realm.store.cut_off.add(outage.node)

    def _open_store(self, outage: Outage) -> None:
        if outage.node is None:
            self.realm.store.closed = False
        else:
            self.realm.store.cut_off.discard(outage.node)

    def run(self) -> None:
        """Both phases; `Violation` where a guarantee breaks."""
        world = self.realm.world
        world.run(self.upheaval.heals_at)
        self._heal()
        until = world.now + HEALING_MAX
        while (unsettled := why_unsettled(self.realm)) is not None:
            if world.now > until:
                raise Violation("HealsAtAll", None, world.now, unsettled)
            self._look_after()
            world.run(world.now + SECOND // 4)
        self.guardians.finish()

    def _heal(self) -> None:
        world, realm = self.realm.world, self.realm
        world.network.heal()
        realm.store.closed = False
        realm.store.cut_off.clear()
        for site in realm.plan.latecomers:
            realm.seat(site)
        for node in (*realm.sites, *realm.plan.reformers, *realm.plan.sources):
            world.resume(node)
            if not world.is_up(node):
                world.restart(node, realm.reborn(node))

    def _look_after(self) -> None:
        """An operator who reads the log, sees that everybody is back, and says: go on, and let everybody in."""
        for node in self.realm.plan.sources:
            if self.realm.source(node).forsaken:
                self.realm.world.restart(node, self.realm.reborn(node))
        leader = self.realm.leader()
        if leader is None:
            return
        if leader.primary.phase.name == "HALTED":
            self.realm.order(OperatorVerb.RESUME)
        for site in sorted(leader.primary.retired):
            self._order(OperatorVerb.ADMIT, site)

    def outcome(self, broken: Violation | None) -> RunOutcome:
        """What became of it."""
        return RunOutcome(
            seed=self.upheaval.seed,
            guarantee=broken.guarantee if broken else None,
            node=broken.node if broken else None,
            text=f"{(broken.at - EPOCH) / 1e9:.6f} s: {broken}" if broken else "",
            lively=broken is None,
            reforming=sum(each.number > 1 and each.first_sequence > 0 for each in self.guardians.formations()),
            deliveries=self.realm.world.deliveries,
            messages=sum(map(len, self.realm.published.values())),
            late=self.guardians.late,
            simulated=self.realm.world.now - EPOCH,
            digest=self.realm.world.digest,
            figures=tuple(self.guardians.figures()),
        )


def why_unsettled(realm: Cluster) -> str | None:
    """What is not yet as it should be in a realm in which nothing is wrong any more; None where all is."""
    leader = realm.leader()
    if leader is None:
        return "nobody leads"
    formation = leader.primary.formation
    if formation is None or leader.primary.phase.name != "STEADY":
        return f"the primary loop is {leader.primary.phase.value}"
    absent = next(filter(None, (_why_absent(realm, node, formation) for node in realm.sites)), None)
    if absent is not None:
        return absent
    if realm.pending() or not all(realm.source(node).idle for node in realm.plan.sources):
        return "a source is not done"
    lengths = {node: len(shelf.entries) for node, shelf in realm.shelves.items()}
    if len(set(lengths.values())) > 1:
        return f"journals have {lengths} entries"
    released = {node: shelf.released_through for node, shelf in realm.shelves.items()}
    tokens = {node: shelf.recovered().token for node, shelf in realm.shelves.items()}
    return None if released == tokens else f"released {released} of {tokens}"


def _why_absent(realm: Cluster, node: NodeId, formation: Formation) -> str | None:
    site, home = realm.site(node), realm.homes[node]
    if site.formation != formation:
        return f"site {node} is not in formation {formation.number}"
    if home == 0 and site.membership_state is not MembershipState.MEMBER:
        return f"site {node} is {site.membership_state.name}, not a member"
    if home and home not in site.subloops and node not in formation.members:
        return f"site {node} is not in its loop {home}"
    return None


def run_cluster(seed: int) -> RunOutcome:
    """Draw, build and run one realm. Never raises: what goes wrong is the outcome."""
    return judged(seed, lambda: ClusterRun(draw(seed)))


class Judged(Protocol):
    """Something that runs, and says what became of it."""

    realm: Cluster

    def run(self) -> None:
        """`Violation` where a guarantee breaks."""

    def outcome(self, broken: Violation | None) -> RunOutcome:
        """What became of it."""


def judged(seed: int, build: Callable[[], Judged]) -> RunOutcome:
    """Build it and run it. Never raises: what goes wrong is the outcome."""
    try:
        running = build()
    except Exception as raised:  # noqa: BLE001 - a realm that cannot be built is a finding, too
        return RunOutcome(seed=seed, guarantee=NEVER_RAISES, text=where(raised))
    world = running.realm.world
    try:
        running.run()
    except Violation as broken:
        return running.outcome(broken)
    except (Spinning, Storm) as wild:
        return running.outcome(Violation(type(wild).__name__, None, world.now, str(wild)))
    except Exception as raised:  # noqa: BLE001 - whatever a machine raises is a finding
        return running.outcome(Violation(NEVER_RAISES, None, world.now, where(raised)))
    return running.outcome(None)
