"""The results of a drill: a failed site that does not come back is a result, and hides no other one."""

from pathlib import Path

import pytest

import unit.journal.journal_values as values
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.deployment.operations.drills import DrillPlan, DrillResult, DrillTarget, Fault
from fairtape.deployment.status import DecisionStatus, SiteStatus
from fairtape.deployment.status_files import RunFolder, StatusFile
from unit.deployment.status_values import load_status, reformer_status, site_status

STRUCK_AT = 100 * SECOND
HEALED_AT = 103 * SECOND
WRITTEN_AT = 110 * SECOND
LOADS = {"XNYS": load_status("XNYS", 101, written_at=WRITTEN_AT, incarnation=7, published=40, acknowledged=40)}


@pytest.fixture
def target(tmp_path: Path) -> DrillTarget:
    return DrillTarget(create_deployment(tmp_path / "new", Draft(loops=(3,), profile="wan", reformers=1)))


def post_site(
    target: DrillTarget, name: str, *, held: int = 40, written_at: int = WRITTEN_AT, **others: object
) -> SiteStatus:
    """Write the status of a site, as a process that runs: this one."""
    known: dict[str, object] = {
        "released_at": WRITTEN_AT, "sequence": held, "released_sequence": held, "digest": f"{held}",
        "streams": {101: (7, held + 1)},
    }  # fmt: skip
    status = site_status(name, target.deployment.nodes[name].number, written_at=written_at, **(known | others))
    StatusFile(RunFolder(target.deployment.folder), name).close(status)
    return status


def post_leader(target: DrillTarget) -> None:
    decision = DecisionStatus(
        loop=0,
        formation=2,
        members=("s1", "s2"),
        broken=False,
        cause="silence",
        began_at=STRUCK_AT + 140 * MILLISECOND,
        decided_at=STRUCK_AT + 150 * MILLISECOND,
        silent=("s3",),
    )
    status = reformer_status("x1", 901, written_at=WRITTEN_AT, decisions=(decision,))
    StatusFile(RunFolder(target.deployment.folder), "x1").close(status)


def result_of(target: DrillTarget, **others: object) -> DrillResult:
    return DrillResult(
        plan=DrillPlan(fault=Fault.KILL, victims=("s3",)),
        victims=[target.deployment.nodes["s3"]],
        before={},
        formation=1,
        struck_at=STRUCK_AT,
        healed_at=HEALED_AT,
        **others,  # type: ignore[arg-type]
    )


def test_a_site_that_came_back_counts_like_all_others(target: DrillTarget) -> None:
    for name in ("s1", "s2", "s3"):
        post_site(target, name, pauses=((STRUCK_AT - 1, STRUCK_AT + 160 * MILLISECOND),))
    post_leader(target)
    result = result_of(target)
    result.wait_for_return(target, LOADS)
    report = result.report(target, LOADS)
    assert (report["lost"], report["pending"], report["one_order"], report["rejoined"]) == (0, 0, True, True)
    assert report["stall_s"] == pytest.approx(0.16)
    assert (report["detect_s"], report["formation_s"]) == (pytest.approx(0.14), pytest.approx(0.15))
    assert report["formations"][0]["silent"] == ["s3"]


def test_a_site_that_does_not_come_back_is_reported_and_loses_nothing_of_the_others(target: DrillTarget) -> None:
    history = values.first(20)
    for name, count in (("s1", 20), ("s2", 20), ("s3", 5)):
        post_site(target, name, held=40 if count == 20 else 10)
        values.write(target.deployment.folder / "journals" / name, history[:count])
    post_leader(target)
    report = result_of(target, waited_until=HEALED_AT + 80 * SECOND).report(target, LOADS)
    assert (report["rejoined"], report["waited_s"], report["whole_s"]) == (False, 80.0, None)
    assert (report["lost"], report["one_order"]) == (0, True)


def test_what_was_acknowledged_and_is_missing_at_a_survivor_is_lost(target: DrillTarget) -> None:
    for name, held in (("s1", 40), ("s2", 33), ("s3", 0)):
        post_site(target, name, held=held)
        values.write(target.deployment.folder / "journals" / name, values.first(3, seed=held))
    post_leader(target)
    unheard = load_status("XLON", 102, written_at=WRITTEN_AT, published=40, acknowledged=0)
    report = result_of(target).report(target, LOADS | {"XLON": unheard})
    assert report["lost"] == 7
    assert report["pending"] == 40
    assert not report["one_order"]


def test_a_pause_that_has_not_ended_counts(target: DrillTarget) -> None:
    """Survivors that never go on have no pause between two releases."""
    meanwhile = {
        name: post_site(target, name, released_at=STRUCK_AT + 1, written_at=HEALED_AT) for name in ("s1", "s2", "s3")
    }
    post_leader(target)
    report = result_of(target, meanwhile=meanwhile).report(target, LOADS)
    assert report["stall_s"] == pytest.approx(3.0)


def test_a_site_that_is_no_member_is_named_with_its_state(target: DrillTarget) -> None:
    for name in ("s1", "s2"):
        post_site(target, name)
    post_site(target, "s3", membership_state="observer")
    post_leader(target)
    assert target.unsettled() == "s3 is observer and not a member of loop 0"
