"""`fairtape check`: run many simulated worlds and look for one in which a guarantee breaks."""

import json
import time
from collections.abc import Iterator

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fairtape.runtime.complaints import Complaint
from fairtape.simulation.campaign import Tally, campaign, cores, replay_command
from fairtape.simulation.swarm import LOSS_MAX, draw
from fairtape.simulation.trial import Outcome

EXIT_BROKEN = 1


@click.command()
@click.option("--seeds", default=100, show_default=True, help="How many worlds to run.")
@click.option("--seed", type=int, help="Run this one world again, exactly as it was.")
@click.option("--loss", type=float, help="The share of datagrams that every link loses, instead of each seed's own.")
@click.option("--jobs", type=int, help="Worlds at once.  [default: one per core]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def check(
    ctx: click.Context, *, seeds: int, seed: int | None, loss: float | None, jobs: int | None, as_json: bool
) -> None:
    """Run simulated worlds and check every guarantee in each.

    Each world is drawn from a seed: its sites, timing, weather and faults.

    A world that breaks a guarantee is named with the command that repeats it exactly. The exit code is then 1.
    """
    _refuse(seeds=seeds, seed=seed, loss=loss, jobs=jobs)
    chosen = range(1, seeds + 1) if seed is None else range(seed, seed + 1)
    at_once = min(jobs or cores(), len(chosen))
    if seed is not None and not as_json:
        click.echo(f"seed {seed}: {draw(seed, loss=loss).describe()}")
    tally = Tally()
    began_at = time.perf_counter()
    outcomes = campaign(chosen, loss=loss, jobs=at_once)
    for outcome in outcomes if as_json else _with_bar(outcomes, len(chosen)):
        tally.add(outcome)
        if outcome.failed and not as_json:
            click.echo(f"seed {outcome.seed} broke {outcome.text}\n  again: {replay_command(outcome, loss)}")
    seconds = time.perf_counter() - began_at
    click.echo(_as_json(tally, seconds, loss, at_once) if as_json else _summary(tally, seconds))
    ctx.exit(EXIT_BROKEN if tally.failures else 0)


def _refuse(*, seeds: int, seed: int | None, loss: float | None, jobs: int | None) -> None:
    if seeds < 1:
        raise Complaint(f"--seeds is {seeds}; give at least 1")
    if seed is not None and seed < 0:
        raise Complaint(f"--seed is {seed}; give 0 or more")
    if jobs is not None and jobs < 1:
        raise Complaint(f"--jobs is {jobs}; give at least 1")
    if loss is not None and not 0.0 <= loss <= LOSS_MAX:
        raise Complaint(f"--loss is {loss:g}; give a share from 0 to {LOSS_MAX:g}, such as 0.05 for 5 %")


def _with_bar(outcomes: Iterator[Outcome], total: int) -> Iterator[Outcome]:
    columns = (TextColumn("worlds"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("worlds", total=total)
        for outcome in outcomes:
            yield outcome
            bar.advance(task)


def _summary(tally: Tally, seconds: float) -> str:
    verdict = f"{len(tally.failures)} broke a guarantee" if tally.failures else "every guarantee held"
    return (
        f"{tally.seeds} worlds in {seconds:.1f} s: {verdict}.\n"
        f"  {tally.lively} delivered everything everywhere, {tally.reforming} declared a failure; "
        f"{tally.messages:,} messages, {tally.deliveries:,} datagrams, {tally.deliveries / seconds:,.0f} per second"
    )


def _as_json(tally: Tally, seconds: float, loss: float | None, jobs: int) -> str:
    failures = [
        {
            "seed": outcome.seed,
            "guarantee": outcome.guarantee,
            "node": outcome.node,
            "text": outcome.text,
            "command": replay_command(outcome, loss),
        }
        for outcome in sorted(tally.failures, key=lambda outcome: outcome.seed)
    ]
    return json.dumps(
        {
            "seeds": tally.seeds,
            "failures": failures,
            "datagrams_per_s": round(tally.deliveries / seconds),
            "datagrams": tally.deliveries,
            "messages": tally.messages,
            "late_releases": tally.late,
            "delivered_everything": tally.lively,
            "declared_a_failure": tally.reforming,
            "seconds": round(seconds, 3),
            "jobs": jobs,
            "loss": loss,
        }
    )
