"""`fairtape bench failover`: how long the other sites deliver nothing after a site is killed.

Runs a deployment with the default settings of `fairtape init`: three sites and two reformation servers, each a process.
One source publishes beside each surviving site. The token site is killed with SIGKILL and restarted; then all journals
are compared. A site that does not rejoin in time is reported as such, together with all other results.

The nine cities are the deployment of `fairtape demo`: the `wan` profile, and links with the delays between the cities
and 1 % loss. There the site with the next turn is killed: no other one stops the ring sooner.
"""

import tempfile
from pathlib import Path
from typing import Any, Final

from fairtape.bench.results import Step
from fairtape.core.cities import CITIES
from fairtape.core.instants import SECOND
from fairtape.deployment.lock_file import folder_lock
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.deployment.operations.drills import NEXT_SITE, TOKEN_SITE, DrillPlan, DrillTarget, Fault, run_drill
from fairtape.deployment.process.local_cluster import LocalCluster

SITES: Final = 3
RATE: Final = 1_000.0  # messages per second of each survivor
STALL_MAX: Final = 0.3  # seconds: the goal
CITIES_RATE: Final = 100.0  # messages per second of each source, where the sites are in nine cities
CITIES_SENDERS: Final = 3
CITIES_LOSS: Final = 0.01
CITIES_STALL_MAX: Final = 1.5  # seconds: the goal
CITIES_DOWN_PERIOD: Final = 8 * SECOND  # longer than the others need to go on
DOWN_PERIOD: Final = 2 * SECOND
ANCHORS: Final = {"Spread 5.0.1": 3.0, "Corosync 3.1.7": 8.0, "JGroups 5.6": 2.0, "NATS JetStream R3": 6.3}
"""Seconds of silence after SIGKILL of a node with default settings, measured on a 2-core virtual machine."""


def measure_failover(*, rounds: int, profile: str, cities: bool, step: Step) -> dict[str, Any]:
    """Run one drill per round, each in a new deployment; the worst of each metric."""
    draft = city_draft() if cities else Draft(loops=(SITES,), profile=profile)
    senders, rate = (CITIES_SENDERS, CITIES_RATE) if cities else (SITES - 1, RATE)
    plan = DrillPlan(
        fault=Fault.KILL,
        victims=(NEXT_SITE if cities else TOKEN_SITE,),
        period=CITIES_DOWN_PERIOD if cities else DOWN_PERIOD,
        rate=senders * rate,
        senders=senders,
    )
    drills = []
    for number in range(1, rounds + 1):
        step(f"round {number} of {rounds}")
        drills.append(_round(draft, plan))
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
        "sites": draft.sites,
        "profile": draft.profile,
        "senders": senders,
        "rate_per_sender": rate,
        "rounds": rounds,
        "stall_s_promised": CITIES_STALL_MAX if cities else STALL_MAX,
        "anchors_s": ANCHORS,
        "details": drills,
    }


def is_sound(results: dict[str, Any]) -> bool:
    """Whether no message is lost or pending, all journals hold one order, and the victim is a member again."""
    return results["one_order"] and results["rejoined"] and not results["lost"] and not results["pending"]


def city_draft() -> Draft:
    """Nine sites on five continents in one token loop."""
    names = tuple(each.name for each in CITIES)
    return Draft(loops=(len(names),), profile="wan", cities=names, loss=CITIES_LOSS, sources=CITIES_SENDERS)


def _round(draft: Draft, plan: DrillPlan) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="fairtape-failover-", ignore_cleanup_errors=True) as scratch:
        deployment = create_deployment(Path(scratch) / "deployment", draft)
        target = DrillTarget(deployment)
        with folder_lock(deployment.folder):
            target.cluster = LocalCluster(deployment)
            try:
                target.cluster.start()
                return run_drill(target, plan)
            finally:
                target.cluster.stop()
