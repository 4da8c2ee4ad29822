"""The floor of a deployment as its file describes it: what every replica must agree on before the first message."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fairtape.exchange.floor import Floor
from fairtape.wire.frames import NodeId

COMMIT_PASSES: Final = 3
COMMIT_PASSES_MAX: Final = 127  # one below the members that a loop may have


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorSettings:
    """Replicas that differ in any of this compute different floors."""

    commit_passes: int = COMMIT_PASSES  # N: a trade commits when so many tokens have passed
    operators: tuple[NodeId, ...] | None = None  # sources that may open markets and let money in; None: all
    arbiters: Mapping[NodeId, NodeId] = field(default_factory=dict)  # of a site, the source through which it reports

    def new(self) -> Floor:
        """An empty floor."""
        return Floor(
            commit_passes=self.commit_passes,
            operators=self.operators,
            arbiters=tuple(self.arbiters.values()) if self.arbiters else None,
        )
