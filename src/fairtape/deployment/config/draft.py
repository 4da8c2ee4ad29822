"""A new deployment: the file that describes it, with a word on everything that can be changed, and everybody's keys."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from random import SystemRandom
from typing import Final

from fairtape.core.addresses import Address, format_address
from fairtape.core.errors import UserError
from fairtape.core.timing import PROFILES
from fairtape.deployment.config.capacity import cores_here, refuse_overload, sites_max
from fairtape.deployment.config.description import COMMIT_PASSES, FILE, Deployment, understand
from fairtape.deployment.config.keys import write_keys
from fairtape.deployment.config.loopback import free_ports
from fairtape.deployment.config.toml_table import TomlTable
from fairtape.deployment.process.edge import stripe_plans_of
from fairtape.market.stripe_planning import plan_by_rate
from fairtape.market.stripes import DAY, Endpoint, StripePlan
from fairtape.market.symbols import VENUES, universe
from fairtape.net.transports import LOOPBACK, multicast_works

FIRST_SOURCE: Final = 100  # the first venue is 101
FIRST_REFORMER: Final = 901
OPERATOR: Final = 999
SITES_MAX: Final = 96
REFORMERS_MAX: Final = 9
SOURCES_MAX: Final = len(VENUES)
EDGE_STRIPES_MAX: Final = 32
EDGE_SYMBOLS: Final = 256  # that the first plan names
EDGE_BITS_PER_S: Final = 100_000_000  # of one edge stripe
FEEDS: Final = ("A", "B")
PORTS_FROM: Final = 17_200  # where each host has its own ports


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a user asked for; what they left open is chosen."""

    loops: tuple[int, ...]  # sites of the primary loop, and of each secondary one
    profile: str | None = None
    reformers: int = 2
    sources: int = 3
    store: str = "sqlite:formations.db"
    resilience: str = "1"
    excess: str = "continue"
    remedy: str = "bypass"
    hosts: tuple[str, ...] = ()  # of the sites, in turn; none: this machine alone
    mesh: bool = False
    edge: int = 0  # stripes that customers hear; 0: there are no customers

    @property
    def sites(self) -> int:
        """In all loops."""
        return sum(self.loops)

    @property
    def local(self) -> bool:
        """Whether everything is on this machine."""
        return all(_is_loopback(host) for host in self.hosts)

    def chosen_profile(self) -> str:
        """The one that was asked for, or the fastest that this machine can carry."""
        if self.profile is not None:
            if self.local:
                refuse_overload(sites=self.sites, profile=self.profile, cores=cores_here())
            return self.profile
        if not self.local:
            return "metro"
        return next((name for name, timing in PROFILES.items() if self.sites <= sites_max(timing, cores_here())), "wan")


def _is_loopback(host: str) -> bool:
    try:
        return IPv4Address(host).is_loopback
    except AddressValueError:
        return host == "localhost"


def create_deployment(folder: Path, draft: Draft) -> Deployment:
    """Write a deployment into a new or empty folder. One that is there already is never touched."""
    if (folder / FILE).exists():
        raise UserError(f"folder {str(folder)!r} holds a deployment already; name another folder, or remove that one")
    text = "\n".join(_text(draft)) + "\n"
    deployment = understand(folder, TomlTable.parse(folder / FILE, text.encode()))  # before anything is written
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"folder {str(folder)!r} holds other files and no deployment; name a new or empty folder")
        (folder / FILE).write_text(text)
        write_keys(deployment)
        if draft.edge:
            stripe_plans_of(deployment).add(_first_plan(draft))
    except OSError as error:
        raise UserError(
            f"folder is {str(folder)!r}, where nothing can be written ({error.strerror}); name another folder"
        ) from None
    return deployment


def _text(draft: Draft) -> Iterator[str]:
    profile = draft.chosen_profile()
    names = [f"s{number}" for number in range(1, draft.sites + 1)]
    sources = [venue.name for venue in VENUES[: draft.sources]]
    stations = 2 * len(names) if draft.edge else 0
    places = _places(draft, len(names) + draft.reformers + len(sources) + 1 + stations)
    yield "# A fairtape deployment. Every site, server and source reads this same file; nothing in it is secret."
    yield "# Whatever is left out has the value that is shown here. After a change, start the processes again."
    yield "version = 1"
    yield "stripe = 0"
    yield ""
    yield from _rules(draft)
    yield from _network(draft)
    yield from _surroundings(draft)
    yield from _loop_tables(draft, profile, names)
    yield "[floor]  # what all replicas of the trading floor must agree on before the first message"
    yield f"commit_passes = {COMMIT_PASSES}  # N: a trade commits when so many tokens have passed"
    yield '# operators = ["XNYS"]  # sources that may open markets and let money in; without it, all may'
    yield '# arbiters = { s1 = "XTKS" }  # as which source a site reports its trades; `fairtape up` runs them'
    yield ""
    yield "# [gateways]  # order entry, by the source through which it speaks; `fairtape up` runs them"
    yield '# XLON = { entry = "127.0.0.1:9101", fix = "127.0.0.1:9102", ouch = "127.0.0.1:9103" }'
    yield "# More fields: ledger, cert_file and key_file (TLS), comp_id, accounts, orders_per_s, open_orders, notional."
    yield ""
    yield "# Every node has a number of its own, from 1 on, and an address at which it listens (UDP)."
    yield "[sites]"
    yield from (_member(name, number, next(places)) for number, name in enumerate(names, 1))
    yield ""
    yield "[reformers]  # reformation servers: one leads, the others stand by"
    for number in range(draft.reformers):
        yield _member(f"x{number + 1}", FIRST_REFORMER + number, next(places))
    yield ""
    yield "[sources]  # who may publish; each has its own key in keys/"
    for number, name in enumerate(sources, FIRST_SOURCE + 1):
        yield _member(name, number, next(places))
    yield ""
    yield "[operator]  # who retires and admits sites"
    yield f"node = {OPERATOR}"
    yield f'address = "{format_address(next(places))}"'
    if draft.edge:
        yield from _edge(draft, names, places)


def _edge(draft: Draft, names: Sequence[str], places: Iterator[Address]) -> Iterator[str]:
    """Every site is a station, on the feeds in turn. Its addresses follow its host's: as many places as there are."""
    listed = list(places)
    hosts = draft.hosts or (LOOPBACK,)
    yield ""
    yield "[edge]  # customers hear what sites release, on the stripes of the plans in plans/"
    yield 'tag = "FT"  # 1 or 2 letters and digits, which begin the names of sessions'
    yield "first_plan = 1  # in force from the first message on; 0: none, until `fairtape operate DIR plan FILE`"
    yield f"ttl = {0 if draft.local else 1}  # networks that a stripe may cross"
    yield "guaranteed = []  # addresses of customers whose repairs come first"
    yield '# customers_file = "keys/customers.json"  # {"name": "password"} of those who may replay; without it, all'
    yield ""
    yield "[edge.stations]  # where a site's customers ask for what they missed (UDP), and where they replay (TCP)"
    for place, name in enumerate(names):
        host = hosts[place % len(hosts)]
        ports = [port for _, port in listed[2 * place : 2 * place + 2]]
        feed = FEEDS[place % len(FEEDS)]
        yield f'{name} = {{ feed = "{feed}", requests = "{host}:{ports[0]}", replays = "{host}:{ports[1]}" }}'
    near = ", ".join(f'"{name}"' for name in names[:3])
    yield ""
    yield "# [edge.regions]  # two sites speak to each of them, and the next one takes over from one that fails"
    yield f'# here = {{ feeds = ["A", "B"], sites = [{near}] }}'


def _first_plan(draft: Draft) -> StripePlan:
    """The symbols that `fairtape publish --generate` makes, spread evenly; other symbols find their place by rule."""
    today = time.time_ns() // DAY * DAY
    chance = SystemRandom()
    base = Endpoint(f"239.196.{chance.randrange(1, 255)}.1", free_ports(1)[0])
    rates = dict.fromkeys(universe(EDGE_SYMBOLS), 1)
    venues = [venue.name for venue in VENUES[: draft.sources]]
    return plan_by_rate(
        rates, draft.edge, EDGE_BITS_PER_S, midnight_at=today, feeds=FEEDS, venues=venues, base=base
    ).plan


def _member(name: str, number: int, address: Address) -> str:
    return f'{name} = {{ node = {number}, address = "{format_address(address)}" }}'


def _places(draft: Draft, count: int) -> Iterator[Address]:
    """Addresses: sites take the hosts in turn, and so does everyone else."""
    hosts = draft.hosts or (LOOPBACK,)
    if draft.local:
        ports = free_ports(count)
        yield from ((hosts[each % len(hosts)], ports[each]) for each in range(count))
    else:
        yield from ((hosts[each % len(hosts)], PORTS_FROM + each) for each in range(count))


def _rules(draft: Draft) -> Iterator[str]:
    resilience = draft.resilience if draft.resilience.isdigit() else f'"{draft.resilience}"'
    yield "[order]"
    yield f'resilience = {resilience}  # K: a message is released when K + 1 sites hold it; or "majority", or "all"'
    yield f'excess = "{draft.excess}"  # when more than K are silent: "halt", or "continue" with a Break in the order'
    yield f'remedy = "{draft.remedy}"  # a failed site is passed by, or "replace"d by one of its secondary loop'
    yield ""


def _network(draft: Draft) -> Iterator[str]:
    chance = SystemRandom()
    host = f"239.195.{chance.randrange(1, 255)}.{chance.randrange(1, 127)}"
    data, control = free_ports(2)
    mesh = draft.mesh or (draft.local and not multicast_works(LOOPBACK))
    yield "[network]"
    transport = "mesh" if mesh else "multicast"
    yield f'carrier = "{transport}"  # "multicast", or "mesh": a unicast to each, where there is none'
    if not mesh:
        yield f'data_group = "{host}:{data}"'
        yield f'control_group = "{host}:{control}"  # secondary loops use the addresses after this one'
        yield f"ttl = {0 if draft.local else 1}  # networks that a multicast may cross"
    yield ""


def _surroundings(draft: Draft) -> Iterator[str]:
    yield "[clock]"
    source = "shared" if draft.local else "system"
    yield f'source = "{source}"  # "shared": all sites on one machine; "system": each its own'
    yield "# declared_bound_us = 500  # how wrong a clock may be where the kernel does not know"
    yield ""
    yield "[process]"
    yield "# The kernel can prefer sites and servers to ordinary programs; it grants that to root and CAP_SYS_NICE."
    yield 'real_time = "auto"  # "auto": where it is granted; true: nothing runs without it; false: never'
    yield ""
    yield "[journal]"
    yield 'sync = "interval"  # "token" survives the loss of power at every site; "interval" and "never" do not'
    yield "sync_period_ms = 100"
    yield "# trace_mib = 256    # traces of each site, for planning; 0: none"
    yield ""
    yield "[store]  # where reformation servers agree; sqlite for one machine, etcd for several"
    yield f"url = {json.dumps(draft.store, ensure_ascii=False)}"
    if draft.store.startswith("etcd:"):
        yield "# For a cluster with TLS (https) or users; files are named from this folder on, and only reformation"
        yield "# servers need them:"
        yield '# ca_file = "keys/etcd-ca.pem"  # who vouches for the cluster, where this machine does not know it'
        yield '# cert_file = "keys/etcd-client.pem"  # who we are, where the cluster asks'
        yield '# key_file = "keys/etcd-client.key"'
        yield '# user = "fairtape"'
        yield '# password_file = "keys/etcd-password"'
    yield ""


def _loop_tables(draft: Draft, profile: str, names: Sequence[str]) -> Iterator[str]:
    yield "# Loops: 0 is the primary one. A tour names a loop's own sites in the order in which the token travels."
    yield "# A profile can be overridden: retry_period_us, retries_max, token_period_us, commit_delay_us,"
    yield "# clock_error_max_us."
    rest = list(names)
    primary = rest[: draft.loops[0]]
    for number, size in enumerate(draft.loops):
        tour, rest = rest[:size], rest[size:]
        yield "[[loops]]"
        yield f"number = {number}"
        yield f'profile = "{profile}"'
        yield f"tour = {json.dumps(tour)}"
        if number:
            yield "parent = 0"
            yield f'junction = "{primary[(number - 1) % len(primary)]}"  # joins it to its parent while it is there'
            yield "stride = 1  # passes its token for every so many of the primary one"
        else:
            yield "request_sets = 1  # above 1, sites take turns in asking for what all of them missed"
        yield ""
