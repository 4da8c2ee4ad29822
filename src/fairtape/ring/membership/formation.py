"""A formation: one numbered layout of one loop. Token numbers increase for ever, across formations."""

from dataclasses import dataclass
from typing import Final

from fairtape.core.instants import Instant
from fairtape.core.timing import Timing
from fairtape.wire.frames import FORMATION_MAX, NODE_MAX, NUMBER_MAX, NodeId

MEMBERS_MAX: Final = 128
LEAVING_MAX: Final = 16  # members that leave at one formation
LOOPS_MAX: Final = (1 << 16) - 1
STRIDE_MAX: Final = (1 << 16) - 1
PLAN_MAX: Final = (1 << 32) - 1
JOURNALS_MAX: Final = 80  # members of the primary loop: with the identities of their journals it fits an Install
STORES_MAX: Final = 4  # the store of a formation, and those that it replaced
LAYOUT_VERSION: Final = 3


class BadFormation(ValueError):
    """A formation that cannot work; the message names the field, the value and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formation:
    """The members in token order, their timing, and the start of one formation of a loop."""

    number: int
    members: tuple[NodeId, ...]
    timing: Timing
    starts_at: Instant  # t_e of the first token
    first_token: int = 1
    first_sequence: int = 1  # 0: continues where the formation before it ends
    resilience: int = 0  # K: a message commits when K + 1 sites are known to hold it
    timed: bool = True  # TRMP; False is RMP, whose token waits for messages
    loop: int = 0  # 0 is the primary loop
    stride: int = 1  # secondary loops: their token is passed for every stride-th primary token
    request_sets: int = 1  # k_p: receivers take turns in requesting (2001 §5.2); 1: all request at once
    keeper: NodeId = 0  # the site that held everything before the first token when it was made
    roll: tuple[int, ...] = ()  # the expected incarnation of each member; empty: any
    journals: tuple[int, ...] = ()  # the identity of each member's journal; empty: any, and 0 for a member: any
    resilience_before: int = 0  # how many members may still be lost before this formation comes into effect
    leaving: tuple[NodeId, ...] = ()  # sites that take their last turns in the formation before
    plan: int = 0  # the active stripe plan, as the operator ordered; 0: none
    stores: tuple[int, ...] = ()  # the identity of its store, and of those that it replaced; empty: any
    layout_version: int = LAYOUT_VERSION  # of its encoding: that of an older release keeps its bytes
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
            raise BadFormation(f"leaving is {self.leaving}; it takes up to {LEAVING_MAX} sites that are not members")
        if self.roll and len(self.roll) != len(members):
            raise BadFormation(f"roll has {len(self.roll)} incarnations for {len(members)} members")
        if self.journals and (len(self.journals) != len(members) or len(members) > JOURNALS_MAX):
            raise BadFormation(
                f"journals has {len(self.journals)} identities for {len(members)} members; "
                f"it takes one for each of up to {JOURNALS_MAX}"
            )
        if len(self.stores) > STORES_MAX:
            raise BadFormation(f"stores has {len(self.stores)} identities; it takes up to {STORES_MAX}")
        if not 0 <= self.resilience < len(members):
            raise BadFormation(f"resilience is {self.resilience}; it must be from 0 to {len(members) - 1}, one below m")
        if not 0 <= self.number <= FORMATION_MAX:
            raise BadFormation(f"number is {self.number}; it must be from 0 to {FORMATION_MAX}")
        self._check_numbers()

    def _check_numbers(self) -> None:
        if not 1 <= self.first_token <= NUMBER_MAX:
            raise BadFormation(f"first_token is {self.first_token}; it must be at least 1")
        if not 0 <= self.first_sequence <= NUMBER_MAX:
            raise BadFormation(f"first_sequence is {self.first_sequence}; it must be at least 1, or 0 to continue")
        if not 0 <= self.starts_at <= NUMBER_MAX:
            raise BadFormation(f"starts_at is {self.starts_at} ns; it must be an instant from 0 to {NUMBER_MAX}")
        limits = (("loop", LOOPS_MAX), ("plan", PLAN_MAX), ("stride", STRIDE_MAX), ("request_sets", MEMBERS_MAX))
        for name, limit in limits:
            least = 0 if name in ("loop", "plan") else 1
            if not least <= getattr(self, name) <= limit:
                raise BadFormation(f"{name} is {getattr(self, name)}; it must be from {least} to {limit}")

    @property
    def junction(self) -> NodeId:
        """Of a secondary loop: the member that is also in the loop above, and repairs losses of the others."""
        return self.members[0]

    def relevant_sites(self, complete_through: int) -> tuple[NodeId, ...]:
        """The sites whose actions may still matter, given the token up to which the order is known."""
        return self.members if complete_through >= self.first_token - 1 else self.members + self.leaving

    def has_member(self, site: NodeId, incarnation: int) -> bool:
        """Whether this incarnation of a site is a member. A later incarnation has lost its memory and is not."""
        if site not in self.members:
            return False
        return not self.roll or self.roll[self.members.index(site)] == incarnation

    def has_journal(self, site: NodeId, identity: int) -> bool:
        """Whether a member has the journal that it was admitted with. Another one proves nothing about this loop."""
        expected = self.journals[self.members.index(site)] if self.journals and site in self.members else 0
        return expected in (0, identity)

    def holder(self, token: int) -> NodeId:
        """The site whose turn it is to send Ack(token)."""
        return self.members[(token - self.first_token) % len(self.members)]

    def passes_to(self, member: NodeId, token: int) -> int:
        """How many passes after `token` it is the turn of `member`; 0 if `token` is its own."""
        return (self.members.index(member) - (token - self.first_token)) % len(self.members)

    def is_near(self, member: NodeId, token: int) -> bool:
        """Whether the turn of `member` comes within T_R of `token`: a retransmission requested now arrives by then."""
        return self.passes_to(member, token) * self.timing.token_period <= self.timing.retry_period

    def scheduled_at(self, token: int) -> Instant:
        """t_e."""
        return self.starts_at + (token - self.first_token) * self.timing.token_period

    def commit_at(self, token: int) -> Instant:
        """t_e + Δ_C: the one instant at which every site releases Msg(e)."""
        return self.scheduled_at(token) + self.timing.commit_delay

    def current(self, now: Instant) -> int:
        """The latest token whose scheduled time is not after `now`; below `first_token` before the start."""
        return self.first_token + (now - self.starts_at) // self.timing.token_period
