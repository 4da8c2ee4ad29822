"""The membership of a site: what it is in its loop, and whether its order is that of the others.

A `Receiver` asks its membership what it may do: whether it has stopped, takes its turns, may take a token into the
order. A site of a deployment tells it what happens. Its state changes only along the arrows of
`fairtape.nodes.membership_tables`. In a ring without reformation servers the membership is fixed: active in the only
formation, until a declared failure ends it.
"""

from enum import IntEnum
from typing import Final

from fairtape.core.effects import Recovered, Report
from fairtape.nodes.membership_tables import AGREEMENT, PARTICIPATION, Agreement, AgreementEvent, Event, Participation
from fairtape.ring.membership.formation import Formation
from fairtape.ring.receiver.ordering import Ordering
from fairtape.wire.frames import NodeId

NEAR_TOKENS_MAX: Final = 128  # at most this far behind, a site keeps what the ring sends now


class OrderAgreement:
    """How far the order of one receiver is known to be that of the others."""

    def __init__(self, ordering: Ordering, *, me: NodeId) -> None:
        self.state: IntEnum = Agreement.VERIFIED
        self.unrecovered_token = 0  # the highest token that could not be recovered; 0: none
        self.failed_token = 0  # the token that the present event names
        self.restored_from_another = False  # whether the journal ends in another formation
        self.follows_on = False  # whether the last formation was the next one
        self.is_keeper: bool = False  # whether the last formation resumes from here
        self._me = me
        self._ordering = ordering
        self._held_by_another = 0  # everything up to this token
        self._behind_by = 0  # tokens, when another site was compared last

    @property
    def verified(self) -> bool:
        """Whether the order here is known to be that of the others (decision 23, Positions)."""
        return self.state is not Agreement.UNVERIFIED

    @property
    def fixed_through(self) -> int:
        """The order up to this token is final: the formation began after it."""
        return self._ordering.formations.begins_at - 1

    @property
    def incomplete(self) -> bool:
        """Whether a token is missing that the ring does not repair: one before the formation, or an unrecovered one."""
        return self._ordering.complete_through < max(self.fixed_through, self.unrecovered_token)

    @property
    def far_behind(self) -> bool:
        """Whether it was too far behind the site that was compared last for what the ring sends now."""
        return self._behind_by > NEAR_TOKENS_MAX

    @property
    def holds_all(self) -> bool:
        """Whether everything is held that the site that was compared last holds."""
        return self._ordering.holds_all_through(self._held_by_another)

    def restored(self, recovered: Recovered, formation: Formation) -> None:
        """The order was read from the journal, and `formation` is the first one since."""
        self.is_keeper = formation.keeper == self._me
        self.restored_from_another = recovered.token > 0 and recovered.number != formation.number and not self.is_keeper
        self._fire(AgreementEvent.RESTORED)

    def entered(self, formation: Formation) -> None:
        """A formation is installed after a reformation."""
        self.is_keeper = formation.keeper == self._me
        self.follows_on = formation.number == self._ordering.formations.latest.number + 1
        self._fire(AgreementEvent.FORMATION)

    def confirm(self) -> bool:
        """A site that knows the latest formation confirms the order here. Returns whether that was missing."""
        return self._fire(AgreementEvent.CONFIRMED)

    def measure(self, complete_through: int) -> bool:
        """Another site holds everything up to this token. Returns whether this site is far behind, and was not."""
        was_far_behind = self.far_behind
        self._behind_by = complete_through - self._ordering.complete_through
        return self.far_behind and not was_far_behind

    def compare(self, complete_through: int) -> bool:
        """Another site holds everything up to this token. Returns whether this site has caught up."""
        self._held_by_another = complete_through
        return self._fire(AgreementEvent.COMPARED)

    def not_recovered(self, token: int) -> None:
        """The ring cannot repair this token: it must come from another site's journal."""
        self.failed_token = token
        self._fire(AgreementEvent.UNRECOVERED)

    def take_recoverable(self) -> bool:
        """Whether the unrecovered token is in the order now, so that the ring can repair what follows."""
        if not 0 < self.unrecovered_token <= self._ordering.complete_through:
            return False
        self.unrecovered_token = 0
        return True

    def _fire(self, event: AgreementEvent) -> bool:
        return AGREEMENT.fire(self, event)


class Membership:
    """The membership of one incarnation of a site, from its start on."""

    agreement: OrderAgreement

    def __init__(self, *, me: NodeId, incarnation: int, changes: bool = True) -> None:
        self.changes: Final = changes  # reformation servers decide it: leases are needed, and a Break may happen
        self.state: IntEnum = Participation.NEWBORN
        self.formation: Formation | None = None  # the latest one that was entered
        self.proposal: Formation | None = None  # this site is prepared for it
        self.report: Report | None = None  # the failure that this site has declared
        self.waiting: Formation | None = None  # for the journal
        self.named: Formation | None = None  # by the present event
        self.failure: Report | None = None  # of the present event
        self._me = me
        self._incarnation = incarnation
        self._active_in: set[int] = set()  # numbers of the formations in which this site takes its turns
        self._ordering: Ordering | None = None

    @classmethod
    def fixed(cls, me: NodeId) -> "Membership":
        """The membership of a ring without reformation servers."""
        return cls(me=me, incarnation=0, changes=False)

    # What the site may do.

    @property
    def participation(self) -> Participation:
        """The state in the first table."""
        return Participation(self.state)

    @property
    def uses_journal(self) -> bool:
        """Whether the journal is being cut: formations wait."""
        return self.state is Participation.ROLLING_BACK

    @property
    def stopped(self) -> bool:
        """Whether it takes nothing into the order and acknowledges nothing."""
        return self.state >= Participation.REFORMING

    @property
    def fenced(self) -> bool:
        """Whether a reformation server has stopped it in the latest formation."""
        return self.state is Participation.FENCED

    @property
    def active(self) -> bool:
        """Whether it takes its turns in the latest formation."""
        return self.formation is not None and self.formation.number in self._active_in

    @property
    def has_turns(self) -> bool:
        """Whether it may still take a turn, also in a formation that another one is about to replace."""
        if self.active:
            return True
        ordering = self._ordering
        return ordering is not None and self.active_in(ordering.formation)

    @property
    def leaving(self) -> bool:
        """Whether it took its turns in the formation before, and leaves it by the latest one."""
        formation = self.formation
        return formation is not None and self._me in formation.leaving and formation.number - 1 in self._active_in

    def active_in(self, formation: Formation) -> bool:
        """Whether it takes its turns in this formation."""
        return formation.number in self._active_in

    @property
    def verified(self) -> bool:
        """Whether the order here is known to be that of the others."""
        return self.agreement.verified

    @property
    def fixed_through(self) -> int:
        """The order up to this token is final: the formation began after it."""
        return self.agreement.fixed_through

    @property
    def stranded(self) -> bool:
        """Whether the ring cannot repair what is missing here: it must come from another site's journal."""
        agreement = self.agreement
        if not agreement.verified or agreement.incomplete:
            return True
        return agreement.state is Agreement.VERIFIED and not self.active

    @property
    def far_behind(self) -> bool:
        """Whether it is so far behind that it drops what the ring sends now (decision 31, Far behind)."""
        return self.agreement.far_behind and self.stranded

    @property
    def watches_acks(self) -> bool:
        """Whether it watches for overdue acknowledgments."""
        return self.active or not self.stranded

    def may_order(self, token: int, formation: Formation, survives_through: int) -> bool:
        """Only what continues the order of the others; if not active, only what no Break can remove."""
        if not self.agreement.verified:
            return False
        return self.active or self.active_in(formation) or token <= survives_through

    def may_take_turn(self, token: int, formation: Formation, survives_through: int) -> bool:
        """Whether it may acknowledge this token at its turn."""
        if self.proposal is not None and token >= self.proposal.first_token:
            return False
        return self.may_order(token, formation, survives_through)

    # What happens.

    def journal_cut(self) -> None:
        """The end of the journal is removed."""
        self._become(Event.JOURNAL_CUT)

    def take_waiting(self) -> Formation | None:
        """The formation that waited for the journal; None: no one did."""
        waiting, self.waiting = self.waiting, None
        return waiting

    def wait(self, formation: Formation) -> None:
        """A formation is installed while the journal is cut."""
        assert self.uses_journal
        self.named = formation
        self._become(Event.FORMATION)

    def enter_first(self, formation: Formation, ordering: Ordering, recovered: Recovered) -> None:
        """A receiver begins in this formation. Its order, restored from the journal, is judged from now on."""
        self._ordering = ordering
        self.agreement = OrderAgreement(ordering, me=self._me)
        self.agreement.restored(recovered, formation)
        self.named = formation
        self._become(Event.FORMATION)

    def enter(self, formation: Formation) -> None:
        """A formation is installed after a reformation."""
        self.agreement.entered(formation)
        self.named = formation
        self._become(Event.FORMATION)

    def take_over(self, formation: Formation) -> None:
        """A planned change is final."""
        self.named = formation
        self._become(Event.PLANNED_FORMATION)

    def roll_back(self, formation: Formation) -> None:
        """The others went on without a part of the order here. This formation waits for the journal."""
        self.named = formation
        self._become(Event.CONTRADICTION)

    def prepare(self, formation: Formation) -> bool:
        """A formation is proposed. Returns whether this site is prepared for it."""
        self.named = formation
        return PARTICIPATION.fire(self, Event.PROPOSAL)

    def fence(self) -> bool:
        """A reformation server stops the formation. Returns whether that concerns this site."""
        return PARTICIPATION.fire(self, Event.FENCE)

    def declare(self, failure: Report) -> bool:
        """The ring cannot repair a token. Returns whether this site declares a failure."""
        self.failure = failure
        return PARTICIPATION.fire(self, Event.FAILURE)

    def _become(self, event: Event) -> None:
        """Follow an arrow that must exist."""
        followed = PARTICIPATION.fire(self, event)
        assert followed, f"{event!r} at {self.state!r}"

    # Guards and actions of the table.

    def proposal_in_time(self) -> bool:
        assert self.named is not None
        if self.formation is None or self._ordering is None or self.named.number != self.formation.number + 1:
            return False
        return not self.active or self._ordering.complete_through < self.named.first_token - 1

    def enter_named(self, *, alone: bool) -> None:
        assert self.named is not None
        if alone:
            self._active_in.clear()
            self.report = None
        if self.named.has_member(self._me, self._incarnation):
            self._active_in.add(self.named.number)
        self.formation, self.proposal = self.named, None

    def keep_latest(self) -> None:
        """A formation of the same term that was delayed does not replace the one that waits."""
        assert self.named is not None
        if self.waiting is None or self.named.number > self.waiting.number:
            self.waiting = self.named

    def leave_all(self) -> None:
        self._active_in.clear()
        self.formation = self.proposal = self.report = self._ordering = None
