"""`fairtape pipeline run`, `compact`, `vacuum`, `prepare`, `reconcile` and `report`.

Spark is imported when a command needs it; a `UserError` names the package that is missing. Exit codes of `reconcile`
are those of `fairtape journal verify`: 1 where a journal is damaged or journals differ, 3 where they agree in what they
share and one of them holds less than another, 2 where there is nothing to prove.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fairtape.cli.terminal import asked_to_stop, check_within, counted, steps
from fairtape.core.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fairtape.pipeline.reconciliation import JournalDifference, JournalProblem, Reconciliation
    from fairtape.pipeline.tables.jobs import JobOutcome

HOURS_MAX: Final = 24 * 366
STOPPING: Final = "stopping: tables are completed; interrupt again to leave them as they are"
EXIT_DIFFERENT: Final = 1
EXIT_SHORTER: Final = 3
Folder: Final = click.Path(path_type=Path)

with_master = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help="Where Spark runs: local[N], spark://HOST:PORT, or sc://HOST:PORT of a Spark Connect server.",
)


@contextmanager
def spark_at(master: str, **options: Any) -> "Iterator[SparkSession]":
    """A session, stopped at the end unless it existed before. Errors of executors become user errors."""
    session = needed()
    found = session.SparkSession.getActiveSession()
    spark = session.spark_session(master, **options)
    try:
        with session.as_user_errors():
            yield spark
    finally:
        if found is None:
            spark.stop()


def needed() -> Any:
    """The module that starts Spark, or a `UserError` where a package is missing."""
    try:
        from fairtape.pipeline.spark import spark_session as session
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "fairtape":
            raise
        remedy = "pip install 'fairtape[pipeline]'"
        raise UserError(
            f"package {error.name} is missing, which the pipeline needs; install it with: {remedy}"
        ) from None
    return session


@click.command()
@click.argument("places", type=Folder, nargs=-1, required=True)
@click.option("--out", type=Folder, required=True, help="The folder of the tables; made if missing.")
@with_master
@click.option("--stream", is_flag=True, help="Continue as journals grow, until Ctrl-C.")
@click.option("--checkpoint", type=Folder, help="Folder for the offsets of a stream; it may be lost.  [default: none]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def run(
    *, places: tuple[Path, ...], out: Path, master: str, stream: bool, checkpoint: Path | None, as_json: bool
) -> None:
    """Make tables of the journals in PLACES, or bring them up to date.

    A place is the journal of a site, a folder of several, or the folder of a deployment. Tables are Delta tables, which
    DuckDB, Polars and other readers of Delta can read at any time. Every number is added exactly once, also after an
    interruption; to continue, run it again.
    """
    if checkpoint is not None and not stream:
        raise UserError("--checkpoint is given without --stream; a run that ends needs none")
    journals = list(journals_in(places))
    needed()
    from fairtape.pipeline.spark.delta import make_folder
    from fairtape.pipeline.tables.jobs import RAW, folder_of

    folder_of(out, RAW)  # refuses a bad folder before Spark starts
    make_folder(out)
    with steps(quiet=as_json) as step:
        step("starting Spark")
        with spark_at(master) as spark:
            from fairtape.pipeline.tables.jobs import run_batch, run_stream

            if stream:
                with asked_to_stop(lambda: step(STOPPING)) as ended:
                    outcome = run_stream(spark, journals, out, checkpoint=checkpoint, step=step, ended=ended)
            else:
                outcome = run_batch(spark, journals, out, step=step)
    click.echo(_as_json(outcome) if as_json else _text(outcome, out))


def journals_in(places: Sequence[Path]) -> Iterator[Path]:
    """The journals in these places: a journal, a folder of journals, or a deployment."""
    from fairtape.deployment.config.description import FILE, read_deployment
    from fairtape.deployment.follow.site_failover import SiteFailover

    for place in places:
        if (place / FILE).exists():
            found = [path for path in SiteFailover(read_deployment(place)).journals.values() if path.is_dir()]
        elif not place.is_dir():
            raise UserError(f"{str(place)!r} is no directory; name journals, a folder of them, or a deployment")
        elif any(place.glob("*.segment")):
            found = [place]
        else:
            found = sorted({segment.parent for segment in place.rglob("*.segment")})
        if not found:
            raise UserError(f"{str(place)!r} holds no journal; name one, a folder of them, or a deployment")
        yield from found


def _text(outcome: "JobOutcome", out: Path) -> str:
    partitions = [
        f"  stripe {name.stripe} of site {name.site} up to sequence {offset.next - 1:,}"
        for name, offset in sorted(outcome.offsets.items())
    ]
    made = f"{outcome.numbers:,} deliveries added, {counted(len(outcome.tables), 'table')} made in {out}"
    return "\n".join([made, *partitions])


def _as_json(outcome: "JobOutcome") -> str:
    offsets = {str(name): offset.next - 1 for name, offset in sorted(outcome.offsets.items())}
    return json.dumps({"deliveries": outcome.numbers, "tables": outcome.tables, "last_sequences": offsets})


@click.command()
@click.argument("tables", type=Folder)
def compact(tables: Path) -> None:
    """Join the small files of the tables in TABLES to large ones. Readers see the same rows before and after."""
    needed()
    from fairtape.pipeline.tables.jobs import folder_of

    for name in _existing(tables):
        metrics = folder_of(tables, name).compact()
        if metrics.get("numFilesRemoved"):
            click.echo(f"{name}: {counted(metrics['numFilesRemoved'], 'file')} joined to {metrics['numFilesAdded']:,}")


@click.command()
@click.argument("tables", type=Folder)
@click.option(
    "--hours", type=int, default=168, show_default=True, help="Keep files that were in a table within these hours."
)
@click.option("--rehearse", "dry_run", is_flag=True, help="Only list what would be deleted.")
def vacuum(tables: Path, hours: int, dry_run: bool) -> None:
    """Delete files in TABLES that no table has used for some hours, also those of writers that died.

    A reader or writer that began longer ago may miss them: with --hours below 168, check that there is none.
    """
    check_within("--hours", hours, 1, HOURS_MAX)
    needed()
    from fairtape.pipeline.tables.jobs import folder_of

    for name in _existing(tables):
        if swept := folder_of(tables, name).sweep(hours=hours, dry_run=dry_run):
            click.echo(f"{name}: {counted(len(swept), 'file')} {'would be deleted' if dry_run else 'deleted'}")


@click.command()
def prepare() -> None:
    """Make an archive of Spark's classes in the user's cache: every later start takes half the time.

    It takes minutes on a small machine and some 180 MB, once for each Java and Spark.
    """
    needed()
    from fairtape.pipeline.spark.java import make_archive

    click.echo(f"archive {make_archive()}")


def _existing(tables: Path) -> list[str]:
    from fairtape.pipeline.schemas import TABLES

    found = [name for name in TABLES if (tables / name / "_delta_log").is_dir()]
    if not found:
        hint = f"fairtape pipeline run JOURNALS --out {tables}"
        raise UserError(f"{str(tables)!r} holds no tables; make them with: {hint}")
    return found


@click.command()
@click.argument("places", type=click.Path(path_type=Path), nargs=-1, required=True)
@with_master
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def reconcile(ctx: click.Context, *, places: tuple[Path, ...], master: str, as_json: bool) -> None:
    """Prove that the journals in PLACES hold one sequence.

    For every journal: each link of its two hash chains, that of the order and that of its release marks, every number
    exactly once, nothing released before its commit instant. For all journals of a stripe: the same content under the
    same numbers. The first difference, and the first damage of each journal, are reported with site, token and byte.

    Exit code 0: one sequence, from the same beginning to the same end. 1: damaged, or different. 2: there is nothing to
    prove. 3: one sequence as far as they go, but one journal begins later or ends earlier than another.
    """
    journals = list(journals_in(places))
    with steps(quiet=as_json) as step:
        step("starting Spark")
        with spark_at(master) as spark:
            from fairtape.pipeline.reconciliation import reconcile as proved

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
        return "a journal without a readable owner"
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


@click.command("report")
@click.option("--tables", required=True, type=click.Path(path_type=Path), help="What `fairtape pipeline run` made.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder of the report.")
@with_master
def report(*, tables: Path, out: Path, master: str) -> None:
    """Make a report: a page about fairness, order, completeness, failover and latency.

    OUT/index.html stands alone: no network, no script. Beside it are its data as CSV and Parquet (OUT/data), and the
    files for a regulator (OUT/regulator): clock log, latency per source, execution statistics, audit trail.
    """
    needed()
    from fairtape.pipeline.report.fairness_report import make_report

    try:
        with spark_at(master) as spark:
            made = make_report(spark, tables, out)
    except OSError as error:
        raise UserError(f"--out is {str(out)!r}, which cannot be written ({error.strerror}); name another") from None
    click.echo(f"report {made.page}, with {counted(len(made.files), 'file')} beside it")
