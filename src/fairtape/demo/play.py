"""The run of the demonstration: start everyone, let the ring form, kill a receiver, close, prove what happened."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.demo.customers import Inquiry, RegionAccounts, run_customers
from fairtape.demo.findings import Findings, find
from fairtape.demo.floors import Close, Opening, run_floors
from fairtape.demo.receivers import run_receiver
from fairtape.demo.reformers import FormationNews, Rhythm, run_reformer
from fairtape.demo.retransmitters import run_retransmitters
from fairtape.demo.tally import DemoTally
from fairtape.demo.world import REFORMER, REGIONS, SITES, TIMING, VICTIM, DemoWorld, WorldPlan, name_of
from fairtape.deployment.process.children import ChildExited, ChildProcesses, Interrupts
from fairtape.edge.service.stripe_plans import StripePlanStore
from fairtape.net.clock import SharedClock

HEAR_PERIOD_MAX: Final = 20 * MILLISECOND
FRAME_PERIOD: Final = 200 * MILLISECOND  # drawing a screen takes a good part of a core
GATHERING_PERIOD_MAX: Final = 60 * SECOND  # for the first formation, on a machine that is busy with other things
# To notice a failure, to wait out a lease, to begin again: a busy machine may be slow, but it does not stand still.
STANDSTILL_PERIOD_MAX: Final = 4 * TIMING.reform_delay + 2 * TIMING.delay_max + 5 * SECOND
DESERTION_PERIOD: Final = len(SITES) * TIMING.token_period + TIMING.reform_delay + SECOND  # until its turn is missed
SECOND_FEED_PERIOD_MAX: Final = 10 * SECOND
ACCOUNTS_PERIOD_MAX: Final = 10 * SECOND
FLOORS_NAME: Final = "the trading floors"

Audience = Callable[[DemoTally], None]
"""Shown the state several times a second."""


def play(world: DemoWorld, folder: Path, audience: Audience) -> Findings:
    """The whole demonstration, with the journals below `folder`."""
    journals = journals_in(folder)
    clock = SharedClock()
    with Interrupts() as interrupts:
        plan = world.plan(folder)
        with ChildProcesses(
            imports=[run_receiver.__module__, run_customers.__module__, run_retransmitters.__module__]
        ) as crew:
            _start(crew, world, plan, journals)
            crew.tell_all(plan)
            tally = DemoTally(world, clock.now())
            _Director(crew, tally, clock, interrupts, audience).run()
            accounts = _accounts(crew, tally)
        return find(tally, plan, journals, accounts, interrupted=interrupts.count > 0)


def journals_in(folder: Path) -> dict[str, Path]:
    """A journal for each city, in a folder that is empty so far."""
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
            f"--journals is {str(folder)!r}, where nothing can be written ({error.strerror}); name another folder"
        ) from None
    return journals


def _start(crew: ChildProcesses, world: DemoWorld, plan: WorldPlan, journals: Mapping[str, Path]) -> None:
    """Start everyone, and wait until everyone has started."""
    plan.edge.folder.mkdir()
    StripePlanStore(plan.edge.folder, plan.edge.settings.core).add(plan.edge.stripes)
    names = {FLOORS_NAME, name_of(REFORMER), *journals}
    crew.start(name_of(REFORMER), run_reformer)
    for position, (node, city) in enumerate(SITES.items()):
        shows = position == 0  # one order: any site's messages will do for the ticker
        crew.start(city.name, run_receiver, node, journals[city.name], shows)
    crew.start(FLOORS_NAME, partial(run_floors, seconds=world.seconds, rate=world.rate, seed=world.seed))
    for number, region in enumerate(REGIONS):
        if world.customers_of(region):
            customers, servers = _customers_name(number), f"the retransmit servers of {region.name}"
            names |= {customers, servers}
            crew.start(customers, run_customers, number, world.customers_of(region), world.loss, world.seed)
            crew.start(servers, run_retransmitters, number, journals)
    crew.await_ready(names)


def _customers_name(region: int) -> str:
    return f"the customers in {REGIONS[region].name}"


class _Director:
    """Leads through the run, up to the end of everything that is on its way."""

    def __init__(
        self, crew: ChildProcesses, tally: DemoTally, clock: SharedClock, interrupts: Interrupts, audience: Audience
    ) -> None:
        self._crew = crew
        self._tally = tally
        self._clock = clock
        self._interrupts = interrupts
        self._audience = audience
        self._closes_at: Instant = NEVER
        self._progress: object = None
        self._moved_at: Instant = 0  # when something was last released, or heard
        self._finished_at: Instant = NEVER
        self._frame_at: Instant = 0

    def run(self) -> None:
        """Until everything published is released everywhere and heard by everybody, or will not be."""
        tally = self._tally
        while not self._done():
            now = self._clock.now()
            self._open(now)
            self._strike(now)
            self._close(now)
            if self._hopeless(now) or self._interrupts.count > 1 or (self._interrupts.count and not tally.opened):
                break
            self._hear(HEAR_PERIOD_MAX)
            if self._clock.now() >= self._frame_at:
                self._frame_at = self._clock.now() + FRAME_PERIOD
                self._audience(tally)
        self._audience(tally)

    def _done(self) -> bool:
        """Everybody has everything; those who just lost a receiver are given a moment to hear the next one."""
        tally, now = self._tally, self._clock.now()
        if not tally.finished:
            return False
        self._finished_at = min(self._finished_at, now)
        return not tally.deaf or now >= self._finished_at + SECOND_FEED_PERIOD_MAX

    def _open(self, now: Instant) -> None:
        """The floors trade as soon as there is a ring."""
        tally = self._tally
        if tally.opened or tally.formation is None or self._interrupts.count:
            return
        tally.opened_at = max(tally.formation.starts_at, now)
        self._closes_at = tally.opened_at + int(tally.world.seconds * SECOND)
        self._crew.tell(FLOORS_NAME, Opening(tally.opened_at))

    def _strike(self, now: Instant) -> None:
        """Half-way, one receiver is gone from one instant to the next."""
        tally = self._tally
        if not tally.world.kills or tally.killed_at or tally.closing or not tally.opened:
            return
        if now >= (tally.opened_at + self._closes_at) // 2:
            self._crew.kill(name_of(VICTIM))
            tally.killed_at = now

    def _close(self, now: Instant) -> None:
        tally = self._tally
        if tally.closing or not (now >= self._closes_at or self._interrupts.count):
            return
        tally.closing, self._closes_at = True, min(now, self._closes_at)
        if self._interrupts.count:
            self._crew.tell(FLOORS_NAME, Close())

    def _hopeless(self, now: Instant) -> bool:
        tally = self._tally
        if not tally.opened and now >= tally.gathers_since + GATHERING_PERIOD_MAX:
            tally.fail("the sites formed no ring in time", settled_at=now)
        if tally.progress != self._progress:
            self._progress, self._moved_at = tally.progress, now
        if tally.closing and now >= max(self._closes_at, self._moved_at) + STANDSTILL_PERIOD_MAX:
            tally.fail(f"{tally.lacking} did not get everything that was published", settled_at=now)
        return now >= tally.settled_at

    def _hear(self, wait_period: Duration) -> None:
        try:
            for _, news in self._crew.hear(wait_period):
                self._tally.hear(news)
                if isinstance(news, FormationNews):
                    self._crew.tell_all(Rhythm(news.formation))
        except ChildExited as desertion:
            self._tally.fail(str(desertion), settled_at=self._clock.now() + DESERTION_PERIOD)


def _accounts(crew: ChildProcesses, tally: DemoTally) -> list[RegionAccounts]:
    """What every customer heard; nothing of a region that does not answer."""
    names = {_customers_name(number) for number, region in enumerate(REGIONS) if tally.world.customers_of(region)}
    for name in names:
        crew.tell(name, Inquiry())
    try:
        return list(crew.collect(RegionAccounts, names, ACCOUNTS_PERIOD_MAX).values())
    except (ChildExited, UserError):
        return []
