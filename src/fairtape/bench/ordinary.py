"""`fairtape bench ordinary`: the commands of a new user with their defaults, while another program keeps a core busy.

`init`, `up`, `listen`, `web` and `publish` run as real processes, as from a terminal. Ten customers connect to the web
server by WebSocket. A program that only computes competes for the cores, from the first trade to the last. What the
sites did is read from `fairtape status --json` and from the lines of `fairtape up`.
"""

import asyncio
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Final, Self

import numpy as np
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from fairtape.bench.results import Results, Step
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND
from fairtape.deployment.operations.profile_measurement import BUSY_PROGRAM
from fairtape.deployment.process.children import Interrupts
from fairtape.deployment.status import ReformerStatus, SiteStatus, decode_status
from fairtape.net.driver import may_run_in_real_time
from fairtape.tape.serialization import decode_batch

RATE: Final = 500  # trades per second
CUSTOMERS: Final = 10
SITE: Final = "s1"  # whose ticker is served

# Goals.
LATE_FRACTION_MAX: Final = 0.005
GUARANTEED_DELAY_MAX: Final = 60.0  # milliseconds

# Seconds.
START_PERIOD_MAX: Final = 60.0
PUBLISH_SPARE: Final = 60.0  # beyond the time that the trades take at their rate
STOP_PERIOD_MAX: Final = 20.0
SETTLING_PERIOD: Final = 2.0  # for the last releases, and for a status that counts them
POLL_PERIOD: Final = 0.2

REFORMING: Final = re.compile(r": reforming after formation \d+")
REPACED: Final = re.compile(r": formation \d+ .*the token is (?:slowed|sped up)")
OVERLOAD: Final = "this server cannot keep up"
LISTENED: Final = re.compile(r"^ *\d+  ", re.MULTILINE)  # a trade; other lines begin with a word
TICKER: Final = re.compile(r"is at http://([\d.]+:\d+)/")


class Commands:
    """Commands that run beside this process, with their output in files. Leaving the context ends all of them."""

    def __init__(self, folder: Path, interrupts: Interrupts) -> None:
        self._folder = folder
        self._interrupts = interrupts
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str, *words: str) -> "subprocess.Popen[bytes]":
        """Start a program; Ctrl-C of a terminal does not reach it."""
        with (self._folder / f"{name}.out").open("wb") as output, (self._folder / f"{name}.err").open("wb") as errors:
            process = subprocess.Popen(  # noqa: S603 - our own commands
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def fairtape(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        return self.start(name, "-m", "fairtape", name, *arguments)

    def finish(self, name: str, *arguments: str, wait_max: float) -> tuple[int, str]:
        """Run a command to its end: its exit code and standard output."""
        process = self.fairtape(name, *arguments)
        self.wait_until(lambda: process.poll() is not None, wait_max, f"the end of fairtape {name}")
        self._started.remove(process)
        return process.returncode, self.output(name)

    def output(self, name: str) -> str:
        return (self._folder / f"{name}.out").read_text(errors="replace")

    def errors(self, name: str) -> str:
        return (self._folder / f"{name}.err").read_text(errors="replace")

    def wait_until(self, done: Callable[[], object], wait_max: float, what: str) -> None:
        """Raises `UserError` after `wait_max` seconds, and `KeyboardInterrupt` after Ctrl-C."""
        give_up_at = time.monotonic() + wait_max
        while not done():
            if self._interrupts.count:
                raise KeyboardInterrupt
            if time.monotonic() > give_up_at:
                raise UserError(f"waited {wait_max:g} s for {what}; the machine may be too busy")
            time.sleep(POLL_PERIOD)

    def pause(self, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        self.wait_until(lambda: time.monotonic() >= ends_at, 2 * seconds, "a pause")

    def stop(self) -> None:
        """Interrupt all that run, the last one first, as a user does with Ctrl-C; kill those that do not end."""
        while self._started:
            process = self._started[-1]
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_PERIOD_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._started.pop()


class Customers:
    """WebSocket customers in a thread: how long after its release each trade came to each of them."""

    def __init__(self, address: str, count: int) -> None:
        self.delays = array("q")
        self.received = [0] * count
        self.connected = 0
        self._address = address
        self._thread = Thread(target=lambda: asyncio.run(self._run()), name="customers", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the server has closed all connections."""
        self._thread.join(STOP_PERIOD_MAX)

    async def _run(self) -> None:
        await asyncio.gather(*(self._receive(number) for number in range(len(self.received))))

    async def _receive(self, number: int) -> None:
        uri = f"ws://{self._address}/v1/ticker?form=binary"
        async with connect(uri, compression=None, max_size=None, proxy=None) as connection:
            self.connected += 1
            try:
                async for frame in connection:
                    if isinstance(frame, bytes):
                        now = time.time_ns()
                        batch, _ = decode_batch(frame, now)
                        self.received[number] += len(batch.places)
                        self.delays.extend((now - batch.places["released_at"]).tolist())
            except ConnectionClosed:
                return


def measure_ordinary(*, minutes: float, sites: int | None, step: Step) -> Results:
    """All results, with the goals that they miss."""
    with (
        tempfile.TemporaryDirectory(prefix="fairtape-ordinary-", ignore_cleanup_errors=True) as scratch,
        Interrupts() as interrupts,
        Commands(Path(scratch), interrupts) as commands,
    ):
        results = _run(commands, Path(scratch) / "market", minutes=minutes, sites=sites, step=step)
    return results | {"problems": problems_of(results), "shortfalls": shortfalls_of(results)}


def _run(commands: Commands, folder: Path, *, minutes: float, sites: int | None, step: Step) -> Results:
    directory = str(folder)
    trades, publish_max = round(RATE * 60 * minutes), 60 * minutes + PUBLISH_SPARE
    bound = ("--seconds", str(publish_max + 4 * START_PERIOD_MAX))  # they end even if this process is killed
    step("fairtape init")
    options = () if sites is None else ("--sites", str(sites))
    code, chosen = commands.finish("init", directory, *options, wait_max=START_PERIOD_MAX)
    if code:
        raise UserError(f"fairtape init ended with exit code {code}: {commands.errors('init').strip()}")
    step("fairtape up, listen and web")
    commands.fairtape("up", directory, *bound)
    commands.wait_until(
        lambda: DeploymentStatus.read(commands, directory).is_whole, START_PERIOD_MAX, "all sites to be members"
    )
    commands.fairtape("listen", directory, *bound)
    commands.wait_until(lambda: "following site" in commands.errors("listen"), START_PERIOD_MAX, "fairtape listen")
    commands.fairtape("web", directory, SITE, "--port", "0")
    commands.wait_until(lambda: TICKER.search(commands.errors("web")), START_PERIOD_MAX, "the web server")
    found = TICKER.search(commands.errors("web"))
    assert found is not None
    customers = Customers(found[1], CUSTOMERS)
    commands.wait_until(lambda: customers.connected == CUSTOMERS, START_PERIOD_MAX, "the customers")
    before, announced = DeploymentStatus.read(commands, directory), len(commands.output("up"))
    step(f"fairtape publish, {RATE} trades/s for {minutes:g} minutes, while another program keeps a core busy")
    commands.start("busy", "-c", BUSY_PROGRAM.format(seconds=publish_max))
    words = ("--generate", str(trades), "--rate", str(RATE))
    published, _ = commands.finish("publish", directory, *words, wait_max=publish_max)
    commands.pause(SETTLING_PERIOD)
    after = DeploymentStatus.read(commands, directory)
    commands.stop()
    customers.join()
    notices = commands.output("up")[announced:].splitlines()
    return {
        "minutes": minutes,
        "trades": trades,
        "profile": chosen.rpartition(", profile ")[2].partition(";")[0],
        "published": not published,
        "listened": len(LISTENED.findall(commands.output("listen"))),
        "reformations": sum(bool(REFORMING.search(line)) for line in notices),
        "pace_changes": sum(bool(REPACED.search(line)) for line in notices),
        **_released(before, after),
        **_web(customers, trades, commands.errors("web")),
    }


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """What `fairtape status --json` reports."""

    sites: Mapping[str, SiteStatus]
    leader: ReformerStatus | None
    guaranteed_delay_ms: float

    @classmethod
    def read(cls, commands: Commands, directory: str) -> Self:
        _, output = commands.finish("status", directory, "--json", wait_max=START_PERIOD_MAX)
        content: dict[str, Any] = json.loads(output)
        nodes = {name: decode_status(node) for name, node in content["nodes"].items()}
        return cls(
            {name: node for name, node in nodes.items() if isinstance(node, SiteStatus)},
            next((node for node in nodes.values() if isinstance(node, ReformerStatus) and node.leads), None),
            content["guaranteed_delay_ms"] or 0.0,
        )

    @property
    def is_whole(self) -> bool:
        """Whether all sites that run are members."""
        members = {name for name, site in self.sites.items() if site.is_member}
        return self.leader is not None and self.leader.phase == "steady" and {*self.leader.members} == members


def _released(before: DeploymentStatus, after: DeploymentStatus) -> Results:
    """What the sites did in between."""
    both = [(before.sites[name], site) for name, site in after.sites.items() if name in before.sites]
    messages = sum(site.messages - earlier.messages for earlier, site in both)
    late = sum(site.late - earlier.late for earlier, site in both)
    return {
        "sites": len(both),
        "messages": messages,
        "late_fraction": round(late / max(messages, 1), 6),
        "guaranteed_delay_ms": max(before.guaranteed_delay_ms, after.guaranteed_delay_ms),
        "requests": sum(site.requests - earlier.requests for earlier, site in both),
        "real_time": may_run_in_real_time(),
    }


def _web(customers: Customers, trades: int, errors: str) -> Results:
    delays = np.frombuffer(customers.delays, np.int64) / MILLISECOND
    p50, p99 = (round(float(np.percentile(delays, each)), 2) if len(delays) else 0.0 for each in (50, 99))
    return {
        "web_customers": CUSTOMERS,
        "web_p50_ms": p50,
        "web_p99_ms": p99,
        "web_max_ms": round(float(delays.max()), 2) if len(delays) else 0.0,
        "web_overloads": errors.count(OVERLOAD),
        "web_missing": sum(abs(trades - received) for received in customers.received),
    }


def problems_of(results: Results) -> list[str]:
    """Why these results are invalid, one sentence each."""
    found = []
    if not results["published"]:
        found.append("fairtape publish did not get all trades acknowledged")
    if results["web_missing"]:
        found.append(f"web_missing is {results['web_missing']}: a customer missed trades, or got some twice")
    if results["listened"] != results["trades"]:
        found.append(f"listened is {results['listened']}; fairtape publish sent {results['trades']} trades")
    return found


def shortfalls_of(results: Results) -> list[str]:
    """Which results miss their goals, one sentence each."""
    limits = {
        "late_fraction": LATE_FRACTION_MAX,
        "reformations": 0,
        "guaranteed_delay_ms": GUARANTEED_DELAY_MAX,
        "web_overloads": 0,
    }
    found = []
    for name, limit in limits.items():
        result = results[name]
        assert isinstance(result, int | float)
        if result > limit:
            found.append(f"{name} is {result:g}; the goal is at most {limit:g}")
    return found
