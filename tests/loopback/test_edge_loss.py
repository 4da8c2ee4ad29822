"""Two sites, two feeds, and a network that loses a fifth of each: what customers on real sockets receive."""

import select
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

from fairtape.core.addresses import Address
from fairtape.core.instants import MILLISECOND
from fairtape.edge.protocol.customer import CustomerOptions, Delivered, StripeGap
from fairtape.edge.service.replay_archive import ReplayArchive
from fairtape.edge.service.retransmit_server import RetransmitServer
from fairtape.edge.service.settings import PublisherPlace
from fairtape.edge.service.stripe_plans import StripePlanStore
from fairtape.edge.service.subscriber import MulticastSubscriber
from fairtape.formats import moldudp64
from fairtape.market.stripes import StripePlan
from fairtape.net.clock import SharedClock
from fairtape.net.transports import LOOPBACK, Interface
from fairtape.net.udp import UdpSocket, bind
from loopback.edge_sockets import Groups, until
from loopback.test_edge_publisher import expected, publishing_site
from unit.edge.edge_journals import ANYWHERE, SETTINGS, history, plan_store

LOSS = 0.2
TOKENS = 700
PATIENCE = 250 * MILLISECOND  # of best effort: more than the other feed may need on a busy machine
PLACES = {
    name: PublisherPlace(feed=feed, requests=ANYWHERE, replays=ANYWHERE) for name, feed in (("s1", "A"), ("s2", "B"))
}


class Relay:
    """Forwards packets from the groups of one plan to those of another, and drops some packets with messages.

    Whether a packet is dropped depends on its feed and its number alone, so every run loses the same.
    """

    def __init__(self, sent: StripePlan, heard: StripePlan) -> None:
        interface = Interface.named(LOOPBACK)
        own = bind("", 0)
        interface.configure_sender(own, ttl=0)
        self._out = UdpSocket(own)
        self._in: dict[int, tuple[UdpSocket, str, Address]] = {}
        for near, far in zip(sent.edge, heard.edge, strict=True):
            for feed in ("A", "B"):
                begin, end = near.endpoint(feed), far.endpoint(feed)
                opened = UdpSocket(interface.join((begin.address, begin.port)))
                self._in[opened.fd] = opened, feed, (end.address, end.port)
        self.passed = self.lost = 0

    def run_once(self) -> None:
        ready, _, _ = select.select(list(self._in), (), (), 0)
        for fd in ready:
            opened, feed, to = self._in[fd]
            kept = [each for each in opened.receive(1_000) if not self._is_lost(each, feed)]
            if kept:
                self._out.send(kept, to)

    def _is_lost(self, datagram: bytes, feed: str) -> bool:
        packet = moldudp64.decode(datagram)
        lost = Random(f"{feed} {packet.session} {packet.number}").random() < LOSS
        if packet.messages:
            self.lost += lost
            self.passed += not lost
        return lost and bool(packet.messages)

    def close(self) -> None:
        self._out.close()
        for opened, _, _ in self._in.values():
            opened.close()


class Listener:
    """A customer, and the messages and gaps of each session."""

    def __init__(self, plan: StripePlan, servers: list[Address], plans: Callable[[int], StripePlan | None]) -> None:
        options = CustomerOptions(patience=None if servers else PATIENCE)
        self.subscriber = MulticastSubscriber(
            "FT",
            feeds=("A", "B"),
            servers=servers,
            interface=LOOPBACK,
            clock=SharedClock(),
            options=options,
            plans=plans,
        )
        self.subscriber.follow(plan, starts=dict.fromkeys(plan.stripes, 1))
        self.messages: dict[str, list[bytes | None]] = {}  # of each session, in order; None is a gap

    @property
    def received(self) -> int:
        return sum(map(len, self.messages.values()))

    def run_once(self) -> None:
        for record in self.subscriber.run_once():
            if isinstance(record, Delivered | StripeGap):
                mine = self.messages.setdefault(record.session, [])
                assert record.first == len(mine) + 1
                mine += record.messages if isinstance(record, Delivered) else [None] * record.count


def test_a_fifth_lost_on_each_feed_leaves_a_twenty_fifth_as_gaps_or_nothing_where_it_is_guaranteed(
    tmp_path: Path,
) -> None:
    near, far = Groups().plan(), Groups().plan()
    entries = history(count=TOKENS, size=6)
    wanted = expected(near, entries)
    plans = plan_store(tmp_path, near)
    settings = replace(SETTINGS, publishers=PLACES)
    relay = Relay(near, far)
    with (
        publishing_site(tmp_path, plans, settings=settings) as one,
        publishing_site(tmp_path, plans, settings=settings, name="s2") as other,
    ):
        archive = ReplayArchive(tmp_path / "s1", SETTINGS, StripePlanStore(tmp_path, 0))
        server = RetransmitServer(SETTINGS, SETTINGS.publishers["s1"], archive, SharedClock(), interface=LOOPBACK)
        best_effort, guaranteed = Listener(far, [], lambda _: far), Listener(far, [server.addresses[0]], lambda _: far)
        try:
            until(lambda: one.is_sending and other.is_sending, one.wake, other.wake)
            turns = (one.wake, other.wake, relay.run_once, server.run_once, best_effort.run_once, guaranteed.run_once)
            for each in entries:
                one.feed_entry(each)
                other.feed_entry(each)
                for turn in turns:
                    turn()
            total = sum(map(len, wanted.values()))
            until(lambda: best_effort.received == guaranteed.received == total, *turns)
        finally:
            best_effort.subscriber.close()
            guaranteed.subscriber.close()
            server.close()
            relay.close()
    assert 0.18 < relay.lost / (relay.lost + relay.passed) < 0.22
    assert guaranteed.messages == wanted
    missing = sum(messages.count(None) for messages in best_effort.messages.values())
    assert 0 < missing <= 0.045 * total
    assert missing == best_effort.subscriber.customer.counts.missing
    for session, messages in best_effort.messages.items():
        assert all(mine in (None, theirs) for mine, theirs in zip(messages, wanted[session], strict=True))
