"""The same job on this machine, on a standalone cluster that loses a worker, and through Spark Connect."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.market_values import Market
from pipeline.shared_tables import rows
from pipeline.test_tables import same

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

import pyspark

from fairtape.pipeline.schemas import TABLES
from fairtape.pipeline.spark.java import find_java
from fairtape.pipeline.tables.jobs import run_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.skipif(os.environ.get("FAIRTAPE_DRILLS") != "all", reason="a drill: FAIRTAPE_DRILLS=all")

HOME = Path(pyspark.__file__).parent
CHILD = Path(__file__).with_name("cluster_child.py")
READY = {
    "Master": "I have been elected leader",
    "Worker": "Successfully registered with master",
    "SparkConnectServer": "Spark Connect server started",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def service(program: str, *arguments: str, ready: str, folder: Path) -> "Iterator[subprocess.Popen[str]]":
    """A service of Spark, once it has said that it is ready; it ends with all that belongs to it."""
    logging = folder / "log4j2.properties"
    logging.write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.out.ref = out\nappender.out.type = Console\n"
        "appender.out.name = out\nappender.out.target = SYSTEM_ERR\nappender.out.layout.type = PatternLayout\n"
        "appender.out.layout.pattern = %m%n\n"
    )
    options = f"-Dlog4j2.configurationFile={logging.as_uri()}"
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_JAVA_OPTS": options,
        "SPARK_SUBMIT_OPTS": options,
        "SPARK_WORKER_DIR": str(folder / "work"),
    }
    command = [str(HOME / "bin" / program), *arguments]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
        try:
            assert child.stderr is not None
            assert any(ready in line for line in child.stderr)
            threading.Thread(target=child.stderr.read, daemon=True).start()  # or it would wait for a reader
            yield child
        finally:
            stop(child)


def stop(child: "subprocess.Popen[str]") -> None:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)


def run_child(master: str, journals: Path, tables: Path, victim: "subprocess.Popen[str] | None" = None) -> None:
    """Make all tables; in the middle of it the victim dies."""
    command = [sys.executable, str(CHILD), master, str(journals), str(tables)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if victim is not None and "bars_1s" in line:
                stop(victim)
    assert child.returncode == 0


@pytest.mark.timeout(1_800)
def test_a_cluster_that_loses_a_worker_and_a_connect_server_make_the_same_tables(
    spark: "SparkSession", tmp_path: Path
) -> None:
    market = Market(8)
    market.form((1, 2))
    journals = tmp_path / "journals"
    paths = market.trade_on(60).write(journals, (1, 2))
    run_batch(spark, paths, tmp_path / "local")
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    at = ("--host", "127.0.0.1", "--webui-port", "0")
    with service(
        "spark-class",
        "org.apache.spark.deploy.master.Master",
        *at,
        "--port",
        str(port),
        ready=READY["Master"],
        folder=tmp_path,
    ):
        worker = ("org.apache.spark.deploy.worker.Worker", *at, "-c", "1", "-m", "1g", master)
        with (
            service("spark-class", *worker, ready=READY["Worker"], folder=tmp_path) as victim,
            service("spark-class", *worker, ready=READY["Worker"], folder=tmp_path),
        ):
            run_child(master, journals, tmp_path / "standalone", victim)
    connect = free_port()
    server = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]")
    settings = ("--conf", f"spark.connect.grpc.binding.port={connect}", "--conf", "spark.ui.enabled=false")
    with service(
        "spark-submit", *server, *settings, "spark-internal", ready=READY["SparkConnectServer"], folder=tmp_path
    ):
        run_child(f"sc://127.0.0.1:{connect}", journals, tmp_path / "connect")
    for name in TABLES:
        same(rows(tmp_path / "standalone", name), rows(tmp_path / "local", name))
        same(rows(tmp_path / "connect", name), rows(tmp_path / "local", name))
