"""`fairtape gateway`: order entry into a deployment."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from fairtape.cli.limits import check_within
from fairtape.core.errors import UserError
from fairtape.deployment.config.description import LIMITS, GatewayOptions, limits_of, read_deployment
from fairtape.deployment.process.node import exit_with
from fairtape.deployment.publish.target import publish_target
from fairtape.net.udp import PORT_MAX, Address

PLACES: Final = ("entry", "fix", "ouch")
FILES: Final = ("cert_file", "key_file")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--source", required=True, metavar="NAME|NUMBER", help="Enter orders as this source of the deployment.")
@click.option("--entry", metavar="HOST:PORT", help="Where the Python client connects.")
@click.option("--fix", metavar="HOST:PORT", help="Where FIX 4.4 engines connect.")
@click.option("--ouch", metavar="HOST:PORT", help="Where OUCH 4.2 clients connect (SoupBinTCP).")
@click.option("--cert-file", type=click.Path(path_type=Path), help="Speak TLS, with this certificate (PEM).")
@click.option("--key-file", type=click.Path(path_type=Path), help="Its key, without a passphrase.")
@click.option("--comp-id", help="Our name in FIX sessions.  [default: FAIRTAPE]")
@click.option("--accounts", metavar="URL", help="A database of logins.  [default: floor/accounts.sqlite in DIRECTORY]")
@click.option("--ledger", metavar="FILE|URL", help="Project the ledger into this database.")
@click.option("--orders-per-s", type=int, help="Requests of one account in a second.  [default: 1000]")
@click.option("--open-orders", type=int, help="Open orders of one account.  [default: 1000]")
@click.option("--notional", type=int, help="Open orders of one account, in cash.  [default: 100000000]")
@click.option("--parent", type=int, hidden=True, help="End together with this process.")
def gateway(*, directory: Path, source: str, parent: int | None, **given: Any) -> None:
    """Let traders enter orders into a deployment.

    Until Ctrl-C, traders with a login (`fairtape accounts add`) enter orders with the Python client, FIX 4.4 or OUCH
    4.2, and hear what the sequence makes of them. Several gateways may run at once; the sequence decides between them.

    Whatever is not given here is taken from [gateways] in the deployment's file, where it names this source; `fairtape
    up` runs those that are listed there. When a trade commits, and who may let money in, says [floor].
    """
    # All that a site and a database are made of comes with it, which `fairtape --help` need not wait for.
    from fairtape.deployment.process.gateway import run_gateway
    from fairtape.deployment.publish.source_thread import source_named

    deployment, door = read_deployment(directory), publish_target(directory)
    me = source_named(door, source)
    options = _options(deployment.gateways.get(door.names[me], GatewayOptions()), given)
    if parent is not None:
        exit_with(parent)
    elif not door.is_open():
        raise UserError(f"the deployment in {str(directory)!r} is not running; start it with: {door.command}")
    run_gateway(deployment, me, options, _say, patient=parent is not None)


def _options(listed: GatewayOptions, given: dict[str, Any]) -> GatewayOptions:
    """What the command says, and the file where the command says nothing."""
    for name, bounds in LIMITS.items():
        check_within(f"--{name.replace('_', '-')}", given[name], *bounds)
    chosen = {name: value for name, value in given.items() if value is not None and name not in LIMITS}
    chosen |= {name: _address(f"--{name}", chosen[name]) for name in PLACES if name in chosen}
    limits = limits_of({name: given[name] for name in LIMITS}, otherwise=listed.limits)
    options = replace(listed, **chosen, limits=limits)
    if not options.serves:
        raise UserError("none of --entry, --fix and --ouch is given; say where traders connect")
    if (options.cert_file is None) != (options.key_file is None):
        one, other = FILES if options.key_file is None else reversed(FILES)
        raise UserError(f"{one} is given without {other}; give both, or none")
    return options


def _say(addresses: dict[str, Address]) -> None:
    for name, (host, port) in addresses.items():
        click.echo(f"{name} at {host}:{port}")


def _address(option: str, text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > PORT_MAX:
        raise UserError(f"{option} is {text!r}; give an address such as 127.0.0.1:9101")
    return host, int(port)
