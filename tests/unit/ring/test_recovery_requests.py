"""Requests of recoveries: which site is asked, and how requests are combined into few datagrams."""

from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.receiver.ordering import Ordering
from fairtape.ring.receiver.receive_buffer import ReceiveBuffer
from fairtape.ring.receiver.recovery import REQUESTS_MAX, Recoveries, Recovery, combine_requests, request_targets
from fairtape.wire.frames import CONTROL_SIZE, TAG_SIZE, Request, encode_control, request_items_max
from unit.ring.recovery_values import T_E, TIMING
from unit.ring.ring_values import KEYS, Signer, ack, formation, named

LAYOUT = formation((1, 2, 3, 4, 5))


class RequestSetup:
    """Recoveries of one receiver, and its ordering."""

    def __init__(self, layout: Formation = LAYOUT) -> None:
        self.ordering = Ordering(
            formations=FormationHistory(layout),
            stripe=0,
            buffer=ReceiveBuffer(keys=KEYS, stripe=0),
            after=layout.first_token - 1,
            next_sequence=layout.first_sequence,
        )
        self.recoveries = Recoveries(timing=TIMING, timed=True, tokens=self.ordering)
        self._signer = Signer()
        self._layout = layout

    def of_acks(self, *tokens: int) -> list[Recovery]:
        for token in tokens:
            self.recoveries.overdue(token, T_E, T_E)
        return list(self.recoveries.running.values())

    def of_messages(self, token: int, first: int, count: int) -> list[Recovery]:
        message = ack(self._layout, token, first, [named(first, count)])
        self.ordering.accept(message, self._signer.sign(message))
        self.recoveries.acknowledged(token, T_E)
        return list(self.recoveries.running.values())

    def combined(self, recoveries: list[Recovery], datagram_max: int = 1_400) -> list[Request]:
        return list(combine_requests(recoveries, self.ordering, 0, LAYOUT.number, 5, datagram_max))


def asked(recoveries: list[Recovery], *, me: int, highest_ack: int) -> dict[int, list[int]]:
    found = request_targets(recoveries, formations=FormationHistory(LAYOUT), me=me, highest_ack=highest_ack)
    return {site: [recovery.token for recovery in each] for site, each in found.items()}


def test_without_a_later_acknowledgment_the_token_site_is_asked() -> None:
    assert asked(RequestSetup().of_acks(3), me=5, highest_ack=2) == {3: [3]}


def test_the_latest_token_site_is_asked_first_because_it_holds_everything() -> None:
    assert asked(RequestSetup().of_acks(1, 2), me=5, highest_ack=4) == {4: [1, 2]}


def test_each_retry_asks_the_site_before() -> None:
    (recovery,) = RequestSetup().of_acks(2)
    sites = []
    for retries in range(1, 6):
        recovery.ack_retries = retries
        (site,) = asked([recovery], me=5, highest_ack=4)
        sites.append(site)
    assert sites == [4, 3, 2, 4, 3]


def test_a_site_never_asks_itself() -> None:
    assert asked(RequestSetup().of_acks(2), me=4, highest_ack=4) == {3: [2]}


def test_no_site_is_asked_for_what_it_is_not_known_to_hold() -> None:
    """A round later, every site has sent a later acknowledgment; only one round is considered."""
    (recovery,) = RequestSetup().of_acks(1)
    assert asked([recovery], me=5, highest_ack=60) == {4: [1]}


def test_acknowledgments_and_messages_share_one_request() -> None:
    setup = RequestSetup()
    setup.of_acks(1, 2)
    recoveries = setup.of_messages(3, 10, 4)
    assert setup.combined(recoveries) == [Request(0, LAYOUT.number, 5, (1, 2), (named(10, 4),))]


def test_no_recoveries_need_no_request() -> None:
    assert RequestSetup().combined([]) == []


def test_many_items_are_split_into_a_limited_number_of_datagrams_that_fit() -> None:
    setup = RequestSetup()
    recoveries = setup.of_acks(*range(1, 901))
    for datagram_max in (256, 1_400):
        requests = setup.combined(recoveries, datagram_max)
        items_max = request_items_max(datagram_max)
        assert len(requests) == min(-(-900 // items_max), REQUESTS_MAX)
        for request in requests:
            assert len(encode_control(request, 1)) + TAG_SIZE <= datagram_max
        tokens = [token for request in requests for token in request.tokens]
        assert tokens == list(range(1, len(tokens) + 1))
    assert CONTROL_SIZE < 256


def test_a_request_that_is_full_of_tokens_leaves_ranges_for_the_next() -> None:
    setup = RequestSetup()
    items_max = request_items_max(256)
    setup.of_acks(*range(1, items_max + 1))
    requests = setup.combined(setup.of_messages(items_max + 1, 50, 1), 256)
    assert [(len(request.tokens), len(request.ranges)) for request in requests] == [(items_max, 0), (0, 1)]
