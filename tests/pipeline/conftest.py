"""One Spark for all tests of the pipeline: they are one group, so that one process runs them (`--dist loadgroup`).

Tests that only read tables share one set of them.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.shared_tables import Made

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # xdist looks for groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")
    from fairtape.pipeline import spark_session

    if "PYTEST_XDIST_WORKER" in os.environ:
        # Of all processes of this run the first to come; a second one would mean that the group is overlooked.
        (tmp_path_factory.getbasetemp().parent / "the-only-spark").touch(exist_ok=False)
    few = {"spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2"}
    session = spark_session("local[2]", memory="1g", settings=few)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def made(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> "Made":
    """Tables that are read, and not changed."""
    from pipeline.shared_tables import make

    return make(spark, tmp_path_factory.mktemp("shared"))
