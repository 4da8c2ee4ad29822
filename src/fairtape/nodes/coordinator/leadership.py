"""The lead of a reformation server: what it has claimed, what the store has confirmed, and until when it may act.

Decision 67, Confirmed lead: a claim that the store has carried out gives a lead that counts from when the claim was
sent, whenever an answer shows it. A refused claim, or a read, gives nothing by itself: it shows which claim the store
carried out last. Every claim has a renewal number of its own, so there is no doubt which one that is.

Decision 68, Leader's lease: a claim names its lease, because the other servers must wait for what the leader really
uses. It is several times as long as the slowest of the latest requests to the store, so one request that takes as long
as another one took does not end the lead.
"""

from collections import deque
from typing import Final

from fairtape.core.formation_log import STORE_CALLS_PER_LEASE, Claim, Leadership
from fairtape.core.instants import SECOND, Duration, Instant
from fairtape.core.percentiles import Rank, percentile
from fairtape.wire.frames import NodeId

RENEWALS: Final = 5  # within one lease
WAIT_RENEWALS: Final = 2  # a server that waits is woken once in each of these periods, or does not run
LEASE_MAX: Final = 4 * SECOND  # a store that takes more than a second has failed, as far as its users can tell
MEASURED_CALLS: Final = 100  # the latest requests; of so few the 99th percentile is the longest
CLAIMS_MAX: Final = 8  # without an answer


class Lead:
    """One server's view of the leadership, and its own claims to it."""

    def __init__(self, me: NodeId, *, lease_min: Duration, first_renewal: int) -> None:
        """`first_renewal` is above every number of an earlier incarnation (decision 62, Incarnations on the disk)."""
        self.term = 0  # of this server while it leads; 0 otherwise
        self.until: Instant = 0  # the end of what the store has confirmed
        self.shown: Leadership | None = None  # by the store, in its last answer
        self._me = me
        self._lease_min = lease_min
        self._claims: dict[Leadership, Instant] = {}  # own ones that the store may have carried out: when sent
        self._renewal = first_renewal  # no incarnation repeats a claim of another one
        self._answered = False  # the store, since this server started
        self._waited: Duration = 0  # since it has shown something new
        self._waited_until: Instant = 0
        self._waits_for: Duration = 0  # how long another server may lead on what is shown
        self._latest_term = 0  # in which this server has led
        self._calls: deque[Duration] = deque(maxlen=MEASURED_CALLS)

    # The lease.

    def measure(self, period: Duration) -> None:
        """The store took so long to answer a request."""
        if period >= 0:  # otherwise the clock was set back meanwhile
            self._calls.append(period)

    @property
    def call_max(self) -> Duration:
        """The 99th percentile of the time that the latest requests to the store took."""
        return percentile(self._calls, 0.99, 0, rank=Rank.HIGHER)

    @property
    def lease(self) -> Duration:
        """The lease that this server needs."""
        return max(self._lease_min, min(STORE_CALLS_PER_LEASE * self.call_max, LEASE_MAX))

    @property
    def renewal_period(self) -> Duration:
        """How often to read or renew the leadership."""
        return self.lease // RENEWALS

    @property
    def renew_at(self) -> Instant:
        """When to renew, counted from when the confirmed claim was sent."""
        lease = self.shown.lease if self.shown is not None else 0
        return self.until - lease + lease // RENEWALS

    # The lead.

    def leads(self, now: Instant) -> bool:
        return self.term > 0 and now < self.until

    def begin(self) -> None:
        """Lead in the term that the store shows."""
        assert self.shown is not None
        self.term = self._latest_term = self.shown.term

    def end(self) -> None:
        self.term = 0

    def forget_claims(self, now: Instant) -> None:
        """Wait like any other server before the next claim."""
        self._claims.clear()
        self.until = 0
        self._waited, self._waited_until = 0, now

    def wait(self, now: Instant) -> None:
        """Count the time since the last call, up to two renewals: a clock that is set ahead ends no lease."""
        passed = min(now - self._waited_until, WAIT_RENEWALS * self.renewal_period)
        self._waited += max(passed, 0)
        self._waited_until = now

    def may_begin(self, now: Instant) -> bool:
        """Whether the store shows a claim of this server to a term that it has not led in yet."""
        return now < self.until and self.shown is not None and self.shown.term > self._latest_term

    @property
    def may_take_over(self) -> bool:
        """Whether no other server can lead, after what the store has shown, and for how long."""
        return self._answered and (self.shown in self._claims or self._waited > self._waits_for)

    # Claims.

    def renew(self, now: Instant) -> Claim:
        """Claim the present term for another lease."""
        claim = self._claim(self.term, self.lease, now)
        self.until = min(self.until, now + claim.wanted.lease)  # a shorter lease counts as soon as it is asked for
        return claim

    def take_over(self, now: Instant, *, term_min: int = 0) -> Claim:
        """Claim the next term. The lease of the last leader shows how slow the store is for it."""
        shown = self.shown
        term, lease = (0, 0) if shown is None else (shown.term, min(shown.lease, LEASE_MAX))
        return self._claim(max(term + 1, term_min), max(self.lease, lease), now)

    def _claim(self, term: int, lease: Duration, now: Instant) -> Claim:
        self._renewal += 1
        wanted = Leadership(self._me, term, self._renewal, lease)
        self._claims[wanted] = now
        for earliest in list(self._claims)[:-CLAIMS_MAX]:
            del self._claims[earliest]
        return Claim(self.shown, wanted)

    def show(self, leadership: Leadership | None, now: Instant) -> None:
        """The store shows this leadership. If it is a claim of this server, the lead counts from when that was sent."""
        if leadership != self.shown or not self._answered:
            self._note(leadership, now)
        if leadership is not None and leadership in self._claims:
            sent_at = self._claims[leadership]
            self.until = sent_at + leadership.lease
            self._claims = {claim: at for claim, at in self._claims.items() if at >= sent_at}

    def _note(self, leadership: Leadership | None, now: Instant) -> None:
        """Something new: another server may lead on it for a lease. An empty store that never had any has no leader."""
        if leadership is not None:
            lease = leadership.lease or self._lease_min
            self._waits_for = lease + lease // 4
        elif not self._answered:
            self._waits_for = -1
        if leadership not in self._claims:
            self._claims.clear()
            self.until = 0
        self.shown, self._answered = leadership, True
        self._waited, self._waited_until = 0, now
