"""A formation store that is slow, or loses answers, in front of the store of a simulated cluster."""

from collections.abc import Callable
from random import Random

from fairtape.core.formation_log import Claim, StoreRequest, StoreResponse, Unavailable
from fairtape.core.instants import Duration
from fairtape.simulation.cluster import Cluster
from fairtape.simulation.world import StoreAccess
from fairtape.wire.frames import NodeId


class FaultyStore:
    """What a subclass does not change is answered as usual."""

    def __init__(self, cluster: Cluster) -> None:
        self._access: StoreAccess = cluster.world.store_access or cluster.store_access
        cluster.world.store_access = self
        cluster.store_access.behind_faults = True

    def query(self, node: NodeId, question: StoreRequest) -> tuple[Duration, StoreResponse]:
        return self._access.query(node, question)


class SlowStore(FaultyStore):
    """Carries out each request at once, and answers after the time that `delay_of` says; None: the usual one."""

    def __init__(self, cluster: Cluster, delay_of: Callable[[StoreRequest], Duration | None]) -> None:
        super().__init__(cluster)
        self._delay_of = delay_of

    def query(self, node: NodeId, question: StoreRequest) -> tuple[Duration, StoreResponse]:
        delay, response = super().query(node, question)
        wanted = self._delay_of(question)
        return (delay if wanted is None else wanted), response


class LostAnswers(FaultyStore):
    """Carries out each claim, and loses a share of the answers: the server waits 0.4 to 0.8 of a lease for them."""

    def __init__(self, cluster: Cluster, share: float, chance: Random) -> None:
        super().__init__(cluster)
        self.share = share
        self._lease = cluster.plan.leader_lease
        self._chance = chance

    def query(self, node: NodeId, question: StoreRequest) -> tuple[Duration, StoreResponse]:
        delay, response = super().query(node, question)
        if isinstance(question, Claim) and self._chance.random() < self.share:
            return int(self._lease * self._chance.uniform(0.4, 0.8)), Unavailable(question)
        return delay, response
