"""Cluster scenarios: the faults of a deployment as a script, with the expected log.

A file has the commands above a line of four dashes, and below it one log for each seed. The log has the notices of the
nodes, the faults, and at the end the late releases and whether all journals are equal. Times are in seconds since the
start of the world. The seed draws the jitter and loss of the links, and what a command leaves open: a node, an instant.

    cluster 1 2 3 4 5 K=1                      the sites of the primary loop, in the order of the token
    loop 6 7 8 junction=2                      a secondary loop
    timing retry_period=20ms retries_max=8     values that differ from `TIMING`
    excess halt                                what to do if more than K sites are silent
    remedy replace                             a secondary site replaces a failed primary one
    journals lossy                             a crash loses entries that were never synced
    links delay=2ms jitter=200us loss=0.01
    tree loss=0.02                             one multicast tree; a branch loses for all nodes behind it
    late 4 5                                   sites that are not started at first
    load every=10ms until=3s                   two sources publish, in turns
    crash 3 at=1s · restart 3 at=2s · pause 2 at=1s for=300ms · start 4 at=1s
    partition 1 2 at=1s for=500ms              no datagram crosses between these and the other nodes
    clock 2 at=1s for=1s error=5ms             a clock loses its reference and declares a larger bound
    standstill 2 at=1s for=300ms until=3s       a machine and its clock stand still; the clock is corrected at the end
    store unavailable at=1s for=400ms
    retire 2 at=1s · admit 2 at=2s · resume at=3s
    run 4s
    seeds 1 2 3

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
from fairtape.ring.membership.topology import Excess, LoopTopology, Remedy, Topology
from fairtape.simulation.clocks import SimulatedClock, clock_losing_reference, clock_standing_still
from fairtape.simulation.cluster import Cluster, ClusterPlan
from fairtape.simulation.cluster_checkers import ClusterCheckers
from fairtape.simulation.cluster_run import why_unsettled
from fairtape.simulation.world import EPOCH, Observer
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import OperatorVerb
from scenarios.ring_scenario import BadScenario, duration

REFORMERS: Final = (101, 102)
SOURCES: Final = (201, 202)
TIMING: Final = Timing(
    retry_period=20 * MILLISECOND,
    retries_max=8,
    token_period=10 * MILLISECOND,
    commit_delay=50 * MILLISECOND,
    clock_error_max=4 * MILLISECOND,
)
VERBS: Final = {"retire": OperatorVerb.RETIRE, "admit": OperatorVerb.ADMIT, "resume": OperatorVerb.RESUME}
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
    loops: list[tuple[tuple[NodeId, ...], NodeId]] = field(default_factory=list)
    resilience: int | str = 1
    timing: Timing = TIMING
    excess: Excess = Excess.CONTINUE
    remedy: Remedy = Remedy.BYPASS
    durable: bool = True
    link_faults: LinkFaults = field(default_factory=lambda: LinkFaults(delay=2 * MILLISECOND, jitter=200_000))
    tree_loss: float | None = None
    late_sites: tuple[NodeId, ...] = ()
    load_period: Duration = 0
    load_until: Duration = 0
    clocks: list[tuple[str, str, Duration, Duration]] = field(default_factory=list)
    standstills: list[tuple[NodeId, str, Duration, Duration]] = field(default_factory=list)
    actions: list[tuple[str, tuple[str, ...], str, Duration]] = field(default_factory=list)
    period: Duration = SECOND
    seeds: tuple[int, ...] = (1,)


def play_cluster(text: str) -> str:
    """The logs of a script, one for each of its seeds."""
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
    script.link_faults = LinkFaults(
        delay=duration(options.pop("delay", "2ms")),
        jitter=duration(options.pop("jitter", "200us")),
        loss=float(options.pop("loss", "0")),
    )


def _tree(script: Script, _verb: str, _words: tuple[str, ...], options: Options) -> None:
    script.tree_loss = float(options.pop("loss"))


def _late(script: Script, _verb: str, words: tuple[str, ...], _options: Options) -> None:
    script.late_sites = tuple(map(int, words))


def _load(script: Script, _verb: str, _words: tuple[str, ...], options: Options) -> None:
    script.load_period = duration(options.pop("every"))
    script.load_until = duration(options.pop("until"))


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


def _run(script: Script, _verb: str, words: tuple[str, ...], _options: Options) -> None:
    script.period = duration(words[0])


def _seeds(script: Script, _verb: str, words: tuple[str, ...], _options: Options) -> None:
    script.seeds = tuple(map(int, words))


_COMMANDS: Final[Mapping[str, Callable[[Script, str, tuple[str, ...], Options], None]]] = {
    "cluster": _cluster,
    "loop": _loop,
    "timing": _timing,
    "excess": _excess,
    "remedy": _remedy,
    "journals": _journals,
    "links": _links,
    "tree": _tree,
    "late": _late,
    "load": _load,
    "clock": _clock,
    "standstill": _standstill,
    **dict.fromkeys(("crash", "restart", "pause", "start", "partition", "store", "retire", "admit", "resume"), _action),
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
        self._cluster = Cluster(self._plan(seed, {**dict(self._clocks()), **dict(self._standing_still(standstills))}))
        self._checkers = ClusterCheckers(self._cluster)
        self._cluster.world.observers += [self._checkers, self]
        self._cluster.start()
        for verb, arguments, at, period in script.actions:
            action = Action(verb, arguments, self._instant(at), period)
            self._cluster.world.at(action.at, partial(self._do, action))
        for node, stops_at, stopped, _ in standstills:
            self._cluster.world.at(stops_at, partial(self._do, Action("pause", (str(node),), stops_at, stopped)))

    def lines(self) -> Iterator[str]:
        """Run the script; the lines of the log."""
        world, script = self._cluster.world, self._script
        if script.load_period:
            for number, at in enumerate(range(SECOND // 4, script.load_until, script.load_period)):
                source = SOURCES[number % len(SOURCES)]
                world.at(EPOCH + at, partial(self._cluster.publish, source, [f"message {number}".encode()]))
        world.run(EPOCH + script.period)
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
        return ClusterPlan(
            topology=Topology(
                loops=tuple(loops), resilience=script.resilience, excess=script.excess, remedy=script.remedy
            ),
            reformers=REFORMERS,
            sources=SOURCES if script.load_period else (),
            link_model=lambda _origin, _to: script.link_faults,
            seed=seed,
            tree_loss=script.tree_loss,
            durable=script.durable,
            leader_lease=script.timing.lease_period // 3,
            late_sites=script.late_sites,
            clocks=clocks,
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
