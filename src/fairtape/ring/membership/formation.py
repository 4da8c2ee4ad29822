"""A formation: one numbered layout of one loop. Tokens count upward for ever, across formations."""

from dataclasses import dataclass
from typing import Final

from fairtape.core.instants import Instant
from fairtape.core.timing import Timing
from fairtape.wire.frames import FORMATION_MAX, NODE_MAX, NUMBER_MAX, NodeId

MEMBERS_MAX: Final = 128
LEAVING_MAX: Final = 16  # members that leave with one formation
LOOPS_MAX: Final = (1 << 16) - 1
STRIDE_MAX: Final = (1 << 16) - 1
PLAN_MAX: Final = (1 << 32) - 1


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
    first_sequence: int = 1  # 0: it goes on where the formation before it ends
    resilience: int = 0  # K: a message commits when K + 1 sites are known to hold it
    timed: bool = True  # TRMP; False is RMP, whose token waits for messages
    loop: int = 0  # 0 is the primary loop
    stride: int = 1  # secondary loops: their token is passed for every stride-th primary token
    request_sets: int = 1  # k_p: receivers take turns in asking (2001 §5.2); 1: everyone asks at once
    keeper: NodeId = 0  # who held everything before the first token when the formation was made
    roll: tuple[int, ...] = ()  # the incarnation of each member that was counted on; empty: whoever is there
    resilience_before: int = 0  # of one that goes on: K of the formation before, whose tokens may still be open
    leaving: tuple[NodeId, ...] = ()  # who takes its last turns in the formation before, which this one takes over from
    plan: int = 0  # names the stripe plan that is in force with it, as the operator ordered; 0: none was ordered
    broken: bool = False  # a Break: more than K members were silent (decision 21, Where a formation resumes)

    def __post_init__(self) -> None:
        members = self.members
        if not 1 <= len(members) <= MEMBERS_MAX:
            raise BadFormation(f"members has {len(members)} sites; a loop takes 1 to {MEMBERS_MAX}")
        if len(set(members)) != len(members):
            raise BadFormation(f"members {members} names a site twice")
        if not all(0 <= member <= NODE_MAX for member in members):
            raise BadFormation(f"members {members} must be node numbers from 0 to {NODE_MAX}")
        if len(self.leaving) > LEAVING_MAX or set(self.leaving) & set(members):
            raise BadFormation(f"leaving is {self.leaving}; it takes up to {LEAVING_MAX} sites that are no members")
        if self.roll and len(self.roll) != len(members):
            raise BadFormation(f"roll has {len(self.roll)} incarnations for {len(members)} members")
        if not 0 <= self.resilience < len(members):
            raise BadFormation(f"resilience is {self.resilience}; it must be from 0 to {len(members) - 1}, one below m")
        if not 0 <= self.number <= FORMATION_MAX:
            raise BadFormation(f"number is {self.number}; it must be from 0 to {FORMATION_MAX}")
        self._check_numbers()

    def _check_numbers(self) -> None:
        if not 1 <= self.first_token <= NUMBER_MAX:
            raise BadFormation(f"first_token is {self.first_token}; it must be at least 1")
        if not 0 <= self.first_sequence <= NUMBER_MAX:
            raise BadFormation(f"first_sequence is {self.first_sequence}; it must be at least 1, or 0 to go on")
        if not 0 <= self.starts_at <= NUMBER_MAX:
            raise BadFormation(f"starts_at is {self.starts_at} ns; it must be an instant from 0 to {NUMBER_MAX}")
        limits = (("loop", LOOPS_MAX), ("plan", PLAN_MAX), ("stride", STRIDE_MAX), ("request_sets", MEMBERS_MAX))
        for name, limit in limits:
            least = 0 if name in ("loop", "plan") else 1
            if not least <= getattr(self, name) <= limit:
                raise BadFormation(f"{name} is {getattr(self, name)}; it must be from {least} to {limit}")

    @property
    def junction(self) -> NodeId:
        """Of a secondary loop: the member that is in the loop above, too, and repairs what the others miss."""
        return self.members[0]

    def relevant_sites(self, complete_through: int) -> tuple[NodeId, ...]:
        """Who may still act, or have acted, in it and before it, when the order has come so far."""
        return self.members if complete_through >= self.first_token - 1 else self.members + self.leaving

    def survivable(self, complete_through: int) -> int:
        """How many silent sites the order survives when it is known to have come so far."""
        taken_over = self.first_sequence > 0 or complete_through >= self.first_token - 1
        return self.resilience if taken_over else min(self.resilience, self.resilience_before)

    def has_member(self, site: NodeId, incarnation: int) -> bool:
        """Whether this incarnation of a site is a member: one that has lost its memory is not."""
        if site not in self.members:
            return False
        return not self.roll or self.roll[self.members.index(site)] == incarnation

    def holder(self, token: int) -> NodeId:
        """The site whose turn it is to send Ack(token)."""
        return self.members[(token - self.first_token) % len(self.members)]

    def passes_to(self, member: NodeId, token: int) -> int:
        """How many passes after `token` the token comes to `member`; 0 where `token` is its own."""
        return (self.members.index(member) - (token - self.first_token)) % len(self.members)

    def is_near(self, member: NodeId, token: int) -> bool:
        """Whether the turn of `member` comes within T_R of `token`: what a source sends again now is there by then."""
        return self.passes_to(member, token) * self.timing.token_period <= self.timing.retry_period

    def scheduled_at(self, token: int) -> Instant:
        """t_e."""
        return self.starts_at + (token - self.first_token) * self.timing.token_period

    def commit_at(self, token: int) -> Instant:
        """t_e + Δ_C: the one instant at which every site releases Msg(e)."""
        return self.scheduled_at(token) + self.timing.commit_delay

    def current(self, now: Instant) -> int:
        """The latest token whose time has come; below `first_token` before the start."""
        return self.first_token + (now - self.starts_at) // self.timing.token_period
