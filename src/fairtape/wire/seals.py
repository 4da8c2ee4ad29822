"""Authentication: seals of source blocks, authenticators of control datagrams, and replay windows.

Every source shares its own key with the sites. Every incarnation of it uses a derived key, so the nonce (source, first
message number) never covers two texts. Sites authenticate to one another with keys that no source has; datagrams from
a site to a source are authenticated with that source's key. So a source can neither read another source nor
impersonate another source or a site.
"""

import hashlib
import hmac
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fairtape.wire.frames import BLOCK_HEADER, TAG_SIZE, Malformed, NodeId, Range

KEY_SIZE: Final = 32
MARK_SIZE: Final = 8
REPLAY_WINDOW: Final = 4_096
SEAL_OVERHEAD: Final = BLOCK_HEADER.size + TAG_SIZE  # bytes that sealing adds to a body

_NONCE: Final = struct.Struct(">IQ")
_HEADER_SIZE: Final = BLOCK_HEADER.size
_CONTEXT: Final = struct.Struct(">HIQ")
_MARK: Final = struct.Struct(">IQQIQQIII")
_CONTROL_PERSON: Final = b"ft-control"
_BLOCK_PERSON: Final = b"ft-block"
_MARK_PERSON: Final = b"ft-mark"


def derive(secret: bytes, person: bytes, context: bytes) -> bytes:
    """A key for one purpose and one context, by keyed BLAKE2b."""
    return hashlib.blake2b(context, key=secret, digest_size=KEY_SIZE, person=person).digest()


class Seal:
    """Seals and opens the blocks of one incarnation of one source on one stripe."""

    __slots__ = ("_decrypt", "_encrypt", "_source")

    def __init__(self, key: bytes, *, stripe: int, source: NodeId, incarnation: int) -> None:
        aead = AESGCM(derive(key, _BLOCK_PERSON, _CONTEXT.pack(stripe, source, incarnation)))
        self._encrypt, self._decrypt = aead.encrypt, aead.decrypt
        self._source = source

    def close(self, header: bytes, first: int, body: bytes) -> bytes:
        """The datagram: the header in clear, the body encrypted, both authenticated."""
        return header + self._encrypt(_NONCE.pack(self._source, first), body, header)

    def open(self, datagram: bytes, first: int) -> bytes:
        """The body. Raises `Malformed` if the seal is wrong."""
        try:
            return self._decrypt(_NONCE.pack(self._source, first), datagram[_HEADER_SIZE:], datagram[:_HEADER_SIZE])
        except InvalidTag:
            raise Malformed("wrong seal") from None


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one node. A site holds all of them, a source only its own."""

    sites: Mapping[NodeId, bytes]
    sources: Mapping[NodeId, bytes]
    seal: type[Seal] = Seal

    @classmethod
    def from_secret(cls, secret: bytes, sites: Iterable[NodeId], sources: Iterable[NodeId]) -> "Keys":
        return cls(
            {node: derive(secret, b"ft-site", node.to_bytes(4)) for node in sites},
            {node: derive(secret, b"ft-source", node.to_bytes(4)) for node in sources},
        )

    def for_source(self, source: NodeId) -> "Keys":
        """The keys that one source gets."""
        return Keys({}, {source: self.sources[source]}, self.seal)


class Authenticator:
    """Tags and verifies control datagrams with one key."""

    __slots__ = ("_state",)

    def __init__(self, key: bytes) -> None:
        self._state = hashlib.blake2b(key=key, digest_size=TAG_SIZE, person=_CONTROL_PERSON)

    def _tag(self, text: bytes) -> bytes:
        state = self._state.copy()
        state.update(text)
        return state.digest()

    def prove(self, text: bytes) -> bytes:
        """The text with its tag: a datagram."""
        return text + self._tag(text)

    def holds(self, datagram: bytes) -> bool:
        return hmac.compare_digest(self._tag(datagram[:-TAG_SIZE]), datagram[-TAG_SIZE:])


class Marker:
    """Marks the ranges of an acknowledgment, so that their source, and no other, can verify them."""

    __slots__ = ("_state",)

    def __init__(self, key: bytes, *, stripe: int) -> None:
        self._state = hashlib.blake2b(stripe.to_bytes(2), key=key, digest_size=MARK_SIZE, person=_MARK_PERSON)

    def mark(
        self, formation: int, token: int, sequence: int, named: Range, *, release_lag_us: int = 0, backlog_us: int = 0
    ) -> bytes:
        """The proof that `token` acknowledged `named` from `sequence` on, and of the load that its site reports."""
        state = self._state.copy()
        state.update(_MARK.pack(*named, token, sequence, formation, release_lag_us, backlog_us))
        return state.digest()


class ReplayWindow:
    """Accepts each serial number of one sender once, and refuses those older than the window."""

    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = -1
        self._seen = 0

    def accept(self, serial: int) -> bool:
        """Whether this serial is new. Only for datagrams whose authenticator holds."""
        ahead = serial - self._highest
        if ahead > 0:
            self._seen = 1 if ahead >= REPLAY_WINDOW else (self._seen << ahead | 1) & ((1 << REPLAY_WINDOW) - 1)
            self._highest = serial
            return True
        if -ahead >= REPLAY_WINDOW or self._seen >> -ahead & 1:
            return False
        self._seen |= 1 << -ahead
        return True
