"""The runtime of a machine with a journal and a store, and the channels of secondary loops."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from fairtape.core.effects import (
    LOOP_CHANNEL,
    Append,
    AppendFormation,
    Deliver,
    Effect,
    Fetch,
    FormationChange,
    JoinChannels,
    Multicast,
    Notice,
    Ordered,
    QueryStore,
    Recovered,
    Release,
    Span,
    Truncate,
)
from fairtape.core.entries import decode_entry
from fairtape.core.formation_log import Recall, Recalled, StoreRequest, StoreResponse
from fairtape.core.instants import Instant
from fairtape.journal import History, JournalWriter
from fairtape.journal.identity import journal_identity
from fairtape.net.clock import SharedClock
from fairtape.net.driver import Driver
from fairtape.net.node_runtime import NodeRuntime
from fairtape.net.transports import AddressBook, Groups, IpMulticast, Mesh, Role, Transport, multicast_works
from fairtape.storage.formation_stores import StoreThread, open_store
from loopback.local_peers import free_port, local_peer, within_patience

ONE, TWO, THREE = 1, 2, 3
LOOP = LOOP_CHANNEL + 1
CHANGE = FormationChange(0, 1, 1, 1, False, b"layout", 5)
ORDERED = Ordered(0, 1, 3, 1, 1, 9, (Span(101, 7, 1, 1, 1, (b"body",), (1,)),))


@dataclass
class RecordingMachine:
    """A machine that emits the effects that a test gives it, and records the answers."""

    wanted: list[Effect] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)
    answers: list[object] = field(default_factory=list)

    def receive(self, datagram: bytes, now: Instant) -> None:
        assert now > 0
        self.received.append(datagram)

    def receive_all(self, datagrams: Sequence[bytes], now: Instant) -> None:
        assert now > 0
        self.received += datagrams

    def wake(self, now: Instant) -> None:
        pass

    def deadline(self) -> Instant | None:
        return None

    def drain(self) -> list[Effect]:
        wanted, self.wanted = self.wanted, []
        return wanted

    def fetched(self, ticket: int, entries: Sequence[bytes], now: Instant) -> None:
        assert now > 0
        self.answers.append((ticket, [decode_entry(entry) for entry in entries]))

    def recovered(self, recovered_state: Recovered, now: Instant) -> None:
        assert now > 0
        self.answers.append(recovered_state)

    def answered(self, answer: StoreResponse, now: Instant) -> None:
        assert now > 0
        self.answers.append(answer)


def test_the_journal_is_read_only_after_the_other_effects(tmp_path: Path) -> None:
    """A fetch that precedes an entry in one step is served after it: the machine relies on that entry."""
    machine = RecordingMachine(
        [Fetch(0, None, 1 << 16, 1), AppendFormation(CHANGE), Append(ORDERED), Fetch(0, 0, 1 << 16, 2)]
    )
    changes: list[FormationChange] = []
    runtime = runtime_of(machine, tmp_path)
    runtime.on_formation = changes.append
    with closing(Driver([runtime], SharedClock())) as driver:
        driver.step()
        assert machine.answers == [(1, [CHANGE, ORDERED])], "one answer per step"
        driver.step()
        assert machine.answers[1:] == [(2, [CHANGE, ORDERED])]
        machine.wanted = [Fetch(3, 1, 1 << 16, 3)]
        driver.step()
        assert machine.answers[2:] == [(3, [])]
    assert changes == [CHANGE]


def test_a_truncation_is_answered_with_the_remaining_state(tmp_path: Path) -> None:
    machine = RecordingMachine([AppendFormation(CHANGE), Append(ORDERED), Truncate(2)])
    with closing(Driver([runtime_of(machine, tmp_path)], SharedClock())) as driver:
        driver.step()
    assert machine.answers == [replace(Recovered.nothing(), journal=journal_identity(tmp_path))]


def test_a_formation_without_messages_after_it_is_removed_by_a_truncation(tmp_path: Path) -> None:
    later = FormationChange(0, 2, 4, 2, False, b"later", 6)
    with closing(
        Driver(
            [
                runtime_of(
                    RecordingMachine([AppendFormation(CHANGE), Append(ORDERED), AppendFormation(later)]), tmp_path
                )
            ],
            SharedClock(),
        )
    ) as d:
        d.step()
    with closing(JournalWriter.open(tmp_path, stripe=0, site=ONE)) as writer:
        recovered_state = writer.truncate_after((1 << 62) - 1)
    assert (recovered_state.number, recovered_state.layout, recovered_state.token) == (1, b"layout", 3)


def test_the_store_is_asked_and_its_answer_arrives_in_a_later_step(tmp_path: Path) -> None:
    request: StoreRequest = Recall()
    machine, lines = RecordingMachine([Notice("before"), QueryStore(request), Notice("after")]), list[str]()
    runtime = NodeRuntime(machine, Mesh(ONE, {ONE: local_peer(Role.COORDINATOR)}), log=lines.append)
    with closing(Driver([runtime], SharedClock())) as driver:
        runtime.store = StoreThread(open_store(f"sqlite:{tmp_path / 'store.db'}"), driver.wakeup)
        driver.run(until=within_patience(lambda: bool(machine.answers)))
    assert lines == ["before", "after"]
    assert machine.answers == [Recalled(None, ())]


def test_readers_are_notified_after_the_hand_over_and_after_the_journal_has_the_mark(tmp_path: Path) -> None:
    commit_at = ORDERED.acknowledged_at
    release = Release(ORDERED.token, ORDERED.sequence, ORDERED.count, commit_at, commit_at, late=False, clock_bound=0)
    machine = RecordingMachine([AppendFormation(CHANGE), Append(ORDERED), Deliver(ORDERED, release)])
    runtime, happened = runtime_of(machine, tmp_path), list[str]()
    assert isinstance(runtime.journal, JournalWriter)
    writer: JournalWriter = runtime.journal

    class RecordingNotifier:
        def notify(self) -> None:
            assert writer.tip is not None
            happened.append(f"notified of {writer.tip.released - 1}")

        def close(self) -> None:
            happened.append("closed")

    runtime.notifier, runtime.consumer = RecordingNotifier(), lambda _: happened.append("handed over")
    with closing(Driver([runtime], SharedClock())) as driver:
        driver.step()
        driver.step()
    assert happened == ["handed over", "notified of 1", "closed"], "nothing is announced while nothing happens"


def test_a_producer_is_woken_when_its_descriptor_is_readable() -> None:
    readable, writable = os.pipe()

    class Reader:
        read = b""

        def deadline(self) -> Instant | None:
            return None

        def wake(self, _now: Instant) -> None:
            self.read += os.read(readable, 1)

    producer = Reader()
    transport = Mesh(ONE, {ONE: local_peer(Role.SITE)})
    runtime = NodeRuntime(RecordingMachine(), transport, producer=producer, producer_fd=readable)
    with closing(Driver([runtime], SharedClock())) as driver:
        driver.step()
        assert producer.read == b""
        os.write(writable, b"xy")
        driver.run(until=within_patience(lambda: producer.read == b"xy"))
        assert producer.read == b"xy"
    os.close(readable)
    os.close(writable)


@pytest.fixture(params=["multicast", "mesh"])
def transports(request: pytest.FixtureRequest) -> Iterator[list[Transport]]:
    """One is in the primary loop, two and three are in its secondary loop."""
    book: AddressBook = {node: local_peer(Role.SITE) for node in (ONE, TWO, THREE)}
    if request.param == "mesh":
        made: list[Transport] = [Mesh(node, book, {1: (TWO, THREE)}) for node in book]
    elif not multicast_works():
        pytest.skip("no IP multicast on the loopback interface")
    else:
        groups = Groups(data=("239.195.9.1", free_port()), control=("239.195.9.2", free_port()), ttl=0)
        made = [IpMulticast(node, book, groups) for node in book]
    yield made
    for transport in made:
        transport.close()


def test_the_channel_of_a_loop_reaches_its_members_only(transports: list[Transport]) -> None:
    listening = {TWO: (LOOP,), THREE: (LOOP,)}
    machines = [RecordingMachine([JoinChannels(listening.get(node, ()))]) for node in (ONE, TWO, THREE)]
    with closing(
        Driver([NodeRuntime(*pair) for pair in zip(machines, transports, strict=True)], SharedClock())
    ) as driver:
        driver.step()
        machines[1].wanted.append(Multicast(LOOP, [b"token"]))
        driver.run(until=within_patience(lambda: bool(machines[2].received)))
        assert [machine.received for machine in machines] == [[], [], [b"token"]]


def runtime_of(machine: RecordingMachine, folder: Path) -> NodeRuntime:
    return NodeRuntime(
        machine,
        Mesh(ONE, {ONE: local_peer(Role.SITE)}),
        journal=JournalWriter.open(folder, stripe=0, site=ONE),
        history=History(folder),
    )
