"""Drills with five sites, each in a network namespace of its own, which stands for a machine.

The suite runs two short drills. With FAIRTAPE_DRILLS=all it runs all of them, ten seconds each.
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fairtape.bench.namespaces import Machines, Refused, machines
from fairtape.core.instants import SECOND
from fairtape.deployment.config.description import FILE, Node, read_deployment
from fairtape.deployment.lock_file import folder_lock
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.deployment.operations.drills import (
    LEADER,
    NEXT_SITE,
    TOKEN_SITE,
    DrillPlan,
    DrillTarget,
    Fault,
    FaultActions,
    run_drill,
)
from fairtape.deployment.process.local_cluster import LocalCluster
from fairtape.journal import compare

ALL = os.environ.get("FAIRTAPE_DRILLS") == "all"
RATE = 10_000.0
PERIOD = (10 if ALL else 2) * SECOND
SITES = 5

pytestmark = [pytest.mark.alone, pytest.mark.timeout(600)]
only_when_asked = pytest.mark.skipif(not ALL, reason="a long drill: set FAIRTAPE_DRILLS=all")


@pytest.fixture(scope="module")
def network() -> Iterator[Machines]:
    try:
        with machines(SITES + 1) as made:
            yield made
    except Refused as refusal:
        pytest.skip(f"no network namespaces here: {refusal}")


@pytest.fixture(scope="module")
def field(network: Machines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DrillTarget]:
    folder = tmp_path_factory.mktemp("machines") / "deployment"
    create_deployment(folder, Draft(loops=(SITES,), hosts=network.hosts, resilience="majority", profile="metro"))
    text = (folder / FILE).read_text()
    (folder / FILE).write_text(text.replace('source = "system"', 'source = "shared"'))
    deployment = read_deployment(folder)

    def wrapping(name: str) -> tuple[str, ...]:
        return network.enter(deployment.nodes[name].host)

    field = DrillTarget(deployment, wrapping=wrapping)
    with folder_lock(folder):
        field.cluster = LocalCluster(deployment, wrapping=wrapping)
        try:
            field.cluster.start()
            yield field
        finally:
            field.cluster.stop()
    comparison = compare([folder / "journals" / node.name for node in deployment.sites])
    assert comparison.same
    assert comparison.level


def test_the_token_site_is_killed(field: DrillTarget) -> None:
    expect_one_order(run_drill(field, drill(Fault.KILL, TOKEN_SITE)))


def test_a_site_is_disconnected_from_the_network(field: DrillTarget, network: Machines) -> None:
    def pull(_field: DrillTarget, _plan: DrillPlan, victims: list[Node]) -> None:
        for node in victims:
            network.cable(node.host, plugged=False)

    def put_back(_field: DrillTarget, victims: list[Node]) -> None:
        for node in victims:
            network.cable(node.host, plugged=True)

    means: FaultActions = pull, put_back
    expect_one_order(run_drill(field, drill(Fault.PARTITION, "s5"), means))


@only_when_asked
@pytest.mark.parametrize("victims", [(NEXT_SITE,), (LEADER,), ("s3", "s4")], ids=" ".join)
def test_other_processes_are_killed(field: DrillTarget, victims: tuple[str, ...]) -> None:
    expect_one_order(run_drill(field, drill(Fault.KILL, *victims)))


@only_when_asked
def test_a_site_is_stopped(field: DrillTarget) -> None:
    expect_one_order(run_drill(field, drill(Fault.PAUSE, TOKEN_SITE)))


def drill(fault: Fault, *victims: str) -> DrillPlan:
    return DrillPlan(fault=fault, victims=victims, period=PERIOD, rate=RATE)


def expect_one_order(account: dict[str, Any]) -> None:
    sys.stdout.write(
        f"{account['fault']} {' '.join(account['sites'])}: detected after {account['detect_s']} s, "
        f"a new formation after {account['formation_s']} s, the others silent for {account['stall_s']:.3f} s\n"
    )
    assert account["one_order"]
    assert account["lost"] == 0
    assert account["breaks"] == 0
