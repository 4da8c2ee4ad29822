"""`fairtape init`: write a commented deployment file, and the keys of all nodes."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fairtape.cli.terminal import check_within, counted, steps
from fairtape.core.addresses import is_host
from fairtape.core.errors import UserError
from fairtape.core.timing import PROFILES
from fairtape.ring.membership.topology import Excess, Remedy

if TYPE_CHECKING:
    from fairtape.deployment.operations.draft import Draft
    from fairtape.deployment.operations.profile_measurement import ProfileRun

SITES: Final = 5
EXCESS: Final = (
    "When more than --resilience sites are silent: halt, or continue with a Break.  [default: halt on several machines"
    " or with a trading floor, otherwise continue]"
)
REMEDY: Final = "The token bypasses a failed site, or a site of its secondary loop replaces it."

_RESILIENCE: Final = re.compile(r"\d{1,3}|majority|all")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--sites", type=int, help=f"Sites of one loop.  [default: {SITES}]")
@click.option("--loops", metavar="N,N…", help="Sites of the primary loop and of each secondary one, such as 3,2,2.")
@click.option(
    "--profile", type=click.Choice(list(PROFILES)), help="Timing.  [default: measured, what this machine sustains]"
)
@click.option("--reformers", default=2, show_default=True, help="Reformation servers.")
@click.option("--sources", default=3, show_default=True, help="Sources that may publish.")
@click.option(
    "--store",
    default="sqlite:formations.db",
    show_default=True,
    help="The formation store: sqlite:FILE or etcd:http[s]://HOST:PORT/PREFIX.",
)
@click.option(
    "--resilience", default="1", show_default=True, help='Failures to survive (K): a number, "majority" or "all".'
)
@click.option("--excess", type=click.Choice([each.value for each in Excess]), help=EXCESS)
@click.option(
    "--remedy", default="bypass", show_default=True, type=click.Choice([each.value for each in Remedy]), help=REMEDY
)
@click.option(
    "--address",
    multiple=True,
    metavar="HOST",
    help="Host of nodes; may be repeated, nodes are then assigned in turn.  [default: this machine]",
)
@click.option("--edge", type=int, metavar="STRIPES", help="Serve customers on this many stripes.  [default: no edge]")
@click.option(
    "--cities", metavar="CITY,CITY…|all", help="Name the sites after these cities, and inject the delays between them."
)
@click.option("--loss", type=float, help="With --cities: fraction of datagrams lost on every link.  [default: 0]")
@click.option("--mesh", is_flag=True, help="Unicast to each node, even where IP multicast works.")
def init(
    *,
    directory: Path,
    sites: int | None,
    loops: str | None,
    profile: str | None,
    reformers: int,
    sources: int,
    store: str,
    resilience: str,
    excess: str | None,
    remedy: str,
    address: tuple[str, ...],
    edge: int | None,
    cities: str | None,
    loss: float | None,
    mesh: bool,
) -> None:
    """Make a deployment: its file and the keys of its nodes.

    The file describes nodes, loops, addresses and rules; comments explain the settings. A folder that already holds a
    deployment is refused.

    Sites on one machine share its cores. Without --profile, such a deployment runs for some seconds in a temporary
    folder, with the fastest profile first: with 500 messages/s and another program that keeps a core busy, and then
    with trades as fast as the ring accepts them. The table shows what was measured; in doubt the slower profile is
    taken, and the file names it. Sites on several machines have the profile metro.

    With --cities, nodes on this machine are as far apart as the cities: each injects the delays of the real distances
    where its datagrams arrive. The profile is wan then, unless --profile names another.
    """
    from fairtape.deployment.operations.draft import Draft
    from fairtape.storage.formation_stores import check_store

    if sites is not None and loops is not None:
        raise UserError(f"--sites is {sites} and --loops is {loops!r}; give one of them")
    _check_counts(sites=sites, reformers=reformers, sources=sources, edge=edge)
    _check_hosts(address)
    check_store(store)
    named_cities = _cities(cities, loss, sites=sites, loops=loops)
    draft = Draft(
        loops=_sizes(loops) if loops is not None else (len(named_cities) or sites or SITES,),
        profile=profile or ("wan" if named_cities else None),
        cities=named_cities,
        loss=loss or 0.0,
        reformers=reformers,
        sources=sources,
        store=store,
        resilience=resilience,
        excess=excess,
        remedy=remedy,
        hosts=address,
        mesh=mesh,
        edge=edge or 0,
    )
    _check_resilience(resilience, draft.loops[0])
    _create(directory, draft)


def _create(directory: Path, draft: "Draft") -> None:
    from fairtape.deployment.config.description import FILE
    from fairtape.deployment.operations.draft import create_deployment, refuse_folder

    refuse_folder(directory)
    if draft.local and draft.profile is None:
        draft = _measured(draft)
    created = create_deployment(directory, draft)
    named = draft.chosen_profile()
    click.echo(f"{directory / FILE}: {counted(len(created.sites), 'site')}, profile {named}; start it with:")
    click.echo(f"  fairtape up {directory}")
    if draft.store_host is not None:
        click.echo(
            f"The formation store is a file on {draft.store_host}, and all reformation servers are there: a single"
            " point of failure, without which the ring stops. For none, give --store etcd:http://HOST:2379/fairtape"
            " with the address of an etcd cluster."
        )


def _measured(draft: "Draft") -> "Draft":
    """The draft with the profile that this machine sustains; prints what was measured."""
    from fairtape.deployment.operations.profile_measurement import LOAD_RATE, measure_profile

    with steps(quiet=False) as step:
        choice = measure_profile(draft, step)
    if choice.runs:
        servers = counted(draft.reformers, "reformation server")
        sites = counted(draft.sites, "site")
        click.echo(f"measured here with {sites}, {servers}, {LOAD_RATE:g} messages/s and another busy program:")
        for line in measured_table(choice.runs):
            click.echo(f"  {line}".rstrip())
    click.echo(f"{choice.reason}.")
    return replace(draft, profile=choice.profile)


COLUMNS: Final = (
    "profile",
    "guaranteed delay",
    "late",
    "stalls",
    "requests",
    "processors, idle",
    "with messages",
    "as many trades as possible",
)


def measured_table(runs: "Sequence[ProfileRun]") -> list[str]:
    """The lines of a table of measurements."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for run in runs:
        delay = f"{run.delay_max / 1e6:,g} ms"
        if run.trouble:
            rows.append((run.profile, delay, *("-",) * (len(COLUMNS) - 2)))
            continue
        late = f"{run.late:,} of {run.messages:,}"
        shares = f"{run.idle_share:.0%}", f"{run.load_share:.0%}"
        flood = "-" if run.flood_rate is None else f"{run.flood_rate:,.0f}/s, {run.flood_late_share:.1%} late"
        rows.append((run.profile, delay, late, f"{run.pauses:,}", f"{run.requests:,}", *shares, flood))
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _check_counts(*, sites: int | None, reformers: int, sources: int, edge: int | None) -> None:
    from fairtape.deployment.operations.draft import EDGE_STRIPES_MAX, REFORMERS_MAX, SITES_MAX, SOURCES_MAX

    check_within("--sites", sites, 1, SITES_MAX)
    check_within("--reformers", reformers, 1, REFORMERS_MAX)
    check_within("--sources", sources, 1, SOURCES_MAX)
    check_within("--edge", edge, 1, EDGE_STRIPES_MAX)


def _check_resilience(resilience: str, sites: int) -> None:
    if not _RESILIENCE.fullmatch(resilience):
        raise UserError(f'--resilience is {resilience!r}; give a number, "majority" or "all"')
    if resilience.isdecimal() and int(resilience) > max(sites - 1, 1):
        raise UserError(
            f"--resilience is {resilience}, and the primary loop has {counted(sites, 'site')}; give at most"
            f' {sites - 1}, or "all"'
        )


def _check_hosts(hosts: tuple[str, ...]) -> None:
    for host in hosts:
        if not is_host(host):
            raise UserError(f"--address is {host!r}; give the name or the IPv4 address of a machine")


def _cities(text: str | None, loss: float | None, *, sites: int | None, loops: str | None) -> tuple[str, ...]:
    """The cities of the sites; empty where none are given."""
    from fairtape.core.cities import CITIES, city
    from fairtape.deployment.config.description import LOSS_MAX

    if text is None:
        if loss is not None:
            raise UserError(f"--loss is {loss:g} without --cities; give the cities of the sites, or leave it out")
        return ()
    if sites is not None or loops is not None:
        raise UserError("--cities is given together with --sites or --loops; it says how many sites there are")
    check_within("--loss", loss, 0.0, LOSS_MAX)
    names = [each.name for each in CITIES] if text == "all" else [each.strip() for each in text.split(",")]
    try:
        found = tuple(city(name).name for name in names)
    except ValueError as unknown:
        raise UserError(f"--cities is {text!r}: {unknown}") from None
    if len(set(found)) < len(found):
        raise UserError(f"--cities is {text!r}; name each city once")
    return found


def _sizes(loops: str) -> tuple[int, ...]:
    from fairtape.deployment.operations.draft import SITES_MAX

    try:
        sizes = tuple(map(int, loops.split(",")))
    except ValueError:
        raise UserError(f"--loops is {loops!r}; give numbers of sites, such as 3,2,2") from None
    if min(sizes) < 1 or sum(sizes) > SITES_MAX:
        raise UserError(f"--loops is {loops!r}; give at least 1 site for each loop, and {SITES_MAX} in all at most")
    return sizes
