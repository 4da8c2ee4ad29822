"""`fairtape publish`: trades of a file, or generated ones, into a ring. `fairtape revise`: notices of a venue."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from fairtape.cli.terminal import check_within, counted, parse_instant
from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.market.prices import FIXED_MAX, BadNumber, format_fixed, parse_fixed
from fairtape.market.symbols import BadName, checked_venue
from fairtape.net.clock import SharedClock

if TYPE_CHECKING:
    from fairtape.deployment.publish.publisher import Published, PublishPace
    from fairtape.deployment.publish.target import PublishTarget
    from fairtape.market.notices import Status, VenueNotice
    from fairtape.market.trades import PublishedTrade, Trades
    from fairtape.wire.frames import NodeId

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130
GENERATED_RATE: Final = 10_000  # trades per second of a generated session
GENERATED_MAX: Final = 100_000_000
COUNT_MAX: Final = 10**12
SEED_MAX: Final = 10**18
PERIOD_MAX: Final = 31 * 24 * 3_600 * SECOND  # a longer run is a mistake
ANNOUNCED_PERIOD_MIN: Final = 3_600 * SECOND  # a longer run is announced
FIRST_SOURCE: Final = 100  # the first one is 101
REACHED_MIN: Final = 0.9  # share of the requested rate; a lower one is reported
HELD_BACK_MIN: Final = 0.1  # share of the time for which the ring held trades back, above which it is reported


@click.command("publish")
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--source", metavar="NAME|NUMBER", help="Publish as this source of the ring.  [default: a free one]")
@click.option(
    "--time-unit",
    type=click.Choice(["s", "ms", "us", "ns"]),
    help="Unit of times that are numbers.  [default: ns]",
)
@click.option("--midnight", metavar="TIME", help="Midnight of the day of an ITCH file, with time zone.")
@click.option("--venue", default="", help="Venue of the trades of an ITCH file.")
@click.option("--speed", type=float, help="Replay in time order, at this multiple of the recorded speed.")
@click.option("--rate", type=float, help="Trades per second, in the order of the file.")
@click.option("--max", "count_max", type=int, metavar="N", help="Stop after N trades.")
@click.option("--generate", type=int, metavar="N", help="Publish N generated trades instead of a file.")
@click.option("--seed", default=1, show_default=True, help="Seed of generated trades.")
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

    DIRECTORY holds a deployment that `fairtape listen` or `fairtape up` runs. FILE is CSV or Parquet with
    time, symbol, price and quantity, and optionally venue, trade_id and side; or DBN; or a day of ITCH 5.0 (.itch),
    whose executions are published under their match numbers.

    Without --speed or --rate the trades are published as fast as the ring accepts them. The command ends when every
    trade has its position in the order.

    The exit code is 1 if the ring stops acknowledging before that, and 130 after Ctrl-C. The number of acknowledged
    trades is printed in either case.
    """
    from fairtape.deployment.publish.publisher import Ending, PublishPace, publish
    from fairtape.deployment.publish.target import publish_target
    from fairtape.deployment.publish.time_sort import by_time
    from fairtape.storage.trade_files import unpublished_columns

    _refuse(file=file, speed=speed, rate=rate, count_max=count_max, generate=generate, seed=seed)
    target = publish_target(directory)
    if not target.is_open():
        raise UserError(f"the ring in {str(directory)!r} is not running; start it with: {target.command}")
    me = _node(source, target)
    config = target.source_config(me)
    if file is not None:
        midnight_at = None if midnight is None else parse_instant("--midnight", midnight)
        supply: _Recorded | _Generated = _Recorded(file, time_unit, midnight_at, _venue(venue), count_max)
    else:
        assert generate is not None
        supply = _Generated(min(generate, count_max or generate), target.names[me], seed)
    pace = PublishPace(rate=rate, speed=speed)
    survey = _survey(supply.trades())
    if file is not None and (ignored := unpublished_columns(file)):
        click.echo(f"not published, because trades have no such field: {', '.join(ignored)}", err=True)
    _announce_period(pace.period(survey.count, survey.span), pace)
    with _bar(survey.count) as progress:
        trades = by_time(supply.trades()) if speed is not None else supply.trades()
        published = publish(config, trades, pace, progress)
    click.echo(_sentence(published, target.names[me], pace))
    if published.ending is Ending.SILENT:
        click.echo(f"fairtape: {_silence(target, directory)}", err=True)
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


def _node(wanted: str | None, target: "PublishTarget") -> "NodeId":
    """The source of that name or number, unless another program publishes as it; without a name, the first free one."""
    if wanted is None:
        free = next((node for node in target.names if _is_free(target, node)), None)
        if free is None:
            count = len(target.names)
            raise UserError(f"all {count} sources of the ring are taken by other publishers; wait until one ends")
        return free
    for node, name in target.names.items():
        if wanted.upper() == name.upper() or wanted == str(_number(node)):
            if not _is_free(target, node):
                raise UserError(f"--source is {wanted}, and another program publishes as this source; name another")
            return node
    names = ", ".join(f"{name} ({_number(node)})" for node, name in target.names.items())
    raise UserError(f"--source is {wanted!r}; the ring knows {names}")


def _venue(name: str) -> str:
    try:
        return checked_venue(name) if name else ""
    except BadName as error:
        raise UserError(f"--venue: {error}") from None


def _number(node: "NodeId") -> int:
    """The number of a source for people, from 1."""
    return node - FIRST_SOURCE if node > FIRST_SOURCE else node


def _is_free(target: "PublishTarget", node: "NodeId") -> bool:
    address = target.sources[node]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address.host, address.port))
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
    """Generated trades of one venue, in a session that began early enough for all of them to be in the past."""

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
    """Number and time span of the trades to publish."""

    count: int
    span: Duration  # from the earliest to the latest trade


def _survey(batches: Iterator["Trades"]) -> _Survey:
    """Read everything once: errors in a file are found before any of it is published, which cannot be undone."""
    count, earliest, latest = 0, FIXED_MAX, 0
    for trades in batches:
        if len(trades):
            count += len(trades)
            earliest = min(earliest, int(trades["traded_at"].min()))
            latest = max(latest, int(trades["traded_at"].max()))
    return _Survey(count, latest - earliest)


def _announce_period(period: Duration, pace: "PublishPace") -> None:
    """Refuse a run that would take weeks; announce one that takes hours."""
    asked = f"--rate is {pace.rate:g}" if pace.rate is not None else f"--speed is {pace.speed:g}" if pace.speed else ""
    hours = period / (3_600 * SECOND)
    if period > PERIOD_MAX:
        raise UserError(
            f"{asked}, at which publishing would take {hours / 24:,.0f} days; give a higher value, or omit it"
        )
    if period > ANNOUNCED_PERIOD_MIN:
        click.echo(f"{asked}: publishing takes {hours:,.1f} hours; Ctrl-C ends it at any time", err=True)


def _silence(target: "PublishTarget", directory: Path) -> str:
    from fairtape.deployment.publish.publisher import SILENCE_MAX

    what = f"acknowledged nothing for {SILENCE_MAX // SECOND} s" if target.is_open() else "stopped"
    return (
        f"the ring in {str(directory)!r} has {what}; trades that are published but not acknowledged may or may not"
        f" be in the order: `fairtape journal cat` shows what a site's journal holds"
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
    repeated = f", {published.resent:,} blocks resent" if published.resent else ""
    behind = published.period >= SECOND and pace.rate and published.per_second < REACHED_MIN * pace.rate
    slower = f" (requested: {pace.rate:,g}; the time includes the last acknowledgment)" if behind else ""
    return (
        f"{counted(published.acknowledged, 'trade')} acknowledged, published as {name}, in"
        f" {published.period / SECOND:.2f} s, {published.per_second:,.0f} per second{slower}{repeated}{ending}"
        + _limit(published)
    )


def _limit(published: "Published") -> str:
    """To which rate the ring limited the publisher, and why; empty if it did not."""
    if sum(published.held_back_by.values()) < HELD_BACK_MIN:
        return ""
    reasons = [f"{limit.value} ({share:.0%} of the time)" for limit, share in published.held_back_by.items()]
    return f"\nthe ring limited it to {published.per_second:,.0f} per second: {', '.join(reasons)}"


Command = TypeVar("Command", bound=Callable[..., None])


@click.group()
def revise() -> None:
    """Cancel or correct a trade, halt a venue, open it again.

    A notice is a message in the order, like a trade, and is released to every customer at the same instant. It is
    published as the source that published the trade: this needs that source's key, and no other program may publish
    as that source at the same time.
    """


def _trade_arguments(command: Command) -> Command:
    command = click.argument("number", type=int)(command)
    return click.argument("directory", type=click.Path(path_type=Path))(command)


@revise.command()
@_trade_arguments
def cancel(*, directory: Path, number: int) -> None:
    """Cancel the trade with this NUMBER in the order."""
    from fairtape.market.notices import CancelNotice

    trade, source = _found(directory, number)
    _publish(directory, source, CancelNotice(number, trade.venue_name, trade.symbol, SharedClock().now()))
    click.echo(f"canceled: {_describe(number, trade)}")


@revise.command()
@_trade_arguments
@click.option("--price", help="The correct price.  [default: unchanged]")
@click.option("--quantity", help="The correct quantity.  [default: unchanged]")
def correct(*, directory: Path, number: int, price: str | None, quantity: str | None) -> None:
    """Correct the trade with this NUMBER in the order."""
    from fairtape.market.notices import CorrectionNotice
    from fairtape.market.trades import BadTrade

    if price is None and quantity is None:
        raise UserError("neither --price nor --quantity is given; give the correct value")
    wrong, source = _found(directory, number)
    try:
        right = replace(
            wrong,
            price=wrong.price if price is None else _fixed("--price", price),
            quantity=wrong.quantity if quantity is None else _fixed("--quantity", quantity),
        )
    except BadTrade as error:
        raise UserError(f"{error}; the correction is not a valid trade") from None
    _publish(directory, source, CorrectionNotice(number, right, SharedClock().now()))
    click.echo(f"corrected: {_describe(number, wrong)}, is now {_terms(right)}")


@revise.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("venue")
def halt(*, directory: Path, venue: str) -> None:
    """Halt trading at VENUE."""
    from fairtape.market.notices import Status

    _state(directory, venue, Status.HALTED)
    click.echo(f"{venue.upper()} is halted")


@revise.command("open")
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("venue")
def open_(*, directory: Path, venue: str) -> None:
    """Open trading at VENUE again."""
    from fairtape.market.notices import Status

    _state(directory, venue, Status.OPEN)
    click.echo(f"{venue.upper()} is open")


def _found(directory: Path, number: int) -> tuple["PublishedTrade", "NodeId"]:
    from fairtape.deployment.publish.revision import trade_in
    from fairtape.market.notices import NUMBER_MAX

    check_within("NUMBER", number, 1, NUMBER_MAX)
    _running_target(directory)
    return trade_in(directory, number)


def _state(directory: Path, venue: str, status: "Status") -> None:
    from fairtape.market.notices import StatusNotice

    names = _running_target(directory).names
    source = next((node for node, name in names.items() if name.upper() == venue.upper()), None)
    if source is None:
        raise UserError(f"VENUE is {venue!r}; the ring knows {', '.join(names.values())}")
    _publish(directory, source, StatusNotice(names[source], status, SharedClock().now()))


def _running_target(directory: Path) -> "PublishTarget":
    from fairtape.deployment.publish.target import publish_target

    target = publish_target(directory)
    if not target.is_open():
        raise UserError(f"the ring in {str(directory)!r} is not running; start it with: {target.command}")
    return target


def _publish(directory: Path, source: "NodeId", notice: "VenueNotice") -> None:
    from fairtape.deployment.publish.source_thread import publish_once
    from fairtape.market.notices import encode_notice

    target = _running_target(directory)
    if source not in target.names:
        raise UserError(
            f"source {source} published it, which is not a source of this ring; only the publisher may revise a trade"
        )
    publish_once(target.source_config(source), [encode_notice(notice)])


def _fixed(name: str, text: str) -> int:
    try:
        return parse_fixed(text)
    except BadNumber as error:
        raise UserError(f"{name}: {error}") from None


def _describe(number: int, trade: "PublishedTrade") -> str:
    return f"number {number:,}, {trade.symbol} {_terms(trade)} at {trade.venue_name or 'no venue'}"


def _terms(trade: "PublishedTrade") -> str:
    return f"{format_fixed(trade.quantity)} for {format_fixed(trade.price)}"
