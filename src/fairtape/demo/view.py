"""The live view: the token on its way, the one ticker, and how each site fares. Drawn from a tally, changes nothing."""

from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fairtape.core.instants import SECOND, Instant
from fairtape.demo.tally import Tally, percentile
from fairtape.demo.world import FLOORS, SITES
from fairtape.market.prices import ONE
from fairtape.market.symbols import VENUES

HEAD_LINES: Final = 3
RING_LINES: Final = 3
FOOT_LINES: Final = 5
TICKER_WIDTH: Final = 40
COLOURS: Final = dict(
    zip(
        (venue.number for venue in FLOORS.values()),
        ("cyan", "green", "magenta", "yellow", "blue", "red"),
        strict=True,
    )
)

_VENUE_NAMES: Final = {venue.number: venue.name for venue in VENUES}


def screen(tally: Tally, now: Instant, height: int) -> Layout:
    """The whole screen. A smaller one shows less of it and never more lines than it has."""
    layout = Layout()
    layout.split_column(
        Layout(_head(tally, now), size=HEAD_LINES),
        Layout(_ring(tally), size=RING_LINES),
        Layout(name="middle", ratio=1),
        Layout(_foot(tally), size=FOOT_LINES),
    )
    rows = max(height - HEAD_LINES - RING_LINES - FOOT_LINES - 3, 1)
    layout["middle"].split_row(
        Layout(_panel("one order: the unified ticker", _ticker(tally, rows)), size=TICKER_WIDTH),
        Layout(_panel("sites", _sites(tally)), ratio=1),
    )
    return layout


def line(tally: Tally, now: Instant) -> str:
    """The same in one line, for those who have no screen."""
    return (
        f"{_elapsed(tally, now):5.1f} s: published {tally.published:,}, released everywhere {tally.delivered_min:,},"
        f" late {tally.late_fraction:.2%}, requests {_requests(tally):,}, release spread {_spread(tally)}"
    )


def percent(share: float) -> str:
    """A share of one as people say it."""
    return f"{100 * share:g} %"


def counted(count: int, noun: str) -> str:
    """So many of them, as people say it."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _panel(title: str, content: RenderableType) -> Panel:
    return Panel(content, title=f"[bold]{title}", title_align="left", box=box.ROUNDED, border_style="dim", padding=0)


def _head(tally: Tally, now: Instant) -> RenderableType:
    elapsed, seconds = _elapsed(tally, now), tally.world.seconds
    top = Table.grid(expand=True)
    top.add_column(no_wrap=True, overflow="ellipsis")
    top.add_column(justify="right", no_wrap=True)
    state = "closing the floors" if tally.closing else f"{elapsed:.1f} of {seconds:g} s"
    top.add_row(Text.assemble((" fairtape", "bold"), ("  one market, one order, one moment", "dim")), f"{state} ")
    world = (
        f" {len(SITES)} sites, {len(FLOORS)} floors, delays of the real distances, {percent(tally.world.loss)} loss,"
        f" {'mesh' if tally.world.groups is None else 'IP multicast'}"
    )
    bar = ProgressBar(total=seconds, completed=elapsed, complete_style="cyan", finished_style="cyan")
    return Group(top, Text(world, style="dim", no_wrap=True, overflow="ellipsis"), bar)


def _ring(tally: Tally) -> RenderableType:
    """Where the token is, and where it has just been."""
    token, formation = tally.token, tally.formation
    text = Text(no_wrap=True, overflow="ellipsis", justify="center")
    for position, member in enumerate(formation.members):
        if position:
            text.append("→", style="dim")
        if formation.holder(token) == member:
            style = "bold black on bright_cyan"
        else:
            style = "cyan" if token > 1 and formation.holder(token - 1) == member else "none"
        text.append(SITES[member].name, style=style)
    return _panel(f"token {token:,}", text)


def _ticker(tally: Tally, rows: int) -> Text:
    text = _lines(f"{'number':>8} {'from':<4} {'symbol':<6} {'price':>8} {'shares':>7}")
    for sequence, trade in list(tally.ticker)[-rows:]:
        text.append(f"\n{sequence:>8} ")
        text.append(f"{_VENUE_NAMES.get(trade.venue, trade.venue):<4}", style=COLOURS.get(trade.venue, "none"))
        text.append(f" {trade.symbol:<6} {trade.price / ONE:>8.2f} {trade.quantity // ONE:>7}")
    return text


def _sites(tally: Tally) -> Text:
    text = _lines(f"{'site':<9} {'released':>9} {'late':>5} {'asked':>5} {'helped':>6}")
    holder = tally.formation.holder(tally.token)
    for node, city in SITES.items():
        news = tally.sites.get(node)
        style = "bold red" if news and news.failure else "bright_cyan" if node == holder else "none"
        text.append(f"\n{city.name:<9}", style=style)
        if news is not None:
            text.append(f" {news.sequence:>9}")
            text.append(f" {news.late:>5}", style="yellow" if news.late else "none")
            text.append(f" {news.requests:>5} {news.repairs:>6}")
    return text


def _lines(titles: str) -> Text:
    """The beginning of a table. Fixed columns stand still from frame to frame, and cost a tenth of measured ones."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(titles, style="dim")
    return text


def _foot(tally: Tally) -> Panel:
    if tally.failures:
        return _panel("a failure", Text("\n".join(tally.failures), style="bold red", overflow="ellipsis"))
    news = tally.sites.values()
    lost, repairs = sum(each.lost for each in news), sum(each.repairs for each in news)
    recovered = f"{counted(_requests(tally), 'request')}, {counted(repairs, 'repair')}"
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, value, other_name, other_value in (
        ("published", f"{tally.published:,}", "released everywhere", f"{tally.delivered_min:,}"),
        ("late", f"{tally.late_fraction:.2%}", "release spread", _spread(tally)),
        ("lost on the way", f"{lost:,}", "recovered", recovered),
    ):
        text.append(f"{name:<16}", style="dim").append(f"{value:<13}", style="bold")
        text.append(f"{other_name:<21}", style="dim").append(f"{other_value}\n", style="bold")
    return _panel("so far", text)


def _elapsed(tally: Tally, now: Instant) -> float:
    return min(max((now - tally.formation.starts_at) / SECOND, 0.0), tally.world.seconds)


def _requests(tally: Tally) -> int:
    return sum(each.requests for each in tally.sites.values())


def _spread(tally: Tally) -> str:
    spreads = list(tally.spreads)
    half, most = percentile(spreads, 0.5), percentile(spreads, 0.99)
    if half is None or most is None:
        return "none yet"
    return f"p50 {half / 1e3:,.0f} µs, p99 {most / 1e3:,.0f} µs"
