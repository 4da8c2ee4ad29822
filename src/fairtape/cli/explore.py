"""`fairtape explore`: every order of delivery, loss and crash in a small deployment, up to a depth."""

import json
import time
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from fairtape.cli.terminal import EXIT_BROKEN, check_within, counted, progress_bar
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, Instant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairtape.simulation.exploration import Failure, Findings, Limits
    from fairtape.simulation.explored_deployment import Deployment, DeploymentState, Size, Step

SITES_MAX: Final = 8
SERVERS_MAX: Final = 4
STEPS_MAX: Final = 100
STATES_MAX: Final = 100_000_000
SECONDS_MAX: Final = 1e6
START_NAMES: Final = ("settled", "ahead", "proposal", "lost-proposal")
FAULT_NAMES: Final = ("crash", "delay", "delay-reports", "cut", "lose-answer", "cut-store")


@click.command()
@click.option("--sites", default=4, show_default=True, help="Sites of the deployment.")
@click.option("--servers", default=2, show_default=True, help="Reformation servers.")
@click.option("--resilience", default=1, show_default=True, metavar="K", help="Failures that the order survives.")
@click.option("--excess", type=click.Choice(["halt", "continue"]), default="halt", show_default=True, help="Beyond K.")
@click.option("--steps", default=8, show_default=True, help="The longest schedule.")
@click.option("--faults", default=2, show_default=True, help="Faults of one schedule.")
@click.option("--only", multiple=True, type=click.Choice(FAULT_NAMES), help="Only this fault, or these.")
@click.option(
    "--start", "starts", multiple=True, type=click.Choice(START_NAMES), help="Only from this state, or these."
)
@click.option("--states", default=1_000_000, show_default=True, help="End after this many distinct states.")
@click.option("--seconds", default=600.0, show_default=True, help="End after this time.")
@click.option("--replay", metavar="STEPS", help="Take these steps from one start, and show what happens.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def explore(
    ctx: click.Context,
    *,
    sites: int,
    servers: int,
    resilience: int,
    excess: str,
    steps: int,
    faults: int,
    only: Sequence[str],
    starts: Sequence[str],
    states: int,
    seconds: float,
    replay: str | None,
    as_json: bool,
) -> None:
    """Explore every order of faults in a small deployment.

    From each start state every possible step is taken, then every possible step from each new state, and so on: nodes
    crash and restart, with their journal, with an empty one, or without its last messages; membership messages are
    delayed, arrive in any order or are lost; sites are cut from the ring; answers of the store are lost; time passes.
    The sites, servers and sources are those of production. Every guarantee of the order and of its leadership is
    checked in each state.

    The exploration ends at the given number of steps, states or seconds. DEPTH is the number of steps up to which it is
    complete. A broken guarantee is shown as the shortest schedule that breaks it, with the command that repeats it. The
    exit code is then 1.

    Starts: all sites are level (settled); K + 1 sites have released what the others miss (ahead); a leader has proposed
    that a site joins, and no site has received that yet (proposal), or only the first one will (lost-proposal).
    """
    from fairtape.ring.membership.topology import Excess
    from fairtape.simulation.exploration import Limits
    from fairtape.simulation.explored_deployment import FAULTS, Deployment, Size, StepKind

    _check_options(sites=sites, servers=servers, resilience=resilience, steps=steps, faults=faults)
    check_within("--states", states, 1, STATES_MAX)
    check_within("--seconds", seconds, 0.001, SECONDS_MAX)
    size = Size(sites=sites, servers=servers, resilience=resilience, excess=Excess(excess))
    starts = _choose_starts(size, starts)
    deployment = Deployment(size)
    if replay is not None:
        ctx.exit(EXIT_BROKEN if _replay(deployment, starts, replay, as_json=as_json) else 0)
    chosen = frozenset(map(StepKind, only)) or FAULTS
    limits = Limits(steps=steps, faults=faults, states=states, seconds=seconds, only=chosen)
    findings = _explore(deployment, limits, starts, quiet=as_json)
    if as_json:
        click.echo(json.dumps(_fields(findings, size)))
    else:
        _show(findings, size)
    ctx.exit(EXIT_BROKEN if findings.failing else 0)


def _check_options(*, sites: int, servers: int, resilience: int, steps: int, faults: int) -> None:
    check_within("--sites", sites, 2, SITES_MAX)
    check_within("--servers", servers, 1, SERVERS_MAX)
    check_within("--resilience", resilience, 0, sites - 2, hint=", so that one site can fail")
    check_within("--steps", steps, 0, STEPS_MAX)
    check_within("--faults", faults, 0, STEPS_MAX)


def _choose_starts(size: "Size", starts: Sequence[str]) -> Sequence[str]:
    """Those that are given, or all that a deployment of this size can be in."""
    from fairtape.simulation.exploration_starts import has_start

    for name in starts:
        if not has_start(size, name):
            raise UserError(
                f"--start is {name}; with --resilience 0 and --excess halt no site can fail: choose other starts"
            )
    return starts or [name for name in START_NAMES if has_start(size, name)]


def _explore(deployment: "Deployment", limits: "Limits", starts: Sequence[str], *, quiet: bool) -> "Findings":
    from fairtape.simulation.exploration import Exploration
    from fairtape.simulation.exploration_starts import STARTS

    with _progress(limits, quiet=quiet) as progress:
        exploration = Exploration(deployment, limits, progress=progress)
        return exploration.run([(name, STARTS[name](deployment)) for name in starts])


@contextmanager
def _progress(limits: "Limits", *, quiet: bool) -> "Iterator[Callable[[Findings], None]]":
    """A bar that shows the states and how much of the time has passed."""
    from rich.progress import TextColumn

    with progress_bar(TextColumn("{task.fields[states]:,} states"), quiet=quiet) as bar:
        task = bar.add_task("step 1", total=limits.seconds, states=0)
        began_at = time.monotonic()

        def show(findings: "Findings") -> None:
            elapsed = min(time.monotonic() - began_at, limits.seconds)
            bar.update(task, completed=elapsed, states=findings.states, description=f"step {findings.depth + 1}")

        yield show


def _fields(findings: "Findings", size: "Size") -> dict[str, object]:
    return {
        "states": findings.states,
        "depth": findings.depth,
        "failures": [
            {
                "guarantee": failure.guarantee,
                "text": failure.text,
                "start": failure.start,
                "steps": [str(step) for step in failure.steps],
                "command": _replay_command(failure, size),
            }
            for failure in findings.failures
        ],
        "failing_steps": dict(sorted(findings.failing.items())),
        "by_depth": findings.by_depth,
        "transitions": findings.transitions,
        "branching": round(findings.branching, 2),
        "ended_by": findings.ended_by,
        "seconds": round(findings.seconds, 3),
        "sites": size.sites,
        "servers": size.servers,
        "resilience": size.resilience,
        "excess": size.excess.value,
    }


def _show(findings: "Findings", size: "Size") -> None:
    verdict = "every guarantee held"
    if findings.failing:
        verdict = ", ".join(f"{name} was broken {count:,} times" for name, count in sorted(findings.failing.items()))
    click.echo(
        f"{counted(findings.states, 'state')} in {findings.seconds:.1f} s, complete to "
        f"{counted(findings.depth, 'step')}: {verdict}.\n"
        f"  {findings.transitions:,} steps taken, {findings.branching:.1f} from each state; "
        f"ended by the limit of {findings.ended_by}\n"
        f"  new states by step: {' '.join(f'{count:,}' for count in findings.by_depth)}"
    )
    for failure in findings.failures:
        click.echo(f"{failure.text}\n  repeat with: {_replay_command(failure, size)}")


def _replay_command(failure: "Failure", size: "Size") -> str:
    steps = ",".join(map(str, failure.steps))
    return (
        f"fairtape explore --sites {size.sites} --servers {size.servers} --resilience {size.resilience} "
        f"--excess {size.excess.value} --start {failure.start} --replay {steps}"
    )


# One schedule.


def _replay(deployment: "Deployment", starts: Sequence[str], schedule: str, *, as_json: bool) -> bool:
    """Show one schedule, step by step; whether it breaks a guarantee."""
    from fairtape.simulation.exploration_starts import STARTS
    from fairtape.simulation.explored_deployment import describe_step
    from fairtape.simulation.world import Violation

    if len(starts) != 1:
        raise UserError(
            f"--replay needs one start, and {len(starts)} are given; add one --start, such as {START_NAMES[0]}"
        )
    state = STARTS[starts[0]](deployment)
    began_at, lines, broken = state.now, [], None
    shown: set[tuple[int, str]] = set()  # in this step: what is repeated is shown once

    def trace(now: Instant, node: int, text: str) -> None:
        if (node, text) not in shown:
            shown.add((node, text))
            lines.append(f"  {(now - began_at) // MILLISECOND:5} ms  {node:3} {text}")

    deployment.trace = trace
    for place, step in enumerate(_parse(schedule), start=1):
        _check_possible(deployment, state, step)
        lines.append(f"{place}. {describe_step(state, step)}")
        shown.clear()
        try:
            state = deployment.apply(state, step)
        except Violation as violation:
            broken = str(violation)
            break
    if as_json:
        click.echo(json.dumps({"start": starts[0], "trace": lines, "broken": broken}))
    else:
        click.echo("\n".join([*lines, f"broken: {broken}" if broken else "every guarantee held"]))
    return broken is not None


def _parse(schedule: str) -> list["Step"]:
    from fairtape.simulation.explored_deployment import Step

    steps = []
    for text in schedule.split(","):
        try:
            steps.append(Step.parse(text.strip()))
        except ValueError:
            raise UserError(
                f"--replay has the step {text.strip()[:40]!r}; give steps such as crash-11, time-4 or deliver-1.2"
            ) from None
    return steps


def _check_possible(deployment: "Deployment", state: "DeploymentState", step: "Step") -> None:
    from fairtape.simulation.explored_deployment import StepKind, possible_steps

    possible = [str(each) for each, _ in possible_steps(deployment, state, faults=1)]
    if str(step) in possible or (step.kind is StepKind.TIME and 0 < step.detail <= STEPS_MAX):
        return
    raise UserError(
        f"--replay has the step {str(step)!r}, which is not possible then; these are: {', '.join(possible)}"
    )
