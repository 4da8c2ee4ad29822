"""`fairtape listen`: run a ring on this machine and print the one order of what is published into it."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_bytes
from typing import Final

import click

from fairtape.cli.journal import format_instant
from fairtape.core.instants import MILLISECOND
from fairtape.core.timing import PROFILES
from fairtape.deployment.folder import SOURCES, RingFolder
from fairtape.deployment.loopback import carrier_words, loopback_book, loopback_groups
from fairtape.deployment.processes import Crew, Deserted, Interrupts
from fairtape.deployment.ring import RingPlan
from fairtape.deployment.sites import SiteNews, run_site
from fairtape.market.prices import format_fixed
from fairtape.market.symbols import VENUES
from fairtape.market.trades import BadTrade, Trade, decode
from fairtape.ring.formation import Formation
from fairtape.runtime.carriers import AddressBook, Groups
from fairtape.runtime.clock import SharedClock
from fairtape.runtime.complaints import Complaint
from fairtape.runtime.journal import Entry, Journal
from fairtape.wire.blocks import unpack_messages
from fairtape.wire.frames import NodeId
from fairtape.wire.seals import KEY_SIZE, Keys

EXIT_BROKEN: Final = 1
SITES_MAX: Final = 16
START_DELAY: Final = 500 * MILLISECOND
LOOK_PERIOD: Final = 20 * MILLISECOND  # how often the journal is looked at

_VENUE_NAMES: Final = {venue.number: venue.name for venue in VENUES}


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

    The ring runs on this machine until Ctrl-C, and every trade is a line once it is released. DIRECTORY is made if need
    be; it holds the ring's addresses, its keys and its journals. Another terminal can then publish with `fairtape
    publish DIRECTORY FILE`. The exit code is 1 when a site declares a failure.
    """
    if not 1 <= sites <= SITES_MAX:
        raise Complaint(f"--sites is {sites}; give from 1 to {SITES_MAX}")
    if seconds is not None and not 0 < seconds < float("inf"):
        raise Complaint(f"--seconds is {seconds:g}; give more than 0")
    folder = RingFolder(directory)
    members = tuple(range(1, sites + 1))
    place = Place(loopback_book(members, SOURCES, first_port=port), loopback_groups(mesh=mesh, interface=interface))
    with folder.claimed(), Interrupts() as interrupts:
        run = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        journals = folder.new_journals(run, members)
        printer = Printer(journals[members[0]], as_json=as_json)
        with Crew(imports=[run_site.__module__]) as crew:
            _start(crew, folder, journals, place, profile=profile)
            click.echo(
                f"{sites} sites, {carrier_words(place.groups, mesh=mesh)}, profile {profile}; publish from another"
                f" terminal with: fairtape publish {directory} FILE",
                err=True,
            )
            failure = _follow(crew, printer, interrupts, seconds)
        printer.print_new()
    click.echo(_summary(printer, directory, run), err=True)
    if failure is not None:
        click.echo(f"fairtape: {failure}", err=True)
        ctx.exit(EXIT_BROKEN)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the nodes of a ring are found."""

    book: AddressBook
    groups: Groups | None


def _start(crew: Crew, folder: RingFolder, journals: dict[NodeId, Path], place: Place, *, profile: str) -> None:
    for site, journal in journals.items():
        crew.start(f"site {site}", run_site, site, journal)
    crew.await_ready({f"site {site}" for site in journals})
    plan = RingPlan(
        formation=Formation(
            number=1,
            members=tuple(journals),
            timing=PROFILES[profile],
            starts_at=SharedClock().now() + START_DELAY,
            resilience=min(1, len(journals) - 1),
        ),
        keys=Keys.from_secret(token_bytes(KEY_SIZE), journals, SOURCES),
        book=place.book,
        groups=place.groups,
    )
    crew.tell_all(plan)
    folder.write(plan)


def _follow(crew: Crew, printer: "Printer", interrupts: Interrupts, seconds: float | None) -> str | None:
    """Print until the end is asked for; the sentence of a failure if there is one before."""
    ends_at = time.monotonic() + seconds if seconds is not None else float("inf")
    while not interrupts.count and time.monotonic() < ends_at:
        try:
            heard = crew.hear(LOOK_PERIOD)
        except Deserted as desertion:
            return str(desertion)
        for name, news in heard:
            if isinstance(news, SiteNews) and news.failure is not None:
                failure = news.failure
                return f"{name} gave up on site {failure.suspect} at token {failure.token}: {failure.reason.value}"
        printer.print_new()
    return None


class Printer:
    """Prints what one site has released, from its journal: so a slow reader never holds up the site."""

    def __init__(self, journal: Path, *, as_json: bool) -> None:
        self._entries = Journal.open(journal).entries()
        self._line = _json_line if as_json else _line
        self.trades = 0
        self.late = 0
        self.others = 0  # messages that are no trades

    def print_new(self) -> None:
        """What has been released since the last call."""
        for entry in self._entries:
            sys.stdout.writelines(self._lines(entry))
        sys.stdout.flush()

    def _lines(self, entry: Entry) -> Iterator[str]:
        release = entry.release
        assert release is not None
        self.late += release.count if release.late else 0
        for sequence, source, payload in _messages(entry):
            try:
                trade = decode(payload)
            except BadTrade:
                self.others += 1
                continue
            self.trades += 1
            yield self._line(sequence, release.commit_at, release.late, source, trade) + "\n"


def _messages(entry: Entry) -> Iterator[tuple[int, NodeId, bytes]]:
    """The messages of one token. A trade is never long, so fragments need not be put together here."""
    for span in entry.ordered.spans:
        sequence = span.sequence
        for position, (body, count) in enumerate(zip(span.bodies, span.counts, strict=True)):
            if span.fragments and span.fragments[position]:
                yield sequence, span.source, b""
            else:
                for number, payload in enumerate(unpack_messages(body, count), sequence):
                    yield number, span.source, payload
            sequence += count


def _line(sequence: int, commit_at: int, late: bool, source: NodeId, trade: Trade) -> str:
    mark = "  late" if late else ""
    return (
        f"{sequence:>9}  {format_instant(commit_at)}  {_source_name(source):<5} {_venue_name(trade.venue):<5}"
        f" {trade.symbol:<16} {format_fixed(trade.price):>14} {format_fixed(trade.quantity):>14}{mark}"
    )


def _json_line(sequence: int, commit_at: int, late: bool, source: NodeId, trade: Trade) -> str:
    fields = {
        "sequence": sequence,
        "commit_at_ns": commit_at,
        "late": late,
        "source": _source_name(source),
        "venue": _venue_name(trade.venue),
        "symbol": trade.symbol,
        "price": format_fixed(trade.price),
        "quantity": format_fixed(trade.quantity),
        "traded_at_ns": trade.traded_at,
        "trade_id": trade.trade_id,
    }
    return json.dumps(fields, separators=(",", ":"))


def _source_name(source: NodeId) -> str:
    return SOURCES[source].name if source in SOURCES else str(source)


def _venue_name(venue: int) -> str:
    """The venues of a file that only the file names have no name here."""
    return _VENUE_NAMES.get(venue, str(venue))


def _summary(printer: Printer, directory: Path, run: str) -> str:
    others = f", {printer.others:,} other messages" if printer.others else ""
    return (
        f"{printer.trades:,} trades in one order{others}, {printer.late:,} released late; prove it with:"
        f" fairtape journal verify {directory}/journals/{run}/*"
    )
