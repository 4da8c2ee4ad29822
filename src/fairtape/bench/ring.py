"""`fairtape bench ring`: what one ring on this machine releases on time, and its baselines.

The first results are those of deployments with K = 1, as `fairtape init` makes them: the highest rate on time, a flood,
the release spread, and what an idle ring takes. Throughput, release error and latency are those of receivers without
the rest of a deployment, K = 0: separate processes on loopback multicast, sealed, with journals. All kinds of rings and
their baselines alternate in rounds. A round that other programs disturbed is repeated.

Journals are trimmed during a run, because a flood fills a segment per second at every site. The order is compared by
the end of each hash chain, which also covers removed segments.
"""

import secrets
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from statistics import median
from typing import Final

from fairtape.bench.deployed_ring import RingRounds, ring_kinds
from fairtape.bench.disturbance import QuietRounds, problems_of_disturbance
from fairtape.bench.journal_trim import trimming
from fairtape.bench.results import MIB, Processors, Results, Step, spread_of
from fairtape.bench.ring_baselines import (
    TrainOutcome,
    block_costs,
    disk_bytes_per_s,
    messages_per_packet,
    run_bare,
    run_sleepers,
    run_trains,
)
from fairtape.bench.ring_processes import (
    END_PERIOD_MAX,
    WARM_PERIOD,
    MemoryUse,
    PublishedCount,
    ReceiverReport,
    RingPlan,
    RingSetting,
    receiver_process,
    sender_process,
)
from fairtape.core.errors import UserError
from fairtape.core.instants import MICROSECOND, MILLISECOND
from fairtape.core.link_faults import LinkFaults
from fairtape.core.percentiles import percentile
from fairtape.core.timing import profile
from fairtape.deployment.config.capacity import cores_here
from fairtape.deployment.process.children import ChildProcesses
from fairtape.deployment.process.idle_guard import keep_processors_awake
from fairtape.net.clock import SharedClock
from fairtape.net.driver import may_run_in_real_time
from fairtape.net.loopback import free_ports, random_groups
from fairtape.net.transports import LOOPBACK, Peer, Role, multicast_works
from fairtape.ring.membership.formation import Formation
from fairtape.wire.frames import BLOCK_HEADER, DATAGRAM_MAX, TAG_SIZE, NodeId
from fairtape.wire.seals import Keys, Seal

SIDE_SECONDS_MAX: Final = 2.0  # of the baselines, and of the variations
KILOBYTE: Final = 1_000
LOSS: Final = 0.01
RATE: Final = 1_000
LOSSY_TOKEN_PERIOD: Final = 1_500 * MICROSECOND  # leaves time for repairs on two cores
RETRIES: Final = 625  # a second: latency is measured, and a machine that was suspended has not failed
SLOW_RATE: Final = 197  # not a divisor of the token rate, so that messages arrive in every phase of a token

DEPLOYED_PARTS: Final = frozenset(("on-time", "spread", "idle"))
DELIVERED: Final = (
    "messages_per_s",
    "messages_per_s_1kb",
    "messages_per_s_1_receiver",
    "messages_per_s_8_receivers",
    "messages_per_s_unsealed",
    "flood_messages_per_s",
    "lan_flood_messages_per_s",
    "spread_tokens",
    "lan_spread_tokens",
)
"""Results that are never 0."""

GOALS_ARE_FOR: Final = 3, 64  # sites, bytes of a message
GOAL_CORES: Final = 2
GOALS: Final[Mapping[str, tuple[float, float]]] = {  # at least, at most
    "on_time_messages_per_s": (1_000_000, inf),
    "lan_on_time_messages_per_s": (200_000, inf),
    "flood_messages_per_s": (800_000, inf),
    "flood_late_fraction": (0, 0.01),
    "flood_reformations": (0, 0),
    "spread_p99_us": (0, 750),
    "lan_spread_p99_us": (0, 150),
    "idle_core_share": (0, 0.03),
    "lan_idle_core_share": (0, 0.10),
    "process_memory_mib": (0, 60),
    "lan_process_memory_mib": (0, 60),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RingOutcome:
    """The results of one run of one ring. Late releases are included in all metrics."""

    messages: int  # in the measured time, by the slowest receiver
    messages_per_s: float
    one_order: bool
    releases: int  # in the measured time, over all receivers
    late_releases: int
    late_fraction: float  # of messages
    release_error_p50_us: float
    release_error_p99_us: float
    release_error_max_us: float
    latency_p50_ms: float
    latency_p99_ms: float
    memory: dict[NodeId, MemoryUse]
    recoveries: int
    dropped: int
    real_time: bool  # granted to every receiver
    stolen_fraction: float
    failures: tuple[str, ...]


def measure_ring(*, receivers: int, size: int, seconds: float, rounds: int, only: str, step: Step) -> Results:
    """All results. With several rounds, a metric is their median."""
    results: Results = {"receivers": receivers, "message_bytes": size, "seconds": seconds, "rounds": rounds}
    base = RingSetting(receivers=receivers, size=size, seconds=seconds)
    quiet = QuietRounds(step)
    parts = DEPLOYED_PARTS if only == "all" else {only} & DEPLOYED_PARTS
    if parts:
        results |= _deployments(base, rounds, parts, quiet)
    if only in ("all", "throughput"):
        results |= _throughput(base, rounds, quiet)
    if only == "all":
        results |= _variations(replace(base, seconds=min(seconds, SIDE_SECONDS_MAX)), quiet)
    if only in ("all", "latency"):
        results |= _latency(base, rounds, quiet)
    results |= quiet.results()
    return results | {"problems": problems_of(results), "shortfalls": shortfalls_of(results, cores_here())}


def problems_of(results: Results) -> list[str]:
    """Why these results are invalid, one sentence each."""
    found = []
    for name, result in results.items():
        if "one_order" in name and result is False:
            found.append(f"{name} is false: not every receiver delivered all published messages in the same order")
        elif name in ("bare_packets_per_s", "single_releases", "lossy_releases") and result == 0:
            found.append(f"{name} is 0: nothing arrived in the measured time")
        elif name in DELIVERED and result == 0:
            found.append(f"{name} is 0: nothing was delivered in the measured time")
        elif name.endswith("failures") and isinstance(result, list):
            found += [f"a failure was declared ({name}), {failure}" for failure in result]
    return found + problems_of_disturbance(results)


def shortfalls_of(results: Results, cores: int) -> list[str]:
    """Which results miss their goals, one sentence each. The goals are for 3 sites, 64 bytes and two cores or more."""
    found: list[str] = []
    if (results.get("receivers"), results.get("message_bytes")) != GOALS_ARE_FOR or cores < GOAL_CORES:
        return found
    for name, (least, most) in GOALS.items():
        result = results.get(name, least)
        assert isinstance(result, int | float)
        if result < least:
            found.append(f"{name} is {result:,}; the goal is at least {least:,}")
        elif result > most:
            found.append(f"{name} is {result:,}; the goal is at most {most:,}")
    if results.get("flood_requests") and not results.get("flood_datagrams_dropped"):
        found.append(f"flood_requests is {results['flood_requests']:,} although no datagram was dropped; the goal is 0")
    return found


def _deployments(base: RingSetting, rounds: int, parts: Collection[str], quiet: QuietRounds) -> Results:
    """The baselines and the deployments alternate."""
    kinds = [RingRounds(kind) for kind in ring_kinds(base.receivers, parts)]
    trains, floors, disks = [], [], []
    side = min(base.seconds, SIDE_SECONDS_MAX)
    with _scratch() as folder:
        for number in range(1, rounds + 1):
            name = _round(number, rounds)
            if "on-time" in parts:
                run = quiet.run(f"{name}bare UDP multicast in trains", lambda: _run_trains(base, side))
                trains.append(run)
                costs = quiet.run(f"{name}seals, hashes and writes alone", lambda: block_costs(folder, base.size))
                floors.append(0.0 if run is None else costs.floor_us(run, base.receivers))
                disks.append(quiet.run(f"{name}journals alone", lambda: _run_disk(folder, base.receivers, side)))
            for place, each in enumerate(kinds):
                there = folder / f"{number}.{place}"
                each.run(there, name, size=base.size, seconds=base.seconds, quiet=quiet)
                shutil.rmtree(there, ignore_errors=True)
    results: Results = {"deployed_real_time": may_run_in_real_time()}
    for each in kinds:
        results |= each.results()
    if "on-time" in parts:
        results |= _shares(base, results, [run for run in trains if run is not None], floors, disks)
    return results


def _run_trains(base: RingSetting, seconds: float) -> TrainOutcome | None:
    return run_trains(receivers=base.receivers, size=DATAGRAM_MAX, seconds=seconds)


def _run_disk(folder: Path, files: int, seconds: float) -> float:
    return disk_bytes_per_s(folder, files=files, seconds=seconds)


def _shares(
    base: RingSetting,
    results: Results,
    trains: Sequence[TrainOutcome],
    floors: Sequence[float],
    disks: Sequence[float],
) -> Results:
    """What the flood reached of what the machine allows at most; consistent with the printed medians."""
    block = messages_per_packet(base.size)
    found = spread_of("disk_messages_per_s", [each / base.size for each in disks], 0)
    found |= spread_of("train_messages_per_s", [run.packets_per_s * block for run in trains] or [0.0], 0)
    found |= spread_of("cpu_floor_us_per_message", [floor / block for floor in floors], 3)
    flood, cpu = (_number(results, name) for name in ("flood_messages_per_s", "cpu_us_per_message"))
    found["train_share"] = _ratio(flood, _number(found, "train_messages_per_s"))
    found["cpu_floor_share"] = _ratio(_number(found, "cpu_floor_us_per_message"), cpu)
    found["disk_share"] = _ratio(flood, _number(found, "disk_messages_per_s"))
    return found


def _number(results: Results, name: str) -> float:
    """A result, or 0 where the machine cannot run the ring that has it."""
    result = results.get(name, 0)
    assert isinstance(result, int | float)
    return result


def _ratio(part: float, whole: float) -> float:
    return round(part / whole, 4) if whole else 0.0


def _throughput(setting: RingSetting, rounds: int, quiet: QuietRounds) -> Results:
    """The baseline and the ring alternate, so that each ratio compares runs that are close in time."""
    packets, outcomes = [], []
    seconds = min(setting.seconds, SIDE_SECONDS_MAX)
    for number in range(1, rounds + 1):
        name = _round(number, rounds)
        bare = quiet.run(
            f"{name}bare UDP multicast, packet by packet",
            lambda: run_bare(receivers=setting.receivers, size=DATAGRAM_MAX, seconds=seconds),
        )
        packets.append(bare)
        text = f"{name}a sealed ring with journals, messages of {setting.size} bytes"
        outcomes.append(quiet.run(text, lambda: run_ring(setting)))
    rates = [each.messages_per_s for each in outcomes]
    bare_rates = [max(each * messages_per_packet(setting.size), 1.0) for each in packets]
    results = spread_of("messages_per_s", rates, 0) | spread_of("bare_messages_per_s", bare_rates, 0)
    results |= spread_of("ratio", [rate / of for rate, of in zip(rates, bare_rates, strict=True)], 3)
    results["ratio"] = round(median(rates) / median(bare_rates), 3)  # consistent with the two printed medians
    results |= spread_of("stolen_fraction", [each.stolen_fraction for each in outcomes], 4)
    return results | {
        "one_order": all(each.one_order for each in outcomes),
        "bare_packets_per_s": round(median(packets)),
        "late_fraction": round(median(each.late_fraction for each in outcomes), 6),
        "recovery_requests": sum(each.recoveries for each in outcomes),
        "datagrams_dropped": sum(each.dropped for each in outcomes),
        "memory_mib": _memory(outcomes[-1]),
        "failures": _failures(outcomes),
    }


def _memory(outcome: RingOutcome) -> list[dict[str, float]]:
    """Memory of each receiver in one round."""
    return [
        {
            "receiver": site,
            "at_start": round(memory.at_start / MIB, 1),
            "warm": round(memory.warm / MIB, 1),
            "at_end": round(memory.at_end / MIB, 1),
            "most": round(memory.most / MIB, 1),
        }
        for site, memory in outcome.memory.items()
    ]


def _variations(base: RingSetting, quiet: QuietRounds) -> Results:
    runs = {
        "1kb": ("messages of 1,000 bytes", replace(base, size=KILOBYTE)),
        "1_receiver": ("a ring of 1 receiver", replace(base, receivers=1)),
        "8_receivers": ("a ring of 8 receivers", replace(base, receivers=8)),
        "unsealed": ("a ring without seals", replace(base, seal=OpenSeal)),
    }
    results: Results = {}
    for name, (text, setting) in runs.items():
        outcome = quiet.run(text, partial(run_ring, setting))
        results[f"messages_per_s_{name}"] = round(outcome.messages_per_s)
        results[f"one_order_{name}"] = outcome.one_order
    return results


def _latency(base: RingSetting, rounds: int, quiet: QuietRounds) -> Results:
    exact = replace(base, timing=profile("lan", retries_max=RETRIES), real_time=True)
    slower = profile("lan", token_period=LOSSY_TOKEN_PERIOD, retries_max=RETRIES)
    single = replace(exact, rate=SLOW_RATE)
    lossy = replace(exact, senders=3, rate=RATE, loss=LOSS, timing=slower)
    seconds, period = min(base.seconds, SIDE_SECONDS_MAX), exact.timing.token_period
    singles, losses, sleepers = [], [], []
    with keep_processors_awake():
        for number in range(1, rounds + 1):
            name = _round(number, rounds)
            late = quiet.run(
                f"{name}bare programs that sleep until the same instants",
                lambda: run_sleepers(sleepers=base.receivers, period=period, seconds=seconds),
            )
            sleepers.append(late)
            text = f"{name}one message at a time, a token every millisecond"
            singles.append(quiet.run(text, lambda: run_ring(single)))
            losses.append(quiet.run(f"{name}three senders, 1 % loss into one receiver", lambda: run_ring(lossy)))
    real_time: Results = {"real_time": all(each.real_time for each in singles + losses)}
    for share in (50, 99):
        errors = [percentile(each, share / 100, 0) / MICROSECOND for each in sleepers]
        real_time |= spread_of(f"bare_sleep_error_p{share}_us", errors, 1)
    return real_time | _errors("single", singles) | _errors("lossy", losses)


def _errors(name: str, outcomes: Sequence[RingOutcome]) -> Results:
    results: Results = {
        f"{name}_releases": sum(each.releases for each in outcomes),
        f"{name}_late_releases": sum(each.late_releases for each in outcomes),
        f"{name}_late_fraction": round(median(each.late_fraction for each in outcomes), 6),
        f"{name}_one_order": all(each.one_order for each in outcomes),
        f"{name}_failures": _failures(outcomes),
    }
    results |= spread_of(f"{name}_release_error_p50_us", [each.release_error_p50_us for each in outcomes], 1)
    results |= spread_of(f"{name}_release_error_p99_us", [each.release_error_p99_us for each in outcomes], 1)
    results |= spread_of(f"{name}_release_error_max_us", [each.release_error_max_us for each in outcomes], 1)
    results |= spread_of(f"{name}_latency_p50_ms", [each.latency_p50_ms for each in outcomes], 3)
    results |= spread_of(f"{name}_latency_p99_ms", [each.latency_p99_ms for each in outcomes], 3)
    return results | spread_of(f"{name}_stolen_fraction", [each.stolen_fraction for each in outcomes], 4)


def _failures(outcomes: Sequence[RingOutcome]) -> list[str]:
    return [failure for outcome in outcomes for failure in outcome.failures]


def _round(number: int, rounds: int) -> str:
    return f"round {number} of {rounds}: " if rounds > 1 else ""


class OpenSeal(Seal):
    """Leaves the body open, with an empty tag: shows what seals cost. For benchmarks only."""

    __slots__ = ()

    def close(self, header: bytes, first: int, body: bytes) -> bytes:  # noqa: ARG002 - no nonce is needed
        return header + body + bytes(TAG_SIZE)

    def open(self, datagram: bytes, first: int) -> bytes:  # noqa: ARG002 - no nonce is needed
        return datagram[BLOCK_HEADER.size : -TAG_SIZE]


# Rings.

START_DELAY: Final = 200 * MILLISECOND
NODE_DELAY: Final = 50 * MILLISECOND  # added for each node that must start before the first token
SENDERS: Final = "sources"


def plan_for(setting: RingSetting) -> RingPlan:
    """A ring on free ports that starts when all nodes can have started."""
    sites = range(1, setting.receivers + 1)
    sources = setting.sources
    if not multicast_works(LOOPBACK):
        raise UserError("IP multicast does not work on the loopback interface of this machine; the benchmark needs it")
    roles = dict.fromkeys(sites, Role.SITE) | dict.fromkeys(sources, Role.SOURCE)
    ports = free_ports(len(roles))
    book = {node: Peer(LOOPBACK, port, role) for (node, role), port in zip(roles.items(), ports, strict=True)}
    starts_at = SharedClock().now() + START_DELAY + NODE_DELAY * len(book)
    loss = LinkFaults(loss=setting.loss)
    return RingPlan(
        formation=Formation(number=1, members=tuple(sites), timing=setting.timing, starts_at=starts_at),
        keys=replace(Keys.from_secret(secrets.token_bytes(32), sites, sources), seal=setting.seal),
        address_book=book,
        groups=random_groups(),
        link_faults={1: {node: loss for node in book if node != 1}} if setting.loss else {},
    )


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fairtape-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_ring(setting: RingSetting) -> RingOutcome:
    """Run one ring and collect the reports of its processes."""
    sites = {f"site {site}": site for site in range(1, setting.receivers + 1)}
    with _scratch() as folder, ChildProcesses(imports=[__name__]) as children:
        for name, site in sites.items():
            children.start(name, receiver_process, site, folder / name, setting)
        children.start(SENDERS, sender_process, setting)
        children.await_ready({*sites, SENDERS})
        before = Processors.read()
        with trimming([folder / name for name in sites]):
            children.send_all(plan_for(setting))
            published, reports = _gather(children, setting)
        stolen_fraction = Processors.read().stolen_since(before)
    return _outcome(setting, published, reports, stolen_fraction)


def _gather(children: ChildProcesses, setting: RingSetting) -> tuple[int | None, list[ReceiverReport]]:
    """Wait for the reports of all sites. Returns the number of published messages, and the reports.

    After a failure nothing more is published, so the other sites need not wait for the end of the run.
    """
    published: int | None = None
    reports: list[ReceiverReport] = []
    give_up_at = time.monotonic_ns() + setting.window + WARM_PERIOD + 3 * END_PERIOD_MAX
    while len(reports) < setting.receivers:
        left = give_up_at - time.monotonic_ns()
        if left <= 0:
            raise UserError("the ring did not end in time; try again when the machine is less busy")
        for _, message in children.receive(left):
            if isinstance(message, PublishedCount):
                published = message.count
                children.send_all(message)
            elif isinstance(message, ReceiverReport):
                reports.append(message)
                if message.failure is not None:
                    children.send_all(PublishedCount(0))
    return published, reports


def _outcome(
    setting: RingSetting, published: int | None, reports: list[ReceiverReport], stolen_fraction: float
) -> RingOutcome:
    tallies = [report.tally for report in reports]
    errors = [error for tally in tallies for error in tally.errors]
    latencies = [latency for tally in tallies for latency in tally.latencies]
    one_digest = len({report.digest for report in reports}) == 1
    messages = min(tally.messages for tally in tallies)
    return RingOutcome(
        messages=messages,
        messages_per_s=messages / setting.seconds,
        one_order=one_digest and all(tally.all_messages == published for tally in tallies),
        releases=len(errors),
        late_releases=sum(tally.late_releases for tally in tallies),
        late_fraction=sum(tally.late_messages for tally in tallies) / max(sum(tally.messages for tally in tallies), 1),
        release_error_p50_us=percentile(errors, 0.5, 0) / MICROSECOND,
        release_error_p99_us=percentile(errors, 0.99, 0) / MICROSECOND,
        release_error_max_us=max(errors, default=0) / MICROSECOND,
        latency_p50_ms=percentile(latencies, 0.5, 0) / MILLISECOND,
        latency_p99_ms=percentile(latencies, 0.99, 0) / MILLISECOND,
        memory={report.site: report.tally.memory for report in sorted(reports, key=lambda each: each.site)},
        recoveries=sum(report.requests for report in reports),
        dropped=sum(report.dropped for report in reports),
        real_time=all(report.real_time for report in reports),
        stolen_fraction=stolen_fraction,
        failures=tuple(f"site {report.site}: {report.failure}" for report in reports if report.failure),
    )
