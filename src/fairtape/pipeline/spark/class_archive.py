"""An archive of Spark's classes, already parsed: made once, kept in the user's cache, it halves the start.

It belongs to one Java and one Spark; where either changes, it is not used and another can be made. Java itself checks
that an archive fits and goes on without it where not, so a wrong one costs time and never an answer.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyspark

from fairtape.core.errors import UserError
from fairtape.pipeline.spark.java import Java, cache_directory, find_java

AOT_RELEASE: Final = 25  # from this one on Java keeps more than classes: an AOT cache, made in one step
MAKE_SECONDS_MAX: Final = 1_800.0  # half a minute on an idle machine, mostly Java's own work on what it learned
SAID_MAX: Final = 400  # characters of what went wrong that a complaint repeats
MAKING: Final = "FAIRTAPE_ARCHIVE"  # names the file to a session that makes one

_SILENT: Final = ("-Xlog:disable", "-Xlog:all=off")
_CLASSES_SILENT: Final = ("-Xshare:auto", *_SILENT)
"""With an AOT cache Java refuses to be told about sharing: it goes on without one that does not fit by itself."""

_LESSON: Final = """
from pyspark import SparkContext
from fairtape.pipeline.spark.session import spark_session
spark = spark_session("local[1]")
spark.range(1000).selectExpr("id % 7 AS k", "id").createOrReplaceTempView("t")
spark.sql("SELECT k, count(*), sum(id), max(id) FROM t GROUP BY k ORDER BY k").collect()
spark.range(10).mapInArrow(lambda batches: batches, "id LONG").collect()
spark.stop()
gateway = SparkContext._gateway
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""
"""What it learns is what most jobs need first. Java writes the archive as it ends, which is waited for."""


def archive_path(java: Java) -> Path:
    """Where the archive of this Java and the installed Spark is kept."""
    spark = Path(pyspark.__file__).parent
    key = hashlib.sha256(f"{java.home} {java.version} {pyspark.__version__} {spark}".encode()).hexdigest()[:16]
    return cache_directory() / "classes" / f"{key}.{'aot' if java.release >= AOT_RELEASE else 'jsa'}"


def archive_flags(java: Java) -> list[str]:
    """What Java is told: to use the archive, to make it, or nothing where there is none."""
    is_aot = java.release >= AOT_RELEASE
    silent = _SILENT if is_aot else _CLASSES_SILENT
    if making := os.environ.get(MAKING):
        return [f"-XX:AOTCacheOutput={making}" if is_aot else f"-XX:ArchiveClassesAtExit={making}", *silent]
    path = archive_path(java)
    if not path.exists():
        return []
    return [f"-XX:AOTCache={path}" if is_aot else f"-XX:SharedArchiveFile={path}", *silent]


def make_archive(*, again: bool = False) -> Path:
    """Make the archive, unless there is one: a small session is run in a process of its own, and leaves it behind."""
    java = find_java()
    path = archive_path(java)
    if path.exists() and not again:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{os.getpid()}.{path.name}")
    command = [sys.executable, "-c", _LESSON]
    environment = {**os.environ, MAKING: str(draft)}
    try:
        ended = subprocess.run(  # noqa: S603 - this program itself
            command, env=environment, capture_output=True, text=True, timeout=MAKE_SECONDS_MAX, check=False
        )
        if ended.returncode or not draft.exists():
            said = (ended.stderr or ended.stdout).strip().rpartition("\n")[2]  # of a traceback the last line tells
            raise UserError(f"the class archive {path} was not made: {said[-SAID_MAX:] or 'nothing was said'}")
        draft.replace(path)
    except subprocess.TimeoutExpired:
        raise UserError(f"the class archive {path} was not made in {MAKE_SECONDS_MAX:.0f} s; try again later") from None
    finally:
        draft.unlink(missing_ok=True)
    return path
