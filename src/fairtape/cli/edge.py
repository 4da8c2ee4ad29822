"""`fairtape edge`: the retransmit server beside a site."""

from pathlib import Path

import click

from fairtape.deployment.config.description import NodeKind, read_deployment
from fairtape.deployment.process.edge import run_edge
from fairtape.deployment.process.node import exit_with


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
