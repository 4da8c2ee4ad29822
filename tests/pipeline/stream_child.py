"""A driver that streams journals into tables in a process of its own, to be killed; a line for each step it takes."""

import sys
from pathlib import Path

from fairtape.pipeline import spark_session
from fairtape.pipeline.tables.jobs import run_stream


def main(journals: str, tables: str, checkpoint: str, max_rows: str) -> None:
    settings = {"spark.sql.shuffle.partitions": "1", "spark.default.parallelism": "1"}
    spark = spark_session("local[1]", memory="512m", settings=settings)
    run_stream(
        spark,
        f"{journals}/*",
        Path(tables),
        checkpoint=checkpoint,
        step=tell,
        max_rows=int(max_rows),
        trigger_period="0 seconds",
    )


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
