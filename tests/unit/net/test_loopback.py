"""Free ports: none is given to two nodes of one demo, and none that another program uses."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairtape.demo.world import DemoWorld
from fairtape.net.loopback import PORTS, free_ports


def mesh_world() -> DemoWorld:
    return DemoWorld(seconds=1, loss=0, rate=1, seed=1, groups=None, transport="a mesh")


def all_ports_of(world: DemoWorld, folder: Path) -> Iterator[int]:
    plan = world.plan(folder)
    yield from (peer.port for peer in plan.ring.book.values())
    yield from (port for _, port in plan.edge.routes.values())
    for publisher in plan.edge.settings.publishers.values():
        yield from (publisher.requests[1], publisher.replays[1])


def test_no_port_of_a_world_is_given_twice(tmp_path: Path) -> None:
    for _ in range(20):
        ports = list(all_ports_of(mesh_world(), tmp_path))
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
