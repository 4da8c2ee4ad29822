"""The retransmit servers (R_x) of one region as a process, each beside a receiver and out of its journal."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from fairtape.demo.priority import give_way
from fairtape.demo.world import REGIONS, WorldPlan, name_of, stations_of
from fairtape.deployment.process.children import ChildLink, Ready
from fairtape.edge.service.replay_archive import ReplayArchive
from fairtape.edge.service.retransmit_server import RetransmitServer
from fairtape.edge.service.stripe_plans import StripePlanStore
from fairtape.net.clock import SharedClock
from fairtape.net.transports import LOOPBACK


def run_retransmitters(link: ChildLink, region: int, journals: Mapping[str, Path]) -> None:
    """The whole life of the process."""
    give_way()
    link.tell(Ready())
    plan = link.expect(WorldPlan)
    if plan is None:
        return
    edge = plan.edge
    with ExitStack() as closing:
        servers = []
        for site in stations_of(REGIONS[region]):
            name = name_of(site)
            library = ReplayArchive(journals[name], edge.settings, StripePlanStore(edge.folder, edge.settings.core))
            server = RetransmitServer(
                edge.settings, edge.settings.publishers[name], library, SharedClock(), interface=LOOPBACK
            )
            closing.callback(server.close)
            servers.append(server)
        while not link.stopped:
            for _ in link.orders():
                pass
            for server in servers:
                server.turn()
