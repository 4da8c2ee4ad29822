"""Snapshots of the tables: the Delta folder of each, and its present rows as a DataFrame."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from fairtape.core.errors import UserError
from fairtape.pipeline.schemas import TABLES
from fairtape.pipeline.spark.delta import DeltaFolder
from fairtape.pipeline.spark.spark_session import read_parquet


def folder_of(folder: Path | str, name: str) -> DeltaFolder:
    """The Delta table with this name."""
    if name not in TABLES:
        raise UserError(f"table is {name!r}; there are {', '.join(TABLES)}")
    return DeltaFolder(Path(folder).absolute() / name, TABLES[name].schema)


def read_table(spark: SparkSession, folder: Path | str, name: str) -> DataFrame:
    """The present snapshot of a table; without rows where it was never made."""
    return read_files(spark, name, folder_of(folder, name).files())


def read_files(spark: SparkSession, name: str, files: list[str]) -> DataFrame:
    """A snapshot of a table, given by its files."""
    schema = from_arrow_schema(TABLES[name].schema)
    return read_parquet(spark, files, schema) if files else spark.createDataFrame([], schema)
