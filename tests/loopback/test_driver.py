"""The driver runs toy machines over real sockets: order, timers, link faults, journals, and a clean stop."""

import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from random import Random

import pytest

from fairtape.core.effects import (
    Append,
    Channel,
    Deliver,
    Effect,
    FormationChange,
    Multicast,
    Ordered,
    Reason,
    Recovered,
    Release,
    Report,
    Send,
)
from fairtape.core.instants import MICROSECOND, MILLISECOND, NEVER, SECOND, Duration, Instant
from fairtape.core.link_faults import LinkFaults
from fairtape.net.clock import Clock, SharedClock
from fairtape.net.driver import HOUSEKEEPING_PERIOD, Driver, may_run_in_real_time
from fairtape.net.fault_injection import FaultInjector
from fairtape.net.node_runtime import DRAINS_MAX, SLICE_MAX, SLICES_MAX, STALLED_STEPS_MAX, NodeRuntime
from fairtape.net.poll import POLLED_MAX
from fairtape.net.transports import AddressBook, Groups, IpMulticast, Mesh, Role, multicast_works
from fairtape.net.udp import TRAIN_MAX
from fairtape.ring.receiver.release import LATE_AFTER
from fairtape.wire.frames import HEADER, MAGIC, VERSION, Kind, NodeId
from loopback.local_peers import free_port, local_peer, within_patience

ONE, TWO, THREE = 1, 2, 3
OPEN_FILES_MAX = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 64
ORDERED = Ordered(0, 1, 1, 1, 1, 0, ())
RELEASE = Release(1, 1, 1, 0, 0, late=False, clock_bound=1)
REPORT = Report(TWO, 1, Reason.ACK_SILENT, 0)


@dataclass
class Toy:
    """A machine that records what it receives, and emits the effects that a test gives it."""

    received: list[tuple[bytes, Instant]] = field(default_factory=list)
    wanted: list[Effect] = field(default_factory=list)

    def receive(self, datagram: bytes, now: Instant) -> None:
        self.received.append((datagram, now))

    def receive_all(self, datagrams: Sequence[bytes], now: Instant) -> None:
        for datagram in datagrams:
            self.receive(datagram, now)

    def wake(self, now: Instant) -> None:
        raise AssertionError(f"woken at {now} without having asked")

    def deadline(self) -> Instant | None:
        return None

    def drain(self) -> list[Effect]:
        wanted, self.wanted = self.wanted, []
        return wanted


class Echo(Toy):
    """Sends every datagram back."""

    def receive(self, datagram: bytes, now: Instant) -> None:
        super().receive(datagram, now)
        self.wanted.append(Send(ONE, [datagram]))


class Ticking(Toy):
    """Asks for a wake in every period, and counts them."""

    def __init__(self, starts_at: Instant, period: int) -> None:
        super().__init__()
        self.starts_at = self.due_at = starts_at
        self.period = period
        self.wakes = 0

    def deadline(self) -> Instant | None:
        return self.due_at

    def wake(self, now: Instant) -> None:
        assert now >= self.due_at, "woken early"
        self.wakes += 1
        self.due_at = now + self.period


class Expecting(Toy):
    """Waits for a datagram until a timeout, which has passed unless it is given."""

    def __init__(self, due_at: Instant = 1) -> None:
        super().__init__()
        self.due_at = due_at
        self.timed_out = False

    def deadline(self) -> Instant | None:
        return None if self.received or self.timed_out else self.due_at

    def wake(self, now: Instant) -> None:  # noqa: ARG002 - any instant is too late
        self.timed_out = True


@dataclass
class SlowProducer:
    """Produces once, until after an instant, and calls a function meanwhile."""

    until: Instant
    meanwhile: Callable[[], None]
    clock: SharedClock = field(default_factory=SharedClock)
    is_done: bool = False

    def deadline(self) -> Instant | None:
        return None if self.is_done else 0

    def wake(self, now: Instant) -> None:  # noqa: ARG002 - it produces until a given instant
        self.is_done = True
        self.meanwhile()
        while self.clock.now() <= self.until:
            pass


class InterruptedClock:
    """The clock of a process that does not run for 10 ms after its first reading; something happens meanwhile."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self._clock = SharedClock()
        self._meanwhile = meanwhile
        self._readings = 0
        self._paused = 0

    def now(self) -> Instant:
        self._readings += 1
        if self._readings == 2:
            self._meanwhile()
            self._paused = 10 * MILLISECOND
        return self._clock.now() + self._paused

    def bound(self) -> Duration:
        return self._clock.bound()


class Releasing(Toy):
    """Has instants to keep, and notes how much it had received when it was to keep one."""

    def __init__(self, wanted: list[Effect]) -> None:
        super().__init__(wanted=wanted)
        self.received_before: int | None = None

    def deadline(self) -> Instant | None:
        return 1 if self.received_before is None else None

    def advance(self, now: Instant) -> None:  # noqa: ARG002 - any instant is too late
        self.received_before = len(self.received)


class Idler(Toy):
    """Asks to be woken and then does nothing."""

    def deadline(self) -> Instant | None:
        return 1

    def wake(self, now: Instant) -> None:
        pass


@dataclass
class Ledger:
    """A journal, a consumer and a reporter that write to one list, so that their order is visible."""

    lines: list[object] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    sync_at: Instant | None = None
    machine: Toy | None = None

    def append(self, ordered: Ordered, now: Instant) -> None:
        assert now > 0
        self.lines.append(ordered)

    def append_formation(self, change: FormationChange, now: Instant) -> None:
        assert now > 0
        self.lines.append(change)

    def truncate_after(self, token: int) -> Recovered:
        self.lines.append(f"truncated after {token}")
        return Recovered.nothing()

    def release(self, release: Release, now: Instant) -> None:
        assert now == release.released_at
        self.lines.append(f"marked {release.token}")
        self.releases.append(release)

    def deadline(self) -> Instant | None:
        return self.sync_at

    def wake(self, now: Instant) -> None:
        assert self.sync_at is not None
        assert now >= self.sync_at
        self.lines.append("sync")
        self.sync_at = None

    def close(self) -> None:
        self.lines.append("closed")

    def consume(self, delivery: Deliver) -> None:
        self.lines.append(f"consumed {delivery.release.token}")
        self.releases.append(delivery.release)
        if self.machine is not None:
            self.machine.wanted.append(REPORT)

    def report(self, report: Report) -> None:
        self.lines.append(report)


@dataclass
class Feeder:
    """Feeds a toy one multicast of `size` datagrams at a time."""

    toy: Toy
    left: int
    size: int = 1
    fed_at: list[Instant] = field(default_factory=list)

    def deadline(self) -> Instant | None:
        return 0 if self.left else None

    def wake(self, now: Instant) -> None:
        self.left -= 1
        self.fed_at.append(now)
        self.toy.wanted.append(Multicast(Channel.DATA, [datagram(ONE, self.left)] * self.size))


def datagram(sender: NodeId, number: int) -> bytes:
    return HEADER.pack(MAGIC, VERSION, Kind.BLOCK, 0, 0, 0, 0, sender) + number.to_bytes(4)


def number_of(text: bytes) -> int:
    return int.from_bytes(text[HEADER.size :])


@pytest.fixture
def book() -> AddressBook:
    return {ONE: local_peer(Role.SITE), TWO: local_peer(Role.SITE)}


@pytest.fixture
def meshes(book: AddressBook) -> Iterator[tuple[Mesh, Mesh]]:
    one, two = Mesh(ONE, book), Mesh(TWO, book)
    yield one, two
    one.close()
    two.close()


def driver_of(*runtimes: NodeRuntime) -> "closing[Driver]":
    return closing(Driver(runtimes, SharedClock()))


def test_a_datagram_goes_out_and_its_echo_comes_back(meshes: tuple[Mesh, Mesh]) -> None:
    caller, echo = Toy(), Echo()
    calls = [datagram(ONE, n) for n in range(300)]
    caller.wanted = [Send(TWO, calls)]
    with driver_of(NodeRuntime(caller, meshes[0]), NodeRuntime(echo, meshes[1])) as driver:
        driver.run(within_patience(lambda: len(caller.received) == len(calls)))
    assert [text for text, _ in caller.received] == calls


def test_effects_are_carried_out_in_order_and_a_release_is_consumed_before_it_is_marked(
    meshes: tuple[Mesh, Mesh],
) -> None:
    toy, ledger, other = Toy(), Ledger(), Toy()
    toy.wanted = [REPORT, Append(ORDERED), Multicast(Channel.DATA, [b"m"]), Deliver(ORDERED, RELEASE), Append(ORDERED)]
    runtime = NodeRuntime(toy, meshes[0], journal=ledger, consumer=ledger.consume, reporter=ledger.report)
    with driver_of(runtime, NodeRuntime(other, meshes[1])) as driver:
        driver.run(within_patience(lambda: bool(other.received)))
    assert ledger.lines == [REPORT, ORDERED, "consumed 1", "marked 1", ORDERED, "closed"]
    assert [text for text, _ in other.received] == [b"m"]


class Stepping:
    """A clock that advances by one step at every reading."""

    def __init__(self, starts_at: Instant, step: int) -> None:
        self.read_at = starts_at
        self.step = step

    def now(self) -> Instant:
        self.read_at += self.step
        return self.read_at

    def bound(self) -> int:
        return 1


def delivery_due(commit_at: Instant, *, late: bool = False) -> Deliver:
    return Deliver(ORDERED, Release(1, 1, 1, commit_at, released_at=commit_at, late=late, clock_bound=1))


def test_a_release_is_dated_when_it_is_handed_over_and_not_when_the_step_began(meshes: tuple[Mesh, Mesh]) -> None:
    toy, ledger, clock = Releasing([delivery_due(1_000)]), Ledger(), Stepping(1_000, 10)
    NodeRuntime(toy, meshes[0], journal=ledger, consumer=ledger.consume).step((), clock)
    assert [release.released_at for release in ledger.releases] == [1_020, 1_020]
    assert clock.read_at <= 1_060
    assert not ledger.releases[0].late


@pytest.mark.parametrize(("delay", "late"), [(LATE_AFTER, False), (LATE_AFTER + 2, True)])
def test_a_delay_before_the_hand_over_makes_a_release_late(meshes: tuple[Mesh, Mesh], delay: int, late: bool) -> None:
    ledger, clock = Ledger(), Stepping(1_000, delay // 2)
    NodeRuntime(Releasing([delivery_due(1_000)]), meshes[0], journal=ledger).step((), clock)
    assert [release.late for release in ledger.releases] == [late]


def test_what_the_machine_marked_late_stays_late(meshes: tuple[Mesh, Mesh]) -> None:
    ledger = Ledger()
    NodeRuntime(Toy(wanted=[delivery_due(1_000, late=True)]), meshes[0], journal=ledger).step((), Stepping(1_000, 1))
    assert [release.late for release in ledger.releases] == [True]


def test_a_hand_over_before_the_commit_instant_is_a_bug(meshes: tuple[Mesh, Mesh]) -> None:
    runtime = NodeRuntime(Releasing([delivery_due(2_000)]), meshes[0], consumer=Ledger().consume)
    with pytest.raises(AssertionError, match="token 1 is handed over 980 ns early"):
        runtime.step((), Stepping(1_000, 10))


def test_effects_without_a_handler_are_dropped(meshes: tuple[Mesh, Mesh]) -> None:
    toy = Toy(wanted=[Append(ORDERED), Deliver(ORDERED, RELEASE), REPORT])
    with driver_of(NodeRuntime(toy, meshes[0])) as driver:
        driver.step()
    assert toy.wanted == []


def test_what_a_consumer_submits_is_carried_out_in_the_same_step(meshes: tuple[Mesh, Mesh]) -> None:
    toy = Toy(wanted=[Deliver(ORDERED, RELEASE)])
    ledger = Ledger(machine=toy)
    with driver_of(NodeRuntime(toy, meshes[0], consumer=ledger.consume, reporter=ledger.report)) as driver:
        driver.step()
    assert ledger.lines == ["consumed 1", REPORT]


def test_what_a_consumer_submits_to_an_earlier_runtime_waits_for_no_timer(meshes: tuple[Mesh, Mesh]) -> None:
    fed, feeding = Toy(), Toy(wanted=[Deliver(ORDERED, RELEASE)])
    ledger = Ledger(machine=fed)
    runtimes = (
        NodeRuntime(fed, meshes[0], reporter=ledger.report),
        NodeRuntime(feeding, meshes[1], consumer=ledger.consume),
    )
    with driver_of(*runtimes) as driver:
        driver.step()
        driver.step()
    assert ledger.lines == ["consumed 1", REPORT]


@pytest.mark.skipif(not multicast_works(), reason="no multicast on this machine's loopback")
def test_an_acknowledgment_never_overtakes_the_messages_it_names(book: AddressBook) -> None:
    groups = Groups(data=("239.195.2.1", free_port()), control=("239.195.2.2", free_port()))
    sender, hearer = Toy(), Toy()

    class Tokens:
        """Submits three blocks, one by one, and the acknowledgment that names them, in one step."""

        left = 250
        woken_at: Instant = 0

        def deadline(self) -> Instant | None:
            return self.woken_at if self.left else None

        def wake(self, now: Instant) -> None:
            self.left -= 1
            self.woken_at = now
            text = datagram(ONE, self.left)
            sender.wanted += [Multicast(Channel.DATA, [kind + text]) for kind in (b"one.", b"two.", b"last")]
            sender.wanted.append(Multicast(Channel.CONTROL, [b"ack." + text]))

    runtimes = (
        NodeRuntime(sender, IpMulticast(ONE, book, groups), producer=Tokens()),
        NodeRuntime(hearer, IpMulticast(TWO, book, groups)),
    )
    with driver_of(*runtimes) as driver:
        driver.run(within_patience(lambda: len(hearer.received) == 1_000))
    received = [text for text, _ in hearer.received]
    assert len(received) == 1_000
    assert all(
        received.index(b"last" + text[4:]) < place for place, text in enumerate(received) if text.startswith(b"ack.")
    )


def test_a_machine_is_never_woken_early_and_every_deadline_comes(meshes: tuple[Mesh, Mesh]) -> None:
    clock = SharedClock()
    slow = Ticking(clock.now(), 2 * MILLISECOND)
    fast = Ticking(clock.now(), 300 * MICROSECOND)
    with closing(Driver([NodeRuntime(slow, meshes[0]), NodeRuntime(fast, meshes[1])], clock)) as driver:
        driver.run(within_patience(lambda: slow.wakes >= 10 and fast.wakes >= 10))
    assert slow.wakes >= 10
    assert fast.wakes >= 10


def test_a_clock_that_stops_before_a_deadline_does_not_block_the_driver(meshes: tuple[Mesh, Mesh]) -> None:
    """It was set back, and stands still until the time has caught up."""
    ticking = Ticking(1_000, MILLISECOND)
    with closing(Driver([NodeRuntime(ticking, meshes[0])], Stepping(999, 0))) as driver:
        driver.step()
    assert ticking.wakes == 0


def test_gathered_data_is_read_in_the_next_step_whatever_ends_the_wait(meshes: tuple[Mesh, Mesh]) -> None:
    """Data ends no wait for a while, and is read when a deadline passes."""
    clock = SharedClock()
    ticking = Ticking(clock.now() + MILLISECOND, MILLISECOND)
    with closing(Driver([NodeRuntime(ticking, meshes[1])], clock, gather_period=10 * MILLISECOND)) as driver:
        meshes[0].multicast(Channel.DATA, [datagram(ONE, 1)])
        driver.run(within_patience(lambda: ticking.wakes > 0))
        assert [received for received, _ in ticking.received] == [datagram(ONE, 1)]


def test_data_ends_the_wait_after_the_gather_period(meshes: tuple[Mesh, Mesh]) -> None:
    toy = Toy()
    with closing(Driver([NodeRuntime(toy, meshes[1])], SharedClock(), gather_period=MILLISECOND)) as driver:
        meshes[0].multicast(Channel.DATA, [datagram(ONE, 1)])
        driver.run(within_patience(lambda: bool(toy.received)))
    assert [received for received, _ in toy.received] == [datagram(ONE, 1)]


def test_gathered_data_is_read_until_none_is_left(meshes: tuple[Mesh, Mesh]) -> None:
    """Lone datagrams, too: the next step comes a gather period later, and a site would read a thousand per second."""
    clock = SharedClock()
    ticking = Ticking(clock.now() + 5 * MILLISECOND, 3_600 * SECOND)
    for number in range(20):
        meshes[0].multicast(Channel.DATA, [datagram(ONE, number)])
    with closing(Driver([NodeRuntime(ticking, meshes[1])], clock, gather_period=3_600 * SECOND)) as driver:
        driver.run(within_patience(lambda: ticking.wakes > 0))
    assert [number_of(text) for text, _ in ticking.received] == list(range(20))


def test_an_acknowledgment_behind_a_block_in_the_same_socket_is_not_gathered(meshes: tuple[Mesh, Mesh]) -> None:
    """A mesh has one socket for both. Two datagrams of different senders are no train, and both are read at once."""
    toy = Toy()
    meshes[0].multicast(Channel.DATA, [datagram(ONE, 1)])
    meshes[0].multicast(Channel.DATA, [datagram(ONE, 2)])
    with closing(Driver([NodeRuntime(toy, meshes[1])], SharedClock(), gather_period=3_600 * SECOND)) as driver:
        while not toy.received:
            driver.step()
        assert [number_of(text) for text, _ in toy.received] == [1, 2]


def test_checking_for_real_time_does_not_change_the_scheduling() -> None:
    before = os.sched_getscheduler(0)
    assert may_run_in_real_time() in (True, False)
    assert os.sched_getscheduler(0) == before


def test_a_flood_of_datagrams_delays_no_timer(meshes: tuple[Mesh, Mesh]) -> None:
    """One step reads a bounded number of datagrams, and wakes what is due after each slice of them."""
    flooded = Ticking(SharedClock().now(), 1)
    sent = 4 * SLICE_MAX * SLICES_MAX
    meshes[0].send(TWO, [datagram(ONE, n) for n in range(sent)])
    with driver_of(NodeRuntime(flooded, meshes[1])) as driver:
        while not flooded.received:
            driver.step()
        assert len(flooded.received) < (SLICE_MAX + TRAIN_MAX) * SLICES_MAX
        assert flooded.wakes >= len(flooded.received) // (SLICE_MAX + TRAIN_MAX)
        driver.run(within_patience(lambda: len(flooded.received) == sent))
    assert [number_of(text) for text, _ in flooded.received] == list(range(sent))


def test_a_timeout_is_decided_after_what_has_arrived_was_read(meshes: tuple[Mesh, Mesh]) -> None:
    """A source that did not run finds its acknowledgments in its socket, and must not resend what they name."""
    waiting = Expecting()
    meshes[0].send(TWO, [datagram(ONE, 1)])
    with driver_of(NodeRuntime(waiting, meshes[1])) as driver:
        driver.run(within_patience(lambda: bool(waiting.received)))
    assert not waiting.timed_out


def test_a_timeout_that_passes_while_the_producer_works_is_decided_after_reading(meshes: tuple[Mesh, Mesh]) -> None:
    """A publisher that prepares messages, or is interrupted in that, must not resend what is acknowledged meanwhile."""
    due_at = SharedClock().now() + 20 * MILLISECOND
    waiting = Expecting(due_at)
    producer = SlowProducer(due_at, lambda: meshes[0].send(TWO, [datagram(ONE, 1)]))
    with driver_of(NodeRuntime(waiting, meshes[1], producer=producer)) as driver:
        driver.run(within_patience(lambda: bool(waiting.received)))
    assert not waiting.timed_out


def test_a_timeout_is_decided_after_reading_although_the_wait_for_it_was_short(meshes: tuple[Mesh, Mesh]) -> None:
    """A process that was interrupted at the end of a wait looks again, however short the wait was meant to be."""
    clock = InterruptedClock(lambda: meshes[0].send(TWO, [datagram(ONE, 1)]))
    waiting = Expecting()
    with closing(Driver([NodeRuntime(waiting, meshes[1])], clock)) as driver:
        driver.run(within_patience(lambda: bool(waiting.received)))
    assert not waiting.timed_out


def test_a_site_keeps_its_instants_before_it_reads(meshes: tuple[Mesh, Mesh]) -> None:
    site = Releasing([])
    meshes[0].send(TWO, [datagram(ONE, 1)])
    with driver_of(NodeRuntime(site, meshes[1])) as driver:
        driver.run(within_patience(lambda: bool(site.received)))
    assert site.received_before == 0


def test_a_machine_that_asks_to_be_woken_and_does_nothing_is_a_bug(meshes: tuple[Mesh, Mesh]) -> None:
    with driver_of(NodeRuntime(Idler(), meshes[0])) as driver:
        for _ in range(STALLED_STEPS_MAX - 1):
            driver.step()
        with pytest.raises(AssertionError, match="Idler asks to be woken at 1 and does nothing"):
            driver.step()


def test_delayed_datagrams_arrive_after_their_delay_and_in_order(meshes: tuple[Mesh, Mesh]) -> None:
    sender, hearer = Toy(), Toy()
    delay = 3 * MILLISECOND
    feeder = Feeder(sender, left=20)
    link_faults = FaultInjector({ONE: LinkFaults(delay=delay)}, Random(1))
    with driver_of(
        NodeRuntime(sender, meshes[0], producer=feeder), NodeRuntime(hearer, meshes[1], link_faults=link_faults)
    ) as driver:
        driver.run(within_patience(lambda: len(hearer.received) == 20))
    assert [number_of(text) for text, _ in hearer.received] == list(reversed(range(20)))
    assert all(at >= fed_at + delay for (_, at), fed_at in zip(hearer.received, feeder.fed_at, strict=True))


@pytest.mark.skipif(not multicast_works(), reason="no multicast on this machine's loopback")
@pytest.mark.parametrize("meshed", [True, False])
def test_a_repair_has_the_link_faults_of_its_sender(book: AddressBook, meshed: bool) -> None:
    """TWO sends to THREE a repair that ONE wrote; the link from ONE loses everything, the link from TWO nothing."""
    book = {**book, THREE: local_peer(Role.SITE)}
    groups = Groups(data=("239.195.2.3", free_port()), control=("239.195.2.4", free_port()))
    repairer, hearer = Toy(), Toy()
    link_faults = FaultInjector({ONE: LinkFaults(loss=1.0)}, Random(1))
    with ExitStack() as closing_all:
        transports = {node: Mesh(node, book) if meshed else IpMulticast(node, book, groups) for node in book}
        for transport in transports.values():
            closing_all.callback(transport.close)
        transports[ONE].multicast(Channel.DATA, [datagram(ONE, 1)] * 3)
        repairer.wanted = [Send(THREE, [datagram(ONE, 1)] * 5), Multicast(Channel.DATA, [datagram(ONE, 1)] * 5)]
        runtimes = (
            NodeRuntime(repairer, transports[TWO]),
            NodeRuntime(hearer, transports[THREE], link_faults=link_faults),
        )
        driver = closing_all.enter_context(closing(Driver(runtimes, SharedClock())))
        driver.run(within_patience(lambda: len(hearer.received) == 10 and link_faults.lost == 3))
    assert (len(hearer.received), link_faults.lost) == (10, 3)


def test_sources_at_one_address_have_the_link_faults_of_their_own(book: AddressBook) -> None:
    """Their headers name them. The link of one loses everything, the link of the other nothing."""
    shared = local_peer(Role.SOURCE)
    book = {ONE: book[ONE], TWO: shared, THREE: shared}
    hearer, link_faults = Toy(), FaultInjector({TWO: LinkFaults(loss=1.0)}, Random(1))
    group = Toy(wanted=[Multicast(Channel.DATA, [datagram(node, 1) for node in (TWO, THREE, TWO)])])
    runtimes = (NodeRuntime(group, Mesh(TWO, book)), NodeRuntime(hearer, Mesh(ONE, book), link_faults=link_faults))
    with driver_of(*runtimes) as driver:
        driver.run(within_patience(lambda: bool(hearer.received) and link_faults.lost == 2))
    assert [text for text, _ in hearer.received] == [datagram(THREE, 1)]


def test_a_lossy_link_delivers_what_it_does_not_lose(meshes: tuple[Mesh, Mesh]) -> None:
    sender, hearer = Toy(), Toy()
    link_faults = FaultInjector({ONE: LinkFaults(loss=0.3)}, Random(7))
    feeder = Feeder(sender, left=10, size=50)
    with driver_of(
        NodeRuntime(sender, meshes[0], producer=feeder), NodeRuntime(hearer, meshes[1], link_faults=link_faults)
    ) as driver:
        driver.run(within_patience(lambda: len(hearer.received) + link_faults.lost == 500))
    assert link_faults.lost > 0
    assert len(hearer.received) + link_faults.lost == 500


def test_a_producer_is_woken_until_it_has_nothing_more(meshes: tuple[Mesh, Mesh]) -> None:
    sender, hearer = Toy(), Toy()
    feeder = Feeder(sender, left=50)
    with driver_of(NodeRuntime(sender, meshes[0], producer=feeder), NodeRuntime(hearer, meshes[1])) as driver:
        driver.run(within_patience(lambda: len(hearer.received) == 50))
    assert len(feeder.fed_at) == len(hearer.received) == 50


def test_a_journal_is_woken_at_its_deadline_and_closed_with_the_driver(meshes: tuple[Mesh, Mesh]) -> None:
    clock = SharedClock()
    ledger = Ledger(sync_at=clock.now() + MILLISECOND)
    with closing(Driver([NodeRuntime(Toy(), meshes[0], journal=ledger)], clock)) as driver:
        driver.run(within_patience(lambda: "sync" in ledger.lines))
    assert ledger.lines == ["sync", "closed"]


def test_another_thread_may_stop_the_driver(meshes: tuple[Mesh, Mesh]) -> None:
    with driver_of(NodeRuntime(Toy(), meshes[0])) as driver:
        runner = threading.Thread(target=driver.run)
        runner.start()
        driver.stop()
        runner.join(timeout=10)
        assert not runner.is_alive()


def test_a_wakeup_ends_the_wait_however_many_there_were(meshes: tuple[Mesh, Mesh]) -> None:
    with driver_of(NodeRuntime(Toy(), meshes[0])) as driver:
        for _ in range(10_000):
            driver.wakeup()
        driver.step()


SELECTED_MAX = 1_024  # descriptors that `select` can wait for


@pytest.mark.skipif(OPEN_FILES_MAX <= SELECTED_MAX, reason="this process may not open enough files")
def test_descriptors_may_have_any_number(book: AddressBook) -> None:
    caller, echo = Toy(wanted=[Send(TWO, [b"call"])]), Echo()
    with ExitStack() as held:
        while held.enter_context(socket.socket()).fileno() < SELECTED_MAX:
            pass
        with driver_of(NodeRuntime(caller, Mesh(ONE, book)), NodeRuntime(echo, Mesh(TWO, book))) as driver:
            driver.run(within_patience(lambda: bool(caller.received)))
    assert [text for text, _ in caller.received] == [b"call"]


class Counted(NodeRuntime):
    """A runtime that counts its steps."""

    steps = 0

    def step(self, ready: Collection[int], clock: Clock, *, collect_data: bool = False, due: bool = True) -> bool:
        self.steps += 1
        return super().step(ready, clock, collect_data=collect_data, due=due)


class Caller(Toy):
    """Sends the next call after the answer to the last one."""

    def receive(self, datagram: bytes, now: Instant) -> None:
        super().receive(datagram, now)
        self.wanted.append(Send(TWO, [datagram]))


@pytest.mark.parametrize("count", [4, 2 * POLLED_MAX])
def test_only_runtimes_that_are_ready_or_due_are_stepped(count: int) -> None:
    """One calls another again and again, one ticks, and the others have nothing to do."""
    book = {node: local_peer(Role.SITE) for node in range(1, count + 1)}
    clock = SharedClock()
    caller, ticking = Caller(wanted=[Send(TWO, [b"call"])]), Ticking(clock.now(), MILLISECOND)
    machines = [caller, Echo(), ticking, *(Toy() for _ in range(count - 3))]
    runtimes = [Counted(machine, Mesh(node, book)) for machine, node in zip(machines, book, strict=True)]
    with driver_of(*runtimes) as driver:
        driver.run(within_patience(lambda: len(caller.received) >= 100 and ticking.wakes >= 10))
        periods = 2 + (clock.now() - ticking.starts_at) // HOUSEKEEPING_PERIOD  # in each, all are stepped once
    assert len(caller.received) >= 100
    assert 10 <= ticking.wakes <= runtimes[2].steps <= ticking.wakes + periods
    assert all(runtime.steps <= periods for runtime in runtimes[3:])


def test_a_wakeup_steps_every_runtime(meshes: tuple[Mesh, Mesh]) -> None:
    one, two = (Counted(Toy(), mesh) for mesh in meshes)
    with driver_of(one, two) as driver:
        driver.step()
        before = one.steps, two.steps
        driver.wakeup()
        driver.step()
        assert (one.steps, two.steps) == (before[0] + 1, before[1] + 1)


def test_what_was_overlooked_is_done_within_a_housekeeping_period(meshes: tuple[Mesh, Mesh]) -> None:
    """The deadline of one runtime changes between two steps, without any notice."""
    clock = SharedClock()
    idle, busy = Ticking(NEVER, 1), Ticking(clock.now(), MICROSECOND)
    with driver_of(NodeRuntime(idle, meshes[0]), NodeRuntime(busy, meshes[1])) as driver:
        driver.run(within_patience(lambda: busy.wakes > 3))
        idle.due_at = 0
        driver.run(within_patience(lambda: idle.wakes > 0))
    assert idle.wakes > 0


def test_effects_beyond_the_limit_of_a_step_wait_for_no_timer(meshes: tuple[Mesh, Mesh]) -> None:
    """A consumer that feeds its own machine again and again."""
    toy, left = Toy(wanted=[Deliver(ORDERED, RELEASE)]), iter(range(5 * DRAINS_MAX))

    def consume(_: Deliver) -> None:
        toy.wanted += [Deliver(ORDERED, RELEASE)] if next(left, None) is not None else [REPORT]

    reports: list[Report] = []
    runtime = NodeRuntime(toy, meshes[0], consumer=consume, reporter=reports.append)
    with driver_of(runtime) as driver:
        for _ in range(6):
            assert runtime.other_due_at() == 0 or not reports
            driver.step()
    assert reports == [REPORT]
    assert runtime.other_due_at() == NEVER


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_driver_and_the_old_handlers_are_restored(
    meshes: tuple[Mesh, Mesh], number: signal.Signals
) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    class Killer(Feeder):
        def wake(self, now: Instant) -> None:
            super().wake(now)
            os.kill(os.getpid(), number)

    killer = Killer(Toy(), left=1)
    patience = within_patience(lambda: False)
    with driver_of(NodeRuntime(killer.toy, meshes[0], producer=killer)) as driver:
        driver.run(patience)
    assert not patience(), "the signal did not end the run"
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert signal.set_wakeup_fd(-1) == -1
