"""Complete or reforming by t_e + (n + 1/2) T_R merged, t_e + (2n + 1/2) T_R separate, whatever the network does.

The adversary is Hypothesis: it decides for every acknowledgment and every block when a copy of it arrives, in which
order, how often, or never, on time or as an answer to a request. The receiver is the real one, in virtual time.
"""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairtape.core.effects import Append, Deliver, Report, Send
from fairtape.core.instants import NEVER, Duration, Instant
from fairtape.core.timing import Timing
from fairtape.nodes.receiver import Receiver
from fairtape.ring.receiver.recovery_tables import State
from unit.ring.recovery_values import E, RecoveryRun
from unit.ring.ring_values import KEYS, STARTS_AT, TIMING, Signer, block, formation, named

ME = 64  # last in a loop of 64: it awaits every token of these tests and holds none
TOKENS = 6
PER_TOKEN = 2  # blocks that each token acknowledges
T_R = TIMING.retry_period
QUICK = 50  # how many times as fast as TIMING a ring is in which a stall takes longer than T_R
LAYOUT = formation(tuple(range(1, ME + 1)))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A copy of Ack(token), or of one block of Msg(token), that reaches the receiver."""

    token: int
    what: int  # 0: Ack(token); 1 … PER_TOKEN: a block
    at: Duration  # since t_e; early copies are early blocks

    def instant(self, timing: Timing) -> Instant:
        return STARTS_AT + (self.token - 1) * timing.token_period + self.at


def timings(retries_max: int = 4) -> st.SearchStrategy[Timing]:
    return st.builds(
        replace,
        st.just(TIMING),
        retries_max=st.integers(1, retries_max),
        merged=st.booleans(),
        token_period=st.sampled_from([T_R // 10, T_R // 2, T_R, 5 * T_R]),
    )


def arrivals(copies_max: int = 40) -> st.SearchStrategy[list[Arrival]]:
    edges = [k * T_R // 2 + d for k in range(20) for d in (-1, 0, 1)]
    at = st.one_of(st.integers(-T_R, 10 * T_R), st.sampled_from(edges))
    one = st.builds(Arrival, token=st.integers(1, TOKENS), what=st.integers(0, PER_TOKEN), at=at)
    return st.lists(one, max_size=copies_max)


def blocks_of(token: int) -> range:
    return range(1 + (token - 1) * PER_TOKEN, 1 + token * PER_TOKEN)


class Siege:
    """One receiver that receives exactly what an adversary lets through."""

    def __init__(self, timing: Timing) -> None:
        self.layout = replace(LAYOUT, timing=timing)
        self.machine = Receiver(me=ME, formation=self.layout, keys=KEYS, born_at=STARTS_AT)
        self.now = STARTS_AT - 2 * T_R
        signer = Signer()
        self._datagrams: dict[tuple[int, int], bytes] = {}
        for token in range(1, TOKENS + 1):
            first = blocks_of(token).start
            self._datagrams[token, 0] = signer.ack(self.layout, token, first, [named(first, PER_TOKEN)])
            for what, number in enumerate(blocks_of(token), start=1):
                self._datagrams[token, what] = block(number)

    def pass_time(self, until: Instant) -> None:
        while (deadline := self.machine.deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.machine.wake(self.now)
            self.check()
        self.now = until
        self.check()

    def receive(self, arrival: Arrival) -> None:
        self.machine.receive(self._datagrams[arrival.token, arrival.what], self.now)
        self.check()

    def check(self) -> None:
        """Every token whose deadline has passed is complete, or the receiver has declared a failure."""
        assert self.machine._blocks_pending or (self.machine.deadline() or NEVER) == self.machine._earliest()
        if self.machine.reforming is not None:
            return
        timing = self.layout.timing
        passed = (self.now - timing.reform_delay - STARTS_AT - 1) // timing.token_period + 1
        assert self.machine.complete_through >= min(passed, TOKENS)


def by_time(schedule: list[Arrival], timing: Timing) -> list[Arrival]:
    return sorted(schedule, key=lambda arrival: arrival.instant(timing))


@settings(max_examples=400)
@given(timing=timings(), schedule=arrivals())
def test_every_receiver_is_complete_or_reforming_by_the_deadline(timing: Timing, schedule: list[Arrival]) -> None:
    """By t_e + (n + 1/2) T_R, or (2n + 1/2) T_R, it has the message or started a reformation.  T-RMP §3, 2001 §5.1."""
    siege = Siege(timing)
    for arrival in by_time(schedule, timing):
        siege.pass_time(arrival.instant(timing))
        siege.receive(arrival)
    end = siege.layout.scheduled_at(TOKENS) + timing.reform_delay
    siege.pass_time(max(siege.now, end))


@settings(max_examples=400)
@given(timing=timings(retries_max=12), schedule=arrivals())
def test_the_deadline_is_the_same_where_acknowledgments_are_known_to_be_late(
    timing: Timing, schedule: list[Arrival]
) -> None:
    """First requests wait longer, and the waits that pass count as made.  Decision 50, Request thresholds."""
    timing = replace(timing, retry_period=T_R // QUICK, token_period=timing.token_period // QUICK)
    siege = Siege(timing)
    siege.machine._lateness.arrived(0, possible_at=0, sent_at=0, timing=timing, now=STARTS_AT)
    for arrival in by_time([replace(each, at=each.at // QUICK) for each in schedule], timing):
        siege.pass_time(arrival.instant(timing))
        siege.receive(arrival)
    siege.pass_time(max(siege.now, siege.layout.scheduled_at(TOKENS) + timing.reform_delay))


@pytest.mark.parametrize("merged", [True, False])
def test_a_token_that_follows_a_late_one_has_no_later_deadline(merged: bool) -> None:
    """The first acknowledgment comes at the last moment, and no other: its waits were the waits of all.  T-RMP §5."""
    timing = replace(TIMING, retries_max=4, merged=merged, token_period=T_R // 10)
    siege = Siege(timing)
    for what in range(PER_TOKEN, -1, -1):
        late = Arrival(1, what, timing.retries_max * T_R)
        siege.pass_time(late.instant(timing))
        siege.receive(late)
    assert siege.machine.complete_through == 1
    siege.pass_time(siege.layout.scheduled_at(2) + timing.reform_delay + 1)
    assert siege.machine.reforming is not None
    assert siege.machine.reforming.token == 2


@settings(max_examples=200)
@given(timing=timings(), schedule=arrivals())
def test_a_reforming_receiver_names_one_failure_and_takes_nothing_more_into_the_order(
    timing: Timing, schedule: list[Arrival]
) -> None:
    """It enters state 7 and initiates a reformation: once, at the failed token, and not before t_e + T_R/2.  T-RMP §3.

    What was complete before may still commit.
    """
    siege = Siege(timing)
    effects = []
    for arrival in by_time(schedule, timing):
        siege.pass_time(arrival.instant(timing))
        siege.receive(arrival)
        effects += siege.machine.drain()
    siege.pass_time(max(siege.now, siege.layout.scheduled_at(TOKENS) + timing.reform_delay))
    effects += siege.machine.drain()
    reports = [effect for effect in effects if isinstance(effect, Report)]
    assert reports == ([siege.machine.reforming] if siege.machine.reforming else [])
    for report in reports:
        since = effects[effects.index(report) + 1 :]
        assert report.suspect == siege.layout.holder(report.token)
        assert not [effect for effect in since if isinstance(effect, Append | Send)]
        assert all(effect.ordered.token < report.token for effect in since if isinstance(effect, Deliver))


@settings(max_examples=400)
@given(
    retries_max=st.integers(1, 6),
    merged=st.booleans(),
    ack_at=st.one_of(st.none(), st.integers(0, 15 * T_R)),
    messages_at=st.one_of(st.none(), st.integers(-T_R, 15 * T_R)),
)
def test_one_recovery_ends_by_the_deadline_and_ends_well_if_the_answers_came_in_time(
    retries_max: int, merged: bool, ack_at: Duration | None, messages_at: Duration | None
) -> None:
    """State 8 or state 7 by the deadline; state 8 whenever each loop was left by an answer.  T-RMP §3, 2001 §5.1."""
    patient = RecoveryRun(retries_max=retries_max, merged=merged)
    limit = patient.recoveries.timing.reform_delay
    events = [(at, kind) for at, kind in ((ack_at, "ack"), (messages_at, "messages")) if at is not None]
    t_e = 1_000 * T_R
    overdue = ack_at is None or ack_at >= T_R // 2
    for at, kind in sorted([*events, (T_R // 2, "silence")] if overdue else events):
        while patient.state < State.REFORM and patient.expires_at <= t_e + at:
            patient.wait()
        if patient.state >= State.REFORM:
            break
        if kind == "silence":
            patient.silence()
        elif kind == "ack":
            patient.ack(t_e + at)
        else:
            patient.messages(t_e + at)
    if patient.state < State.REFORM:
        patient.wait_out()
    assert patient.recoveries.now <= t_e + limit
    assert (patient.state is State.REFORM) == (patient.recoveries.failed == [E])
    if patient.state is State.REFORM:
        spent = patient.retries
        assert spent == retries_max if merged else spent >= retries_max
    else:
        assert ack_at is not None
        assert messages_at is not None


@pytest.mark.parametrize("merged", [True, False])
def test_the_deadline_is_tight(merged: bool) -> None:
    """The bound is reached: an adversary can delay the declaration to that very instant, no longer.  T-RMP §3."""
    patient = RecoveryRun(retries_max=3, merged=merged)
    patient.silence()
    if merged:
        ended_at = patient.wait_out()
        assert ended_at == 1_000 * T_R + patient.recoveries.timing.reform_delay
    else:
        patient.wait()
        patient.wait()
        patient.ack(patient.expires_at - 1)
        ended_at = patient.wait_out()
        assert ended_at == 1_000 * T_R + patient.recoveries.timing.reform_delay - 1
