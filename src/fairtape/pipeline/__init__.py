"""PySpark: the data source over journals, the tables made of it, and the jobs that make them.

`register(spark)` makes journals readable: `spark.read.format("fairtape").option("journals", …)`. `spark_session` starts
a Spark that suits a small machine. `ingest_journals` fills a Delta table exactly once; `run_batch`, `run_stream` make
every table of `fairtape.pipeline.schemas`, and `read_table` gives one of them. Nothing of Spark is imported before one
of them is asked for, so that programs without it may look into this room.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fairtape.pipeline.source.data_source import register
    from fairtape.pipeline.spark.session import spark_session
    from fairtape.pipeline.tables.ingest import ingest_journals
    from fairtape.pipeline.tables.jobs import read_table, run_batch, run_stream

__all__ = ["ingest_journals", "read_table", "register", "run_batch", "run_stream", "spark_session"]

_HOMES: Final = {
    "ingest_journals": "tables.ingest",
    "read_table": "tables.jobs",
    "register": "source.data_source",
    "run_batch": "tables.jobs",
    "run_stream": "tables.jobs",
    "spark_session": "spark.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
