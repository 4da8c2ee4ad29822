"""`fairtape bench …`."""

import json
from typing import Any

import click

from fairtape.bench.report import Figures, ring_figures
from fairtape.cli.progress import steps


@click.group()
def bench() -> None:
    """Measure fairtape here, beside what it is compared with."""


@bench.command()
@click.option("--receivers", type=click.IntRange(1, 32), default=3, show_default=True, help="Sites in the ring.")
@click.option("--size", type=click.IntRange(16, 1_348), default=64, show_default=True, help="Bytes of a message.")
@click.option("--seconds", type=click.FloatRange(0.5, 3_600), default=5.0, show_default=True, help="Measured time.")
@click.option("--only", type=click.Choice(["all", "throughput", "latency"]), default="all", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def ring(receivers: int, size: int, seconds: float, only: str, as_json: bool) -> None:
    """Throughput, release error and latency under loss of one ring on loopback multicast."""
    with steps(quiet=as_json) as step:
        figures = ring_figures(receivers=receivers, size=size, seconds=seconds, only=only, step=step)
    click.echo(json.dumps(figures) if as_json else _table(figures))


def _table(figures: Figures) -> str:
    return "\n".join(f"{name:32} {_text(value)}" for name, value in figures.items())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1_000 else f"{value:,.0f}"
    return str(value)
