"""The state of a running demonstration: when it is finished, who publishes to whom, and a screen that fits."""

from dataclasses import replace

import pytest
from rich.console import Console

from fairtape.core.effects import Release
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.demo.customers import RegionNews
from fairtape.demo.floors import FloorNews
from fairtape.demo.reformers import FormationNews
from fairtape.demo.tally import DemoTally
from fairtape.demo.view import line, screen
from fairtape.demo.world import REGIONS, SITES, TIMING, VICTIM, DemoWorld
from fairtape.deployment.process.temporary_site import SiteNews
from fairtape.market.trades import encode
from fairtape.ring.membership.formation import Formation
from unit.tape.ticker_values import a_trade

NOW = 1_767_225_600 * SECOND
WORLD = DemoWorld(seconds=20.0, loss=0.01, rate=400.0, seed=1, groups=None, transport="a mesh of unicasts, as asked")
ASIA = next(position for position, region in enumerate(REGIONS) if VICTIM in region.receivers[:2])


def formation_news(number: int, *, without: int | None = None) -> FormationNews:
    members = tuple(site for site in SITES if site != without)
    formation = Formation(number=number, members=members, timing=TIMING, starts_at=NOW, first_token=number)
    return FormationNews(formation, "a test", NOW)


def site_news(site: int, sequence: int, *, late: int = 0) -> SiteNews:
    release = Release(7, 1, sequence, NOW, NOW + site * MILLISECOND, late=False, clock_bound=0)
    return SiteNews(
        site=site, highest_ack=7, sequence=sequence, late=late, requests=1, repairs=2, lost=3, releases=(release,),
        messages=((1, encode(a_trade())),), failure=None,
    )  # fmt: skip


def region_news(region: int, trades_min: int, *, without_second_feed: int = 0, at: int = NOW) -> RegionNews:
    silent = tuple(
        (feed, without_second_feed if position == 0 else 0) for position, feed in enumerate(REGIONS[region].feeds)
    )
    return RegionNews(
        region=region, customers=67, reported_at=at, trades=67 * trades_min, trades_min=trades_min, gaps=0, requests=4,
        lost=5, silent=silent,
    )  # fmt: skip


def tally(sequence: int = 10) -> DemoTally:
    made = DemoTally(WORLD, NOW)
    made.receive(formation_news(1))
    made.opened_at = NOW
    for site in SITES:
        made.receive(site_news(site, sequence))
    for region in range(len(REGIONS)):
        made.receive(region_news(region, sequence))
    return made


def is_finished(made: DemoTally) -> bool:
    return made.finished


def test_it_is_finished_when_everything_is_acknowledged_released_and_received() -> None:
    made = tally()
    assert not is_finished(made)
    made.receive(FloorNews(10, closed=True))
    assert is_finished(made)
    made.receive(region_news(0, 9))
    assert not is_finished(made)
    assert made.lacking == "some customers"
    made.receive(site_news(3, 9))
    assert made.lacking == SITES[3].name


def test_a_receiver_that_was_killed_is_not_waited_for() -> None:
    made = tally()
    made.receive(site_news(VICTIM, 4))
    made.receive(FloorNews(10, closed=True))
    assert not is_finished(made)
    made.killed_at = NOW
    assert is_finished(made)
    assert VICTIM not in made.living


def test_the_feed_of_a_killed_receiver_is_silent_until_a_formation_reassigns_it() -> None:
    made = tally()
    feed = REGIONS[ASIA].feeds[0]
    assert made.publishers(REGIONS[ASIA])[feed] == VICTIM
    made.killed_at = NOW
    for without_second_feed in (1, 0, 67, 1):
        made.receive(region_news(ASIA, 10, without_second_feed=without_second_feed))
    assert feed not in made.publishers(REGIONS[ASIA])
    made.receive(formation_news(2, without=VICTIM))
    assert made.publishers(REGIONS[ASIA])[feed] == REGIONS[ASIA].receivers[2]
    assert made.restored_at == 0
    made.receive(region_news(ASIA, 10, at=NOW + SECOND))
    made.receive(region_news(ASIA, 10, without_second_feed=1, at=NOW + 2 * SECOND))
    made.receive(region_news(ASIA, 10, at=NOW + 3 * SECOND))
    assert made.restored_at == NOW + SECOND


def test_without_customers_it_finishes_when_the_sites_have_released() -> None:
    made = DemoTally(replace(WORLD, customers=0), NOW)
    for site in SITES:
        made.receive(site_news(site, 10))
    made.receive(FloorNews(10, closed=True))
    assert is_finished(made)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (200, 60), (40, 10)])
@pytest.mark.parametrize("stage", ["forming", "running", "killed", "reformed", "broken"])
def test_every_stage_fits_every_screen(width: int, height: int, stage: str) -> None:
    made = DemoTally(WORLD, NOW) if stage == "forming" else tally()
    if stage in ("killed", "reformed"):
        made.killed_at = NOW
    if stage == "reformed":
        made.receive(formation_news(2, without=VICTIM))
    if stage == "broken":
        made.fail("the process of London ended unasked, with exit code -9", settled_at=NOW)
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
