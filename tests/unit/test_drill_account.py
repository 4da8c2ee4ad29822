"""What a drill tells: a failed site that does not come back is a finding, and hides no other figure."""

from pathlib import Path
from typing import Any

import pytest

import unit.journal_values as values
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.deployment.config.draft import Draft, create_deployment
from fairtape.deployment.operations.drills import DrillPlan, DrillResult, DrillTarget, Fault
from fairtape.deployment.status_files import RunFolder, Status, StatusFile

STRUCK_AT = 100 * SECOND
HEALED_AT = 103 * SECOND
WRITTEN_AT = 110 * SECOND
SOURCES: dict[str, Status] = {"XNYS": {"node": 101, "incarnation": 7, "published": 40, "acknowledged": 40}}


@pytest.fixture
def field(tmp_path: Path) -> DrillTarget:
    return DrillTarget(create_deployment(tmp_path / "new", Draft(loops=(3,), profile="wan", reformers=1)))


def page(field: DrillTarget, name: str, *, held: int = 40, **others: object) -> Status:
    """What a site says; it is written by this process, which runs."""
    number = field.deployment.nodes[name].number
    status: Status = {
        "node": number, "posture": "member", "formation": 2, "loops": {}, "written_at_ns": WRITTEN_AT,
        "released_at_ns": WRITTEN_AT, "silences_ns": [], "late": 0, "sequence": held, "released_sequence": held,
        "digest": f"{held}", "streams": {"101": (7, held + 1)},
    }  # fmt: skip
    StatusFile(RunFolder(field.deployment.folder), name).close(status | others)
    return status | others


def leader(field: DrillTarget) -> None:
    rulings: list[dict[str, Any]] = [
        {"loop": 0, "formation": 2, "began_at_ns": STRUCK_AT + 140 * MILLISECOND, "broken": False,
         "decided_at_ns": STRUCK_AT + 150 * MILLISECOND, "members": ["s1", "s2"], "silent": ["s3"], "cause": "silence"}
    ]  # fmt: skip
    status = {"leads": True, "phase": "steady", "formation": 2, "retired": [], "rulings": rulings}
    StatusFile(RunFolder(field.deployment.folder), "x1").close(status)


def account(field: DrillTarget, **others: object) -> DrillResult:
    return DrillResult(
        plan=DrillPlan(fault=Fault.KILL, victims=("s3",)),
        victims=[field.deployment.nodes["s3"]],
        before={},
        formation=1,
        struck_at=STRUCK_AT,
        healed_at=HEALED_AT,
        **others,  # type: ignore[arg-type]
    )


def test_a_site_that_came_back_counts_like_all_others(field: DrillTarget) -> None:
    for name in ("s1", "s2", "s3"):
        page(field, name, silences_ns=[(STRUCK_AT - 1, STRUCK_AT + 160 * MILLISECOND)])
    leader(field)
    known = account(field)
    known.wait_for_return(field, SOURCES)
    told = known.told(field, SOURCES)
    assert (told["lost"], told["pending"], told["one_order"], told["rejoined"]) == (0, 0, True, True)
    assert told["stall_s"] == pytest.approx(0.16)
    assert (told["detect_s"], told["formation_s"]) == (pytest.approx(0.14), pytest.approx(0.15))
    assert told["formations"][0]["silent"] == ["s3"]


def test_a_site_that_does_not_come_back_is_told_and_loses_nothing_of_the_others(field: DrillTarget) -> None:
    history = values.first(20)
    for name, count in (("s1", 20), ("s2", 20), ("s3", 5)):
        page(field, name, held=40 if count == 20 else 10)
        values.write(field.deployment.folder / "journals" / name, history[:count])
    leader(field)
    told = account(field, waited_until=HEALED_AT + 80 * SECOND).told(field, SOURCES)
    assert (told["rejoined"], told["waited_s"], told["whole_s"]) == (False, 80.0, None)
    assert (told["lost"], told["one_order"]) == (0, True)


def test_what_was_acknowledged_and_is_missing_at_a_survivor_is_lost(field: DrillTarget) -> None:
    for name, held in (("s1", 40), ("s2", 33), ("s3", 0)):
        page(field, name, held=held)
        values.write(field.deployment.folder / "journals" / name, values.first(3, seed=held))
    leader(field)
    told = account(field).told(field, SOURCES | {"XLON": {**SOURCES["XNYS"], "node": 102, "acknowledged": 0}})
    assert told["lost"] == 7
    assert told["pending"] == 40
    assert not told["one_order"]


def test_a_silence_that_has_not_ended_counts(field: DrillTarget) -> None:
    """Survivors that never go on have no pause between two releases."""
    meanwhile = {
        name: page(field, name, released_at_ns=STRUCK_AT + 1, written_at_ns=HEALED_AT) for name in ("s1", "s2", "s3")
    }
    leader(field)
    told = account(field, meanwhile=meanwhile).told(field, SOURCES)
    assert told["stall_s"] == pytest.approx(3.0)
