"""Small rings for tests: keys, blocks, acknowledgments, and single-machine time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from fairtape.core.effects import Channel, Effect, Multicast, Send
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.core.machine import Machine
from fairtape.core.timing import Timing
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.receiver import Receiver
from fairtape.nodes.source import Source
from fairtape.ring.membership.formation import Formation
from fairtape.simulation.clocks import SimulatedClock
from fairtape.simulation.world import EPOCH, World
from fairtape.wire.blocks import pack_messages
from fairtape.wire.frames import Ack, Control, Flag, NodeId, Range, decode_control, encode_block_header, is_block
from fairtape.wire.seals import Keys, Marker, Seal

SITES = (1, 2, 3)
SOURCE = 101
OTHER_SOURCE = 102
STARTS_AT = 1_000 * SECOND
TIMING = Timing(
    retry_period=100 * MILLISECOND,
    retries_max=3,
    token_period=50 * MILLISECOND,
    commit_delay=200 * MILLISECOND,
)
KEYS = Keys.from_secret(b"a small ring", range(1, 65), (SOURCE, OTHER_SOURCE))

E = TypeVar("E", bound=Effect)


def formation(
    members: tuple[NodeId, ...] = SITES,
    *,
    timing: Timing = TIMING,
    number: int = 7,
    starts_at: Instant = STARTS_AT,
    first_token: int = 1,
    resilience: int = 0,
    timed: bool = True,
) -> Formation:
    return Formation(
        number=number,
        members=members,
        timing=timing,
        starts_at=starts_at,
        first_token=first_token,
        resilience=resilience,
        timed=timed,
    )


def receiver(me: NodeId, layout: Formation | None = None, *, datagram_max: int = 1_400) -> Receiver:
    return Receiver(
        me=me, formation=layout or formation(), keys=KEYS, born_at=STARTS_AT - SECOND, datagram_max=datagram_max
    )


def source(
    *,
    node: NodeId = SOURCE,
    incarnation: int = 1,
    timing: Timing = TIMING,
    resilience: int = 0,
    datagram_max: int = 1_400,
    window_max: int | None = None,
    bytes_per_s_max: int | None = None,
) -> Source:
    return Source(
        me=node,
        keys=KEYS.for_source(node),
        timing=timing,
        resilience=resilience,
        incarnation=incarnation,
        datagram_max=datagram_max,
        window_max=window_max,
        bytes_per_s_max=bytes_per_s_max,
    )


def block(
    first: int,
    messages: Sequence[bytes] = (b"message",),
    *,
    node: NodeId = SOURCE,
    incarnation: int = 1,
    stripe: int = 0,
    body: bytes | None = None,
    fragment: bool = False,
) -> bytes:
    """A sealed block as its source would send it; `body` replaces the packed messages."""
    count = len(messages)
    header = encode_block_header(Flag.FRAGMENT if fragment else 0, stripe, node, incarnation, first, count)
    seal = Seal(KEYS.sources[node], stripe=stripe, source=node, incarnation=incarnation)
    return seal.close(header, first, pack_messages(messages) if body is None else body)


def named(first: int, count: int = 1, *, node: NodeId = SOURCE, incarnation: int = 1) -> Range:
    return Range(node, incarnation, first, count)


def ack(
    layout: Formation,
    token: int,
    sequence: int,
    ranges: Iterable[Range] = (),
    *,
    part: int = 0,
    parts: int = 1,
    stripe: int = 0,
    release_lag_us: int = 0,
    backlog_us: int = 0,
) -> Ack:
    """Ack(token) as its token site would send it, on time and with marks."""
    ranges = tuple(ranges)
    marks, position = [], sequence
    for one in ranges:
        marker = Marker(KEYS.sources[one.source], stripe=stripe)
        marks.append(
            marker.mark(layout.number, token, position, one, release_lag_us=release_lag_us, backlog_us=backlog_us)
        )
        position += one.count
    sent_at = layout.scheduled_at(token)
    sender = layout.holder(token)
    return Ack(
        stripe=stripe,
        formation=layout.number,
        sender=sender,
        token=token,
        sequence=sequence,
        sent_at=sent_at,
        clock_bound=0,
        part=part,
        parts=parts,
        ranges=ranges,
        marks=tuple(marks),
        release_lag_us=release_lag_us,
        backlog_us=backlog_us,
    )


class Signer:
    """Signs control messages as their senders, each with a new serial number."""

    def __init__(self, first_serial: int = 1) -> None:
        self._first_serial = first_serial
        self._authenticators: dict[NodeId, MessageAuthenticator] = {}

    def _authenticator(self, site: NodeId) -> MessageAuthenticator:
        if site not in self._authenticators:
            self._authenticators[site] = MessageAuthenticator(
                me=site, keys=KEYS, peers=KEYS.sites, first_serial=self._first_serial
            )
        return self._authenticators[site]

    def sign(self, message: Control) -> bytes:
        return self._authenticator(message.sender).for_sites(message)

    def sign_for_source(self, node: NodeId, message: Control) -> bytes:
        return self._authenticator(message.sender).for_source(node, message)

    def ack(self, layout: Formation, token: int, sequence: int, ranges: Iterable[Range] = ()) -> bytes:
        return self.sign(ack(layout, token, sequence, ranges))


def receive(machine: Machine, datagram: bytes, now: Instant) -> None:
    """One turn of a driver: a datagram, then everything that is due."""
    machine.receive(datagram, now)
    while (deadline := machine.deadline()) is not None and deadline <= now:
        machine.wake(now)


def run_until(machine: Machine, until: Instant) -> list[tuple[Instant, Effect]]:
    """Wake one machine at its deadlines; returns its effects and their instants."""
    seen: list[tuple[Instant, Effect]] = []
    while (deadline := machine.deadline()) is not None and deadline <= until:
        machine.wake(deadline)
        seen += [(deadline, effect) for effect in machine.drain()]
    return seen


def only(kind: type[E], effects: Iterable[Effect]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def controls(effects: Iterable[Effect]) -> list[Control]:
    """The control messages that were sent and multicast."""
    datagrams = [d for effect in effects if isinstance(effect, Send | Multicast) for d in effect.datagrams]
    return [decode_control(datagram) for datagram in datagrams if not is_block(datagram)]


class Ring:
    """A world of receivers and sources with constant delays and, by default, no loss."""

    def __init__(
        self,
        size: int,
        *,
        timing: Timing = TIMING,
        timed: bool = True,
        resilience: int = 0,
        sources: int = 1,
        link_faults: LinkFaults | None = None,
        clocks: Mapping[NodeId, SimulatedClock] | None = None,
        seed: int = 1,
    ) -> None:
        faults = link_faults or LinkFaults(delay=timing.retry_period // 4)
        members = tuple(range(1, size + 1))
        self.layout = formation(
            members, timing=timing, starts_at=EPOCH + timing.token_period, resilience=resilience, timed=timed
        )
        self.keys = Keys.from_secret(b"a ring", members, range(SOURCE, SOURCE + sources))
        self.world = World(chance=Random(seed), link_model=lambda _origin, _to: faults)
        self._clocks = clocks or {}
        self.receivers = {site: self._add_receiver(site) for site in members}
        self.sources = {node: self._add_source(node) for node in range(SOURCE, SOURCE + sources)}

    def _add_receiver(self, site: NodeId) -> Receiver:
        machine = Receiver(me=site, formation=self.layout, keys=self.keys, born_at=EPOCH)
        self.world.add(site, machine, channels=(Channel.DATA, Channel.CONTROL), clock=self._clocks.get(site))
        return machine

    def _add_source(self, node: NodeId) -> Source:
        machine = Source(
            me=node,
            keys=self.keys.for_source(node),
            timing=self.layout.timing,
            resilience=self.layout.resilience,
            incarnation=1,
        )
        self.world.add(node, machine, channels=(Channel.CONTROL,), clock=self._clocks.get(node))
        return machine

    def publish(self, node: NodeId, messages: Sequence[bytes], at: Instant) -> None:
        def act(now: Instant) -> None:
            taken = self.sources[node].publish(messages, now)
            assert taken == len(messages)

        self.world.at(at, lambda: self.world.touch(node, act))

    def run(self, period: Duration) -> None:
        self.world.run(EPOCH + period)


def apart(timing: Timing = TIMING) -> Timing:
    """The same timing with the separate retry counts of 2001."""
    return replace(timing, merged=False)
