"""A formation: one numbered layout of one loop. Tokens count upward for ever, across formations."""

from dataclasses import dataclass
from typing import Final

from fairtape.core.instants import Instant
from fairtape.core.timing import Timing
from fairtape.wire.frames import FORMATION_MAX, NODE_MAX, NUMBER_MAX, NodeId

MEMBERS_MAX: Final = 256


class BadFormation(ValueError):
    """A formation that cannot work; the message names the field, the value and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formation:
    """Who is in the loop, in which order the token travels, and when it started."""

    number: int
    members: tuple[NodeId, ...]
    timing: Timing
    starts_at: Instant  # t of the first token
    first_token: int = 1
    first_sequence: int = 1
    resilience: int = 0  # K: a message commits when K + 1 sites are known to hold it
    timed: bool = True  # TRMP; False is RMP, whose token waits for messages

    def __post_init__(self) -> None:
        members = self.members
        if not 1 <= len(members) <= MEMBERS_MAX:
            raise BadFormation(f"members has {len(members)} sites; a loop takes 1 to {MEMBERS_MAX}")
        if len(set(members)) != len(members):
            raise BadFormation(f"members {members} names a site twice")
        if not all(0 <= member <= NODE_MAX for member in members):
            raise BadFormation(f"members {members} must be node numbers from 0 to {NODE_MAX}")
        if not 0 <= self.resilience < len(members):
            raise BadFormation(f"resilience is {self.resilience}; it must be from 0 to {len(members) - 1}, one below m")
        if not 0 <= self.number <= FORMATION_MAX:
            raise BadFormation(f"number is {self.number}; it must be from 0 to {FORMATION_MAX}")
        for name in ("first_token", "first_sequence"):
            if not 1 <= getattr(self, name) <= NUMBER_MAX:
                raise BadFormation(f"{name} is {getattr(self, name)}; it must be at least 1")

    def holder(self, token: int) -> NodeId:
        """The site whose turn it is to send Ack(token)."""
        return self.members[(token - self.first_token) % len(self.members)]

    def passes_to(self, member: NodeId, token: int) -> int:
        """How many passes after `token` the token comes to `member`; 0 where `token` is its own."""
        return (self.members.index(member) - (token - self.first_token)) % len(self.members)

    def scheduled_at(self, token: int) -> Instant:
        """t_e."""
        return self.starts_at + (token - self.first_token) * self.timing.token_period

    def commit_at(self, token: int) -> Instant:
        """t_e + Δ_C: the one instant at which every site releases Msg(e)."""
        return self.scheduled_at(token) + self.timing.commit_delay

    def current(self, now: Instant) -> int:
        """The latest token whose time has come; below `first_token` before the start."""
        return self.first_token + (now - self.starts_at) // self.timing.token_period
