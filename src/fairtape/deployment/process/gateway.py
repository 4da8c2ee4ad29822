"""A gateway of a deployment as a process: a source of the ring that follows a site, and the servers of its traders.

Its files lie in the deployment's folder, under `floor`: the logins, which all gateways share, and for each gateway what
it has taken and what its FIX sessions remember. The floor itself is nowhere: it is replayed from the journal.
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
from fairtape.deployment.follow.journal_follower import JournalFollower
from fairtape.deployment.follow.site_failover import SiteFailover
from fairtape.deployment.follow.site_selection import SiteSelection
from fairtape.deployment.process.children import Interrupts
from fairtape.deployment.process.ledger_projection import Projector
from fairtape.deployment.process.supervisor import GATEWAY
from fairtape.deployment.publish.source_thread import SourceThread
from fairtape.deployment.publish.target import publish_target
from fairtape.deployment.ring_plan import RingPlan
from fairtape.deployment.status_files import RunFolder, Status, StatusFile
from fairtape.exchange.order_codec import encode
from fairtape.exchange.orders import Pulse
from fairtape.exchange.transfers import Bookkeeper, TransferBatch
from fairtape.gateway.core.gateway import Gateway
from fairtape.gateway.servers.authenticator import Authenticator
from fairtape.gateway.servers.fix_orders import FixOrders
from fairtape.gateway.servers.fix_server import FixServer
from fairtape.gateway.servers.native_server import NativeServer
from fairtape.gateway.servers.order_gateway import OrderGateway
from fairtape.gateway.servers.ouch_server import SILENCE_MAX, OuchServer
from fairtape.gateway.servers.streams import StreamServer, server_context
from fairtape.gateway.session.acceptor import FixAcceptor
from fairtape.gateway.session.store import FixStore
from fairtape.gateway.storage.accounts import TradingAccounts
from fairtape.gateway.storage.fix_store import FixFile
from fairtape.gateway.storage.order_log import OrderLog
from fairtape.journal import FormationChanged, JournalEntry
from fairtape.storage.database import DatabaseUnavailable
from fairtape.storage.ledger_tables import LedgerStore
from fairtape.wire.frames import NodeId

FLOOR: Final = "floor"  # the folder of its files
LOOK_PERIOD: Final = 2 * MILLISECOND  # between two looks at the journal
ENTRIES_MAX: Final = 256  # that are applied before traders are heard again
FAREWELL_PERIOD: Final = 5 * SECOND  # for what was taken to have its place, at the end
PULSE_PERIOD: Final = 250 * MILLISECOND  # of silence, after which tentative trades are helped to commit
PATIENT_PERIOD: Final = 0.1  # seconds between two looks for a site to follow
REFRESH_PERIOD: Final = 2 * SECOND  # between two looks at the logins


def accounts_of(folder: Path, address: str | None = None) -> TradingAccounts:
    """The logins of a deployment."""
    if address is None:
        _floor_folder(folder)
    return TradingAccounts(address or folder / FLOOR / "accounts.sqlite")


def _floor_folder(folder: Path) -> Path:
    """What is in it is nobody else's: hashes of passwords, and what traders said."""
    floor = folder / FLOOR
    floor.mkdir(mode=0o700, exist_ok=True)
    return floor


class GatewayProcess:
    """One gateway, until it is stopped."""

    def __init__(
        self,
        deployment: Deployment,
        plan: RingPlan,
        me: NodeId,
        name: str,
        options: GatewayOptions,
        bulletin: StatusFile,
    ) -> None:
        self.addresses: dict[str, Address] = {}
        self._me = me
        self._bulletin = bulletin
        self._name = name
        self._heard_at = 0
        self._logins_old = False
        self._fix_end: asyncio.Future[None] | None = None
        self._options = options
        self._floor = deployment.floor
        self._audience = SiteSelection(deployment)
        self._closing = ExitStack()
        self._tls = None if options.tls_files is None else server_context(*options.tls_files)
        with ExitStack() as opening:
            self._accounts = accounts_of(deployment.folder, options.accounts)
            opening.callback(self._accounts.close)
            floor = _floor_folder(deployment.folder)
            self._postman = SourceThread(plan, me)
            opening.callback(self._postman.close)
            self._now = self._postman.clock.now
            self._projector = None if options.ledger is None else Projector(LedgerStore(options.ledger), bulletin.note)
            intake = OrderLog(floor / f"{name}.intake")
            self._sessions = FixFile(floor / f"{name}.fix.sqlite")
            opening.callback(self._sessions.close)
            self._doorman = Authenticator(self._accounts, now=self._now)
            opening.callback(self._doorman.close)
            self._following, self._tuner = self._tuned()
            gateway, self._books = self._newborn()
            self._house = OrderGateway(
                gateway, self._accounts, publish=self._postman.publish, now=self._now, intake=intake
            )
            opening.callback(self._house.close)
            self._closing = opening.pop_all()

    def _page(self, now: Instant) -> Status:
        gateway = self._house.gateway
        return {
            "name": f"{self._name}{GATEWAY}",
            "kind": "gateway",
            "node": self._me,
            "written_at_ns": now,
            "addresses": {kind: format_address(address) for kind, address in self.addresses.items()},
            "token": gateway.floor.token,
            "trades": gateway.floor.trade_count,
            "tentative": sum(1 for _ in gateway.floor.tentative()),
            "pending": len(gateway.pending),
            "ledger_stopped": self._projector is not None and self._projector.stopped,
            "ledger_waiting": None if self._projector is None else self._projector.waiting,
            "logins_old": self._logins_old,
        }

    async def run(self, started: Callable[[dict[str, Address]], None]) -> None:
        """Catch up, serve until SIGINT or SIGTERM, and go when what was taken has its place."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        with self._closing:
            if self._projector is not None:
                self._projector.start()
            try:
                await self._live(stop, started)
            finally:
                if self._projector is not None:
                    await self._projector.close(FAREWELL_PERIOD / SECOND)

    async def _live(self, stop: asyncio.Event, started: Callable[[dict[str, Address]], None]) -> None:
        while await self._follow():
            if stop.is_set():
                return
        self._house.recover()
        with ExitStack() as servers:
            await self._serve(servers)
            started(self.addresses)
            await self._until(stop.is_set)
        deadline = self._now() + FAREWELL_PERIOD
        await self._until(lambda: self._postman.idle or self._now() > deadline)

    async def _until(self, ended: Callable[[], bool]) -> None:
        """Follow the ring until then. Raises what ended FIX entry, for a gateway without it must not go on silently."""
        refresh_at = self._now() + REFRESH_PERIOD
        while not ended():
            if not await self._follow():
                self._pulse()
                await asyncio.sleep(LOOK_PERIOD / SECOND)
            if self._fix_end is not None and self._fix_end.done():
                self._fix_end.result()
            self._bulletin.keep_posted(self._now(), self._page)
            if self._now() >= refresh_at:
                refresh_at = self._now() + REFRESH_PERIOD
                await self._refresh()

    async def _refresh(self) -> None:
        try:
            await asyncio.to_thread(self._accounts.refresh)
        except DatabaseUnavailable as error:
            if not self._logins_old:
                self._bulletin.note(f"logins: {error}. Those of before stay in force")
            self._logins_old = True
        else:
            self._logins_old = False

    def _pulse(self) -> None:
        """Where nobody says anything no token is delivered, and trades would wait for their commit: say something."""
        floor = self._house.gateway.floor
        if self._now() - self._heard_at > PULSE_PERIOD and next(floor.tentative(), None) is not None:
            self._heard_at = self._now()
            self._postman.publish([encode(Pulse())])

    async def _serve(self, servers: ExitStack) -> None:
        options = self._options
        if options.entry is not None:
            native = StreamServer("entry", NativeServer(self._house, self._doorman).converse, tls=self._tls)
            self.addresses["entry"] = await native.start(*options.entry)
            servers.callback(native.close)
        if options.ouch is not None:
            desk = OuchServer(self._house, self._doorman)
            ouch = StreamServer("ouch", desk.converse, silence_max=SILENCE_MAX, tls=self._tls)
            self.addresses["ouch"] = await ouch.start(*options.ouch)
            servers.callback(ouch.close)
        if options.fix is not None:
            application = FixOrders(self._house)
            ours = options.comp_id
            desk_of_fix = FixAcceptor(ours, store_of=self._session_of, judge=self._doorman.judge)
            look = self._doorman.look
            fix = FixServer(desk_of_fix, application, sync=self._sync, now=self._now, look=look, tls=self._tls)
            self.addresses["fix"] = await fix.start(*options.fix)
            servers.callback(fix.close)
            self._fix_end = asyncio.ensure_future(fix.ended())
            known = self._sessions.clients(ours)
            application.serve(fix, {client: self._sessions.session(ours, client) for client in known})

    def _session_of(self, client: str) -> FixStore | None:
        known = self._accounts.knows(client)
        return self._sessions.session(self._options.comp_id, client) if known else None

    def _sync(self) -> None:
        """What was taken first, and the sessions' memory of it after that."""
        self._house.sync()
        self._sessions.sync()

    # The order.

    def _tuned(self) -> tuple[JournalFollower, SiteFailover]:
        site = self._audience.choose(None, self._now())
        if site is None:
            raise UserError("no site of the deployment runs on this machine; start it with: fairtape up")
        following = JournalFollower(self._audience.journals, site=site)
        return following, SiteFailover(self._audience, following, clock=self._postman.clock)

    def _newborn(self) -> tuple[Gateway, Bookkeeper]:
        floor = self._floor.new()
        limits, scope = self._options.limits, self._accounts.acts_for
        gateway = Gateway(self._me, floor, scope=scope, first_number=self._now(), limits=limits)
        return gateway, Bookkeeper(floor.ledger)

    async def _follow(self) -> bool:
        """Apply what the site has released, some of it; whether there was anything."""
        if self._tuner.is_due():
            for _ in self._tuner.look():
                pass
        found = self._tuner.patiently(lambda: list(islice(self._following.everything(), ENTRIES_MAX))) or []
        batches: list[TransferBatch] = []
        if found:
            self._heard_at = self._now()
        for each in found:
            batches += self._apply(self._house, each)
            if self._house.gateway.stale:
                await self._rebuild()
                return True
        await self._write(batches)
        await asyncio.sleep(0)  # traders and signals have their turn, however much there is to follow
        return bool(found)

    def _apply(self, to: OrderGateway | Gateway, each: JournalEntry | FormationChanged) -> Iterator[TransferBatch]:
        if isinstance(each, FormationChanged):
            to.turn(each.change)
            return
        ordered = each.ordered
        to.apply(ordered)
        gateway = to.gateway if isinstance(to, OrderGateway) else to
        if self._projector is not None:
            sequence = ordered.sequence + ordered.count
            yield self._books.keep(gateway.outputs, token=ordered.token, sequence=sequence)

    async def _rebuild(self) -> None:
        """After a Break that took applied tokens away: from the journal, which has been cut to what stands."""
        if self._projector is not None:
            await self._projector.restart()
        self._following.close()
        self._following, self._tuner = self._tuned()
        gateway, self._books = self._newborn()
        while found := list(islice(self._following.everything(), ENTRIES_MAX)):
            batches: list[TransferBatch] = []
            for each in found:
                batches += self._apply(gateway, each)
            await self._write(batches)
            await asyncio.sleep(0)
        self._house.rebuilt(gateway)

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
    """Run a gateway until SIGINT or SIGTERM. A patient one waits for a site that it can follow."""
    name, door = deployment.name_of(me), publish_target(deployment.folder)
    bulletin = StatusFile(RunFolder(deployment.folder), f"{name}{GATEWAY}")

    def tell(addresses: dict[str, Address]) -> None:
        bulletin.note(", ".join(f"{kind} at {format_address(address)}" for kind, address in addresses.items()))
        started(addresses)

    with Interrupts() as interrupts:
        audience = SiteSelection(deployment)
        while patient and not interrupts.count and audience.choose(None, time.time_ns()) is None:
            time.sleep(PATIENT_PERIOD)
        if not interrupts.count:
            process = GatewayProcess(deployment, door.plan_for(me), me, name, options, bulletin)
            asyncio.run(process.run(tell))
    bulletin.close({"name": f"{name}{GATEWAY}", "ended": True})
