"""Files that Spark is to read, each by its own name.

Spark takes a path for a pattern of Hadoop's, so a folder called `a[1]` would be looked for as `a1`; and a file of a
table that is empty, it passes over without a word. Whoever names files here gets these and no others, or a sentence.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fairtape.core.errors import UserError

REMEDY: Final = "bring it back, or delete its table and make that anew"

_PATTERN_LETTERS: Final = re.compile(r"[\\*?\[\]{}]")


def by_letter(path: Path | str) -> str:
    """A path as Spark takes it for that path: what would be a pattern is escaped, and it begins at the root.

    From anywhere else a colon in it would be the end of a scheme, and beside a pattern Hadoop takes it for that anyway.
    """
    whole = str(Path(path).absolute())
    if ":" in whole and (found := _PATTERN_LETTERS.search(whole)) is not None:
        raise UserError(
            f"path {whole} has both : and {found[0]} in it, which Spark cannot read; rename one of its folders"
        )
    return _PATTERN_LETTERS.sub(r"\\\g<0>", whole)


def read_parquet(spark: SparkSession, files: Iterable[Path | str], schema: StructType | None = None) -> DataFrame:
    """These files, of which there is at least one. All of them are there and not empty, or it is told which is not."""
    names = [str(file) for file in files]
    assert names, "Spark reads at least one file"
    for name in names:
        _check(Path(name))
    reader = spark.read if schema is None else spark.read.schema(schema)
    return reader.parquet(*map(by_letter, names))


def _check(file: Path) -> None:
    try:
        about = file.stat()
    except OSError as error:
        raise UserError(f"file {file} cannot be read ({error.strerror}); {REMEDY}") from None
    if not about.st_size:
        raise UserError(f"file {file} is empty, and no Parquet file is; {REMEDY}")
