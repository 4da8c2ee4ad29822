"""A retransmit server over a journal in a process of its own: prints its replay port, and serves until it is ended."""

import sys
from pathlib import Path

from fairtape.edge.service.replay_archive import ReplayArchive
from fairtape.edge.service.retransmit_server import RetransmitServer
from fairtape.edge.service.stripe_plans import StripePlanStore
from fairtape.net.clock import SharedClock
from fairtape.net.transports import LOOPBACK
from unit.edge.edge_journals import SETTINGS


def main(folder: str, journal: str) -> None:
    archive = ReplayArchive(Path(journal), SETTINGS, StripePlanStore(Path(folder), 0))
    while archive.update_index():
        pass
    server = RetransmitServer(SETTINGS, SETTINGS.publishers["s1"], archive, SharedClock(), interface=LOOPBACK)
    host, port = server.addresses[1]
    sys.stdout.write(f"{host}:{port}\n")
    sys.stdout.flush()
    server.run(lambda: False)


if __name__ == "__main__":
    main(*sys.argv[1:])
