"""`fairtape pipeline reconcile`: the proof, on Spark, that journals hold one sequence.

Exit codes are those of `fairtape journal verify`: 1 means that a journal is damaged or that journals differ; 3 means
that they agree in what they share, and that one of them holds less than another. Where there is nothing to prove, that
is a mistake of whoever asked (2).
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fairtape.cli.pipeline_spark import spark_at, with_master
from fairtape.cli.pipeline_tables import journals_in
from fairtape.cli.progress import steps
from fairtape.cli.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairtape.pipeline.proof.reconcile import JournalDifference, JournalProblem, Reconciliation

EXIT_DIFFERENT: Final = 1
EXIT_SHORTER: Final = 3


@click.command()
@click.argument("places", type=click.Path(path_type=Path), nargs=-1, required=True)
@with_master
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def reconcile(ctx: click.Context, *, places: tuple[Path, ...], master: str, as_json: bool) -> None:
    """Prove that the journals in PLACES hold one sequence.

    Of every journal: each link of its two hash chains, that of the order and that of its release marks, every number
    exactly once, nothing released before its commit instant. Of all journals of a stripe: the same content under the
    same numbers. The first difference, and the first damage of each journal, are named with site, token and byte.

    Exit code 0: one sequence, from the same beginning to the same end. 1: damaged, or different. 2: there is nothing to
    prove. 3: one sequence as far as they go, but one journal begins later or ends earlier than another.
    """
    journals = list(journals_in(places))
    with steps(quiet=as_json) as step:
        step("starting Spark")
        with spark_at(master) as spark:
            from fairtape.pipeline.proof.reconcile import reconcile as proved

            step(f"reading {counted(len(journals), 'journal')}")
            found = proved(spark, journals)
    click.echo(json.dumps(asdict(found)) if as_json else "\n".join(_lines(found)))
    ctx.exit(EXIT_DIFFERENT if not found.sound else 0 if found.level else EXIT_SHORTER)


def _lines(found: "Reconciliation") -> "Iterator[str]":
    for extent in found.extents:
        yield (
            f"stripe {extent.stripe} of site {extent.site}: sequence {extent.first_sequence:,} to "
            f"{extent.last_sequence:,} in {extent.entries:,} entries"
        )
    for directory in found.empty:
        yield f"{directory}: nothing yet"
    for problem in found.problems:
        yield (
            f"DAMAGED: {_whose(problem)}, sequence {problem.sequence:,}, "
            f"{problem.path} byte {problem.offset:,}: {problem.reason}"
        )
    for difference in found.differences:
        yield from _difference_lines(difference)
    if found.sound:
        yield "one sequence" if found.level else "one sequence as far as they go; one journal is SHORTER than another"


def _whose(problem: "JournalProblem") -> str:
    if problem.stripe is None:
        return "a journal that does not say whose it is"
    token = "" if problem.after_token is None else f", after token {problem.after_token:,}"
    if problem.token is not None:
        token = f", token {problem.token:,}"
    return f"stripe {problem.stripe} of site {problem.site}{token}"


def _difference_lines(difference: "JournalDifference") -> "Iterator[str]":
    sites = ", ".join(map(str, difference.sites))
    yield (
        f"DIFFERENT: stripe {difference.stripe}, token {difference.token:,}, sequence {difference.sequence:,} at site "
        f"{sites}: {difference.reason}"
    )
    for site, path, byte in difference.places:
        yield f"  site {site}: {path} byte {byte:,}"
