"""Spark sessions that start and end quickly and print nothing to the terminal.

The master `local[*]` is this machine, `spark://host:7077` a standalone cluster, `sc://host` a server of Spark Connect.
On this machine `fairtape.pipeline.spark.java` finds Java and the archive of classes.

Spark treats a path as a Hadoop pattern, so a folder named `a[1]` would be read as `a1`, and it skips an empty file
without an error. `read_parquet` reads exactly the files that are named, or raises a `UserError`.
"""

import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fairtape.core.errors import UserError
from fairtape.journal import Damaged
from fairtape.pipeline.source.data_source import register
from fairtape.pipeline.spark.java import archive_flags, cache_directory, find_java

QUICK: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=256m", "-XX:-UsePerfData")
"""For small jobs: the C1 compiler only, with the code cache that all compilers share by default. With C1's own 48 MB
code is evicted and compiled again once all tables were made. Long jobs are faster with all compilers."""
STEADY: Final = ("-XX:+UseParallelGC", "-XX:-UsePerfData")
STEADY_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "16",
    "spark.sql.files.maxPartitionBytes": "12m",
    "spark.sql.codegen.aggregate.fastHashMap.capacityBit": "18",
}
"""For long jobs. The groups of a 12 MB task, and a sixteenth of all groups, fit a processor's cache; small jobs only
pay for more tasks. The fast hash map before the general one has 65,536 slots by default, and bars need more: a group
without a slot costs two lookups for each of its rows (a fifth of all time)."""
LOGGING_FILE: Final = Path(__file__).with_name("log4j2.properties")
MEMORY: Final = "2g"
LOG_SHOWN_MAX: Final = 400  # characters of the log in an error message

_WORKER_TIMEOUT: Final = "Python worker failed to connect back"
_SENTENCE: Final = re.compile(r"fairtape\.[\w.]*(?:UserError|Damaged): (.+)")
_DAMAGE: Final = re.compile(r"(.+) is damaged at byte (\d+), sequence (\d+): (.+)")
_UNREADABLE: Final = re.compile(
    r"(?:Encountered error while reading file|Path does not exist:) (?:file:/*(?=/))?(.+?)\.\s+[A-Z]"
)

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    # All tables together need more than the 100 classes of the default: a stream would compile them again and again.
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""Settings that make small jobs fast; a user's own settings override them."""

LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.default.parallelism": "4",
    # No checksum files: a micro-batch writes many small files.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Shuffle files stay in this machine's page cache: compression costs more than it saves.
    "spark.shuffle.compress": "false",
}
"""For a Spark whose executors all run on this machine."""

REMEDY: Final = "restore it, or delete its table and make that anew"

_PATTERN_LETTERS: Final = re.compile(r"[\\*?\[\]{}]")


def spark_session(
    master: str = "local[*]",
    *,
    name: str = "fairtape",
    quick: bool = True,
    memory: str = MEMORY,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session with the data source `fairtape` registered. `quick` prefers a fast start to the speed of long jobs.

    Where this process has a session already, that one is returned.
    """
    if master.startswith("sc://"):
        spark = SparkSession.builder.appName(name).remote(master).getOrCreate()
    elif master.startswith(("local", "spark://")):
        if SparkContext._active_spark_context is None:  # noqa: SLF001 - there is no other way to ask
            chosen = {**_settings(master, quick=quick, memory=memory), **(settings or {})}
            _start(SparkConf().setMaster(master).setAppName(name).setAll(list(chosen.items())))
        spark = SparkSession.builder.getOrCreate()
    else:
        raise UserError(f"master is {master!r}; give local[N], spark://host:port or sc://host:port")
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).disabled = True  # the exception has the same text
    register(spark)
    return spark


@contextmanager
def as_user_errors() -> Iterator[None]:
    """Turn errors of executors back into `UserError` and `Damaged`, without the stack traces of Spark.

    An error during the conversion to Arrow comes as an error of Py4J, and not of PySpark.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        sentence = _SENTENCE.search(text)
        if sentence is None:
            user_error = _user_error(text, error.getCondition() if isinstance(error, PySparkException) else None)
            if user_error is None:
                raise
            raise user_error from None
        damage = _DAMAGE.fullmatch(sentence[1])
        if damage is None:
            raise UserError(sentence[1]) from None
        path, offset, sequence, reason = damage.groups()
        raise Damaged(Path(path), int(offset), int(sequence), reason) from None


def _user_error(text: str, condition: str | None) -> UserError | None:
    """An error of Spark itself that the user can fix."""
    if _WORKER_TIMEOUT in text:
        return UserError(
            "Spark gave up on a Python process that did not start within ten seconds, because this machine is very "
            "busy; committed data is complete: run it again"
        )
    if condition == "CAST_INVALID_INPUT":
        return UserError(f"a value in the data cannot be read; correct it or leave it out: {text.partition('. ')[0]}")
    if (unreadable := _UNREADABLE.search(text)) is not None:
        return UserError(f"file {unquote(unreadable[1])} cannot be read; {REMEDY}")
    return None


def _start(conf: SparkConf) -> None:
    """Start the JVM. Its output goes to a file; errors reach the program as exceptions."""
    log = cache_directory() / "spark.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A JVM that an earlier session of this process started is used again.
        gateway = SparkContext._gateway  # noqa: SLF001 - there is no other way to ask
        if gateway is None:
            with log.open("wb") as output:
                # In another process session: Ctrl-C is for this program, which ends Java and its Python workers itself.
                apart = {"stderr": output, "stdout": output, "start_new_session": True}
                gateway = launch_gateway(conf, apart)  # type: ignore[no-untyped-call]
        SparkContext(gateway=gateway, conf=conf)
    except PySparkRuntimeError as error:
        last = " ".join(log.read_text(errors="replace").split())[-LOG_SHOWN_MAX:]
        raise UserError(f"Spark did not start ({error.getCondition()}); the end of {log} is: {last}") from None


def _settings(master: str, *, quick: bool, memory: str) -> dict[str, str]:
    """Settings of a driver on this machine, and the environment that its JVM is started from."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(QUICK))
    flags = [*(QUICK if quick else STEADY), f"-Dlog4j2.configurationFile={LOGGING_FILE.as_uri()}", *archive_flags(java)]
    settings = {**SETTINGS, **({} if quick else STEADY_SETTINGS)}
    settings |= {"spark.driver.memory": memory, "spark.driver.extraJavaOptions": " ".join(flags)}
    if master.startswith("local"):
        return {**settings, **LOCAL_SETTINGS}
    return {**settings, "spark.executorEnv.PYSPARK_PYTHON": os.environ["PYSPARK_PYTHON"]}


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
