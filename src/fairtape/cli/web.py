"""`fairtape web`: serve the ticker of one site to browsers and ordinary programs, until Ctrl-C."""

from pathlib import Path
from typing import Final

import click

from fairtape.cli.limits import check_within
from fairtape.web.broadcast import CUSTOMERS_MAX, Limits
from fairtape.web.server import HOST, ServedSite, bound, make_server, serve

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
    check_within("--port", port, 0, 65_535)
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
