"""`fairtape bench failover`: how long the other sites deliver nothing after a site is killed.

Runs a deployment with the default settings of `fairtape init`: three sites and two reformation servers, each a process.
One source publishes beside each surviving site. The token site is killed with SIGKILL and restarted; then all journals
are compared. A site that does not rejoin in time is reported as such, together with all other results.
"""

import tempfile
from pathlib import Path
from typing import Any, Final

from fairtape.bench.results import Step
from fairtape.core.instants import SECOND
from fairtape.deployment.lock_file import folder_lock
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.deployment.operations.drills import TOKEN_SITE, DrillPlan, DrillTarget, Fault, run_drill
from fairtape.deployment.process.local_cluster import LocalCluster

SITES: Final = 3
RATE: Final = 1_000.0  # messages per second of each survivor
STALL_MAX: Final = 0.3  # seconds: the goal
DOWN_PERIOD: Final = 2 * SECOND
ANCHORS: Final = {"Spread 5.0.1": 3.0, "Corosync 3.1.7": 8.0, "JGroups 5.6": 2.0, "NATS JetStream R3": 6.3}
"""Seconds of silence after SIGKILL of a node with default settings, measured on a 2-core virtual machine."""


def measure_failover(*, rounds: int, profile: str, step: Step) -> dict[str, Any]:
    """Run one drill per round, each in a new deployment; the worst of each metric."""
    drills = []
    for number in range(1, rounds + 1):
        step(f"round {number} of {rounds}")
        drills.append(_round(profile))
    stalls = [drill["stall_s"] for drill in drills]
    return {
        "stall_s": max(stalls),
        "lost": max(drill["lost"] for drill in drills),
        "one_order": all(drill["one_order"] for drill in drills),
        "rejoined": all(drill["rejoined"] for drill in drills),
        "waited_s": max(drill["waited_s"] for drill in drills),  # for the victim, since its restart
        "pending": sum(drill["pending"] for drill in drills),  # published and never acknowledged
        "stall_s_min": min(stalls),
        "detect_s": max(drill["detect_s"] or 0.0 for drill in drills),
        "formation_s": max(drill["formation_s"] or 0.0 for drill in drills),
        "return_stall_s": max(drill["return_stall_s"] for drill in drills),
        "whole_s": [drill["whole_s"] for drill in drills],  # null: not before the traffic ended
        "breaks": sum(drill["breaks"] for drill in drills),
        "published": sum(drill["published"] for drill in drills),
        "sites": SITES,
        "profile": profile,
        "rate_per_survivor": RATE,
        "rounds": rounds,
        "stall_s_promised": STALL_MAX,
        "anchors_s": ANCHORS,
        "details": drills,
    }


def is_sound(results: dict[str, Any]) -> bool:
    """Whether no message is lost or pending, all journals hold one order, and the victim is a member again."""
    return results["one_order"] and results["rejoined"] and not results["lost"] and not results["pending"]


def _round(profile: str) -> dict[str, Any]:
    survivors = SITES - 1
    with tempfile.TemporaryDirectory(prefix="fairtape-failover-", ignore_cleanup_errors=True) as scratch:
        deployment = create_deployment(Path(scratch) / "deployment", Draft(loops=(SITES,), profile=profile))
        target = DrillTarget(deployment)
        plan = DrillPlan(
            fault=Fault.KILL,
            victims=(TOKEN_SITE,),
            period=DOWN_PERIOD,
            rate=survivors * RATE,
            senders=survivors,
        )
        with folder_lock(deployment.folder):
            target.cluster = LocalCluster(deployment)
            try:
                target.cluster.start()
                return run_drill(target, plan)
            finally:
                target.cluster.stop()
