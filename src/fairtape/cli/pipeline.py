"""`fairtape pipeline …`: commands that run on Spark. Each is imported when it is called."""

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
        "Tables", "fairtape.cli.pipeline_jobs", "prepare", "Make an archive of classes, so that Spark starts faster."
    ),
    "reconcile": CommandEntry(
        "Proof", "fairtape.cli.pipeline_jobs", "reconcile", "Prove that journals hold one sequence."
    ),
    "report": CommandEntry("Results", "fairtape.cli.pipeline_jobs", "report", "Make a report page from tables."),
    "stripes": CommandEntry(
        "Results", "fairtape.cli.pipeline_stripes", "stripes", "Plan stripes from the history of rates."
    ),
}


@click.group(cls=LazyGroup, commands=COMMANDS)
def pipeline() -> None:
    """Process journals with Spark: tables, proofs, reports, plans.

    Needs the extra `pipeline` (pip install 'fairtape[pipeline]'), which brings Java where this machine has none.
    """
