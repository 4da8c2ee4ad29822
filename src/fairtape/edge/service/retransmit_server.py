"""The retransmit server R_x as a process: re-requests by datagram, replays by stream, out of a site's journal.

Nothing here is in a hurry: it waits for sockets in milliseconds, looks at the journal now and then, and a customer who
floods it or says nothing takes nothing from the others. The site knows nothing of it.
"""

import hmac
import json
import selectors
import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from fairtape.core.addresses import Address, format_address
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.edge.protocol.effects import (
    CloseConnection,
    EdgeEffect,
    Grade,
    Refusal,
    SendMulticast,
    SendUnicast,
    WriteConnection,
)
from fairtape.edge.protocol.replay import Authenticate, ReplayOptions, ReplayServer
from fairtape.edge.protocol.retransmitter import Retransmitter
from fairtape.edge.service.replay_archive import ReplayArchive
from fairtape.edge.service.settings import EdgeSettings, PublisherPlace
from fairtape.net.clock import Clock
from fairtape.net.transports import Interface
from fairtape.net.udp import UdpSocket, bind

# The streams of customers who replay: accepted, read and written without ever waiting for one of them.

BACKLOG: Final = 128
ACCEPTS_MAX: Final = 64  # in one turn
READ_MAX: Final = 4_096  # bytes of one client in one turn: a client has little to say
KERNEL_BUFFER: Final = 256 << 10  # bytes that the kernel is asked to keep for a client: what lies there is not counted
LINGER_PERIOD: Final[Duration] = 2 * SECOND  # for a client to take its last bytes
PAUSE_PERIOD: Final[Duration] = SECOND // 10  # before asking a system again that had no room for one more


@dataclass(slots=True)
class _Client:
    stream: socket.socket
    number: int
    out: bytearray = field(default_factory=bytearray)
    closes_at: Instant = NEVER  # it is shown the door: at this instant at the latest


class ReplayConnections:
    """The listening socket and the streams of one desk, in a selector."""

    def __init__(self, at: Address, desk: ReplayServer, selector: selectors.BaseSelector) -> None:
        """A `UserError` where nothing can listen there."""
        self.refused = 0  # the system had no room for more
        self._desk = desk
        self._selector = selector
        self._clients: dict[int, _Client] = {}
        self._next = 1
        self._listens_again_at: Instant = NEVER  # NEVER: it listens
        try:
            self._listener = socket.create_server(at, backlog=BACKLOG)
        except OSError as error:
            raise UserError(
                f"replays is {format_address(at)}, where nothing can listen ({error.strerror}); choose another address"
            ) from None
        self._listener.settimeout(0)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def waiting_bytes(self) -> int:
        """What waits in this process for clients to take it."""
        return sum(len(client.out) for client in self._clients.values())

    @property
    def address(self) -> Address:
        """Where customers connect."""
        host, port = self._listener.getsockname()
        return host, port

    def carry_out(self, effect: EdgeEffect, now: Instant) -> None:
        """Write to a client, or show it the door."""
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
        """Whoever does not even take its last bytes is let go; and the door may be opened again."""
        if self._listens_again_at <= now:
            self._listens_again_at = NEVER
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        for client in [each for each in self._clients.values() if each.closes_at <= now]:
            self._drop(client)

    def close(self) -> None:
        """Let go of everybody."""
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
            except OSError:  # whoever knocks stays at the door: to look at once again would only spin
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
            self._selector.register(stream, selectors.EVENT_READ, self._heeding(client))
            self._desk.connected(client.number, now)

    def _heeding(self, client: _Client) -> Callable[[int, Instant], None]:
        def heed(events: int, now: Instant) -> None:
            if events & selectors.EVENT_READ:
                self._read(client, now)
            if events & selectors.EVENT_WRITE and client.number in self._clients:
                self._flush(client, now)

        return heed

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
            self._desk.receive(client.number, octets, now)

    def _flush(self, client: _Client, now: Instant) -> None:
        """Write what the network takes, and wait for the rest."""
        if client.out:
            try:
                sent = client.stream.send(client.out)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._drop(client)
                return
            del client.out[:sent]
            self._desk.flushed(client.number, sent, now)
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
        self._desk.disconnected(client.number)


REQUESTS_MAX: Final = 512  # datagrams that are read in one turn
REMEMBER_PERIOD: Final[Duration] = 60 * SECOND  # between two times that the library is written down
LOOK_PERIOD: Final[Duration] = 5 * MILLISECOND  # between two looks at the journal
CUSTOMERS_BYTES_MAX: Final = 16 << 20


class RetransmitServer:
    """Serves what one site released."""

    def __init__(
        self,
        settings: EdgeSettings,
        place: PublisherPlace,
        library: ReplayArchive,
        clock: Clock,
        *,
        interface: str,
        replay_options: ReplayOptions | None = None,
    ) -> None:
        """A `UserError` where a socket cannot be had."""
        self.refusals = 0  # of guaranteed customers
        self.forgets = False  # its memory cannot be written
        self._clock = clock
        self._library = library
        self._feed = place.feed
        self._retransmitter = Retransmitter(library, feed=place.feed)
        for host in settings.guaranteed:
            self._retransmitter.accounts.register(host, Grade.GUARANTEED)
        self._desk = ReplayServer(library, authenticate=authentication(settings.customers), options=replay_options)
        self._selector = selectors.DefaultSelector()
        own = bind(*place.requests)
        try:
            Interface.named(interface).configure_sender(own, ttl=settings.ttl)
            self._requests = UdpSocket(own)
            self._connections = ReplayConnections(place.replays, self._desk, self._selector)
        except BaseException:
            own.close()
            raise
        self._selector.register(self._requests.fd, selectors.EVENT_READ, self._hear)
        self._look_at: Instant = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="memory")
        self._writing: Future[None] | None = None
        self._remember_at = clock.now() + REMEMBER_PERIOD

    @property
    def addresses(self) -> tuple[Address, Address]:
        """Where it answers re-requests, and where replays."""
        return self._requests.address, self._connections.address

    def run(self, until: Callable[[], bool]) -> None:
        """Serve until the condition holds, which is looked at in every turn."""
        while not until():
            self.turn()

    def turn(self) -> None:
        """Wait for a moment at most, and serve."""
        events = self._selector.select(self._wait_period() / SECOND)
        now = self._clock.now()
        for key, mask in events:
            key.data(mask, now)
        if now >= self._look_at:
            self._look(now)
        for machine in (self._retransmitter, self._desk):
            machine.wake(now)
            for effect in machine.drain():
                match effect:
                    case SendMulticast(to, datagrams):
                        self._requests.send(datagrams, (to.address, to.port))
                    case SendUnicast(address, datagrams):
                        self._requests.send(datagrams, address)
                    case Refusal():
                        self.refusals += 1
                    case _:
                        self._connections.carry_out(effect, now)
        self._connections.wake(now)

    def status(self) -> dict[str, Any]:
        """How it fares."""
        return {
            "feed": self._feed,
            "words": self._library.words,
            "plan": self._library.plan,
            "sequence": max(self._library.sequence - 1, 0),
            "restarts": self._library.restarts,
            "forgets": self.forgets,
            "connections": len(self._connections),
            "waiting_bytes": self._connections.waiting_bytes,
            "connections_refused": self._connections.refused,
            "guaranteed_refused": self.refusals,
            "requests": asdict(self._retransmitter.counts),
            "replays": asdict(self._desk.counts),
            "unsent": self._requests.traffic.dropped,
        }

    def close(self) -> None:
        """Give everything back."""
        self._connections.close()
        self._selector.close()
        self._requests.close()
        if self._writing is not None:
            wait([self._writing])
        self._remember()
        self._thread.shutdown()
        self._library.close()

    def _wait_period(self) -> Duration:
        now = self._clock.now()
        due_at = self._look_at
        for machine in (self._retransmitter, self._desk):
            wanted_at = machine.deadline()
            if wanted_at is not None:
                due_at = min(due_at, wanted_at)
        return max(min(due_at - now, LOOK_PERIOD), 0)

    def _look(self, now: Instant) -> None:
        grew = self._library.keep_up()
        self._look_at = now if grew else now + LOOK_PERIOD  # there may be more
        if now >= self._remember_at:
            self._remember_at = now + REMEMBER_PERIOD
            self._remember()
        if grew:
            for version, plan in self._library.plans.items():
                if self._feed in plan.feeds and not self._retransmitter.follows(version):
                    self._retransmitter.follow(plan)
            self._desk.released(now)

    def _remember(self) -> None:
        """In a thread, for customers wait for milliseconds. Where it cannot be written, the next start takes longer."""
        if self._writing is not None:
            if not self._writing.done():
                return
            self.forgets = self._writing.exception() is not None
        write = self._library.remembering()
        self._writing = None if write is None else self._thread.submit(write)

    def _hear(self, _events: int, now: Instant) -> None:
        origins: list[Address] = []
        for datagram, origin in zip(self._requests.receive(REQUESTS_MAX, origins), origins, strict=True):
            self._retransmitter.receive(datagram, now, origin=origin)


def authentication(customers: Path | None) -> Authenticate:
    """Who may log in: those in the file, with their passwords; whoever comes where there is none."""
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
        raise UserError(f'{customers} holds no passwords; expected JSON such as {{"alice": "secret"}}') from None

    def authenticate(name: str, password: str) -> bool:
        expected = known.get(name)
        given = hmac.compare_digest(expected or b"", password.encode())
        return given and expected is not None

    return authenticate
