"""`fairtape status`: how the nodes of a deployment fare that run on this machine."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fairtape.deployment.config.description import Deployment, Node, NodeKind, read_deployment
from fairtape.deployment.process.edge import edge_names
from fairtape.deployment.process.local_cluster import floor_names
from fairtape.deployment.process.supervisor import ARBITER, BESIDE, GATEWAY
from fairtape.deployment.status_files import RunFolder, Status

EXIT_DOWN: Final = 1
WATCH_PERIOD: Final = 0.5  # seconds


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.pass_context
def status(ctx: click.Context, *, directory: Path, as_json: bool, watch: bool) -> None:
    """Show how a deployment fares.

    Formations, tokens, leases, clocks, and what came late.

    Seen are the processes of this machine, as they describe themselves every half second. The exit code is 1 when none
    of them runs.
    """
    deployment = read_deployment(directory)
    run = RunFolder(deployment.folder)
    if as_json:
        while True:
            pages = _pages(deployment, run)
            click.echo(json.dumps({"nodes": pages}))
            if not watch:
                break
            time.sleep(WATCH_PERIOD)
    elif watch:
        with Live(_view(deployment, run), auto_refresh=False, console=Console()) as live:
            while True:
                time.sleep(WATCH_PERIOD)
                live.update(_view(deployment, run), refresh=True)
    else:
        console = Console()
        console.print(_view(deployment, run), soft_wrap=not console.is_terminal)
    ctx.exit(0 if _pages(deployment, run) else EXIT_DOWN)


def _pages(deployment: Deployment, run: RunFolder) -> dict[str, Status]:
    return run.statuses([*deployment.nodes, *edge_names(deployment), *_floor_processes(deployment)])


def _view(deployment: Deployment, run: RunFolder) -> Group:
    pages = _pages(deployment, run)
    sites = Table("site", "formation", "does", "loops", "token", "behind", "sequence", "lease", "clock", "late",
                  box=None, pad_edge=False)  # fmt: skip
    for node in deployment.sites:
        sites.add_row(*_site_row(node, pages.get(node.name)))
    servers = Table("server", "does", "term", "formation", "members", box=None, pad_edge=False)
    for node in deployment.reformers:
        servers.add_row(*_server_row(node, pages.get(node.name)))
    parts: list[Any] = [sites, Text(), servers]
    if deployment.edge is not None:
        parts += [Text(), _edge_table(deployment, pages)]
    listed = floor_names(deployment)
    shown = [name for name in _floor_processes(deployment) if name in listed or name in pages]
    if shown:
        parts += [Text(), _floor_table(shown, pages)]
    sources = [pages[node.name] for node in deployment.of_kind(NodeKind.SOURCE) if node.name in pages]
    if sources:
        parts += [Text(), *(Text(_source_line(page)) for page in sources)]
    return Group(*parts)


def _floor_processes(deployment: Deployment) -> list[str]:
    """All that there may be: an arbiter of each site, and a gateway of each source."""
    arbiters = [f"{node.name}{ARBITER}" for node in deployment.sites]
    return [*arbiters, *(f"{node.name}{GATEWAY}" for node in deployment.of_kind(NodeKind.SOURCE))]


def _floor_table(names: list[str], pages: dict[str, Status]) -> Table:
    table = Table("floor", "token", "trades", "tentative", "does", box=None, pad_edge=False)
    for name in names:
        page = pages.get(name)
        if page is None:
            table.add_row(name, "-", "-", "-", "does not run")
        else:
            table.add_row(name, *(f"{page[each]:,}" for each in ("token", "trades", "tentative")), _floor_words(page))
    return table


def _floor_words(page: Status) -> str:
    if page["kind"] == "arbiter":
        return f"{page['reports']:,} reports, {page['accusations']:,} accusations"
    words = [", ".join(f"{kind} at {address}" for kind, address in page["addresses"].items()) or "catches up"]
    if page["pending"]:
        words.append(f"{page['pending']:,} requests wait for their place")
    if page["ledger_stopped"]:
        words.append("the ledger's tables cannot hold what came: see the log")
    if page["ledger_waiting"]:
        words.append(f"{page['ledger_waiting']:,} tokens wait for the ledger")
    return "; ".join(words)


def _edge_table(deployment: Deployment, pages: dict[str, Status]) -> Table:
    table = Table("publisher", "feed", "plan", "messages", "overruns", "repairs", "replays", "refused", "does",
                  box=None, pad_edge=False)  # fmt: skip
    assert deployment.edge is not None
    for site in deployment.edge.publishers:
        station, beside = (pages.get(site) or {}).get("edge"), pages.get(f"{site}{BESIDE}")
        table.add_row(site, *_edge_cells(station, beside))
    return table


def _edge_cells(station: Status | None, beside: Status | None) -> Iterator[str]:
    """What its outlet does, and what the retransmit server beside it does."""
    if station is None:
        yield from ("-", "-", "-", "-")
    else:
        yield from (station["feed"], str(station["plan"] or "-"))
        yield from (f"{station.get('messages', 0):,}", f"{station.get('overruns', 0):,}")
    if beside is None:
        yield from ("-", "-", "-")
    else:
        asked, replayed = beside["requests"], beside["replays"]
        refused = sum(asked[name] for name in ("malformed", "strangers", "absurd", "floods", "refused"))
        refused += sum(replayed[name] for name in ("turned_away", "malformed", "breaches", "rejected", "half_open"))
        yield from (f"{asked['messages']:,}", f"{replayed['messages']:,}", f"{refused:,}")
    if station is None:
        yield "does not run"
    else:
        yield "speaks" if station["speaks"] else station["words"]


def _site_row(node: Node, page: Status | None) -> tuple[str, ...]:
    if page is None:
        return node.name, "-", "does not run"
    suspicion = f", suspects {page['suspect']}" if page["suspect"] else ""
    return (
        node.name,
        str(page["formation"]),
        page["posture"] + suspicion,
        " ".join(page["loops"]) or "-",
        f"{page['token']:,}",
        str(page["behind"]),
        f"{page['released_sequence']:,}",
        f"{max(page['lease_left_ms'], 0):.0f} ms",
        f"±{page['clock_bound_us']:,.0f} µs",
        f"{page['late']:,}",
    )


def _server_row(node: Node, page: Status | None) -> tuple[str, ...]:
    if page is None:
        return node.name, "does not run"
    if not page["leads"]:
        return node.name, "stands by", str(page["term"])
    return node.name, f"leads: {page['phase']}", str(page["term"]), str(page["formation"]), " ".join(page["members"])


def _source_line(page: Status) -> str:
    return f"{page['name']}: {page['published']:,} messages published, {page['acknowledged']:,} acknowledged"
