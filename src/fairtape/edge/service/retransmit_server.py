"""The retransmit server R_x as a process: repairs by datagram and replays by stream, from a site's journal.

It is independent of the site's process, which notifies it of releases. A customer that floods it or stays silent does
not affect others.
"""

import hmac
import json
import selectors
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from fairtape.core.addresses import Address
from fairtape.core.effects import CloseConnection, WriteConnection
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.edge.protocol.effects import (
    EdgeEffect,
    RepairRefused,
    SendMulticast,
    SendUnicast,
)
from fairtape.edge.protocol.replay import PasswordCheck, ReplayOptions, ReplayServer
from fairtape.edge.protocol.retransmitter import Grade, Retransmitter
from fairtape.edge.service.replay_archive import ReplayArchive
from fairtape.edge.service.settings import EdgeSettings, PublisherPlace
from fairtape.edge.status import RetransmitStatus
from fairtape.journal import NotificationReceiver
from fairtape.journal.notifications import IDLE_PERIOD
from fairtape.net.clock import Clock
from fairtape.net.transports import Interface
from fairtape.net.udp import UdpSocket, bind

BACKLOG: Final = 128
ACCEPTS_MAX: Final = 64  # per iteration
READ_MAX: Final = 4_096  # bytes per client and iteration: clients send little
KERNEL_BUFFER: Final = 256 << 10  # bytes of a client's send buffer in the kernel, which are not counted here
LINGER_PERIOD: Final[Duration] = 2 * SECOND  # in which a client may read its last bytes
PAUSE_PERIOD: Final[Duration] = SECOND // 10  # before accepting again after the system was out of resources


@dataclass(slots=True)
class _Client:
    stream: socket.socket
    number: int
    out: bytearray = field(default_factory=bytearray)
    closes_at: Instant = NEVER  # when a closing connection is dropped at the latest


class ReplayConnections:
    """The listening socket and the connections of a replay server, in a selector. No call waits for a client."""

    def __init__(self, at: Address, replay: ReplayServer, selector: selectors.BaseSelector) -> None:
        """Raises `UserError` where the address cannot be used."""
        self.refused = 0  # connections refused because the system was out of resources
        self._replay = replay
        self._selector = selector
        self._clients: dict[int, _Client] = {}
        self._next = 1
        self._listens_again_at: Instant = NEVER  # NEVER: it listens
        host, port = at
        try:
            self._listener = socket.create_server((host, port), backlog=BACKLOG)
        except OSError as error:
            raise UserError(
                f"replays is {host}:{port}, where nothing can listen ({error.strerror}); choose another address"
            ) from None
        self._listener.settimeout(0)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def waiting_bytes(self) -> int:
        """Bytes in this process that clients have not read."""
        return sum(len(client.out) for client in self._clients.values())

    @property
    def address(self) -> Address:
        host, port = self._listener.getsockname()
        return host, port

    def carry_out(self, effect: EdgeEffect, now: Instant) -> None:
        """Write to a client, or close its connection."""
        match effect:
            case WriteConnection(connection, octets) if connection in self._clients:
                client = self._clients[connection]
                client.out += octets
                self._flush(client, now)
            case CloseConnection(connection, _) if connection in self._clients:
                client = self._clients[connection]
                client.closes_at = now + LINGER_PERIOD
                self._flush(client, now)

    def wake(self, now: Instant) -> None:
        """Drop closing connections that are overdue, and accept again after a pause."""
        if self._listens_again_at <= now:
            self._listens_again_at = NEVER
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for client in [each for each in self._clients.values() if each.closes_at <= now]:
            self._drop(client)

    def close(self) -> None:
        """Close all connections."""
        for client in list(self._clients.values()):
            self._drop(client)
        if self._listens_again_at == NEVER:
            self._selector.unregister(self._listener)
        self._listener.close()

    def _accept(self, _events: int, now: Instant) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                stream, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # the client stays in the backlog: polling again at once would only spin
                self.refused += 1
                self._listens_again_at = now + PAUSE_PERIOD
                self._selector.unregister(self._listener)
                return
            stream.settimeout(0)
            with suppress(OSError):
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)
            client = _Client(stream, self._next)
            self._next += 1
            self._clients[client.number] = client
            self._selector.register(stream, selectors.EVENT_READ, self._handler_of(client))
            self._replay.connected(client.number, now)

    def _handler_of(self, client: _Client) -> Callable[[int, Instant], None]:
        def handle(events: int, now: Instant) -> None:
            if events & selectors.EVENT_READ:
                self._read(client, now)
            if events & selectors.EVENT_WRITE and client.number in self._clients:
                self._flush(client, now)

        return handle

    def _read(self, client: _Client, now: Instant) -> None:
        try:
            octets = client.stream.recv(READ_MAX)
        except BlockingIOError:
            return
        except OSError:
            octets = b""
        if not octets:
            self._drop(client)
        elif client.closes_at == NEVER:
            self._replay.receive(client.number, octets, now)

    def _flush(self, client: _Client, now: Instant) -> None:
        """Write what the network takes now; the rest when the socket is writable."""
        if client.out:
            try:
                sent = client.stream.send(client.out)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._drop(client)
                return
            del client.out[:sent]
            self._replay.flushed(client.number, sent, now)
        if not client.out and client.closes_at < NEVER:
            self._drop(client)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.out else 0)
        key = self._selector.get_key(client.stream)
        if key.events != wanted:
            self._selector.modify(client.stream, wanted, key.data)

    def _drop(self, client: _Client) -> None:
        del self._clients[client.number]
        self._selector.unregister(client.stream)
        client.stream.close()
        self._replay.disconnected(client.number)


REQUESTS_MAX: Final = 512  # datagrams read per iteration
SNAPSHOT_PERIOD: Final[Duration] = 60 * SECOND  # between two snapshots of the archive
POLL_PERIOD: Final[Duration] = 5 * MILLISECOND  # between two reads of a journal without notifications
CUSTOMERS_BYTES_MAX: Final = 16 << 20


class RetransmitServer:
    """Serves what one site released, over UDP and TCP."""

    def __init__(
        self,
        settings: EdgeSettings,
        place: PublisherPlace,
        archive: ReplayArchive,
        clock: Clock,
        *,
        interface: str,
        replay_options: ReplayOptions | None = None,
    ) -> None:
        """Raises `UserError` where a socket cannot be opened."""
        self.refusals = 0  # of guaranteed customers
        self.snapshot_failed = False  # the last snapshot could not be written
        self._clock = clock
        self._archive = archive
        self._feed = place.feed
        self._retransmitter = Retransmitter(archive, feed=place.feed)
        for host in settings.guaranteed:
            self._retransmitter.accounts.register(host, Grade.GUARANTEED)
        self._replay = ReplayServer(archive, authenticate=authentication(settings.customers), options=replay_options)
        self._selector = selectors.DefaultSelector()
        own = bind(*place.requests)
        try:
            Interface.named(interface).configure_sender(own, ttl=settings.ttl)
            self._requests = UdpSocket(own)
            self._connections = ReplayConnections(place.replays, self._replay, self._selector)
        except BaseException:
            own.close()
            raise
        self._selector.register(self._requests.fd, selectors.EVENT_READ, self._receive)
        self._notifications = NotificationReceiver(archive.directory)
        self._selector.register(self._notifications, selectors.EVENT_READ, self._notified)
        self._read_at: Instant = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="snapshot")
        self._writing: Future[None] | None = None
        self._snapshot_at = clock.now() + SNAPSHOT_PERIOD

    @property
    def addresses(self) -> tuple[Address, Address]:
        """The addresses for requests and for replays."""
        return self._requests.address, self._connections.address

    def run(self, until: Callable[[], bool]) -> None:
        """Serve until the condition holds, which is checked in every iteration."""
        while not until():
            self.run_once()

    def run_once(self) -> None:
        """Wait for at most IDLE_PERIOD, and serve."""
        events = self._selector.select(self._wait_period() / SECOND)
        now = self._clock.now()
        for key, mask in events:
            key.data(mask, now)
        if now >= self._read_at:
            self._read_journal(now)
        for machine in (self._retransmitter, self._replay):
            machine.wake(now)
            for effect in machine.drain():
                match effect:
                    case SendMulticast(to, datagrams):
                        self._requests.send(datagrams, (to.address, to.port))
                    case SendUnicast(address, datagrams):
                        self._requests.send(datagrams, address)
                    case RepairRefused():
                        self.refusals += 1
                    case _:
                        self._connections.carry_out(effect, now)
        self._connections.wake(now)

    def status(self) -> RetransmitStatus:
        return RetransmitStatus(
            feed=self._feed,
            reason=self._archive.trouble,
            plan=self._archive.plan,
            sequence=max(self._archive.sequence - 1, 0),
            restarts=self._archive.restarts,
            forgets=self.snapshot_failed,
            connections=len(self._connections),
            waiting_bytes=self._connections.waiting_bytes,
            connections_refused=self._connections.refused,
            guaranteed_refused=self.refusals,
            requests=replace(self._retransmitter.counts),
            replays=replace(self._replay.counts),
            unsent=self._requests.traffic.dropped,
        )

    def close(self) -> None:
        """Write a last snapshot, and close all sockets and files."""
        self._connections.close()
        self._selector.close()
        self._requests.close()
        self._notifications.close()
        if self._writing is not None:
            wait([self._writing])
        self._save_snapshot()
        self._thread.shutdown()
        self._archive.close()

    def _wait_period(self) -> Duration:
        now = self._clock.now()
        due_at = self._read_at
        for machine in (self._retransmitter, self._replay):
            wanted_at = machine.deadline()
            if wanted_at is not None:
                due_at = min(due_at, wanted_at)
        return max(min(due_at - now, IDLE_PERIOD), 0)

    def _notified(self, _events: int, now: Instant) -> None:
        self._notifications.receive()
        self._read_at = now

    def _read_journal(self, now: Instant) -> None:
        grew = self._archive.update_index(through=self._notifications.announced_after(self._archive.sequence))
        if self._archive.has_more:
            self._read_at = now
        else:
            seen = max(self._archive.sequence - 1, 0)
            self._read_at = now + self._notifications.wait_period(seen, poll_period=POLL_PERIOD)
        if now >= self._snapshot_at:
            self._snapshot_at = now + SNAPSHOT_PERIOD
            self._save_snapshot()
        if grew:
            for version, plan in self._archive.plans.items():
                if self._feed in plan.feeds and not self._retransmitter.follows(version):
                    self._retransmitter.follow(plan)
            self._replay.released(now)

    def _save_snapshot(self) -> None:
        """In a thread, so that customers do not wait. If it cannot be written, the next start takes longer."""
        if self._writing is not None:
            if not self._writing.done():
                return
            self.snapshot_failed = self._writing.exception() is not None
        write = self._archive.snapshot_writer()
        self._writing = None if write is None else self._thread.submit(write)

    def _receive(self, _events: int, now: Instant) -> None:
        origins: list[Address] = []
        for datagram, origin in zip(self._requests.receive(REQUESTS_MAX, origins), origins, strict=True):
            self._retransmitter.receive(datagram, now, origin=origin)


def authentication(customers: Path | None) -> PasswordCheck:
    """Check logins against the names and passwords in a file; accept any login without a file."""
    if customers is None:
        return lambda _name, _password: True
    try:
        if customers.stat().st_size > CUSTOMERS_BYTES_MAX:
            raise UserError(f"{customers} has more than {CUSTOMERS_BYTES_MAX} bytes; name a file of passwords")
        passwords = json.loads(customers.read_text())
        known = {str(name): str(password).encode() for name, password in passwords.items()}
    except OSError as error:
        raise UserError(
            f"{customers} cannot be read ({error.strerror}); write it, or take customers_file out"
        ) from None
    except (ValueError, AttributeError):
        raise UserError(f'{customers} has no passwords; expected JSON such as {{"alice": "secret"}}') from None

    def authenticate(name: str, password: str) -> bool:
        expected = known.get(name)
        given = hmac.compare_digest(expected or b"", password.encode())
        return given and expected is not None

    return authenticate
