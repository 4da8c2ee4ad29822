"""Repair service: the answer to a request is the original datagrams, byte for byte, to the one who asked.

They need no envelope: a block proves its source and an acknowledgment proves its token site, whoever sends them.
"""

from collections import deque
from typing import Final

from fairtape.core.instants import Duration, Instant
from fairtape.ring.membership.formation import Formation
from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.receive_buffer import ReceiveBuffer
from fairtape.wire.frames import NodeId, Range, Request

ANSWER_MAX: Final = 1_024
"""Datagrams in the answer to one request; what is still missing then is asked for again."""


def answer(request: Request, *, ordering: Ordering, buffer: ReceiveBuffer) -> list[bytes]:
    """What this site holds of what is wanted. Messages first: an acknowledgment that finds them needs no request."""
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
        messages, _, datagram, _ = held
        datagrams.append(datagram)
        first += messages
    return datagrams


# NACK reduction: receivers take turns in asking, and everybody hears the answer. TRMP 2001 §5.2.
#
# Losses on a multicast tree are shared: whoever is below a branch that lost a message misses it, and all of them would
# ask at once. So the receivers are divided into k_p sets. With r the site that sent token t, in a loop of m,
#
#     S_{i,t} = { (r + i + 1 + j k_p) mod m,  0 <= j <= (m - i - 1) / k_p },  i = 0 … k_p - 1,
#
# and a receiver in S_{i,t} asks for Ack(t), or for what it acknowledged, only i token periods after it has noticed. The
# answer is multicast; who has heard it by then does not ask. The price is delay: a recovery may take (k_p - 1) token
# periods longer, so a message is complete, or the loop reforming, by t_e + Δ_R + (k_p - 1) Δ_T. Off unless asked for.

ANSWERS_MAX: Final = 4_096  # multicast answers that are remembered


def request_set(formation: Formation, receiver: NodeId, token: int) -> int:
    """The i of the set S_{i,t} that the receiver belongs to."""
    members = formation.members
    turn = (token - formation.first_token) // formation.stride
    behind = members.index(receiver) - turn % len(members) - 1
    return behind % len(members) % formation.request_sets


def hold_back(formation: Formation, receiver: NodeId, token: int) -> Duration:
    """How long the receiver leaves it to others to ask for this token."""
    if formation.request_sets == 1 or receiver not in formation.members:
        return 0
    return request_set(formation, receiver, token) * formation.timing.token_period


class RecentAnswers:
    """What was multicast a moment ago need not be multicast again: it is on its way to whoever asks now."""

    def __init__(self) -> None:
        self._sent_at: dict[bytes, Instant] = {}
        self._in_order: deque[bytes] = deque()

    def unsent(self, datagrams: list[bytes], now: Instant, lingering: Duration) -> list[bytes]:
        """Those of them that were not sent within the last `lingering`; they count as sent now."""
        while self._in_order and (
            len(self._in_order) >= ANSWERS_MAX or now - self._sent_at[self._in_order[0]] >= lingering
        ):
            del self._sent_at[self._in_order.popleft()]
        unsent = [datagram for datagram in dict.fromkeys(datagrams) if datagram not in self._sent_at]
        for datagram in unsent:
            self._sent_at[datagram] = now
            self._in_order.append(datagram)
        return unsent
