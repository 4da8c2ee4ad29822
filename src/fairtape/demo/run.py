"""Runs the demonstration: a deployment, floors and customers beside it, a site that is killed, and the findings."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from fairtape.core.cities import node_name
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.demo.customers import RegionReports, ReportRequest, run_customers
from fairtape.demo.findings import Findings, check_customers, collect_findings
from fairtape.demo.floors import Close, Opening, run_floors
from fairtape.demo.tally import DemoTally, DeploymentReader
from fairtape.demo.world import REGIONS, SITES, TIMING, VICTIM, DemoWorld, city_of
from fairtape.deployment.config.description import Deployment
from fairtape.deployment.lock_file import folder_lock
from fairtape.deployment.operations.doctor import check_ready
from fairtape.deployment.process.children import ChildExited, ChildProcesses, Interrupts
from fairtape.deployment.process.local_cluster import LocalCluster
from fairtape.net.clock import SharedClock

RECEIVE_PERIOD_MAX: Final = 20 * MILLISECOND
FRAME_PERIOD: Final = 200 * MILLISECOND  # drawing the screen is expensive
FORMING_PERIOD_MAX: Final = 60 * SECOND  # until the first formation, on a busy machine
# Covers failure detection, the wait for a lease to expire, and the restart, with a margin for a busy machine.
STALL_PERIOD_MAX: Final = 4 * TIMING.reform_delay + 2 * TIMING.delay_max + 5 * SECOND
# Until the ring detects that a site has exited: the site misses its turn, and a reformation follows.
EXIT_DETECTION_PERIOD: Final = len(SITES) * TIMING.token_period + TIMING.reform_delay + SECOND
SECOND_FEED_PERIOD_MAX: Final = 10 * SECOND
REPORTS_PERIOD_MAX: Final = 10 * SECOND
REPORT_PERIOD: Final = 200 * MILLISECOND  # between two reports of one customer
FLOORS_NAME: Final = "the trading floors"
VICTIM_NAME: Final = node_name(SITES[VICTIM])

ObserverCallback = Callable[[DemoTally], None]
"""Called with the current state several times a second."""


def run_demo(world: DemoWorld, folder: Path, observer: ObserverCallback) -> Findings:
    """Run the whole demonstration, as a deployment in `folder`, which must be new or empty."""
    deployment = world.create(folder)
    clock = SharedClock()
    with Interrupts() as interrupts:
        with _running(deployment) as cluster, _beside(world, folder) as children:
            tally = DemoTally(world, deployment, clock.now())
            _Run(cluster, children, tally, clock, interrupts, observer).run()
            reports = _final_reports(children, tally)
        return collect_findings(tally, reports, interrupted=interrupts.count > 0)


@contextmanager
def _running(deployment: Deployment) -> Iterator[LocalCluster]:
    with folder_lock(deployment.folder):
        check_ready(deployment)
        for site in deployment.sites:
            deployment.journal_of(site).mkdir(parents=True, exist_ok=True)  # an early end leaves empty ones
        cluster = LocalCluster(deployment, quiet=True)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@contextmanager
def _beside(world: DemoWorld, folder: Path) -> Iterator[ChildProcesses]:
    """The processes that are not part of the deployment: its sources and customers."""
    with ChildProcesses(imports=[run_floors.__module__, run_customers.__module__]) as children:
        names = {FLOORS_NAME}
        floors = partial(run_floors, seconds=world.seconds, rate=world.rate, seed=world.seed)
        children.start(FLOORS_NAME, floors, folder)
        for number in range(len(REGIONS)):
            if count := world.customers_of(number):
                names.add(_customers_name(number))
                children.start(_customers_name(number), run_customers, folder, number, count, world.loss, world.seed)
        children.await_ready(names)
        yield children


def _customers_name(region: int) -> str:
    return f"the customers in {list(REGIONS)[region]}"


class _Run:
    """The main loop of the parent, until everything published has arrived or cannot arrive."""

    def __init__(
        self,
        cluster: LocalCluster,
        children: ChildProcesses,
        tally: DemoTally,
        clock: SharedClock,
        interrupts: Interrupts,
        observer: ObserverCallback,
    ) -> None:
        self._cluster = cluster
        self._children = children
        self._tally = tally
        self._reader = DeploymentReader(tally.deployment, tally)
        self._clock = clock
        self._interrupts = interrupts
        self._observer = observer
        self._closes_at: Instant = NEVER
        self._progress: object = None
        self._progressed_at: Instant = 0  # when something was last released or received
        self._finished_at: Instant = NEVER
        self._frame_at: Instant = 0

    def run(self) -> None:
        """Return when everything is released at every site and received by every customer, or progress has stalled."""
        tally = self._tally
        while not self._done():
            now = self._clock.now()
            self._open(now)
            self._kill(now)
            self._close(now)
            if self._stalled(now) or self._interrupts.count > 1 or (self._interrupts.count and not tally.opened):
                break
            self._receive(RECEIVE_PERIOD_MAX)
            if self._clock.now() >= self._frame_at:
                self._frame_at = self._clock.now() + FRAME_PERIOD
                self._look()
                self._observer(tally)
        self._observer(tally)
        self._reader.close()

    def _done(self) -> bool:
        """Whether everything arrived. Customers that lost a receiver get some time to receive a second feed again."""
        tally, now = self._tally, self._clock.now()
        if not tally.finished:
            return False
        self._finished_at = min(self._finished_at, now)
        return not tally.without_second_feed or now >= self._finished_at + SECOND_FEED_PERIOD_MAX

    def _open(self, now: Instant) -> None:
        """Open the floors when the first formation is decided."""
        tally = self._tally
        if tally.opened or tally.formation is None or self._interrupts.count:
            return
        starts_at = tally.formation.starts_at
        tally.opened_at = max(starts_at, now)
        self._closes_at = tally.opened_at + int(tally.world.seconds * SECOND)
        self._children.send_all(Opening(tally.opened_at, starts_at + TIMING.commit_delay))

    def _kill(self, now: Instant) -> None:
        """Kill one site half-way, without warning."""
        tally = self._tally
        if not tally.world.kills or tally.killed_at or tally.closing or not tally.opened:
            return
        if now >= (tally.opened_at + self._closes_at) // 2 and VICTIM_NAME in self._cluster.supervisor.names:
            self._cluster.supervisor.send(VICTIM_NAME, signal.SIGKILL)
            tally.killed_at = now

    def _close(self, now: Instant) -> None:
        tally = self._tally
        if tally.closing or not (now >= self._closes_at or self._interrupts.count):
            return
        tally.closing, self._closes_at = True, min(now, self._closes_at)
        if self._interrupts.count:
            self._children.send(FLOORS_NAME, Close())

    def _stalled(self, now: Instant) -> bool:
        tally = self._tally
        if not tally.opened and now >= tally.forming_since + FORMING_PERIOD_MAX:
            tally.fail("the sites formed no ring in time", settled_at=now)
        if tally.progress != self._progress:
            self._progress, self._progressed_at = tally.progress, now
        if tally.closing and now >= max(self._closes_at, self._progressed_at) + STALL_PERIOD_MAX:
            tally.fail(f"{tally.lacking} did not receive everything that was published", settled_at=now)
        return now >= tally.settled_at

    def _look(self) -> None:
        """Read the deployment. A process of it that ended, unless it was killed here, is a failure."""
        self._reader.update()
        self._cluster.look()
        for name, ended in self._cluster.lost.items():
            if name != VICTIM_NAME or not self._tally.killed_at:
                place = city_of(self._tally.deployment, name) if name in self._tally.deployment.nodes else name
                sentence = f"{place}: {ended}, which was not part of the demonstration"
                self._tally.fail(sentence, settled_at=self._clock.now() + EXIT_DETECTION_PERIOD)

    def _receive(self, wait_period: Duration) -> None:
        try:
            for _, news in self._children.receive(wait_period):
                self._tally.receive(news)
        except ChildExited as exited:
            self._tally.fail(str(exited), settled_at=self._clock.now() + EXIT_DETECTION_PERIOD)


def _final_reports(children: ChildProcesses, tally: DemoTally) -> list[RegionReports]:
    """The reports of all customers, once they are complete.

    The end of the run is seen from the trades alone. A stripe without trades also has a directory, which a customer may
    still be waiting for.
    """
    deployment, site = tally.deployment, next(iter(tally.living))
    journal = deployment.journal_of(deployment.nodes[deployment.name_of(site)])
    give_up_at = time.monotonic() + REPORTS_PERIOD_MAX / SECOND
    while True:
        reports = _collect_reports(children, tally)
        complete = check_customers(deployment, journal, reports).complete
        if not tally.finished or complete == tally.world.customers or time.monotonic() > give_up_at:
            return reports
        time.sleep(REPORT_PERIOD / SECOND)


def _collect_reports(children: ChildProcesses, tally: DemoTally) -> list[RegionReports]:
    """The reports of all customers, or none if a region does not answer in time."""
    names = {_customers_name(number) for number in range(len(REGIONS)) if tally.world.customers_of(number)}
    for name in names:
        children.send(name, ReportRequest())
    try:
        return list(children.collect(RegionReports, names, REPORTS_PERIOD_MAX).values())
    except (ChildExited, UserError):
        return []
