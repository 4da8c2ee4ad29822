"""The position of a site in the order, as its journal has it (decision 23, Positions).

A formation is written to the journal together with its first messages; one without messages leaves no trace. So all
journals have the same formations at the same positions, however each site learned of them.
"""

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.entries import Position
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import encode_formation
from fairtape.ring.receiver.ordering import Ordering
from fairtape.wire.frames import Malformed


class Disagreement(Exception):
    """The others abandoned the order after a token: what this site has beyond it must be rolled back."""

    def __init__(self, token: int) -> None:
        super().__init__(token)
        self.token = token


class JournalPosition:
    """Where a journal ends, and which formations it has."""

    def __init__(self, number: int, token: int, *, stripe: int) -> None:
        """The last formation in the journal, and the last token in the order."""
        self.end = Position(number, token)  # of the last entry with messages
        self.reached = number  # the formation of the last token
        self.pending_change: FormationChange | None = None  # adopted, before its first messages
        self._noted_number = number  # the formation of the last entry
        self._stripe = stripe

    @property
    def number(self) -> int:
        """The last formation in the journal, or the one that is written next."""
        return self.pending_change.formation if self.pending_change is not None else self._noted_number

    def append(self, ordered: Ordered, formation: Formation) -> FormationChange | None:
        """Msg(e) is appended. Returns the change of formation that must be written before it."""
        self.reached = ordered.formation
        if not ordered.count:
            return None
        change = self._change_before(ordered, formation) if ordered.formation != self._noted_number else None
        self.end = Position(ordered.formation, ordered.token)
        return change

    def agrees_with(self, formation: Formation, ordering: Ordering) -> bool:
        """Whether the order here can precede this formation."""
        if self.reached >= formation.number:
            return True  # it has entries of that formation already, from another site's journal
        beyond = ordering.complete_through - (formation.first_token - 1)
        if beyond > 0:
            return False
        return beyond < 0 or formation.first_sequence in (0, ordering.next_sequence)

    def check_ordered(self, entry: Ordered, ordering: Ordering) -> None:
        """Raises `Malformed` if an entry of another site's journal does not continue the order here."""
        if entry.formation != self.number or entry.token <= ordering.complete_through:
            raise Malformed("entry of another position")
        begins_at = ordering.formations.begins_at
        if entry.token >= begins_at and entry.formation < ordering.formations.of(begins_at).number:
            raise Malformed("abandoned entry, from a site that does not know it yet")
        if entry.sequence != ordering.next_sequence:
            raise Malformed("entry that does not continue the order")

    def check_change(self, change: FormationChange, ordering: Ordering) -> None:
        """Raises `Malformed` if a change of formation in another site's journal does not continue the order here.

        Raises `Disagreement` if the others abandoned a part of ours.
        """
        if change.formation <= self.number:
            raise Malformed("formation that is in the journal already")
        if change.formation > self.reached and change.token <= ordering.complete_through:
            raise Disagreement(change.token - 1)
        if change.formation > self.reached and change.sequence < ordering.next_sequence:
            # The formation that abandoned our last messages was replaced before it ordered any. No journal has it, and
            # the next one begins at a higher token, but with the sequence number of those messages.
            raise Disagreement(self.end.token - 1)
        if change.sequence != ordering.next_sequence:
            raise Malformed("formation that does not continue the order")

    def _change_before(self, first: Ordered, formation: Formation) -> FormationChange:
        change, self.pending_change = self.pending_change, None
        if change is None or change.formation != first.formation:
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
        return change
