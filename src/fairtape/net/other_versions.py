"""Peers of another wire version: a machine drops what they send, and the operator must know why they are not heard.

Decision 64, One deployment file. The head of a datagram shows its version, but not who has sent it before its tag is
checked; so a notice names the address. Only the first datagram of a read is looked at: a peer repeats itself.
"""

from collections.abc import Sequence
from typing import Final

from fairtape.core.addresses import Address, format_address
from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.wire.frames import MAGIC, VERSION

NOTICE_PERIOD: Final[Duration] = 60 * SECOND  # between two notices about one address
PEERS_MAX: Final = 64  # addresses that are remembered
HEAD: Final = bytes((MAGIC, VERSION))


class OtherVersions:
    """The addresses that have sent datagrams of another wire version."""

    def __init__(self) -> None:
        self.traces = False  # whether the addresses of senders are wanted, because such a datagram has arrived
        self._seen: dict[Address, tuple[int, Instant, Instant]] = {}  # version, last seen, last notice

    def look(self, datagrams: Sequence[bytes], senders: Sequence[Address], now: Instant) -> list[str]:
        """Look for another version in what was read, with the senders if they are known. Returns notices."""
        if not senders:
            self.traces = self.traces or _is_of_another(datagrams[0])
            return []
        self.traces = False
        others = {sender: each[1] for sender, each in zip(senders, datagrams, strict=True) if _is_of_another(each)}
        return [self._text(sender, version) for sender, version in others.items() if self._note(sender, version, now)]

    def warnings(self, now: Instant) -> tuple[str, ...]:
        """What the status shows: the peers that were seen lately."""
        lately = {sender: seen for sender, seen in self._seen.items() if 0 <= now - seen[1] < 2 * NOTICE_PERIOD}
        return tuple(self._text(sender, version) for sender, (version, _, _) in lately.items())

    def _note(self, sender: Address, version: int, now: Instant) -> bool:
        """Whether a notice is due."""
        known = self._seen.pop(sender, None)
        due = known is None or known[0] != version or not 0 <= now - known[2] < NOTICE_PERIOD
        self._seen[sender] = version, now, now if known is None or due else known[2]
        for earliest in list(self._seen)[:-PEERS_MAX]:
            del self._seen[earliest]
        return due

    @staticmethod
    def _text(sender: Address, version: int) -> str:
        return (
            f"{format_address(sender)} sends wire version {version}, and this node has {VERSION}: it is not heard; run"
            " the same release on both"
        )


def _is_of_another(datagram: bytes) -> bool:
    """Another program may send anything: only our magic says that this is a peer."""
    return datagram[:1] == HEAD[:1] and datagram[:2] != HEAD
