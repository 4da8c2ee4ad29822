"""When a journal is synced to its disk. `fairtape.journal.writer` says what each policy promises."""

from enum import Enum
from typing import Final

from fairtape.core.instants import MILLISECOND

SYNC_PERIOD: Final = 100 * MILLISECOND


class SyncPolicy(Enum):
    """When the disk has to confirm what was appended."""

    TOKEN = "token"  # noqa: S105 - a token of the ring
    INTERVAL = "interval"
    NEVER = "never"
