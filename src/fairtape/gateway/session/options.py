"""The settings of FIX sessions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from fairtape.core.instants import SECOND, Duration
from fairtape.formats.fix.order_messages import FROM_TRADERS

Judge: TypeAlias = Callable[[str, str, str], str | None]
"""A client's CompID, its user name and its password; the answer is why it may not come in, or None."""


class FixRole(Enum):
    """Who speaks first."""

    ACCEPTOR = "acceptor"
    INITIATOR = "initiator"


class FixState(Enum):
    """Where a session stands."""

    DISCONNECTED = "disconnected"
    LOGGING_ON = "logging on"
    LOGGED_ON = "logged on"
    LOGGING_OUT = "logging out"


@dataclass(frozen=True, slots=True, kw_only=True)
class FixOptions:
    """How a session behaves."""

    accepts: frozenset[bytes] = FROM_TRADERS  # types of messages that the application takes
    logon_delay: Duration = 10 * SECOND  # from the connection to the logon
    logout_delay: Duration = 5 * SECOND  # for the other side to confirm
    resend_delay: Duration = 5 * SECOND  # without progress, before a gap is asked for again
    sending_time_error_max: Duration = 120 * SECOND
    heartbeat_min: Duration = SECOND  # that an acceptor agrees to
    heartbeat_max: Duration = 300 * SECOND
    heartbeat_period: Duration = 30 * SECOND  # that an initiator asks for, in whole seconds
    reset_on_logon: bool = False  # an initiator begins at 1 each time
    username: str | None = None  # that an initiator gives
    password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.heartbeat_min <= self.heartbeat_period <= self.heartbeat_max or self.heartbeat_period % SECOND:
            raise ValueError(
                f"heartbeat_period is {self.heartbeat_period} ns; it must be whole seconds "
                f"from {self.heartbeat_min} to {self.heartbeat_max} ns"
            )
