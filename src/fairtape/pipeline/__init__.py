"""PySpark: the data source over journals, the tables made of it, and the jobs that make them.

`register(spark)` makes journals readable: `spark.read.format("fairtape").option("journals", …)`. `spark_session` starts
a Spark that suits a small machine, and `ingest_journals` fills a Delta table exactly once. Nothing of Spark is imported
before one of them is asked for, so that programs without it may look into this room.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fairtape.pipeline.ingest import ingest_journals
    from fairtape.pipeline.session import spark_session
    from fairtape.pipeline.source import register

__all__ = ["ingest_journals", "register", "spark_session"]

_HOMES: Final = {"ingest_journals": "ingest", "register": "source", "spark_session": "session"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
