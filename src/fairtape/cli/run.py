"""`fairtape node`: run one node of a deployment, until Ctrl-C."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from fairtape.cli.terminal import EXIT_BROKEN, check_within, counted
from fairtape.core.addresses import PORT_MAX, Address, format_address, parse_address
from fairtape.core.errors import UserError
from fairtape.deployment.config.description import (
    LIMITS,
    Deployment,
    GatewayOptions,
    NodeKind,
    limits_of,
    read_deployment,
)
from fairtape.deployment.lock_file import folder_lock
from fairtape.deployment.operations.doctor import check_ready
from fairtape.deployment.process.children import Interrupts
from fairtape.deployment.process.edge import run_edge
from fairtape.deployment.process.idle_guard import keep_processors_awake
from fairtape.deployment.process.local_cluster import LocalCluster
from fairtape.deployment.process.node import SIZES, exit_with, run_load, run_reformer, run_site
from fairtape.deployment.publish.target import publish_target
from fairtape.web.broadcast import CUSTOMERS_MAX, Limits
from fairtape.web.server import HOST, ServedSite, bound, make_server, serve

RATES: Final = (0.1, 1_000_000.0)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("name")
@click.option("--load", type=float, metavar="RATE", help="As a source: publish so many messages per second.")
@click.option("--size", default=64, show_default=True, help="Bytes of such a message.")
@click.option("--parent", type=int, hidden=True, help="End together with this process.")
def node(*, directory: Path, name: str, load: float | None, size: int, parent: int | None) -> None:
    """Run one node of a deployment.

    NAME is a site or a reformation server of the deployment in DIRECTORY. On several machines, each has a copy of the
    folder with the keys of its own nodes, and runs them one by one. A source makes traffic, as much as --load says.

    A site that comes back takes its journal, catches up from the others, and is let in again.
    """
    deployment = read_deployment(directory)
    found = deployment.node(name, NodeKind.SITE, NodeKind.REFORMER, NodeKind.SOURCE)
    check_within("--load", load, *RATES, hint=" messages per second")
    check_within("--size", size, *SIZES, hint=" bytes")
    if (load is not None) != (found.kind is NodeKind.SOURCE):
        raise UserError(
            f"NAME is {name!r}, a source; say how much it publishes with --load RATE, or use: fairtape publish"
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


# `fairtape edge`: the retransmit server beside a site.


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("site")
@click.option("--parent", type=int, hidden=True, help="End together with this process.")
def edge(*, directory: Path, site: str, parent: int | None) -> None:
    """Serve what customers of a site missed.

    Until Ctrl-C, re-requests (MoldUDP64, UDP) and replays (SoupBinTCP, TCP) are answered from the site's journal, with
    what the site has released and nothing else. `fairtape up` starts it for every site that is named under [edge] in
    the deployment's file.
    """
    deployment = read_deployment(directory)
    found = deployment.node(site, NodeKind.SITE, field="SITE")
    if parent is not None:
        exit_with(parent)
    run_edge(deployment, found)


# `fairtape gateway`: order entry into a deployment.

PLACES: Final = ("entry", "fix", "ouch")
FILES: Final = ("cert_file", "key_file")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--source", required=True, metavar="NAME|NUMBER", help="Enter orders as this source of the deployment.")
@click.option("--entry", metavar="HOST:PORT", help="Where the Python client connects.")
@click.option("--fix", metavar="HOST:PORT", help="Where FIX 4.4 engines connect.")
@click.option("--ouch", metavar="HOST:PORT", help="Where OUCH 4.2 clients connect (SoupBinTCP).")
@click.option("--cert-file", type=click.Path(path_type=Path), help="Speak TLS, with this certificate (PEM).")
@click.option("--key-file", type=click.Path(path_type=Path), help="Its key, without a passphrase.")
@click.option("--comp-id", help="Our name in FIX sessions.  [default: FAIRTAPE]")
@click.option("--accounts", metavar="URL", help="A database of logins.  [default: floor/accounts.sqlite in DIRECTORY]")
@click.option("--ledger", metavar="FILE|URL", help="Project the ledger into this database.")
@click.option("--orders-per-s", type=int, help="Requests of one account in a second.  [default: 1000]")
@click.option("--open-orders", type=int, help="Open orders of one account.  [default: 1000]")
@click.option("--notional", type=int, help="Open orders of one account, in cash.  [default: 100000000]")
@click.option("--parent", type=int, hidden=True, help="End together with this process.")
def gateway(*, directory: Path, source: str, parent: int | None, **given: Any) -> None:
    """Let traders enter orders into a deployment.

    Until Ctrl-C, traders with a login (`fairtape accounts add`) enter orders with the Python client, FIX 4.4 or OUCH
    4.2, and hear what the sequence makes of them. Several gateways may run at once; the sequence decides between them.

    Whatever is not given here is taken from [gateways] in the deployment's file, where it names this source; `fairtape
    up` runs those that are listed there. When a trade commits, and who may let money in, says [floor].
    """
    # All that a site and a database are made of comes with it, which `fairtape --help` need not wait for.
    from fairtape.deployment.process.gateway import run_gateway
    from fairtape.deployment.publish.source_thread import source_named

    deployment, door = read_deployment(directory), publish_target(directory)
    me = source_named(door, source)
    options = _options(deployment.gateways.get(door.names[me], GatewayOptions()), given)
    if parent is not None:
        exit_with(parent)
    elif not door.is_open():
        raise UserError(f"the deployment in {str(directory)!r} is not running; start it with: {door.command}")
    run_gateway(deployment, me, options, _say, patient=parent is not None)


def _options(listed: GatewayOptions, given: dict[str, Any]) -> GatewayOptions:
    """What the command says, and the file where the command says nothing."""
    for name, bounds in LIMITS.items():
        check_within(f"--{name.replace('_', '-')}", given[name], *bounds)
    chosen = {name: value for name, value in given.items() if value is not None and name not in LIMITS}
    chosen |= {name: parse_address(f"--{name}", chosen[name], port_min=0) for name in PLACES if name in chosen}
    limits = limits_of({name: given[name] for name in LIMITS}, otherwise=listed.limits)
    options = replace(listed, **chosen, limits=limits)
    if not options.serves:
        raise UserError("none of --entry, --fix and --ouch is given; say where traders connect")
    if (options.cert_file is None) != (options.key_file is None):
        one, other = FILES if options.key_file is None else reversed(FILES)
        raise UserError(f"{one} is given without {other}; give both, or none")
    return options


def _say(addresses: dict[str, Address]) -> None:
    for name, address in addresses.items():
        click.echo(f"{name} at {format_address(address)}")


# `fairtape up`: run the sites and reformation servers of a deployment on this machine, and print what befalls them.

SECONDS: Final = (0.1, 1e9)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--restart", is_flag=True, help="Start a process again that ends by itself.")
@click.option("--keep-awake", is_flag=True, help="Let no processor of this machine sleep, for exact releases.")
@click.option("--seconds", type=float, help="How long.  [default: until Ctrl-C]")
@click.pass_context
def up(ctx: click.Context, *, directory: Path, restart: bool, keep_awake: bool, seconds: float | None) -> None:
    """Run the sites and servers of a deployment on this machine.

    Each is a process of its own. What the reformation servers decide and what the sites notice is printed as it happens
    and kept in DIRECTORY/run/notices.log. A process that ends is told of, and started again only with --restart, or
    when a drill asks for it. Ctrl-C ends all of them cleanly: journals are complete and can be gone on from.

    The trading floor runs with them as far as the file lists it: its arbiters under [floor.arbiters], order entry under
    [gateways].

    A virtual machine's processor that has gone to sleep wakes milliseconds late, and so does a release. --keep-awake
    runs a program on each that does nothing and that every other program is preferred to. It costs electricity;
    `fairtape doctor` says whether it is worth it, and how to configure a machine so that it is not needed.

    The exit code is 1 when a process ended by itself and was not started again.
    """
    check_within("--seconds", seconds, *SECONDS)
    deployment = read_deployment(directory)
    awake = keep_processors_awake() if keep_awake else nullcontext()
    with folder_lock(deployment.folder), Interrupts() as interrupts, awake:
        check_ready(deployment)
        company = LocalCluster(deployment, say=click.echo, restart=restart)
        ends_at = time.monotonic() + (seconds or SECONDS[1])
        try:
            company.start()
            click.echo(
                f"{', '.join(_parts(deployment))} and"
                f" {counted(len(deployment.reformers), 'reformation server')}; see how they fare"
                f" from another terminal with: fairtape status {directory}",
                err=True,
            )
            company.watch(lambda: interrupts.count > 0 or time.monotonic() > ends_at)
        finally:
            company.stop()
    ctx.exit(EXIT_BROKEN if company.lost else 0)


def _parts(deployment: Deployment) -> Iterator[str]:
    """What runs beside the reformation servers."""
    yield counted(len(deployment.sites), "site")
    for listed, noun in ((deployment.floor.arbiters, "arbiter"), (deployment.gateways, "gateway")):
        if listed:
            yield counted(len(listed), noun)


# `fairtape web`: serve the ticker of one site to browsers and ordinary programs, until Ctrl-C.

PORT: Final = 8765


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("site", required=False)
@click.option("--host", default=HOST, show_default=True, help="The address to listen on; 0.0.0.0 is every one.")
@click.option("--port", default=PORT, show_default=True, help="The port; 0 is any that is free.")
@click.option("--customers", default=CUSTOMERS_MAX, show_default=True, help="WebSockets at a time.")
def web(*, directory: Path, site: str | None, host: str, port: int, customers: int) -> None:
    """Serve the ticker of a site by WebSocket and HTTP.

    DIRECTORY is a deployment, of which SITE is served, or the journal of a site. A message is sent when the site has
    released it, and never before. Nobody who listens can hold up the site.

    \b
    /            the live ticker, for a person
    /v1/ticker   WebSocket: ?symbols=AAPL,MSFT&form=binary&from=1000&policy=skip
    /v1/status   how the server fares
    /v1/symbols  all symbols that were traded
    /v1/last     ?symbol=AAPL: the last sale and the volume
    /v1/trades   ?from=1&limit=1000&format=arrow: a range of the past

    When it cannot send everybody in time what was released, it says so here, in /v1/status and to its customers.

    After Ctrl-C customers get what was released before it, and the number to go on with.
    """  # noqa: D301 - click means the one character \b
    check_within("--port", port, 0, PORT_MAX)
    check_within("--customers", customers, 1, 1_000_000)
    target = ServedSite.of(directory, site)
    opened = bound(host, port)
    server = make_server(target, Limits(customers_max=customers), say=lambda line: click.echo(line, err=True))
    shown = f"[{host}]" if ":" in host else host
    click.echo(
        f"the ticker of {target.title} is at http://{shown}:{opened.getsockname()[1]}/; Ctrl-C ends it", err=True
    )
    serve(server, opened)
    hub = server.stage.hub
    click.echo(
        f"{hub.counts['admitted']:,} customers, {hub.counts['frames']:,} frames; next is number {hub.ticker.due}",
        err=True,
    )
