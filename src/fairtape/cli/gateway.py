"""`fairtape gateway`: order entry into a deployment."""

from pathlib import Path

import click

from fairtape.cli.limits import check_within
from fairtape.deployment.description import read_deployment
from fairtape.deployment.door import door_of
from fairtape.runtime.complaints import Complaint
from fairtape.runtime.udp import Address

PORT_MAX = 65_535


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--source", required=True, metavar="NAME|NUMBER", help="Enter orders as this source of the deployment.")
@click.option("--entry", metavar="HOST:PORT", help="Where the Python client connects.")
@click.option("--fix", metavar="HOST:PORT", help="Where FIX 4.4 engines connect.")
@click.option("--ouch", metavar="HOST:PORT", help="Where OUCH 4.2 clients connect (SoupBinTCP).")
@click.option("--comp-id", default="FAIRTAPE", show_default=True, help="Our name in FIX sessions.")
@click.option("--accounts", metavar="URL", help="A database of logins.  [default: floor/accounts.sqlite in DIRECTORY]")
@click.option("--ledger", metavar="FILE|URL", help="Project the ledger into this database.")
@click.option("--orders-per-s", default=1_000, show_default=True, help="Requests of one account in a second.")
@click.option("--open-orders", default=1_000, show_default=True, help="Open orders of one account.")
@click.option("--notional", default=100_000_000, show_default=True, help="Open orders of one account, in cash.")
def gateway(
    *,
    directory: Path,
    source: str,
    entry: str | None,
    fix: str | None,
    ouch: str | None,
    comp_id: str,
    accounts: str | None,
    ledger: str | None,
    orders_per_s: int,
    open_orders: int,
    notional: int,
) -> None:
    """Let traders enter orders into a deployment.

    Until Ctrl-C, traders with a login (`fairtape accounts add`) enter orders with the Python client, FIX 4.4 or OUCH
    4.2, and hear what the sequence makes of them. At least one of --entry, --fix and --ouch says where. Several
    gateways may run at once; the sequence decides between them. When a trade commits, and who may let money in, says
    [floor] in the deployment's file.
    """
    # All that a site and a database are made of comes with it, which `fairtape --help` need not wait for.
    from fairtape.apps.gateway import GatewayLimits
    from fairtape.deployment.gateways import GatewayOptions, run_gateway
    from fairtape.deployment.messages import source_named
    from fairtape.market.prices import ONE

    check_within("--orders-per-s", orders_per_s, 1, 1_000_000)
    check_within("--open-orders", open_orders, 1, 10_000)
    check_within("--notional", notional, 1, 9_000_000_000)
    places = {"--entry": entry, "--fix": fix, "--ouch": ouch}
    if not any(places.values()):
        raise Complaint("none of --entry, --fix and --ouch is given; say where traders connect")
    options = GatewayOptions(
        entry=_address("--entry", entry),
        fix=_address("--fix", fix),
        ouch=_address("--ouch", ouch),
        comp_id=comp_id,
        accounts=accounts,
        ledger=ledger,
        limits=GatewayLimits(requests_per_s=orders_per_s, open_orders_max=open_orders, notional_max=notional * ONE),
    )
    deployment, door = read_deployment(directory), door_of(directory)
    if not door.is_open():
        raise Complaint(f"the deployment in {str(directory)!r} is not running; start it with: {door.command}")
    me = source_named(door, source)
    run_gateway(deployment, door.plan_for(me), me, door.names[me], options, _say)


def _say(addresses: dict[str, Address]) -> None:
    for name, (host, port) in addresses.items():
        click.echo(f"{name} at {host}:{port}")


def _address(option: str, text: str | None) -> Address | None:
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > PORT_MAX:
        raise Complaint(f"{option} is {text!r}; give an address such as 127.0.0.1:9101")
    return host, int(port)
