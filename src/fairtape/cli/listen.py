"""`fairtape listen`: run a ring on this machine and print the one order of what is published into it."""

import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_bytes
from typing import Final

import click

from fairtape.cli.limits import check_within
from fairtape.cli.outlet import Outlet
from fairtape.cli.tape import Progress, Tape
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.core.timing import PROFILES, Timing
from fairtape.deployment.capacity import cores_here, refuse_overload
from fairtape.deployment.folder import SOURCES, RingFolder
from fairtape.deployment.loopback import carrier_words, loopback_book, loopback_groups
from fairtape.deployment.processes import Crew, Deserted, Interrupts
from fairtape.deployment.ring import RingPlan
from fairtape.deployment.sites import SiteNews, run_site
from fairtape.ring.formation import Formation
from fairtape.runtime.carriers import AddressBook, Groups
from fairtape.runtime.clock import SharedClock
from fairtape.runtime.complaints import Complaint
from fairtape.wire.frames import NodeId
from fairtape.wire.seals import KEY_SIZE, Keys

EXIT_BROKEN: Final = 1
SITES_MAX: Final = 16
SECONDS_MAX: Final = 1e9
START_DELAY: Final = 500 * MILLISECOND
LOOK_PERIOD: Final = 20 * MILLISECOND  # how often the journal is looked at
NEWS_DELAY_MAX: Final = 1 * SECOND  # for a site's news to arrive


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--sites", default=3, show_default=True, help="Sites of the ring, each a process of its own.")
@click.option("--profile", default="metro", show_default=True, type=click.Choice(list(PROFILES)), help="Its timing.")
@click.option("--mesh", is_flag=True, help="Unicasts between all sites, even where IP multicast works.")
@click.option("--interface", help="For the multicast: a name, or an address of this machine. [default: loopback]")
@click.option("--port", type=int, help="The first of the nodes' ports. [default: any free ones]")
@click.option("--seconds", type=float, help="How long. [default: until Ctrl-C]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per trade.")
@click.pass_context
def listen(
    ctx: click.Context,
    *,
    directory: Path,
    sites: int,
    profile: str,
    mesh: bool,
    interface: str | None,
    port: int | None,
    seconds: float | None,
    as_json: bool,
) -> None:
    """Start a ring here and print what it releases.

    The ring runs on this machine until Ctrl-C, and every trade is a line once the first site releases it. DIRECTORY is
    made if need be; it holds the ring's addresses, the sources' keys and the sites' journals. Another terminal can then
    publish with `fairtape publish DIRECTORY FILE`.

    A slow reader of the lines never holds up the ring and misses nothing: what it has not taken waits in the journal.
    After Ctrl-C the rest is printed, unless the reader takes nothing for a second or Ctrl-C comes again.

    The exit code is 1 when a site fails: the others then stop, for nothing heals a ring yet, and what any of them has
    released is printed.
    """
    check_within("--sites", sites, 1, SITES_MAX)
    check_within("--seconds", seconds, 0.001, SECONDS_MAX)
    refuse_overload(sites=sites, profile=profile, cores=cores_here())
    folder = RingFolder(directory)
    members = tuple(range(1, sites + 1))
    place = Place(loopback_book(members, SOURCES, first_port=port), loopback_groups(mesh=mesh, interface=interface))
    with folder.claimed(), Interrupts() as interrupts:
        run = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        journals = folder.new_journals(run, members)
        tape = Tape(journals, Outlet(sys.stdout.fileno()), as_json=as_json)
        with Crew(imports=[run_site.__module__]) as crew:
            _start(crew, folder, journals, place, timing=PROFILES[profile])
            click.echo(
                f"{sites} sites, {carrier_words(place.groups, mesh=mesh)}, profile {profile}; this is what site"
                f" {tape.site} releases; publish from another terminal with: fairtape publish {directory} FILE",
                err=True,
            )
            watch = Watch(interrupts, seconds, PROFILES[profile])
            failures = watch.follow(crew, tape)
        complete = _print_rest(tape, interrupts, failures)
    click.echo(_summary(tape, folder.path / "journals" / run, complete=complete), err=True)
    for failure in failures:
        click.echo(f"fairtape: {failure}", err=True)
    ctx.exit(EXIT_BROKEN if failures else 0)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the nodes of a ring are found."""

    book: AddressBook
    groups: Groups | None


def _start(crew: Crew, folder: RingFolder, journals: dict[NodeId, Path], place: Place, *, timing: Timing) -> None:
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

    def __init__(self, interrupts: Interrupts, seconds: float | None, timing: Timing) -> None:
        self._interrupts = interrupts
        self._ends_at = time.monotonic() + (SECONDS_MAX if seconds is None else seconds)
        # When a process is gone, the others say within this time what they make of it.
        self._aftermath = (timing.reform_delay + NEWS_DELAY_MAX) / SECOND
        self._failures: list[str] = []

    def follow(self, crew: Crew, tape: Tape) -> list[str]:
        """Print until the end is asked for or a site fails; the sentences of a failure if there is one."""
        progress = Progress.CAUGHT_UP
        while not self._interrupts.count and time.monotonic() < self._ends_at:
            try:
                heard = crew.hear(0 if progress is Progress.BUSY else LOOK_PERIOD)
                progress = tape.advance()
            except Deserted as desertion:
                self._failures.append(str(desertion))
                self._ends_at = min(self._ends_at, time.monotonic() + self._aftermath)
                continue
            except Complaint as complaint:
                return [*self._failures, str(complaint)]
            for name, news in heard:
                if isinstance(news, SiteNews) and news.failure is not None:
                    suspect, token, reason = news.failure.suspect, news.failure.token, news.failure.reason.value
                    return [*self._failures, f"{name} gave up on site {suspect} at token {token}: {reason}"]
        return self._failures


def _print_rest(tape: Tape, interrupts: Interrupts, failures: list[str]) -> bool:
    """Print what is left, until one more Ctrl-C; whether everything is printed."""
    enough = interrupts.count + 1
    try:
        return tape.finish(lambda: interrupts.count >= enough)
    except Complaint as complaint:
        if str(complaint) not in failures:
            failures.append(str(complaint))
        return False


def _summary(tape: Tape, journals: Path, *, complete: bool) -> str:
    printed = tape.printed
    others = f", {printed.others:,} other messages" if printed.others else ""
    end = f" (the last of them at site {tape.site})" if tape.site != 1 else ""
    told = f"{printed.trades:,} trades in one order{others}, {printed.late:,} released late{end}"
    if not complete:
        told = (
            f"{printed.trades:,} trades printed, then nobody took the lines any more; what follows number"
            f" {printed.through} stands in the journals: fairtape journal cat {journals}/site-{tape.site}"
            f" --from-seq {printed.through + 1}"
        )
    return f"{told}; prove it with: fairtape journal verify {journals}/*"
