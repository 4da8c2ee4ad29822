"""A site follows one formation store. Decision 63, One store."""

from dataclasses import replace

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.nodes.coordinator.followed_stores import FollowedStores
from fairtape.ring.membership.formation import STORES_MAX
from fairtape.ring.membership.layout import decode_formation
from fairtape.simulation.simulated_store import MemoryFormationStore
from fairtape.wire.membership import (
    Fence,
    Install,
    MembershipMessage,
    MembershipState,
    OperatorCommand,
    OperatorVerb,
    SiteReport,
    decode_membership,
)
from unit.nodes.test_coordinator_server import NOW, OPERATOR, Served, newborn
from unit.nodes.test_site import FIRST, ActiveSite
from unit.ring.loop_values import formation_of, report_of

LED_AT = NOW + 100 * MILLISECOND
OURS, THEIRS, THIRD = 1, 2, 3
ADOPT = OperatorCommand(0, 0, OPERATOR, OperatorVerb.ADOPT, OURS)


def leading(store: MemoryFormationStore | None = None) -> Served:
    served = Served(101, store or MemoryFormationStore(OURS))
    served.run(NOW, LED_AT)
    served.sent.clear()
    return served


def said(served: Served) -> list[MembershipMessage]:
    return [decode_membership(datagram) for effect in served.sent for datagram in effect.datagrams]


def following(store: int, site: int = 1, **changes: object) -> SiteReport:
    return report_of(site, store=store, **changes)


def stores_of(*recorded: int) -> FollowedStores:
    stores = FollowedStores()
    stores.lead(OURS, formation_of(1, 2, 3, stores=recorded) if recorded else None)
    return stores


def test_a_leader_of_another_store_says_nothing_to_a_site() -> None:
    served = leading()
    for site in (1, 2, 3):
        served.receive(following(THEIRS, site, term=7), LED_AT)
    served.run(LED_AT, LED_AT + 4 * SECOND)
    assert said(served) == []
    assert served.store.log == []
    assert served.server.leads(LED_AT + 4 * SECOND - 10 * MILLISECOND)  # nor does another store's term count
    assert served.server.sites_of_other_stores == (1, 2, 3)
    assert sum("follows another formation store" in notice for notice in served.notices) == 1


def test_no_first_formation_is_made_while_a_site_follows_another_store() -> None:
    served = leading()
    served.receive(following(THEIRS), LED_AT)
    for site in (2, 3):
        served.receive(newborn(site), LED_AT)
    served.run(LED_AT, LED_AT + 4 * SECOND)
    assert served.store.log == []


def test_a_store_that_the_operator_declares_lost_is_replaced() -> None:
    """All sites are stopped in its name, and the formation names both stores."""
    served = leading()
    for site in (1, 2, 3):
        served.receive(following(THEIRS, site), LED_AT)
    served.receive(ADOPT, LED_AT)
    for site in (1, 2, 3):
        served.receive(following(THEIRS, site), LED_AT + 1)
    fences = [message for message in said(served) if isinstance(message, Fence)]
    assert {(fence.formation, fence.store) for fence in fences} == {(3, THEIRS)}
    for site in (1, 2, 3):
        served.receive(following(THEIRS, site, membership_state=MembershipState.FENCED), LED_AT + 2)
    installs = [message for message in said(served) if isinstance(message, Install)]
    assert {install.store for install in installs} == {THEIRS}
    formation = decode_formation(installs[0].layout)
    assert (formation.number, formation.stores, formation.broken) == (4, (OURS, THEIRS), False)
    assert formation.first_token == 21


def test_a_store_that_replaces_a_lost_one_makes_no_first_formation() -> None:
    """The sites that followed the lost one have an order, and may report later than those that have none."""
    served = leading()
    served.receive(following(THEIRS), LED_AT)
    served.receive(ADOPT, LED_AT + 1)
    for site in (2, 3):
        served.receive(newborn(site), LED_AT + 2)
    served.run(LED_AT, LED_AT + 4 * SECOND)
    assert served.store.log == []


def test_only_the_store_that_the_operator_names_goes_on() -> None:
    """Each of two stores may have a leader, and both hear the operator."""
    served = leading()
    for site in (1, 2, 3):
        served.receive(following(THEIRS, site), LED_AT)
    served.receive(replace(ADOPT, site=THIRD), LED_AT + 1)
    served.run(LED_AT, LED_AT + 5 * SECOND)
    assert served.store.log == []
    assert served.server.sites_of_other_stores == (1, 2, 3)


def test_what_a_site_reported_before_it_followed_another_store_counts_no_more() -> None:
    served = leading()
    served.receive(newborn(2), LED_AT)
    served.receive(following(THEIRS, 2), LED_AT + 1)
    assert served.server.primary.known == {}


def test_leases_of_another_store_may_last_until_it_is_declared_lost() -> None:
    """Its leader may have granted them until now, however long this server has led."""
    served = leading()
    served.run(LED_AT, LED_AT + 5 * SECOND)
    served.receive(following(THEIRS), LED_AT + 5 * SECOND)
    served.receive(ADOPT, LED_AT + 5 * SECOND)
    served.receive(following(THEIRS, membership_state=MembershipState.FENCED), LED_AT + 5 * SECOND + 1)
    served.run(LED_AT + 5 * SECOND, LED_AT + 7 * SECOND)
    assert served.store.log == []
    served.run(LED_AT + 7 * SECOND, LED_AT + 9 * SECOND)
    assert [entry.loop for entry in served.store.log] == [0]


def test_a_store_of_which_nothing_is_known_is_not_adopted_while_sites_follow_both() -> None:
    stores = stores_of()
    assert stores.obeys(following(OURS, 1))
    assert not stores.obeys(following(THEIRS, 2))
    notice = stores.adopt()
    assert notice is not None
    assert "nothing is adopted" in notice
    assert not stores.obeys(following(THEIRS, 2))
    assert stores_of().adopt() is None


def test_a_later_leader_knows_which_stores_were_replaced() -> None:
    stores = stores_of(OURS, THEIRS)
    assert stores.obeys(following(THEIRS))
    assert not stores.is_declared_lost(THEIRS)
    assert not stores.obeys(following(THIRD))
    assert stores.identities == (OURS, THEIRS)


def test_a_formation_names_a_limited_number_of_stores() -> None:
    stores = stores_of(OURS, *range(10, 10 + STORES_MAX - 1))
    stores.obeys(following(THEIRS))
    stores.adopt()
    assert stores.identities == (OURS, THEIRS, *range(10, 10 + STORES_MAX - 2))


def test_a_site_follows_the_store_of_its_formation() -> None:
    active = ActiveSite()
    assert active.report().store == 0
    active.install(replace(FIRST, stores=(OURS,)), store=OURS)
    assert active.report(NOW + SECOND).store == OURS


def test_a_site_follows_the_store_in_whose_name_an_older_formation_came() -> None:
    active = ActiveSite()
    active.install(FIRST, store=OURS)
    assert active.report(NOW + SECOND).store == OURS


def test_a_site_refuses_what_another_store_decides() -> None:
    """Also in a later term, which it does not note."""
    active = ActiveSite()
    active.install(replace(FIRST, stores=(OURS,)), store=OURS)
    second = replace(FIRST, number=2, first_token=40, stores=(THEIRS,))
    active.install(second, term=9, store=THEIRS)
    active.receive(Fence(0, 1, 101, 0, 9, THEIRS))
    report = active.report(NOW + SECOND)
    assert (report.formation, report.membership_state, report.term) == (1, MembershipState.MEMBER, 1)
    assert active.site.counts["other_store"] == 2
    assert len(active.site.warnings) == 1


def test_a_site_follows_the_store_that_replaces_its_own() -> None:
    """In the name of the lost one; what still comes in that name is refused without a warning."""
    active = ActiveSite()
    active.install(replace(FIRST, stores=(OURS,)), store=OURS)
    second = replace(FIRST, number=2, stores=(THEIRS, OURS), broken=True)
    active.install(second, term=2, store=OURS)
    assert active.report(NOW + SECOND).store == THEIRS
    active.receive(Fence(0, 2, 101, 0, 9, OURS))
    assert active.report(NOW + 2 * SECOND).membership_state is MembershipState.MEMBER
    assert active.site.warnings == ()
