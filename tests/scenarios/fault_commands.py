"""The commands of a cluster scenario that name a fault of `fairtape.simulation.cluster_faults`.

cut 3-1 3-2 at=1s for=1s                   no datagram passes between these pairs
cut 3->1 2->1 at=1s for=1s                 nor in this direction; the other one stays open
journal 3 empty at=1s for=50ms             the site crashes and restarts with an empty journal
journal 3 back=200ms at=1s for=50ms        or with a copy that is 200 ms older than the crash
setback 3 by=5s at=1s for=50ms until=3s    it restarts with its clock set back, and its bound does not know
setback 3 by=5s at=1s for=50ms ahead=300ms it was ahead since 300 ms, and is right after its restart
stop 3 at=1s for=300ms until=3s            a virtual machine stands still with its clock, which is corrected later
flap 3 at=1s times=6 down=50ms up=300ms    the site crashes and restarts again and again
lacks 3 201 at=1s for=1s                   the site restarts without the key of a source
large 201 at=1s size=65536                 a source publishes a long message
store slow at=1s for=1s delay=300ms        every call takes that long; without `for`, the next one
store late at=1s for=1s delay=300ms        claims are carried out, and answered that much later
store unanswered 101 at=1s gives_up=90ms gone=1100ms for=300ms   the next claim of a server is carried out and never
                                           answered; later, for a while, the server cannot reach the store
store restored at=1s formations=1          from a backup that lacks the last formations
store lost at=1s for=500ms                 an empty one takes its place; the operator says so later
copied 102 3 4 at=1s for=1s                a server uses the store of a copy of the folder; these sites hear only it
"""

from collections.abc import Callable, Mapping
from typing import Final

from fairtape.core.instants import Instant
from fairtape.simulation.cluster_faults import (
    ClockSetBack,
    ClusterFault,
    CopiedFolder,
    CutOneWay,
    CutPairs,
    EmptyJournal,
    Flapping,
    LargeMessages,
    LateAnswers,
    LostAnswer,
    LostStore,
    MissingKey,
    RestoredStore,
    RolledBackJournal,
    SlowStore,
    StoppedMachine,
)
from fairtape.simulation.world import EPOCH
from scenarios.scenario_text import duration

Words = tuple[str, ...]
Options = dict[str, str]


def parse_fault(verb: str, words: Words, options: Options) -> ClusterFault:
    """The fault that a command names; its options are taken from `options`."""
    at = EPOCH + duration(options.pop("at"))
    return _FAULTS[verb](at, words, options)


def is_fault(verb: str, words: Words) -> bool:
    """Whether a command names such a fault; `store unavailable` is an outage."""
    return verb in _FAULTS and words[:1] != ("unavailable",)


def _cut(at: Instant, words: Words, options: Options) -> ClusterFault:
    period = duration(options.pop("for"))
    links = [tuple(map(int, word.split("->" if "->" in word else "-"))) for word in words]
    one_way = {"->" in word for word in words}
    if len(one_way) != 1 or any(len(link) != 2 for link in links):
        raise ValueError("either pairs, 1-2, or directions, 1->2")
    kind = CutOneWay if one_way == {True} else CutPairs
    return kind(at, tuple((link[0], link[1]) for link in links), period)


def _journal(at: Instant, words: Words, options: Options) -> ClusterFault:
    node, period = int(words[0]), duration(options.pop("for"))
    if words[1:] == ("empty",):
        return EmptyJournal(at, node, period)
    return RolledBackJournal(at, node, duration(options.pop("back")), period)


def _setback(at: Instant, words: Words, options: Options) -> ClusterFault:
    ahead = "ahead" in options
    return ClockSetBack(
        at=at,
        node=int(words[0]),
        period=duration(options.pop("for")),
        by=duration(options.pop("by")),
        since=EPOCH + duration(options.pop("ahead", "0ms")),
        until=EPOCH + duration(options.pop("until", "0ms")),
        ahead=ahead,
        declared=ahead,
    )


def _stop(at: Instant, words: Words, options: Options) -> ClusterFault:
    until = EPOCH + duration(options.pop("until"))
    return StoppedMachine(at, int(words[0]), duration(options.pop("for")), until, slewed=False)


def _flap(at: Instant, words: Words, options: Options) -> ClusterFault:
    times = int(options.pop("times")) * ((duration(options.pop("down")), duration(options.pop("up"))),)
    return Flapping(at, int(words[0]), times)


def _lacks(at: Instant, words: Words, options: Options) -> ClusterFault:
    return MissingKey(at, int(words[0]), int(words[1]), duration(options.pop("for")))


def _large(at: Instant, words: Words, options: Options) -> ClusterFault:
    return LargeMessages(at, int(words[0]), (int(options.pop("size")),))


def _store(at: Instant, words: Words, options: Options) -> ClusterFault:
    match words[0]:
        case "slow":
            return SlowStore(at, duration(options.pop("delay")), duration(options.pop("for", "0ms")))
        case "late":
            return LateAnswers(at, duration(options.pop("delay")), duration(options.pop("for")))
        case "unanswered":
            gone_at = EPOCH + duration(options.pop("gone"))
            return LostAnswer(
                at, int(words[1]), duration(options.pop("gives_up")), gone_at, duration(options.pop("for"))
            )
        case "restored":
            return RestoredStore(at, int(options.pop("formations")))
        case "lost":
            return LostStore(at, duration(options.pop("for")))
    raise ValueError("unavailable, slow, late, unanswered, restored or lost")


def _copied(at: Instant, words: Words, options: Options) -> ClusterFault:
    server, *sites = map(int, words)
    return CopiedFolder(at, (server,), tuple(sites), duration(options.pop("for")))


_FAULTS: Final[Mapping[str, Callable[[Instant, Words, Options], ClusterFault]]] = {
    "cut": _cut,
    "journal": _journal,
    "setback": _setback,
    "stop": _stop,
    "flap": _flap,
    "lacks": _lacks,
    "large": _large,
    "store": _store,
    "copied": _copied,
}
VERBS: Final = tuple(_FAULTS)
