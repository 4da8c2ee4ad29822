"""Replies of a site to sources: progress and holes. Decision 5, Repeated messages and holes."""

from collections.abc import Callable

from fairtape.core.effects import Send
from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.receive_buffer import Stream
from fairtape.wire.frames import BlockFrame, Control, Hole, NodeId, Progress


class SourceReplies:
    """Progress and holes sent to sources, each at most once per T_R. Decision 5, Repeated messages and holes.

    They name the formation of the next token. A planned one is known long before its first token, and a source that
    heard of it would ignore the acknowledgments that precede that.
    """

    def __init__(self, *, me: NodeId, authenticator: MessageAuthenticator, ordering: Ordering) -> None:
        self.holes_due_at: Instant = NEVER  # when to see which holes have lasted
        self._me = me
        self._authenticator = authenticator
        self._ordering = ordering

    def answer_duplicate(
        self, frame: BlockFrame, datagram: bytes, settled_through: int, now: Instant
    ) -> tuple[Send, ...]:
        """A source that repeats an acknowledged block missed the acknowledgment, or asks what is settled."""
        ordering = self._ordering
        formation = ordering.formation
        stream = ordering.buffer.find((frame.source, frame.incarnation))
        if stream is None or frame.first + frame.count > stream.acked:
            return ()
        if now - stream.progress_sent_at < formation.timing.retry_period:
            return ()
        stream.seal.open(datagram, frame.first)  # a dropped block needs no proof, an answered one does
        stream.progress_sent_at = now
        return (self._progress(stream, settled_through),)

    def _progress(self, stream: Stream, settled_through: int) -> Send:
        ordering = self._ordering
        progress = Progress(
            ordering.stripe,
            ordering.formation.number,
            self._me,
            stream.incarnation,
            stream.acked,
            ordering.complete_through,
            settled=ordering.first_named_after(settled_through, stream),
        )
        return self._to(stream.source, progress)

    def ask_for_holes(self, backlog: Callable[[], Duration], settled_through: int | None, now: Instant) -> list[Send]:
        """A site whose turn is near requests the holes that have lasted from their sources.

        Reordering alone makes holes that close by themselves, and while blocks wait in the sockets of this site, the
        missing ones may be among them. A request for such a hole would close the window of the source.

        The holder of the token also sends progress (`settled_through` is what it knows to be settled): a source that
        has dropped the blocks of the hole learns that they are lost.
        """
        timing = self._ordering.formations.latest.timing
        oldest, delay = self._note_holes(now), timing.request_delay
        if oldest >= delay and backlog():
            delay = timing.retry_period
        self.holes_due_at = now + timing.request_delay
        return self._ask_for_lasting(delay, settled_through, now) if oldest >= delay else []

    def _note_holes(self, now: Instant) -> Duration:
        """Note where holes begin and since when; how long the oldest has lasted."""
        oldest = 0
        for stream in self._ordering.buffer.with_holes():
            if stream.hole_at != stream.next:
                stream.hole_at, stream.hole_since = stream.next, now
            oldest = max(oldest, now - stream.hole_since)
        return oldest

    def _ask_for_lasting(self, delay: Duration, settled_through: int | None, now: Instant) -> list[Send]:
        """Request the holes that have lasted for `delay`."""
        ordering = self._ordering
        formation = ordering.formation
        asked = []
        for stream in ordering.buffer.with_holes():
            if now - stream.hole_since < delay:
                continue
            hole = stream.hole() if now - stream.asked_at >= formation.timing.retry_period else None
            if hole is not None:
                stream.asked_at = now
                asked.append(self._to(stream.source, Hole(ordering.stripe, formation.number, self._me, hole)))
            if settled_through is not None and now - stream.progress_sent_at >= formation.timing.retry_period:
                stream.progress_sent_at = now
                asked.append(self._progress(stream, settled_through))
        return asked

    def _to(self, source: NodeId, message: Control) -> Send:
        return Send(source, [self._authenticator.for_source(source, message)])
