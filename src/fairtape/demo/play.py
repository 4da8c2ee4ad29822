"""The run of the demonstration: start every process, agree on a beginning, watch, close, and prove what happened."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.demo.findings import Findings, find
from fairtape.demo.floors import Close, run_floors
from fairtape.demo.tally import Tally
from fairtape.demo.world import SITES, TIMING, World
from fairtape.deployment.processes import Crew, Deserted, Interrupts
from fairtape.deployment.sites import Rounds, run_site
from fairtape.runtime.clock import SharedClock
from fairtape.runtime.complaints import Complaint

START_DELAY: Final = 700 * MILLISECOND  # from the agreement to the first token: for sockets and journals to be opened
HEAR_PERIOD_MAX: Final = 20 * MILLISECOND
DESERTION_PERIOD: Final = len(SITES) * TIMING.token_period + TIMING.reform_delay + SECOND  # until its turn is missed
CLOSING_PERIOD_MAX: Final = TIMING.reform_delay + 2 * TIMING.delay_max  # every loss is recovered or declared by then
FLOORS_NAME: Final = "the trading floors"

Audience = Callable[[Tally], None]
"""Shown the state several times a second."""


def play(world: World, folder: Path, audience: Audience) -> Findings:
    """The whole demonstration, with the journals below `folder`."""
    journals = journals_in(folder)
    clock = SharedClock()
    with Interrupts() as interrupts:
        with Crew(imports=[run_site.__module__]) as crew:
            _start(crew, world, journals)
            starts_at = clock.now() + START_DELAY
            plan = world.plan(starts_at)
            crew.tell_all(plan)
            tally = Tally(world, plan.formation)
            _watch(crew, tally, clock, interrupts, audience)
        return find(world, tally, journals, interrupted=interrupts.count > 0)


def journals_in(folder: Path) -> dict[str, Path]:
    """A journal for each city, in a folder that is empty so far."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise Complaint(f"--journals is {str(folder)!r}, which is not empty; name a new folder")
        journals = {
            city.name: folder / f"{node}-{city.name.lower().replace(' ', '-').replace('ã', 'a')}"
            for node, city in SITES.items()
        }
        for path in journals.values():
            path.mkdir()
    except OSError as error:
        raise Complaint(
            f"--journals is {str(folder)!r}, where nothing can be written ({error.strerror}); name another folder"
        ) from None
    return journals


def _start(crew: Crew, world: World, journals: Mapping[str, Path]) -> None:
    """Start everyone, and wait until everyone has started."""
    for position, (node, city) in enumerate(SITES.items()):
        shows = position == 0  # one order: any site's messages will do for the ticker
        crew.start(city.name, run_site, node, journals[city.name], shows)
    crew.start(FLOORS_NAME, partial(run_floors, seconds=world.seconds, rate=world.rate, seed=world.seed))
    crew.await_ready({*journals, FLOORS_NAME})


def _watch(crew: Crew, tally: Tally, clock: SharedClock, interrupts: Interrupts, audience: Audience) -> None:
    """Until everything published is released everywhere, or will not be."""
    frames = Rounds(tally.formation, turn=0, turns=1)
    closes_at = tally.formation.starts_at + int(tally.world.seconds * SECOND)
    while not tally.finished:
        now = clock.now()
        if not tally.closing and (now >= closes_at or interrupts.count):
            tally.closing, closes_at = True, min(now, closes_at)
            if interrupts.count:
                crew.tell(FLOORS_NAME, Close())
        if _hopeless(tally, closes_at, now) or interrupts.count > 1:
            break
        _hear(crew, tally, HEAR_PERIOD_MAX, clock)
        if frames.come(clock.now()):
            audience(tally)
    audience(tally)


def _hopeless(tally: Tally, closes_at: Instant, now: Instant) -> bool:
    if tally.closing and now >= closes_at + CLOSING_PERIOD_MAX:
        tally.fail("not everything published was released everywhere in time", settled_at=now)
    return now >= tally.settled_at


def _hear(crew: Crew, tally: Tally, wait_period: Duration, clock: SharedClock) -> None:
    try:
        for _, news in crew.hear(wait_period):
            tally.hear(news, clock.now())
    except Deserted as desertion:
        tally.fail(str(desertion), settled_at=clock.now() + DESERTION_PERIOD)
