"""`fairtape bench pipeline` and `fairtape bench memory`: journals into Spark and Delta tables.

Pipeline: throughput from a journal into Spark and into a Delta table, delay of a live stream, and one-second bars
beside DuckDB and Polars. All inputs are generated and measured in one run: a journal of trades in blocks as from a
network, and Parquet files for the bars. The start of Spark is not measured.

Memory: whether memory stays flat while a long journal streams into a table. Once a second the memory of this process,
of Java and of Python workers is read from the kernel. The run is divided into fifths by the rows in the table. The
first fifth is the warm-up; the others should not grow.
"""

import json
import os
import re
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from fairtape.bench.results import Results, Step, resident_bytes
from fairtape.core.effects import Ordered, Release, Span
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.core.percentiles import percentile
from fairtape.journal import JournalWriter, SyncPolicy
from fairtape.market.trades import TRADE_SIZE, Trades, blank_trades
from fairtape.pipeline.source.options import BATCH_ROWS_MAX
from fairtape.pipeline.source.partitions import PartitionName
from fairtape.pipeline.spark.delta import ROW_GROUP_ROWS
from fairtape.pipeline.spark.snapshots import folder_of
from fairtape.pipeline.spark.spark_session import spark_session
from fairtape.pipeline.tables.ingest import ingest_journals, stream_journals
from fairtape.pipeline.tables.jobs import RAW
from fairtape.pipeline.tables.market_tables import bars
from fairtape.wire.blocks import pack_records

STARTS_AT: Final = 1_750_000_000 * SECOND
VENUES: Final = np.array([b"XNYS", b"XNAS", b"BATS"])
SOURCES: Final = 3
PER_BLOCK: Final = 21  # 64-byte messages that fit a datagram
CHUNK: Final = 1 << 18
COMMIT_DELAY: Final = 2 * MILLISECOND
FILES: Final = 8  # of the table for the bars
BARS_FOLDER: Final = "trades"
UNSTEADY_COMMITS: Final = 3
BARS_PERIOD: Final = 180 * SECOND  # of that table: about twenty trades in a bar

GOALS_MIN: Final = {
    "source_rows_per_s": 1e6,
    "ingest_rows_per_s": 1e6,
    "duckdb_ratio": 0.35,
    "bars_core_ratio": 2 / 1.3,  # two cores against one
}
RATIOS: Final = ("duckdb_ratio", "bars_core_ratio")
STREAM_P50_MAX: Final = 2_000.0  # ms

DUCKDB_BARS: Final = """
CREATE OR REPLACE TEMP TABLE bars AS
SELECT symbol, traded_at_ns - traded_at_ns % 1000000000 AS period_at_ns,
       arg_min(price, sequence), max(price), min(price), arg_max(price, sequence), sum(quantity), count(*)
FROM trades GROUP BY ALL
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSetting:
    """One run."""

    master: str = "local[2]"
    messages: int = 8_000_000  # of the journal
    per_token: int = 500
    bar_trades: int = 20_000_000
    symbols: int = 5_000
    rounds: int = 3  # each result is the best of its rounds; engines run in turn
    warming_rounds: int = 5  # additional rounds for the bars of each engine, until Java has compiled
    stream_seconds: float = 20.0
    stream_rate: int = 20_000  # messages per second
    token_period: int = 20 * MILLISECOND


def measure_pipeline(setting: PipelineSetting | None = None, step: Step | None = None) -> dict[str, float]:
    """All results of one run, by their published names."""
    setting, step = setting or PipelineSetting(), step or _ignore
    results: dict[str, float] = {}
    with TemporaryDirectory(prefix="fairtape-bench-") as folder:
        with _session(setting.master) as spark:
            for what, part in (("journals", measure_journals), ("bars", measure_bars), ("the stream", measure_stream)):
                step(f"measuring {what}")
                results |= part(spark, Path(folder), setting)
        if setting.master.startswith("local") and _cores(setting.master) == 2:
            step("measuring bars on one core")
            with _session("local[1]") as spark:
                one_core = setting.bar_trades / min(_bar_times(spark, Path(folder), setting.rounds))
            results["bars_core_ratio"] = results["bars_rows_per_s"] / one_core
    return {name: round(result, 3 if name in RATIOS else 0) for name, result in results.items()}


@contextmanager
def _session(master: str) -> Iterator[SparkSession]:
    spark = spark_session(master, quick=False, memory="4g")
    try:
        yield spark
    finally:
        spark.stop()


def shortfalls_of(results: Mapping[str, float]) -> list[str]:
    """Which results are below their goals, one sentence each."""
    found = [
        f"{name} is {results[name]:,g}; the goal is at least {least:,g}"
        for name, least in GOALS_MIN.items()
        if results.get(name, least) < least
    ]
    if results["stream_p50_ms"] > STREAM_P50_MAX:
        found.append(f"stream_p50_ms is {results['stream_p50_ms']:,g}; the goal is at most {STREAM_P50_MAX:,g}")
    return found


def _ignore(_text: str) -> None:
    pass


def measure_journals(spark: SparkSession, folder: Path, setting: PipelineSetting) -> dict[str, float]:
    """A journal into Spark, and a journal into a Delta table."""
    journal = folder / "journal"
    write_journal(journal, setting.messages, per_token=setting.per_token, symbols=setting.symbols)
    source = spark.read.format("fairtape").option("journals", str(journal))
    tables = iter(folder / f"table-{number}" for number in range(3 * setting.rounds))
    seconds = _times(
        setting.rounds,
        {
            "source_rows_per_s": lambda: _consume(source.load()),
            "source_trades_per_s": lambda: _consume(source.option("rows", "trades").load()),
            "ingest_rows_per_s": lambda: ingest_journals(spark, journal, next(tables)),
            "ingest_trades_per_s": lambda: ingest_journals(spark, journal, next(tables), rows="trades"),
        },
    )
    return {name: setting.messages / min(spent) for name, spent in seconds.items()}


def measure_bars(spark: SparkSession, folder: Path, setting: PipelineSetting) -> dict[str, float]:
    """One-second bars of the same Parquet files by three engines."""
    import duckdb
    import polars as pl

    files = folder / BARS_FOLDER
    write_trades(files, setting.bar_trades, symbols=setting.symbols)
    duck = duckdb.connect(config={"threads": _cores(setting.master)})
    duck.read_parquet(f"{files}/*.parquet").create_view("trades")
    by_sequence = pl.scan_parquet(f"{files}/*.parquet").group_by("symbol", pl.col("traded_at_ns") // SECOND)
    lazy = by_sequence.agg(
        pl.col("price").first().alias("open"),
        pl.col("price").max().alias("high"),
        pl.col("price").min().alias("low"),
        pl.col("price").last().alias("close"),
        pl.col("quantity").sum(),
        pl.len(),
    )
    seconds = _times(
        setting.warming_rounds + setting.rounds,
        {
            "bars_rows_per_s": lambda: _make_bars(spark, folder),
            "duckdb_rows_per_s": lambda: duck.execute(DUCKDB_BARS),
            "polars_rows_per_s": lambda: lazy.collect(),
        },
    )
    rates = {name: setting.bar_trades / min(spent) for name, spent in seconds.items()}
    at_first = setting.bar_trades / seconds["bars_rows_per_s"][0]
    ratio = rates["bars_rows_per_s"] / rates["duckdb_rows_per_s"]
    return {**rates, "bars_first_rows_per_s": at_first, "duckdb_ratio": ratio}


def measure_stream(spark: SparkSession, folder: Path, setting: PipelineSetting) -> dict[str, float]:
    """The delay of every token from its release at the site to the commit of the table, with the default trigger."""
    journal, table = folder / "live", folder / "live-table"
    released_at: list[tuple[int, int]] = []  # the number after each token, and when it was released
    site = threading.Thread(target=_live_site, args=(journal, setting, released_at))
    site.start()
    query = stream_journals(spark, f"{folder}/liv[e]", table)
    site.join()
    query.processAllAvailable()
    query.stop()
    delays = sorted(_delays(table, released_at))
    return {
        "stream_p50_ms": percentile(delays, 0.5, 0) / MILLISECOND,
        "stream_p99_ms": percentile(delays, 0.99, 0) / MILLISECOND,
    }


def _delays(table: Path, released_at: list[tuple[int, int]]) -> Iterator[int]:
    """A commit is visible from the time of its file, and records its last number.

    The first commits include what was released while Spark started, so only later releases count.
    """
    reached = sorted(_reached(sorted((table / "_delta_log").glob("*.json"))))
    _, steady_at = reached[min(UNSTEADY_COMMITS, len(reached)) - 1]
    for end, at in released_at:
        if at > steady_at:
            _, seen_at = reached[bisect_left(reached, end, key=lambda each: each[0])]
            yield seen_at - at


def _reached(commits: list[Path]) -> Iterator[tuple[int, int]]:
    for commit in commits:
        for line in commit.read_text().splitlines():
            if (moved := json.loads(line).get("txn")) is not None:
                yield moved["version"], commit.stat().st_mtime_ns


def _live_site(journal: Path, setting: PipelineSetting, released_at: list[tuple[int, int]]) -> None:
    """Write a journal as a site does: tokens, and their release marks in time."""
    per_token = max(setting.stream_rate * setting.token_period // SECOND, 1)
    rng = np.random.default_rng(2)
    with JournalWriter.open(journal, stripe=0, site=1, sync=SyncPolicy.NEVER) as writer:
        due_at, token, sequence = time.time_ns(), 1, 1
        ends_at = due_at + int(setting.stream_seconds * SECOND)
        while due_at < ends_at:
            ordered = _token(token, sequence, _trades(rng, sequence, per_token, setting.symbols), due_at)
            writer.append(ordered, due_at)
            time.sleep(max(due_at - time.time_ns(), 0) / SECOND)
            now = time.time_ns()
            writer.release(Release(token, sequence, per_token, due_at, now, late=False, clock_bound=0), now)
            token, sequence, due_at = token + 1, sequence + per_token, due_at + setting.token_period
            released_at.append((sequence, now))


def write_journal(directory: Path, messages: int, *, per_token: int, symbols: int, seed: int = 1) -> None:
    """Write a journal of trades: tokens of three sources in turn, blocks of one datagram, all released."""
    rng = np.random.default_rng(seed)
    with JournalWriter.open(directory, stripe=0, site=1, sync=SyncPolicy.NEVER) as writer:
        token, sequence = 1, 1
        while sequence <= messages:
            chunk = _trades(rng, sequence, min(CHUNK, messages - sequence + 1), symbols)
            for start in range(0, len(chunk), per_token):
                part = chunk[start : start + per_token]
                at = int(part["traded_at"][-1])
                writer.append(_token(token, sequence, part, at), at)
                commit_at = at + COMMIT_DELAY
                writer.release(
                    Release(token, sequence, len(part), commit_at, commit_at, late=False, clock_bound=1_000), at
                )
                token, sequence = token + 1, sequence + len(part)


def write_trades(folder: Path, trades: int, *, symbols: int, seed: int = 1) -> None:
    """Write trades to Parquet files, symbols as integers."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for first, end in pairwise([trades * part // FILES for part in range(FILES + 1)]):
        count = end - first
        columns = {
            "sequence": np.arange(first + 1, end + 1),
            "symbol": rng.integers(0, symbols, count, np.int32),
            "price": 100 * SECOND + rng.integers(-5_000, 5_000, count) * 10_000_000,
            "quantity": rng.integers(1, 10, count) * 100 * SECOND,
            "traded_at_ns": STARTS_AT + np.arange(first, end) * (BARS_PERIOD // trades),
        }
        pq.write_table(
            pa.table(columns), folder / f"{first:012d}.parquet", compression="zstd", row_group_size=ROW_GROUP_ROWS
        )


def _trades(rng: np.random.Generator, first: int, count: int, symbols: int) -> Trades:
    trades = blank_trades(count)
    numbers = np.arange(first, first + count)
    trades["venue"] = VENUES[rng.integers(0, len(VENUES), count)]
    trades["symbol"] = np.char.mod("S%05d", rng.integers(0, symbols, count)).astype("S")
    trades["price"] = 100 * SECOND + rng.integers(-500, 500, count) * 10_000_000
    trades["quantity"] = rng.integers(1, 10, count) * 100 * SECOND
    trades["traded_at"] = STARTS_AT + numbers * 1_000
    trades["trade_id"] = numbers
    return trades


def _token(token: int, sequence: int, trades: Trades, at: int) -> Ordered:
    octets, count = trades.tobytes(), len(trades)
    step = PER_BLOCK * TRADE_SIZE
    bodies = tuple(pack_records(octets[start : start + step], TRADE_SIZE) for start in range(0, len(octets), step))
    counts = tuple((len(body) - 2) // TRADE_SIZE for body in bodies)
    span = Span(101 + token % SOURCES, 1, sequence, count, sequence, bodies, counts)
    return Ordered(0, 1, token, sequence, count, at, (span,))


def _make_bars(spark: SparkSession, folder: Path) -> None:
    _consume(bars(spark.read.parquet(str(folder / BARS_FOLDER))))


def _bar_times(spark: SparkSession, folder: Path, rounds: int) -> list[float]:
    return _times(rounds, {"bars": lambda: _make_bars(spark, folder)})["bars"]


def _consume(frame: DataFrame) -> None:
    """Compute every row and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def _times(rounds: int, runs: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Seconds of each run. All run in turn, so that a slow phase of the machine affects all alike."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            found[name].append(time.perf_counter() - began)
    return found


def _cores(master: str) -> int:
    """The cores of a local master; 2 for a remote one."""
    if master == "local[*]":
        return len(os.sched_getaffinity(0))
    named = re.fullmatch(r"local\[(\d+)\]", master)
    return int(named[1]) if named else 2


# Memory.

FIFTHS: Final = 5
BATCHES_MIN: Final = 4  # in each fifth
SYMBOLS: Final = 5_000
PER_TOKEN: Final = 500
MESSAGE_BYTES: Final = 64  # of a journal, at least
PERIOD: Final = 1.0  # seconds between two samples
GIGABYTE: Final = 1_000_000_000
_MIB: Final = 1 << 20


@dataclass
class StreamMemory:
    """The peak memory of each kind of process in each fifth of the run, in MiB."""

    driver: list[int] = field(default_factory=lambda: [0] * FIFTHS)
    java: list[int] = field(default_factory=lambda: [0] * FIFTHS)
    workers: list[int] = field(default_factory=lambda: [0] * FIFTHS)

    def sample(self, fifth: int, held: dict[str, int]) -> None:
        for name, octets in held.items():
            most = getattr(self, name)
            most[fifth] = max(most[fifth], octets // _MIB)

    def growth(self) -> float:
        """Total memory in the last fifth, relative to the second."""
        total = [sum(each) for each in zip(self.driver, self.java, self.workers, strict=True)]
        return total[-1] / max(total[1], 1)


def measure_stream_memory(gigabytes: float, master: str, step: Step) -> Results:
    """Write a journal of this size, stream it into a table, and sample the memory."""
    messages = int(gigabytes * GIGABYTE) // MESSAGE_BYTES
    memory = StreamMemory()
    with TemporaryDirectory(prefix="fairtape-bench-") as place:
        folder = Path(place)
        step(f"writing a journal of {messages:,} messages")
        write_journal(folder / "journal", messages, per_token=PER_TOKEN, symbols=SYMBOLS)
        size = sum(path.stat().st_size for path in (folder / "journal").iterdir())
        spark = spark_session(master)
        try:
            began_at = time.perf_counter()
            batch = min(messages // (FIFTHS * BATCHES_MIN), BATCH_ROWS_MAX)
            query = stream_journals(spark, folder / "journal", folder / RAW, available_now=True, max_rows=batch)
            while not query.awaitTermination(PERIOD):  # type: ignore[arg-type]  # fractions of a second work
                ingested = _ingested(folder)
                memory.sample(min(ingested * FIFTHS // messages, FIFTHS - 1), _held())
                step(f"streaming: {ingested:,} of {messages:,} messages, {sum(_held().values()) // _MIB:,} MiB")
            spent = time.perf_counter() - began_at
        finally:
            spark.stop()
        assert _ingested(folder) == messages
    return {
        "journal_bytes": size,
        "messages": messages,
        "messages_per_s": round(messages / spent),
        "driver_mib": memory.driver,
        "java_mib": memory.java,
        "workers_mib": memory.workers,
        "growth": round(memory.growth(), 3),
    }


def _ingested(folder: Path) -> int:
    mark = folder_of(folder, RAW).offsets().get(PartitionName(0, 1))
    return 0 if mark is None else mark.next - 1


def _held() -> dict[str, int]:
    """Resident bytes of this process, of Java and of its Python workers."""
    held = {"driver": resident_bytes(os.getpid()), "java": 0, "workers": 0}
    children = _children()
    below = list(children[os.getpid()])
    while below:
        pid, name = below.pop()
        held["java" if name == "java" else "workers"] += resident_bytes(pid)
        below += children[pid]
    return held


def _children() -> dict[int, list[tuple[int, str]]]:
    """The child processes of every process, with their names."""
    found: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (process / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue  # it has ended
        found[int(rest.split()[1])].append((int(process.name), name))
    return found
