"""Resilience: what the received acknowledgments prove about other sites. TRMP 2001 §2.

A site sends Ack(t) only if it holds everything up to and including t. The members take turns, so once Ack(t) is
received, the K + 1 sites that sent Ack(t - K) … Ack(t) hold everything up to t - K, and after a whole round all do.

At a change of formation one site may have two of those turns, so sites are counted, not turns. Proofs are never lost.
"""

from fairtape.ring.membership.formation_history import FormationHistory


class Resilience:
    """The inferences of one receiver."""

    __slots__ = ("_formations", "highest_ack", "known_stable_through", "stable_through", "survives_through")

    def __init__(self, formations: FormationHistory) -> None:
        self._formations = formations
        before = formations.latest.first_token - 1
        self.highest_ack = before  # the highest one received: all lower ones were sent too
        self.survives_through = min(before, 0)  # K + 1 sites hold everything up to this token (decision 6, Commit)
        self.stable_through = before  # all m members hold everything up to this token: t - m + 1
        self.known_stable_through = before  # all members know that: a second round later, t - 2m + 2

    def ack_received(self, token: int) -> None:
        """Ack(token), or a part of it, has been received."""
        if token <= self.highest_ack:
            return
        self.highest_ack = token
        formation = self._formations.of(token)
        turns = token - formation.first_token + 1  # of this formation: each of the first m belongs to another site
        if turns > formation.resilience:
            self._survives(token - formation.resilience)
        else:
            self._survives(self._held_by_enough(token, formation.resilience + 1))
        if turns >= len(formation.members):
            self.stable_through = max(self.stable_through, token - len(formation.members) + 1)
        if turns >= 2 * len(formation.members) - 1:
            self.known_stable_through = max(self.known_stable_through, token - 2 * len(formation.members) + 2)

    def learn(self, survives_through: int) -> None:
        """Another site reports that K + 1 sites hold everything up to this token."""
        self._survives(survives_through)

    def _survives(self, token: int) -> None:
        self.survives_through = max(self.survives_through, token)

    def _held_by_enough(self, token: int, enough: int) -> int:
        """The highest token that `enough` different sites are known to hold, across a change of formation."""
        holders = set()
        for earlier in range(token, self._formations.begins_at - 1, -1):
            holders.add(self._formations.holder(earlier))
            if len(holders) == enough:
                return earlier
        return 0
