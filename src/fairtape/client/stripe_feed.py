"""A feed of edge stripes: MoldUDP64 on two feeds, with retransmissions, from nothing but the file of a stripe plan.

Each stripe is in order, and trades carry their sequence numbers of the whole order; there is no order between stripes
on the network, and the feed invents none. What ITCH has no field for is absent: the only times are the venue's own and
the receiver's. A `Gap` counts numbers of its stripe, because the sequence numbers of lost messages are unknown.

A broken trade becomes a `Canceled`; together with the trade that replaces it, a `Corrected`. ITCH does not carry the
sequence number of a cancel itself: the feed gives it that of the trade before it in the stripe.
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
from fairtape.edge.protocol.customer import (
    CustomerOptions,
    Delivered,
    StripeBreak,
    StripeFresh,
    StripeGap,
    StripeRecord,
    StripeReformation,
    StripeStale,
)
from fairtape.edge.protocol.itch_codec import SessionReaders
from fairtape.edge.protocol.sessions import MARK, OPAQUE, BadMark, Opaque, decode_opaque
from fairtape.edge.service.stripe_plans import plan_beside, read_plan
from fairtape.edge.service.subscriber import MulticastSubscriber, chosen_feeds
from fairtape.formats.itch.messages import BadItch
from fairtape.formats.itch.ticker_messages import CanceledPrint, PrintedTrade
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
PARTS_MAX: Final = 64  # of one payload: it fits a block of the core, which is little more than a packet of the edge
EXAMPLE: Final = "mold://FT@/srv/plans/00001.toml?servers=10.0.0.7:17000,10.0.0.8:17000"
_FIELDS: Final = ("servers", "feeds", "interface")

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeTarget:
    """The stripes to receive, and the servers to ask for retransmissions."""

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
            raise ClientError("grade is 'guaranteed', and target names no server to ask; add ?servers=HOST:PORT to it")
        self.title = f"stripes of {target.tag}"
        self._plan = read_plan(target.path)
        self._wanted = selection.stripes or ()
        for number in self._wanted:
            if number not in self._plan.stripes:
                raise ClientError(f"stripes names {number}; plan {self._plan.version} has {[*self._plan.stripes]}")
        self._subscriber = MulticastSubscriber(
            target.tag,
            feeds=chosen_feeds(self._plan, target.feeds),
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
        if not isinstance(start, Live | Beginning):
            self._subscriber.close()
            raise ClientError(
                "start is a place in the whole order, and each stripe has numbers of its own; begin with 'beginning' or"
                " with what comes next, or connect to a server: ws://HOST:PORT"
            )
        starts = dict.fromkeys(self._plan.stripes, 1) if isinstance(start, Beginning) else None
        self._subscriber.follow(self._plan, starts=starts)

    def run(self) -> Iterator[Delivery]:
        """What is received from there on, until `stop`."""
        try:
            while not self._stopped:
                for record in self._subscriber.run_once():
                    yield from self._interpreter.deliveries(record, time.time_ns())
        finally:
            self._subscriber.close()

    def stop(self) -> None:
        self._stopped = True

    def last_sales(self) -> LastSales:
        """Not available: a stripe feed has no past."""
        raise ClientError(f"{self.title} have no past to look at; ask a server for a snapshot: ws://HOST:PORT")


class _OpaqueMessage(NamedTuple):
    """A message that ITCH has no type for."""

    sequence: int
    source: int
    payload: bytes


class _Origin(NamedTuple):
    """Where a message was received, and when."""

    stripe: int
    number: int
    at: Instant


class Interpreter:
    """Turns the records of an edge customer into deliveries."""

    def __init__(self, readers: SessionReaders) -> None:
        self._readers = readers
        self._formation = 0  # the last one that was delivered: every stripe reports it
        self._parts: dict[str, list[bytes]] = {}  # of each session: the payload that is not whole
        self._broken: dict[str, CanceledPrint] = {}  # of each session: the trade whose correction comes next
        self._numbers: dict[str, int] = {}  # of each session: the sequence number of its last trade
        self._assemblers: dict[int, Assembler] = {}  # of each source

    def deliveries(self, record: StripeRecord, at: Instant) -> Iterator[Delivery]:
        """What a record holds that was received at this instant."""
        match record:
            case Delivered():
                yield from self._delivered(record, at)
            case StripeGap(stripe, session, first, count):
                self._parts.pop(session, None)
                broken = self._broken.pop(session, None)
                if broken is not None:  # the trade that replaces it is lost, but it is void all the same
                    yield self._canceled(broken, session, _Origin(stripe, first, at))
                yield Gap(first, count, stripe)
            case StripeReformation(stripe, sequence, formation) | StripeBreak(stripe, sequence, formation):
                if formation > self._formation:
                    self._formation = formation
                    yield _formation_notice(record, sequence, formation, stripe)
            case StripeStale(stripe, since):
                yield Stale(since, stripe)
            case StripeFresh(stripe):
                yield Fresh(stripe)

    def _delivered(self, record: Delivered, at: Instant) -> Iterator[Delivery]:
        printed: list[tuple[int, PrintedTrade]] = []
        for number, encoded in enumerate(record.messages, record.first):
            message = self._decoded(record.session, encoded)
            if isinstance(message, PrintedTrade):
                _put_bounded(self._numbers, record.session, message.number)
                if record.session not in self._broken:
                    printed.append((number, message))
                    continue
            if message is None:
                continue
            if printed:
                yield _batch(printed, record.stripe, at)
                printed = []
            single = self._single(message, record.session, _Origin(record.stripe, number, at))
            if single is not None:
                yield single
        if printed:
            yield _batch(printed, record.stripe, at)

    def _decoded(self, session: str, encoded: bytes) -> PrintedTrade | CanceledPrint | _OpaqueMessage | None:
        """A trade, a cancel, or another message; None where it is none of them."""
        if encoded[:1] == MARK:
            return None
        try:
            if encoded[:1] == OPAQUE:
                opaque = decode_opaque(encoded)
                payload = self._whole(session, opaque)
                return None if payload is None else _OpaqueMessage(opaque.sequence, opaque.source, payload)
            message = self._readers.of(session).read(encoded)
        except (BadItch, BadMark, Malformed) as error:
            raise ClientError(
                f"session {session} holds what cannot be read ({error}); is the plan the right one?"
            ) from None
        return message if isinstance(message, PrintedTrade | CanceledPrint) else None

    def _single(
        self, message: PrintedTrade | CanceledPrint | _OpaqueMessage, session: str, origin: _Origin
    ) -> Single | None:
        """The record of a message that is no new trade; None of a broken trade whose correction is still to come."""
        match message:
            case _OpaqueMessage(sequence, source, payload):
                return decode_single(payload, _place(origin, sequence, source))
            case CanceledPrint(corrected=True):
                _put_bounded(self._broken, session, message)
                return None
            case CanceledPrint():
                return self._canceled(message, session, origin)
            case PrintedTrade(number, trade):
                wrong = self._broken.pop(session)
                return corrected_of(wrong.number, trade, wrong.canceled_at, _place(origin, number, 0))

    def _canceled(self, message: CanceledPrint, session: str, origin: _Origin) -> Single:
        symbol, venue = message.listing or ("", "")
        place = _place(origin, self._numbers.get(session, message.number), 0)
        return records.Canceled(
            number=message.number, symbol=symbol, venue=venue, canceled_at=message.canceled_at, **place
        )

    def _whole(self, session: str, opaque: Opaque) -> bytes | None:
        """The payload that ends with this part, if one does."""
        if opaque.parts > PARTS_MAX:
            raise BadMark(f"an opaque message has {opaque.parts} parts; it must have at most {PARTS_MAX}")
        parts = _get_or_make(self._parts, session, list)
        if opaque.part != len(parts):  # its first parts were sent before this customer joined, or are lost
            parts.clear()
            if opaque.part:
                return None
        parts.append(opaque.payload)
        if opaque.part + 1 < opaque.parts:
            return None
        payload = b"".join(self._parts.pop(session))
        return _get_or_make(self._assemblers, opaque.source, Assembler).add(payload) if opaque.fragment else payload


def _get_or_make(table: dict[Key, Value], key: Key, make: Callable[[], Value]) -> Value:
    """The value of a key in a table of bounded size, made where it is missing."""
    if key not in table:
        _put_bounded(table, key, make())
    return table[key]


def _put_bounded(table: dict[Key, Value], key: Key, value: Value) -> None:
    """Set a key in a table of bounded size; drops the oldest where it is full."""
    if key not in table and len(table) >= STREAMS_MAX:
        del table[next(iter(table))]
    table[key] = value


def _formation_notice(record: StripeRecord, sequence: int, formation: int, stripe: int) -> Notice:
    kind = Break if isinstance(record, StripeBreak) else Reformation
    return kind(sequence, formation, None, stripe)


def _batch(printed: Sequence[tuple[int, PrintedTrade]], stripe: int, at: Instant) -> TradeBatch:
    places = np.zeros(len(printed), PLACE_DTYPE)
    places["sequence"] = [trade.number for _, trade in printed]
    places["stripe"] = stripe
    places["stripe_number"] = [number for number, _ in printed]
    for name in ("acknowledged_at", "commit_at", "released_at", "clock_bound"):
        places[name] = ABSENT
    places["received_at"] = at
    return TradeBatch(market.records(b"".join(encode(trade.trade) for _, trade in printed)), places)


def _place(origin: _Origin, sequence: int, source: int) -> dict[str, Any]:
    return {
        "sequence": sequence,
        "source": source,
        "incarnation": 0,
        "source_number": 0,
        "stripe": origin.stripe,
        "stripe_number": origin.number,
        "acknowledged_at": None,
        "commit_at": None,
        "released_at": None,
        "received_at": origin.at,
        "clock_bound": None,
        "late": False,
    }


def _server(text: str) -> Address:
    with as_client_error():
        return parse_address("servers", text)
