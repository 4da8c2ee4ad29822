"""What people call the numbers in a report. Tables know numbers only; who runs the network knows the names."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Of sites and sources; one without a name is called by its number."""

    sites: Mapping[int, str] = field(default_factory=dict)
    sources: Mapping[int, str] = field(default_factory=dict)

    def site(self, number: int) -> str:
        """Where something was released."""
        return self.sites.get(number, f"site {number}")

    def source(self, number: int) -> str:
        """Where something was entered."""
        return self.sources.get(number, f"source {number}")
