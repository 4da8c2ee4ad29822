"""Free ports: none is given to two nodes of one deployment, and none that another program uses."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairtape.deployment.config.description import Deployment
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.net.loopback import PORTS, free_ports


def all_ports_of(deployment: Deployment) -> Iterator[int]:
    yield from (node.port for node in deployment.nodes.values())
    assert deployment.edge is not None
    for publisher in deployment.edge.publishers.values():
        yield from (publisher.requests[1], publisher.replays[1])


def test_no_port_of_a_deployment_is_given_twice(tmp_path: Path) -> None:
    draft = Draft(loops=(9,), profile="wan", edge=2, mesh=True)
    for attempt in range(20):
        ports = list(all_ports_of(create_deployment(tmp_path / str(attempt), draft)))
        assert len(ports) == len(set(ports))


def test_ports_are_reused_only_after_all_others() -> None:
    ports = free_ports(len(PORTS) // 4) + free_ports(len(PORTS) // 4)
    assert len(ports) == len(set(ports))
    assert set(ports) <= set(PORTS)


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_port_in_use_is_not_free(kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_INET, kind) as holder:
        (port,) = free_ports(1)
        holder.bind(("127.0.0.1", port))
        if kind is socket.SOCK_STREAM:
            holder.listen()
        for _ in range(4):  # once around, and further
            assert port not in free_ports(len(PORTS) // 3)
