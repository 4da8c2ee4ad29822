"""Reads Parquet files by their exact names.

Spark treats a path as a Hadoop pattern, so a folder named `a[1]` would be read as `a1`, and it skips an empty file
without an error. These functions read exactly the files that are named, or raise a `UserError`.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fairtape.core.errors import UserError

REMEDY: Final = "restore it, or delete its table and make that anew"

_PATTERN_LETTERS: Final = re.compile(r"[\\*?\[\]{}]")


def escaped_path(path: Path | str) -> str:
    """The absolute path, with the characters of patterns escaped.

    In a relative path Hadoop takes a colon for the end of a scheme, and beside an escaped character it always does.
    """
    whole = str(Path(path).absolute())
    if ":" in whole and (found := _PATTERN_LETTERS.search(whole)) is not None:
        raise UserError(
            f"path {whole} has both : and {found[0]} in it, which Spark cannot read; rename one of its folders"
        )
    return _PATTERN_LETTERS.sub(r"\\\g<0>", whole)


def read_parquet(spark: SparkSession, files: Iterable[Path | str], schema: StructType | None = None) -> DataFrame:
    """Read these files, at least one. A `UserError` names the first that is missing or empty."""
    names = [str(file) for file in files]
    assert names, "Spark reads at least one file"
    for name in names:
        _check(Path(name))
    reader = spark.read if schema is None else spark.read.schema(schema)
    return reader.parquet(*map(escaped_path, names))


def _check(file: Path) -> None:
    try:
        about = file.stat()
    except OSError as error:
        raise UserError(f"file {file} cannot be read ({error.strerror}); {REMEDY}") from None
    if not about.st_size:
        raise UserError(f"file {file} is empty, and no Parquet file is; {REMEDY}")
