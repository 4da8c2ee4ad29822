"""Many sources behind one transport: the venues of one feed handler, or the sessions of one gateway.

Each source keeps its number, its key, its window and its queue, and sends the blocks that it would send alone, byte for
byte. The group has what they can share: one control socket, one timer, and one decoding of each datagram. So the cost
of a message does not depend on how many other sources the process has. Blocks of several sources leave in one
multicast, so that they can share trains.

An acknowledgment is dispatched by its ranges, and each source verifies only its own marks. A Hole names its source. A
Progress names only an incarnation, so the incarnations of a group are distinct.

What one source verifies, all of them know: Ack(e + K) settles what Ack(e) acknowledged (decision 20, Settled), for
every source of the group, whichever of them it names. Sources that publish seldom need not probe.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final

from fairtape.core.deadlines import Deadlines
from fairtape.core.effects import Effect, Multicast
from fairtape.core.instants import Instant
from fairtape.nodes.source import Source, merge_multicast, ranges_by_stream
from fairtape.ring.sender.transmission import BURST_BLOCKS_MAX
from fairtape.wire.frames import Ack, Hole, Malformed, NodeId, Progress, decode_control, is_block, kind_of

SOURCES_MAX: Final = 4_096


class SourceGroup:
    """The sources of one process, as one machine. Messages are published at the sources themselves."""

    def __init__(self, sources: Iterable[Source]) -> None:
        members = list(sources)
        self.sources: Final[Mapping[NodeId, Source]] = MappingProxyType({source.me: source for source in members})
        self.counts: Counter[str] = Counter()  # datagrams that concern none of the sources; each source counts its own
        self._by_stream = {(source.me, source.incarnation): source for source in members}
        self._by_incarnation = {source.incarnation: source for source in members}
        assert 0 < len(members) <= SOURCES_MAX
        assert len(self.sources) == len(members), "a source is in the group twice"
        assert len(self._by_incarnation) == len(members), "two sources of the group have the same incarnation"
        (self._stripe,) = {source.stripe for source in members}
        self._effects: list[Effect] = []
        self._deadlines = Deadlines(Source.deadline)
        self._due: deque[Source] = deque()  # sources that wait for their turn in `wake`
        self._settling: dict[int, Deadlines[Source]] = {}  # by formation; they count tokens instead of time
        for source in members:
            source.on_publish = self._collect
            self._collect(source)

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
        """Wake the sources that are due, until a burst of blocks is to be sent.

        The others wait until acknowledgments have been received, as after the burst of a single source. Every source
        that is due gets its turn before any gets another one.
        """
        if not self._due:
            self._due.extend(self._deadlines.due(now))
        blocks = 0
        while self._due and blocks < BURST_BLOCKS_MAX:
            source = self._due.popleft()
            source.wake(now)
            blocks += self._collect(source)

    def deadline(self) -> Instant | None:
        return 0 if self._due else self._deadlines.earliest()

    def drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # State.

    @property
    def idle(self) -> bool:
        """Whether everything that the sources published is settled."""
        return all(source.idle for source in self.sources.values())

    # Datagrams.

    def _receive(self, datagram: bytes, now: Instant) -> None:
        if is_block(datagram):
            raise Malformed("not for a source")
        kind_of(datagram)
        message = decode_control(datagram)
        if message.stripe != self._stripe:
            raise Malformed("another stripe")
        match message:
            case Ack():
                self._receive_ack(message, now)
            case Hole():
                self._receive_reply(self._by_stream.get(message.missing[:2]), message, datagram, now)
            case Progress():
                self._receive_reply(self._by_incarnation.get(message.incarnation), message, datagram, now)
            case _:
                raise Malformed("not for a source")

    def _receive_ack(self, ack: Ack, now: Instant) -> None:
        concerned = verified = False
        for stream, placed in ranges_by_stream(ack).items():
            source = self._by_stream.get(stream)
            if source is not None:
                concerned = True
                verified |= source.receive_ack(ack, placed, now)
                self._note_settling(source)
                self._collect(source)
        if verified:
            self._settle(ack, now)
        elif not concerned:
            self.counts["acks_of_others"] += 1

    def _settle(self, ack: Ack, now: Instant) -> None:
        waiting = self._settling.get(ack.formation)
        settling = [] if waiting is None else waiting.due(ack.token)
        for source in settling:
            if source.ack_verified(ack.formation, ack.token, now):
                self._collect(source)
            self._note_settling(source)

    def _note_settling(self, source: Source) -> None:
        """Note which acknowledgment settles something of a source, in the latest formation that it has heard of.

        Apart by formation: after a change, an acknowledgment must not pass thousands of sources that it cannot settle.
        """
        number = source.formation
        if number not in self._settling:
            if source.settling_token(number) is None:
                return
            self._settling = {each: known for each, known in self._settling.items() if known.earliest() is not None}
            self._settling[number] = Deadlines(partial(Source.settling_token, formation=number))
        self._settling[number].note(source)

    def _receive_reply(self, source: Source | None, message: Hole | Progress, datagram: bytes, now: Instant) -> None:
        if source is None:
            self.counts["other_incarnation"] += 1
            return
        source.receive_reply(message, datagram, now)
        self._note_settling(source)
        self._collect(source)

    # Effects and deadlines.

    def _collect(self, source: Source) -> int:
        """Take over the effects of a source and note its deadline; how many blocks it sends."""
        blocks = 0
        for effect in source.drain():
            if isinstance(effect, Multicast):
                blocks += len(effect.datagrams)
                merge_multicast(self._effects, effect)
            else:
                self._effects.append(effect)
        self._deadlines.note(source)
        return blocks
