"""Commands that run processes of a deployment until Ctrl-C: `up`, `node`, `edge`, `gateway`, `web`."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fairtape.cli.terminal import EXIT_BROKEN, check_within, counted
from fairtape.core.addresses import PORT_MAX, Address, format_address, parse_address
from fairtape.core.errors import UserError

if TYPE_CHECKING:
    from fairtape.core.addresses import Address
    from fairtape.deployment.config.description import Deployment, GatewayOptions

RATES: Final = (0.1, 1_000_000.0)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("name")
@click.option("--load", type=float, metavar="RATE", help="As a source: publish RATE messages per second.")
@click.option("--size", default=64, show_default=True, help="Bytes per message.")
@click.option("--parent", type=int, hidden=True, help="End together with this process.")
def node(*, directory: Path, name: str, load: float | None, size: int, parent: int | None) -> None:
    """Run one node of a deployment.

    NAME is a site or a reformation server of the deployment in DIRECTORY. On several machines, each has a copy of the
    folder with the keys of its own nodes, and runs each node with this command. A source generates the traffic that
    --load asks for.

    A site that restarts reads its journal, catches up from the others, and is admitted again.
    """
    from fairtape.deployment.config.description import NodeKind, read_deployment
    from fairtape.deployment.process.node import SIZES, exit_with, run_load, run_reformer, run_site

    deployment = read_deployment(directory)
    found = deployment.node(name, NodeKind.SITE, NodeKind.REFORMER, NodeKind.SOURCE)
    check_within("--load", load, *RATES, hint=" messages per second")
    check_within("--size", size, *SIZES, hint=" bytes")
    if (load is not None) != (found.kind is NodeKind.SOURCE):
        raise UserError(
            f"NAME is {name!r}, a source; give its rate with --load RATE, or use: fairtape publish"
            if load is None
            else f"--load is {load:g}, and {name} is a {found.kind.value}; only sources publish"
        )
    if parent is not None:
        exit_with(parent)
    match found.kind:
        case NodeKind.SITE:
            run_site(deployment, found)
        case NodeKind.REFORMER:
            run_reformer(deployment, found)
        case _:
            assert load is not None
            run_load(deployment, found, rate=load, size=size)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("site")
@click.option("--parent", type=int, hidden=True, help="End together with this process.")
def edge(*, directory: Path, site: str, parent: int | None) -> None:
    """Run the retransmit server of a site.

    It answers re-requests (MoldUDP64, UDP) and replays (SoupBinTCP, TCP) from the site's journal, with what the site
    has released and nothing else. `fairtape up` starts one for every site under [edge] in the deployment's file.
    """
    from fairtape.deployment.config.description import NodeKind, read_deployment
    from fairtape.deployment.process.edge import run_edge
    from fairtape.deployment.process.node import exit_with

    deployment = read_deployment(directory)
    found = deployment.node(site, NodeKind.SITE, field="SITE")
    if parent is not None:
        exit_with(parent)
    run_edge(deployment, found)


PLACES: Final = ("entry", "fix", "ouch")
FILES: Final = ("cert_file", "key_file")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--source", required=True, metavar="NAME|NUMBER", help="Enter orders as this source of the deployment.")
@click.option("--entry", metavar="HOST:PORT", help="Where the Python client connects.")
@click.option("--fix", metavar="HOST:PORT", help="Where FIX 4.4 engines connect.")
@click.option("--ouch", metavar="HOST:PORT", help="Where OUCH 4.2 clients connect (SoupBinTCP).")
@click.option("--cert-file", type=click.Path(path_type=Path), help="Use TLS with this certificate (PEM).")
@click.option("--key-file", type=click.Path(path_type=Path), help="Key of the certificate, without a passphrase.")
@click.option("--comp-id", help="CompID of the gateway in FIX sessions.  [default: FAIRTAPE]")
@click.option("--accounts", metavar="URL", help="A database of logins.  [default: floor/accounts.sqlite in DIRECTORY]")
@click.option("--ledger", metavar="FILE|URL", help="Project the ledger into this database.")
@click.option("--orders-per-s", type=int, help="Limit of requests per second of one account.  [default: 1000]")
@click.option("--open-orders", type=int, help="Limit of open orders of one account.  [default: 1000]")
@click.option(
    "--notional", type=int, help="Limit of the value of one account's open orders, in cash.  [default: 100000000]"
)
@click.option("--parent", type=int, hidden=True, help="End together with this process.")
def gateway(*, directory: Path, source: str, parent: int | None, **given: Any) -> None:
    """Run order entry: FIX, OUCH and the Python client.

    Traders with a login (`fairtape accounts add`) enter orders with the Python client, FIX 4.4 or OUCH 4.2, and receive
    reports when the sequence contains them. Several gateways may run at once; the sequence decides whose order is
    first.

    Options that are not given are taken from [gateways] in the deployment's file, if it lists this source. `fairtape
    up` runs the gateways listed there. [floor] says when a trade commits and which sources may fund accounts.
    """
    from fairtape.deployment.config.description import GatewayOptions, read_deployment
    from fairtape.deployment.process.gateway import run_gateway
    from fairtape.deployment.process.node import exit_with
    from fairtape.deployment.publish.source_thread import source_named
    from fairtape.deployment.publish.target import publish_target

    deployment, target = read_deployment(directory), publish_target(directory)
    me = source_named(target, source)
    options = _options(deployment.gateways.get(target.names[me], GatewayOptions()), given)
    if parent is not None:
        exit_with(parent)
    elif not target.is_open():
        raise UserError(f"the deployment in {str(directory)!r} is not running; start it with: {target.command}")
    run_gateway(deployment, me, options, _say, patient=parent is not None)


def _options(listed: "GatewayOptions", given: dict[str, Any]) -> "GatewayOptions":
    """The options of the command, completed from the deployment's file."""
    from fairtape.deployment.config.description import LIMITS, limits_of

    for name, bounds in LIMITS.items():
        check_within(f"--{name.replace('_', '-')}", given[name], *bounds)
    chosen = {name: value for name, value in given.items() if value is not None and name not in LIMITS}
    chosen |= {name: parse_address(f"--{name}", chosen[name], port_min=0) for name in PLACES if name in chosen}
    limits = limits_of({name: given[name] for name in LIMITS}, otherwise=listed.limits)
    options = replace(listed, **chosen, limits=limits)
    if not options.serves:
        raise UserError("none of --entry, --fix and --ouch is given; give at least one address for traders")
    if (options.cert_file is None) != (options.key_file is None):
        one, other = FILES if options.key_file is None else reversed(FILES)
        raise UserError(f"{one} is given without {other}; give both or neither")
    return options


def _say(addresses: dict[str, "Address"]) -> None:
    for name, address in addresses.items():
        click.echo(f"{name} at {format_address(address)}")


SECONDS: Final = (0.1, 1e9)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--restart", is_flag=True, help="Restart a process that ends by itself.")
@click.option("--keep-awake", is_flag=True, help="Keep processors out of idle states, for exact releases.")
@click.option("--seconds", type=float, help="Stop after this time.  [default: until Ctrl-C]")
@click.pass_context
def up(ctx: click.Context, *, directory: Path, restart: bool, keep_awake: bool, seconds: float | None) -> None:
    """Run the sites and servers of a deployment on this machine.

    Each node is a process. Notices of reformation servers and sites are printed and written to
    DIRECTORY/run/notices.log. A process that ends is reported, and restarted only with --restart or by a drill. Ctrl-C
    ends all of them cleanly, with complete journals.

    The arbiters under [floor.arbiters] and the gateways under [gateways] of the deployment's file run with them.

    Before the start the formation store is measured. A store that is too slow to lead on is refused.

    On a virtual machine an idle processor may wake milliseconds late, which makes releases late. --keep-awake runs an
    idle-priority program on each processor. It costs electricity; `fairtape doctor` says whether it helps, and how to
    configure the machine instead.

    The exit code is 1 if a process ended by itself and was not restarted.
    """
    from fairtape.deployment.config.description import read_deployment
    from fairtape.deployment.lock_file import folder_lock
    from fairtape.deployment.operations.doctor import check_ready, store_notice
    from fairtape.deployment.process.children import Interrupts
    from fairtape.deployment.process.idle_guard import keep_processors_awake
    from fairtape.deployment.process.local_cluster import LocalCluster

    check_within("--seconds", seconds, *SECONDS)
    deployment = read_deployment(directory)
    awake = keep_processors_awake() if keep_awake else nullcontext()
    with folder_lock(deployment.folder), Interrupts() as interrupts, awake:
        if (notice := store_notice(deployment, check_ready(deployment))) is not None:
            click.echo(notice, err=True)
        cluster = LocalCluster(deployment, say=click.echo, restart=lambda _ended: restart)
        ends_at = time.monotonic() + (seconds or SECONDS[1])
        try:
            cluster.start()
            click.echo(
                f"{', '.join(_parts(deployment))} and"
                f" {counted(len(deployment.reformers), 'reformation server')}; see their status"
                f" in another terminal: fairtape status {directory}",
                err=True,
            )
            cluster.watch(lambda: interrupts.count > 0 or time.monotonic() > ends_at)
        finally:
            cluster.stop()
    ctx.exit(EXIT_BROKEN if cluster.lost else 0)


def _parts(deployment: "Deployment") -> Iterator[str]:
    """What runs besides the reformation servers."""
    yield counted(len(deployment.sites), "site")
    for listed, noun in ((deployment.floor.arbiters, "arbiter"), (deployment.gateways, "gateway")):
        if listed:
            yield counted(len(listed), noun)


PORT: Final = 8765


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("site", required=False)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all interfaces."
)
@click.option("--port", default=PORT, show_default=True, help="Port to listen on; 0 for any free port.")
@click.option("--customers", default=2_000, show_default=True, help="Limit of concurrent WebSockets.")
def web(*, directory: Path, site: str | None, host: str, port: int, customers: int) -> None:
    """Serve the ticker of a site by WebSocket and HTTP.

    DIRECTORY is a deployment, whose SITE is served, or the journal of a site. A message is sent after the site has
    released it, never before. Customers cannot delay the site.

    \b
    /            the live ticker as a page
    /v1/ticker   WebSocket: ?symbols=AAPL,MSFT&form=binary&from=1000&policy=skip
    /v1/status   state of the server
    /v1/symbols  all symbols that were traded
    /v1/last     ?symbol=AAPL: the last sale and the volume
    /v1/trades   ?from=1&limit=1000&format=arrow: a range of past trades

    If the server cannot keep up, it reports that here, in /v1/status and to its customers.

    After Ctrl-C, customers receive what was released before it, and the number to resume from.
    """  # noqa: D301 - click means the one character \b
    from fairtape.web.broadcast import BroadcastLimits
    from fairtape.web.server import ServedSite, bound, make_server, serve

    check_within("--port", port, 0, PORT_MAX)
    check_within("--customers", customers, 1, 1_000_000)
    target = ServedSite.of(directory, site)
    opened = bound(host, port)
    server = make_server(
        target, BroadcastLimits(customers_max=customers), report=lambda line: click.echo(line, err=True)
    )
    shown = f"[{host}]" if ":" in host else host
    click.echo(
        f"the ticker of {target.title} is at http://{shown}:{opened.getsockname()[1]}/; Ctrl-C ends it", err=True
    )
    serve(server, opened)
    hub = server.server_loop.broadcaster
    click.echo(
        f"{hub.counts['admitted']:,} customers, {hub.counts['frames']:,} frames; next is number {hub.ticker.due}",
        err=True,
    )
