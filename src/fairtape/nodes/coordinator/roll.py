"""The roll of a formation: which incarnation of each member it counts on, and which journal answers for it.

Decision 25, Roll; decision 52, Identity of a journal.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from fairtape.ring.membership.formation import Formation
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import MembershipState, SiteReport

_HOLDS: Final = (MembershipState.MEMBER, MembershipState.FENCED, MembershipState.RESTARTED)


def with_roll(formation: Formation, reports: Mapping[NodeId, SiteReport]) -> Formation:
    """The formation with the incarnations and the journals that its members report."""
    roll = tuple(reports[member].incarnation for member in formation.members)
    journals = tuple(reports[member].journal for member in formation.members)
    return replace(formation, roll=roll, journals=journals if any(journals) else ())


@dataclass(frozen=True, slots=True)
class Holding:
    """The most that one site has reported to hold, in the present formation or in the one before."""

    formation: int
    incarnation: int
    sequence: int  # the number after the last message

    def within(self, formation: Formation) -> "Holding":
        """What of it the order of a following formation has kept."""
        if formation.number <= self.formation or not formation.first_sequence:
            return self
        return replace(self, sequence=min(self.sequence, formation.first_sequence))


def most_held(known: Holding | None, report: SiteReport, formation: Formation) -> Holding | None:
    """What a leader remembers that a site holds. Only a member that has entered this formation may hold less."""
    if report.membership_state not in _HOLDS or not 0 <= formation.number - report.formation <= 1:
        return known
    held = Holding(report.formation, report.incarnation, report.sequence).within(formation)
    if known is None or held.sequence > known.sequence:
        return held
    enters = report.membership_state is not MembershipState.RESTARTED and held.formation > known.formation
    return held if enters else known


def lost_journal(known: Holding | None, report: SiteReport) -> bool:
    """Whether a site has less than an earlier incarnation of it, whatever it has reported between."""
    restarted = report.membership_state in (MembershipState.NEWBORN, MembershipState.RESTARTED)
    return (
        known is not None and restarted and known.incarnation != report.incarnation and report.sequence < known.sequence
    )
