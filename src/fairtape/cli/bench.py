"""`fairtape bench …`."""

import json
from typing import Final

import click

from fairtape.bench.report import Figures, ring_figures
from fairtape.cli.progress import steps
from fairtape.deployment.processes import Deserted
from fairtape.runtime.complaints import Complaint

LABELS: Final = {
    "receivers": "receivers",
    "message_bytes": "bytes of a message",
    "seconds": "seconds measured",
    "messages_per_s": "messages/s, delivered by all in one order",
    "bare_messages_per_s": "messages/s, bare UDP with the same packets",
    "ratio": "ratio",
    "one_order": "one order",
    "bare_packets_per_s": "packets/s, bare UDP",
    "late_fraction": "share released late",
    "recovery_requests": "requests for repair",
    "datagrams_dropped": "datagrams dropped by full buffers",
    "memory_mib_at_start": "memory of the largest receiver, MiB, at start",
    "memory_mib_at_end": "memory of the largest receiver, MiB, at end",
    "failures": "failures declared",
    "messages_per_s_1kb": "messages/s of 1,000 bytes",
    "messages_per_s_1_receiver": "messages/s with 1 receiver",
    "messages_per_s_8_receivers": "messages/s with 8 receivers",
    "messages_per_s_unsealed": "messages/s without seals",
    "real_time": "processes run in real time",
    "single_release_error_p50_us": "one at a time: µs after the commit instant, p50",
    "single_release_error_p99_us": "one at a time: µs after the commit instant, p99",
    "single_latency_p50_ms": "one at a time: ms from publish to release, p50",
    "single_latency_p99_ms": "one at a time: ms from publish to release, p99",
    "lossy_latency_p50_ms": "3 senders, 1 % loss: ms from publish to release, p50",
    "lossy_latency_p99_ms": "3 senders, 1 % loss: ms from publish to release, p99",
    "lossy_late_fraction": "3 senders, 1 % loss: share released late",
}
"""What a person reads; a program gets all figures by their names."""


@click.group()
def bench() -> None:
    """Measure fairtape here, beside what it is compared with."""


@bench.command()
@click.option("--receivers", type=click.IntRange(1, 32), default=3, show_default=True, help="Sites in the ring.")
@click.option("--size", type=click.IntRange(16, 1_348), default=64, show_default=True, help="Bytes of a message.")
@click.option("--seconds", type=click.FloatRange(0.5, 3_600), default=5.0, show_default=True, help="Measured time.")
@click.option(
    "--only", type=click.Choice(["all", "throughput", "latency"]), default="all", show_default=True, help="Which part."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def ring(receivers: int, size: int, seconds: float, only: str, as_json: bool) -> None:
    """Throughput, release error and latency under loss of one ring.

    Separate processes on loopback multicast, sealed, with journals, datagrams of 1,400 bytes. Bare UDP is measured in
    the same run: a Python sender and Python receivers that move the same packets one by one and do nothing else.
    """
    try:
        with steps(quiet=as_json) as step:
            figures = ring_figures(receivers=receivers, size=size, seconds=seconds, only=only, step=step)
    except Deserted as desertion:
        raise Complaint(str(desertion)) from None
    click.echo(json.dumps(figures) if as_json else _table(figures))


def _table(figures: Figures) -> str:
    width = max(map(len, LABELS.values()))
    return "\n".join(f"{label:{width}}  {_text(figures[name])}" for name, label in LABELS.items() if name in figures)


def _text(value: float | bool | str | list[str]) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "; ".join(value) or "none"
    if isinstance(value, str):
        return value
    return f"{value:,}"
