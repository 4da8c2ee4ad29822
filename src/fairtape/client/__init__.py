"""The Python client: the order as records, batches or data frames, from a journal, a deployment, a file or a network.

`connect` makes a `Tape` of a feed, a `Backlog` between the feed's thread and the reader, and a `Selection`. `trade`
enters orders at a gateway. Records, batches and the contract of a feed are in `fairtape.tape`. Trades are handled as
column batches; a record is made only when it is read.

- `connect`: from a target to a tape; `tape`: the shapes in which records are read
- `journal_feed`, `file_feed`: feeds of this machine, from journals, a deployment or a file
- `remote_feed`: servers by WebSocket; `stripe_feed`: edge stripes by multicast
- `backlog`: bounded, with a policy; `selection`: symbols and stripes
- `trading`: traders at a gateway; `errors`: `ClientError`
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
