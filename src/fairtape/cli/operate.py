"""`fairtape operate`: what an operator orders of the reformation servers, under the operator's key."""

from pathlib import Path

import click

from fairtape.core.errors import UserError
from fairtape.deployment.config.description import NodeKind, read_deployment
from fairtape.deployment.operations.operator import change_plan, give_order
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
