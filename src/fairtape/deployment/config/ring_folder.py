"""The folder of a temporary ring on this machine: what a source needs to take part, beside the ring's journals.

    ring.json         formation, addresses and groups: nothing secret
    keys/XNYS.json    the key of one source, readable only by its owner
    lock              locked by the program that runs the ring
    journals/         one folder per run, one journal per site in it

A publisher reads only the key of its own source, so that it can neither read nor impersonate another. The keys of the
sites are in no file: the program that runs the ring passes them to its sites.

A ring that is started again in the same folder is a new ring: new keys, new ports, new journals.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from fairtape.core.errors import UserError
from fairtape.core.timing import Timing
from fairtape.deployment.config.description import JOURNALS
from fairtape.deployment.ring_plan import RingPlan
from fairtape.market.symbols import VENUES, Venue
from fairtape.net.transports import Groups, Peer, Role
from fairtape.ring.membership.formation import Formation
from fairtape.storage.files import LockHeld, is_locked, lock_file, write_atomically
from fairtape.wire.frames import NodeId
from fairtape.wire.seals import Keys

VERSION: Final = 1
RING: Final = "ring.json"
KEYS: Final = "keys"
LOCK: Final = "lock"

SOURCES: Final[Mapping[NodeId, Venue]] = {100 + venue.number: venue for venue in VENUES[:8]}
"""The sources of every ring. A publisher chooses one of them."""


@dataclass(frozen=True, slots=True)
class RingFolder:
    """A folder that holds a ring, or an empty one."""

    path: Path

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the lock of this folder, which is created if need be. Raises `UserError`."""
        with self._refusals():
            self.path.mkdir(parents=True, exist_ok=True)
            if not (self.path / LOCK).exists() and any(self.path.iterdir()):
                raise UserError(f"folder {str(self.path)!r} holds other files and no ring; name a new or empty folder")
        with ExitStack() as held:
            try:
                with self._refusals():
                    lock = held.enter_context(lock_file(self.path / LOCK))
            except LockHeld:
                raise UserError(
                    f"folder {str(self.path)!r} holds a ring that is running; stop it or name another folder"
                ) from None
            with self._refusals():
                (self.path / RING).unlink(missing_ok=True)  # of an earlier ring
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)  # a full disk fails here, before any site starts
            yield

    @property
    def running(self) -> bool:
        """Whether the ring of this folder runs."""
        return is_locked(self.path / LOCK)

    def new_journals(self, run: str, sites: tuple[NodeId, ...]) -> dict[NodeId, Path]:
        """Create a journal folder for each site of this run."""
        journals = {site: self.path / JOURNALS / run / f"site-{site}" for site in sites}
        with self._refusals():
            for path in journals.values():
                path.mkdir(parents=True)
        return journals

    def write(self, plan: RingPlan) -> None:
        """Publish the plan and the keys of sources. The plan comes last: a publisher that finds it finds its key."""
        with self._refusals():
            (self.path / KEYS).mkdir(mode=0o755, exist_ok=True)
            for source, key in plan.keys.sources.items():
                _write_json(self._key_path(source), {"source": source, "key": key.hex()}, mode=0o600)
            _write_json(self.path / RING, _encode(plan), mode=0o644)

    def read(self) -> RingPlan:
        """Read the plan of the ring, without keys. Raises `UserError`."""
        with self._readings():
            return _decode(json.loads((self.path / RING).read_text()))

    def keys_of(self, source: NodeId) -> Keys:
        """Read the key of one source. Raises `UserError`."""
        with self._readings():
            held = json.loads(self._key_path(source).read_text())
            if held["source"] != source:
                raise ValueError(f"the key of source {source} is that of {held['source']}")
            return Keys({}, {source: bytes.fromhex(held["key"])})

    def _key_path(self, source: NodeId) -> Path:
        return self.path / KEYS / f"{SOURCES[source].name}.json"

    @contextmanager
    def _readings(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise UserError(
                f"folder {str(self.path)!r} holds no ring; start one there with: fairtape listen {self.path}"
            ) from None
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read ({error.strerror}); correct its permissions") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"folder {str(self.path)!r} holds a damaged {RING} or key ({type(error).__name__}: {error});"
                f" start the ring anew with: fairtape listen {self.path}"
            ) from None

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"folder is {str(self.path)!r}, where nothing can be written ({error.strerror}); name another folder"
            ) from None


def _write_json(path: Path, content: object, *, mode: int) -> None:
    write_atomically(path, json.dumps(content, indent=2).encode(), b"\n", mode=mode)


def _encode(plan: RingPlan) -> dict[str, Any]:
    return {
        "version": VERSION,
        "formation": asdict(plan.formation),
        "stripe": plan.stripe,
        "datagram_max": plan.datagram_max,
        "groups": None if plan.groups is None else asdict(plan.groups),
        "nodes": {
            str(node): {"host": peer.host, "port": peer.port, "role": peer.role.value}
            for node, peer in plan.book.items()
        },
        "sources": {str(node): venue.name for node, venue in SOURCES.items()},
    }


def _decode(ring: dict[str, Any]) -> RingPlan:
    if ring["version"] != VERSION:
        raise ValueError(f"version is {ring['version']}; expected {VERSION}")
    formation = _with_tuples(ring["formation"])
    groups = ring["groups"]
    return RingPlan(
        formation=Formation(**(formation | {"timing": Timing(**formation["timing"])})),
        keys=Keys({}, {}),
        book={int(node): Peer(peer["host"], peer["port"], Role(peer["role"])) for node, peer in ring["nodes"].items()},
        groups=None if groups is None else Groups(**_with_tuples(groups)),
        stripe=ring["stripe"],
        datagram_max=ring["datagram_max"],
    )


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists in the place of tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
