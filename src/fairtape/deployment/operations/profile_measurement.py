"""Which profile this machine sustains: the deployment of `fairtape init` runs here for some seconds, and is measured.

All processes of the draft run in a temporary folder, with the fastest profile first: idle; then with a paced load while
another program keeps a core busy, as on a machine that is used for something else, too; then with trades that are
published as fast as the ring accepts them. A profile is sustained if almost nothing is late and the idle deployment
leaves most of the processors to other programs. Where there is a doubt, the next slower profile is measured: a few
seconds prove little.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.core.timing import PROFILES
from fairtape.deployment.config.capacity import candidate_profiles, cores_here
from fairtape.deployment.config.description import Deployment, NodeKind
from fairtape.deployment.config.process_names import edge_names
from fairtape.deployment.lock_file import folder_lock
from fairtape.deployment.operations.draft import LOCAL_STORE, Draft, create_deployment
from fairtape.deployment.operations.drills import DrillTarget
from fairtape.deployment.process.children import Interrupts
from fairtape.deployment.process.local_cluster import LocalCluster
from fairtape.deployment.status import SiteStatus
from fairtape.deployment.status_files import cpu_seconds
from fairtape.journal import JournalReader

# Seconds.
PERIOD_MAX: Final = 15.0  # of all measurements, with the start and the end of the processes
IDLE_PERIOD: Final = 0.8
WARM_PERIOD: Final = 0.3  # of load that is not measured
LOAD_PERIOD: Final = 1.6
FLOOD_PERIOD: Final = 1.6  # with the start of the publisher
STATUS_PERIOD: Final = 0.5  # between two statuses of a site
END_PERIOD: Final = 0.4  # for all processes to end
RUN_PERIOD: Final = 5.5  # of one profile without the flood of trades
POLL_PERIOD: Final = 0.05

LOAD_RATE: Final = 500.0  # messages per second
LOAD_SIZE: Final = 64  # bytes
FLOOD_TRADES: Final = 600_000

LATE_SHARE_MAX: Final = 0.001  # of the releases of all sites
FLOOD_LATE_SHARE_MAX: Final = 0.01
LATE_SHARE_LAST_MAX: Final = 0.01  # of the last candidate: the profile after it is made for other continents
IDLE_SHARE_MAX: Final = 0.25  # of all cores, for a deployment without messages

# A program that only computes. It ends by itself.
BUSY_PROGRAM: Final = "import time\nends_at = time.monotonic() + {seconds}\nwhile time.monotonic() < ends_at: pass"

SLOWEST: Final = tuple(PROFILES)[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRun:
    """What was measured with one profile. Shares of cores are those of all processes of the deployment."""

    profile: str
    delay_max: Duration
    messages: int = 0  # released, over all sites
    late: int = 0
    pauses: int = 0  # of more than 50 ms between two releases of a site
    requests: int = 0
    reformations: int = 0
    idle_share: float = 0.0  # of all cores, without messages
    load_share: float = 0.0  # of all cores, with messages
    flood_rate: float | None = None  # trades per second; None: not measured
    flood_late_share: float = 0.0
    trouble: str = ""  # why the run did not come to its end

    @property
    def late_share(self) -> float:
        return self.late / max(self.messages, 1)

    def doubt(self, *, last: bool) -> str:
        """Why this profile may not be sustained; empty: it is. The last candidate is given up for overload only."""
        if self.trouble:
            return self.trouble
        if self.reformations:
            return "the ring was reformed although nothing had failed"
        if self.late_share > (LATE_SHARE_LAST_MAX if last else LATE_SHARE_MAX):
            return f"{self.late_share:.1%} of its messages were late"
        if last:
            return ""
        if self.pauses:
            return "a site stalled for more than 50 ms"
        if self.idle_share > IDLE_SHARE_MAX:
            return f"it takes {self.idle_share:.0%} of the processors without any message"
        if self.flood_rate is None:
            return "no time was left to publish trades as fast as possible"
        if self.flood_late_share > FLOOD_LATE_SHARE_MAX:
            return f"{self.flood_late_share:.1%} were late of trades that were published as fast as possible"
        return ""


@dataclass(frozen=True, slots=True)
class ProfileChoice:
    """The profile for this machine, and one sentence that says why."""

    profile: str
    reason: str
    runs: tuple[ProfileRun, ...] = ()


def choose_profile(runs: Sequence[ProfileRun], candidates: Sequence[str]) -> ProfileChoice | None:
    """The fastest candidate that is sustained, from runs with the first of them; None: the next has to be measured."""
    doubts: list[str] = []
    for run in runs:
        doubt = run.doubt(last=run.profile == candidates[-1])
        if not doubt:
            also = "" if not doubts else f", and not {'; '.join(doubts)}"
            return ProfileChoice(run.profile, f"this machine sustains {run.profile}{also}", tuple(runs))
        doubts.append(f"{run.profile}: {doubt}")
    if len(runs) < len(candidates):
        return None
    return ProfileChoice(SLOWEST, f"this machine sustains only {SLOWEST}, and not {'; '.join(doubts)}", tuple(runs))


def measure_profile(draft: Draft, step: Callable[[str], None]) -> ProfileChoice:
    """Run the draft with one profile after the other until one is sustained. Without measurements, the slower is taken.

    Nothing is left behind, whatever happens. Raises `KeyboardInterrupt` after SIGINT and SIGTERM.
    """
    cores = cores_here()
    candidates = candidate_profiles(draft.sites, cores)
    if not candidates:
        return ProfileChoice(
            SLOWEST, f"only {SLOWEST} leaves time for messages with {draft.sites} sites on {cores} cores"
        )
    if sys.platform != "linux":
        return _unmeasured(candidates, "it needs Linux")
    ends_at = time.monotonic() + PERIOD_MAX
    runs: list[ProfileRun] = []
    with Interrupts() as interrupts:
        for number, profile in enumerate(candidates):
            step(f"measuring what this machine sustains, for at most {PERIOD_MAX:g} s in all: profile {profile}")
            deadline = ends_at - (len(candidates) - number - 1) * RUN_PERIOD - END_PERIOD
            try:
                runs.append(_run(draft, profile, deadline, interrupts))
            except (UserError, OSError) as error:
                return _unmeasured(candidates, str(error))
            if (chosen := choose_profile(runs, candidates)) is not None:
                break
    assert chosen is not None
    return replace(chosen, reason=chosen.reason + too_fast(candidates[0], sites=draft.sites, cores=cores))


def too_fast(first: str, *, sites: int, cores: int) -> str:
    """Which profiles were not measured, because they are faster than the first that these cores may sustain."""
    names = tuple(PROFILES)
    faster = names[: names.index(first)]
    if not faster:
        return ""
    return f"; {' and '.join(faster)} was not measured, because {sites} sites are too many for it on {cores} cores"


def _unmeasured(candidates: Sequence[str], cause: str) -> ProfileChoice:
    return ProfileChoice(
        candidates[-1], f"nothing was measured ({cause}), so the slower profile {candidates[-1]} is taken"
    )


def _run(draft: Draft, profile: str, deadline: float, interrupts: Interrupts) -> ProfileRun:
    """Run the draft with this profile in a temporary folder, which also has the formation store."""
    with tempfile.TemporaryDirectory(prefix="fairtape-init-", ignore_cleanup_errors=True) as scratch:
        local = replace(draft, profile=profile, store=LOCAL_STORE, pace="fixed")
        deployment = create_deployment(Path(scratch) / "deployment", local)
        with folder_lock(deployment.folder):
            measurement = _Measurement(deployment, deadline, interrupts)
            try:
                return measurement.run(ProfileRun(profile=profile, delay_max=deployment.timing.delay_max))
            finally:
                measurement.stop()


class _Measurement:
    """One deployment that runs for some seconds."""

    def __init__(self, deployment: Deployment, deadline: float, interrupts: Interrupts) -> None:
        self._target = DrillTarget(deployment)
        self._cluster = LocalCluster(deployment, quiet=True)
        self._deadline = deadline
        self._interrupts = interrupts
        self._names = [*deployment.nodes, *edge_names(deployment)]
        self._children: list[subprocess.Popen[bytes]] = []  # that load the machine

    def run(self, profile: ProfileRun) -> ProfileRun:
        """The results, given those that are known before."""
        began_at = time.monotonic()
        self._cluster.start()
        if not self._wait_until(lambda: not self._target.unsettled(), IDLE_PERIOD + WARM_PERIOD + LOAD_PERIOD):
            trouble = f"its sites formed no ring within {time.monotonic() - began_at:.0f} s"
            return replace(profile, trouble=trouble)
        idle_share = min(self._core_share(IDLE_PERIOD / 2) for _ in range(2))  # it may still be starting
        self._children.append(
            subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-c", BUSY_PROGRAM.format(seconds=PERIOD_MAX)], stdin=subprocess.DEVNULL
            )
        )
        source = self._target.deployment.of_kind(NodeKind.SOURCE)[-1]
        self._target.load.start(source.name, "--load", str(LOAD_RATE), "--size", str(LOAD_SIZE))
        if not self._wait_until(self._all_release, LOAD_PERIOD):
            return replace(profile, idle_share=idle_share, trouble="its sites released nothing in time")
        self._wait(WARM_PERIOD)
        before = self._target.sites()
        load_share = self._core_share(LOAD_PERIOD)
        measured = replace(profile, idle_share=idle_share, load_share=load_share)
        measured = _released(measured, before, self._target.sites())
        self._end_load()
        return self._flooded(measured)

    def _flooded(self, measured: ProfileRun) -> ProfileRun:
        """With what a flood of trades showed, if there is time for it."""
        if measured.doubt(last=True) or time.monotonic() + FLOOD_PERIOD + STATUS_PERIOD > self._deadline:
            return measured
        before, began_at = self._target.sites(), self._target.now()
        deployment = self._target.deployment
        words = ["publish", str(deployment.folder), "--generate", str(FLOOD_TRADES)]
        publisher = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "fairtape", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._children.append(publisher)
        ends_at = time.monotonic() + FLOOD_PERIOD
        self._wait_until(lambda: publisher.poll() is not None or time.monotonic() >= ends_at, 0.0)
        self._end_load()
        self._wait(STATUS_PERIOD)
        flood = _released(measured, before, self._target.sites())
        rate = _release_rate(deployment.journal_of(deployment.sites[0]), began_at)
        return replace(
            measured,
            flood_rate=rate,
            flood_late_share=flood.late_share,
            reformations=measured.reformations + flood.reformations,
        )

    def _end_load(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()
        self._children.clear()
        self._target.load.stop()

    def stop(self) -> None:
        self._end_load()
        self._cluster.stop()

    def _all_release(self) -> bool:
        sites = self._target.sites()
        return len(sites) == len(self._target.deployment.sites) and all(site.messages for site in sites.values())

    def _core_share(self, period: float) -> float:
        """The share of all cores that the processes of the deployment use in this time."""
        before, began_at = self._processor_times(), time.monotonic()
        self._wait(period)
        after, passed = self._processor_times(), time.monotonic() - began_at
        used = sum(spent - before[pid] for pid, spent in after.items() if pid in before)
        return used / passed / cores_here()

    def _processor_times(self) -> dict[int, float]:
        return {status.pid: cpu_seconds(status.pid) for status in self._target.run.statuses(self._names).values()}

    def _wait(self, period: float) -> None:
        ends_at = time.monotonic() + period
        self._wait_until(lambda: time.monotonic() >= ends_at, 0.0)

    def _wait_until(self, done: Callable[[], bool], reserve: float) -> bool:
        """Wait, but leave `reserve` seconds before the deadline; whether it is done."""
        while not done():
            if self._interrupts.count:
                raise KeyboardInterrupt
            if time.monotonic() > self._deadline - reserve:
                return False
            self._cluster.look()
            if self._cluster.lost:
                raise UserError(str(next(iter(self._cluster.lost.values()))))
            time.sleep(POLL_PERIOD)
        return True


def _released(measured: ProfileRun, before: Mapping[str, SiteStatus], after: Mapping[str, SiteStatus]) -> ProfileRun:
    """With what the sites released in between."""
    both = [(before[name], site) for name, site in after.items() if name in before]
    return replace(
        measured,
        messages=sum(site.messages - earlier.messages for earlier, site in both),
        late=sum(site.late - earlier.late for earlier, site in both),
        pauses=sum(len(site.pauses) - len(earlier.pauses) for earlier, site in both),
        requests=sum(site.requests - earlier.requests for earlier, site in both),
        reformations=max((site.formation - earlier.formation for earlier, site in both), default=0),
    )


def _release_rate(journal: Path, since: Instant) -> float | None:
    """Messages per second that were released since then; None where there were too few."""
    count, first_at, last_at = 0, 0, 0
    with JournalReader.open(journal).entries(since=since) as cursor:
        for entry in cursor:
            if entry.release is not None:
                count += entry.release.count
                first_at, last_at = first_at or entry.release.commit_at, entry.release.commit_at
    return count * SECOND / (last_at - first_at) if last_at > first_at else None
