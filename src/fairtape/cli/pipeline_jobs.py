"""`fairtape pipeline run`, `compact` and `vacuum`: tables of journals, and their upkeep."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fairtape.cli.terminal import asked_to_stop, check_within, counted, steps
from fairtape.core.errors import UserError
from fairtape.deployment.config.description import FILE, read_deployment
from fairtape.deployment.follow.site_failover import SiteFailover

if TYPE_CHECKING:
    from fairtape.pipeline.tables.jobs import JobOutcome
from dataclasses import asdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairtape.pipeline.proof.reconcile import JournalDifference, JournalProblem, Reconciliation
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A Spark for commands: started where it is there, and otherwise one sentence that says what is missing.

with_master = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help="Where Spark runs: local[N], spark://HOST:PORT, or sc://HOST:PORT of a Spark Connect server.",
)


@contextmanager
def spark_at(master: str, **options: Any) -> "Iterator[SparkSession]":
    """A session, stopped at the end unless it was there before. What executors complain of is told as here."""
    session = needed()
    found = session.SparkSession.getActiveSession()
    spark = session.spark_session(master, **options)
    try:
        with session.in_sentences():
            yield spark
    finally:
        if found is None:
            spark.stop()


def needed() -> Any:
    """The module that starts Spark, or a sentence where it is not installed."""
    try:
        from fairtape.pipeline.spark import session
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "fairtape":
            raise
        remedy = "pip install 'fairtape[pipeline]'"
        raise UserError(
            f"package {error.name} is missing, which the pipeline needs; install it with: {remedy}"
        ) from None
    return session


HOURS_MAX: Final = 24 * 366
STOPPING: Final = "stopping: tables are completed; interrupt again to leave them as they are"
Folder: Final = click.Path(path_type=Path)


@click.command()
@click.argument("places", type=Folder, nargs=-1, required=True)
@click.option("--out", type=Folder, required=True, help="The folder of the tables; it is made where it is not there.")
@with_master
@click.option("--stream", is_flag=True, help="Go on as journals grow, until Ctrl-C.")
@click.option("--checkpoint", type=Folder, help="Where a stream keeps its place; it may be lost.  [default: nowhere]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def run(
    *, places: tuple[Path, ...], out: Path, master: str, stream: bool, checkpoint: Path | None, as_json: bool
) -> None:
    """Make tables of the journals in PLACES, or take in what they got since the last time.

    A place is the journal of a site, a folder of several, or the folder of a deployment. Tables are Delta tables: any
    reader of Delta, DuckDB and Polars among them, sees them while they are made. Every number is taken in exactly once,
    whatever is interrupted; so to go on, run it again.
    """
    if checkpoint is not None and not stream:
        raise UserError("--checkpoint is given without --stream; a run that ends needs none")
    journals = list(journals_in(places))
    needed()
    from fairtape.pipeline.spark.delta import make_folder
    from fairtape.pipeline.tables.jobs import RAW, folder_of

    folder_of(out, RAW)  # refuses what can be no folder of tables, before Spark starts
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
    """The journals that a user means."""
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
    lanes = [
        f"  stripe {name.stripe} of site {name.site} up to sequence {mark.next - 1:,}"
        for name, mark in sorted(outcome.marks.items())
    ]
    made = f"{outcome.numbers:,} deliveries taken in, {counted(len(outcome.tables), 'table')} made in {out}"
    return "\n".join([made, *lanes])


def _as_json(outcome: "JobOutcome") -> str:
    marks = {str(name): mark.next - 1 for name, mark in sorted(outcome.marks.items())}
    return json.dumps({"deliveries": outcome.numbers, "tables": outcome.tables, "last_sequences": marks})


@click.command()
@click.argument("tables", type=Folder)
def compact(tables: Path) -> None:
    """Join the small files of the tables in TABLES to large ones. Readers see the same rows, before and after."""
    needed()
    from fairtape.pipeline.tables.jobs import folder_of

    for name in _existing(tables):
        told = folder_of(tables, name).compact()
        if told.get("numFilesRemoved"):
            click.echo(f"{name}: {counted(told['numFilesRemoved'], 'file')} joined to {told['numFilesAdded']:,}")


@click.command()
@click.argument("tables", type=Folder)
@click.option("--hours", type=int, default=168, show_default=True, help="Keep what was in a table so long ago.")
@click.option("--rehearse", is_flag=True, help="Only say what would be deleted.")
def vacuum(tables: Path, hours: int, rehearse: bool) -> None:
    """Delete files in TABLES that no table has named for some hours, those of writers that died among them.

    Whoever began to read, or to write a batch, longer ago may miss them: with --hours below 168, see that nobody did.
    """
    check_within("--hours", hours, 1, HOURS_MAX)
    needed()
    from fairtape.pipeline.tables.jobs import folder_of

    for name in _existing(tables):
        if swept := folder_of(tables, name).sweep(hours=hours, rehearse=rehearse):
            click.echo(f"{name}: {counted(len(swept), 'file')} {'would be deleted' if rehearse else 'deleted'}")


@click.command()
def prepare() -> None:
    """Keep Spark's classes, already parsed, in the user's cache: every later start takes half the time.

    It takes minutes on a small machine and some 180 MB, once for each Java and Spark.
    """
    needed()
    from fairtape.pipeline.spark.java import make_archive

    click.echo(f"kept in {make_archive()}")


def _existing(tables: Path) -> list[str]:
    from fairtape.pipeline.schemas import TABLES

    found = [name for name in TABLES if (tables / name / "_delta_log").is_dir()]
    if not found:
        hint = f"fairtape pipeline run JOURNALS --out {tables}"
        raise UserError(f"{str(tables)!r} holds no tables; make them with: {hint}")
    return found


# `fairtape pipeline reconcile`: the proof, on Spark, that journals hold one sequence.
#
# Exit codes are those of `fairtape journal verify`: 1 means that a journal is damaged or that journals differ; 3 means
# that they agree in what they share, and that one of them holds less than another. Where there is nothing to prove,
# that is a mistake of whoever asked (2).

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


# `fairtape pipeline report`: a page, its data and a regulator's bundle from the pipeline's tables.


@click.command("report")
@click.option("--tables", required=True, type=click.Path(path_type=Path), help="What `fairtape pipeline run` made.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder of the report.")
@with_master
def report(*, tables: Path, out: Path, master: str) -> None:
    """Make a report that people who were not there can read.

    OUT/index.html stands alone: no network, no script. Beside it are its figures as CSV and Parquet (OUT/data), and
    what a regulator asks for (OUT/regulator): clock log, latency per source, execution statistics, audit trail.
    """
    needed()
    from fairtape.pipeline.report.report import make_report

    try:
        with spark_at(master) as spark:
            made = make_report(spark, tables, out)
    except OSError as error:
        raise UserError(f"--out is {str(out)!r}, which cannot be written ({error.strerror}); name another") from None
    click.echo(f"report {made.page}, with {counted(len(made.files), 'file')} beside it")
