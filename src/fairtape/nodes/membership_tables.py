"""The membership of a site as two tables: its participation in the formation, and the agreement of its order.

The *participation* says whether a site takes its turns: it does while it is active, until a failure or a fence stops
it. The *agreement* says how far its order is known to be that of the others (decision 23, Positions). Neither follows
from the other: an observer may have the whole order, and a new member may have to catch up first. `PROTOCOL.md` prints
both tables among the duties of a site.

A member that is about to leave is observing already, and takes its last turns in the formation before.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from fairtape.core.state_table import Edge, StateTable

if TYPE_CHECKING:
    from fairtape.nodes.membership import Membership, OrderAgreement

ParticipationAction: TypeAlias = "Callable[[Membership], None]"
ParticipationGuard: TypeAlias = "Callable[[Membership], bool]"


# Participation.


class Participation(IntEnum):
    """What a site is in its loop."""

    ROLLING_BACK = 1  # wait: the end of its journal is removed
    NEWBORN = 2  # in no formation, since it started or since a rollback
    TEST_ROLL = 3  # test: does the formation name this incarnation?
    OBSERVING = 4  # follows the order, without a turn in the latest formation
    ACTIVE = 5  # takes its turns
    PREPARED = 6  # takes no turn from the first token of a proposed formation on
    REFORMING = 7  # stopped: it has declared a failure
    FENCED = 8  # stopped by a reformation server; its report is final


(
    ROLLING_BACK,
    NEWBORN,
    TEST_ROLL,
    OBSERVING,
    ACTIVE,
    PREPARED,
    REFORMING,
    FENCED,
) = Participation


class Event(IntEnum):
    """What can happen to the participation of a site."""

    ALWAYS = 0  # nothing: the way out of a test
    JOURNAL_CUT = 1  # the end of the journal is removed
    FORMATION = 2  # a formation is installed: the first one, or after a reformation
    PLANNED_FORMATION = 3  # a planned change is final: its formation takes over at a future token
    CONTRADICTION = 4  # the others went on without a part of the order here
    PROPOSAL = 5  # a formation that may take over at a future token
    FENCE = 6  # a reformation server stops the formation
    FAILURE = 7  # the ring cannot repair a token


def always(_: object) -> bool:
    """The guard of an arrow without a condition."""
    return True


def is_active(membership: "Membership") -> bool:
    """This incarnation takes its turns in the latest formation."""
    return membership.active


def concerned(membership: "Membership") -> bool:
    """It may still take a turn, or has just left, and may alone hold what precedes the latest formation."""
    return membership.has_turns or membership.leaving


def in_time(membership: "Membership") -> bool:
    """The proposed formation is the next one, and this site has not ordered the token before its first one."""
    return membership.proposal_in_time()


def keep(membership: "Membership") -> None:
    """* the latest formation waits."""
    membership.keep_latest()


def enter(membership: "Membership") -> None:
    """* enter it alone; forget the proposal and the failure."""
    membership.enter_named(alone=True)


def join(membership: "Membership") -> None:
    """* enter it after the present ones; forget the proposal."""
    membership.enter_named(alone=False)


def leave(membership: "Membership") -> None:
    """* leave all formations; forget the proposal and the failure."""
    membership.leave_all()


def hold_back(membership: "Membership") -> None:
    """* take no turn from its first token on."""
    membership.proposal = membership.named


def forget_proposal(membership: "Membership") -> None:
    """* forget the proposal."""
    membership.proposal = None


def report(membership: "Membership") -> None:
    """* report the suspect."""
    membership.report = membership.failure


def _in_no_formation(membership: "Membership") -> bool:
    return membership.formation is None and membership.report is None


def _waits_for_journal(membership: "Membership") -> bool:
    return membership.waiting is not None and _in_no_formation(membership)


def _observes(membership: "Membership") -> bool:
    return not membership.active and membership.report is None and membership.proposal is None


def _takes_turns(membership: "Membership") -> bool:
    return membership.active and membership.report is None and membership.proposal is None


def _is_prepared(membership: "Membership") -> bool:
    return membership.proposal is not None and membership.report is None


def _has_reported(membership: "Membership") -> bool:
    return membership.report is not None


def _is_fenced(membership: "Membership") -> bool:
    return membership.formation is not None and membership.proposal is None


_WORKING: Final = (OBSERVING, ACTIVE, PREPARED)
_STOPPED: Final = (REFORMING, FENCED)
_IN_FORMATION: Final = (*_WORKING, *_STOPPED)


def _from(
    states: tuple[Participation, ...],
    on: Event,
    guard: ParticipationGuard,
    to: Participation | None,
    actions: tuple[ParticipationAction, ...] = (),
) -> "tuple[Edge[Membership], ...]":
    """One arrow from each of these states; without `to`, each leads back to its state."""
    return tuple(Edge(at, on, guard, at if to is None else to, actions) for at in states)


# fmt: off
PARTICIPATION: Final["StateTable[Membership]"] = StateTable(
    (
        #     at                       on                       guard      to               * actions
        *_from((ROLLING_BACK,),        Event.FORMATION,         always,    None,            (keep,)),
        *_from((ROLLING_BACK,),        Event.JOURNAL_CUT,       always,    NEWBORN),
        *_from((NEWBORN,),             Event.FORMATION,         always,    TEST_ROLL,       (enter,)),
        *_from((NEWBORN,),             Event.CONTRADICTION,     always,    ROLLING_BACK,    (leave, keep)),
        *_from((TEST_ROLL,),           Event.ALWAYS,            is_active, ACTIVE),
        *_from((TEST_ROLL,),           Event.ALWAYS,            always,    OBSERVING),
        *_from(_WORKING,               Event.PROPOSAL,          in_time,   PREPARED,        (hold_back,)),
        *_from(_WORKING,               Event.PLANNED_FORMATION, always,    TEST_ROLL,       (join,)),
        *_from(_STOPPED,               Event.PLANNED_FORMATION, always,    None,            (join,)),
        *_from((ACTIVE, PREPARED),     Event.FAILURE,           is_active, REFORMING,       (report,)),
        *_from(_IN_FORMATION,          Event.FENCE,             concerned, FENCED,          (forget_proposal,)),
        *_from(_IN_FORMATION,          Event.FORMATION,         always,    TEST_ROLL,       (enter,)),
        *_from(_IN_FORMATION,          Event.CONTRADICTION,     always,    ROLLING_BACK,    (leave, keep)),
    ),
    always=Event.ALWAYS,
    holds={
        ROLLING_BACK: _waits_for_journal,
        NEWBORN: _in_no_formation,
        OBSERVING: _observes,
        ACTIVE: _takes_turns,
        PREPARED: _is_prepared,
        REFORMING: _has_reported,
        FENCED: _is_fenced,
    },
)
# fmt: on


# Agreement.


class Agreement(IntEnum):
    """How far the order of a site is known to be that of the others."""

    UNVERIFIED = 1  # a part of it may be abandoned: nothing is taken from the ring
    VERIFIED = 2  # nothing in it contradicts the others
    CAUGHT_UP = 3  # verified, and it has held all that another site held: the ring repairs the rest


UNVERIFIED, VERIFIED, CAUGHT_UP = Agreement


class AgreementEvent(IntEnum):
    """What can happen to the agreement of an order."""

    ALWAYS = 0  # unused: there are no tests
    RESTORED = 1  # it was read from the journal
    FORMATION = 2  # a formation is installed after a reformation
    CONFIRMED = 3  # a site that knows the latest formation, and holds as much, has the same
    COMPARED = 4  # another site has stated what it holds
    UNRECOVERED = 5  # the ring cannot repair a token


def of_another_formation(agreement: "OrderAgreement") -> bool:
    """The journal has messages, its last formation is not this one, and this site is not the keeper."""
    return agreement.restored_from_another


def is_keeper(agreement: "OrderAgreement") -> bool:
    """The formation resumes from the order of this site."""
    return agreement.is_keeper


def follows_on(agreement: "OrderAgreement") -> bool:
    """It is the next formation, or resumes from the order of this site."""
    return agreement.follows_on or agreement.is_keeper


def holds_all(agreement: "OrderAgreement") -> bool:
    """This site holds all of that, in the order or not yet."""
    return agreement.holds_all


def forget_unrecovered(agreement: "OrderAgreement") -> None:
    """* forget the unrecovered token."""
    agreement.unrecovered_token = 0


def note_unrecovered(agreement: "OrderAgreement") -> None:
    """* note the unrecovered token."""
    agreement.unrecovered_token = max(agreement.unrecovered_token, agreement.failed_token)


def _is_not_keeper(agreement: "OrderAgreement") -> bool:
    return not agreement.is_keeper


# fmt: off
AGREEMENT: Final["StateTable[OrderAgreement]"] = StateTable(
    (
        #    at          on                          guard                 to          * actions
        Edge(VERIFIED,   AgreementEvent.RESTORED,    of_another_formation, UNVERIFIED),
        Edge(UNVERIFIED, AgreementEvent.CONFIRMED,   always,               VERIFIED),
        Edge(UNVERIFIED, AgreementEvent.FORMATION,   is_keeper,            VERIFIED,   (forget_unrecovered,)),
        Edge(VERIFIED,   AgreementEvent.FORMATION,   follows_on,           VERIFIED,   (forget_unrecovered,)),
        Edge(CAUGHT_UP,  AgreementEvent.FORMATION,   follows_on,           CAUGHT_UP,  (forget_unrecovered,)),
        Edge(UNVERIFIED, AgreementEvent.FORMATION,   always,               UNVERIFIED, (forget_unrecovered,)),
        Edge(VERIFIED,   AgreementEvent.FORMATION,   always,               UNVERIFIED, (forget_unrecovered,)),
        Edge(CAUGHT_UP,  AgreementEvent.FORMATION,   always,               UNVERIFIED, (forget_unrecovered,)),
        Edge(VERIFIED,   AgreementEvent.COMPARED,    holds_all,            CAUGHT_UP),
        Edge(CAUGHT_UP,  AgreementEvent.COMPARED,    holds_all,            CAUGHT_UP),
        Edge(UNVERIFIED, AgreementEvent.UNRECOVERED, always,               UNVERIFIED, (note_unrecovered,)),
        Edge(VERIFIED,   AgreementEvent.UNRECOVERED, always,               VERIFIED,   (note_unrecovered,)),
        Edge(CAUGHT_UP,  AgreementEvent.UNRECOVERED, always,               VERIFIED,   (note_unrecovered,)),
    ),
    always=AgreementEvent.ALWAYS,
    holds={UNVERIFIED: _is_not_keeper},
)
# fmt: on
