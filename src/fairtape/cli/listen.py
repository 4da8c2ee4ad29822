"""`fairtape listen`: print what a deployment that runs here releases, or a temporary one that this command runs.

Both are printed the same way: the lines of one site, and of another one when that one fails.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from fairtape.cli.terminal import EXIT_BROKEN, check_within, counted
from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Duration
from fairtape.core.timing import PROFILES

if TYPE_CHECKING:
    from fairtape.cli.tape_printer import TapePrinter
    from fairtape.deployment.config.description import Deployment
    from fairtape.deployment.follow.site_failover import SiteEvent, SiteFailover
    from fairtape.deployment.process.children import Interrupts
    from fairtape.deployment.process.local_cluster import LocalCluster
    from fairtape.wire.frames import NodeId

SITES_MAX: Final = 16
SOURCES: Final = 8
REFORMERS: Final = 2
SECONDS_MAX: Final = 1e9
FOREVER: Final = 10**9 * SECOND
START_PERIOD_MAX: Final = 60.0  # seconds for a site to serve, on a busy machine
POLL_PERIOD: Final = 0.01  # seconds between two looks for a site that serves, or at a reader that does not read
CLUSTER_CHECK_PERIOD: Final = 0.1  # seconds between two checks of the processes

NEW_ONLY: Final = ("sites", "profile", "mesh")
EXISTING_ONLY: Final = ("site", "from_seq")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--site", help="Of a deployment: follow only this site.  [default: any that serves]")
@click.option("--from-seq", type=int, help="Of a deployment: begin with this number.  [default: the next release]")
@click.option("--sites", default=3, show_default=True, help="Of a new deployment: number of sites.")
@click.option(
    "--profile",
    default="metro",
    show_default=True,
    type=click.Choice(list(PROFILES)),
    help="Of a new deployment: its timing.",
)
@click.option("--mesh", is_flag=True, help="Of a new deployment: unicast to each node, even where IP multicast works.")
@click.option("--seconds", type=float, help="Stop after this time.  [default: until Ctrl-C]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.pass_context
def listen(
    ctx: click.Context,
    *,
    directory: Path,
    site: str | None,
    from_seq: int | None,
    sites: int,
    profile: str,
    mesh: bool,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Print what a deployment releases; make one if there is none.

    If DIRECTORY holds a running deployment, the command follows one of its sites on this machine, from now on or from
    --from-seq on; when that site fails, it continues with another. A change of formation is a separate line at its
    position in the order, and so is a BREAK: lost sites may have assigned the numbers from there on to other messages.

    A DIRECTORY that is new or empty gets a temporary deployment: all of its nodes run on this machine, for as long as
    this command does. It recovers from failures like any other, and a process that ends is restarted. The same command
    runs it again later, and its journals continue. For other settings, use `fairtape init` and `fairtape up`.

    Another terminal can publish with `fairtape publish DIRECTORY FILE`. A slow reader of the lines delays no site and
    misses nothing: what it has not read waits in the journal. After Ctrl-C the reader has a second to read what was
    printed; a second Ctrl-C ends the command at once.

    The exit code is 1 when the deployment stops by itself.
    """
    from fairtape.deployment.config.description import FILE, is_temporary, read_deployment
    from fairtape.deployment.lock_file import is_running
    from fairtape.wire.frames import NUMBER_MAX

    check_within("--seconds", seconds, 0.001, SECONDS_MAX)
    if (directory / FILE).exists():
        _refuse_options(ctx, NEW_ONLY, f"{directory / FILE} already describes a deployment")
        check_within("--from-seq", from_seq, 1, NUMBER_MAX)
        deployment = read_deployment(directory)
    else:
        _refuse_options(ctx, EXISTING_ONLY, f"folder {str(directory)!r} holds no deployment")
        deployment = _create(directory, sites, profile, mesh=mesh)
    period = FOREVER if seconds is None else round(seconds * SECOND)
    if is_temporary(directory) and not is_running(directory):
        ended = run_temporary(deployment, site, from_seq, period=period, as_json=as_json)
    else:
        ended = follow_deployment(deployment, site, from_seq, period=period, as_json=as_json)
    for sentence in ended:
        click.echo(f"fairtape: {sentence}", err=True)
    ctx.exit(EXIT_BROKEN if ended else 0)


def _refuse_options(ctx: click.Context, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UserError(f"--{name.replace('_', '-')} is given, and {why}; leave it out")


def _create(directory: Path, sites: int, profile: str, *, mesh: bool) -> "Deployment":
    from fairtape.deployment.operations.draft import Draft, create_deployment

    check_within("--sites", sites, 1, SITES_MAX)
    draft = Draft(loops=(sites,), profile=profile, reformers=REFORMERS, sources=SOURCES, mesh=mesh)
    return create_deployment(directory, draft, temporary=True)


def follow_deployment(
    deployment: "Deployment", site: str | None, from_sequence: int | None, *, period: Duration, as_json: bool
) -> list[str]:
    """Print what a deployment that runs releases, until Ctrl-C; why it ended otherwise."""
    from fairtape.deployment.follow.site_failover import SiteFailover
    from fairtape.deployment.process.children import Interrupts

    failover = SiteFailover(deployment, only=site)
    chosen = failover.choose()
    if chosen is None:
        raise UserError(_no_site(deployment, site))
    with Interrupts() as interrupts:
        begin = from_sequence or failover.released_through(chosen) + 1
        listener = TapeListener(failover, chosen, begin, interrupts, as_json=as_json)
        name = failover.names[chosen]
        click.echo(f"following site {name} of {deployment.folder}; Ctrl-C ends this", err=True)
        ended = listener.run(period)
        complete = listener.flush()
    click.echo(_summary(listener.tape, complete=complete), err=True)
    return ended


def run_temporary(
    deployment: "Deployment", site: str | None, from_sequence: int | None, *, period: Duration, as_json: bool
) -> list[str]:
    """Run a deployment and print what it releases, until Ctrl-C; why it ended otherwise."""
    from fairtape.deployment.follow.site_failover import SiteFailover
    from fairtape.deployment.lock_file import folder_lock
    from fairtape.deployment.operations.doctor import check_ready
    from fairtape.deployment.process.children import Interrupts
    from fairtape.deployment.process.local_cluster import LocalCluster

    failover = SiteFailover(deployment, only=site)
    with folder_lock(deployment.folder), Interrupts() as interrupts:
        check_ready(deployment)
        begin = from_sequence or _released_end(deployment)
        cluster = LocalCluster(
            deployment,
            say=lambda line: click.echo(line, err=True),
            quiet=True,
            restart=lambda ended: not ended.refused,
        )
        checks = ClusterChecks(cluster)
        try:
            cluster.start()
            chosen = _await_site(failover, checks, interrupts)
            if chosen is None:
                return checks.failures
            listener = TapeListener(failover, chosen, begin, interrupts, as_json=as_json)
            click.echo(_introduction(deployment, failover.names[chosen]), err=True)
            ended = listener.run(period, checks.failed)
            serving = [each for each in failover.journals if failover.serves(each)]
        finally:
            cluster.stop()
        complete = listener.finish(serving, ended)
    proof = f"; prove it with: fairtape journal verify {deployment.folder}/journals/*"
    click.echo(_summary(listener.tape, complete=complete) + proof, err=True)
    return ended


def _released_end(deployment: "Deployment") -> int:
    """The number after the last one that any site released before."""
    from fairtape.journal import JournalReader
    from fairtape.journal.follow import released_end

    journals = [deployment.journal_of(site) for site in deployment.sites]
    return max((released_end(JournalReader.open(each)) for each in journals if each.exists()), default=1)


def _await_site(failover: "SiteFailover", checks: "ClusterChecks", interrupts: "Interrupts") -> "NodeId | None":
    """The first site that serves; None after Ctrl-C, or where the deployment fails."""
    give_up_at = time.monotonic() + START_PERIOD_MAX
    while not interrupts.count and not checks.failed():
        chosen = failover.choose()
        if chosen is not None and failover.serves(chosen):
            return chosen
        if time.monotonic() > give_up_at:
            raise UserError(f"no site served within {START_PERIOD_MAX:g} s; try again when the machine is less busy")
        time.sleep(POLL_PERIOD)
    return None


class ClusterChecks:
    """Checks the processes of a deployment now and then, and says when they cannot go on."""

    def __init__(self, cluster: "LocalCluster") -> None:
        self._cluster = cluster
        self._check_at = 0.0
        self.failures: list[str] = []

    def failed(self) -> list[str]:
        """Why the deployment cannot go on; empty while it can."""
        if not self.failures and time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + CLUSTER_CHECK_PERIOD
            self._cluster.look()
            if (cause := self._cluster.failure()) is not None:
                self.failures.append(f"the deployment cannot continue: {cause}")
        return self.failures


def _introduction(deployment: "Deployment", site: str) -> str:
    transport = "a mesh of unicasts" if deployment.groups is None else "IP multicast on the loopback interface"
    return (
        f"{counted(len(deployment.sites), 'site')}, {transport}; following site {site} of {deployment.folder};"
        f" publish from another terminal with: fairtape publish {deployment.folder} FILE"
    )


class TapeListener:
    """Prints what a site releases, and goes on with another site when that one no longer serves."""

    def __init__(
        self, failover: "SiteFailover", site: "NodeId", from_sequence: int, interrupts: "Interrupts", *, as_json: bool
    ) -> None:
        from fairtape.cli.tape_printer import JsonLines, OutputThread, TapePrinter, TextLines
        from fairtape.net.clock import SharedClock

        lines = (JsonLines if as_json else TextLines)(failover.names)
        self._follower = failover.follow(site, from_sequence=from_sequence)
        self.tape = TapePrinter(self._follower, OutputThread(sys.stdout.fileno()), lines)
        self._failover = failover
        self._interrupts = interrupts
        self._clock = SharedClock()

    def run(self, period: Duration, failed: Callable[[], list[str]] = list) -> list[str]:
        """Print for this period, until Ctrl-C, or until the deployment stops; why it ended, in the last case.

        `failed` is called often and says why the deployment cannot go on.
        """
        from fairtape.cli.tape_printer import PrintState
        from fairtape.journal.format import Damaged

        ends_at = self._clock.now() + period
        try:
            while not self._interrupts.count and self._clock.now() < ends_at:
                if failures := failed():
                    return [*failures]
                for event in self._failover.check():
                    click.echo(_event_text(event, self._failover.names), err=True)
                state = self.tape.advance()
                if state is PrintState.CAUGHT_UP and self._failover.is_over:
                    return ["the deployment has stopped"]
                if state is PrintState.CAUGHT_UP:
                    self._follower.wait(ends_at - self._clock.now())
                elif state is PrintState.HELD_UP:
                    time.sleep(POLL_PERIOD)
        except Damaged as damage:
            return [str(damage)]
        return []

    def flush(self) -> bool:
        """Let the reader take what was printed, until one more Ctrl-C; whether it took all of it."""
        return self.tape.flush(self._given_up())

    def finish(self, sites: "Sequence[NodeId]", ended: list[str]) -> bool:
        """Print the rest of what these sites released before they stopped; whether the reader took all of it.

        Damage of a journal is added to `ended`.
        """
        try:
            return self.tape.finish(self._given_up(), sites)
        except UserError as error:
            if str(error) not in ended:
                ended.append(str(error))
            return False

    def _given_up(self) -> Callable[[], bool]:
        enough = self._interrupts.count + 1
        return lambda: self._interrupts.count >= enough


def _event_text(event: "SiteEvent", names: "Mapping[NodeId, str]") -> str:
    from fairtape.deployment.follow.site_failover import SiteChanged, SiteRestored, SiteSilent

    name = names[event.site]
    match event:
        case SiteChanged(before):
            return f"site {names[before]} no longer serves; following site {name}"
        case SiteSilent():
            return f"site {name} does not serve: it is cut off, behind or ended, and no other site serves here"
        case SiteRestored():
            return f"site {name} serves again"


def _no_site(deployment: "Deployment", site: str | None) -> str:
    if site is not None:
        return f"--site is {site!r}, which does not run on this machine; name one that does, or start it"
    return (
        f"no site of the deployment in {str(deployment.folder)!r} runs on this machine;"
        f" start it with: fairtape up {deployment.folder}"
    )


def _summary(tape: "TapePrinter", *, complete: bool) -> str:
    printed = tape.printed
    others = f", {counted(printed.others, 'other message')}" if printed.others else ""
    breaks = f", {counted(printed.breaks, 'break')}" if printed.breaks else ""
    rest = "" if complete else f"; the reader stopped reading: continue with --from-seq {printed.through + 1}"
    return f"{counted(printed.trades, 'trade')} in one order{others}, {printed.late:,} released late{breaks}{rest}"
