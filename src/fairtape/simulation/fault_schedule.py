"""One seed draws a whole cluster and its faults.

Sites, sources and reformation servers crash, restart and pause. Journals lose entries that were never synced. Links
clog, the network partitions, and branches of a multicast tree lose datagrams together. The formation store is
unavailable, to one server or to all. Clocks drift, step and lose their reference. Sites join, are retired and admitted
again. An intruder injects datagrams. The faults of `cluster_faults` come on top, a few of them in each seed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Final, NamedTuple

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import Timing
from fairtape.ring.membership.topology import Excess, LoopTopology, PaceRule, Remedy, Topology
from fairtape.simulation.clocks import SimulatedClock, clock_losing_reference, drifting_clock
from fairtape.simulation.cluster import ClusterPlan
from fairtape.simulation.cluster_fault_draws import DrawnNodes, draw_cluster_faults
from fairtape.simulation.cluster_faults import ClusterFault, CutOneWay, with_offsets
from fairtape.simulation.faults import Clog, Crash, Fault, Partition, Pause, Restart
from fairtape.simulation.network import LinkModel
from fairtape.simulation.world import EPOCH, chance_for
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import OperatorVerb

FIRST_REFORMER: Final = 101
FIRST_SOURCE: Final = 201


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The formation store is unavailable to one server, or to all."""

    at: Instant
    period: Duration
    node: NodeId | None  # None: all


class Burst(NamedTuple):
    """Messages that one source publishes at one instant."""

    at: Instant
    source: NodeId
    messages: int  # how many
    sizes: tuple[int, ...] = ()  # of each; empty: drawn together with its text


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSchedule:
    """Everything that a seed draws: of a deployment, or of a ring with a fixed formation (`ring_schedule`)."""

    seed: int
    plan: ClusterPlan
    heals_at: Instant
    faults: tuple[Fault, ...] = ()
    outages: tuple[Outage, ...] = ()
    commands: tuple[tuple[Instant, OperatorVerb, NodeId], ...] = ()  # of the operator
    arrivals: tuple[tuple[Instant, NodeId], ...] = ()  # late sites and when they start
    intruder_period: Duration = 0  # the mean time between two injected datagrams; 0: no intruder
    bursts: tuple[Burst, ...] = ()
    faulty_clocks: tuple[NodeId, ...] = ()  # sites of a fixed formation whose clocks leave their bound
    cluster_faults: tuple[ClusterFault, ...] = ()

    def kinds(self) -> set[str]:
        """The kinds of faults that are certain to take place; those of `cluster_faults` depend on the run."""
        also = (
            ("outage of the store", self.outages),
            ("retired or admitted site", self.commands),
            ("late site", self.arrivals),
            ("intruder", self.intruder_period),
            ("lossy journals", not self.plan.durable),
            ("loss on a tree", self.plan.tree_loss),
        )
        return {type(fault).__name__.lower() for fault in self.faults} | {name for name, these in also if these}

    def describe(self) -> str:
        """One line for the output of `fairtape check`."""
        return self._describe_deployment() if self.plan.formation is None else self._describe_ring()

    def _describe_ring(self) -> str:
        plan, sites, timing = self.plan, self.plan.topology.primary.tour, self.plan.topology.primary.timing
        link = plan.link_model(sites[0], sites[0])
        tree = "" if plan.tree_loss is None else " along a tree"
        kind = ("TRMP merged" if timing.merged else "TRMP separate") if plan.topology.timed else "RMP"
        bound = max((clock.bound for clock in plan.clocks.values()), default=0)
        return (
            f"{len(sites)} sites, {len(plan.sources)} sources"
            f"{f' ({len(plan.group)} of them in one process)' if plan.group else ''}, {kind}, "
            f"K={plan.topology.resilience}, T_R={timing.retry_period / 1e6:g} ms, n={timing.retries_max}, "
            f"token {timing.token_period / 1e6:g} ms, commit {timing.commit_delay / 1e6:g} ms, "
            f"delay up to {link.delay / 1e6:g} ms, loss {link.loss:.0%}{tree}, "
            f"clock bound {bound / 1e3:g} µs, {len(self.faults)} faults"
        )

    def _describe_deployment(self) -> str:
        topology, timing = self.plan.topology, self.plan.topology.primary.timing
        loops = " + ".join(str(len(loop.tour)) for loop in topology.loops)
        names = sorted({type(fault).__name__.lower() for fault in self.faults})
        also = (("outage", self.outages), ("order", self.commands), ("arrival", self.arrivals))
        names += [name for name, these in also if these] + ["intruder"] * bool(self.intruder_period)
        names += sorted({fault.name for fault in self.cluster_faults})
        return (
            f"{loops} sites, {len(self.plan.reformers)} reformation servers, {len(self.plan.sources)} sources, "
            f"K={topology.resilience}, {topology.excess.value}, {topology.remedy.value}, "
            f"T_R={timing.retry_period / 1e6:g} ms, n={timing.retries_max}; {', '.join(names) or 'fault-free'}"
        )


def draw(seed: int) -> FaultSchedule:
    """The fault schedule of a seed."""
    chance = chance_for("upheaval", seed)
    heals_at = EPOCH + chance.choice((3, 5, 8)) * SECOND
    timing = _timing(chance)
    topology = _topology(chance, timing, seed)
    sites = tuple(topology.homes())
    reformers = tuple(range(FIRST_REFORMER, FIRST_REFORMER + chance.choice((1, 2, 2, 3))))
    sources = tuple(range(FIRST_SOURCE, FIRST_SOURCE + chance.randint(1, 3)))
    arrivals = tuple(_arrivals(chance_for("arrivals", seed), topology, heals_at))
    started = tuple(site for site in sites if site not in {site for _, site in arrivals})
    faults = sorted(_faults(chance, started, reformers, sources, heals_at), key=lambda fault: fault.at)
    leader_lease = max(timing.reform_delay, 200 * MILLISECOND)
    nodes = DrawnNodes(
        sites=started,
        reformers=reformers,
        sources=sources,
        timing=timing,
        leader_lease=leader_lease,
        heals_at=heals_at,
    )
    cluster_faults = tuple(draw_cluster_faults(seed, nodes))
    plan = ClusterPlan(
        topology=topology,
        reformers=reformers,
        sources=sources,
        link_model=_link_model(chance, timing),
        seed=seed,
        tree_loss=chance.choice((0.0, 0.01, 0.05)) if chance.random() < 0.3 else None,
        durable=chance.random() < 0.8,
        leader_lease=leader_lease,
        store_delay=chance.choice((MILLISECOND, 5 * MILLISECOND, 30 * MILLISECOND)),
        late_sites=tuple(site for _, site in arrivals),
        clocks={
            **_clocks(chance, (*sites, *reformers, *sources), timing, heals_at),
            **dict(_clocks_losing_reference(chance_for("lost clocks", seed), sites, reformers, timing, heals_at)),
        },
    )
    return FaultSchedule(
        seed=seed,
        plan=replace(plan, clocks=with_offsets(plan.clocks, cluster_faults)),
        cluster_faults=cluster_faults,
        faults=tuple(faults),
        outages=tuple(_outages(chance, reformers, heals_at)),
        commands=(
            *_commands(chance_for("orders", seed), sites, heals_at),
            *_retirements_at_cuts(chance_for("orders at cuts", seed), sites, cluster_faults),
        ),
        arrivals=arrivals,
        intruder_period=chance_for("stranger", seed).choice((0, 0, 10, 2)) * MILLISECOND,
        bursts=tuple(_bursts(chance, sources, heals_at)),
        heals_at=heals_at,
    )


def _timing(chance: Random) -> Timing:
    retry = chance.choice((4, 10, 30)) * MILLISECOND
    return Timing(
        retry_period=retry,
        retries_max=chance.randint(6, 14),
        token_period=chance.choice((retry // 2, retry, 2 * retry)),
        commit_delay=chance.choice((retry, 3 * retry, 6 * retry)),
        merged=chance.random() < 0.8,
        clock_error_max=retry // 4,
    )


def _topology(chance: Random, timing: Timing, seed: int) -> Topology:
    sets = chance_for("sets", seed).choice((1, 1, 1, 2, 3))
    count = chance.choice((2, 3, 3, 4, 5, 5, 7))
    primary = tuple(range(1, count + 1))
    loops = [LoopTopology(number=0, tour=primary, timing=timing, request_sets=sets)]
    following = count + 1
    for number in range(1, chance.choice((0, 0, 1, 2)) + 1):
        size = chance.randint(1, 3)
        tour = tuple(range(following, following + size))
        following += size
        stride = chance.choice((1, 1, 3))
        loops.append(
            LoopTopology(
                number=number,
                tour=tour,
                timing=timing,
                junction=chance.choice(primary),
                stride=stride,
                request_sets=sets,
            )
        )
    return Topology(
        loops=tuple(loops),
        resilience=chance.choice((0, 1, 1, 1, 2, "majority", "all")),
        excess=chance.choice((Excess.CONTINUE, Excess.HALT)),
        remedy=chance.choice((Remedy.BYPASS, Remedy.BYPASS, Remedy.REPLACE)),
        pace=draw_pace(chance_for("pace", seed)),
    )


def draw_pace(chance: Random) -> PaceRule | None:
    """In half of the worlds the token is slowed and sped up, far more often than in a deployment."""
    if chance.random() < 0.5:
        return None
    return PaceRule(
        late_share_max=chance.choice((0.005, 0.05)),
        window=chance.randint(50, 200) * MILLISECOND,
        quiet_period=chance.randint(200, 600) * MILLISECOND,
    )


def _link_model(chance: Random, timing: Timing) -> LinkModel:
    delay = timing.retry_period // chance.choice((4, 8, 20))
    jitter = delay // chance.choice((2, 5, 20))
    loss = chance.choice((0.0, 0.01, 0.01, 0.05, 0.1))
    duplication = chance.choice((0.0, 0.0, 0.02))
    link_faults = LinkFaults(delay=delay, jitter=jitter, loss=loss, duplication=duplication)
    return lambda _origin, _to: link_faults


def _clocks(
    chance: Random, nodes: tuple[NodeId, ...], timing: Timing, heals_at: Instant
) -> dict[NodeId, SimulatedClock]:
    """Clocks that drift and step within their bound."""
    if chance.random() < 0.5:
        return {}
    bound = timing.clock_error_max // chance.choice((1, 2, 10))
    return {
        node: drifting_clock(
            Random(f"clock {chance.random()} {node}"),  # noqa: S311
            since=EPOCH,
            until=heals_at,
            bound=bound,
            within=None,
            steps=chance.random() < 0.5,
            noise=min(10 * MICROSECOND, bound),
        )
        for node in nodes
    }


def _clocks_losing_reference(
    chance: Random, sites: tuple[NodeId, ...], reformers: tuple[NodeId, ...], timing: Timing, heals_at: Instant
) -> Iterator[tuple[NodeId, SimulatedClock]]:
    """Clocks that lose their reference for a period and declare a larger bound meanwhile."""
    for node in chance.sample(sites, chance.choice((0, 0, 0, 1, 1, 2)) % (len(sites) + 1)):
        yield node, _clock_losing_reference(chance, timing, heals_at)
    if chance.random() < 0.1:
        yield chance.choice(reformers), _clock_losing_reference(chance, timing, heals_at)


def _clock_losing_reference(chance: Random, timing: Timing, heals_at: Instant) -> SimulatedClock:
    at = _instant(chance, heals_at)
    error = timing.clock_error_max * chance.choice((1, 2, 4, 10, 40)) * chance.choice((-1, 1))
    period = chance.randrange(SECOND // 20, 3 * SECOND)
    return clock_losing_reference(
        at=at, period=period, error=error, bound=timing.clock_error_max // 4, step=chance.random() < 0.5
    )


def _arrivals(chance: Random, topology: Topology, heals_at: Instant) -> Iterator[tuple[Instant, NodeId]]:
    """Growth: some sites start after the others."""
    for loop in topology.loops:
        if len(loop.tour) > 2 and chance.random() < 0.3:
            for site in chance.sample(loop.tour, chance.randint(1, len(loop.tour) - 2)):
                yield _instant(chance, heals_at), site


def _commands(
    chance: Random, sites: tuple[NodeId, ...], heals_at: Instant
) -> Iterator[tuple[Instant, OperatorVerb, NodeId]]:
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        at, site = _instant(chance, heals_at), chance.choice(sites)
        yield at, OperatorVerb.RETIRE, site
        if chance.random() < 0.7:
            yield at + chance.randrange(2 * SECOND), OperatorVerb.ADMIT, site


def _retirements_at_cuts(
    chance: Random, sites: tuple[NodeId, ...], faults: tuple[ClusterFault, ...]
) -> Iterator[tuple[Instant, OperatorVerb, NodeId]]:
    """A site may leave by a planned change that takes over about when links are cut."""
    for fault in faults:
        if isinstance(fault, CutOneWay) and chance.random() < 0.5:
            yield fault.at - chance.randrange(200 * MILLISECOND), OperatorVerb.RETIRE, chance.choice(sites)


def _instant(chance: Random, heals_at: Instant) -> Instant:
    return EPOCH + chance.randrange(SECOND // 2, heals_at - EPOCH)


def _faults(
    chance: Random,
    sites: tuple[NodeId, ...],
    reformers: tuple[NodeId, ...],
    sources: tuple[NodeId, ...],
    heals_at: Instant,
) -> Iterator[Fault]:
    yield from _crashes_of_sites(chance, sites, heals_at)
    for _ in range(chance.choice((0, 1, 2))):
        node = chance.choice((*sites, *reformers, *sources))
        yield Pause(_instant(chance, heals_at), node, chance.randrange(2 * SECOND))
    for _ in range(chance.choice((0, 0, 1, 2))):
        side = tuple(chance.sample((*sites, *reformers), chance.randint(1, len(sites))))
        yield Partition(_instant(chance, heals_at), side, chance.randrange(2 * SECOND))
    for _ in range(chance.choice((0, 0, 2))):
        origin, to = chance.sample((*sites, *reformers), 2)
        yield Clog(_instant(chance, heals_at), origin, to, chance.randrange(SECOND))
    for nodes, share in ((reformers, 0.3), (sources, 0.2)):
        for node in nodes:
            if chance.random() < share:
                at = _instant(chance, heals_at)
                yield Crash(at, node)
                yield Restart(at + chance.randrange(SECOND), node)


def _crashes_of_sites(chance: Random, sites: tuple[NodeId, ...], heals_at: Instant) -> Iterator[Fault]:
    """Crashes of single sites, and of two sites at almost the same time."""
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        at, node = _instant(chance, heals_at), chance.choice(sites)
        yield Crash(at, node)
        if chance.random() < 0.8:
            yield Restart(at + chance.randrange(SECOND), node)
    for _ in range(chance.choice((0, 0, 1, 2))):
        at = _instant(chance, heals_at)
        for node in chance.sample(sites, min(2, len(sites))):
            yield Crash(at + chance.randrange(20 * MILLISECOND), node)
            yield Restart(at + 20 * MILLISECOND + chance.randrange(SECOND), node)


def _outages(chance: Random, reformers: tuple[NodeId, ...], heals_at: Instant) -> Iterator[Outage]:
    for _ in range(chance.choice((0, 0, 1, 2))):
        node = chance.choice((None, *reformers))
        yield Outage(at=_instant(chance, heals_at), period=chance.randrange(2 * SECOND), node=node)


def _bursts(chance: Random, sources: tuple[NodeId, ...], heals_at: Instant) -> Iterator[Burst]:
    for _ in range(chance.choice((10, 50, 150))):
        yield Burst(EPOCH + chance.randrange(heals_at - EPOCH), chance.choice(sources), chance.choice((1, 1, 5, 40)))
