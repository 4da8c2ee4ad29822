"""`fairtape publish`: send a file of trades, or generated ones, into the ring of a folder."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from fairtape.cli.terminal import check_within, counted
from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.market.prices import FIXED_MAX, BadNumber, format_fixed, parse_fixed
from fairtape.market.symbols import BadName, checked_venue
from fairtape.net.clock import SharedClock

if TYPE_CHECKING:
    from fairtape.deployment.publish.publisher import Published, PublishPace
    from fairtape.deployment.publish.target import PublishTarget
    from fairtape.deployment.ring_plan import RingPlan
    from fairtape.market.notices import Notice, Status
    from fairtape.market.trades import Trade, Trades
    from fairtape.wire.frames import NodeId

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130
GENERATED_RATE: Final = 10_000  # trades per second of a generated session
GENERATED_MAX: Final = 100_000_000
COUNT_MAX: Final = 10**12
SEED_MAX: Final = 10**18
PERIOD_MAX: Final = 31 * 24 * 3_600 * SECOND  # nobody means a command that takes longer
TOLD_PERIOD_MIN: Final = 3_600 * SECOND  # whoever starts one that takes longer than this may not know it
FIRST_SOURCE: Final = 100  # the first one is 101
REACHED_MIN: Final = 0.9  # of the rate that was asked for; below it the user is told


@click.command("publish")
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--source", metavar="NAME|NUMBER", help="Publish as this source of the ring.  [default: a free one]")
@click.option(
    "--time-unit",
    type=click.Choice(["s", "ms", "us", "ns"]),
    help="Unit of times that are numbers.  [default: ns]",
)
@click.option("--midnight", metavar="TIME", help="Where the times of a day of ITCH begin, with its zone.")
@click.option("--venue", default="", help="Whose the trades of a day of ITCH are.")
@click.option("--speed", type=float, help="Times the recorded speed, in the order of time.")
@click.option("--rate", type=float, help="Trades per second, in the order of the file.")
@click.option("--max", "count_max", type=int, help="At most so many trades.")
@click.option("--generate", type=int, metavar="N", help="N generated trades instead of a file.")
@click.option("--seed", default=1, show_default=True, help="Of generated trades.")
@click.pass_context
def publish_command(
    ctx: click.Context,
    *,
    directory: Path,
    file: Path | None,
    source: str | None,
    time_unit: str | None,
    midnight: str | None,
    venue: str,
    speed: float | None,
    rate: float | None,
    count_max: int | None,
    generate: int | None,
    seed: int,
) -> None:
    """Publish a file of trades into a ring.

    The ring is the one that `fairtape listen DIRECTORY` or `fairtape up DIRECTORY` runs. FILE is CSV or Parquet with a
    time, a symbol, a price and a quantity, and perhaps a venue, whose name every trade carries, a trade_id and a side;
    or DBN; or a day of ITCH 5.0 (.itch), of which the executions are published under their match numbers.

    Without --speed or --rate the trades go out as fast as the ring takes them. The command ends when every trade has
    its place in the order.

    The exit code is 1 when the ring falls silent before that, and 130 after Ctrl-C; what was acknowledged until then is
    printed in either case.
    """
    from fairtape.cli.journal import parse_instant
    from fairtape.deployment.publish.publisher import Ending, PublishPace, publish
    from fairtape.deployment.publish.target import publish_target
    from fairtape.deployment.publish.time_sort import by_time
    from fairtape.storage.trade_files import unpublished_columns

    _refuse(file=file, speed=speed, rate=rate, count_max=count_max, generate=generate, seed=seed)
    door = publish_target(directory)
    if not door.is_open():
        raise UserError(f"the ring in {str(directory)!r} is not running; start it with: {door.command}")
    me = _node(source, door)
    plan = door.plan_for(me)
    if file is not None:
        supply: _Recorded | _Generated = _Recorded(
            file, time_unit, None if midnight is None else parse_instant(midnight), _venue(venue), count_max
        )
    else:
        assert generate is not None
        supply = _Generated(min(generate, count_max or generate), door.names[me], seed)
    pace = PublishPace(rate=rate, speed=speed)
    survey = _survey(supply.trades())
    if file is not None and (ignored := unpublished_columns(file)):
        click.echo(f"not published, because a trade has no place for it: {', '.join(ignored)}", err=True)
    _tell_period(pace.period(survey.count, survey.span), pace)
    with _bar(survey.count) as progress:
        trades = by_time(supply.trades()) if speed is not None else supply.trades()
        published = publish(plan, me, trades, pace, progress)
    click.echo(_sentence(published, door.names[me], pace))
    if published.ending is Ending.SILENT:
        click.echo(f"fairtape: {_silence(door, directory)}", err=True)
    ctx.exit({Ending.COMPLETE: 0, Ending.INTERRUPTED: EXIT_INTERRUPTED, Ending.SILENT: EXIT_FAILED}[published.ending])


def _refuse(
    *,
    file: Path | None,
    speed: float | None,
    rate: float | None,
    count_max: int | None,
    generate: int | None,
    seed: int,
) -> None:
    from fairtape.deployment.publish.publisher import RATES, SPEEDS

    if (file is None) == (generate is None):
        found = "neither a file nor --generate" if file is None else "both a file and --generate"
        raise UserError(f"there is {found}; give one of them")
    if speed is not None and rate is not None:
        raise UserError(f"--speed is {speed:g} and --rate is {rate:g}; give one of them")
    check_within("--speed", speed, *SPEEDS, hint=" times the recorded speed, or neither --speed nor --rate")
    check_within("--rate", rate, *RATES, hint=" trades per second, or neither --speed nor --rate")
    check_within("--max", count_max, 1, COUNT_MAX)
    check_within("--generate", generate, 1, GENERATED_MAX)
    check_within("--seed", seed, 0, SEED_MAX)


def _node(wanted: str | None, door: "PublishTarget") -> "NodeId":
    """The source of that name or number, if nobody else publishes as it; the first free one where none is named."""
    if wanted is None:
        free = next((node for node in door.names if _is_free(door.plan, node)), None)
        if free is None:
            count = len(door.names)
            raise UserError(f"all {count} sources of the ring are taken by other publishers; wait until one ends")
        return free
    for node, name in door.names.items():
        if wanted.upper() == name.upper() or wanted == str(_number(node)):
            if not _is_free(door.plan, node):
                raise UserError(f"--source is {wanted}, as which another program publishes; name another one")
            return node
    names = ", ".join(f"{name} ({_number(node)})" for node, name in door.names.items())
    raise UserError(f"--source is {wanted!r}; the ring knows {names}")


def _venue(name: str) -> str:
    try:
        return checked_venue(name) if name else ""
    except BadName as error:
        raise UserError(f"--venue: {error}") from None


def _number(node: "NodeId") -> int:
    """How people count sources: from 1."""
    return node - FIRST_SOURCE if node > FIRST_SOURCE else node


def _is_free(plan: "RingPlan", node: "NodeId") -> bool:
    peer = plan.book[node]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((peer.host, peer.port))
        except OSError:
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The trades of a file."""

    file: Path
    time_unit: str | None
    midnight_at: Instant | None
    venue: str
    count_max: int | None

    def trades(self) -> Iterator["Trades"]:
        from fairtape.storage.trade_files import recorded_trades

        found = recorded_trades(self.file, time_unit=self.time_unit, midnight_at=self.midnight_at, venue=self.venue)
        return _limited(found, self.count_max)


class _Generated:
    """The first trades of one long session of one venue that opened long enough ago for all of them to be past."""

    def __init__(self, count: int, venue: str, seed: int) -> None:
        self._count = count
        self._venue = venue
        self._seed = seed
        # A session opens busier than its mean, so these trades take less time than they would at the mean rate.
        age = count * SECOND // GENERATED_RATE + SECOND
        self._opened_at = SharedClock().now() - age

    def trades(self) -> Iterator["Trades"]:
        import numpy as np

        from fairtape.market.flow import SESSION_MAX, Flow, batches

        flow = Flow(rate=GENERATED_RATE, venues=1, starts_at=self._opened_at, session_period=SESSION_MAX)
        for trades in _limited(batches(flow, np.random.default_rng(self._seed)), self._count):
            trades["venue"] = self._venue.encode("ascii")
            yield trades


@dataclass(frozen=True, slots=True)
class _Survey:
    """What there is to publish."""

    count: int
    span: Duration  # from the earliest to the latest trade


def _survey(batches: Iterator["Trades"]) -> _Survey:
    """Look at everything. What is wrong with a file is found before any of it is part of an order for ever."""
    count, earliest, latest = 0, FIXED_MAX, 0
    for trades in batches:
        if len(trades):
            count += len(trades)
            earliest = min(earliest, int(trades["traded_at"].min()))
            latest = max(latest, int(trades["traded_at"].max()))
    return _Survey(count, latest - earliest)


def _tell_period(period: Duration, pace: "PublishPace") -> None:
    """Refuse what would never end; tell of what takes long."""
    asked = f"--rate is {pace.rate:g}" if pace.rate is not None else f"--speed is {pace.speed:g}" if pace.speed else ""
    hours = period / (3_600 * SECOND)
    if period > PERIOD_MAX:
        raise UserError(f"{asked}, at which publishing would take {hours / 24:,.0f} days; give more, or neither")
    if period > TOLD_PERIOD_MIN:
        click.echo(f"{asked}: publishing takes {hours:,.1f} hours; Ctrl-C ends it at any time", err=True)


def _silence(door: "PublishTarget", directory: Path) -> str:
    from fairtape.deployment.publish.publisher import SILENCE_MAX

    what = f"acknowledged nothing for {SILENCE_MAX // SECOND} s" if door.is_open() else "stopped"
    return (
        f"the ring in {str(directory)!r} has {what}; trades that are published and not acknowledged may have a place"
        f" in the order or not: `fairtape journal cat` shows what a site's journal holds"
    )


def _limited(trades: Iterator["Trades"], count_max: int | None) -> Iterator["Trades"]:
    left = count_max
    for batch in trades:
        if left is not None:
            batch = batch[:left]
            left -= len(batch)
        yield batch
        if left == 0:
            return


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("acknowledged"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("acknowledged", total=total)
        yield lambda done: bar.update(task, completed=done)


def _sentence(published: "Published", name: str, pace: "PublishPace") -> str:
    from fairtape.deployment.publish.publisher import Ending

    ending = "" if published.ending is Ending.COMPLETE else f"; {published.published:,} were published"
    repeated = f", {published.resent:,} blocks sent again" if published.resent else ""
    behind = published.period >= SECOND and pace.rate and published.per_second < REACHED_MIN * pace.rate
    slower = f" ({pace.rate:,g} were asked for; the time counts to the last acknowledgment)" if behind else ""
    return (
        f"{counted(published.acknowledged, 'trade')} acknowledged, published as {name}, in"
        f" {published.period / SECOND:.2f} s, {published.per_second:,.0f} per second{slower}{repeated}{ending}"
    )


# `fairtape revise`: what a venue says beside its trades.

Command = TypeVar("Command", bound=Callable[..., None])


@click.group()
def revise() -> None:
    """Cancel or correct a trade, halt a venue, open it again.

    A notice is a message of the venue like its trades: it has its place in the one order, and every customer hears it
    at the same instant. It is published as the source that published the trade, so this needs that source's key, and
    that no other program publishes as it meanwhile.
    """


def _trade_arguments(command: Command) -> Command:
    command = click.argument("number", type=int)(command)
    return click.argument("directory", type=click.Path(path_type=Path))(command)


@revise.command()
@_trade_arguments
def cancel(*, directory: Path, number: int) -> None:
    """The trade with this NUMBER in the order never was."""
    from fairtape.market.notices import Cancel

    trade, source = _found(directory, number)
    _publish(directory, source, Cancel(number, trade.venue_name, trade.symbol, SharedClock().now()))
    click.echo(f"canceled: {_words(number, trade)}")


@revise.command()
@_trade_arguments
@click.option("--price", help="What the price really was.  [default: as it was]")
@click.option("--quantity", help="What the quantity really was.  [default: as it was]")
def correct(*, directory: Path, number: int, price: str | None, quantity: str | None) -> None:
    """The trade with this NUMBER in the order was another one."""
    from fairtape.market.notices import Correction
    from fairtape.market.trades import BadTrade

    if price is None and quantity is None:
        raise UserError("there is neither --price nor --quantity; say what the trade really was")
    wrong, source = _found(directory, number)
    try:
        right = replace(
            wrong,
            price=wrong.price if price is None else _fixed("--price", price),
            quantity=wrong.quantity if quantity is None else _fixed("--quantity", quantity),
        )
    except BadTrade as error:
        raise UserError(f"{error}; a trade cannot be corrected into that") from None
    _publish(directory, source, Correction(number, right, SharedClock().now()))
    click.echo(f"corrected: {_words(number, wrong)}, is now {_terms(right)}")


@revise.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("venue")
def halt(*, directory: Path, venue: str) -> None:
    """The VENUE does not trade for now."""
    from fairtape.market.notices import Status

    _state(directory, venue, Status.HALTED)
    click.echo(f"{venue.upper()} is halted")


@revise.command("open")
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("venue")
def open_(*, directory: Path, venue: str) -> None:
    """The VENUE trades again."""
    from fairtape.market.notices import Status

    _state(directory, venue, Status.OPEN)
    click.echo(f"{venue.upper()} is open")


def _found(directory: Path, number: int) -> tuple["Trade", "NodeId"]:
    from fairtape.deployment.publish.revision import trade_in
    from fairtape.market.notices import NUMBER_MAX

    check_within("NUMBER", number, 1, NUMBER_MAX)
    _door(directory)
    return trade_in(directory, number)


def _state(directory: Path, venue: str, status: "Status") -> None:
    from fairtape.market.notices import VenueStatus

    names = _door(directory).names
    source = next((node for node, name in names.items() if name.upper() == venue.upper()), None)
    if source is None:
        raise UserError(f"VENUE is {venue!r}; the ring knows {', '.join(names.values())}")
    _publish(directory, source, VenueStatus(names[source], status, SharedClock().now()))


def _door(directory: Path) -> "PublishTarget":
    from fairtape.deployment.publish.target import publish_target

    door = publish_target(directory)
    if not door.is_open():
        raise UserError(f"the ring in {str(directory)!r} is not running; start it with: {door.command}")
    return door


def _publish(directory: Path, source: "NodeId", notice: "Notice") -> None:
    from fairtape.deployment.publish.source_thread import publish_once
    from fairtape.market.notices import encode_notice

    door = _door(directory)
    if source not in door.names:
        raise UserError(f"it was published by source {source}, which is none of this ring's; nobody else may revise it")
    publish_once(door.plan_for(source), source, [encode_notice(notice)])


def _fixed(name: str, text: str) -> int:
    try:
        return parse_fixed(text)
    except BadNumber as error:
        raise UserError(f"{name}: {error}") from None


def _words(number: int, trade: "Trade") -> str:
    return f"number {number:,}, {trade.symbol} {_terms(trade)} at {trade.venue_name or 'no venue'}"


def _terms(trade: "Trade") -> str:
    return f"{format_fixed(trade.quantity)} for {format_fixed(trade.price)}"
