"""A planned formation that a site knows and that has not begun: the present one counts until its last token."""

from fairtape.core.effects import Recovered
from fairtape.core.instants import SECOND, Instant
from fairtape.nodes.membership import Membership
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.receiver import Receiver
from fairtape.wire.frames import Hole, Progress
from unit.ring.ring_values import KEYS, STARTS_AT, TIMING, Signer, block, controls, formation, named, receive

PRESENT = formation()
PLANNED = formation(number=8, first_token=101, starts_at=PRESENT.scheduled_at(101), timing=TIMING.slowed(2, 0))
T_R = TIMING.retry_period


def site(me: int) -> Receiver:
    membership = Membership(me=me, incarnation=1)
    made = Receiver(
        me=me,
        formation=PRESENT,
        keys=KEYS,
        born_at=STARTS_AT - SECOND,
        recovered=Recovered.nothing(),
        authenticator=MessageAuthenticator(me=me, keys=KEYS, peers=KEYS.sites, first_serial=1),
        membership=membership,
    )
    made.renew_lease(STARTS_AT + SECOND, STARTS_AT - SECOND)
    made.take_over(PLANNED, STARTS_AT - SECOND)
    made.drain()
    return made


def acknowledged(me: int, now: Instant) -> Receiver:
    """A site that holds a block, acknowledged by Ack(1)."""
    made = site(me)
    receive(made, block(1), now - 1)
    receive(made, Signer().ack(PRESENT, 1, 1, [named(1)]), now)
    made.drain()
    return made


def test_progress_names_the_formation_of_the_next_token() -> None:
    """A source that heard of a later formation would ignore the acknowledgments that are still to come."""
    holder = acknowledged(2, STARTS_AT)
    holder.receive(block(1), STARTS_AT + TIMING.token_period)
    assert [each.formation for each in controls(holder.drain()) if isinstance(each, Progress)] == [PRESENT.number]


def test_a_hole_names_the_formation_of_the_next_token() -> None:
    holder = site(1)
    holder.receive(block(3), STARTS_AT - T_R)
    holder.wake(STARTS_AT - T_R + TIMING.request_delay)
    assert [each.formation for each in controls(holder.drain()) if isinstance(each, Hole)] == [PRESENT.number]
