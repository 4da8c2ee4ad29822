"""`fairtape listen`: print the one order of a deployment that runs here, or of a ring that this command runs."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from fairtape.cli.output_thread import OutputThread
from fairtape.cli.tape import Progress, TapePrinter
from fairtape.cli.terminal import EXIT_BROKEN, check_within, counted
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND, Duration
from fairtape.core.timing import PROFILES, Timing
from fairtape.deployment.config.capacity import cores_here, refuse_overload
from fairtape.deployment.follow.site_failover import SiteFailover
from fairtape.deployment.process.children import Interrupts
from fairtape.net.clock import SharedClock
from fairtape.wire.frames import NUMBER_MAX, NodeId

if TYPE_CHECKING:
    from fairtape.deployment.config.description import Deployment
    from fairtape.deployment.config.ring_folder import RingFolder
    from fairtape.deployment.follow.site_failover import SiteEvent
    from fairtape.deployment.process.children import ChildProcesses
    from fairtape.net.transports import AddressBook, Groups

# Hearing a deployment that others run: the lines of one site, and of another when that one fails.

FOREVER: Final = 10**9 * SECOND


def tune_in(
    deployment: "Deployment", site: str | None, from_sequence: int | None, *, seconds: float | None, as_json: bool
) -> list[str]:
    """Print what a site releases until Ctrl-C; why it ended otherwise, which is printed as well."""
    from fairtape.cli.tape import JsonLines, TextLines
    from fairtape.journal.format import Damaged

    failover = SiteFailover(deployment, only=site)
    chosen = failover.choose()
    if chosen is None:
        raise UserError(_nobody(deployment, site))
    lines = (JsonLines if as_json else TextLines)(failover.names)
    with Interrupts() as interrupts:
        follower = failover.follow(chosen, from_sequence=from_sequence or failover.released_through(chosen) + 1)
        tape = TapePrinter(follower, OutputThread(sys.stdout.fileno()), lines)
        name = failover.names[chosen]
        click.echo(f"this is what site {name} of {deployment.folder} releases; Ctrl-C ends it", err=True)
        listener = TapeListener(tape, failover, interrupts)
        try:
            ended = listener.hear(FOREVER if seconds is None else round(seconds * SECOND))
        except Damaged as damage:
            ended = [str(damage)]
        enough = interrupts.count + 1
        complete = tape.flush(lambda: interrupts.count >= enough)
    click.echo(_tape_summary(tape, complete=complete), err=True)
    for sentence in ended:
        click.echo(f"fairtape: {sentence}", err=True)
    return ended


class TapeListener:
    """Prints what a site releases that serves."""

    def __init__(self, tape: TapePrinter, failover: SiteFailover, interrupts: Interrupts) -> None:
        self._tape = tape
        self._failover = failover
        self._interrupts = interrupts
        self._clock = SharedClock()

    def hear(self, period: Duration) -> list[str]:
        """Print for this period, or until Ctrl-C, or until the deployment stops; why it ended, in the last case."""
        from fairtape.journal.follow import POLL_PERIOD

        ends_at = self._clock.now() + period
        while not self._interrupts.count and self._clock.now() < ends_at:
            for event in self._failover.check():
                click.echo(_event_text(event, self._failover.names), err=True)
            progress = self._tape.advance()
            if progress is Progress.CAUGHT_UP and self._failover.is_over:
                return ["the deployment has stopped"]
            if progress is not Progress.BUSY:
                time.sleep(POLL_PERIOD / SECOND)
        return []


def _event_text(event: "SiteEvent", names: Mapping[NodeId, str]) -> str:
    from fairtape.deployment.follow.site_failover import SiteChanged, SiteRestored, SiteSilent

    name = names[event.site]
    match event:
        case SiteChanged(before):
            return f"site {names[before]} no longer serves; this is what site {name} releases"
        case SiteSilent():
            return f"site {name} does not serve: it is cut off, behind or gone, and no other is here instead"
        case SiteRestored():
            return f"site {name} serves again"


def _nobody(deployment: "Deployment", site: str | None) -> str:
    if site is not None:
        return f"--site is {site!r}, which does not run on this machine; name one that does, or start it"
    return (
        f"no site of the deployment in {str(deployment.folder)!r} runs on this machine;"
        f" start it with: fairtape up {deployment.folder}"
    )


def _tape_summary(tape: "TapePrinter", *, complete: bool) -> str:
    printed = tape.printed
    others = f", {counted(printed.others, 'other message')}" if printed.others else ""
    breaks = f", {counted(printed.breaks, 'break')}" if printed.breaks else ""
    rest = "" if complete else f"; then nobody took the lines any more, go on with --from-seq {printed.through + 1}"
    return f"{counted(printed.trades, 'trade')} in one order{others}, {printed.late:,} released late{breaks}{rest}"


SITES_MAX: Final = 16
SECONDS_MAX: Final = 1e9
START_DELAY: Final = 500 * MILLISECOND
NEWS_DELAY_MAX: Final = 1 * SECOND  # for a site's news to arrive


CALMER: Final = "--profile wan is more patient, and a deployment (fairtape init) heals by itself"
RING_ONLY: Final = ("sites", "profile", "mesh", "interface", "port")
DEPLOYMENT_ONLY: Final = ("site", "from_seq")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--site", help="Of a deployment: hear only this site.  [default: any that serves]")
@click.option("--from-seq", type=int, help="Of a deployment: begin with this number.  [default: what comes next]")
@click.option("--sites", default=3, show_default=True, help="Of a ring: its sites.")
@click.option(
    "--profile", default="metro", show_default=True, type=click.Choice(list(PROFILES)), help="Of a ring: its timing."
)
@click.option("--mesh", is_flag=True, help="Of a ring: unicasts between all, even where multicast works.")
@click.option("--interface", help="Of a ring: a name or an address of this machine.  [default: loopback]")
@click.option("--port", type=int, help="Of a ring: the first of its ports.  [default: any free ones]")
@click.option("--seconds", type=float, help="How long.  [default: until Ctrl-C]")
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
    interface: str | None,
    port: int | None,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Print what a deployment releases, or a ring started here.

    Where DIRECTORY holds a deployment that runs, this is what one of its sites on this machine releases, from now on or
    from --from-seq on; when that site fails, it goes on with another. A change of formation is a line of its own at its
    place in the order, and so is a BREAK: sites that are lost may have used the numbers from there on otherwise.

    Anywhere else a ring is started, which runs on this machine until Ctrl-C. DIRECTORY is made if need be and holds the
    ring's addresses, the sources' keys and the sites' journals. A ring does not heal: when a site fails, the others
    stop.

    Another terminal can publish with `fairtape publish DIRECTORY FILE`. A slow reader of the lines holds up no site and
    misses nothing: what it has not taken waits in the journal. After Ctrl-C it is given a second to take what was
    printed; a second Ctrl-C ends the command at once.

    The exit code is 1 when a site of a ring fails, or when the deployment is stopped.
    """
    from fairtape.deployment.config.description import FILE, read_deployment

    check_within("--seconds", seconds, 0.001, SECONDS_MAX)
    if (directory / FILE).exists():
        _refuse_options(ctx, RING_ONLY, f"{directory / FILE} says what its deployment is like")
        check_within("--from-seq", from_seq, 1, NUMBER_MAX)
        told = tune_in(read_deployment(directory), site, from_seq, seconds=seconds, as_json=as_json)
    else:
        _refuse_options(ctx, DEPLOYMENT_ONLY, f"folder {str(directory)!r} holds no deployment")
        told = _run_ring(
            directory, sites, profile, mesh=mesh, interface=interface, port=port, seconds=seconds, as_json=as_json
        )
    ctx.exit(EXIT_BROKEN if told else 0)


def _refuse_options(ctx: click.Context, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UserError(f"--{name.replace('_', '-')} is given, and {why}; leave it out")


def _run_ring(
    directory: Path,
    sites: int,
    profile: str,
    *,
    mesh: bool,
    interface: str | None,
    port: int | None,
    seconds: float | None,
    as_json: bool,
) -> list[str]:
    """Start a ring and print what it releases; the sentences about what failed, which are printed as well."""
    from fairtape.cli.tape import JsonLines, TapePrinter, TextLines
    from fairtape.deployment.config.ring_folder import SOURCES, RingFolder
    from fairtape.deployment.process.children import ChildProcesses, Interrupts
    from fairtape.deployment.process.temporary_site import run_site
    from fairtape.journal import JournalFollower
    from fairtape.net.loopback import loopback_book, loopback_groups, transport_text

    check_within("--sites", sites, 1, SITES_MAX)
    refuse_overload(sites=sites, profile=profile, cores=cores_here())
    folder = RingFolder(directory)
    members = tuple(range(1, sites + 1))
    place = Place(loopback_book(members, SOURCES, first_port=port), loopback_groups(mesh=mesh, interface=interface))
    with folder.claimed(), Interrupts() as interrupts:
        run = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        journals = folder.new_journals(run, members)
        lines = (JsonLines if as_json else TextLines)({node: venue.name for node, venue in SOURCES.items()})
        tape = TapePrinter(JournalFollower(journals), OutputThread(sys.stdout.fileno()), lines)
        with ChildProcesses(imports=[run_site.__module__]) as crew:
            _start(crew, folder, journals, place, timing=PROFILES[profile])
            click.echo(
                f"{counted(sites, 'site')}, {transport_text(place.groups, mesh=mesh)}, profile"
                f" {profile}; this is what site {tape.site} releases; publish"
                f" from another terminal with: fairtape publish {directory} FILE",
                err=True,
            )
            watch = Watch(interrupts, seconds, PROFILES[profile])
            failures = watch.follow(crew, tape)
        complete = _print_rest(tape, interrupts, failures)
    click.echo(_summary(tape, folder.path / "journals" / run, complete=complete), err=True)
    for failure in failures:
        click.echo(f"fairtape: {failure}", err=True)
    return failures


@dataclass(frozen=True, slots=True)
class Place:
    """Where the nodes of a ring are found."""

    book: "AddressBook"
    groups: "Groups | None"


def _start(
    crew: "ChildProcesses", folder: "RingFolder", journals: dict[NodeId, Path], place: Place, *, timing: Timing
) -> None:
    from fairtape.deployment.config.ring_folder import SOURCES
    from fairtape.deployment.process.temporary_site import run_site
    from fairtape.deployment.ring_plan import RingPlan
    from fairtape.ring.membership.formation import Formation
    from fairtape.wire.seals import KEY_SIZE, Keys

    for site, journal in journals.items():
        crew.start(f"site {site}", run_site, site, journal)
    crew.await_ready({f"site {site}" for site in journals})
    plan = RingPlan(
        formation=Formation(
            number=1,
            members=tuple(journals),
            timing=timing,
            starts_at=SharedClock().now() + START_DELAY,
            resilience=min(1, len(journals) - 1),
        ),
        keys=Keys.from_secret(token_bytes(KEY_SIZE), journals, SOURCES),
        book=place.book,
        groups=place.groups,
    )
    crew.tell_all(plan)
    folder.write(plan)


class Watch:
    """Looks after the sites while their releases are printed, and knows when that has to end."""

    def __init__(self, interrupts: "Interrupts", seconds: float | None, timing: Timing) -> None:
        self._interrupts = interrupts
        self._ends_at = time.monotonic() + (SECONDS_MAX if seconds is None else seconds)
        # When a process is gone, the others say within this time what they make of it.
        self._aftermath = (timing.reform_delay + NEWS_DELAY_MAX) / SECOND
        self._failures: list[str] = []

    def follow(self, crew: "ChildProcesses", tape: "TapePrinter") -> list[str]:
        """Print until the end is asked for or a site fails; the sentences of a failure if there is one."""
        from fairtape.cli.tape import Progress
        from fairtape.deployment.process.children import ChildExited
        from fairtape.deployment.process.temporary_site import SiteNews
        from fairtape.journal.follow import POLL_PERIOD

        progress = Progress.CAUGHT_UP
        while not self._interrupts.count and time.monotonic() < self._ends_at:
            try:
                heard = crew.hear(0 if progress is Progress.BUSY else POLL_PERIOD)
                progress = tape.advance()
            except ChildExited as desertion:
                self._failures.append(str(desertion))
                self._ends_at = min(self._ends_at, time.monotonic() + self._aftermath)
                continue
            except UserError as complaint:
                return [*self._failures, str(complaint)]
            for name, news in heard:
                if isinstance(news, SiteNews) and news.failure is not None:
                    suspect, token, reason = news.failure.suspect, news.failure.token, news.failure.reason.value
                    given_up = f"{name} gave up on site {suspect} at token {token}: {reason}"
                    return [*self._failures, f"{given_up}; where the machine was only too busy, {CALMER}"]
        return self._failures


def _print_rest(tape: "TapePrinter", interrupts: "Interrupts", failures: list[str]) -> bool:
    """Print what is left, until one more Ctrl-C; whether everything is printed."""
    enough = interrupts.count + 1
    try:
        return tape.finish(lambda: interrupts.count >= enough)
    except UserError as complaint:
        if str(complaint) not in failures:
            failures.append(str(complaint))
        return False


def _summary(tape: "TapePrinter", journals: Path, *, complete: bool) -> str:
    printed = tape.printed
    others = f", {counted(printed.others, 'other message')}" if printed.others else ""
    end = f" (the last of them at site {tape.site})" if tape.site != 1 else ""
    told = f"{counted(printed.trades, 'trade')} in one order{others}, {printed.late:,} released late{end}"
    if not complete:
        told = (
            f"{printed.trades:,} trades printed, then nobody took the lines any more; what follows number"
            f" {printed.through} stands in the journals: fairtape journal cat {journals}/site-{tape.site}"
            f" --from-seq {printed.through + 1}"
        )
    return f"{told}; prove it with: fairtape journal verify {journals}/*"
