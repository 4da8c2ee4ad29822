"""Upheavals: one seed draws a whole realm and everything that befalls it.

First every fault is on: sites, sources and reformation servers crash, come back, stand still; links clog, the network
parts, the store cannot be reached, clocks are set. Nothing wrong may happen. Then all is healed, and what is right must
happen: every site a member again, every message in every journal, and all journals the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.core.weather import Weather
from fairtape.ring.charter import Charter, Excess, LoopCharter, Remedy
from fairtape.simulation.clocks import Clock, wandering
from fairtape.simulation.facts import Violation
from fairtape.simulation.faults import Clog, Crash, Fault, Partition, Pause, Restart, schedule
from fairtape.simulation.guardians import Guardians
from fairtape.simulation.network import Sky
from fairtape.simulation.realm import EPOCH, Realm, RealmPlan
from fairtape.simulation.trial import NEVER_RAISES, Outcome, where
from fairtape.simulation.world import Spinning, Storm
from fairtape.wire.frames import NodeId
from fairtape.wire.governance import Posture, Verb

HEALING_MAX: Final = 60 * SECOND  # of virtual time, after which a healed realm that has not settled is stuck
FIRST_REFORMER: Final = 101
FIRST_SOURCE: Final = 201


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The store cannot be reached: by nobody, or not by one server."""

    at: Instant
    period: Duration
    node: NodeId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Upheaval:
    """Everything that a seed decides."""

    seed: int
    plan: RealmPlan
    faults: tuple[Fault, ...]
    outages: tuple[Outage, ...]
    bursts: tuple[tuple[Instant, NodeId, int], ...]  # when, who, how many messages
    heals_at: Instant


def draw(seed: int) -> Upheaval:
    """The upheaval of a seed."""
    chance = Random(f"upheaval {seed}")  # noqa: S311 - a simulation
    heals_at = EPOCH + chance.choice((3, 5, 8)) * SECOND
    timing = _timing(chance)
    charter = _charter(chance, timing)
    sites = tuple(charter.homes())
    reformers = tuple(range(FIRST_REFORMER, FIRST_REFORMER + chance.choice((1, 2, 2, 3))))
    sources = tuple(range(FIRST_SOURCE, FIRST_SOURCE + chance.randint(1, 3)))
    faults = sorted(_faults(chance, sites, reformers, sources, heals_at), key=lambda fault: fault.at)
    plan = RealmPlan(
        charter=charter,
        reformers=reformers,
        sources=sources,
        sky=_sky(chance, timing),
        seed=seed,
        tree_loss=chance.choice((0.0, 0.01, 0.05)) if chance.random() < 0.3 else None,
        durable=chance.random() < 0.8,
        leader_lease=max(timing.reform_delay, 200 * MILLISECOND),
        store_delay=chance.choice((MILLISECOND, 5 * MILLISECOND, 30 * MILLISECOND)),
        clocks=_clocks(chance, (*sites, *reformers, *sources), timing, heals_at),
    )
    return Upheaval(
        seed=seed,
        plan=plan,
        faults=tuple(faults),
        outages=tuple(_outages(chance, reformers, heals_at)),
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


def _charter(chance: Random, timing: Timing) -> Charter:
    count = chance.choice((2, 3, 3, 4, 5, 5, 7))
    primary = tuple(range(1, count + 1))
    loops = [LoopCharter(number=0, tour=primary, timing=timing)]
    following = count + 1
    for number in range(1, chance.choice((0, 0, 1, 2)) + 1):
        size = chance.randint(1, 3)
        tour = tuple(range(following, following + size))
        following += size
        stride = chance.choice((1, 1, 3))
        loops.append(
            LoopCharter(number=number, tour=tour, timing=timing, junction=chance.choice(primary), stride=stride)
        )
    return Charter(
        loops=tuple(loops),
        resilience=chance.choice((0, 1, 1, 1, 2, "majority", "all")),
        excess=chance.choice((Excess.CONTINUE, Excess.HALT)),
        remedy=chance.choice((Remedy.BYPASS, Remedy.BYPASS, Remedy.REPLACE)),
    )


def _sky(chance: Random, timing: Timing) -> Sky:
    delay = timing.retry_period // chance.choice((4, 8, 20))
    jitter = delay // chance.choice((2, 5, 20))
    loss = chance.choice((0.0, 0.01, 0.01, 0.05, 0.1))
    duplication = chance.choice((0.0, 0.0, 0.02))
    weather = Weather(delay=delay, jitter=jitter, loss=loss, duplication=duplication)
    return lambda _origin, _to: weather


def _clocks(chance: Random, nodes: tuple[NodeId, ...], timing: Timing, heals_at: Instant) -> dict[NodeId, Clock]:
    """Clocks that wander, and step, within what they declare."""
    if chance.random() < 0.5:
        return {}
    bound = timing.clock_error_max // chance.choice((1, 2, 10))
    return {
        node: wandering(
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


def _instant(chance: Random, heals_at: Instant) -> Instant:
    return EPOCH + chance.randrange(SECOND // 2, heals_at - EPOCH)


def _faults(
    chance: Random,
    sites: tuple[NodeId, ...],
    reformers: tuple[NodeId, ...],
    sources: tuple[NodeId, ...],
    heals_at: Instant,
) -> Iterator[Fault]:
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        at, node = _instant(chance, heals_at), chance.choice(sites)
        yield Crash(at, node)
        if chance.random() < 0.8:
            yield Restart(at + chance.randrange(SECOND), node)
    for _ in range(chance.choice((0, 0, 1, 2))):
        at = _instant(chance, heals_at)
        victims = chance.sample(sites, min(2, len(sites)))
        for node in victims:
            yield Crash(at + chance.randrange(20 * MILLISECOND), node)
            yield Restart(at + 20 * MILLISECOND + chance.randrange(SECOND), node)
    for _ in range(chance.choice((0, 1, 2))):
        node = chance.choice((*sites, *reformers, *sources))
        yield Pause(_instant(chance, heals_at), node, chance.randrange(2 * SECOND))
    for _ in range(chance.choice((0, 0, 1, 2))):
        side = tuple(chance.sample((*sites, *reformers), chance.randint(1, len(sites))))
        yield Partition(_instant(chance, heals_at), side, chance.randrange(2 * SECOND))
    for _ in range(chance.choice((0, 0, 2))):
        origin, to = chance.sample((*sites, *reformers), 2)
        yield Clog(_instant(chance, heals_at), origin, to, chance.randrange(SECOND))
    for node in reformers:
        if chance.random() < 0.3:
            at = _instant(chance, heals_at)
            yield Crash(at, node)
            yield Restart(at + chance.randrange(SECOND), node)
    for node in sources:
        if chance.random() < 0.2:
            at = _instant(chance, heals_at)
            yield Crash(at, node)
            yield Restart(at + chance.randrange(SECOND), node)


def _outages(chance: Random, reformers: tuple[NodeId, ...], heals_at: Instant) -> Iterator[Outage]:
    for _ in range(chance.choice((0, 0, 1, 2))):
        node = chance.choice((None, *reformers))
        yield Outage(at=_instant(chance, heals_at), period=chance.randrange(2 * SECOND), node=node)


def _bursts(chance: Random, sources: tuple[NodeId, ...], heals_at: Instant) -> Iterator[tuple[Instant, NodeId, int]]:
    for _ in range(chance.choice((10, 50, 150))):
        yield EPOCH + chance.randrange(heals_at - EPOCH), chance.choice(sources), chance.choice((1, 1, 5, 40))


class Ordeal:
    """An upheaval, built and running."""

    def __init__(self, upheaval: Upheaval) -> None:
        self.upheaval = upheaval
        self.realm = Realm(upheaval.plan)
        self.guardians = Guardians(self.realm)
        self.realm.world.witnesses.append(self.guardians)
        self._text = Random(f"text {upheaval.seed}")  # noqa: S311
        self.realm.settle()
        self._schedule()

    def _schedule(self) -> None:
        world, realm = self.realm.world, self.realm
        for at, source, count in self.upheaval.bursts:
            messages = [self._text.randbytes(self._text.choice((8, 64, 500))) for _ in range(count)]
            world.at(at, lambda source=source, messages=messages: realm.publish(source, messages))  # type: ignore[misc]
        for fault in self.upheaval.faults:
            schedule(world, fault, realm.reborn)
        for outage in self.upheaval.outages:
            world.at(outage.at, lambda outage=outage: self._close_store(outage))  # type: ignore[misc]
            world.at(outage.at + outage.period, lambda outage=outage: self._open_store(outage))  # type: ignore[misc]

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
        while not self._settled():
            if world.now > until:
                raise Violation("HealsAtAll", None, world.now, self._why_not())
            self._resume_if_halted()
            world.run(world.now + SECOND // 4)
        self.guardians.finish()

    def _heal(self) -> None:
        world, realm = self.realm.world, self.realm
        world.network.heal()
        realm.store.closed = False
        realm.store.cut_off.clear()
        for node in (*realm.sites, *realm.plan.reformers, *realm.plan.sources):
            world.resume(node)
            if not world.is_up(node):
                world.restart(node, realm.reborn(node))

    def _resume_if_halted(self) -> None:
        """An operator who reads the log, sees that everybody is back, and says: go on."""
        leader = self.realm.leader()
        if leader is not None and leader.primary.phase.name == "HALTED":
            self.realm.order(Verb.RESUME)

    def _settled(self) -> bool:
        return not self._why_not()

    def _why_not(self) -> str:
        realm = self.realm
        leader = realm.leader()
        if leader is None:
            return "nobody leads"
        formation = leader.primary.formation
        if formation is None or leader.primary.phase.name != "STEADY":
            return f"the primary loop is {leader.primary.phase.value}"
        for node in realm.sites:
            site = realm.site(node)
            if site.formation != formation:
                return f"site {node} is not in formation {formation.number}"
            if realm.homes[node] == 0 and site.posture is not Posture.MEMBER and node not in leader.primary.retired:
                return f"site {node} is {site.posture.name}, not a member"
            if realm.homes[node] and realm.homes[node] not in site.subloops and node not in formation.members:
                return f"site {node} is not in its loop {realm.homes[node]}"
        if realm.pending() or not all(realm.source(node).idle for node in realm.plan.sources):
            return "a source is not done"
        lengths = {node: len(shelf.entries) for node, shelf in realm.shelves.items()}
        if len(set(lengths.values())) > 1:
            return f"journals have {lengths} entries"
        released = {node: shelf.released_through for node, shelf in realm.shelves.items()}
        tokens = {node: shelf.recovered().token for node, shelf in realm.shelves.items()}
        return "" if released == tokens else f"released {released} of {tokens}"

    def outcome(self, broken: Violation | None) -> Outcome:
        """What became of it."""
        return Outcome(
            seed=self.upheaval.seed,
            guarantee=broken.guarantee if broken else None,
            node=broken.node if broken else None,
            text=f"{(broken.at - EPOCH) / 1e9:.6f} s: {broken}" if broken else "",
            lively=broken is None,
            reforming=len(self.guardians.formations()),
            deliveries=self.realm.world.deliveries,
            messages=sum(map(len, self.realm.published.values())),
            late=self.guardians.late,
            simulated=self.realm.world.now - EPOCH,
            digest=self.realm.world.digest,
        )


def run_upheaval(seed: int) -> Outcome:
    """Draw, build and run one realm. Never raises: what goes wrong is the outcome."""
    try:
        ordeal = Ordeal(draw(seed))
    except Exception as raised:  # noqa: BLE001 - a realm that cannot be built is a finding, too
        return Outcome(seed=seed, guarantee=NEVER_RAISES, text=where(raised))
    try:
        ordeal.run()
    except Violation as broken:
        return ordeal.outcome(broken)
    except (Spinning, Storm) as wild:
        return ordeal.outcome(Violation(type(wild).__name__, None, ordeal.realm.world.now, str(wild)))
    except Exception as raised:  # noqa: BLE001 - whatever a machine raises is a finding
        return ordeal.outcome(Violation(NEVER_RAISES, None, ordeal.realm.world.now, where(raised)))
    return ordeal.outcome(None)
