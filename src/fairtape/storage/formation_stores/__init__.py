"""Formation stores: leader election and the log of formations for reformation servers (decision 27, Leadership).

`open_store` opens the store of a URL: `sqlite:PATH`, a file that the processes of one machine share, or
`etcd:http://HOST:PORT[,HOST:PORT…]/PREFIX`, a cluster that survives the loss of a machine (`https` for TLS).
`EtcdAccess` holds the certificates and the user. A `FormationStore` blocks; a driver uses a `StoreThread`, which does
not.

- `formation_store`: the interface of a store, and `StoreThread`
- `sqlite`, `etcd`: the two stores
- `store_speed`: how long a write takes
- `etcd_http`: an HTTP client of etcd's JSON gateway
"""

from pathlib import Path

from fairtape.core.errors import UserError
from fairtape.core.formation_log import ENTRIES_MAX
from fairtape.storage.formation_stores.etcd import EtcdStore
from fairtape.storage.formation_stores.etcd_http import OPEN, EtcdAccess, endpoints_of
from fairtape.storage.formation_stores.formation_store import REQUESTS_MAX, TIMEOUT, FormationStore, StoreThread
from fairtape.storage.formation_stores.sqlite import SqliteStore
from fairtape.storage.formation_stores.store_speed import measure_writes

__all__ = [
    "ENTRIES_MAX",
    "REQUESTS_MAX",
    "TIMEOUT",
    "EtcdAccess",
    "EtcdStore",
    "FormationStore",
    "SqliteStore",
    "StoreThread",
    "check_store",
    "measure_writes",
    "open_store",
]


def check_store(url: str) -> None:
    """Check the form of a store's URL; nothing is opened."""
    kind, _, place = url.partition(":")
    if kind not in ("sqlite", "etcd") or not place:
        raise UserError(f"store is {url!r}; give sqlite:PATH or etcd:http://HOST:PORT/PREFIX")
    if kind == "etcd":
        endpoints_of(place)


def open_store(url: str, *, access: EtcdAccess = OPEN, timeout: float = TIMEOUT) -> FormationStore:
    """Open the store of this URL; a `UserError` says why it cannot be used.

    One attempt at the file or at an endpoint takes at most `timeout` seconds.
    """
    check_store(url)
    kind, _, place = url.partition(":")
    if kind == "sqlite":
        return SqliteStore(Path(place), timeout=timeout)
    endpoints, prefix = endpoints_of(place)
    return EtcdStore(endpoints, prefix, timeout=timeout, access=access)
