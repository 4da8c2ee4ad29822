"""The `[gateways]` of a deployment file, and the options of `fairtape gateway` that override it."""

from pathlib import Path

import pytest

from fairtape.core.errors import UserError
from fairtape.deployment.config.description import (
    FILE,
    USUAL_LIMITS,
    Deployment,
    GatewayOptions,
    limits_of,
    read_deployment,
)
from fairtape.deployment.config.process_names import floor_names
from fairtape.deployment.operations.draft import Draft, create_deployment
from fairtape.gateway.core.limits import GatewayLimits
from fairtape.gateway.servers.streams import server_context
from fairtape.market.prices import ONE


def made(folder: Path, text: str) -> Deployment:
    """A deployment whose file ends with these lines."""
    create_deployment(folder, Draft(loops=(3,), hosts=("192.0.2.1",), profile="metro"))
    file = folder / FILE
    file.write_text(f"{file.read_text()}\n{text}\n")
    return read_deployment(folder)


def test_gateways_are_read_as_they_are_written(tmp_path: Path) -> None:
    deployment = made(
        tmp_path / "d",
        '[gateways.XLON]\nentry = "127.0.0.1:9101"\nledger = "floor/ledger.sqlite"\norders_per_s = 7\nnotional = 5\n'
        'cert_file = "keys/entry.pem"\nkey_file = "keys/entry.key"\n'
        '[gateways.XTKS]\nfix = "127.0.0.1:9102"\nledger = "postgresql+psycopg://host/name"',
    )
    folder = deployment.folder
    assert deployment.gateways == {
        "XLON": GatewayOptions(
            entry=("127.0.0.1", 9101),
            ledger=str(folder / "floor/ledger.sqlite"),
            cert_file=folder / "keys/entry.pem",
            key_file=folder / "keys/entry.key",
            limits=GatewayLimits(requests_per_s=7, notional_max=5 * ONE),
        ),
        "XTKS": GatewayOptions(fix=("127.0.0.1", 9102), ledger="postgresql+psycopg://host/name"),
    }


def test_a_deployment_runs_the_floor_that_its_file_lists(tmp_path: Path) -> None:
    assert floor_names(made(tmp_path / "none", "")) == []
    text = '[gateways]\nXLON = { ouch = "127.0.0.1:9103" }\n[floor.arbiters]\ns2 = "XTKS"'
    assert floor_names(made(tmp_path / "some", text)) == ["s2.arbiter", "XLON.gateway"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('[gateways.XPAR]\nentry = "127.0.0.1:1"', "gateways.XPAR is 'XPAR'; expected one of the sources XNYS, XLON"),
        ("[gateways.XLON]", "gateways.XLON is 'XLON'; it needs entry, fix or ouch: where traders connect"),
        ('[gateways.XLON]\nentry = "here"', "gateways.XLON.entry is 'here'; expected HOST:PORT"),
        ('[gateways.XLON]\nfix = "a:1"\ncert_file = "c"', "cert_file is 'c'; cert_file and key_file go together"),
        ('[gateways.XLON]\nfix = "a:1"\nopen_orders = 0', "gateways.XLON.open_orders is 0; expected from 1 to 10,000"),
        ('[gateways.XLON]\nfix = "a:1"\nsoup = 1', "gateways.XLON.soup is 1; no such field is known"),
        (
            '[gateways.XLON]\nfix = "a:1"\n[floor.arbiters]\ns1 = "XLON"',
            "floor.arbiters.s1 is 'XLON'; gateways.XLON is that source, too; each needs its own",
        ),
    ],
)
def test_a_mistake_is_named_with_its_remedy(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        made(tmp_path / "d", text)
    assert sentence in str(refused.value)


def test_a_gateway_and_an_arbiter_need_addresses_of_their_own(tmp_path: Path) -> None:
    """Sources at one address are one process."""
    with pytest.raises(UserError, match=r"gateways.XLON is 'XLON'; XNYS has the same address; gateways.XLON needs its"):
        shared(tmp_path / "gateway", '[gateways.XLON]\nfix = "a:1"')
    with pytest.raises(UserError, match=r"floor.arbiters.s1 is 'XNYS'; XLON has the same address; floor.arbiters.s1"):
        shared(tmp_path / "arbiter", '[floor.arbiters]\ns1 = "XNYS"')


def shared(folder: Path, text: str) -> Deployment:
    """A deployment whose sources XNYS and XLON are at one address, and whose file ends with these lines."""
    deployment = made(folder, "")
    one, other = (deployment.nodes[name] for name in ("XNYS", "XLON"))
    file = folder / FILE
    addresses = f"{other.host}:{other.port}", f"{one.host}:{one.port}"
    file.write_text(f"{file.read_text().replace(*addresses)}\n{text}\n")
    return read_deployment(folder)


def test_limits_that_are_left_out_stay_as_they_are() -> None:
    assert limits_of({}) == USUAL_LIMITS
    listed = limits_of({"open_orders": 3, "orders_per_s": None})
    assert limits_of({"notional": 2}, otherwise=listed) == GatewayLimits(open_orders_max=3, notional_max=2 * ONE)


def test_an_unusable_certificate_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cert_file is .* cannot be read \(No such file or directory\)"):
        server_context(tmp_path / "none.pem", tmp_path / "none.key")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    with pytest.raises(UserError, match="which do not match"):
        server_context(nonsense, nonsense)
