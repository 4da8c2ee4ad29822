"""The operator's word to the reformation servers: an authenticated order, and what came of it."""

import time
from typing import Final

from fairtape.core.errors import UserError
from fairtape.deployment.config.description import Deployment, NodeKind
from fairtape.deployment.config.keys import keys_of
from fairtape.deployment.status_files import RunFolder, Status
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
            order = authenticator.govern(OperatorCommand(deployment.stripe, 0, operator.number, verb, site))
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
