"""The deployment file: nodes, loops, addresses, rules, edge, trading floor and gateways of one deployment.

Reading is strict. Every mistake is a `UserError` of one sentence with the field, its value and the remedy. The values
here are plain: what a process opens for them is in `deployment/process`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fairtape.core.addresses import PORT_MAX, Address, find_address, format_address, is_host, is_loopback
from fairtape.core.cities import CITIES, City, city, faults_between
from fairtape.core.errors import UserError
from fairtape.core.instants import MICROSECOND, MILLISECOND, Duration
from fairtape.core.link_faults import LinkFaults
from fairtape.core.timing import PERIOD_MAX, PROFILES, RETRIES_MAX, BadTiming, Timing, profile
from fairtape.core.toml_table import TomlTable
from fairtape.edge.protocol.feed_assignment import BadRegion, Region
from fairtape.edge.service.settings import EdgeSettings, PublisherPlace
from fairtape.gateway.core.limits import GatewayLimits
from fairtape.journal.writer import SYNC_PERIOD, SyncPolicy
from fairtape.market.prices import ONE
from fairtape.market.stripes import FEED_NAME_MAX, VERSION_MAX
from fairtape.net.transports import LOOPBACK, TTL_MAX, AddressBook, Groups, Peer, Role
from fairtape.ring.membership.formation import LOOPS_MAX, MEMBERS_MAX, STRIDE_MAX
from fairtape.ring.membership.topology import (
    BadTopology,
    Excess,
    LoopTopology,
    PaceRule,
    Remedy,
    Topology,
    resilience_among,
)
from fairtape.storage.formation_stores import EtcdAccess, check_store
from fairtape.wire.frames import DATAGRAM_MAX, NODE_MAX, STRIPE_MAX, NodeId

if TYPE_CHECKING:
    from fairtape.exchange.floor import Floor

LIMITS: Final[Mapping[str, tuple[int, int]]] = {  # of one account, by the names in the file: the least and the most
    "orders_per_s": (1, 1_000_000),
    "open_orders": (1, 10_000),
    "notional": (1, 9_000_000_000),
}
USUAL_LIMITS: Final = GatewayLimits(notional_max=100_000_000 * ONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """One gateway: its addresses, its files and databases, and the limits of one account."""

    entry: Address | None = None  # of the native protocol
    fix: Address | None = None
    ouch: Address | None = None
    cert_file: Path | None = None  # with it and its key, all three protocols use TLS
    key_file: Path | None = None
    comp_id: str = "FAIRTAPE"  # the TargetCompID of FIX clients
    accounts: str | None = None  # a database URL; None: a file in the folder
    ledger: str | None = None  # the database of the ledger tables; None: no tables
    limits: GatewayLimits = USUAL_LIMITS

    @property
    def tls_files(self) -> tuple[Path, Path] | None:
        """Certificate and key; None: no TLS."""
        return None if self.cert_file is None or self.key_file is None else (self.cert_file, self.key_file)

    @property
    def serves(self) -> bool:
        """Whether it has any address."""
        return any((self.entry, self.fix, self.ouch))


def limits_of(wanted: Mapping[str, int | None], *, otherwise: GatewayLimits = USUAL_LIMITS) -> GatewayLimits:
    """Limits by the names and in the units of `LIMITS`; one that is None or left out has its value in `otherwise`."""
    chosen = {name: value for name, value in wanted.items() if value is not None}
    return replace(
        otherwise,
        requests_per_s=chosen.get("orders_per_s", otherwise.requests_per_s),
        open_orders_max=chosen.get("open_orders", otherwise.open_orders_max),
        notional_max=chosen["notional"] * ONE if "notional" in chosen else otherwise.notional_max,
    )


COMMIT_PASSES: Final = 3
COMMIT_PASSES_MAX: Final = 127  # one below the most members of a loop


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorSettings:
    """The rules of the trading floor. Replicas with different settings compute different floors."""

    commit_passes: int = COMMIT_PASSES  # N: a trade commits after N token passes
    operators: tuple[NodeId, ...] | None = None  # sources that may open markets and deposit money; None: all
    arbiters: Mapping[NodeId, NodeId] = field(default_factory=dict)  # by site: the source that reports its trades

    @property
    def is_configured(self) -> bool:
        """Whether the file names who opens markets or reports trades. Every new file has the number of passes."""
        return self.operators is not None or bool(self.arbiters)

    def new(self) -> "Floor":
        from fairtape.exchange.floor import Floor  # only replicas need it; most readers of the file do not

        return Floor(
            commit_passes=self.commit_passes,
            operators=self.operators,
            arbiters=tuple(self.arbiters.values()) if self.arbiters else None,
        )


LOSS_MAX: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedFaults:
    """Faults that every node injects where datagrams arrive, for demonstrations and tests on one machine."""

    cities: Mapping[NodeId, City | None]  # of every node: delays follow the distances; None: no delay
    loss: float  # of every link
    seed: int

    def at(self, node: NodeId) -> dict[NodeId, LinkFaults]:
        """The faults of the links to one node, by sender."""
        return {other: self._link(other, node) for other in self.cities if other != node}

    def _link(self, sender: NodeId, receiver: NodeId) -> LinkFaults:
        one, other = self.cities[sender], self.cities[receiver]
        if one is None or other is None:
            return LinkFaults(loss=self.loss)
        return faults_between(one, other, loss=self.loss)


VERSION: Final = 1
FILE: Final = "deployment.toml"
JOURNALS: Final = "journals"
INCARNATIONS: Final = "incarnations"
TEMPORARY: Final = "temporary"  # marks a deployment that `fairtape listen` created
DATAGRAM_MIN: Final = 576
TRACE_MIB: Final = 256  # limit of the traces of one site
LEADER_LEASE_MIN: Final = 300 * MILLISECOND  # a leader renews it five times in this time, and each is a disk write

_TAG: Final = re.compile(r"[A-Za-z0-9]{1,2}")
_FEED: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{FEED_NAME_MAX}}}")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_ANY_FLOOR: Final = FloorSettings()
_PACES: Final[Mapping[str, PaceRule | None]] = {"adapt": PaceRule(), "fixed": None}
_PERIODS: Final = ("retry_period", "token_period", "commit_delay", "clock_error_max")


class NodeKind(Enum):
    """The role of a node."""

    SITE = "site"
    REFORMER = "reformer"
    SOURCE = "source"
    OPERATOR = "operator"


class RealTime(Enum):
    """Whether sites and servers use real-time scheduling."""

    AUTO = "auto"  # where the kernel grants it
    ALWAYS = "true"  # they refuse to run without it
    NEVER = "false"


_ROLES: Final = {
    NodeKind.SITE: Role.SITE,
    NodeKind.REFORMER: Role.COORDINATOR,
    NodeKind.SOURCE: Role.SOURCE,
    NodeKind.OPERATOR: Role.COORDINATOR,
}


@dataclass(frozen=True, slots=True)
class Node:
    """One node, by the name that users give it."""

    name: str
    kind: NodeKind
    number: NodeId
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The content of a deployment file, checked."""

    folder: Path
    topology: Topology
    nodes: Mapping[str, Node]
    groups: Groups | None  # None: a mesh. The interface is that of each node's address
    shared_clock: bool  # all sites are on one machine
    declared_bound: Duration | None
    sync: SyncPolicy
    sync_period: Duration
    trace_bytes: int  # limit of the traces of one site; 0: none are written
    store: str  # its URL
    access: EtcdAccess  # to the store
    real_time: RealTime
    edge: EdgeSettings | None  # None: no site publishes to customers
    gateways: Mapping[str, GatewayOptions]  # by the names of their sources
    link_faults: InjectedFaults | None = None
    floor: FloorSettings = _ANY_FLOOR
    excess_reason: str = ""  # why `topology.excess` is what it is
    stripe: int = 0
    datagram_max: int = DATAGRAM_MAX

    def of_kind(self, kind: NodeKind) -> tuple[Node, ...]:
        """The nodes of one kind, in the order of the file."""
        return tuple(node for node in self.nodes.values() if node.kind is kind)

    @property
    def sites(self) -> tuple[Node, ...]:
        return self.of_kind(NodeKind.SITE)

    @property
    def reformers(self) -> tuple[Node, ...]:
        return self.of_kind(NodeKind.REFORMER)

    @property
    def timing(self) -> Timing:
        """The timing of the primary loop."""
        return self.topology.primary.timing

    @property
    def leader_lease(self) -> Duration:
        """How long a reformation server may lead on one renewal of its lease in the store."""
        return max(self.timing.lease_period, LEADER_LEASE_MIN)

    def name_of(self, number: NodeId) -> str:
        """The name of a node; its number where the file does not list it."""
        return next((node.name for node in self.nodes.values() if node.number == number), str(number))

    def node(self, name: str, *kinds: NodeKind, field: str = "NAME") -> Node:
        """The node of this name and of one of these kinds. Raises `UserError`, which calls the option `field`."""
        found = self.nodes.get(name)
        if found is None or (kinds and found.kind not in kinds):
            known = ", ".join(each.name for each in self.nodes.values() if not kinds or each.kind in kinds)
            raise UserError(f"{field} is {name!r}; {self.folder / FILE} names {known or 'none'}")
        return found

    def home_of(self, site: NodeId) -> int:
        return self.topology.homes()[site]

    def address_book(self) -> AddressBook:
        """The address and the role of every node."""
        return {node.number: Peer(node.host, node.port, _ROLES[node.kind]) for node in self.nodes.values()}

    def journal_of(self, site: Node) -> Path:
        """The folder of a site's journal."""
        return self.folder / JOURNALS / site.name

    def incarnation_file_of(self, node: Node) -> Path:
        """Where a node keeps its last incarnation. It is not in the journal, which may be replaced."""
        return self.folder / INCARNATIONS / node.name


def is_temporary(folder: Path) -> bool:
    """Whether `fairtape listen` created the deployment of this folder, and so runs it again."""
    return (folder / TEMPORARY).exists()


def read_deployment(folder: Path) -> Deployment:
    """Read the deployment file of a folder. Raises `UserError`."""
    if not (folder / FILE).exists():
        raise UserError(f"folder {str(folder)!r} holds no deployment; make one with: fairtape init {folder}")
    return parse_deployment(folder, TomlTable.load(folder / FILE))


def parse_deployment(folder: Path, table: TomlTable) -> Deployment:
    """The deployment in a TOML document. Raises `UserError`."""
    version = table.number("version", 0, 1 << 16)
    if version != VERSION:
        raise table.wrong("version", version, f"this program reads version {VERSION}")
    stripe = table.number("stripe", 0, STRIPE_MAX, 0)
    datagram_max = table.number("datagram_max", DATAGRAM_MIN, DATAGRAM_MAX, DATAGRAM_MAX)
    nodes = _nodes(table)
    journal, clock, store = table.table("journal", optional=True), table.table("clock"), table.table("store")
    process = table.table("process", optional=True)
    rules = table.table("order", optional=True)
    floor = _floor(table.table("floor", optional=True), nodes)
    gateways = _gateways(folder, table.table("gateways", optional=True), nodes)
    excess, excess_reason = _excess(rules, nodes, trading=bool(gateways) or floor.is_configured)
    url = _url(store)
    declared = clock.number("declared_bound_us", 1, PERIOD_MAX // MICROSECOND, None)
    found = Deployment(
        folder=folder,
        stripe=stripe,
        datagram_max=datagram_max,
        nodes=nodes,
        groups=_groups(table.table("network")),
        shared_clock=clock.choice("source", {"shared": True, "system": False}),
        declared_bound=None if declared is None else declared * MICROSECOND,
        sync=journal.choice("sync", {each.value: each for each in SyncPolicy}, SyncPolicy.INTERVAL.value),
        sync_period=journal.number("sync_period_ms", 1, 60_000, SYNC_PERIOD // MILLISECOND) * MILLISECOND,
        trace_bytes=journal.number("trace_mib", 0, 1 << 20, TRACE_MIB) << 20,
        store=_store(folder, url),
        access=_access(folder, store, url),
        real_time=_real_time(process),
        edge=_edge(folder, table.table("edge", optional=True), nodes, stripe),
        floor=floor,
        gateways=gateways,
        topology=_topology(table, rules, nodes, excess),
        excess_reason=excess_reason,
        link_faults=_link_faults(table.table("link_faults", optional=True), nodes),
    )
    _refuse_shared_sources(table, found)
    _refuse_scattered_servers(store, url, found)
    for each in (journal, clock, process, store, table):
        each.finish()
    return found


def _real_time(process: TomlTable) -> RealTime:
    value = process.take("real_time", object, RealTime.AUTO.value)
    word = str(value).lower() if isinstance(value, bool) else value
    choices = {each.value: each for each in RealTime}
    if not isinstance(word, str) or word not in choices:
        raise process.wrong("real_time", value, 'expected "auto", true or false')
    return choices[word]


def _url(store: TomlTable) -> str:
    url = store.take("url", str)
    try:
        check_store(url)
    except UserError as error:
        raise UserError(f"{store.file}: {error}") from None
    return url


def _store(folder: Path, url: str) -> str:
    """A relative path counts from the folder, so that a deployment can be moved."""
    kind, _, place = url.partition(":")
    return f"sqlite:{folder / place}" if kind == "sqlite" and place else url


def _access(folder: Path, store: TomlTable, url: str) -> EtcdAccess:
    """Relative paths count from the folder. Only the machines of reformation servers need the files."""
    names = {name: store.take(name, str, "") for name in ("ca_file", "cert_file", "key_file", "user", "password_file")}
    given = [name for name, value in names.items() if value]
    if given and not url.startswith("etcd:"):
        raise store.wrong(given[0], names[given[0]], "only an etcd store takes it: remove it")
    for one, other in (("cert_file", "key_file"), ("user", "password_file")):
        if bool(names[one]) != bool(names[other]):
            here, lacking = (one, other) if names[one] else (other, one)
            raise store.wrong(here, names[here], f"it needs {lacking} beside it")
    files = {name: folder / value if value else None for name, value in names.items() if name != "user"}
    access = EtcdAccess(user=names["user"], **files)
    if access.wants_tls and not url.startswith("etcd:https://"):
        field = "ca_file" if access.ca_file is not None else "cert_file"
        raise store.wrong(field, names[field], f"url is {url!r}, without TLS: write https there")
    return access


def _nodes(table: TomlTable) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    for kind, section in ((NodeKind.SITE, "sites"), (NodeKind.REFORMER, "reformers"), (NodeKind.SOURCE, "sources")):
        members = table.table(section)
        for name, fields in members.items():
            if name in nodes:
                raise members.wrong(name, name, "another node has that name; choose a different one")
            nodes[name] = _node(members, name, kind, fields)
    nodes["operator"] = _node(table, "operator", NodeKind.OPERATOR, table.table("operator"))
    holders: dict[object, str] = {}
    for name, node in nodes.items():
        for key, value in (("node", node.number), ("address", format_address((node.host, node.port)))):
            other = holders.setdefault(value, name)
            grouped = key == "address" and {node.kind, nodes[other].kind} == {NodeKind.SOURCE}
            if other != name and not grouped:
                raise table.wrong(f"{name}.{key}", value, f"{other} has the same; each needs its own")
    return nodes


def _node(members: TomlTable, name: str, kind: NodeKind, fields: TomlTable) -> Node:
    if not _NAME.fullmatch(name):
        raise members.wrong(name, name, "a name has up to 32 letters, digits, - and _, and begins with a letter")
    number = fields.number("node", 1, NODE_MAX)
    host, port = _address(fields, "address")
    fields.finish()
    return Node(name, kind, number, host, port)


def _address(fields: TomlTable, name: str) -> Address:
    text = fields.take(name, str)
    address = find_address(text)
    if address is None or not is_host(address[0]):
        raise fields.wrong(name, text, f"expected HOST:PORT, a name or an IPv4 address and a port from 1 to {PORT_MAX}")
    return address


def _groups(network: TomlTable) -> Groups | None:
    """The multicast groups; None for a mesh. Files of earlier versions call the field `carrier`."""
    if "carrier" in network and "transport" in network:
        carrier = network.take("carrier", object)
        raise network.wrong(
            "carrier", carrier, "it is the former name of network.transport, which is also there: remove it"
        )
    mesh = network.choice("carrier" if "carrier" in network else "transport", {"multicast": False, "mesh": True})
    if mesh:
        for name in ("data_group", "control_group"):
            network.take(name, str, "")
        network.take("ttl", int, 0)
        network.finish()
        return None
    data, control = _address(network, "data_group"), _address(network, "control_group")
    ttl = network.number("ttl", 0, TTL_MAX, 1)
    network.finish()
    try:
        return Groups(data=data, control=control, ttl=ttl)
    except UserError as error:
        raise UserError(f"{network.file}: network: {error}") from None


def _link_faults(faults: TomlTable, nodes: Mapping[str, Node]) -> InjectedFaults | None:
    """Injected faults. Without a city and without loss there are none."""
    seed = faults.number("seed", 0, 1 << 32, 1)
    loss = faults.take("loss", object, 0.0)
    if not isinstance(loss, int | float) or isinstance(loss, bool) or not 0 <= loss <= LOSS_MAX:
        raise faults.wrong("loss", loss, f"expected a share from 0 to {LOSS_MAX:g}, such as 0.01 for 1 %")
    table = faults.table("cities", optional=True)
    cities = {node.number: _city(table, node.name) for node in nodes.values()}
    table.finish()
    faults.finish()
    if not loss and not any(cities.values()):
        return None
    return InjectedFaults(cities=cities, loss=float(loss), seed=seed)


def _city(table: TomlTable, name: str) -> City | None:
    text = table.take(name, str, "")
    if not text:
        return None
    try:
        return city(text)
    except ValueError:
        raise table.wrong(name, text, f"expected one of {', '.join(each.name for each in CITIES)}") from None


def _edge(folder: Path, edge: TomlTable, nodes: Mapping[str, Node], core: int) -> EdgeSettings | None:
    """The sites that publish to customers. Without any there is no edge, and its other fields may be left out."""
    key = "stations" if "stations" in edge else "publishers"  # files of earlier versions say `stations`
    publishers = edge.table(key, optional=True)
    places = {name: _publisher(publishers, name, fields, nodes) for name, fields in publishers.items()}
    if not places:
        edge.finish()
        return None
    tag = edge.take("tag", str)
    if not _TAG.fullmatch(tag):
        raise edge.wrong("tag", tag, "expected 1 or 2 letters and digits: the prefix of session names")
    customers = edge.take("customers_file", str, "")
    settings = EdgeSettings(
        tag=tag,
        core=core,
        publishers=places,
        first_plan=edge.number("first_plan", 0, VERSION_MAX, 0),
        ttl=edge.number("ttl", 0, TTL_MAX, 1),
        guaranteed=edge.names("guaranteed", optional=True),
        customers=folder / customers if customers else None,
        regions=tuple(_regions(edge.table("regions", optional=True), places, nodes)),
    )
    edge.finish()
    return settings


def _floor(floor: TomlTable, nodes: Mapping[str, Node]) -> FloorSettings:
    """The trading floor. Without the table every source may open markets, for first experiments."""
    passes = floor.number("commit_passes", 0, COMMIT_PASSES_MAX, COMMIT_PASSES)
    operators = tuple(_source(floor, "operators", name, nodes) for name in floor.names("operators", optional=True))
    arbiters = floor.table("arbiters", optional=True)
    reporting = {}
    for node in nodes.values():
        if node.kind is NodeKind.SITE and (name := arbiters.take(node.name, str, "")):
            reporting[node.number] = _source(arbiters, node.name, name, nodes)
    arbiters.finish()
    floor.finish()
    return FloorSettings(commit_passes=passes, operators=operators or None, arbiters=reporting)


def _gateways(folder: Path, gateways: TomlTable, nodes: Mapping[str, Node]) -> dict[str, GatewayOptions]:
    """The gateways, by the names of their sources. Relative paths count from the folder."""
    found = {}
    for name, fields in gateways.items():
        _source(gateways, name, name, nodes)
        places = {each: _address(fields, each) for each in ("entry", "fix", "ouch") if each in fields}
        if not places:
            raise gateways.wrong(name, name, "it needs entry, fix or ouch: where traders connect")
        cert, key = (fields.take(each, str, "") for each in ("cert_file", "key_file"))
        if bool(cert) != bool(key):
            raise fields.wrong("cert_file" if cert else "key_file", cert or key, "cert_file and key_file go together")
        ledger = fields.take("ledger", str, "")
        found[name] = GatewayOptions(
            **places,
            cert_file=folder / cert if cert else None,
            key_file=folder / key if key else None,
            comp_id=fields.take("comp_id", str, "FAIRTAPE"),
            accounts=fields.take("accounts", str, None),
            ledger=(ledger if "://" in ledger else str(folder / ledger)) if ledger else None,
            limits=limits_of({each: fields.number(each, *bounds, None) for each, bounds in LIMITS.items()}),
        )
        fields.finish()
    return found


def _refuse_shared_sources(table: TomlTable, deployment: Deployment) -> None:
    """A source is one process: it cannot be both an arbiter and a gateway, nor the arbiter of two sites.

    Sources that share an address are one process, too, so no gateway and no arbiter shares its address.
    """
    holders: dict[str, str] = {name: f"gateways.{name}" for name in deployment.gateways}
    for site, source in deployment.floor.arbiters.items():
        name, place = deployment.name_of(source), f"floor.arbiters.{deployment.name_of(site)}"
        other = holders.setdefault(name, place)
        if other != place:
            raise table.wrong(place, name, f"{other} is that source, too; each needs its own")
    addresses = {name: (node.host, node.port) for name, node in deployment.nodes.items()}
    for name, place in holders.items():
        sharing = next((other for other in addresses if other != name and addresses[other] == addresses[name]), None)
        if sharing is not None:
            raise table.wrong(place, name, f"{sharing} has the same address; {place} needs its own")


def _refuse_scattered_servers(store: TomlTable, url: str, deployment: Deployment) -> None:
    """A file is on one machine: servers on several would each have a store of its own (decision 63, One store)."""
    hosts = dict.fromkeys(LOOPBACK if _is_loopback(node.host) else node.host.lower() for node in deployment.reformers)
    if url.startswith("sqlite:") and len(hosts) > 1:
        raise store.wrong(
            "url",
            url,
            f"a file is on one machine, and the reformers are on {', '.join(hosts)}: place all on one host, or name an"
            " etcd store, such as etcd:http://HOST:2379/fairtape",
        )


def _is_loopback(host: str) -> bool:
    try:
        return IPv4Address(host).is_loopback
    except AddressValueError:
        return host.lower() == "localhost"


def _source(table: TomlTable, field: str, name: str, nodes: Mapping[str, Node]) -> NodeId:
    if name not in nodes or nodes[name].kind is not NodeKind.SOURCE:
        known = ", ".join(node.name for node in nodes.values() if node.kind is NodeKind.SOURCE)
        raise table.wrong(field, name, f"expected one of the sources {known}")
    return nodes[name].number


def _regions(regions: TomlTable, places: Mapping[str, PublisherPlace], nodes: Mapping[str, Node]) -> Iterator[Region]:
    for name, fields in regions.items():
        feeds, sites = fields.names("feeds"), fields.names("sites")
        for site in sites:
            if site not in places:
                raise fields.wrong("sites", site, f"expected publishers, which are {', '.join(places)}")
        fields.finish()
        try:
            yield Region(name=name, feeds=feeds, receivers=tuple(nodes[site].number for site in sites))
        except BadRegion as bad:
            raise UserError(f"{regions.file}: edge.regions: {bad}") from None


def _publisher(publishers: TomlTable, name: str, fields: TomlTable, nodes: Mapping[str, Node]) -> PublisherPlace:
    if name not in nodes or nodes[name].kind is not NodeKind.SITE:
        known = ", ".join(node.name for node in nodes.values() if node.kind is NodeKind.SITE)
        raise publishers.wrong(name, name, f"expected one of the sites {known}")
    feed = fields.take("feed", str)
    if not _FEED.fullmatch(feed):
        raise fields.wrong("feed", feed, "expected the name of a feed of the stripe plans, such as A")
    place = PublisherPlace(feed=feed, requests=_address(fields, "requests"), replays=_address(fields, "replays"))
    fields.finish()
    return place


def _excess(rules: TomlTable, nodes: Mapping[str, Node], *, trading: bool) -> tuple[Excess, str]:
    """What to do when more than K members are silent, and why (decision 66, Trades and Breaks)."""
    if "excess" in rules:
        return rules.choice("excess", {each.value: each for each in Excess}), "as the deployment's file says"
    if trading:
        return Excess.HALT, "the default with a trading floor"
    machines = {"" if is_loopback(node.host) else node.host for node in nodes.values()}
    if len(machines) > 1:
        return Excess.HALT, "the default on several machines"
    return Excess.CONTINUE, "the default on one machine without a trading floor"


def _topology(table: TomlTable, rules: TomlTable, nodes: Mapping[str, Node], excess: Excess) -> Topology:
    resilience = _resilience(rules)
    resilience_min = rules.number("resilience_min", 0, MEMBERS_MAX - 1, None)
    remedy = rules.choice("remedy", {each.value: each for each in Remedy}, Remedy.BYPASS.value)
    pace = rules.choice("pace", _PACES, "fixed")
    rules.finish()
    loops = tuple(_loops(table.tables("loops"), nodes, resilience))
    try:
        topology = Topology(
            loops=loops,
            resilience=resilience,
            resilience_min=resilience_min,
            excess=excess,
            remedy=remedy,
            pace=pace,
        )
    except BadTopology as bad:
        raise UserError(f"{table.file}: loops: {_with_names(str(bad), nodes)}") from None
    homes = topology.homes()
    for node in nodes.values():
        if node.kind is NodeKind.SITE and node.number not in homes:
            raise table.wrong(f"sites.{node.name}", node.name, "it is in the tour of no loop; add it to one")
    return topology


def _resilience(rules: TomlTable) -> int | str:
    value = rules.take("resilience", object, 1)
    if value in ("majority", "all"):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MEMBERS_MAX:
        return value
    raise rules.wrong("resilience", value, f'expected a number from 0 to {MEMBERS_MAX - 1}, "majority" or "all"')


def _loops(tables: list[TomlTable], nodes: Mapping[str, Node], resilience: int | str) -> Iterator[LoopTopology]:
    for place, table in enumerate(tables):
        number = table.number("number", 0, LOOPS_MAX, place)
        tour = tuple(_site(table, "tour", name, nodes) for name in table.names("tour"))
        junction = table.take("junction", str, None) if number else None
        request_sets = table.number("request_sets", 1, MEMBERS_MAX, 1)
        sets = min(request_sets, len(tour))
        timing = _timing(table) if number else _timing(table, resilience_among(len(tour), resilience), sets)
        try:
            yield LoopTopology(
                number=number,
                tour=tour,
                timing=timing,
                parent=table.number("parent", 0, LOOPS_MAX, 0) if number else 0,
                junction=None if junction is None else _site(table, "junction", junction, nodes),
                stride=table.number("stride", 1, STRIDE_MAX, 1),
                request_sets=request_sets,
            )
        except BadTopology as bad:
            raise UserError(f"{table.file}: {_with_names(str(bad), nodes)}") from None
        table.finish()


def _site(table: TomlTable, field: str, name: str, nodes: Mapping[str, Node]) -> NodeId:
    node = nodes.get(name)
    if node is None or node.kind is not NodeKind.SITE:
        known = ", ".join(each.name for each in nodes.values() if each.kind is NodeKind.SITE)
        raise table.wrong(field, name, f"expected one of the sites {known}")
    return node.number


def _timing(table: TomlTable, resilience: int = 0, request_sets: int = 1) -> Timing:
    """A profile, overridden field by field. Decision 49, Commit delay and K: an override stays."""
    named = table.choice("profile", {name: name for name in PROFILES}, "metro")
    overrides: dict[str, int] = {}
    for name in _PERIODS:
        period = table.number(f"{name}_us", 1, PERIOD_MAX // MICROSECOND, None)
        if period is not None:
            overrides[name] = period * MICROSECOND
    retries = table.number("retries_max", 1, RETRIES_MAX, None)
    if retries is not None:
        overrides["retries_max"] = retries
    try:
        timing = profile(named, **overrides)
        return timing if "commit_delay" in overrides else timing.with_resilience(resilience, request_sets=request_sets)
    except BadTiming as bad:
        raise UserError(f"{table.file}: {bad}") from None


def _with_names(sentence: str, nodes: Mapping[str, Node]) -> str:
    """Replace the numbers of sites, which errors of `Topology` name, by the names in the file."""
    names = {str(node.number): node.name for node in nodes.values()}
    return re.sub(r"\bsite (\d+)", lambda found: f"site {names.get(found[1], found[1])}", sentence)


_NAMED: Final = re.compile(r"\b(site|server|reports|suspects) (\d+)\b")
_MOVING: Final = re.compile(r"\b(\d+)(?=(?:, \d+)* (?:joins|leaves|is gone)\b)")
_LISTED: Final = re.compile(r"\((\d+(?:, \d+)*),?\)")


def with_names(text: str, deployment: Deployment) -> str:
    """Replace the numbers of nodes in a notice by their names. The protocol machines know only numbers."""
    text = _NAMED.sub(lambda found: f"{found[1]} {deployment.name_of(int(found[2]))}", text)
    text = _MOVING.sub(lambda found: deployment.name_of(int(found[1])), text)
    return _LISTED.sub(lambda found: " ".join(deployment.name_of(int(n)) for n in found[1].split(", ")), text)
