"""`fairtape floor`: open markets, enter orders, show and replay the trading floor of a deployment.

A command that enters a request returns when the request has its sequence number and the floor has applied it.
"""

import json
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fairtape.cli.terminal import check_within, counted
from fairtape.core.effects import Ordered
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND
from fairtape.exchange.orders import Action, Side, TimeInForce
from fairtape.exchange.rules import (
    BadRule,
    BatchAuction,
    CallAuction,
    Continuous,
    DutchClock,
    Pricing,
    Rule,
    SecondPrice,
)
from fairtape.market.prices import BadNumber, format_fixed, format_sum, parse_fixed
from fairtape.market.symbols import BadName, checked_symbol
from fairtape.net.clock import SharedClock

if TYPE_CHECKING:
    from rich.columns import Columns
    from rich.table import Table

    from fairtape.deployment.config.description import FloorSettings
    from fairtape.deployment.follow.floor_reader import FloorReader, FloorStep
    from fairtape.deployment.publish.floor_request import FloorAnswer, MakeRequest
    from fairtape.exchange.floor import Floor
    from fairtape.exchange.market import Market
    from fairtape.exchange.outputs import Execution

LIVE_PERIOD: Final = 0.2  # seconds
SHOWN_MAX: Final = 6  # markets side by side
HASH_SHOWN: Final = 16  # hexadecimal digits
ACCOUNTS_SHOWN: Final = 40
DIGESTS_MAX: Final = 100_000  # tokens at which two journals can be compared

_Place = tuple[int, int]
"""Formation and token."""


def reader_of(directory: Path, settings: "FloorSettings | None" = None) -> "FloorReader":
    """The floor of a deployment, read from the journal of a site that serves, or of one journal."""
    from fairtape.deployment.config.description import FILE, FloorSettings, read_deployment
    from fairtape.deployment.follow.floor_reader import FloorReader
    from fairtape.deployment.follow.site_failover import SiteFailover
    from fairtape.journal import JournalFollower

    if not (directory / FILE).exists():
        return FloorReader.of_journal(directory, (settings or FloorSettings()).new)
    deployment = read_deployment(directory)
    failover = SiteFailover(deployment)
    site = failover.choose()
    if site is None:
        site = next((number for number, path in failover.journals.items() if path.exists()), None)
    if site is None:
        raise UserError(f"no site of {str(directory)!r} has a journal on this machine; start it with: fairtape up")
    return FloorReader(JournalFollower(failover.journals, site=site), (settings or deployment.floor).new)


# Books.


def book_view(directory: Path, symbol: str | None, depth: int, *, live: bool, as_json: bool) -> None:
    """Print books once, or show them until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    with closing(reader_of(directory)) as reader:
        reader.catch_up()
        _known(reader.floor, symbol)
        if as_json:
            click.echo(json.dumps([_book_fields(market, depth) for market in _chosen(reader.floor, symbol)]))
        elif live:
            with Live(_books(reader.floor, symbol, depth), refresh_per_second=1 / LIVE_PERIOD) as screen:
                while True:
                    time.sleep(LIVE_PERIOD)
                    reader.catch_up()
                    screen.update(_books(reader.floor, symbol, depth))
        else:
            Console().print(_books(reader.floor, symbol, depth))


def _known(floor: "Floor", symbol: str | None) -> None:
    if symbol is not None and symbol not in floor.markets:
        raise UserError(f"SYMBOL is {symbol}; the floor trades {', '.join(sorted(floor.markets)) or 'nothing yet'}")
    if not floor.markets:
        raise UserError("the floor trades nothing yet; open a market with: fairtape floor open DIRECTORY SYMBOL")


def _chosen(floor: "Floor", symbol: str | None) -> list["Market"]:
    return [market for name, market in sorted(floor.markets.items()) if symbol in (None, name)]


def _books(floor: "Floor", symbol: str | None, depth: int) -> "Columns":
    from rich.columns import Columns

    return Columns([_book(market, depth) for market in _chosen(floor, symbol)[:SHOWN_MAX]], padding=(0, 4))


def _book(market: "Market", depth: int) -> "Table":
    """Offers above bids, best prices in the middle."""
    from rich.table import Table

    terms = market.terms
    state = "halted" if market.halted else type(market.rule).__name__
    last = f", last {format_fixed(market.last)}" if market.last else ""
    title = f"{terms.symbol} · {state}{last}"
    table = Table("bid", "price", "offer", title=title, title_justify="left", min_width=len(title), box=None)
    if market.is_sealed:
        table.add_row("", "sealed", "")
        return table
    bids, offers = market.book.depth(depth)
    for price, quantity in reversed(offers):
        table.add_row("", _price(price), f"[red]{format_fixed(quantity)}")
    for price, quantity in bids:
        table.add_row(f"[green]{format_fixed(quantity)}", _price(price), "")
    return table


def _price(price: int) -> str:
    """Market orders, which have no price, rest only in auctions."""
    try:
        return format_fixed(price)
    except ValueError:
        return "market"


def _book_fields(market: "Market", depth: int) -> dict[str, Any]:
    bids, offers = ([], []) if market.is_sealed else market.book.depth(depth)
    return {
        "symbol": market.terms.symbol,
        "rule": type(market.rule).__name__,
        "halted": market.halted,
        "sealed": market.is_sealed,
        "clock": isinstance(market.rule, DutchClock),
        "last": format_fixed(market.last),
        "bids": [[_price(price), format_fixed(quantity)] for price, quantity in bids],
        "offers": [[_price(price), format_fixed(quantity)] for price, quantity in offers],
    }


# Trades.


@dataclass(slots=True)
class _Blotter:
    """All trades in order, without those that became void."""

    trades: dict[int, "Execution"] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)

    def read(self, reader: "FloorReader") -> "_Blotter":
        from fairtape.exchange.outputs import Committed, TentativeFill, Voided

        for step in reader.steps():
            for output in step.outputs:
                match output:
                    case TentativeFill(trade):
                        self.trades[trade.trade_id] = trade
                    case Committed(trade):
                        self.committed.add(trade.trade_id)
                    case Voided(trade):
                        self.trades.pop(trade.trade_id, None)
                        self.committed.discard(trade.trade_id)
        return self


def trades_view(directory: Path, symbol: str | None, last: int | None, *, as_json: bool) -> None:
    """Print trades, one per line."""
    with closing(reader_of(directory)) as reader:
        blotter = _Blotter().read(reader)
    chosen = (trade for trade in blotter.trades.values() if symbol in (None, trade.symbol))
    for trade in chosen if last is None else deque(chosen, maxlen=last):
        committed = trade.trade_id in blotter.committed
        if as_json:
            click.echo(json.dumps(_trade_fields(trade, committed=committed)))
        else:
            click.echo(
                f"{trade.trade_id:>8}  token {trade.token:<10} {trade.symbol:<16} {format_fixed(trade.quantity):>12} at"
                f" {format_fixed(trade.price):<12} {trade.seller} to {trade.buyer}, "
                f"{'committed' if committed else 'tentative'}"
            )


def _trade_fields(trade: "Execution", *, committed: bool) -> dict[str, Any]:
    from fairtape.exchange.outputs import BUYER_TOOK, SELLER_TOOK

    aggressors = {BUYER_TOOK: "buy", SELLER_TOOK: "sell"}  # an auction has none
    return {
        **{name: value for name, value in trade._asdict().items() if name != "traded_at"},
        "aggressor": aggressors.get(trade.aggressor),
        "price": format_fixed(trade.price),
        "quantity": format_fixed(trade.quantity),
        "traded_at_ns": trade.traded_at,
        "committed": committed,
    }


# Replay.


@dataclass(slots=True)
class _Replayed:
    """The replay of one journal."""

    path: Path
    floor: "Floor"
    messages: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # outputs, by type name
    digests: OrderedDict[_Place, bytes] = field(default_factory=OrderedDict)  # of all trades, at the last tokens

    def take(self, step: "FloorStep", floor: "Floor") -> None:
        self.floor = floor
        self.counts.update(type(output).__name__ for output in step.outputs)
        if isinstance(step.entry, Ordered):
            self.messages += step.entry.count
            self.digests[step.entry.formation, step.entry.token] = floor.trades_hash
            if len(self.digests) > DIGESTS_MAX:
                self.digests.popitem(last=False)

    @property
    def place(self) -> _Place | None:
        """The last formation and token."""
        return next(reversed(self.digests), None)

    @property
    def sound(self) -> bool:
        """Whether no arbiter is accused and the ledger balances."""
        return not self.counts["Evidence"] and not self.floor.ledger.imbalance()


def replay_view(journals: tuple[Path, ...], commit_passes: int | None, *, as_json: bool) -> bool:
    """Replay and print journals; whether they agree, no arbiter is accused, and all ledgers balance."""
    replayed = [_replayed(path, commit_passes) for path in _expanded(journals)]
    if not replayed:
        raise UserError(f"{', '.join(map(str, journals))} holds no journal of a site on this machine")
    place = max(set.intersection(*(set(each.digests) for each in replayed)), default=None)
    agree = _agree(replayed, place)
    if as_json:
        click.echo(json.dumps({"agree": agree, "floors": [_replayed_fields(each) for each in replayed]}))
    else:
        for each in replayed:
            _show_replayed(each)
        if len(replayed) > 1:
            where = "with no token in common" if place is None else f"at token {place[1]}"
            click.echo(f"{len(replayed)} floors, {where}: {'the same' if agree else 'NOT the same'}")
    return agree and all(each.sound for each in replayed)


def _agree(replayed: list[_Replayed], place: _Place | None) -> bool:
    """Equal trades at the last common token, and equal ledgers of the floors that end there."""
    if place is None:
        return not any(each.digests for each in replayed)
    trades = {each.digests[place] for each in replayed}
    ledgers = {each.floor.ledger.state_hash for each in replayed if each.place == place}
    return len(trades) == 1 and len(ledgers) <= 1


def _expanded(paths: tuple[Path, ...]) -> Iterator[Path]:
    """Replace the folder of a deployment by the journals of its sites on this machine."""
    from fairtape.deployment.config.description import FILE, JOURNALS

    for path in paths:
        if (path / FILE).exists():
            yield from (found for found in sorted((path / JOURNALS).glob("*")) if found.is_dir())
        else:
            yield path


def _replayed(path: Path, commit_passes: int | None) -> _Replayed:
    from fairtape.deployment.config.description import FILE, FloorSettings, read_deployment
    from fairtape.deployment.follow.floor_reader import FloorReader

    folder = path.parent.parent
    settings = read_deployment(folder).floor if (folder / FILE).exists() else FloorSettings()
    if commit_passes is not None:
        settings = replace(settings, commit_passes=commit_passes)
    with closing(FloorReader.of_journal(path, settings.new)) as reader:
        replayed = _Replayed(path, reader.floor)
        for step in reader.steps():
            replayed.take(step, reader.floor)
    return replayed


def _replayed_fields(each: _Replayed) -> dict[str, Any]:
    floor, ledger = each.floor, each.floor.ledger
    return {
        "journal": str(each.path),
        "token": floor.token,
        "messages": each.messages,
        "markets": sorted(floor.markets),
        "accounts": len(ledger.accounts),
        "trades": floor.trade_count,
        "tentative": sum(1 for _ in floor.tentative()),
        "void": each.counts["Voided"],
        "rejected": each.counts["Rejected"],
        "evidence": each.counts["Evidence"],
        "trades_hash": floor.trades_hash.hex(),
        "ledger_hash": ledger.state_hash.hex(),
        "imbalance": dict(ledger.imbalance()),
    }


def _show_replayed(each: _Replayed) -> None:
    from fairtape.exchange.orders import CASH

    found, ledger = _replayed_fields(each), each.floor.ledger
    click.echo(
        f"{each.path}: {counted(each.messages, 'message')} through token {found['token']:,};"
        f" {counted(each.floor.trade_count, 'trade')}, {found['tentative']:,} tentative, {found['void']:,} void;"
        f" {counted(each.counts['Rejected'], 'request')} rejected, {counted(each.counts['Evidence'], 'accusation')}\n"
        f"  trades {found['trades_hash'][:HASH_SHOWN]}…"
        f"  ledger {found['ledger_hash'][:HASH_SHOWN]}…  {'adds up' if each.sound else 'does NOT add up'}"
    )
    for name, account in sorted(ledger.accounts.items())[:ACCOUNTS_SHOWN]:
        held = (
            f"{'cash' if asset == CASH else asset} {format_sum(balance.total)}"
            + (f" ({format_sum(balance.reserved)} reserved)" if balance.reserved else "")
            for asset, balance in sorted(account.balances.items())
            if balance.total
        )
        click.echo(f"  {name:<16} {', '.join(held)}")
    if len(ledger.accounts) > ACCOUNTS_SHOWN:
        click.echo(f"  … and {len(ledger.accounts) - ACCOUNTS_SHOWN:,} more accounts; --json names the digest of all")


# Commands.

EXIT_REFUSED: Final = 1
RULES: Final = ("continuous", "call", "batch", "sealed", "dutch")
DEPTH_MAX: Final = 1_000
LAST_MAX: Final = 10_000_000
PERIOD_MS_MAX: Final = 86_400_000

_DIRECTORY = click.argument("directory", type=click.Path(path_type=Path))
_SOURCE = click.option(
    "--source", metavar="NAME|NUMBER", help="Source that publishes the request.  [default: the first]"
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")


@click.group()
def floor() -> None:
    """Open markets, enter orders, show books and trades.

    DIRECTORY is a running deployment. Commands that only read also accept the journal of a site. Accounts are funded
    with `fairtape accounts fund`. For many concurrent traders use `fairtape gateway`.
    """


@floor.command("open")
@_DIRECTORY
@click.argument("symbol")
@click.option("--rule", type=click.Choice(RULES), default="continuous", show_default=True, help="Trading rule.")
@click.option(
    "--pricing",
    type=click.Choice([each.name.lower() for each in Pricing]),
    default="maker",
    show_default=True,
    help="Whose price a continuous trade gets.",
)
@click.option("--tick", default="0.01", show_default=True, help="Prices are multiples of the tick.")
@click.option("--lot", default="1", show_default=True, help="Quantities are multiples of the lot.")
@click.option("--price-min", default="0", help="The lowest price.  [default: one tick]")
@click.option("--price-max", default="0", help="The highest price.  [default: none]")
@click.option("--period-ms", type=int, help="Period of a batch auction, or of one step of a Dutch clock.")
@click.option("--start", help="Start price of a Dutch clock.")
@click.option("--decrement", help="Price decrement of each step of a Dutch clock.")
@_SOURCE
@click.pass_context
def open_market(
    ctx: click.Context, /, *, directory: Path, symbol: str, source: str | None, **terms: str | None
) -> None:
    """Open a market, or change the rule of an open one."""
    from fairtape.exchange.orders import OpenMarket

    wanted = {name: _fixed(f"--{name.replace('_', '-')}", terms[name] or "0") for name in ("tick", "lot")}
    bounds = [_fixed(f"--{name.replace('_', '-')}", terms[name] or "0") for name in ("price_min", "price_max")]
    rule, name = _rule(terms), _symbol(symbol)

    def make_request(gateway: int, number: int) -> OpenMarket:
        return OpenMarket(gateway, number, name, rule, wanted["tick"], wanted["lot"], *bounds)

    answer, _ = enter_request(directory, source, make_request)
    print_answer(ctx, answer, f"{name} trades as {type(rule).__name__}, tick {terms['tick']}, lot {terms['lot']}")


@floor.command()
@_DIRECTORY
@click.argument("symbol")
@click.argument("action", type=click.Choice([each.name.lower() for each in Action]))
@_SOURCE
@click.pass_context
def market(ctx: click.Context, *, directory: Path, symbol: str, action: str, source: str | None) -> None:
    """Halt, resume, uncross or close a market."""
    from fairtape.exchange.orders import Control

    name, wanted = _symbol(symbol), Action[action.upper()]
    answer, _ = enter_request(directory, source, lambda gateway, number: Control(gateway, number, name, wanted))
    print_answer(ctx, answer, f"{name}: {action}")


@floor.command(context_settings={"ignore_unknown_options": True})  # a negative quantity is not an option
@_DIRECTORY
@click.argument("account")
@click.argument("side", type=click.Choice([each.name.lower() for each in Side]))
@click.argument("quantity")
@click.argument("symbol")
@click.option("--price", help="Limit price.  [default: a market order]")
@click.option("--stop", help="Trigger price: the order becomes active when a trade reaches it.")
@click.option(
    "--wait",
    type=click.Choice([each.name.lower() for each in TimeInForce]),
    default="day",
    show_default=True,
    help="Time in force.",
)
@click.option("--post-only", is_flag=True, help="Reject the order if it would trade immediately.")
@click.option("--id", "client_id", help="Client order ID.  [default: the time]")
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
    """Enter an order. The exit code is 1 if the floor refuses it."""
    from fairtape.deployment.publish.floor_request import fills_of
    from fairtape.exchange.orders import NewOrder, OrderType

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

    def make_request(gateway: int, number: int) -> NewOrder:
        return wanted._replace(gateway=gateway, gateway_number=number)

    answer, floor = enter_request(directory, source, make_request)
    found = floor.accounts.get(account)
    waiting = None if found is None else found.orders.get(name)
    left = "done" if waiting is None else f"{format_fixed(waiting[1].open)} of {quantity} open in the book of {symbol}"
    print_answer(ctx, answer, f"order {name}: {left}")
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
    """Cancel the open quantity of an order."""
    from fairtape.exchange.orders import Cancel

    answer, _ = enter_request(directory, source, lambda gateway, number: Cancel(gateway, number, account, order_id))
    print_answer(ctx, answer, f"order {order_id} is cancelled")


@floor.command()
@_DIRECTORY
@click.argument("symbol", required=False)
@click.option("--depth", default=10, show_default=True, help="Price levels on each side.")
@click.option("--live", is_flag=True, help="Refresh until Ctrl-C.")
@_JSON
def book(*, directory: Path, symbol: str | None, depth: int, live: bool, as_json: bool) -> None:
    """Show the order book of one market or of all."""
    check_within("--depth", depth, 1, DEPTH_MAX)
    if live and as_json:
        raise UserError("--live and --json are given; give one of them")
    book_view(directory, None if symbol is None else _symbol(symbol), depth, live=live, as_json=as_json)


@floor.command()
@_DIRECTORY
@click.option("--symbol", help="Trades of this market only.")
@click.option("--last", type=int, help="The last N trades.  [default: all]", metavar="N")
@_JSON
def trades(*, directory: Path, symbol: str | None, last: int | None, as_json: bool) -> None:
    """Print the trades of a floor, and whether they have committed."""
    check_within("--last", last, 1, LAST_MAX)
    trades_view(directory, None if symbol is None else _symbol(symbol), last, as_json=as_json)


@floor.command()
@click.argument("journals", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--commit-passes", type=int, help="Commit passes of the floor.  [default: the deployment's, or 3]")
@_JSON
@click.pass_context
def replay(ctx: click.Context, *, journals: tuple[Path, ...], commit_passes: int | None, as_json: bool) -> None:
    """Replay a floor from journals.

    Prints trades, the ledger and their digests: equal journals give equal digests. The exit code is 1 if the floors of
    several journals differ at their last common token, if an arbiter is accused, or if the ledger does not balance.
    """
    from fairtape.deployment.config.description import COMMIT_PASSES_MAX

    check_within("--commit-passes", commit_passes, 0, COMMIT_PASSES_MAX)
    ctx.exit(0 if replay_view(journals, commit_passes, as_json=as_json) else EXIT_REFUSED)


@floor.command()
@_DIRECTORY
@click.argument("site")
@click.option("--parent", type=int, hidden=True, help="Exit together with this process.")
def arbiter(*, directory: Path, site: str, parent: int | None) -> None:
    """Run the arbiter of a site until Ctrl-C.

    It reports the trades of the site's tokens. The deployment file names the source of each arbiter, for example
    `s1 = "XNYS"` in `[floor.arbiters]`. `fairtape up` runs all of these.
    """
    from fairtape.deployment.config.description import NodeKind, read_deployment
    from fairtape.deployment.process.arbiter import run_arbiter
    from fairtape.deployment.process.node import exit_with

    deployment = read_deployment(directory)
    node = deployment.node(site, NodeKind.SITE, field="SITE")
    source = deployment.floor.arbiters.get(node.number)
    if source is None:
        raise UserError(f"SITE is {site!r}; [floor.arbiters] of the deployment names no source for it: add one")
    if parent is not None:
        exit_with(parent)
    run_arbiter(deployment, node, source, lambda line: click.echo(line, err=True), patient=parent is not None)


def enter_request(directory: Path, source: str | None, make_request: "MakeRequest") -> tuple["FloorAnswer", "Floor"]:
    """Enter a request. Returns the answer, and the floor at that place in the order."""
    from fairtape.deployment.publish.floor_request import enter
    from fairtape.deployment.publish.source_thread import source_named
    from fairtape.deployment.publish.target import publish_target
    from fairtape.exchange.orders import BadOrder

    target = publish_target(directory)
    if not target.is_open():
        raise UserError(f"the deployment in {str(directory)!r} is not running; start it with: {target.command}")
    me = next(iter(target.names)) if source is None else source_named(target, source)
    with closing(reader_of(directory)) as reader:
        try:
            return enter(target, me, make_request, reader), reader.floor
        except BadOrder as bad:
            raise UserError(str(bad)) from None


def print_answer(ctx: click.Context, answer: "FloorAnswer", text: str) -> None:
    """Print the answer to a request. A refusal ends the command."""
    if answer.refusal is not None:
        click.echo(f"refused at token {answer.token}: {answer.refusal}", err=True)
        ctx.exit(EXIT_REFUSED)
    place = f", sequence {answer.number}" if answer.number else ""
    click.echo(f"{text} (token {answer.token}{place})")


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
