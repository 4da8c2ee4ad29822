"""A driver that streams journals into a table in a process of its own, to be killed; a line for each batch it ended."""

import sys

from fairtape.pipeline import spark_session
from fairtape.pipeline.ingest import stream_journals


def main(journals: str, table: str, checkpoint: str, max_rows: str) -> None:
    spark = spark_session("local[1]", memory="512m")
    query = stream_journals(
        spark, journals, table, max_rows=int(max_rows), checkpoint=checkpoint, trigger_period="0 seconds"
    )
    told = -1
    while not query.awaitTermination(0.02):  # type: ignore[arg-type]  # parts of a second are served
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > told:
            told = progress["batchId"]
            sys.stdout.write(f"{told}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
