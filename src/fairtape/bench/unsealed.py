"""What a ring would do without seals, to show what they cost. Only a benchmark may leave a block open."""

from fairtape.wire.frames import BLOCK_HEADER, TAG_SIZE
from fairtape.wire.seals import Seal


class OpenSeal(Seal):
    """Adds room for a tag and no tag."""

    __slots__ = ()

    def close(self, header: bytes, first: int, body: bytes) -> bytes:  # noqa: ARG002 - no nonce is needed
        """The body as it is."""
        return header + body + bytes(TAG_SIZE)

    def open(self, datagram: bytes, first: int) -> bytes:  # noqa: ARG002 - no nonce is needed
        """The body as it is."""
        return datagram[BLOCK_HEADER.size : -TAG_SIZE]
