"""A site: reports, leases, fences and formations of the reformation servers."""

from dataclasses import replace

from fairtape.core.effects import LOOP_CHANNEL, FetchChunks, Multicast, Recovered, Send
from fairtape.core.entries import Extract, Position
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.nodes.clock_bound import ClockBoundEstimator
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.site import Site, SiteConfig
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import encode_formation
from fairtape.wire.membership import (
    CatchUp,
    Fence,
    Grant,
    Install,
    MembershipMessage,
    MembershipRequest,
    MembershipState,
    SiteReport,
    decode_membership,
    is_membership,
)
from fairtape.wire.seals import Keys
from unit.ring.loop_values import TIMING, formation_of

NOW: Instant = 100 * SECOND
NOTHING = Extract([], Position(0, 0), 0, exhausted=True)
KEYS = Keys.from_secret(b"sites", (1, 2, 3, 101, 102), (201,))
FIRST = formation_of(1, 2, 3, number=1, first_token=1, first_sequence=1, starts_at=NOW + SECOND, keeper=1)


class Clock:
    """The bound of the site's clock."""

    bound = 0


class ActiveSite:
    """A site, and the datagrams of servers and other sites to it."""

    def __init__(self, me: int = 2, *, durable: bool = True) -> None:
        self.clock = Clock()
        self.site = Site(
            SiteConfig(me=me, reformers=(101, 102), timing=TIMING, durable=durable),
            keys=KEYS,
            born_at=NOW,
            recovered=Recovered.nothing(),
            clock_bound=lambda: self.clock.bound,
        )
        self._boxes: dict[int, MessageAuthenticator] = {}

    def receive(self, message: MembershipMessage, now: Instant = NOW) -> None:
        box = self._boxes.setdefault(
            message.sender, MessageAuthenticator(me=message.sender, keys=KEYS, peers=(), first_serial=now)
        )
        self.site.receive(box.for_membership(message), now)

    def install(
        self, formation: Formation, now: Instant = NOW, *, final: bool = True, term: int = 1, store: int = 0
    ) -> None:
        layout = encode_formation(formation)
        self.receive(Install(0, formation.number, 101, term, final, layout, store), now)

    def report(self, now: Instant = NOW) -> SiteReport:
        """Its report when it is woken."""
        self.site.wake(now)
        said = [
            decode_membership(datagram)
            for effect in self.site.drain()
            if isinstance(effect, Send) and effect.to == 101
            for datagram in effect.datagrams
            if is_membership(datagram)
        ]
        reports = [each for each in said if isinstance(each, SiteReport) and each.loop == 0]
        return reports[-1]

    def lease(self, now: Instant, *, formation: int = 1) -> Instant:
        """Request a lease and get it; returns when it ends."""
        self.site._report_at = now
        asked = self.report(now).asked_at
        self.receive(Grant(0, formation, 101, 0, 1, asked, asked, 0, TIMING.lease_period), now)
        assert self.site.receiver is not None
        return self.site.receiver.lease_until


def test_a_site_is_newborn_until_its_first_formation() -> None:
    active = ActiveSite()
    assert active.report().membership_state is MembershipState.NEWBORN
    active.install(FIRST)
    assert active.report().membership_state is MembershipState.MEMBER


def test_an_incarnation_that_the_formation_does_not_list_has_lost_its_memory() -> None:
    roll = tuple(1 for _ in FIRST.members)
    for durable, membership_state in ((True, MembershipState.RESTARTED), (False, MembershipState.OBSERVER)):
        active = ActiveSite(durable=durable)
        active.install(formation_of(1, 2, 3, number=1, roll=roll, first_token=1, first_sequence=1))
        assert active.report().membership_state is membership_state


def test_a_lease_starts_when_it_was_requested() -> None:
    active = ActiveSite()
    active.install(FIRST)
    assert active.lease(NOW + MILLISECOND) == NOW + MILLISECOND + TIMING.lease_period


def test_a_grant_without_a_request_is_no_lease() -> None:
    active = ActiveSite()
    active.install(FIRST)
    active.receive(Grant(0, 1, 101, 0, 1, NOW + SECOND, NOW, 0, TIMING.lease_period))
    assert active.site.receiver is not None
    assert active.site.receiver.lease_until == 0


def test_a_clock_error_above_the_limit_shortens_the_lease() -> None:
    """Whether it was above the limit at the request, or is now."""
    active = ActiveSite()
    active.install(FIRST)
    until = active.lease(NOW)
    active.clock.bound = TIMING.clock_error_max + 3 * MILLISECOND
    active.site._clock_estimator = ClockBoundEstimator()
    active.site.wake(NOW + 1)
    assert active.site.receiver is not None
    assert active.site.receiver.lease_until == until - 3 * MILLISECOND
    asked = active.lease(NOW + 10 * MILLISECOND)
    active.clock.bound = 0
    active.site.wake(NOW + 11 * MILLISECOND)
    assert active.site.receiver.lease_until == asked + 3 * MILLISECOND
    assert active.site.receiver.lease_until == NOW + 7 * MILLISECOND + TIMING.lease_period


def test_a_member_with_a_bad_clock_withdraws_and_others_do_not_join() -> None:
    active = ActiveSite()
    active.install(FIRST)
    active.clock.bound = TIMING.clock_error_max + 1
    assert active.report().request is MembershipRequest.WITHDRAW
    active.install(formation_of(1, 3, number=2, first_token=1, first_sequence=1, keeper=1))
    assert active.report().request is MembershipRequest.NOTHING


def test_a_clock_that_was_set_back_does_not_stop_reports() -> None:
    active = ActiveSite()
    active.report(NOW)
    earlier = NOW - 10 * SECOND
    active.site.receive(b"anything", earlier)
    assert active.report(earlier).asked_at == earlier


def test_a_fence_stops_a_member_until_the_next_formation() -> None:
    active = ActiveSite()
    active.install(FIRST)
    active.receive(Fence(0, 1, 101, 0, 1))
    assert active.report().membership_state is MembershipState.FENCED
    active.install(formation_of(2, 3, number=2, first_token=1, first_sequence=1, keeper=2))
    assert active.report().membership_state is MembershipState.MEMBER


def test_only_reformation_servers_of_the_latest_term_decide() -> None:
    active = ActiveSite()
    active.install(FIRST, term=5)
    active.receive(Fence(0, 1, 3, 0, 9))
    assert active.site.counts["not_a_reformer"] == 1
    active.receive(Fence(0, 1, 102, 0, 4))
    assert active.site.counts["outdated"] == 1
    assert active.report().membership_state is MembershipState.MEMBER


def test_a_site_prepares_for_a_formation_and_takes_no_turn_beyond_it() -> None:
    active = ActiveSite()
    active.install(FIRST)
    relief = formation_of(2, 3, number=2, first_token=40, first_sequence=0, leaving=(1,))
    active.install(relief, final=False)
    assert active.report().prepared == 2
    active.install(relief)
    assert (active.report().prepared, active.report(NOW + SECOND).formation) == (0, 2)


def test_a_site_that_declared_a_failure_prepares_for_no_change() -> None:
    active = ActiveSite()
    active.install(FIRST)
    active.lease(NOW)
    active.receive(Fence(0, 1, 101, 0, 1))
    active.install(formation_of(2, 3, number=2, first_token=40, first_sequence=0), final=False)
    assert active.report().prepared == 0


def test_a_site_that_leaves_takes_its_last_turns_and_can_still_be_fenced() -> None:
    active = ActiveSite()
    active.install(FIRST)
    active.install(formation_of(1, 3, number=2, first_token=40, first_sequence=0, leaving=(2,)))
    assert active.report().membership_state is MembershipState.OBSERVER
    assert active.site.receiver is not None
    assert active.site.membership.has_turns
    active.receive(Fence(0, 2, 101, 0, 1))
    assert active.report().membership_state is MembershipState.FENCED


def test_a_catch_up_request_is_answered_from_the_journal() -> None:
    active = ActiveSite()
    active.install(FIRST)
    active.receive(CatchUp(0, 0, 3, 0, 0, 4))
    (fetch,) = (effect for effect in active.site.drain() if isinstance(effect, FetchChunks))
    active.site.fetched_chunks(fetch.ticket, NOTHING, NOW)
    answered = [effect for effect in active.site.drain() if isinstance(effect, Send) and effect.to == 3]
    assert len(answered) == 1


def test_noise_is_counted_and_changes_nothing() -> None:
    active = ActiveSite()
    for noise in (b"", b"noise", bytes(200)):
        active.site.receive(noise, NOW)
    assert active.report().membership_state is MembershipState.NEWBORN


def test_a_request_that_cannot_be_answered_does_not_stay_pending() -> None:
    """A site that rolls back has no receiver when its journal was read. It serves the same site afterwards."""
    active = ActiveSite()
    active.install(FIRST)
    site = active.site
    site.drain()
    active.receive(CatchUp(0, 1, 3, 0, 0, 64))
    (fetch,) = [effect for effect in site.drain() if isinstance(effect, FetchChunks)]
    second = formation_of(1, 2, 3, number=2, first_token=6, first_sequence=6, starts_at=NOW + 2 * SECOND, keeper=1)
    site._roll_back(5, second)
    site.recovered(replace(Recovered.nothing(), token=5, sequence=6, released_through=3, number=1), NOW)
    site.fetched_chunks(fetch.ticket, NOTHING, NOW)  # reads are answered in their order
    site.fetched(0, [], NOW)
    site.drain()
    active.receive(CatchUp(0, 2, 3, 0, 0, 64), NOW + SECOND)
    assert [effect.ticket for effect in site.drain() if isinstance(effect, FetchChunks)] == [fetch.ticket + 1]


def test_a_junction_passes_the_secondary_token_in_the_step_that_completes_the_primary_one() -> None:
    """The only member of the primary loop receives nothing that would wake it again."""
    active = ActiveSite(2)
    begins_at = NOW + 10 * MILLISECOND
    primary = formation_of(2, number=1, first_token=1, first_sequence=1, starts_at=begins_at, keeper=2)
    active.install(primary)
    active.install(formation_of(2, 5, number=1, loop=1, stride=1, first_token=1, first_sequence=1, starts_at=begins_at))
    active.lease(NOW + MILLISECOND)
    active.site.drain()
    active.site.advance(begins_at)
    sent = [effect.channel for effect in active.site.drain() if isinstance(effect, Multicast)]
    assert sorted(channel >= LOOP_CHANNEL for channel in sent) == [False, True]
