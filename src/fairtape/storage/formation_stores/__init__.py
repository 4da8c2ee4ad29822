"""Formation stores: leader election and the log of formations for reformation servers (decision 27, Leadership).

`open_store` opens the one that a URL names: `sqlite:PATH`, a file that the processes of one machine share, or
`etcd:http://HOST:PORT[,HOST:PORT…]/PREFIX`, a cluster that survives the loss of a machine, by `https` where there is
TLS; `EtcdAccess` says with which certificates and as which user. A `FormationStore` blocks; a driver asks through a
`StoreThread`, which never does.
"""

from pathlib import Path

from fairtape.core.errors import UserError
from fairtape.core.formation_log import ENTRIES_MAX
from fairtape.storage.formation_stores.etcd import EtcdStore
from fairtape.storage.formation_stores.etcd_http import OPEN, EtcdAccess, endpoints_of
from fairtape.storage.formation_stores.sqlite import SqliteStore
from fairtape.storage.formation_stores.store import PATIENCE, QUESTIONS_MAX, FormationStore, StoreThread

__all__ = [
    "ENTRIES_MAX",
    "PATIENCE",
    "QUESTIONS_MAX",
    "EtcdAccess",
    "EtcdStore",
    "FormationStore",
    "SqliteStore",
    "StoreThread",
    "check_store",
    "open_store",
]


def check_store(url: str) -> None:
    """Refuse a URL that names no store; whether one is there is another question."""
    kind, _, place = url.partition(":")
    if kind not in ("sqlite", "etcd") or not place:
        raise UserError(f"store is {url!r}; give sqlite:PATH or etcd:http://HOST:PORT/PREFIX")
    if kind == "etcd":
        endpoints_of(place)


def open_store(url: str, *, access: EtcdAccess = OPEN, patience: float = PATIENCE) -> FormationStore:
    """Open the store of this URL, which is there and answers; a `UserError` says why not.

    One try at the file or at an endpoint takes at most `patience` seconds.
    """
    check_store(url)
    kind, _, place = url.partition(":")
    if kind == "sqlite":
        return SqliteStore(Path(place), patience=patience)
    endpoints, prefix = endpoints_of(place)
    return EtcdStore(endpoints, prefix, patience=patience, access=access)
