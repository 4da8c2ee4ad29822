"""`fairtape pipeline stripes`: plan which symbols share a stripe, from the history of message rates."""

import csv
import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fairtape.cli.terminal import check_within, counted
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND
from fairtape.market.stripes import BASE

if TYPE_CHECKING:
    from fairtape.market.stripes import Endpoint, StripePlan
    from fairtape.pipeline.stripes.study import PlanRequest, Proposal, Study

UNITS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_RATE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kMG]?)")
SECTORS_MAX: Final = 1 << 16
RANGES: Final = {
    "bound": (1e-9, 0.5),
    "burst_ms": (1, 60_000),
    "room": (0.0, 0.9),
    "hold_back": (0.0, 0.9),
    "windows": (10, 20_000),
    "seed": (0, 10**9),
}


@click.command("stripes")
@click.option("--from", "history", required=True, type=click.Path(path_type=Path), help="Trades, or days of volumes.")
@click.option("--edge-rate", default="56k", show_default=True, help="Bits per second of an edge stripe.")
@click.option("--core-rate", default="1G", show_default=True, help="Bits per second of a core stripe.")
@click.option("--bound", default=1e-4, show_default=True, help="On the probability that a stripe exceeds its rate.")
@click.option("--burst-ms", default=100, show_default=True, help="Time in which the messages of 10 ms must be sent.")
@click.option("--room", default=0.1, show_default=True, help="The part of each stripe kept for new symbols.")
@click.option("--sectors", type=click.Path(path_type=Path), help="CSV with symbol,sector: which symbols are related.")
@click.option("--previous", type=click.Path(path_type=Path), help="The plan in force: few symbols move.")
@click.option("--hold-back", default=0.0, show_default=True, help="The last part of the time, to evaluate the plan on.")
@click.option("--windows", default=800, show_default=True, help="Windows of the history to sample.")
@click.option("--seed", default=1, show_default=True, help="Of the burst model for days.")
@click.option("--feeds", default="A,B", show_default=True, help="The feeds of the regions.")
@click.option("--base", default=str(BASE), show_default=True, help="The first multicast address, and the port of all.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Write the plan to this file, and a report beside it."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def stripes(
    *,
    history: Path,
    edge_rate: str,
    core_rate: str,
    bound: float,
    burst_ms: int,
    room: float,
    sectors: Path | None,
    previous: Path | None,
    hold_back: float,
    windows: int,
    seed: int,
    feeds: str,
    base: str,
    master: str,
    out: Path,
    as_json: bool,
) -> None:
    """Pack symbols into core and edge stripes.

    The history is a file of trades (CSV or Parquet) or a table of them, which Spark counts per second and per 10 ms; or
    days with symbol, date and volume, from which a model of the day makes seconds. Stocks that move together share a
    stripe. The probability that a stripe exceeds its rate in a second, or gets more in 10 ms than it can send in
    --burst-ms, stays below --bound. With --previous only symbols that must move are moved.

    A report (.html) and its plot (.svg) are written beside the plan. `fairtape operate DIR plan FILE` installs it.
    """
    from fairtape.market.stripes import BadPlan

    _check_numbers(bound=bound, burst_ms=burst_ms, room=room, hold_back=hold_back, windows=windows, seed=seed)
    rates = {"edge_bits_per_s": _rate("--edge-rate", edge_rate), "core_bits_per_s": _rate("--core-rate", core_rate)}
    _check_out(out)
    kept = None if previous is None else _previous(previous)
    belongs = {} if sectors is None else _sectors(sectors)
    ways, first = tuple(feeds.split(",")), _base(base)
    try:
        from fairtape.pipeline import spark_session
        from fairtape.pipeline.spark.spark_session import as_user_errors
        from fairtape.pipeline.stripes.overrun_risk import BadHistory
        from fairtape.pipeline.stripes.study import PlanRequest, propose, study
    except ImportError as missing:
        raise UserError(f"{missing.name} is not installed; pip install 'fairtape[pipeline]'") from None
    request = PlanRequest(
        **rates,
        bound=bound,
        burst_period=burst_ms * MILLISECOND,
        reserve=room,
        hold_back=hold_back,
        windows=windows,
        seed=seed,
    )
    try:
        with as_user_errors():
            studied = study(spark_session(master), history, request, belongs)
        proposal = propose(studied, request, previous=kept, midnight_at=_midnight_at(), feeds=ways, base=first)
    except (BadPlan, BadHistory) as bad:
        raise UserError(str(bad)) from None
    _write(out, studied, request, proposal)
    click.echo(_as_json(proposal) if as_json else _text(out, studied, request, proposal))


def _check_numbers(**values: float) -> None:
    for name, value in values.items():
        check_within(f"--{name.replace('_', '-')}", value, *RANGES[name])


def _check_out(out: Path) -> None:
    if out.suffix in (".html", ".svg"):
        raise UserError(f"--out is {str(out)!r}, which is the name of the report or its plot; use another suffix")


def _midnight_at() -> int:
    from fairtape.market.stripes import DAY

    return time.time_ns() // DAY * DAY


def _rate(name: str, text: str) -> int:
    from fairtape.market.stripes import BITS_PER_S_MAX

    found = _RATE.fullmatch(text)
    bits = round(float(found[1]) * UNITS[found[2]]) if found else 0
    if not 0 < bits <= BITS_PER_S_MAX:
        raise UserError(f"{name} is {text!r}; give bits per second up to {BITS_PER_S_MAX:,}, such as 56k, 1.5M or 1G")
    return bits


def _base(text: str) -> "Endpoint":
    from fairtape.market.stripes import BadPlan, Endpoint

    try:
        return Endpoint.parse(text, "--base")
    except BadPlan as bad:
        raise UserError(str(bad)) from None


def _previous(path: Path) -> "StripePlan":
    from fairtape.edge.service.stripe_plans import read_plan

    return read_plan(path)


def _sectors(path: Path) -> Mapping[str, str]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            found = {row["symbol"]: row["sector"] or "" for row in csv.DictReader(file)}
    except (OSError, KeyError, csv.Error, UnicodeDecodeError):
        raise UserError(f"--sectors is {str(path)!r}; give a CSV file with the columns symbol and sector") from None
    if len(found) > SECTORS_MAX:
        raise UserError(f"--sectors names {len(found):,} symbols; a plan has at most {SECTORS_MAX:,}")
    return found


def _write(out: Path, studied: "Study", request: "PlanRequest", proposal: "Proposal") -> None:
    from fairtape.market.stripe_files import to_toml
    from fairtape.pipeline.report.plots import WIDE, standalone
    from fairtape.pipeline.stripes.plan_report import needs_plot, stripe_page

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(to_toml(proposal.plan), encoding="utf-8")
        out.with_suffix(".html").write_text(stripe_page(studied, request, proposal).html(), encoding="utf-8")
        out.with_suffix(".svg").write_text(standalone(needs_plot(proposal), WIDE), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out is {str(out)!r}, which cannot be written ({error.strerror}); name another") from None


def _text(out: Path, studied: "Study", request: "PlanRequest", proposal: "Proposal") -> str:
    from fairtape.pipeline.stripes.plan_report import comparison

    plan, packing = proposal.plan, proposal.packing
    within = [need for place, need in enumerate(proposal.needs.tolist()) if place not in packing.lone]
    symbols, edges, cores = len(studied.symbols), packing.stripes, len(plan.core)
    what = f"{counted(symbols, 'symbol')} in {counted(edges, 'edge stripe')} of {counted(cores, 'core stripe')}"
    fullest = f"; the fullest needs {max(within):.0%} of its rate" if within else ""
    lines = [f"{what}, from {studied.description}{fullest}."]
    if packing.lone:
        lines.append(f"{counted(len(packing.lone), 'symbol')} too busy for any stripe, each in one of its own.")
    if proposal.moved or proposal.stayed:
        lines.append(f"{counted(proposal.moved, 'symbol')} moved, {proposal.stayed:,} stayed.")
    if proposal.results:
        held = studied.held.description if studied.held else ""
        table = comparison(proposal)
        widths = [max(len(row[at]) for row in (table.columns, *table.rows)) for at in range(len(table.columns))]
        lines += ["", f"Evaluated on {held}:"]
        for row in (table.columns, *table.rows):
            cells = [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
            lines.append("  ".join(cells))
        own = proposal.results[0]
        if (over := max(own.overruns)) > request.bound:
            lines.append(
                f"There it exceeded its rates for {over:.1e} of the time, more than the bound of {request.bound:g}, "
                f"which it keeps on the history that it was made from. More --windows ({request.windows:,}) include "
                "rarer moments, and a lower --bound leaves more reserve."
            )
    return "\n".join([*lines, "", f"plan {out}, report {out.with_suffix('.html')}"])


def _as_json(proposal: "Proposal") -> str:
    return json.dumps(
        {
            "version": proposal.plan.version,
            "edge_stripes": proposal.packing.stripes,
            "core_stripes": len(proposal.plan.core),
            "too_busy": len(proposal.packing.lone),
            "moved": proposal.moved,
            "stayed": proposal.stayed,
            "needs": dict(zip(map(str, proposal.numbers), proposal.needs.tolist(), strict=True)),
            "judged": [asdict(verdict) for verdict in proposal.results],
        }
    )
