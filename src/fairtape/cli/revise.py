"""`fairtape revise`: what a venue says beside its trades."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click

from fairtape.cli.limits import check_within
from fairtape.core.errors import UserError
from fairtape.deployment.publish.revision import trade_in
from fairtape.deployment.publish.source_thread import publish_once
from fairtape.deployment.publish.target import PublishTarget, publish_target
from fairtape.market.notices import NUMBER_MAX, Cancel, Correction, Notice, Status, VenueStatus, encode_notice
from fairtape.market.prices import BadNumber, format_fixed, parse_fixed
from fairtape.market.trades import BadTrade, Trade
from fairtape.net.clock import SharedClock
from fairtape.wire.frames import NodeId

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
    trade, source = _found(directory, number)
    _publish(directory, source, Cancel(number, trade.venue_name, trade.symbol, SharedClock().now()))
    click.echo(f"canceled: {_words(number, trade)}")


@revise.command()
@_trade_arguments
@click.option("--price", help="What the price really was.  [default: as it was]")
@click.option("--quantity", help="What the quantity really was.  [default: as it was]")
def correct(*, directory: Path, number: int, price: str | None, quantity: str | None) -> None:
    """The trade with this NUMBER in the order was another one."""
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
    _state(directory, venue, Status.HALTED)
    click.echo(f"{venue.upper()} is halted")


@revise.command("open")
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("venue")
def open_(*, directory: Path, venue: str) -> None:
    """The VENUE trades again."""
    _state(directory, venue, Status.OPEN)
    click.echo(f"{venue.upper()} is open")


def _found(directory: Path, number: int) -> tuple[Trade, NodeId]:
    check_within("NUMBER", number, 1, NUMBER_MAX)
    _door(directory)
    return trade_in(directory, number)


def _state(directory: Path, venue: str, status: Status) -> None:
    names = _door(directory).names
    source = next((node for node, name in names.items() if name.upper() == venue.upper()), None)
    if source is None:
        raise UserError(f"VENUE is {venue!r}; the ring knows {', '.join(names.values())}")
    _publish(directory, source, VenueStatus(names[source], status, SharedClock().now()))


def _door(directory: Path) -> PublishTarget:
    door = publish_target(directory)
    if not door.is_open():
        raise UserError(f"the ring in {str(directory)!r} is not running; start it with: {door.command}")
    return door


def _publish(directory: Path, source: NodeId, notice: Notice) -> None:
    door = _door(directory)
    if source not in door.names:
        raise UserError(f"it was published by source {source}, which is none of this ring's; nobody else may revise it")
    publish_once(door.plan_for(source), source, [encode_notice(notice)])


def _fixed(name: str, text: str) -> int:
    try:
        return parse_fixed(text)
    except BadNumber as error:
        raise UserError(f"{name}: {error}") from None


def _words(number: int, trade: Trade) -> str:
    return f"number {number:,}, {trade.symbol} {_terms(trade)} at {trade.venue_name or 'no venue'}"


def _terms(trade: Trade) -> str:
    return f"{format_fixed(trade.quantity)} for {format_fixed(trade.price)}"
