"""The token of a secondary loop. Its members receive the same multicast as the primary loop. TRMP 2001 §4.1.

The secondary token has the number of a primary token. A site passes it on once it holds everything up to that number,
so its members learn what the others hold, as in the primary loop, and detect a site that does not pass it on. It orders
nothing: no site outside the loop waits for it.

The token is passed as in RMP: retransmitted until the next one is received. A site is not suspected while the primary
loop is stopped: the wait starts when this site itself holds everything up to the next token.
"""

from fairtape.core.effects import Reason
from fairtape.core.instants import NEVER, Instant
from fairtape.ring.membership.formation import Formation
from fairtape.wire.frames import NodeId


class SecondaryLoop:
    """One member's side of the token of one secondary loop."""

    def __init__(self, formation: Formation, *, me: NodeId) -> None:
        self.formation = formation
        self.suspicion: tuple[NodeId, int, Reason] | None = None  # site, token, reason
        self.passed_through = formation.first_token - formation.stride  # the highest token received or sent
        self._me = me
        self._held_through = 0  # primary token: this site holds everything up to it
        self._repeat_at: Instant = NEVER
        self._attempts = 0
        self._ready_at: Instant = NEVER  # since when this site holds everything up to the next token

    @property
    def stable_through(self) -> int:
        """The primary token up to which all members hold everything."""
        rounds = (len(self.formation.members) - 1) * self.formation.stride
        return max(self.passed_through - rounds, self.formation.first_token - 1)

    def receive_token(self, token: int, sender: NodeId, now: Instant) -> str:
        """Another member passed the token on. Returns a counter name."""
        if token < self.formation.first_token or self._turns(token) is None or self._holder(token) != sender:
            return "out_of_turn"
        if token <= self.passed_through:
            return "duplicate"
        self._pass(token, now)
        return "loop_token"

    def advance(self, complete_through: int, now: Instant) -> list[int]:
        """This site holds everything up to this primary token. Returns the secondary tokens to send now."""
        if complete_through < self._held_through:
            self._fall_back(complete_through)
        self._held_through = complete_through
        if self.suspicion is not None:
            return []
        sent = []
        while self._holder(self._next) == self._me and self._next <= complete_through:
            sent.append(self._next)
            self._pass(self._next, now)
            if len(self.formation.members) == 1:
                continue
        if not sent and self._repeat_at <= now and self._mine_was_last:
            sent.append(self.passed_through)
            self._attempts += 1
            self._repeat_at = now + self.formation.timing.retry_period
        self._watch_next(now)
        return sent

    def deadline(self) -> Instant:
        """When to retransmit, or to suspect the next site."""
        if self.suspicion is not None or self._ready_at == NEVER:
            return NEVER
        return min(self._repeat_at, self._ready_at + self.formation.timing.reform_delay)

    def _fall_back(self, complete_through: int) -> None:
        """A Break removed tokens from the order: undo their passes, and restart the waits."""
        turns = (complete_through - self.formation.first_token) // self.formation.stride
        passed_through = self.formation.first_token + max(turns, -1) * self.formation.stride
        self.passed_through = min(self.passed_through, passed_through)
        self._repeat_at = self._ready_at = NEVER
        self._attempts = 0

    @property
    def _next(self) -> int:
        return self.passed_through + self.formation.stride

    @property
    def _mine_was_last(self) -> bool:
        return self.passed_through >= self.formation.first_token and self._holder(self.passed_through) == self._me

    def _turns(self, token: int) -> int | None:
        turns, rest = divmod(token - self.formation.first_token, self.formation.stride)
        return None if rest else turns

    def _holder(self, token: int) -> NodeId:
        turns = self._turns(token)
        assert turns is not None
        return self.formation.members[turns % len(self.formation.members)]

    def _pass(self, token: int, now: Instant) -> None:
        self.passed_through = token
        self._repeat_at = self._ready_at = NEVER
        self._attempts = 0
        self._watch_next(now)

    def _watch_next(self, now: Instant) -> None:
        """Start the wait once the next site could pass the token on; suspect it when the wait is over."""
        if self._held_through < self._next:
            return
        if self._ready_at == NEVER:
            self._ready_at = now
            self._repeat_at = now + self.formation.timing.retry_period if self._mine_was_last else NEVER
        elif now - self._ready_at >= self.formation.timing.reform_delay and self._holder(self._next) != self._me:
            self.suspicion = self._holder(self._next), self._next, Reason.TOKEN_REFUSED
