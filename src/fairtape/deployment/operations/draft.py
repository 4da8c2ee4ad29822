"""New deployments: the deployment file with a comment on every option, the keys of all nodes, the first stripe plan."""

import errno
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import Final

from fairtape.core.addresses import Address, format_address, is_loopback
from fairtape.core.cities import CITIES, city, node_name
from fairtape.core.errors import UserError
from fairtape.core.toml_table import TomlTable
from fairtape.deployment.config.capacity import candidate_profiles, cores_here, refuse_overload
from fairtape.deployment.config.description import COMMIT_PASSES, FILE, TEMPORARY, Deployment, parse_deployment
from fairtape.deployment.config.keys import write_keys
from fairtape.edge.service.stripe_plans import StripePlanStore
from fairtape.market.stripes import DAY, Endpoint, StripePlan, plan_by_rate
from fairtape.market.symbols import VENUES, universe
from fairtape.net.loopback import free_ports, random_groups
from fairtape.net.transports import LOOPBACK, multicast_works

FIRST_SOURCE: Final = 101
FIRST_REFORMER: Final = 901
OPERATOR: Final = 999
SITES_MAX: Final = 96
REFORMERS_MAX: Final = 9
SOURCES_MAX: Final = len(VENUES)
EDGE_STRIPES_MAX: Final = 32
EDGE_SYMBOLS: Final = 256  # listed in the first plan; others are published in longer messages
EDGE_BITS_PER_S: Final = 100_000_000  # rate of one edge stripe
FEEDS: Final = ("A", "B")
LOCAL_STORE: Final = "sqlite:formations.db"
PORTS_FROM: Final = 17_200  # the first port on hosts that are not this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The options of `fairtape init`. What is None is chosen."""

    loops: tuple[int, ...]  # sites of the primary loop, and of each secondary one
    profile: str | None = None
    reformers: int = 2
    sources: int = 3
    store: str = LOCAL_STORE
    resilience: str = "1"
    excess: str | None = None  # "halt" or "continue"; None: the file leaves it out, and its default follows its content
    remedy: str = "bypass"
    hosts: tuple[str, ...] = ()  # used in turn; none: only this machine
    mesh: bool = False
    edge: int = 0  # stripes for customers; 0: no edge
    edge_symbols: int = EDGE_SYMBOLS
    regions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of customers: the sites near each, in order
    cities: tuple[str, ...] = ()  # of the sites, which are named after them; delays follow the distances
    loss: float = 0.0  # to inject on every link
    fault_seed: int = 1
    pace: str | None = None  # "adapt" or "fixed"; None: as `chosen_pace` says

    @property
    def sites(self) -> int:
        """The number of sites in all loops."""
        return sum(self.loops)

    @property
    def chosen_pace(self) -> str:
        """Sites of one machine compete with its other programs; where delays of cities are injected, nothing adapts."""
        return self.pace or ("adapt" if self.local and not self.cities else "fixed")

    @property
    def local(self) -> bool:
        """Whether all nodes are on this machine."""
        return all(is_loopback(host) for host in self.hosts)

    @property
    def store_host(self) -> str | None:
        """The host of a store in a file, where the nodes are on several machines; None: there is no such host."""
        several = not self.local and len(set(self.hosts)) > 1
        return self.hosts[0] if several and self.store.startswith("sqlite:") else None

    @property
    def site_names(self) -> tuple[str, ...]:
        if self.cities:
            return tuple(node_name(city(each)) for each in self.cities)
        return tuple(f"s{number}" for number in range(1, self.sites + 1))

    @property
    def source_names(self) -> tuple[str, ...]:
        return tuple(venue.name for venue in VENUES[: self.sources])

    @property
    def reformer_names(self) -> tuple[str, ...]:
        return tuple(f"x{number}" for number in range(1, self.reformers + 1))

    @property
    def feeds(self) -> tuple[str, ...]:
        """Two for each region; without regions, two for all customers."""
        return tuple(f"{region}-{feed}" for region in self.regions for feed in FEEDS) or FEEDS

    def chosen_profile(self) -> str:
        """The given profile; without one, the slower of those that this machine may sustain, as nothing is measured."""
        if self.profile is not None:
            if self.local:
                refuse_overload(sites=self.sites, profile=self.profile, cores=cores_here())
            return self.profile
        if not self.local:
            return "metro"
        candidates = candidate_profiles(self.sites, cores_here())
        return candidates[-1] if candidates else "wan"


def create_deployment(folder: Path, draft: Draft, *, temporary: bool = False) -> Deployment:
    """Write a deployment into a new or empty folder. Never overwrites one. Raises `UserError`.

    A temporary one is marked as created by `fairtape listen`.
    """
    refuse_folder(folder)
    text = "\n".join(_text(draft)) + "\n"
    deployment = parse_deployment(folder, TomlTable.parse(folder / FILE, text.encode()))  # before anything is written
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_folder(folder)
        with (folder / FILE).open("x") as file:  # of two commands at once, one fails
            file.write(text)
        write_keys(deployment)
        if draft.edge:
            StripePlanStore(folder, deployment.stripe).add(_first_plan(draft))
        if temporary:
            (folder / TEMPORARY).write_text("Created by fairtape listen, which runs this deployment again.\n")
    except OSError as error:
        raise _unwritable(folder, error) from None
    return deployment


def refuse_folder(folder: Path) -> None:
    """Raise `UserError` unless the folder is new or empty, and can be written."""
    try:
        if (folder / FILE).exists():
            raise UserError(
                f"folder {str(folder)!r} holds a deployment already; name another folder, or remove that one"
            )
        holds_files = folder.exists() and any(folder.iterdir())
        _refuse_unwritable(next(each for each in (folder, *folder.absolute().parents) if each.exists()))
    except OSError as error:
        raise _unwritable(folder, error) from None
    if holds_files:
        raise UserError(f"folder {str(folder)!r} holds other files and no deployment; name a new or empty folder")


def _refuse_unwritable(existing: Path) -> None:
    """Raise OSError where no file can be made: known before a measurement, not only after it."""
    if not existing.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(existing, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _unwritable(folder: Path, error: OSError) -> UserError:
    return UserError(f"folder is {str(folder)!r}, where nothing can be written ({error.strerror}); name another folder")


def _text(draft: Draft) -> Iterator[str]:
    profile = draft.chosen_profile()
    names, sources = draft.site_names, draft.source_names
    edge_addresses = 2 * len(names) if draft.edge else 0
    addresses = _addresses(draft, len(names) + draft.reformers + len(sources) + 1 + edge_addresses)
    yield "# A fairtape deployment. Every site, server and source reads this same file; nothing in it is secret."
    yield "# docs/reference/deployment.md lists all fields and their defaults. Restart the processes after a change."
    yield "version = 1"
    yield "stripe = 0"
    yield ""
    yield from _rules(draft)
    yield from _network(draft)
    yield from _surroundings(draft)
    yield from _loop_tables(draft, profile, names)
    yield from _link_faults(draft)
    yield "[floor]  # the rules of the trading floor, the same for all replicas"
    yield f"commit_passes = {COMMIT_PASSES}  # N: a trade commits after N token passes"
    yield '# operators = ["XNYS"]  # sources that may open markets and deposit money; without it, all may'
    yield f'# arbiters = {{ {names[0]} = "XTKS" }}  # reports the trades of that site; `fairtape up` runs it'
    yield ""
    yield "# [gateways]  # order entry; a gateway has the name of its source, and `fairtape up` runs it"
    yield '# XLON = { entry = "127.0.0.1:9101", fix = "127.0.0.1:9102", ouch = "127.0.0.1:9103" }'
    yield "# More fields: ledger, cert_file and key_file (TLS), comp_id, accounts, orders_per_s, open_orders, notional."
    yield ""
    yield "# Every node has its own number, from 1 on, and its own UDP address."
    yield "[sites]"
    yield from (_member(name, number, next(addresses)) for number, name in enumerate(names, 1))
    yield ""
    yield "[reformers]  # reformation servers: one leads, the others are on standby"
    if draft.store_host is not None:
        yield "# The store is a file, so all are on one host; without that host the ring stops. etcd does without."
    for number, name in enumerate(draft.reformer_names, FIRST_REFORMER):
        yield _member(name, number, _server_address(draft, next(addresses)))
    yield ""
    yield "[sources]  # publishers; each has its own key in keys/"
    for number, name in enumerate(sources, FIRST_SOURCE):
        yield _member(name, number, next(addresses))
    yield ""
    yield "[operator]  # sends the commands that retire and admit sites"
    yield f"node = {OPERATOR}"
    yield f'address = "{format_address(next(addresses))}"'
    if draft.edge:
        yield from _edge(draft, names, list(addresses))


def _edge(draft: Draft, names: Sequence[str], addresses: Sequence[Address]) -> Iterator[str]:
    """Every site publishes, on the feeds in turn. Its two addresses are on its own host, with the ports of these."""
    hosts = draft.hosts or (LOOPBACK,)
    yield ""
    yield "[edge]  # sites publish to customers, on the stripes of the plans in plans/"
    yield 'tag = "FT"  # 1 or 2 letters and digits: the prefix of session names'
    yield "first_plan = 1  # in force from the first message on; 0: none until `fairtape operate DIR plan FILE`"
    yield f"ttl = {0 if draft.local else 1}  # TTL of this multicast: 0 stays on this machine, 1 in its network"
    yield "guaranteed = []  # addresses of customers whose repairs have priority"
    yield '# customers_file = "keys/customers.json"  # {"name": "password"} for replays; without it, all may replay'
    yield ""
    yield "[edge.publishers]  # where a site's customers ask for what they missed (UDP), and where they replay (TCP)"
    for place, name in enumerate(names):
        host = hosts[place % len(hosts)]
        ports = [port for _, port in addresses[2 * place : 2 * place + 2]]
        feed = _feed_of(draft, name)
        yield f'{name} = {{ feed = "{feed}", requests = "{host}:{ports[0]}", replays = "{host}:{ports[1]}" }}'
    yield ""
    hidden = "" if draft.regions else "# "
    yield f"{hidden}[edge.regions]  # two sites publish to each region; the next one replaces a site that fails"
    for region, near in draft.regions.items():
        feeds = json.dumps([f"{region}-{feed}" for feed in FEEDS])
        yield f"{region} = {{ feeds = {feeds}, sites = {json.dumps(near)} }}"
    if not draft.regions:
        yield f'# here = {{ feeds = ["A", "B"], sites = {json.dumps(names[:3])} }}'


def _feed_of(draft: Draft, site: str) -> str:
    """The feed of a publisher: that of the first region near it, or the feeds in turn."""
    for region, near in draft.regions.items():
        if site in near:
            return f"{region}-{FEEDS[near.index(site) % len(FEEDS)]}"
    return FEEDS[draft.site_names.index(site) % len(FEEDS)]


def _link_faults(draft: Draft) -> Iterator[str]:
    """The cities of all nodes: of sources those of their venues, of reformation servers those of sites."""
    if not draft.cities:
        yield "# [link_faults]  # injected where datagrams arrive, for demonstrations and tests on one machine"
        yield "# loss = 0.01  # on every link"
        yield "# seed = 1"
        yield f'# cities = {{ {draft.site_names[0]} = "Tokyo", x1 = "London" }}  # delays follow the distances'
        yield ""
        return
    known = {each.name for each in CITIES}
    cities = dict(zip(draft.site_names, (city(each).name for each in draft.cities), strict=True))
    for place, name in enumerate(draft.reformer_names, 1):
        cities[name] = city(draft.cities[place * len(draft.cities) // (draft.reformers + 1)]).name
    cities |= {venue.name: venue.city for venue in VENUES[: draft.sources] if venue.city in known}
    yield "[link_faults]  # injected where datagrams arrive, for demonstrations and tests on one machine"
    yield f"loss = {draft.loss:g}  # on every link"
    yield f"seed = {draft.fault_seed}"
    yield ""
    yield "[link_faults.cities]  # delays between nodes follow the distances between their cities"
    yield from (f"{name} = {json.dumps(place, ensure_ascii=False)}" for name, place in cities.items())
    yield ""


def _first_plan(draft: Draft) -> StripePlan:
    """The symbols of `fairtape publish --generate`, spread evenly. Other symbols are assigned by hash."""
    today = time.time_ns() // DAY * DAY
    random = SystemRandom()
    base = Endpoint(f"239.196.{random.randrange(1, 255)}.1", free_ports(1)[0])
    rates = dict.fromkeys(universe(draft.edge_symbols), 1)
    return plan_by_rate(
        rates,
        draft.edge,
        EDGE_BITS_PER_S,
        midnight_at=today,
        feeds=draft.feeds,
        venues=draft.source_names,
        base=base,
    ).plan


def _member(name: str, number: int, address: Address) -> str:
    return f'{name} = {{ node = {number}, address = "{format_address(address)}" }}'


def _addresses(draft: Draft, count: int) -> Iterator[Address]:
    """Addresses on the hosts in turn."""
    hosts = draft.hosts or (LOOPBACK,)
    if draft.local:
        ports = free_ports(count)
        yield from ((hosts[each % len(hosts)], ports[each]) for each in range(count))
    else:
        yield from ((hosts[each % len(hosts)], PORTS_FROM + each) for each in range(count))


def _server_address(draft: Draft, address: Address) -> Address:
    """A store in a file is on one host, and with it all reformation servers (decision 63, One store)."""
    return address if draft.store_host is None else (draft.store_host, address[1])


def _rules(draft: Draft) -> Iterator[str]:
    resilience = draft.resilience if draft.resilience.isdigit() else f'"{draft.resilience}"'
    yield "[order]"
    yield f'resilience = {resilience}  # K: a message is released when K + 1 sites hold it; or "majority", or "all"'
    if draft.excess is None:
        yield "# When more than K sites fail: halt, or continue with a Break in the order, which voids trades. Without"
        yield "# it: halt on several machines, or with gateways, arbiters or operators of a floor; otherwise continue."
        yield '# excess = "halt"'
    else:
        yield "# When more than K sites fail: halt, or continue with a Break in the order, which voids trades."
        yield f'excess = "{draft.excess}"'
    yield f'remedy = "{draft.remedy}"  # a failed site is left out, or "replace"d by a site of its secondary loop'
    yield f'pace = "{draft.chosen_pace}"  # "adapt": the token is slowed where sites release late; "fixed": never'
    yield ""


def _network(draft: Draft) -> Iterator[str]:
    mesh = draft.mesh or (draft.local and not multicast_works(LOOPBACK))
    yield "[network]"
    transport = "mesh" if mesh else "multicast"
    yield f'transport = "{transport}"  # "multicast", or "mesh": unicast copies, for networks without multicast'
    if not mesh:
        groups = random_groups()
        yield f'data_group = "{format_address(groups.data)}"'
        yield f'control_group = "{format_address(groups.control)}"  # secondary loops use the addresses after it'
        yield f"ttl = {0 if draft.local else 1}  # TTL: 0 stays on this machine, 1 in its network"
    yield ""


def _surroundings(draft: Draft) -> Iterator[str]:
    yield "[clock]"
    source = "shared" if draft.local else "system"
    yield f'source = "{source}"  # "shared": all sites are on one machine; "system": each uses its own clock'
    yield "# declared_bound_us = 500  # bound of the clock error where the kernel does not know it"
    yield ""
    yield "[process]"
    yield "# Real-time scheduling of sites and servers needs root or CAP_SYS_NICE."
    yield 'real_time = "auto"  # "auto": where it is granted; true: required; false: never'
    yield ""
    yield "[journal]"
    yield 'sync = "interval"  # "token" survives a power failure at every site; "interval" and "never" do not'
    yield "sync_period_ms = 100"
    yield "# trace_mib = 256    # limit of the traces of each site, for planning; 0: none"
    yield ""
    yield "[store]  # the formation store; sqlite for one machine, etcd for several"
    yield f"url = {json.dumps(draft.store, ensure_ascii=False)}"
    if draft.store.startswith("etcd:"):
        yield "# For a cluster with TLS (https) or users. Paths are relative to this folder; only reformation servers"
        yield "# need the files:"
        yield '# ca_file = "keys/etcd-ca.pem"  # the CA of the cluster, where this machine does not trust it already'
        yield '# cert_file = "keys/etcd-client.pem"  # our certificate, where the cluster requires one'
        yield '# key_file = "keys/etcd-client.key"'
        yield '# user = "fairtape"'
        yield '# password_file = "keys/etcd-password"'
    yield ""


def _loop_tables(draft: Draft, profile: str, names: Sequence[str]) -> Iterator[str]:
    yield "# Loops: 0 is the primary one. A tour lists the sites of a loop in token order."
    yield "# Fields of a profile can be overridden: retry_period_us, retries_max, token_period_us, commit_delay_us,"
    yield "# clock_error_max_us. The commit delay of a profile grows by the token period for each of the K sites."
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
            yield f'junction = "{primary[(number - 1) % len(primary)]}"  # the site that is also in the parent loop'
            yield "stride = 1  # token passes of the primary loop for each pass of this one"
        else:
            yield "request_sets = 1  # above 1: sites request missing data in this number of sets, one after the other"
        yield ""
