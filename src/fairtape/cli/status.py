"""`fairtape status`: the state of the processes of a deployment that run on this machine."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from fairtape.core.timing import Timing
    from fairtape.deployment.config.description import Deployment, Node
    from fairtape.deployment.status import ArbiterStatus, EdgeStatus, GatewayStatus, LoadStatus, Status, TokenSchedule
    from fairtape.deployment.status_files import RunFolder
    from fairtape.edge.status import PublisherStatus

    Statuses = Mapping[str, Status]  # by name of the process

EXIT_DOWN: Final = 1
WATCH_PERIOD: Final = 0.5  # seconds
SILENT_MIN: Final = 2.0  # seconds: four statuses were not written
FILE_WIDTH: Final = 200  # columns, where no terminal wraps the lines: a number that is cut off is wrong


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.pass_context
def status(ctx: click.Context, *, directory: Path, as_json: bool, watch: bool) -> None:
    """Show the state of a deployment.

    Formations, tokens, leases, clocks, late messages, and the guaranteed delay from reception at the token site to the
    release.

    Only processes of this machine are shown, as they report themselves every half second. One that runs and does not
    report is shown as silent. The exit code is 1 when none of them runs.
    """
    from rich.console import Console
    from rich.live import Live

    from fairtape.deployment.config.description import read_deployment
    from fairtape.deployment.status import encode_status
    from fairtape.deployment.status_files import RunFolder

    deployment = read_deployment(directory)
    run = RunFolder(deployment.folder)
    if as_json:
        while True:
            statuses = _statuses(deployment, run)
            nodes = {name: encode_status(each) for name, each in statuses.items()}
            rules = {"excess": deployment.topology.excess.value, "excess_reason": deployment.excess_reason}
            click.echo(json.dumps({"nodes": nodes, **_pace_json(deployment, statuses), **rules}))
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
        if not console.is_terminal:
            console.width = FILE_WIDTH
        console.print(_view(deployment, run))
    ctx.exit(0 if _statuses(deployment, run) else EXIT_DOWN)


def _statuses(deployment: "Deployment", run: "RunFolder") -> "Statuses":
    from fairtape.deployment.config.process_names import edge_names

    return run.statuses([*deployment.nodes, *edge_names(deployment), *_floor_processes(deployment)])


def _view(deployment: "Deployment", run: "RunFolder") -> "Group":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from fairtape.deployment.config.description import NodeKind
    from fairtape.deployment.config.process_names import floor_names
    from fairtape.deployment.status import LoadStatus

    statuses = _statuses(deployment, run)
    several = len(deployment.topology.loops) > 1
    columns = ("site", "formation", "state", "token", "behind", "sequence", "lease", "clock", "late")
    sites = Table(*columns, *(["loops"] if several else []), box=None, pad_edge=False)
    for node in deployment.sites:
        cells = site_row(node, statuses.get(node.name), run.silence(node.name))
        sites.add_row(*cells[: len(sites.columns)])
    servers = Table("server", "state", "term", "formation", "K", "members", box=None, pad_edge=False)
    for node in deployment.reformers:
        servers.add_row(*_server_row(node, statuses.get(node.name), run.silence(node.name)))
    parts: list[Any] = [sites, Text(), servers]
    warnings = [f"{name}: {text}" for name, each in statuses.items() if not each.ended for text in each.warnings]
    if warnings:
        parts += [Text(), *map(Text, warnings)]
    parts.append(Text())
    if (schedule := _present_schedule(statuses)) is not None:
        parts.append(Text(pace_line(deployment.timing, schedule)))
    parts.append(Text(excess_line(deployment)))
    if deployment.edge is not None:
        parts += [Text(), _edge_table(deployment, statuses)]
    listed = floor_names(deployment)
    shown = [name for name in _floor_processes(deployment) if name in listed or name in statuses]
    if shown:
        parts += [Text(), _floor_table(shown, statuses)]
    sources = [statuses.get(node.name) for node in deployment.of_kind(NodeKind.SOURCE)]
    lines = [Text(_source_line(source)) for source in sources if isinstance(source, LoadStatus)]
    if lines:
        parts += [Text(), *lines]
    return Group(*parts)


def _present_schedule(statuses: "Statuses") -> "TokenSchedule | None":
    """The schedule of the latest formation of the primary loop that a site here knows."""
    from fairtape.deployment.status import SiteStatus

    sites = [each for each in statuses.values() if isinstance(each, SiteStatus) and each.schedule is not None]
    return max(sites, key=lambda each: each.formation).schedule if sites else None


def _pace_json(deployment: "Deployment", statuses: "Statuses") -> dict[str, float | None]:
    """The pace is the token period as a multiple of the configured one."""
    schedule = _present_schedule(statuses)
    if schedule is None:
        return {"guaranteed_delay_ms": None, "pace": None}
    return {
        "guaranteed_delay_ms": schedule.delay_max / 1e6,
        "pace": schedule.token_period / deployment.timing.token_period,
    }


def pace_line(configured: "Timing", schedule: "TokenSchedule") -> str:
    """The guaranteed delay, and why it is not that of the deployment's file."""
    delay = f"guaranteed delay {schedule.delay_max / 1e6:,g} ms"
    if schedule.token_period == configured.token_period:
        return delay
    return (
        f"{delay} instead of {configured.delay_max / 1e6:,g} ms: the token passes every"
        f" {schedule.token_period / 1e6:,g} ms instead of {configured.token_period / 1e6:,g} ms, because sites released"
        " late"
    )


def excess_line(deployment: "Deployment") -> str:
    """What happens when more than K sites are silent, and why."""
    does = {"halt": "halts", "continue": "goes on, with a Break"}[deployment.topology.excess.value]
    return f"with more than K silent sites the ring {does}: {deployment.excess_reason}"


def _floor_processes(deployment: "Deployment") -> list[str]:
    """All that may run: an arbiter of each site, and a gateway of each source."""
    from fairtape.deployment.config.description import NodeKind
    from fairtape.deployment.config.process_names import ARBITER, GATEWAY

    arbiters = [f"{node.name}{ARBITER}" for node in deployment.sites]
    return [*arbiters, *(f"{node.name}{GATEWAY}" for node in deployment.of_kind(NodeKind.SOURCE))]


def _floor_table(names: list[str], statuses: "Statuses") -> "Table":
    from rich.table import Table

    from fairtape.deployment.status import ArbiterStatus, GatewayStatus

    table = Table("floor", "token", "trades", "tentative", "state", box=None, pad_edge=False)
    for name in names:
        process = statuses.get(name)
        if isinstance(process, ArbiterStatus | GatewayStatus):
            numbers = (process.token, process.trades, process.tentative)
            table.add_row(name, *(f"{each:,}" for each in numbers), _floor_activity(process))
        else:
            table.add_row(name, "-", "-", "-", "not running")
    return table


def _floor_activity(process: "ArbiterStatus | GatewayStatus") -> str:
    from fairtape.deployment.status import ArbiterStatus

    if isinstance(process, ArbiterStatus):
        return f"{process.reports:,} reports, {process.accusations:,} accusations"
    parts = [", ".join(f"{kind} at {address}" for kind, address in process.addresses.items()) or "catching up"]
    if process.pending:
        parts.append(f"{process.pending:,} requests wait for their sequence numbers")
    if process.ledger_stopped:
        parts.append("the ledger's tables are no longer updated: see the log")
    if process.ledger_waiting:
        parts.append(f"{process.ledger_waiting:,} tokens wait for the ledger")
    return "; ".join(parts)


def _edge_table(deployment: "Deployment", statuses: "Statuses") -> "Table":
    from rich.table import Table

    from fairtape.deployment.config.process_names import EDGE
    from fairtape.deployment.status import EdgeStatus, SiteStatus

    table = Table("publisher", "feed", "plan", "messages", "overruns", "repairs", "replays", "refused", "state",
                  box=None, pad_edge=False)  # fmt: skip
    assert deployment.edge is not None
    for name in deployment.edge.publishers:
        site, edge = statuses.get(name), statuses.get(f"{name}{EDGE}")
        publisher = site.edge if isinstance(site, SiteStatus) else None
        table.add_row(name, *_edge_cells(publisher, edge if isinstance(edge, EdgeStatus) else None))
    return table


def _edge_cells(publisher: "PublisherStatus | None", edge: "EdgeStatus | None") -> Iterator[str]:
    """The publisher of a site, and the retransmit server beside it."""
    from fairtape.edge.status import RemulticastCounts

    if publisher is None:
        yield from ("-", "-", "-", "-")
    else:
        counts = publisher.counts or RemulticastCounts()
        yield from (publisher.feed, str(publisher.plan or "-"), f"{counts.messages:,}", f"{counts.overruns:,}")
    if edge is None:
        yield from ("-", "-", "-")
    else:
        asked, replayed = edge.server.requests, edge.server.replays
        refused = asked.malformed + asked.strangers + asked.absurd + asked.floods + asked.refused
        refused += replayed.turned_away + replayed.malformed + replayed.breaches + replayed.rejected
        refused += replayed.half_open
        yield from (f"{asked.messages:,}", f"{replayed.messages:,}", f"{refused:,}")
    if publisher is None:
        yield "not running"
    else:
        yield "publishing" if publisher.speaks else publisher.reason


def site_row(node: "Node", site: "Status | None", silence: float) -> tuple[str, ...]:
    """The cells of a site that wrote its status `silence` seconds ago; those of secondary loops are the last."""
    from fairtape.deployment.status import SiteStatus

    if not isinstance(site, SiteStatus):
        return node.name, "-", "not running"
    if silence > SILENT_MIN:
        return node.name, "-", _silent_state(silence)
    suspicion = f", suspects {site.suspect}" if site.suspect else ""
    return (
        node.name,
        str(site.formation),
        site.membership_state + suspicion,
        f"{site.token:,}",
        str(site.behind),
        f"{site.released_sequence:,}",
        f"{max(site.lease_left_ms, 0):.0f} ms",
        f"±{site.clock_bound_us:,.0f} µs",
        f"{site.late:,}",
        " ".join(map(str, site.loops)) or "-",
    )


def _server_row(node: "Node", server: "Status | None", silence: float) -> tuple[str, ...]:
    from fairtape.deployment.status import ReformerStatus

    if not isinstance(server, ReformerStatus):
        return node.name, "not running"
    if silence > SILENT_MIN:
        return node.name, _silent_state(silence)
    if not server.leads:
        return node.name, "standby", str(server.term)
    state, numbers = f"leads: {server.phase}", (server.term, server.formation, server.resilience)
    return node.name, state, *map(str, numbers), " ".join(server.members)


def _silent_state(silence: float) -> str:
    """Of a process that runs and does not report: what it reported last is not its state."""
    return f"silent for {silence:,.0f} s"


def _source_line(source: "LoadStatus") -> str:
    return f"{source.name}: {source.published:,} messages published, {source.acknowledged:,} acknowledged"
