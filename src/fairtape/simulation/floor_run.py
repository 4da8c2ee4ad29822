"""A floor's ordeal: an upheaval whose sources are gateways, an operator and the arbiters of its sites.

Whatever befalls the realm, its replicas must agree after each token, and what they agree on must add up.
"""

from dataclasses import replace
from functools import partial
from random import Random
from typing import Final

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.exchange.floor import Floor
from fairtape.simulation.cluster import EPOCH
from fairtape.simulation.cluster_run import ClusterRun, judged
from fairtape.simulation.facts import Violation
from fairtape.simulation.fault_schedule import FaultSchedule, draw
from fairtape.simulation.faults import Crash, Fault, Restart
from fairtape.simulation.floor_replicas import FloorReplicas
from fairtape.simulation.ring_run import RunOutcome
from fairtape.simulation.traders import SimulatedGateway, SimulatedOperator
from fairtape.wire.frames import NodeId

OPERATOR: Final = 299
FIRST_ARBITER: Final = 300  # of site 0; that of site 1 is 301
OPENING: Final = EPOCH + 100 * MILLISECOND
OPERATOR_PERIOD: Final = 150 * MILLISECOND
TURNS_MAX: Final = 2_000_000  # events of one world: there are twice as many nodes as in one without a floor


def arbiter_of(site: NodeId) -> NodeId:
    """The source through which a site reports what its tokens traded."""
    return FIRST_ARBITER + site


class FloorRun(ClusterRun):
    """An upheaval with a floor in it, built and running."""

    def __init__(self, upheaval: FaultSchedule, *, liar: NodeId | None = None) -> None:
        chance = Random(f"floor {upheaval.seed}")  # noqa: S311 - a simulation
        gateways, tour = upheaval.plan.sources, upheaval.plan.topology.primary.tour
        self.commit_passes = chance.randint(1, 3)
        self._arbiters = {site: arbiter_of(site) for site in tour}
        sources = (*gateways, OPERATOR, *self._arbiters.values())
        faults = (*upheaval.faults, *self._crashes(chance, upheaval))
        super().__init__(replace(upheaval, plan=replace(upheaval.plan, sources=sources), faults=faults, bursts=()))
        self.realm.world.turns_max = TURNS_MAX
        self.floors = FloorReplicas(
            self.realm, self.new_floor, commit_passes=self.commit_passes, arbiters=self._arbiters, liar=liar
        )
        self.realm.world.witnesses.append(self.floors)
        self._trade(upheaval, chance)

    def new_floor(self) -> Floor:
        """An empty floor with the rights that everybody agrees on."""
        return Floor(commit_passes=self.commit_passes, operators=(OPERATOR,), arbiters=self._arbiters.values())

    def _crashes(self, chance: Random, upheaval: FaultSchedule) -> list[Fault]:
        """Operators and arbiters fail, too."""
        faults: list[Fault] = []
        for node in (OPERATOR, *self._arbiters.values()):
            if chance.random() < 0.15:
                at = EPOCH + chance.randrange(SECOND // 2, upheaval.heals_at - EPOCH)
                faults += [Crash(at, node), Restart(at + chance.randrange(SECOND), node)]
        return faults

    def _trade(self, upheaval: FaultSchedule, chance: Random) -> None:
        world, realm = self.realm.world, self.realm
        gateways = {node: SimulatedGateway(node, chance) for node in upheaval.plan.sources}
        operator = SimulatedOperator(OPERATOR, chance)
        world.at(OPENING, partial(realm.publish, OPERATOR, operator.opening()))
        for at, node, count in sorted(upheaval.bursts):
            world.at(at, partial(realm.publish, node, gateways[node].messages(count)))
        for at in range(OPENING + SECOND // 2, upheaval.heals_at, OPERATOR_PERIOD):
            world.at(at, partial(realm.publish, OPERATOR, operator.messages()))

    def run(self) -> None:
        """Both phases, and the floor's own judgment."""
        super().run()
        self.floors.finish()

    def outcome(self, broken: Violation | None) -> RunOutcome:
        """What became of it; what the floors did is counted under its own names."""
        counted = tuple(sorted(self.floors.counts.items()))
        return replace(super().outcome(broken), counts=counted)


def run_floor(seed: int) -> RunOutcome:
    """Draw, build and run one realm with a floor. Never raises: what goes wrong is the outcome."""
    return judged(seed, lambda: FloorRun(draw(seed)))
