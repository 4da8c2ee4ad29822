"""Reconfiguration: from one formation of a loop to the next, as functions on values. TRMP 2001 §5.3, §8.

Most functions change the members or the timing. `follow` and `take_over` determine where the next formation begins:
`follow` after a failure, when the ring is stopped, and `take_over` for a planned change, while the ring runs.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from fairtape.core.instants import Instant
from fairtape.core.timing import Timing
from fairtape.ring.membership.formation import LAYOUT_VERSION, BadFormation, Formation
from fairtape.wire.frames import NodeId


def bypass(formation: Formation, failed: Collection[NodeId]) -> Formation:
    """(r − 1) mod m passes the token to (r + 1) mod m, or to the next one that has not failed. 2001 §5.3."""
    return with_members(formation, [member for member in formation.members if member not in failed])


def insert(formation: Formation, site: NodeId, *, after: NodeId) -> Formation:
    """Insert `site` between `after` and its successor. 2001 §5.3."""
    position = _position(formation, after) + 1
    return with_members(formation, [*formation.members[:position], site, *formation.members[position:]])


def insert_in_order(formation: Formation, site: NodeId, order: Sequence[NodeId]) -> Formation:
    """Insert `site` where it is in `order`, the tour of all sites."""
    before = order[: order.index(site)]
    earlier = [member for member in before if member in formation.members]
    if not earlier:
        return with_members(formation, [site, *formation.members])
    return insert(formation, site, after=earlier[-1])


def retire(formation: Formation, site: NodeId) -> Formation:
    """An existing receiver leaves voluntarily. 2001 §5.3."""
    _position(formation, site)
    return bypass(formation, (site,))


def exchange(formation: Formation, failed: NodeId, substitute: NodeId) -> Formation:
    """Replace a failed receiver by a nearby one from a lower loop, instead of bridging the distance. 2001 §8."""
    position = _position(formation, failed)
    return with_members(formation, [*formation.members[:position], substitute, *formation.members[position + 1 :]])


def reorder(formation: Formation, members: Sequence[NodeId]) -> Formation:
    """The same members in another order."""
    if sorted(members) != sorted(formation.members):
        raise BadFormation(f"members {tuple(members)} are not those of the formation, {formation.members}")
    return with_members(formation, members)


def retime(formation: Formation, timing: Timing) -> Formation:
    """The same members with another timing (decision 28, Retry adaptation: timing changes only by formation)."""
    return replace(formation, timing=timing)


def with_members(formation: Formation, members: Iterable[NodeId]) -> Formation:
    """Replace the members. K is at most the number of other members."""
    chosen = tuple(members)
    if not chosen:
        raise BadFormation("members is empty; a loop needs at least one site")
    resilience = min(formation.resilience, len(chosen) - 1)
    return replace(formation, members=chosen, leaving=(), roll=(), journals=(), resilience=resilience)


def begin_with(formation: Formation, first: NodeId) -> Formation:
    """Rotate the members so that this one takes the first turn."""
    position = _position(formation, first)
    members, roll, journals = formation.members, formation.roll, formation.journals
    return replace(
        formation,
        members=members[position:] + members[:position],
        roll=roll[position:] + roll[:position],
        journals=journals[position:] + journals[:position],
    )


def follow(
    formation: Formation,
    *,
    number: int,
    after: int,
    sequence: int,
    keeper: NodeId,
    starts_at: Instant,
    broken: bool,
    resilience_before: int = 0,
) -> Formation:
    """The formation that resumes after a fenced one: after the last token that a survivor holds completely.

    The keeper, which holds that token, takes the first turn: it alone is known to miss nothing.
    """
    first = begin_with(formation, keeper) if keeper in formation.members else formation
    return replace(
        first,
        layout_version=LAYOUT_VERSION,
        leaving=(),
        resilience_before=resilience_before,
        number=number,
        first_token=after + 1,
        first_sequence=sequence,
        starts_at=starts_at,
        keeper=keeper,
        broken=broken,
    )


def take_over(formation: Formation, *, number: int, present: Formation, at_token: int) -> Formation:
    """The formation of a planned change: it takes over at a future token, and the ring does not stop.

    The token passes to the first member after the last token site that stays. With a shorter commit delay the schedule
    pauses once, so that no token commits before the one that precedes it.
    """
    successors = [present.holder(at_token + step) for step in range(len(present.members))]
    following = next((member for member in successors if member in formation.members), formation.members[0])
    timing = formation.timing
    earliest = present.commit_at(at_token - 1) + timing.token_period - timing.commit_delay
    return replace(
        begin_with(formation, following),
        layout_version=LAYOUT_VERSION,
        number=number,
        first_token=at_token,
        first_sequence=0,
        starts_at=max(present.scheduled_at(at_token), earliest),
        keeper=present.holder(at_token - 1),
        resilience_before=present.resilience,
        leaving=tuple(member for member in present.members if member not in formation.members),
        broken=False,
    )


def _position(formation: Formation, member: NodeId) -> int:
    if member not in formation.members:
        raise BadFormation(f"site {member} is not a member of formation {formation.number}: {formation.members}")
    return formation.members.index(member)
