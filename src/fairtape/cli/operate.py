"""`fairtape operate`: what an operator orders of the reformation servers, under the operator's key."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from fairtape.cli.terminal import EXIT_BROKEN, check_within, steps
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.deployment.config.description import Deployment, NodeKind, read_deployment
from fairtape.deployment.lock_file import folder_lock, is_running
from fairtape.deployment.operations.drills import DUTIES, DrillPlan, DrillTarget, Fault, run_drill
from fairtape.deployment.operations.operator import change_plan, give_order
from fairtape.deployment.process.local_cluster import LocalCluster
from fairtape.edge.service.stripe_plans import read_plan
from fairtape.wire.membership import OperatorVerb

VERBS = {verb.name.lower(): verb for verb in OperatorVerb}


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("order", type=click.Choice(list(VERBS)))
@click.argument("site", required=False, metavar="[SITE|FILE]")
def operate(*, directory: Path, order: str, site: str | None) -> None:
    """Retire and admit sites; change the plan; resume after a halt.

    \b
    retire SITE  take it out of its loop without a gap, and keep it out
    admit SITE   let it in again
    plan FILE    let this stripe plan come into force, at the next
                 formation, at the same place of the order everywhere
    resume       go on, with a Break in the sequence, after more sites
                 failed than the order can survive

    The order crosses the network under the operator's key. The command ends when the reformation servers tell what came
    of it.

    A plan is copied to DIRECTORY/plans. Where sites are on several machines, put it there on each of them first: a site
    without it is silent at the edge until it has it.
    """  # noqa: D301 - click means the one character \b
    deployment = read_deployment(directory)
    if order == "plan":
        if site is None:
            raise UserError("plan lacks a FILE; name a stripe plan, as `fairtape plan stripes` writes it")
        click.echo(change_plan(deployment, read_plan(Path(site))))
        return
    if (site is None) != (order == "resume"):
        raise UserError(f"SITE is {site!r}; resume takes none" if site else f"{order} lacks a SITE; name the site")
    number = 0 if site is None else deployment.node(site, NodeKind.SITE, field="SITE").number
    click.echo(give_order(deployment, VERBS[order], number))


# `fairtape drill`: inject a fault into a deployment under traffic, undo it, and report what happened.

SECONDS: Final = (0.0, 3_600.0)
RATES: Final = (1.0, 1_000_000.0)
STEPS: Final = (-10_000.0, 10_000.0)  # milliseconds: what a clock would follow


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("fault", type=click.Choice([fault.value for fault in Fault]))
@click.argument("sites", nargs=-1, required=True, metavar="SITE…")
@click.option("--seconds", default=3.0, show_default=True, help="Until the fault is undone.")
@click.option("--rate", default=10_000.0, show_default=True, help="Messages per second meanwhile.")
@click.option("--step", default=100.0, show_default=True, help="Of a clock: milliseconds by which it is set wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def drill(
    ctx: click.Context,
    *,
    directory: Path,
    fault: str,
    sites: tuple[str, ...],
    seconds: float,
    rate: float,
    step: float,
    as_json: bool,
) -> None:
    """Inject a fault and report what happened.

    \b
    kill       kill -9, and a new start after --seconds
    pause      SIGSTOP, and SIGCONT after --seconds
    partition  these sites and all others do not hear one another for --seconds
    clock      the clock is set wrong by --step for --seconds

    SITE is the name of a site or a reformation server; `token` is whoever has the token now, `next` the one after it,
    and `leader` the reformation server that leads. The deployment is the one that `fairtape up` runs here; where it
    does not run, it is started for the drill and stopped afterwards.

    Reported are the time until the failure was detected and until there was a new formation, the longest silence at
    the sites that did not fail, how many messages came late there, how many were lost, and whether all journals are the
    same in the end. The exit code is 1 when a message was lost or never acknowledged, when the order is not one, or
    when a site did not come back while it was waited for.
    """  # noqa: D301 - click means the one character \b
    check_within("--seconds", seconds, *SECONDS)
    check_within("--rate", rate, *RATES, hint=" messages per second")
    check_within("--step", step, *STEPS, hint=" milliseconds")
    deployment = read_deployment(directory)
    for name in sites:
        if name not in DUTIES:
            deployment.node(name, NodeKind.SITE, NodeKind.REFORMER, field="SITE")
    if {site.name for site in deployment.sites} <= set(sites):
        raise UserError("SITE names every site; leave one out, whose side of it can be told")
    plan = DrillPlan(
        fault=Fault(fault),
        victims=sites,
        period=round(seconds * SECOND),
        rate=rate,
        step=round(step * MILLISECOND),
    )
    with steps(quiet=as_json) as say, field_of(deployment) as field:
        say(f"{fault} {' '.join(sites)}, {rate:g} messages per second")
        account = run_drill(field, plan)
    click.echo(json.dumps(account) if as_json else account_text(account))
    sound = account["one_order"] and account["rejoined"] and not account["lost"] and not account["pending"]
    ctx.exit(0 if sound else EXIT_BROKEN)


@contextmanager
def field_of(deployment: Deployment) -> Iterator[DrillTarget]:
    """The deployment as it runs, or as we run it for the time of the drill."""
    field = DrillTarget(deployment)
    if is_running(deployment.folder):
        yield field
        return
    with folder_lock(deployment.folder):
        field.cluster = LocalCluster(deployment)
        try:
            field.cluster.start()
            yield field
        finally:
            field.cluster.stop()


def account_text(account: dict[str, Any]) -> str:
    """The figures for a person."""
    rows = [
        ("fault", f"{account['fault']} {' '.join(account['sites'])} for {account['period_s']:g} s"),
        ("detected", _after(account["detect_s"])),
        ("a new formation", _after(account["formation_s"])),
        ("longest silence at the others", f"{account['stall_s']:.3f} s"),
        ("longest silence on return", f"{account['return_stall_s']:.3f} s"),
        ("whole again", returned(account)),
        ("published", f"{account['published']:,} messages"),
        ("late at the others", f"{account['late']:,} messages"),
        ("never acknowledged", f"{account['pending']:,} messages"),
        ("lost", f"{account['lost']:,} messages"),
        ("breaks in the order", f"{account['breaks']}"),
        ("one order at all sites", "yes" if account["one_order"] else "no"),
    ]
    width = max(len(label) for label, _ in rows)
    formations = [f"formation {each['formation']}: {each['cause']}" for each in account["formations"]]
    return "\n".join([*(f"{label:{width}}  {text}" for label, text in rows), *formations])


def _after(seconds: float | None) -> str:
    return "nothing had to be done" if seconds is None else f"after {seconds:.3f} s"


def returned(account: Mapping[str, Any]) -> str:
    """Whether the failed came back, and after how long."""
    waited = f"{account['waited_s']:.1f} s"
    return f"{waited} after the fault was undone" if account["rejoined"] else f"no, after a wait of {waited}"
