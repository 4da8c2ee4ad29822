"""What the processes of a deployment report about themselves, and its JSON.

Every kind of process has one dataclass. Its fields, and the metadata of those with another key, are the only places
that know the keys of the JSON: they are those of the files in `run/` and of `fairtape status --json`. Times are
nanoseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from fairtape.core.instants import Instant
from fairtape.core.json_objects import EMPTY, INLINE, KEY, OPTIONAL, BadJson, decode, encode
from fairtape.edge.status import PublisherStatus, RetransmitStatus
from fairtape.wire.frames import NodeId

__all__ = [
    "ArbiterStatus",
    "BadJson",
    "DecisionStatus",
    "DrillControls",
    "EdgeStatus",
    "EndedStatus",
    "GatewayStatus",
    "LoadStatus",
    "ReformerStatus",
    "SiteStatus",
    "Status",
    "TokenSchedule",
    "decode_controls",
    "decode_status",
    "encode_controls",
    "encode_status",
]


def _key(name: str) -> Mapping[str, Any]:
    return {KEY: name}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillControls:
    """What a drill demands of a process."""

    deaf_to: tuple[NodeId, ...] = ()  # a partition: datagrams of these nodes are dropped
    skew_ns: int = 0  # as if the system clock had been set wrong by this
    quiet: bool = False  # a load source: publish nothing more


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    """Which process it is. `StatusFile` fills in the first two fields."""

    pid: int = 0
    process_incarnation: str = field(default="", metadata=_key("life"))
    name: str
    warnings: tuple[str, ...] = field(default=(), metadata={OPTIONAL: True})  # what the operator has to mend


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedStatus(_Process):
    """The last status of a process that has nothing else to report."""

    ended: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningProcess(_Process):
    node: NodeId
    kind: str = ""
    written_at: Instant = field(metadata=_key("written_at_ns"))
    ended: bool = field(default=False, metadata={OPTIONAL: True})


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSchedule:
    """What it takes to compute which site holds the token, and how long a message waits at most."""

    first_token: int
    starts_at: Instant = field(metadata=_key("starts_at_ns"))
    token_period: int = field(metadata=_key("token_period_ns"))
    delay_max: int = field(metadata=_key("guaranteed_delay_ns"))  # from reception at the token site to the release


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteStatus(_RunningProcess):
    """A site."""

    kind: str = "site"
    controls: DrillControls = field(metadata=_key("orders"))
    home: int  # the loop that it belongs to
    membership_state: str = field(metadata=_key("posture"))
    incarnation: int
    formation: int  # 0: none
    resilience: int  # K of that formation
    members: tuple[str, ...]
    loops: Mapping[int, tuple[str, ...]]  # members of the secondary loops that it takes part in
    schedule: TokenSchedule | None = field(metadata={EMPTY: True})  # None: no formation
    token: int  # the last one that is complete
    behind: int  # tokens
    suspect: str | None
    sequence: int
    released_sequence: int
    digest: str  # of the last journal entry
    streams: Mapping[NodeId, tuple[int, int]]  # incarnation and next number of every source
    lease_left_ms: float
    clock_bound_us: float
    clock_steps: int
    messages: int
    late: int  # messages
    released_at: Instant = field(metadata=_key("released_at_ns"))
    pauses: tuple[tuple[Instant, Instant], ...] = field(metadata=_key("silences_ns"))  # between releases
    counts: Mapping[str, int]
    edge: PublisherStatus | None

    @property
    def is_member(self) -> bool:
        """Whether it is a member of the primary loop."""
        return self.membership_state == "member"

    @property
    def requests(self) -> int:
        """Requests for repairs that it has sent."""
        return self.counts.get("requests_sent", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionStatus:
    """One formation that a reformation server decided, and why."""

    loop: int
    formation: int
    members: tuple[str, ...]
    broken: bool
    cause: str
    began_at: Instant = field(metadata=_key("began_at_ns"))
    decided_at: Instant = field(metadata=_key("decided_at_ns"))
    silent: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReformerStatus(_RunningProcess):
    """A reformation server."""

    kind: str = "reformer"
    controls: DrillControls = field(metadata=_key("orders"))
    leads: bool
    leader: str | None
    term: int
    phase: str
    formation: int  # of the primary loop
    resilience: int  # K of that formation
    plan: int  # the mark of the stripe plan in force
    members: tuple[str, ...]
    retired: tuple[str, ...]
    store: int = field(default=0, metadata={OPTIONAL: True})  # the identity of its formation store; 0: not known yet
    of_other_stores: tuple[str, ...] = field(default=(), metadata={OPTIONAL: True})  # sites that follow another store
    decisions: tuple[DecisionStatus, ...] = field(metadata=_key("rulings"))
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStatus(_RunningProcess):
    """A source that publishes load for drills and measurements."""

    kind: str = "source"
    controls: DrillControls = field(metadata=_key("orders"))
    incarnation: int
    published: int
    acknowledged: int
    settled: int
    idle: bool
    quiet: bool
    resent: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeStatus(_RunningProcess):
    """The retransmit server of a site."""

    kind: str = "edge"
    server: RetransmitStatus = field(metadata={INLINE: True})


@dataclass(frozen=True, slots=True, kw_only=True)
class ArbiterStatus(_RunningProcess):
    """The arbiter of a site."""

    kind: str = "arbiter"
    reports: int
    accusations: int
    token: int
    trades: int
    tentative: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStatus(_RunningProcess):
    """The order entry of a source."""

    kind: str = "gateway"
    addresses: Mapping[str, str]  # by protocol
    token: int
    trades: int
    tentative: int
    pending: int
    ledger_stopped: bool
    ledger_waiting: int | None  # tokens; None: no ledger tables
    logins_old: bool


Status: TypeAlias = SiteStatus | ReformerStatus | LoadStatus | EdgeStatus | ArbiterStatus | GatewayStatus | EndedStatus

_KINDS: Final[Mapping[str, type[Status]]] = MappingProxyType(
    {
        "site": SiteStatus,
        "reformer": ReformerStatus,
        "source": LoadStatus,
        "edge": EdgeStatus,
        "arbiter": ArbiterStatus,
        "gateway": GatewayStatus,
    }
)


def encode_status(status: Status) -> dict[str, Any]:
    """The JSON object of a status."""
    encoded: dict[str, Any] = encode(status)
    return encoded


def decode_status(content: object) -> Status:
    """The status of a JSON object. Raises `BadJson` where a field lacks or has another type."""
    kind = content.get("kind") if isinstance(content, dict) else None
    if kind is None:
        return decode(EndedStatus, content)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise BadJson(f"kind is {kind!r}; expected one of {', '.join(_KINDS)}")
    return decode(_KINDS[kind], content)


def encode_controls(controls: DrillControls) -> dict[str, Any]:
    """The JSON object of what a drill demands."""
    encoded: dict[str, Any] = encode(controls)
    return encoded


def decode_controls(content: object) -> DrillControls:
    """What a drill demands, from a JSON object. Raises `BadJson`."""
    return decode(DrillControls, content)
