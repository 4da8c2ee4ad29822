"""The operator's word to the reformation servers: an authenticated order, and what came of it."""

import time
from typing import Final

from fairtape.core.errors import UserError
from fairtape.deployment.config.description import Deployment, NodeKind
from fairtape.deployment.config.keys import keys_of
from fairtape.deployment.process.edge import edge_of, stripe_plans_of
from fairtape.deployment.status_files import RunFolder, Status
from fairtape.edge.service.stripe_plans import mark_of
from fairtape.market.stripes import StripePlan
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import OperatorCommand, OperatorVerb

REPEAT_PERIOD: Final = 0.3  # seconds
PATIENCE: Final = 10.0  # seconds


def give_order(deployment: Deployment, verb: OperatorVerb, site: NodeId) -> str:
    """Say it to all servers until the one that leads has done it; what it did. A `UserError` where nobody obeys."""
    run = RunFolder(deployment.folder)
    (operator,) = deployment.of_kind(NodeKind.OPERATOR)
    keys = keys_of(deployment, operator)
    authenticator = MessageAuthenticator(
        me=operator.number, keys=keys, peers=keys.sites, first_serial=deployment.clock().now()
    )
    name = deployment.name_of(site)
    before = _leader(deployment, run)
    if before is None:
        raise UserError(f"no reformation server of {str(deployment.folder)!r} leads; start it with: fairtape up")
    transport = deployment.transport(operator)
    give_up_at = time.monotonic() + PATIENCE
    try:
        while time.monotonic() < give_up_at:
            order = authenticator.for_membership(OperatorCommand(deployment.stripe, 0, operator.number, verb, site))
            for reformer in deployment.reformers:
                transport.send(reformer.number, [order])
            time.sleep(REPEAT_PERIOD)
            leader = _leader(deployment, run)
            done = leader and _outcome(verb, name, before, leader, site)
            if done:
                return done
    finally:
        transport.close()
    raise UserError(f"{verb.name.lower()} was not carried out within {PATIENCE:g} s; see: fairtape status")


def _leader(deployment: Deployment, run: RunFolder) -> Status | None:
    pages = run.statuses([node.name for node in deployment.reformers])
    return next((page for page in pages.values() if page["leads"]), None)


def _outcome(verb: OperatorVerb, name: str, before: Status, leader: Status, site: NodeId) -> str | None:
    """What has come of it; None while nothing has."""
    formation = f"formation {leader['formation']} of {' '.join(leader['members'])}"
    match verb:
        case OperatorVerb.RETIRE if name in leader["retired"] and name not in leader["members"]:
            return f"{name} is retired: {formation}"
        case OperatorVerb.ADMIT if name not in leader["retired"]:
            return f"{name} may join: {formation}" if name not in leader["members"] else f"{name} is in: {formation}"
        case OperatorVerb.PLAN if leader["plan"] == site:
            return f"the plan is in force: {formation}"
        case OperatorVerb.RESUME if before["phase"] != "halted":
            return f"nothing had halted: {formation}"
        case OperatorVerb.RESUME if leader["phase"] != "halted":
            return f"the order goes on, with a Break: {formation}"
    return None


# A change of the stripe plan: its file to everybody first, then the order to the reformation servers.
#
# The formation that takes over names the plan, so it comes into force at one place of the order, the same everywhere. A
# site that does not have the file by then falls silent at the edge, and says nothing wrong; that all sites of this
# machine have it is made sure of before anything is ordered.

LOOK_PERIOD: Final = 0.2  # seconds
PLAN_PATIENCE: Final = (
    30.0  # seconds for sites to set a plan up: 0.1 ms for each of its listings, and they are in no hurry
)


def change_plan(deployment: Deployment, plan: StripePlan) -> str:
    """Let a plan come into force; what came of it. A `UserError` where that cannot be."""
    settings = edge_of(deployment)
    for site, place in settings.stations.items():
        if place.feed not in plan.feeds:
            raise UserError(f"station {site} speaks on feed {place.feed}; plan {plan.version} has {plan.feeds}: add it")
    for region in settings.regions:
        if not set(region.feeds) <= set(plan.feeds):
            named = ", ".join(region.feeds)
            raise UserError(f"region {region.name} hears feeds {named}; plan {plan.version} has {plan.feeds}: add them")
    if not plan.of_core(deployment.stripe):
        raise UserError(f"plan {plan.version} has no core stripe {deployment.stripe}, which this deployment is; add it")
    run = RunFolder(deployment.folder)
    versions = [page["plan"] or 0 for page in _pages(deployment, run).values()]
    if plan.version <= max(versions, default=0):
        raise UserError(f"version is {plan.version}, and {max(versions)} is in force; give the plan a higher one")
    stripe_plans_of(deployment).add(plan)
    _await_ready(deployment, run, plan)
    return f"plan {plan.version}: {give_order(deployment, OperatorVerb.PLAN, mark_of(plan))}"


def _await_ready(deployment: Deployment, run: RunFolder, plan: StripePlan) -> None:
    """Wait until the stations of this machine have the plan."""
    give_up_at = time.monotonic() + PLAN_PATIENCE
    while True:
        lacking = [name for name, page in _pages(deployment, run).items() if mark_of(plan) not in page["marks"]]
        if not lacking:
            return
        if time.monotonic() > give_up_at:
            raise UserError(f"{', '.join(lacking)} did not take plan {plan.version} in; see: fairtape status")
        time.sleep(LOOK_PERIOD)


def _pages(deployment: Deployment, run: RunFolder) -> dict[str, Status]:
    """How the stations of this machine fare."""
    statuses = run.statuses(list(edge_of(deployment).stations))
    return {name: page["edge"] for name, page in statuses.items() if page.get("edge")}
