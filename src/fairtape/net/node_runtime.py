"""A machine's place in a process: its sockets, its journal, the store, and whoever feeds it or hears it.

A seat takes one turn at a time. It hands over what arrived, wakes the machine if it is time, and carries out what the
machine asks for, in the order in which it asks. Control sockets are read *before* data sockets and handed over *after*
them, so that an acknowledgment never overtakes the messages it names merely because two sockets are read in turn.

What a machine wants carried out at an instant is dated by the reading with which its turn began; a release is dated
again when it is handed over, because that is what everybody else can observe.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Final, Protocol, cast

from fairtape.core.addresses import Address
from fairtape.core.effects import (
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
    Report,
    Send,
    Truncate,
)
from fairtape.core.formation_log import StoreRequest, StoreResponse
from fairtape.core.instants import NEVER, Instant
from fairtape.core.machine import JournalMachine, Machine, StoreMachine
from fairtape.net.clock import Clock
from fairtape.net.fault_injection import FaultInjector
from fairtape.net.transports import Transport
from fairtape.net.udp import UdpSocket
from fairtape.ring.receiver.release import LATE_AFTER

DATAGRAMS_MAX: Final = 1_024  # read from one socket in one turn: a few milliseconds of work at full rate
DRAINS_MAX: Final = 16  # a consumer may feed the machine whose delivery it hears; the rest waits for the next turn
STALLED_TURNS_MAX: Final = 1_000  # wakes without any movement before we call it a bug of the machine


class JournalInterface(Protocol):
    """What a driver asks of a journal. `append` returns when the order is as safe as the journal promises."""

    def append(self, ordered: Ordered, now: Instant) -> None:
        """Write Msg(e)."""

    def append_formation(self, change: FormationChange, now: Instant) -> None:
        """Write a change of formation."""

    def release(self, release: Release, now: Instant) -> None:
        """Write when this site released it."""

    def truncate_after(self, token: int) -> Recovered:
        """Take out everything above this token; what is left."""

    def deadline(self) -> Instant | None:
        """When `wake` is wanted next."""

    def wake(self, now: Instant) -> None:
        """Do what has fallen due, such as a sync."""

    def close(self) -> None:
        """Write everything and let go."""


class HistoryInterface(Protocol):
    """What a driver asks of a journal's past, beside its writer."""

    def after(self, token: int, size_max: int, *, formation: int = 0) -> list[bytes]:
        """The entries that follow a position, as many as fit into this many bytes, but at least one."""

    def keep_up(self) -> None:
        """Take notice of what was added, so that whoever asks for it is answered at once."""


class StoreInterface(Protocol):
    """What a driver asks of the formation store."""

    def ask(self, question: StoreRequest) -> None:
        """Take a question, and never wait for its answer."""

    def answers(self) -> list[StoreResponse]:
        """Every answer since the last call."""

    def close(self) -> None:
        """Let go of the store."""


class Producer(Protocol):
    """Feeds the machine of its seat: asked in every turn, woken when its own deadline has come."""

    def deadline(self) -> Instant | None:
        """When it next has something to submit; None while the machine takes no more."""

    def wake(self, now: Instant) -> None:
        """Submit what is due."""


class NodeRuntime:
    """One machine and its part of the world."""

    __slots__ = (
        "_fetches",
        "_stalled_turns",
        "consumer",
        "history",
        "journal",
        "link_faults",
        "log",
        "machine",
        "on_formation",
        "producer",
        "reporter",
        "store",
        "transport",
    )

    def __init__(
        self,
        machine: Machine,
        transport: Transport,
        *,
        link_faults: FaultInjector | None = None,
        journal: JournalInterface | None = None,
        producer: Producer | None = None,
        consumer: Callable[[Deliver], None] | None = None,
        reporter: Callable[[Report], None] | None = None,
        history: HistoryInterface | None = None,
        store: StoreInterface | None = None,
        on_formation: Callable[[FormationChange], None] | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        """`on_formation` is called with each formation change, after which the order may be broken."""
        self.machine = machine
        self.transport = transport
        self.link_faults = link_faults
        self.journal = journal
        self.producer = producer
        self.consumer = consumer
        self.reporter = reporter
        self.history = history
        self.store = store
        self.on_formation = on_formation
        self.log = log
        self._fetches: deque[Fetch] = deque()  # bounded by the machine, which has named limits for what it asks
        self._stalled_turns = 0

    def due_at(self) -> Instant:
        """When the machine wants to be woken: kept as exactly as we can, for it may be a release."""
        wanted_at = self.machine.deadline()
        return NEVER if wanted_at is None else wanted_at

    def other_due_at(self) -> Instant:
        """The earliest deadline of everything else in this seat."""
        earliest = 0 if self._fetches else NEVER
        for timed in (self.link_faults, self.journal, self.producer):
            if timed is not None:
                wanted_at = timed.deadline()
                if wanted_at is not None and wanted_at < earliest:
                    earliest = wanted_at
        return earliest

    def step(self, ready: Collection[int], clock: Clock, *, collect_data: bool = False) -> bool:
        """Take what arrived, do what is due, and carry out what the machine asks for; whether it asked for anything.

        A driver that `collect_data` is not told of data, so it is looked for in every turn.
        """
        arrived = self._listen(ready, clock, collect_data=collect_data)
        now = clock.now()  # after listening: a round trip is measured rightly only if what was heard had come by then
        if arrived:
            self.machine.receive_all(arrived, now)
        if self.store is not None:
            for answer in self.store.answers():
                cast(StoreMachine, self.machine).answered(answer, now)
        if self.producer is not None and _is_due(self.producer, now):
            self.producer.wake(now)
        wanted_at = self.machine.deadline()
        woken = wanted_at is not None and wanted_at <= now
        if woken:
            self.machine.wake(now)
        acted = self._act(now, clock)
        if self.journal is not None and _is_due(self.journal, now):
            self.journal.wake(now)
            if self.history is not None:
                self.history.keep_up()
        self._expect_movement(stalled=woken and not (arrived or acted) and self.machine.deadline() == wanted_at)
        return acted

    def close(self) -> None:
        """Close the carrier, and the journal and the store if there are any."""
        with ExitStack() as closing:
            for each in (self.store, self.journal, self.transport):
                if each is not None:
                    closing.callback(each.close)

    def _read_journal(self, now: Instant) -> None:
        """Answer one question to the journal, in a turn that has carried out everything else.

        Only then has the journal what the machine believes it has. One is enough for a turn: those who catch up must
        not make a token late.
        """
        if self._fetches and self.history is not None:
            fetch = self._fetches.popleft()
            cast(JournalMachine, self.machine).fetched(fetch.ticket, _read_past(self.history, fetch), now)

    def _listen(self, ready: Collection[int], clock: Clock, *, collect_data: bool) -> list[bytes]:
        """Read control before data, hand over data before control."""
        after = self._read(self.transport.control, ready, clock)
        # Behind a control datagram there may be data that arrived since the wait ended: look, whatever it said.
        arrived = self._read(self.transport.data, None if after or collect_data else ready, clock)
        arrived += after
        return arrived if self.link_faults is None else self.link_faults.due(clock.now()) + arrived

    def _read(self, sockets: Sequence[UdpSocket], ready: Collection[int] | None, clock: Clock) -> list[bytes]:
        """What has come in on those that are ready; on all of them where `ready` is None."""
        datagrams: list[bytes] = []
        for each in sockets:
            if ready is None or each.fd in ready:
                if self.link_faults is None:
                    datagrams += each.receive(DATAGRAMS_MAX)
                else:
                    datagrams += self._brave(each, self.link_faults, clock.now())
        return datagrams

    def _brave(self, heard: UdpSocket, link_faults: FaultInjector, now: Instant) -> list[bytes]:
        """What the weather lets through at once, by the link over which it really came."""
        senders: list[Address] = []
        datagrams = heard.receive(DATAGRAMS_MAX, senders)
        return link_faults.admit(datagrams, [self.transport.node_at(sender) for sender in senders], now)

    def _act(self, now: Instant, clock: Clock) -> bool:
        """Drain until the machine is silent, for a consumer may have given it new work; whether there was any."""
        acted = asked = False
        for _ in range(DRAINS_MAX):
            effects = self.machine.drain()
            if not effects and not asked:
                asked = True
                self._read_journal(now)
                effects = self.machine.drain()
            if not effects:
                return acted
            acted = True
            for effect in effects:
                if isinstance(effect, Deliver):  # first of all: the only one that others can see the time of
                    self._hand_over(effect, clock.now())
                else:
                    self._carry_out(effect, now)
        return True  # the rest waits for the next turn, so that sockets and timers get theirs

    def _carry_out(self, effect: Effect, now: Instant) -> None:
        match effect:
            case Multicast():
                self.transport.multicast(effect.channel, effect.datagrams)
            case Send():
                self.transport.send(effect.to, effect.datagrams)
            case JoinChannels():
                self.transport.listen(effect.channels)
            case QueryStore():
                assert self.store is not None, "a machine without a store consults it"
                self.store.ask(effect.question)
            case Report():
                if self.reporter is not None:
                    self.reporter(effect)
            case Notice():
                if self.log is not None:
                    self.log(effect.text)
            case _:
                self._keep(effect, now)

    def _keep(self, effect: Effect, now: Instant) -> None:
        """What concerns the order, and so the journal."""
        match effect:
            case Append():
                if self.journal is not None:
                    self.journal.append(effect.ordered, now)
            case AppendFormation():
                if self.journal is not None:
                    self.journal.append_formation(effect.change, now)
                if self.on_formation is not None:
                    self.on_formation(effect.change)
            case Fetch():
                self._fetches.append(effect)
            case Truncate():
                assert self.journal is not None, "a machine without a journal cuts it"
                cast(JournalMachine, self.machine).recovered(self.journal.truncate_after(effect.token), now)

    def _hand_over(self, delivery: Deliver, released_at: Instant) -> None:
        """The application first, then the mark: a crash between the two delivers twice, and not never."""
        delivery.release = stamped(delivery.release, released_at)
        if self.consumer is not None:
            self.consumer(delivery)
        if self.journal is not None:
            self.journal.release(delivery.release, released_at)

    def _expect_movement(self, *, stalled: bool) -> None:
        self._stalled_turns = self._stalled_turns + 1 if stalled else 0
        assert self._stalled_turns < STALLED_TURNS_MAX, (
            f"{type(self.machine).__name__} asks to be woken at {self.machine.deadline()} and does nothing"
        )


def stamped(release: Release, released_at: Instant) -> Release:
    """The release as it happened: a machine can only say when its turn began, and what held it up since makes it late.

    A machine decides at a reading of the same clock, which never goes back; so nothing is handed over early.
    """
    commit_at = release.commit_at
    assert released_at >= commit_at, f"token {release.token} is handed over {commit_at - released_at} ns early"
    return Release(
        token=release.token,
        sequence=release.sequence,
        count=release.count,
        commit_at=commit_at,
        released_at=released_at,
        late=release.late or released_at - commit_at > LATE_AFTER,
        clock_bound=release.clock_bound,
    )


def _read_past(history: HistoryInterface, fetch: Fetch) -> list[bytes]:
    """Where no formation was noted yet, nothing is left out; where it is not known, the token alone counts."""
    if fetch.formation is None:
        return history.after(fetch.token, fetch.size_max)
    if fetch.formation == 0:
        return history.after(0, fetch.size_max)
    return history.after(fetch.token, fetch.size_max, formation=fetch.formation)


class _Timed(Protocol):
    def deadline(self) -> Instant | None: ...


def _is_due(timed: _Timed, now: Instant) -> bool:
    wanted_at = timed.deadline()
    return wanted_at is not None and wanted_at <= now
