"""`fairtape up`: run the sites and reformation servers of a deployment on this machine, and print what befalls them."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import click

from fairtape.cli.limits import check_within
from fairtape.cli.progress import EXIT_BROKEN
from fairtape.cli.words import counted
from fairtape.deployment.config.description import Deployment, read_deployment
from fairtape.deployment.lock_file import folder_lock
from fairtape.deployment.operations.doctor import check_ready
from fairtape.deployment.process.children import Interrupts
from fairtape.deployment.process.idle_guard import keep_processors_awake
from fairtape.deployment.process.local_cluster import LocalCluster

SECONDS: Final = (0.1, 1e9)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--restart", is_flag=True, help="Start a process again that ends by itself.")
@click.option("--keep-awake", is_flag=True, help="Let no processor of this machine sleep, for exact releases.")
@click.option("--seconds", type=float, help="How long.  [default: until Ctrl-C]")
@click.pass_context
def up(ctx: click.Context, *, directory: Path, restart: bool, keep_awake: bool, seconds: float | None) -> None:
    """Run the sites and servers of a deployment on this machine.

    Each is a process of its own. What the reformation servers decide and what the sites notice is printed as it happens
    and kept in DIRECTORY/run/notices.log. A process that ends is told of, and started again only with --restart, or
    when a drill asks for it. Ctrl-C ends all of them cleanly: journals are complete and can be gone on from.

    The trading floor runs with them as far as the file lists it: its arbiters under [floor.arbiters], order entry under
    [gateways].

    A virtual machine's processor that has gone to sleep wakes milliseconds late, and so does a release. --keep-awake
    runs a program on each that does nothing and that every other program is preferred to. It costs electricity;
    `fairtape doctor` says whether it is worth it, and how to configure a machine so that it is not needed.

    The exit code is 1 when a process ended by itself and was not started again.
    """
    check_within("--seconds", seconds, *SECONDS)
    deployment = read_deployment(directory)
    awake = keep_processors_awake() if keep_awake else nullcontext()
    with folder_lock(deployment.folder), Interrupts() as interrupts, awake:
        check_ready(deployment)
        company = LocalCluster(deployment, say=click.echo, restart=restart)
        ends_at = time.monotonic() + (seconds or SECONDS[1])
        try:
            company.start()
            click.echo(
                f"{', '.join(_parts(deployment))} and"
                f" {counted(len(deployment.reformers), 'reformation server')}; see how they fare"
                f" from another terminal with: fairtape status {directory}",
                err=True,
            )
            company.watch(lambda: interrupts.count > 0 or time.monotonic() > ends_at)
        finally:
            company.stop()
    ctx.exit(EXIT_BROKEN if company.lost else 0)


def _parts(deployment: Deployment) -> Iterator[str]:
    """What runs beside the reformation servers."""
    yield counted(len(deployment.sites), "site")
    for listed, noun in ((deployment.floor.arbiters, "arbiter"), (deployment.gateways, "gateway")):
        if listed:
            yield counted(len(listed), noun)
