"""`fairtape demo`: runs a whole market on this machine, shows it live, and checks its order from the journals.

The report page is made last. A failure of Spark is printed as one sentence and does not change the exit code.
"""

import json
import shlex
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click
from click.core import ParameterSource

from fairtape.cli.terminal import EXIT_BROKEN, counted, steps
from fairtape.core.errors import UserError, remedy_for
from fairtape.core.instants import SECOND, Instant
from fairtape.net.clock import SharedClock

if TYPE_CHECKING:
    from fairtape.core.timing import Timing
    from fairtape.demo.findings import Findings
    from fairtape.demo.tally import DemoTally
    from fairtape.demo.trading_floor import FloorSummary

MASTER: Final = "local[2]"  # the journals are small; more workers would only start more slowly
TABLES: Final = "tables"
REPORT: Final = "report"
REASON_MAX: Final = 200  # characters of an error of Spark
EXIT_INTERRUPTED: Final = 130
SECONDS_MAX: Final = 24 * 3_600
LOSS_MAX: Final = 0.5
RATE_MAX: Final = 5_000  # messages per second: nine sites share the cores of one machine
CUSTOMERS_MAX: Final = 1_000  # three processes receive for all of them
REPORT_WIDTH: Final = 79
LINE_PERIOD: Final = 2 * SECOND  # between two progress lines, without a terminal


@click.command()
@click.option("--seconds", default=20.0, show_default=True, help="Trading time in seconds.")
@click.option("--loss", default=0.01, show_default=True, help="Fraction of datagrams lost on every link.")
@click.option("--rate", default=400.0, show_default=True, help="Messages per second, over all floors.")
@click.option("--seed", default=1, show_default=True, help="Seed of the trades and the losses.")
@click.option("--customers", default=200, show_default=True, help="Customers, over three regions.")
@click.option("--kill/--no-kill", "kills", default=True, show_default=True, help="Kill one site half-way.")
@click.option("--mesh", is_flag=True, help="Use unicast between all sites, even where IP multicast works.")
@click.option(
    "--folder",
    "--journals",
    type=click.Path(path_type=Path),
    help="New folder for the deployment and its journals.  [default: temporary]",
)
@click.option(
    "--report/--no-report",
    "wants_page",
    default=True,
    show_default=True,
    help="Run the pipeline on the journals and write a report page.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object and nothing else.")
@click.option(
    "--floor",
    is_flag=True,
    help="Simulate traders on four continents instead, and kill their arbiter.",
)
@click.pass_context
def demo(
    ctx: click.Context,
    *,
    seconds: float,
    loss: float,
    rate: float,
    seed: int,
    customers: int,
    kills: bool,
    mesh: bool,
    folder: Path | None,
    wants_page: bool,
    as_json: bool,
    floor: bool,
) -> None:
    """Run a whole market on this machine and prove its order.

    A deployment, as `fairtape init --cities all` makes it: nine sites on five continents form one token loop, and six
    trading floors publish into it. Every site is a process with real UDP sockets; losses and the delays of the real
    distances are injected where datagrams arrive. Customers in three regions receive two feeds each. Half-way one site
    is killed: a reformation server forms the ring without it, another site takes over its customers, and no customer
    misses a trade. At the end Spark makes tables and a report page from the journals.

    Ctrl-C closes the floors and reports what was done; a second Ctrl-C exits at once. The deployment is kept, and runs
    again with `fairtape up`; the report says how to remove it. The exit code is 1 if something failed, the order
    differs between sites, or a customer missed a message.
    """
    from fairtape.demo.run import run_demo
    from fairtape.demo.world import DemoWorld, customers_possible

    if floor:
        _refuse_beside_floor(ctx)
        show_floor(ctx)
    _refuse(seconds=seconds, loss=loss, rate=rate, seed=seed, customers=customers)
    if customers and not customers_possible():
        click.echo("fairtape: no customers: they need IP multicast, which does not work on this machine", err=True)
        customers = 0
    world = DemoWorld(seconds=seconds, loss=loss, rate=rate, seed=seed, mesh=mesh, customers=customers, kills=kills)
    with _folder(folder) as chosen, _progress_view() as observer:
        findings = run_demo(world, chosen, observer)
    if not as_json:
        click.echo(report(findings, temporary=folder is None))
    page = _page(findings) if wants_page and not findings.interrupted else None
    if as_json:
        click.echo(json.dumps(findings.as_json() | {"report": None if page is None else str(page)}))
    else:
        click.echo(_page_text(page, findings.folder))
    if findings.failures or not findings.one_order or findings.missed:
        ctx.exit(EXIT_BROKEN)
    ctx.exit(EXIT_INTERRUPTED if findings.interrupted else 0)


def _refuse_beside_floor(ctx: click.Context) -> None:
    for option in ctx.command.params:
        if option.name != "floor" and ctx.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            raise UserError(
                f"{option.opts[0]} is given together with --floor, which has no other options; leave it out"
            )


def _refuse(*, seconds: float, loss: float, rate: float, seed: int, customers: int) -> None:
    if not 0 < seconds <= SECONDS_MAX:
        raise UserError(f"--seconds is {seconds:g}; give more than 0 and at most {SECONDS_MAX}")
    if not 0 <= loss <= LOSS_MAX:
        raise UserError(f"--loss is {loss:g}; give a share from 0 to {LOSS_MAX:g}, such as 0.01 for 1 %")
    if not 0 < rate <= RATE_MAX:
        raise UserError(f"--rate is {rate:g}; give more than 0 and at most {RATE_MAX} messages per second")
    if seed < 0:
        raise UserError(f"--seed is {seed}; give 0 or more")
    if not 0 <= customers <= CUSTOMERS_MAX:
        raise UserError(f"--customers is {customers}; give from 0 to {CUSTOMERS_MAX}")


@contextmanager
def _folder(chosen: Path | None) -> Iterator[Path]:
    """The folder of the deployment. A temporary one is removed if the run fails before its report."""
    if chosen is not None:
        yield chosen
        return
    folder = Path(tempfile.mkdtemp(prefix="fairtape-demo-"))
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def _progress_view() -> Iterator[Callable[["DemoTally"], None]]:
    """A live screen on a terminal, a line every two seconds elsewhere."""
    from rich.console import Console
    from rich.live import Live

    from fairtape.demo.view import screen

    console = Console(stderr=True)
    clock = SharedClock()
    if not console.is_terminal:
        yield _Lines(clock)
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show(tally: "DemoTally") -> None:
            live.update(screen(tally, clock.now(), console.height), refresh=True)

        yield show


class _Lines:
    """Progress lines for a file or a pipe."""

    def __init__(self, clock: SharedClock) -> None:
        self._clock = clock
        self._next_at: Instant = 0

    def __call__(self, tally: "DemoTally") -> None:
        from fairtape.demo.view import line
        from fairtape.demo.world import FLOORS, SITES

        now = self._clock.now()
        if now >= self._next_at:
            if not self._next_at:
                customers = counted(tally.world.customers, "customer")
                transport = transport_text(mesh=tally.deployment.groups is None)
                click.echo(f"{len(SITES)} sites, {len(FLOORS)} floors, {customers}, {transport}", err=True)
            self._next_at = now + LINE_PERIOD
            click.echo(line(tally, now), err=True)


def report(findings: "Findings", *, temporary: bool) -> str:
    """The text report, with the commands to inspect, verify and remove the journals."""
    from fairtape.demo.view import percent
    from fairtape.demo.world import FLOORS, SITES, TIMING

    world = findings.world
    rows = [
        ("world", f"{len(SITES)} sites, {len(FLOORS)} trading floors, {percent(world.loss)} loss, real distances"),
        ("transport", transport_text(mesh=findings.transport == "mesh")),
        ("published", counted(findings.published, "message")),
        ("delivered", f"{counted(findings.delivered_min, 'message')} at every site{_except_killed(findings)}"),
        (f"one order at all {len(SITES)} sites", _order_text(findings)),
        *_edge_rows(findings),
        ("guaranteed delay", _guarantee_text(findings, TIMING)),
        ("measured delay", _delay_text(findings)),
        ("late", _late_text(findings)),
        ("release spread", _spread_text(findings)),
        ("recoveries", _recovery_text(findings)),
    ]
    if findings.interrupted:
        rows.insert(2, ("interrupted", "the floors closed early; these are the results until then"))
    rows += [("FAILURE", sentence) for sentence in findings.failures]
    first_journal = next(iter(findings.journals.values()))
    folder = shlex.quote(str(findings.folder))
    lines = [
        *_wrapped(rows),
        f"deployment: {findings.folder}; run it again with: fairtape up {folder}",
        f"show a journal with: fairtape journal cat {shlex.quote(str(first_journal))} --limit 20",
        f"verify all journals with: fairtape journal verify {folder}/journals/*{_shorter(findings)}",
    ]
    if temporary:
        lines.append(f"remove everything with: rm -r {folder}")
    return "\n".join(lines)


def _shorter(findings: "Findings") -> str:
    """The killed site's journal is not damaged, although the command does not exit with 0."""
    return "" if findings.killed is None else f"  # exit code 3: the journal of {findings.killed} is shorter"


def transport_text(*, mesh: bool) -> str:
    return "a mesh of unicasts" if mesh else "IP multicast on the loopback interface"


def _except_killed(findings: "Findings") -> str:
    return "" if findings.killed is None else f" but {findings.killed}"


def _order_text(findings: "Findings") -> str:

    if not findings.one_order:
        return f"NO: {findings.problem}"
    if findings.killed is None:
        return "yes"
    return (
        f"yes: {len(findings.survivors)} identical to the end, and {findings.killed} identical for the"
        f" {counted(findings.delivered[findings.killed], 'message')} it released"
    )


def _edge_rows(findings: "Findings") -> Iterator[tuple[str, str]]:
    if findings.killed is not None:
        yield "site killed", _kill_text(findings)
    if findings.world.customers:
        yield "customers", _customer_text(findings)


def _kill_text(findings: "Findings") -> str:
    text = f"{findings.killed}, {findings.killed_at / 1e9:.1f} s after the opening"
    if findings.reformed_delay is None:
        return f"{text}; the ring did not continue without it in time"
    text += f"; the ring continued without it {findings.reformed_delay / 1e9:.1f} s later"
    if findings.restored_delay is None:
        return text if findings.without_second_feed else f"{text}, and its customers receive two feeds again"
    return f"{text}, and its customers received two feeds again after {findings.restored_delay / 1e9:.1f} s"


def _customer_text(findings: "Findings") -> str:
    from fairtape.demo.world import REGIONS

    customers, verdict = findings.world.customers, findings.customers
    who = f"{verdict.complete:,} of {customers:,} in {len(REGIONS)} regions"
    if verdict.complete == customers:
        received = f"{who} received exactly what was released, every message once and in order"
    elif findings.finished:
        received = f"ONLY {who} received exactly what was released; {counted(verdict.missed, 'message')} missed"
    else:
        received = f"{who} had received everything released when the run ended"
    return (
        f"{received}; {counted(findings.customer_lost, 'datagram')} lost on the way to them,"
        f" {counted(findings.customer_requests, 'request')} for messages lost on both feeds"
    )


def _late_text(findings: "Findings") -> str:
    text = f"{findings.late_fraction:.3%} of all releases"
    if not findings.late_reforming:
        return text
    if findings.late_reforming == findings.late:
        return f"{text}; all of them waited for a reformation"
    return f"{text}; {findings.late_reforming / findings.late:.0%} of them waited for a reformation"


def _wrapped(rows: list[tuple[str, str]]) -> Iterator[str]:
    """Rows of name and text, wrapped to REPORT_WIDTH."""
    width = max(len(name) for name, _ in rows) + 2
    for name, text in rows:
        yield textwrap.fill(
            text, REPORT_WIDTH, initial_indent=name.ljust(width), subsequent_indent=" " * width, break_long_words=False
        )


def _guarantee_text(findings: "Findings", timing: "Timing") -> str:
    return (
        f"{findings.guaranteed_delay / 1e6:,.0f} ms from reception at the token site to release:"
        f" {timing.token_period / 1e6:.0f} ms maximum wait for a token, plus {timing.commit_delay / 1e6:,.0f} ms"
        f" commit delay"
    )


def _delay_text(findings: "Findings") -> str:
    if findings.delay_p50 is None or findings.delay_p99 is None or findings.delay_max is None:
        return "nothing was released"
    return (
        f"p50 {findings.delay_p50 / 1e6:,.0f} ms, p99 {findings.delay_p99 / 1e6:,.0f} ms, max"
        f" {findings.delay_max / 1e6:,.0f} ms from the trade on its floor to its release, over all sites"
    )


def _spread_text(findings: "Findings") -> str:
    if findings.spread_p50 is None or findings.spread_p99 is None:
        return "nothing was released on time at two sites"
    return (
        f"p50 {findings.spread_p50 / 1e3:,.0f} µs, p99 {findings.spread_p99 / 1e3:,.0f} µs from the first to the last"
        f" site; clock bound {findings.clock_bound / 1e3:g} µs;"
        f" {'sites run with real-time priority' if findings.real_time else 'sites run without real-time priority'}"
    )


def _recovery_text(findings: "Findings") -> str:
    from fairtape.demo.world import RESILIENCE

    return (
        f"{counted(findings.lost, 'datagram')} lost, {counted(findings.requests, 'request')},"
        f" {counted(findings.repairs, 'repair')}; no message is released before {RESILIENCE + 1} sites hold it"
    )


def _page(findings: "Findings") -> Path | None:
    """Make the report page, or print why that failed."""
    try:
        return write_page(findings.journals.values(), findings.folder)
    except UserError as error:
        click.echo(f"fairtape: no report page: {error}", err=True)
        return None


def _page_text(page: Path | None, folder: Path) -> str:
    if page is None:
        return f"make the report with: {page_commands(folder)}"
    return f"tables: {folder / TABLES}\nreport: {page}"


def write_page(journals: Iterable[Path], folder: Path) -> Path:
    """Write all tables and the page into `folder`. Raises UserError if that fails."""
    from fairtape.cli.pipeline import spark_at
    from fairtape.demo.world import FLOORS, SITES

    with _spark_errors_as_user_errors(), steps(quiet=False) as step:
        step("report: starting Spark")
        with spark_at(MASTER) as spark:
            from fairtape.pipeline.report.fairness_report import make_report
            from fairtape.pipeline.report.sections import Names
            from fairtape.pipeline.tables.jobs import run_batch

            run_batch(spark, list(journals), folder / TABLES, step=lambda text: step(f"report: {text}"))
            step("report: writing the page")
            names = Names(
                sites={number: site.name for number, site in SITES.items()},
                sources={number: f"{floor.name} ({floor.city})" for number, floor in FLOORS.items()},
            )
            return make_report(spark, folder / TABLES, folder / REPORT, names=names).page


def page_commands(folder: Path) -> str:
    """The commands that make the same page later."""
    tables, out = shlex.quote(str(folder / TABLES)), shlex.quote(str(folder / REPORT))
    journals = shlex.quote(str(folder / "journals"))
    return f"fairtape pipeline run {journals} --out {tables} && fairtape pipeline report --tables {tables} --out {out}"


@contextmanager
def _spark_errors_as_user_errors() -> Iterator[None]:
    from fairtape.cli.pipeline import needed
    from fairtape.journal import Damaged

    needed()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except Damaged as damage:
        raise UserError(f"{damage}; compare the journals with: fairtape journal verify") from None
    except ImportError as missing:
        raise UserError(remedy_for(missing) or str(missing)) from None
    except OSError as error:
        raise UserError(f"{error.filename or 'a file'} cannot be used ({error.strerror})") from None
    except (Py4JError, PySparkException) as error:
        reason = " ".join(str(error).split())[:REASON_MAX]
        raise UserError(f"Spark failed ({type(error).__name__}: {reason}); give it more memory, or try again") from None


def show_floor(ctx: click.Context) -> NoReturn:
    """Run the session of `--floor`, print its events and its summary, and exit."""
    from fairtape.demo.trading_floor import TradingFloor
    from fairtape.simulation.world import Violation

    session = TradingFloor()
    try:
        for line in session.run():
            click.echo(line)
    except Violation as broken:
        click.echo(f"fairtape: a guarantee was broken: {broken}", err=True)
        ctx.exit(EXIT_BROKEN)
    summary = session.summary()
    click.echo(_floor_text(summary))
    ctx.exit(0 if summary.same and summary.conserved and not summary.accusations else EXIT_BROKEN)


def _floor_text(summary: "FloorSummary") -> str:
    from fairtape.demo.trading_floor import COMMIT_PASSES

    shares = "\n".join(f"  {name:<16} took part in {count:>5,} trades" for name, count in summary.shares.items())
    return (
        f"\n{summary.trades:,} trades, {summary.committed:,} of them committed, {summary.void:,} void; the longest"
        f" pause between two trades was {summary.longest_pause / 1e9:.1f} s\n{shares}\n"
        f"The arbiters reported {summary.reports:,} tokens, and were accused {summary.accusations:,} times.\n"
        f"A trade commits after {COMMIT_PASSES} passes of the token. All five replicas, including the killed one, hold"
        f" {'the same trades and the same ledger' if summary.same else 'DIFFERENT states'};"
        f" cash and shares {'are conserved exactly' if summary.conserved else 'are NOT conserved'}."
    )
