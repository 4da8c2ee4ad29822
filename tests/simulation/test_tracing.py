"""The traces of sites agree with the simulated network: every delay, every loss, every request."""

from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from fairtape.core.instants import NEVER
from fairtape.ring.receiver.tracing import Trace, TraceKind
from fairtape.simulation.cluster_run import ClusterRun
from fairtape.simulation.recorder import Flight, Sent
from fairtape.simulation.ring_schedule import draw_ring
from fairtape.wire.frames import Kind, NodeId

pytestmark = pytest.mark.xdist_group("traces")  # each world is run once, for all tests of it

SEEDS = range(12)
LOSSES = (0.0, 0.05, 0.2)


class Traced:
    """A world with true clocks and loss as its only fault, after its run."""

    def __init__(self, seed: int, loss: float) -> None:
        drawn = draw_ring(seed, loss=loss)
        assert drawn.plan.formation is not None
        self.formation = replace(drawn.plan.formation, timed=True)
        self.loss, link_faults = loss, replace(drawn.plan.link_model(1, 2), duplication=0.0)
        plan = replace(
            drawn.plan, formation=self.formation, clocks={}, tree_loss=None, link_model=lambda _origin, _to: link_faults
        )
        schedule = replace(drawn, plan=plan, faults=(), intruder_period=0, faulty_clocks=())
        self.run = ClusterRun(schedule, record=(0, NEVER))
        self.run.run()
        self.traces: dict[NodeId, list[Trace]] = {}
        for site, tracer in self.run.cluster.tracers.items():
            tracer.end_formation(self.run.cluster.world.now)
            self.traces[site] = tracer.take(NEVER)
            assert not tracer.dropped
        self.acks: dict[tuple[int, NodeId], list[Flight]] = defaultdict(list)  # by token and receiver, as they left
        self.asked: Counter[NodeId] = Counter()  # acknowledgments that each site asked for
        assert self.run.recorder is not None
        for each in self.run.recorder.events:
            if isinstance(each, Flight) and each.summary.kind is Kind.ACK and "part" not in each.summary.label:
                self.acks[each.summary.tokens[0], each.to].append(each)
            if isinstance(each, Sent) and each.summary.kind is Kind.REQUEST:
                self.asked[each.node] += len(each.summary.tokens)

    def of_kind(self, site: NodeId, kind: TraceKind) -> list[Trace]:
        return [trace for trace in self.traces[site] if trace.kind == kind]

    def whole(self, site: NodeId) -> list[Trace]:
        """The tokens that became complete, in one part, early enough that none of their datagrams was in flight."""
        ended_at = self.run.cluster.world.now
        return [
            trace
            for trace in self.of_kind(site, TraceKind.TOKEN)
            if 0 < trace.complete_at < ended_at - 4 * self.formation.timing.retry_period
            and (trace.token, site) in self.acks
        ]


@pytest.fixture(scope="module", params=[(seed, loss) for seed in SEEDS for loss in LOSSES], ids=str)
def world(request: pytest.FixtureRequest) -> Traced:
    return Traced(*request.param)


def test_a_token_without_requests_has_the_delay_of_the_direct_copy(world: Traced) -> None:
    for site in world.run.cluster.sites:
        for trace in world.whole(site):
            direct = world.acks[trace.token, site][0]
            assert (direct.node, direct.at) == (trace.peer, trace.sent_at)
            if not trace.ack_requests:
                assert trace.came_at == direct.arrives_at


def test_copies_distinguish_lost_from_late_acknowledgments(world: Traced) -> None:
    linger = world.formation.timing.retry_period
    for site in world.run.cluster.sites:
        for trace in world.whole(site):
            if trace.ack_requests:
                came = [flight.arrives_at for flight in world.acks[trace.token, site] if flight.arrives_at is not None]
                assert trace.came_at == min(came)
                assert trace.copies == sum(at <= trace.complete_at + linger for at in came) - 1
                if world.acks[trace.token, site][0].arrives_at is None:
                    assert trace.copies < trace.ack_requests - trace.premature


def test_every_request_has_its_record(world: Traced) -> None:
    for site in world.run.cluster.sites:
        requests = world.of_kind(site, TraceKind.REQUEST)
        assert sum(trace.ack_requests > 0 for trace in requests) == world.asked[site]
        tokens = world.of_kind(site, TraceKind.TOKEN)
        assert len(requests) == sum(trace.ack_requests + trace.message_requests for trace in tokens)
        for trace in requests:
            assert (trace.ack_requests > 0) != (trace.message_requests > 0)
            assert trace.came_at == 0 or trace.came_at > trace.sent_at


def test_sources_add_up_to_tokens(world: Traced) -> None:
    for site in world.run.cluster.sites:
        sources, tokens = world.of_kind(site, TraceKind.SOURCE), world.of_kind(site, TraceKind.TOKEN)
        assert sum(trace.messages for trace in sources) == sum(trace.messages for trace in tokens)
        assert sum(trace.missing for trace in sources) == sum(trace.missing for trace in tokens)


def test_without_loss_every_request_gives_a_second_copy(world: Traced) -> None:
    """Without loss a request is unnecessary: the requested acknowledgment arrives directly, too."""
    if world.loss:
        return
    for site in world.run.cluster.sites:
        assert all(trace.copies >= trace.ack_requests - trace.premature for trace in world.whole(site))
