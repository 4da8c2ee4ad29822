"""Ring scenarios: small worlds as scripts, with the whole expected trace.

A file has the commands above a line of four dashes, one per line, and below it the expected trace. Times are in seconds
since the start of the world; Ack(e) is scheduled at e token periods. Every link has the same delay, nothing is random.

    ring 1 2 3 token_period=200ms retries_max=3      the sites in the order of the token, and the timing
    sources 101 102
    links delay=20ms                                 the delay of every link
    publish 101 at=150ms count=3 size=10             a source publishes messages
    drop 2->3 Ack token=2 count=1                    lose datagrams that match; `*` is any node, at= begins later
    clog 1->2 at=1s for=300ms                        hold the datagrams on one link
    pause 2 at=1s for=300ms                          a process is paused
    crash 2 at=1s
    restart 101 at=2s                                a source restarts as a new incarnation
    run 900ms
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Final

from fairtape.core.effects import Channel
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import Timing
from fairtape.nodes.receiver import Receiver
from fairtape.nodes.source import Source
from fairtape.ring.membership.formation import Formation
from fairtape.simulation.checkers import Checkers, Facts
from fairtape.simulation.configuration import chance_for
from fairtape.simulation.datagram_summary import NAMES
from fairtape.simulation.faults import Clog, Crash, Fault, Pause, Restart, schedule_fault
from fairtape.simulation.network import DropRule
from fairtape.simulation.recorder import Recorder, lines
from fairtape.simulation.world import EPOCH, World
from fairtape.wire.frames import DATAGRAM_MAX, Kind, NodeId
from fairtape.wire.seals import Keys

RULE_LINE: Final = "----"
UNITS: Final = {"us": MICROSECOND, "µs": MICROSECOND, "ms": MILLISECOND, "s": SECOND}
KINDS: Final[Mapping[str, Kind]] = {name: kind for kind, name in NAMES.items()}
TIMING: Final = Timing(
    retry_period=100 * MILLISECOND, retries_max=3, token_period=200 * MILLISECOND, commit_delay=600 * MILLISECOND
)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(us|µs|ms|s)")


class BadScenario(ValueError):
    """A line cannot be parsed; the message names it."""


@dataclass(slots=True)
class _Script:
    """All commands of a file."""

    sites: tuple[NodeId, ...] = ()
    sources: tuple[NodeId, ...] = ()
    timing: Timing = TIMING
    resilience: int = 0
    timed: bool = True
    datagram_max: int = DATAGRAM_MAX
    delay: Duration = 20 * MILLISECOND
    publications: list[tuple[Instant, NodeId, list[bytes]]] = field(default_factory=list)
    rules: list[tuple[Instant, DropRule]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    period: Duration = 0


def play(text: str) -> str:
    """The trace of a script."""
    script = _parse(text)
    world = World(chance=chance_for("scenario", 0), link_model=lambda _origin, _to: LinkFaults(delay=script.delay))
    recorder = Recorder(world)
    _RingScenario(script, world, recorder).play()
    return "".join(f"{line}\n" for line in lines(recorder.events, script.sites))


def parts(text: str) -> tuple[str, str]:
    """The commands and the expected trace of a scenario file."""
    commands, _, expected = text.partition(f"{RULE_LINE}\n")
    return commands, expected


def duration(word: str) -> Duration:
    """`150ms` in nanoseconds."""
    found = _DURATION.fullmatch(word)
    if found is None:
        raise BadScenario(f"{word!r} is no duration; write 150ms, 20us or 1.5s")
    return round(float(found[1]) * UNITS[found[2]])


def _parse(text: str) -> _Script:
    script = _Script()
    for line in text.splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        command = _COMMANDS.get(words[0])
        if command is None:
            raise BadScenario(f"{line!r}: {words[0]!r} is none of {', '.join(_COMMANDS)}")
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        command(script, [word for word in words[1:] if "=" not in word], options)
        if options:
            raise BadScenario(f"{line!r}: unknown option {next(iter(options))!r}")
    return script


def _ring(script: _Script, words: list[str], options: dict[str, str]) -> None:
    script.sites = tuple(map(int, words))
    script.resilience = int(options.pop("resilience", "0"))
    script.timed = options.pop("timed", "yes") == "yes"
    for name in [known.name for known in fields(Timing) if known.name in options]:
        word = options.pop(name)
        value = word == "yes" if name == "merged" else int(word) if name == "retries_max" else duration(word)
        script.timing = replace(script.timing, **{name: value})  # type: ignore[arg-type]


def _sources(script: _Script, words: list[str], _options: dict[str, str]) -> None:
    script.sources = tuple(map(int, words))


def _links(script: _Script, _words: list[str], options: dict[str, str]) -> None:
    script.delay = duration(options.pop("delay", "20ms"))
    script.datagram_max = int(options.pop("datagram_max", str(DATAGRAM_MAX)))


def _publish(script: _Script, words: list[str], options: dict[str, str]) -> None:
    count, size = int(options.pop("count", "1")), int(options.pop("size", "10"))
    messages = [bytes([number % 256]) * size for number in range(count)]
    script.publications.append((EPOCH + duration(options.pop("at", "0ms")), int(words[0]), messages))


def _drop(script: _Script, words: list[str], options: dict[str, str]) -> None:
    origin, to = _pair(words[0])
    rule = DropRule(
        origin=origin,
        to=to,
        kind=KINDS[words[1]] if len(words) > 1 else None,
        token=int(options.pop("token")) if "token" in options else None,
        text=options.pop("text", None),
        count=int(options.pop("count", "1")),
    )
    script.rules.append((EPOCH + duration(options.pop("at", "0ms")), rule))


def _clog(script: _Script, words: list[str], options: dict[str, str]) -> None:
    origin, to = _pair(words[0])
    assert origin is not None
    assert to is not None
    script.faults.append(Clog(_at(options), origin, to, duration(options.pop("for"))))


def _pause(script: _Script, words: list[str], options: dict[str, str]) -> None:
    script.faults.append(Pause(_at(options), int(words[0]), duration(options.pop("for"))))


def _crash(script: _Script, words: list[str], options: dict[str, str]) -> None:
    script.faults.append(Crash(_at(options), int(words[0])))


def _restart(script: _Script, words: list[str], options: dict[str, str]) -> None:
    script.faults.append(Restart(_at(options), int(words[0])))


def _run(script: _Script, words: list[str], _options: dict[str, str]) -> None:
    script.period = duration(words[0])


_COMMANDS: Final[Mapping[str, Callable[[_Script, list[str], dict[str, str]], None]]] = {
    "ring": _ring,
    "sources": _sources,
    "links": _links,
    "publish": _publish,
    "drop": _drop,
    "clog": _clog,
    "pause": _pause,
    "crash": _crash,
    "restart": _restart,
    "run": _run,
}


def _at(options: dict[str, str]) -> Instant:
    return EPOCH + duration(options.pop("at"))


def _pair(word: str) -> tuple[NodeId | None, NodeId | None]:
    origin, arrow, to = word.partition("->")
    if not arrow:
        raise BadScenario(f"{word!r} is no link; write 2->3, or * for any node")
    return (None if origin == "*" else int(origin)), (None if to == "*" else int(to))


class _RingScenario:
    """A script running in a world. Every guarantee is checked except arrival, because a scenario may end early."""

    def __init__(self, script: _Script, world: World, recorder: Recorder) -> None:
        self._script = script
        self._world = world
        self._recorder = recorder
        self._keys = Keys.from_secret(b"a scenario", script.sites, script.sources)
        self._incarnations = dict.fromkeys(script.sources, 1)
        self._published: dict[tuple[NodeId, int], list[bytes]] = {}
        self._formation = Formation(
            number=1,
            members=script.sites,
            timing=script.timing,
            starts_at=EPOCH + script.timing.token_period,
            resilience=script.resilience,
            timed=script.timed,
        )

    def play(self) -> None:
        facts = Facts(sites=self._script.sites, formations=lambda: (self._formation,), published=self._published)
        self._world.observers.append(Checkers(facts))
        for site in self._script.sites:
            self._world.add(site, self._receiver(site), channels=(Channel.DATA, Channel.CONTROL))
        for source in self._script.sources:
            self._world.add(source, self._source(source), channels=(Channel.CONTROL,))
        for fault in self._script.faults:
            schedule_fault(self._world, fault, self._new_incarnation)
        for at, rule in self._script.rules:
            self._world.at(at, partial(self._world.network.rules.append, rule))
        for at, source, messages in self._script.publications:
            self._world.at(at, partial(self._publish, source, messages))
        self._world.run(EPOCH + self._script.period)

    def _receiver(self, site: NodeId) -> Receiver:
        return Receiver(
            me=site,
            formation=self._formation,
            keys=self._keys,
            born_at=EPOCH,
            datagram_max=self._script.datagram_max,
            observe=self._recorder.observer(site),
        )

    def _source(self, source: NodeId) -> Source:
        return Source(
            me=source,
            keys=self._keys.for_source(source),
            timing=self._script.timing,
            resilience=self._script.resilience,
            incarnation=self._incarnations[source],
            datagram_max=self._script.datagram_max,
        )

    def _new_incarnation(self, source: NodeId) -> Source:
        self._incarnations[source] += 1
        return self._source(source)

    def _publish(self, source: NodeId, messages: list[bytes]) -> None:
        def offer(now: Instant) -> None:
            machine = self._world.machine(source)
            assert isinstance(machine, Source)
            taken = machine.publish(messages, now)
            self._published.setdefault((source, self._incarnations[source]), []).extend(messages[:taken])

        self._world.touch(source, offer)
