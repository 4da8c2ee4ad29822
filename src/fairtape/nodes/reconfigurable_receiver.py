"""A receiver that goes from one formation to the next, as reformation servers decide.

One that is *seated* in a formation takes its turns as token site (R_P). One that is not follows the same order and
asks a parent for what it misses (R_S, and whoever is about to join); it never acknowledges and accuses nobody. Either
needs a lease to act. What the ring cannot repair comes from another site's journal, entry by entry, and is *adopted*.

A formation is noted in the journal together with its first messages: one that never had any left no trace anywhere. So
all journals note the same formations at the same places, however each site came to know of them.
"""

from collections.abc import Callable
from typing import Final

from fairtape.core.effects import AppendFormation, FormationChange, Ordered, Reason, Recovered
from fairtape.core.entries import Entry, Position
from fairtape.core.instants import Duration, Instant
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.receiver import Receiver
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import encode_formation
from fairtape.ring.receiver.recovery import Recovery, TransitionObserver
from fairtape.ring.receiver.tracing import Tracer
from fairtape.wire.frames import DATAGRAM_MAX, Malformed, NodeId
from fairtape.wire.seals import Keys

KEPT_TOKENS_MAX: Final = 4_096  # that are kept for the repairs of those who ask this site
NEAR_TOKENS_MAX: Final = 128  # behind another site, from where on what the ring sends now is worth keeping


class Disagreement(Exception):
    """The others have left the order behind after a token: what this site has beyond it must be taken back."""

    def __init__(self, token: int) -> None:
        super().__init__(token)
        self.token = token


class ReconfigurableReceiver(Receiver):
    """Enters formations, answers fences, and takes part while its lease lasts."""

    def __init__(
        self,
        *,
        me: NodeId,
        formation: Formation,
        keys: Keys,
        born_at: Instant,
        past: Recovered,
        active: bool,
        authenticator: MessageAuthenticator,
        stripe: int = 0,
        datagram_max: int = DATAGRAM_MAX,
        clock_bound: Callable[[], Duration] = lambda: 0,
        observe: TransitionObserver | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.parent: NodeId | None = None  # whom to ask while not seated
        self.needed_after: int | None = None  # those who ask this site may still miss what comes after this token
        self._active_in = {formation.number} if active else set()  # formations in which this site takes its turns
        self._fenced = False
        self._holds_back_at: int | None = None  # the first token of a formation that is about to take over
        self._unrecovered_token = 0  # the highest token that could not be recovered from the parent
        self._far_behind = False  # so far behind that what the ring sends now would only pile up
        self._caught_up = False  # since it came, it has once held all that another site held: the ring repairs the rest
        self._noted_number = self._reached = past.number  # the formation of the last entry, and of the last token
        self._pending_change: FormationChange | None = None  # a formation whose first messages are still to come
        self._unverified = past.token > 0 and past.number != formation.number and formation.keeper != me
        self.journal_end = Position(past.number, past.token)  # the place of the last entry that has messages
        super().__init__(
            me=me,
            formation=formation,
            keys=keys,
            born_at=born_at,
            stripe=stripe,
            datagram_max=datagram_max,
            clock_bound=clock_bound,
            observe=observe,
            tracer=tracer,
            past=past,
            authenticator=authenticator,
        )
        self._releases.require_lease()
        self._releases.unverified = self._unverified

    # What others may know.

    @property
    def active(self) -> bool:
        """Whether this site takes its turns in the latest formation."""
        return self.formation.number in self._active_in

    @property
    def has_turns(self) -> bool:
        """Whether it may still take one, be it in a formation that another one is about to take over from."""
        return self.active or self._is_active_in(self._formations.of(self.complete_through + 1))

    @property
    def fenced(self) -> bool:
        """Whether it has stopped working in the latest formation because it was told to."""
        return self._fenced

    @property
    def stranded(self) -> bool:
        """Whether the ring cannot repair what is missing here: the past must come from another site's journal."""
        behind = self.complete_through < max(self.fixed_through, self._unrecovered_token)
        return self._unverified or behind or not (self._caught_up or self.active)

    @property
    def far_behind(self) -> bool:
        """Whether it is so far behind that what the ring sends now is of no use: the past will bring that, too."""
        return self._far_behind and self.stranded

    @property
    def verified(self) -> bool:
        """Whether what is in the order here is known to be in the order of the others."""
        return not self._unverified

    @property
    def fixed_through(self) -> int:
        """The order up to this token is fixed for ever: a later formation begins after it."""
        return self._formations.begins_at - 1

    @property
    def position(self) -> Position:
        """Where this site stands in the order, as its journal counts: the last formation noted, the last token."""
        return Position(
            self._pending_change.formation if self._pending_change is not None else self._noted_number,
            self.complete_through,
        )

    @property
    def survives_through(self) -> int:
        """The highest token up to which K + 1 sites are known to hold everything."""
        return self._resilience.survives_through

    @property
    def granted_until(self) -> Instant:
        """When its lease ends by a clock that is as good as it must be."""
        return self._releases.granted_until

    # What a reformation server decides.

    def check_clock(self, now: Instant) -> None:
        """A clock that may be worse than agreed shortens the lease, and as long as it is nothing is released."""
        excess = max(self._clock_bound() - self.formation.timing.clock_error_max, 0)
        if self._releases.set_clock_excess(excess, now):
            self._timer = None

    def fence(self) -> None:
        """Stop taking part: the site answers for what is complete now (decision 21, Where a formation resumes)."""
        self._fenced = True
        self._timer = None
        self._recoveries.stop()

    def hold_back_at(self, token: int | None) -> None:
        """Take no turn from this token on: another formation is about to take over there."""
        self._holds_back_at = token
        if token is not None and self._token.held is not None and self._token.held >= token:
            self._token.held = None
        self._timer = None

    def agrees_with(self, formation: Formation) -> bool:
        """Whether what is in the order here can come before this formation; what cannot must be taken back."""
        if self._reached >= formation.number:
            return True  # another site's journal has brought it there already
        beyond = self.complete_through - (formation.first_token - 1)
        if beyond > 0:
            return False
        return beyond < 0 or formation.first_sequence in (0, self.next_sequence)

    def take_over(self, formation: Formation, now: Instant, *, active: bool) -> None:
        """From a token to come on, this formation takes over, without a stop."""
        self._timer = None
        self._formations.take_over(formation)
        if active:
            self._active_in.add(formation.number)
        self._holds_back_at = None
        self._recoveries.timing = formation.timing
        self._accept_token_if_mine(now)
        self._advance(now)

    def install(self, formation: Formation, now: Instant, *, active: bool) -> None:
        """Leave the present formation where it was fenced, and go on in this one."""
        assert self.agrees_with(formation)
        follows_on = formation.number == self.formation.number + 1 and not self._unverified
        self._unverified = not follows_on and formation.keeper != self.me
        self._releases.unverified = self._unverified
        self._caught_up = self._caught_up and not self._unverified
        self._ordering.forget_unordered()
        self._ordering.drop_through(self.complete_through)
        self._formations.restart(formation)
        self._active_in = {formation.number} if active else set()
        self._fenced = False
        self._holds_back_at = None
        self.reforming = None
        self._unrecovered_token = 0
        survives_through = self._resilience.survives_through
        if self._reached < formation.number:
            survives_through = min(survives_through, formation.first_token - 1)
        self._begin(formation, now)
        self._resilience.learn(survives_through)
        self._advance(now)
        self.pass_empty_tokens(now)

    def pass_empty_tokens(self, now: Instant) -> None:
        """A formation says with which number it begins: whoever has all numbers before it lacks only empty tokens.

        A journal tells of no empty token, so one that was restarted could not know it otherwise, nor those who ask it.
        """
        if self._unverified or self._pending_change is not None or self.complete_through >= self.fixed_through:
            return
        if self.next_sequence == self._formations.of(self._formations.begins_at).first_sequence:
            self.catch_up_to(self.fixed_through, 0, now)

    def verify(self, now: Instant) -> None:
        """One who knows the latest formation says that nothing here contradicts it."""
        if self._unverified:
            self._unverified = False
            self._releases.verify(now)
            self.pass_empty_tokens(now)
        self._timer = None

    def compare(self, complete_through: int) -> None:
        """Another site holds everything up to this token: whoever holds as much, however it came, is level with it."""
        far_behind, self._far_behind = self._far_behind, complete_through - self.complete_through > NEAR_TOKENS_MAX
        if self._far_behind and not far_behind:
            self._ordering.forget_unordered()
            self._buffer.forget_unordered()
            self._recoveries.stop()
        if not self._unverified and self._ordering.holds_all_through(complete_through):
            self._caught_up = True
            self._timer = None

    def adopt(self, entry: Entry) -> None:
        """Take what another site's journal says comes next.

        `Malformed` where it does not continue the order, `Disagreement` where the others have left it behind.
        """
        self._timer = None
        if isinstance(entry, FormationChange):
            self._adopt_formation(entry)
            return
        if entry.formation != self.position.formation or entry.token <= self.complete_through:
            raise Malformed("an entry that has no place here")
        if (
            entry.token > self.fixed_through
            and entry.formation < self._formations.of(self._formations.begins_at).number
        ):
            raise Malformed("an entry that was left behind, from one who does not know it yet")
        if entry.sequence != self.next_sequence:
            raise Malformed("an entry that does not continue the order")
        self._ordering.adopt(entry)
        self._recoveries.forget_through(entry.token)
        self._append(entry)

    def _adopt_formation(self, change: FormationChange) -> None:
        if change.formation <= self.position.formation:
            raise Malformed("a formation that was noted before")
        if change.formation > self._reached and change.token <= self.complete_through:
            raise Disagreement(change.token - 1)
        if change.formation > self._reached and change.sequence < self.next_sequence:
            # The formation that left our last messages behind was itself followed before it ordered any: no journal
            # tells of it, and the next one begins with a higher token, but with the number that they had.
            raise Disagreement(self.journal_end.token - 1)
        if change.sequence != self.next_sequence:
            raise Malformed("a formation that does not continue the order")
        self._pending_change = change
        self._ordering.advance_to(change.token - 1)
        self._recoveries.forget_through(change.token - 1)

    def restore_unreleased(self, ordered: Ordered) -> None:
        """The journal has it, but it was never released: the site stopped in between."""
        self._releases.complete(ordered)

    def catch_up_to(self, token: int, survives_through: int, now: Instant, *, known: int = 0) -> None:
        """Nothing more was put into the order up to `token`, and what K + 1 sites hold may be released.

        `known` is the formation of that token, as the one who says so knows it.
        """
        self._timer = None
        if token > self.complete_through:
            self._reached = max(self._reached, known)
        self._ordering.advance_to(token)
        self._recoveries.forget_through(token)
        self._resilience.learn(min(survives_through, token))
        if 0 < self._unrecovered_token <= self.complete_through:
            self._recover_again(now)
        self._accept_token_if_mine(now)
        self._advance(now)

    def _recover_again(self, now: Instant) -> None:
        """The past has brought this site near enough for the ring to repair the rest."""
        self._unrecovered_token = 0
        self._ack_timeout.restart()
        for token in self._ordering.waiting():
            if self._recoveries.acknowledged(token, now):
                self._complete(token, now)

    # What differs from a receiver of one formation.

    @property
    def _stopped(self) -> bool:
        return self._fenced or self.reforming is not None

    def _is_token_site(self, now: Instant) -> bool:
        """One that may have been left behind by the others speaks for nobody."""
        return not self.stranded and super()._is_token_site(now)

    def _is_active_in(self, formation: Formation) -> bool:
        return formation.number in self._active_in

    def _may_order(self, token: int) -> bool:
        """Only what follows the order of the others; and one whom nobody asks takes only what cannot be taken back."""
        if self._unverified:
            return False
        counts = self.active or self._is_active_in(self._formations.of(token))
        return counts or token <= self._resilience.survives_through

    def _may_take_turn(self, token: int) -> bool:
        return self._may_order(token) and (self._holds_back_at is None or token < self._holds_back_at)

    def _watches_acks(self) -> bool:
        return self.active or not self.stranded

    def _settled_for_sources(self) -> int | None:
        """After a Break a hole may be one that its source has forgotten: only the order can tell it so."""
        return None if self._token.held is None else self._resilience.survives_through

    def _needed_through(self) -> int:
        """What those who ask this site hold; one that stays behind for long must ask for the past instead."""
        if self.needed_after is None:
            return self.complete_through
        return max(self.needed_after, self.complete_through - KEPT_TOKENS_MAX)

    def _request_targets(self, wanted: list[Recovery]) -> dict[NodeId, list[Recovery]]:
        """A member asks the latest token site and those before it; others ask their parent. 2001 §4.1."""
        if self.active or self.parent is None:
            return super()._request_targets(wanted)
        return {self.parent: wanted}

    def _declare(self, suspect: NodeId, token: int, reason: Reason, now: Instant) -> None:
        """One that takes no turns, or cannot trust its clock, accuses nobody: the past will tell."""
        if self.active and not self._releases.clock_untrusted:
            super()._declare(suspect, token, reason, now)
        elif not self._stopped:
            self._caught_up = False
            self._unrecovered_token = max(self._unrecovered_token, token)
            self._recoveries.stop()

    def _append(self, ordered: Ordered) -> None:
        """Before the first messages of a formation, the formation."""
        self._reached = ordered.formation
        if ordered.count and ordered.formation != self._noted_number:
            self._append_change(ordered)
        if ordered.count:
            self.journal_end = Position(ordered.formation, ordered.token)
        super()._append(ordered)

    def _append_change(self, first: Ordered) -> None:
        change, self._pending_change = self._pending_change, None
        if change is None or change.formation != first.formation:
            formation = self._formations.of(first.token)
            change = FormationChange(
                stripe=self._stripe,
                formation=formation.number,
                token=formation.first_token,
                sequence=first.sequence,
                broken=formation.broken,
                layout=encode_formation(formation),
                installed_at=formation.starts_at,
            )
        assert change.formation == first.formation
        self._noted_number = change.formation
        self._effects.append(AppendFormation(change))
