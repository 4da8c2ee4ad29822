"""`fairtape publish`: send a file of trades, or generated ones, into the ring of a folder."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fairtape.core.instants import SECOND
from fairtape.deployment.folder import SOURCES, RingFolder
from fairtape.deployment.publisher import SILENCE_MAX, Pace, Published, Silent, publish
from fairtape.deployment.ring import RingPlan
from fairtape.deployment.timesort import by_time
from fairtape.market.flow import SESSION_MAX, Flow, batches
from fairtape.market.trades import Trades
from fairtape.runtime.clock import SharedClock
from fairtape.runtime.complaints import Complaint
from fairtape.runtime.tradefiles import read_trades
from fairtape.wire.frames import NodeId

EXIT_INTERRUPTED: Final = 130
GENERATED_RATE: Final = 10_000  # trades per second of a generated session


@click.command("publish")
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--source", metavar="NAME|NUMBER", help="Publish as this source of the ring. [default: a free one]")
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
    speed: float | None,
    rate: float | None,
    count_max: int | None,
    generate: int | None,
    seed: int,
) -> None:
    """Publish a file of trades into a ring.

    The ring is the one that `fairtape listen DIRECTORY` runs. FILE is CSV or Parquet with a time, a symbol, a price and
    a quantity. Without --speed or --rate the trades go out as fast as the ring takes them. The command ends when every
    trade has its place in the order.
    """
    _refuse(file=file, speed=speed, rate=rate, count_max=count_max, generate=generate, seed=seed)
    folder = RingFolder(directory)
    plan = folder.read()
    if not folder.running:
        raise Complaint(f"the ring in {str(directory)!r} is not running; start it with: fairtape listen {directory}")
    me = _node(source, plan)
    if file is not None:
        total = _survey(file, count_max)
        trades = _from_file(file, count_max, sort=speed is not None)
    else:
        assert generate is not None
        total = min(generate, count_max or generate)
        trades = _generated(total, me, seed)
    try:
        with _bar(total) as progress:
            published = publish(plan, me, trades, Pace(rate=rate, speed=speed), progress)
    except Silent:
        raise Complaint(
            f"the ring in {str(directory)!r} has acknowledged nothing for {SILENCE_MAX // SECOND} s; see what"
            f" `fairtape listen {directory}` says"
        ) from None
    click.echo(_sentence(published, me))
    ctx.exit(0 if published.complete else EXIT_INTERRUPTED)


def _refuse(
    *,
    file: Path | None,
    speed: float | None,
    rate: float | None,
    count_max: int | None,
    generate: int | None,
    seed: int,
) -> None:
    if (file is None) == (generate is None):
        found = "neither a file nor --generate" if file is None else "both a file and --generate"
        raise Complaint(f"there is {found}; give one of them")
    if speed is not None and rate is not None:
        raise Complaint(f"--speed is {speed:g} and --rate is {rate:g}; give one of them")
    for name, value in (("--speed", speed), ("--rate", rate), ("--max", count_max), ("--generate", generate)):
        if value is not None and not 0 < value < float("inf"):
            raise Complaint(f"{name} is {value:g}; give more than 0")
    if seed < 0:
        raise Complaint(f"--seed is {seed}; give 0 or more")


def _node(wanted: str | None, plan: RingPlan) -> NodeId:
    """The source of that name or number, if nobody else publishes as it; the first free one where none is named."""
    known = {node: venue for node, venue in SOURCES.items() if node in plan.book}
    if wanted is None:
        free = next((node for node in known if _is_free(plan, node)), None)
        if free is None:
            raise Complaint(f"all {len(known)} sources of the ring are taken by other publishers; wait until one ends")
        return free
    for node, venue in known.items():
        if wanted.upper() == venue.name or wanted == str(venue.number):
            if not _is_free(plan, node):
                raise Complaint(f"--source is {wanted}, as which another program publishes; name another one")
            return node
    names = ", ".join(f"{venue.name} ({venue.number})" for venue in known.values())
    raise Complaint(f"--source is {wanted!r}; the ring knows {names}")


def _is_free(plan: RingPlan, node: NodeId) -> bool:
    peer = plan.book[node]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((peer.host, peer.port))
        except OSError:
            return False
    return True


def _survey(file: Path, count_max: int | None) -> int:
    """How many trades there are. What is wrong with a file is found before any of it is part of an order for ever."""
    return sum(len(trades) for trades in _limited(read_trades(file), count_max))


def _from_file(file: Path, count_max: int | None, *, sort: bool) -> Iterator[Trades]:
    trades = _limited(read_trades(file), count_max)
    return by_time(trades) if sort else trades


def _generated(count: int, me: NodeId, seed: int) -> Iterator[Trades]:
    """One long session of one venue."""
    flow = Flow(rate=GENERATED_RATE, venues=1, starts_at=SharedClock().now(), session_period=SESSION_MAX)
    for trades in _limited(batches(flow, np.random.default_rng(seed)), count):
        trades["venue"] = SOURCES[me].number
        yield trades


def _limited(trades: Iterator[Trades], count_max: int | None) -> Iterator[Trades]:
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
    columns = (TextColumn("acknowledged"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("acknowledged", total=total)
        yield lambda done: bar.update(task, completed=done)


def _sentence(published: Published, me: NodeId) -> str:
    seconds = published.period / SECOND
    ending = "" if published.complete else f"; interrupted, {published.published:,} were published"
    repeated = f", {published.resent:,} blocks sent again" if published.resent else ""
    return (
        f"{published.acknowledged:,} trades of {SOURCES[me].name} acknowledged in {seconds:.2f} s,"
        f" {published.per_second:,.0f} per second{repeated}{ending}"
    )
