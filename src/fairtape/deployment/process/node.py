"""One node of a deployment as a process: a site, a reformation server, or a source that makes traffic for a drill."""

import ctypes
import os
import signal
import struct
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

from fairtape.core.effects import Deliver, FormationChange, Report
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.deployment.config.description import FILE, Deployment, Node, NodeKind, RealTime, with_names
from fairtape.deployment.config.keys import keys_of
from fairtape.deployment.process.edge import SilencedPublisher, open_publisher
from fairtape.deployment.process.site_traces import SiteTraces
from fairtape.deployment.status_files import Orders, RunFolder, Status, StatusFile
from fairtape.edge.protocol.feed_assignment import feeds_of
from fairtape.edge.service.publisher import EdgePublisher
from fairtape.journal import History, JournalWriter, SyncPolicy
from fairtape.net.clock import SharedClock, SystemClock
from fairtape.net.driver import Driver, may_run_in_real_time, tune_gc
from fairtape.net.fault_injection import FaultInjector
from fairtape.net.node_runtime import NodeRuntime
from fairtape.nodes.coordinator.primary_loop import FormationDecision
from fairtape.nodes.coordinator.server import Reformer, ReformerConfig
from fairtape.nodes.site import Site, SiteConfig
from fairtape.nodes.source import Source
from fairtape.ring.membership.formation import Formation
from fairtape.storage.formation_stores import StoreThread, open_store
from fairtape.wire.frames import NUMBER_MAX, NodeId
from fairtape.wire.membership import MembershipState

# Real-time scheduling of the processes of a deployment: those that serve are preferred to ordinary programs.
#
# A site that is far behind has much to compute and nobody waits for it: it runs as an ordinary program until it is
# near, or it would take the processors from the sites that serve, and from the kernel's own threads that write to the
# disk.

THREADS: Final = Path("/proc/self/task")


class Scheduling:
    """How the kernel schedules this process, all threads of it: one that waits for another must not wait for long."""

    def __init__(self, deployment: Deployment) -> None:
        granted = deployment.real_time is not RealTime.NEVER and may_run_in_real_time()
        if deployment.real_time is RealTime.ALWAYS and not granted:
            raise UserError(
                f"{deployment.folder / FILE}: process.real_time is true, and the kernel refuses it; run as root, grant"
                ' CAP_SYS_NICE, or write "auto"'
            )
        self._granted = granted
        self.preferred = False
        if granted:
            self.words = "real-time scheduling while it serves: no ordinary program of this machine holds it up"
        elif deployment.real_time is RealTime.NEVER:
            self.words = "ordinary scheduling, as the deployment says"
        else:
            self.words = "ordinary scheduling, as the kernel grants no other: releases also wait for other programs"

    def prefer(self, *, serving: bool) -> None:
        """Let this process be preferred while it serves, if the kernel grants it."""
        if not self._granted or serving == self.preferred:
            return
        self.preferred = serving
        policy = os.SCHED_RR if serving else os.SCHED_OTHER
        parameters = os.sched_param(os.sched_get_priority_min(policy))
        for thread in THREADS.iterdir():
            with suppress(OSError):  # a thread that has ended, or a privilege that was taken away
                os.sched_setscheduler(int(thread.name), policy, parameters)


# Traffic for drills and measurements: so many messages per second, no two of them the same.

SIZES: Final = (16, 1_024)  # bytes of a message
QUEUED_MAX: Final = 256 << 10  # bytes that wait in the source; while there are more, the metronome waits as well
TICKS_MIN: Final = 1_000  # per second: at high rates several messages leave together
BURST_MAX: Final = 1_000  # messages that leave together, after the source had no room
STAMP: Final = struct.Struct(">QQ")  # the message's number, and when it was due


class PacedLoad:
    """A producer that keeps time. What could not leave in time leaves as soon as it can: nothing is left out."""

    def __init__(self, source: Source, *, rate: float, size: int) -> None:
        self._source = source
        self._period = max(round(SECOND / rate), 1)
        self._tick = max(self._period, SECOND // TICKS_MIN)
        self._filling = bytes(size - STAMP.size)
        self._began_at: Instant = 0
        self._look_at: Instant = 0
        self.published = 0
        self.quiet = False

    def be_quiet(self, *, quiet: bool) -> None:
        """Publish no more, or go on."""
        self.quiet = quiet

    def deadline(self) -> Instant | None:
        """The next tick."""
        if self.quiet or self._source.queued >= QUEUED_MAX:
            return None
        return self._look_at

    def wake(self, now: Instant) -> None:
        """Publish what is due."""
        self._began_at = self._began_at or now
        self._look_at = now + self._tick
        due = min((now - self._began_at) // self._period + 1 - self.published, BURST_MAX)
        messages = [STAMP.pack(self.published + each + 1, now) + self._filling for each in range(due)]
        self.published += self._source.publish(messages, now)


def load_status(source: Source, metronome: PacedLoad) -> Status:
    """How a source of traffic fares."""
    return {
        "incarnation": source.incarnation,
        "published": metronome.published,
        "acknowledged": source.acked_through,
        "settled": source.settled_through,
        "idle": source.idle,
        "quiet": metronome.quiet,
        "resent": source.counts["resent"],
        "counts": dict(source.counts),
    }


JOURNALS: Final = "journals"
ORDERS_PERIOD: Final = 50 * MILLISECOND  # between two looks at what a drill wants
SILENCE_MIN: Final = 50 * MILLISECOND  # a shorter pause between two releases is nothing to tell
SILENCES_MAX: Final = 64
NEAR_PERIOD: Final = 1 * SECOND  # a site that lags by no more has caught up in a moment
GATHER_PERIOD_MAX: Final = 1 * MILLISECOND
BOOT: Final = Path("/proc/sys/kernel/random/boot_id")

_PR_SET_PDEATHSIG: Final = 1


def run_site(deployment: Deployment, node: Node) -> None:
    """The life of a site, until SIGINT or SIGTERM."""
    scheduling = Scheduling(deployment)
    clock = deployment.clock()
    run = RunFolder(deployment.folder)
    directory = deployment.folder / JOURNALS / node.name
    writer, bulletin = _open_journal(deployment, node, directory), StatusFile(run, node.name)
    with ExitStack() as closing:
        closing.callback(writer.close)
        # Sites note a formation together with its first messages: one that stands alone at the end is a torn note.
        past = writer.truncate_after(NUMBER_MAX)
        traces = _traces(deployment, node, directory, bulletin)
        site = Site(
            _post(deployment, node, run),
            keys=keys_of(deployment, node),
            born_at=clock.now(),
            past=past,
            clock_bound=clock.bound,
            tracer=traces.tracer,
        )
        diary = NodeLog()
        bulletin.note(scheduling.words)
        station = open_publisher(deployment, node, directory, bulletin.note)
        if station is not None:
            closing.callback(station.close)
        seat = NodeRuntime(
            site,
            deployment.transport(node),
            journal=writer,
            history=History(directory),
            producer=station,
            consumer=_consumer(diary, station),
            reporter=lambda report: bulletin.note(_report_words(report)),
            on_formation=_herald(bulletin, station),
            log=bulletin.note,
        )
        driver = Driver([seat], clock, gather_period=_gather_period(deployment))
        closing.pop_all()
    errand = _Housekeeping(
        run,
        node,
        seat,
        clock,
        bulletin,
        lambda now: {
            **_site_status(deployment, site, writer, diary, clock, now),
            "edge": None if station is None else station.status(),
        },
    )
    errand.regularly = _chores(deployment, site, station, scheduling, clock, traces)
    try:
        _live(driver, errand)
    finally:
        traces.close(clock.now())
        if station is not None:
            station.close()


def _open_journal(deployment: Deployment, node: Node, directory: Path) -> JournalWriter:
    return JournalWriter.open(
        directory,
        stripe=deployment.stripe,
        site=node.number,
        sync=deployment.sync,
        sync_period=deployment.sync_period,
    )


def _traces(deployment: Deployment, node: Node, directory: Path, bulletin: StatusFile) -> SiteTraces:
    return SiteTraces(
        directory,
        stripe=deployment.stripe,
        site=node.number,
        note=bulletin.note,
        total_max=deployment.trace_bytes,
    )


def _chores(
    deployment: Deployment,
    site: Site,
    station: EdgePublisher | SilencedPublisher | None,
    scheduling: Scheduling,
    clock: SharedClock | SystemClock,
    traces: SiteTraces,
) -> Callable[[], None]:
    """What a site looks after again and again: its place among other programs, whom it speaks to, and its traces."""
    regions = deployment.edge.regions if deployment.edge is not None else ()

    def chores() -> None:
        now = clock.now()
        scheduling.prefer(serving=_serves(site, now))
        traces.write(now)
        if station is not None and regions and site.formation is not None:
            station.assign(feeds_of(site.me, regions, site.formation.members), now)

    return chores


def _post(deployment: Deployment, node: Node, run: RunFolder) -> SiteConfig:
    return SiteConfig(
        me=node.number,
        reformers=tuple(each.number for each in deployment.reformers),
        timing=deployment.timing,
        home=deployment.home_of(node.number),
        durable=deployment.sync is SyncPolicy.TOKEN or _same_boot(run.path / f"{node.name}.boot"),
        stripe=deployment.stripe,
        datagram_max=deployment.datagram_max,
    )


def _consumer(diary: "NodeLog", station: EdgePublisher | SilencedPublisher | None) -> Callable[[Deliver], None]:
    """The customers first: what they see is when it was released."""
    if station is None:
        return diary.delivered

    def delivered(delivery: Deliver) -> None:
        station.delivered(delivery)
        diary.delivered(delivery)

    return delivered


def _herald(
    bulletin: StatusFile, station: EdgePublisher | SilencedPublisher | None
) -> Callable[[FormationChange], None]:
    def turned(change: FormationChange) -> None:
        if station is not None:
            station.turned(change)
        if change.broken:
            bulletin.note(_turn_words(change))

    return turned


def _serves(site: Site, now: Instant) -> bool:
    """Whether others wait for it, or soon will: a formation that takes it in needs it to be prepared in time."""
    if site.membership_state in (MembershipState.MEMBER, MembershipState.FENCED) or site.subloops:
        return True
    formation = site.formation
    if formation is None:
        return False
    return (formation.current(now) - site.complete_through) * formation.timing.token_period < NEAR_PERIOD


def run_reformer(deployment: Deployment, node: Node) -> None:
    """The life of a reformation server, until SIGINT or SIGTERM."""
    scheduling = Scheduling(deployment)
    clock = deployment.clock()
    run = RunFolder(deployment.folder)
    store = open_store(deployment.store, access=deployment.access)
    operator = deployment.of_kind(NodeKind.OPERATOR)[0]
    reformer = Reformer(
        ReformerConfig(
            me=node.number,
            operator=operator.number,
            stripe=deployment.stripe,
            leader_lease=deployment.leader_lease,
        ),
        deployment.topology,
        keys=keys_of(deployment, node),
        born_at=clock.now(),
        clock_bound=clock.bound,
    )
    bulletin = StatusFile(run, node.name)
    bulletin.note(scheduling.words)
    seat = NodeRuntime(reformer, deployment.transport(node), log=bulletin.note)
    driver = Driver([seat], clock)
    seat.store = StoreThread(store, driver.wakeup)
    scheduling.prefer(serving=True)
    _live(
        driver, _Housekeeping(run, node, seat, clock, bulletin, lambda now: _reformer_status(deployment, reformer, now))
    )


def run_load(deployment: Deployment, node: Node, *, rate: float, size: int) -> None:
    """The life of a source that publishes so many messages per second, until it is told to be quiet, or to end."""
    clock = deployment.clock()
    run = RunFolder(deployment.folder)
    topology = deployment.topology
    source = Source(
        me=node.number,
        keys=keys_of(deployment, node),
        timing=deployment.timing,
        resilience=topology.resilience_of(topology.primary.tour),
        incarnation=clock.now(),
        stripe=deployment.stripe,
        datagram_max=deployment.datagram_max,
    )
    metronome = PacedLoad(source, rate=rate, size=size)
    bulletin = StatusFile(run, node.name)
    seat = NodeRuntime(source, deployment.transport(node), producer=metronome, log=bulletin.note)
    driver = Driver([seat], clock)
    errand = _Housekeeping(run, node, seat, clock, bulletin, lambda _now: load_status(source, metronome))
    errand.heed = lambda orders: metronome.be_quiet(quiet=orders.quiet)
    _live(driver, errand)


def _live(driver: Driver, errand: "_Housekeeping") -> None:
    try:
        tune_gc()
        driver.run(errand.look)
    finally:
        errand.end()
        driver.close()


def _gather_period(deployment: Deployment) -> Duration:
    return min(deployment.timing.token_period // 2, GATHER_PERIOD_MAX)


def _same_boot(path: Path) -> bool:
    """Whether the machine has run on since this site was last started: then nothing that it wrote is lost."""
    try:
        present = BOOT.read_text()
        before = path.read_text() if path.exists() else present
        path.write_text(present)
    except OSError:
        return False
    return before == present


class _Housekeeping:
    """What a process does beside its work: it looks for orders, and says how it fares."""

    def __init__(
        self,
        run: RunFolder,
        node: Node,
        seat: NodeRuntime,
        clock: SharedClock | SystemClock,
        bulletin: StatusFile,
        status: Callable[[Instant], Status],
    ) -> None:
        self._run = run
        self._node = node
        self._seat = seat
        self._clock = clock
        self._bulletin = bulletin
        self._status = status
        self._orders = Orders()
        self._look_at: Instant = 0
        self.heed: Callable[[Orders], None] = lambda _orders: None
        self.regularly: Callable[[], None] = lambda: None
        run.withdraw_orders(node.name)

    def look(self) -> bool:
        """The stop condition of a driver, which never holds: signals end a node."""
        now = self._clock.now()
        if now >= self._look_at:
            self._look_at = now + ORDERS_PERIOD
            orders = self._run.orders(self._node.name)
            if orders != self._orders:
                self._obey(orders)
                self._bulletin.post(self._page(now))
            self.regularly()
        self._bulletin.keep_posted(now, self._page)
        return False

    def end(self) -> None:
        """The last page."""
        self._bulletin.close({**self._page(self._clock.now()), "ended": True})

    def _page(self, now: Instant) -> Status:
        return {
            "name": self._node.name,
            "node": self._node.number,
            "kind": self._node.kind.value,
            "written_at_ns": now,
            "orders": {"deaf_to": self._orders.deaf_to, "skew_ns": self._orders.skew_ns, "quiet": self._orders.quiet},
            **self._status(now),
        }

    def _obey(self, orders: Orders) -> None:
        self._orders = orders
        self._clock.skew = orders.skew_ns
        silence = dict.fromkeys(orders.deaf_to, LinkFaults(loss=1.0))
        self._seat.link_faults = FaultInjector(silence, Random(0)) if silence else None  # noqa: S311 - weather
        self.heed(orders)


class NodeLog:
    """What a site released, for its status: how much, how much of it late, and when it was silent."""

    def __init__(self) -> None:
        self.messages = 0
        self.late = 0
        self.released_at: Instant = 0
        self.silences: deque[tuple[Instant, Instant]] = deque(maxlen=SILENCES_MAX)

    def delivered(self, delivery: Deliver) -> None:
        """The consumer."""
        release = delivery.release
        self.messages += release.count
        self.late += release.count if release.late else 0
        if self.released_at and release.released_at - self.released_at > SILENCE_MIN:
            self.silences.append((self.released_at, release.released_at))
        self.released_at = release.released_at


def _site_status(
    deployment: Deployment,
    site: Site,
    writer: JournalWriter,
    diary: NodeLog,
    clock: SharedClock | SystemClock,
    now: Instant,
) -> Status:
    formation, receiver, tip = site.formation, site.receiver, writer.tip
    suspect = receiver.reforming.suspect if receiver is not None and receiver.reforming is not None else None
    return {
        "home": deployment.home_of(site.me),
        "posture": site.membership_state.name.lower(),
        "incarnation": site.incarnation,
        "formation": formation.number if formation is not None else 0,
        "members": [deployment.name_of(member) for member in formation.members] if formation is not None else [],
        "loops": {str(loop): _members(deployment, each.formation.members) for loop, each in site.subloops.items()},
        "schedule": _schedule(formation),
        "token": site.complete_through,
        "behind": max(formation.current(now) - site.complete_through, 0) if formation is not None else 0,
        "suspect": None if suspect is None else deployment.name_of(suspect),
        "sequence": site.next_sequence - 1,
        "released_sequence": tip.released - 1 if tip is not None else 0,
        "digest": tip.digest.hex() if tip is not None else "",
        "streams": {str(source): place for source, place in writer.recovered.streams.items()},
        "lease_left_ms": (receiver.lease_until - now) / MILLISECOND if receiver is not None else 0,
        "clock_bound_us": site.clock_bound() / 1_000,
        "clock_steps": clock.steps,
        "messages": diary.messages,
        "late": diary.late,
        "released_at_ns": diary.released_at,
        "silences_ns": list(diary.silences),
        "counts": dict(site.counts),
    }


def _schedule(formation: Formation | None) -> dict[str, int]:
    """What it takes to say whose turn it is."""
    if formation is None:
        return {}
    return {
        "first_token": formation.first_token,
        "starts_at_ns": formation.starts_at,
        "token_period_ns": formation.timing.token_period,
    }


def _members(deployment: Deployment, members: tuple[NodeId, ...]) -> list[str]:
    return [deployment.name_of(member) for member in members]


def _reformer_status(deployment: Deployment, reformer: Reformer, now: Instant) -> Status:
    primary, leads = reformer.primary, reformer.leads(now)
    leadership = reformer.leadership
    rulings = [*primary.rulings]
    for governor in reformer.secondary.values():
        rulings += governor.rulings
    return {
        "leads": leads,
        "leader": deployment.name_of(leadership.leader) if leadership is not None else None,
        "term": leadership.term if leadership is not None else 0,
        "phase": primary.phase.name.lower() if leads else "standing by",
        "formation": primary.formation.number if primary.formation is not None else 0,
        "plan": primary.formation.plan if primary.formation is not None else 0,
        "members": _members(deployment, primary.formation.members) if primary.formation is not None else [],
        "retired": _members(deployment, tuple(sorted(primary.retired))),
        "rulings": [_ruling(deployment, ruling) for ruling in rulings],
        "counts": dict(reformer.counts),
    }


def _ruling(deployment: Deployment, ruling: FormationDecision) -> dict[str, Any]:
    formation = ruling.formation
    return {
        "loop": formation.loop,
        "formation": formation.number,
        "members": _members(deployment, formation.members),
        "broken": formation.broken,
        "cause": with_names(ruling.cause, deployment),
        "began_at_ns": ruling.began_at,
        "decided_at_ns": ruling.decided_at,
        "silent": _members(deployment, ruling.silent),
    }


def _report_words(report: Report) -> str:
    return f"suspects site {report.suspect} at token {report.token}: {report.reason.value}"


def _turn_words(change: FormationChange) -> str:
    return f"the order has a Break at sequence {change.sequence}, formation {change.formation}"


def exit_with(parent: int) -> None:
    """End together with the process that started this one, however that ends."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
