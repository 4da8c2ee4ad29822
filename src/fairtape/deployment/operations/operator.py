"""Commands of the operator to the reformation servers, authenticated with the operator's key."""

import time
from typing import Final

from fairtape.core.errors import UserError
from fairtape.deployment.config.description import Deployment, NodeKind
from fairtape.deployment.config.keys import keys_of
from fairtape.deployment.process.edge import edge_of, stripe_plans_of
from fairtape.deployment.process.resources import clock_of, open_transport
from fairtape.deployment.status import ReformerStatus, SiteStatus
from fairtape.deployment.status_files import RunFolder
from fairtape.edge.service.stripe_plans import mark_of
from fairtape.edge.status import PublisherStatus
from fairtape.market.stripes import StripePlan
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.storage.incarnations import next_incarnation
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import OperatorCommand, OperatorVerb

REPEAT_PERIOD: Final = 0.3  # seconds
COMMANDS_MAX: Final = 1_000  # datagrams of one command: it is repeated until it is carried out
WAIT_MAX: Final = 10.0  # seconds for a command to be carried out
POLL_PERIOD: Final = 0.2  # seconds
PLAN_WAIT_MAX: Final = 30.0  # seconds for sites to prepare a plan: 0.1 ms per listing, at low priority


def send_command(deployment: Deployment, verb: OperatorVerb, site: NodeId) -> str:
    """Send a command to all servers until the leader has carried it out; returns what it did.

    Raises `UserError` where no server leads or none carries it out in time.
    """
    run = RunFolder(deployment.folder)
    (operator,) = deployment.of_kind(NodeKind.OPERATOR)
    keys = keys_of(deployment, operator)
    authenticator = MessageAuthenticator(
        me=operator.number,
        keys=keys,
        peers=keys.sites,
        first_serial=next_incarnation(
            deployment.incarnation_file_of(operator), clock_of(deployment).now(), step=COMMANDS_MAX
        ),
    )
    name = deployment.name_of(site)
    before = _leader(deployment, run)
    if before is None:
        raise UserError(f"no reformation server of {str(deployment.folder)!r} leads; start it with: fairtape up")
    if verb is OperatorVerb.ADOPT:
        site = before.store  # the servers of another store must not adopt as well
    formation = before.formation if verb is OperatorVerb.RESUME else 0  # which halt it ends
    transport = open_transport(deployment, operator)
    give_up_at = time.monotonic() + WAIT_MAX
    try:
        while time.monotonic() < give_up_at:
            command = authenticator.for_membership(
                OperatorCommand(deployment.stripe, formation, operator.number, verb, site)
            )
            for reformer in deployment.reformers:
                transport.send(reformer.number, [command])
            time.sleep(REPEAT_PERIOD)
            leader = _leader(deployment, run)
            outcome = leader and _outcome(verb, name, before, leader, site)
            if outcome:
                return outcome
    finally:
        transport.close()
    raise UserError(f"{verb.name.lower()} was not carried out within {WAIT_MAX:g} s; see: fairtape status")


def _leader(deployment: Deployment, run: RunFolder) -> ReformerStatus | None:
    servers = run.statuses_of(ReformerStatus, [node.name for node in deployment.reformers])
    leaders = {name: server for name, server in servers.items() if server.leads}
    if len({server.store for server in leaders.values()}) > 1:
        raise UserError(
            f"reformation servers {', '.join(leaders)} lead, each with a formation store of its own; stop those whose"
            " store is to be given up"
        )
    return next(iter(leaders.values()), None)


def _outcome(verb: OperatorVerb, name: str, before: ReformerStatus, leader: ReformerStatus, site: NodeId) -> str | None:
    """What the leader did; None while it has not."""
    formation = f"formation {leader.formation} of {' '.join(leader.members)}"
    match verb:
        case OperatorVerb.RETIRE if name in leader.retired and name not in leader.members:
            return f"{name} is retired: {formation}"
        case OperatorVerb.ADMIT if name not in leader.retired:
            return f"{name} may join: {formation}" if name not in leader.members else f"{name} is a member: {formation}"
        case OperatorVerb.PLAN if leader.plan == site:
            return f"the plan is in force: {formation}"
        case OperatorVerb.ADOPT if not before.of_other_stores:
            return f"no site follows another store: {formation}"
        case OperatorVerb.ADOPT if not leader.of_other_stores and leader.formation and leader.phase == "steady":
            return f"the store is adopted, and the order continues: {formation}"
        case OperatorVerb.RESUME if before.phase != "halted":
            return f"the ring was not halted: {formation}"
        case OperatorVerb.RESUME if leader.phase != "halted":
            return f"the order continues, with a Break: {formation}"
    return None


def change_plan(deployment: Deployment, plan: StripePlan) -> str:
    """Put a stripe plan into force; returns what happened. Raises `UserError` where that is impossible.

    Sites get the file first, then the servers get the command. The next formation names the plan, so that it comes into
    force at the same place of the order everywhere. A site without the file would stop publishing, so the command waits
    until all sites of this machine have it.
    """
    settings = edge_of(deployment)
    for site, place in settings.publishers.items():
        if place.feed not in plan.feeds:
            raise UserError(f"site {site} publishes on feed {place.feed}; plan {plan.version} has {plan.feeds}: add it")
    for region in settings.regions:
        if not set(region.feeds) <= set(plan.feeds):
            named = ", ".join(region.feeds)
            raise UserError(f"region {region.name} has feeds {named}; plan {plan.version} has {plan.feeds}: add them")
    if not plan.of_core(deployment.stripe):
        raise UserError(f"plan {plan.version} lacks core stripe {deployment.stripe} of this deployment; add it")
    run = RunFolder(deployment.folder)
    versions = [publisher.plan or 0 for publisher in _publishers(deployment, run).values()]
    if plan.version <= max(versions, default=0):
        raise UserError(f"version is {plan.version}, and {max(versions)} is in force; give the plan a higher one")
    stripe_plans_of(deployment).add(plan)
    _await_plan(deployment, run, plan)
    return f"plan {plan.version}: {send_command(deployment, OperatorVerb.PLAN, mark_of(plan))}"


def _await_plan(deployment: Deployment, run: RunFolder, plan: StripePlan) -> None:
    """Wait until the publishers of this machine have read the plan."""
    give_up_at = time.monotonic() + PLAN_WAIT_MAX
    while True:
        publishers = _publishers(deployment, run)
        lacking = [name for name, publisher in publishers.items() if mark_of(plan) not in publisher.marks]
        if not lacking:
            return
        if time.monotonic() > give_up_at:
            raise UserError(f"{', '.join(lacking)} did not read plan {plan.version}; see: fairtape status")
        time.sleep(POLL_PERIOD)


def _publishers(deployment: Deployment, run: RunFolder) -> dict[str, PublisherStatus]:
    """The publishers of this machine, by site."""
    sites = run.statuses_of(SiteStatus, list(edge_of(deployment).publishers))
    return {name: site.edge for name, site in sites.items() if site.edge is not None}
