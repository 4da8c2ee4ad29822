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
from fairtape.core.timing import RETRIES_MAX, Timing
from fairtape.nodes.coordinator.exclusion import Exclusions
from fairtape.nodes.coordinator.followed_stores import FollowedStores
from fairtape.nodes.coordinator.lost_store import is_complete, is_lost, keeper_of, next_number
from fairtape.nodes.coordinator.pace import PaceControl, describe_change, paced
from fairtape.nodes.coordinator.planned_change import FAILURES_MAX, PlannedChange, lead_time, plan_change
from fairtape.nodes.coordinator.reformation import (
    RETRIES_FACTOR_MAX,
    accused_member,
    commits_may_be_missing,
    has_declared,
    highest_complete,
    next_layout,
    survivable,
    survivable_after,
    suspected_member,
)
from fairtape.nodes.coordinator.roll import Holding, lost_journal, most_held, with_roll
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import encode_formation
from fairtape.ring.membership.reconfiguration import follow
from fairtape.ring.membership.topology import Excess, LoopTopology, Topology, lease_margin
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

FIRST_FORMATION_DELAY: Final = 3 * SECOND  # how long the first formation waits for absent sites
DECISIONS_MAX: Final = 64  # kept for the status
NEEDLESS_PERIOD: Final = 10  # leases for which a reformation in which no site had failed makes the next one careful
REPEATS_AHEAD: Final = 4  # a planned formation is resent after this part of the time until it takes over


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
    held: Holding | None = None  # the most that it has reported


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
        self.stores = FollowedStores()
        self.waits = False  # with a member that is accused again and again, and may not leave
        self.recording_delay: Duration = 0  # how long the store may take to record a formation
        self._me = me
        self._stripe = stripe
        self._clock_bound = clock_bound
        self._homes = topology.homes()
        self._leases: dict[NodeId, Instant] = {}  # when each member's lease ends, by this server's clock
        self._cause = ""
        self._began_at: Instant = 0
        self._silent: tuple[NodeId, ...] = ()
        self._resumed = False  # the operator ordered to continue after a halt
        self._led_since: Instant = 0
        self._recovers = False  # the store has lost formations that sites know
        self._suspected = False  # the current reformation began because a member was suspected
        self._needless_at: Instant = -NEVER  # when a reformation found last that no site had failed
        self._accused_at: Instant | None = None  # when a member of the present formation was accused first
        self._exclusions = Exclusions()
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
        self._needless_at = -NEVER
        self._exclusions.clear()
        self._pace.lead()
        self._adopt(formation, now)
        self._began_at = self._led_since = now
        if formation is None:
            self.phase = Phase.EMPTY

    def _adopt(self, formation: Formation | None, now: Instant) -> None:
        self.formation = formation
        self.phase = Phase.STEADY
        self.waits = False
        self._recovers = False
        self._planned = None
        self._accused_at = None
        self._quiet_since = now
        self._repeat_at = now
        if formation is not None:
            self._pace.begin(formation.timing, now)
            for known in self.known.values():
                known.held = known.held and known.held.within(formation)
            until = now + self._lease_length(formation)
            self._leases = dict.fromkeys(formation.members + formation.leaving, until)

    # Reports.

    def receive_report(self, report: SiteReport, now: Instant) -> None:
        known = self.known.get(report.sender)
        if known is None:
            self.known[report.sender] = SiteView(report, now)
        else:
            known.report, known.received_at = report, now
        self._remember(self.known[report.sender])
        lost = is_lost(report, self.formation) or self.stores.is_declared_lost(report.store)
        if self.phase is not Phase.RECORDING and not self._recovers and lost:
            self._begin_recovery(report, now)
        if self.formation is not None and not self._recovers:
            self._respond(report, now)
        self.wake(now)

    def _remember(self, known: SiteView) -> None:
        """What a site holds, and whether it has lost a part of it (decision 52, Identity of a journal)."""
        if self.formation is None:
            return
        if lost_journal(known.held, known.report):
            known.lost_journal = self.formation.number
        known.held = most_held(known.held, known.report, self.formation)

    def _respond(self, report: SiteReport, now: Instant) -> None:
        """A site in an earlier formation is sent this one; a site in this one gets a lease."""
        formation = self.formation
        assert formation is not None
        if report.membership_state is MembershipState.NEWBORN or report.formation < formation.number:
            self._send_limited(report.sender, self._install(report.sender, formation, final=True), now)
            return
        if report.formation > formation.number:
            return
        if self.phase not in (Phase.STEADY, Phase.PLANNING) and self._planned is None:
            return  # while a planned change is recorded the ring goes on, however long that takes
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
                    self._store_of(report.sender),
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
            leases_end_at = min(self._leases[member] for member in self.formation.members)
            return min(self._repeat_at, leases_end_at, self._accusations_until(self.formation))
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
                if self._recovers:
                    self._recover(now)
                else:
                    self._collect(now)
            case Phase.RECORDING:
                pass

    # The first formation.

    def _form_first(self, now: Instant) -> None:
        """Propose the first formation once all sites of the tour have reported, or after a delay."""
        awaited = [site for site in self.loop.tour if site not in self.retired]
        present = [site for site in awaited if site in self.known]
        everyone = len(present) == len(awaited)
        if not present:
            self._repeat_at = now + self.loop.timing.report_period
        if not present or not (everyone or now >= self._began_at + FIRST_FORMATION_DELAY):
            return
        if self.stores.others or self.stores.adopts:
            self._repeat_at = now + self.loop.timing.report_period
            return  # the sites have an order already, by another store (decision 63, One store)
        least = self.topology.least_resilience
        if self.topology.resilience_of(present) < least and not self._resumed:
            self._repeat_at = now + self.loop.timing.report_period
            return
        self._resumed = False
        self._cause = "the first formation"
        self._silent = ()
        layout = self._layout_of(present)
        keeper = self.known[present[0]].report
        self._propose_after(layout, 1, keeper, now, broken=False, resilience_before=layout.resilience)

    def _layout_of(self, members: Collection[NodeId]) -> Formation:
        """A formation of these members with the timing of the topology."""
        return Formation(
            number=1,
            members=tuple(members),
            timing=self.loop.timing,
            starts_at=0,
            resilience=self.topology.resilience_of(tuple(members)),
            timed=self.topology.timed,
            request_sets=self.loop.request_sets,
        )

    # A store that has lost formations (decision 69, Lost formations).

    def _begin_recovery(self, report: SiteReport, now: Instant) -> None:
        recorded = self.formation.number if self.formation is not None else 0
        self._recovers = True
        self.phase = Phase.FENCING
        self._planned = None
        self._cause = f"the store has lost formations after {recorded}"
        self._began_at = self._repeat_at = now
        if self.stores.is_declared_lost(report.store):
            self._led_since = now  # a leader of that store may have granted leases until now
        self.notices.append(f"{self._cause}: site {report.sender} is in formation {report.formation}")

    def _recover(self, now: Instant) -> None:
        """Stop all sites, and continue from what the members of the latest formation hold.

        Who they were is lost. So a site that does not answer is waited for as long as any lease of an earlier leader
        may last, and for as long as the first formation waits.
        """
        reports = {site: known.report for site, known in self.known.items()}
        if self._repeat_at <= now:
            for site, report in reports.items():
                if report.membership_state in (MembershipState.MEMBER, MembershipState.OBSERVER):
                    self.outbox.append((site, self._fence(site, report.formation)))
            self._repeat_at = now + self.loop.timing.retry_period
        everyone = all(site in reports for site in self._homes if site not in self.retired)
        acting = any(each.membership_state is MembershipState.MEMBER for each in reports.values())
        if (acting or not everyone) and now < self._old_leases_end_at():
            return
        present = [site for site in self.loop.tour if site in reports and site not in self.retired]
        if not present:
            return
        absent = [site for site in self.loop.tour if site in reports and site in self.retired]
        keeper = keeper_of([reports[site] for site in (*present, *absent)])
        present = [site for site in self.loop.tour if site in present or site == keeper.sender]
        complete = is_complete(reports, self.topology)
        obstacle = self._obstacle_to_recovery(present, complete=complete)
        if obstacle is not None and not (self._resumed or self.stores.adopts):
            self._halt(f"halted: {obstacle}", ())
            return
        self._resumed = False
        self._silent = ()
        recorded = self.formation.number if self.formation is not None else 0
        number = next_number(recorded, reports.values(), everyone=everyone)
        plan = self.plan or (self.formation.plan if self.formation is not None else 0)
        layout = replace(self._layout_of(present), plan=plan)
        self._propose_after(layout, number, keeper, now, broken=not complete)

    def _old_leases_end_at(self) -> Instant:
        """When all leases have ended that an earlier leader may have granted in a formation that is lost."""
        timing = self.loop.timing
        longest = replace(timing, retries_max=min(RETRIES_FACTOR_MAX * timing.retries_max, RETRIES_MAX))
        leases = [*self._leases.values(), self._led_since + longest.lease_period + lease_margin(longest)]
        return max(*leases, self._led_since + FIRST_FORMATION_DELAY)

    def _obstacle_to_recovery(self, present: Collection[NodeId], *, complete: bool) -> str | None:
        """Why the order may not go on without the operator."""
        if self.topology.excess is Excess.HALT and not complete:
            return f"{self._cause}, and with them the proof that nothing is lost"
        least, resilience = self.topology.least_resilience, self.topology.resilience_of(tuple(present))
        return None if resilience >= least else f"K would be {resilience}, and must be at least {least}"

    # Watching.

    def _watch(self, now: Instant) -> None:
        formation = self.formation
        if formation is None:
            return
        cause = self._reason_to_reform(formation, now)
        if cause is not None:
            self._reform(cause, now)
            return
        if now >= self._accusations_until(formation):
            self._accused_at = None  # the accuser has restarted, or an earlier report of it has arrived later
        self._repeat_install(formation, now)
        self._plan(formation, now)

    def _reason_to_reform(self, formation: Formation, now: Instant) -> str | None:
        reasons = (self._failure_of(member, formation, now) for member in formation.members)
        stopped = self._stopped_while_leaving(formation) or self._common_suspicion(formation)
        return next((reason for reason in reasons if reason is not None), stopped)

    def _stopped_while_leaving(self, formation: Formation) -> str | None:
        """A leader that has failed since may have fenced this one alone: only a formation lets it go on."""
        reports = [self.known[site].report for site in formation.leaving if site in self.known]
        stopped = [
            each.sender
            for each in reports
            if each.formation == formation.number and each.membership_state is MembershipState.FENCED
        ]
        return f"site {stopped[0]} is fenced" if stopped else None

    def _common_suspicion(self, formation: Formation) -> str | None:
        """Several members suspect one: that is enough before any of them has declared a failure."""
        reports = [self.known[member].report for member in formation.members if member in self.known]
        suspect = suspected_member(formation, [each for each in reports if each.formation == formation.number])
        return None if suspect is None else f"most members suspect site {suspect}"

    def _failure_of(self, member: NodeId, formation: Formation, now: Instant) -> str | None:
        """What a member reports, or does not report, that needs a reformation."""
        known = self.known.get(member)
        lease_ended = self._leases.get(member, 0) <= now
        if known is None or known.report.formation != formation.number:
            return f"site {member} never entered formation {formation.number}" if lease_ended else None
        report = known.report
        if report.membership_state is MembershipState.NEWBORN and not lease_ended:
            return None  # it is being sent the formation, and will report what it lost
        if has_declared(report) and not self._awaits_accusations(formation, now):
            return f"site {member} reports site {report.suspect} at token {report.suspect_token}"
        if report.membership_state is MembershipState.FENCED:
            return f"site {member} is fenced"
        if report.membership_state is not MembershipState.MEMBER:
            return f"site {member} was restarted"
        if report.prepared:
            return f"site {member} is prepared for a formation that never came"
        return f"site {member} is silent" if lease_ended else None

    def _awaits_accusations(self, formation: Formation, now: Instant) -> bool:
        """Whether other members get time to say whom they suspect (decision 55, Accused members).

        After a reformation in which no site had failed, one accusation is not followed at once: the accuser itself may
        be the one that does not receive, and the others find that out within a round of the token.
        """
        if not self._is_repeated(formation, now):
            return False
        if self._accused_at is None or now < self._accused_at:
            self._accused_at = now
        return now < self._accusations_until(formation)

    def _accusations_until(self, formation: Formation) -> Instant:
        timing = formation.timing
        round_period = len(formation.members) * timing.token_period + timing.retry_period
        return NEVER if self._accused_at is None else self._accused_at + round_period

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
            self._send_limited(member, self._install(member, formation, final=True), now)
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
                    self._install(member, formation, final=True) if behind else self._fence(member, formation.number)
                )
                self.outbox.append((member, message))
            self._repeat_at = now + formation.timing.retry_period
        if not any(self._may_still_answer(member, formation, now) for member in unheard):
            self._decide(formation, answered, now)

    def _may_still_answer(self, member: NodeId, formation: Formation, now: Instant) -> bool:
        """Whether to wait for a member: while its lease lasts, and for a fence and its answer if it was heard since."""
        if self._leases.get(member, 0) > now:
            return True
        known, timing = self.known.get(member), formation.timing
        if now >= self._began_at + timing.retry_period + timing.one_way_max:
            return False
        return known is None or now - known.received_at < timing.lease_period

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
        """Members that restarted with journals that prove nothing: a last resort, and always with a Break.

        One whose journal is not durable observes. Who has not reported since may have died: the report of a dead member
        says nothing of what its journal holds.
        """
        heard = {member: self.known[member] for member in formation.members if member in self.known}
        return {
            member: known.report
            for member, known in heard.items()
            if known.report.formation == formation.number
            and known.report.membership_state in (MembershipState.RESTARTED, MembershipState.OBSERVER)
            and known.received_at >= self._began_at
        }

    def _decide(self, formation: Formation, answered: dict[NodeId, SiteReport], now: Instant) -> None:
        if not any(report.membership_state is MembershipState.FENCED for report in answered.values()):
            if now < self._began_at + FIRST_FORMATION_DELAY and len(answered) < len(self._concerned(formation)):
                return  # all were restarted: wait for other journals (decision 26, All members restarted)
            answered = answered or self._present(formation)
        if not answered:
            self._resumed = False  # there is nothing to go on with: a later command may
            self._halt(f"halted in formation {formation.number}: no member answers", self._concerned(formation))
            return
        silent = tuple(member for member in self._concerned(formation) if member not in self._answered(formation))
        broken = commits_may_be_missing(formation, answered.values(), silent)
        accused = accused_member(formation, answered, repeated=self._is_repeated(formation, now))
        layout = next_layout(
            formation,
            answered,
            {site: known.report for site, known in self.known.items()},
            self.topology,
            retired=self.retired,
            suspected=self._suspected,
            excluded=self._exclude_failed(formation, answered, accused, now),
            accused=accused,
        )
        obstacle = self._obstacle(formation, answered, silent, layout)
        if obstacle is not None and not self._resumed:
            self._halt(f"halted in formation {formation.number}: {obstacle}", silent)
            return
        if accused is not None and accused in layout.members and self._waits_with(answered[accused], formation, now):
            return
        self._resumed = False
        self._silent = silent
        self._announce_timing(formation.timing, layout.timing)
        keeper = max(
            (report for site, report in answered.items() if site in layout.members),
            key=lambda each: (each.complete_through, each.membership_state is MembershipState.FENCED),
        )
        gone = sum(member not in layout.members for member in self._concerned(formation))
        losses = 0 if broken else survivable_after(formation, answered.values(), gone)
        self._propose_after(layout, formation.number + 1, keeper, now, broken=broken, resilience_before=losses)

    def _waits_with(self, accused: SiteReport, formation: Formation, now: Instant) -> bool:
        """Whether to wait with a member that may not leave: the next formation would end in the same way."""
        if accused.membership_state is not MembershipState.FENCED:
            return False  # it was restarted, so that may have changed
        if not self._exclusions.holds_up(accused.sender, formation.timing.lease_period, now):
            return False
        if not self.waits:
            self.notices.append(f"site {accused.sender} is accused again and may not leave: the order waits")
        self.waits = True
        return True

    def _obstacle(
        self,
        formation: Formation,
        answered: dict[NodeId, SiteReport],
        silent: tuple[NodeId, ...],
        layout: Formation,
    ) -> str | None:
        """Why the order may not go on without the operator."""
        if self.topology.excess is Excess.HALT and commits_may_be_missing(formation, answered.values(), silent):
            losses = min(survivable(formation, answered.values()), formation.resilience)
            return f"{len(silent)} members are silent {silent}, K is {losses}"
        least = self.topology.least_resilience
        if layout.resilience < min(least, formation.resilience):
            return f"K would be {layout.resilience} with members {layout.members}, and must be at least {least}"
        return None

    def _halt(self, notice: str, silent: tuple[NodeId, ...]) -> None:
        if self.phase is not Phase.HALTED:
            self.notices.append(notice)
        self.phase = Phase.HALTED
        self._silent = silent

    def _exclude_failed(
        self, formation: Formation, answered: Mapping[NodeId, SiteReport], accused: NodeId | None, now: Instant
    ) -> set[NodeId]:
        """Note which members failed. Returns those that failed so often that they do not stay."""
        kept = {site for site, report in answered.items() if report.membership_state is MembershipState.FENCED}
        failed = [site for site in formation.members if site not in kept or site == accused]
        if kept:  # otherwise all were restarted: that is no failure of one of them
            for site in failed:
                leaves = site in self.retired or self._withdraws(answered.get(site))
                if site == accused or not leaves:
                    lease = formation.timing.lease_period
                    self.notices += self._exclusions.failed(site, formation.number, lease, now)
        if self._suspected and kept.issuperset(formation.members):
            self._needless_at = now
        return self._exclusions.among(formation.members, now)

    def _announce_timing(self, timing: Timing, following: Timing) -> None:
        if following.retries_max > timing.retries_max:
            self.notices.append(
                f"no site had failed: retries_max is raised from {timing.retries_max} to {following.retries_max}"
            )
        if following.token_period > timing.token_period:
            self.notices.append(describe_change(timing, following, "no site had failed"))

    @staticmethod
    def _withdraws(report: SiteReport | None) -> bool:
        return report is not None and report.request is MembershipRequest.WITHDRAW

    def _is_repeated(self, formation: Formation, now: Instant) -> bool:
        """Whether a reformation found a short time ago that no site had failed."""
        return 0 <= now - self._needless_at < NEEDLESS_PERIOD * formation.timing.lease_period

    def _propose_after(
        self,
        layout: Formation,
        number: int,
        keeper: SiteReport,
        now: Instant,
        *,
        broken: bool,
        resilience_before: int = 0,
    ) -> None:
        # A ring that begins late makes up for it. A store that is slow for its Δ_R must not use it up.
        recording_delay = max(self.recording_delay - layout.timing.reform_delay // 4, 0)
        following = follow(
            layout,
            number=number,
            after=keeper.complete_through,
            sequence=keeper.sequence,
            keeper=keeper.sender,
            starts_at=max(now + layout.timing.one_way_max + recording_delay, self._paused_until(layout, keeper, now)),
            broken=broken,
            resilience_before=resilience_before,
        )
        self._propose(following)

    def _paused_until(self, layout: Formation, keeper: SiteReport, now: Instant) -> Instant:
        """When the schedule goes on after a planned change that sped the token up, and never came into effect.

        The last token is then one of a slower formation, and commits before those that follow (decision 51, Pace).
        """
        formation = self.formation
        if formation is None or keeper.complete_through >= formation.first_token:
            return now
        slowest = paced(layout.timing, self.topology, self.topology.pace_max)
        return min(formation.starts_at, now + slowest.commit_delay - layout.timing.commit_delay)

    def _propose(self, formation: Formation) -> None:
        rolled = with_roll(formation, {site: known.report for site, known in self.known.items()})
        self.proposal = replace(rolled, stores=self.stores.identities)
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
        self.stores.recorded(formation)
        self._adopt(formation, now)
        for site in dict.fromkeys((*formation.members, *before, *self.known)):
            self.outbox.append((site, self._install(site, formation, final=True)))
        self._repeat_at = now + formation.timing.retry_period

    # Planned changes.

    def _plan(self, formation: Formation, now: Instant) -> None:
        if self._pauses_after_failure(formation, now) or not self._all_confirmed(formation):
            return
        reports = {site: known.report for site, known in self.known.items()}
        self._pace.count([reports[member] for member in formation.members], now)
        planned = plan_change(
            replace(formation, stores=self.stores.identities),  # a formation of an older release names none
            reports,
            self.topology,
            retired=self.retired,
            excluded=self._exclusions.among(self.known, now),
            quiet_since=self._quiet_since,
            failures=self._planning_failures,
            recording_delay=2 * self.recording_delay,  # what caused it may have to be recorded, too
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
        pause = 4 * lead_time(formation.timing, self._planning_failures, 2 * self.recording_delay)
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
                self.outbox.append((site, self._install(site, planned.formation, final=False)))
            self._repeat_at = now + present.timing.retry_period

    def _planning_failure(self, present: Formation, planned: PlannedChange, now: Instant) -> str | None:
        if now >= planned.prepared_by:
            self._planning_failures = min(self._planning_failures + 1, FAILURES_MAX)
            self._planning_failed_at = now
            return "not all were prepared for a formation that was to take over"
        for member in present.members:
            known = self.known.get(member)
            if (
                known is None
                or has_declared(known.report)
                or known.report.membership_state is not MembershipState.MEMBER
                or self._leases.get(member, 0) <= now
            ):
                return f"site {member} failed while a formation was prepared"
        return self._common_suspicion(present)

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
        if self.phase in (Phase.HALTED, Phase.EMPTY):
            self._resumed = True
            self.wake(now)

    # Messages.

    def _install(self, site: NodeId, formation: Formation, *, final: bool) -> Install:
        layout = encode_formation(formation)
        return Install(self._stripe, formation.number, self._me, self.term, final, layout, self._store_of(site))

    def _fence(self, site: NodeId, formation: int) -> Fence:
        return Fence(self._stripe, formation, self._me, 0, self.term, self._store_of(site))

    def _store_of(self, site: NodeId) -> int:
        """In whose name to send to a site: that of the store that it follows, which may be one that was replaced."""
        known = self.known.get(site)
        return (known.report.store if known is not None else 0) or self.stores.own

    def _send_limited(self, site: NodeId, message: MembershipMessage, now: Instant) -> None:
        """Send a message, at most once per round trip."""
        known = self.known.get(site)
        if known is not None:
            if now - known.notified_at < self.loop.timing.retry_period // 2:
                return
            known.notified_at = now
        self.outbox.append((site, message))
