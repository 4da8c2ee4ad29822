"""A server of one site's ticker: the parts put together, on a socket, until Ctrl-C or a fatal error."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Final

import uvicorn
import uvloop

from fairtape.core.errors import UserError
from fairtape.deployment.config.description import FILE, NodeKind, read_deployment
from fairtape.deployment.follow.site_failover import SiteFailover
from fairtape.net.driver import allow_files, tune_gc
from fairtape.web.api import Api
from fairtape.web.broadcast import Broadcaster, BroadcastLimits
from fairtape.web.history import HistoryArchive
from fairtape.web.live_ticker import LiveTicker
from fairtape.web.request_timeout import CONNECTIONS_SPARE, RequestTimeoutProtocol
from fairtape.web.server_loop import ServerLoop
from fairtape.web.websocket import WebSocketConnection

HOST: Final = "127.0.0.1"
BACKLOG: Final = 2_048  # connections that the kernel accepts before this program does
FILES_SPARE: Final = 256  # of the process, beside its connections
END_PERIOD_MAX: Final = 5  # seconds for customers to take what was released before the end


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSite:
    """The site whose ticker is served."""

    directory: Path  # of the journal
    title: str
    failover: SiteFailover | None = None  # reports outages of the site, where it belongs to a deployment

    @classmethod
    def of(cls, directory: Path, site: str | None) -> "ServedSite":
        """A site of the deployment in a folder, or a journal itself."""
        if not (directory / FILE).exists():
            if site is not None:
                raise UserError(f"SITE is {site!r}, and {str(directory)!r} holds no deployment; leave it out")
            return cls(directory=directory, title=f"journal {directory.name}")
        if site is None:
            raise UserError(f"{str(directory)!r} holds a deployment; name the site to serve, such as s1")
        deployment = read_deployment(directory)
        deployment.node(site, NodeKind.SITE, field="SITE")
        failover = SiteFailover(deployment, only=site)
        ((number, journal),) = failover.journals.items()
        if not journal.is_dir():
            raise UserError(f"SITE is {site!r}, which has no journal here; start it with: fairtape up {directory}")
        failover.watch(number)
        return cls(directory=journal, title=f"site {site}", failover=failover)


class TickerServer(uvicorn.Server):
    """A uvicorn server that publishes what was released before it ends."""

    def __init__(self, config: uvicorn.Config, server_loop: ServerLoop) -> None:
        super().__init__(config)
        self.server_loop = server_loop
        server_loop.connections = self.server_state.connections

    def leave(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Send what was released by now, then close the connections."""
        self.server_loop.end()
        await super().shutdown(sockets)
        for connection in list(self.server_loop.connections):  # their time to take it is over
            connection.transport.abort()


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens at this address; connections before the start of the server wait in its backlog."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        opened.close()
        why = getattr(error, "strerror", None) or error
        raise UserError(f"--host {host} --port {port} cannot be used ({why}); name another address or port") from None
    return opened


def make_server(
    target: ServedSite, limits: BroadcastLimits | None = None, *, report: Callable[[str], None] = lambda _: None
) -> TickerServer:
    """A server that is not started yet; `report` informs its operator. Reads the journal back, which takes a moment."""
    limits = limits or BroadcastLimits()
    needed = limits.customers_max + CONNECTIONS_SPARE + FILES_SPARE
    if (allowed := allow_files(needed)) < needed:
        report(
            f"{limits.customers_max:,} customers take {needed:,} open files, and {allowed:,} may be; raise ulimit -n"
        )
    server_loop = ServerLoop(Broadcaster(LiveTicker(target.directory), limits), target.failover, report=report)
    api = Api(server_loop, HistoryArchive(target.directory), target.title)
    config = uvicorn.Config(
        api.app(),
        http=RequestTimeoutProtocol,
        ws=WebSocketConnection,
        lifespan="on",
        loop="uvloop",
        backlog=BACKLOG,
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=END_PERIOD_MAX,
    )
    server = TickerServer(config, server_loop)
    api.fail = server.leave
    return server


@dataclass(slots=True)
class Running:
    """A server in a thread of this process."""

    server: TickerServer
    port: int
    ended: Event = field(default_factory=Event)


@contextmanager
def running(
    target: ServedSite,
    *,
    limits: BroadcastLimits | None = None,
    host: str = HOST,
    port: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[Running]:
    """A server in a thread, for as long as this lasts; 0 is any free port."""
    server, opened = make_server(target, limits, report=report), bound(host, port)
    found = Running(server, opened.getsockname()[1])

    def work() -> None:
        try:
            uvloop.run(server.serve(sockets=[opened]))
        finally:
            found.ended.set()

    thread = Thread(target=work, name="fairtape web", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.should_exit = True
        thread.join(2 * END_PERIOD_MAX)


def serve(server: TickerServer, opened: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM. Raises the fatal error, if there was one."""
    tune_gc()
    with suppress(KeyboardInterrupt):  # uvicorn has shut down in order, and raises the signal again
        uvloop.run(server.serve(sockets=[opened]))
    if server.server_loop.failure is not None:
        raise server.server_loop.failure
