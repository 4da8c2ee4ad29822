"""A deployment as a value, and what each step makes of it.

An exploration chooses the steps: what is lost, delayed, delivered, crashed and restarted, and how much time passes.
Between two choices everything is deterministic. Time advances by ticks. At each tick every node whose deadline has
passed is woken, and what the nodes send arrives at once: all of the ring, and the membership messages of links that
are not delayed. On a delayed link membership messages wait until a step delivers them, in any order, or loses them.

A node that is woken at the next tick acts late by up to a tick, as a real one does, and so all instants are multiples
of it. That makes histories meet again: two orders of the same events lead to one state.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple, cast

from fairtape.core.effects import (
    Append,
    AppendFormation,
    Channel,
    Deliver,
    Effect,
    Fetch,
    FetchChunks,
    Multicast,
    Notice,
    QueryStore,
    Send,
    Truncate,
)
from fairtape.core.formation_log import Leadership, LogEntry, Recorded, StoreRequest, Unavailable
from fairtape.core.instants import MILLISECOND, NEVER, Instant
from fairtape.core.machine import Machine
from fairtape.core.timing import Timing
from fairtape.nodes.coordinator.server import Reformer, ReformerConfig
from fairtape.nodes.site import Site, SiteConfig
from fairtape.nodes.source import Source
from fairtape.ring.membership.layout import decode_formation
from fairtape.ring.membership.topology import Excess, LoopTopology, Topology
from fairtape.simulation import explored_history as checks
from fairtape.simulation.explored_history import History, Promise
from fairtape.simulation.machine_states import DOWN, JournalState, MachineInput, MachineStates, NamedSeal
from fairtape.simulation.simulated_store import MemoryFormationStore
from fairtape.simulation.world import EPOCH, Storm
from fairtape.wire.frames import Kind, NodeId
from fairtape.wire.membership import Grant, Install, decode_membership
from fairtape.wire.seals import Keys

TICK: Final = 10 * MILLISECOND
UNIT_TICKS: Final = 5  # of one unit of time: half of a leader's lease, a third of a site's
LEADER_LEASE: Final = 100 * MILLISECOND
STORE_TIMEOUT: Final = 70 * MILLISECOND  # after which a server no longer waits for an answer of the store
TIMING: Final = Timing(
    retry_period=10 * MILLISECOND,
    retries_max=14,  # a lease is 145 ms: longer than a planned change takes
    token_period=40 * MILLISECOND,
    commit_delay=60 * MILLISECOND,
    clock_error_max=1 * MILLISECOND,
)
OPERATOR: Final = 999
SOURCE: Final = 101
FIRST_SERVER: Final = 11
WAITING_MAX: Final = 6  # membership messages that wait on one delayed link; of more, the oldest are lost
REPORTS_MAX: Final = 2  # of one site to one server, on a delayed link: the first, and the latest
TIME_UNITS: Final = (1, 4)  # that pass in one step; within four a standby server leads, or a silent member is replaced
EVENTS_MAX: Final = 20_000  # of one step; more are machines that answer one another without end


class StepKind(Enum):
    """What an exploration can do to a deployment."""

    TIME = "time"  # this many units of time pass
    CRASH = "crash"
    RESTART = "restart"  # 0: with its journal; see `JournalLoss`
    DELAY = "delay"  # the membership messages to a site wait from now on
    DELIVER = "deliver"  # one that waits
    ARRIVE = "arrive"  # all that wait, and those that follow
    LOSE = "lose"  # all that wait; those that follow arrive
    DELAY_REPORTS = "delay-reports"  # those of a site wait from now on
    DELIVER_REPORT = "deliver-report"
    ARRIVE_REPORTS = "arrive-reports"
    LOSE_REPORTS = "lose-reports"
    CUT = "cut"  # a site from the ring: it receives nothing from the other sites and sources, and they nothing from it
    REJOIN = "rejoin"
    LOSE_ANSWER = "lose-answer"  # of the store, to the next request of a server, which it carries out
    CUT_STORE = "cut-store"  # a server from the store
    REJOIN_STORE = "rejoin-store"


STEP_TEXTS: Final = MappingProxyType(
    {
        StepKind.CRASH: "node {} crashes",
        StepKind.DELAY: "the membership messages to site {} wait from now on",
        StepKind.ARRIVE: "all that waits for site {} arrives, and what follows",
        StepKind.LOSE: "all that waits for site {} is lost; what follows arrives",
        StepKind.DELAY_REPORTS: "the reports of site {} wait from now on",
        StepKind.ARRIVE_REPORTS: "the reports of site {} that wait arrive, and those that follow",
        StepKind.LOSE_REPORTS: "the reports of site {} that wait are lost; those that follow arrive",
        StepKind.CUT: "site {} is cut from the ring",
        StepKind.REJOIN: "site {} is connected to the ring again",
        StepKind.LOSE_ANSWER: "the store will carry out the next request of server {}, and its answer will be lost",
        StepKind.CUT_STORE: "server {} is cut from the store",
        StepKind.REJOIN_STORE: "server {} is connected to the store again",
    }
)

FAULTS: Final = frozenset(
    {StepKind.CRASH, StepKind.DELAY, StepKind.DELAY_REPORTS, StepKind.CUT, StepKind.LOSE_ANSWER, StepKind.CUT_STORE}
)
"""The steps that a limit of faults counts. The others are what may follow from these."""


class JournalLoss(Enum):
    """The journal with which a site restarts."""

    NONE = 0
    EMPTIED = 1  # another one, which is empty
    ROLLED_BACK = 2  # without its last messages


RESTART_TEXTS: Final = MappingProxyType(
    {
        JournalLoss.NONE: "",
        JournalLoss.EMPTIED: " with an empty journal",
        JournalLoss.ROLLED_BACK: " without the last messages of its journal",
    }
)


class Step(NamedTuple):
    """One choice. It reads `deliver-3.1`: the second message that waits for site 3."""

    kind: StepKind
    node: NodeId = 0
    detail: int = 0

    def __str__(self) -> str:
        if self.kind is StepKind.TIME:
            return f"time-{self.detail}"
        return f"{self.kind.value}-{self.node}" + (f".{self.detail}" if self.detail else "")

    @classmethod
    def parse(cls, text: str) -> "Step":
        """The step that is written like this. Raises `ValueError` if there is none."""
        kind, _, rest = text.rpartition("-")
        node, _, detail = rest.partition(".")
        if kind == StepKind.TIME.value:
            return cls(StepKind.TIME, detail=int(node))
        return cls(StepKind(kind), int(node), int(detail or 0))


@dataclass(frozen=True, slots=True)
class Link:
    """The membership messages in one direction between a site and the servers."""

    delayed: bool = False
    waiting: tuple[tuple[NodeId, NodeId, bytes], ...] = ()  # sender, receiver, datagram


class StoreState(NamedTuple):
    """The formation store as a value."""

    leadership: Leadership | None = None
    log: tuple[LogEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Server:
    """How a reformation server reaches the store."""

    loses_answer: bool = False
    cut: bool = False
    answer: Unavailable | None = None  # that it waits for
    answer_at: Instant = NEVER


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """Everything that decides what can follow, and the history that is checked."""

    now: Instant
    machines: tuple[int, ...]  # by position in `Deployment.nodes`
    journals: tuple[JournalState, ...]  # by site
    orders: tuple[Link, ...]  # to each site
    reports: tuple[Link, ...]  # of each site
    cut: tuple[bool, ...]  # each site from the ring
    servers: tuple[Server, ...]
    store: StoreState
    crashed_at: tuple[Instant, ...]  # of each node
    incarnations: int  # of the source
    history: History

    def key(self, numbers: dict[object, int]) -> tuple[object, ...]:
        """All of this in short: parts that are equal have one number."""
        parts = (self.journals, self.orders, self.reports, self.cut, self.servers, self.store)
        return (
            self.now,
            self.machines,
            tuple(numbers.setdefault(part, len(numbers)) for part in parts),
            tuple(at == self.now for at in self.crashed_at),
            self.history.digest,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The nodes of an explored deployment, and what it promises."""

    sites: int = 4
    servers: int = 2
    resilience: int = 1
    excess: Excess = Excess.HALT


class Deployment:
    """What does not change: the nodes and their configuration. It makes states, and applies steps to them."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.trace: Callable[[Instant, NodeId, str], None] | None = None  # what happens, in words
        self.sites: tuple[NodeId, ...] = tuple(range(1, size.sites + 1))
        self.servers: tuple[NodeId, ...] = tuple(range(FIRST_SERVER, FIRST_SERVER + size.servers))
        self.nodes = (*self.sites, *self.servers, SOURCE)
        self.positions: Mapping[NodeId, int] = {node: position for position, node in enumerate(self.nodes)}
        self.states = MachineStates()
        self.timing = TIMING.with_resilience(size.resilience - 1)
        self.topology = Topology(
            loops=(LoopTopology(number=0, tour=self.sites, timing=self.timing),),
            resilience=size.resilience,
            excess=size.excess,
        )
        self.promise = Promise(size.resilience, halts=size.excess is Excess.HALT)
        every = (*self.sites, *self.servers, OPERATOR)
        self.keys = replace(Keys.from_secret(b"exploration", every, (SOURCE,)), seal=NamedSeal)

    def empty(self) -> DeploymentState:
        """All nodes down, and nothing recorded."""
        sites, servers, nodes = len(self.sites), len(self.servers), len(self.nodes)
        return DeploymentState(
            now=EPOCH,
            machines=(DOWN,) * nodes,
            journals=tuple(JournalState(site) for site in self.sites),
            orders=(Link(),) * sites,
            reports=(Link(),) * sites,
            cut=(False,) * sites,
            servers=(Server(),) * servers,
            store=StoreState(),
            crashed_at=(0,) * nodes,
            incarnations=0,
            history=History(),
        )

    def apply(self, state: DeploymentState, step: Step) -> DeploymentState:
        """The state after a step. Raises `Violation` if a guarantee is broken on the way."""
        return StateChange(self, state).take(step)

    def tick(self, state: DeploymentState) -> DeploymentState:
        """The state one tick later."""
        return StateChange(self, state).tick()

    def new_machine(self, node: NodeId, born_at: Instant, journal: JournalState | None, incarnation: int) -> Machine:
        if journal is not None:
            config = SiteConfig(me=node, reformers=self.servers, timing=self.timing)
            return Site(config, keys=self.keys, born_at=born_at, recovered=journal.recovered())
        if node in self.servers:
            server = ReformerConfig(me=node, operator=OPERATOR, leader_lease=LEADER_LEASE)
            return Reformer(server, self.topology, keys=self.keys, born_at=born_at)
        return Source(
            me=node,
            keys=self.keys.for_source(node),
            timing=self.timing,
            resilience=self.size.resilience,
            incarnation=incarnation,
        )


class StateChange:
    """One step of a deployment: a state that is being changed."""

    def __init__(self, deployment: Deployment, state: DeploymentState) -> None:
        self._deployment = deployment
        self._states = deployment.states
        self._before = state
        self._now = state.now
        self._machines = list(state.machines)
        self._journals = list(state.journals)
        self._orders = list(state.orders)
        self._reports = list(state.reports)
        self._cut = list(state.cut)
        self._servers = list(state.servers)
        self._store = MemoryFormationStore()
        self._store.leadership, self._store.log = state.store.leadership, list(state.store.log)
        self._crashed_at = list(state.crashed_at)
        self._incarnations = state.incarnations
        self._history = state.history.later()
        self._queue: deque[tuple[NodeId, MachineInput | Fetch | FetchChunks]] = deque()
        self._events = 0

    def take(self, step: Step) -> DeploymentState:
        if step.kind is StepKind.TIME:
            for _ in range(step.detail * UNIT_TICKS):
                self._tick()
        else:
            self._act(step)
            self._settle()
        return self._state()

    def tick(self) -> DeploymentState:
        self._tick()
        return self._state()

    def _state(self) -> DeploymentState:
        return DeploymentState(
            now=self._now,
            machines=tuple(self._machines),
            journals=tuple(self._journals),
            orders=tuple(self._orders),
            reports=tuple(self._reports),
            cut=tuple(self._cut),
            servers=tuple(self._servers),
            store=StoreState(self._store.leadership, tuple(self._store.log)),
            crashed_at=tuple(self._crashed_at),
            incarnations=self._incarnations,
            history=self._history,
        )

    # Steps.

    def _act(self, step: Step) -> None:
        site = step.node - 1
        match step.kind:
            case StepKind.CRASH:
                self._crash(step.node)
            case StepKind.RESTART:
                self._restart(step.node, JournalLoss(step.detail))
            case StepKind.DELAY:
                self._orders[site] = Link(delayed=True)
            case StepKind.DELAY_REPORTS:
                self._reports[site] = Link(delayed=True)
            case StepKind.DELIVER | StepKind.ARRIVE | StepKind.LOSE:
                self._orders[site] = self._flow(self._orders[site], step)
            case StepKind.DELIVER_REPORT | StepKind.ARRIVE_REPORTS | StepKind.LOSE_REPORTS:
                self._reports[site] = self._flow(self._reports[site], step)
            case StepKind.CUT | StepKind.REJOIN:
                self._cut[site] = step.kind is StepKind.CUT
            case _:
                self._reach_store(step)

    def _flow(self, link: Link, step: Step) -> Link:
        """Messages that have waited arrive, or are lost."""
        if step.kind in (StepKind.DELIVER, StepKind.DELIVER_REPORT):
            self._arrive(link.waiting[step.detail])
            return Link(link.delayed, link.waiting[: step.detail] + link.waiting[step.detail + 1 :])
        if step.kind in (StepKind.ARRIVE, StepKind.ARRIVE_REPORTS):
            for message in link.waiting:
                self._arrive(message)
        return Link()

    def _arrive(self, message: tuple[NodeId, NodeId, bytes]) -> None:
        _, receiver, datagram = message
        self._queue.append((receiver, ("receive", datagram)))

    def _reach_store(self, step: Step) -> None:
        position = self._deployment.servers.index(step.node)
        server = self._servers[position]
        match step.kind:
            case StepKind.LOSE_ANSWER:
                server = replace(server, loses_answer=True)
            case StepKind.CUT_STORE:
                server = replace(server, cut=True)
            case _:
                server = replace(server, cut=False)
        self._servers[position] = server

    def _crash(self, node: NodeId) -> None:
        position = self._deployment.positions[node]
        self._machines[position] = DOWN
        self._crashed_at[position] = self._now
        if node in self._deployment.servers:
            place = self._deployment.servers.index(node)
            self._servers[place] = Server(cut=self._servers[place].cut)

    def _restart(self, node: NodeId, loss: JournalLoss) -> None:
        deployment, journal = self._deployment, None
        if node in deployment.sites:
            journal = self._journals[node - 1]
            if loss is JournalLoss.EMPTIED:
                journal = JournalState(journal.identity + len(deployment.nodes))
            elif loss is JournalLoss.ROLLED_BACK:
                journal = journal.truncated(journal.last_token() - 1)
            self._journals[node - 1] = journal
        elif node == SOURCE:
            self._incarnations += 1
        machine = deployment.new_machine(node, self._now, journal, self._incarnations)
        started = self._states.add(node, machine, deployment.keys, self._now)
        self._machines[deployment.positions[node]] = started.state
        self._carry_out(node, started.effects)

    # Time.

    def _tick(self) -> None:
        self._now += TICK
        if (self._now - EPOCH) % (UNIT_TICKS * TICK) == TICK:
            self._queue.append((SOURCE, ("publish", str((self._now - EPOCH) // TICK).encode())))
        for position, server in enumerate(self._servers):
            if server.answer_at <= self._now:
                assert server.answer is not None
                self._queue.append((self._deployment.servers[position], ("answered", server.answer)))
                self._servers[position] = replace(server, answer=None, answer_at=NEVER)
        self._settle()

    def _settle(self) -> None:
        """Do everything that happens at this instant."""
        states, machines = self._states, self._machines
        while True:
            while self._queue:
                self._give(*self._queue.popleft())
            due = next((p for p, state in enumerate(machines) if states.deadline(state) <= self._now), None)
            if due is None:
                break
            self._give(self._deployment.nodes[due], ("wake", None))
        for position, state in enumerate(machines):
            machines[position] = states.settle(state, self._now)

    def _leads(self, server: NodeId) -> bool:
        state = self._machines[self._deployment.positions[server]]
        return state != DOWN and self._states.leads(state, self._now)

    def _give(self, node: NodeId, machine_input: MachineInput | Fetch | FetchChunks) -> None:
        position = self._deployment.positions[node]
        state = self._machines[position]
        if state == DOWN:
            return
        self._events += 1
        if self._events > EVENTS_MAX:
            raise Storm(f"{EVENTS_MAX} events in one step")
        if isinstance(machine_input, Fetch):
            fetch, journal = machine_input, self._journals[node - 1].journal()
            entries = journal.after(fetch.token, fetch.formation, fetch.size_max)
            machine_input = "fetched", (fetch.ticket, tuple(entries))
        elif isinstance(machine_input, FetchChunks):
            chunks, *read = self._journals[node - 1].journal().chunks(machine_input)
            machine_input = "fetched_chunks", (machine_input.ticket, tuple(chunks), *read)
        if self._deployment.trace is not None and machine_input[0] == "receive":
            self._trace_datagram(node, cast(bytes, machine_input[1]))
        transition = self._states.apply(state, machine_input, self._now)
        self._machines[position] = transition.state
        if node in self._deployment.servers and self._leads(node):
            checks.leading([server for server in self._deployment.servers if self._leads(server)], self._now)
        self._carry_out(node, transition.effects)

    # Effects.

    def _carry_out(self, node: NodeId, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Multicast():
                    self._multicast(node, effect)
                case Send():
                    for datagram in effect.datagrams:
                        self._send(node, effect.to, datagram)
                case QueryStore():
                    self._ask_store(node, effect.question)
                case Notice():
                    self._trace(node, effect.text)
                case Append() | AppendFormation() | Deliver() | Fetch() | FetchChunks() | Truncate():
                    self._write_journal(node, effect)

    def _trace(self, node: NodeId, text: str) -> None:
        if self._deployment.trace is not None:
            self._deployment.trace(self._now, node, text)

    def _trace_datagram(self, node: NodeId, datagram: bytes) -> None:
        if datagram[2] in (Kind.FENCE, Kind.INSTALL):
            self._trace(node, f"receives {describe_order(datagram)}")

    def _multicast(self, node: NodeId, effect: Multicast) -> None:
        if node in self._deployment.sites and self._cut[node - 1]:
            for datagram in effect.datagrams:
                self._check_sent(node, datagram)
            return
        receivers = [site for site in self._deployment.sites if site != node and not self._cut[site - 1]]
        if effect.channel == Channel.CONTROL:
            receivers.append(SOURCE)
        for datagram in effect.datagrams:
            self._check_sent(node, datagram)
            self._queue.extend((receiver, ("receive", datagram)) for receiver in receivers)

    def _check_sent(self, node: NodeId, datagram: bytes) -> None:
        if datagram[2] == Kind.ACK:
            checks.ack_sent(self._history, node, datagram, self._now)

    def _send(self, node: NodeId, to: NodeId, datagram: bytes) -> None:
        sites, servers = self._deployment.sites, self._deployment.servers
        if node in servers:
            self._send_order(node, to, datagram)
        elif to in servers:
            self._send_report(node, to, datagram)
        elif not any(each in sites and self._cut[each - 1] for each in (node, to)):
            self._queue.append((to, ("receive", datagram)))

    def _send_order(self, server: NodeId, site: NodeId, datagram: bytes) -> None:
        message = decode_membership(datagram)
        if isinstance(message, Install):
            checks.installed(self._history, server, message, self._now)
        link = self._orders[site - 1]
        if not link.delayed:
            self._queue.append((site, ("receive", datagram)))
            return
        waiting = link.waiting
        if isinstance(message, Grant):  # an earlier one grants less
            waiting = tuple(each for each in waiting if each[0] != server or each[2][2] != Kind.GRANT)
        if (server, site, datagram) not in waiting:
            waiting = (*waiting, (server, site, datagram))[-WAITING_MAX:]
        self._orders[site - 1] = Link(delayed=True, waiting=waiting)

    def _send_report(self, site: NodeId, server: NodeId, datagram: bytes) -> None:
        link = self._reports[site - 1]
        if not link.delayed:
            if self._leads(server):  # others ignore it
                self._queue.append((server, ("receive", datagram)))
            return
        ours = [each for each in link.waiting if each[1] == server]
        waiting = tuple(each for each in link.waiting if len(ours) < REPORTS_MAX or each is not ours[-1])
        self._reports[site - 1] = Link(delayed=True, waiting=(*waiting, (site, server, datagram)))

    def _write_journal(self, node: NodeId, effect: Effect) -> None:
        journal = self._journals[node - 1]
        match effect:
            case Append():
                journal = journal.appended(effect.ordered)
                checks.appended(self._history, node, effect.ordered, self._now)
            case AppendFormation():
                journal = journal.appended(effect.change)
            case Deliver():
                self._trace(node, f"releases number {effect.release.sequence} at token {effect.release.token}")
                journal = journal.released(effect.release)
                checks.delivered(self._history, node, effect.ordered, self._now)
            case Fetch() | FetchChunks():
                self._queue.append((node, effect))
            case Truncate():
                checks.truncated(self._history, node, effect.token, journal.released_through, self._now)
                journal = journal.truncated(effect.token)
                self._queue.append((node, ("recovered", journal)))
        self._journals[node - 1] = journal

    # The store.

    def _ask_store(self, node: NodeId, question: StoreRequest) -> None:
        position = self._deployment.servers.index(node)
        server = self._servers[position]
        lost = server.cut or server.loses_answer
        if not server.cut:
            answer = self._store.answer(question)
            if isinstance(answer, Recorded):
                checks.recorded(self._history, answer.entries, self._deployment.promise, self._now)
            if not lost:
                self._queue.append((node, ("answered", answer)))
        if lost:
            self._servers[position] = Server(
                cut=server.cut, answer=Unavailable(question), answer_at=self._now + STORE_TIMEOUT
            )


def describe_order(datagram: bytes) -> str:
    """What a server tells a site."""
    message = decode_membership(datagram)
    text = f"from server {message.sender}"
    if not isinstance(message, Install):
        return f"a {type(message).__name__.lower()} of formation {message.formation} {text}"
    formation = decode_formation(message.layout)
    which = "formation" if message.final else "the proposal of formation"
    return f"{which} {formation.number} from token {formation.first_token}, members {formation.members}, {text}"


def describe_step(state: DeploymentState, step: Step) -> str:
    """A step in words, before it is taken."""
    node, link = step.node, None
    if step.kind in (StepKind.DELIVER, StepKind.DELIVER_REPORT):
        link = (state.orders if step.kind is StepKind.DELIVER else state.reports)[node - 1]
    match step.kind:
        case StepKind.TIME:
            return f"{step.detail * UNIT_TICKS * TICK // MILLISECOND} ms pass"
        case StepKind.RESTART:
            return f"node {node} restarts" + RESTART_TEXTS[JournalLoss(step.detail)]
        case StepKind.DELIVER if link is not None:
            return f"site {node} receives {describe_order(link.waiting[step.detail][2])}, which has waited"
        case StepKind.DELIVER_REPORT if link is not None:
            return f"server {link.waiting[step.detail][1]} receives a report of site {node}, which has waited"
        case _:
            return STEP_TEXTS[step.kind].format(node)


def possible_steps(deployment: Deployment, state: DeploymentState, faults: int) -> Iterator[tuple[Step, int]]:
    """The steps that can be taken in a state with at most this many faults, and the faults that each costs."""
    for units in TIME_UNITS:
        yield Step(StepKind.TIME, detail=units), 0
    for site in deployment.sites:
        yield from _steps_of_link(state, site)
        if state.cut[site - 1]:
            yield Step(StepKind.REJOIN, site), 0
    for position, server in enumerate(state.servers):
        if server.cut:
            yield Step(StepKind.REJOIN_STORE, deployment.servers[position]), 0
    for node, machine, crashed_at in zip(deployment.nodes, state.machines, state.crashed_at, strict=True):
        if machine == DOWN and crashed_at < state.now:
            losses = JournalLoss if node in deployment.sites and faults else (JournalLoss.NONE,)
            for loss in losses:
                yield Step(StepKind.RESTART, node, loss.value), int(loss is not JournalLoss.NONE)
    if faults:
        yield from ((step, 1) for step in _possible_faults(deployment, state))


def _steps_of_link(state: DeploymentState, site: NodeId) -> Iterator[tuple[Step, int]]:
    kinds = (
        (state.orders[site - 1], StepKind.DELIVER, StepKind.ARRIVE, StepKind.LOSE),
        (state.reports[site - 1], StepKind.DELIVER_REPORT, StepKind.ARRIVE_REPORTS, StepKind.LOSE_REPORTS),
    )
    for link, deliver, arrive, lose in kinds:
        for place in range(len(link.waiting)):
            yield Step(deliver, site, place), 0
        if link.delayed:
            yield Step(lose, site), 0
        if link.waiting:
            yield Step(arrive, site), 0


def _possible_faults(deployment: Deployment, state: DeploymentState) -> Iterator[Step]:
    for node, machine in zip(deployment.nodes, state.machines, strict=True):
        if machine != DOWN:
            yield Step(StepKind.CRASH, node)
    for site in deployment.sites:
        place = site - 1
        kinds = {
            StepKind.DELAY: state.orders[place].delayed,
            StepKind.DELAY_REPORTS: state.reports[place].delayed,
            StepKind.CUT: state.cut[place],
        }
        yield from (Step(kind, site) for kind, present in kinds.items() if not present)
    for node, server in zip(deployment.servers, state.servers, strict=True):
        kinds = {StepKind.LOSE_ANSWER: server.loses_answer, StepKind.CUT_STORE: server.cut}
        if state.machines[deployment.positions[node]] != DOWN:
            yield from (Step(kind, node) for kind, present in kinds.items() if not present)
