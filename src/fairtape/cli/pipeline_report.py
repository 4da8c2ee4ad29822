"""`fairtape pipeline report`: a page, its data and a regulator's bundle from the pipeline's tables."""

from pathlib import Path

import click

from fairtape.cli.pipeline_spark import needed, spark_at, with_master
from fairtape.cli.words import counted
from fairtape.core.errors import UserError


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
