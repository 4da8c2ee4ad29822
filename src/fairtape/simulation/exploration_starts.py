"""The states from which the membership is explored: a deployment at work, and moments at which it is vulnerable."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from fairtape.ring.membership.topology import Excess
from fairtape.simulation.explored_deployment import Deployment, DeploymentState, Size, Step, StepKind
from fairtape.wire.frames import NodeId
from fairtape.wire.membership import Install, decode_membership

SETTLING_UNITS: Final = 8  # until all nodes have started and messages are released
TICKS_MAX: Final = 1_000  # until a moment that is waited for
RELEASE_TICKS: Final = 12  # from the turn of a site until its messages are released
FAILED_CHANGES: Final = (
    3  # before the proposal: so it takes over late, and what another leader proposes takes over before
)


def settled(deployment: Deployment) -> DeploymentState:
    """All sites are members, one server leads, and the messages of the last tokens are not released yet."""
    state = deployment.empty()
    for node in deployment.nodes:
        state = deployment.apply(state, Step(StepKind.RESTART, node))
    return deployment.apply(state, Step(StepKind.TIME, detail=SETTLING_UNITS))


def ahead(deployment: Deployment) -> DeploymentState:
    """The first K + 1 sites have released messages that the others miss: these are cut from the ring."""
    holders = deployment.size.resilience + 1
    state = settled(deployment)
    for _ in range(TICKS_MAX):
        cut = _all(deployment, state, StepKind.CUT, deployment.sites[holders:])
        for _ in range(RELEASE_TICKS):
            cut = deployment.tick(cut)
            if cut.journals[0].released_through > max(each.last_token() for each in cut.journals[holders:]):
                return cut
        state = deployment.tick(state)
    raise AssertionError(f"no site is ahead within {TICKS_MAX} ticks")


def has_start(size: Size, name: str) -> bool:
    """Whether a deployment of this size can be in this state: it must survive the failure of a site for a proposal."""
    return "proposal" not in name or size.resilience > 0 or size.excess is Excess.CONTINUE


def proposal(deployment: Deployment) -> DeploymentState:
    """A leader has just proposed that the last site joins again. None of the sites has received that yet."""
    last = deployment.sites[-1]
    state = deployment.apply(settled(deployment), Step(StepKind.CRASH, last))
    state = _wait(deployment, state, lambda state: last not in state.history.formations[-1].members)
    state = deployment.apply(state, Step(StepKind.RESTART, last))
    for _ in range(FAILED_CHANGES):  # the site is not prepared for them
        state = _until_proposal(deployment, state, (last,))
        state = _until_next_formation(deployment, state)
        state = deployment.apply(state, Step(StepKind.ARRIVE, last))
    return _until_proposal(deployment, state, deployment.sites)


def lost_proposal(deployment: Deployment) -> DeploymentState:
    """The same, and only the copy for the first site is not lost."""
    return _all(deployment, proposal(deployment), StepKind.LOSE, deployment.sites[1:])


STARTS: Final[Mapping[str, Callable[[Deployment], DeploymentState]]] = MappingProxyType(
    {"settled": settled, "ahead": ahead, "proposal": proposal, "lost-proposal": lost_proposal}
)


def _until_proposal(deployment: Deployment, state: DeploymentState, sites: Iterable[NodeId]) -> DeploymentState:
    """A proposal was sent in this tick, and waits for these sites."""
    for _ in range(TICKS_MAX):
        delayed = deployment.tick(_all(deployment, state, StepKind.DELAY, sites))
        if _proposes(delayed):
            return delayed
        state = deployment.tick(state)
    raise AssertionError(f"no proposal within {TICKS_MAX} ticks")


def _proposes(state: DeploymentState) -> bool:
    messages = (decode_membership(datagram) for link in state.orders for _, _, datagram in link.waiting)
    return any(isinstance(message, Install) and not message.final for message in messages)


def _until_next_formation(deployment: Deployment, state: DeploymentState) -> DeploymentState:
    number = state.history.formations[-1].number
    return _wait(deployment, state, lambda state: state.history.formations[-1].number > number)


def _all(deployment: Deployment, state: DeploymentState, kind: StepKind, sites: Iterable[NodeId]) -> DeploymentState:
    for site in sites:
        state = deployment.apply(state, Step(kind, site))
    return state


def _wait(
    deployment: Deployment, state: DeploymentState, is_reached: Callable[[DeploymentState], bool]
) -> DeploymentState:
    for _ in range(TICKS_MAX):
        state = deployment.tick(state)
        if is_reached(state):
            return state
    raise AssertionError(f"the start state was not reached within {TICKS_MAX} ticks")
