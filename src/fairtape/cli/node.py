"""`fairtape node`: run one node of a deployment, until Ctrl-C."""

from pathlib import Path
from typing import Final

import click

from fairtape.cli.limits import check_within
from fairtape.core.errors import UserError
from fairtape.deployment.config.description import NodeKind, read_deployment
from fairtape.deployment.process.node import SIZES, exit_with, run_load, run_reformer, run_site

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
