"""Runs the demonstration: starts the processes, waits for the ring, kills a receiver, closes, collects the findings."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.demo.customers import RegionReports, ReportRequest, run_customers
from fairtape.demo.findings import Findings, collect_findings
from fairtape.demo.floors import Close, Opening, run_floors
from fairtape.demo.receivers import run_receiver
from fairtape.demo.reformers import CommitSchedule, FormationNews, run_reformer
from fairtape.demo.retransmitters import run_retransmitters
from fairtape.demo.tally import DemoTally
from fairtape.demo.world import REFORMER, REGIONS, SITES, TIMING, VICTIM, DemoWorld, WorldPlan, name_of
from fairtape.deployment.process.children import ChildExited, ChildProcesses, Interrupts
from fairtape.edge.service.stripe_plans import StripePlanStore
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
FLOORS_NAME: Final = "the trading floors"

ObserverCallback = Callable[[DemoTally], None]
"""Called with the current state several times a second."""


def run_demo(world: DemoWorld, folder: Path, observer: ObserverCallback) -> Findings:
    """Run the whole demonstration, with the journals below `folder`."""
    journals = journals_in(folder)
    clock = SharedClock()
    with Interrupts() as interrupts:
        plan = world.plan(folder)
        with ChildProcesses(
            imports=[run_receiver.__module__, run_customers.__module__, run_retransmitters.__module__]
        ) as children:
            _start(children, world, plan, journals)
            children.tell_all(plan)
            tally = DemoTally(world, clock.now())
            _Run(children, tally, clock, interrupts, observer).run()
            reports = _collect_reports(children, tally)
        return collect_findings(tally, plan, journals, reports, interrupted=interrupts.count > 0)


def journals_in(folder: Path) -> dict[str, Path]:
    """Create a journal folder for each city in `folder`, which must be empty."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"--journals is {str(folder)!r}, which is not empty; name a new folder")
        journals = {
            city.name: folder / f"{node}-{city.name.lower().replace(' ', '-').replace('ã', 'a')}"
            for node, city in SITES.items()
        }
        for path in journals.values():
            path.mkdir()
    except OSError as error:
        raise UserError(
            f"--journals is {str(folder)!r}, which cannot be written ({error.strerror}); name another folder"
        ) from None
    return journals


def _start(children: ChildProcesses, world: DemoWorld, plan: WorldPlan, journals: Mapping[str, Path]) -> None:
    """Start all processes and wait until they are ready."""
    plan.edge.folder.mkdir()
    StripePlanStore(plan.edge.folder, plan.edge.settings.core).add(plan.edge.stripes)
    names = {FLOORS_NAME, name_of(REFORMER), *journals}
    children.start(name_of(REFORMER), run_reformer)
    for position, (node, city) in enumerate(SITES.items()):
        shows = position == 0  # the order is the same everywhere, so any site can feed the ticker
        children.start(city.name, run_receiver, node, journals[city.name], shows)
    children.start(FLOORS_NAME, partial(run_floors, seconds=world.seconds, rate=world.rate, seed=world.seed))
    for number, region in enumerate(REGIONS):
        if world.customers_of(region):
            customers, servers = _customers_name(number), f"the retransmit servers of {region.name}"
            names |= {customers, servers}
            children.start(customers, run_customers, number, world.customers_of(region), world.loss, world.seed)
            children.start(servers, run_retransmitters, number, journals)
    children.await_ready(names)


def _customers_name(region: int) -> str:
    return f"the customers in {REGIONS[region].name}"


class _Run:
    """The main loop of the parent, until everything published has arrived or cannot arrive."""

    def __init__(
        self,
        children: ChildProcesses,
        tally: DemoTally,
        clock: SharedClock,
        interrupts: Interrupts,
        observer: ObserverCallback,
    ) -> None:
        self._children = children
        self._tally = tally
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
                self._observer(tally)
        self._observer(tally)

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
        tally.opened_at = max(tally.formation.starts_at, now)
        self._closes_at = tally.opened_at + int(tally.world.seconds * SECOND)
        self._children.tell(FLOORS_NAME, Opening(tally.opened_at))

    def _kill(self, now: Instant) -> None:
        """Kill one receiver half-way, without warning."""
        tally = self._tally
        if not tally.world.kills or tally.killed_at or tally.closing or not tally.opened:
            return
        if now >= (tally.opened_at + self._closes_at) // 2:
            self._children.kill(name_of(VICTIM))
            tally.killed_at = now

    def _close(self, now: Instant) -> None:
        tally = self._tally
        if tally.closing or not (now >= self._closes_at or self._interrupts.count):
            return
        tally.closing, self._closes_at = True, min(now, self._closes_at)
        if self._interrupts.count:
            self._children.tell(FLOORS_NAME, Close())

    def _stalled(self, now: Instant) -> bool:
        tally = self._tally
        if not tally.opened and now >= tally.forming_since + FORMING_PERIOD_MAX:
            tally.fail("the sites formed no ring in time", settled_at=now)
        if tally.progress != self._progress:
            self._progress, self._progressed_at = tally.progress, now
        if tally.closing and now >= max(self._closes_at, self._progressed_at) + STALL_PERIOD_MAX:
            tally.fail(f"{tally.lacking} did not receive everything that was published", settled_at=now)
        return now >= tally.settled_at

    def _receive(self, wait_period: Duration) -> None:
        try:
            for _, news in self._children.hear(wait_period):
                self._tally.receive(news)
                if isinstance(news, FormationNews):
                    self._children.tell_all(CommitSchedule(news.formation))
        except ChildExited as exited:
            self._tally.fail(str(exited), settled_at=self._clock.now() + EXIT_DETECTION_PERIOD)


def _collect_reports(children: ChildProcesses, tally: DemoTally) -> list[RegionReports]:
    """The reports of all customers, or none if a region does not answer in time."""
    names = {_customers_name(number) for number, region in enumerate(REGIONS) if tally.world.customers_of(region)}
    for name in names:
        children.tell(name, ReportRequest())
    try:
        return list(children.collect(RegionReports, names, REPORTS_PERIOD_MAX).values())
    except (ChildExited, UserError):
        return []
