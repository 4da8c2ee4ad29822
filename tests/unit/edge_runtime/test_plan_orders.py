"""A plan comes into force with a formation: ordered once, named by every formation since, the same bytes everywhere."""

from dataclasses import replace

import pytest

from fairtape.core.instants import MILLISECOND
from fairtape.nodes.coordinator.primary_loop import Phase, PrimaryLoopCoordinator
from fairtape.ring.membership.formation import BadFormation
from fairtape.ring.membership.layout import PLANNED, VERSION, decode_formation, encode_formation
from fairtape.wire.frames import Malformed
from fairtape.wire.membership import Install
from unit.loop_values import formation_of, report_of
from unit.test_primary_loop import NOW, led


def test_a_formation_without_a_plan_has_the_bytes_that_it_always_had() -> None:
    formation = formation_of(1, 2, 3)
    assert encode_formation(formation)[0] == VERSION
    planned = replace(formation, plan=7 << 16 | 5)
    assert encode_formation(planned)[0] == PLANNED
    assert decode_formation(encode_formation(planned)) == planned
    assert decode_formation(encode_formation(formation)) == formation


def test_a_plan_that_names_nothing_has_no_encoding_of_its_own() -> None:
    planned = encode_formation(replace(formation_of(1, 2, 3), plan=1))
    at = len(encode_formation(formation_of(1, 2, 3))) - 4 * 3
    zero = planned[:at] + bytes(4) + planned[at + 4 :]
    with pytest.raises(Malformed):
        decode_formation(zero)
    with pytest.raises(Malformed):
        decode_formation(planned[:-4])


def test_a_plan_out_of_bounds_is_refused() -> None:
    with pytest.raises(BadFormation, match="plan is -1"):
        replace(formation_of(1, 2, 3), plan=-1)


def proposal(governor: PrimaryLoopCoordinator) -> int:
    """The plan in the formation that is proposed."""
    installs = [message for _, message in governor.outbox if isinstance(message, Install) and not message.final]
    assert installs
    return decode_formation(installs[-1].layout).plan


def test_a_plan_that_is_ordered_comes_with_a_formation_that_takes_over_and_stays() -> None:
    governor = led()
    governor.change_plan(1 << 16, NOW)
    assert proposal(governor) == 1 << 16
    assert governor.formation is not None
    number = governor.formation.number + 1
    now = NOW + MILLISECOND
    for site in (1, 2, 3):
        governor.receive_report(replace(report_of(site), prepared=number), now)
    assert governor.proposal is not None
    governor.recorded(governor.proposal, now)
    assert governor.formation.plan == 1 << 16
    # The same order again changes nothing, and neither does a leader that comes after it.
    for site in (1, 2, 3):
        standing = report_of(site)
        governor.receive_report(
            replace(standing, formation=number, complete_through=governor.formation.first_token, prepared=0), now
        )
    governor.outbox.clear()
    governor.change_plan(1 << 16, now)
    assert not governor.outbox
    assert governor.phase is Phase.STEADY
    governor.lead(governor.formation, 9, now)
    assert governor.plan == 0
