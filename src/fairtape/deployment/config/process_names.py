"""Names of the processes of a deployment. A node's process has the name of the node; others have a suffix."""

from typing import Final

from fairtape.deployment.config.description import Deployment

# Names of nodes have no dot.
EDGE: Final = ".edge"  # the retransmit server of a site
ARBITER: Final = ".arbiter"  # the arbiter of a site
GATEWAY: Final = ".gateway"  # the order entry of a source


def edge_names(deployment: Deployment) -> list[str]:
    """The retransmit servers."""
    return [] if deployment.edge is None else [f"{site}{EDGE}" for site in deployment.edge.publishers]


def floor_names(deployment: Deployment) -> list[str]:
    """The processes of the trading floor that the deployment's file lists: arbiters, then gateways."""
    arbiters = [f"{deployment.name_of(site)}{ARBITER}" for site in deployment.floor.arbiters]
    return [*arbiters, *(f"{source}{GATEWAY}" for source in deployment.gateways)]
