"""The receive buffer: the blocks of every source that this site holds.

A *stream* is one incarnation of one source. Its numbers are contiguous: `next` is the first missing one, blocks beyond
it wait for the hole to close, and everything below `acked` is in the order. Once a later incarnation is in the order,
an earlier one has ended: nothing more of it is ever acknowledged (decision 16, Incarnations end in the order).

Every block has the number of its arrival here. It decides the place of its source in the next acknowledgment (decision
65, Place within a token): a source is as early as the arrival of its first block that is not acknowledged, however
much the source has sent before.

Dropping a block that is not acknowledged is always safe: the site that acknowledges it holds it and will be asked for
it. So every limit here is kept by refusing blocks.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, TypeAlias

from fairtape.core.effects import Span
from fairtape.core.instants import Instant
from fairtape.wire.blocks import check_body
from fairtape.wire.frames import BLOCK_PREFIX, RANGE_COUNT_MAX, BlockFrame, Malformed, NodeId, Range
from fairtape.wire.seals import SEAL_OVERHEAD, Keys, Marker, Seal

HELD_BLOCKS_MAX: Final = 16_384  # unacknowledged blocks of one stream
ACK_BLOCKS_MAX: Final = 4 * HELD_BLOCKS_MAX  # approximate limit of one acknowledgment, and so of Msg(e)
STREAMS_MAX: Final = 4  # incarnations of one source that are kept at once
MISSING_RANGES_MAX: Final = 64  # holes of one range in one request

StreamKey: TypeAlias = tuple[NodeId, int]


Held: TypeAlias = tuple[int, bytes, bytes, bool, int]
"""One block: number of messages, body for the order, datagram for repairs, whether it is a fragment, its arrival.

A plain tuple, because every datagram creates one."""

_RUN_HEADER: Final = struct.Struct(">6sHIIQQ")  # prefix, count, formation, source, incarnation, first number


class KeyMissing(Malformed):
    """This site has no key of the source: it cannot read what others may."""

    def __init__(self, source: NodeId) -> None:
        super().__init__(f"no key of source {source}")
        self.source = source


class Stream:
    """The blocks of one incarnation of one source."""

    __slots__ = (
        "acked",
        "asked_at",
        "beyond",
        "blocks",
        "ended",
        "hole_at",
        "hole_since",
        "incarnation",
        "named",
        "next",
        "progress_sent_at",
        "seal",
        "source",
        "waiting",
    )  # fmt: skip

    def __init__(self, source: NodeId, incarnation: int, seal: Seal) -> None:
        self.source = source
        self.incarnation = incarnation
        self.seal = seal
        self.next = 1  # everything below is held, or was
        self.acked = 1  # everything below is acknowledged
        self.named = 1  # everything below is named by a received acknowledgment
        self.blocks: dict[int, Held] = {}  # below `next`
        self.beyond: dict[int, Held] = {}  # above a hole
        self.waiting = 0  # blocks held and not acknowledged
        self.ended = False  # a later incarnation is in the order
        self.hole_at = 0  # the first number of a hole that was noted
        self.hole_since: Instant = 0  # when it was noted
        self.asked_at: Instant = 0  # when a hole was last requested from the source
        self.progress_sent_at: Instant = 0  # when the source was last sent its progress

    @property
    def key(self) -> StreamKey:
        return self.source, self.incarnation

    @property
    def placed(self) -> bool:
        """Whether any of it is in the order, or named by a received acknowledgment."""
        return self.acked > 1 or self.named > 1

    @property
    def arrival(self) -> int:
        """The number of the arrival of its first unacknowledged block. There is one."""
        return self.blocks[self.acked][4]

    def missing(self, first: int, end: int) -> list[Range]:
        """The parts of first … end - 1 that are not held, up to `MISSING_RANGES_MAX`."""
        position = max(first, self.next)
        gaps: list[Range] = []
        # A site that missed much has very many blocks beyond the hole, and requests a few numbers at a time.
        wanted = range(position, end)
        starts = [n for n in wanted if n in self.beyond] if len(wanted) < len(self.beyond) else sorted(self.beyond)
        for start in starts:
            if not position <= start < end:
                continue
            if start > position:
                gaps.append(Range(self.source, self.incarnation, position, start - position))
            position = max(position, start + self.beyond[start][0])
        if position < end:
            gaps.append(Range(self.source, self.incarnation, position, end - position))
        return gaps[:MISSING_RANGES_MAX]

    def hole(self) -> Range | None:
        """The first missing range below a held block that no acknowledgment has named.

        Named messages are recovered from their token site; only the source may have the others.
        """
        first = max(self.next, self.named)
        end = min((number for number in self.beyond if number >= first), default=first)
        count = min(end - first, RANGE_COUNT_MAX)  # a hole may exceed the largest count of a range
        return Range(self.source, self.incarnation, first, count) if count else None

    def find(self, first: int) -> Held | None:
        """The block that begins with this number."""
        return self.blocks.get(first) or self.beyond.get(first)

    def add(self, first: int, held: Held) -> None:
        """Add a block that is not held yet."""
        self.waiting += 1
        if first != self.next:
            self.beyond[first] = held
            return
        self.blocks[first] = held
        self.next = first + held[0]
        if self.beyond:
            self._close_holes()

    def _close_holes(self) -> None:
        while (following := self.beyond.pop(self.next, None)) is not None:
            self.blocks[self.next] = following
            self.next += following[0]
        self._drop_overlapping()

    def _drop_overlapping(self) -> None:
        """A faulty source may send overlapping blocks: drop those that overlap held ones."""
        for first in [number for number in self.beyond if number < self.next]:
            del self.beyond[first]
            self.waiting -= 1

    def take(self, named: Range, sequence: int) -> Span:
        """Assign sequence numbers to `named`, which is held and next in the order."""
        taken = []
        first = named.first
        while first < named.end:
            held = self.blocks[first]
            taken.append(held)
            first += held[0]
        counts, bodies, _, fragments, _ = zip(*taken, strict=True)
        self.waiting -= len(taken)
        self.acked = named.end
        return Span(
            source=self.source,
            incarnation=self.incarnation,
            first=named.first,
            count=named.count,
            sequence=sequence,
            bodies=bodies,
            counts=counts,
            fragments=fragments if True in fragments else (),
        )

    def ends_block(self, end: int) -> bool:
        """Whether a held block ends at `end`, as for every range of a correct token site."""
        if end == self.next:
            return True
        return end in self.blocks

    def drop(self, first: int, end: int) -> None:
        """Drop acknowledged blocks that no site needs for repairs."""
        while first < end:
            first += self.blocks.pop(first)[0]

    def adopt(self, end: int) -> None:
        """Another site's journal has everything below `end` in the order; it may never have been held here."""
        position = self.acked
        while position < end and position in self.blocks:
            position += self.blocks.pop(position)[0]
            self.waiting -= 1
        if position > end:  # a block across `end`, from a source with overlapping blocks, is useless
            self._forget_from(position)
        self.acked = end
        self.named = max(self.named, end)
        if self.next < end or position > end:
            self.next = end
            self._close_holes()

    def _forget_from(self, position: int) -> None:
        while position in self.blocks:
            position += self.blocks.pop(position)[0]
            self.waiting -= 1

    def forget_unordered(self) -> None:
        """Drop every block that is not in the order."""
        self.beyond.clear()
        first = self.acked
        while first < self.next:
            first += self.blocks.pop(first)[0]
        self.next = self.acked
        self.waiting = 0

    def end(self) -> None:
        """A later incarnation is in the order: drop every block that is not."""
        self.forget_unordered()
        self.ended = True


_ARRIVAL: Final = attrgetter("arrival")


class ReceiveBuffer:
    """All streams, by source and incarnation."""

    def __init__(self, *, keys: Keys, stripe: int) -> None:
        self._keys = keys
        self._stripe = stripe
        self._prefix = BLOCK_PREFIX + bytes((0,)) + stripe.to_bytes(2)
        self._streams: dict[StreamKey, Stream] = {}
        self._incarnations: dict[NodeId, list[int]] = {}  # ascending
        self._ordered: dict[NodeId, int] = {}  # the latest incarnation in the order
        self._markers: dict[NodeId, Marker] = {}
        self._with_holes: dict[StreamKey, Stream] = {}  # with a hole below a held block
        self._unacked: dict[StreamKey, Stream] = {}  # those with messages to acknowledge
        self._arrivals = 0  # how many blocks have been added

    def find(self, key: StreamKey) -> Stream | None:
        return self._streams.get(key)

    def marker(self, source: NodeId) -> Marker:
        """The marker of the ranges of one source."""
        marker = self._markers.get(source)
        if marker is None:
            marker = self._markers[source] = Marker(self._keys.sources[source], stripe=self._stripe)
        return marker

    @property
    def sizes(self) -> tuple[int, int]:
        """The largest number of unacknowledged blocks of a stream, and of incarnations of a source."""
        blocks = max((stream.waiting for stream in self._streams.values()), default=0)
        return blocks, max(map(len, self._incarnations.values()), default=0)

    @property
    def has_holes(self) -> bool:
        """Whether any stream has a hole below a held block."""
        return bool(self._with_holes)

    def with_holes(self) -> list[Stream]:
        """The streams with a hole below a held block."""
        return list(self._with_holes.values())

    def accept(self, frame: BlockFrame, datagram: bytes) -> str:
        """Add one block. Returns a counter name. Raises `Malformed` for a block that no correct source sends."""
        flags, _, source, incarnation, first, count = frame
        key = source, incarnation
        known = self._streams.get(key)
        stream = known or self._new_stream(key)
        if first < stream.next or first in stream.beyond:
            return "duplicate"
        if stream.ended:
            raise Malformed("earlier incarnation")
        if stream.waiting >= HELD_BLOCKS_MAX and not (first == stream.next and stream.beyond):
            return "over_limit"  # except the block that closes a hole, or a full stream would stay full
        body = stream.seal.open(datagram, first)
        check_body(body, count, fragment=flags != 0)
        if known is None:
            self._evict_oldest(source)
            self._add_stream(stream)
        stream.add(first, (count, body, datagram, flags != 0, self._arrivals))
        self._arrivals += 1
        if stream.beyond:
            self._with_holes[key] = stream
            if stream.next > stream.acked:
                self._unacked[key] = stream
            return "ahead"
        if self._with_holes:
            self._with_holes.pop(key, None)
        self._unacked[key] = stream
        return "block"

    def accept_run(self, datagrams: Sequence[bytes], start: int, datagram_max: int) -> int:
        """Add a run of blocks from `start` on; returns how many were added.

        The fast path of nearly all blocks: the next blocks of known streams without holes, uniform bodies, correct
        seals. Blocks of several streams may alternate. The first datagram that differs ends the run and is left to
        `accept`.
        """
        prefix = self._prefix
        source = incarnation = 0
        arrival = self._arrivals
        stream: Stream | None = None
        for position in range(start, len(datagrams)):
            datagram = datagrams[position]
            if not SEAL_OVERHEAD < len(datagram) <= datagram_max:
                break
            begins, count, formation, of_source, of_incarnation, first = _RUN_HEADER.unpack_from(datagram)
            if of_source != source or of_incarnation != incarnation or stream is None:
                source, incarnation = of_source, of_incarnation
                stream = self._streams.get((source, incarnation))
                if stream is None or stream.beyond or stream.ended:
                    break
                opened = stream.seal.open
            if first != stream.next or begins != prefix or formation or stream.waiting >= HELD_BLOCKS_MAX:
                break
            try:
                body = opened(datagram, first)
            except Malformed:
                break
            size = body[0] << 8 | body[1] if len(body) > 1 else 0
            if not size or not count or len(body) != size * count + 2:
                break
            stream.blocks[first] = count, body, datagram, False, arrival
            if first == stream.acked:
                self._unacked[stream.key] = stream
            stream.next = first + count
            stream.waiting += 1
            arrival += 1
        taken, self._arrivals = arrival - self._arrivals, arrival
        return taken

    def note_named(self, named: Range) -> None:
        """An acknowledgment names this range. The stream may be unknown here, and older than a known one."""
        key = named.source, named.incarnation
        stream = self._streams.get(key)
        if stream is None:
            stream = self._make_stream(key)
            self._add_stream(stream)
        stream.named = max(stream.named, named.end)

    def named(self, named: Range) -> Stream:
        """The stream of a range that an acknowledgment named."""
        return self._streams[named.source, named.incarnation]

    def unacknowledged(self, ranges_max: int) -> list[Range]:
        """What this site could acknowledge now: sources in the order in which their first block of it arrived.

        The incarnations of a source follow one another, ascending, from the place of the earliest incarnation.
        """
        ranges: list[Range] = []
        blocks = 0
        for first in sorted(self._unacked.values(), key=_ARRIVAL):
            for stream in self._incarnations_from(first):
                ranges.append(Range(stream.source, stream.incarnation, stream.acked, stream.next - stream.acked))
                blocks += stream.waiting
            if blocks >= ACK_BLOCKS_MAX:
                break  # the other sources come first at the next token
        return ranges[:ranges_max]

    def _incarnations_from(self, first: Stream) -> list[Stream]:
        """Streams with messages to acknowledge of one source; none if `first` is not its earliest such incarnation."""
        known = self._incarnations[first.source]
        if len(known) == 1:
            return [first]
        streams = [self._unacked[key] for each in known if (key := (first.source, each)) in self._unacked]
        return streams if streams[0] is first else []

    @property
    def has_unacknowledged(self) -> bool:
        return bool(self._unacked)

    def first_unacknowledged(self) -> list[Range]:
        """Only the oldest unacknowledged block: in RMP every source message has its own acknowledgment."""
        for named in self.unacknowledged(1):
            stream = self._streams[named.source, named.incarnation]
            return [Range(named.source, named.incarnation, named.first, stream.blocks[named.first][0])]
        return []

    def continues_order(self, named: Range) -> bool:
        """Whether acknowledging `named`, which is held, continues the order of its source."""
        stream = self.named(named)
        return (
            named.first == stream.acked
            and stream.ends_block(named.end)
            and named.incarnation >= self._ordered.get(named.source, 0)
        )

    def take(self, named: Range, sequence: int) -> Span:
        """Assign sequence numbers to `named`. This ends earlier incarnations of its source."""
        stream = self._streams[named.source, named.incarnation]
        span = stream.take(named, sequence)
        if stream.acked == stream.next:
            self._unacked.pop(stream.key, None)
        self._end_earlier(stream)
        return span

    def _end_earlier(self, stream: Stream) -> None:
        """The stream is in the order: earlier incarnations of its source have ended."""
        if self._ordered.get(stream.source, -1) < stream.incarnation:
            self._ordered[stream.source] = stream.incarnation
            for incarnation in [i for i in self._incarnations[stream.source] if i < stream.incarnation]:
                self._end(self._streams[stream.source, incarnation])

    def adopt(self, span: Span) -> None:
        """Another site's journal has this span in the order, whether it is held here or not."""
        named = Range(span.source, span.incarnation, span.first, span.count)
        self.note_named(named)
        stream = self.named(named)
        stream.adopt(named.end)
        self._index(stream)
        self._end_earlier(stream)

    def recover(self, streams: Mapping[NodeId, tuple[int, int]]) -> None:
        """Restore from a journal: the latest incarnation of each source in the order, and its next number."""
        for source, (incarnation, following) in streams.items():
            if source in self._keys.sources:
                stream = self._make_stream((source, incarnation))
                stream.next = stream.acked = stream.named = following
                self._add_stream(stream)
                self._ordered[source] = incarnation

    def forget_unordered(self) -> None:
        """Drop every block that is not in the order: this site is far behind, and they would only accumulate."""
        for stream in self._streams.values():
            stream.forget_unordered()
        self._unacked.clear()
        self._with_holes.clear()

    def forget_names(self) -> None:
        """Acknowledgments above the order are void: their ranges may be named again."""
        for stream in list(self._streams.values()):
            stream.named = stream.acked
            self._remove_if_ended(stream)

    def _index(self, stream: Stream) -> None:
        """Update whether the stream has messages to acknowledge, and holes."""
        for noted, applies in ((self._unacked, stream.next > stream.acked), (self._with_holes, bool(stream.beyond))):
            if applies:
                noted[stream.key] = stream
            else:
                noted.pop(stream.key, None)

    def drop(self, ranges: Iterable[Range]) -> None:
        """All members hold these ranges: drop them, and streams that have ended."""
        for named in ranges:
            stream = self._streams[named.source, named.incarnation]
            stream.drop(named.first, named.end)
            self._remove_if_ended(stream)

    def _new_stream(self, key: StreamKey) -> Stream:
        """A stream that a block introduces. Incarnations only increase, and few are kept at once."""
        source, incarnation = key
        known = self._incarnations.get(source, ())
        if incarnation < max(known, default=0) or incarnation < self._ordered.get(source, 0):
            raise Malformed("earlier incarnation")
        if len(known) >= STREAMS_MAX and all(self._streams[source, earlier].placed for earlier in known):
            raise Malformed("too many incarnations")
        return self._make_stream(key)

    def _make_stream(self, key: StreamKey) -> Stream:
        secret = self._keys.sources.get(key[0])
        if secret is None:
            raise KeyMissing(key[0])
        return Stream(*key, self._keys.seal(secret, stripe=self._stripe, source=key[0], incarnation=key[1]))

    def _add_stream(self, stream: Stream) -> None:
        known = self._incarnations.setdefault(stream.source, [])
        known.append(stream.incarnation)
        known.sort()
        self._streams[stream.key] = stream

    def _evict_oldest(self, source: NodeId) -> None:
        """Evict the oldest incarnation that is not in the order: no site will ever ask this one for it.

        Otherwise a source that restarts often and is never acknowledged would lock itself out.
        """
        known = self._incarnations.get(source, [])
        if len(known) < STREAMS_MAX:
            return
        oldest = next(incarnation for incarnation in known if not self._streams[source, incarnation].placed)
        for table in (self._streams, self._unacked, self._with_holes):
            table.pop((source, oldest), None)
        known.remove(oldest)

    def _end(self, stream: Stream) -> None:
        stream.end()
        self._unacked.pop(stream.key, None)
        self._with_holes.pop(stream.key, None)
        self._remove_if_ended(stream)

    def _remove_if_ended(self, stream: Stream) -> None:
        """Keep a stream that a wrong acknowledgment names, until that acknowledgment is detected."""
        if not stream.blocks and stream.ended and stream.named <= stream.acked:
            del self._streams[stream.key]
            self._incarnations[stream.source].remove(stream.incarnation)
