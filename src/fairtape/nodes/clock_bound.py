"""The error bound of a site's clock.

Three things say how wrong a clock is.

- The clock itself reports its bound (`Clock.bound`, from the kernel's discipline): its *claim*.
- A two-way exchange with a reformation server: the request sent at `asked_at` arrived at `received_at` by the other
  clock, between request and response, so the offset of the clocks is known to half a round trip. If exchange and claim
  are consistent, the smaller bound holds. If they contradict each other, the exchange is believed.
- An acknowledgment or a request of another member, which names the instant at which it was sent and the bound of its
  sender's clock. A network only adds delay, so one that comes from the future proves that this clock is behind. The
  clock of a virtual machine stands still with the machine, and no claim says so: the others' datagrams are the first
  that do.

A single member may be wrong, or lie. So this clock is doubted if more than half of the other members prove its claim
wrong; and until an exchange that was requested since then has measured it. A server that contradicts that many members
is not believed: it may have stood still on the same machine. A member that has only one other has no such majority. It
doubts its clock on the word of that one, and then the exchange decides; one that it proves wrong does not count for as
long as exchanges do (decision 59, Acknowledgments from the future).
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from fairtape.core.instants import NEVER, SECOND, Duration, Instant
from fairtape.wire.frames import NodeId

EXCHANGES_MAX: Final = 8  # of which the best counts
UNMEASURED: Final = 16 * SECOND
"""The bound of a clock whose claim was proved wrong: the kernel's own one for an undisciplined clock."""


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One round trip: the other clock is ahead by `offset`, up to `uncertainty` more or less."""

    uncertainty: Duration
    offset: Duration
    own: Duration  # what this clock claimed then

    @property
    def behind_min(self) -> Duration:
        return self.offset - self.uncertainty

    @property
    def behind_max(self) -> Duration:
        return self.offset + self.uncertainty

    @property
    def bound(self) -> Duration:
        return abs(self.offset) + self.uncertainty


@dataclass(frozen=True, slots=True)
class _Proof:
    """A datagram of one member proves that this clock is behind by this much."""

    behind: Duration
    noted_at: Instant


class ClockBoundEstimator:
    """Combines the clock's own bound with the latest exchanges of one site and with what other members send."""

    def __init__(self) -> None:
        self._exchanges: deque[_Exchange] = deque(maxlen=EXCHANGES_MAX)  # that are consistent with one another
        self._best: _Exchange | None = None  # the one that says most about the present
        self._asked_at: Instant = 0  # when the latest exchange was requested
        self._proofs: dict[NodeId, _Proof] = {}  # of members that prove this clock to be behind
        self._wrong: dict[NodeId, int] = {}  # members that an exchange proved wrong: for how many more exchanges
        self._doubted_at: Instant | None = None  # when the claim was last proved wrong; None: measured since
        self._unclaimed = 0  # for how many more exchanges the claim does not count
        self._behind: Duration = 0  # by how much more than half of the other members prove this clock to be behind

    def exchanged(
        self, *, asked_at: Instant, received_at: Instant, bound: Duration, now: Instant, own: Duration
    ) -> None:
        """Note one round trip; `bound` is that of the other clock, `own` what this one claims."""
        if now < asked_at:  # the clock was set back in between: the exchange proves nothing
            self._exchanges.clear()
            self._best = None
            return
        self._asked_at = asked_at
        exchange = _Exchange((now - asked_at) // 2 + bound, received_at - (asked_at + now) // 2, own)
        if self._doubted_at is not None and not self._ends_doubt(exchange):
            return
        self._wrong = {member: left - 1 for member, left in self._wrong.items() if left > 1}
        self._unclaimed = max(self._unclaimed - 1, 0)
        if any(_contradict(each, exchange) for each in self._exchanges):
            self._exchanges.clear()  # the clock was stepped, or stood still, since then
        self._exchanges.append(exchange)
        self._best = min(self._exchanges, key=lambda each: each.uncertainty - each.own)

    def _ends_doubt(self, exchange: _Exchange) -> bool:
        """Whether an exchange measures a clock that is doubted. It must have been requested since."""
        assert self._doubted_at is not None
        if self._asked_at <= self._doubted_at:
            return False
        wrong = [member for member, proof in self._proofs.items() if proof.behind > exchange.behind_max]
        if self._behind <= exchange.behind_max:
            self._unclaimed = EXCHANGES_MAX + 1
        elif len(wrong) == 1:
            self._wrong[wrong[0]] = EXCHANGES_MAX + 1
            del self._proofs[wrong[0]]
            self._behind = 0
        else:
            return False
        self._doubted_at = None
        self._exchanges.clear()
        return True

    def heard(
        self, sender: NodeId, behind: Duration, *, own: Duration, others: Collection[NodeId], now: Instant
    ) -> bool:
        """Note what a datagram of another member proves. Returns whether an exchange should be requested at once.

        This clock is behind by at least `behind`, if the sender's clock is within its bound; a negative number proves
        nothing. `own` is what this clock claims, `others` are the other members. Where no member proves anything
        (`has_proofs`), only a positive `behind` has to be noted.
        """
        known = self._proofs.get(sender)
        if known is None or known.noted_at < self._asked_at or behind > known.behind:
            self._proofs[sender] = _Proof(behind, now)
        self._proofs = {
            member: proof
            for member, proof in self._proofs.items()
            if proof.behind > 0 and member in others and member not in self._wrong
        }
        proved = sorted((proof.behind for proof in self._proofs.values()), reverse=True)
        needed = len(others) // 2 + 1
        self._behind = proved[needed - 1] if needed <= len(proved) else 0
        limit = own if self._best is None or not self._unclaimed else self._best.behind_max
        if behind <= limit or sender not in self._proofs:
            return False
        if self._behind > limit and (self._doubted_at is None or now < self._doubted_at):
            self._doubted_at = now
        return True

    @property
    def has_proofs(self) -> bool:
        """Whether any member proves that this clock is behind."""
        return bool(self._proofs)

    @property
    def doubted(self) -> bool:
        """Whether the claim of the clock was proved wrong, and no exchange has measured the clock since."""
        return self._doubted_at is not None

    @property
    def behind(self) -> Duration:
        """By how much the clock is proved to be behind; 0: it is not."""
        measured = 0 if self._best is None else self._best.behind_min
        return max(self._behind, measured, 0)

    def bound(self, own: Duration) -> Duration:
        """The error bound of a clock that claims `own`."""
        if self._doubted_at is not None:
            return max(own, UNMEASURED)
        if self._best is None:
            return own
        measured = self._best.bound + max(own - self._best.own, 0)  # the claim has grown since: so may the error
        contradicted = abs(self._best.offset) > self._best.uncertainty + own
        return measured if contradicted or self._unclaimed else min(own, measured, NEVER)


def _contradict(one: _Exchange, other: _Exchange) -> bool:
    return abs(one.offset - other.offset) > one.uncertainty + other.uncertainty
