"""`fairtape pipeline …`: what is done with the record on Spark. Commands are imported when they are called."""

from typing import Final

import click

from fairtape.cli.lazy import CommandEntry, LazyGroup

COMMANDS: Final = {
    "run": CommandEntry(
        "Tables", "fairtape.cli.pipeline_jobs", "run", "Make tables of journals, once or as they grow."
    ),
    "compact": CommandEntry("Tables", "fairtape.cli.pipeline_jobs", "compact", "Join the small files of tables."),
    "vacuum": CommandEntry(
        "Tables", "fairtape.cli.pipeline_jobs", "vacuum", "Delete files that no table needs any more."
    ),
    "prepare": CommandEntry(
        "Tables", "fairtape.cli.pipeline_jobs", "prepare", "Let Spark start in half the time from now on."
    ),
    "reconcile": CommandEntry(
        "Proof", "fairtape.cli.pipeline_jobs", "reconcile", "Prove that journals hold one sequence."
    ),
    "report": CommandEntry("Results", "fairtape.cli.pipeline_jobs", "report", "Make a page of what tables say."),
    "stripes": CommandEntry(
        "Results", "fairtape.cli.pipeline_stripes", "stripes", "Plan stripes from the history of rates."
    ),
}


@click.group(cls=LazyGroup, commands=COMMANDS)
def pipeline() -> None:
    """Work on the record with Spark: tables, proofs, reports, plans.

    It needs the extra `pipeline` (pip install 'fairtape[pipeline]') and Java 17 or newer, which comes with it where
    this machine has none.
    """
