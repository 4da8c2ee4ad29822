"""`fairtape plan …`: what to build, worked out before anything is built."""

import json
from dataclasses import asdict

import click

from fairtape.cli.stripes import stripes
from fairtape.core.errors import UserError
from fairtape.ring.membership.hierarchy import LOOP_MAX, BadHierarchy, Hierarchy, Loop
from fairtape.ring.membership.hierarchy import plan as planned

WIDTHS = (5, 7, 14)


@click.group()
def plan() -> None:
    """Work out a deployment before it is built."""


plan.add_command(stripes)


@plan.command()
@click.argument("sites", type=int, metavar="SITES")
@click.option("--levels", type=int, help="Levels of loops.  [default: the fewest that keep loops within --loop-max]")
@click.option("--loop-max", default=LOOP_MAX, show_default=True, help="Sites in a loop, at most.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def loops(*, sites: int, levels: int | None, loop_max: int, as_json: bool) -> None:
    """Propose a balanced hierarchy of loops for so many sites.

    Every site has one loop of its own at the lowest level. The first site of a loop is its junction: it is a member of
    the loop above as well, and counts in both. Sites are numbered from 1 and stay in order, so number neighbours
    one after another.
    """
    try:
        hierarchy = planned(sites, levels, loop_max)
    except BadHierarchy as refusal:
        raise UserError(str(refusal)) from None
    click.echo(_as_json(hierarchy) if as_json else _text(hierarchy))


def _text(hierarchy: Hierarchy) -> str:
    sites, passes = f"{hierarchy.sites:,}", f"{hierarchy.passes_max:,}"
    lines = [
        _row("level", "loops", "sites per loop", "token passes to detect a failure"),
        *(_level_row(hierarchy.level(level)) for level in range(1, hierarchy.levels + 1)),
        "",
        f"A failure anywhere is detected within {passes} token passes; one loop of all sites would take {sites}.",
    ]
    if hierarchy.levels > 1:
        lines += ["", *(_loop_line(number, loop) for number, loop in enumerate(hierarchy.loops, 1))]
    return "\n".join(lines)


def _level_row(loops: tuple[Loop, ...]) -> str:
    sizes = [len(loop.members) for loop in loops]
    least, most = min(sizes), max(sizes)
    spread = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return _row(str(loops[0].level), f"{len(loops):,}", spread, f"{most:,}")


def _row(*cells: str) -> str:
    first, *middle, last = cells
    return "  ".join((first.ljust(WIDTHS[0]), *map(str.rjust, middle, WIDTHS[1:]), last)).rstrip()


def _loop_line(number: int, loop: Loop) -> str:
    if loop.parent is None:
        return f"loop {number}, primary: {_sites(loop)}"
    junction = f"junction {loop.members[0] + 1} with loop {loop.parent + 1}"
    return f"loop {number}, level {loop.level}: {_sites(loop)}; {junction}"


def _sites(loop: Loop) -> str:
    """The sites of a loop, numbered from 1; neighbours by their ends."""
    numbers = [member + 1 for member in loop.members]
    if numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2:
        return f"sites {numbers[0]}-{numbers[-1]}"
    return f"sites {', '.join(map(str, numbers))}"


def _as_json(hierarchy: Hierarchy) -> str:
    loops = [
        asdict(loop)
        | {
            "members": [member + 1 for member in loop.members],
            "parent": None if loop.parent is None else loop.parent + 1,
            "junction": None if loop.junction is None else loop.junction + 1,
            "loop": number,
        }
        for number, loop in enumerate(hierarchy.loops, 1)
    ]
    return json.dumps(
        {
            "sites": hierarchy.sites,
            "levels": hierarchy.levels,
            "token_passes_max": hierarchy.passes_max,
            "loops": loops,
        }
    )
