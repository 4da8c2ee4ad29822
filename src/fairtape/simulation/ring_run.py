"""A trial: one configuration, built and run twice over.

First a safety phase with every fault on, in which nothing wrong may happen; then everything is healed, and what is
right must happen. A world in which a site crashed, lied about the time or declared a failure is asked for safety only,
because in this stage nothing heals a loop.
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
from fairtape.nodes.receiver import Receiver
from fairtape.nodes.source import Source
from fairtape.ring.receiver.tracing import Tracer
from fairtape.simulation.checkers import EverythingArrives, Facts, RingCheckers, Stream
from fairtape.simulation.clocks import SimulatedClock, TrueClock, wandering
from fairtape.simulation.configuration import RECORD_MAX, Burst, Configuration, chance_for, draw
from fairtape.simulation.faults import Intruder, schedule_fault
from fairtape.simulation.network import Tree
from fairtape.simulation.observer import Violation
from fairtape.simulation.recorder import Recorder
from fairtape.simulation.world import EPOCH, Spinning, Storm, World
from fairtape.wire.frames import NodeId
from fairtape.wire.seals import Keys

PENDING_MAX: Final = 10_000  # messages that wait for room in a source
PATIENCE: Final = 60  # token or retry periods without any release after which a healed world is stuck

NEVER_RAISES: Final = "NeverRaises"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """What became of one seed."""

    seed: int
    guarantee: str | None = None  # the one that was broken
    node: NodeId | None = None
    text: str = ""
    lively: bool = False  # everything arrived; else only safety was asked for
    reforming: int = 0  # sites that declared a failure
    deliveries: int = 0  # datagrams handed to nodes
    messages: int = 0  # messages put in order
    late: int = 0  # releases marked late
    simulated: Duration = 0
    digest: int = 0
    figures: tuple[tuple[str, Duration], ...] = ()  # how long things took that are worth a distribution
    counts: tuple[tuple[str, int], ...] = ()  # how often things happened that are worth telling

    @property
    def failed(self) -> bool:
        """Whether a guarantee was broken."""
        return self.guarantee is not None


@dataclass(slots=True)
class _Feed:
    """The application behind one source: it keeps what the source had no room for, and survives its crashes."""

    incarnation: int = 1
    pending: list[bytes] = field(default_factory=list)
    chatter: int = 0  # messages at the end that nobody will wait for


class RingRun:
    """One configuration, built and running."""

    def __init__(self, configuration: Configuration, *, record: tuple[Instant, Instant] | None = None) -> None:
        self.configuration = configuration
        self.formation = configuration.formation
        self.published: dict[tuple[NodeId, int], list[bytes]] = {}
        self._keys = Keys.from_secret(b"a swarm", configuration.sites, configuration.sources)
        self._feeds = {source: _Feed() for source in configuration.sources}
        self._text = chance_for("text", configuration.seed)
        self.world = self._build_world()
        self.facts = Facts(
            formation=self.formation,
            published=self.published,
            complete=lambda node: self.receiver(node).complete_through,
            claim=lambda node: self.receiver(node).stable_through,
            grain=self._grains(),
        )
        self.jury = RingCheckers(self.facts)
        self.world.witnesses.append(self.jury)
        self.recorder = None if record is None else Recorder(self.world, since=record[0], until=record[1])
        self.tracers = {site: Tracer() for site in configuration.sites}
        self._seat_nodes()
        self.facts.forgotten = {source: partial(self._forgotten, source) for source in configuration.sources}
        self._schedule()

    def receiver(self, node: NodeId) -> Receiver:
        """The machine of a site."""
        machine = self.world.machine(node)
        assert isinstance(machine, Receiver)
        return machine

    def source(self, node: NodeId) -> Source:
        """The machine of a source."""
        machine = self.world.machine(node)
        assert isinstance(machine, Source)
        return machine

    def run(self) -> bool:
        """Both phases. Whether everything arrived, as it must unless there was a failure; `Violation` otherwise."""
        world, configuration = self.world, self.configuration
        world.run(configuration.heals_at)
        self._heal()
        (arrival,) = (checker for checker in self.jury.checkers if isinstance(checker, EverythingArrives))
        arrival.alive = self._numbers_used
        self._wait_for(arrival)
        self.jury.finished({site: world.clock(site).read(world.now) for site in configuration.sites})
        if self._excused():
            return False
        arrival.demand()
        if not self._arrived(arrival):
            arrival.violated(None, "a source could not send all that it was given")
        if not self._settled():
            arrival.violated(None, "a source never learned that what it sent is settled")
        return True

    def _wait_for(self, arrival: EverythingArrives) -> None:
        """As long as anything moves, and a while longer."""
        timing = self.configuration.timing
        step = max(timing.token_period, timing.retry_period, self.configuration.delay_max)
        patience, progress = PATIENCE, -1
        while patience and not self._excused() and not ((arrived := self._arrived(arrival)) and self._settled()):
            patience = patience - 1 if self.facts.released == progress else PATIENCE
            progress = self.facts.released
            if not arrived:
                self._chat()
            self.world.run(self.world.now + step)

    def _chat(self) -> None:
        """RMP notices a lost acknowledgment only by a later one (2001 §2), so its sources must not fall silent."""
        source = self.configuration.sources[0]
        if self.formation.timed or not self.world.is_up(source) or self._feeds[source].pending:
            return
        self._feeds[source].chatter += 1
        self._feeds[source].pending.append(b"chatter")
        self._feed(source)

    def outcome(self, broken: Violation | None = None, *, lively: bool = False) -> RunOutcome:
        """What became of it."""
        sites = self.configuration.sites
        return RunOutcome(
            seed=self.configuration.seed,
            guarantee=broken.guarantee if broken else None,
            node=broken.node if broken else None,
            text=f"{(broken.at - EPOCH) / 1e9:.6f} s: {broken}" if broken else "",
            lively=lively,
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
        weathers: dict[tuple[NodeId, NodeId], LinkFaults] = {}
        for origin in nodes:
            for to in nodes:
                weathers[origin, to] = LinkFaults(
                    delay=int(configuration.delay_max * chance.uniform(0.1, 1.0)),
                    jitter=configuration.jitter,
                    loss=configuration.loss,
                    duplication=configuration.duplication,
                )
        tree = Tree.grown(nodes, configuration.loss, chance) if configuration.tree else None
        return World(chance=chance, sky=lambda origin, to: weathers[origin, to], tree=tree, echo=configuration.echo)

    def _seat_nodes(self) -> None:
        configuration = self.configuration
        for site in configuration.sites:
            clock = self._clock(site)
            receiver = Receiver(
                me=site,
                formation=self.formation,
                keys=self._keys,
                born_at=min(clock.read(EPOCH), self.formation.starts_at),  # a clock may lie about that, too
                datagram_max=configuration.datagram_max,
                clock_bound=lambda clock=clock: clock.bound,  # type: ignore[misc]
                observe=self.recorder.observer(site) if self.recorder else None,
                tracer=self.tracers[site],
            )
            self.world.add(site, receiver, channels=(Channel.DATA, Channel.CONTROL), clock=clock)
        for source in configuration.sources:
            self.world.add(source, self._new_source(source), channels=(Channel.CONTROL,), clock=self._clock(source))

    def _new_source(self, source: NodeId) -> Source:
        return Source(
            me=source,
            keys=self._keys.for_source(source),
            timing=self.configuration.timing,
            resilience=self.configuration.resilience,
            incarnation=self._feeds[source].incarnation,
            datagram_max=self.configuration.datagram_max,
        )

    def _reborn(self, node: NodeId) -> Machine:
        self._feeds[node].incarnation += 1
        return self._new_source(node)

    def _clock(self, node: NodeId) -> SimulatedClock:
        clocks = self.configuration.clocks
        wild = clocks.sources_within if node in self.configuration.sources else 0
        if clocks.bound == 0 and not wild:
            return TrueClock()
        return wandering(
            chance_for(f"clock {node}", self.configuration.seed),
            since=EPOCH,
            until=self.configuration.heals_at + 10 * SECOND,
            bound=clocks.bound,
            within=wild or (clocks.bound * 20 if node in clocks.liars else None),
            steps=clocks.steps or wild > 0,
            noise=min(clocks.noise, clocks.bound),
        )

    def _grains(self) -> dict[NodeId, Duration]:
        clocks = self.configuration.clocks
        if clocks.bound == 0:
            return {}
        reach = clocks.bound * 20 if clocks.liars else clocks.bound
        grain = 2 + clocks.noise + (2 * reach if clocks.steps else 0)
        return dict.fromkeys(self.configuration.sites, grain)

    def _schedule(self) -> None:
        configuration, world = self.configuration, self.world
        for burst in configuration.bursts:
            world.at(burst.at, partial(self._publish, burst))
        for fault in configuration.faults:
            schedule_fault(world, fault, self._reborn)
        if configuration.hostile_period:
            intruder = Intruder(
                world,
                targets=configuration.sites + configuration.sources,
                period=configuration.hostile_period,
                chance=chance_for("intruder", configuration.seed),
            )
            world.witnesses.append(intruder)
            intruder.start(configuration.heals_at)

    def _publish(self, burst: Burst) -> None:
        feed = self._feeds[burst.source]
        text = self._text.randbytes(sum(burst.sizes))
        messages = [text[end - size : end] for size, end in zip(burst.sizes, accumulate(burst.sizes), strict=True)]
        feed.pending += messages[: max(PENDING_MAX - len(feed.pending), 0)]
        self._feed(burst.source)

    def _feed(self, node: NodeId) -> None:
        feed, world = self._feeds[node], self.world

        def offer(now: Instant) -> None:
            offering = self._offer_records if node in self.configuration.recorders else self._offer_messages
            accepted = offering(self.source(node), feed.pending, now)
            self.published.setdefault((node, feed.incarnation), []).extend(feed.pending[:accepted])
            del feed.pending[:accepted]

        if feed.pending and not world.is_paused(node):
            world.touch(node, offer)
        if feed.pending:
            world.at(world.now + self.configuration.timing.retry_period, lambda: self._feed(node))

    def _offer_messages(self, source: Source, messages: list[bytes], now: Instant) -> int:
        return source.publish(messages, now)

    def _offer_records(self, source: Source, messages: list[bytes], now: Instant) -> int:
        """Runs of one size leave as records; what is too long for one block leaves as a message."""
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
        """End every fault that can end; a crashed source stays down only if nobody was to restart it."""
        self.world.network.heal()
        for node in self.configuration.sites + self.configuration.sources:
            self.world.resume(node)

    def _excused(self) -> bool:
        sites_down = any(not self.world.is_up(site) for site in self.configuration.sites)
        return sites_down or bool(self.facts.reported) or bool(self.configuration.clocks.liars)

    def _numbers_used(self, stream: tuple[NodeId, int]) -> int:
        source, incarnation = stream
        if not self.world.is_up(source) or self._feeds[source].incarnation != incarnation:
            return 0
        return self.source(source).next_number - 1 - self._feeds[source].chatter

    def _forgotten(self, node: NodeId) -> tuple[Stream, int]:
        source = self.source(node)
        return (node, source.incarnation), source.settled_through

    def _arrived(self, arrival: EverythingArrives) -> bool:
        sources = [source for source in self.configuration.sources if self.world.is_up(source)]
        taken = all(self.source(source).queued == 0 and not self._feeds[source].pending for source in sources)
        return taken and arrival.missing() is None

    def _settled(self) -> bool:
        """Whether every source knows that K + 1 sites hold all that it sent."""
        return all(self.source(source).idle for source in self.configuration.sources if self.world.is_up(source))


def run_seed(seed: int, *, loss: float | None = None) -> RunOutcome:
    """Draw, build and run one world. Never raises: what goes wrong is the outcome."""
    try:
        trial = RingRun(draw(seed, loss=loss))
    except Exception as raised:  # noqa: BLE001 - a world that cannot be built is a finding, too
        return RunOutcome(seed=seed, guarantee=NEVER_RAISES, text=where(raised))
    lively, broken = judge(trial)
    return trial.outcome(broken, lively=lively)


def judge(trial: RingRun) -> tuple[bool, Violation | None]:
    """Run a trial: whether everything arrived, and which guarantee was broken."""
    try:
        return trial.run(), None
    except Violation as broken:
        return False, broken
    except (Spinning, Storm) as wild:
        return False, Violation(type(wild).__name__, None, trial.world.now, str(wild))
    except Exception as raised:  # noqa: BLE001 - whatever a machine raises is a finding
        return False, Violation(NEVER_RAISES, None, trial.world.now, where(raised))


def where(raised: Exception) -> str:
    """What was raised and where, in one line."""
    frame = traceback.extract_tb(raised.__traceback__)[-1]
    return f"{type(raised).__name__}: {raised} ({Path(frame.filename).name}:{frame.lineno}, in {frame.name})"
