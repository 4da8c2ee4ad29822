"""A feed that hears edge stripes: MoldUDP64 on two feeds, with repairs, from nothing but the file of a stripe plan.

Each stripe is in order, and trades carry their numbers of the whole order; between stripes there is no order on the
network, and none is made up. What ITCH has no room for is absent: of the times there are the venue's own and the
receiver's. A `Gap` counts numbers of its stripe, because whatever else they were nobody heard.

A broken trade is a `CanceledPrint`; with the trade that stands in its place, a `Corrected`. ITCH does not say which
number a cancel itself has in the order: it is told with that of the trade before it in the stripe.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from fairtape.client.errors import ClientError, as_client_error
from fairtape.client.selection import Selection
from fairtape.core.addresses import Address, parse_address
from fairtape.core.instants import Instant
from fairtape.edge.protocol import customer_records as heard
from fairtape.edge.protocol.customer import CustomerOptions
from fairtape.edge.protocol.session_marks import MARK, OPAQUE, BadMark, Opaque, decode_opaque
from fairtape.edge.service.session_readers import SessionReaders
from fairtape.edge.service.stripe_plans import plan_beside, read_plan
from fairtape.edge.service.subscriber import MulticastSubscriber, feeds_of
from fairtape.formats.itch.messages import BadItch
from fairtape.formats.itch.ticker import CanceledPrint, PrintedTrade
from fairtape.market import trades as market
from fairtape.market.stripes import StripePlan
from fairtape.market.trades import encode
from fairtape.net.clock import SharedClock
from fairtape.net.transports import LOOPBACK
from fairtape.tape import records
from fairtape.tape.batches import PLACE_DTYPE, TradeBatch
from fairtape.tape.decoding import corrected_of, decode_single
from fairtape.tape.feed import Beginning, Delivery, LastSales, Live, Start
from fairtape.tape.records import ABSENT, Break, Fresh, Gap, Notice, Reformation, Single, Stale
from fairtape.wire.blocks import Assembler
from fairtape.wire.frames import Malformed

STREAMS_MAX: Final = 1_024  # sessions and sources with an unfinished message; beyond it the oldest is forgotten
PARTS_MAX: Final = 64  # of one payload: it fits a block of the core, which is hardly more than a packet of the edge
EXAMPLE: Final = "mold://FT@/srv/plans/00001.toml?servers=10.0.0.7:17000,10.0.0.8:17000"
_FIELDS: Final = ("servers", "feeds", "interface")

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeTarget:
    """Whose stripes are heard, where, and who is asked for repairs."""

    tag: str
    path: Path  # of the plan that is in force; later ones are looked for beside it
    servers: tuple[Address, ...]
    feeds: tuple[str, ...]
    interface: str

    @classmethod
    def of(cls, target: str) -> "StripeTarget":
        """The target in an address such as `EXAMPLE`."""
        try:
            parts = urlsplit(target)
        except ValueError as error:
            raise ClientError(f"target is {target!r}: {error}; stripes are named such as {EXAMPLE!r}") from None
        query = parse_qs(parts.query)
        if (
            not parts.username
            or "\0" in unquote(parts.path)
            or parts.hostname
            or parts.path in ("", "/")
            or not set(query) <= set(_FIELDS)
        ):
            raise ClientError(f"target is {target!r}; stripes are named such as {EXAMPLE!r}")
        listed = {name: [word for word in query.get(name, [""])[-1].split(",") if word] for name in _FIELDS}
        return cls(
            tag=parts.username,
            path=Path(unquote(parts.path)),
            servers=tuple(map(_server, listed["servers"])),
            feeds=tuple(listed["feeds"]),
            interface=(listed["interface"] or [LOOPBACK])[0],
        )

    def plan(self, version: int) -> StripePlan | None:
        """The plan of this version, as soon as its file is there."""
        return plan_beside(self.path, version)


class StripeFeed:
    """The stripes of one deployment."""

    endless: Final = True

    def __init__(self, target: StripeTarget, selection: Selection, *, guaranteed: bool) -> None:
        if guaranteed and not target.servers:
            raise ClientError("grade is 'guaranteed', and target names nobody to ask; add ?servers=HOST:PORT to it")
        self.title = f"stripes of {target.tag}"
        self._plan = read_plan(target.path)
        self._wanted = selection.stripes or ()
        for number in self._wanted:
            if number not in self._plan.stripes:
                raise ClientError(f"stripes names {number}; plan {self._plan.version} has {[*self._plan.stripes]}")
        self._ear = MulticastSubscriber(
            target.tag,
            feeds=feeds_of(self._plan, target.feeds),
            servers=target.servers,
            interface=target.interface,
            clock=SharedClock(),
            options=CustomerOptions(patience=None) if guaranteed else CustomerOptions(),
            plans=target.plan,
            wanted=self._wanted,
        )
        self._interpreter = Interpreter(SessionReaders(target.plan))
        self._stopped = False

    def open(self, start: Start) -> None:
        """Join the groups."""
        if not isinstance(start, Live | Beginning):
            self._ear.close()
            raise ClientError(
                "start is a place in the whole order, and each stripe has numbers of its own; begin with 'beginning' or"
                " with what comes next, or hear a server: ws://HOST:PORT"
            )
        starts = dict.fromkeys(self._plan.stripes, 1) if isinstance(start, Beginning) else None
        self._ear.follow(self._plan, starts=starts)

    def run(self) -> Iterator[Delivery]:
        """What is heard from there on; goes on until it is stopped."""
        try:
            while not self._stopped:
                for record in self._ear.turn():
                    yield from self._interpreter.deliveries(record, time.time_ns())
        finally:
            self._ear.close()

    def stop(self) -> None:
        """Let `run` end."""
        self._stopped = True

    def last_sales(self) -> LastSales:
        """Nobody tells it here."""
        raise ClientError(f"{self.title} have no past to look at; ask a server for a snapshot: ws://HOST:PORT")


class _Other(NamedTuple):
    """A message that ITCH has no word for."""

    sequence: int
    source: int
    payload: bytes


class _Spot(NamedTuple):
    """Where a message was heard, and when."""

    stripe: int
    number: int
    at: Instant


class Interpreter:
    """What a customer of the edge hears, as deliveries."""

    def __init__(self, readers: SessionReaders) -> None:
        self._readers = readers
        self._formation = 0  # the last that was told: every stripe tells of it
        self._parts: dict[str, list[bytes]] = {}  # of each session: the payload that is not whole
        self._broken: dict[str, CanceledPrint] = {}  # of each session: the trade whose correction comes next
        self._numbers: dict[str, int] = {}  # of each session: the last number of the order that was told
        self._assemblers: dict[int, Assembler] = {}  # of each source

    def deliveries(self, record: heard.Record, at: Instant) -> Iterator[Delivery]:
        """All that stands in a record of this instant."""
        match record:
            case heard.Delivered():
                yield from self._delivered(record, at)
            case heard.Gap(stripe, session, first, count):
                self._parts.pop(session, None)
                broken = self._broken.pop(session, None)
                if broken is not None:  # what stands in its place is lost; that it is void is not
                    yield self._canceled(broken, session, _Spot(stripe, first, at))
                yield Gap(first, count, stripe)
            case heard.Reformation(stripe, sequence, formation) | heard.Break(stripe, sequence, formation):
                if formation > self._formation:
                    self._formation = formation
                    yield _turned(record, sequence, formation, stripe)
            case heard.Stale(stripe, since):
                yield Stale(since, stripe)
            case heard.Fresh(stripe):
                yield Fresh(stripe)

    def _delivered(self, record: heard.Delivered, at: Instant) -> Iterator[Delivery]:
        printed: list[tuple[int, PrintedTrade]] = []
        for number, message in enumerate(record.messages, record.first):
            told = self._told(record.session, message)
            if isinstance(told, PrintedTrade):
                _keep(self._numbers, record.session, told.number)
                if record.session not in self._broken:
                    printed.append((number, told))
                    continue
            if told is None:
                continue
            if printed:
                yield _lot(printed, record.stripe, at)
                printed = []
            single = self._single(told, record.session, _Spot(record.stripe, number, at))
            if single is not None:
                yield single
        if printed:
            yield _lot(printed, record.stripe, at)

    def _told(self, session: str, message: bytes) -> PrintedTrade | CanceledPrint | _Other | None:
        """A trade, the end of one, or another message; None where it is none of them."""
        if message[:1] == MARK:
            return None
        try:
            if message[:1] == OPAQUE:
                opaque = decode_opaque(message)
                payload = self._whole(session, opaque)
                return None if payload is None else _Other(opaque.sequence, opaque.source, payload)
            told = self._readers.of(session).read(message)
        except (BadItch, BadMark, Malformed) as error:
            raise ClientError(
                f"session {session} holds what cannot be read ({error}); is the plan the right one?"
            ) from None
        return told if isinstance(told, PrintedTrade | CanceledPrint) else None

    def _single(self, told: PrintedTrade | CanceledPrint | _Other, session: str, spot: _Spot) -> Single | None:
        """What is no trade of its own; None of a trade whose correction is still to come."""
        match told:
            case _Other(sequence, source, payload):
                return decode_single(payload, _place(spot, sequence, source))
            case CanceledPrint(corrected=True):
                _keep(self._broken, session, told)
                return None
            case CanceledPrint():
                return self._canceled(told, session, spot)
            case PrintedTrade(number, trade):
                wrong = self._broken.pop(session)
                return corrected_of(wrong.number, trade, wrong.canceled_at, _place(spot, number, 0))

    def _canceled(self, told: CanceledPrint, session: str, spot: _Spot) -> Single:
        symbol, venue = told.listing or ("", "")
        place = _place(spot, self._numbers.get(session, told.number), 0)
        return records.Canceled(number=told.number, symbol=symbol, venue=venue, canceled_at=told.canceled_at, **place)

    def _whole(self, session: str, opaque: Opaque) -> bytes | None:
        """The payload that ends with this part, if one does."""
        if opaque.parts > PARTS_MAX:
            raise BadMark(f"an opaque message has {opaque.parts} parts; it must have at most {PARTS_MAX}")
        parts = _kept(self._parts, session, list)
        if opaque.part != len(parts):  # its beginning was before this customer, or is lost
            parts.clear()
            if opaque.part:
                return None
        parts.append(opaque.payload)
        if opaque.part + 1 < opaque.parts:
            return None
        payload = b"".join(self._parts.pop(session))
        return _kept(self._assemblers, opaque.source, Assembler).add(payload) if opaque.fragment else payload


def _kept(table: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    """What stands under a key in a table of bounded size, made where nothing does."""
    if key not in table:
        _keep(table, key, make())
    return table[key]


def _keep(table: dict[Key, Value], key: Key, value: Value) -> None:
    """Let this stand under a key in a table of bounded size."""
    if key not in table and len(table) >= STREAMS_MAX:
        del table[next(iter(table))]
    table[key] = value


def _turned(record: heard.Record, sequence: int, formation: int, stripe: int) -> Notice:
    kind = Break if isinstance(record, heard.Break) else Reformation
    return kind(sequence, formation, None, stripe)


def _lot(printed: Sequence[tuple[int, PrintedTrade]], stripe: int, at: Instant) -> TradeBatch:
    places = np.zeros(len(printed), PLACE_DTYPE)
    places["sequence"] = [told.number for _, told in printed]
    places["stripe"] = stripe
    places["stripe_number"] = [number for number, _ in printed]
    for name in ("acknowledged_at", "commit_at", "released_at", "clock_bound"):
        places[name] = ABSENT
    places["received_at"] = at
    return TradeBatch(market.records(b"".join(encode(told.trade) for _, told in printed)), places)


def _place(spot: _Spot, sequence: int, source: int) -> dict[str, Any]:
    return {
        "sequence": sequence,
        "source": source,
        "incarnation": 0,
        "source_number": 0,
        "stripe": spot.stripe,
        "stripe_number": spot.number,
        "acknowledged_at": None,
        "commit_at": None,
        "released_at": None,
        "received_at": spot.at,
        "clock_bound": None,
        "late": False,
    }


def _server(text: str) -> Address:
    with as_client_error():
        return parse_address("servers", text)
