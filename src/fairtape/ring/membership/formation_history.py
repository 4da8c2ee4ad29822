"""Which formation a token belongs to.

Usually there is one formation. After a planned change there are two for a while: tokens of the old formation are still
being recovered when those of the new one arrive. Formations of the past are found by their numbers: their last tokens
commit by their timing, also at a site that adopts these tokens later, from another site's journal or from its own.
"""

from typing import Final

from fairtape.core.instants import Instant
from fairtape.ring.membership.formation import Formation
from fairtape.wire.frames import NodeId

FORMATIONS_MAX: Final = 8  # that may follow one another before the first is complete


class FormationHistory:
    """The formations that a site works with, in order."""

    def __init__(self, formation: Formation) -> None:
        self._formations = [formation]
        self._past: dict[int, Formation] = {}  # by number; some of them may be present
        self.latest = formation  # the last one, which has not ended
        self.note(formation)

    @property
    def formations(self) -> tuple[Formation, ...]:
        return tuple(self._formations)

    @property
    def begins_at(self) -> int:
        """The first token of the earliest known formation."""
        return self._formations[0].first_token

    def of(self, token: int) -> Formation:
        if token >= self.latest.first_token:
            return self.latest
        for formation in reversed(self._formations):
            if token >= formation.first_token:
                return formation
        return self._formations[0]

    def has(self, number: int) -> bool:
        return any(formation.number == number for formation in self._formations)

    def note(self, formation: Formation) -> None:
        """Remember a formation until `FORMATIONS_MAX` others were noted, or as long as it is present."""
        self._past[formation.number] = formation
        if len(self._past) > FORMATIONS_MAX:
            del self._past[next(iter(self._past))]

    def numbered(self, number: int) -> Formation | None:
        """The formation with this number; None if it is not remembered."""
        present = (formation for formation in self._formations if formation.number == number)
        return next(present, None) or self._past.get(number)

    def holder(self, token: int) -> NodeId:
        """The site whose turn it is to send Ack(token)."""
        return self.of(token).holder(token)

    def scheduled_at(self, token: int) -> Instant:
        """t_e."""
        return self.of(token).scheduled_at(token)

    def take_over(self, formation: Formation) -> None:
        """Add a formation that takes over at its first token."""
        assert formation.first_token > self.latest.first_token
        self._formations.append(formation)
        self.latest = formation
        self.note(formation)
        del self._formations[:-FORMATIONS_MAX]

    def restart(self, formation: Formation) -> None:
        """Replace all formations by this one, after a reformation."""
        self._formations = [formation]
        self.latest = formation
        self.note(formation)

    def forget_before(self, token: int) -> None:
        """Drop formations that ended before this token."""
        while len(self._formations) > 1 and self._formations[1].first_token <= token:
            del self._formations[0]
