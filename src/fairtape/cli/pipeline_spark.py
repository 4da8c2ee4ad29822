"""A Spark for commands: started where it is there, and otherwise one sentence that says what is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from fairtape.core.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
