"""The customers of a retransmit server: their grades, and how much each may ask for.

MoldUDP64 says nothing about who asks, so an account is that of a host. An address proves nothing; all that depends on
it is how much service somebody gets who may be somebody else.
"""

from collections import OrderedDict
from typing import Final

from fairtape.core.instants import SECOND, Duration
from fairtape.edge.protocol.effects import Grade
from fairtape.edge.protocol.pacing import Pacer

STRANGERS_MAX: Final = 10_000  # accounts of hosts that nobody registered; the one unheard for longest goes first
REGISTERED_MAX: Final = 100_000


class CustomerAccount:
    """One host."""

    __slots__ = ("bits", "grade", "refused", "requests", "waiting")

    def __init__(self, grade: Grade, *, requests_per_s: int, bits_per_s: int, burst_period: Duration) -> None:
        self.grade = grade
        self.requests = Pacer(requests_per_s, burst_period)
        self.bits = Pacer(bits_per_s, burst_period)
        self.waiting = 0  # repairs that are queued for it
        self.refused = 0


class CustomerAccounts:
    """All hosts that asked lately, and those that were registered."""

    def __init__(
        self,
        *,
        requests_per_s: int,
        bits_per_s: int,
        burst_period: Duration = SECOND // 10,
        strangers_max: int = STRANGERS_MAX,
    ) -> None:
        self._requests_per_s = requests_per_s
        self._bits_per_s = bits_per_s
        self._burst_period = burst_period
        self._strangers_max = strangers_max
        self._registered: dict[str, CustomerAccount] = {}
        self._strangers: OrderedDict[str, CustomerAccount] = OrderedDict()

    def register(self, host: str, grade: Grade, *, bits_per_s: int | None = None) -> None:
        """Whoever asks from this host gets this grade."""
        assert len(self._registered) < REGISTERED_MAX or host in self._registered
        self._registered[host] = self._account(grade, bits_per_s or self._bits_per_s)

    def of(self, host: str) -> CustomerAccount:
        """The account of a host; a stranger has best effort."""
        account = self._registered.get(host) or self._strangers.get(host)
        if account is None:
            account = self._strangers[host] = self._account(Grade.BEST_EFFORT, self._bits_per_s)
            if len(self._strangers) > self._strangers_max:
                self._strangers.popitem(last=False)
        elif host in self._strangers:
            self._strangers.move_to_end(host)
        return account

    def _account(self, grade: Grade, bits_per_s: int) -> CustomerAccount:
        return CustomerAccount(
            grade, requests_per_s=self._requests_per_s, bits_per_s=bits_per_s, burst_period=self._burst_period
        )
