"""One node of a deployment as a process: a site, a reformation server, or a source that publishes load for drills.

A process is stopped by SIGINT or SIGTERM. Beside its driver it does housekeeping: it applies the controls of drills and
writes its status.
"""

import ctypes
import os
import signal
import struct
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from fairtape.core.effects import Deliver, FormationChange, Report
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.deployment.config.description import FILE, Deployment, Node, NodeKind, RealTime, with_names
from fairtape.deployment.config.digest import deployment_digest
from fairtape.deployment.config.keys import keys_of
from fairtape.deployment.process.resources import (
    clock_of,
    injector_at,
    open_formation_store,
    open_journal,
    open_transport,
)
from fairtape.deployment.process.site_traces import SiteTraces
from fairtape.deployment.status import (
    DecisionStatus,
    DrillControls,
    LoadStatus,
    ReformerStatus,
    SiteStatus,
    TokenSchedule,
)
from fairtape.deployment.status_files import RunFolder, StatusFile
from fairtape.edge.protocol.feed_assignment import feeds_of
from fairtape.journal import History, JournalWriter, NotificationSender, SyncPolicy
from fairtape.net.clock import SharedClock, SystemClock
from fairtape.net.driver import Driver, gather_period, may_run_in_real_time, tune_gc
from fairtape.net.node_runtime import NodeRuntime
from fairtape.nodes.coordinator.primary_loop import FormationDecision
from fairtape.nodes.coordinator.server import Reformer, ReformerConfig
from fairtape.nodes.site import Site, SiteConfig
from fairtape.nodes.source import Source
from fairtape.ring.membership.formation import Formation
from fairtape.storage.formation_stores import StoreThread
from fairtape.storage.incarnations import SERIALS_MAX, next_incarnation
from fairtape.wire.frames import NUMBER_MAX, NodeId
from fairtape.wire.membership import MembershipState

if TYPE_CHECKING:
    from fairtape.deployment.process.edge import SilencedPublisher
    from fairtape.edge.service.publisher import EdgePublisher

    Publisher: TypeAlias = EdgePublisher | SilencedPublisher

CONTROLS_PERIOD: Final = 50 * MILLISECOND  # between two reads of the control file
NEAR_PERIOD: Final = 1 * SECOND  # a site that is behind by less catches up at once
PAUSE_MIN: Final = 50 * MILLISECOND  # between two releases; shorter pauses are not recorded
PAUSES_MAX: Final = 64
THREADS: Final = Path("/proc/self/task")
BOOT: Final = Path("/proc/sys/kernel/random/boot_id")

# Load for drills and measurements.
SIZES: Final = (16, 1_024)  # bytes of a message, from and to
QUEUED_MAX: Final = 256 << 10  # bytes in the source; no more load is published while there are as many
TICKS_MIN: Final = 1_000  # per second: at high rates several messages are published together
BURST_MAX: Final = 1_000  # messages that are published together after the queue was full
STAMP: Final = struct.Struct(">QQ")  # the number of the message, and when it was due

_PR_SET_PDEATHSIG: Final = 1

NodeClock: TypeAlias = SharedClock | SystemClock
NodeStatus: TypeAlias = SiteStatus | ReformerStatus | LoadStatus


def run_site(deployment: Deployment, node: Node) -> None:
    """Run a site."""
    scheduling = Scheduling(deployment)
    clock = clock_of(deployment)
    run = RunFolder(deployment.folder)
    directory = deployment.journal_of(node)
    writer, status_file = open_journal(deployment, node), StatusFile(run, node.name)
    with ExitStack() as closing:
        closing.callback(writer.close)
        # Sites record a formation together with its first messages: one that stands alone at the end is torn.
        past = writer.truncate_after(NUMBER_MAX)
        traces = _traces(deployment, node, directory, status_file)
        site = Site(
            _site_config(deployment, node, run),
            keys=keys_of(deployment, node),
            born_at=clock.now(),
            incarnation=next_incarnation(deployment.incarnation_file_of(node), clock.now(), step=SERIALS_MAX),
            recovered=past,
            clock_bound=clock.bound,
            backlog=lambda: runtime.backlog(),
            tracer=traces.tracer,
        )
        log = ReleaseLog()
        status_file.note(scheduling.description)
        publisher = _open_publisher(deployment, node, directory, status_file)
        if publisher is not None:
            closing.callback(publisher.close)
        notifier = _open_notifier(directory, writer, site, status_file)
        if notifier is not None:
            closing.callback(notifier.close)
        runtime = NodeRuntime(
            site,
            open_transport(deployment, node),
            journal=writer,
            history=History(directory),
            producer=publisher,
            consumer=_consumer(log, publisher),
            reporter=lambda report: status_file.note(_report_text(report)),
            on_formation=_formation_listener(status_file, publisher),
            notifier=notifier,
            log=status_file.note,
        )
        driver = Driver([runtime], clock, gather_period=gather_period(deployment.timing))
        closing.pop_all()

    def status(now: Instant) -> SiteStatus:
        made = _site_status(deployment, node, site, writer, log, publisher, clock, now)
        injected = {} if runtime.link_faults is None else {"injected_losses": runtime.link_faults.lost}
        notified = {} if notifier is None else notifier.counts
        return replace(made, counts={**made.counts, **injected, **notified})

    housekeeping = _Housekeeping(deployment, node, runtime, clock, status_file, status)
    housekeeping.periodic = _site_work(deployment, site, publisher, notifier, scheduling, clock, traces)
    try:
        _run(driver, housekeeping)
    finally:
        traces.close(clock.now())
        if publisher is not None:
            publisher.close()


def run_reformer(deployment: Deployment, node: Node) -> None:
    """Run a reformation server."""
    scheduling = Scheduling(deployment)
    clock = clock_of(deployment)
    run = RunFolder(deployment.folder)
    store = open_formation_store(deployment)
    operator = deployment.of_kind(NodeKind.OPERATOR)[0]
    reformer = Reformer(
        ReformerConfig(
            me=node.number,
            operator=operator.number,
            stripe=deployment.stripe,
            leader_lease=deployment.leader_lease,
            deployment=deployment_digest(deployment),
        ),
        deployment.topology,
        keys=keys_of(deployment, node),
        born_at=clock.now(),
        incarnation=next_incarnation(deployment.incarnation_file_of(node), clock.now(), step=SERIALS_MAX),
        clock_bound=clock.bound,
    )
    status_file = StatusFile(run, node.name)
    status_file.note(scheduling.description)
    runtime = NodeRuntime(reformer, open_transport(deployment, node), log=status_file.note)
    driver = Driver([runtime], clock)
    runtime.store = StoreThread(store, driver.wakeup)
    scheduling.prefer(serving=True)

    def status(now: Instant) -> ReformerStatus:
        return _reformer_status(deployment, node, reformer, now)

    _run(driver, _Housekeeping(deployment, node, runtime, clock, status_file, status))


def run_load(deployment: Deployment, node: Node, *, rate: float, size: int) -> None:
    """Run a source that publishes `rate` messages per second, until a drill demands that it is quiet."""
    clock = clock_of(deployment)
    run = RunFolder(deployment.folder)
    topology = deployment.topology
    source = Source(
        me=node.number,
        keys=keys_of(deployment, node),
        timing=deployment.timing,
        resilience=topology.resilience_of(topology.primary.tour),
        pace_max=topology.pace_max,
        incarnation=next_incarnation(deployment.incarnation_file_of(node), clock.now()),
        stripe=deployment.stripe,
        datagram_max=deployment.datagram_max,
    )
    load = PacedLoad(source, rate=rate, size=size)
    status_file = StatusFile(run, node.name)
    runtime = NodeRuntime(source, open_transport(deployment, node), producer=load, log=status_file.note)
    driver = Driver([runtime], clock)

    def status(now: Instant) -> LoadStatus:
        return _load_status(node, source, load, now)

    housekeeping = _Housekeeping(deployment, node, runtime, clock, status_file, status)
    housekeeping.apply_controls = load.apply_controls
    _run(driver, housekeeping)


def exit_with(parent: int) -> None:
    """Have this process terminated when the process that started it ends, however that ends."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


class Scheduling:
    """Real-time scheduling of this process while it serves, for all of its threads, where the kernel grants it.

    A site that is far behind has much to compute, and no other site waits for it. It runs as an ordinary program until
    it is near: otherwise it would take the processors from the sites that serve, and from the kernel threads that write
    to the disk.
    """

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
            self.description = "real-time scheduling while it serves: ordinary programs do not delay it"
        elif deployment.real_time is RealTime.NEVER:
            self.description = "ordinary scheduling, as the deployment says"
        else:
            self.description = "ordinary scheduling, as the kernel grants no other: other programs may delay releases"

    def prefer(self, *, serving: bool) -> None:
        """Use real-time scheduling while it serves."""
        if not self._granted or serving == self.preferred:
            return
        self.preferred = serving
        policy = os.SCHED_RR if serving else os.SCHED_OTHER
        parameters = os.sched_param(os.sched_get_priority_min(policy))
        for thread in THREADS.iterdir():
            with suppress(OSError):  # the thread has ended, or the privilege was taken away
                os.sched_setscheduler(int(thread.name), policy, parameters)


class PacedLoad:
    """A producer that publishes at a constant rate. What is late is published as soon as possible; none is left out."""

    def __init__(self, source: Source, *, rate: float, size: int) -> None:
        self._source = source
        self._period = max(round(SECOND / rate), 1)
        self._tick = max(self._period, SECOND // TICKS_MIN)
        self._padding = bytes(size - STAMP.size)
        self._began_at: Instant = 0
        self._tick_at: Instant = 0
        self.published = 0
        self.quiet = False

    def apply_controls(self, controls: DrillControls) -> None:
        self.quiet = controls.quiet

    def deadline(self) -> Instant | None:
        if self.quiet or self._source.queued >= QUEUED_MAX:
            return None
        return self._tick_at

    def wake(self, now: Instant) -> None:
        self._began_at = self._began_at or now
        self._tick_at = now + self._tick
        due = min((now - self._began_at) // self._period + 1 - self.published, BURST_MAX)
        messages = [STAMP.pack(self.published + each + 1, now) + self._padding for each in range(due)]
        self.published += self._source.publish(messages, now)


class ReleaseLog:
    """What a site has released: totals, and the pauses between releases."""

    def __init__(self) -> None:
        self.messages = 0
        self.late = 0  # messages
        self.released_at: Instant = 0
        self.pauses: deque[tuple[Instant, Instant]] = deque(maxlen=PAUSES_MAX)

    def delivered(self, delivery: Deliver) -> None:
        release = delivery.release
        self.messages += release.count
        self.late += release.count if release.late else 0
        if self.released_at and release.released_at - self.released_at > PAUSE_MIN:
            self.pauses.append((self.released_at, release.released_at))
        self.released_at = release.released_at


class _Housekeeping:
    """What a process does beside its driver: it reads its control file and writes its status."""

    def __init__(
        self,
        deployment: Deployment,
        node: Node,
        runtime: NodeRuntime,
        clock: NodeClock,
        status_file: StatusFile,
        status: Callable[[Instant], NodeStatus],
    ) -> None:
        self._deployment = deployment
        self._run = RunFolder(deployment.folder)
        self._node = node
        self._runtime = runtime
        self._clock = clock
        self._status_file = status_file
        self._status = status
        self._controls = DrillControls()
        self._look_at: Instant = 0
        self.apply_controls: Callable[[DrillControls], None] = lambda _controls: None
        self.periodic: Callable[[], None] = lambda: None
        self._run.clear_controls(node.name)
        runtime.link_faults = injector_at(deployment, node)
        if runtime.link_faults is not None:
            status_file.note("link faults are injected, as the deployment's file says")

    def look(self) -> bool:
        """The stop condition of a driver. It is never true: signals end a node."""
        now = self._clock.now()
        if now >= self._look_at:
            self._look_at = now + CONTROLS_PERIOD
            controls = self._run.controls(self._node.name)
            if controls != self._controls:
                self._apply_controls(controls)
                self._status_file.post(self._current_status(now))
            self.periodic()
        self._status_file.keep_posted(now, self._current_status)
        return False

    def end(self) -> None:
        self._status_file.close(replace(self._current_status(self._clock.now()), ended=True))

    def _current_status(self, now: Instant) -> NodeStatus:
        status = self._status(now)
        warnings = (*status.warnings, *self._runtime.other_versions.warnings(now))
        return replace(status, controls=self._controls, warnings=warnings)

    def _apply_controls(self, controls: DrillControls) -> None:
        self._controls = controls
        self._clock.skew = controls.skew_ns
        self._runtime.link_faults = injector_at(self._deployment, self._node, cut_off=controls.deaf_to)
        self.apply_controls(controls)


def _run(driver: Driver, housekeeping: _Housekeeping) -> None:
    try:
        tune_gc()
        driver.run(housekeeping.look)
    finally:
        housekeeping.end()
        driver.close()


# The parts of a site.


def _traces(deployment: Deployment, node: Node, directory: Path, status_file: StatusFile) -> SiteTraces:
    return SiteTraces(
        directory,
        stripe=deployment.stripe,
        site=node.number,
        note=status_file.note,
        total_max=deployment.trace_bytes,
    )


def _site_config(deployment: Deployment, node: Node, run: RunFolder) -> SiteConfig:
    return SiteConfig(
        me=node.number,
        reformers=tuple(each.number for each in deployment.reformers),
        timing=deployment.timing,
        home=deployment.home_of(node.number),
        deployment=deployment_digest(deployment),
        durable=deployment.sync is SyncPolicy.TOKEN or _same_boot(run.path / f"{node.name}.boot"),
        stripe=deployment.stripe,
        datagram_max=deployment.datagram_max,
    )


def _same_boot(path: Path) -> bool:
    """Whether the machine has not been restarted since the site last started. Then nothing that it wrote is lost."""
    try:
        present = BOOT.read_text()
        before = path.read_text() if path.exists() else present
        path.write_text(present)
    except OSError:
        return False
    return before == present


def _open_publisher(deployment: Deployment, node: Node, directory: Path, status_file: StatusFile) -> "Publisher | None":
    if deployment.edge is None:
        return None
    from fairtape.deployment.process.edge import open_publisher  # it imports Arrow, which other sites do not need

    return open_publisher(deployment, node, directory, status_file.note)


def _open_notifier(
    directory: Path, writer: JournalWriter, site: Site, status_file: StatusFile
) -> NotificationSender | None:
    """Without a socket for them, readers of the journal poll it."""
    try:
        return NotificationSender(directory, lambda: writer.tip, lambda: site.stable_through)
    except UserError as error:
        status_file.note(str(error))
        return None


def _consumer(log: ReleaseLog, publisher: "Publisher | None") -> Callable[[Deliver], None]:
    """The publisher comes first: customers see when it sends."""
    if publisher is None:
        return log.delivered

    def delivered(delivery: Deliver) -> None:
        publisher.delivered(delivery)
        log.delivered(delivery)

    return delivered


def _formation_listener(status_file: StatusFile, publisher: "Publisher | None") -> Callable[[FormationChange], None]:
    def changed(change: FormationChange) -> None:
        if publisher is not None:
            publisher.on_formation(change)
        if change.broken:
            status_file.note(f"the order has a Break at sequence {change.sequence}, formation {change.formation}")

    return changed


def _report_text(report: Report) -> str:
    return f"suspects site {report.suspect} at token {report.token}: {report.reason.value}"


def _site_work(
    deployment: Deployment,
    site: Site,
    publisher: "Publisher | None",
    notifier: NotificationSender | None,
    scheduling: Scheduling,
    clock: NodeClock,
    traces: SiteTraces,
) -> Callable[[], None]:
    """The periodic work of a site: scheduling, traces, readers of its journal, and which feeds it publishes."""
    regions = deployment.edge.regions if deployment.edge is not None else ()

    def work() -> None:
        now = clock.now()
        scheduling.prefer(serving=_serves(site, now))
        traces.write(now)
        if notifier is not None:
            notifier.update_subscribers()
        if publisher is not None and regions and site.formation is not None:
            publisher.assign(feeds_of(site.me, regions, site.formation.members), now)

    return work


def _serves(site: Site, now: Instant) -> bool:
    """Whether other sites wait for it, or soon will: a formation that admits it needs it to be prepared in time."""
    if site.membership_state in (MembershipState.MEMBER, MembershipState.FENCED) or site.secondary_loops:
        return True
    formation = site.formation
    if formation is None:
        return False
    return (formation.current(now) - site.complete_through) * formation.timing.token_period < NEAR_PERIOD


# Statuses. Controls are filled in by `_Housekeeping`.


def _site_status(
    deployment: Deployment,
    node: Node,
    site: Site,
    writer: JournalWriter,
    log: ReleaseLog,
    publisher: "Publisher | None",
    clock: NodeClock,
    now: Instant,
) -> SiteStatus:
    formation, receiver, tip = site.formation, site.receiver, writer.tip
    suspect = receiver.reforming.suspect if receiver is not None and receiver.reforming is not None else None
    return SiteStatus(
        name=node.name,
        node=node.number,
        written_at=now,
        controls=DrillControls(),
        home=deployment.home_of(site.me),
        membership_state=site.membership_state.name.lower(),
        incarnation=site.incarnation,
        formation=formation.number if formation is not None else 0,
        resilience=formation.resilience if formation is not None else 0,
        members=_names(deployment, formation.members) if formation is not None else (),
        loops={loop: _names(deployment, each.formation.members) for loop, each in site.secondary_loops.items()},
        schedule=None if formation is None else _schedule(formation),
        token=site.complete_through,
        behind=max(formation.current(now) - site.complete_through, 0) if formation is not None else 0,
        suspect=None if suspect is None else deployment.name_of(suspect),
        sequence=site.next_sequence - 1,
        released_sequence=tip.released - 1 if tip is not None else 0,
        digest=tip.digest.hex() if tip is not None else "",
        streams=dict(writer.recovered.streams),
        lease_left_ms=(receiver.lease_until - now) / MILLISECOND if receiver is not None else 0,
        clock_bound_us=site.clock_bound() / 1_000,
        clock_steps=clock.steps,
        messages=log.messages,
        late=log.late,
        released_at=log.released_at,
        pauses=tuple(log.pauses),
        counts=dict(site.counts),
        warnings=tuple(with_names(each, deployment) for each in site.warnings),
        edge=None if publisher is None else publisher.status(),
    )


def _schedule(formation: Formation) -> TokenSchedule:
    return TokenSchedule(
        first_token=formation.first_token,
        starts_at=formation.starts_at,
        token_period=formation.timing.token_period,
        delay_max=formation.timing.delay_max,
    )


def _names(deployment: Deployment, nodes: tuple[NodeId, ...]) -> tuple[str, ...]:
    return tuple(deployment.name_of(node) for node in nodes)


def _reformer_status(deployment: Deployment, node: Node, reformer: Reformer, now: Instant) -> ReformerStatus:
    primary, leads = reformer.primary, reformer.leads(now)
    formation, leadership = primary.formation, reformer.leadership
    decisions = [*primary.decisions]
    for secondary in reformer.secondary.values():
        decisions += secondary.decisions
    return ReformerStatus(
        name=node.name,
        node=node.number,
        written_at=now,
        controls=DrillControls(),
        leads=leads,
        leader=deployment.name_of(leadership.leader) if leadership is not None else None,
        term=leadership.term if leadership is not None else 0,
        phase=primary.phase.name.lower() if leads else "standing by",
        formation=formation.number if formation is not None else 0,
        resilience=formation.resilience if formation is not None else 0,
        plan=formation.plan if formation is not None else 0,
        members=_names(deployment, formation.members) if formation is not None else (),
        retired=_names(deployment, tuple(sorted(primary.retired))),
        store=reformer.store,
        of_other_stores=_names(deployment, reformer.sites_of_other_stores),
        warnings=tuple(with_names(each, deployment) for each in reformer.warnings(now)),
        decisions=tuple(_decision_status(deployment, decision) for decision in decisions),
        counts=dict(reformer.counts),
    )


def _decision_status(deployment: Deployment, decision: FormationDecision) -> DecisionStatus:
    formation = decision.formation
    return DecisionStatus(
        loop=formation.loop,
        formation=formation.number,
        members=_names(deployment, formation.members),
        broken=formation.broken,
        cause=with_names(decision.cause, deployment),
        began_at=decision.began_at,
        decided_at=decision.decided_at,
        silent=_names(deployment, decision.silent),
    )


def _load_status(node: Node, source: Source, load: PacedLoad, now: Instant) -> LoadStatus:
    return LoadStatus(
        name=node.name,
        node=node.number,
        written_at=now,
        controls=DrillControls(),
        incarnation=source.incarnation,
        published=load.published,
        acknowledged=source.acked_through,
        settled=source.settled_through,
        idle=source.idle,
        quiet=load.quiet,
        resent=source.counts["resent"],
        counts=dict(source.counts),
    )
