"""A plan comes into force with a formation: it is named by every formation since, with the same bytes everywhere."""

from dataclasses import replace

import pytest

from fairtape.core.instants import MILLISECOND
from fairtape.nodes.coordinator.primary_loop import Phase, PrimaryLoopCoordinator
from fairtape.ring.membership.formation import BadFormation
from fairtape.ring.membership.layout import decode_formation, encode_formation, proposal_digest
from fairtape.wire.frames import Malformed
from fairtape.wire.membership import Install
from unit.nodes.test_primary_loop import NOW, led
from unit.ring.loop_values import formation_of, report_of


def test_a_plan_that_names_nothing_has_no_encoding_of_its_own() -> None:
    without = encode_formation(formation_of(1, 2, 3))
    planned = encode_formation(replace(formation_of(1, 2, 3), plan=1))
    assert planned[: len(without)] == without
    with pytest.raises(Malformed):
        decode_formation(planned[:-4] + bytes(4))
    with pytest.raises(Malformed):
        decode_formation(planned[:-4])


def test_a_plan_out_of_bounds_is_refused() -> None:
    with pytest.raises(BadFormation, match="plan is -1"):
        replace(formation_of(1, 2, 3), plan=-1)


def proposed(coordinator: PrimaryLoopCoordinator) -> Install:
    """The formation that is proposed."""
    installs = [message for _, message in coordinator.outbox if isinstance(message, Install) and not message.final]
    assert installs
    return installs[-1]


def test_an_installed_plan_comes_with_a_formation_and_stays() -> None:
    coordinator = led()
    coordinator.change_plan(1 << 16, NOW)
    assert decode_formation(proposed(coordinator).layout).plan == 1 << 16
    assert coordinator.formation is not None
    number = coordinator.formation.number + 1
    now = NOW + MILLISECOND
    digest = proposal_digest(decode_formation(proposed(coordinator).layout))
    for site in (1, 2, 3):
        coordinator.receive_report(replace(report_of(site), prepared=number, proposal=digest), now)
    assert coordinator.proposal is not None
    coordinator.recorded(coordinator.proposal, now)
    assert coordinator.formation.plan == 1 << 16
    # The same plan again changes nothing, and neither does a later leader.
    for site in (1, 2, 3):
        position = report_of(site)
        coordinator.receive_report(
            replace(position, formation=number, complete_through=coordinator.formation.first_token, prepared=0), now
        )
    coordinator.outbox.clear()
    coordinator.change_plan(1 << 16, now)
    assert not coordinator.outbox
    assert coordinator.phase is Phase.STEADY
    coordinator.lead(coordinator.formation, 9, now)
    assert coordinator.plan == 0
