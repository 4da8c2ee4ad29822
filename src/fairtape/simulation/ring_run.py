"""A ring run: one configuration, built and run in two phases.

In the safety phase every fault is on and no guarantee may break. Then all faults end, and every message must arrive. If
a site crashed, had a faulty clock or declared a failure, only safety is required: a ring without reformation servers
cannot reform.
"""

import traceback
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import Final

from fairtape.core.effects import Channel
from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.machine import Machine
from fairtape.core.spans import StreamId
from fairtape.nodes.receiver import Receiver
from fairtape.nodes.source import Source
from fairtape.nodes.source_group import SourceGroup
from fairtape.ring.receiver.tracing import Tracer
from fairtape.simulation.checkers import EverythingArrives, Facts, RingCheckers
from fairtape.simulation.clocks import SimulatedClock, TrueClock, drifting_clock
from fairtape.simulation.configuration import RECORD_MAX, Burst, Configuration, chance_for, draw
from fairtape.simulation.faults import Intruder, schedule_fault
from fairtape.simulation.network import Tree
from fairtape.simulation.processors import Placement
from fairtape.simulation.recorder import Recorder
from fairtape.simulation.world import EPOCH, Spinning, Storm, Violation, World
from fairtape.wire.frames import NodeId
from fairtape.wire.seals import Keys

PENDING_MAX: Final = 10_000  # messages that wait until a source accepts them
PATIENCE: Final = 60  # token or retry periods without a release, after which a healed world is stuck
FILLER: Final = b"chatter"  # in the digest of every history

NEVER_RAISES: Final = "NeverRaises"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The result of one seed."""

    seed: int
    guarantee: str | None = None  # the one that was broken
    node: NodeId | None = None
    text: str = ""
    all_delivered: bool = False  # whether every message arrived; else only safety was required
    reforming: int = 0  # sites that declared a failure
    deliveries: int = 0  # datagrams delivered to nodes
    messages: int = 0  # messages in the order
    late: int = 0  # releases marked late
    simulated: Duration = 0
    digest: int = 0
    durations: tuple[tuple[str, Duration], ...] = ()  # named durations, for distributions over many seeds
    counts: tuple[tuple[str, int], ...] = ()  # named counts, for sums over many seeds
    faults: tuple[str, ...] = ()  # the kinds of faults that took place

    @property
    def failed(self) -> bool:
        """Whether a guarantee was broken."""
        return self.guarantee is not None


@dataclass(slots=True)
class _Publisher:
    """The application of one source. It keeps what the source has not accepted, and survives crashes of the source."""

    incarnation: int = 1
    pending: list[bytes] = field(default_factory=list)
    fillers: int = 0  # messages at the end that need not arrive


class RingRun:
    """One configuration, built and running."""

    def __init__(self, configuration: Configuration, *, record: tuple[Instant, Instant] | None = None) -> None:
        self.configuration = configuration
        self.formation = configuration.formation
        self.published: dict[tuple[NodeId, int], list[bytes]] = {}
        self._keys = Keys.from_secret(b"a swarm", configuration.sites, configuration.sources)  # in every digest
        self._publishers = {source: _Publisher() for source in configuration.sources}
        for place, source in enumerate(configuration.group):
            self._publishers[source].incarnation += place  # the incarnations of a group are distinct
        self._text = chance_for("text", configuration.seed)
        self.world = self._build_world()
        self.facts = Facts(
            formation=self.formation,
            published=self.published,
            complete=lambda node: self.receiver(node).complete_through,
            claim=lambda node: self.receiver(node).stable_through,
            grain=self._grains(),
        )
        self.ring_checkers = RingCheckers(self.facts)
        self.world.observers.append(self.ring_checkers)
        self.recorder = None if record is None else Recorder(self.world, since=record[0], until=record[1])
        self.tracers = {site: Tracer() for site in configuration.sites}
        self._add_nodes()
        self.facts.forgotten = {source: partial(self._forgotten, source) for source in configuration.sources}
        self._schedule()

    def receiver(self, node: NodeId) -> Receiver:
        machine = self.world.machine(node)
        assert isinstance(machine, Receiver)
        return machine

    def source(self, node: NodeId) -> Source:
        machine = self.world.machine(node)
        if isinstance(machine, SourceGroup):
            return machine.sources[node]
        assert isinstance(machine, Source)
        return machine

    def run(self) -> bool:
        """Both phases. True if every message arrived, False if only safety was required; else `Violation`."""
        world, configuration = self.world, self.configuration
        world.run(configuration.heals_at)
        self._heal()
        (arrival,) = (checker for checker in self.ring_checkers.checkers if isinstance(checker, EverythingArrives))
        arrival.alive = self._numbers_used
        self._wait_for(arrival)
        self.ring_checkers.finished({site: world.clock(site).read(world.now) for site in configuration.sites})
        if self._excused():
            return False
        arrival.demand()
        if not self._arrived(arrival):
            arrival.violated(None, "a source could not send all messages of its application")
        if not self._settled():
            arrival.violated(None, "a source never learned that its messages are settled")
        return True

    def _wait_for(self, arrival: EverythingArrives) -> None:
        """Run until all messages have arrived, or until nothing was released for `PATIENCE` steps."""
        timing = self.configuration.timing
        step = max(timing.token_period, timing.retry_period, self.configuration.delay_max)
        patience, progress = PATIENCE, -1
        while patience and not self._excused() and not ((arrived := self._arrived(arrival)) and self._settled()):
            patience = patience - 1 if self.facts.released == progress else PATIENCE
            progress = self.facts.released
            if not arrived:
                self._publish_filler()
            self.world.run(self.world.now + step)

    def _publish_filler(self) -> None:
        """Publish one more message: RMP detects a lost acknowledgment only by a later one (2001 §2)."""
        source = self.configuration.sources[0]
        if self.formation.timed or not self.world.is_up(source) or self._publishers[source].pending:
            return
        self._publishers[source].fillers += 1
        self._publishers[source].pending.append(FILLER)
        self._offer(source)

    def outcome(self, broken: Violation | None = None, *, all_delivered: bool = False) -> RunOutcome:
        sites = self.configuration.sites
        return RunOutcome(
            seed=self.configuration.seed,
            guarantee=broken.guarantee if broken else None,
            node=broken.node if broken else None,
            text=f"{(broken.at - EPOCH) / 1e9:.6f} s: {broken}" if broken else "",
            all_delivered=all_delivered,
            reforming=len(self.facts.reported),
            deliveries=self.world.deliveries,
            messages=max(self.receiver(site).next_sequence for site in sites) - 1,
            late=self.facts.late,
            simulated=self.world.now - EPOCH,
            digest=self.world.digest,
        )

    def _build_world(self) -> World:
        configuration = self.configuration
        chance = chance_for("network", configuration.seed)
        nodes = configuration.sites + configuration.sources
        link_faults: dict[tuple[NodeId, NodeId], LinkFaults] = {}
        for origin in nodes:
            for to in nodes:
                link_faults[origin, to] = LinkFaults(
                    delay=int(configuration.delay_max * chance.uniform(0.1, 1.0)),
                    jitter=configuration.jitter,
                    loss=configuration.loss,
                    duplication=configuration.duplication,
                )
        tree = Tree.random(nodes, configuration.loss, chance) if configuration.tree else None
        return World(
            chance=chance, link_model=lambda origin, to: link_faults[origin, to], tree=tree, echo=configuration.echo
        )

    def _add_nodes(self) -> None:
        configuration = self.configuration
        for site in configuration.sites:
            clock = self._clock(site)
            receiver = Receiver(
                me=site,
                formation=self.formation,
                keys=self._keys,
                born_at=min(clock.read(EPOCH), self.formation.starts_at),  # a faulty clock may be past the start
                datagram_max=configuration.datagram_max,
                clock_bound=lambda clock=clock: clock.bound,  # type: ignore[misc]
                backlog=partial(self.world.backlog, site),
                observe=self.recorder.observer(site) if self.recorder else None,
                tracer=self.tracers[site],
            )
            self.world.add(
                site,
                receiver,
                channels=(Channel.DATA, Channel.CONTROL),
                clock=clock,
                placement=self._placement(site),
            )
        for source, *others in self._source_processes():
            self.world.add(
                source,
                self._new_machine(source),
                channels=(Channel.CONTROL,),
                clock=self._clock(source),
                placement=self._placement(source),
                also=others,
            )

    def _source_processes(self) -> list[tuple[NodeId, ...]]:
        """The sources of each process: usually one."""
        group = self.configuration.group
        alone: list[tuple[NodeId, ...]] = [(source,) for source in self.configuration.sources if source not in group]
        return [*alone, group] if group else alone

    def _placement(self, node: NodeId) -> Placement | None:
        """Where a node runs; None: its turns take no time."""

    def _new_machine(self, source: NodeId) -> Source | SourceGroup:
        group = self.configuration.group
        if source in group:
            return SourceGroup(map(self._new_source, group))
        return self._new_source(source)

    def _new_source(self, source: NodeId) -> Source:
        return Source(
            me=source,
            keys=self._keys.for_source(source),
            timing=self.configuration.timing,
            resilience=self.configuration.resilience,
            incarnation=self._publishers[source].incarnation,
            datagram_max=self.configuration.datagram_max,
        )

    def _new_incarnation(self, node: NodeId) -> Machine:
        """A process starts again, with all its sources."""
        group = self.configuration.group
        for source in group if node in group else (node,):
            self._publishers[source].incarnation += max(len(group), 1)
        return self._new_machine(node)

    def _clock(self, node: NodeId) -> SimulatedClock:
        clocks = self.configuration.clocks
        source_error = clocks.sources_within if node in self.configuration.sources else 0
        if clocks.bound == 0 and not source_error:
            return TrueClock()
        return drifting_clock(
            chance_for(f"clock {node}", self.configuration.seed),
            since=EPOCH,
            until=self.configuration.heals_at + 10 * SECOND,
            bound=clocks.bound,
            within=source_error or (clocks.bound * 20 if node in clocks.faulty else None),
            steps=clocks.steps or source_error > 0,
            noise=min(clocks.noise, clocks.bound),
        )

    def _grains(self) -> dict[NodeId, Duration]:
        clocks = self.configuration.clocks
        if clocks.bound == 0:
            return {}
        reach = clocks.bound * 20 if clocks.faulty else clocks.bound
        grain = 2 + clocks.noise + (2 * reach if clocks.steps else 0)
        return dict.fromkeys(self.configuration.sites, grain)

    def _schedule(self) -> None:
        configuration, world = self.configuration, self.world
        for burst in configuration.bursts:
            world.at(burst.at, partial(self._publish, burst))
        for fault in configuration.faults:
            schedule_fault(world, fault, self._new_incarnation)
        if configuration.intruder_period:
            intruder = Intruder(
                world,
                targets=configuration.sites + configuration.sources,
                period=configuration.intruder_period,
                chance=chance_for("intruder", configuration.seed),
            )
            world.observers.append(intruder)
            intruder.start(configuration.heals_at)

    def _publish(self, burst: Burst) -> None:
        publisher = self._publishers[burst.source]
        text = self._text.randbytes(sum(burst.sizes))
        messages = [text[end - size : end] for size, end in zip(burst.sizes, accumulate(burst.sizes), strict=True)]
        publisher.pending += messages[: max(PENDING_MAX - len(publisher.pending), 0)]
        self._offer(burst.source)

    def _offer(self, node: NodeId) -> None:
        publisher, world = self._publishers[node], self.world

        def offer(now: Instant) -> None:
            offering = self._offer_records if node in self.configuration.record_sources else self._offer_messages
            accepted = offering(self.source(node), publisher.pending, now)
            self.published.setdefault((node, publisher.incarnation), []).extend(publisher.pending[:accepted])
            del publisher.pending[:accepted]

        if publisher.pending and not world.is_paused(node):
            world.touch(node, offer)
        if publisher.pending:
            world.at(world.now + self.configuration.timing.retry_period, lambda: self._offer(node))

    def _offer_messages(self, source: Source, messages: list[bytes], now: Instant) -> int:
        return source.publish(messages, now)

    def _offer_records(self, source: Source, messages: list[bytes], now: Instant) -> int:
        """Publish runs of one size as records, and messages that are too long for one block as messages."""
        accepted = 0
        for size, run in groupby(messages, key=len):
            records = list(run)
            if size <= RECORD_MAX:
                taken = source.publish_records(b"".join(records), size, now)
            else:
                taken = source.publish(records, now)
            accepted += taken
            if taken < len(records):
                break
        return accepted

    def _heal(self) -> None:
        """End all faults except crashes; a crashed source stays down unless a restart is scheduled."""
        self.world.network.heal()
        for node in self.configuration.sites + self.configuration.sources:
            self.world.resume(node)

    def _excused(self) -> bool:
        sites_down = any(not self.world.is_up(site) for site in self.configuration.sites)
        return sites_down or bool(self.facts.reported) or bool(self.configuration.clocks.faulty)

    def _numbers_used(self, stream: tuple[NodeId, int]) -> int:
        source, incarnation = stream
        if not self.world.is_up(source) or self._publishers[source].incarnation != incarnation:
            return 0
        return self.source(source).next_number - 1 - self._publishers[source].fillers

    def _forgotten(self, node: NodeId) -> tuple[StreamId, int]:
        source = self.source(node)
        return (node, source.incarnation), source.settled_through

    def _arrived(self, arrival: EverythingArrives) -> bool:
        sources = [source for source in self.configuration.sources if self.world.is_up(source)]
        taken = all(self.source(source).queued == 0 and not self._publishers[source].pending for source in sources)
        return taken and arrival.missing() is None

    def _settled(self) -> bool:
        """Whether every source knows that K + 1 sites hold all its messages."""
        return all(self.source(source).idle for source in self.configuration.sources if self.world.is_up(source))


def run_seed(seed: int, *, loss: float | None = None) -> RunOutcome:
    """Draw, build and run one world. Never raises: an exception is an outcome."""
    try:
        run = RingRun(draw(seed, loss=loss))
    except Exception as raised:  # noqa: BLE001 - a world that cannot be built is a failure, too
        return RunOutcome(seed=seed, guarantee=NEVER_RAISES, text=exception_text(raised))
    all_delivered, broken = check_run(run)
    return run.outcome(broken, all_delivered=all_delivered)


def check_run(run: RingRun) -> tuple[bool, Violation | None]:
    """Run both phases: whether every message arrived, and which guarantee was broken."""
    try:
        return run.run(), None
    except Violation as broken:
        return False, broken
    except (Spinning, Storm) as runaway:
        return False, Violation(type(runaway).__name__, None, run.world.now, str(runaway))
    except Exception as raised:  # noqa: BLE001 - any exception of a machine is a failure
        return False, Violation(NEVER_RAISES, None, run.world.now, exception_text(raised))


def exception_text(raised: Exception) -> str:
    """The exception and where it was raised, in one line."""
    frame = traceback.extract_tb(raised.__traceback__)[-1]
    return f"{type(raised).__name__}: {raised} ({Path(frame.filename).name}:{frame.lineno}, in {frame.name})"
