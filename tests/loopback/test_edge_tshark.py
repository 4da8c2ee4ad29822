"""The edge as another program sees it: tshark dissects the stream, a request and its answer as MoldUDP64.

Its dissector of ITCH reads versions before 5.0 only, so the messages themselves are checked by our own. It is given
what our sockets received, and once it captures by itself while an edge is running.
"""

import queue
import shutil
import struct
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import IO

import pytest

from fairtape.edge.protocol.sessions import MARK
from fairtape.edge.service.replay_archive import ReplayArchive
from fairtape.edge.service.retransmit_server import RetransmitServer
from fairtape.edge.service.stripe_plans import StripePlanStore
from fairtape.formats import moldudp64
from fairtape.formats.itch import messages as itch
from fairtape.formats.moldudp64 import MoldRequest, encode_request
from fairtape.net.clock import SharedClock
from fairtape.net.transports import LOOPBACK
from loopback.edge_sockets import PATIENCE, Groups, asker, until
from loopback.test_edge_publisher import complete, expected, packet_receiver, publishing_site
from loopback.test_retransmit_server import stand
from unit.edge.edge_journals import SETTINGS, history, plan_store

STREAM_PORT, SERVER_PORT, CUSTOMER_PORT = 31_001, 17_000, 40_000
LINKTYPE_RAW = 101
UDP_HEADER = 8  # bytes
WARNING = 0x600000  # what is below it is a note, such as that a packet is a request
FIELDS = ("session", "sequence", "count", "request", "msglen")

pytestmark = pytest.mark.skipif(
    shutil.which("tshark") is None, reason="tshark is not installed; apt-get install tshark"
)


def captured(path: Path, datagrams: Sequence[tuple[int, int, bytes]]) -> Path:
    """A capture of these datagrams, each with its source and destination port."""
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, LINKTYPE_RAW))
        for place, (source, destination, payload) in enumerate(datagrams):
            udp = struct.pack(">HHHH", source, destination, 8 + len(payload), 0) + payload
            ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, b"\x7f\0\0\1", b"\x7f\0\0\1")
            file.write(struct.pack("<IIII", place, 0, 20 + len(udp), 20 + len(udp)) + ip + udp)
    return path


def dissected(path: Path, *ports: int) -> list[dict[str, str]]:
    """The dissection of each datagram by tshark; none may be malformed."""
    names = [f"moldudp64.{name}" for name in FIELDS]
    decodes = [word for port in ports for word in ("-d", f"udp.port=={port},moldudp64")]
    fields = [word for name in ("_ws.malformed", "_ws.expert.severity", *names) for word in ("-e", name)]
    command = ["tshark", "-n", "-r", str(path), *decodes, "-T", "fields", "-E", "separator=;", *fields]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split(";") for line in done.stdout.splitlines()]
    assert {row[0] for row in rows} == {""}, "malformed"
    assert max((int(each) for row in rows for each in row[1].split(",") if each), default=0) < WARNING
    return [dict(zip(FIELDS, row[2:], strict=True)) for row in rows]


class Capture:
    """tshark capturing on the loopback interface. A datagram to itself marks the beginning and the end."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._marker_socket = asker()
        self._own = self._marker_socket.getsockname()[1]
        received = " or ".join(f"udp port {port}" for port in (*ports, self._own))
        names = (
            "udp.dstport",
            "udp.length",
            "_ws.malformed",
            "_ws.expert.severity",
            *(f"moldudp64.{name}" for name in FIELDS),
        )
        command = ["tshark", "-n", "-l", "-i", "lo", "-f", received, "-T", "fields", "-E", "separator=;"]
        command += [word for port in ports for word in ("-d", f"udp.port=={port},moldudp64")]
        command += [word for name in (*names, "moldudp64.msgdata") for word in ("-e", name)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.rows: list[list[str]] = []
        self._markers = 0
        self._lines: queue.Queue[str | None] = queue.Queue()
        Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def await_marker(self) -> None:
        """Send a marker until it is captured, as everything sent before is by then. Each has its own size."""
        self._markers += 1
        give_up_at = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < give_up_at
            self._marker_socket.sendto(bytes(self._markers), (LOOPBACK, self._own))
            with suppress(queue.Empty):
                while (line := self._lines.get(timeout=0.1)) is not None:
                    port, size, *row = line.rstrip("\n").split(";")
                    if int(port) != self._own:
                        self.rows.append(row)
                    elif int(size) == UDP_HEADER + self._markers:
                        return
                _, errors = self._process.communicate()
                pytest.skip(f"capturing is not possible here: {' '.join(errors.split())}")

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()
        self._marker_socket.close()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self._lines.put(line)
        self._lines.put(None)


def test_a_running_edge_is_captured_and_dissected_without_a_malformed_packet(tmp_path: Path) -> None:
    plan = Groups().plan()
    entries = history()
    wanted = expected(plan, entries)
    plans = plan_store(tmp_path, plan)
    with publishing_site(tmp_path, plans) as site, packet_receiver(plan) as received, asker() as client:
        archive = ReplayArchive(tmp_path / "s1", SETTINGS, StripePlanStore(tmp_path, 0))
        server = RetransmitServer(SETTINGS, SETTINGS.publishers["s1"], archive, SharedClock(), interface=LOOPBACK)
        capture = Capture([*(each.endpoint("A").port for each in plan.edge), server.addresses[0][1]])
        try:
            capture.await_marker()
            until(lambda: site.is_sending, site.wake)
            for each in entries:
                site.feed_entry(each)
            until(lambda: complete(received, wanted), site.wake, server.run_once, received.receive)
            session = next(iter(wanted))
            answers: list[bytes] = []

            def receive() -> None:
                server.run_once()
                with suppress(BlockingIOError):
                    answers.append(client.recv(65_536))

            until(lambda: archive.sequence == 241, server.run_once)
            client.sendto(encode_request(MoldRequest(session, 3, 20)), server.addresses[0])
            until(lambda: sum(len(moldudp64.decode(each).messages) for each in answers) >= 20, receive)
            capture.await_marker()
        finally:
            capture.close()
            server.close()
    check_capture(capture.rows, wanted, session)


def check_capture(rows: list[list[str]], wanted: dict[str, list[bytes]], session: str) -> None:
    """Nothing is malformed, the whole stream is there, and so are a request and its answer."""
    assert {row[0] for row in rows} == {""}
    assert max((int(each) for row in rows for each in row[1].split(",") if each), default=0) < WARNING
    found = [dict(zip((*FIELDS, "messages"), row[2:], strict=True)) for row in rows]
    assert [row["sequence"] for row in found if row["request"] == "1"] == ["3"]
    numbered: dict[str, dict[int, bytes]] = {name: {} for name in wanted}
    again = 0
    for row in found:
        for number, text in enumerate(filter(None, row["messages"].split(",")), int(row["sequence"])):
            message = bytes.fromhex(text.replace(":", ""))
            again += row["session"] == session and number in numbered[session]
            assert numbered[row["session"]].setdefault(number, message) == message
            if message[:1] != MARK and message[:1] in (b"S", b"R", b"L", b"P"):
                itch.decode(message)
    assert {name: [each[number] for number in sorted(each)] for name, each in numbered.items()} == wanted
    assert again == 20


def test_the_stream_with_heartbeats_and_ends_of_sessions_is_moldudp64(tmp_path: Path) -> None:
    groups = Groups()
    plan, second = groups.plan(), groups.plan(2, stripes=3)
    entries = history(second=second)
    wanted = expected(plan, entries, second)
    with publishing_site(tmp_path, plan_store(tmp_path, plan, second)) as site, packet_receiver(second) as received:
        until(lambda: len(site.publisher.status().marks) == 2 and site.is_sending, site.wake)
        for each in entries:
            site.feed_entry(each)
        until(
            lambda: (
                complete(received, wanted)
                and any(packet.ended for packet in received.packets)
                and any(not packet.messages and not packet.ended for packet in received.packets)
            ),
            site.wake,
            received.receive,
        )
    path = captured(tmp_path / "stream.pcap", [(40_000, STREAM_PORT, each) for each in received.datagrams])
    rows = dissected(path, STREAM_PORT)
    assert len(rows) == len(received.packets)
    for row, packet in zip(rows, received.packets, strict=True):
        count = 0xFFFF if packet.ended else len(packet.messages)
        assert (row["session"], int(row["sequence"]), int(row["count"], 0)) == (packet.session, packet.number, count)
        lengths = [int(each) for each in row["msglen"].split(",") if each]
        assert lengths == [len(message) for message in packet.messages]
        for message in packet.messages:
            if message[:1] != MARK and message[:1] in (b"S", b"R", b"L", b"P"):
                itch.decode(message)


def test_a_re_request_and_its_answer_are_moldudp64(tmp_path: Path) -> None:
    with stand(tmp_path) as made, asker() as client:
        request = encode_request(MoldRequest(made.session, 3, 40))
        client.sendto(request, made.requests)
        answers: list[bytes] = []

        def receive() -> None:
            made.server.run_once()
            with suppress(BlockingIOError):
                answers.append(client.recv(65_536))

        until(lambda: sum(len(moldudp64.decode(each).messages) for each in answers) >= 40, receive)
        exchange = [(CUSTOMER_PORT, SERVER_PORT, request)]
        exchange += [(SERVER_PORT, CUSTOMER_PORT, each) for each in answers]
        asked, *answered = dissected(captured(tmp_path / "exchange.pcap", exchange), SERVER_PORT)
        assert (asked["session"], asked["sequence"]) == (made.session, "3")
        assert (asked["request"], asked["count"]) == ("1", "40")  # tshark recognizes a request by what it lacks
        assert [int(row["sequence"]) for row in answered] == [moldudp64.decode(each).number for each in answers]
        assert sum(int(row["count"]) for row in answered) == 40
