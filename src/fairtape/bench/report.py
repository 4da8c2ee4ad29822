"""`fairtape bench ring`: which rings run, how often, and the results."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from fairtape.bench.results import Results, Step
from fairtape.bench.ring import RingOutcome, messages_per_packet, run_bare, run_ring, run_sleepers
from fairtape.bench.ring_processes import RingSetting
from fairtape.core.instants import MICROSECOND
from fairtape.core.percentiles import percentile
from fairtape.core.timing import profile
from fairtape.deployment.process.idle_guard import keep_processors_awake
from fairtape.wire.frames import BLOCK_HEADER, DATAGRAM_MAX, TAG_SIZE
from fairtape.wire.seals import Seal


class OpenSeal(Seal):
    """Leaves the body open, with an empty tag: shows what seals cost. For benchmarks only."""

    __slots__ = ()

    def close(self, header: bytes, first: int, body: bytes) -> bytes:  # noqa: ARG002 - no nonce is needed
        return header + body + bytes(TAG_SIZE)

    def open(self, datagram: bytes, first: int) -> bytes:  # noqa: ARG002 - no nonce is needed
        return datagram[BLOCK_HEADER.size : -TAG_SIZE]


SIDE_SECONDS_MAX: Final = 2.0  # of the baselines, and of the variations
KILOBYTE: Final = 1_000
LOSS: Final = 0.01
RATE: Final = 1_000
LOSSY_TOKEN_PERIOD: Final = 1_500 * MICROSECOND  # leaves time for repairs on two cores
RETRIES: Final = 625  # a second: latency is measured, and a machine that was suspended has not failed
SLOW_RATE: Final = 197  # not a divisor of the token rate, so that messages arrive in every phase of a token
MIB: Final = 1 << 20


def measure_ring(*, receivers: int, size: int, seconds: float, rounds: int, only: str, step: Step) -> Results:
    """All results. With several rounds, a metric is their median."""
    results: Results = {"receivers": receivers, "message_bytes": size, "seconds": seconds, "rounds": rounds}
    base = RingSetting(receivers=receivers, size=size, seconds=seconds)
    if only != "latency":
        results |= _throughput(base, rounds, step)
    if only == "all":
        results |= _variations(replace(base, seconds=min(seconds, SIDE_SECONDS_MAX)), step)
    if only != "throughput":
        results |= _latency(base, rounds, step)
    return results | {"problems": problems_of(results)}


def problems_of(results: Results) -> list[str]:
    """Why these results are invalid, one sentence each."""
    found = []
    for name, result in results.items():
        if "one_order" in name and result is False:
            found.append(f"{name} is false: not every receiver delivered all published messages in the same order")
        elif name in ("bare_packets_per_s", "single_releases", "lossy_releases") and result == 0:
            found.append(f"{name} is 0: nothing arrived in the measured time")
        elif name.startswith("messages_per_s") and result == 0:
            found.append(f"{name} is 0: nothing was delivered in the measured time")
        elif name.endswith("failures") and isinstance(result, list):
            found += [f"a failure was declared ({name}), {failure}" for failure in result]
    return found


def _throughput(setting: RingSetting, rounds: int, step: Step) -> Results:
    """The baseline and the ring alternate, so that each ratio compares runs that are close in time."""
    packets, outcomes = [], []
    for number in range(1, rounds + 1):
        step(f"{_round(number, rounds)}bare UDP multicast, packet by packet")
        seconds = min(setting.seconds, SIDE_SECONDS_MAX)
        packets.append(run_bare(receivers=setting.receivers, size=DATAGRAM_MAX, seconds=seconds))
        step(f"{_round(number, rounds)}a sealed ring with journals, messages of {setting.size} bytes")
        outcomes.append(run_ring(setting))
    rates = [each.messages_per_s for each in outcomes]
    bare = [max(each * messages_per_packet(setting.size), 1.0) for each in packets]
    results = _spread("messages_per_s", rates, 0) | _spread("bare_messages_per_s", bare, 0)
    results |= _spread("ratio", [rate / of for rate, of in zip(rates, bare, strict=True)], 3)
    results["ratio"] = round(median(rates) / median(bare), 3)  # consistent with the two printed medians
    results |= _spread("stolen_fraction", [each.stolen_fraction for each in outcomes], 4)
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


def _variations(base: RingSetting, step: Step) -> Results:
    runs = {
        "1kb": ("messages of 1,000 bytes", replace(base, size=KILOBYTE)),
        "1_receiver": ("a ring of 1 receiver", replace(base, receivers=1)),
        "8_receivers": ("a ring of 8 receivers", replace(base, receivers=8)),
        "unsealed": ("a ring without seals", replace(base, seal=OpenSeal)),
    }
    results: Results = {}
    for name, (text, setting) in runs.items():
        step(text)
        outcome = run_ring(setting)
        results[f"messages_per_s_{name}"] = round(outcome.messages_per_s)
        results[f"one_order_{name}"] = outcome.one_order
    return results


def _latency(base: RingSetting, rounds: int, step: Step) -> Results:
    exact = replace(base, timing=profile("lan", retries_max=RETRIES), real_time=True)
    slower = profile("lan", token_period=LOSSY_TOKEN_PERIOD, retries_max=RETRIES)
    singles, losses, sleepers = [], [], []
    with keep_processors_awake():
        for number in range(1, rounds + 1):
            step(f"{_round(number, rounds)}bare programs that sleep until the same instants")
            seconds = min(base.seconds, SIDE_SECONDS_MAX)
            sleepers.append(run_sleepers(sleepers=base.receivers, period=exact.timing.token_period, seconds=seconds))
            step(f"{_round(number, rounds)}one message at a time, a token every millisecond")
            singles.append(run_ring(replace(exact, rate=SLOW_RATE)))
            step(f"{_round(number, rounds)}three senders, 1 % loss into one receiver")
            losses.append(run_ring(replace(exact, senders=3, rate=RATE, loss=LOSS, timing=slower)))
    real_time: Results = {"real_time": all(each.real_time for each in singles + losses)}
    for share in (50, 99):
        late = [percentile(each, share / 100, 0) / MICROSECOND for each in sleepers]
        real_time |= _spread(f"bare_sleep_error_p{share}_us", late, 1)
    return real_time | _errors("single", singles) | _errors("lossy", losses)


def _errors(name: str, outcomes: Sequence[RingOutcome]) -> Results:
    results: Results = {
        f"{name}_releases": sum(each.releases for each in outcomes),
        f"{name}_late_releases": sum(each.late_releases for each in outcomes),
        f"{name}_late_fraction": round(median(each.late_fraction for each in outcomes), 6),
        f"{name}_one_order": all(each.one_order for each in outcomes),
        f"{name}_failures": _failures(outcomes),
    }
    results |= _spread(f"{name}_release_error_p50_us", [each.release_error_p50_us for each in outcomes], 1)
    results |= _spread(f"{name}_release_error_p99_us", [each.release_error_p99_us for each in outcomes], 1)
    results |= _spread(f"{name}_release_error_max_us", [each.release_error_max_us for each in outcomes], 1)
    results |= _spread(f"{name}_latency_p50_ms", [each.latency_p50_ms for each in outcomes], 3)
    results |= _spread(f"{name}_latency_p99_ms", [each.latency_p99_ms for each in outcomes], 3)
    return results | _spread(f"{name}_stolen_fraction", [each.stolen_fraction for each in outcomes], 4)


def _spread(name: str, values: Sequence[float], digits: int) -> Results:
    """The median of the rounds, the minimum and the maximum: the speed of a virtual machine varies."""
    return {
        name: _rounded(median(values), digits),
        f"{name}_min": _rounded(min(values), digits),
        f"{name}_max": _rounded(max(values), digits),
    }


def _rounded(value: float, digits: int) -> float:
    return round(value, digits) if digits else round(value)


def _failures(outcomes: Sequence[RingOutcome]) -> list[str]:
    return [failure for outcome in outcomes for failure in outcome.failures]


def _round(number: int, rounds: int) -> str:
    return f"round {number} of {rounds}: " if rounds > 1 else ""
