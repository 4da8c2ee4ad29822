"""The deployment file: what `init` writes is read back, and every mistake in it is one sentence."""

import re
import stat
from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND
from fairtape.core.timing import PROFILES
from fairtape.deployment.config.description import FILE, Deployment, NodeKind, RealTime, read_deployment, with_names
from fairtape.deployment.config.digest import deployment_digest
from fairtape.deployment.config.keys import keys_of
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.ring.membership.topology import PACE_MAX, Excess, PaceRule, Remedy
from fairtape.storage.formation_stores import EtcdAccess

HOSTS = ("192.0.2.1", "192.0.2.2")
ETCD = "etcd:https://192.0.2.9:2379/market"


def made(folder: Path, **options: object) -> Deployment:
    draft = {"loops": (3, 2), "hosts": HOSTS, "profile": "metro", **options}
    return create_deployment(folder, Draft(**draft))  # type: ignore[arg-type]


def test_the_options_of_init_are_read_back(tmp_path: Path) -> None:
    deployment = made(
        tmp_path / "new", resilience="majority", excess="halt", remedy="replace", reformers=3, sources=1, store=ETCD
    )
    topology = deployment.topology
    assert [loop.tour for loop in topology.loops] == [(1, 2, 3), (4, 5)]
    assert topology.loops[1].junction == 1
    assert (topology.resilience, topology.excess, topology.remedy) == ("majority", Excess.HALT, Remedy.REPLACE)
    assert deployment.timing == PROFILES["metro"].with_resilience(1)
    assert topology.loops[1].timing == PROFILES["metro"]
    assert [node.name for node in deployment.reformers] == ["x1", "x2", "x3"]
    assert [node.name for node in deployment.of_kind(NodeKind.SOURCE)] == ["XNYS"]
    assert deployment.store == ETCD
    assert not deployment.shared_clock
    assert {node.host for node in deployment.sites} == set(HOSTS)


def test_a_deployment_can_be_moved_with_its_store(tmp_path: Path) -> None:
    made(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert read_deployment(tmp_path / "there").store == f"sqlite:{tmp_path}/there/formations.db"


def test_the_servers_of_a_store_in_a_file_share_one_host(tmp_path: Path) -> None:
    """Two machines would each have a store of their own.  Decision 63, One store."""
    deployment = made(tmp_path / "new", reformers=3)
    assert {node.host for node in deployment.reformers} == {HOSTS[0]}
    assert {node.host for node in deployment.sites} == set(HOSTS)
    file = tmp_path / "new" / FILE
    port = deployment.reformers[1].port
    file.write_text(file.read_text().replace(f"{HOSTS[0]}:{port}", f"{HOSTS[1]}:{port}"))
    with pytest.raises(UserError, match=r"store\.url is 'sqlite:.*2\.1, 192\.0\.2\.2: place all on one host, or"):
        read_deployment(tmp_path / "new")
    assert {node.host for node in made(tmp_path / "etcd", store=ETCD).reformers} == set(HOSTS)
    local = made(tmp_path / "local", hosts=("127.0.0.1", "127.0.0.2", "localhost"), loops=(1,))
    assert len({node.host for node in local.reformers}) == 2


def test_the_digest_of_a_deployment_covers_what_all_nodes_must_agree_on(tmp_path: Path) -> None:
    """Decision 64, One deployment file."""
    here = made(tmp_path / "here")
    digest = deployment_digest(here)
    (tmp_path / "here").rename(tmp_path / "there")
    assert deployment_digest(read_deployment(tmp_path / "there")) == digest
    file = tmp_path / "there" / FILE
    text = file.read_text()
    alike = {'sync = "interval"': 'sync = "never"', 'real_time = "auto"': "real_time = false", "ttl = 1": "ttl = 1 # 1"}
    for written, instead in alike.items():
        file.write_text(text.replace(written, instead, 1))
        assert deployment_digest(read_deployment(tmp_path / "there")) == digest
    for written, instead in {
        "resilience = 1": "resilience = 0",
        "stripe = 0": "stripe = 1",
        'profile = "metro"': 'profile = "wan"',
        "node = 101,": "node = 111,",
        f"{HOSTS[1]}:": "192.0.2.3:",
        "commit_passes = 3": "commit_passes = 4",
    }.items():
        assert written in text
        file.write_text(text.replace(written, instead, 1))
        assert deployment_digest(read_deployment(tmp_path / "there")) != digest


def test_every_node_has_its_own_keys_and_no_more_than_it_needs(tmp_path: Path) -> None:
    deployment = made(tmp_path / "new")
    sites, sources = {1, 2, 3, 4, 5, 901, 902, 999}, {101, 102, 103}
    held = {name: keys_of(deployment, node) for name, node in deployment.nodes.items()}
    assert set(held["s4"].sites) == sites
    assert set(held["s4"].sources) == sources
    assert set(held["x1"].sites) == sites
    assert not held["x1"].sources
    assert set(held["operator"].sites) == sites
    assert not held["XLON"].sites
    assert held["XLON"].sources == {102: held["s1"].sources[102]}
    for path in (tmp_path / "new" / "keys").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_deployment_is_never_written_over(tmp_path: Path) -> None:
    made(tmp_path / "new")
    before = (tmp_path / "new" / FILE).read_text()
    with pytest.raises(UserError, match="holds a deployment already; name another folder"):
        made(tmp_path / "new")
    assert (tmp_path / "new" / FILE).read_text() == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UserError, match="holds other files and no deployment"):
        made(tmp_path / "full")


def test_the_commit_delay_of_a_profile_grows_with_every_token_that_a_commit_waits_for(tmp_path: Path) -> None:
    """Decision 49, Commit delay and K. A commit delay in the file means what it says."""
    metro = PROFILES["metro"]
    for resilience, tokens in (("0", 0), ("1", 1), ("2", 2), ("all", 3), ("majority", 2)):
        deployment = made(tmp_path / resilience, loops=(4,), resilience=resilience)
        assert deployment.timing.commit_delay == metro.commit_delay + tokens * metro.token_period


def test_the_guaranteed_delay_of_a_deployment_includes_the_turns_of_its_request_sets(tmp_path: Path) -> None:
    """Complete by t_e + Δ_R + (k_p - 1) Δ_T, so the commit waits as much longer (decision 49, Commit delay and K)."""
    metro, one = PROFILES["metro"], "request_sets = 1"
    assert made(tmp_path / "one").timing.delay_max == metro.delay_max + metro.token_period
    for sets, turns in ((2, 1), (3, 2), (9, 2)):  # more sets than sites: each site has its own
        deployment = changed(tmp_path / str(sets), one, f"request_sets = {sets}")
        assert deployment.timing.delay_max == metro.delay_max + (1 + turns) * metro.token_period
    own = changed(tmp_path / "own", one, "request_sets = 3\ncommit_delay_us = 40000")
    assert own.timing.commit_delay == 40 * MILLISECOND


def test_the_pace_adapts_on_one_machine_or_where_the_file_says_so(tmp_path: Path) -> None:
    assert made(tmp_path / "hosts").topology.pace is None
    assert made(tmp_path / "cities", hosts=(), loops=(2,), cities=("London", "Tokyo")).topology.pace is None
    assert made(tmp_path / "local", hosts=()).topology.pace == PaceRule()
    adapting = changed(tmp_path / "adapting", 'pace = "fixed"', 'pace = "adapt"')
    assert adapting.topology.pace == PaceRule()
    assert adapting.topology.pace_max == PACE_MAX
    former = changed(tmp_path / "former", 'pace = "fixed"', "")
    assert former.topology.pace is None
    assert former.topology.pace_max == 1


@pytest.mark.parametrize(
    ("hosts", "added", "excess", "reason"),
    [
        ((), "", Excess.CONTINUE, "the default on one machine without a trading floor"),
        (("127.0.0.1", "127.0.0.2"), "", Excess.CONTINUE, "the default on one machine without a trading floor"),
        (HOSTS[:1], "", Excess.CONTINUE, "the default on one machine without a trading floor"),
        (HOSTS, "", Excess.HALT, "the default on several machines"),
        ((), '[gateways]\nXLON = { entry = "127.0.0.1:9101" }', Excess.HALT, "the default with a trading floor"),
        ((), '[floor.arbiters]\ns1 = "XTKS"', Excess.HALT, "the default with a trading floor"),
    ],
)
def test_a_ring_halts_by_default_where_orders_are_traded_or_a_second_machine_has_nodes(
    tmp_path: Path, hosts: tuple[str, ...], added: str, excess: Excess, reason: str
) -> None:
    """Decision 66, Trades and Breaks."""
    made(tmp_path, hosts=hosts, loops=(3,))
    with (tmp_path / FILE).open("a") as file:
        file.write(f"\n{added}\n")
    deployment = read_deployment(tmp_path)
    assert (deployment.topology.excess, deployment.excess_reason) == (excess, reason)


def test_an_explicit_excess_is_kept(tmp_path: Path) -> None:
    for excess in Excess:
        deployment = made(tmp_path / excess.value, excess=excess.value)
        assert (deployment.topology.excess, deployment.excess_reason) == (excess, "as the deployment's file says")


def test_operators_of_a_floor_make_it_halt(tmp_path: Path) -> None:
    text = '# operators = ["XNYS"]'
    made(tmp_path, hosts=(), loops=(3,))
    written = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(written.replace(text, text.removeprefix("# ")))
    assert read_deployment(tmp_path).topology.excess is Excess.HALT


def test_a_profile_is_overridden_field_by_field(tmp_path: Path) -> None:
    deployment = changed(tmp_path, 'profile = "metro"', 'profile = "metro"\ncommit_delay_us = 40000\nretries_max = 7')
    assert deployment.timing.commit_delay == 40 * MILLISECOND
    assert deployment.timing.retries_max == 7
    assert deployment.timing.token_period == PROFILES["metro"].token_period


@pytest.mark.parametrize(
    ("written", "instead", "error"),
    [
        ("version = 1", "version = 2", r"version is 2; this program reads version 1"),
        ("stripe = 0", "stripes = 0", r"stripes is 0; no such field is known"),
        ("stripe = 0", 'stripe = "0"', r"stripe is '0'; expected a whole number"),
        ("stripe = 0", "stripe = 0\nstripe = 1", r"is not valid TOML: .*; correct that line"),
        ("resilience = 1", "resilience = true", r"order\.resilience is True; expected a number from 0 to 127"),
        ("resilience = 1", 'resilience = "most"', r"order\.resilience is 'most'; expected a number from 0 to 127"),
        ('# excess = "halt"', 'excess = "stop"', r"order\.excess is 'stop'; expected one of halt, continue"),
        ('transport = "multicast"', 'transport = "tcp"', r"network\.transport is 'tcp'; expected one of multicast"),
        ('transport = "multicast"', 'carrier = "tcp"', r"network\.carrier is 'tcp'; expected one of multicast, mesh"),
        ('transport = "multicast"', "", r"lacks network\.transport; give a text there"),
        ('transport = "multicast"', 'transport = "mesh"\ncarrier = "mesh"',
         r"network\.carrier is 'mesh'; it is the former name of network\.transport, which is also there: remove it"),
        ("ttl = 1", "ttl = 256", r"network\.ttl is 256; expected from 0 to 255"),
        ('data_group = "', 'data_group = "1', r"network\.data_group is '1239.*'; expected HOST:PORT, a name or"),
        ('data_group = "239', 'data_group = "10', r"network: data group is '10\..*'; it must be an IPv4 multicast"),
        ('url = "sqlite:', 'url = "sqlit:', r"store is 'sqlit:.*'; give sqlite:PATH or etcd:"),
        ('url = "sqlite:', 'url = "etcd:', r"store is 'etcd:.*'; give etcd:http://HOST:PORT/PREFIX"),
        ('sync = "interval"', 'sync = "often"', r"journal\.sync is 'often'; expected one of token, interval, never"),
        ('[store]', '[shop]', r"lacks store; give a table there"),
        ('[store]', '[store]\nca_file = "x"', r"store\.ca_file is 'x'; only an etcd store takes it: remove it"),
        ('[store]', '[store]\nuser = "x"', r"store\.user is 'x'; only an etcd store takes it: remove it"),
        ('real_time = "auto"', 'real_time = 1', r"process\.real_time is 1; expected \"auto\", true or false"),
        ('pace = "fixed"', 'pace = "brisk"', r"order\.pace is 'brisk'; expected one of adapt, fixed"),
        ('profile = "metro"', 'profile = "moon"', r"loops\[0\]\.profile is 'moon'; expected one of lan, metro, wan"),
        ('"s1", "s2", "s3"', '"s1", "s2"', r"sites\.s3 is 's3'; it is in the tour of no loop; add it to one"),
        ('"s1", "s2", "s3"', '"s1", "s2", "s4"', r"loops: site s4 is in two loops"),
        ('"s1", "s2", "s3"', '"s1", "s2", "s9"', r"loops\[0\]\.tour is 's9'; expected one of the sites s1, s2"),
        ('junction = "s1"', 'junction = "x1"', r"loops\[1\]\.junction is 'x1'; expected one of the sites"),
        ('junction = "s1"', "", r"loop 1 has no junction; name the site that joins it to loop 0"),
        ("parent = 0", "parent = 7", r"loop 1 has parent 7; expected one of the other loops"),
        ("s2 = { node = 2,", "s2 = { node = 1,", r"s2\.node is 1; s1 has the same; each needs its own"),
        ("192.0.2.1:17202", "192.0.2.1:17200", r"s3\.address is '192.0.2.1:17200'; s1 has the same; each"),
        ("s2 = { node = 2,", "s2 = { knot = 2, node = 2,", r"sites\.s2\.knot is 2; no such field is known"),
        ("s2 = {", '"s 2" = {', r"sites\.s 2 is 's 2'; a name has up to 32 letters"),
        ('address = "192.0.2.1:17200"', 'address = "192.0.2.1"', r"sites\.s1\.address is '192.0.2.1'; expected HOST:P"),
        ("[operator]", "[boss]", r"lacks operator; give a table there"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_with_its_field(tmp_path: Path, written: str, instead: str, error: str) -> None:
    with pytest.raises(UserError, match=error) as raised:
        changed(tmp_path, written, instead)
    assert str(tmp_path / "new" / FILE) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_sources_of_one_process_may_share_an_address(tmp_path: Path) -> None:
    deployment = made(tmp_path / "new", hosts=HOSTS[:1])
    one, other = (f"{node.host}:{node.port}" for node in deployment.of_kind(NodeKind.SOURCE)[:2])
    file = tmp_path / "new" / FILE
    file.write_text(file.read_text().replace(other, one))
    shared = read_deployment(tmp_path / "new").of_kind(NodeKind.SOURCE)[:2]
    assert [f"{node.host}:{node.port}" for node in shared] == [one, one]


@pytest.mark.parametrize(("written", "meant"), [('"auto"', "AUTO"), ("true", "ALWAYS"), ("false", "NEVER")])
def test_real_time_scheduling_is_used_where_it_is_granted_unless_the_file_says_otherwise(
    tmp_path: Path, written: str, meant: str
) -> None:
    assert changed(tmp_path, 'real_time = "auto"', f"real_time = {written}").real_time is RealTime[meant]
    file = tmp_path / "new" / FILE
    file.write_text(file.read_text().replace(f"real_time = {written}", ""))
    assert read_deployment(tmp_path / "new").real_time is RealTime.AUTO


def test_the_credentials_of_a_store_are_relative_to_the_folder(tmp_path: Path) -> None:
    made(tmp_path / "new", store=ETCD)
    assert read_deployment(tmp_path / "new").access == EtcdAccess()
    file = tmp_path / "new" / FILE
    file.write_text(re.sub(r"^# (\w+ = .*etcd-|user = )", r"\1", file.read_text(), flags=re.MULTILINE))
    keys = tmp_path / "new" / "keys"
    assert read_deployment(tmp_path / "new").access == EtcdAccess(
        ca_file=keys / "etcd-ca.pem",
        cert_file=keys / "etcd-client.pem",
        key_file=keys / "etcd-client.key",
        user="fairtape",
        password_file=keys / "etcd-password",
    )


@pytest.mark.parametrize(
    ("url", "given", "error"),
    [
        (ETCD, 'cert_file = "c"', r"store\.cert_file is 'c'; it needs key_file beside it"),
        (ETCD, 'key_file = "k"', r"store\.key_file is 'k'; it needs cert_file beside it"),
        (ETCD, 'user = "u"', r"store\.user is 'u'; it needs password_file beside it"),
        (ETCD, 'password = "p"', r"store\.password is 'p'; no such field is known"),
        (
            ETCD.replace("https", "http"),
            'ca_file = "a"',
            r"store\.ca_file is 'a'; url is '.*', without TLS: write https",
        ),
    ],
)
def test_impossible_credentials_of_a_store_are_one_sentence(tmp_path: Path, url: str, given: str, error: str) -> None:
    made(tmp_path / "new", store=url)
    file = tmp_path / "new" / FILE
    file.write_text(file.read_text().replace("[store]", f"[store]\n{given}", 1))
    with pytest.raises(UserError, match=error):
        read_deployment(tmp_path / "new")


def test_a_file_of_an_earlier_version_may_call_the_transport_carrier(tmp_path: Path) -> None:
    deployment = changed(tmp_path, 'transport = "multicast"', 'carrier = "multicast"')
    assert deployment.groups is not None
    file = tmp_path / "new" / FILE
    file.write_text(file.read_text().replace('carrier = "multicast"', 'carrier = "mesh"'))
    assert read_deployment(tmp_path / "new").groups is None


def test_a_folder_without_a_deployment_is_refused_with_the_command_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no deployment; make one with: fairtape init"):
        read_deployment(tmp_path)


@pytest.mark.parametrize(
    ("notice", "text"),
    [
        ("formation 3 of (1, 2), without (4,)", "formation 3 of s1 s2, without s4"),
        ("reforming: site 3 reports site 2 at token 5", "reforming: site s3 reports site s2 at token 5"),
        ("formation 2 of (1, 3): 3 joins; 4 leaves", "formation 2 of s1 s3: s3 joins; s4 leaves"),
        ("reformation server 901 leads, term 1", "reformation server x1 leads, term 1"),
        ("taking back tokens 519 to 519", "taking back tokens 519 to 519"),
    ],
)  # fmt: skip
def test_notices_have_names_for_numbers(tmp_path: Path, notice: str, text: str) -> None:
    assert with_names(notice, made(tmp_path / "new")) == text


def changed(tmp_path: Path, written: str, instead: str) -> Deployment:
    """A deployment whose file is changed in one place."""
    made(tmp_path / "new")
    file = tmp_path / "new" / FILE
    text = file.read_text()
    assert written in text
    file.write_text(text.replace(written, instead, 1))
    return read_deployment(tmp_path / "new")


def test_regions_name_their_feeds_and_their_sites(tmp_path: Path) -> None:
    made(tmp_path / "new", edge=2)
    path = tmp_path / "new" / FILE
    text = path.read_text()
    path.write_text(text.replace("# [edge.regions]", "[edge.regions]").replace("# here = {", "here = {"))
    edge = read_deployment(tmp_path / "new").edge
    assert edge is not None
    (region,) = edge.regions
    assert (region.name, region.feeds, region.receivers) == ("here", ("A", "B"), (1, 2, 3))


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('here = { feeds = ["A", "B"], sites = ["s1", "s9"] }', "edge.regions.here.sites is 's9'"),
        ('here = { feeds = ["A"], sites = ["s1", "s2"] }', "feeds of region here are A; expected at least 2"),
        ('here = { feeds = ["A", "B"], sites = ["s1"] }', "region here has 1 receivers for 2 feeds"),
        ('here = { feeds = ["A", "B"] }', "lacks edge.regions.here.sites"),
        ('here = { feeds = ["A", "B"], sites = ["s1", "s2"], more = 1 }', "no such field is known"),
    ],
)
def test_an_impossible_region_is_one_sentence(tmp_path: Path, line: str, error: str) -> None:
    made(tmp_path / "new", edge=2)
    path = tmp_path / "new" / FILE
    path.write_text(f"{path.read_text()}\n[edge.regions]\n{line}\n")
    with pytest.raises(UserError, match=re.escape(error)):
        read_deployment(tmp_path / "new")


def test_cities_name_the_sites_and_delay_every_link(tmp_path: Path) -> None:
    cities = ("São Paulo", "London", "Tokyo")
    deployment = made(tmp_path / "new", loops=(3,), hosts=(), cities=cities, loss=0.02, profile="wan", reformers=1)
    assert [site.name for site in deployment.sites] == ["sao-paulo", "london", "tokyo"]
    assert deployment.link_faults is not None
    at_tokyo = deployment.link_faults.at(deployment.nodes["tokyo"].number)
    assert len(at_tokyo) == len(deployment.nodes) - 1
    assert at_tokyo[deployment.nodes["london"].number].delay == 105 * MILLISECOND
    assert at_tokyo[deployment.nodes["XTKS"].number].delay < MILLISECOND
    assert at_tokyo[deployment.nodes["operator"].number].delay == 0
    assert {link.loss for link in at_tokyo.values()} == {0.02}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("loss = 0.9", "link_faults.loss is 0.9; expected a share from 0 to 0.5, such as 0.01 for 1 %"),
        ('loss = "much"', "link_faults.loss is 'much'; expected a share from 0 to 0.5"),
        ('cities = { s1 = "Paris" }', "link_faults.cities.s1 is 'Paris'; expected one of New York, Chicago,"),
        ('cities = { s9 = "Tokyo" }', "link_faults.cities.s9 is 'Tokyo'; no such field is known"),
        ("delay = 1", "link_faults.delay is 1; no such field is known"),
    ],
)
def test_impossible_link_faults_are_one_sentence(tmp_path: Path, line: str, error: str) -> None:
    made(tmp_path / "new", hosts=())
    with (tmp_path / "new" / FILE).open("a") as file:
        file.write(f"\n[link_faults]\n{line}\n")
    with pytest.raises(UserError, match=re.escape(error)):
        read_deployment(tmp_path / "new")


def test_without_a_city_or_a_loss_no_faults_are_injected(tmp_path: Path) -> None:
    assert made(tmp_path / "new").link_faults is None
