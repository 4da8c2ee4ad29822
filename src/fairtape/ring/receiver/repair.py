"""Repair: the response to a request is the original datagrams, byte for byte, and NACK reduction.

They need no envelope: a block proves its source and an acknowledgment proves its token site, whichever site resends
them.

NACK reduction (TRMP 2001 §5.2): losses on a multicast tree are shared, and all receivers below a lossy branch would
send requests at once. So the receivers are divided into k_p sets. With r the site that sent token t, in a loop of m,

    S_{i,t} = { (r + i + 1 + j k_p) mod m,  0 <= j <= (m - i - 1) / k_p },  i = 0 … k_p - 1,

and a receiver in S_{i,t} requests Ack(t), or the messages that it acknowledged, only i token periods after it detected
the loss. The response is multicast; a receiver that has got it by then sends no request. The cost is delay: a recovery
may take (k_p - 1) token periods longer, so a message is complete, or the loop reforming, by t_e + Δ_R + (k_p - 1) Δ_T.
Off by default (k_p = 1).
"""

from collections import deque
from typing import Final

from fairtape.core.effects import LOOP_CHANNEL, Channel, Multicast, Send
from fairtape.core.instants import Duration, Instant
from fairtape.ring.membership.formation import Formation
from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.receive_buffer import ReceiveBuffer
from fairtape.ring.receiver.recovery import Recovery, request_targets
from fairtape.wire.frames import NodeId, Range, Request

ANSWER_MAX: Final = 1_024  # datagrams of one response; the rest is requested again
ANSWERS_MAX: Final = 4_096  # multicast datagrams that are remembered
KEPT_TOKENS_MAX: Final = 4_096  # kept for repairs of the sites that ask this one


def answer(request: Request, *, ordering: Ordering, buffer: ReceiveBuffer) -> list[bytes]:
    """What this site holds of a request. Messages first: an Ack that arrives after them causes no request."""
    datagrams: list[bytes] = []
    for wanted in request.ranges:
        datagrams += _blocks(wanted, buffer, ANSWER_MAX - len(datagrams))
    for token in request.tokens:
        datagrams += ordering.datagrams(token)
    return datagrams[:ANSWER_MAX]


def _blocks(wanted: Range, buffer: ReceiveBuffer, datagrams_max: int) -> list[bytes]:
    stream = buffer.find((wanted.source, wanted.incarnation))
    if stream is None:
        return []
    datagrams: list[bytes] = []
    first = wanted.first
    while first < wanted.end and len(datagrams) < datagrams_max:
        held = stream.find(first)
        if held is None:
            break
        messages, _, datagram, _, _ = held
        datagrams.append(datagram)
        first += messages
    return datagrams


def request_set(formation: Formation, receiver: NodeId, token: int) -> int:
    """The i of the set S_{i,t} that the receiver belongs to."""
    members = formation.members
    turn = (token - formation.first_token) // formation.stride
    behind = members.index(receiver) - turn % len(members) - 1
    return behind % len(members) % formation.request_sets


def hold_back(formation: Formation, receiver: NodeId, token: int) -> Duration:
    """How long the receiver waits before it requests this token."""
    if formation.request_sets == 1 or receiver not in formation.members:
        return 0
    return request_set(formation, receiver, token) * formation.timing.token_period


class RecentAnswers:
    """Suppresses the repetition of datagrams that were multicast a moment ago and are still on their way."""

    def __init__(self) -> None:
        self._sent_at: dict[bytes, Instant] = {}
        self._in_order: deque[bytes] = deque()

    def unsent(self, datagrams: list[bytes], now: Instant, lingering: Duration) -> list[bytes]:
        """The datagrams that were not sent within the last `lingering`. They count as sent now."""
        while self._in_order and (
            len(self._in_order) >= ANSWERS_MAX or now - self._sent_at[self._in_order[0]] >= lingering
        ):
            del self._sent_at[self._in_order.popleft()]
        unsent = [datagram for datagram in dict.fromkeys(datagrams) if datagram not in self._sent_at]
        for datagram in unsent:
            self._sent_at[datagram] = now
            self._in_order.append(datagram)
        return unsent


class RepairRequests:
    """When a site requests repairs, and of which site, and how it answers requests. TRMP 2001 §4.1, §5.2.

    Usually all receivers request at once, and the response is unicast. In a loop with several request sets the
    receivers take turns in requesting, and the response is multicast to the loop.
    """

    def __init__(self, *, me: NodeId, ordering: Ordering) -> None:
        self.home: Formation | None = (
            None  # the secondary loop in which this site requests repairs; None: the primary one
        )
        self.children: tuple[Formation, ...] = ()  # secondary loops whose members request repairs from this site
        self.parent: NodeId | None = None  # asked for repairs while not active
        self.needed_after: int | None = None  # sites that ask this one may miss what comes after this token
        self._me = me
        self._ordering = ordering
        self._answers = RecentAnswers()

    def hold_back(self, token: int) -> Duration:
        """How long this site waits before it requests a token."""
        return hold_back(self.home or self._ordering.formations.of(token), self._me, token)

    def targets(self, wanted: list[Recovery], highest_ack: int, *, active: bool) -> dict[NodeId, list[Recovery]]:
        """An active site asks the latest token sites; others ask their parent. 2001 §4.1."""
        if active or self.parent is None:
            formations = self._ordering.formations
            return request_targets(wanted, formations=formations, me=self._me, highest_ack=highest_ack)
        return {self.parent: wanted}

    def needed_through(self) -> int:
        """What the sites that ask this one hold. One that is too far behind must catch up from a journal."""
        complete_through = self._ordering.complete_through
        if self.needed_after is None:
            return complete_through
        return max(self.needed_after, complete_through - KEPT_TOKENS_MAX)

    def answer(self, request: Request, now: Instant) -> Multicast | Send | None:
        """The response: what this site holds of the request."""
        datagrams = answer(request, ordering=self._ordering, buffer=self._ordering.buffer)
        loop = next((each for each in (*self.children, self._primary) if request.sender in each.members), None)
        if loop is not None and loop.request_sets > 1:
            unsent = self._answers.unsent(datagrams, now, loop.timing.one_way_max)
            channel = LOOP_CHANNEL + loop.loop if loop.loop else Channel.DATA
            return Multicast(channel, unsent) if unsent else None
        return Send(request.sender, datagrams) if datagrams else None

    @property
    def _primary(self) -> Formation:
        return self._ordering.formations.latest
