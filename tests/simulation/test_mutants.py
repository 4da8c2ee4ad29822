"""Deliberately broken machines must be detected, each by the checker of the guarantee that it breaks."""

import pytest

from fairtape.core.instants import Instant
from fairtape.nodes.receiver import Receiver
from fairtape.nodes.source_group import SourceGroup
from fairtape.ring.receiver.release import ReleaseQueue
from fairtape.ring.receiver.resilience import Resilience
from fairtape.ring.sender.retention import RetentionBuffer
from fairtape.simulation.cluster_run import run_cluster, run_ring
from fairtape.wire.frames import Ack

SEEDS = range(1, 60)
ack_received, settle = Resilience.ack_received, ReleaseQueue.settle


def claims_too_much(resilience: Resilience, token: int) -> None:
    ack_received(resilience, token)
    resilience.stable_through += 1


def trusts_one_site_too_few(resilience: Resilience, token: int) -> None:
    ack_received(resilience, token)
    resilience.learn(token - max(resilience._formations.of(token).resilience - 1, 0))


def commits_a_nanosecond_early(releases: ReleaseQueue, survives_through: int, now: Instant) -> None:
    known = len(releases._ready)
    settle(releases, survives_through, now)
    for position in range(known, len(releases._ready)):
        ordered, commit_at, late = releases._ready[position]
        releases._ready[position] = ordered, commit_at - 1, late


def forgets_what_one_site_holds(kept: RetentionBuffer, token: int) -> None:
    kept.settle(max((end for by, end in kept._proofs if by <= token), default=0))


def settles_for_all_sources_at_once(group: SourceGroup, ack: Ack, now: Instant) -> None:
    for source in group.sources.values():
        source.ack_verified(ack.formation, ack.token + source._transmission._kept._resilience, now)
        group._collect(source)


@pytest.mark.parametrize(
    ("machine", "part", "broken", "guarantee"),
    [
        (Resilience, "ack_received", claims_too_much, "TrueClaims"),
        (Resilience, "ack_received", trusts_one_site_too_few, "SurvivesK"),
        (ReleaseQueue, "settle", commits_a_nanosecond_early, "NeverEarly"),
        (RetentionBuffer, "ack_received", forgets_what_one_site_holds, "KeptUntilHeld"),
        (SourceGroup, "_settle", settles_for_all_sources_at_once, "KeptUntilHeld"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_machine_is_detected_by(
    machine: type, part: str, broken: object, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, part, broken)
    outcomes = (run_ring(seed) for seed in SEEDS)
    found = next(outcome for outcome in outcomes if outcome.failed)
    assert found.guarantee == guarantee, found.text


def test_a_source_that_discards_too_soon_is_detected_in_a_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetentionBuffer, "ack_received", forgets_what_one_site_holds)
    found = next(outcome for outcome in map(run_cluster, SEEDS) if outcome.failed)
    assert found.guarantee == "KeptUntilHeld", found.text


def test_a_claim_without_a_proof_of_the_new_formation_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members of a new formation may still be catching up."""
    monkeypatch.setattr(Receiver, "stable_through", property(lambda site: site._resilience.stable_through))
    outcomes = (run_cluster(seed) for seed in SEEDS)
    found = next(outcome for outcome in outcomes if outcome.failed)
    assert found.guarantee == "TrueClaims", found.text
