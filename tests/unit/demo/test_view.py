"""The state of a running demonstration: when it is finished, who publishes to whom, and a screen that fits."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fairtape.core.effects import Ordered, Release, Span
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.demo.customers import RegionNews
from fairtape.demo.floors import FloorNews
from fairtape.demo.tally import DemoTally, FormationView
from fairtape.demo.view import line, screen
from fairtape.demo.world import REGIONS, SITES, TIMING, VICTIM, DemoWorld, region_of
from fairtape.deployment.config.description import Deployment
from fairtape.journal import JournalEntry
from fairtape.market.trades import encode
from fairtape.wire.blocks import pack_messages
from unit.tape.ticker_values import a_trade

NOW = 1_767_225_600 * SECOND
WORLD = DemoWorld(seconds=20.0, loss=0.01, rate=400.0, seed=1)
ASIA = list(REGIONS).index("Asia")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return WORLD.create(tmp_path_factory.mktemp("demo"))


def a_formation(number: int, *, without: int | None = None) -> FormationView:
    members = tuple(site for site in SITES if site != without)
    return FormationView(
        number=number, members=members, first_token=number, starts_at=NOW, token_period=TIMING.token_period
    )


def an_entry(site: int, sequence: int) -> JournalEntry:
    """The entry with the messages from 1 to `sequence`, as this site has released it."""
    span = Span(101, 1, 1, sequence, 1, (pack_messages([encode(a_trade())] * sequence),), (sequence,))
    release = Release(7, 1, sequence, NOW, NOW + site * MILLISECOND, late=False, clock_bound=0)
    return JournalEntry(Ordered(0, 1, 7, 1, sequence, NOW, (span,)), release, b"", Path(), 0)


def region_news(region: int, trades_min: int, *, without_second_feed: int = 0, at: int = NOW) -> RegionNews:
    names = (f"{list(REGIONS)[region]}-{feed}" for feed in "AB")
    silent = tuple((feed, without_second_feed if position == 0 else 0) for position, feed in enumerate(names))
    return RegionNews(
        region=region, customers=67, reported_at=at, trades=67 * trades_min, trades_min=trades_min, gaps=0, requests=4,
        lost=5, silent=silent,
    )  # fmt: skip


def tally(deployment: Deployment, sequence: int = 10) -> DemoTally:
    made = DemoTally(WORLD, deployment, NOW)
    made.formations[1] = a_formation(1)
    made.opened_at = NOW
    for site in SITES:
        made.add_entry(site, an_entry(site, sequence))
    for region in range(len(REGIONS)):
        made.receive(region_news(region, sequence))
    return made


def is_finished(made: DemoTally) -> bool:
    return made.finished


def test_it_is_finished_when_everything_is_acknowledged_released_and_received(deployment: Deployment) -> None:
    made = tally(deployment)
    assert not is_finished(made)
    made.receive(FloorNews(10, closed=True))
    assert is_finished(made)
    made.receive(region_news(0, 9))
    assert not is_finished(made)
    assert made.lacking == "some customers"
    made.sites[3].sequence = 9
    assert made.lacking == SITES[3].name


def test_a_receiver_that_was_killed_is_not_waited_for(deployment: Deployment) -> None:
    made = tally(deployment)
    made.sites[VICTIM].sequence = 4
    made.receive(FloorNews(10, closed=True))
    assert not is_finished(made)
    made.killed_at = NOW
    assert is_finished(made)
    assert VICTIM not in made.living


def test_the_feed_of_a_killed_receiver_is_silent_until_a_formation_reassigns_it(deployment: Deployment) -> None:
    made = tally(deployment)
    asia = region_of(deployment, ASIA)
    feed = asia.feeds[0]
    assert made.publishers(ASIA)[feed] == VICTIM
    made.killed_at = NOW
    for without_second_feed in (1, 0, 67, 1):
        made.receive(region_news(ASIA, 10, without_second_feed=without_second_feed))
    assert feed not in made.publishers(ASIA)
    made.formations[2] = a_formation(2, without=VICTIM)
    assert made.publishers(ASIA)[feed] == asia.receivers[2]
    assert made.restored_at == 0
    made.receive(region_news(ASIA, 10, at=NOW + SECOND))
    made.receive(region_news(ASIA, 10, without_second_feed=1, at=NOW + 2 * SECOND))
    made.receive(region_news(ASIA, 10, at=NOW + 3 * SECOND))
    assert made.restored_at == NOW + SECOND


def test_without_customers_it_finishes_when_the_sites_have_released(deployment: Deployment) -> None:
    made = DemoTally(replace(WORLD, customers=0), deployment, NOW)
    for site in SITES:
        made.add_entry(site, an_entry(site, 10))
    made.receive(FloorNews(10, closed=True))
    assert is_finished(made)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (200, 60), (40, 10)])
@pytest.mark.parametrize("stage", ["forming", "running", "killed", "reformed", "broken"])
def test_every_stage_fits_every_screen(deployment: Deployment, width: int, height: int, stage: str) -> None:
    made = DemoTally(WORLD, deployment, NOW) if stage == "forming" else tally(deployment)
    if stage in ("killed", "reformed"):
        made.killed_at = NOW
    if stage == "reformed":
        made.formations[2] = a_formation(2, without=VICTIM)
    if stage == "broken":
        made.fail("the process of London ended unexpectedly, with exit code -9", settled_at=NOW)
    console = Console(width=width, height=height, record=True, force_terminal=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(screen(made, NOW + SECOND, height))
    lines = captured.get().splitlines()
    assert len(lines) <= height
    assert "\n" not in line(made, NOW)
    if (width, height) == (80, 24) and stage == "reformed":
        output = "\n".join(lines)
        assert "Sydney" in output
        assert "killed" in output
        assert "silent" not in output
