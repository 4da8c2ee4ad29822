"""A reformation server: leads or is a standby, according to the store."""

from dataclasses import replace

from fairtape.core.effects import Notice, QueryStore, Send
from fairtape.core.formation_log import Claim, Recalled, Record, StoreRequest, StoreResponse, Unavailable
from fairtape.core.instants import MILLISECOND, SECOND, Duration, Instant
from fairtape.nodes.coordinator.primary_loop import Phase
from fairtape.nodes.coordinator.server import Reformer, ReformerConfig
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.ring.membership.topology import LoopTopology, Topology
from fairtape.simulation.simulated_store import MemoryFormationStore
from fairtape.wire.membership import (
    NUMBERED_MAX,
    ORDINAL_MAX,
    MembershipMessage,
    MembershipState,
    OperatorCommand,
    OperatorVerb,
    SiteReport,
)
from fairtape.wire.seals import Keys
from unit.ring.loop_values import TIMING, report_of

NOW: Instant = 100 * SECOND
LEASE = 300 * MILLISECOND
OPERATOR = 999
KEYS = Keys.from_secret(b"servers", (1, 2, 3, 4, 101, 102, OPERATOR), ())
TOPOLOGY = Topology(loops=(LoopTopology(number=0, tour=(1, 2, 3), timing=TIMING),))


class Clock:
    """The bound of the server's clock."""

    bound = 0


class Served:
    """A server with a store that responds at once, unless it is closed."""

    def __init__(self, me: int, store: MemoryFormationStore) -> None:
        self.clock = Clock()
        self.server = Reformer(
            ReformerConfig(me=me, operator=OPERATOR, leader_lease=LEASE, deployment=64),
            TOPOLOGY,
            keys=KEYS,
            born_at=NOW,
            clock_bound=lambda: self.clock.bound,
        )
        self.store = store
        self.closed = False
        self.sent: list[Send] = []
        self.notices: list[str] = []

    def turn(self, now: Instant) -> None:
        """Carry out its effects, and wake it while something is due."""
        for _ in range(50):
            effects = self.server.drain()
            for effect in effects:
                match effect:
                    case QueryStore():
                        self.server.answered(self._answer(effect.question), now)
                    case Send():
                        self.sent.append(effect)
                    case Notice():
                        self.notices.append(effect.text)
            deadline = self.server.deadline()
            if deadline is not None and deadline <= now:
                self.server.wake(now)
            elif not effects:
                return
        raise AssertionError("it never rests")

    def _answer(self, question: StoreRequest) -> StoreResponse:
        return Unavailable(question) if self.closed else self.store.answer(question)

    def run(self, since: Instant, until: Instant) -> None:
        for now in range(since, until, 10 * MILLISECOND):
            self.turn(now)

    def receive(self, message: MembershipMessage, now: Instant) -> None:
        box = MessageAuthenticator(me=message.sender, keys=KEYS, peers=(), first_serial=now)
        self.server.receive(box.for_membership(message), now)
        self.turn(now)


def newborn(site: int) -> SiteReport:
    return report_of(site, formation=0, membership_state=MembershipState.NEWBORN, complete_through=0, sequence=1)


def test_one_server_leads_and_the_other_is_a_standby() -> None:
    store = MemoryFormationStore()
    first, second = Served(101, store), Served(102, store)
    for now in range(NOW, NOW + 2 * SECOND, 10 * MILLISECOND):
        first.turn(now)
        second.turn(now)
        assert not (first.server.leads(now) and second.server.leads(now))
    assert first.server.leads(NOW + 2 * SECOND - 10 * MILLISECOND)


def test_a_standby_takes_over_when_the_leader_stops_renewing() -> None:
    store = MemoryFormationStore()
    first, second = Served(101, store), Served(102, store)
    for now in range(NOW, NOW + SECOND, 10 * MILLISECOND):
        first.turn(now)
        second.turn(now)
    second.run(NOW + SECOND, NOW + SECOND + LEASE)
    assert not second.server.leads(NOW + SECOND + LEASE)
    second.run(NOW + SECOND + LEASE, NOW + 2 * SECOND)
    assert second.server.leads(NOW + 2 * SECOND)
    assert store.leadership is not None
    assert store.leadership.term == 2


def test_a_leader_that_cannot_reach_the_store_stops_when_its_lease_ends() -> None:
    served = Served(101, MemoryFormationStore())
    served.run(NOW, NOW + SECOND)
    served.closed = True
    served.run(NOW + SECOND, NOW + SECOND + LEASE + 20 * MILLISECOND)
    assert not served.server.leads(NOW + SECOND + LEASE)
    assert any("its lease has expired" in notice for notice in served.notices)


def test_a_server_that_cannot_trust_its_clock_does_not_lead() -> None:
    """It measures leases by that clock."""
    served = Served(101, MemoryFormationStore())
    served.run(NOW, NOW + SECOND)
    served.clock.bound = TIMING.clock_error_max + 1
    served.run(NOW + SECOND, NOW + 2 * SECOND)
    assert not served.server.leads(NOW + 2 * SECOND)
    assert "its clock error is too large" in served.notices[-1]
    served.clock.bound = 0
    served.run(NOW + 2 * SECOND, NOW + 4 * SECOND)
    assert served.server.leads(NOW + 4 * SECOND - 10 * MILLISECOND)


def test_a_lease_is_not_measured_across_the_correction_of_a_clock() -> None:
    """Another server may still lead."""
    store = MemoryFormationStore()
    first, second = Served(101, store), Served(102, store)
    for now in range(NOW, NOW + SECOND, 10 * MILLISECOND):
        first.turn(now)
        second.turn(now)
    corrected_at = NOW + SECOND + LEASE // 2
    second.run(NOW + SECOND, corrected_at)
    second.turn(corrected_at + 10 * SECOND)  # by its own clock
    assert first.server.leads(corrected_at)
    assert store.leadership is not None
    assert store.leadership.term == 1


def test_a_formation_is_recorded_before_any_site_is_informed() -> None:
    served = Served(101, MemoryFormationStore())
    served.run(NOW, NOW + 100 * MILLISECOND)
    for site in (1, 2, 3):
        served.receive(newborn(site), NOW + 100 * MILLISECOND)
    assert [(entry.loop, entry.number) for entry in served.store.log] == [(0, 1)]
    assert {effect.to for effect in served.sent} == {1, 2, 3}
    closed = Served(102, MemoryFormationStore())
    closed.run(NOW, NOW + 100 * MILLISECOND)
    closed.closed = True
    for site in (1, 2, 3):
        closed.receive(newborn(site), NOW + 100 * MILLISECOND)
    assert closed.sent == []


def test_a_record_without_a_response_is_found_in_the_store() -> None:
    served = Served(101, MemoryFormationStore())
    served.run(NOW, NOW + 100 * MILLISECOND)
    answer = served._answer
    lost: list[StoreRequest] = []

    def forgetful(question: StoreRequest) -> StoreResponse:
        if isinstance(question, Record) and not lost:
            lost.append(question)
            answer(question)
            return Unavailable(question)
        return answer(question)

    served._answer = forgetful  # type: ignore[method-assign]
    for site in (1, 2, 3):
        served.receive(newborn(site), NOW + 100 * MILLISECOND)
    served.run(NOW + 110 * MILLISECOND, NOW + 300 * MILLISECOND)
    assert len(served.store.log) == 1
    assert served.server.primary.formation is not None


def test_only_the_operator_commands_and_only_known_sites_report() -> None:
    served = Served(101, MemoryFormationStore())
    served.run(NOW, NOW + 100 * MILLISECOND)
    served.receive(OperatorCommand(0, 0, 102, OperatorVerb.RETIRE, 2), NOW + 100 * MILLISECOND)
    assert served.server.counts["not_the_operator"] == 1
    served.receive(newborn(4), NOW + 100 * MILLISECOND)
    assert served.server.counts["stranger"] == 1
    served.receive(OperatorCommand(0, 0, OPERATOR, OperatorVerb.RETIRE, 2), NOW + 100 * MILLISECOND)
    assert served.server.primary.retired == {2}


def test_a_command_to_go_on_ends_only_the_halt_that_the_operator_saw() -> None:
    """It may be delayed past a change of leader, or replayed to a restarted server.  Decision 56, Least resilience."""
    served = Served(101, MemoryFormationStore())
    served.run(NOW, NOW + 100 * MILLISECOND)
    at = NOW + 100 * MILLISECOND
    for site in (1, 2, 3):
        served.receive(newborn(site), at)
    loop = served.server.primary
    loop.phase = Phase.HALTED
    for formation, resumed in ((0, False), (2, False), (1, True)):
        served.receive(OperatorCommand(0, formation, OPERATOR, OperatorVerb.RESUME, 0), at + formation)
        assert loop._resumed is resumed
    assert served.server.counts["stale_order"] == 2


def test_a_report_that_cannot_be_true_is_refused_and_its_site_is_named_once() -> None:
    """Decision 74, Plausible reports."""
    served = Served(101, MemoryFormationStore())
    served.run(NOW, NOW + 100 * MILLISECOND)
    at = NOW + 100 * MILLISECOND
    for site in (1, 2, 3):
        served.receive(newborn(site), at)
    for change in ({"complete_through": ORDINAL_MAX}, {"formation": NUMBERED_MAX}, {"term": ORDINAL_MAX}):
        at += MILLISECOND
        served.receive(report_of(2, **({"formation": 1} | change)), at)
    assert served.server.counts["implausible"] == 3
    assert len([text for text in served.notices if "it is not believed" in text]) == 1
    assert served.server.leads(at)
    assert served.server.primary.formation is not None
    assert served.server.primary.formation.number == 1


def test_renewal_numbers_follow_the_incarnation_and_not_the_clock() -> None:
    """A server whose clock was set back repeats no claim of its last incarnation.  Decision 67, Confirmed lead."""
    server = Reformer(
        ReformerConfig(me=101, operator=OPERATOR), TOPOLOGY, keys=KEYS, born_at=NOW, incarnation=NOW + 5 * SECOND
    )
    server.wake(NOW)
    (query,) = server.drain()
    assert isinstance(query, QueryStore)
    server.answered(Recalled(None, ()), NOW)
    server.wake(NOW)
    claims = [each.question for each in server.drain() if isinstance(each, QueryStore)]
    assert [each.wanted.renewal for each in claims if isinstance(each, Claim)] == [NOW + 5 * SECOND + 1]


def test_a_command_of_the_operator_is_recorded_in_the_store() -> None:
    store = MemoryFormationStore()
    served = Served(101, store)
    served.run(NOW, NOW + 100 * MILLISECOND)
    served.receive(OperatorCommand(0, 0, OPERATOR, OperatorVerb.RETIRE, 2), NOW + 100 * MILLISECOND)
    successor = Served(102, store)
    successor.run(NOW + 200 * MILLISECOND, NOW + SECOND)
    assert successor.server.leads(NOW + SECOND)
    assert successor.server.primary.retired == {2}


def test_a_server_leads_in_a_later_term_than_any_site_knows() -> None:
    """The store has lost a term. The server of that term may still lead.  Decision 69, Lost formations."""
    served = Served(101, MemoryFormationStore())
    served.run(NOW, NOW + 100 * MILLISECOND)
    served.receive(report_of(1, term=7), NOW + 100 * MILLISECOND)
    assert not served.server.leads(NOW + 100 * MILLISECOND)
    served.run(NOW + 110 * MILLISECOND, NOW + 100 * MILLISECOND + LEASE)
    assert not served.server.leads(NOW + 100 * MILLISECOND + LEASE)
    served.run(NOW + 100 * MILLISECOND + LEASE, NOW + SECOND)
    assert served.server.leads(NOW + SECOND)
    assert served.store.leadership is not None
    assert served.store.leadership.term == 8


def test_a_site_that_has_read_another_file_is_named_and_admitted() -> None:
    """Files are changed on one machine after the other.  Decision 64, One deployment file."""
    served = Served(101, MemoryFormationStore())
    at = NOW + 100 * MILLISECOND
    served.run(NOW, at)
    for site, deployment in ((1, 64), (2, 65), (3, 0)):
        served.receive(replace(newborn(site), deployment=deployment), at)
    served.receive(replace(newborn(2), deployment=65), at + 1)
    named = "site 2 has read another deployment file than server 101"
    assert [notice for notice in served.notices if "deployment file" in notice] == served.server.warnings(at)
    assert [warning.startswith(named) for warning in served.server.warnings(at)] == [True]
    assert served.server.primary.formation is not None
    assert 2 in served.server.primary.formation.members
    served.receive(replace(newborn(2), deployment=64), at + 2)
    assert served.server.warnings(at + 2) == []


def test_noise_is_counted_and_changes_nothing() -> None:
    served = Served(101, MemoryFormationStore())
    served.server.receive(b"noise", NOW)
    served.server.receive(bytes(100), NOW)
    assert served.server.counts["malformed"] == 2


def delay_measured(*, runs: bool) -> Duration:
    """What a server makes of a request that took 1.2 seconds, in which it was running, or stood still."""
    served = Served(101, MemoryFormationStore())
    served.run(NOW, NOW + SECOND)
    server, now = served.server, NOW + SECOND
    while not (asked := [each for each in server.drain() if isinstance(each, QueryStore)]):
        now += 10 * MILLISECOND
        server.wake(now)
    for at in range(now, now + 1_200 * MILLISECOND, 10 * MILLISECOND) if runs else ():
        deadline = server.deadline()
        if deadline is not None and deadline <= at:
            server.wake(at)
    server.answered(served.store.answer(asked[0].question), now + 1_200 * MILLISECOND)
    return server.primary.recording_delay


def test_a_server_that_stood_still_measures_nothing() -> None:
    """Otherwise each reformation waits for a store that is not slow.  Decision 68, Leader's lease."""
    assert delay_measured(runs=True) == 2_400 * MILLISECOND
    assert delay_measured(runs=False) == 0
