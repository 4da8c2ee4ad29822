"""The coordinator of a secondary loop. The loop orders nothing, so no site is fenced: a new formation just takes over.

The wanted members are the junction, which must be a member of the loop above, and those sites of the loop's tour that
report and are up to date. If they differ from the present formation, or a member reports that the token stopped, a new
formation is recorded and installed. The primary loop is not affected. TRMP 2001 §5.3.
"""

from collections.abc import Callable, Collection

from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.nodes.coordinator.lost_store import NUMBERS_SKIPPED
from fairtape.nodes.coordinator.planned_change import LAG_MAX
from fairtape.nodes.coordinator.primary_loop import DECISIONS_MAX, FIRST_FORMATION_DELAY, FormationDecision, SiteView
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import encode_formation
from fairtape.ring.membership.topology import LoopTopology, lease_margin
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import Install, MembershipMessage, MembershipRequest, MembershipState, SiteReport


class SecondaryLoopCoordinator:
    """One secondary loop, under one leader of the reformation servers."""

    def __init__(
        self, loop: LoopTopology, *, me: NodeId, stripe: int, incarnation_of: Callable[[NodeId], int | None]
    ) -> None:
        self.loop = loop
        self.formation: Formation | None = None
        self.proposal: Formation | None = None
        self.outbox: list[tuple[NodeId, MembershipMessage]] = []
        self.decisions: list[FormationDecision] = []
        self.notices: list[str] = []
        self.known: dict[NodeId, SiteView] = {}
        self.retired: set[NodeId] = set()
        self.parents: Collection[NodeId] = ()  # the members of the loop above
        self.term = 0
        self.store = 0  # the identity of the formation store
        self._me = me
        self._stripe = stripe
        self._incarnation_of = incarnation_of
        self._cause = ""
        self._leading_since: Instant = 0
        self._changed_at: Instant = 0
        self._repeat_at: Instant = NEVER
        self._look_at: Instant = 0
        self._lost_through = 0  # the highest number that a site knows; above the latest one the store has lost it

    def lead(self, formation: Formation | None, term: int, now: Instant) -> None:
        self.term = term
        self.formation = formation
        self.proposal = None
        self._lost_through = 0
        self.known.clear()
        self._leading_since = self._changed_at = self._repeat_at = now

    def receive_report(self, report: SiteReport, now: Instant) -> None:
        known = self.known.get(report.sender)
        if known is None:
            self.known[report.sender] = SiteView(report, now)
        else:
            known.report, known.received_at = report, now
        self._lost_through = max(self._lost_through, report.formation)
        if self.formation is not None and report.formation < self.formation.number:
            self.outbox.append((report.sender, self._install(self.formation)))
        self.wake(now)

    def deadline(self) -> Instant:
        """When to call `wake`."""
        if self.proposal is not None:
            return NEVER
        if self.formation is None:
            return max(self._leading_since + FIRST_FORMATION_DELAY, self._look_at) if self.known else NEVER
        return min(self._repeat_at, self._look_at)

    def wake(self, now: Instant) -> None:
        """Compare the present formation with the reports."""
        if self.proposal is not None:
            return
        if self.formation is None:
            self._look_at = now + self.loop.timing.report_period
            self._form_first(now)
            return
        self._repeat_install(now)
        self._look_at = now + self.loop.timing.report_period
        if now >= self._changed_at + self._settle_delay:
            self._watch(self.formation, now)

    @property
    def _silence_max(self) -> Duration:
        return self.loop.timing.lease_period + lease_margin(self.loop.timing)

    @property
    def _settle_delay(self) -> Duration:
        """The time that sites get to enter a new formation before it is compared."""
        return 2 * self.loop.timing.report_period

    def _silent_at(self, member: NodeId) -> Instant:
        known = self.known.get(member)
        return max(known.received_at if known is not None else 0, self._changed_at) + self._silence_max

    def _form_first(self, now: Instant) -> None:
        absent = {*self.retired, self._junction()}
        present = [site for site in self.loop.tour if site in self.known and site not in absent]
        everyone = len(present) == len(self.loop.tour)
        if present and (everyone or now >= self._leading_since + FIRST_FORMATION_DELAY):
            self._propose(present, "the first formation of the loop", now)

    def _watch(self, formation: Formation, now: Instant) -> None:
        staying = [member for member in formation.members[1:] if self._stays(member, formation, now)]
        joining = [site for site in self.loop.tour if site not in staying and self._may_join(site, now)]
        junction = self._junction()
        wanted = [site for site in self.loop.tour if (site in staying or site in joining) and site != junction]
        removed = all(site in self.retired for site in self.loop.tour if site != junction)
        if junction is None or not (wanted or removed):
            return
        suspicion = self._suspicion(formation)
        if suspicion in wanted and len(wanted) > 1 and not self._heard_recently(suspicion, now):
            wanted.remove(suspicion)
        if joining or [junction, *wanted] != list(formation.members):
            self._propose(wanted, self._difference(formation, [junction, *wanted]), now)
        elif suspicion is not None:
            self._propose(wanted, f"site {suspicion} did not pass the token on", now)
        elif self._lost_through > formation.number:
            self._propose(wanted, "the store has lost formations", now)

    def _stays(self, member: NodeId, formation: Formation, now: Instant) -> bool:
        known = self.known.get(member)
        if member in self.retired or self._silent_at(member) <= now:
            return False
        if known is None or known.report.formation < formation.number:
            return True  # it has not received the formation yet
        return (
            known.report.membership_state is MembershipState.MEMBER
            and known.report.request is not MembershipRequest.WITHDRAW
        )

    def _is_member(self, site: NodeId) -> bool:
        known = self.known.get(site)
        return known is not None and known.report.membership_state is MembershipState.MEMBER

    def _may_join(self, site: NodeId, now: Instant) -> bool:
        known = self.known.get(site)
        if known is None or site in self.retired or not self._heard_recently(site, now):
            return False
        ahead = max((each.report.complete_through for each in self.known.values()), default=0)
        return known.report.request is MembershipRequest.JOIN and known.report.complete_through >= ahead - LAG_MAX

    def _heard_recently(self, site: NodeId, now: Instant) -> bool:
        known = self.known.get(site)
        return known is not None and now - known.received_at < 2 * self.loop.timing.report_period

    def _suspicion(self, formation: Formation) -> NodeId | None:
        for member in formation.members:
            known = self.known.get(member)
            if known is not None and known.report.formation == formation.number and known.report.suspect_token:
                return known.report.suspect
        return None

    def _junction(self) -> NodeId | None:
        """The site that joins the loop to the one above: the intended one if it is there, or another. 2001 §5.3."""
        intended = self.loop.junction
        if intended in self.parents:
            return intended
        present = self.formation.junction if self.formation is not None else None
        return present if present in self.parents else next(iter(self.parents), None)

    def _propose(self, sites: list[NodeId], cause: str, now: Instant) -> None:
        junction = self._junction()
        if junction is None:
            return
        roll = [number for number in map(self._incarnation_of, (junction, *sites)) if number is not None]
        if len(roll) <= len(sites):
            return  # a site has not reported since this server leads
        through = max((known.report.complete_through for known in self.known.values()), default=0)
        base = self.formation
        recorded = base.number if base is not None else 0
        lost = self._lost_through > recorded
        self.proposal = Formation(
            number=self._lost_through + NUMBERS_SKIPPED if lost else recorded + 1,
            members=(junction, *sites),
            roll=tuple(roll),
            timing=self.loop.timing,
            starts_at=now,
            first_token=through + 1,
            first_sequence=0,
            loop=self.loop.number,
            stride=self.loop.stride,
            request_sets=self.loop.request_sets,
            keeper=junction,
        )
        self._cause = cause
        self._changed_at = now

    def recorded(self, formation: Formation, now: Instant) -> None:
        """The store has recorded the formation: send it to all sites."""
        before = self.formation.members if self.formation is not None else ()
        self.decisions.append(FormationDecision(formation, self._cause, self._changed_at, now))
        del self.decisions[:-DECISIONS_MAX]
        members = formation.members
        self.notices.append(f"loop {self.loop.number}, formation {formation.number} of {members}: {self._cause}")
        self.proposal = None
        self.formation = formation
        self._changed_at = now
        for site in dict.fromkeys((*formation.members, *before, *self.known)):
            self.outbox.append((site, self._install(formation)))
        self._repeat_at = now + formation.timing.retry_period

    def _repeat_install(self, now: Instant) -> None:
        formation = self.formation
        assert formation is not None
        if self._repeat_at > now:
            return
        behind = [
            member
            for member in formation.members
            if member not in self.known or self.known[member].report.formation < formation.number
        ]
        for member in behind:
            self.outbox.append((member, self._install(formation)))
        self._repeat_at = now + 2 * formation.timing.retry_period if behind else NEVER

    def _install(self, formation: Formation) -> Install:
        layout = encode_formation(formation)
        return Install(self._stripe, formation.number, self._me, self.term, final=True, layout=layout, store=self.store)

    def _difference(self, formation: Formation, members: list[NodeId]) -> str:
        changes = [f"{site} joins" for site in members if site not in formation.members or not self._is_member(site)]
        changes += [f"{site} is gone" for site in formation.members if site not in members]
        return ", ".join(changes) or "another order"
