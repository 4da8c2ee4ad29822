"""A receiver that goes from one formation to the next by a planned change."""

from dataclasses import replace

import pytest

from fairtape.core.effects import Recovered
from fairtape.core.instants import SECOND
from fairtape.nodes.membership import Membership
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.receiver import Receiver
from fairtape.ring.membership.formation import Formation
from fairtape.wire.frames import Ack
from unit.ring.ring_values import KEYS, STARTS_AT, Signer, ack, controls, formation, receive, run_until

PRESENT = formation((1, 2, 3))
NEXT = replace(PRESENT, number=8, members=(1, 2), first_token=7, starts_at=PRESENT.scheduled_at(7))
LOADED = 40_000  # microseconds


def active_receiver(me: int, layout: Formation) -> Receiver:
    membership = Membership(me=me, incarnation=1)
    site = Receiver(
        me=me,
        formation=layout,
        keys=KEYS,
        born_at=STARTS_AT - SECOND,
        recovered=Recovered.nothing(layout.first_token, 1),
        authenticator=MessageAuthenticator(me=me, keys=KEYS, peers=KEYS.sites, first_serial=1),
        membership=membership,
    )
    site.renew_lease(STARTS_AT + 100 * SECOND, STARTS_AT - SECOND)
    return site


@pytest.mark.parametrize("known_at", [5, 6], ids=["heard before the change is known", "heard after it is known"])
def test_the_load_of_a_member_is_forgotten_when_a_planned_change_removes_it(known_at: int) -> None:
    site, signer = active_receiver(1, PRESENT), Signer()
    reported: dict[int, Ack] = {}
    for token in range(1, 11):
        layout = PRESENT if token < NEXT.first_token else NEXT
        now = layout.scheduled_at(token)
        if token == known_at:
            site.take_over(NEXT, now)
        if layout.holder(token) == site.me:
            sent = controls(effect for _, effect in run_until(site, now))
            reported |= {each.token: each for each in sent if isinstance(each, Ack)}
        else:
            lag = LOADED if layout.holder(token) == 3 else 0
            receive(site, signer.sign(ack(layout, token, 1, release_lag_us=lag)), now)
            site.drain()
    assert {token: each.release_lag_us for token, each in reported.items()} == {1: 0, 4: LOADED, 7: 0, 9: 0}
