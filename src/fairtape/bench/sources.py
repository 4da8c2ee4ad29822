"""`fairtape bench sources`: what a message costs when many sources share a process, in processor time.

Every millisecond the publishing process publishes twenty messages of 64 bytes into a deployment of three metro sites
with K = 1. It does so in two ways. *Blocks*: the sources take turns, and each publishes its twenty messages at once, so
that the number of sources is all that changes from run to run. *Single messages*: twenty sources publish one message
each. Messages of different sources never share a block, so then each message is a block, and a range of an
acknowledgment. The one source of the baseline publishes its messages one by one as well.

Processor time is that of the whole process, of the publisher and of a site, divided by the messages of the measured
time. It includes system calls, waits and acknowledgments.
"""

import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Final

from fairtape.bench.deployed_ring import (
    CARRIED_MIN,
    LATE_MAX,
    DeployedRing,
    LoadRun,
    new_deployment,
    run_load,
    running,
)
from fairtape.bench.disturbance import QuietRounds, problems_of_disturbance
from fairtape.bench.results import Results, Step, spread_of
from fairtape.core.addresses import format_address
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.core.timing import profile
from fairtape.deployment.config.description import FILE, Deployment, NodeKind, read_deployment
from fairtape.deployment.config.keys import KEYS, keys_of, write_keys
from fairtape.deployment.process.children import ChildLink
from fairtape.deployment.process.resources import clock_of
from fairtape.deployment.publish.source_runtime import group_of, source_of, source_runtime
from fairtape.deployment.publish.target import publish_target
from fairtape.nodes.receiver import Receiver
from fairtape.nodes.source import Source
from fairtape.ring.membership.formation import Formation
from fairtape.wire.blocks import pack_records
from fairtape.wire.frames import NodeId, encode_block_header
from fairtape.wire.seals import Keys, Seal

SITES: Final = 3
FIRST_SOURCE: Final = 1_001  # of those that are added to the deployment
SIZE: Final = 64  # bytes of a message
SLICE_PERIOD: Final = 1 * MILLISECOND
RATE: Final = 20_000  # messages per second in total
RATIO_GOAL: Final = 2.0  # cost per message of many sources to that of one
RATIO_SOURCES: Final = 400  # the goal holds for as many; the cost of more is only printed

BLOCKS: Final = "blocks"
SINGLES: Final = "single messages"
PREFIXES: Final = {BLOCKS: "", SINGLES: "single_"}  # of the names of results


def measure_sources(*, counts: Sequence[int], seconds: float, rounds: int, step: Step) -> Results:
    """All results: of one source, and of each of these numbers of sources. With several rounds, medians."""
    results: Results = {"message_bytes": SIZE, "seconds": seconds, "rounds": rounds}
    quiet = QuietRounds(step)
    runs: dict[tuple[str, int], list[LoadRun]] = {}
    for number in range(1, rounds + 1):
        for pattern in PREFIXES:
            for count in (1, *counts):
                named = f"round {number} of {rounds}: {pattern}, {count:,} {'source' if count == 1 else 'sources'}"
                with _running_sources(count, pattern) as ring:
                    run = quiet.run(named, partial(ring.load, RATE, seconds))
                runs.setdefault((pattern, count), []).append(run)
    for (pattern, count), found in runs.items():
        results |= results_of(pattern, count, found, runs[pattern, 1])
    step("blocks of one source, and of eight in turn, into one receive buffer")
    results |= {f"accept_us_per_block_{count}": round(accept_cost(count), 3) for count in (1, 8)}
    results |= quiet.results()
    return results | {"problems": problems_of(results), "shortfalls": shortfalls_of(results, counts)}


def results_of(pattern: str, count: int, runs: Sequence[LoadRun], baseline: Sequence[LoadRun]) -> Results:
    """The results of the rounds of one pattern and one number of sources, by their published names."""
    prefix = PREFIXES[pattern]
    results = spread_of(f"{prefix}cost_us_{count}", [run.source_cpu_us for run in runs], 2)
    results |= spread_of(f"{prefix}site_cost_us_{count}", [run.site_cpu_us for run in runs], 2)
    results |= spread_of(f"{prefix}late_fraction_{count}", [run.late_fraction for run in runs], 6)
    results |= spread_of(f"{prefix}messages_per_s_{count}", [run.messages_per_s for run in runs], 0)
    results[f"{prefix}requests_{count}"] = sum(run.requests for run in runs)
    results[f"{prefix}reformations_{count}"] = sum(run.reformations for run in runs)
    if runs is not baseline:
        cost, cost_of_one = (median(run.source_cpu_us for run in each) for each in (runs, baseline))
        site_cost, site_cost_of_one = (median(run.site_cpu_us for run in each) for each in (runs, baseline))
        results[f"{prefix}cost_ratio_{count}"] = round(cost / cost_of_one, 2)
        results[f"{prefix}site_cost_ratio_{count}"] = round(site_cost / site_cost_of_one, 2)
    return results


def problems_of(results: Results) -> list[str]:
    """Why these results are invalid, one sentence each. What a ring costs that does not keep up means nothing."""
    found = []
    for name, result in results.items():
        if "late_fraction" in name and name.endswith("_max") and isinstance(result, float) and result > LATE_MAX:
            found.append(f"{name} is {result}: the ring did not keep up, so the costs of these sources are not valid")
        elif (
            "messages_per_s" in name
            and name.endswith("_min")
            and isinstance(result, int)
            and result < CARRIED_MIN * RATE
        ):
            found.append(f"{name} is {result:,} of {RATE:,}: the costs of these sources are not valid")
        elif "reformations" in name and result != 0:
            found.append(f"{name} is {result}: a site was taken for failed")
    return found + problems_of_disturbance(results)


def shortfalls_of(results: Results, counts: Sequence[int]) -> list[str]:
    """Goals that were missed, one sentence each."""
    named = [
        f"{prefix}cost_ratio_{count}" for prefix in PREFIXES.values() for count in counts if count <= RATIO_SOURCES
    ]
    return [
        f"{name} is {ratio}: a message costs more than {RATIO_GOAL:g} times what it costs with one source"
        for name in named
        if isinstance(ratio := results[name], float) and ratio > RATIO_GOAL
    ]


# One run.


@contextmanager
def _running_sources(count: int, pattern: str) -> Iterator[DeployedRing]:
    folder = Path(tempfile.mkdtemp(prefix="fairtape-bench-"))
    try:
        deployment = new_deployment(folder, sites=SITES, profile="metro")
        add_sources(deployment, count)
        with running(read_deployment(folder), sources_process, folder, pattern) as ring:
            yield ring
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def add_sources(deployment: Deployment, count: int) -> None:
    """Add sources to a deployment that has not run yet, all at one address: one process runs them."""
    file, (other, *_) = deployment.folder / FILE, deployment.of_kind(NodeKind.SOURCE)
    address = format_address((other.host, other.port))
    numbers = range(FIRST_SOURCE, FIRST_SOURCE + count)
    table = "[sources]\n" + "".join(f'source{each} = {{ node = {each}, address = "{address}" }}\n' for each in numbers)
    file.write_text(re.sub(r"\[sources\].*\n", table, file.read_text(), count=1))
    shutil.rmtree(deployment.folder / KEYS)
    write_keys(read_deployment(deployment.folder))


class SourcesInTurn:
    """A load of all sources of a process: every millisecond one of them publishes, or as many as there are messages."""

    def __init__(self, sources: Sequence[Source], pattern: str) -> None:
        self._turns = cycle(sources)
        self._pattern = pattern
        self._message = bytes(SIZE)
        self._slice = 0  # messages
        self._next_at: Instant = 0

    def set_rate(self, rate: int | None, now: Instant) -> None:
        assert rate is not None, "many sources are not for a flood"
        self._slice, self._next_at = rate * SLICE_PERIOD // SECOND, now

    def deadline(self) -> Instant | None:
        return self._next_at if self._slice else None

    def wake(self, now: Instant) -> None:
        while self._slice and self._next_at <= now:
            self._next_at += SLICE_PERIOD
            if self._pattern == BLOCKS:
                next(self._turns).publish([self._message] * self._slice, now)
            else:
                for source in islice(self._turns, self._slice):
                    source.publish([self._message], now)


def sources_process(link: ChildLink, folder: Path, pattern: str) -> None:
    """All sources that were added to the deployment, as one group, or alone if it is one."""
    target = publish_target(folder)
    clock = clock_of(target.deployment)
    numbers = [number for number in sorted(target.sources) if number >= FIRST_SOURCE]
    first = target.source_config(numbers[0])
    configs = [replace(first, me=each, keys=keys_of(target.deployment, target.sources[each])) for each in numbers]
    machine = source_of(first, clock) if len(configs) == 1 else group_of(configs, clock)
    load = SourcesInTurn([machine] if isinstance(machine, Source) else list(machine.sources.values()), pattern)
    run_load(link, load, source_runtime(first, machine, load), clock)


# One receive buffer.

ACCEPTED_BLOCKS: Final = 4_096
ACCEPTED_BATCH: Final = 64  # datagrams that a site reads at once
ACCEPTED_ROUNDS: Final = 5
RECORDS: Final = 20
MEMBERS: Final = (1, 2, 3)


def accept_cost(count: int) -> float:
    """Microseconds of a receiver per full block, where this many sources take turns; the best of some rounds."""
    sources = range(FIRST_SOURCE, FIRST_SOURCE + count)
    keys = Keys.from_secret(bytes(32), MEMBERS, sources)
    datagrams = _blocks_in_turn(sources, keys)
    formation = Formation(number=1, members=MEMBERS, timing=profile("metro"), starts_at=SECOND)
    best = float("inf")
    for _ in range(ACCEPTED_ROUNDS):
        receiver = Receiver(me=MEMBERS[0], formation=formation, keys=keys, born_at=0)
        receiver.receive_all(datagrams[:count], 0)  # the first block of a stream takes another path
        began_at = time.process_time_ns()
        for start in range(count, len(datagrams), ACCEPTED_BATCH):
            receiver.receive_all(datagrams[start : start + ACCEPTED_BATCH], 0)
        best = min(best, time.process_time_ns() - began_at)
        assert receiver.counts["block"] == len(datagrams)
    return best / 1_000 / (len(datagrams) - count)


def _blocks_in_turn(sources: Sequence[NodeId], keys: Keys) -> list[bytes]:
    seals = {each: Seal(keys.sources[each], stripe=0, source=each, incarnation=1) for each in sources}
    body = pack_records(bytes(SIZE * RECORDS), SIZE)
    datagrams = []
    for place in range(ACCEPTED_BLOCKS):
        source = sources[place % len(sources)]
        first = 1 + place // len(sources) * RECORDS
        datagrams.append(seals[source].close(encode_block_header(0, 0, source, 1, first, RECORDS), first, body))
    return datagrams
