"""The course of a loop: which formation a token belongs to.

Nearly always there is one formation. When one relieves another in its course there are two for a while: the tokens
before the change are still being recovered when those after it arrive.
"""

from typing import Final

from fairtape.core.instants import Instant
from fairtape.ring.membership.formation import Formation
from fairtape.wire.frames import NodeId

FORMATIONS_MAX: Final = 8  # that follow one another so fast that tokens of the first are still missing


class FormationHistory:
    """The formations that a site works with, in their order."""

    def __init__(self, formation: Formation) -> None:
        self._formations = [formation]
        self.latest = formation  # the last one, which has no end yet

    @property
    def formations(self) -> tuple[Formation, ...]:
        """All of them."""
        return tuple(self._formations)

    @property
    def begins_at(self) -> int:
        """The first token that still belongs to a known formation."""
        return self._formations[0].first_token

    def of(self, token: int) -> Formation:
        """The formation of this token."""
        if token >= self.latest.first_token:
            return self.latest
        for formation in reversed(self._formations):
            if token >= formation.first_token:
                return formation
        return self._formations[0]

    def has(self, number: int) -> bool:
        """Whether a formation of this number is among them."""
        return any(formation.number == number for formation in self._formations)

    def holder(self, token: int) -> NodeId:
        """The site whose turn it is to send Ack(token)."""
        return self.of(token).holder(token)

    def scheduled_at(self, token: int) -> Instant:
        """t_e."""
        return self.of(token).scheduled_at(token)

    def take_over(self, formation: Formation) -> None:
        """From its first token on, this formation takes over."""
        assert formation.first_token > self.latest.first_token
        self._formations.append(formation)
        self.latest = formation
        del self._formations[:-FORMATIONS_MAX]

    def restart(self, formation: Formation) -> None:
        """Whatever was before has been left; tokens below the first of this formation belong to none."""
        self._formations = [formation]
        self.latest = formation

    def forget_before(self, token: int) -> None:
        """Nobody asks about tokens below this one any more."""
        while len(self._formations) > 1 and self._formations[1].first_token <= token:
            del self._formations[0]
