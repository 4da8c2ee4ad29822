"""The coordinator of the primary loop: what a reformation server does about this loop while it leads.

It acts on the reports of the sites. A member that suspects another, is silent, was restarted or is fenced causes a
*reformation*: the coordinator fences all members, collects what they hold, waits for the leases of silent ones to end,
and installs a formation that follows the last token that a survivor holds completely (decision 21, Where a formation
resumes). Sites that join or leave, or are late, cause a *planned change*: the coordinator proposes a formation that
takes over at a future token, and once all have prepared for it the ring changes without a stop. In both cases the
formation is recorded in the store before any site is informed.

Sources are not involved: they cannot cause a reformation.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from fairtape.core.instants import NEVER, SECOND, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.nodes.coordinator.pace import PaceControl, describe_change, slower
from fairtape.nodes.coordinator.planned_change import FAILURES_MAX, LAG_MAX, PlannedChange, lead_time, plan_change
from fairtape.nodes.coordinator.roll import lost_journal, with_roll
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

RETRIES_FACTOR_MAX: Final = 8  # retry adaptation raises retries to at most this multiple of the topology's
FIRST_FORMATION_DELAY: Final = 3 * SECOND  # how long the first formation waits for absent sites
DECISIONS_MAX: Final = 64  # kept for the status
REPEATS_AHEAD: Final = 4  # a planned formation is resent after this part of the time until it takes over

# What follows from the reports of the members after a failure (decision 21, Where a formation resumes).


def highest_complete(reports: Collection[SiteReport]) -> int:
    """The highest token up to which one of these sites holds everything."""
    return max((each.complete_through for each in reports), default=0)


def commits_may_be_missing(formation: Formation, answered: Collection[SiteReport], silent: int) -> bool:
    """Whether committed messages may be held by none of the sites that have answered.

    In a formation, K + 1 members hold what is committed. What came before it is held only by its keeper, until the
    others have caught up: if no site that answered has it, it is missing however few sites are silent.
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
    """Members that kept their memory, or are nearly complete, stay; the others are bypassed or replaced.

    If a member was `suspected` and none has failed, retries are raised (decision 28, Retry adaptation), and the token
    is slowed where the operator allows it (decision 51, Pace).
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
    none_failed = suspected and not failed and len(kept) == len(formation.members)
    if not none_failed:
        return layout
    return retime(layout, slower(_with_more_retries(layout.timing, topology.primary.timing), topology))


def _substitute(
    failed: NodeId, near: int, members: Collection[NodeId], reports: Mapping[NodeId, SiteReport], topology: Topology
) -> NodeId | None:
    """An up-to-date site of the secondary loop whose junction the failed site was. 2001 §8."""
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


class Phase(Enum):
    """What a coordinator is doing."""

    EMPTY = "waiting for the first sites"
    STEADY = "steady"
    PLANNING = "preparing a formation that takes over"
    FENCING = "collecting what the members hold"
    RECORDING = "recording a formation"
    HALTED = "halted: more members are silent than the order can survive"


@dataclass(slots=True)
class SiteView:
    """The latest report of one site."""

    report: SiteReport
    received_at: Instant
    notified_at: Instant = 0  # when it was last sent a formation
    lost_journal: int = 0  # the formation in which it restarted with less than it had; 0: none


@dataclass(frozen=True, slots=True)
class FormationDecision:
    """One formation, its cause and its duration, for the log, the status and drills."""

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
        self.proposal: Formation | None = None  # waits to be recorded
        self.outbox: list[tuple[NodeId, MembershipMessage]] = []
        self.decisions: list[FormationDecision] = []
        self.notices: list[str] = []
        self.known: dict[NodeId, SiteView] = {}
        self.retired: set[NodeId] = set()
        self.plan = 0  # the stripe plan that the operator ordered
        self.term = 0
        self._me = me
        self._stripe = stripe
        self._clock_bound = clock_bound
        self._homes = topology.homes()
        self._leases: dict[NodeId, Instant] = {}  # when each member's lease ends, by this server's clock
        self._cause = ""
        self._began_at: Instant = 0
        self._silent: tuple[NodeId, ...] = ()
        self._resumed = False  # the operator ordered to continue after a halt
        self._suspected = False  # the current reformation began because a member was suspected
        self._planned: PlannedChange | None = None
        self._pace = PaceControl(topology)
        self._planning_failures = 0  # in a row
        self._planning_failed_at: Instant = 0
        self._quiet_since: Instant = 0
        self._repeat_at: Instant = NEVER

    # Leadership.

    def lead(self, formation: Formation | None, term: int, now: Instant) -> None:
        """Start to lead. Leases of an earlier leader may still be valid, so assume that all are."""
        self.term = term
        self.known.clear()
        self.proposal = None
        self._resumed = False
        self.plan = 0
        self._pace.lead()
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
            self._pace.begin(formation.timing, now)
            until = now + self._lease_length(formation)
            self._leases = dict.fromkeys(formation.members + formation.leaving, until)

    # Reports.

    def receive_report(self, report: SiteReport, now: Instant) -> None:
        known = self.known.get(report.sender)
        if known is None:
            self.known[report.sender] = SiteView(report, now)
        else:
            if lost_journal(known.report, report):
                known.lost_journal = report.formation
            known.report, known.received_at = report, now
        if self.formation is not None:
            self._respond(report, now)
        self.wake(now)

    def _respond(self, report: SiteReport, now: Instant) -> None:
        """A site in an earlier formation is sent this one; a site in this one gets a lease."""
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

    # Timers.

    def deadline(self) -> Instant:
        """When to call `wake`."""
        if self.phase is Phase.EMPTY:
            return max(self._began_at + FIRST_FORMATION_DELAY, self._repeat_at) if self.known else NEVER
        if self.phase in (Phase.FENCING, Phase.HALTED, Phase.PLANNING):
            return min(self._repeat_at, self._planned.prepared_by if self._planned is not None else NEVER)
        if self.phase is Phase.STEADY and self.formation is not None:
            return min(self._repeat_at, min(self._leases[member] for member in self.formation.members))
        return NEVER

    def wake(self, now: Instant) -> None:
        """Act on the reports and the time."""
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
        """Propose the first formation once all sites of the tour have reported, or after a delay."""
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
        # Sites with a history and a store without one: the store was lost, and with it the proof of the last formation.
        number = max(each.formation for each in reports) + 1
        self._cause = "the first formation" if number == 1 else "the store has lost its formations"
        self._silent = ()
        self._propose_after(layout, number, keeper, now, broken=number > 1)

    # Watching.

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
                continue  # it is being sent the formation, and will report what it lost
            if report.suspect_token:
                return f"site {member} reports site {report.suspect} at token {report.suspect_token}"
            if report.membership_state is MembershipState.FENCED:
                return f"site {member} is fenced"
            if report.membership_state is not MembershipState.MEMBER:
                return f"site {member} was restarted"
            if report.prepared:
                return f"site {member} is prepared for a formation that never came"
            if self._leases.get(member, 0) <= now:
                return f"site {member} is silent"
        return None

    def _repeat_install(self, formation: Formation, now: Instant) -> None:
        """Resend the formation to members until each has confirmed.

        A site confirms when the formation takes over. A planned one is known long before, and is resent the more often
        the sooner it takes over: sites that are short of time get another pace, and must not be loaded by it.
        """
        if self._repeat_at > now:
            return
        behind = [
            member
            for member in formation.members
            if member not in self.known or self.known[member].report.formation < formation.number
        ]
        for member in behind:
            self._send_limited(member, self._install(formation, final=True), now)
        period = max(formation.timing.retry_period, (formation.starts_at - now) // REPEATS_AHEAD)
        self._repeat_at = now + period if behind else NEVER

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
        """Whether a member is silent, or suspects another one."""
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
        """Members that have stopped in this formation and report what they hold, from memory or from their journal."""
        return self._answers_of(formation, self._concerned(formation))

    def _answers_of(self, formation: Formation, sites: Collection[NodeId]) -> dict[NodeId, SiteReport]:
        answered = {}
        for member in sites:
            known = self.known.get(member)
            if known is None or known.report.formation != formation.number:
                continue
            if known.report.membership_state is MembershipState.FENCED or self._answers_for(known, formation):
                answered[member] = known.report
        return answered

    @staticmethod
    def _answers_for(known: SiteView, formation: Formation) -> bool:
        """Whether the journal of a restarted member proves what it held (decision 52, Identity of a journal)."""
        report = known.report
        return (
            report.membership_state is MembershipState.RESTARTED
            and formation.has_journal(report.sender, report.journal)
            and known.lost_journal != formation.number
        )

    def _concerned(self, formation: Formation) -> tuple[NodeId, ...]:
        """The members, and the sites that take their last turns before the first token of this formation."""
        return formation.relevant_sites(highest_complete(self._answers_of(formation, formation.members).values()))

    def _present(self, formation: Formation) -> dict[NodeId, SiteReport]:
        """Members that restarted with journals that prove nothing: a last resort, and always with a Break."""
        return {
            member: self.known[member].report
            for member in formation.members
            if member in self.known and self.known[member].report.formation == formation.number
        }

    def _decide(self, formation: Formation, answered: dict[NodeId, SiteReport], now: Instant) -> None:
        if not any(report.membership_state is MembershipState.FENCED for report in answered.values()):
            if now < self._began_at + FIRST_FORMATION_DELAY and len(answered) < len(self._concerned(formation)):
                return  # all were restarted: wait for other journals (decision 26, All members restarted)
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
            self.notices.append(f"no site had failed: retries_max is raised from {retries} to {raised}")
        if layout.timing.token_period > formation.timing.token_period:
            self.notices.append(describe_change(formation.timing, layout.timing, "no site had failed"))
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
        self.proposal = with_roll(formation, {site: known.report for site, known in self.known.items()})
        self.phase = Phase.RECORDING

    def recorded(self, formation: Formation, now: Instant) -> None:
        """The store has recorded the formation: send it to all sites."""
        self.decisions.append(FormationDecision(formation, self._cause, self._began_at, now, self._silent))
        del self.decisions[:-DECISIONS_MAX]
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

    # Planned changes.

    def _plan(self, formation: Formation, now: Instant) -> None:
        if self._pauses_after_failure(formation, now) or not self._all_confirmed(formation):
            return
        reports = {site: known.report for site, known in self.known.items()}
        self._pace.count([reports[member] for member in formation.members], now)
        planned = plan_change(
            formation,
            reports,
            self.topology,
            retired=self.retired,
            quiet_since=self._quiet_since,
            failures=self._planning_failures,
            now=now,
            plan=self.plan,
            pace=self._pace.wanted(formation.timing, now),
            pace_cause=self._pace.cause,
        )
        if planned is not None:
            self._planned = planned
            self._cause = planned.cause
            self._began_at = self._repeat_at = now
            self.phase = Phase.PLANNING
            self._await_prepared(now)

    def _pauses_after_failure(self, formation: Formation, now: Instant) -> bool:
        """Whether the last planned change failed so recently that the next one must wait."""
        pause = 4 * lead_time(formation.timing, self._planning_failures)
        return self._planning_failures > 0 and 0 <= now - self._planning_failed_at < pause

    def _all_confirmed(self, formation: Formation) -> bool:
        """Whether all members are in this formation and hold everything before it, as a planned change requires."""
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
            if site not in self.known or self.known[site].report.proposal != planned.proposal
        ]
        failure = self._planning_failure(present, planned, now)
        if failure is not None:
            self._reform(failure, now)
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
        """Remove a site from its loop and keep it out."""
        self.retired.add(site)
        self.wake(now)

    def admit(self, site: NodeId, now: Instant) -> None:
        """Allow a retired site to join again."""
        self.retired.discard(site)
        self.wake(now)

    def change_plan(self, plan: int, now: Instant) -> None:
        """Activate another stripe plan by a planned change."""
        self.plan = plan
        self.wake(now)

    def resume(self, now: Instant) -> None:
        """Continue after a halt, with a Break in the order."""
        if self.phase is Phase.HALTED:
            self._resumed = True
            self.wake(now)

    # Messages.

    def _install(self, formation: Formation, *, final: bool) -> Install:
        layout = encode_formation(formation)
        return Install(self._stripe, formation.number, self._me, self.term, final, layout)

    def _send_limited(self, site: NodeId, message: MembershipMessage, now: Instant) -> None:
        """Send a message, at most once per round trip."""
        known = self.known.get(site)
        if known is not None:
            if now - known.notified_at < self.loop.timing.retry_period // 2:
                return
            known.notified_at = now
        self.outbox.append((site, message))
