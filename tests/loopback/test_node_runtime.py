"""What a seat does for a machine that has a journal and a store, and how loops have channels of their own."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairtape.core.effects import (
    LOOP_CHANNEL,
    Append,
    AppendFormation,
    Effect,
    Fetch,
    FormationChange,
    JoinChannels,
    Multicast,
    Notice,
    Ordered,
    QueryStore,
    Recovered,
    Span,
    Truncate,
)
from fairtape.core.entries import decode_entry
from fairtape.core.formation_log import Recall, Recalled, StoreRequest, StoreResponse
from fairtape.core.instants import Instant
from fairtape.journal import History, JournalWriter
from fairtape.net.clock import SharedClock
from fairtape.net.driver import Driver
from fairtape.net.node_runtime import NodeRuntime
from fairtape.net.transports import AddressBook, Groups, IpMulticast, Mesh, Role, Transport, multicast_works
from fairtape.storage.formation_stores import StoreThread, open_store
from loopback.local_peers import at_home, free_port, within_patience

ONE, TWO, THREE = 1, 2, 3
LOOP = LOOP_CHANNEL + 1
CHANGE = FormationChange(0, 1, 1, 1, False, b"layout", 5)
ORDERED = Ordered(0, 1, 3, 1, 1, 9, (Span(101, 7, 1, 1, 1, (b"body",), (1,)),))


@dataclass
class Keeper:
    """A machine that asks for whatever it is told to ask for, and keeps the answers."""

    wanted: list[Effect] = field(default_factory=list)
    heard: list[bytes] = field(default_factory=list)
    answers: list[object] = field(default_factory=list)

    def receive(self, datagram: bytes, now: Instant) -> None:
        assert now > 0
        self.heard.append(datagram)

    def receive_all(self, datagrams: Sequence[bytes], now: Instant) -> None:
        assert now > 0
        self.heard += datagrams

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

    def recovered(self, past: Recovered, now: Instant) -> None:
        assert now > 0
        self.answers.append(past)

    def answered(self, answer: StoreResponse, now: Instant) -> None:
        assert now > 0
        self.answers.append(answer)


def test_the_journal_is_read_only_when_it_has_what_the_machine_believes(tmp_path: Path) -> None:
    """A question that comes before an entry in one turn is answered after it: the machine counts on that entry."""
    keeper = Keeper([Fetch(0, None, 1 << 16, 1), AppendFormation(CHANGE), Append(ORDERED), Fetch(0, 0, 1 << 16, 2)])
    turned: list[FormationChange] = []
    seat = seat_of(keeper, tmp_path)
    seat.on_formation = turned.append
    with closing(Driver([seat], SharedClock())) as driver:
        driver.step()
        assert keeper.answers == [(1, [CHANGE, ORDERED])], "one answer in a turn"
        driver.step()
        assert keeper.answers[1:] == [(2, [CHANGE, ORDERED])]
        keeper.wanted = [Fetch(3, 1, 1 << 16, 3)]
        driver.step()
        assert keeper.answers[2:] == [(3, [])]
    assert turned == [CHANGE]


def test_a_cut_is_answered_with_what_is_left(tmp_path: Path) -> None:
    keeper = Keeper([AppendFormation(CHANGE), Append(ORDERED), Truncate(2)])
    with closing(Driver([seat_of(keeper, tmp_path)], SharedClock())) as driver:
        driver.step()
    assert keeper.answers == [Recovered.nothing()]


def test_a_formation_that_no_message_follows_is_gone_when_the_journal_is_opened_again(tmp_path: Path) -> None:
    later = FormationChange(0, 2, 4, 2, False, b"later", 6)
    with closing(
        Driver(
            [seat_of(Keeper([AppendFormation(CHANGE), Append(ORDERED), AppendFormation(later)]), tmp_path)],
            SharedClock(),
        )
    ) as d:
        d.step()
    with closing(JournalWriter.open(tmp_path, stripe=0, site=ONE)) as writer:
        past = writer.truncate_after((1 << 62) - 1)
    assert (past.number, past.layout, past.token) == (1, b"layout", 3)


def test_the_store_is_asked_and_its_answer_brought_in_a_later_turn(tmp_path: Path) -> None:
    question: StoreRequest = Recall()
    keeper, lines = Keeper([Notice("before"), QueryStore(question), Notice("after")]), list[str]()
    seat = NodeRuntime(keeper, Mesh(ONE, {ONE: at_home(Role.COORDINATOR)}), log=lines.append)
    with closing(Driver([seat], SharedClock())) as driver:
        seat.store = StoreThread(open_store(f"sqlite:{tmp_path / 'store.db'}"), driver.wakeup)
        driver.run(until=within_patience(lambda: bool(keeper.answers)))
    assert lines == ["before", "after"]
    assert keeper.answers == [Recalled(None, ())]


@pytest.fixture(params=["multicast", "mesh"])
def transports(request: pytest.FixtureRequest) -> Iterator[list[Transport]]:
    """One is in the primary loop, two and three are in its secondary loop."""
    book: AddressBook = {node: at_home(Role.SITE) for node in (ONE, TWO, THREE)}
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


def test_a_loop_is_heard_by_those_who_listen(transports: list[Transport]) -> None:
    listening = {TWO: (LOOP,), THREE: (LOOP,)}
    keepers = [Keeper([JoinChannels(listening.get(node, ()))]) for node in (ONE, TWO, THREE)]
    with closing(
        Driver([NodeRuntime(*pair) for pair in zip(keepers, transports, strict=True)], SharedClock())
    ) as driver:
        driver.step()
        keepers[1].wanted.append(Multicast(LOOP, [b"token"]))
        driver.run(until=within_patience(lambda: bool(keepers[2].heard)))
        assert [keeper.heard for keeper in keepers] == [[], [], [b"token"]]


def seat_of(keeper: Keeper, folder: Path) -> NodeRuntime:
    return NodeRuntime(
        keeper,
        Mesh(ONE, {ONE: at_home(Role.SITE)}),
        journal=JournalWriter.open(folder, stripe=0, site=ONE),
        history=History(folder),
    )
