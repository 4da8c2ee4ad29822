"""`fairtape floor`: the trading floor of a deployment. What is entered has its place in the order when it returns."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import click

from fairtape.cli.floor_view import arbitrate, book_view, reader_of, replay_view, trades_view
from fairtape.cli.limits import check_within
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND
from fairtape.deployment.config.description import COMMIT_PASSES, COMMIT_PASSES_MAX, NodeKind, read_deployment
from fairtape.deployment.process.node import exit_with
from fairtape.deployment.publish.floor_request import FloorAnswer, Making, enter, fills_of
from fairtape.deployment.publish.source_thread import source_named
from fairtape.deployment.publish.target import publish_target
from fairtape.exchange.floor import Floor
from fairtape.exchange.orders import (
    Action,
    BadOrder,
    Cancel,
    Control,
    NewOrder,
    OpenMarket,
    OrderType,
    Side,
    TimeInForce,
)
from fairtape.exchange.rules.values import (
    BadRule,
    BatchAuction,
    CallAuction,
    Continuous,
    DutchClock,
    Pricing,
    Rule,
    SecondPrice,
)
from fairtape.market.prices import BadNumber, format_fixed, parse_fixed
from fairtape.market.symbols import BadName, checked_symbol
from fairtape.net.clock import SharedClock

EXIT_REFUSED: Final = 1
RULES: Final = ("continuous", "call", "batch", "sealed", "dutch")
DEPTH_MAX: Final = 1_000
LAST_MAX: Final = 10_000_000
PERIOD_MS_MAX: Final = 86_400_000

_DIRECTORY = click.argument("directory", type=click.Path(path_type=Path))
_SOURCE = click.option("--source", metavar="NAME|NUMBER", help="Enter it as this source.  [default: the first]")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")


@click.group()
def floor() -> None:
    """Open markets, enter orders, look at the books.

    DIRECTORY is a deployment that runs; what is only looked at may be the journal of a site, too. Accounts are funded
    with `fairtape accounts fund`, and many traders at once enter orders through `fairtape gateway`.
    """


@floor.command("open")
@_DIRECTORY
@click.argument("symbol")
@click.option("--rule", type=click.Choice(RULES), default="continuous", show_default=True, help="How it trades.")
@click.option(
    "--pricing",
    type=click.Choice([each.name.lower() for each in Pricing]),
    default="maker",
    show_default=True,
    help="Whose price a continuous trade is made at.",
)
@click.option("--tick", default="0.01", show_default=True, help="Every price is a multiple of it.")
@click.option("--lot", default="1", show_default=True, help="Every quantity is a multiple of it.")
@click.option("--price-min", default="0", help="The lowest price.  [default: one tick]")
@click.option("--price-max", default="0", help="The highest price.  [default: none]")
@click.option("--period-ms", type=int, help="Of a batch auction, or of one step of a Dutch clock.")
@click.option("--start", help="Where a Dutch clock begins.")
@click.option("--decrement", help="By how much a Dutch clock falls.")
@_SOURCE
@click.pass_context
def open_market(
    ctx: click.Context, /, *, directory: Path, symbol: str, source: str | None, **terms: str | None
) -> None:
    """Open a market, or let an open one go on under another rule."""
    wanted = {name: _fixed(f"--{name.replace('_', '-')}", terms[name] or "0") for name in ("tick", "lot")}
    bounds = [_fixed(f"--{name.replace('_', '-')}", terms[name] or "0") for name in ("price_min", "price_max")]
    rule, name = _rule(terms), _symbol(symbol)

    def making(gateway: int, number: int) -> OpenMarket:
        return OpenMarket(gateway, number, name, rule, wanted["tick"], wanted["lot"], *bounds)

    answer, _ = entered(directory, source, making)
    tell(ctx, answer, f"{name} trades as {type(rule).__name__}, tick {terms['tick']}, lot {terms['lot']}")


@floor.command()
@_DIRECTORY
@click.argument("symbol")
@click.argument("action", type=click.Choice([each.name.lower() for each in Action]))
@_SOURCE
@click.pass_context
def market(ctx: click.Context, *, directory: Path, symbol: str, action: str, source: str | None) -> None:
    """Halt, resume, uncross or close a market."""
    name, wanted = _symbol(symbol), Action[action.upper()]
    answer, _ = entered(directory, source, lambda gateway, number: Control(gateway, number, name, wanted))
    tell(ctx, answer, f"{name}: {action}")


@floor.command(context_settings={"ignore_unknown_options": True})  # a quantity below zero is no option
@_DIRECTORY
@click.argument("account")
@click.argument("side", type=click.Choice([each.name.lower() for each in Side]))
@click.argument("quantity")
@click.argument("symbol")
@click.option("--price", help="The limit.  [default: a market order]")
@click.option("--stop", help="Becomes an order when a trade reaches this price.")
@click.option(
    "--wait",
    type=click.Choice([each.name.lower() for each in TimeInForce]),
    default="day",
    show_default=True,
    help="How long it waits.",
)
@click.option("--post-only", is_flag=True, help="Rest or be refused.")
@click.option("--id", "client_id", help="The account's own name of the order.  [default: the time]")
@_SOURCE
@click.pass_context
def order(
    ctx: click.Context,
    *,
    directory: Path,
    account: str,
    side: str,
    quantity: str,
    symbol: str,
    price: str | None,
    stop: str | None,
    wait: str,
    post_only: bool,
    client_id: str | None,
    source: str | None,
) -> None:
    """Enter an order. The exit code is 1 where the floor refuses it."""
    name = client_id or f"{SharedClock().now()}"
    limited, stopped = price is not None, stop is not None
    kinds = {
        (False, False): OrderType.MARKET,
        (True, False): OrderType.LIMIT,
        (False, True): OrderType.STOP,
        (True, True): OrderType.STOP_LIMIT,
    }
    wanted = NewOrder(
        0,
        0,
        account,
        name,
        _symbol(symbol),
        Side[side.upper()],
        _fixed("QUANTITY", quantity),
        _fixed("--price", price or "0"),
        _fixed("--stop", stop or "0"),
        kinds[limited, stopped],
        TimeInForce[wait.upper()],
        post_only,
    )

    def making(gateway: int, number: int) -> NewOrder:
        return wanted._replace(gateway=gateway, gateway_number=number)

    answer, floor = entered(directory, source, making)
    customer = floor.customers.get(account)
    waiting = None if customer is None else customer.orders.get(name)
    left = "done" if waiting is None else f"{format_fixed(waiting[1].open)} of {quantity} wait in the book of {symbol}"
    tell(ctx, answer, f"order {name}: {left}")
    for fill in fills_of(answer, account, name):
        trade = fill.trade
        click.echo(
            f"  trade {trade.trade_id}: {format_fixed(trade.quantity)} at {format_fixed(trade.price)},"
            f" {trade.seller} to {trade.buyer}; tentative"
        )


@floor.command()
@_DIRECTORY
@click.argument("account")
@click.argument("order_id")
@_SOURCE
@click.pass_context
def cancel(ctx: click.Context, *, directory: Path, account: str, order_id: str, source: str | None) -> None:
    """Take what is left of an order out of its market."""
    answer, _ = entered(directory, source, lambda gateway, number: Cancel(gateway, number, account, order_id))
    tell(ctx, answer, f"order {order_id} is cancelled")


@floor.command()
@_DIRECTORY
@click.argument("symbol", required=False)
@click.option("--depth", default=10, show_default=True, help="Prices on each side.")
@click.option("--live", is_flag=True, help="Show it again and again, until Ctrl-C.")
@_JSON
def book(*, directory: Path, symbol: str | None, depth: int, live: bool, as_json: bool) -> None:
    """Show the book of a market, or of all."""
    check_within("--depth", depth, 1, DEPTH_MAX)
    if live and as_json:
        raise UserError("--live and --json are given; give one of them")
    book_view(directory, None if symbol is None else _symbol(symbol), depth, live=live, as_json=as_json)


@floor.command()
@_DIRECTORY
@click.option("--symbol", help="Of this market alone.")
@click.option("--last", type=int, help="The last so many.  [default: all]")
@_JSON
def trades(*, directory: Path, symbol: str | None, last: int | None, as_json: bool) -> None:
    """Print the trades of a floor, and whether they have committed."""
    check_within("--last", last, 1, LAST_MAX)
    trades_view(directory, None if symbol is None else _symbol(symbol), last, as_json=as_json)


@floor.command()
@click.argument("journals", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--commit-passes", type=int, help=f"As the floor had it.  [default: the deployment's, or {COMMIT_PASSES}]"
)
@_JSON
@click.pass_context
def replay(ctx: click.Context, *, journals: tuple[Path, ...], commit_passes: int | None, as_json: bool) -> None:
    """Compute a floor anew from journals.

    Trades, the ledger, and the digests of both: equal journals give equal digests. The exit code is 1 where several
    journals are named and their floors differ at the last token that all of them have, where an arbiter is accused, or
    where cash or shares do not add up.
    """
    check_within("--commit-passes", commit_passes, 0, COMMIT_PASSES_MAX)
    ctx.exit(0 if replay_view(journals, commit_passes, as_json=as_json) else EXIT_REFUSED)


@floor.command()
@_DIRECTORY
@click.argument("site")
@click.option("--parent", type=int, hidden=True, help="End together with this process.")
def arbiter(*, directory: Path, site: str, parent: int | None) -> None:
    """Report what a site's tokens trade, until Ctrl-C.

    The file of the deployment names the source of each arbiter, as in `[floor.arbiters]` with a line `s1 = "XNYS"`.
    `fairtape up` runs all that are named there.
    """
    deployment = read_deployment(directory)
    node = deployment.node(site, NodeKind.SITE, field="SITE")
    source = deployment.floor.arbiters.get(node.number)
    if source is None:
        raise UserError(f"SITE is {site!r}; [floor.arbiters] of the deployment names no source for it: add one")
    if parent is not None:
        exit_with(parent)
    arbitrate(deployment, node, source, patient=parent is not None)


def entered(directory: Path, source: str | None, making: Making) -> tuple[FloorAnswer, Floor]:
    """Enter a request: the answer to it, and the floor as it was at that place."""
    door = publish_target(directory)
    if not door.is_open():
        raise UserError(f"the deployment in {str(directory)!r} is not running; start it with: {door.command}")
    me = next(iter(door.names)) if source is None else source_named(door, source)
    with closing(reader_of(directory)) as reader:
        try:
            return enter(door, me, making, reader), reader.floor
        except BadOrder as bad:
            raise UserError(str(bad)) from None


def tell(ctx: click.Context, answer: FloorAnswer, words: str) -> None:
    """Print what became of a request; one that was refused ends the command."""
    if answer.refusal is not None:
        click.echo(f"refused at token {answer.token}: {answer.refusal}", err=True)
        ctx.exit(EXIT_REFUSED)
    place = f", sequence {answer.number}" if answer.number else ""
    click.echo(f"{words} (token {answer.token}{place})")


def _rule(terms: dict[str, str | None]) -> Rule:
    kind, period = terms["rule"], _period(terms["period_ms"])
    needed = {"batch": ("period_ms",), "dutch": ("period_ms", "start", "decrement")}.get(str(kind), ())
    for name in needed:
        if terms[name] is None:
            raise UserError(f"--rule is {kind}, which needs --{name.replace('_', '-')}; give it")
    makers: dict[str, Callable[[], Rule]] = {
        "continuous": lambda: Continuous(pricing=Pricing[str(terms["pricing"]).upper()]),
        "call": CallAuction,
        "sealed": SecondPrice,
        "batch": lambda: BatchAuction(period=period),
        "dutch": lambda: DutchClock(
            start=_fixed("--start", terms["start"] or "0"),
            decrement=_fixed("--decrement", terms["decrement"] or "0"),
            step_period=period,
        ),
    }
    try:
        return makers[str(kind)]()
    except BadRule as bad:
        raise UserError(f"--rule is {kind}: {bad}") from None


def _period(milliseconds: object) -> int:
    if milliseconds is None:
        return 0
    assert isinstance(milliseconds, int)
    check_within("--period-ms", milliseconds, 1, PERIOD_MS_MAX)
    return milliseconds * MILLISECOND


def _fixed(field: str, text: str) -> int:
    try:
        return parse_fixed(text)
    except BadNumber as bad:
        raise UserError(f"{field}: {bad}") from None


def _symbol(text: str) -> str:
    try:
        return checked_symbol(text)
    except BadName as bad:
        raise UserError(str(bad)) from None
