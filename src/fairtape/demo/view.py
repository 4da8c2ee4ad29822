"""The live view: the position of the token, the unified ticker, the state of each site and region. Read-only."""

from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fairtape.core.instants import SECOND, Instant
from fairtape.core.percentiles import percentile
from fairtape.demo.tally import DemoTally
from fairtape.demo.world import FLOORS, REGIONS, SITES
from fairtape.market.prices import ONE
from fairtape.market.symbols import VENUES

HEAD_LINES: Final = 3
RING_LINES: Final = 3
FOOT_LINES: Final = 6
SITES_LINES: Final = len(SITES) + 3
SALES_LINES_MIN: Final = 5  # of the panel: three symbols
LEFT_WIDTH: Final = 40
COLOURS: Final = dict(
    zip(
        (venue.number for venue in FLOORS.values()),
        ("cyan", "green", "magenta", "yellow", "blue", "red"),
        strict=True,
    )
)

_VENUE_NAMES: Final = {venue.number: venue.name for venue in VENUES}


def screen(tally: DemoTally, now: Instant, height: int) -> Layout:
    """The whole screen. A small terminal shows fewer rows; the layout never exceeds `height`."""
    middle = max(height - HEAD_LINES - RING_LINES - FOOT_LINES, 1)
    sales = max(SALES_LINES_MIN, middle - SITES_LINES)
    layout = Layout()
    layout.split_column(
        Layout(_head(tally, now), size=HEAD_LINES),
        Layout(_ring(tally, now), size=RING_LINES),
        Layout(name="middle", ratio=1),
        Layout(name="foot", size=FOOT_LINES),
    )
    layout["middle"].split_row(Layout(name="left", size=LEFT_WIDTH), Layout(_sites_panel(tally, now), ratio=1))
    layout["left"].split_column(
        Layout(_panel("one order: the unified ticker", _ticker(tally, max(middle - sales - 3, 1))), ratio=1),
        Layout(_panel(f"last sales of {len(tally.ticker.sales):,} symbols", _sales(tally, sales - 2)), size=sales),
    )
    layout["foot"].split_row(Layout(_foot(tally), size=LEFT_WIDTH), Layout(_customers_panel(tally), ratio=1))
    return layout


def line(tally: DemoTally, now: Instant) -> str:
    """The same state in one line, for output that is not a terminal."""
    killed = f", {SITES[tally.killed].name} is killed" if tally.killed is not None else ""
    return (
        f"{_elapsed(tally, now):5.1f} s: published {tally.published:,}, released everywhere {tally.delivered_min:,},"
        f" received by all customers {tally.received_min:,}, late {tally.late_fraction:.2%},"
        f" requests {_requests(tally):,}, release spread {_spread(tally)}{killed}"
    )


def percent(share: float) -> str:
    return f"{100 * share:g} %"


def _panel(title: str, content: RenderableType) -> Panel:
    return Panel(content, title=f"[bold]{title}", title_align="left", box=box.ROUNDED, border_style="dim", padding=0)


def _head(tally: DemoTally, now: Instant) -> RenderableType:
    elapsed, seconds = _elapsed(tally, now), tally.world.seconds
    top = Table.grid(expand=True)
    top.add_column(no_wrap=True, overflow="ellipsis")
    top.add_column(justify="right", no_wrap=True)
    state = "closing the floors" if tally.closing else f"{elapsed:.1f} of {seconds:g} s"
    if not tally.opened and not tally.closing:
        state = "the ring is forming"
    top.add_row(Text.assemble((" fairtape", "bold"), ("  one market, one order, one moment", "dim")), f"{state} ")
    customers = "1 customer" if tally.world.customers == 1 else f"{tally.world.customers:,} customers"
    world = (
        f" {len(SITES)} sites, {len(FLOORS)} floors, {customers}, real distances,"
        f" {percent(tally.world.loss)} loss, {'mesh' if tally.deployment.groups is None else 'IP multicast'}"
    )
    bar = ProgressBar(total=seconds, completed=elapsed, complete_style="cyan", finished_style="cyan")
    return Group(top, Text(world, style="dim", no_wrap=True, overflow="ellipsis"), bar)


def _ring(tally: DemoTally, now: Instant) -> RenderableType:
    """The members of the formation, with the current and the previous token site highlighted."""
    formation = tally.formation
    text = Text(no_wrap=True, overflow="ellipsis", justify="center")
    if formation is None:
        return _panel("no formation yet", text)
    token = formation.current(now)
    for position, member in enumerate(formation.members):
        if position:
            text.append("→", style="dim")
        if member == tally.killed:
            style = "red strike"
        elif formation.holder(token) == member:
            style = "bold black on bright_cyan"
        else:
            style = "cyan" if token > 1 and formation.holder(token - 1) == member else "none"
        text.append(SITES[member].name, style=style)
    return _panel(f"formation {formation.number}, token {token:,}", text)


def _ticker(tally: DemoTally, rows: int) -> Text:
    text = _lines(f"{'number':>8} {'from':<4} {'symbol':<6} {'price':>8} {'shares':>7}")
    for sequence, trade in list(tally.trades)[-rows:]:
        text.append(f"\n{sequence:>8} ")
        text.append(f"{_VENUE_NAMES.get(trade.venue, trade.venue):<4}", style=COLOURS.get(trade.venue, "none"))
        text.append(f" {trade.symbol:<6} {trade.price / ONE:>8.2f} {trade.quantity // ONE:>7}")
    return text


def _sales(tally: DemoTally, rows: int) -> Text:
    """The busiest symbols: last price, venue and total volume."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for position, row in enumerate(tally.ticker.sales.busiest(rows)):
        if row.last is not None:
            text.append("\n" if position else "").append(f"{row.last.symbol:<6}", style="bold")
            text.append(f" {row.last.price / ONE:>8.2f} ").append(f"{row.last.venue:<4}", style="dim")
            text.append(f" volume {row.volume.quantity // ONE:>9,}")
    return text


def _sites_panel(tally: DemoTally, now: Instant) -> Panel:
    text = _lines(f"{'site':<9} {'released':>9} {'late':>5} {'NACKs':>5} {'repair':>6}")
    formation = tally.formation
    holder = formation.holder(formation.current(now)) if formation is not None else None
    for node, city in SITES.items():
        site = tally.sites[node]
        killed = node == tally.killed
        style = "red strike" if killed else "bright_cyan" if node == holder else "none"
        text.append("\n").append(city.name, style=style).append(" " * (9 - len(city.name)))
        text.append(f" {site.sequence:>9}")
        if killed:
            text.append(" killed", style="bold red")
            continue
        text.append(f" {site.late:>5}", style="yellow" if site.late else "none")
        text.append(f" {site.requests:>5} {site.repairs:>6}")
    return _panel("sites", text)


def _lines(titles: str) -> Text:
    """The header of a table. Columns have fixed widths: they do not jump between frames, and are cheaper to draw."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(titles, style="dim")
    return text


def _foot(tally: DemoTally) -> Panel:
    if tally.failures:
        return _panel("a failure", Text("\n".join(tally.failures), style="bold red", overflow="ellipsis"))
    sites = tally.sites.values()
    lost, repairs = sum(each.lost for each in sites), sum(each.repairs for each in sites)
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, value in (
        ("published", f"{tally.published:,}, released {tally.delivered_min:,}"),
        ("late", f"{tally.late_fraction:.2%}"),
        ("spread", _spread(tally)),
        ("lost", f"{lost:,}, NACKs {_requests(tally):,}, repairs {repairs:,}"),
    ):
        text.append(f"{name:<10}", style="dim").append(f"{value}\n", style="bold")
    return _panel("so far", text)


def _customers_panel(tally: DemoTally) -> Panel:
    """The two sites that send to each region. A feed without a running publisher is shown as silent."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for number, region in enumerate(REGIONS):
        news = tally.regions.get(number)
        text.append("\n" if number else "").append(f"{region:<9}", style="bold")
        if news is None:
            continue
        text.append(f"{news.customers:>3} ", style="dim").append(f"{news.trades_min:>6,} ")
        publishers = tally.publishers(number)
        for position, (feed, silent) in enumerate(news.silent):
            text.append(" " if position else "")
            if tally.formation is None:
                text.append("" if position else "waiting", style="dim")
            elif feed not in publishers:
                text.append("silent", style="bold red")
            else:
                text.append(SITES[publishers[feed]].name, style="yellow" if silent else "green")
    gaps = f"{tally.gaps:,} missed" if tally.gaps else "nothing missed"
    text.append(f"\nall received {tally.received_min:,}, {gaps}", style="bold red" if tally.gaps else "bold")
    return _panel("customers and the sites of their feeds", text)


def _elapsed(tally: DemoTally, now: Instant) -> float:
    return min(max((now - tally.opened_at) / SECOND, 0.0), tally.world.seconds) if tally.opened else 0.0


def _requests(tally: DemoTally) -> int:
    return sum(each.requests for each in tally.sites.values())


def _spread(tally: DemoTally) -> str:
    spreads = list(tally.spreads)
    half, most = percentile(spreads, 0.5, None), percentile(spreads, 0.99, None)
    if half is None or most is None:
        return "none yet"
    return f"p50 {half / 1e3:,.0f} µs, p99 {most / 1e3:,.0f} µs"
