"""A driver that makes all tables with one master, in a process of its own; a line for every step it takes."""

import sys
from pathlib import Path

from fairtape.pipeline import spark_session
from fairtape.pipeline.tables.jobs import run_batch


def main(master: str, journals: str, tables: str) -> None:
    spark = spark_session(master, memory="512m", settings={"spark.executor.memory": "512m"})
    run_batch(spark, f"{journals}/*", Path(tables), step=tell)
    spark.stop()


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
