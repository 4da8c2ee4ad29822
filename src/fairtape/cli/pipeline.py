"""`fairtape pipeline …`: commands that run on Spark: tables, proofs, reports and stripe plans.

Spark is imported when a command needs it; a `UserError` names the package that is missing. Exit codes of `reconcile`
are those of `fairtape journal verify`: 1 where a journal is damaged or journals differ, 3 where they agree in what they
share and one of them holds less than another, 2 where there is nothing to prove.
"""

import csv
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fairtape.cli.lazy import CommandEntry, LazyGroup
from fairtape.cli.terminal import asked_to_stop, check_within, counted, steps
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND
from fairtape.market.stripes import BASE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fairtape.market.stripes import Endpoint, StripePlan
    from fairtape.pipeline.reconciliation import JournalDifference, JournalProblem, Reconciliation
    from fairtape.pipeline.stripes.study import PlanRequest, Proposal, Study
    from fairtape.pipeline.tables.jobs import JobOutcome

COMMANDS: Final = {
    "run": CommandEntry("Tables", __name__, "run", "Make tables of journals, once or as they grow."),
    "compact": CommandEntry("Tables", __name__, "compact", "Merge the small files of tables."),
    "vacuum": CommandEntry("Tables", __name__, "vacuum", "Delete files that no table needs any more."),
    "prepare": CommandEntry("Tables", __name__, "prepare", "Make a class archive, so that Spark starts faster."),
    "reconcile": CommandEntry("Proof", __name__, "reconcile", "Prove that journals hold one sequence."),
    "report": CommandEntry("Results", __name__, "report", "Make a report page from tables."),
    "stripes": CommandEntry("Results", __name__, "stripes", "Plan stripes from the history of rates."),
}


@click.group(cls=LazyGroup, commands=COMMANDS)
def pipeline() -> None:
    """Process journals with Spark: tables, proofs, reports, plans.

    Needs the extra `pipeline` (pip install 'fairtape[pipeline]'), which includes a Java for machines that have none.
    """


HOURS_MAX: Final = 24 * 366
STOPPING: Final = "stopping after the tables are brought up to date; interrupt again to stop at once"
EXIT_DIFFERENT: Final = 1
EXIT_SHORTER: Final = 3
Folder: Final = click.Path(path_type=Path)

with_master = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    help="Where Spark runs: local[N], spark://HOST:PORT, or sc://HOST:PORT of a Spark Connect server.",
)


@contextmanager
def spark_at(master: str, **options: Any) -> "Iterator[SparkSession]":
    """A session, stopped at the end unless it existed before. Errors of executors become user errors."""
    session = needed()
    found = session.SparkSession.getActiveSession()
    spark = session.spark_session(master, **options)
    try:
        with session.as_user_errors():
            yield spark
    finally:
        if found is None:
            spark.stop()


def needed() -> Any:
    """The module that starts Spark, or a `UserError` where a package is missing."""
    try:
        from fairtape.pipeline.spark import spark_session as session
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "fairtape":
            raise
        remedy = "pip install 'fairtape[pipeline]'"
        raise UserError(
            f"package {error.name} is missing, which the pipeline needs; install it with: {remedy}"
        ) from None
    return session


@click.command()
@click.argument("places", type=Folder, nargs=-1, required=True)
@click.option("--out", type=Folder, required=True, help="Folder of the tables; created if missing.")
@with_master
@click.option("--stream", is_flag=True, help="Continue as journals grow, until Ctrl-C.")
@click.option(
    "--checkpoint", type=Folder, help="Folder for the offsets of a stream; it may be deleted.  [default: none]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def run(
    *, places: tuple[Path, ...], out: Path, master: str, stream: bool, checkpoint: Path | None, as_json: bool
) -> None:
    """Make tables of the journals in PLACES, or bring them up to date.

    A place is the journal of a site, a folder of several, or the folder of a deployment. Tables are Delta tables, which
    DuckDB, Polars and other readers of Delta can read at any time. Every number is added exactly once, also after an
    interruption; to continue, run it again.
    """
    if checkpoint is not None and not stream:
        raise UserError("--checkpoint is given without --stream; a run that ends needs none")
    journals = list(journals_in(places))
    needed()
    from fairtape.pipeline.spark.delta import make_folder
    from fairtape.pipeline.spark.snapshots import folder_of
    from fairtape.pipeline.tables.jobs import RAW

    folder_of(out, RAW)  # refuses a bad folder before Spark starts
    make_folder(out)
    with steps(quiet=as_json) as step:
        step("starting Spark")
        with spark_at(master) as spark:
            from fairtape.pipeline.tables.jobs import run_batch, run_stream

            if stream:
                with asked_to_stop(lambda: step(STOPPING)) as ended:
                    outcome = run_stream(spark, journals, out, checkpoint=checkpoint, step=step, ended=ended)
            else:
                outcome = run_batch(spark, journals, out, step=step)
    click.echo(_outcome_json(outcome) if as_json else _outcome_text(outcome, out))


def journals_in(places: Sequence[Path]) -> Iterator[Path]:
    """The journals in these places: a journal, a folder of journals, or a deployment."""
    from fairtape.deployment.config.description import FILE, read_deployment
    from fairtape.deployment.follow.site_failover import SiteFailover
    from fairtape.journal.segment_list import journals_below

    for place in places:
        if (place / FILE).exists():
            found = [path for path in SiteFailover(read_deployment(place)).journals.values() if path.is_dir()]
        elif not place.is_dir():
            raise UserError(f"{str(place)!r} is not a directory; name journals, a folder of them, or a deployment")
        else:
            found = list(journals_below(place))
        if not found:
            raise UserError(f"{str(place)!r} holds no journal; name one, a folder of them, or a deployment")
        yield from found


def _outcome_text(outcome: "JobOutcome", out: Path) -> str:
    partitions = [
        f"  stripe {name.stripe} of site {name.site} up to sequence {offset.next - 1:,}"
        for name, offset in sorted(outcome.offsets.items())
    ]
    made = f"{outcome.numbers:,} deliveries added, {counted(len(outcome.tables), 'table')} made in {out}"
    return "\n".join([made, *partitions])


def _outcome_json(outcome: "JobOutcome") -> str:
    offsets = {str(name): offset.next - 1 for name, offset in sorted(outcome.offsets.items())}
    return json.dumps({"deliveries": outcome.numbers, "tables": outcome.tables, "last_sequences": offsets})


@click.command()
@click.argument("tables", type=Folder)
def compact(tables: Path) -> None:
    """Merge the small files of the tables in TABLES into large ones. Readers see the same rows before and after."""
    needed()
    from fairtape.pipeline.spark.snapshots import folder_of

    for name in _existing(tables):
        metrics = folder_of(tables, name).compact()
        if metrics.get("numFilesRemoved"):
            click.echo(
                f"{name}: {counted(metrics['numFilesRemoved'], 'file')} merged into {metrics['numFilesAdded']:,}"
            )


@click.command()
@click.argument("tables", type=Folder)
@click.option(
    "--hours", type=int, default=168, show_default=True, help="Keep files that were in a table within these hours."
)
@click.option("--rehearse", "dry_run", is_flag=True, help="Delete nothing; print how many files would be deleted.")
def vacuum(tables: Path, hours: int, dry_run: bool) -> None:
    """Delete files in TABLES that no table has used for --hours, also those of writers that died.

    A reader or writer that started more than --hours ago may still need them: check that there is none if --hours is
    below 168.
    """
    check_within("--hours", hours, 1, HOURS_MAX)
    needed()
    from fairtape.pipeline.spark.snapshots import folder_of

    for name in _existing(tables):
        if swept := folder_of(tables, name).sweep(hours=hours, dry_run=dry_run):
            click.echo(f"{name}: {counted(len(swept), 'file')} {'would be deleted' if dry_run else 'deleted'}")


@click.command()
def prepare() -> None:
    """Make an archive of Spark's classes in the user's cache: every later start takes half the time.

    It takes minutes on a small machine and some 180 MB, once for each Java and Spark.
    """
    needed()
    from fairtape.pipeline.spark.java import make_archive

    click.echo(f"archive {make_archive()}")


def _existing(tables: Path) -> list[str]:
    from fairtape.pipeline.schemas import TABLES

    found = [name for name in TABLES if (tables / name / "_delta_log").is_dir()]
    if not found:
        hint = f"fairtape pipeline run JOURNALS --out {tables}"
        raise UserError(f"{str(tables)!r} holds no tables; make them with: {hint}")
    return found


@click.command()
@click.argument("places", type=click.Path(path_type=Path), nargs=-1, required=True)
@with_master
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def reconcile(ctx: click.Context, *, places: tuple[Path, ...], master: str, as_json: bool) -> None:
    """Prove that the journals in PLACES hold one sequence.

    For every journal: each link of its two hash chains, that of the order and that of its release marks, every number
    exactly once, nothing released before its commit instant. For all journals of a stripe: the same content under the
    same numbers. The first difference, and the first damage of each journal, are reported with site, token and byte.

    Exit code 0: one sequence, from the same beginning to the same end. 1: damaged, or different. 2: there is nothing to
    prove. 3: one sequence as far as they go, but one journal begins later or ends earlier than another.
    """
    journals = list(journals_in(places))
    with steps(quiet=as_json) as step:
        step("starting Spark")
        with spark_at(master) as spark:
            from fairtape.pipeline.reconciliation import reconcile as proved

            step(f"reading {counted(len(journals), 'journal')}")
            found = proved(spark, journals)
    click.echo(json.dumps(asdict(found)) if as_json else "\n".join(_reconciliation_lines(found)))
    ctx.exit(EXIT_DIFFERENT if not found.sound else 0 if found.level else EXIT_SHORTER)


def _reconciliation_lines(found: "Reconciliation") -> "Iterator[str]":
    for extent in found.extents:
        yield (
            f"stripe {extent.stripe} of site {extent.site}: sequence {extent.first_sequence:,} to "
            f"{extent.last_sequence:,} in {extent.entries:,} entries"
        )
    for directory in found.empty:
        yield f"{directory}: nothing yet"
    for problem in found.problems:
        yield (
            f"DAMAGED: {_whose(problem)}, sequence {problem.sequence:,}, "
            f"{problem.path} byte {problem.offset:,}: {problem.reason}"
        )
    for difference in found.differences:
        yield from _difference_lines(difference)
    if found.sound:
        yield "one sequence" if found.level else "one sequence as far as they go; one journal is SHORTER than another"


def _whose(problem: "JournalProblem") -> str:
    if problem.stripe is None:
        return "a journal without a readable owner"
    token = "" if problem.after_token is None else f", after token {problem.after_token:,}"
    if problem.token is not None:
        token = f", token {problem.token:,}"
    return f"stripe {problem.stripe} of site {problem.site}{token}"


def _difference_lines(difference: "JournalDifference") -> "Iterator[str]":
    sites = ", ".join(map(str, difference.sites))
    yield (
        f"DIFFERENT: stripe {difference.stripe}, token {difference.token:,}, sequence {difference.sequence:,} at site "
        f"{sites}: {difference.reason}"
    )
    for site, path, byte in difference.places:
        yield f"  site {site}: {path} byte {byte:,}"


@click.command("report")
@click.option("--tables", required=True, type=click.Path(path_type=Path), help="What `fairtape pipeline run` made.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder of the report.")
@with_master
def report(*, tables: Path, out: Path, master: str) -> None:
    """Make a report: a page about fairness, order, completeness, failover and latency.

    OUT/index.html is self-contained: no network, no script. Beside it are its data as CSV and Parquet (OUT/data), and
    the files for a regulator (OUT/regulator): clock log, latency per source, execution statistics, audit trail.
    """
    needed()
    from fairtape.pipeline.report.fairness_report import make_report

    try:
        with spark_at(master) as spark:
            made = make_report(spark, tables, out)
    except OSError as error:
        raise UserError(f"--out is {str(out)!r}, which cannot be written ({error.strerror}); name another") from None
    click.echo(f"report {made.page}, with {counted(len(made.files), 'file')} beside it")


# Stripe plans.

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
@click.option("--from", "history", required=True, type=click.Path(path_type=Path), help="Trades, or daily volumes.")
@click.option("--edge-rate", default="56k", show_default=True, help="Bits per second of an edge stripe.")
@click.option("--core-rate", default="1G", show_default=True, help="Bits per second of a core stripe.")
@click.option(
    "--bound", default=1e-4, show_default=True, help="Limit of the probability that a stripe exceeds its rate."
)
@click.option("--burst-ms", default=100, show_default=True, help="Time in which a burst of 10 ms must be sent.")
@click.option("--room", default=0.1, show_default=True, help="Fraction of each stripe reserved for new symbols.")
@click.option("--sectors", type=click.Path(path_type=Path), help="CSV with symbol,sector: which symbols are related.")
@click.option(
    "--previous", type=click.Path(path_type=Path), help="The plan in force; only symbols that must move are moved."
)
@click.option(
    "--hold-back", default=0.0, show_default=True, help="Fraction of the history, at its end, to evaluate the plan on."
)
@click.option("--windows", default=800, show_default=True, help="Windows of the history to sample.")
@click.option("--seed", default=1, show_default=True, help="Seed of the burst model for daily volumes.")
@click.option("--feeds", default="A,B", show_default=True, help="Names of the feeds.")
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
    daily volumes with symbol, date and volume, from which a model derives the rates within the day. Related symbols
    share a stripe. The probability that a stripe exceeds its rate in a second, or gets more in 10 ms than it can send
    in --burst-ms, stays below --bound.

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
    _write_plan(out, studied, request, proposal)
    click.echo(_plan_json(proposal) if as_json else _plan_text(out, studied, request, proposal))


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


def _write_plan(out: Path, studied: "Study", request: "PlanRequest", proposal: "Proposal") -> None:
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


def _plan_text(out: Path, studied: "Study", request: "PlanRequest", proposal: "Proposal") -> str:
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
                f"There the plan exceeded its rates for {over:.1e} of the time. That is more than the bound of "
                f"{request.bound:g}, which the plan meets on the history that it was made from. More --windows "
                f"({request.windows:,}) include rarer bursts, and a lower --bound leaves more reserve."
            )
    return "\n".join([*lines, "", f"plan {out}, report {out.with_suffix('.html')}"])


def _plan_json(proposal: "Proposal") -> str:
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
