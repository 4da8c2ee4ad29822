"""`fairtape check --scale`: what each site has to do when there are ten, a hundred, ten thousand."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

import click

from fairtape.simulation.scale import Measured, Size, measure

SIZES: Final = (
    Size(sites=100),
    Size(sites=1_000),
    Size(sites=10_000),
    Size(sites=10_000, request_sets=10),
    Size(sites=10_000, levels=3),
)
HEADINGS: Final = ("sites", "loops", "of", "k_p", "control messages", "NACKs at one site", "NACKs, mean", "lost")
NOTE: Final = """
Control messages: per token and loop. NACKs: requests per token, at the site that was asked most, and at the mean site.
Lost: datagrams per token that a branch of the multicast tree lost, for everybody behind it.
Formations are installed at the beginning; there are no reformation servers in these worlds."""


def show_scale(*, as_json: bool) -> None:
    """Measure, row by row."""
    rows = []
    if not as_json:
        click.echo("  ".join(f"{heading:>17}" if " " in heading else f"{heading:>6}" for heading in HEADINGS))
    for size in SIZES:
        measured = measure(size)
        rows.append(asdict(measured))
        if not as_json:
            click.echo("  ".join(_cells(measured)))
    click.echo(json.dumps({"rows": rows}) if as_json else NOTE)


def _cells(row: Measured) -> Iterator[str]:
    for value in (row.size.sites, row.loops, row.loop_sites, row.size.request_sets):
        yield f"{value:>6,}"
    yield f"{row.control_per_token_per_loop:>17.2f}"
    yield f"{row.requests_per_token_max:>17.2f}"
    yield f"{row.requests / row.tokens / row.size.sites:>17.3f}"
    yield f"{row.losses / row.tokens:>6,.0f}"
