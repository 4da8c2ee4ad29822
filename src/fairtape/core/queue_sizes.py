"""How full the queues of a machine are, each against its named limit: for checkers and for the status."""

from typing import NamedTuple


class QueueSize(NamedTuple):
    """The size of one queue or table now, and what it never exceeds."""

    name: str
    size: int
    limit: int
