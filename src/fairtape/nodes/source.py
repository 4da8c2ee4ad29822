"""The source (S_P): numbers, seals and sends messages until they are acknowledged, keeps them until settled."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from fairtape.core.effects import Channel, Effect, Multicast, Notice
from fairtape.core.instants import NEVER, Instant
from fairtape.core.queue_sizes import QueueSize
from fairtape.core.timing import Timing
from fairtape.ring.load import SiteLoad
from fairtape.ring.membership.formation import MEMBERS_MAX
from fairtape.ring.sender.retention import KEPT_BLOCKS_MAX
from fairtape.ring.sender.transmission import BURST_BLOCKS_MAX, FLIGHT_BLOCKS_MAX, QUEUE_MAX, Transmission
from fairtape.ring.sender.window import Limit, SendPace, SendWindow
from fairtape.wire.frames import (
    DATAGRAM_MAX,
    Ack,
    Hole,
    Kind,
    Malformed,
    NodeId,
    Progress,
    Range,
    decode_control,
    is_block,
    kind_of,
    range_key,
    serial_of,
)
from fairtape.wire.seals import Authenticator, Keys, Marker, ReplayWindow

SENDERS_MAX: Final = 4 * MEMBERS_MAX  # sites whose replay windows a source keeps


PlacedRange: TypeAlias = tuple[Range, bytes, int]
"""A range of an acknowledgment, its mark, and the sequence number of its first message."""


def ranges_by_stream(ack: Ack) -> dict[tuple[NodeId, int], list[PlacedRange]]:
    """The ranges of an acknowledgment by source and incarnation."""
    placed: dict[tuple[NodeId, int], list[PlacedRange]] = {}
    sequence = ack.sequence
    for named, mark in zip(ack.ranges, ack.marks, strict=True):
        placed.setdefault(named[:2], []).append((named, mark, sequence))
        sequence += named.count
    return placed


def merge_multicast(effects: list[Effect], blocks: Multicast) -> None:
    """Append blocks to the effects, as a part of the last multicast if that is short: they may share a train."""
    last = effects[-1] if effects else None
    if isinstance(last, Multicast) and len(last.datagrams) < BURST_BLOCKS_MAX:
        last.datagrams += blocks.datagrams
    else:
        effects.append(blocks)


class Source:
    """One incarnation of one source. It trusts only its own key."""

    def __init__(
        self,
        *,
        me: NodeId,
        keys: Keys,
        timing: Timing,
        resilience: int,
        incarnation: int,
        pace_max: int = 1,
        stripe: int = 0,
        datagram_max: int = DATAGRAM_MAX,
        window_max: int | None = None,
        bytes_per_s_max: int | None = None,
    ) -> None:
        self.me = me
        self.incarnation = incarnation
        self.counts: Counter[str] = Counter()
        self.must_restart = False  # a Break lost settled messages: this incarnation can never continue the order
        self.stripe = stripe
        self.on_publish: Callable[[Source], object] | None = None  # a group collects what there is to send
        self._effects: list[Effect] = []
        self._range_key = range_key(me, incarnation)
        self._marker = Marker(keys.sources[me], stripe=stripe)
        self._authenticator = Authenticator(keys.sources[me])
        self._windows: dict[NodeId, ReplayWindow] = {}
        self._transmission = Transmission(
            source=me,
            incarnation=incarnation,
            stripe=stripe,
            keys=keys,
            datagram_max=datagram_max,
            resend_delay=timing.slowed(pace_max, resilience).resend_delay,  # it does not learn of formations
            round_trip=timing.retry_period - timing.request_delay,
            resilience=resilience,
            window=SendWindow(
                commit_delay=timing.commit_delay,
                token_period=timing.token_period,
                packet_max=datagram_max,
                maximum=window_max,
                pace_max=pace_max,
            ),
            pace=SendPace(bytes_per_s_max),
        )

    def publish(self, messages: Sequence[bytes], now: Instant) -> int:
        """Send these messages, in this order. Returns how many were taken: fewer, or none, if the queue is full."""
        taken = 0 if self.must_restart else self._transmission.offer(messages)
        self._send_offered(now)
        return taken

    def publish_records(self, records: bytes, record_size: int, now: Instant) -> int:
        """Send back-to-back records of one size. Returns how many were taken: all, or none if the queue is full."""
        taken = 0 if self.must_restart else self._transmission.offer_records(records, record_size)
        self._send_offered(now)
        return taken

    # The contract.

    def receive(self, datagram: bytes, now: Instant) -> None:
        try:
            self._receive(datagram, now)
        except Malformed:
            self.counts["malformed"] += 1

    def receive_all(self, datagrams: Sequence[bytes], now: Instant) -> None:
        for datagram in datagrams:
            self.receive(datagram, now)

    def wake(self, now: Instant) -> None:
        if self.must_restart:
            return
        self._multicast(self._transmission.overdue(now), "resent")
        self._multicast(self._transmission.probe(now), "probes")
        self._pump(now)

    def deadline(self) -> Instant | None:
        earliest = NEVER if self.must_restart else self._transmission.deadline()
        return None if earliest == NEVER else earliest

    def drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # State.

    @property
    def acked_through(self) -> int:
        """The highest number in the order."""
        return self._transmission.acked_through

    @property
    def settled_through(self) -> int:
        """The highest number up to which K + 1 sites are known to hold everything."""
        return self._transmission.settled_through

    @property
    def next_number(self) -> int:
        """The number of the next message or fragment."""
        return self._transmission.next_number

    @property
    def queued(self) -> int:
        """Bytes that wait for the window."""
        return self._transmission.queued

    @property
    def in_flight(self) -> int:
        """Blocks sent and not acknowledged."""
        return self._transmission.in_flight

    @property
    def kept(self) -> int:
        """Blocks acknowledged and not settled: fewer than K + 1 sites are known to hold them."""
        return self._transmission.kept

    @property
    def held_back_by(self) -> dict[Limit, float]:
        """Why the window held something back, as shares of all acknowledgments, the most frequent reason first."""
        return self._transmission.held_back_by

    def queue_sizes(self) -> Iterator[QueueSize]:
        """The sizes of its queues, and their limits."""
        yield QueueSize("bytes to pack", self.queued, QUEUE_MAX)
        yield QueueSize("blocks in flight", self.in_flight, FLIGHT_BLOCKS_MAX)
        yield QueueSize("retention", self.kept, KEPT_BLOCKS_MAX)

    @property
    def idle(self) -> bool:
        """Whether everything published is settled: in the order, and held by K + 1 sites."""
        return self._transmission.idle

    # Datagrams.

    def _receive(self, datagram: bytes, now: Instant) -> None:
        if is_block(datagram):
            raise Malformed("not for a source")
        if kind_of(datagram) is Kind.ACK and self._range_key not in datagram:
            self.counts["acks_of_others"] += 1  # nearly all, if there are many sources: not decoded
            return
        message = decode_control(datagram)
        if message.stripe != self.stripe:
            raise Malformed("another stripe")
        match message:
            case Ack():
                self.receive_ack(message, ranges_by_stream(message).get((self.me, self.incarnation), ()), now)
            case Hole() | Progress():
                self.receive_reply(message, datagram, now)
            case _:
                raise Malformed("not for a source")

    def receive_ack(self, ack: Ack, own: Sequence[PlacedRange], now: Instant) -> bool:
        """Process an acknowledgment, of which `own` are the ranges of this incarnation; whether it is authentic."""
        outcome = self._receive_ack(ack, own, now)
        self.counts[outcome] += 1
        return outcome == "acks"

    def ack_verified(self, formation: int, token: int, now: Instant) -> bool:
        """Another source of this process has verified an acknowledgment. It settles what was acknowledged K before it.

        Returns whether that gave this source something to send.
        """
        if self._transmission.ack_verified(formation, token) and self._transmission.queued:
            self._pump(now)
        return bool(self._effects)

    @property
    def formation(self) -> int:
        """The number of the latest formation that it has heard of; -1: of none."""
        return self._transmission.formation

    def settling_token(self, formation: int) -> int | None:
        """The acknowledgment of this formation that settles something of this source; None if none does."""
        return self._transmission.settling_token if formation == self.formation else None

    def receive_reply(self, message: Hole | Progress, datagram: bytes, now: Instant) -> None:
        """Process what a token site replied to this source alone."""
        outcome = self._refusal(message.sender, datagram) or self._receive_hole_or_progress(message, now)
        self.counts[outcome] += 1

    def _receive_ack(self, ack: Ack, own: Sequence[PlacedRange], now: Instant) -> str:
        """Use the ranges of this incarnation, if the marks of all of them are correct."""
        through = 0
        for named, mark, sequence in own:
            proof = self._marker.mark(
                ack.formation,
                ack.token,
                sequence,
                named,
                release_lag_us=ack.release_lag_us,
                backlog_us=ack.backlog_us,
            )
            if proof != mark:
                return "forged"
            through = named.end - 1
        if not through:
            return "acks_of_others"
        if not self._transmission.enter(ack.formation, now):
            return "outdated"
        self._transmission.acknowledged(through, ack.token, now, load=SiteLoad.in_ack(ack))
        self._transmission.ack_received(ack.token, now)
        if self._transmission.queued:
            self._pump(now)
        return "acks"

    def _refusal(self, sender: NodeId, datagram: bytes) -> str | None:
        """Why a datagram must be ignored, or None."""
        if not self._authenticator.holds(datagram):
            return "forged"
        if sender not in self._windows and len(self._windows) >= SENDERS_MAX:
            return "over_limit"
        if not self._windows.setdefault(sender, ReplayWindow()).accept(serial_of(datagram)):
            return "replayed"
        return None

    def _receive_hole_or_progress(self, message: Hole | Progress, now: Instant) -> str:
        concerned = message.missing[:2] if isinstance(message, Hole) else (self.me, message.incarnation)
        if concerned != (self.me, self.incarnation):
            return "other_incarnation"
        if not self._transmission.enter(message.formation, now):
            return "outdated"
        if isinstance(message, Hole):
            self._multicast(self._transmission.missing(message.missing, now), "resent")
            return "holes"
        if self._transmission.is_contradicted(message.next, message.token):
            self._stop_for_good()
            return "progress"
        # That token may belong to an earlier formation: the tokens that prove settlement come after it.
        self._transmission.acknowledged(message.next - 1, message.token + 1, now)
        self._transmission.settled(message.settled)
        self._pump(now)
        return "progress"

    def _stop_for_good(self) -> None:
        if not self.must_restart:
            self.must_restart = True
            self._effects.append(
                Notice(
                    f"source {self.me} must restart: a Break lost settled messages before number "
                    f"{self._transmission.settled_through + 1}"
                )
            )

    def _send_offered(self, now: Instant) -> None:
        self._pump(now)
        if self.on_publish is not None:
            self.on_publish(self)

    def _pump(self, now: Instant) -> None:
        if self.must_restart:
            return
        self._multicast(self._transmission.next_blocks(now), "blocks")

    def _multicast(self, datagrams: list[bytes], counted_as: str) -> None:
        if datagrams:
            self.counts[counted_as] += len(datagrams)
            merge_multicast(self._effects, Multicast(Channel.DATA, datagrams))
