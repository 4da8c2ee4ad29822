"""Whether this machine can run a deployment: asked before anything is started, so that one sentence tells what cannot.

Each process would find out by itself; but then every one of them says so, one after the other, while others run.
"""

from contextlib import ExitStack

from fairtape.core.errors import UserError
from fairtape.deployment.config.description import FILE, Deployment
from fairtape.net.udp import bind
from fairtape.storage.formation_stores import open_store


def check_ready(deployment: Deployment) -> None:
    """Every address can be listened at, and the store answers; a `UserError` names the first that does not."""
    stations = {} if deployment.edge is None else deployment.edge.stations
    nodes = (*deployment.sites, *deployment.reformers)
    places = {f"{node.kind.value}s.{node.name}.address": (node.host, node.port) for node in nodes}
    places |= {f"edge.stations.{name}.requests": place.requests for name, place in stations.items()}
    with ExitStack() as bound:
        for field, address in places.items():
            try:
                bound.enter_context(bind(*address))
            except UserError as complaint:
                raise UserError(
                    f"{deployment.folder / FILE}: {field} cannot be used here: {complaint}; "
                    "sites of other machines are started there, with: fairtape node DIR NAME"
                ) from None
    open_store(deployment.store, access=deployment.access).close()
