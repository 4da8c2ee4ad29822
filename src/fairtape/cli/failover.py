"""`fairtape failover`: members die in many simulated worlds. How soon is it noticed, and mended?"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fairtape.cli.terminal import EXIT_BROKEN, check_within
from fairtape.core.percentiles import Rank, percentile
from fairtape.simulation.campaign import campaign, cores, replay_command
from fairtape.simulation.failover import PROMISES, PromisedTime, run_failover
from fairtape.simulation.ring_run import RunOutcome

SEEDS_MAX: Final = 10**9
JOBS_MAX: Final = 256
BUCKETS: Final = 10  # of the time that was promised
BAR_WIDTH: Final = 40
HEADINGS: Final = ("time to", "least", "median", "99 %", "longest", "of what was promised", "kept in")
EXPLANATIONS: Final = {
    "detect": "from the death until a survivor declares it; promised: Δ_R after the token that does not come",
    "install": "from there until every survivor is in a new formation; promised: 2 T_R and one write to the store\n"
    "         after the word has come to the reformation server, and the lease of the dead is over",
}


@dataclass(frozen=True, slots=True)
class FailoverFindings:
    """What became of all these worlds."""

    outcomes: Sequence[RunOutcome]
    seconds: float

    @property
    def kept(self) -> list[PromisedTime]:
        """The promises, as far as they were put to the test."""
        return [kept for name in PROMISES if (kept := PromisedTime.of(name, self.outcomes)) is not None]

    @property
    def failures(self) -> list[RunOutcome]:
        """Worlds in which a promise, or any other guarantee, was broken."""
        return [outcome for outcome in self.outcomes if outcome.failed]


@click.command()
@click.option("--seeds", default=1_000, show_default=True, help="How many worlds to run.")
@click.option("--jobs", type=int, help="Worlds at once.  [default: one per core]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def failover(ctx: click.Context, *, seeds: int, jobs: int | None, as_json: bool) -> None:
    """Let members die and time how the others go on.

    Each world is drawn from a seed: its sites, timing and links. Its weather is calm and its load steady; then the
    token site dies, and sometimes the next one with it. What is promised follows from the timing of each world, so each
    world is held against its own promise. The dead come back at the end, nothing may be lost, and there is one order.

    A world that breaks a promise is named with the command that repeats it exactly. The exit code is then 1.
    """
    check_within("--seeds", seeds, 1, SEEDS_MAX)
    check_within("--jobs", jobs, 1, JOBS_MAX)
    began_at = time.perf_counter()
    outcomes = campaign(range(1, seeds + 1), run_failover, jobs=min(jobs or cores(), seeds))
    gathered = sorted(_with_bar(outcomes, seeds, quiet=as_json), key=lambda outcome: outcome.seed)
    findings = FailoverFindings(gathered, time.perf_counter() - began_at)
    if as_json:
        click.echo(json.dumps(_fields(findings)))
    else:
        _show(findings)
    ctx.exit(EXIT_BROKEN if findings.failures else 0)


def _with_bar(outcomes: Iterator[RunOutcome], total: int, *, quiet: bool) -> Iterator[RunOutcome]:
    columns = (TextColumn("worlds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("worlds", total=total)
        for outcome in outcomes:
            yield outcome
            bar.advance(task)


def _show(findings: FailoverFindings) -> None:
    console = Console(highlight=False)
    console.print(_table(findings.kept))
    for kept in findings.kept:
        click.echo(f"\n{kept.name}: {EXPLANATIONS[kept.name]}\n" + "\n".join(_bars(kept)))
    for outcome in findings.failures:
        click.echo(f"\nseed {outcome.seed} broke {outcome.text}\n  again: {_again(outcome)}")
    failed = len(findings.failures)
    verdict = f"{failed} broke a guarantee" if failed else "every promise was kept, nothing was lost"
    click.echo(f"\n{len(findings.outcomes):,} worlds in {findings.seconds:.1f} s: {verdict}.")


def _table(promises: Sequence[PromisedTime]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading != HEADINGS[0] else "left", no_wrap=True)
    for kept in promises:
        instants = (kept.least, kept.median, kept.p99, kept.longest)
        middle, most = percentile(kept.shares, 0.5, 0.0, rank=Rank.LOWER), kept.shares[-1]
        table.add_row(
            kept.name,
            *(f"{instant / 1e6:,.1f} ms" for instant in instants),
            f"{middle:.0%}, at most {most:.1%}",
            f"{kept.within:.1%}",
        )
    return table


def _bars(kept: PromisedTime) -> Iterator[str]:
    """How much of the promised time it took, and in how many worlds."""
    counts = [0] * (BUCKETS + 1)
    for share in kept.shares:
        counts[BUCKETS if share > 1.0 else min(int(share * BUCKETS), BUCKETS - 1)] += 1
    for bucket, count in enumerate(counts):
        least, most = bucket * 100 // BUCKETS, (bucket + 1) * 100 // BUCKETS
        within = f"{least:>3} to {most:>3} %" if bucket < BUCKETS else "     too late"
        bar = "█" * -(-count * BAR_WIDTH // max(counts))
        yield f"  {within} {count:>6,} {bar}".rstrip()


def _again(outcome: RunOutcome) -> str:
    return replay_command(outcome, "--failover")


def _fields(findings: FailoverFindings) -> dict[str, object]:
    promises = {
        kept.name: {
            "count": len(kept.shares),
            "min_s": kept.least / 1e9,
            "median_s": kept.median / 1e9,
            "p99_s": kept.p99 / 1e9,
            "max_s": kept.longest / 1e9,
            "share_of_promise_max": kept.shares[-1],
            "within": kept.within,
        }
        for kept in findings.kept
    }
    failures = [
        {"seed": each.seed, "guarantee": each.guarantee, "text": each.text, "command": _again(each)}
        for each in findings.failures
    ]
    seeds, seconds = len(findings.outcomes), round(findings.seconds, 3)
    return {"seeds": seeds, "seconds": seconds, **promises, "failures": failures}
