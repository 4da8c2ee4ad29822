"""A receiver that changes from one formation to the next, as reformation servers decide.

A site that is *active* in a formation takes its turns as token site (R_P). One that is not follows the same order and
requests repairs from a parent (R_S, and sites about to join); it never acknowledges and suspects no site. Both need a
lease to act. What the ring cannot repair comes from another site's journal, entry by entry, and is *adopted*.

A formation is written to the journal together with its first messages; one without messages leaves no trace. So all
journals have the same formations at the same positions, however each site learned of them.
"""

from collections.abc import Callable, Iterable
from typing import Final

from fairtape.core.effects import AppendFormation, FormationChange, Ordered, Reason, Recovered
from fairtape.core.entries import Entry, Position
from fairtape.core.instants import Duration, Instant
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.receiver import Receiver
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import decode_formation, encode_formation
from fairtape.ring.receiver.receive_buffer import KeyMissing
from fairtape.ring.receiver.recovery import Recovery, TransitionObserver
from fairtape.ring.receiver.release import HELD_MAX
from fairtape.ring.receiver.tracing import Tracer
from fairtape.wire.frames import DATAGRAM_MAX, Malformed, NodeId
from fairtape.wire.seals import Keys

KEPT_TOKENS_MAX: Final = 4_096  # kept for repairs of the sites that ask this one
NEAR_TOKENS_MAX: Final = 128  # at most this far behind, a site keeps what the ring sends now


class Disagreement(Exception):
    """The others abandoned the order after a token: what this site has beyond it must be rolled back."""

    def __init__(self, token: int) -> None:
        super().__init__(token)
        self.token = token


class ReconfigurableReceiver(Receiver):
    """Enters formations, obeys fences, and acts while its lease is valid."""

    def __init__(
        self,
        *,
        me: NodeId,
        formation: Formation,
        keys: Keys,
        born_at: Instant,
        recovered: Recovered,
        active: bool,
        authenticator: MessageAuthenticator,
        stripe: int = 0,
        datagram_max: int = DATAGRAM_MAX,
        clock_bound: Callable[[], Duration] = lambda: 0,
        backlog: Callable[[], Duration] = lambda: 0,
        observe: TransitionObserver | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.parent: NodeId | None = None  # asked for repairs while not active
        self.needed_after: int | None = None  # sites that ask this one may miss what comes after this token
        self._active_in = (
            {formation.number} if active else set()
        )  # numbers of the formations in which this site takes its turns
        self._fenced = False
        self._holds_back_at: int | None = None  # the first token of a formation that this site has prepared for
        self._unrecovered_token = 0  # the highest token that could not be recovered
        self._far_behind = False  # so far behind that what the ring sends now would only accumulate
        self._caught_up = False  # it has once held all that another site held: the ring repairs the rest
        self._noted_number = self._reached = recovered.number  # formation of the last entry, and of the last token
        self._pending_change: FormationChange | None = None  # adopted, before its first messages
        self._unverified = recovered.token > 0 and recovered.number != formation.number and formation.keeper != me
        self.journal_end = Position(recovered.number, recovered.token)  # the position of the last entry with messages
        super().__init__(
            me=me,
            formation=formation,
            keys=keys,
            born_at=born_at,
            stripe=stripe,
            datagram_max=datagram_max,
            clock_bound=clock_bound,
            backlog=backlog,
            observe=observe,
            tracer=tracer,
            recovered=recovered,
            authenticator=authenticator,
        )
        if recovered.layout is not None:
            self._formations.note(decode_formation(recovered.layout))
        self._releases.held_max = HELD_MAX
        self._releases.continue_unread(recovered.token)
        self._releases.require_lease()
        self._releases.unverified = self._unverified

    # State.

    @property
    def active(self) -> bool:
        """Whether this site takes its turns in the latest formation."""
        return self.formation.number in self._active_in

    @property
    def has_turns(self) -> bool:
        """Whether it may still take a turn, also in a formation that another one is about to replace."""
        return self.active or self._is_active_in(self._formations.of(self.complete_through + 1))

    @property
    def fenced(self) -> bool:
        """Whether a reformation server has stopped it in the latest formation."""
        return self._fenced

    @property
    def stranded(self) -> bool:
        """Whether the ring cannot repair what is missing here: it must come from another site's journal."""
        behind = self.complete_through < max(self.fixed_through, self._unrecovered_token)
        return self._unverified or behind or not (self._caught_up or self.active)

    @property
    def far_behind(self) -> bool:
        """Whether it drops what the ring sends now: too far behind (decision 31, Far behind), or unable to read it."""
        return (self._far_behind and self.stranded) or (bool(self.keys_missing) and not self.active)

    @property
    def verified(self) -> bool:
        """Whether the order here is known to be that of the others (decision 23, Positions)."""
        return not self._unverified

    @property
    def fixed_through(self) -> int:
        """The order up to this token is final: the formation began after it."""
        return self._formations.begins_at - 1

    @property
    def position(self) -> Position:
        """The position of this site in the order: the last formation in its journal, and the last token."""
        return Position(
            self._pending_change.formation if self._pending_change is not None else self._noted_number,
            self.complete_through,
        )

    @property
    def stable_through(self) -> int:
        """Only what acknowledgments prove: members of a new formation may still be catching up; 0: nothing."""
        stable_through = super().stable_through
        return stable_through if stable_through > self.fixed_through else 0

    @property
    def survives_through(self) -> int:
        """The highest token up to which K + 1 sites are known to hold everything."""
        return self._resilience.survives_through

    @property
    def granted_until(self) -> Instant:
        """The end of the lease for a clock within its error bound."""
        return self._releases.granted_until

    # Decisions of reformation servers.

    def check_clock(self, now: Instant, *, behind: Duration = 0) -> None:
        """A clock error bound above `clock_error_max` shortens the lease and stops releases.

        A release is late by what the clock is proved to be `behind`.
        """
        self._releases.clock_behind = behind
        excess = max(self._clock_bound() - self.formation.timing.clock_error_max, 0)
        if self._releases.set_clock_excess(excess, now):
            self._timer = None

    def fence(self) -> None:
        """Stop: the site reports what is complete now (decision 21, Where a formation resumes)."""
        self._fenced = True
        self._timer = None
        self._recoveries.stop()

    def hold_back_at(self, token: int | None) -> None:
        """Take no turn from this token on: a prepared formation takes over there."""
        self._holds_back_at = token
        if token is not None and self._token.held is not None and self._token.held >= token:
            self._token.held = None
        self._timer = None

    def agrees_with(self, formation: Formation) -> bool:
        """Whether the order here can precede this formation. If not, a part must be rolled back."""
        if self._reached >= formation.number:
            return True  # it has entries of that formation already, from another site's journal
        beyond = self.complete_through - (formation.first_token - 1)
        if beyond > 0:
            return False
        return beyond < 0 or formation.first_sequence in (0, self.next_sequence)

    def take_over(self, formation: Formation, now: Instant, *, active: bool) -> None:
        """A planned change: this formation takes over at a future token, without a stop."""
        self._timer = None
        self._formations.take_over(formation)
        if active:
            self._active_in.add(formation.number)
        self._holds_back_at = None
        self._recoveries.timing = formation.timing
        self._accept_token_if_mine(now)
        self._advance(now)

    def install(self, formation: Formation, now: Instant, *, active: bool) -> None:
        """A reformation: leave the current formation where it was fenced, and continue in this one."""
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
        """Skip empty tokens before a formation, if all sequence numbers before its first one are held.

        Journals have no empty tokens, so a restarted site, and those that ask it, could not learn of them otherwise.
        """
        if self._unverified or self._pending_change is not None or self.complete_through >= self.fixed_through:
            return
        if self.next_sequence == self._formations.of(self._formations.begins_at).first_sequence:
            self.catch_up_to(self.fixed_through, 0, now)

    def verify(self, now: Instant) -> None:
        """A site that knows the latest formation confirms that nothing here contradicts it."""
        if self._unverified:
            self._unverified = False
            self._releases.verify(now)
            self.pass_empty_tokens(now)
        self._timer = None

    def compare(self, complete_through: int) -> None:
        """Another site holds everything up to this token: compare, and note whether this site has caught up."""
        far_behind, self._far_behind = self._far_behind, complete_through - self.complete_through > NEAR_TOKENS_MAX
        if self._far_behind and not far_behind:
            self._ordering.forget_unordered()
            self._buffer.forget_unordered()
            self._recoveries.stop()
        if not self._unverified and self._ordering.holds_all_through(complete_through):
            self._caught_up = True
            self._timer = None

    def adopt(self, entry: Entry) -> None:
        """Take the next entry of another site's journal.

        Raises `Malformed` if it does not continue the order, `Disagreement` if the others abandoned a part of ours.
        """
        self._timer = None
        if isinstance(entry, FormationChange):
            self._adopt_formation(entry)
            return
        if entry.formation != self.position.formation or entry.token <= self.complete_through:
            raise Malformed("entry of another position")
        if (
            entry.token > self.fixed_through
            and entry.formation < self._formations.of(self._formations.begins_at).number
        ):
            raise Malformed("abandoned entry, from a site that does not know it yet")
        if entry.sequence != self.next_sequence:
            raise Malformed("entry that does not continue the order")
        try:
            self._ordering.adopt(entry)
        except KeyMissing as missing:
            self._note_missing_key(missing.source)
            raise
        self._recoveries.forget_through(entry.token)
        self._append(entry)

    def _adopt_formation(self, change: FormationChange) -> None:
        if change.formation <= self.position.formation:
            raise Malformed("formation that is in the journal already")
        if change.formation > self._reached and change.token <= self.complete_through:
            raise Disagreement(change.token - 1)
        if change.formation > self._reached and change.sequence < self.next_sequence:
            # The formation that abandoned our last messages was replaced before it ordered any. No journal has it, and
            # the next one begins at a higher token, but with the sequence number of those messages.
            raise Disagreement(self.journal_end.token - 1)
        if change.sequence != self.next_sequence:
            raise Malformed("formation that does not continue the order")
        self._formations.note(decode_formation(change.layout))
        self._pending_change = change
        self._ordering.advance_to(change.token - 1)
        self._recoveries.forget_through(change.token - 1)

    @property
    def unreleased_ticket(self) -> int:
        """The ticket of its requests for entries of the journal that are not released yet."""
        return self._releases.ticket

    @unreleased_ticket.setter
    def unreleased_ticket(self, ticket: int) -> None:
        self._releases.ticket = ticket

    def read_unreleased(self, entries: Iterable[Entry], now: Instant) -> None:
        """The entries of the journal that it requested."""
        self._timer = None
        self._releases.add_read(entries, now)
        self._advance(now)

    def catch_up_to(self, token: int, survives_through: int, now: Instant, *, known: int = 0) -> None:
        """No messages follow up to `token`, and what K + 1 sites hold may be released.

        `known` is the formation of that token, as far as the other site knows.
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
        """Catching up has brought this site near enough for the ring to repair the rest."""
        self._unrecovered_token = 0
        self._ack_timeout.restart()
        for token in self._ordering.waiting():
            if self._recoveries.acknowledged(token, now):
                self._complete(token, now)

    # Overrides.

    @property
    def _stopped(self) -> bool:
        return self._fenced or super()._stopped

    def _is_token_site(self, now: Instant) -> bool:
        """A stranded site does not speak as token site: its order may be abandoned."""
        return not self.stranded and super()._is_token_site(now)

    def _is_active_in(self, formation: Formation) -> bool:
        return formation.number in self._active_in

    def _may_order(self, token: int) -> bool:
        """Only what continues the order of the others; if not active, only what no Break can remove."""
        if self._unverified:
            return False
        counts = self.active or self._is_active_in(self._formations.of(token))
        return counts or token <= self._resilience.survives_through

    def _may_take_turn(self, token: int) -> bool:
        return self._may_order(token) and (self._holds_back_at is None or token < self._holds_back_at)

    def _watches_acks(self) -> bool:
        return self.active or not self.stranded

    def _settled_for_sources(self) -> int | None:
        """After a Break the source may have dropped the blocks of a hole: only progress shows it that they are lost."""
        return None if self._token.held is None else self._resilience.survives_through

    def _needed_through(self) -> int:
        """What the sites that ask this one hold. One that is too far behind must catch up from a journal."""
        if self.needed_after is None:
            return self.complete_through
        return max(self.needed_after, self.complete_through - KEPT_TOKENS_MAX)

    def _request_targets(self, wanted: list[Recovery]) -> dict[NodeId, list[Recovery]]:
        """An active site asks the latest token sites; others ask their parent. 2001 §4.1."""
        if self.active or self.parent is None:
            return super()._request_targets(wanted)
        return {self.parent: wanted}

    def _declare(self, suspect: NodeId, token: int, reason: Reason, now: Instant) -> None:
        """A site that is not active, or whose clock is untrusted, suspects no site: it catches up instead."""
        if self.active and not self._releases.clock_untrusted:
            super()._declare(suspect, token, reason, now)
        elif not self._stopped:
            self._caught_up = False
            self._unrecovered_token = max(self._unrecovered_token, token)
            self._recoveries.stop()

    def _append(self, ordered: Ordered) -> None:
        """Append a formation before its first messages."""
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
