"""`fairtape demo`: a whole market on this machine, shown while it runs and proved when it is over."""

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

from fairtape.cli.terminal import EXIT_BROKEN, steps
from fairtape.core.errors import UserError
from fairtape.core.extras import remedy_for
from fairtape.core.instants import SECOND, Instant
from fairtape.net.clock import SharedClock

if TYPE_CHECKING:
    from rich.console import Console

    from fairtape.core.timing import Timing
    from fairtape.demo.findings import Findings
    from fairtape.demo.tally import DemoTally
    from fairtape.demo.trading_floor import Closing

# The end of `fairtape demo`: its own journals go through the pipeline, and a page tells what they say.
#
# By then the demonstration has proved itself. So whatever keeps Spark from its work is a complaint, told in one
# sentence beside the proof, and fails nothing.

MASTER: Final = "local[2]"  # more would take longer to start than the journals of a demonstration to read
TABLES: Final = "tables"
REPORT: Final = "report"
REASON_MAX: Final = 200  # characters of what Spark says


def write_page(journals: Iterable[Path], folder: Path) -> Path:
    """Make all tables and the page in `folder`; a Complaint says why there is none."""
    from fairtape.cli.pipeline_jobs import spark_at
    from fairtape.demo.world import FLOORS, SITES

    with _in_one_sentence(), steps(quiet=False) as step:
        step("report: starting Spark")
        with spark_at(MASTER) as spark:
            from fairtape.pipeline.report.report import make_report
            from fairtape.pipeline.report.sections import Names
            from fairtape.pipeline.tables.jobs import run_batch

            run_batch(spark, list(journals), folder / TABLES, step=lambda text: step(f"report: {text}"))
            step("report: writing the page")
            names = Names(
                sites={number: site.name for number, site in SITES.items()},
                sources={number: f"{floor.name} ({floor.city})" for number, floor in FLOORS.items()},
            )
            return make_report(spark, folder / TABLES, folder / REPORT, names=names).page


def commands(folder: Path) -> str:
    """What a person types to make the same page later."""
    tables, out = shlex.quote(str(folder / TABLES)), shlex.quote(str(folder / REPORT))
    journals = shlex.quote(str(folder))
    return f"fairtape pipeline run {journals} --out {tables} && fairtape pipeline report --tables {tables} --out {out}"


@contextmanager
def _in_one_sentence() -> Iterator[None]:
    """Turn everything that Spark may fail of into a complaint."""
    from fairtape.cli.pipeline_jobs import needed
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
        said = " ".join(str(error).split())[:REASON_MAX]
        raise UserError(f"Spark gave up ({type(error).__name__}: {said}); give it more memory, or try again") from None


# `fairtape demo --floor`: traders on four continents, and what becomes of their trades when the arbiter dies.


def show_floor(ctx: click.Context) -> NoReturn:
    """Play the session, tell it, and end the command."""
    from fairtape.demo.trading_floor import TradingFloor
    from fairtape.simulation.observer import Violation

    session = TradingFloor()
    try:
        for line in session.play():
            click.echo(line)
    except Violation as broken:
        click.echo(f"fairtape: a guarantee broke: {broken}", err=True)
        ctx.exit(EXIT_BROKEN)
    closing = session.closing()
    click.echo(told(closing))
    ctx.exit(0 if closing.same and closing.conserved and not closing.accusations else EXIT_BROKEN)


def told(closing: "Closing") -> str:
    """The end of the story."""
    from fairtape.demo.trading_floor import COMMIT_PASSES

    shares = "\n".join(f"  {name:<16} took part in {count:>5,} trades" for name, count in closing.shares.items())
    return (
        f"\n{closing.trades:,} trades, {closing.committed:,} of them committed, {closing.void:,} void; the longest"
        f" silence between two trades was {closing.stood_still / 1e9:.1f} s\n{shares}\n"
        f"The arbiters reported {closing.reports:,} tokens, and were accused {closing.accusations:,} times.\n"
        f"A trade commits after {COMMIT_PASSES} passes of the token. All five replicas hold"
        f" {'the same trades and the same ledger' if closing.same else 'NOT the same'}, the killed one among them;"
        f" cash and shares {'add up to the last unit' if closing.conserved else 'do NOT add up'}."
    )


EXIT_INTERRUPTED: Final = 130
SECONDS_MAX: Final = 24 * 3_600
LOSS_MAX: Final = 0.5
RATE_MAX: Final = 5_000  # messages per second: nine sites have to share what cores there are
CUSTOMERS_MAX: Final = 1_000  # three processes have to hear for all of them
REPORT_WIDTH: Final = 79
LINE_PERIOD: Final = 2 * SECOND  # between two lines where there is no terminal


@click.command()
@click.option("--seconds", default=20.0, show_default=True, help="How long the floors trade.")
@click.option("--loss", default=0.01, show_default=True, help="The share of datagrams that every link loses.")
@click.option("--rate", default=400.0, show_default=True, help="Messages per second of all floors together.")
@click.option("--seed", default=1, show_default=True, help="Another seed: other trades, other losses.")
@click.option("--customers", default=200, show_default=True, help="Who hear the ticker, in three regions.")
@click.option("--kill/--no-kill", "kills", default=True, show_default=True, help="Kill one receiver half-way.")
@click.option("--mesh", is_flag=True, help="Unicasts between all sites, even where IP multicast works.")
@click.option(
    "--journals",
    type=click.Path(path_type=Path),
    help="A new folder for the journals.  [default: temporary]",
)
@click.option(
    "--report/--no-report", "wants_page", default=True, show_default=True, help="End with the pipeline and its page."
)
@click.option("--json", "as_json", is_flag=True, help="The report as one JSON object and nothing else.")
@click.option(
    "--floor",
    is_flag=True,
    help="Instead: traders on four continents, in simulated time, and their arbiter is killed.",
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
    journals: Path | None,
    wants_page: bool,
    as_json: bool,
    floor: bool,
) -> None:
    """Run a whole market on this machine and prove its order.

    Nine sites on five continents stand in one token loop, and six trading floors publish into it. Every site is a
    process of its own with real UDP sockets; the delays of the real distances and losses are injected where datagrams
    arrive. Customers in three regions hear two sites each. Half-way one of the sites is killed: a reformation server
    forms the ring anew without it, another site takes over its customers, and none of them misses a trade. It ends
    with the pipeline: Spark makes tables of the journals, and of those a page for people who were not there.

    Ctrl-C closes the floors and reports what was done; a second one leaves at once. The journals stay, so that they can
    be looked at; the report says how to remove them. The exit code is 1 when something failed, the order is not the
    same everywhere, or a customer missed something.
    """
    from fairtape.demo.play import play
    from fairtape.demo.world import DemoWorld
    from fairtape.net.loopback import loopback_groups, transport_text

    if floor:
        _refuse_beside_floor(ctx)
        show_floor(ctx)
    _refuse(seconds=seconds, loss=loss, rate=rate, seed=seed, customers=customers)
    groups = loopback_groups(mesh=mesh)
    world = DemoWorld(
        seconds=seconds,
        loss=loss,
        rate=rate,
        seed=seed,
        groups=groups,
        transport=transport_text(groups, mesh=mesh),
        customers=customers,
        kills=kills,
    )
    with _folder(journals) as folder, _audience() as audience:
        findings = play(world, folder, audience)
    if not as_json:
        click.echo(report(findings, temporary=journals is None))
    page = _page(findings, folder) if wants_page and not findings.interrupted else None
    if as_json:
        click.echo(json.dumps(findings.as_json() | {"report": None if page is None else str(page)}))
    else:
        click.echo(_page_words(page, folder))
    if findings.failures or not findings.one_order or findings.missed:
        ctx.exit(EXIT_BROKEN)
    ctx.exit(EXIT_INTERRUPTED if findings.interrupted else 0)


def _refuse_beside_floor(ctx: click.Context) -> None:
    for option in ctx.command.params:
        if option.name != "floor" and ctx.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            raise UserError(f"{option.opts[0]} is given, and --floor plays one session, always the same; leave it out")


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
    """Where the journals go. A temporary folder stays as long as its report can name it, and no longer."""
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
def _audience() -> Iterator[Callable[["DemoTally"], None]]:
    """A screen on a terminal, a line now and then elsewhere."""
    from rich.console import Console
    from rich.live import Live

    from fairtape.demo.view import screen

    console = Console(stderr=True)
    clock = SharedClock()
    if not console.is_terminal:
        yield _Lines(console, clock)
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show(tally: "DemoTally") -> None:
            live.update(screen(tally, clock.now(), console.height), refresh=True)

        yield show


class _Lines:
    """Progress for a file or a pipe."""

    def __init__(self, console: "Console", clock: SharedClock) -> None:
        self._console = console
        self._clock = clock
        self._next_at: Instant = 0

    def __call__(self, tally: "DemoTally") -> None:
        from fairtape.demo.view import counted, line
        from fairtape.demo.world import FLOORS, SITES

        now = self._clock.now()
        if now >= self._next_at:
            if not self._next_at:
                customers = counted(tally.world.customers, "customer")
                click.echo(f"{len(SITES)} sites, {len(FLOORS)} floors, {customers}, {tally.world.transport}", err=True)
            self._next_at = now + LINE_PERIOD
            click.echo(line(tally, now), err=True)


def report(findings: "Findings", *, temporary: bool) -> str:
    """What a person reads at the end, and what to type next."""
    from fairtape.demo.view import counted, percent
    from fairtape.demo.world import FLOORS, SITES, TIMING

    world = findings.world
    rows = [
        ("world", f"{len(SITES)} sites, {len(FLOORS)} trading floors, {percent(world.loss)} loss, real distances"),
        ("carrier", world.transport),
        ("published", counted(findings.published, "message")),
        ("delivered", f"{counted(findings.delivered_min, 'message')} at every site{_but(findings)}"),
        (f"one order at all {len(SITES)} sites", _order_words(findings)),
        *_edge_rows(findings),
        ("guaranteed delay", _guarantee_words(findings, TIMING)),
        ("measured delay", _delay_words(findings)),
        ("late", _late_words(findings)),
        ("release spread", _spread_words(findings)),
        ("recoveries", _recovery_words(findings)),
    ]
    if findings.interrupted:
        rows.insert(2, ("interrupted", "the floors closed early; this is what was done until then"))
    rows += [("FAILURE", sentence) for sentence in findings.failures]
    first_journal = next(iter(findings.journals.values()))
    folder = shlex.quote(str(first_journal.parent))
    lines = [
        *_wrapped(rows),
        f"journals: {first_journal.parent}",
        f"look at one: fairtape journal cat {shlex.quote(str(first_journal))} --limit 20",
        f"prove them all: fairtape journal verify {folder}/[1-9]-*",
    ]
    if temporary:
        lines.append(f"remove them: rm -r {folder}")
    return "\n".join(lines)


def _page(findings: "Findings", folder: Path) -> Path | None:
    """The page of the pipeline, or a sentence that says why there is none."""
    try:
        return write_page(findings.journals.values(), folder)
    except UserError as complaint:
        click.echo(f"fairtape: there is no report: {complaint}", err=True)
        return None


def _page_words(page: Path | None, folder: Path) -> str:
    if page is None:
        return f"make the report: {commands(folder)}"
    return f"tables: {folder / TABLES}\nreport: {page}"


def _but(findings: "Findings") -> str:
    return "" if findings.killed is None else f" but {findings.killed}"


def _order_words(findings: "Findings") -> str:
    from fairtape.demo.view import counted

    if not findings.one_order:
        return f"NO: {findings.problem}"
    if findings.killed is None:
        return "yes"
    return (
        f"yes: {len(findings.survivors)} alike to the end, and {findings.killed} like them as far as it came,"
        f" {counted(findings.delivered[findings.killed], 'message')}"
    )


def _edge_rows(findings: "Findings") -> Iterator[tuple[str, str]]:
    if findings.killed is not None:
        yield "receiver killed", _kill_words(findings)
    if findings.world.customers:
        yield "customers", _customer_words(findings)


def _kill_words(findings: "Findings") -> str:
    words = f"{findings.killed}, {findings.killed_at / 1e9:.1f} s after the opening"
    if findings.reformed_delay is None:
        return f"{words}; the ring did not go on without it in time"
    words += f"; the ring went on without it {findings.reformed_delay / 1e9:.1f} s later"
    if findings.restored_delay is None:
        return words if findings.deaf else f"{words}, and its customers hear two receivers again"
    return f"{words}, and its customers heard two receivers again after {findings.restored_delay / 1e9:.1f} s"


def _customer_words(findings: "Findings") -> str:
    from fairtape.demo.view import counted
    from fairtape.demo.world import REGIONS

    customers, verdict = findings.world.customers, findings.customers
    who = f"{verdict.complete:,} of {customers:,} in {len(REGIONS)} regions"
    if verdict.complete == customers:
        heard = f"{who} heard exactly what was released, every message once and in order"
    elif findings.finished:
        heard = f"ONLY {who} heard exactly what was released; {counted(verdict.missed, 'message')} not heard"
    else:
        heard = f"{who} had heard all that was released when it ended"
    return (
        f"{heard}; {counted(findings.customer_lost, 'datagram')} lost on the way to them,"
        f" {counted(findings.customer_requests, 'request')} for what neither feed brought"
    )


def _late_words(findings: "Findings") -> str:
    words = f"{findings.late_fraction:.3%} of all releases"
    if not findings.late_reforming:
        return words
    share = findings.late_reforming / findings.releases
    return f"{words}; {share:.3%} are those that waited for the ring to be formed anew"


def _wrapped(rows: list[tuple[str, str]]) -> Iterator[str]:
    """Names beside their texts, in lines that fit the narrowest terminal."""
    width = max(len(name) for name, _ in rows) + 2
    for name, text in rows:
        yield textwrap.fill(
            text, REPORT_WIDTH, initial_indent=name.ljust(width), subsequent_indent=" " * width, break_long_words=False
        )


def _guarantee_words(findings: "Findings", timing: "Timing") -> str:
    return (
        f"{findings.guaranteed_delay / 1e6:,.0f} ms from reception at the token site to release:"
        f" {timing.token_period / 1e6:.0f} ms the longest wait for a token, {timing.commit_delay / 1e6:,.0f} ms the"
        f" commit delay"
    )


def _delay_words(findings: "Findings") -> str:
    if findings.delay_p50 is None or findings.delay_p99 is None or findings.delay_max is None:
        return "nothing was released everywhere"
    return (
        f"p50 {findings.delay_p50 / 1e6:,.0f} ms, p99 {findings.delay_p99 / 1e6:,.0f} ms, max"
        f" {findings.delay_max / 1e6:,.0f} ms from the trade on its floor to its release, over all sites"
    )


def _spread_words(findings: "Findings") -> str:
    if findings.spread_p50 is None or findings.spread_p99 is None:
        return "nothing was released at several sites"
    return (
        f"p50 {findings.spread_p50 / 1e3:,.0f} µs, p99 {findings.spread_p99 / 1e3:,.0f} µs from the first to the last"
        f" site; clock bound {findings.clock_bound / 1e3:g} µs;"
        f" {'sites run in real time' if findings.real_time else 'sites run as ordinary programs'}"
    )


def _recovery_words(findings: "Findings") -> str:
    from fairtape.demo.view import counted
    from fairtape.demo.world import RESILIENCE

    return (
        f"{counted(findings.lost, 'datagram')} lost, {counted(findings.requests, 'request')},"
        f" {counted(findings.repairs, 'repair')}; no message is released before {RESILIENCE + 1} sites hold it"
    )
