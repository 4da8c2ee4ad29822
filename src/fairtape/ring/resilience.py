"""Resilience: what can be inferred about the others from the acknowledgments that were heard. TRMP 2001 §2.

A site sends Ack(t) only when it holds everything up to and including t. The members take turns, so when Ack(t) has
been heard, the K + 1 sites that sent Ack(t - K) … Ack(t) hold everything up to t - K, and after a whole round all do.
"""

from fairtape.ring.formation import Formation


class Resilience:
    """The inferences of one receiver in one formation."""

    __slots__ = ("_first", "_members", "_resilience", "heard_through")

    def __init__(self, formation: Formation) -> None:
        self._first = formation.first_token
        self._members = len(formation.members)
        self._resilience = formation.resilience
        self.heard_through = formation.first_token - 1  # the highest acknowledgment heard: lower ones were sent too

    def hear(self, token: int) -> None:
        """Ack(token), or a part of it, has been received."""
        self.heard_through = max(self.heard_through, token)

    @property
    def survives_through(self) -> int:
        """K + 1 sites hold everything up to this token (decision 6)."""
        return self.heard_through - self._resilience

    @property
    def stable_through(self) -> int:
        """All m members hold everything up to this token: t - m + 1."""
        return max(self.heard_through - self._members + 1, self._first - 1)

    @property
    def known_stable_through(self) -> int:
        """All members know that all members hold everything up to this token: a second round later, t - 2m + 2."""
        return max(self.heard_through - 2 * self._members + 2, self._first - 1)
