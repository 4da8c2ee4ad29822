"""The governor of a loop: what a reformation server does about one loop while it leads.

Everything follows from what the sites say of themselves. Members that suspect, fall silent, were restarted or are
fenced make the governor *reform*: it fences all members, collects what they hold, waits out the leases of the silent
ones, and lets a new formation follow after the last token that a survivor holds whole (decision 21, Where a formation
resumes). Sites that want to join or leave make it *relieve*: it proposes a formation that takes over at a token to
come, and when all have prepared for it the ring passes into it without a stop. In both cases the formation is recorded
before anybody is told.

Sources are never heard here: they cannot cause a reformation.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from fairtape.core.instants import NEVER, SECOND, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.nodes.coordinator.planned_change import FAILURES_MAX, LAG_MAX, PlannedChange, lead_time, plan_change
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import encode_formation
from fairtape.ring.membership.reconfiguration import exchange, follow, retime, with_members
from fairtape.ring.membership.topology import Excess, LoopTopology, Remedy, Topology, lease_margin
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import (
    Fence,
    Grant,
    Install,
    MembershipMessage,
    MembershipRequest,
    MembershipState,
    SiteReport,
)

# Reformation: what follows from the answers of the members, when something has failed. Decision 21, Where a formation
# resumes.
#
# Whether anything that was committed may be missing, and who is in the loop from now on.

RETRIES_FACTOR_MAX: Final = 8  # times the retries that the charter asks for


def highest_complete(reports: Collection[SiteReport]) -> int:
    """The highest token up to which one of these holds everything."""
    return max((each.complete_through for each in reports), default=0)


def commits_may_be_missing(formation: Formation, answered: Collection[SiteReport], silent: int) -> bool:
    """Whether something that was committed may be held by nobody who has answered.

    In a formation K + 1 members hold what is committed. What came before it is held by its keeper alone, until the
    others have caught up: where none of those who answer has it, it is missing however few are silent.
    """
    before = max((each.sequence for each in answered), default=0) < formation.first_sequence
    return before or silent > formation.survivable(highest_complete(answered))


def next_layout(
    formation: Formation,
    answered: Mapping[NodeId, SiteReport],
    reports: Mapping[NodeId, SiteReport],
    topology: Topology,
    *,
    retired: Collection[NodeId],
    suspected: bool,
) -> Formation:
    """Who has kept its memory stays, and the places of the others are passed by or taken.

    Where one was `accused` and nobody has failed, patience is raised (decision 28, Retry adaptation).
    """
    kept = [site for site, report in answered.items() if report.membership_state is MembershipState.FENCED]
    near = highest_complete(answered.values()) - LAG_MAX
    staying = [s for s, report in answered.items() if s in kept or report.complete_through >= near]
    leaving = {s for s in staying if s in retired or answered[s].request is MembershipRequest.WITHDRAW}
    staying = [site for site in staying if site not in leaving] or staying
    layout = formation
    failed = [member for member in formation.members if member not in staying]
    if topology.remedy is Remedy.REPLACE:
        for member in failed:
            substitute = _substitute(member, near, layout.members, reports, topology)
            if substitute is not None:
                layout = exchange(layout, member, substitute)
    left = [member for member in layout.members if member not in failed] or staying
    layout = with_members(layout, left)
    layout = replace(layout, resilience=topology.resilience_of(layout.members))
    nobody_failed = suspected and not failed and len(kept) == len(formation.members)
    return retime(layout, _with_more_retries(layout.timing, topology.primary.timing)) if nobody_failed else layout


def _substitute(
    failed: NodeId, near: int, members: Collection[NodeId], reports: Mapping[NodeId, SiteReport], topology: Topology
) -> NodeId | None:
    """An up-to-date site of the secondary loop that the failed one joined. 2001 §8."""
    homes = topology.homes()
    loops = {loop.number for loop in topology.loops if loop.junction == failed}
    candidates = [
        (report.complete_through, site)
        for site, report in reports.items()
        if homes.get(site) in loops and site not in members and report.complete_through >= near
    ]
    return max(candidates)[1] if candidates else None


def _with_more_retries(timing: Timing, wanted: Timing) -> Timing:
    raised = min(timing.retries_max + max(timing.retries_max // 4, 1), RETRIES_FACTOR_MAX * wanted.retries_max)
    return replace(timing, retries_max=max(raised, timing.retries_max))


FIRST_FORMATION_DELAY: Final = 3 * SECOND  # how long the first formation waits for sites that are not there


class Phase(Enum):
    """What a governor is doing."""

    EMPTY = "waiting for the first sites"
    STEADY = "steady"
    PLANNING = "preparing a formation that takes over"
    FENCING = "collecting what the members hold"
    RECORDING = "recording a formation"
    HALTED = "halted: more members are silent than the order can survive"


@dataclass(slots=True)
class SiteView:
    """What is known of one site."""

    report: SiteReport
    received_at: Instant
    notified_at: Instant = 0  # when it was last sent a formation or a fence


@dataclass(frozen=True, slots=True)
class FormationDecision:
    """One formation, why it was made, and how long that took: for the log, the status and the drills."""

    formation: Formation
    cause: str
    began_at: Instant
    decided_at: Instant
    silent: tuple[NodeId, ...] = ()


class PrimaryLoopCoordinator:
    """The primary loop, under one leader of the reformation servers."""

    def __init__(self, topology: Topology, *, me: NodeId, stripe: int, clock_bound: Callable[[], Duration]) -> None:
        self.topology = topology
        self.loop: LoopTopology = topology.primary
        self.phase = Phase.EMPTY
        self.formation: Formation | None = None
        self.proposal: Formation | None = None  # to be recorded
        self.outbox: list[tuple[NodeId, MembershipMessage]] = []
        self.decisions: list[FormationDecision] = []
        self.notices: list[str] = []
        self.known: dict[NodeId, SiteView] = {}
        self.retired: set[NodeId] = set()
        self.plan = 0  # the stripe plan that the operator ordered of this leader
        self.term = 0
        self._me = me
        self._stripe = stripe
        self._clock_bound = clock_bound
        self._homes = topology.homes()
        self._leases: dict[NodeId, Instant] = {}  # until when a member may act, by this server's clock
        self._cause = ""
        self._began_at: Instant = 0
        self._silent: tuple[NodeId, ...] = ()
        self._resumed = False  # the operator ordered to go on after a halt
        self._suspected = False  # the reformation under way began because a member was thought to have failed
        self._planned: PlannedChange | None = None
        self._planning_failures = 0  # in a row
        self._planning_failed_at: Instant = 0
        self._quiet_since: Instant = 0
        self._repeat_at: Instant = NEVER

    # Leadership.

    def lead(self, formation: Formation | None, term: int, now: Instant) -> None:
        """Take over. Whatever an earlier leader granted may still hold: wait it out."""
        self.term = term
        self.known.clear()
        self.proposal = None
        self._resumed = False
        self.plan = 0
        self._adopt(formation, now)
        self._began_at = now
        if formation is None:
            self.phase = Phase.EMPTY

    def _adopt(self, formation: Formation | None, now: Instant) -> None:
        self.formation = formation
        self.phase = Phase.STEADY
        self._planned = None
        self._quiet_since = now
        self._repeat_at = now
        if formation is not None:
            until = now + self._lease_length(formation)
            self._leases = dict.fromkeys(formation.members + formation.leaving, until)

    # What is heard.

    def receive_report(self, report: SiteReport, now: Instant) -> None:
        """A site says how it stands."""
        known = self.known.get(report.sender)
        if known is None:
            self.known[report.sender] = SiteView(report, now)
        else:
            known.report, known.received_at = report, now
        if self.formation is not None:
            self._respond(report, now)
        self.wake(now)

    def _respond(self, report: SiteReport, now: Instant) -> None:
        """Whoever is in an earlier formation is told of this one; whoever is in this one gets a lease."""
        formation = self.formation
        assert formation is not None
        if report.membership_state is MembershipState.NEWBORN or report.formation < formation.number:
            self._send_limited(report.sender, self._install(formation, final=True), now)
            return
        if report.formation > formation.number or self.phase not in (Phase.STEADY, Phase.PLANNING):
            return
        if report.membership_state in (MembershipState.MEMBER, MembershipState.OBSERVER):
            self._grant(report, formation, now)

    def _grant(self, report: SiteReport, formation: Formation, now: Instant) -> None:
        if report.sender in self._concerned(formation):
            self._leases[report.sender] = now + self._lease_length(formation)
        self.outbox.append(
            (
                report.sender,
                Grant(
                    self._stripe,
                    formation.number,
                    self._me,
                    0,
                    self.term,
                    report.asked_at,
                    now,
                    self._clock_bound(),
                    formation.timing.lease_period,
                ),
            )
        )

    @staticmethod
    def _lease_length(formation: Formation) -> Duration:
        return formation.timing.lease_period + lease_margin(formation.timing)

    # What falls due.

    def deadline(self) -> Instant:
        """When to look again."""
        if self.phase is Phase.EMPTY:
            return max(self._began_at + FIRST_FORMATION_DELAY, self._repeat_at) if self.known else NEVER
        if self.phase in (Phase.FENCING, Phase.HALTED, Phase.PLANNING):
            return min(self._repeat_at, self._planned.prepared_by if self._planned is not None else NEVER)
        if self.phase is Phase.STEADY and self.formation is not None:
            return min(self._repeat_at, min(self._leases[member] for member in self.formation.members))
        return NEVER

    def wake(self, now: Instant) -> None:
        """Look at what is known, and act on it."""
        match self.phase:
            case Phase.EMPTY:
                self._form_first(now)
            case Phase.STEADY:
                self._watch(now)
            case Phase.PLANNING:
                self._await_prepared(now)
            case Phase.FENCING | Phase.HALTED:
                self._collect(now)
            case Phase.RECORDING:
                pass

    # The first formation.

    def _form_first(self, now: Instant) -> None:
        """All sites of the tour are there, or have been waited for."""
        awaited = [site for site in self.loop.tour if site not in self.retired]
        present = [site for site in awaited if site in self.known]
        everyone = len(present) == len(awaited)
        if not present or not (everyone or now >= self._began_at + FIRST_FORMATION_DELAY):
            return
        reports = [self.known[site].report for site in present]
        keeper = max(reports, key=lambda each: each.complete_through)
        layout = Formation(
            number=1,
            members=tuple(present),
            timing=self.loop.timing,
            starts_at=0,
            resilience=self.topology.resilience_of(present),
            timed=self.topology.timed,
            request_sets=self.loop.request_sets,
        )
        # Sites that have a past, and a store that has none: it was lost, and with it the proof of what came last.
        number = max(each.formation for each in reports) + 1
        self._cause = "the first formation" if number == 1 else "the store has lost its formations"
        self._silent = ()
        self._propose_after(layout, number, keeper, now, broken=number > 1)

    # The watch.

    def _watch(self, now: Instant) -> None:
        formation = self.formation
        if formation is None:
            return
        cause = self._reason_to_reform(formation, now)
        if cause is not None:
            self._reform(cause, now)
            return
        self._repeat_install(formation, now)
        self._plan(formation, now)

    def _reason_to_reform(self, formation: Formation, now: Instant) -> str | None:
        for member in formation.members:
            known = self.known.get(member)
            if known is None or known.report.formation != formation.number:
                if self._leases.get(member, 0) <= now:
                    return f"site {member} never entered formation {formation.number}"
                continue
            report = known.report
            if report.membership_state is MembershipState.NEWBORN and self._leases.get(member, 0) > now:
                continue  # it is being told, and will say what it has lost
            if report.suspect_token:
                return f"site {member} reports site {report.suspect} at token {report.suspect_token}"
            if report.membership_state is MembershipState.FENCED:
                return f"site {member} is fenced"
            if report.membership_state is not MembershipState.MEMBER:
                return f"site {member} has lost its memory"
            if report.prepared:
                return f"site {member} is prepared for a formation that never came"
            if self._leases.get(member, 0) <= now:
                return f"site {member} is silent"
        return None

    def _repeat_install(self, formation: Formation, now: Instant) -> None:
        """Tell every member until each has confirmed."""
        if self._repeat_at > now:
            return
        behind = [
            member
            for member in formation.members
            if member not in self.known or self.known[member].report.formation < formation.number
        ]
        for member in behind:
            self._send_limited(member, self._install(formation, final=True), now)
        self._repeat_at = now + formation.timing.retry_period if behind else NEVER

    # Reformation.

    def _reform(self, cause: str, now: Instant) -> None:
        formation = self.formation
        assert formation is not None
        self.phase = Phase.FENCING
        self._cause = cause
        self._suspected = any(self._is_suspected(member, formation, now) for member in formation.members)
        self._began_at = self._repeat_at = now
        self._planned = None
        self.proposal = None
        self.notices.append(f"reforming after formation {formation.number}: {cause}")
        self._collect(now)

    def _is_suspected(self, member: NodeId, formation: Formation, now: Instant) -> bool:
        """Whether a member is silent, or says that another one is."""
        known = self.known.get(member)
        suspects = known is not None and known.report.formation == formation.number and known.report.suspect_token > 0
        return suspects or self._leases.get(member, 0) <= now

    def _collect(self, now: Instant) -> None:
        formation = self.formation
        assert formation is not None
        answered = self._answered(formation)
        unheard = [member for member in self._concerned(formation) if member not in answered]
        if self._repeat_at <= now:
            for member in unheard:
                known = self.known.get(member)
                behind = known is not None and (
                    known.report.formation < formation.number
                    or known.report.membership_state is MembershipState.NEWBORN
                )
                message: MembershipMessage = (
                    self._install(formation, final=True)
                    if behind
                    else Fence(self._stripe, formation.number, self._me, 0, self.term)
                )
                self.outbox.append((member, message))
            self._repeat_at = now + formation.timing.retry_period
        waited = now >= self._began_at + formation.timing.retry_period + formation.timing.one_way_max
        if not unheard or (waited and all(self._leases.get(member, 0) <= now for member in unheard)):
            self._decide(formation, answered, now)

    def _answered(self, formation: Formation) -> dict[NodeId, SiteReport]:
        """Members that do nothing more in this formation and say what they hold: from memory, or from their journal."""
        return self._answers_of(formation, self._concerned(formation))

    def _answers_of(self, formation: Formation, sites: Collection[NodeId]) -> dict[NodeId, SiteReport]:
        answered = {}
        for member in sites:
            known = self.known.get(member)
            if known is None or known.report.formation != formation.number:
                continue
            if known.report.membership_state in (MembershipState.FENCED, MembershipState.RESTARTED):
                answered[member] = known.report
        return answered

    def _concerned(self, formation: Formation) -> tuple[NodeId, ...]:
        """The members, and those who take their last turns before the first token of this formation."""
        return formation.relevant_sites(highest_complete(self._answers_of(formation, formation.members).values()))

    def _present(self, formation: Formation) -> dict[NodeId, SiteReport]:
        """Members that came back with journals which prove nothing: better than nothing, and never without a Break."""
        return {
            member: self.known[member].report
            for member in formation.members
            if member in self.known and self.known[member].report.formation == formation.number
        }

    def _decide(self, formation: Formation, answered: dict[NodeId, SiteReport], now: Instant) -> None:
        if not any(report.membership_state is MembershipState.FENCED for report in answered.values()):
            if now < self._began_at + FIRST_FORMATION_DELAY and len(answered) < len(self._concerned(formation)):
                return  # all were restarted: what one journal does not prove, another one may
            answered = answered or self._present(formation)
        silent = tuple(member for member in self._concerned(formation) if member not in self._answered(formation))
        broken = commits_may_be_missing(formation, answered.values(), len(silent))
        if not answered or (broken and self.topology.excess is Excess.HALT and not self._resumed):
            if self.phase is not Phase.HALTED:
                self.notices.append(
                    f"halted in formation {formation.number}: {len(silent)} members are silent {silent}, "
                    f"K is {formation.survivable(highest_complete(answered.values()))}"
                )
            self.phase = Phase.HALTED
            self._silent = silent
            return
        self._resumed = False
        self._silent = silent
        keeper = max(
            answered.values(), key=lambda each: (each.complete_through, each.membership_state is MembershipState.FENCED)
        )
        reports = {site: known.report for site, known in self.known.items()}
        layout = next_layout(
            formation, answered, reports, self.topology, retired=self.retired, suspected=self._suspected
        )
        retries, raised = formation.timing.retries_max, layout.timing.retries_max
        if raised > retries:
            self.notices.append(f"nobody had failed: patience goes from {retries} retries to {raised}")
        self._propose_after(layout, formation.number + 1, keeper, now, broken=broken)

    def _propose_after(self, layout: Formation, number: int, keeper: SiteReport, now: Instant, *, broken: bool) -> None:
        following = follow(
            layout,
            number=number,
            after=keeper.complete_through,
            sequence=keeper.sequence,
            keeper=keeper.sender,
            starts_at=now + layout.timing.one_way_max,
            broken=broken,
        )
        self._propose(following)

    def _propose(self, formation: Formation) -> None:
        roll = tuple(self.known[member].report.incarnation for member in formation.members)
        self.proposal = replace(formation, roll=roll)
        self.phase = Phase.RECORDING

    def recorded(self, formation: Formation, now: Instant) -> None:
        """The formation is in the store: it holds. Tell everyone."""
        self.decisions.append(FormationDecision(formation, self._cause, self._began_at, now, self._silent))
        del self.decisions[:-64]
        broken = "; the order has a Break" if formation.broken else ""
        gone = f", without {self._silent}" if self._silent else ""
        self.notices.append(f"formation {formation.number} of {formation.members}{gone}{broken}: {self._cause}")
        before = self.formation.members if self.formation is not None else ()
        self._silent = ()
        self.proposal = None
        self._adopt(formation, now)
        for site in dict.fromkeys((*formation.members, *before, *self.known)):
            self.outbox.append((site, self._install(formation, final=True)))
        self._repeat_at = now + formation.timing.retry_period

    # Relief: a formation that takes over in the course of the present one.

    def _plan(self, formation: Formation, now: Instant) -> None:
        if self._pauses_after_failure(formation, now) or not self._all_confirmed(formation):
            return
        planned = plan_change(
            formation,
            {site: known.report for site, known in self.known.items()},
            self.topology,
            retired=self.retired,
            quiet_since=self._quiet_since,
            failures=self._planning_failures,
            now=now,
            plan=self.plan,
        )
        if planned is not None:
            self._planned = planned
            self._cause = planned.cause
            self._began_at = self._repeat_at = now
            self.phase = Phase.PLANNING
            self._await_prepared(now)

    def _pauses_after_failure(self, formation: Formation, now: Instant) -> bool:
        """Whether the last one failed so lately that another one would only make things worse."""
        pause = 4 * lead_time(formation.timing, self._planning_failures)
        return self._planning_failures > 0 and 0 <= now - self._planning_failed_at < pause

    def _all_confirmed(self, formation: Formation) -> bool:
        """All members are in it, and hold what came before it: only then may another one take over."""
        reports = [self.known[member].report for member in formation.members if member in self.known]
        return len(reports) == len(formation.members) and all(
            each.formation == formation.number and each.complete_through >= formation.first_token - 1
            for each in reports
        )

    def _await_prepared(self, now: Instant) -> None:
        present, planned = self.formation, self._planned
        assert present is not None
        assert planned is not None
        missing = [
            site
            for site in dict.fromkeys((*present.members, *planned.formation.members))
            if site not in self.known or self.known[site].report.prepared != planned.formation.number
        ]
        trouble = self._planning_failure(present, planned, now)
        if trouble is not None:
            self._reform(trouble, now)
            return
        if not missing:
            self._planning_failures = 0
            self.proposal = planned.formation
            self.phase = Phase.RECORDING
            return
        if self._repeat_at <= now:
            for site in missing:
                self.outbox.append((site, self._install(planned.formation, final=False)))
            self._repeat_at = now + present.timing.retry_period

    def _planning_failure(self, present: Formation, planned: PlannedChange, now: Instant) -> str | None:
        if now >= planned.prepared_by:
            self._planning_failures = min(self._planning_failures + 1, FAILURES_MAX)
            self._planning_failed_at = now
            return "not all were prepared for a formation that was to take over"
        for member in present.members:
            report = self.known[member].report
            if (
                report.suspect_token
                or report.membership_state is not MembershipState.MEMBER
                or self._leases.get(member, 0) <= now
            ):
                return f"site {member} failed while a formation was prepared"
        return None

    # The operator.

    def retire(self, site: NodeId, now: Instant) -> None:
        """Take a site out of its loop, and keep it out."""
        self.retired.add(site)
        self.wake(now)

    def admit(self, site: NodeId, now: Instant) -> None:
        """Let a retired site in again."""
        self.retired.discard(site)
        self.wake(now)

    def change_plan(self, plan: int, now: Instant) -> None:
        """Let another stripe plan come into force with a formation that takes over."""
        self.plan = plan
        self.wake(now)

    def resume(self, now: Instant) -> None:
        """Go on after a halt, with a Break in the sequence."""
        if self.phase is Phase.HALTED:
            self._resumed = True
            self.wake(now)

    # Words.

    def _install(self, formation: Formation, *, final: bool) -> Install:
        layout = encode_formation(formation)
        return Install(self._stripe, formation.number, self._me, self.term, final, layout)

    def _send_limited(self, site: NodeId, message: MembershipMessage, now: Instant) -> None:
        """Not more often than a round trip takes."""
        known = self.known.get(site)
        if known is not None:
            if now - known.notified_at < self.loop.timing.retry_period // 2:
                return
            known.notified_at = now
        self.outbox.append((site, message))
