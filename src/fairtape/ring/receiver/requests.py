"""Requests: whom to ask for what is missing, and how to say it in few datagrams. T-RMP §5."""

from collections.abc import Iterable, Iterator
from typing import Final

from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.recovery import Recovery
from fairtape.ring.receiver.recovery_tables import State
from fairtape.wire.frames import NodeId, Range, Request, request_items_max

REQUESTS_MAX: Final = 16
"""Datagrams that one gathering sends to one site; what does not fit is asked for at the next retry."""


def whom_to_ask(
    recoveries: Iterable[Recovery], *, formations: FormationHistory, me: NodeId, heard_through: int
) -> dict[NodeId, list[Recovery]]:
    """Each recovery's next site: first the latest token site, which holds everything, then the ones before it."""
    asked: dict[NodeId, list[Recovery]] = {}
    for recovery in recoveries:
        sites = _holders(recovery.token, formations, me, heard_through)
        site = sites[(recovery.retries - 1) % len(sites)]
        asked.setdefault(site, []).append(recovery)
    return asked


def _holders(token: int, formations: FormationHistory, me: NodeId, heard_through: int) -> list[NodeId]:
    """Sites that are known to hold Msg(token), latest first; before any is known, the one whose turn it is."""
    lowest = max(token, heard_through - len(formations.latest.members) + 1)
    known = [formations.holder(later) for later in range(heard_through, lowest - 1, -1)]
    return [site for site in known if site != me] or [formations.holder(token)]


def combine(
    recoveries: Iterable[Recovery], ordering: Ordering, stripe: int, formation: int, me: NodeId, datagram_max: int
) -> Iterator[Request]:
    """All that these recoveries want of one site, in as few requests as it takes."""
    tokens: list[int] = []
    ranges: list[Range] = []
    for recovery in recoveries:
        if recovery.state is State.AWAIT_REQUESTED_ACK:
            tokens.append(recovery.token)
        else:
            ranges += ordering.missing(recovery.token)
    room = request_items_max(datagram_max)
    for _ in range(REQUESTS_MAX):
        if not tokens and not ranges:
            return
        some_tokens, tokens = tokens[:room], tokens[room:]
        left = room - len(some_tokens)
        some_ranges, ranges = ranges[:left], ranges[left:]
        yield Request(stripe, formation, me, tuple(some_tokens), tuple(some_ranges))
