"""The roll of a formation: which incarnation of each member it counts on, and which journal answers for it.

Decision 25, Roll; decision 52, Identity of a journal.
"""

from collections.abc import Mapping
from dataclasses import replace

from fairtape.ring.membership.formation import Formation
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import MembershipState, SiteReport


def with_roll(formation: Formation, reports: Mapping[NodeId, SiteReport]) -> Formation:
    """The formation with the incarnations and the journals that its members report."""
    roll = tuple(reports[member].incarnation for member in formation.members)
    journals = tuple(reports[member].journal for member in formation.members)
    return replace(formation, roll=roll, journals=journals if any(journals) else ())


def lost_journal(before: SiteReport, report: SiteReport) -> bool:
    """Whether a site has less than its earlier incarnation had in the same formation."""
    held = before.membership_state in (MembershipState.MEMBER, MembershipState.FENCED)
    restarted = before.incarnation != report.incarnation and before.formation == report.formation
    return held and restarted and report.sequence < before.sequence
