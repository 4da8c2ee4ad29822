"""Retired sites stay retired, whichever reformation server leads and however the last one ended."""

from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairtape.core.effects import QueryStore
from fairtape.core.formation_log import LogEntry, Recall, Recalled, Record, StoreRequest, Unavailable
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.nodes.coordinator.primary_loop import FIRST_FORMATION_DELAY
from fairtape.nodes.coordinator.server import RETIRED_SITES_LOG, Reformer, ReformerConfig
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.ring.membership.topology import LoopTopology, Topology
from fairtape.storage.formation_stores import FormationStore, open_store
from fairtape.wire.membership import MembershipMessage, MembershipState, OperatorCommand, OperatorVerb
from fairtape.wire.seals import Keys
from loopback.commands import PATIENCE
from loopback.etcds import running_etcd
from unit.ring.loop_values import TIMING, report_of

SITES = (1, 2, 3, 4)
OPERATOR = 999
LEASE = 300 * MILLISECOND
STEP = 20 * MILLISECOND
KEYS = Keys.from_secret(b"servers", (*SITES, 101, OPERATOR), ())
TOPOLOGY = Topology(loops=(LoopTopology(number=0, tour=SITES, timing=TIMING),))
STORES = count()

Commands = list[tuple[OperatorVerb, int] | None]  # None: the server is killed, and a new one opens the store

commands: st.SearchStrategy[Commands] = st.lists(
    st.none() | st.tuples(st.sampled_from([OperatorVerb.RETIRE, OperatorVerb.ADMIT]), st.sampled_from(SITES)),
    max_size=10,
)


class Servers:
    """One server after another over the same store, in simulated time."""

    def __init__(self, open_again: Callable[[], FormationStore]) -> None:
        self._open = open_again
        self.now: Instant = 100 * SECOND
        self.lossy = False  # a record is written, and its answer is lost
        self.store = open_again()
        self.server = self._new()

    def _new(self) -> Reformer:
        config = ReformerConfig(me=101, operator=OPERATOR, leader_lease=LEASE)
        return Reformer(config, TOPOLOGY, keys=KEYS, born_at=self.now)

    def close(self) -> None:
        self.store.close()

    def restart(self) -> None:
        """Start a new process: only the store is left of the old one."""
        self.store.close()
        self.store = self._open()
        self.server = self._new()

    def lead(self) -> None:
        """Wait until the server leads."""
        for _ in range(200):
            if self.server.leads(self.now):
                return
            self.wait(STEP)
        raise AssertionError("no server leads")

    def wait(self, period: int) -> None:
        ends_at = self.now + period
        while self.now < ends_at:
            self.now += STEP
            self.server.wake(self.now)
            self._turn()

    def receive(self, message: MembershipMessage) -> None:
        sender = MessageAuthenticator(me=message.sender, keys=KEYS, peers=(), first_serial=self.now)
        self.server.receive(sender.for_membership(message), self.now)
        self._turn()

    def _turn(self) -> None:
        while effects := self.server.drain():
            for effect in effects:
                if isinstance(effect, QueryStore):
                    self._answer(effect.question)

    def _answer(self, question: StoreRequest) -> None:
        answer = self.store.answer(question)
        if self.lossy and isinstance(question, Record):
            self.lossy, answer = False, Unavailable(question)
        self.server.answered(answer, self.now)

    def register(self) -> LogEntry | None:
        """The last record of retired sites."""
        recalled = self.store.answer(Recall())
        assert isinstance(recalled, Recalled)
        return next((entry for entry in recalled.latest if entry.loop == RETIRED_SITES_LOG), None)


def check_retired(drawn: Commands, open_store: Callable[[], FormationStore], *, lossy: bool) -> None:
    """After any commands and restarts, the leader leaves out exactly the sites that the operator has retired."""
    with closing(Servers(open_store)) as servers:
        servers.lead()
        retired: set[int] = set()
        for command in drawn:
            if command is None:
                before = servers.register()
                servers.restart()
                servers.lead()
                assert servers.register() == before  # a restart records nothing
            else:
                verb, site = command
                (retired.add if verb is OperatorVerb.RETIRE else retired.discard)(site)
                servers.lossy = lossy
                servers.receive(OperatorCommand(0, 0, OPERATOR, verb, site))
                servers.lead()
                servers.wait(LEASE)
                servers.lossy = False
            assert servers.server.primary.retired == retired
        servers.restart()
        servers.lead()
        for site in SITES:
            servers.receive(
                report_of(site, formation=0, membership_state=MembershipState.NEWBORN, complete_through=0, sequence=1)
            )
        servers.wait(FIRST_FORMATION_DELAY + STEP)  # it waits as long for absent sites, and so for retired ones
        formation = servers.server.primary.formation
        assert set(formation.members if formation is not None else ()) == set(SITES) - retired


@given(drawn=commands, lossy=st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_restart_changes_nothing_about_who_is_retired_in_sqlite(drawn: Commands, lossy: bool, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / f'{next(STORES)}.db'}"
    check_retired(drawn, lambda: open_store(url, timeout=PATIENCE), lossy=lossy)


def test_a_restart_changes_nothing_about_who_is_retired_in_etcd(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as etcd:

        @given(drawn=commands, lossy=st.booleans())
        @settings(max_examples=10, deadline=None)
        def check(drawn: Commands, lossy: bool) -> None:
            url = f"etcd:http://{etcd.endpoint}/{next(STORES)}"
            check_retired(drawn, lambda: open_store(url, timeout=PATIENCE), lossy=lossy)

        check()
