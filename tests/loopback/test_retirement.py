"""Who was retired on purpose stays retired, whichever reformation server leads and however the last one ended."""

from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairtape.core.effects import QueryStore
from fairtape.core.formation_log import LogEntry, Recall, Recalled, Record, StoreRequest, Unavailable
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.nodes.coordinator.primary_loop import FOUNDING_DELAY
from fairtape.nodes.coordinator.server import REGISTER, Reformer, ReformerConfig
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.ring.membership.topology import LoopTopology, Topology
from fairtape.storage.formation_stores import FormationStore, open_store
from fairtape.wire.membership import MembershipMessage, MembershipState, OperatorCommand, OperatorVerb
from fairtape.wire.seals import Keys
from loopback.commands import PATIENCE
from loopback.etcds import running_etcd
from unit.loop_values import TIMING, standing_of

SITES = (1, 2, 3, 4)
OPERATOR = 999
LEASE = 300 * MILLISECOND
STEP = 20 * MILLISECOND
KEYS = Keys.from_secret(b"servers", (*SITES, 101, OPERATOR), ())
CHARTER = Topology(loops=(LoopTopology(number=0, tour=SITES, timing=TIMING),))
STORES = count()

Orders = list[tuple[OperatorVerb, int] | None]  # None: the server ends as by kill -9, and a new one opens the store

orders: st.SearchStrategy[Orders] = st.lists(
    st.none() | st.tuples(st.sampled_from([OperatorVerb.RETIRE, OperatorVerb.ADMIT]), st.sampled_from(SITES)),
    max_size=10,
)


class Life:
    """One server after another over the same store, in a time of their own."""

    def __init__(self, opened: Callable[[], FormationStore]) -> None:
        self._opened = opened
        self.now: Instant = 100 * SECOND
        self.lossy = False  # records are carried out, and the answer is lost
        self.store = opened()
        self.server = self._new()

    def _new(self) -> Reformer:
        bench = ReformerConfig(me=101, operator=OPERATOR, leader_lease=LEASE)
        return Reformer(bench, CHARTER, keys=KEYS, born_at=self.now)

    def close(self) -> None:
        self.store.close()

    def restart(self) -> None:
        """A new process: nothing is left of the old one but the store."""
        self.store.close()
        self.store = self._opened()
        self.server = self._new()

    def lead(self) -> None:
        """Let time pass until it leads."""
        for _ in range(200):
            if self.server.leads(self.now):
                return
            self.rest(STEP)
        raise AssertionError("nobody leads")

    def rest(self, period: int) -> None:
        """Let time pass."""
        ends_at = self.now + period
        while self.now < ends_at:
            self.now += STEP
            self.server.wake(self.now)
            self._turn()

    def hear(self, message: MembershipMessage) -> None:
        box = MessageAuthenticator(me=message.sender, keys=KEYS, peers=(), first_serial=self.now)
        self.server.receive(box.govern(message), self.now)
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
        """What the log says."""
        recalled = self.store.answer(Recall())
        assert isinstance(recalled, Recalled)
        return next((entry for entry in recalled.latest if entry.loop == REGISTER), None)


def live_through(drawn: Orders, opened: Callable[[], FormationStore], *, lossy: bool) -> None:
    """After any orders and restarts the present leader keeps out whom the operator retired last, and nobody else."""
    with closing(Life(opened)) as life:
        life.lead()
        retired: set[int] = set()
        for order in drawn:
            if order is None:
                before = life.register()
                life.restart()
                life.lead()
                assert life.register() == before  # a restart records nothing
            else:
                verb, site = order
                (retired.add if verb is OperatorVerb.RETIRE else retired.discard)(site)
                life.lossy = lossy
                life.hear(OperatorCommand(0, 0, OPERATOR, verb, site))
                life.lead()
                life.rest(LEASE)
                life.lossy = False
            assert life.server.primary.retired == retired
        life.restart()
        life.lead()
        for site in SITES:
            life.hear(
                standing_of(site, formation=0, membership_state=MembershipState.NEWBORN, complete_through=0, sequence=1)
            )
        life.rest(FOUNDING_DELAY + STEP)  # it waits so long for whoever is not there, and so for the retired
        formation = life.server.primary.formation
        assert set(formation.members if formation is not None else ()) == set(SITES) - retired


@given(drawn=orders, lossy=st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_restart_changes_nothing_about_who_is_retired_in_sqlite(drawn: Orders, lossy: bool, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / f'{next(STORES)}.db'}"
    live_through(drawn, lambda: open_store(url, timeout=PATIENCE), lossy=lossy)


def test_a_restart_changes_nothing_about_who_is_retired_in_etcd(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as etcd:

        @given(drawn=orders, lossy=st.booleans())
        @settings(max_examples=10, deadline=None)
        def live(drawn: Orders, lossy: bool) -> None:
            url = f"etcd:http://{etcd.endpoint}/{next(STORES)}"
            live_through(drawn, lambda: open_store(url, timeout=PATIENCE), lossy=lossy)

        live()
