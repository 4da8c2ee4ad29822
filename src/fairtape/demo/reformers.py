"""The reformation server (X_R) as a process: forms the ring, and reforms it without a failed site."""

from dataclasses import dataclass

from fairtape.core.instants import Instant
from fairtape.demo.world import OPERATOR, REFORMER, WorldPlan
from fairtape.deployment.process.children import ChildLink, Ready
from fairtape.deployment.process.temporary_site import Rounds
from fairtape.deployment.ring_runtime import faults_at, ring_transport
from fairtape.net.clock import SharedClock
from fairtape.net.driver import Driver, run_in_real_time
from fairtape.net.node_runtime import NodeRuntime
from fairtape.nodes.coordinator.server import Reformer, ReformerConfig
from fairtape.ring.membership.formation import Formation
from fairtape.storage.formation_stores import StoreThread, open_store


@dataclass(frozen=True, slots=True)
class FormationNews:
    """A formation was decided."""

    formation: Formation
    cause: str
    decided_at: Instant


@dataclass(frozen=True, slots=True)
class CommitSchedule:
    """The order to do background work between the commit instants of this formation."""

    formation: Formation


def run_reformer(link: ChildLink) -> None:
    """Entry point of the process."""
    link.tell(Ready())
    plan = link.expect(WorldPlan)
    if plan is None:
        return
    clock = SharedClock()
    ring = plan.ring
    config = ReformerConfig(me=REFORMER, operator=OPERATOR, leader_lease=ring.formation.timing.lease_period)
    reformer = Reformer(config, plan.topology, keys=ring.keys, born_at=clock.now(), clock_bound=clock.bound)
    runtime = NodeRuntime(reformer, ring_transport(ring, REFORMER), link_faults=faults_at(ring, REFORMER))
    driver = Driver([runtime], clock)
    runtime.store = StoreThread(open_store(plan.store), driver.wakeup)
    rounds = Rounds(ring.formation, turn=0, turns=1)
    reported = 0

    def stopped() -> bool:
        nonlocal reported
        if rounds.come(clock.now()):
            for _ in link.orders():
                pass
            for decision in reformer.primary.decisions[reported:]:
                link.tell(FormationNews(decision.formation, decision.cause, decision.decided_at))
                reported += 1
        return link.stopped

    try:
        run_in_real_time()
        driver.run(stopped)
    finally:
        driver.close()
