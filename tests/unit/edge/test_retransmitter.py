"""R_x: requested messages are sent again, by unicast or multicast; everything else is counted and refused."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from fairtape.core.addresses import Address
from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.edge.protocol.archive import MessageIndex, RecentMessages, SessionExtent, reread
from fairtape.edge.protocol.effects import (
    EdgeEffect,
    RefusalReason,
    RepairRefused,
    SendMulticast,
    SendUnicast,
)
from fairtape.edge.protocol.retransmitter import (
    CustomerAccounts,
    Grade,
    RepairRequest,
    Retransmitter,
    RetransmitterOptions,
    merge_requests,
)
from fairtape.edge.protocol.sessions import StripePosition
from fairtape.edge.protocol.stripe_sequencer import StripeSequencer
from fairtape.formats import moldudp64
from fairtape.formats.moldudp64 import MoldRequest, encode_request
from unit.edge.edge_values import NOON, edition, formation_change, plan, tokens

ONE: Address = ("10.0.0.1", 5)
OTHER: Address = ("10.0.0.2", 5)
SESSION = edition().session(1)


def recent(count: int = 10, *, bytes_max: int = 1 << 20, finished: bool = False) -> RecentMessages:
    kept, sequencer = RecentMessages(bytes_max=bytes_max), StripeSequencer(StripePosition.fresh(edition()))
    for step in sequencer.begin():
        kept.take(step, sequencer.at)
    for ordered in tokens(count, 6):
        for step in sequencer.deliver(ordered):
            kept.take(step, sequencer.at)
    for step in sequencer.finish(NOON) if finished else []:
        kept.take(step, sequencer.at)
    return kept


def server(archive: RecentMessages | None = None, **options: int) -> Retransmitter:
    made = Retransmitter(archive or recent(), feed="A", options=RetransmitterOptions(**options))
    made.follow(edition().plan)
    return made


def ask(machine: Retransmitter, first: int, count: int, origin: Address = ONE, now: int = NOON) -> None:
    machine.receive(encode_request(MoldRequest(SESSION, first, count)), now, origin=origin)


def settle(machine: Retransmitter, until: int = NOON + SECOND) -> list[EdgeEffect]:
    effects = machine.drain()
    while (deadline := machine.deadline()) is not None and deadline <= until:
        machine.wake(deadline)
        effects += machine.drain()
    return effects


def carried(effect: EdgeEffect) -> list[bytes]:
    assert isinstance(effect, SendUnicast | SendMulticast)
    return [message for datagram in effect.datagrams for message in moldudp64.decode(datagram).messages]


def test_what_one_customer_misses_is_sent_by_unicast() -> None:
    kept = recent()
    machine = server(kept)
    ask(machine, 5, 3)
    (effect,) = settle(machine)
    assert isinstance(effect, SendUnicast)
    assert effect.to == ONE
    assert carried(effect) == list(kept.messages(SESSION, 5, 3))
    assert moldudp64.decode(effect.datagrams[0]).number == 5


def test_what_several_miss_is_multicast_once_and_the_rest_goes_to_each() -> None:
    """Retransmissions should also be multicast. TRMP 2001 §7.1."""
    kept = recent()
    machine = server(kept)
    ask(machine, 5, 4)
    ask(machine, 7, 4, OTHER)
    found = {}
    for effect in settle(machine):
        assert isinstance(effect, SendUnicast | SendMulticast)
        to = effect.to if isinstance(effect, SendUnicast) else None
        found[to] = carried(effect)
        if isinstance(effect, SendMulticast):
            assert effect.to == edition().plan.stripes[1].endpoint("A")
    assert found == {
        ONE: list(kept.messages(SESSION, 5, 2)),
        None: list(kept.messages(SESSION, 7, 2)),
        OTHER: list(kept.messages(SESSION, 9, 2)),
    }


def test_a_request_that_crossed_a_multicast_repair_is_not_answered_again() -> None:
    machine = server(linger_period=50 * MILLISECOND)
    ask(machine, 5, 4)
    ask(machine, 5, 4, OTHER)
    assert len(settle(machine, NOON + 10 * MILLISECOND)) == 1
    ask(machine, 6, 2, ("10.0.0.3", 5), NOON + 11 * MILLISECOND)
    assert not settle(machine, NOON + 20 * MILLISECOND)
    assert machine.counts.crossed == 1
    ask(machine, 6, 2, ("10.0.0.3", 5), NOON + 90 * MILLISECOND)
    assert len(settle(machine)) == 1


def test_a_request_for_the_next_number_is_answered_with_the_extent() -> None:
    for finished in (False, True):
        kept = recent(finished=finished)
        machine = server(kept)
        extent = kept.extent(SESSION)
        assert extent is not None
        ask(machine, extent.following, 1)
        (effect,) = machine.drain()
        assert isinstance(effect, SendUnicast)
        assert moldudp64.decode(effect.datagrams[0]) == moldudp64.Packet(SESSION, extent.following, ended=finished)


def test_what_was_not_released_is_not_served() -> None:
    machine = server()
    following = machine._archive.extent(SESSION) or SessionExtent(0, ended=False)
    ask(machine, following.following + 1, 5)
    ask(machine, 1 << 60, 65_535)
    ask(machine, following.following - 1, 65_535)
    assert len(carried(settle(machine)[0])) == 1
    assert machine.counts.absurd == 2


def test_an_answer_is_bounded_however_much_is_requested() -> None:
    machine = server(recent(400), answer_messages_max=70)
    ask(machine, 1, 65_535)
    (effect,) = settle(machine)
    assert len(carried(effect)) == 70


def test_a_large_repair_takes_turns_with_others() -> None:
    machine = server(recent(400), wake_datagrams_max=2, multicast_min=9)
    ask(machine, 1, 400)
    ask(machine, 7, 1, OTHER)
    effects = [effect for effect in settle(machine) if isinstance(effect, SendUnicast)]
    assert [effect.to for effect in effects[:3]] == [ONE, OTHER, ONE]
    assert sum(len(carried(effect)) for effect in effects) == 401


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_any_input_is_counted_and_raises_nothing(noise: list[bytes]) -> None:
    machine = server()
    for datagram in noise:
        machine.receive(datagram, NOON, origin=ONE)
    settle(machine)
    counts = machine.counts
    assert counts.requests == len(noise) == counts.malformed + counts.strangers + counts.floods


def test_a_flood_of_one_host_is_refused_and_others_are_served() -> None:
    machine = server(requests_per_s=100)
    for _ in range(1_000):
        ask(machine, 5, 1)
    ask(machine, 6, 1, OTHER)
    assert machine.counts.floods > 900
    assert OTHER in {effect.to for effect in settle(machine) if isinstance(effect, SendUnicast)}


def test_one_host_with_two_ports_does_not_fill_the_queue_of_multicast_repairs() -> None:
    machine = server(recent(2_000), queue_max=4, best_effort_max=16, group_share=1_000_000)
    for place in range(40):
        for port in (1, 2):
            ask(machine, 1 + 20 * place, 10, origin=("10.0.0.66", port))
        machine.wake(NOON + (place + 1) * 3 * MILLISECOND)
    assert machine.accounts.of("10.0.0.66").waiting <= 4 + 2
    before = machine.counts.refused
    ask(machine, 900, 1, origin=OTHER, now=NOON + SECOND)
    assert machine.counts.refused == before


def test_a_refusal_of_a_guaranteed_customer_is_reported() -> None:
    machine = server(requests_per_s=100, queue_max=4)
    machine.accounts.register(ONE[0], Grade.GUARANTEED)
    for _ in range(20):
        ask(machine, 5, 1)
    refusals = [effect for effect in machine.drain() if isinstance(effect, RepairRefused)]
    assert {refusal.why for refusal in refusals} <= {RefusalReason.FLOOD, RefusalReason.QUEUE}
    assert len(refusals) == machine.counts.floods + machine.counts.refused > 0


def test_under_load_best_effort_is_refused_and_the_guaranteed_wait() -> None:
    machine = server(best_effort_max=2, bits_per_s=20_000, burst_period=1, requests_per_s=10_000, multicast_min=9)
    machine.accounts.register(ONE[0], Grade.GUARANTEED)
    for first in range(1, 20, 2):
        ask(machine, first, 1)
    machine.wake(NOON + 2 * MILLISECOND)
    ask(machine, 2, 1, OTHER, NOON + 2 * MILLISECOND)
    assert machine.counts.refused == 1
    sent = [effect for effect in settle(machine, NOON + 60 * SECOND) if isinstance(effect, SendUnicast)]
    assert sum(len(carried(effect)) for effect in sent if effect.to == ONE) == 10
    assert machine.deadline() is None


def test_a_customer_beyond_its_rate_waits_and_others_do_not() -> None:
    machine = server(recent(400), customer_bits_per_s=100_000, multicast_min=9)
    for first in range(1, 800, 80):
        ask(machine, first, 40)
    ask(machine, 3, 1, OTHER)
    early = settle(machine, NOON + 10 * MILLISECOND)
    assert OTHER in {effect.to for effect in early if isinstance(effect, SendUnicast)}
    late = settle(machine, NOON + 60 * SECOND)
    assert late
    assert sum(len(carried(effect)) for effect in early + late) == 401


def test_unregistered_accounts_are_bounded_and_registered_ones_stay() -> None:
    accounts = CustomerAccounts(requests_per_s=1, bits_per_s=1, unregistered_max=10)
    accounts.register("friend", Grade.GUARANTEED)
    for host in range(1_000):
        accounts.of(str(host))
    assert len(accounts._unregistered) == 10
    assert accounts.of("friend").grade is Grade.GUARANTEED


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(1, 10)), max_size=15),
    st.integers(1, 4),
)
def test_gathered_repairs_serve_every_request_once(drawn: list[tuple[int, int, int]], multicast_min: int) -> None:
    requests = [RepairRequest((str(host), 1), first, first + count) for host, first, count in drawn]
    wanting = {(request.by, number) for request in requests for number in range(request.first, request.end)}
    crowds = Counter(number for _, number in wanting)
    repairs = merge_requests(requests, multicast_min=multicast_min)
    sent = Counter((repair.to, number) for repair in repairs for number in range(repair.first, repair.end))
    assert max(sent.values(), default=1) == 1
    assert {number for to, number in sent if to is None} == {n for n, crowd in crowds.items() if crowd >= multicast_min}
    assert {(to, n) for to, n in sent if to is not None} == {(by, n) for by, n in wanting if crowds[n] < multicast_min}


@given(st.integers(1, 70), st.integers(1, 50))
def test_recent_messages_are_read_from_any_number_on(first: int, count: int) -> None:
    kept = recent()
    everything = list(kept.messages(SESSION, 1, 10_000))
    assert list(kept.messages(SESSION, first, count)) == everything[first - 1 : first - 1 + count]


def test_recent_messages_are_bounded_and_the_older_archive_has_the_rest() -> None:
    small, whole = recent(100, bytes_max=6_000), recent(100)
    assert not small.messages(SESSION, 1, 5)
    small._older = whole
    assert list(small.messages(SESSION, 1, 5)) == list(whole.messages(SESSION, 1, 5))
    assert small._bytes <= 6_000
    assert small.extent(SESSION) == whole.extent(SESSION)


def test_a_time_of_day_leads_to_the_first_message_of_its_token() -> None:
    kept = recent()
    order = tokens(10, 6)[4]
    since = order.acknowledged_at - edition().plan.midnight_at
    number = kept.number_since(SESSION, since)
    assert number is not None
    first = next(message for message in kept.messages(SESSION, number, 99))
    assert int.from_bytes(first[36:44], "big") >= order.sequence
    before = kept.messages(SESSION, number - 1, 1)[0]
    assert int.from_bytes(before[36:44], "big") < order.sequence
    assert (
        kept.number_since(SESSION, since + SECOND) == (kept.extent(SESSION) or SessionExtent(0, ended=False)).following
    )


@settings(max_examples=20)
@given(st.integers(1, 80), st.integers(1, 40), st.integers(1, 30), st.integers(12, 400))
def test_messages_are_read_again_from_the_order_by_the_index(
    first: int, count: int, spacing: int, numbers_max: int
) -> None:
    """R_x serves from the journal: the index may be sparse, and the messages are the same."""
    orders = tokens(30, 5)
    boundary = formation_change(orders[20].sequence, 3)
    entries: list[Ordered | FormationChange] = [
        *orders[:7],
        formation_change(orders[7].sequence, 2),
        *orders[7:20],
        boundary,
    ]
    entries += orders[20:]
    places, sequencer, kept = (
        MessageIndex(spacing=spacing, numbers_max=numbers_max),
        StripeSequencer(StripePosition.fresh(edition())),
        RecentMessages(),
    )
    sequencer.change_plan(plan(2), at_sequence=orders[20].sequence, at=NOON)
    for step in sequencer.begin():
        kept.take(step, sequencer.at)
    for entry in entries:
        places.note(sequencer.position)
        if isinstance(entry, Ordered):
            for step in sequencer.deliver(entry):
                kept.take(step, sequencer.at)
        else:
            sequencer.on_formation(entry)
    for session in (SESSION, edition(2).session(2)):
        place = places.before(session, first)
        assert place is not None
        journal = [entry for entry in entries if entry.sequence >= place.sequence]
        found = reread(place, journal, session, first, count, places.successor(place.edition))
        assert found == list(kept.messages(session, first, count))
    assert places._numbers <= max(numbers_max, 4)
