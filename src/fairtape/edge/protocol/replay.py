"""Replays over SoupBinTCP: a login with a number starts a replay from that number on.

A login names a session and a number. The client gets everything from there on, then what is released, until the session
ends. The session may also be `sss@HHMMSS`: the current session of stripe sss (in base 36, as in session names), from
that time of day on, UTC; the answer has its name and the number. A client that wants a range sends its last number in
the unsequenced message E, as eight bytes, big-endian.

The bytes in flight to a client are limited: the driver reports what the network took (`flushed`). A client that does
not read for too long is disconnected, and so is one that does not log in.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from fairtape.core.effects import CloseConnection, WriteConnection
from fairtape.core.instants import MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.core.token_bucket import TokenBucket
from fairtape.edge.protocol.archive import MessageArchive
from fairtape.edge.protocol.effects import EdgeEffect
from fairtape.edge.status import ReplayCounts
from fairtape.formats import soupbintcp as soup
from fairtape.formats.framing import frame

FROM_CLIENT_MAX: Final = 256  # bytes of a client's packet; the longest valid one has 51
_RANGE: Final = struct.Struct(">cQ")
_UNKNOWN_SESSION: Final = "S"
_UNAUTHORISED: Final = "A"

PasswordCheck: TypeAlias = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Delays and limits."""

    connections_max: int = 1_024
    customer_connections_max: int = 4
    login_delay: Duration = 5 * SECOND  # from the connection to the login
    client_timeout: Duration = 15 * SECOND  # without a packet, where the login names no timeout
    heartbeat_period: Duration = SECOND
    buffer_max: int = 256 << 10  # bytes in flight to one client
    stall_period: Duration = 10 * SECOND  # for which a client may leave its buffer full
    chunk_messages_max: int = 256  # per client and wake, for fairness
    customer_bits_per_s: int = 100_000_000
    burst_period: Duration = 100 * MILLISECOND
    default_stripe: int | None = None  # of a login without a session


class _Customer:
    """The connections of one user name, which share a rate limit."""

    def __init__(self, options: ReplayOptions) -> None:
        self.connections = 0
        self.pacer = TokenBucket(options.customer_bits_per_s, options.burst_period)


class _ReplayConnection:
    def __init__(self, now: Instant) -> None:
        self.stream = soup.SoupStream(allowed=soup.FROM_CLIENT, payload_max=FROM_CLIENT_MAX)
        self.user: str | None = None
        self.customer: _Customer | None = None
        self.session = ""
        self.number = 0  # of the next message
        self.last: int | None = None  # the end of the range, if any
        self.has_more = False  # the archive may have more for it
        self.unflushed = 0
        self.opened_at = now
        self.heard_at = now
        self.spoke_at = now
        self.stalled_at: Instant = NEVER
        self.timeout: Duration = 0


class ReplayServer:
    """All connections of one server. Connections are numbered by the driver."""

    def __init__(
        self, archive: MessageArchive, *, authenticate: PasswordCheck, options: ReplayOptions | None = None
    ) -> None:
        self.counts = ReplayCounts()
        self._options = options or ReplayOptions()
        self._archive = archive
        self._authenticate = authenticate
        self._connections: dict[int, _ReplayConnection] = {}
        self._customers: dict[str, _Customer] = {}  # of open connections
        self._due_at: Instant = NEVER
        self._effects: list[EdgeEffect] = []

    def connected(self, connection: int, now: Instant) -> None:
        """A client has connected."""
        self.counts.connections += 1
        if len(self._connections) >= self._options.connections_max:
            self.counts.turned_away += 1
            self._effects.append(CloseConnection(connection, "too many connections"))
            return
        self._connections[connection] = _ReplayConnection(now)
        self._due_at = min(self._due_at, now + self._options.login_delay)

    def disconnected(self, connection: int) -> None:
        """The client has disconnected, or the driver has closed the connection."""
        known = self._connections.pop(connection, None)
        if known is not None and known.customer is not None and known.user is not None:
            known.customer.connections -= 1
            if not known.customer.connections:
                del self._customers[known.user]

    def flushed(self, connection: int, size: int, now: Instant) -> None:
        """The network took `size` bytes; a client whose buffer is still full stalls from now on."""
        known = self._connections.get(connection)
        if known is not None and size:
            known.unflushed = max(known.unflushed - size, 0)
            known.stalled_at = now if known.unflushed >= self._options.buffer_max else NEVER
            if known.has_more:
                self._due_at = now

    def receive(self, connection: int, octets: bytes, now: Instant) -> None:
        """Take bytes of a client. Never raises, whatever the bytes."""
        known = self._connections.get(connection)
        if known is None:
            return
        known.heard_at = now
        try:
            packets = known.stream.feed(octets)
        except soup.BadSoup as refusal:
            self.counts.malformed += 1
            self._close(connection, str(refusal))
            return
        for packet in packets:
            if connection not in self._connections:
                return
            self._take(connection, known, packet, now)

    def released(self, now: Instant) -> None:
        """The archive may have grown."""
        for known in self._connections.values():
            known.has_more = known.customer is not None
        if self._connections:
            self._due_at = now

    def wake(self, now: Instant) -> None:
        """Write what fits into the buffers, send heartbeats, and enforce timeouts."""
        if now < self._due_at:
            return
        for connection, known in list(self._connections.items()):
            if known.customer is None:
                if now >= known.opened_at + self._options.login_delay:
                    self.counts.half_open += 1
                    self._close(connection, "no login in time")
                continue
            self._check_timeouts(connection, known, now)
            if connection in self._connections and known.has_more:
                self._feed(connection, known, known.customer, now)
        self._due_at = min((self._next(known) for known in self._connections.values()), default=NEVER)

    def deadline(self) -> Instant | None:
        """The earliest due time of any connection."""
        return None if self._due_at == NEVER else self._due_at

    def drain(self) -> list[EdgeEffect]:
        effects, self._effects = self._effects, []
        return effects

    def _take(self, connection: int, known: _ReplayConnection, packet: soup.Packet, now: Instant) -> None:
        match packet:
            case soup.Debug() | soup.ClientHeartbeat():
                pass
            case soup.LoginRequest() if known.customer is None:
                self._login(connection, known, packet, now)
            case soup.LogoutRequest():
                self._close(connection, "the client logged out")
            case soup.UnsequencedData(message) if known.customer is not None and _is_range(message):
                known.last = _RANGE.unpack(message)[1]
                known.has_more, self._due_at = True, now
            case _:
                self.counts.breaches += 1
                self._close(connection, f"packet {packet.LETTER} is not allowed now")

    def _login(self, connection: int, known: _ReplayConnection, login: soup.LoginRequest, now: Instant) -> None:
        options = self._options
        if not self._authenticate(login.username, login.password):
            self._reject(connection, _UNAUTHORISED)
            return
        begin = self._start_of(login)
        if begin is None:
            self._reject(connection, _UNKNOWN_SESSION)
            return
        customer = self._customers.setdefault(login.username, _Customer(options))
        if customer.connections >= options.customer_connections_max:
            self.counts.turned_away += 1
            self._close(connection, "too many connections of this customer")
            return
        customer.connections += 1
        known.customer, known.user = customer, login.username
        known.session, known.number = begin
        timeout_ms = login.timeout_ms or 0
        known.timeout = timeout_ms * MILLISECOND or options.client_timeout
        known.has_more = True
        self._write(connection, known, soup.encode(soup.LoginAccepted(known.session, known.number)), now)
        self._due_at = now

    def _start_of(self, login: soup.LoginRequest) -> tuple[str, int] | None:
        """The session and the first number of a login; None where they are unknown."""
        name, number = login.session, login.number
        since = None
        if name[3:4] == "@":
            since, name = _time_of_day(name[4:]), self._archive.current(_in_base_36(name[:3])) or ""
            if since is None:
                return None
        elif not name and self._options.default_stripe is not None:
            name = self._archive.current(self._options.default_stripe) or ""
        extent = self._archive.extent(name)
        if extent is None or number > extent.following:
            return None
        if since is not None:
            found = self._archive.number_since(name, since)
            return None if found is None else (name, found)
        return name, number or extent.following

    def _reject(self, connection: int, reason: str) -> None:
        self.counts.rejected += 1
        self._effects.append(WriteConnection(connection, soup.encode(soup.LoginRejected(reason))))
        self._close(connection, "the login was rejected")

    def _check_timeouts(self, connection: int, known: _ReplayConnection, now: Instant) -> None:
        """Close connections of clients that are silent or do not read; send heartbeats to the others."""
        if now >= known.heard_at + known.timeout:
            self.counts.silent += 1
            self._close(connection, "the client was silent for too long")
        elif now >= known.stalled_at + self._options.stall_period:
            self.counts.stalled += 1
            self._close(connection, "the client does not read")
        elif now >= known.spoke_at + self._options.heartbeat_period:
            known.spoke_at = now
            if known.unflushed < self._options.buffer_max:
                self._write(connection, known, soup.encode(soup.ServerHeartbeat()), now)

    def _feed(self, connection: int, known: _ReplayConnection, customer: _Customer, now: Instant) -> None:
        """Write the next chunk; the rest follows in later wakes."""
        options = self._options
        if known.unflushed >= options.buffer_max or customer.pacer.ready_at > now:
            return
        wanted = options.chunk_messages_max
        if known.last is not None:
            wanted = min(wanted, known.last + 1 - known.number)
        messages = self._archive.messages(known.session, known.number, wanted) if wanted > 0 else ()
        if messages:
            octets = frame([b"S" + message for message in messages])
            customer.pacer.charge(8 * len(octets), now)
            known.number += len(messages)
            self.counts.messages += len(messages)
            self._write(connection, known, octets, now)
        extent = self._archive.extent(known.session)
        following = known.number if extent is None else extent.following
        if wanted <= 0 or (extent is not None and extent.ended and known.number >= following):
            self._write(connection, known, soup.encode(soup.EndOfSession()), now)
            self._close(connection, "everything was sent")
        elif not messages:
            known.has_more = False
            if known.number < following:
                self.counts.gone += 1
                self._close(connection, f"message {known.number} is no longer stored")

    def _write(self, connection: int, known: _ReplayConnection, octets: bytes, now: Instant) -> None:
        known.spoke_at = now
        known.unflushed += len(octets)
        if known.unflushed >= self._options.buffer_max:
            known.stalled_at = now
        self._effects.append(WriteConnection(connection, octets))

    def _close(self, connection: int, reason: str) -> None:
        self._effects.append(CloseConnection(connection, reason))
        self.disconnected(connection)

    def _next(self, known: _ReplayConnection) -> Instant:
        """When this connection is due."""
        options = self._options
        if known.customer is None:
            return known.opened_at + options.login_delay
        due_at = min(known.heard_at + known.timeout, known.spoke_at + options.heartbeat_period)
        if known.unflushed >= options.buffer_max:
            return min(due_at, known.stalled_at + options.stall_period)
        return min(due_at, known.customer.pacer.ready_at) if known.has_more else due_at


def _is_range(message: bytes) -> bool:
    return len(message) == _RANGE.size and message[:1] == b"E"


def _in_base_36(text: str) -> int:
    try:
        return int(text, 36)
    except ValueError:
        return -1


def _time_of_day(text: str) -> Duration | None:
    """HHMMSS as a time since midnight."""
    if len(text) != 6 or not (text.isascii() and text.isdigit()):
        return None
    hours, minutes, seconds = int(text[:2]), int(text[2:4]), int(text[4:])
    if hours > 23 or minutes > 59 or seconds > 59:
        return None
    return (hours * 3_600 + minutes * 60 + seconds) * SECOND
