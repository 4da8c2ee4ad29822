"""Connections of a retransmit server when the system is out of resources."""

import resource
import selectors
import socket

from fairtape.edge.service.retransmit_server import PAUSE_PERIOD, ReplayConnections


class RecordingReplayServer:
    """Records the connections."""

    def __init__(self) -> None:
        self.came: list[int] = []

    def connected(self, connection: int, _now: int) -> None:
        self.came.append(connection)

    def disconnected(self, connection: int) -> None:
        self.came.remove(connection)


def test_accepting_is_tried_again_after_a_pause_and_not_at_once() -> None:
    replay, selector = RecordingReplayServer(), selectors.DefaultSelector()
    connections = ReplayConnections(("127.0.0.1", 0), replay, selector)  # type: ignore[arg-type]  # a stand-in
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(connections.address):
        ((key, events),) = selector.select(5)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            key.data(events, 0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert connections.refused == 1
        assert selector.select(0) == []
        connections.wake(PAUSE_PERIOD)
        ((key, events),) = selector.select(5)
        key.data(events, PAUSE_PERIOD)
        assert replay.came == [1]
    connections.close()
    selector.close()
