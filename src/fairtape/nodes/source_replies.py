"""What a site says to sources: that they are acknowledged, and what is missing. Decision 5."""

from fairtape.core.effects import Send
from fairtape.core.instants import Instant
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.receive_buffer import Stream
from fairtape.wire.frames import BlockFrame, Control, Hole, NodeId, Progress


class SourceReplies:
    """One site's words to all sources, each of them at most once in a round trip."""

    def __init__(self, *, me: NodeId, authenticator: MessageAuthenticator, ordering: Ordering) -> None:
        self._me = me
        self._authenticator = authenticator
        self._ordering = ordering

    def answer_duplicate(
        self, frame: BlockFrame, datagram: bytes, settled_through: int, now: Instant
    ) -> tuple[Send, ...]:
        """A source that repeats an acknowledged message has missed its acknowledgment, or asks what is settled."""
        ordering = self._ordering
        formation = ordering.formations.latest
        stream = ordering.buffer.find((frame.source, frame.incarnation))
        if stream is None or frame.first + frame.count > stream.acked:
            return ()
        if now - stream.told_at < formation.timing.retry_period:
            return ()
        stream.seal.open(datagram, frame.first)  # what is dropped needs no proof, what is answered does
        stream.told_at = now
        return (self._tell_progress(stream, settled_through),)

    def _tell_progress(self, stream: Stream, settled_through: int) -> Send:
        ordering = self._ordering
        progress = Progress(
            ordering.stripe,
            ordering.formations.latest.number,
            self._me,
            stream.incarnation,
            stream.acked,
            ordering.complete_through,
            settled=ordering.first_named_after(settled_through, stream),
        )
        return self._to(stream.source, progress)

    def ask_for_holes(self, now: Instant, settled_through: int | None) -> list[Send]:
        """A site whose turn is near, and who sees a hole in a source's numbers, asks the source at once.

        One that holds the token says how far the order has come, too (`settled_through` is what it knows to be
        settled): a source that has forgotten what lies in the hole learns by that that it is lost.
        """
        ordering = self._ordering
        formation = ordering.formations.latest
        asked = []
        for stream in ordering.buffer.with_holes():
            hole = stream.hole() if now - stream.asked_at >= formation.timing.retry_period else None
            if hole is not None:
                stream.asked_at = now
                asked.append(self._to(stream.source, Hole(ordering.stripe, formation.number, self._me, hole)))
            if settled_through is not None and now - stream.told_at >= formation.timing.retry_period:
                stream.told_at = now
                asked.append(self._tell_progress(stream, settled_through))
        return asked

    def _to(self, source: NodeId, message: Control) -> Send:
        return Send(source, [self._authenticator.for_source(source, message)])
