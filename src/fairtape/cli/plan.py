"""`fairtape plan`: a hierarchy of loops for N sites, and stripes for the symbols of a file."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from fairtape.cli.terminal import check_within
from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND
from fairtape.market.stripes import BASE, UDP_OVERHEAD, Load, Planned
from fairtape.ring.membership.hierarchy import LOOP_MAX, Hierarchy, Loop

CAP: Final = 20_000_000  # bits/s
HEADROOM: Final = 4.0  # peak rate divided by the mean
TRADE_BITS: Final = 8 * (UDP_OVERHEAD + 20 + 2 + 44)  # of a trade alone in its datagram


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--stripes", default=8, show_default=True, help="Edge stripes for trades.")
@click.option("--cap", default=CAP, show_default=True, help="Limit of a stripe, in bits per second.")
@click.option("--headroom", default=HEADROOM, show_default=True, help="Peak rate divided by the mean.")
@click.option("--feeds", default="A,B", show_default=True, help="Names of the feeds.")
@click.option("--base", default=str(BASE), show_default=True, help="The first multicast address, and the port of all.")
@click.option("--version", default=1, show_default=True, help="Version of the plan; must exceed the one in force.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the plan here.  [default: only the loads]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def stripes(
    *,
    file: Path,
    stripes: int,
    cap: int,
    headroom: float,
    feeds: str,
    base: str,
    version: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Assign symbols to stripes by their rates.

    FILE is CSV or Parquet, as for `fairtape publish`. Symbols are assigned in order of their rates, the busiest first,
    each to the stripe with the least load. A stripe above its limit is marked. Symbols that are not in the file are
    assigned by a hash rule.
    """
    from fairtape.market.stripes import BITS_PER_S_MAX, DAY, STRIPES_MAX, VERSION_MAX, BadPlan, Endpoint, plan_by_rate

    check_within("--stripes", stripes, 1, STRIPES_MAX - 1)
    check_within("--cap", cap, 1, BITS_PER_S_MAX)
    check_within("--headroom", headroom, 0.01, 1e6)
    check_within("--version", version, 1, VERSION_MAX)
    rates, venues = _rates(file, headroom)
    try:
        planned = plan_by_rate(
            rates,
            stripes,
            cap,
            version=version,
            midnight_at=time.time_ns() // DAY * DAY,
            feeds=feeds.split(","),
            venues=venues,
            base=Endpoint.parse(base, "--base"),
        )
    except BadPlan as bad:
        raise UserError(str(bad)) from None
    if out is not None:
        _write(out, planned)
    click.echo(_loads_as_json(planned.loads) if as_json else "\n".join(_table(planned.loads)))


def _rates(file: Path, headroom: float) -> tuple[dict[str, int], list[str]]:
    """Bits/s of each symbol, and the venues whose names fit a stock directory."""
    import numpy as np

    from fairtape.formats.itch.ticker_messages import MPID_MAX
    from fairtape.storage.trade_files import read_trades

    counts: Counter[bytes] = Counter()
    venues: set[bytes] = set()
    first_at, last_at = 1 << 62, 0
    for trades in read_trades(file):
        names, seen = np.unique(trades["symbol"], return_counts=True)
        counts.update(dict(zip(names.tolist(), seen.tolist(), strict=True)))
        venues |= set(np.unique(trades["venue"]).tolist())
        first_at, last_at = min(first_at, int(trades["traded_at"].min())), max(last_at, int(trades["traded_at"].max()))
    lasted = max(last_at - first_at, SECOND) / SECOND
    rates = {name.decode(): round(count * TRADE_BITS * headroom / lasted) for name, count in counts.items()}
    return rates, sorted(name.decode() for name in venues if 0 < len(name) <= MPID_MAX)


def _write(path: Path, planned: Planned) -> None:
    from fairtape.market.stripe_files import to_toml

    try:
        path.write_text(to_toml(planned.plan), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out is {str(path)!r}, which cannot be written ({error.strerror}); name another") from None


def _table(loads: Sequence[Load]) -> list[str]:
    lines = ["stripe  symbols       bits/s          cap   load"]
    for load in loads:
        mark = "  above its cap" if load.over else ""
        lines.append(
            f"{load.stripe:>6}  {load.symbols:>7,}  {load.bits_per_s:>11,}  {load.bits_per_s_max:>11,}"
            f"  {load.share:>5.0%}{mark}"
        )
    return lines


def _loads_as_json(loads: Sequence[Load]) -> str:
    return json.dumps({"stripes": [asdict(load) | {"share": load.share, "over": load.over} for load in loads]})


WIDTHS = (5, 7, 14)


@click.group()
def plan() -> None:
    """Plan loops and stripes before a deployment is built."""


plan.add_command(stripes)


@plan.command()
@click.argument("sites", type=int, metavar="SITES")
@click.option("--levels", type=int, help="Levels of loops.  [default: the fewest that keep loops within --loop-max]")
@click.option("--loop-max", default=LOOP_MAX, show_default=True, help="Limit of the sites in a loop.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def loops(*, sites: int, levels: int | None, loop_max: int, as_json: bool) -> None:
    """Propose a balanced hierarchy of loops for SITES sites.

    Every site is in one loop of the lowest level. The first site of a loop is its junction: it is also a member of the
    loop above, and counts in both. Sites are numbered from 1 and keep their order, so give neighbours consecutive
    numbers.
    """
    from fairtape.ring.membership.hierarchy import BadHierarchy
    from fairtape.ring.membership.hierarchy import plan as planned

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
    """The sites of a loop, numbered from 1; consecutive ones as a range."""
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
