"""Drills: a fault is injected into a running deployment under load, undone, and its effects are measured.

A drill acts on processes of this machine, and only on those that the deployment's own status files name. It undoes
whatever it does, also when it is interrupted.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.json_objects import encode
from fairtape.deployment.config.description import Deployment, Node, NodeKind, with_names
from fairtape.deployment.process.local_cluster import LocalCluster
from fairtape.deployment.process.resources import clock_of
from fairtape.deployment.process.supervisor import Supervisor, Wrapping
from fairtape.deployment.status import DecisionStatus, DrillControls, LoadStatus, ReformerStatus, SiteStatus
from fairtape.deployment.status_files import RunFolder
from fairtape.journal import compare
from fairtape.wire.frames import NodeId

POLL_PERIOD: Final = 0.1  # seconds
SETTLING_MAX: Final = 60.0  # seconds for a deployment to be whole again
RETURN_MAX: Final = 20.0  # seconds for the failed to be members again while there is load
LOAD_PERIOD: Final = 1.5  # seconds of load before the fault
AFTERMATH_PERIOD: Final = 1.0  # seconds of load after everything is whole again
CLOCK_STEP: Final = 100 * MILLISECOND
TOKEN_SITE: Final = "token"  # noqa: S105 - a token of the ring
NEXT_SITE: Final = "next"
LEADER: Final = "leader"
DUTIES: Final = (TOKEN_SITE, NEXT_SITE, LEADER)  # in place of names: the node that has the duty when the fault begins


class Fault(Enum):
    """What a drill does."""

    KILL = "kill"  # kill -9, and a new start afterwards
    PAUSE = "pause"  # SIGSTOP and SIGCONT
    PARTITION = "partition"  # no datagram passes between these nodes and all others
    CLOCK = "clock"  # the clock is set wrong


FaultActions: TypeAlias = tuple[
    Callable[["DrillTarget", "DrillPlan", list[Node]], None], Callable[["DrillTarget", list[Node]], None]
]
"""How a fault is injected, and how it is undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillPlan:
    """One drill."""

    fault: Fault
    victims: tuple[str, ...]  # names, or token, next, leader
    period: Duration = 3 * SECOND  # until it is undone
    rate: float = 10_000.0  # messages per second, over all load sources
    size: int = 64
    step: Duration = CLOCK_STEP
    senders: int = 1


class DrillTarget:
    """The running deployment of a drill."""

    def __init__(self, deployment: Deployment, *, wrapping: Wrapping = lambda _name: ()) -> None:
        self.deployment = deployment
        self.run = RunFolder(deployment.folder)
        self.cluster: LocalCluster | None = None  # where the drill runs the deployment itself
        self.load = Supervisor(deployment.folder, self.run, wrapping=wrapping)

    def now(self) -> Instant:
        return clock_of(self.deployment).now()

    def sites(self) -> dict[str, SiteStatus]:
        return self.run.statuses_of(SiteStatus, [node.name for node in self.deployment.sites])

    def reformers(self) -> dict[str, ReformerStatus]:
        return self.run.statuses_of(ReformerStatus, [node.name for node in self.deployment.reformers])

    def leader(self) -> ReformerStatus | None:
        return next((server for server in self.reformers().values() if server.leads), None)

    def wait_until(self, done: Callable[[], str], wait_max: float, what: str) -> None:
        """Wait until `done` returns no reason to wait. Raises `UserError` after `wait_max` seconds."""
        give_up_at = time.monotonic() + wait_max
        while reason := done():
            if time.monotonic() > give_up_at:
                raise UserError(f"waited {wait_max:g} s for {what}: {reason}")
            self._tend()
            time.sleep(POLL_PERIOD)

    def wait(self, period: Duration) -> None:
        ends_at = time.monotonic() + period / SECOND
        while (left := ends_at - time.monotonic()) > 0:
            self._tend()
            time.sleep(min(left, POLL_PERIOD))

    def unsettled(self) -> str:
        """Why the deployment is not whole; empty where it is."""
        leader, sites = self.leader(), self.sites()
        if leader is None:
            return "no reformation server leads"
        if leader.phase != "steady":
            return f"the primary loop is {leader.phase}"
        for node in self.deployment.sites:
            site, home = sites.get(node.name), self.deployment.home_of(node.number)
            if site is None:
                return f"{node.name} does not run"
            if node.name in leader.retired:
                continue
            if site.formation != leader.formation:
                return f"{node.name} is not in formation {leader.formation}"
            if not (site.is_member if home == 0 else home in site.loops):
                return f"{node.name} is {site.membership_state} and not a member of loop {home}"
        return ""

    def unequal(self) -> str:
        """Why the journals are not known to be the same; empty where they are."""
        sites = self.sites()
        ends = {(site.sequence, site.digest) for site in sites.values()}
        if len(sites) < len(self.deployment.sites) or len(ends) != 1:
            return "journals differ: " + ", ".join(f"{name} at {site.sequence}" for name, site in sites.items())
        behind = [name for name, site in sites.items() if site.released_sequence != site.sequence]
        return f"{', '.join(behind)} has not released everything" if behind else ""

    def one_order(self) -> bool:
        """Whether all journals are the same, as far as each of them goes."""
        folders = [self.deployment.journal_of(node) for node in self.deployment.sites]
        return not self.unequal() or compare([folder for folder in folders if folder.is_dir()]).same

    def resolve(self, names: Iterable[str]) -> list[Node]:
        """The nodes of these names or duties."""
        found = []
        for name in names:
            if name in (TOKEN_SITE, NEXT_SITE):
                name = self._token_site(1 if name == NEXT_SITE else 0)
            elif name == LEADER:
                leader = self.leader()
                if leader is None:
                    raise UserError(f"SITE is {LEADER!r}, and no reformation server leads now; name one")
                name = leader.name
            found.append(self.deployment.node(name, NodeKind.SITE, NodeKind.REFORMER, field="SITE"))
        return list(dict.fromkeys(found))

    def signal(self, node: Node, number: signal.Signals) -> None:
        """Signal the process that the status file names, if it is still the same one."""
        status = self.run.status(node.name)
        if status is None:
            raise UserError(f"SITE is {node.name!r}, which does not run on this machine; start the deployment first")
        os.kill(status.pid, number)

    def _tend(self) -> None:
        if self.cluster is not None:
            self.cluster.look()

    def _token_site(self, further: int) -> str:
        """The site that will hold the token in a millisecond, or as many passes further."""
        for site in self.sites().values():
            if site.schedule is not None:
                passed = (self.now() + MILLISECOND - site.schedule.starts_at) // site.schedule.token_period
                return site.members[(passed + further) % len(site.members)]
        raise UserError(f"SITE is {TOKEN_SITE!r}, and there is no formation yet; name a site")


def run_drill(target: DrillTarget, plan: DrillPlan, actions: FaultActions | None = None) -> dict[str, Any]:
    """Carry out one drill; returns its results. `actions` replace those of the fault, to cut a real link."""
    target.wait_until(target.unsettled, SETTLING_MAX, "all sites to be members")
    sources = _free_sources(target, plan.senders)
    try:
        for source in sources:
            target.load.start(source.name, "--load", str(plan.rate / plan.senders), "--size", str(plan.size))
        target.wait_until(lambda: _no_load(target, sources), SETTLING_MAX, "acknowledgments")
        target.wait(round(LOAD_PERIOD * SECOND))
        result = _inject(target, plan, actions or ACTIONS[plan.fault])
        target.wait(round(AFTERMATH_PERIOD * SECOND))
        loads = _end_load(target, sources)
        result.wait_for_return(target, loads)
        return result.report(target, loads)
    finally:
        target.load.stop()


def _free_sources(target: DrillTarget, count: int) -> list[Node]:
    free = [node for node in target.deployment.of_kind(NodeKind.SOURCE) if target.run.status(node.name) is None]
    if len(free) < count:
        raise UserError(
            f"the deployment has {len(free)} free sources, and the drill needs {count}; stop the publishers"
        )
    return free[-count:]


def _loads(target: DrillTarget, sources: Sequence[Node]) -> dict[str, LoadStatus]:
    return target.run.statuses_of(LoadStatus, [source.name for source in sources])


def _no_load(target: DrillTarget, sources: Sequence[Node]) -> str:
    loads = _loads(target, sources)
    for ended in target.load.ended():
        raise UserError(f"the source of traffic failed: {ended}")
    for source in sources:
        if source.name not in loads or not loads[source.name].acknowledged:
            return f"nothing of {source.name} is acknowledged"
    return ""


def _end_load(target: DrillTarget, sources: Sequence[Node]) -> dict[str, LoadStatus]:
    """Stop the load, and wait until all of it is settled; the last statuses of its sources.

    What is not settled in time is a result of the drill, not an error.
    """
    for source in sources:
        target.run.set_controls(source.name, DrillControls(quiet=True))

    def busy() -> str:
        done = [load for load in _loads(target, sources).values() if load.quiet and load.idle]
        return "" if len(done) == len(sources) else "not everything is settled"

    with suppress(UserError):
        target.wait_until(busy, SETTLING_MAX, "the end of the traffic")
    return _loads(target, sources)


@dataclass(slots=True)
class DrillResult:
    """What is known about a fault and its effects."""

    plan: DrillPlan
    victims: list[Node]
    before: dict[str, SiteStatus]
    formation: int
    struck_at: Instant
    healed_at: Instant = 0
    whole_at: Instant = 0  # while there was load; 0: not before it had ended
    rejoined: bool = False
    waited_until: Instant = 0
    notices_from: int = 0
    meanwhile: dict[str, SiteStatus] = field(default_factory=dict)  # of the sites before the fault was undone

    def wait_for_return(self, target: DrillTarget, loads: Mapping[str, LoadStatus]) -> None:
        """Wait until every site is a member again and has all that was acknowledged, up to `SETTLING_MAX`."""

        def absent() -> str:
            behind = [name for name, site in target.sites().items() if _lost(site.streams, loads)]
            return target.unsettled() or (f"{', '.join(behind)} has not caught up" if behind else "")

        with suppress(UserError):
            target.wait_until(absent, SETTLING_MAX, "all sites to be members")
            self.rejoined = True
        self.waited_until = self.whole_at if self.whole_at and self.rejoined else target.now()

    def report(self, target: DrillTarget, loads: Mapping[str, LoadStatus]) -> dict[str, Any]:
        """The results, as `fairtape drill --json` prints them."""
        sites = target.sites()
        decisions = self._decisions(target)
        survivors = [name for name in sites if name not in {node.name for node in self.victims}]
        complete = sites if self.rejoined else {name: sites[name] for name in survivors}
        notices, _ = target.run.notices_from(self.notices_from)
        return {
            "fault": self.plan.fault.value,
            "sites": [node.name for node in self.victims],
            "period_s": self.plan.period / SECOND,
            "rate": self.plan.rate,
            "detect_s": self._since(decisions[0].began_at) if decisions else None,
            "formation_s": self._since(decisions[0].decided_at) if decisions else None,
            "stall_s": max((self._stall(name, sites[name]) for name in survivors), default=0.0),
            "return_stall_s": max((self._stall_since_healed(sites[name]) for name in survivors), default=0.0),
            "rejoined": self.rejoined,
            "waited_s": (self.waited_until - self.healed_at) / SECOND,
            "whole_s": (self.whole_at - self.healed_at) / SECOND if self.whole_at else None,
            "late": max((self._late(name, sites[name]) for name in survivors), default=0),
            "published": sum(load.published for load in loads.values()),
            "pending": sum(load.published - load.acknowledged for load in loads.values()),
            "lost": max((_lost(site.streams, loads) for site in complete.values()), default=_lost({}, loads)),
            "one_order": target.one_order(),
            "breaks": sum(decision.broken for decision in decisions),
            "formations": encode(decisions),
            "survivors": {
                name: {"stall_s": self._stall(name, sites[name]), "late": self._late(name, sites[name])}
                for name in survivors
            },
            "notices": [with_names(line, target.deployment) for line in notices],
        }

    def _decisions(self, target: DrillTarget) -> list[DecisionStatus]:
        """The formations of the primary loop since the fault, in their order, from whichever server led."""
        found = {
            decision.formation: decision
            for server in target.reformers().values()
            for decision in server.decisions
            if decision.loop == 0 and decision.formation > self.formation
        }
        return [found[number] for number in sorted(found)]

    def _since(self, instant: Instant) -> float:
        return (instant - self.struck_at) / SECOND

    def _stall(self, name: str, site: SiteStatus) -> float:
        """The longest pause that began before the fault was undone, whether or not it had ended by then.

        A status has only the latest pauses, so two of them are used.
        """
        earlier = self.meanwhile.get(name, site)
        unended = (earlier.released_at, earlier.written_at) if name in self.meanwhile else (0, 0)
        pauses = [*earlier.pauses, *site.pauses, unended]
        gaps = [ended - began for began, ended in pauses if ended >= self.struck_at and began < self.healed_at]
        return max(gaps, default=0) / SECOND

    def _stall_since_healed(self, site: SiteStatus) -> float:
        gaps = [ended - began for began, ended in site.pauses if began >= self.healed_at]
        return max(gaps, default=0) / SECOND

    def _late(self, name: str, site: SiteStatus) -> int:
        return site.late - self.before[name].late if name in self.before else site.late


def _lost(streams: Mapping[NodeId, tuple[int, int]], loads: Mapping[str, LoadStatus]) -> int:
    """Messages that were acknowledged to their sources and are not in the order of a site with these streams."""
    missing = 0
    for load in loads.values():
        incarnation, following = streams.get(load.node, (0, 1))
        held = following - 1 if incarnation == load.incarnation else 0
        missing += max(load.acknowledged - held, 0)
    return missing


def _inject(target: DrillTarget, plan: DrillPlan, actions: FaultActions) -> DrillResult:
    before, leader = target.sites(), target.leader()
    notices_from = target.run.notices_end()
    victims = target.resolve(plan.victims)
    result = DrillResult(
        plan=plan,
        victims=victims,
        before=before,
        formation=leader.formation if leader is not None else 0,
        struck_at=0,
        notices_from=notices_from,
    )
    with _injected(target, actions, result):
        target.wait(plan.period)
        result.meanwhile = target.sites()
    result.healed_at = target.now()
    with suppress(UserError):  # on a busy machine it is whole only after the load has ended, and the report says so
        target.wait_until(lambda: _not_whole(target, result), RETURN_MAX, "all sites to be members")
        result.whole_at = target.now()
    return result


def _not_whole(target: DrillTarget, result: DrillResult) -> str:
    """Statuses are written twice a second: one from before the fault was undone does not count."""
    statuses: Mapping[str, SiteStatus | ReformerStatus] = {**target.sites(), **target.reformers()}
    for node in result.victims:
        if node.name not in statuses or statuses[node.name].written_at < result.healed_at:
            return f"{node.name} has not reported since"
    return target.unsettled()


@contextmanager
def _injected(target: DrillTarget, actions: FaultActions, result: DrillResult) -> Iterator[None]:
    inject, undo = actions
    result.struck_at = target.now()
    try:
        inject(target, result.plan, result.victims)
        yield
    finally:
        undo(target, result.victims)


def _kill(target: DrillTarget, _plan: DrillPlan, victims: list[Node]) -> None:
    for node in victims:
        target.signal(node, signal.SIGKILL)


def _start(target: DrillTarget, victims: list[Node]) -> None:
    for node in victims:
        target.run.ask_for_start(node.name)


def _pause(target: DrillTarget, _plan: DrillPlan, victims: list[Node]) -> None:
    for node in victims:
        target.signal(node, signal.SIGSTOP)


def _continue(target: DrillTarget, victims: list[Node]) -> None:
    for node in victims:
        target.signal(node, signal.SIGCONT)


def _partition(target: DrillTarget, _plan: DrillPlan, victims: list[Node]) -> None:
    nodes = target.deployment.nodes.values()
    inside = tuple(node.number for node in victims)
    outside = tuple(node.number for node in nodes if node.number not in inside)
    for node in nodes:
        target.run.set_controls(node.name, DrillControls(deaf_to=outside if node.number in inside else inside))


def _set_clocks(target: DrillTarget, plan: DrillPlan, victims: list[Node]) -> None:
    for node in victims:
        target.run.set_controls(node.name, DrillControls(skew_ns=plan.step))


def _clear_controls(target: DrillTarget, _victims: list[Node]) -> None:
    for node in target.deployment.nodes.values():
        target.run.clear_controls(node.name)


ACTIONS: Final[Mapping[Fault, FaultActions]] = MappingProxyType(
    {
        Fault.KILL: (_kill, _start),
        Fault.PAUSE: (_pause, _continue),
        Fault.PARTITION: (_partition, _clear_controls),
        Fault.CLOCK: (_set_clocks, _clear_controls),
    }
)
