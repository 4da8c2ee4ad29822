"""Scenarios of clusters: their faults as a script, with the expected log or trace.

A file has the commands above a line of four dashes. Below it a deployment has one log for each seed: the notices of the
nodes, the faults, and at the end the late releases and whether all journals are equal. A bare ring has the whole trace:
every datagram sent or lost, every recovery, every release. Times are in seconds since the start of the world. The seed
draws the jitter and loss of the links, and what a command leaves open: a node, an instant.

    cluster 1 2 3 4 5 K=1                      a deployment: the sites of the primary loop, in the order of the token
    ring 1 2 3 K=0 timed=no                    a fixed formation, without reformation servers and journals; its links
                                               are even, and Ack(e) is scheduled at e token periods
    loop 6 7 8 junction=2                      a secondary loop
    timing retry_period=20ms retries_max=8     values that differ from `TIMING` or `RING_TIMING`
    excess halt                                what to do if more than K sites are silent
    remedy replace                             a secondary site replaces a failed primary one
    journals lossy                             a crash loses entries that were never synced
    links delay=2ms jitter=200us loss=0.01 datagram_max=256
    tree loss=0.02                             one multicast tree; a branch loses for all nodes behind it
    late 4 5                                   sites that are not started at first
    load every=10ms until=3s                   two sources publish, in turns
    sources 101 102 · publish 101 at=150ms count=3 size=10
    drop 2->3 Ack token=2 count=1 at=1s        lose datagrams that match; `*` is any node
    clog 1->2 at=1s for=300ms                  hold the datagrams on one link
    crash 3 at=1s · restart 3 at=2s · pause 2 at=1s for=300ms · start 4 at=1s
    partition 1 2 at=1s for=500ms              no datagram crosses between these and the other nodes
    clock 2 at=1s for=1s error=5ms             a clock loses its reference and declares a larger bound
    standstill 2 at=1s for=300ms until=3s       a machine and its clock stand still; the clock is corrected at the end
    store unavailable at=1s for=400ms
    retire 2 at=1s · admit 2 at=2s · resume at=3s · adopt at=3s
    run 4s
    seeds 1 2 3

`fault_commands` has the commands for cut links, lost journals, wrong clocks, missing keys and the faults of the store.

`token` is the site that holds the next token, `next` the one after it, `leader` the leading reformation server, `any` a
site that the seed draws, `it` the node that was named last. The instant `1s~50ms` is up to 50 ms later, drawn by the
seed.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import groupby
from random import Random
from typing import Final

from fairtape.core.effects import Report
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import Timing
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.topology import Excess, LoopTopology, Remedy, Topology
from fairtape.simulation.clocks import SimulatedClock, clock_losing_reference, clock_standing_still
from fairtape.simulation.cluster import Cluster, ClusterPlan
from fairtape.simulation.cluster_checkers import ClusterCheckers
from fairtape.simulation.cluster_faults import ClusterFault, ClusterFaults, with_offsets
from fairtape.simulation.cluster_run import why_unsettled
from fairtape.simulation.datagram_summary import NAMES
from fairtape.simulation.network import DropRule
from fairtape.simulation.recorder import Recorder, lines
from fairtape.simulation.world import EPOCH, Observer
from fairtape.wire.frames import DATAGRAM_MAX, Kind, NodeId
from fairtape.wire.membership import OperatorVerb
from scenarios.fault_commands import VERBS as FAULT_VERBS
from scenarios.fault_commands import is_fault, parse_fault
from scenarios.scenario_text import BadScenario, duration, link

REFORMERS: Final = (101, 102)
SOURCES: Final = (201, 202)
TIMING: Final = Timing(
    retry_period=20 * MILLISECOND,
    retries_max=8,
    token_period=10 * MILLISECOND,
    commit_delay=50 * MILLISECOND,
    clock_error_max=4 * MILLISECOND,
)
RING_TIMING: Final = Timing(
    retry_period=100 * MILLISECOND, retries_max=3, token_period=200 * MILLISECOND, commit_delay=600 * MILLISECOND
)
RING_LINKS: Final = LinkFaults(delay=20 * MILLISECOND)
KINDS: Final[Mapping[str, Kind]] = {name: kind for kind, name in NAMES.items()}
VERBS: Final = {
    "retire": OperatorVerb.RETIRE,
    "admit": OperatorVerb.ADMIT,
    "resume": OperatorVerb.RESUME,
    "adopt": OperatorVerb.ADOPT,
}
OMITTED: Final = re.compile(r"formation \d+ from token|loop \d+, formation 1 ")
"""Notices that a log leaves out: each site enters the formation that a reformation server announced."""


@dataclass(frozen=True, slots=True)
class Action:
    """One command that is carried out at an instant."""

    verb: str
    arguments: tuple[str, ...]
    at: Instant
    period: Duration = 0


@dataclass(slots=True)
class Script:
    """All commands of a file; what they leave open is drawn for each seed."""

    sites: tuple[NodeId, ...] = ()
    fixed: bool = False  # a bare ring
    timed: bool = True
    sources: tuple[NodeId, ...] = ()
    loops: list[tuple[tuple[NodeId, ...], NodeId]] = field(default_factory=list)
    resilience: int | str = 1
    timing: Timing = TIMING
    excess: Excess = Excess.CONTINUE
    remedy: Remedy = Remedy.BYPASS
    durable: bool = True
    link_faults: LinkFaults = field(default_factory=lambda: LinkFaults(delay=2 * MILLISECOND, jitter=200_000))
    datagram_max: int = DATAGRAM_MAX
    tree_loss: float | None = None
    late_sites: tuple[NodeId, ...] = ()
    load_period: Duration = 0
    load_until: Duration = 0
    publications: list[tuple[str, NodeId, list[bytes]]] = field(default_factory=list)
    rules: list[tuple[str, DropRule]] = field(default_factory=list)
    clocks: list[tuple[str, str, Duration, Duration]] = field(default_factory=list)
    standstills: list[tuple[NodeId, str, Duration, Duration]] = field(default_factory=list)
    actions: list[tuple[str, tuple[str, ...], str, Duration]] = field(default_factory=list)
    faults: list[tuple[str, ClusterFault]] = field(default_factory=list)  # with the words of the command
    period: Duration = SECOND
    seeds: tuple[int, ...] = (1,)


def play(text: str) -> str:
    """The trace of a bare ring, or the logs of a deployment, one for each of its seeds."""
    script = parse(text)
    logs = []
    for seed in script.seeds:
        heading = f"seed {seed}\n" if len(script.seeds) > 1 else ""
        logs.append(heading + "".join(f"{line}\n" for line in ClusterScenario(script, seed).lines()))
    return "\n".join(logs)


def parse(text: str) -> Script:
    """The script; `BadScenario` names a line that cannot be parsed."""
    script = Script()
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        command = _COMMANDS.get(words[0])
        if command is None:
            raise BadScenario(f"{line!r}: {words[0]!r} is none of {', '.join(_COMMANDS)}")
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        try:
            command(script, words[0], tuple(word for word in words[1:] if "=" not in word), options)
        except (KeyError, ValueError, IndexError) as error:
            raise BadScenario(f"{line!r}: {error}") from None
        if options:
            raise BadScenario(f"{line!r}: unknown option {next(iter(options))!r}")
    return script


Options = dict[str, str]


def _cluster(script: Script, _verb: str, words: tuple[str, ...], options: Options) -> None:
    script.sites = tuple(map(int, words))
    wanted = options.pop("K", "1")
    script.resilience = int(wanted) if wanted.isdigit() else wanted


def _ring(script: Script, _verb: str, words: tuple[str, ...], options: Options) -> None:
    script.fixed, script.sites = True, tuple(map(int, words))
    script.resilience, script.timed = int(options.pop("K", "0")), options.pop("timed", "yes") == "yes"
    script.timing, script.link_faults, script.seeds = RING_TIMING, RING_LINKS, (0,)


def _sources(script: Script, _verb: str, words: tuple[str, ...], _options: Options) -> None:
    script.sources = tuple(map(int, words))


def _loop(script: Script, _verb: str, words: tuple[str, ...], options: Options) -> None:
    script.loops.append((tuple(map(int, words)), int(options.pop("junction"))))


def _timing(script: Script, _verb: str, _words: tuple[str, ...], options: Options) -> None:
    for name in [known.name for known in fields(Timing) if known.name in options]:
        word = options.pop(name)
        value = word == "yes" if name == "merged" else int(word) if name == "retries_max" else duration(word)
        script.timing = replace(script.timing, **{name: value})  # type: ignore[arg-type]


def _excess(script: Script, _verb: str, words: tuple[str, ...], _options: Options) -> None:
    script.excess = Excess(words[0])


def _remedy(script: Script, _verb: str, words: tuple[str, ...], _options: Options) -> None:
    script.remedy = Remedy(words[0])


def _journals(script: Script, _verb: str, words: tuple[str, ...], _options: Options) -> None:
    script.durable = {"durable": True, "lossy": False}[words[0]]


def _links(script: Script, _verb: str, _words: tuple[str, ...], options: Options) -> None:
    usual = script.link_faults
    script.datagram_max = int(options.pop("datagram_max", str(DATAGRAM_MAX)))
    script.link_faults = LinkFaults(
        delay=duration(options.pop("delay")) if "delay" in options else usual.delay,
        jitter=duration(options.pop("jitter")) if "jitter" in options else usual.jitter,
        loss=float(options.pop("loss", "0")),
    )


def _tree(script: Script, _verb: str, _words: tuple[str, ...], options: Options) -> None:
    script.tree_loss = float(options.pop("loss"))


def _late(script: Script, _verb: str, words: tuple[str, ...], _options: Options) -> None:
    script.late_sites = tuple(map(int, words))


def _load(script: Script, _verb: str, _words: tuple[str, ...], options: Options) -> None:
    script.load_period = duration(options.pop("every"))
    script.load_until = duration(options.pop("until"))
    script.sources = script.sources or SOURCES


def _publish(script: Script, _verb: str, words: tuple[str, ...], options: Options) -> None:
    count, size = int(options.pop("count", "1")), int(options.pop("size", "10"))
    messages = [bytes([number % 256]) * size for number in range(count)]
    script.publications.append((options.pop("at", "0ms"), int(words[0]), messages))


def _drop(script: Script, _verb: str, words: tuple[str, ...], options: Options) -> None:
    origin, to = link(words[0])
    rule = DropRule(
        origin=origin,
        to=to,
        kind=KINDS[words[1]] if len(words) > 1 else None,
        token=int(options.pop("token")) if "token" in options else None,
        text=options.pop("text", None),
        count=int(options.pop("count", "1")),
    )
    script.rules.append((options.pop("at", "0ms"), rule))


def _clock(script: Script, _verb: str, words: tuple[str, ...], options: Options) -> None:
    error = options.pop("error")
    sign = -1 if error.startswith("-") else 1
    strays = sign * duration(error.lstrip("+-")), duration(options.pop("for"))
    script.clocks.append((words[0], options.pop("at"), *strays))


def _standstill(script: Script, _verb: str, words: tuple[str, ...], options: Options) -> None:
    stands_still = int(words[0]), options.pop("at"), duration(options.pop("for")), duration(options.pop("until"))
    script.standstills.append(stands_still)


def _action(script: Script, verb: str, words: tuple[str, ...], options: Options) -> None:
    period = duration(options.pop("for")) if "for" in options else 0
    script.actions.append((verb, words, options.pop("at"), period))


def _fault(script: Script, verb: str, words: tuple[str, ...], options: Options) -> None:
    if is_fault(verb, words):
        script.faults.append((" ".join((verb, *words)), parse_fault(verb, words, options)))
    else:
        _action(script, verb, words, options)


def _run(script: Script, _verb: str, words: tuple[str, ...], _options: Options) -> None:
    script.period = duration(words[0])


def _seeds(script: Script, _verb: str, words: tuple[str, ...], _options: Options) -> None:
    script.seeds = tuple(map(int, words))


_COMMANDS: Final[Mapping[str, Callable[[Script, str, tuple[str, ...], Options], None]]] = {
    "cluster": _cluster,
    "ring": _ring,
    "sources": _sources,
    "loop": _loop,
    "timing": _timing,
    "excess": _excess,
    "remedy": _remedy,
    "journals": _journals,
    "links": _links,
    "tree": _tree,
    "late": _late,
    "load": _load,
    "publish": _publish,
    "drop": _drop,
    "clock": _clock,
    "standstill": _standstill,
    **dict.fromkeys(
        ("crash", "restart", "pause", "clog", "start", "partition", "retire", "admit", "resume", "adopt"), _action
    ),
    **dict.fromkeys(FAULT_VERBS, _fault),
    "run": _run,
    "seeds": _seeds,
}


class ClusterScenario(Observer):
    """The cluster of one seed, running a script and writing its log."""

    def __init__(self, script: Script, seed: int) -> None:
        self._script = script
        self._chance = Random(f"chronicle {seed}")  # the name is part of the seed: another one draws other faults
        self._picked: dict[str, NodeId] = {}  # the node that a word stands for, the last one used at the end
        self._log: list[tuple[Instant, str, str]] = []
        standstills = [(node, self._instant(at), period, until) for node, at, period, until in script.standstills]
        clocks = {**dict(self._clocks()), **dict(self._standing_still(standstills))}
        clocks = with_offsets(clocks, [fault for _, fault in script.faults])
        self._cluster = Cluster(self._plan(seed, clocks))
        self._checkers = ClusterCheckers(self._cluster)
        self._cluster.world.observers += [self._checkers, self]
        self._recorder = Recorder(self._cluster.world) if script.fixed else None
        if self._recorder is not None:
            self._cluster.observe = self._recorder.observer
        self._cluster.start()
        world = self._cluster.world
        faults = ClusterFaults(self._cluster, Random(f"published by faults {seed}"))
        for text, fault in script.faults:
            self._cluster.world.at(fault.at, partial(self._add, "fault", text))
            faults.schedule(fault)
        for verb, arguments, at, period in script.actions:
            action = Action(verb, arguments, self._instant(at), period)
            world.at(action.at, partial(self._do, action))
        for at, rule in script.rules:
            world.at(self._instant(at), partial(world.network.rules.append, rule))
        for at, source, messages in script.publications:
            world.at(self._instant(at), partial(self._cluster.publish, source, messages))
        for node, stops_at, stopped, _ in standstills:
            world.at(stops_at, partial(self._do, Action("pause", (str(node),), stops_at, stopped)))

    def lines(self) -> Iterator[str]:
        """Run the script; the lines of the trace or of the log."""
        world, script = self._cluster.world, self._script
        if script.load_period:
            for number, at in enumerate(range(SECOND // 4, script.load_until, script.load_period)):
                source = script.sources[number % len(script.sources)]
                world.at(EPOCH + at, partial(self._cluster.publish, source, [f"message {number}".encode()]))
        world.run(EPOCH + script.period)
        if self._recorder is not None:
            yield from lines(self._recorder.events, script.sites)
            return
        for (at, text), group in groupby(sorted(self._log), key=lambda entry: (entry[0], entry[2])):
            who = ",".join(sorted({who for _, who, _ in group}, key=lambda name: (len(name), name)))
            yield f"{(at - EPOCH) / SECOND:.3f} {who} {text}"
        unsettled = why_unsettled(self._cluster)
        if unsettled is None:
            self._checkers.finish()
        messages = sum(map(len, self._cluster.published.values()))
        late = ", ".join(f"{count} at {site}" for site, count in sorted(self._checkers.late_at.items()))
        yield f"end: {unsettled or f'equal journals of {messages} messages at all sites'}; late: {late or 'none'}"

    def _plan(self, seed: int, clocks: Mapping[NodeId, SimulatedClock]) -> ClusterPlan:
        script = self._script
        loops = [LoopTopology(number=0, tour=script.sites, timing=script.timing)]
        for number, (tour, junction) in enumerate(script.loops, 1):
            loops.append(LoopTopology(number=number, tour=tour, timing=script.timing, junction=junction))
        plan = ClusterPlan(
            topology=Topology(
                loops=tuple(loops),
                resilience=script.resilience,
                excess=script.excess,
                remedy=script.remedy,
                timed=script.timed,
            ),
            reformers=REFORMERS,
            sources=script.sources,
            link_model=lambda _origin, _to: script.link_faults,
            seed=seed,
            tree_loss=script.tree_loss,
            durable=script.durable,
            datagram_max=script.datagram_max,
            leader_lease=script.timing.lease_period // 3,
            late_sites=script.late_sites,
            clocks=clocks,
        )
        if not script.fixed:
            return plan
        return replace(plan, formation=self._formation(), reformers=(), stream="scenario")

    def _formation(self) -> Formation:
        """The fixed formation of a bare ring."""
        script = self._script
        return Formation(
            number=1,
            members=script.sites,
            timing=script.timing,
            starts_at=EPOCH + script.timing.token_period,
            resilience=int(script.resilience),
            timed=script.timed,
        )

    def _clocks(self) -> Iterator[tuple[NodeId, SimulatedClock]]:
        for word, at, error, period in self._script.clocks:
            node = self._picked["any"] = self._chance.choice(self._script.sites) if word == "any" else int(word)
            bound = self._script.timing.clock_error_max // 20
            yield node, clock_losing_reference(at=self._instant(at), period=period, error=error, bound=bound, step=True)

    def _standing_still(
        self, standstills: list[tuple[NodeId, Instant, Duration, Duration]]
    ) -> Iterator[tuple[NodeId, SimulatedClock]]:
        bound = self._script.timing.clock_error_max // 20
        for node, at, period, until in standstills:
            yield node, clock_standing_still(at=at, period=period, corrected_at=EPOCH + until, bound=bound)

    def _instant(self, word: str) -> Instant:
        at, _, later = word.partition("~")
        return EPOCH + duration(at) + (self._chance.randrange(duration(later)) if later else 0)

    def _who(self, word: str) -> NodeId:
        """The node of a number or a word; a word other than `it` is resolved anew each time."""
        if word.isdigit():
            return int(word)
        if word == "it":
            return next(reversed(self._picked.values()))
        self._picked.pop(word, None)
        self._picked[word] = self._resolve(word)
        return self._picked[word]

    def _resolve(self, word: str) -> NodeId:
        leader = self._cluster.leader()
        if word == "any":
            return self._chance.choice(self._script.sites)
        assert leader is not None
        if word == "leader":
            return leader.config.me
        formation = leader.primary.formation
        assert formation is not None
        following = formation.current(self._cluster.world.now) + 1
        return formation.holder(following + {"token": 0, "next": 1}[word])

    def _do(self, action: Action) -> None:
        world, cluster = self._cluster.world, self._cluster
        match action.verb:
            case "crash":
                world.crash(self._who(action.arguments[0]))
            case "restart":
                for node in [self._who(word) for word in action.arguments]:
                    world.restart(node, cluster.new_incarnation(node))
            case "pause":
                node = self._who(action.arguments[0])
                world.pause(node)
                world.at(world.now + action.period, partial(world.resume, node))
            case "clog":
                origin, to = (self._who(word) for word in action.arguments[0].split("->"))
                world.network.clog(origin, to)
                world.at(world.now + action.period, partial(world.network.unclog, origin, to))
            case "start":
                cluster.start_site(int(action.arguments[0]))
                self._add(int(action.arguments[0]), "starts")
            case "partition":
                self._partition(action)
            case "store":
                self._start_outage(action)
            case verb:
                site = self._who(action.arguments[0]) if action.arguments else 0
                self._add("operator", f"{verb} {site}" if site else verb)
                cluster.command(VERBS[verb], site)

    def _partition(self, action: Action) -> None:
        network, world = self._cluster.world.network, self._cluster.world
        side = tuple(self._who(word) for word in action.arguments)
        network.cut(side)
        self._add("network", f"partition of {', '.join(map(str, sorted(side)))} from the others")
        world.at(world.now + action.period, partial(self._end_partition, side))

    def _end_partition(self, side: tuple[NodeId, ...]) -> None:
        self._cluster.world.network.mend(side)
        self._add("network", "partition ends")

    def _start_outage(self, action: Action) -> None:
        self._cluster.store_access.unavailable = True
        self._add("store", "is unavailable")
        self._cluster.world.at(self._cluster.world.now + action.period, self._end_outage)

    def _end_outage(self) -> None:
        self._cluster.store_access.unavailable = False
        self._add("store", "is available again")

    def noticed(self, node: NodeId, text: str, now: Instant, /) -> None:  # noqa: ARG002
        if not OMITTED.match(text):
            self._add(node, text)

    def reported(self, node: NodeId, report: Report, now: Instant, /) -> None:  # noqa: ARG002
        self._add(node, f"declares site {report.suspect} failed at token {report.token}: {report.reason.value}")

    def fault_event(self, node: NodeId, what: str, now: Instant, /) -> None:  # noqa: ARG002
        self._add(node, {"crash": "crashes", "restart": "restarts", "pause": "pauses", "resume": "resumes"}[what])

    def _add(self, who: NodeId | str, text: str) -> None:
        """Add a line to the log, in whole milliseconds, so that equal lines of several nodes can be joined."""
        now = self._cluster.world.now
        self._log.append((now - now % MILLISECOND, str(who), text))
