"""Decision 60, Long release queues: what waits beyond a limit is read again from the journal."""

from dataclasses import replace
from random import Random

import pytest

from fairtape.core.effects import Deliver, Fetch, FormationChange, Ordered, Span
from fairtape.core.entries import decode_entry
from fairtape.core.instants import SECOND, Instant
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.formation_history import FormationHistory
from fairtape.ring.membership.layout import encode_formation
from fairtape.ring.receiver import release
from fairtape.ring.receiver.release import HELD_MAX, SLICE_SIZE, SLICE_TOKENS, TOKEN_SIZE, ReleaseQueue, size_of
from fairtape.simulation.simulated_journal import SimulatedJournal
from unit.ring.ring_values import SOURCE, formation

LAYOUT = formation()
BODY = b"\0\1" + bytes(998)


def ordered(token: int, count: int = 1) -> Ordered:
    spans = (Span(SOURCE, 1, token, count, token, (BODY,) * count, (1,) * count),) if count else ()
    return Ordered(0, LAYOUT.number, token, token, count, LAYOUT.scheduled_at(token), spans)


def change_to(following: Formation, sequence: int) -> FormationChange:
    layout, token = encode_formation(following), following.first_token
    return FormationChange(0, following.number, token, sequence, following.broken, layout, following.starts_at)


class Site:
    """A queue, and the journal that its entries are in."""

    def __init__(self, held_max: int | None, *, after: int = LAYOUT.first_token - 1) -> None:
        self.queue = ReleaseQueue(FormationHistory(LAYOUT), after=after)
        self.queue.held_max = held_max
        self.journal: list[Ordered] = []
        self.released: list[Deliver] = []
        self.held_most = 0
        self.slices: list[int] = []

    def complete(self, token: Ordered) -> None:
        if token.count:
            self.journal.append(token)
        self.queue.complete(token)

    def act(self, now: Instant, survives_through: int) -> None:
        """Turns at one instant, as long as there is anything to do."""
        while True:
            self.queue.settle(survives_through, now)
            released = self.queue.due(now)
            self.released += released
            self.slices.append(len(released))
            wanted = self.queue.wanted_read()
            if wanted is not None:
                self.queue.add_read(self._read(wanted), now)
            self.held_most = max(self.held_most, self.queue.held)
            if not released and wanted is None:
                return

    def _read(self, wanted: Fetch) -> list[Ordered]:
        found = [entry for entry in self.journal if entry.token > wanted.token]
        return found[: max(wanted.size_max // (20 * TOKEN_SIZE), 1)]

    @property
    def history(self) -> list[tuple[int, Instant, Instant, bool]]:
        return [
            (each.ordered.token, each.release.commit_at, each.release.released_at, each.release.late)
            for each in self.released
        ]


@pytest.mark.parametrize("seed", range(20))
def test_the_limit_changes_neither_order_nor_instants_nor_lateness(seed: int) -> None:
    """The same tokens, doubts and leases with and without a limit. Some tokens survive late, some are empty."""
    chance = Random(seed)
    sites = [Site(None), Site(chance.choice((3, 10, 50)) * 2_000)]
    excess_until = 0
    survives = 0
    for token in range(1, 400):
        now = LAYOUT.scheduled_at(token)
        made = ordered(token, chance.choice((0, 1, 1, 3)))
        if chance.random() < 0.02:
            excess_until = token + chance.randrange(100)
        if chance.random() < 0.9:
            survives = max(survives, token - chance.choice((1, 1, 1, 2, 20)))
        for site in sites:
            site.complete(made)
            site.queue.set_clock_excess(SECOND if token < excess_until else 0, now)
            site.act(now, survives)
    for site in sites:
        site.queue.set_clock_excess(0, LAYOUT.commit_at(400))
        site.act(LAYOUT.commit_at(400), 400)
    free, limited = sites
    assert [token for token, *_ in limited.history] == [entry.token for entry in limited.journal]
    assert limited.history == free.history
    assert free.held_most > limited.held_most
    assert limited.queue.unread is None
    assert limited.queue.held < TOKEN_SIZE * 400
    assert {late for *_, late in free.history} == {False, True}


def test_memory_is_bounded_however_long_a_clock_is_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "POSITIONS_MAX", 100)
    limit = 20 * size_of(ordered(1))
    site = Site(limit)
    site.queue.set_clock_excess(SECOND, LAYOUT.starts_at)
    for token in range(1, 3_000):
        site.complete(ordered(token))
        site.act(LAYOUT.scheduled_at(token), token)
    assert site.released == []
    assert site.held_most <= limit + size_of(ordered(1))
    assert site.queue.unread is not None
    assert site.queue.unread.positions <= 200
    assert all(size <= limit for _, size, limit in site.queue.queue_sizes())
    ends_at = LAYOUT.commit_at(3_000)
    site.queue.set_clock_excess(0, ends_at)
    site.act(ends_at, 3_000)
    assert [each.ordered.token for each in site.released] == list(range(1, 3_000))
    assert all(each.release.late for each in site.released)
    assert site.held_most <= limit + max(release.READ_MAX, size_of(ordered(1)))


def test_a_restarted_site_reads_what_it_had_not_released_in_pieces() -> None:
    site = Site(20 * size_of(ordered(1)))
    site.journal = [ordered(token) for token in range(1, 1_000)]
    site.queue.continue_unread(999)
    for token in range(1_000, 1_010):
        site.complete(ordered(token))
    site.act(LAYOUT.commit_at(1_010), 1_010)
    assert [each.ordered.token for each in site.released] == list(range(1, 1_010))
    assert site.held_most < 100 * size_of(ordered(1))


def test_a_restarted_site_releases_by_the_formation_in_force_that_began_before() -> None:
    """Decision 51, Pace: the change to it is in the journal before what was released, and a later one shortens Δ_C."""
    slow = replace(LAYOUT, timing=replace(LAYOUT.timing, commit_delay=3 * LAYOUT.timing.commit_delay))
    fast = replace(LAYOUT, number=LAYOUT.number + 1, first_token=5)
    journal = SimulatedJournal()
    for each in (slow, fast):
        tokens = [ordered(token) for token in range(each.first_token, each.first_token + 4)]
        journal.append(change_to(each, sequence=each.first_token))
        for token in tokens:
            journal.append(replace(token, formation=each.number))
    queue = ReleaseQueue(FormationHistory(fast), after=2)
    queue.held_max = HELD_MAX
    queue.continue_unread(8)
    wanted = queue.wanted_read()
    assert wanted is not None
    encoded = journal.after(wanted.token, wanted.formation, wanted.size_max)
    now = slow.commit_at(8)
    queue.add_read(map(decode_entry, encoded), now)
    queue.settle(8, now)
    delays = [each.release.commit_at - each.ordered.acknowledged_at for each in queue.due(now)]
    assert delays == [slow.timing.commit_delay] * 2 + [fast.timing.commit_delay] * 4


def test_a_turn_releases_a_slice_and_the_rest_is_due_at_once() -> None:
    site = Site(None)
    count = 3 * SLICE_TOKENS
    for token in range(1, count + 1):
        site.complete(ordered(token))
    now = LAYOUT.commit_at(count)
    site.queue.settle(count, now)
    assert len(site.queue.due(now)) == SLICE_TOKENS
    assert site.queue.deadline() <= now
    site.act(now, count)
    assert [slice_ for slice_ in site.slices if slice_] == [SLICE_TOKENS] * 2
    large = [ordered(token, SLICE_SIZE // 2_000) for token in range(count + 1, count + 5)]
    for each in large:
        site.complete(each)
    now = LAYOUT.commit_at(count + 5)
    site.queue.settle(count + 5, now)
    assert len(site.queue.due(now)) == 2
