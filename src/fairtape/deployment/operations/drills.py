"""Drills: a fault is injected into a deployment that runs, under traffic, and what happened is told in figures.

A drill works on processes of this machine and only on those that the deployment's own pages name. Whatever it does it
undoes, also when it is interrupted.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.deployment.config.description import Deployment, Node, NodeKind, with_names
from fairtape.deployment.process.local_cluster import LocalCluster
from fairtape.deployment.process.resources import clock_of
from fairtape.deployment.process.supervisor import Supervisor, Wrapping
from fairtape.deployment.status_files import Orders, RunFolder, Status
from fairtape.journal import compare

LOOK_PERIOD: Final = 0.1  # seconds
SETTLING_MAX: Final = 60.0  # seconds for a deployment to be whole again
RETURN_MAX: Final = 20.0  # seconds for the failed to be members again while there is traffic
TRAFFIC_PERIOD: Final = 1.5  # seconds of traffic before the fault
AFTERMATH_PERIOD: Final = 1.0  # seconds of traffic after everything is whole again
CLOCK_STEP: Final = 100 * MILLISECOND
TOKEN_SITE: Final = "token"  # noqa: S105 - a token of the ring
NEXT_SITE: Final = "next"
LEADER: Final = "leader"
DUTIES: Final = (TOKEN_SITE, NEXT_SITE, LEADER)  # instead of names: whoever has them when the fault strikes


class Fault(Enum):
    """What a drill does."""

    KILL = "kill"  # kill -9, and a new start afterwards
    PAUSE = "pause"  # SIGSTOP and SIGCONT
    PARTITION = "partition"  # these nodes and all others no longer hear one another
    CLOCK = "clock"  # the clock is set wrong


Means = tuple[Callable[["DrillTarget", "DrillPlan", list[Node]], None], Callable[["DrillTarget", list[Node]], None]]
"""How a fault is injected, and how it is undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillPlan:
    """One drill."""

    fault: Fault
    victims: tuple[str, ...]  # names, or token, next, leader
    period: Duration = 3 * SECOND  # until it is undone
    rate: float = 10_000.0  # messages per second, over all sources of traffic
    size: int = 64
    step: Duration = CLOCK_STEP
    senders: int = 1


class DrillTarget:
    """A running deployment as a drill sees it."""

    def __init__(self, deployment: Deployment, *, wrapping: Wrapping = lambda _name: ()) -> None:
        self.deployment = deployment
        self.run = RunFolder(deployment.folder)
        self.company: LocalCluster | None = None  # where the drill runs the deployment itself
        self.load = Supervisor(deployment.folder, self.run, wrapping=wrapping)

    def sites(self) -> dict[str, Status]:
        """How the sites fare that run."""
        return self.run.statuses([node.name for node in self.deployment.sites])

    def reformers(self) -> dict[str, Status]:
        """How the servers fare that run."""
        return self.run.statuses([node.name for node in self.deployment.reformers])

    def leader(self) -> Status | None:
        """The page of the server that leads."""
        return next((page for page in self.reformers().values() if page["leads"]), None)

    def look(self) -> None:
        """Let whoever we run ourselves have what they need."""
        if self.company is not None:
            self.company.look()

    def wait_until(self, done: Callable[[], str], patience: float, what: str) -> None:
        """Wait until `done` finds nothing more to wait for."""
        give_up_at = time.monotonic() + patience
        while why := done():
            if time.monotonic() > give_up_at:
                raise UserError(f"{what} did not come about within {patience:g} s: {why}")
            self.look()
            time.sleep(LOOK_PERIOD)

    def rest(self, period: Duration) -> None:
        """Let time pass."""
        ends_at = time.monotonic() + period / SECOND
        while (left := ends_at - time.monotonic()) > 0:
            self.look()
            time.sleep(min(left, LOOK_PERIOD))

    def unsettled(self) -> str:
        """Why the deployment is not whole; nothing where it is."""
        leader, sites = self.leader(), self.sites()
        if leader is None:
            return "no reformation server leads"
        if leader["phase"] != "steady":
            return f"the primary loop is {leader['phase']}"
        for node in self.deployment.sites:
            page, home = sites.get(node.name), self.deployment.home_of(node.number)
            if page is None:
                return f"{node.name} does not run"
            if node.name in leader["retired"]:
                continue
            if page["formation"] != leader["formation"]:
                return f"{node.name} is not in formation {leader['formation']}"
            active = page["posture"] == "member" if home == 0 else str(home) in page["loops"]
            if not active:
                return f"{node.name} is {page['membership_state']} and not a member of loop {home}"
        return ""

    def unequal(self) -> str:
        """Why the journals are not known to be the same; nothing where they are."""
        pages = self.sites()
        ends = {(page["sequence"], page["digest"]) for page in pages.values()}
        if len(pages) < len(self.deployment.sites) or len(ends) != 1:
            return "journals differ: " + ", ".join(f"{name} at {page['sequence']}" for name, page in pages.items())
        behind = [name for name, page in pages.items() if page["released_sequence"] != page["sequence"]]
        return f"{', '.join(behind)} has not released everything" if behind else ""

    def one_order(self) -> bool:
        """Whether all journals are the same, as far as each of them goes."""
        folders = [self.deployment.journal_of(node) for node in self.deployment.sites]
        return not self.unequal() or compare([folder for folder in folders if folder.is_dir()]).same

    def resolve(self, names: Iterable[str]) -> list[Node]:
        """The nodes that are meant, by name or by what they do now."""
        found = []
        for name in names:
            if name in (TOKEN_SITE, NEXT_SITE):
                name = self._token_site(1 if name == NEXT_SITE else 0)
            elif name == LEADER:
                leader = self.leader()
                if leader is None:
                    raise UserError(f"SITE is {LEADER!r}, and no reformation server leads now; name one")
                name = str(leader["name"])
            found.append(self.deployment.node(name, NodeKind.SITE, NodeKind.REFORMER, field="SITE"))
        return list(dict.fromkeys(found))

    def _token_site(self, further: int) -> str:
        """Whose turn it will be in a moment."""
        page = next((page for page in self.sites().values() if page["schedule"]), None)
        if page is None:
            raise UserError(f"SITE is {TOKEN_SITE!r}, and there is no formation yet; name a site")
        schedule = page["schedule"]
        now = clock_of(self.deployment).now() + MILLISECOND
        passed = (now - schedule["starts_at_ns"]) // schedule["token_period_ns"]
        members: list[str] = page["members"]
        return members[int(passed + further) % len(members)]

    def signal(self, node: Node, number: signal.Signals) -> None:
        """A signal to a process that the deployment's page names, if that is still the same one."""
        page = self.run.status(node.name)
        if page is None:
            raise UserError(f"SITE is {node.name!r}, which does not run on this machine; start the deployment first")
        os.kill(page["pid"], number)


def run_drill(field: DrillTarget, plan: DrillPlan, means: Means | None = None) -> dict[str, Any]:
    """Carry out one drill; what happened. Whoever can cut a real cable passes other `means`."""
    field.wait_until(field.unsettled, SETTLING_MAX, "a whole deployment")
    sources = _free_sources(field, plan.senders)
    try:
        for source in sources:
            field.load.start(source.name, "--load", str(plan.rate / plan.senders), "--size", str(plan.size))
        field.wait_until(lambda: _no_traffic(field, sources), SETTLING_MAX, "traffic")
        field.rest(round(TRAFFIC_PERIOD * SECOND))
        account = _inject(field, plan, means or MEANS[plan.fault])
        field.rest(round(AFTERMATH_PERIOD * SECOND))
        pages = _quiet(field, sources)
        account.wait_for_return(field, pages)
        return account.told(field, pages)
    finally:
        field.load.stop()


def _free_sources(field: DrillTarget, count: int) -> list[Node]:
    free = [node for node in field.deployment.of_kind(NodeKind.SOURCE) if field.run.status(node.name) is None]
    if len(free) < count:
        raise UserError(
            f"the deployment has {len(free)} free sources, and the drill needs {count}; stop the publishers"
        )
    return free[-count:]


def _no_traffic(field: DrillTarget, sources: Sequence[Node]) -> str:
    pages = field.run.statuses([source.name for source in sources])
    for ended in field.load.ended():
        raise UserError(f"the source of traffic failed: {ended}")
    for source in sources:
        if source.name not in pages or not pages[source.name]["acknowledged"]:
            return f"nothing of {source.name} is acknowledged"
    return ""


def _quiet(field: DrillTarget, sources: Sequence[Node]) -> dict[str, Status]:
    """Let the traffic end, and wait until everything of it is settled; the last pages of its sources.

    What does not come about is a finding, which the account will tell.
    """
    for source in sources:
        field.run.order(source.name, Orders(quiet=True))

    def busy() -> str:
        pages = field.run.statuses([source.name for source in sources])
        done = [name for name, page in pages.items() if page["quiet"] and page["idle"]]
        return "" if len(done) == len(sources) else "not everything is settled"

    with suppress(UserError):
        field.wait_until(busy, SETTLING_MAX, "the end of the traffic")
    return field.run.statuses([source.name for source in sources])


@dataclass(slots=True)
class DrillResult:
    """What is known of a fault."""

    plan: DrillPlan
    victims: list[Node]
    before: dict[str, Status]
    formation: int
    struck_at: Instant
    healed_at: Instant = 0
    whole_at: Instant = 0  # while there was traffic; 0: not before it had ended
    rejoined: bool = False
    waited_until: Instant = 0
    notices_from: int = 0
    meanwhile: dict[str, Status] = dataclass_field(default_factory=dict)  # how the sites fared before it was undone

    def wait_for_return(self, field: DrillTarget, sources: dict[str, Status]) -> None:
        """Wait until everyone is a member again and has all that was acknowledged; not for ever."""

        def absent() -> str:
            behind = [name for name, page in field.sites().items() if _lost(page, sources)]
            return field.unsettled() or (f"{', '.join(behind)} has not caught up" if behind else "")

        with suppress(UserError):
            field.wait_until(absent, SETTLING_MAX, "a whole deployment")
            self.rejoined = True
        self.waited_until = self.whole_at if self.whole_at and self.rejoined else clock_of(field.deployment).now()

    def told(self, field: DrillTarget, sources: dict[str, Status]) -> dict[str, Any]:
        """The figures."""
        pages = field.sites()
        rulings = self._rulings(field)
        survivors = [name for name in pages if name not in {node.name for node in self.victims}]
        complete = pages if self.rejoined else {name: pages[name] for name in survivors}
        notices, _ = field.run.notices_from(self.notices_from)
        return {
            "fault": self.plan.fault.value,
            "sites": [node.name for node in self.victims],
            "period_s": self.plan.period / SECOND,
            "rate": self.plan.rate,
            "detect_s": self._since(rulings[0]["began_at_ns"]) if rulings else None,
            "formation_s": self._since(rulings[0]["decided_at_ns"]) if rulings else None,
            "stall_s": max((self._silence(name, pages[name]) for name in survivors), default=0.0),
            "return_stall_s": max((self._silence_since_healed(pages[name]) for name in survivors), default=0.0),
            "rejoined": self.rejoined,
            "waited_s": (self.waited_until - self.healed_at) / SECOND,
            "whole_s": (self.whole_at - self.healed_at) / SECOND if self.whole_at else None,
            "late": max((self._late(name, pages[name]) for name in survivors), default=0),
            "published": sum(page["published"] for page in sources.values()),
            "pending": sum(page["published"] - page["acknowledged"] for page in sources.values()),
            "lost": max((_lost(page, sources) for page in complete.values()), default=_lost({"streams": {}}, sources)),
            "one_order": field.one_order(),
            "breaks": sum(ruling["broken"] for ruling in rulings),
            "formations": rulings,
            "survivors": {
                name: {"stall_s": self._silence(name, pages[name]), "late": self._late(name, pages[name])}
                for name in survivors
            },
            "notices": [with_names(line, field.deployment) for line in notices],
        }

    def _rulings(self, field: DrillTarget) -> list[dict[str, Any]]:
        """The formations of the primary loop since, in their order, as whichever server led tells them."""
        found = {
            ruling["formation"]: ruling
            for page in field.reformers().values()
            for ruling in page["rulings"]
            if ruling["loop"] == 0 and ruling["formation"] > self.formation
        }
        return [found[number] for number in sorted(found)]

    def _since(self, instant: Instant) -> float:
        return (instant - self.struck_at) / SECOND

    def _silence(self, name: str, page: Status) -> float:
        """The longest one that began before the fault was undone, whether or not it had ended by then.

        A page has only the latest ones, so two are looked at.
        """
        earlier = self.meanwhile.get(name, page)
        unended = (earlier["released_at_ns"], earlier["written_at_ns"]) if name in self.meanwhile else (0, 0)
        told = [*earlier["silences_ns"], *page["silences_ns"], unended]
        gaps = [ended - began for began, ended in told if ended >= self.struck_at and began < self.healed_at]
        return max(gaps, default=0) / SECOND

    def _silence_since_healed(self, page: Status) -> float:
        gaps = [ended - began for began, ended in page["silences_ns"] if began >= self.healed_at]
        return max(gaps, default=0) / SECOND

    def _late(self, name: str, page: Status) -> int:
        return int(page["late"] - self.before[name]["late"]) if name in self.before else int(page["late"])


def _lost(page: Status, sources: dict[str, Status]) -> int:
    """Messages that were acknowledged to their sources and are not in the order of this site."""
    missing = 0
    for source in sources.values():
        incarnation, following = page["streams"].get(str(source["node"]), (0, 1))
        held = following - 1 if incarnation == source["incarnation"] else 0
        missing += max(source["acknowledged"] - held, 0)
    return missing


def _inject(field: DrillTarget, plan: DrillPlan, means: Means) -> DrillResult:
    before, leader = field.sites(), field.leader()
    notices_from = field.run.notices_end()
    victims = field.resolve(plan.victims)
    account = DrillResult(
        plan=plan,
        victims=victims,
        before=before,
        formation=leader["formation"] if leader is not None else 0,
        struck_at=0,
        notices_from=notices_from,
    )
    with _struck(field, plan, means, victims, account):
        field.rest(plan.period)
        account.meanwhile = field.sites()
    account.healed_at = clock_of(field.deployment).now()
    with suppress(UserError):  # a busy machine: it will be whole when the traffic has ended, and the account says so
        field.wait_until(lambda: _not_whole(field, account), RETURN_MAX, "a whole deployment")
        account.whole_at = clock_of(field.deployment).now()
    return account


def _not_whole(field: DrillTarget, account: DrillResult) -> str:
    """Pages are written twice a second: one from before the fault was undone says nothing."""
    pages = field.sites() | field.reformers()
    for node in account.victims:
        if node.name not in pages or pages[node.name]["written_at_ns"] < account.healed_at:
            return f"{node.name} has not been heard of"
    return field.unsettled()


@contextmanager
def _struck(
    field: DrillTarget, plan: DrillPlan, means: Means, victims: list[Node], account: DrillResult
) -> Iterator[None]:
    strike, undo = means
    account.struck_at = clock_of(field.deployment).now()
    try:
        strike(field, plan, victims)
        yield
    finally:
        undo(field, victims)


def _kill(field: DrillTarget, _plan: DrillPlan, victims: list[Node]) -> None:
    for node in victims:
        field.signal(node, signal.SIGKILL)


def _start(field: DrillTarget, victims: list[Node]) -> None:
    for node in victims:
        field.run.ask_for_start(node.name)


def _pause(field: DrillTarget, _plan: DrillPlan, victims: list[Node]) -> None:
    for node in victims:
        field.signal(node, signal.SIGSTOP)


def _go_on(field: DrillTarget, victims: list[Node]) -> None:
    for node in victims:
        field.signal(node, signal.SIGCONT)


def _part(field: DrillTarget, _plan: DrillPlan, victims: list[Node]) -> None:
    everyone = field.deployment.nodes.values()
    inside = tuple(node.number for node in victims)
    outside = tuple(node.number for node in everyone if node.number not in inside)
    for node in everyone:
        field.run.order(node.name, Orders(deaf_to=outside if node.number in inside else inside))


def _set_clocks(field: DrillTarget, plan: DrillPlan, victims: list[Node]) -> None:
    for node in victims:
        field.run.order(node.name, Orders(skew_ns=plan.step))


def _join(field: DrillTarget, _victims: list[Node]) -> None:
    for node in field.deployment.nodes.values():
        field.run.withdraw_orders(node.name)


MEANS: Final[Mapping[Fault, Means]] = MappingProxyType(
    {
        Fault.KILL: (_kill, _start),
        Fault.PAUSE: (_pause, _go_on),
        Fault.PARTITION: (_part, _join),
        Fault.CLOCK: (_set_clocks, _join),
    }
)
