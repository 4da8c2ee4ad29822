"""What is true in a world, whatever its nodes believe: the ground that checkers stand on."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from fairtape.core.effects import Ordered, Release, Report
from fairtape.core.instants import Duration, Instant
from fairtape.ring.membership.formation import Formation
from fairtape.wire.frames import NodeId

Stream: TypeAlias = tuple[NodeId, int]
"""One incarnation of one source."""


class Violation(Exception):
    """A guarantee that was broken: which, by whom, when (true time), and how."""

    def __init__(self, guarantee: str, node: NodeId | None, at: Instant, text: str) -> None:
        super().__init__(guarantee, node, at, text)
        self.guarantee = guarantee
        self.node = node
        self.at = at
        self.text = text

    def __str__(self) -> str:
        where = "" if self.node is None else f" at node {self.node}"
        return f"{self.guarantee}{where}: {self.text}"


@dataclass(slots=True)
class Facts:
    """What all checkers may look up: the layout, what was really published, and how far each site really is."""

    formation: Formation
    published: Mapping[Stream, Sequence[bytes]] = field(default_factory=dict)  # accepted, by incarnation
    complete: Callable[[NodeId], int] = lambda _: 0  # the token through which a site is complete
    claim: Callable[[NodeId], int] = lambda _: 0  # the token through which it claims that all are
    forgotten: Mapping[NodeId, Callable[[], tuple[Stream, int]]] = field(default_factory=dict)  # by each source
    grain: Mapping[NodeId, Duration] = field(default_factory=dict)  # how late a clock may show a site its own deadline
    at: Instant = 0  # true time
    placed: list[int] = field(default_factory=list)  # the tokens with messages, ascending
    appended_through: dict[NodeId, int] = field(default_factory=dict)
    appended_at: dict[tuple[NodeId, int], Instant] = field(default_factory=dict)  # by the site's own clock
    held: dict[Stream, dict[NodeId, int]] = field(default_factory=dict)  # the number through which each site has it
    released: int = 0  # releases
    late: int = 0  # of them marked late
    reported: dict[NodeId, Report] = field(default_factory=dict)
    down: set[NodeId] = field(default_factory=set)
    paused: set[NodeId] = field(default_factory=set)
    resumed_at: dict[NodeId, Instant] = field(default_factory=dict)  # by the site's own clock

    def __post_init__(self) -> None:
        for member in self.formation.members:
            self.appended_through[member] = self.formation.first_token - 1

    def last_placed(self, token: int) -> int:
        """The last token up to `token` that has messages: who has appended it has appended everything before."""
        position = bisect_right(self.placed, token)
        return self.placed[position - 1] if position else self.formation.first_token - 1


class Writing(NamedTuple):
    """A site appends Msg(e) at `now` of its own clock."""

    node: NodeId
    ordered: Ordered
    now: Instant


class Releasing(NamedTuple):
    """A site releases Msg(e) at `now` of its own clock."""

    node: NodeId
    ordered: Ordered
    release: Release
    now: Instant
