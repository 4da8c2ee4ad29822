"""A site's side of repairs: when it asks, and whom it answers. TRMP 2001 §5.2.

Usually everybody asks at once, and the answer goes to the one who asked. Where a loop has more than one set of
receivers they take turns in asking, and the answer goes to all of the loop.
"""

from fairtape.core.effects import LOOP_CHANNEL, Channel, Multicast, Send
from fairtape.core.instants import Duration, Instant
from fairtape.ring.membership.formation import Formation
from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.repair import Answers, answer, hold_back
from fairtape.wire.frames import NodeId, Request


class RepairRequests:
    """Requests and answers of one site."""

    def __init__(self, *, me: NodeId, ordering: Ordering) -> None:
        self.home: Formation | None = None  # the secondary loop in which this site asks its parent; None: the primary
        self.children: tuple[Formation, ...] = ()  # secondary loops whose members ask this site
        self._me = me
        self._ordering = ordering
        self._answers = Answers()

    def hold_back(self, token: int) -> Duration:
        """How long this site leaves it to others to ask for a token."""
        return hold_back(self.home or self._ordering.formations.of(token), self._me, token)

    def answer(self, request: Request, now: Instant) -> Multicast | Send | None:
        """What this site holds of what is wanted."""
        datagrams = answer(request, ordering=self._ordering, buffer=self._ordering.buffer)
        loop = next((each for each in (*self.children, self._primary) if request.sender in each.members), None)
        if loop is not None and loop.request_sets > 1:
            fresh = self._answers.fresh(datagrams, now, loop.timing.one_way_max)
            channel = LOOP_CHANNEL + loop.loop if loop.loop else Channel.DATA
            return Multicast(channel, fresh) if fresh else None
        return Send(request.sender, datagrams) if datagrams else None

    @property
    def _primary(self) -> Formation:
        return self._ordering.formations.latest
