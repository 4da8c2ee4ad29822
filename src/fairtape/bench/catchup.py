"""`fairtape bench catchup`: how fast a new site gets the journal of a ring that runs.

Three sites order some messages and are stopped. The journals of two of them are continued to the size that is asked
for, by tokens as large as the load makes them, and that of the third is removed. Then the two run with the load, the
third is started, and the time is taken until it is level: behind by no more than what the load and the delay of the
path explain.

With a limited link each site is in a network namespace. The link of the new site has the rate, and the delays between
Mumbai, where everything else is, and São Paulo, which are 150 ms, are injected where datagrams arrive. This needs root.
Without a limit the sites are on loopback, and the result is what the processors allow.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from fairtape.bench.journal import extend
from fairtape.bench.namespaces import Machines, Refused, machines
from fairtape.bench.results import MIB, Results, Step
from fairtape.core.effects import Ordered, Span
from fairtape.core.errors import UserError
from fairtape.core.instants import MICROSECOND, SECOND
from fairtape.core.timing import PROFILES
from fairtape.deployment.config.description import FILE, Deployment, NodeKind, read_deployment
from fairtape.deployment.lock_file import folder_lock
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.deployment.operations.drills import DrillTarget
from fairtape.deployment.process.local_cluster import LocalCluster
from fairtape.deployment.status import SiteStatus
from fairtape.journal import JournalWriter, SyncPolicy
from fairtape.wire.blocks import pack_records

SITES: Final = 3
MACHINES: Final = SITES + 1  # the reformation server has its own
NEAR, FAR = "Mumbai", "São Paulo"  # round trip 300 ms
MESSAGE_SIZE: Final = 64
RECORDS: Final = 20  # of one block
RATIO_MAX: Final = 2.0  # the goal
SETTLING_MAX: Final = 60.0  # seconds
LEVEL_SECONDS: Final = 2.0  # of the load: the delay of the path, and the age of a status
POLL_PERIOD: Final = 0.05
FREE_SHARE: Final = 1.1  # of what the journals take
PROGRESS_ENTRIES: Final = 1_000  # between two steps that are shown


class CatchUpPlan(NamedTuple):
    """What `fairtape bench catchup` is asked to measure."""

    gigabytes: float
    rate: int  # messages per second
    profile: str
    megabits: int  # of the link of the new site; 0: loopback, without a limit and without delay

    @property
    def size(self) -> int:
        """The size of the journal in bytes."""
        return int(self.gigabytes * 1e9)


def measure_catchup(plan: CatchUpPlan, step: Step) -> Results:
    """All results, with the goals that they miss."""
    with (
        tempfile.TemporaryDirectory(prefix="fairtape-catchup-", ignore_cleanup_errors=True) as scratch,
        ExitStack() as on,
    ):
        free = shutil.disk_usage(scratch).free
        if free < SITES * plan.size * FREE_SHARE:
            raise UserError(
                f"--gigabytes is {plan.gigabytes:g}, and {free / 1e9:.1f} GB are free where temporary files are; "
                f"{SITES} journals of that size need {SITES * plan.size * FREE_SHARE / 1e9:.1f} GB"
            )
        network = on.enter_context(_machines()) if plan.megabits else None
        folder = Path(scratch) / "deployment"
        deployment = _new_deployment(folder, plan, network)
        results = _Run(deployment, plan, network, step).measure()
        step("removing the journals")
    return results | {"problems": [], "shortfalls": _shortfalls(results)}


@contextmanager
def _machines() -> Iterator[Machines]:
    try:
        with machines(MACHINES) as made:
            yield made
    except Refused as refusal:
        raise UserError(
            f"a link of limited rate cannot be made here ({refusal}); run as root, or give --megabits 0 to measure "
            "on loopback, without a limit and without delay"
        ) from None


def _new_deployment(folder: Path, plan: CatchUpPlan, network: Machines | None) -> Deployment:
    hosts = () if network is None else network.hosts
    draft = Draft(loops=(SITES,), profile=plan.profile, reformers=1, sources=1, hosts=hosts, pace="fixed")
    deployment = create_deployment(folder, draft)
    if network is None:
        return deployment
    near = [name for name in deployment.nodes if name != deployment.sites[-1].name and deployment.nodes[name].number]
    cities = [f'{name} = "{NEAR}"' for name in near if name != "operator"] + [f'{deployment.sites[-1].name} = "{FAR}"']
    text = (folder / FILE).read_text().replace('source = "system"', 'source = "shared"')
    (folder / FILE).write_text("\n".join((text, "[link_faults.cities]", *cities, "")))
    return read_deployment(folder)


class _Run:
    """One deployment whose last site is new."""

    def __init__(self, deployment: Deployment, plan: CatchUpPlan, network: Machines | None, step: Step) -> None:
        def wrapping(name: str) -> tuple[str, ...]:
            return () if network is None else network.enter(deployment.nodes[name].host)

        self._deployment = deployment
        self._plan = plan
        self._network = network
        self._step = step
        self._wrapping = wrapping
        self._new = deployment.sites[-1]
        self._old = deployment.sites[:-1]
        self._target = DrillTarget(deployment, wrapping=wrapping)

    def measure(self) -> Results:
        with folder_lock(self._deployment.folder):
            self._step("the first messages")
            with self._running(everywhere=True):
                self._target.wait_until(self._target.unsettled, SETTLING_MAX, "all sites to be members")
                self._start_load()
                self._target.load.stop()
                self._target.wait_until(self._target.unequal, SETTLING_MAX, "equal journals")
            self._continue_journals()
            shutil.rmtree(self._deployment.journal_of(self._new))
            if self._network is not None:
                self._network.shape(self._new.host, self._plan.megabits)
            with self._running(everywhere=False):
                self._target.wait_until(self._unsettled, SETTLING_MAX, "the old sites to be members")
                self._start_load()
                self._target.wait(2 * SECOND)
                return self._join()

    @contextmanager
    def _running(self, *, everywhere: bool) -> Iterator[None]:
        target = self._target
        target.cluster = LocalCluster(self._deployment, wrapping=self._wrapping)
        try:
            target.run.take_starts()
            sites = self._deployment.sites if everywhere else self._old
            for node in (*self._deployment.reformers, *sites):
                target.cluster.supervisor.start(node.name)
            yield
        finally:
            target.load.stop()
            target.cluster.stop()

    def _start_load(self) -> None:
        source = self._deployment.of_kind(NodeKind.SOURCE)[-1]
        before = self._ordered()
        self._target.load.start(source.name, "--load", str(self._plan.rate), "--size", str(MESSAGE_SIZE))
        self._target.wait_until(lambda: "" if self._ordered() > before else "none", SETTLING_MAX, "messages")

    def _ordered(self) -> int:
        """The number of messages that the old sites have in order."""
        sites = self._target.sites()
        return min((sites[node.name].sequence for node in self._old if node.name in sites), default=0)

    def _unsettled(self) -> str:
        leader, sites = self._target.leader(), self._target.sites()
        if leader is None or leader.phase != "steady":
            return "no formation is in effect"
        members = [node.name for node in self._old if node.name in sites and sites[node.name].is_member]
        return "" if len(members) == len(self._old) else f"only {members} are members"

    def _continue_journals(self) -> None:
        plan = self._plan
        per_token = max(plan.rate * PROFILES[plan.profile].token_period // SECOND, 1)
        with ExitStack() as closing:
            writers = [
                closing.enter_context(
                    JournalWriter.open(
                        self._deployment.journal_of(node),
                        stripe=self._deployment.stripe,
                        site=node.number,
                        sync=SyncPolicy.NEVER,
                    )
                )
                for node in self._old
            ]
            written = count = 0
            while written < plan.size:
                if count % PROGRESS_ENTRIES == 0:
                    self._step(f"journals of {plan.gigabytes:g} GB: {written / 1e9:.1f} GB written")
                count += 1
                ordered = _token_after(writers[0], per_token, self._deployment.stripe)
                written += per_token * MESSAGE_SIZE
                for writer in writers:
                    extend(writer, ordered)

    def _join(self) -> Results:
        target, before = self._target, self._target.sites()
        began_at = time.monotonic()
        assert target.cluster is not None
        target.cluster.supervisor.start(self._new.name)
        level_at, after = self._wait_level(began_at)
        period = level_at - began_at
        target.wait_until(target.unsettled, SETTLING_MAX, "the new site to be a member")
        member_at = time.monotonic()
        size = sum(file.stat().st_size for file in self._deployment.journal_of(self._new).iterdir())
        messages = sum(after[node.name].messages - before[node.name].messages for node in self._old)
        late = sum(after[node.name].late - before[node.name].late for node in self._old)
        results: Results = {
            "bytes": size,
            "seconds": round(period, 2),
            "member_seconds": round(member_at - began_at, 2),
            "mib_per_s": round(size / MIB / period, 1),
            "messages_per_s": round(after[self._new.name].sequence / period),
            "ring_late_fraction": round(late / max(messages, 1), 5),
            "ring_reformations": max(after[node.name].formation - before[node.name].formation for node in self._old),
        }
        if self._plan.megabits:
            needed = size * 8 / (self._plan.megabits * 1e6)
            results |= {"link_seconds": round(needed, 2), "ratio": round(period / needed, 3)}
        return results

    def _wait_level(self, began_at: float) -> tuple[float, dict[str, SiteStatus]]:
        """When the new site was level, and the statuses of all sites then."""
        behind_max = LEVEL_SECONDS * self._plan.rate
        shown_at = 0.0
        while True:
            sites = self._target.sites()
            now, new = time.monotonic(), sites.get(self._new.name)
            highest = self._ordered()
            if new is not None and highest - new.sequence <= behind_max:
                return now, sites
            if now > shown_at + 1:
                shown_at = now
                held = 0 if new is None else new.sequence
                self._step(f"{now - began_at:.0f} s: {held:,} of {highest:,} messages")
            lost = None if self._target.cluster is None else self._target.cluster.lost
            if lost:
                raise UserError(f"a process ended before the new site was level: {', '.join(map(str, lost.values()))}")
            self._target.wait(int(POLL_PERIOD * SECOND))


def _token_after(writer: JournalWriter, messages: int, stripe: int) -> Ordered:
    """The token that continues a journal, with blocks of records."""
    tip = writer.tip
    assert tip is not None
    counts = [RECORDS] * (messages // RECORDS) + ([messages % RECORDS] if messages % RECORDS else [])
    bodies = tuple(pack_records(bytes(count * MESSAGE_SIZE), MESSAGE_SIZE) for count in counts)
    span = Span(101, 1, tip.sequence, messages, tip.sequence, bodies, tuple(counts))
    at = tip.latest_at + MICROSECOND
    return Ordered(stripe, tip.formation, tip.token + 1, tip.sequence, messages, at, (span,))


def _shortfalls(results: Results) -> list[str]:
    """Which results miss their goals, one sentence each. The machine may be too busy."""
    ratio = results.get("ratio", 0.0)
    assert isinstance(ratio, int | float)
    return [f"ratio is {ratio:g}; the goal is at most {RATIO_MAX:g}"] if ratio > RATIO_MAX else []
