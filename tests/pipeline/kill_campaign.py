"""A campaign against a streaming driver: it is killed at random moments while journals grow."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from fairtape.core.effects import Ordered
from fairtape.exchange.orders import encode
from fairtape.pipeline.schemas import TABLES
from fairtape.pipeline.tables.jobs import RAW, run_batch, run_stream
from pipeline.market_values import Market, write_site
from pipeline.shared_tables import GATEWAY, requests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHILD = Path(__file__).with_name("stream_child.py")
SITES = (1, 2)
ROWS_MAX = 40  # of a micro-batch: a life has several
STEPS_MAX = 30  # of a driver, before it is killed
DELAY_MAX = 0.5  # seconds from the last of them to its death: they fall into the middle of a step


@dataclass
class GrowingJournals:
    """The journals of a market that grow while they are read; the second site is some tokens behind."""

    folder: Path
    seed: int
    written: dict[int, int] = field(default_factory=lambda: dict.fromkeys(SITES, 0))

    def __post_init__(self) -> None:
        self.market = Market(self.seed)
        self.market.form(SITES)
        for messages in requests():
            self.market.add([(GATEWAY, encode(message)) for message in messages])
        self._chances = {site: random.Random(self.seed * 1_000 + site) for site in SITES}
        self.grow()

    def grow(self, tokens: int = 1) -> None:
        """A few more tokens, and now and then another formation."""
        self.market.trade_on(tokens)
        if not self.market.token % 29:
            self.market.form(SITES[:: 1 if self.market.chance.random() < 0.5 else -1])
            self.market.trade_on(1)
        self._write(1, len(self.market.history))
        if self.market.token % 3 == 0:
            self._write(2, len(self.market.history) - self.market.chance.randint(0, 4))

    def finish(self) -> None:
        """Both sites have everything."""
        for site in SITES:
            self._write(site, len(self.market.history))

    def _write(self, site: int, end: int) -> None:
        begin = self.written[site]
        if end > begin and isinstance(self.market.history[end - 1], Ordered):
            path = self.folder / f"0-{site}"
            write_site(path, self.market.history[begin:end], stripe=0, site=site, chance=self._chances[site])
            self.written[site] = end


@dataclass
class CampaignResult:
    """The result of a campaign."""

    kills: int = 0
    failures: int = (
        0  # drivers that ended before they were killed: Spark gives a Python worker no more than ten seconds
    )
    during: list[str] = field(default_factory=list)  # the step before each death
    different: list[str] = field(default_factory=list)  # tables that differ from those of a batch
    different_again: list[str] = field(default_factory=list)  # after the checkpoint was lost, and another run
    rows: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)  # commits of each table, with those of dead drivers
    numbers: int = 0

    def __str__(self) -> str:
        making = sum("making" in step for step in self.during)
        return (
            f"{self.kills} kills ({self.failures} drivers failed beside), {making} of them while tables were made, "
            f"{self.kills - making} while streaming; "
            f"{self.versions[RAW]:,} batches committed, {sum(self.versions.values()):,} commits in all; "
            f"{self.numbers:,} numbers of {len(SITES)} sites, {self.rows[RAW]:,} rows of {RAW}, "
            f"{sum(self.rows.values()):,} rows in {len(self.rows)} tables; equal to the batch: "
            f"{'no: ' + ', '.join(self.different) if self.different else 'yes'}; equal after a lost checkpoint: "
            f"{'no: ' + ', '.join(self.different_again) if self.different_again else 'yes'}"
        )


def campaign(
    spark: "SparkSession", folder: Path, *, kills: int, seed: int, report: Callable[[str], object] = lambda _: None
) -> CampaignResult:
    """Kill a driver `kills` times, then end the stream normally, and compare every table with that of a batch."""
    chance = random.Random(seed)
    tables, checkpoint, batch = folder / "tables", folder / "checkpoint", folder / "batch"
    growing = GrowingJournals(folder / "journals", seed)
    result = CampaignResult()
    while result.kills < kills and result.failures <= kills:
        step = _run_and_kill(growing, tables, checkpoint, chance)
        if step is None:
            result.failures += 1
            continue
        result.during.append(step)
        result.kills += 1
        report(f"kill {result.kills} of {kills}, behind: {step}")
        if chance.random() < 0.25 or result.kills == 1:
            shutil.rmtree(checkpoint, ignore_errors=True)
    growing.finish()
    journals = f"{growing.folder}/*"
    run_stream(spark, journals, tables, checkpoint=checkpoint, available_now=True)
    run_batch(spark, journals, batch)
    result.different = _different(tables, batch)
    shutil.rmtree(checkpoint)
    run_stream(spark, journals, tables, checkpoint=checkpoint, available_now=True)
    result.different_again = _different(tables, batch)
    result.rows = {name: len(_rows(tables, name)) for name in TABLES}
    result.versions = {name: DeltaTable(tables / name).version() for name in TABLES}
    result.numbers = sum(growing.market.sequence - 1 for _ in SITES)
    return result


def _run_and_kill(growing: GrowingJournals, tables: Path, checkpoint: Path, chance: random.Random) -> str | None:
    """Let a driver take some steps, then `kill -9` it and its children; return the last step that it printed.

    None where it ended before: on a very busy machine Spark does not wait for its Python workers.
    """
    command = [sys.executable, str(CHILD), str(growing.folder), str(tables), str(checkpoint), str(ROWS_MAX)]
    step = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        try:
            assert child.stdout is not None
            for _ in range(chance.randint(1, STEPS_MAX)):
                if not (step := child.stdout.readline().strip()):
                    return None
                growing.grow()
            with suppress(subprocess.TimeoutExpired):
                child.wait(chance.uniform(0, DELAY_MAX))
        finally:
            os.killpg(child.pid, signal.SIGKILL)
    return step


def _different(tables: Path, batch: Path) -> list[str]:
    return [name for name in TABLES if _rows(tables, name) != _rows(batch, name)]


def _rows(folder: Path, name: str) -> list[Any]:
    return sorted(DeltaTable(folder / name).to_pyarrow_table().to_pylist(), key=repr)
