"""`fairtape pipeline …`: what is done with the record on Spark. Commands are imported when they are called."""

from typing import Final

import click

from fairtape.cli.lazy import Entry, LazyGroup

COMMANDS: Final = {
    "run": Entry("Tables", "fairtape.cli.pipeline_tables", "run", "Make tables of journals, once or as they grow."),
    "compact": Entry("Tables", "fairtape.cli.pipeline_tables", "compact", "Join the small files of tables."),
    "vacuum": Entry("Tables", "fairtape.cli.pipeline_tables", "vacuum", "Delete files that no table needs any more."),
    "prepare": Entry(
        "Tables", "fairtape.cli.pipeline_tables", "prepare", "Let Spark start in half the time from now on."
    ),
    "reconcile": Entry(
        "Proof", "fairtape.cli.pipeline_reconcile", "reconcile", "Prove that journals hold one sequence."
    ),
    "report": Entry("Results", "fairtape.cli.pipeline_report", "report", "Make a page of what tables say."),
    "stripes": Entry("Results", "fairtape.cli.pipeline_stripes", "stripes", "Plan stripes from the history of rates."),
}


@click.group(cls=LazyGroup, commands=COMMANDS)
def pipeline() -> None:
    """Work on the record with Spark: tables, proofs, reports, plans.

    It needs the extra `pipeline` (pip install 'fairtape[pipeline]') and Java 17 or newer, which comes with it where
    this machine has none.
    """
