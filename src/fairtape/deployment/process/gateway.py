"""A gateway of a deployment as a process: a source of the ring that follows a site, and the servers for its traders.

Its files are in the deployment's folder, under `floor`: the logins, shared by all gateways, and for each gateway its
order log and its FIX sessions. The floor itself is not stored: it is replayed from the journal.
"""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Final

from fairtape.core.addresses import Address, format_address
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.deployment.config.description import Deployment, GatewayOptions
from fairtape.deployment.config.process_names import GATEWAY
from fairtape.deployment.follow.site_failover import SiteFailover
from fairtape.deployment.process.children import Interrupts
from fairtape.deployment.process.ledger_projection import Projector
from fairtape.deployment.publish.source_runtime import SourceConfig
from fairtape.deployment.publish.source_thread import SourceThread
from fairtape.deployment.publish.target import publish_target
from fairtape.deployment.status import EndedStatus, GatewayStatus
from fairtape.deployment.status_files import RunFolder, StatusFile
from fairtape.exchange.ledger import Bookkeeper, TransferBatch
from fairtape.exchange.orders import Pulse, encode
from fairtape.gateway.core.gateway_core import GatewayCore
from fairtape.gateway.servers.authenticator import LoginAuthenticator
from fairtape.gateway.servers.fix_orders import FixOrders
from fairtape.gateway.servers.fix_server import FixServer
from fairtape.gateway.servers.native_server import NativeServer
from fairtape.gateway.servers.order_gateway import OrderGateway
from fairtape.gateway.servers.ouch_server import SILENCE_MAX, OuchServer
from fairtape.gateway.servers.streams import StreamServer, server_context
from fairtape.gateway.session.acceptor import FixAcceptor
from fairtape.gateway.session.fix_session import FixStore
from fairtape.gateway.storage.accounts import TradingAccounts
from fairtape.gateway.storage.fix_store import FixFile
from fairtape.gateway.storage.order_log import OrderLog
from fairtape.journal import FormationChanged, JournalEntry, JournalFollower
from fairtape.storage.database import DatabaseUnavailable
from fairtape.storage.ledger_tables import LedgerStore
from fairtape.wire.frames import NodeId

FLOOR: Final = "floor"  # folder of its files
READ_PERIOD: Final = 2 * MILLISECOND  # between two reads of a journal without notifications
ENTRIES_MAX: Final = 256  # journal entries applied before the servers run again
SHUTDOWN_PERIOD: Final = 5 * SECOND  # at the end, for accepted requests to get into the sequence
PULSE_PERIOD: Final = 250 * MILLISECOND  # without a delivery, after which a pulse lets tentative trades commit
PATIENT_PERIOD: Final = 0.1  # seconds between two searches for a site to follow
REFRESH_PERIOD: Final = 2 * SECOND  # between two reads of the logins


def accounts_of(folder: Path, address: str | None = None) -> TradingAccounts:
    """The logins of a deployment."""
    if address is None:
        _floor_folder(folder)
    return TradingAccounts(address or folder / FLOOR / "accounts.sqlite")


def _floor_folder(folder: Path) -> Path:
    """The folder of the gateways' files. Only its owner may read it: it has password hashes and orders."""
    floor = folder / FLOOR
    floor.mkdir(mode=0o700, exist_ok=True)
    return floor


class GatewayProcess:
    """One gateway, until it is stopped."""

    def __init__(
        self,
        deployment: Deployment,
        source: SourceConfig,
        name: str,
        options: GatewayOptions,
        status_file: StatusFile,
    ) -> None:
        self.addresses: dict[str, Address] = {}
        self._me = source.me
        self._status_file = status_file
        self._name = name
        self._delivered_at = 0
        self._logins_old = False
        self._fix_end: asyncio.Future[None] | None = None
        self._options = options
        self._floor = deployment.floor
        self._closing = ExitStack()
        self._tls = None if options.tls_files is None else server_context(*options.tls_files)
        with ExitStack() as opening:
            self._accounts = accounts_of(deployment.folder, options.accounts)
            opening.callback(self._accounts.close)
            floor = _floor_folder(deployment.folder)
            self._source = SourceThread(source)
            opening.callback(self._source.close)
            self._now = self._source.clock.now
            self._projector = (
                None if options.ledger is None else Projector(LedgerStore(options.ledger), status_file.note)
            )
            # The file keeps its first name, so that a gateway finds the requests of an earlier version.
            order_log = OrderLog(floor / f"{name}.intake")
            self._sessions = FixFile(floor / f"{name}.fix.sqlite")
            opening.callback(self._sessions.close)
            self._authenticator = LoginAuthenticator(self._accounts, now=self._now)
            opening.callback(self._authenticator.close)
            self._failover = SiteFailover(deployment, clock=self._source.clock)
            self._follower = self._new_follower()
            core, self._bookkeeper = self._new_core()
            self._gateway = OrderGateway(
                core, self._accounts, publish=self._source.publish, now=self._now, order_log=order_log
            )
            opening.callback(self._gateway.close)
            self._closing = opening.pop_all()

    def _status(self, now: Instant) -> GatewayStatus:
        core = self._gateway.core
        return GatewayStatus(
            name=f"{self._name}{GATEWAY}",
            node=self._me,
            written_at=now,
            addresses={kind: format_address(address) for kind, address in self.addresses.items()},
            token=core.floor.token,
            trades=core.floor.trade_count,
            tentative=sum(1 for _ in core.floor.tentative()),
            pending=len(core.pending),
            ledger_stopped=self._projector is not None and self._projector.stopped,
            ledger_waiting=None if self._projector is None else self._projector.waiting,
            logins_old=self._logins_old,
        )

    async def run(self, started: Callable[[dict[str, Address]], None]) -> None:
        """Catch up, serve until SIGINT or SIGTERM, and exit when accepted requests are in the sequence."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        with self._closing:
            if self._projector is not None:
                self._projector.start()
            try:
                await self._serve_until(stop, started)
            finally:
                if self._projector is not None:
                    await self._projector.close(SHUTDOWN_PERIOD / SECOND)

    async def _serve_until(self, stop: asyncio.Event, started: Callable[[dict[str, Address]], None]) -> None:
        while await self._follow():
            if stop.is_set():
                return
        self._gateway.recover()
        with ExitStack() as servers:
            await self._start_servers(servers)
            started(self.addresses)
            await self._until(stop.is_set)
        deadline = self._now() + SHUTDOWN_PERIOD
        await self._until(lambda: self._source.idle or self._now() > deadline)

    async def _until(self, ended: Callable[[], bool]) -> None:
        """Follow the ring until then. Raises the failure that ended FIX entry: a gateway must not run on without it."""
        refresh_at = self._now() + REFRESH_PERIOD
        while not ended():
            if not await self._follow() or self._follower.has_all_announced:
                self._pulse()
                seen = self._follower.next_sequence - 1
                await self._follower.notifications.wait_in_loop(seen, poll_period=READ_PERIOD)
            if self._fix_end is not None and self._fix_end.done():
                self._fix_end.result()
            self._status_file.keep_posted(self._now(), self._status)
            if self._now() >= refresh_at:
                refresh_at = self._now() + REFRESH_PERIOD
                await self._refresh()

    async def _refresh(self) -> None:
        try:
            await asyncio.to_thread(self._accounts.refresh)
        except DatabaseUnavailable as error:
            if not self._logins_old:
                self._status_file.note(f"logins: {error}. The last known logins stay valid")
            self._logins_old = True
        else:
            self._logins_old = False

    def _pulse(self) -> None:
        """Publish a pulse if trades wait for their commit and nothing was delivered for a while."""
        floor = self._gateway.core.floor
        if self._now() - self._delivered_at > PULSE_PERIOD and next(floor.tentative(), None) is not None:
            self._delivered_at = self._now()
            self._source.publish([encode(Pulse())])

    async def _start_servers(self, servers: ExitStack) -> None:
        options = self._options
        if options.entry is not None:
            native = StreamServer("entry", NativeServer(self._gateway, self._authenticator).open_session, tls=self._tls)
            self.addresses["entry"] = await native.start(*options.entry)
            servers.callback(native.close)
        if options.ouch is not None:
            open_session = OuchServer(self._gateway, self._authenticator).open_session
            ouch = StreamServer("ouch", open_session, silence_max=SILENCE_MAX, tls=self._tls)
            self.addresses["ouch"] = await ouch.start(*options.ouch)
            servers.callback(ouch.close)
        if options.fix is not None:
            application = FixOrders(self._gateway)
            ours = options.comp_id
            authenticate, check_logon = self._authenticator.logon_refusal, self._authenticator.check_logon
            acceptor = FixAcceptor(ours, store_of=self._store_of, authenticate=authenticate)
            fix = FixServer(
                acceptor, application, sync=self._sync, now=self._now, check_logon=check_logon, tls=self._tls
            )
            self.addresses["fix"] = await fix.start(*options.fix)
            servers.callback(fix.close)
            self._fix_end = asyncio.ensure_future(fix.ended())
            known = self._sessions.clients(ours)
            application.serve(fix, {client: self._sessions.session(ours, client) for client in known})

    def _store_of(self, client: str) -> FixStore | None:
        known = self._accounts.knows(client)
        return self._sessions.session(self._options.comp_id, client) if known else None

    def _sync(self) -> None:
        """First the order log, then the FIX sessions that refer to it."""
        self._gateway.sync()
        self._sessions.sync()

    # The sequence.

    def _new_follower(self) -> JournalFollower:
        site = self._failover.choose()
        if site is None:
            raise UserError("no site of the deployment runs on this machine; start it with: fairtape up")
        return self._failover.follow(site)

    def _new_core(self) -> tuple[GatewayCore, Bookkeeper]:
        floor = self._floor.new()
        limits, scope = self._options.limits, self._accounts.acts_for
        core = GatewayCore(self._me, floor, scope=scope, first_number=self._now(), limits=limits)
        return core, Bookkeeper(floor.ledger)

    async def _follow(self) -> bool:
        """Apply some of what the site has released. Return whether there was anything."""
        for _ in self._failover.check():
            pass  # all sites have the same order, so traders need no notice of outages
        found = list(islice(self._follower.new_entries(), ENTRIES_MAX))
        batches: list[TransferBatch] = []
        if found:
            self._delivered_at = self._now()
        for each in found:
            batches += self._apply(self._gateway, each)
            if self._gateway.core.stale:
                await self._rebuild()
                return True
        await self._write(batches)
        await asyncio.sleep(0)  # lets servers and signal handlers run, however much there is to apply
        return bool(found)

    def _apply(self, to: OrderGateway | GatewayCore, each: JournalEntry | FormationChanged) -> Iterator[TransferBatch]:
        if isinstance(each, FormationChanged):
            to.on_formation(each.change)
            return
        ordered = each.ordered
        to.apply(ordered)
        core = to.core if isinstance(to, OrderGateway) else to
        if self._projector is not None:
            sequence = ordered.sequence + ordered.count
            yield self._bookkeeper.keep(core.outputs, token=ordered.token, sequence=sequence)

    async def _rebuild(self) -> None:
        """After a Break that revoked applied tokens: rebuild from the journal, which has been cut to what is valid."""
        if self._projector is not None:
            await self._projector.restart()
        self._follower.close()
        self._follower = self._new_follower()
        core, self._bookkeeper = self._new_core()
        while found := list(islice(self._follower.new_entries(), ENTRIES_MAX)):
            batches: list[TransferBatch] = []
            for each in found:
                batches += self._apply(core, each)
            await self._write(batches)
            await asyncio.sleep(0)
        self._gateway.replace_core(core)

    async def _write(self, batches: list[TransferBatch]) -> None:
        if self._projector is not None:
            await self._projector.add(batches)


def run_gateway(
    deployment: Deployment,
    me: NodeId,
    options: GatewayOptions,
    started: Callable[[dict[str, Address]], None],
    *,
    patient: bool = False,
) -> None:
    """Run a gateway until SIGINT or SIGTERM. With `patient`, wait first for a site that it can follow."""
    name, target = deployment.name_of(me), publish_target(deployment.folder)
    status_file = StatusFile(RunFolder(deployment.folder), f"{name}{GATEWAY}")

    def announce(addresses: dict[str, Address]) -> None:
        status_file.note(", ".join(f"{kind} at {format_address(address)}" for kind, address in addresses.items()))
        started(addresses)

    with Interrupts() as interrupts:
        failover = SiteFailover(deployment)
        while patient and not interrupts.count and failover.choose() is None:
            time.sleep(PATIENT_PERIOD)
        if not interrupts.count:
            process = GatewayProcess(deployment, target.source_config(me), name, options, status_file)
            asyncio.run(process.run(announce))
    status_file.close(EndedStatus(name=f"{name}{GATEWAY}"))
