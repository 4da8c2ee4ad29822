"""`fairtape bench ring`: which rings are run, and what is said about them."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from fairtape.bench.ring import Outcome, Setting, messages_per_packet, run_bare, run_ring
from fairtape.bench.unsealed import OpenSeal
from fairtape.core.instants import MICROSECOND
from fairtape.core.timing import profile
from fairtape.runtime.driver import may_run_in_real_time
from fairtape.wire.frames import DATAGRAM_MAX

Figures: TypeAlias = dict[str, float | bool | str | list[str]]
Step: TypeAlias = Callable[[str], None]

SIDE_SECONDS_MAX = 2.0  # of the runs beside the main one
KILOBYTE = 1_000
LOSS = 0.01
RATE = 1_000
LOSSY_TOKEN_PERIOD = 1_500 * MICROSECOND  # leaves room on two cores for what the losses cost
SLOW_RATE = 197  # no divisor of the token rate, so that messages meet every phase of a token


def ring_figures(*, receivers: int, size: int, seconds: float, only: str, step: Step) -> Figures:
    """All figures of one call."""
    figures: Figures = {"receivers": receivers, "message_bytes": size, "seconds": seconds}
    if only != "latency":
        figures |= _throughput(receivers, size, seconds, step)
    if only == "all":
        figures |= _variations(receivers, size, min(seconds, SIDE_SECONDS_MAX), step)
    if only != "throughput":
        figures |= _latency(receivers, size, seconds, step)
    return figures


def _throughput(receivers: int, size: int, seconds: float, step: Step) -> Figures:
    step(f"bare UDP multicast to {receivers} receivers, packet by packet")
    packets = run_bare(receivers=receivers, size=DATAGRAM_MAX, seconds=min(seconds, 5.0))
    step(f"a sealed ring of {receivers} with journals, messages of {size} bytes")
    outcome = run_ring(Setting(receivers=receivers, size=size, seconds=seconds))
    bare = packets * messages_per_packet(size)
    return {
        "messages_per_s": round(outcome.messages_per_s),
        "bare_messages_per_s": round(bare),
        "ratio": round(outcome.messages_per_s / bare, 3) if bare else 0.0,
        "one_order": outcome.one_order,
        "bare_packets_per_s": round(packets),
        "late_fraction": round(outcome.late_fraction, 6),
        "recovery_requests": outcome.recoveries,
        "datagrams_dropped": outcome.dropped,
        "memory_mib_at_start": round(outcome.memory_mib[0], 1),
        "memory_mib_at_end": round(outcome.memory_mib[1], 1),
        "failures": list(outcome.failures),
    }


def _variations(receivers: int, size: int, seconds: float, step: Step) -> Figures:
    base = Setting(receivers=receivers, size=size, seconds=seconds)
    runs = {
        "messages_per_s_1kb": replace(base, size=KILOBYTE),
        "messages_per_s_1_receiver": replace(base, receivers=1),
        "messages_per_s_8_receivers": replace(base, receivers=8),
        "messages_per_s_unsealed": replace(base, seal=OpenSeal),
    }
    figures: Figures = {}
    for name, setting in runs.items():
        step(name.replace("_", " "))
        outcome = run_ring(setting)
        figures[name] = round(outcome.messages_per_s)
        figures[name.replace("messages_per_s", "one_order")] = outcome.one_order
    return figures


def _latency(receivers: int, size: int, seconds: float, step: Step) -> Figures:
    base = Setting(receivers=receivers, size=size, seconds=seconds, timing=profile("lan"), real_time=True)
    step("one message at a time, a token every millisecond")
    single = run_ring(replace(base, rate=SLOW_RATE))
    step("three senders, 1 % loss into one receiver")
    slower = profile("lan", token_period=LOSSY_TOKEN_PERIOD)
    lossy = run_ring(replace(base, senders=3, rate=RATE, loss=LOSS, timing=slower))
    real_time: Figures = {"real_time": may_run_in_real_time()}
    return real_time | _errors("single", single) | _errors("lossy", lossy)


def _errors(name: str, outcome: Outcome) -> Figures:
    return {
        f"{name}_release_error_p50_us": round(outcome.release_error_p50_us, 1),
        f"{name}_release_error_p99_us": round(outcome.release_error_p99_us, 1),
        f"{name}_latency_p50_ms": round(outcome.latency_p50_ms, 3),
        f"{name}_latency_p99_ms": round(outcome.latency_p99_ms, 3),
        f"{name}_late_fraction": round(outcome.late_fraction, 6),
        f"{name}_one_order": outcome.one_order,
        f"{name}_failures": list(outcome.failures),
    }
