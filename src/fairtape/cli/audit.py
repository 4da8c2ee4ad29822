"""`fairtape audit`: measure how fair something is. `fairtape audit entry`: who is first, where all bid at once?"""

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from math import isinf
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from fairtape.cli.terminal import check_within
from fairtape.core import svg
from fairtape.core.errors import UserError
from fairtape.simulation.campaign import cores
from fairtape.simulation.cities import City
from fairtape.simulation.fair_entry import CLOCK_BOUND, LOSS, REGIONS_MAX, REGIONS_MIN, EntryPath, race, regions

RATIO_MAX: Final = 1.1  # what the rotating portal promises
RACES_MIN: Final = 1_000  # fewer say nothing about a tenth
RACES_MAX: Final = 10**7
RACES_PER_WORLD: Final = 250
SEED_MAX: Final = 10**18
JOBS_MAX: Final = 256
EXIT_UNFAIR: Final = 1
BAR_WIDTH: Final = 24  # pixels of the plot
PLOT_HEIGHT: Final = 160
COLOURS: Final = ("#1b6ca8", "#8d99ae", "#e09f3e", "#9e2a2b")


@click.group()
def audit() -> None:
    """Measure how fair it is: who is first, where all bid at once."""


@audit.command()
@click.option("--regions", "count", default=6, show_default=True, help="How many cities bid.")
@click.option("--races", default=12_000, show_default=True, help="How often they all bid at once.")
@click.option("--seed", default=1, show_default=True, help="Decides weather, clocks and the moments of the races.")
@click.option("--jobs", type=int, help="Worlds at once.  [default: one per core]")
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw the shares into this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def entry(
    ctx: click.Context, *, count: int, races: int, seed: int, jobs: int | None, svg: Path | None, as_json: bool
) -> None:
    """Let all regions bid at once, count who is first.

    One simulated world with the delays between real cities, 1 % loss and clocks that are wrong by up to a millisecond.
    Each race is run by the rotating portal of the ring, by direct sending to one venue, and by hold-and-release by the
    timestamps of gateways, honest ones and one that stamps early.

    The exit code is 1 where the rotating portal makes one region first more than 1.1 times as often as another.
    """
    check_within("--regions", count, REGIONS_MIN, REGIONS_MAX)
    check_within("--races", races, RACES_MIN, RACES_MAX)
    check_within("--seed", seed, 0, SEED_MAX)
    check_within("--jobs", jobs, 1, JOBS_MAX)
    ways = _run(count, races, seed, jobs or cores(), quiet=as_json)
    cities = regions(count)
    if svg is not None:
        try:
            svg.write_text(_drawn(ways, cities))
        except OSError as trouble:
            raise UserError(f"--svg is {str(svg)!r}, which cannot be written: {trouble.strerror}") from None
    fair = ways[0].ratio <= RATIO_MAX
    click.echo(json.dumps(_fields(ways, cities, seed, fair=fair))) if as_json else _show(ways, cities)
    ctx.exit(0 if fair else EXIT_UNFAIR)


def _run(count: int, races: int, seed: int, jobs: int, *, quiet: bool) -> tuple[EntryPath, ...]:
    """All worlds, one after the other or several at once; the sum does not depend on how many."""
    sizes = [min(RACES_PER_WORLD, races - begun) for begun in range(0, races, RACES_PER_WORLD)]
    seeds = [seed * RACES_MAX + world for world in range(len(sizes))]
    worlds = partial(_world, count)
    if jobs == 1:
        return _summed(_with_bar(map(worlds, seeds, sizes), len(sizes), quiet=quiet))
    with ProcessPoolExecutor(min(jobs, len(sizes)), mp_context=get_context("spawn")) as pool:
        return _summed(_with_bar(pool.map(worlds, seeds, sizes), len(sizes), quiet=quiet))


def _world(count: int, seed: int, races: int) -> tuple[EntryPath, ...]:
    return race(seed, count=count, races=races)


def _summed(worlds: Iterator[tuple[EntryPath, ...]]) -> tuple[EntryPath, ...]:
    total = next(worlds)
    for ways in worlds:
        total = tuple(one + other for one, other in zip(total, ways, strict=True))
    return total


def _with_bar(worlds: Iterable[tuple[EntryPath, ...]], total: int, *, quiet: bool) -> Iterator[tuple[EntryPath, ...]]:
    columns = (TextColumn("races"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("races", total=total)
        for ways in worlds:
            yield ways
            bar.advance(task)


def _show(ways: tuple[EntryPath, ...], cities: tuple[City, ...]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("first, in % of the races")
    for way in ways:
        table.add_column(way.name, justify="right")
    for place, city in enumerate(cities):
        table.add_row(city.name, *(f"{100 * way.firsts[place] / way.races:.2f}" for way in ways))
    table.add_section()
    table.add_row("max/min", *(_told(way.ratio) for way in ways))
    table.add_row("chi-square", *(f"{way.chi_square:,.1f}" for way in ways))
    table.add_row("p", *(f"{way.p_value:.3g}" for way in ways))
    table.add_row("median delay, ms", *(f"{way.delay / 1e6:.1f}" for way in ways))
    Console(width=None if Console().is_terminal else 160).print(table)
    verdict = "as promised" if ways[0].ratio <= RATIO_MAX else "more than promised"
    click.echo(
        f"\n{ways[0].races:,} races of {len(cities)} regions; the venue is in {cities[0].name}, and the early stamps"
        f" come from {cities[-1].name}.\nWith the rotating portal the luckiest region is first {_told(ways[0].ratio)}"
        f" times as often as the unluckiest: {verdict} ({RATIO_MAX})."
    )


def _told(ratio: float) -> str:
    return "∞" if isinf(ratio) else f"{ratio:,.3f}"


def _fields(ways: tuple[EntryPath, ...], cities: tuple[City, ...], seed: int, *, fair: bool) -> dict[str, object]:
    return {
        "races": ways[0].races,
        "regions": [city.name for city in cities],
        "seed": seed,
        "loss": LOSS,
        "clock_bound_ns": CLOCK_BOUND,
        "ratio_max": RATIO_MAX,
        "fair": fair,
        "ways": [
            {
                "name": way.name,
                "firsts": list(way.firsts),
                "ratio": None if isinf(way.ratio) else way.ratio,
                "chi_square": way.chi_square,
                "p_value": way.p_value,
                "median_delay_ns": way.delay,
            }
            for way in ways
        ],
    }


def _drawn(ways: tuple[EntryPath, ...], cities: tuple[City, ...]) -> str:
    """A bar for each region and way; the line is an equal share."""
    group = BAR_WIDTH * (len(ways) + 1)
    width, height = group * len(cities) + BAR_WIDTH, PLOT_HEIGHT + 40 + 18 * len(ways)
    equal = PLOT_HEIGHT * (1 - 1 / len(cities))
    lines = [""]
    for place, city in enumerate(cities):
        left = BAR_WIDTH + place * group
        for number, way in enumerate(ways):
            tall = PLOT_HEIGHT * way.firsts[place] / way.races
            x, fill = left + number * BAR_WIDTH, COLOURS[number]
            lines.append(svg.element("rect", x=x, y=PLOT_HEIGHT - tall, width=BAR_WIDTH - 4, height=tall, fill=fill))
        lines.append(svg.text(left, PLOT_HEIGHT + 16, city.name, font_size=12))
    lines.append(svg.element("path", d=f"M0 {equal:.1f}H{width}", stroke="#000", stroke_dasharray=4))
    for number, way in enumerate(ways):
        label = f"{way.name}: max/min {_told(way.ratio)}"
        lines.append(svg.text(BAR_WIDTH, PLOT_HEIGHT + 40 + 18 * number, label, font_size=12, fill=COLOURS[number]))
    return svg.document(width, height, "\n".join([*lines, ""]), font_family="sans-serif") + "\n"
