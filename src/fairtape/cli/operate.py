"""`fairtape operate`: commands to the reformation servers. `fairtape drill`: a fault injected under traffic."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fairtape.cli.terminal import EXIT_BROKEN, check_within, steps
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.wire.membership import OperatorVerb

if TYPE_CHECKING:
    from fairtape.deployment.config.description import Deployment
    from fairtape.deployment.operations.drills import DrillTarget

VERBS = {verb.name.lower(): verb for verb in OperatorVerb}


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("order", type=click.Choice(list(VERBS)))
@click.argument("site", required=False, metavar="[SITE|FILE]")
def operate(*, directory: Path, order: str, site: str | None) -> None:
    """Retire and admit sites; change the plan; resume after a halt or a lost store.

    \b
    retire SITE  remove it from its loop without a gap, and keep it out
    admit SITE   admit it again
    plan FILE    put this stripe plan into force, with the next formation,
                 at the same position in the order at every site
    resume       continue after a halt, with a Break in the sequence
    adopt        the formation store that the sites follow is lost: continue
                 with the present one, with a Break unless all sites answer

    The command is sent under the operator's key, and ends when the reformation servers report the result.

    A plan is copied to DIRECTORY/plans. If sites run on several machines, copy it there on each of them first: a site
    without the plan is silent at the edge.
    """  # noqa: D301 - click means the one character \b
    from fairtape.deployment.config.description import NodeKind, read_deployment
    from fairtape.deployment.operations.operator import change_plan, send_command
    from fairtape.edge.service.stripe_plans import read_plan

    deployment = read_deployment(directory)
    if order == "plan":
        if site is None:
            raise UserError("plan needs a FILE; name a stripe plan, as `fairtape plan stripes` writes it")
        click.echo(change_plan(deployment, read_plan(Path(site))))
        return
    if (site is None) != (order in ("resume", "adopt")):
        raise UserError(f"SITE is {site!r}; {order} takes none" if site else f"{order} needs a SITE; name the site")
    number = 0 if site is None else deployment.node(site, NodeKind.SITE, field="SITE").number
    click.echo(send_command(deployment, VERBS[order], number))


FAULTS: Final = ("kill", "pause", "partition", "clock")  # the values of `drills.Fault`
SECONDS: Final = (0.0, 3_600.0)
RATES: Final = (1.0, 1_000_000.0)
STEPS: Final = (-10_000.0, 10_000.0)  # milliseconds


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("fault", type=click.Choice(FAULTS))
@click.argument("sites", nargs=-1, required=True, metavar="SITE…")
@click.option("--seconds", default=3.0, show_default=True, help="Duration of the fault.")
@click.option("--rate", default=10_000.0, show_default=True, help="Messages per second during the drill.")
@click.option("--step", default=100.0, show_default=True, help="Milliseconds by which a clock is set wrong.")
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
    kill       kill -9, and a restart after --seconds
    pause      SIGSTOP, and SIGCONT after --seconds
    partition  no traffic between these sites and all others for --seconds
    clock      the clock is set wrong by --step for --seconds

    SITE is the name of a site or a reformation server; `token` is the site that has the token now, `next` the one after
    it, and `leader` the leading reformation server. The deployment is the one that `fairtape up` runs here. If it does
    not run, it is started for the drill and stopped afterwards.

    The report has the time until the failure was detected and until the new formation, the longest silence at the
    other sites, their late messages, lost messages, and whether all journals are equal at the end. The exit code is 1
    if a message was lost or never acknowledged, if journals differ, or if a site did not return in time.
    """  # noqa: D301 - click means the one character \b
    from fairtape.deployment.config.description import NodeKind, read_deployment
    from fairtape.deployment.operations.drills import DUTIES, DrillPlan, Fault, run_drill

    check_within("--seconds", seconds, *SECONDS)
    check_within("--rate", rate, *RATES, hint=" messages per second")
    check_within("--step", step, *STEPS, hint=" milliseconds")
    deployment = read_deployment(directory)
    for name in sites:
        if name not in DUTIES:
            deployment.node(name, NodeKind.SITE, NodeKind.REFORMER, field="SITE")
    if {site.name for site in deployment.sites} <= set(sites):
        raise UserError("SITE names every site; leave out at least one, whose view is reported")
    plan = DrillPlan(
        fault=Fault(fault),
        victims=sites,
        period=round(seconds * SECOND),
        rate=rate,
        step=round(step * MILLISECOND),
    )
    with steps(quiet=as_json) as say, target_of(deployment) as target:
        say(f"{fault} {' '.join(sites)}, {rate:g} messages per second")
        account = run_drill(target, plan)
    click.echo(json.dumps(account) if as_json else account_text(account))
    sound = account["one_order"] and account["rejoined"] and not account["lost"] and not account["pending"]
    ctx.exit(0 if sound else EXIT_BROKEN)


@contextmanager
def target_of(deployment: "Deployment") -> Iterator["DrillTarget"]:
    """The running deployment, or one that is started for the drill."""
    from fairtape.deployment.lock_file import folder_lock, is_running
    from fairtape.deployment.operations.drills import DrillTarget
    from fairtape.deployment.process.local_cluster import LocalCluster

    target = DrillTarget(deployment)
    if is_running(deployment.folder):
        yield target
        return
    with folder_lock(deployment.folder):
        target.cluster = LocalCluster(deployment)
        try:
            target.cluster.start()
            yield target
        finally:
            target.cluster.stop()


def account_text(account: dict[str, Any]) -> str:
    rows = [
        ("fault", f"{account['fault']} {' '.join(account['sites'])} for {account['period_s']:g} s"),
        ("detected", _after(account["detect_s"])),
        ("a new formation", _after(account["formation_s"])),
        ("longest silence at the others", f"{account['stall_s']:.3f} s"),
        ("longest silence on return", f"{account['return_stall_s']:.3f} s"),
        ("all sites active again", returned(account)),
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
    return "not needed" if seconds is None else f"after {seconds:.3f} s"


def returned(account: Mapping[str, Any]) -> str:
    """Whether the failed sites returned, and after how long."""
    waited = f"{account['waited_s']:.1f} s"
    return f"{waited} after the fault was undone" if account["rejoined"] else f"no, after a wait of {waited}"
