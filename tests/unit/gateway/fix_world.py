"""Two FIX sessions and the connection between them, or one session and a client that sends raw messages."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from fairtape.core.instants import SECOND, Instant
from fairtape.formats.fix.codec import FixMessage, FixStream, encode
from fairtape.formats.fix.fields import format_instant
from fairtape.formats.fix.order_messages import (
    ExecType,
    ExecutionReport,
    FixSide,
    NewOrderSingle,
    OrderEntry,
    OrdStatus,
    OrdType,
    read,
)
from fairtape.gateway.session.effects import Disconnect, FixEffect, FixEvent, Received, Transmit
from fairtape.gateway.session.fix_session import FixOptions, FixRole, FixSession, FixState
from unit.gateway.memory_fix_store import MemoryFixStore

START: Instant = 1_700_000_000 * SECOND
SECRET = "open sesame"  # noqa: S105 - protects nothing
ANN_KNOWS = FixOptions(username="ann", password=SECRET, accepts=frozenset({b"8", b"9"}))


def authenticate(client: str, username: str, password: str) -> str | None:
    return None if (client, username, password) == ("ANN", "ann", SECRET) else "wrong user name or password"


def order(name: str) -> NewOrderSingle:
    return NewOrderSingle(
        cl_ord_id=name, symbol="MSFT", side=FixSide.BUY, transact_at=START, order_qty=1, ord_type=OrdType.MARKET
    )


def report(name: str) -> ExecutionReport:
    return ExecutionReport(
        order_id=name,
        cl_ord_id=name,
        exec_id=name,
        exec_type=ExecType.NEW,
        ord_status=OrdStatus.NEW,
        symbol="MSFT",
        side=FixSide.BUY,
        leaves_qty=1,
        cum_qty=0,
        avg_px=0,
    )


@dataclass
class End:
    """One session, its events for the application, and its bytes on the way to the other side."""

    session: FixSession
    store: MemoryFixStore
    events: list[FixEvent] = field(default_factory=list)
    outgoing: bytearray = field(default_factory=bytearray)
    disconnects: list[str] = field(default_factory=list)

    def collect(self) -> None:
        for effect in self.session.drain():
            match effect:
                case Transmit(octets):
                    self.outgoing += octets
                case Disconnect(reason):
                    self.disconnects.append(reason)
                case _:
                    self.events.append(effect)

    @property
    def names(self) -> list[str]:
        """The orders, or reports, that were received."""
        values = (read(event.message) for event in self.events if isinstance(event, Received))
        return [name_of(value) for value in values]


def name_of(value: OrderEntry) -> str:
    assert value.cl_ord_id is not None
    return value.cl_ord_id


class Pair:
    """Ann, the initiator, and the floor, the acceptor."""

    def __init__(self, *, ann: FixOptions = ANN_KNOWS, messages_max: int = 1_000) -> None:
        self.now = START
        store, other = MemoryFixStore(messages_max=messages_max), MemoryFixStore(messages_max=messages_max)
        self.ann = End(FixSession("ANN", "FLOOR", store, role=FixRole.INITIATOR, options=ann), store)
        self.floor = End(FixSession("FLOOR", "ANN", other, role=FixRole.ACCEPTOR, authenticate=authenticate), other)
        self.sides = (self.ann, self.floor)

    def connect(self) -> None:
        self.floor.session.connected(self.now)
        self.ann.session.connected(self.now)
        self.run()

    def run(self) -> None:
        """Exchange bytes until both sides are done."""
        self.collect()
        while self.ann.outgoing or self.floor.outgoing:
            self.carry(self.ann, self.floor, len(self.ann.outgoing))
            self.carry(self.floor, self.ann, len(self.floor.outgoing))

    def carry(self, sender: End, receiver: End, size: int) -> None:
        octets = bytes(sender.outgoing[:size])
        del sender.outgoing[:size]
        receiver.session.receive(octets, self.now)
        self.collect()

    def collect(self) -> None:
        for side in self.sides:
            side.collect()

    def cut(self) -> None:
        """End the connection; bytes on the way are lost."""
        for side in self.sides:
            side.session.disconnected(self.now)
            side.collect()
            side.outgoing.clear()

    def wait(self, period: int) -> None:
        """Advance the clock, and fire timers when they are due."""
        end = self.now + period
        while (due_at := min(side.session.deadline() for side in self.sides)) <= end:
            self.now = max(self.now, due_at)
            for side in self.sides:
                side.session.wake(self.now)
            self.run()
        self.now = end

    @property
    def logged_on(self) -> bool:
        return all(side.session.state is FixState.LOGGED_ON for side in self.sides)


class RawClient:
    """Sends messages to an acceptor field by field, and reads its answers."""

    def __init__(self, *, options: FixOptions | None = None) -> None:
        self.now = START
        self.store = MemoryFixStore()
        self.session = FixSession(
            "FLOOR",
            "ANN",
            self.store,
            role=FixRole.ACCEPTOR,
            authenticate=authenticate,
            options=options or FixOptions(),
        )
        self.session.connected(self.now)
        self.stream = FixStream()
        self.effects: list[FixEffect] = []

    def say(
        self, kind: bytes, number: int | None, *body: tuple[int, bytes], header: Iterable[tuple[int, bytes]] = ()
    ) -> list[FixMessage]:
        """Send one message. Returns the answers."""
        return self.send(self.octets(kind, number, *body, header=header))

    def octets(
        self, kind: bytes, number: int | None, *body: tuple[int, bytes], header: Iterable[tuple[int, bytes]] = ()
    ) -> bytes:
        head = {49: b"ANN", 56: b"FLOOR", 34: b"%d" % (number or 0), 52: format_instant(self.now)} | dict(header)
        if number is None:
            del head[34]
        return encode([(35, kind), *((tag, value) for tag, value in head.items() if value), *body])

    def send(self, octets: bytes) -> list[FixMessage]:
        self.session.receive(octets, self.now)
        return self.answers()

    def answers(self) -> list[FixMessage]:
        effects = self.session.drain()
        self.effects += effects
        return self.stream.feed(b"".join(effect.octets for effect in effects if isinstance(effect, Transmit)))

    def log_on(self, number: int = 1, *more: tuple[int, bytes]) -> list[FixMessage]:
        return self.say(b"A", number, (98, b"0"), (108, b"30"), (553, b"ann"), (554, SECRET.encode()), *more)

    @property
    def disconnects(self) -> list[str]:
        return [effect.reason for effect in self.effects if isinstance(effect, Disconnect)]

    @property
    def received(self) -> list[Received]:
        return [effect for effect in self.effects if isinstance(effect, Received)]

    @property
    def snapshot(self) -> tuple[FixState, int, int]:
        return self.session.state, self.store.next_in, self.store.next_out


def fields(message: FixMessage, *tags: int) -> tuple[bytes | None, ...]:
    return tuple(message.get(tag) for tag in tags)
