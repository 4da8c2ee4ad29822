"""Commit of Msg(e) needs four things (decision 6, Commit), each of which alone may be the one that is missing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairtape.core.effects import Append, Deliver
from fairtape.core.instants import MILLISECOND, Instant
from fairtape.nodes.receiver import Receiver
from fairtape.ring.membership.formation import Formation
from unit.ring.ring_values import (
    STARTS_AT,
    TIMING,
    Ring,
    Signer,
    block,
    formation,
    named,
    only,
    receive,
    receiver,
    run_until,
)

ME = 3
LAYOUT = formation((1, 2, 3, 4), resilience=1)
COMMIT_AT = LAYOUT.commit_at(1)
IN_TIME = STARTS_AT + MILLISECOND


class CommitSetup:
    """A receiver that gets the four conditions one by one."""

    def __init__(self, layout: Formation = LAYOUT) -> None:
        self.layout = layout
        self.site: Receiver = receiver(ME, layout)
        self._voice = Signer()

    def message(self, at: Instant = IN_TIME) -> None:
        receive(self.site, block(1), at)

    def ack(self, at: Instant = IN_TIME) -> None:
        receive(self.site, self._voice.ack(self.layout, 1, 1, [named(1)]), at)

    def second_holder(self, at: Instant = IN_TIME) -> None:
        receive(self.site, self._voice.ack(self.layout, 2, 2), at)

    def delivered(self, until: Instant) -> list[tuple[Instant, Deliver]]:
        passed = [(0, effect) for effect in self.site.drain()] + run_until(self.site, until)
        return [(effect.release.released_at, effect) for _, effect in passed if isinstance(effect, Deliver)]


def ready() -> CommitSetup:
    setup = CommitSetup()
    setup.message()
    setup.ack()
    setup.second_holder()
    return setup


def test_with_all_four_a_message_is_committed_at_its_instant() -> None:
    """At t_e + Δ_C all of the receivers that have recovered Msg(e) commit those messages.  T-RMP §5."""
    ((at, deliver),) = ready().delivered(COMMIT_AT)
    assert at == COMMIT_AT == STARTS_AT + TIMING.commit_delay
    assert deliver.release.commit_at == COMMIT_AT
    assert not deliver.release.late
    assert deliver.ordered.acknowledged_at == STARTS_AT


def test_before_its_instant_nothing_is_committed() -> None:
    """Condition 1, now ≥ t_e + Δ_C: the R_T remulticast a message Δ_A after its timestamp.  TRMP 2001 §5."""
    setup = ready()
    assert setup.delivered(COMMIT_AT - 1) == []
    setup.site.wake(COMMIT_AT - 1)
    assert only(Deliver, setup.site.drain()) == []


def test_without_the_message_nothing_is_committed() -> None:
    """Condition 2, it holds Msg(e).  T-RMP §5."""
    setup = CommitSetup()
    setup.ack()
    setup.second_holder()
    assert setup.delivered(COMMIT_AT) == []


def test_without_everything_before_it_nothing_is_committed() -> None:
    """Condition 2, and everything before: all receivers place the messages in the same order.  TRMP 2001 §2."""
    site, signer = receiver(ME, LAYOUT), Signer()
    receive(site, block(2), IN_TIME)
    receive(site, signer.ack(LAYOUT, 1, 1, [named(1)]), IN_TIME)
    receive(site, signer.ack(LAYOUT, 2, 2, [named(2)]), IN_TIME)
    receive(site, signer.ack(LAYOUT, 4, 3), LAYOUT.scheduled_at(4))
    late = LAYOUT.commit_at(2)
    assert not [effect for _, effect in run_until(site, late) if isinstance(effect, Append | Deliver)]
    receive(site, block(1), late + 1)
    assert [effect.ordered.token for effect in only(Deliver, site.drain())] == [1, 2]


def test_without_a_second_holder_nothing_is_committed() -> None:
    """Condition 3, it has seen Ack(e + K), so K + 1 sites hold Msg(e).  TRMP 2001 §2, decision 6, Commit."""
    setup = CommitSetup()
    setup.message()
    setup.ack()
    assert setup.delivered(COMMIT_AT) == []


def test_without_a_lease_nothing_is_committed() -> None:
    """Condition 4, its lease is valid: at the instant at which it ends it is not.  Decision 6, Commit."""
    setup = ready()
    setup.site.renew_lease(COMMIT_AT, IN_TIME)
    assert setup.delivered(COMMIT_AT + TIMING.retry_period // 4) == []
    setup.site.renew_lease(COMMIT_AT + 10**12, COMMIT_AT + 7)
    ((at, deliver),) = setup.delivered(COMMIT_AT + 7)
    assert at == COMMIT_AT + 7
    assert deliver.release.late


@pytest.mark.parametrize("last", ["message", "ack", "second_holder"])
def test_what_becomes_ready_after_its_instant_is_delivered_at_once_and_marked_late(last: str) -> None:
    """A message complete only after its commit instant is delivered at once, marked late.  Decision 6, Commit."""
    setup = CommitSetup()
    for condition in ("message", "ack", "second_holder"):
        if condition != last:
            getattr(setup, condition)()
    at = COMMIT_AT + 1
    assert setup.delivered(at) == []
    getattr(setup, last)(at)
    ((released_at, deliver),) = setup.delivered(at)
    assert released_at == at
    assert deliver.release.late
    assert deliver.release.commit_at == COMMIT_AT


@pytest.mark.parametrize("last", ["message", "ack", "second_holder"])
def test_what_becomes_ready_at_its_very_instant_is_not_late(last: str) -> None:
    """Released together means at the commit instant, and that is still it.  Decision 6, Commit."""
    setup = CommitSetup()
    for condition in ("message", "ack", "second_holder"):
        if condition != last:
            getattr(setup, condition)()
    assert setup.delivered(COMMIT_AT) == []
    getattr(setup, last)(COMMIT_AT)
    ((released_at, deliver),) = setup.delivered(COMMIT_AT)
    assert released_at == COMMIT_AT
    assert not deliver.release.late


def test_a_late_message_never_changes_the_order() -> None:
    """Never silent, never reordered: what waits behind a late message is delivered after it.  Decision 6, Commit."""
    site, signer = receiver(ME, LAYOUT), Signer()
    for token, number in ((1, 1), (2, 2)):
        receive(site, signer.ack(LAYOUT, token, token, [named(number)]), LAYOUT.scheduled_at(token))
    receive(site, block(2), IN_TIME)
    late = LAYOUT.commit_at(2) + 1
    run_until(site, late)
    receive(site, block(1), late)
    receive(site, signer.ack(LAYOUT, 4, 3), late)
    delivered = only(Deliver, site.drain())
    assert [(effect.release.sequence, effect.release.late) for effect in delivered] == [(1, True), (2, True)]


@pytest.mark.parametrize("resilience", [0, 1, 2, 4])
def test_what_one_site_has_released_is_held_by_k_plus_1_sites(resilience: int) -> None:
    """RMP's K-resilience: K + 1 sites are known to hold a delivered message.  TRMP 2001 §2, decision 6, Commit."""
    ring = Ring(5, resilience=resilience)
    ring.publish(101, [b"resilient"], ring.layout.starts_at - TIMING.retry_period // 2)
    step = TIMING.token_period // 5
    seen = False
    for tick in range(1, 100):
        ring.run(tick * step)
        releasing = [site for site, machine in ring.receivers.items() if machine.released_through >= 1]
        holding = [site for site, machine in ring.receivers.items() if machine.complete_through >= 1]
        assert not releasing or len(holding) > resilience
        seen = seen or bool(releasing)
    assert seen


@settings(max_examples=60)
@given(
    resilience=st.integers(0, 3),
    message_at=st.integers(0, 500),
    ack_at=st.integers(0, 500),
    holder_at=st.integers(0, 500),
)
def test_a_commit_happens_at_the_latest_of_its_conditions(
    resilience: int, message_at: int, ack_at: int, holder_at: int
) -> None:
    """Neither before all conditions hold nor after: the four together, in any order of arrival.  Decision 6, Commit."""
    layout = formation(tuple(range(1, 65)), resilience=resilience, timing=TIMING)
    site, signer = receiver(64, layout), Signer()
    instants = {
        "message": STARTS_AT + message_at * MILLISECOND,
        "ack": STARTS_AT + ack_at * MILLISECOND,
        "holder": STARTS_AT + holder_at * MILLISECOND,
    }
    datagrams = {
        "message": block(1),
        "ack": signer.ack(layout, 1, 1, [named(1)]),
        "holder": signer.ack(layout, 1 + resilience, 2) if resilience else signer.ack(layout, 1, 1, [named(1)]),
    }
    delivered: list[Deliver] = []
    for what in sorted(instants, key=instants.__getitem__):
        delivered += only(Deliver, [effect for _, effect in run_until(site, instants[what])])
        receive(site, datagrams[what], instants[what])
    end = STARTS_AT + 600 * MILLISECOND
    delivered += only(Deliver, site.drain()) + only(Deliver, [effect for _, effect in run_until(site, end)])
    acked = min(instants["ack"], instants["holder"]) if not resilience else max(instants["ack"], instants["holder"])
    ready_at = max(instants["message"], acked)
    for deliver in delivered:
        assert deliver.release.released_at == max(ready_at, layout.commit_at(1))
        assert deliver.release.late == (ready_at > layout.commit_at(1))
    assert delivered or site.reforming is not None
