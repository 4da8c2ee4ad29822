"""The retransmit servers (R_x) of one region as a process. Each reads the journal of one receiver."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from fairtape.demo.priority import lower_priority
from fairtape.demo.world import REGIONS, WorldPlan, name_of, publishers_of
from fairtape.deployment.process.children import ChildLink, Ready
from fairtape.edge.service.replay_archive import ReplayArchive
from fairtape.edge.service.retransmit_server import RetransmitServer
from fairtape.edge.service.stripe_plans import StripePlanStore
from fairtape.net.clock import SharedClock
from fairtape.net.transports import LOOPBACK


def run_retransmitters(link: ChildLink, region: int, journals: Mapping[str, Path]) -> None:
    """Entry point of the process."""
    lower_priority()
    link.tell(Ready())
    plan = link.expect(WorldPlan)
    if plan is None:
        return
    edge = plan.edge
    with ExitStack() as resources:
        servers = []
        for site in publishers_of(REGIONS[region]):
            name = name_of(site)
            archive = ReplayArchive(journals[name], edge.settings, StripePlanStore(edge.folder, edge.settings.core))
            server = RetransmitServer(
                edge.settings, edge.settings.publishers[name], archive, SharedClock(), interface=LOOPBACK
            )
            resources.callback(server.close)
            servers.append(server)
        while not link.stopped:
            for _ in link.orders():
                pass
            for server in servers:
                server.run_once()
