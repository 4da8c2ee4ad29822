"""Iteration over the order: the blocks and the messages of a span.

Every reader of the order uses one of three forms: `blocks`, for readers that handle whole blocks; `messages`, for
readers whose messages are never long enough to be fragmented; `MessageAssembler`, for readers of all messages. Only
hot loops over uniform bodies read the fields of a `Span` themselves.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

from fairtape.core.effects import Span
from fairtape.wire.blocks import Assembler, unpack_messages
from fairtape.wire.frames import NodeId

STREAMS_MAX: Final = 1_024  # streams with an incomplete message; above it the oldest is dropped

StreamId: TypeAlias = tuple[NodeId, int]
"""A source and its incarnation."""


def blocks(span: Span) -> Iterator[tuple[int, bytes, int, bool]]:
    """(sequence number of its first message, body, number of messages, whether it is a fragment) of each block."""
    sequence = span.sequence
    fragments = span.fragments or (False,) * len(span.bodies)
    for body, count, is_fragment in zip(span.bodies, span.counts, fragments, strict=True):
        yield sequence, body, count, is_fragment
        sequence += count


def messages(span: Span) -> Iterator[tuple[int, bytes]]:
    """(sequence number, payload) of each message that is not fragmented. Raises `Malformed` at a wrong body."""
    for sequence, body, count, is_fragment in blocks(span):
        if not is_fragment:
            yield from enumerate(unpack_messages(body, count), sequence)


class MessageAssembler:
    """Reads all messages, span by span in the order of the sequence, and reassembles fragmented ones."""

    def __init__(self) -> None:
        self._assemblers: dict[StreamId, Assembler] = {}

    def __contains__(self, stream: StreamId) -> bool:
        """Whether fragments of this stream were added before."""
        return stream in self._assemblers

    def messages(self, span: Span) -> Iterator[tuple[int, bytes]]:
        """(sequence number, payload) of each message that ends in this span. Raises `Malformed` at a wrong body.

        A fragmented message has the number of its last fragment.
        """
        for sequence, body, count, is_fragment in blocks(span):
            if not is_fragment:
                yield from enumerate(unpack_messages(body, count), sequence)
            elif (payload := self.add((span.source, span.incarnation), body)) is not None:
                yield sequence, payload

    def add(self, stream: StreamId, fragment: bytes) -> bytes | None:
        """Add the next fragment of a stream; returns the message if it is complete."""
        assembler = self._assemblers.get(stream)
        if assembler is None:
            if len(self._assemblers) >= STREAMS_MAX:
                del self._assemblers[next(iter(self._assemblers))]
            assembler = self._assemblers[stream] = Assembler()
        return assembler.add(fragment)

    def clear(self) -> None:
        """Discard all incomplete messages."""
        self._assemblers.clear()
