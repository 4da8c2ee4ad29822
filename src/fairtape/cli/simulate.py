"""`fairtape failover`, `fairtape scale` and `fairtape audit`: measurements in simulated worlds.

Each command runs worlds with a progress bar on standard error and prints a table or one JSON object. The exit code is 1
if a promise was not kept.
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fairtape.cli.terminal import EXIT_BROKEN, check_within, progress_bar, with_progress
from fairtape.core import svg
from fairtape.core.errors import UserError
from fairtape.core.percentiles import Rank, percentile

if TYPE_CHECKING:
    from rich.table import Table

    from fairtape.core.cities import City
    from fairtape.simulation.cluster_run import RunOutcome
    from fairtape.simulation.failover_run import PromisedTime
    from fairtape.simulation.fair_entry import EntryPath
    from fairtape.simulation.scale import Measured, Size

SEED_MAX: Final = 10**18
SEEDS_MAX: Final = 10**9
JOBS_MAX: Final = 256


def _table(
    headings: Sequence[str],
    rows: Iterable[Iterable[str]],
    *,
    left: int = 0,
    gap: int = 1,
    pad_edge: bool = True,
    wrap: bool = False,
) -> "Table":
    """A table without lines; the first `left` columns are left-aligned."""
    from rich.table import Table

    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=pad_edge, header_style="bold")
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="left" if position < left else "right", no_wrap=not wrap)
    for row in rows:
        table.add_row(*row)
    return table


# fairtape failover

BUCKETS: Final = 10  # of the promised time
HISTOGRAM_WIDTH: Final = 40
FAILOVER_HEADINGS: Final = ("time to", "least", "median", "99 %", "longest", "of what was promised", "kept in")
EXPLANATIONS: Final = {
    "detect": "from the crash until a survivor declares it; promised: Δ_R after the missing token",
    "install": "from then until every survivor is in a new formation; promised: 2 T_R and one write to the store\n"
    "         after the report has reached the reformation server and the lease of the crashed site has ended",
}


@dataclass(frozen=True, slots=True)
class FailoverFindings:
    """The outcomes of all worlds."""

    outcomes: Sequence["RunOutcome"]
    seconds: float

    @property
    def promised_times(self) -> list["PromisedTime"]:
        from fairtape.simulation.failover_run import PROMISES, PromisedTime

        found = (PromisedTime.of(name, self.outcomes) for name in PROMISES)
        return [promised for promised in found if promised is not None]

    @property
    def failures(self) -> list["RunOutcome"]:
        """Worlds in which a promise, or any other guarantee, was broken."""
        return [outcome for outcome in self.outcomes if outcome.failed]


@click.command()
@click.option("--seeds", default=1_000, show_default=True, help="How many worlds to run.")
@click.option("--jobs", type=int, help="Number of worlds run in parallel.  [default: one per core]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def failover(ctx: click.Context, *, seeds: int, jobs: int | None, as_json: bool) -> None:
    """Crash members and measure how soon the others continue.

    Each world is drawn from a seed: its sites, timing and links. Links lose nothing and the load is steady; then the
    token site crashes, and sometimes the next site with it. The promised times follow from the timing of each world, so
    each world is compared with its own promise. The crashed sites restart at the end; no message may be lost, and there
    is one order.

    A world that breaks a promise is named with the command that repeats it exactly. The exit code is then 1.
    """
    from fairtape.simulation.campaign import campaign, cores
    from fairtape.simulation.failover_run import run_failover

    check_within("--seeds", seeds, 1, SEEDS_MAX)
    check_within("--jobs", jobs, 1, JOBS_MAX)
    began_at = time.perf_counter()
    outcomes = campaign(range(1, seeds + 1), run_failover, jobs=min(jobs or cores(), seeds))
    gathered = sorted(with_progress(outcomes, "worlds", seeds, quiet=as_json), key=lambda outcome: outcome.seed)
    findings = FailoverFindings(gathered, time.perf_counter() - began_at)
    if as_json:
        click.echo(json.dumps(_failover_fields(findings)))
    else:
        _show_failover(findings)
    ctx.exit(EXIT_BROKEN if findings.failures else 0)


def _show_failover(findings: FailoverFindings) -> None:
    from rich.console import Console

    rows = map(_failover_row, findings.promised_times)
    Console(highlight=False).print(_table(FAILOVER_HEADINGS, rows, left=1))
    for promised in findings.promised_times:
        click.echo(f"\n{promised.name}: {EXPLANATIONS[promised.name]}\n" + "\n".join(_histogram(promised)))
    for outcome in findings.failures:
        click.echo(f"\nseed {outcome.seed} broke {outcome.text}\n  repeat with: {_replay_failover(outcome)}")
    failed = len(findings.failures)
    verdict = f"{failed} broke a guarantee" if failed else "every promise was kept, nothing was lost"
    click.echo(f"\n{len(findings.outcomes):,} worlds in {findings.seconds:.1f} s: {verdict}.")


def _failover_row(promised: "PromisedTime") -> Iterator[str]:
    yield promised.name
    for duration in (promised.least, promised.median, promised.p99, promised.longest):
        yield f"{duration / 1e6:,.1f} ms"
    yield f"{percentile(promised.shares, 0.5, 0.0, rank=Rank.LOWER):.0%}, at most {promised.shares[-1]:.1%}"
    yield f"{promised.within:.1%}"


def _histogram(promised: "PromisedTime") -> Iterator[str]:
    """The count of worlds by the fraction of the promised time that was needed."""
    counts = [0] * (BUCKETS + 1)
    for share in promised.shares:
        counts[BUCKETS if share > 1.0 else min(int(share * BUCKETS), BUCKETS - 1)] += 1
    for bucket, count in enumerate(counts):
        least, most = bucket * 100 // BUCKETS, (bucket + 1) * 100 // BUCKETS
        within = f"{least:>3} to {most:>3} %" if bucket < BUCKETS else "     too late"
        bar = "█" * -(-count * HISTOGRAM_WIDTH // max(counts))
        yield f"  {within} {count:>6,} {bar}".rstrip()


def _replay_failover(outcome: "RunOutcome") -> str:
    from fairtape.simulation.campaign import replay_command

    return replay_command(outcome, "--failover")


def _failover_fields(findings: FailoverFindings) -> dict[str, object]:
    promises = {
        promised.name: {
            "count": len(promised.shares),
            "min_s": promised.least / 1e9,
            "median_s": promised.median / 1e9,
            "p99_s": promised.p99 / 1e9,
            "max_s": promised.longest / 1e9,
            "share_of_promise_max": promised.shares[-1],
            "within": promised.within,
        }
        for promised in findings.promised_times
    }
    failures = [
        {"seed": each.seed, "guarantee": each.guarantee, "text": each.text, "command": _replay_failover(each)}
        for each in findings.failures
    ]
    seeds, seconds = len(findings.outcomes), round(findings.seconds, 3)
    return {"seeds": seeds, "seconds": seconds, **promises, "failures": failures}


# fairtape scale

SITES: Final = (100, 1_000, 10_000)
SITES_MIN: Final = 9  # two levels of loops of three
SITES_MAX: Final = 20_000  # the memory of an ordinary machine
TOKENS_MAX: Final = 100_000
TREE_LOSS_MAX: Final = 0.02
SCALE_HEADINGS: Final = (
    "sites", "loops", "k_p", "tokens", "primary", "others", "NACKs", "at once", "lost", "repairs", "lag ms",
)  # fmt: skip
SCALE_NOTE: Final = """
loops     how many, and how many sites the largest has
k_p       sets of members that request one after the other; 1: all request at once
primary, others
          control messages per token of a loop
NACKs, at once
          at the site that got the most: per token, and in one token period
lost      copies per token that the tree lost: the NACKs per token at a single site that repaired all others
repairs   datagrams sent again
lag       from a token's scheduled time until the last site held everything up to it

Formations are installed at the beginning; there are no reformation servers in these worlds."""


@click.command()
@click.option("--sites", type=int, multiple=True, help="How many sites; may be repeated.  [default: 100 1000 10000]")
@click.option("--levels", default=2, show_default=True, help="Levels of loops.")
@click.option("--tokens", default=200, show_default=True, help="Tokens that pass in the primary loop.")
@click.option(
    "--loss",
    default=0.002,
    show_default=True,
    help="The share of datagrams that each branch of the tree loses, for all sites behind it.",
)
@click.option("--seed", default=1, show_default=True, help="Draws the tree and its losses.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def scale(
    ctx: click.Context, *, sites: tuple[int, ...], levels: int, tokens: int, loss: float, seed: int, as_json: bool
) -> None:
    """Grow loops to 10,000 sites and count the work of each site.

    Every site is the machine that production runs, in simulated time. A multicast tree loses datagrams for all sites
    behind a branch. Each number of sites is measured twice: all members of a loop request what they miss at once, or
    k_p sets of at most ten members request one after the other, and the repair goes to all.

    The promises: one control message per token in each loop, for any number of sites; no site receives requests from
    more than one set of each of its loops at once; every site releases everything. If one is broken, the exit code is
    1.

    10,000 sites take some minutes for each row, and some gigabytes of memory.
    """
    from fairtape.simulation.scale import SETTLING_TOKENS, Size

    check_within("--tokens", tokens, SETTLING_TOKENS + 1, TOKENS_MAX)
    check_within("--loss", loss, 0.0, TREE_LOSS_MAX, hint=", such as 0.002 for 0.2 %")
    for number in sites:
        check_within("--sites", number, SITES_MIN, SITES_MAX)
        _check_hierarchy(number, levels)
    sizes = sizes_of(sites or SITES, Size(sites=0, levels=levels, tokens=tokens, tree_loss=loss, seed=seed))
    if not show_scale(sizes, as_json=as_json):
        ctx.exit(EXIT_BROKEN)


def sizes_of(sites: Iterable[int], like: "Size") -> list["Size"]:
    """Two rows for each number of sites: all members request at once, and sets take turns."""
    return [replace(like, sites=number, taking_turns=turns) for number in sites for turns in (False, True)]


def show_scale(sizes: Sequence["Size"], *, as_json: bool) -> bool:
    """Measure and print all rows; whether all promises were kept."""
    from rich.console import Console

    rows = list(_measure_all(sizes, quiet=as_json))
    broken = [sentence for row in rows for sentence in row.broken()]
    if as_json:
        click.echo(json.dumps({"rows": [_scale_fields(row) for row in rows], "broken": broken}))
        return not broken
    Console(highlight=False).print(_table(SCALE_HEADINGS, map(_scale_row, rows)))
    click.echo(SCALE_NOTE)
    click.echo("\n" + "\n".join(f"broken: {sentence}" for sentence in broken) if broken else "Every promise was kept.")
    return not broken


def _check_hierarchy(sites: int, levels: int) -> None:
    from fairtape.ring.membership.formation import MEMBERS_MAX
    from fairtape.ring.membership.hierarchy import BadHierarchy, plan

    try:
        plan(sites, levels, loop_max=MEMBERS_MAX)
    except BadHierarchy as refusal:
        raise UserError(str(refusal)) from None
    if levels < 2:
        raise UserError(f"--levels is {levels}; give 2 or more, because one loop alone does not grow")


def _measure_all(sizes: Sequence["Size"], *, quiet: bool) -> Iterator["Measured"]:
    from rich.progress import TaskProgressColumn

    from fairtape.simulation.scale import measure

    with progress_bar(TaskProgressColumn(), quiet=quiet) as bar:
        for size in sizes:
            turns = "taking turns" if size.taking_turns else "all at once"
            task = bar.add_task(f"{size.sites:,} sites, requesting {turns}", total=1.0)
            yield measure(size, lambda share, task=task: bar.update(task, completed=share))  # type: ignore[misc]


def _scale_row(row: "Measured") -> Iterator[str]:
    yield f"{row.size.sites:,}"
    yield f"{row.loops} of {row.loop_sites}"
    yield str(row.request_sets)
    yield str(row.tokens)
    yield f"{row.primary_control:.3f}"
    yield f"{row.secondary_control:.3f}"
    yield f"{row.asked_per_token:.2f}"
    yield f"{row.requests_peak:,}"
    yield f"{row.missed_per_token:,.1f}"
    yield f"{row.repairs:,}"
    yield f"{row.lag_max / 1e6:,.0f}"


def _scale_fields(row: "Measured") -> dict[str, object]:
    fields = asdict(row)
    lag = fields.pop("lag_max")
    derived = {
        "lag_max_s": lag / 1e9,
        "requests_per_token_max": row.asked_per_token,
        "requests_peak_max": row.requests_peak_max,
        "losses_per_token": row.missed_per_token,
    }
    return fields | derived


# fairtape audit

RATIO_MAX: Final = 1.1  # promised for the rotating portal
RACES_MIN: Final = 1_000  # fewer cannot show a ratio of 1.1
BAR_WIDTH: Final = 24  # pixels of the plot
PLOT_HEIGHT: Final = 160
COLOURS: Final = ("#1b6ca8", "#8d99ae", "#e09f3e", "#9e2a2b")
PIPE_WIDTH: Final = 160  # characters, if standard output is no terminal


@click.group()
def audit() -> None:
    """Measure promises: who wins simultaneous bids, and false reformations."""


@audit.command()
@click.option("--regions", "count", default=6, show_default=True, help="How many cities bid.")
@click.option(
    "--races", default=12_000, show_default=True, help="Number of races; in each, all cities bid at the same instant."
)
@click.option("--seed", default=1, show_default=True, help="Draws link delays, clocks and the instants of the races.")
@click.option("--jobs", type=int, help="Number of worlds run in parallel.  [default: one per core]")
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw the shares into this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def entry(
    ctx: click.Context, *, count: int, races: int, seed: int, jobs: int | None, svg: Path | None, as_json: bool
) -> None:
    """Count who wins simultaneous bids.

    All regions bid at the same instant, again and again.

    The simulated world has the delays between real cities, 1 % loss, and clocks with an error of up to a millisecond.
    Each race is run three ways: through the ring, where each site in turn is the portal that orders the bids; by direct
    sending to one venue; and by hold-and-release with timestamps of gateways. Hold-and-release is shown twice: with
    honest gateways, and with one gateway whose timestamps are too early.

    A second table is about unequal load. Three sources that send all the time, and three quiet ones, equally far from
    all sites, race for the first place through the ring.

    The exit code is 1 if the rotating portal makes one region, or one of these sources, first more than 1.1 times as
    often as another.
    """
    from rich.progress import TaskProgressColumn

    from fairtape.simulation.campaign import cores
    from fairtape.simulation.fair_entry import (
        RACES_MAX,
        REGIONS_MAX,
        REGIONS_MIN,
        races_per_world,
        regions,
        run_worlds,
        sum_paths,
    )
    from fairtape.simulation.unequal_load import groups, run_unequal_worlds

    check_within("--regions", count, REGIONS_MIN, REGIONS_MAX)
    check_within("--races", races, RACES_MIN, RACES_MAX)
    check_within("--seed", seed, 0, SEED_MAX)
    check_within("--jobs", jobs, 1, JOBS_MAX)
    worlds = races_per_world(races)
    results = run_worlds(seed, worlds, count=count, jobs=jobs or cores())
    paths = sum_paths(with_progress(results, "races", len(worlds), completed=TaskProgressColumn(), quiet=as_json))
    loads = run_unequal_worlds(seed, worlds, jobs=jobs or cores())
    unequal = with_progress(loads, "unequal load", len(worlds), completed=TaskProgressColumn(), quiet=as_json)
    sources = groups(*sum_paths(unequal))
    cities = regions(count)
    if svg is not None:
        try:
            svg.write_text(_draw_entry(paths, cities))
        except OSError as error:
            raise UserError(f"--svg is {str(svg)!r}, which cannot be written: {error.strerror}") from None
    fair = max(path.ratio for path in (paths[0], *sources)) <= RATIO_MAX
    if as_json:
        click.echo(json.dumps(_entry_fields(paths, cities, seed, fair=fair) | _load_fields(sources)))
    else:
        _show_entry(paths, cities)
        _show_load(sources)
    ctx.exit(0 if fair else EXIT_BROKEN)


@audit.command()
@click.option("--loss", type=click.FloatRange(0, 0.2), default=0.01, show_default=True, help="Loss of every link.")
@click.option("--hours", type=click.FloatRange(0.1, 1_000), default=1.0, show_default=True, help="Simulated hours.")
@click.option("--seed", default=1, show_default=True, help="Draws jitter and losses.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def reformations(*, loss: float, hours: float, seed: int, as_json: bool) -> None:
    """Count the reformations of a ring in which nothing fails.

    Nine sites are in nine cities, with the delays and losses between them, and sources publish. No site fails, so each
    reformation is false: losses were mistaken for a failure.
    """
    from rich.progress import TaskProgressColumn

    from fairtape.simulation.nine_cities import MINUTES_PER_HOUR, false_reformations

    check_within("--seed", seed, 0, SEED_MAX)
    minutes = round(hours * MINUTES_PER_HOUR)
    quiet_hours = false_reformations(loss=loss, minutes=minutes, seed=seed)
    *_, result = with_progress(quiet_hours, "minutes", minutes, completed=TaskProgressColumn(), quiet=as_json)
    if as_json:
        fields = {
            "hours": result.hours,
            "loss": loss,
            "seed": seed,
            "false_reformations": len(result.causes),
            "per_hour": result.per_hour,
            "causes": list(result.causes),
        }
        click.echo(json.dumps(fields))
        return
    click.echo(f"{len(result.causes)} false reformations in {result.hours:g} hours at {loss:.1%} loss")
    for cause in result.causes:
        click.echo(f"  {cause}")


def _show_entry(paths: tuple["EntryPath", ...], cities: tuple["City", ...]) -> None:
    from rich.console import Console

    rows = [
        (city.name, *(f"{100 * path.firsts[place] / path.races:.2f}" for path in paths))
        for place, city in enumerate(cities)
    ]
    rows.append(("max/min", *(_ratio_text(path.ratio) for path in paths)))
    rows.append(("chi-square", *(f"{path.chi_square:,.1f}" for path in paths)))
    rows.append(("p", *(f"{path.p_value:.3g}" for path in paths)))
    rows.append(("median delay, ms", *(f"{path.delay / 1e6:.1f}" for path in paths)))
    headings = ("first, in % of the races", *(path.name for path in paths))
    table = _table(headings, rows, left=1, gap=2, pad_edge=False, wrap=True)
    Console(width=None if Console().is_terminal else PIPE_WIDTH).print(table)
    verdict = "as promised" if paths[0].ratio <= RATIO_MAX else "more than promised"
    click.echo(
        f"\n{paths[0].races:,} races of {len(cities)} regions; the venue is in {cities[0].name}, and the early"
        f" timestamps come from {cities[-1].name}.\nWith the rotating portal the region that is first most often is so"
        f" {_ratio_text(paths[0].ratio)} times as often as the one that is first least often: {verdict}"
        f" ({RATIO_MAX})."
    )


def _show_load(sources: tuple["EntryPath", ...]) -> None:
    from rich.console import Console

    races = sources[-1].races
    rows = [
        (group.name, ", ".join(f"{100 * first / races:.2f}" for first in group.firsts), _ratio_text(group.ratio))
        for group in sources
    ]
    click.echo()
    headings = ("unequal load", "first, in % of the races", "max/min")
    Console(width=PIPE_WIDTH).print(_table(headings, rows, left=2, gap=2, pad_edge=False))
    verdict = "as promised" if max(group.ratio for group in sources) <= RATIO_MAX else "more than promised"
    click.echo(f"\n{races:,} races of sources of which some send all the time: {verdict} ({RATIO_MAX}).")


def _ratio_text(ratio: float) -> str:
    return "∞" if isinf(ratio) else f"{ratio:,.3f}"


def _entry_fields(
    paths: tuple["EntryPath", ...], cities: tuple["City", ...], seed: int, *, fair: bool
) -> dict[str, object]:
    from fairtape.simulation.fair_entry import CLOCK_BOUND, LOSS

    return {
        "races": paths[0].races,
        "regions": [city.name for city in cities],
        "seed": seed,
        "loss": LOSS,
        "clock_bound_ns": CLOCK_BOUND,
        "ratio_max": RATIO_MAX,
        "fair": fair,
        "ways": [
            {
                "name": path.name,
                "firsts": list(path.firsts),
                "ratio": None if isinf(path.ratio) else path.ratio,
                "chi_square": path.chi_square,
                "p_value": path.p_value,
                "median_delay_ns": path.delay,
            }
            for path in paths
        ],
    }


def _load_fields(sources: tuple["EntryPath", ...]) -> dict[str, object]:
    fields = {
        group.name.removesuffix(" sources"): {
            "firsts": list(group.firsts),
            "ratio": None if isinf(group.ratio) else group.ratio,
            "p_value": group.p_value,
        }
        for group in sources
    }
    return {"unequal_load": fields}


def _draw_entry(paths: tuple["EntryPath", ...], cities: tuple["City", ...]) -> str:
    """An SVG bar chart with a bar for each region and path; the dashed line is an equal share."""
    group = BAR_WIDTH * (len(paths) + 1)
    width, height = group * len(cities) + BAR_WIDTH, PLOT_HEIGHT + 40 + 18 * len(paths)
    equal = PLOT_HEIGHT * (1 - 1 / len(cities))
    lines = [""]
    for place, city in enumerate(cities):
        left = BAR_WIDTH + place * group
        for number, path in enumerate(paths):
            tall = PLOT_HEIGHT * path.firsts[place] / path.races
            x, fill = left + number * BAR_WIDTH, COLOURS[number]
            lines.append(svg.element("rect", x=x, y=PLOT_HEIGHT - tall, width=BAR_WIDTH - 4, height=tall, fill=fill))
        lines.append(svg.text(left, PLOT_HEIGHT + 16, city.name, font_size=12))
    lines.append(svg.element("path", d=f"M0 {equal:.1f}H{width}", stroke="#000", stroke_dasharray=4))
    for number, path in enumerate(paths):
        label = f"{path.name}: max/min {_ratio_text(path.ratio)}"
        lines.append(svg.text(BAR_WIDTH, PLOT_HEIGHT + 40 + 18 * number, label, font_size=12, fill=COLOURS[number]))
    return svg.document(width, height, "\n".join([*lines, ""]), font_family="sans-serif") + "\n"
