"""`fairtape scale`: what each site has to do when there are a hundred, a thousand, ten thousand."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from fairtape.cli.terminal import EXIT_BROKEN, check_within
from fairtape.core.errors import UserError
from fairtape.ring.membership.formation import MEMBERS_MAX
from fairtape.ring.membership.hierarchy import BadHierarchy, plan
from fairtape.simulation.scale import SETTLING_TOKENS, Measured, Size, measure

SITES: Final = (100, 1_000, 10_000)
SITES_MIN: Final = 9  # two levels of loops of three
SITES_MAX: Final = 20_000  # what fits into the memory of an ordinary machine
TOKENS_MAX: Final = 100_000
LOSS_MAX: Final = 0.02
USUAL: Final = Size(sites=0)  # what is not asked for otherwise
HEADINGS: Final = (
    "sites", "loops", "k_p", "tokens", "primary", "others", "NACKs", "at once", "lost", "repairs", "lag ms",
)  # fmt: skip
NOTE: Final = """
loops     how many, and how many sites the largest has
k_p       sets of members that take turns in asking; 1: all ask at once
primary, others
          control messages per token of a loop
NACKs, at once
          at the site that was asked most: per token, and in one token period
lost      copies per token that the tree lost: so often would one site be asked that repairs all others
repairs   datagrams sent again
lag       from a token's time until the last site held everything up to it

Formations are installed at the beginning; there are no reformation servers in these worlds."""


@click.command()
@click.option("--sites", type=int, multiple=True, help="How many sites; may be repeated.  [default: 100 1000 10000]")
@click.option("--levels", default=USUAL.levels, show_default=True, help="Levels of loops.")
@click.option("--tokens", default=USUAL.tokens, show_default=True, help="Tokens that pass in the primary loop.")
@click.option(
    "--loss", default=USUAL.tree_loss, show_default=True, help="What each branch of the tree loses, for all behind it."
)
@click.option("--seed", default=USUAL.seed, show_default=True, help="Decides the tree and what it loses.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def scale(
    ctx: click.Context, *, sites: tuple[int, ...], levels: int, tokens: int, loss: float, seed: int, as_json: bool
) -> None:
    """Let loops grow to 10,000 sites and count what each does.

    Every site is the machine that production runs, in simulated time. A multicast tree loses datagrams for everybody
    behind a branch. Each number of sites is measured twice: all members of a loop ask for what they miss at once, or
    sets of at most ten take turns, and the answer goes to all (k_p sets).

    Promised, and else the exit code is 1: one control message per token in each loop, however many sites there are; no
    site is asked by more than one set of each of its loops at once; every site releases everything.

    10,000 sites take some minutes for each row, and some gigabytes.
    """
    check_within("--tokens", tokens, SETTLING_TOKENS + 1, TOKENS_MAX)
    check_within("--loss", loss, 0.0, LOSS_MAX, hint=", such as 0.002 for 0.2 %")
    for number in sites:
        check_within("--sites", number, SITES_MIN, SITES_MAX)
        _refuse_unplanned(number, levels)
    sizes = sizes_of(sites or SITES, replace(USUAL, levels=levels, tokens=tokens, tree_loss=loss, seed=seed))
    if not show_scale(sizes, as_json=as_json):
        ctx.exit(EXIT_BROKEN)


def sizes_of(sites: Iterable[int], like: Size) -> list[Size]:
    """Two rows for each number of sites: everybody asks at once, and sets take turns."""
    return [replace(like, sites=number, taking_turns=turns) for number in sites for turns in (False, True)]


def show_scale(sizes: Sequence[Size] = (), *, as_json: bool) -> bool:
    """Measure and print, row by row; whether all promises were kept."""
    rows = list(_measured(sizes or sizes_of(SITES, USUAL), quiet=as_json))
    broken = [sentence for row in rows for sentence in row.broken()]
    if as_json:
        click.echo(json.dumps({"rows": [_fields(row) for row in rows], "broken": broken}))
        return not broken
    console = Console(highlight=False)
    console.print(_table(rows))
    click.echo(NOTE)
    click.echo("\n" + "\n".join(f"broken: {sentence}" for sentence in broken) if broken else "Every promise was kept.")
    return not broken


def _refuse_unplanned(sites: int, levels: int) -> None:
    try:
        plan(sites, levels, loop_max=MEMBERS_MAX)
    except BadHierarchy as refusal:
        raise UserError(str(refusal)) from None
    if levels < 2:
        raise UserError(f"--levels is {levels}; give 2 or more, for one loop alone does not grow")


def _measured(sizes: Sequence[Size], *, quiet: bool) -> Iterator[Measured]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        for size in sizes:
            turns = "taking turns" if size.taking_turns else "all at once"
            task = bar.add_task(f"{size.sites:,} sites, asking {turns}", total=1.0)
            yield measure(size, partial(_advance, bar, task))


def _advance(bar: Progress, task: TaskID, share: float) -> None:
    bar.update(task, completed=share)


def _table(rows: Sequence[Measured]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), collapse_padding=True, header_style="bold")
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Measured) -> Iterator[str]:
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


def _fields(row: Measured) -> dict[str, object]:
    fields = asdict(row)
    lag = fields.pop("lag_max")
    derived = {
        "lag_max_s": lag / 1e9,
        "requests_per_token_max": row.asked_per_token,
        "requests_peak_max": row.requests_peak_max,
        "losses_per_token": row.missed_per_token,
    }
    return fields | derived
