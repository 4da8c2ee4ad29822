"""A Spark session that starts and ends quickly, says nothing on the user's terminal, and runs anywhere.

The master `local[*]` is this machine, `spark://host:7077` a standalone cluster, `sc://host` a server of Spark Connect.
On this machine Java is found by `fairtape.pipeline.spark.java`, and classes come from an archive where one was made
(`fairtape.pipeline.spark.java`), which halves the time to the first answer.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from fairtape.core.errors import UserError
from fairtape.journal import Damaged
from fairtape.pipeline.source.data_source import register
from fairtape.pipeline.spark.file_paths import REMEDY
from fairtape.pipeline.spark.java import archive_flags, cache_directory, find_java

QUICK: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=256m", "-XX:-UsePerfData")
"""For small jobs: the quick compiler only, with the room that all compilers have together by default. With its own
48 MB it forgets code and compiles it again as soon as all tables were made once. Long jobs are better off without."""
STEADY: Final = ("-XX:+UseParallelGC", "-XX:-UsePerfData")
STEADY_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "16",
    "spark.sql.files.maxPartitionBytes": "12m",
    "spark.sql.codegen.aggregate.fastHashMap.capacityBit": "18",
}
"""For long jobs. What a task groups of 12 MB stays in a processor's cache, and so does a sixteenth of all groups; small
jobs would only pay for more tasks. The quick table before the general one has 65,536 places by default, and bars want
more: a group that finds no place there costs two searches for each of its rows (a fifth of all time)."""
QUIET: Final = Path(__file__).with_name("log4j2.properties")
MEMORY: Final = "2g"
LOG_SHOWN_MAX: Final = 400  # characters of it that a complaint repeats

_STARVED: Final = "Python worker failed to connect back"
_SENTENCE: Final = re.compile(r"fairtape\.runtime\.[\w.]*(?:Complaint|Damaged): (.+)")
_DAMAGE: Final = re.compile(r"(.+) is damaged at byte (\d+), sequence (\d+): (.+)")
_UNREADABLE: Final = re.compile(
    r"(?:Encountered error while reading file|Path does not exist:) (?:file:/*(?=/))?(.+?)\.\s+[A-Z]"
)

SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    # All tables together need more than the 100 classes that are kept by default: a stream makes them again and again.
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""What makes small jobs quick; a user's own settings come after these."""

LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.default.parallelism": "4",
    # Without checksum files beside every file: a micro-batch writes many small ones.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # What tasks hand to one another stays in this machine's page cache: packing it costs more than it saves.
    "spark.shuffle.compress": "false",
}
"""For a Spark that is in this process's own machine as a whole."""


def spark_session(
    master: str = "local[*]",
    *,
    name: str = "fairtape",
    quick: bool = True,
    memory: str = MEMORY,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session with the data source `fairtape` registered. `quick` prefers a fast start to the last bit of speed.

    Where this process has a session already, that one is given.
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
        logging.getLogger(name).disabled = True  # what they say is in the exception, too
    register(spark)
    return spark


@contextmanager
def in_sentences() -> Iterator[None]:
    """Say a mistake or damage that an executor found in its one sentence, without the thousand lines of Spark.

    What fails on the way to Arrow comes through Py4J as it is, and not as an error of PySpark.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        told = _SENTENCE.search(text)
        if told is None:
            complaint = _complaint(text, error.getCondition() if isinstance(error, PySparkException) else None)
            if complaint is None:
                raise
            raise complaint from None
        damage = _DAMAGE.fullmatch(told[1])
        if damage is None:
            raise UserError(told[1]) from None
        path, offset, sequence, reason = damage.groups()
        raise Damaged(Path(path), int(offset), int(sequence), reason) from None


def _complaint(text: str, condition: str | None) -> UserError | None:
    """What Spark itself says, where a user can mend it."""
    if _STARVED in text:
        return UserError(
            "Spark gave up on a Python process that did not start within ten seconds, because this machine is very "
            "busy; what was committed is whole: run it again"
        )
    if condition == "CAST_INVALID_INPUT":
        return UserError(
            f"a value in the data cannot be read, so put it right or leave it out: {text.partition('. ')[0]}"
        )
    if (unreadable := _UNREADABLE.search(text)) is not None:
        return UserError(f"file {unquote(unreadable[1])} cannot be read; {REMEDY}")
    return None


def _start(conf: SparkConf) -> None:
    """Start the JVM. What it says goes to a file: all that matters reaches the program as an exception."""
    log = cache_directory() / "spark.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A JVM that an earlier session of this process started is still there, and is used again.
        gateway = SparkContext._gateway  # noqa: SLF001 - there is no other way to ask
        if gateway is None:
            with log.open("wb") as said:
                # In a session of its own: Ctrl-C is for this program, which ends Java and its Python workers itself.
                apart = {"stderr": said, "stdout": said, "start_new_session": True}
                gateway = launch_gateway(conf, apart)  # type: ignore[no-untyped-call]
        SparkContext(gateway=gateway, conf=conf)
    except PySparkRuntimeError as error:
        last = " ".join(log.read_text(errors="replace").split())[-LOG_SHOWN_MAX:]
        raise UserError(f"Spark did not start ({error.getCondition()}); its last words in {log} are: {last}") from None


def _settings(master: str, *, quick: bool, memory: str) -> dict[str, str]:
    """Settings of a driver on this machine, and the environment that its JVM is started from."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(QUICK))
    flags = [*(QUICK if quick else STEADY), f"-Dlog4j2.configurationFile={QUIET.as_uri()}", *archive_flags(java)]
    settings = {**SETTINGS, **({} if quick else STEADY_SETTINGS)}
    settings |= {"spark.driver.memory": memory, "spark.driver.extraJavaOptions": " ".join(flags)}
    if master.startswith("local"):
        return {**settings, **LOCAL_SETTINGS}
    return {**settings, "spark.executorEnv.PYSPARK_PYTHON": os.environ["PYSPARK_PYTHON"]}
