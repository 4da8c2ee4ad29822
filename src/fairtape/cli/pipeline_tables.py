"""`fairtape pipeline run`, `compact` and `vacuum`: tables of journals, and their upkeep."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fairtape.cli.interrupts import asked_to_stop
from fairtape.cli.limits import check_within
from fairtape.cli.pipeline_spark import needed, spark_at, with_master
from fairtape.cli.progress import steps
from fairtape.cli.words import counted
from fairtape.core.errors import UserError
from fairtape.deployment.config.description import FILE, read_deployment
from fairtape.deployment.follow.site_selection import SiteSelection

if TYPE_CHECKING:
    from fairtape.pipeline.tables.jobs import JobOutcome

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
            found = [path for path in SiteSelection(read_deployment(place)).journals.values() if path.is_dir()]
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
