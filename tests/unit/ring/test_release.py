"""The release queue: complete messages wait for K + 1 holders, the commit instant and the lease."""

from dataclasses import replace

from fairtape.core.effects import Deliver, Ordered, Span
from fairtape.core.instants import NEVER, SECOND
from fairtape.ring.membership.formation_history import FORMATIONS_MAX, FormationHistory
from fairtape.ring.receiver.release import LATE_AFTER, ReleaseQueue
from unit.ring.ring_values import SOURCE, formation

LAYOUT = formation()


def ordered(token: int, count: int = 1) -> Ordered:
    spans = (Span(SOURCE, 1, token, count, token, (b"\0\1x",) * count, (1,) * count),) if count else ()
    return Ordered(0, LAYOUT.number, token, token, count, LAYOUT.scheduled_at(token), spans)


def filled(*tokens: Ordered) -> ReleaseQueue:
    queue = ReleaseQueue(FormationHistory(LAYOUT), after=LAYOUT.first_token - 1, clock_bound=lambda: 77)
    for token in tokens:
        queue.complete(token)
    return queue


def tokens(delivered: list[Deliver]) -> list[int]:
    return [deliver.ordered.token for deliver in delivered]


def test_what_is_not_known_to_survive_waits() -> None:
    queue = filled(ordered(1), ordered(2))
    queue.settle(1, LAYOUT.scheduled_at(1))
    assert queue.waits_for_others
    assert tokens(queue.due(LAYOUT.commit_at(2))) == [1]
    assert queue.released_through == 1
    assert queue.waits_for_others


def test_the_deadline_is_the_next_commit_instant() -> None:
    queue = filled(ordered(1), ordered(2))
    assert queue.deadline() == NEVER
    queue.settle(2, LAYOUT.scheduled_at(2))
    assert queue.deadline() == LAYOUT.commit_at(1)
    queue.due(LAYOUT.commit_at(1))
    assert queue.deadline() == LAYOUT.commit_at(2)


def test_a_release_has_its_commit_instant_its_own_instant_and_the_clock_bound() -> None:
    queue = filled(ordered(1, 3))
    queue.settle(1, LAYOUT.scheduled_at(1))
    now = LAYOUT.commit_at(1) + 5
    (deliver,) = queue.due(now)
    release = deliver.release
    assert (release.token, release.sequence, release.count) == (1, 1, 3)
    assert (release.commit_at, release.released_at, release.clock_bound) == (LAYOUT.commit_at(1), now, 77)
    assert not release.late  # it was ready in time: only the wake was slow


def test_a_release_delayed_by_a_stopped_process_is_late() -> None:
    for delay, late in ((LATE_AFTER, False), (LATE_AFTER + 1, True)):
        queue = filled(ordered(1))
        queue.settle(1, LAYOUT.scheduled_at(1))
        (deliver,) = queue.due(LAYOUT.commit_at(1) + delay)
        assert deliver.release.late == late


def test_a_release_is_late_by_the_clocks_of_the_others() -> None:
    for behind, late in ((LATE_AFTER, False), (LATE_AFTER + 1, True)):
        queue = filled(ordered(1))
        queue.clock_behind = behind
        queue.settle(1, LAYOUT.scheduled_at(1))
        (deliver,) = queue.due(LAYOUT.commit_at(1))
        assert deliver.release.late == late
        assert deliver.release.clock_behind == behind


def test_tokens_without_messages_are_skipped() -> None:
    queue = filled(ordered(1, 0), ordered(2))
    assert queue.waits_for_others
    queue.settle(2, LAYOUT.scheduled_at(2))
    assert tokens(queue.due(LAYOUT.commit_at(2))) == [2]
    assert not filled(ordered(1, 0)).waits_for_others


def test_what_settles_after_its_instant_is_late() -> None:
    queue = filled(ordered(1))
    queue.settle(1, LAYOUT.commit_at(1) + 1)
    (deliver,) = queue.due(LAYOUT.commit_at(1) + 1)
    assert deliver.release.late


def test_an_expired_lease_stops_releases_and_its_renewal_marks_them_late() -> None:
    queue = filled(ordered(1), ordered(2))
    queue.settle(2, LAYOUT.scheduled_at(2))
    queue.renew_lease(LAYOUT.commit_at(1), LAYOUT.scheduled_at(1))
    assert queue.deadline() == NEVER
    assert queue.due(LAYOUT.commit_at(1)) == []
    renewed_at = LAYOUT.commit_at(1) + 3
    queue.renew_lease(renewed_at + SECOND, renewed_at)
    assert queue.deadline() == LAYOUT.commit_at(1)
    first, *_ = queue.due(renewed_at)
    assert first.release.late
    (second,) = queue.due(LAYOUT.commit_at(2))
    assert not second.release.late


def test_a_lease_that_is_renewed_in_time_makes_nothing_late() -> None:
    queue = filled(ordered(1))
    queue.settle(1, LAYOUT.scheduled_at(1))
    queue.renew_lease(LAYOUT.commit_at(1) + SECOND, LAYOUT.scheduled_at(1))
    queue.renew_lease(LAYOUT.commit_at(1) + 2 * SECOND, LAYOUT.scheduled_at(1) + 1)
    (deliver,) = queue.due(LAYOUT.commit_at(1))
    assert not deliver.release.late


def test_without_a_schedule_a_message_commits_as_soon_as_it_survives() -> None:
    queue = ReleaseQueue(FormationHistory(formation(timed=False)), after=0)
    queue.complete(ordered(1))
    queue.settle(1, 12_345)
    assert queue.deadline() == 12_345
    (deliver,) = queue.due(12_345)
    assert deliver.release.commit_at == 12_345
    assert not deliver.release.late


def test_a_token_commits_by_the_timing_of_its_own_formation_though_that_has_ended() -> None:
    """A planned change takes over before K more sites are known to hold the last token of the formation before it."""
    slower = replace(
        LAYOUT,
        number=LAYOUT.number + 1,
        first_token=LAYOUT.first_token + 1,
        timing=replace(LAYOUT.timing, commit_delay=2 * LAYOUT.timing.commit_delay),
    )
    history = FormationHistory(LAYOUT)
    history.take_over(slower)
    queue = ReleaseQueue(history, after=LAYOUT.first_token - 1)
    queue.complete(ordered(1))
    history.forget_before(slower.first_token)
    queue.settle(1, LAYOUT.scheduled_at(1))
    assert queue.deadline() == LAYOUT.commit_at(1)


def test_a_token_of_a_forgotten_formation_is_late() -> None:
    queue = ReleaseQueue(FormationHistory(LAYOUT), after=LAYOUT.first_token - 1)
    queue.complete(replace(ordered(1), formation=LAYOUT.number + 1))
    queue.settle(1, LAYOUT.scheduled_at(1))
    (deliver,) = queue.due(LAYOUT.commit_at(1))
    assert deliver.release.late


def test_half_of_the_longest_lag_counts_until_it_is_taken() -> None:
    """A stall is short: the next release is in time again."""
    queue = filled(ordered(1), ordered(2))
    queue.settle(2, LAYOUT.scheduled_at(2))
    queue.due(LAYOUT.commit_at(1) + 300)
    queue.due(LAYOUT.commit_at(2) + 10)
    assert queue.take_lag() == 150
    assert queue.take_lag() == 10


def test_the_present_formation_is_known_however_many_past_ones_were_adopted() -> None:
    """A site that catches up across many formations must not call everything late after it."""
    history = FormationHistory(LAYOUT)
    for number in range(LAYOUT.number + 1, LAYOUT.number + 2 * FORMATIONS_MAX):
        history.note(replace(LAYOUT, number=number))
    queue = ReleaseQueue(history, after=LAYOUT.first_token - 1)
    queue.complete(ordered(1))
    queue.settle(1, LAYOUT.scheduled_at(1))
    (deliver,) = queue.due(LAYOUT.commit_at(1))
    assert not deliver.release.late
