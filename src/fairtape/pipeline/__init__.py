"""Journals on Spark: a data source, tables, proofs, reports and stripe plans.

- `source`: the data source `fairtape`, over journals and over replay ports
- `spark`: Java, Spark sessions, Delta tables
- `schemas`: the columns of every row and table
- `tables`: ingestion, the tables, and the jobs that make them
- `report`: the report page, its data, and the files for a regulator
- `reconciliation`: the proof that all journals hold one sequence
- `stripes`: stripe plans from a history of rates

`register(spark)` makes journals readable: `spark.read.format("fairtape").option("journals", …)`. `spark_session` starts
a Spark that suits a small machine. `ingest_journals` fills a Delta table exactly once; `run_batch` and `run_stream`
make every table of `schemas`, and `read_table` reads one of them. Spark is imported when one of these names is
first used, so that programs without it may import this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fairtape.pipeline.source.data_source import register
    from fairtape.pipeline.spark.snapshots import read_table
    from fairtape.pipeline.spark.spark_session import spark_session
    from fairtape.pipeline.tables.ingest import ingest_journals
    from fairtape.pipeline.tables.jobs import run_batch, run_stream

__all__ = ["ingest_journals", "read_table", "register", "run_batch", "run_stream", "spark_session"]

_MODULES: Final = {
    "ingest_journals": "tables.ingest",
    "read_table": "spark.snapshots",
    "register": "source.data_source",
    "run_batch": "tables.jobs",
    "run_stream": "tables.jobs",
    "spark_session": "spark.spark_session",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
