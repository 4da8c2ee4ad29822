"""The runtime of one machine: its sockets, journal, store, producer and consumer.

A step of a site first releases and acknowledges what is due. Then it reads datagrams in slices, and after each slice
releases and acknowledges what has become due meanwhile: a flood delays a release by one slice at most. Timeouts are
decided last, because what they wait for may have arrived. After a release it yields the processor, so that all sites of
one machine release before any of them goes on. Only then are readers of the journal notified. Control sockets are read
*before* data sockets and handed over *after* them, so that an acknowledgment never overtakes the messages that it names
only because two sockets are read one after the other.

Effects bear the clock reading at which the step began. A release is dated again when it is handed over, because that is
the instant that others can observe.
"""

import os
from collections import deque
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Final, Protocol, cast

from fairtape.core.addresses import Address
from fairtape.core.effects import (
    Append,
    AppendFormation,
    Deliver,
    Effect,
    Fetch,
    FetchChunks,
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
from fairtape.core.entries import Extract
from fairtape.core.formation_log import StoreRequest, StoreResponse
from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.core.machine import JournalMachine, Machine, ReleasingMachine, StoreMachine
from fairtape.net.clock import Clock
from fairtape.net.fault_injection import FaultInjector
from fairtape.net.other_versions import HEAD, OtherVersions
from fairtape.net.read_rate import ReadRate
from fairtape.net.transports import Transport
from fairtape.net.udp import KERNEL_OVERHEAD, UdpSocket
from fairtape.ring.receiver.release import LATE_AFTER

SLICE_MAX: Final = 64  # datagrams that are handled without a look at the clock: 0.3 ms of work at full rate
SLICES_MAX: Final = 16  # of one socket in one step
DRAINS_MAX: Final = 16  # of one step: a consumer may feed the machine whose delivery it handles
STALLED_STEPS_MAX: Final = 1_000  # wakes without any progress before it counts as a bug of the machine

_SENDING: Final = (Multicast, Send)  # effects that call no application


class JournalInterface(Protocol):
    """The journal writer of a site. Appends return once they are as durable as the sync policy promises."""

    def append(self, ordered: Ordered, now: Instant) -> None:
        """Append Msg(e)."""

    def append_formation(self, change: FormationChange, now: Instant) -> None: ...

    def release(self, release: Release, now: Instant) -> None:
        """Append this site's release mark."""

    def truncate_after(self, token: int) -> Recovered:
        """Remove everything above this token; the state that is left."""

    def deadline(self) -> Instant | None:
        """When to call `wake` next."""

    def wake(self, now: Instant) -> None:
        """Do what is due, such as a sync."""

    def close(self) -> None: ...


class HistoryInterface(Protocol):
    """Reads a journal beside its writer, for sites that catch up."""

    def after(self, token: int, size_max: int, *, formation: int = 0) -> list[bytes]:
        """The entries that follow a position, at most `size_max` bytes, but at least one."""

    def chunks(self, fetch: FetchChunks) -> Extract | None:
        """The chunks that a site which catches up asks for; None: the work of one turn is done, call again."""

    def update_index(self) -> None:
        """Index what was appended, so that later reads need no scan."""


class StoreInterface(Protocol):
    """The formation store, asked without blocking."""

    def ask(self, request: StoreRequest) -> None:
        """Accept a request; never wait for its response."""

    def answers(self) -> list[StoreResponse]:
        """Every response since the last call."""

    def close(self) -> None: ...


class Producer(Protocol):
    """Submits messages to the machine of its runtime, at its own deadlines."""

    def deadline(self) -> Instant | None:
        """When it next has something to submit; None while the machine accepts no more."""

    def wake(self, now: Instant) -> None:
        """Submit what is due."""


class Notifier(Protocol):
    """Announces to other processes how far the journal has come."""

    def notify(self) -> None:
        """Announce what has changed; never wait."""

    def close(self) -> None: ...


class NodeRuntime:
    """One machine with its sockets, storage and callbacks."""

    __slots__ = (
        "_called",
        "_data_waits",
        "_fetches",
        "_handed_over",
        "_multicast",
        "_read_rate",
        "_releasing",
        "_stalled_steps",
        "_undrained",
        "consumer",
        "history",
        "journal",
        "link_faults",
        "log",
        "machine",
        "notifier",
        "on_formation",
        "other_versions",
        "producer",
        "producer_fd",
        "reporter",
        "store",
        "took_data",
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
        producer_fd: int | None = None,
        consumer: Callable[[Deliver], None] | None = None,
        reporter: Callable[[Report], None] | None = None,
        history: HistoryInterface | None = None,
        store: StoreInterface | None = None,
        on_formation: Callable[[FormationChange], None] | None = None,
        notifier: Notifier | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        """`on_formation` is called with each formation change; behind one with a Break, numbers may be reused.

        The producer is also woken when `producer_fd` is readable; it has to make it unreadable.
        """
        self.machine = machine
        self.transport = transport
        self.link_faults = link_faults
        self.journal = journal
        self.producer = producer
        self.producer_fd = producer_fd
        self.consumer = consumer
        self.reporter = reporter
        self.history = history
        self.store = store
        self.on_formation = on_formation
        self.notifier = notifier
        self.log = log
        self.other_versions = OtherVersions()
        self.took_data = False  # in the last step
        self._fetches: deque[Fetch | FetchChunks] = deque()  # bounded by the machine, which limits its requests
        self._called = False  # the application, in this step
        self._undrained = False  # the machine may have more effects
        self._data_waits = False  # in this step, as far as the driver knows
        self._handed_over = False  # since the processor was last yielded
        self._multicast = False  # in this step, so that a copy has come back
        self._read_rate = ReadRate()
        self._releasing = machine if isinstance(machine, ReleasingMachine) else None
        self._stalled_steps = 0

    def backlog(self) -> Duration:
        """How long this node will take for the blocks that have arrived and were not read yet."""
        return self._read_rate.period_for(self.transport.backlog()) if self._data_waits else 0

    def due_at(self) -> Instant:
        """The deadline of the machine. It is kept as exactly as possible, for it may be a release."""
        wanted_at = self.machine.deadline()
        return NEVER if wanted_at is None else wanted_at

    def other_due_at(self) -> Instant:
        """The earliest of all other deadlines: delayed datagrams, journal, producer, pending fetches and effects."""
        earliest = 0 if self._fetches or self._undrained else NEVER
        for timed in (self.link_faults, self.journal, self.producer):
            if timed is not None:
                wanted_at = timed.deadline()
                if wanted_at is not None and wanted_at < earliest:
                    earliest = wanted_at
        return earliest

    def step(self, ready: Collection[int], clock: Clock, *, collect_data: bool = False, due: bool = True) -> bool:
        """Handle arrived datagrams and due deadlines, and carry out the effects.

        Returns whether the application may have been called, and given work to other runtimes. With `collect_data`,
        data sockets are read in every step, ready or not: the driver does not wait for them. Without `due`, a datagram
        has arrived before the machine's deadline, and nothing has given it work since.
        """
        self._called = self._multicast = False
        self._data_waits = collect_data or any(each.fd in ready for each in self.transport.data)
        if self._releasing is not None and (due or self._undrained):
            self._keep_instants(self._releasing, clock)
        taken = self._take_in(ready, clock, collect_data=collect_data)
        if taken:
            self._stalled_steps = 0
        if taken or self._releasing is None or _is_due(self.machine, clock.now()):
            self._do_due(clock)
        if self.producer is not None:
            self._produce(self.producer, ready, clock)
        if self.journal is not None and _is_due(self.journal, clock.now()):
            self.journal.wake(clock.now())
            if self.history is not None:
                self.history.update_index()
        return self._called

    def _keep_instants(self, machine: ReleasingMachine, clock: Clock) -> None:
        """Let the machine release and acknowledge what is due. Timeouts wait until what has arrived was read.

        A node that did not run for a while must not request what waits in its sockets.
        """
        now = clock.now()
        if _is_due(machine, now):
            machine.advance(now)
        self._finish(acted=self._act(now, clock))

    def _do_due(self, clock: Clock) -> None:
        """Wake the machine if its deadline has passed, and carry out its effects."""
        now = clock.now()
        wanted_at = self.machine.deadline()
        woken = wanted_at is not None and wanted_at <= now
        if woken:
            self.machine.wake(now)
        acted = self._act(now, clock)
        self._check_progress(stalled=woken and not acted and self.machine.deadline() == wanted_at)
        self._finish(acted=acted)

    def _finish(self, *, acted: bool) -> None:
        """Yield the processor after a hand-over, and notify readers only then."""
        if self._handed_over:
            self._handed_over = False
            os.sched_yield()
        if acted and self.notifier is not None:
            self.notifier.notify()

    def _take_in(self, ready: Collection[int], clock: Clock, *, collect_data: bool) -> bool:
        """Give the machine what has arrived; whether there was anything."""
        control = self._read_control(ready, clock)
        # With a control datagram, read all data that has arrived. What an acknowledgment names was there before it, and
        # a wait looks at control sockets first, so the data sockets are ready, too. A driver that does not wait for
        # data does not know, and comes back after its gather period only: then all are read. Where there is no control
        # socket, an acknowledgment may follow a block in the same one, and must not wait for that period.
        until_empty = bool(control) or collect_data or not self.transport.control
        taken = self.took_data = self._take_data(None if collect_data else ready, clock, until_empty=until_empty)
        now = clock.now()  # after reading the sockets: round trips are right only if the datagrams are no later
        if control:
            self.machine.receive_all(control, now)
            taken = True
        if self.store is not None:
            for answer in self.store.answers():
                cast(StoreMachine, self.machine).answered(answer, now)
                taken = True
        return taken

    def _produce(self, producer: Producer, ready: Collection[int], clock: Clock) -> None:
        """Let the producer submit. Last in a step: it may take long, and timeouts are decided right after reading."""
        now = clock.now()
        if self.producer_fd in ready or _is_due(producer, now):
            producer.wake(now)
            self._stalled_steps = 0
            self._finish(acted=self._act(clock.now(), clock))

    def close(self) -> None:
        """Close the transport, and the journal, its notifier and the store if there are any."""
        with ExitStack() as closing:
            for each in (self.store, self.journal, self.notifier, self.transport):
                if each is not None:
                    closing.callback(each.close)

    def _read_journal(self, now: Instant) -> None:
        """Serve one fetch, once all other effects of this step are carried out.

        Only then does the journal hold what the machine believes it holds. At most one per step: catching up must not
        make a token late.
        """
        fetch, machine = self._fetches.popleft(), cast(JournalMachine, self.machine)
        if self.history is None:
            return
        if isinstance(fetch, Fetch):
            machine.fetched(fetch.ticket, _read_history(self.history, fetch), now)
            return
        extract = self.history.chunks(fetch)
        if extract is None:
            self._fetches.append(fetch)
        else:
            machine.fetched_chunks(fetch.ticket, extract, now)

    def _read_control(self, ready: Collection[int], clock: Clock) -> list[bytes]:
        """The control datagrams of the ready sockets, after the delayed ones that are due."""
        control = [] if self.link_faults is None else self.link_faults.due(clock.now())
        for each in self.transport.control:
            # The copy of a multicast of this step is there already. Left alone, it would end the next wait.
            if each.fd in ready or (self._multicast and each.loops_back):
                control += self._read(each, clock)[0]
        return control

    def _take_data(self, ready: Collection[int] | None, clock: Clock, *, until_empty: bool) -> bool:
        """Hand the datagrams of the ready data sockets, or of all, to the machine; whether there were any."""
        size, calls, began_at = 0, 0, clock.now()
        for each in self.transport.data:
            if ready is None or each.fd in ready:
                calls -= each.receive_calls
                for _ in range(SLICES_MAX):
                    datagrams, more = self._read(each, clock, until_empty=until_empty)
                    if datagrams:
                        self.machine.receive_all(datagrams, clock.now())
                        size += sum(map(len, datagrams))
                    if not more:
                        break
                    if self._releasing is None:
                        self._do_due(clock)
                    else:
                        self._keep_instants(self._releasing, clock)
                calls += each.receive_calls
        if size:
            self._read_rate.note(size, clock.now() - began_at, overhead=calls * KERNEL_OVERHEAD)
        return size > 0

    def _read(self, source: UdpSocket, clock: Clock, *, until_empty: bool = False) -> tuple[list[bytes], bool]:
        """One slice of the datagrams of a socket, and whether more may wait there."""
        if self.link_faults is None and not self.other_versions.traces:
            datagrams = source.receive(SLICE_MAX, until_empty=until_empty)
            if datagrams and datagrams[0][:2] != HEAD:
                self.other_versions.look(datagrams, (), 0)
            return datagrams, len(datagrams) >= SLICE_MAX
        senders: list[Address] = []
        datagrams = source.receive(SLICE_MAX, senders, until_empty=until_empty)
        if datagrams and (self.other_versions.traces or datagrams[0][:2] != HEAD):
            for notice in self.other_versions.look(datagrams, senders, clock.now()):
                self._carry_out(Notice(notice), clock.now())
        if self.link_faults is None:
            return datagrams, len(datagrams) >= SLICE_MAX
        nodes = [self.transport.node_at(sender) for sender in senders]
        return self.link_faults.admit(datagrams, nodes, clock.now()), len(datagrams) >= SLICE_MAX

    def _act(self, now: Instant, clock: Clock) -> bool:
        """Drain until the machine has no more effects (a consumer may give it new work); whether there were any."""
        acted = fetched = self._undrained = False
        for _ in range(DRAINS_MAX):
            effects = self.machine.drain()
            if not effects and self._fetches and not fetched:
                fetched = True
                self._read_journal(now)
                effects = self.machine.drain()
            if not effects:
                return acted
            acted = True
            for effect in effects:
                self._called |= not isinstance(effect, _SENDING)
                if isinstance(effect, Deliver):  # tested first: its timing is observable
                    self._hand_over(effect, clock.now())
                else:
                    self._carry_out(effect, now)
        self._undrained = True  # the rest waits for the next step, so that sockets and timers are served
        return True

    def _carry_out(self, effect: Effect, now: Instant) -> None:
        match effect:
            case Multicast():
                self._multicast = True
                self.transport.multicast(effect.channel, effect.datagrams)
            case Send():
                self.transport.send(effect.to, effect.datagrams)
            case JoinChannels():
                self.transport.listen(effect.channels)
            case QueryStore():
                assert self.store is not None, "a machine without a store queries it"
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
        """Effects on the journal."""
        match effect:
            case Append():
                if self.journal is not None:
                    self.journal.append(effect.ordered, now)
            case AppendFormation():
                if self.journal is not None:
                    self.journal.append_formation(effect.change, now)
                if self.on_formation is not None:
                    self.on_formation(effect.change)
            case Fetch() | FetchChunks():
                self._fetches.append(effect)
            case Truncate():
                assert self.journal is not None, "a machine without a journal truncates it"
                cast(JournalMachine, self.machine).recovered(self.journal.truncate_after(effect.token), now)

    def _hand_over(self, delivery: Deliver, released_at: Instant) -> None:
        """The application first, then the mark: a crash between the two delivers twice rather than never."""
        self._handed_over = True
        delivery.release = stamped(delivery.release, released_at)
        if self.consumer is not None:
            self.consumer(delivery)
        if self.journal is not None:
            self.journal.release(delivery.release, released_at)

    def _check_progress(self, *, stalled: bool) -> None:
        self._stalled_steps = self._stalled_steps + 1 if stalled else 0
        assert self._stalled_steps < STALLED_STEPS_MAX, (
            f"{type(self.machine).__name__} asks to be woken at {self.machine.deadline()} and does nothing"
        )


def stamped(release: Release, released_at: Instant) -> Release:
    """The release with its real instant: the machine only knows when its step began, and a delay since makes it late.

    The machine decides at a reading of the same clock, which never goes back, so nothing is handed over early.
    """
    commit_at = release.commit_at
    assert released_at >= commit_at, f"token {release.token} is handed over {commit_at - released_at} ns early"
    return Release(
        token=release.token,
        sequence=release.sequence,
        count=release.count,
        commit_at=commit_at,
        released_at=released_at,
        late=release.late or released_at + release.clock_behind - commit_at > LATE_AFTER,
        clock_bound=release.clock_bound,
        clock_behind=release.clock_behind,
    )


def _read_history(history: HistoryInterface, fetch: Fetch) -> list[bytes]:
    """Formation 0: the reader holds no formation yet, so everything follows. None: the token alone decides."""
    token = 0 if fetch.formation == 0 else fetch.token
    return history.after(token, fetch.size_max, formation=fetch.formation or 0)


class _Timed(Protocol):
    def deadline(self) -> Instant | None: ...


def _is_due(timed: _Timed, now: Instant) -> bool:
    wanted_at = timed.deadline()
    return wanted_at is not None and wanted_at <= now
