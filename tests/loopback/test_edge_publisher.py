"""The edge publisher on real sockets: it sends only with a known position, and always the same numbers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fairtape.core.effects import Deliver, FormationChange
from fairtape.edge.protocol.archive import RecentMessages
from fairtape.edge.protocol.feed_assignment import Region, feeds_of
from fairtape.edge.protocol.sessions import Edition, StripePosition
from fairtape.edge.protocol.stripe_sequencer import SLICE_MAX, StripeMessages, StripeSequencer
from fairtape.edge.service.publisher import WAITING_MAX, EdgePublisher
from fairtape.edge.service.settings import EdgeSettings
from fairtape.edge.service.stripe_plans import StripePlanStore
from fairtape.journal import JournalWriter, SyncPolicy
from fairtape.market.stripes import StripePlan
from fairtape.market.trades import encode
from fairtape.net.clock import SharedClock
from fairtape.net.transports import LOOPBACK
from loopback.edge_sockets import Groups, PacketReceiver, until
from unit.edge.edge_journals import SETTINGS, Content, history, plan_store, release_of
from unit.edge.edge_values import NOON, delivery, token, tokens, trade

CLOCK = SharedClock()


class PublishingSite:
    """A site as its publisher sees it.

    A change of formation is written to the journal before it is passed on; a release is passed on before it is marked.
    """

    def __init__(
        self, folder: Path, plans: StripePlanStore, *, settings: EdgeSettings = SETTINGS, name: str = "s1"
    ) -> None:
        self.writer = JournalWriter.open(folder / name, stripe=0, site=1, sync=SyncPolicy.NEVER)
        self.logged: list[str] = []
        self.publisher = EdgePublisher(
            settings,
            name,
            plan_store=plans,
            journal=folder / name,
            checkpoint_file=folder / "edge" / f"{name}.json",
            interface=LOOPBACK,
            log=self.logged.append,
        )

    def feed_entry(self, each: Content) -> None:
        if isinstance(each, FormationChange):
            self.writer.append_formation(each, NOON)
            self.publisher.on_formation(each)
        else:
            self.writer.append(each, NOON)
            self.publisher.delivered(Deliver(each, replace(release_of(each), released_at=CLOCK.now())))
            self.writer.release(release_of(each), NOON)

    def wake(self) -> None:
        deadline = self.publisher.deadline()
        assert deadline is not None
        now = CLOCK.now()
        if deadline <= now:
            self.publisher.wake(now)

    @property
    def is_sending(self) -> bool:
        return self.publisher.status().speaks

    def close(self) -> None:
        self.publisher.close()
        self.writer.close()


@contextmanager
def publishing_site(
    folder: Path, plans: StripePlanStore, *, settings: EdgeSettings = SETTINGS, name: str = "s1"
) -> Iterator[PublishingSite]:
    made = PublishingSite(folder, plans, settings=settings, name=name)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def packet_receiver(plan: StripePlan, feed: str = "A") -> Iterator[PacketReceiver]:
    made = PacketReceiver(plan, feed)
    try:
        yield made
    finally:
        made.close()


def expected(plan: StripePlan, entries: Sequence[Content], second: StripePlan | None = None) -> dict[str, list[bytes]]:
    """The messages of every session, computed in memory."""
    recent, sequencer = RecentMessages(), StripeSequencer(StripePosition.fresh(Edition("FT", plan, 0)))
    steps = sequencer.begin()
    names: dict[str, None] = {}
    for each in entries:
        if isinstance(each, FormationChange):
            sequencer.on_formation(each)
            if second is not None and each.formation == 3:
                sequencer.change_plan(second, at_sequence=each.sequence, at=each.installed_at)
        else:
            steps += sequencer.deliver(each)
        for step in steps:
            recent.take(step, sequencer.at)
            if isinstance(step, StripeMessages):
                names[step.session] = None
        steps = []
    return {name: list(recent.messages(name, 1, 1 << 20)) for name in names}


def test_a_large_token_is_sent_in_several_steps_of_the_driver(tmp_path: Path) -> None:
    plan = Groups().plan()
    large = token(1, [encode(trade(number)) for number in range(3 * SLICE_MAX)])
    wanted = expected(plan, [large])
    with publishing_site(tmp_path, plan_store(tmp_path, plan)) as site, packet_receiver(plan) as received:
        until(lambda: site.is_sending, site.wake)
        site.feed_entry(large)
        steps = 0
        while site.publisher.deadline() == 0:
            site.wake()
            received.receive(0)
            steps += 1
        assert steps >= 3
        until(lambda: complete(received, wanted), site.wake, received.receive)
        check(received, wanted)


def test_a_token_that_is_sent_in_part_stays_on_its_feed(tmp_path: Path) -> None:
    """A formation may give the feed to another site between two slices of a token."""
    plan = Groups().plan()
    large = token(1, [encode(trade(n)) for n in range(3 * SLICE_MAX)])
    wanted = expected(plan, [large])
    with publishing_site(tmp_path, plan_store(tmp_path, plan)) as site, packet_receiver(plan) as received:
        until(lambda: site.is_sending, site.wake)
        site.feed_entry(large)
        site.wake()
        site.publisher.assign((), CLOCK.now())
        until(lambda: complete(received, wanted), lambda: received.receive(0))
        check(received, wanted)


def complete(received: PacketReceiver, wanted: dict[str, list[bytes]]) -> bool:
    found = received.messages()
    return all(len(found.get(name, {})) == len(messages) for name, messages in wanted.items())


def check(received: PacketReceiver, wanted: dict[str, list[bytes]]) -> None:
    found = received.messages()
    assert {name: [each[number] for number in sorted(each)] for name, each in found.items()} == wanted
    for each in found.values():
        assert sorted(each) == list(range(1, len(each) + 1))


def test_a_customer_receives_everything_that_a_site_releases(tmp_path: Path) -> None:
    plan = Groups().plan()
    entries = history()
    wanted = expected(plan, entries)
    with publishing_site(tmp_path, plan_store(tmp_path, plan)) as site, packet_receiver(plan) as received:
        for each in entries[:10]:
            site.feed_entry(each)  # before the publisher has found its position
        until(lambda: site.is_sending, site.wake)
        for each in entries[10:]:
            site.feed_entry(each)
            site.wake()
            received.receive(0)
        until(lambda: complete(received, wanted), site.wake, received.receive)
        check(received, wanted)
        until(lambda: any(not packet.messages for packet in received.packets), site.wake, received.receive)
        assert site.publisher.status().unsent == 0


def test_a_restarted_site_continues_with_the_same_numbers(tmp_path: Path) -> None:
    plan = Groups().plan()
    entries = history(count=90)
    wanted = expected(plan, entries)
    with packet_receiver(plan) as received:
        for begin in range(0, len(entries), 31):  # four runs, none of which ends where a formation does
            with publishing_site(tmp_path, plan_store(tmp_path, plan)) as site:
                until(lambda: site.is_sending, site.wake)
                for each in entries[begin : begin + 31]:
                    site.feed_entry(each)
                received.receive(0)
            if begin == 31:
                (tmp_path / "edge" / "s1.json").unlink()
        until(lambda: complete(received, wanted), received.receive)
        check(received, wanted)


def test_another_plan_takes_over_without_a_lost_or_doubled_message(tmp_path: Path) -> None:
    groups = Groups()
    plan, second = groups.plan(), groups.plan(2, stripes=3)
    entries = history(second=second)
    wanted = expected(plan, entries, second)
    with publishing_site(tmp_path, plan_store(tmp_path, plan, second)) as site, packet_receiver(second) as received:
        until(lambda: len(site.publisher.status().marks) == 2 and site.is_sending, site.wake)
        for each in entries:
            site.feed_entry(each)
            site.wake()
            received.receive(0)
        assert site.publisher.status().plan == 2
        until(lambda: complete(received, wanted), site.wake, received.receive)
        check(received, wanted)


def test_a_site_without_the_plan_sends_nothing_until_it_has_it_and_then_everything(tmp_path: Path) -> None:
    groups = Groups()
    plan, second = groups.plan(), groups.plan(2, stripes=3)
    entries = history(second=second)
    wanted = expected(plan, entries, second)
    plans = plan_store(tmp_path, plan)
    with publishing_site(tmp_path, plans) as site, packet_receiver(second) as received:
        until(lambda: site.is_sending, site.wake)
        for each in entries:
            site.feed_entry(each)
            received.receive(0)
        assert not site.is_sending
        until(lambda: "plan 2 is not here" in site.logged[-1], site.wake)
        assert not [name for name in received.messages() if name.startswith("FT002")]
        plans.add(second)
        until(lambda: site.is_sending, site.wake)
        assert site.publisher.status().plan == 2
        until(lambda: complete(received, wanted), site.wake, received.receive)
        check(received, wanted)


def test_an_interface_without_a_socket_does_not_stop_the_site(tmp_path: Path) -> None:
    from fairtape.deployment.config.description import read_deployment
    from fairtape.deployment.operations.draft import Draft, create_deployment
    from fairtape.deployment.process.edge import SilencedPublisher, open_publisher

    folder = tmp_path / "new"
    create_deployment(folder, Draft(loops=(1,), profile="metro", edge=1))
    text = (folder / "deployment.toml").read_text()
    site = next(line for line in text.splitlines() if line.startswith("s1 = { node"))
    (folder / "deployment.toml").write_text(text.replace(site, 's1 = { node = 1, address = "192.0.2.1:17200" }'))
    deployment = read_deployment(folder)
    logged: list[str] = []
    publisher = open_publisher(deployment, deployment.sites[0], tmp_path, logged.append)
    assert isinstance(publisher, SilencedPublisher)
    publisher.delivered(delivery(next(each for each in history() if not isinstance(each, FormationChange))))
    assert publisher.status().unsent == 4
    assert "192.0.2.1" in logged[0]


def test_a_site_sends_on_the_feeds_that_a_formation_assigns_to_it(tmp_path: Path) -> None:
    """A is its home feed. B is silent until its receiver failed, and keeps its numbers. TRMP 2001 §5.3."""
    plan = Groups().plan()
    region = Region(name="here", feeds=("A", "B"), receivers=(1, 2))
    entries = history(count=90)
    wanted = expected(plan, entries)
    settings = replace(SETTINGS, regions=(region,))
    with (
        publishing_site(tmp_path, plan_store(tmp_path, plan), settings=settings) as site,
        packet_receiver(plan) as received,
        packet_receiver(plan, "B") as other,
    ):
        site.publisher.assign(feeds_of(1, settings.regions, [1, 2]), 1)
        until(lambda: site.is_sending, site.wake)
        for each in entries[:50]:
            site.feed_entry(each)
            site.wake()
            received.receive(0)
        other.receive(0)
        assert other.packets == []
        site.publisher.assign(("A", "B"), 1)
        assert site.publisher.status().feeds == ("A", "B")
        for each in entries[50:]:
            site.feed_entry(each)
            site.wake()
            received.receive(0)
            other.receive(0)
        until(lambda: complete(received, wanted), site.wake, received.receive)
        check(received, wanted)
        until(lambda: bool(other.messages()), site.wake, other.receive)
        for name, messages in other.messages().items():
            assert all(wanted[name][number - 1] == message for number, message in messages.items())


def test_releases_that_slices_do_not_keep_up_with_are_sent_at_once(tmp_path: Path) -> None:
    """Then the next release is late, its site reports the lag, and sources are slowed: the queue has a limit."""
    plan = Groups().plan()
    with publishing_site(tmp_path, plan_store(tmp_path, plan)) as site:
        until(lambda: site.is_sending, site.wake)
        for number in range(WAITING_MAX + 3):
            first = number * 2 * SLICE_MAX + 1
            site.feed_entry(token(first, [encode(trade(each)) for each in range(first, first + 2 * SLICE_MAX)]))
        site.wake()
        counts = site.publisher.status().counts
        assert counts is not None
        assert counts.messages >= 3 * 2 * SLICE_MAX


def test_releases_are_kept_in_order_when_the_position_is_lost(tmp_path: Path) -> None:
    plan = Groups().plan()
    released = tokens(8, 4)
    wanted = expected(plan, released)
    with publishing_site(tmp_path, plan_store(tmp_path, plan)) as site, packet_receiver(plan) as received:
        until(lambda: site.is_sending, site.wake)
        site.feed_entry(released[0])
        site.wake()
        remulticaster = site.publisher._remulticaster
        assert remulticaster is not None
        remulticaster._sequencer.lost = True  # as after a change that came too late
        for each in released[1:5]:
            site.feed_entry(each)
        site.wake()
        for each in released[5:]:
            site.feed_entry(each)
        until(lambda: complete(received, wanted), site.wake, received.receive)
        check(received, wanted)
        assert len([line for line in site.logged if "expected sequence" in line]) == 1
