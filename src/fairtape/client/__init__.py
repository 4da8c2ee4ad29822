"""The Python client: the order as records, batches or data frames, from a journal, a deployment, a file or a network.

`connect` makes a `Tape` out of a `Feed` (`feeds` says what that is), a `Backlog` between the feed's thread and the
reader, and a `Selection`. Trades travel in `lots`, by columns, and become records at the very end.

- `records`: what a user gets; `lots`: many trades at once, and their Arrow schema
- `feeds`: what a source of records must be able to do; `journals`, `deployments`, `files` of this machine, `remote`
  (servers by WebSocket) and `stripes` (the edge itself): those there are
- `bundles`: how records travel between a server and a client
- `singles`: messages that are no trades; `sales`: last sales and volumes, whatever is taken back or corrected
- `entries`: what a journal holds, as a feed delivers it
- `backlog`: bounded, with a policy; `selection`: which records are wanted
- `trading`, `traders`: orders, entered at a gateway, and what becomes of them
- `tape`: the shapes in which records are read; `connecting`: from a user's words to a tape
"""

from fairtape.client.connect import connect
from fairtape.client.errors import ClientError
from fairtape.client.tape import Tape
from fairtape.client.trading import AsyncTrader, Broken, Forgotten, OrderRefused, Trader, TraderRecord, trade
from fairtape.market.notices import Status
from fairtape.tape.batches import SCHEMA
from fairtape.tape.records import (
    Break,
    Canceled,
    Corrected,
    Delayed,
    Fresh,
    Gap,
    Merged,
    Message,
    Notice,
    Prompt,
    Record,
    Reformation,
    Skipped,
    Snapshot,
    Stale,
    Trade,
    VenueStatus,
)

__all__ = [
    "SCHEMA",
    "AsyncTrader",
    "Break",
    "Broken",
    "Canceled",
    "ClientError",
    "Corrected",
    "Delayed",
    "Forgotten",
    "Fresh",
    "Gap",
    "Merged",
    "Message",
    "Notice",
    "OrderRefused",
    "Prompt",
    "Record",
    "Reformation",
    "Skipped",
    "Snapshot",
    "Stale",
    "Status",
    "Tape",
    "Trade",
    "Trader",
    "TraderRecord",
    "VenueStatus",
    "connect",
    "trade",
]
