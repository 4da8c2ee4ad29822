"""`fairtape accounts`: logins of traders, and their funds."""

from pathlib import Path
from typing import Final

import click

from fairtape.core.errors import UserError
from fairtape.market.prices import BadNumber, format_sum, parse_fixed

CASH_WORD: Final = "cash"


@click.group()
def accounts() -> None:
    """Make logins and fund their accounts."""


_DIRECTORY = click.argument("directory", type=click.Path(path_type=Path))
_URL = click.option("--accounts", "address", metavar="URL", help="A database instead of the file in DIRECTORY.")


@accounts.command()
@_DIRECTORY
@click.argument("name")
@click.option("--broker", default="", help="The login of its broker, which may also trade for it.")
@click.option("--password", envvar="FAIRTAPE_PASSWORD", help="Prompted for if not given.")
@_URL
def add(*, directory: Path, name: str, broker: str, password: str | None, address: str | None) -> None:
    """Make a login and the account of the same name.

    The password is prompted for, or taken from FAIRTAPE_PASSWORD. Avoid --password: other users of a machine can see
    the arguments of a command. A login with a --broker is a customer of that login.
    """
    from fairtape.deployment.config.description import read_deployment
    from fairtape.deployment.process.gateway import accounts_of

    deployment = read_deployment(directory)
    secret = password or click.prompt("password", hide_input=True, confirmation_prompt=True, err=True)
    accounts_of(deployment.folder, address).add(name, secret, broker=broker)
    click.echo(f"{name} may log in" + (f", and {broker} may trade for it" if broker else ""))


@accounts.command("list")
@_DIRECTORY
@_URL
def list_logins(*, directory: Path, address: str | None) -> None:
    """Print all logins."""
    from fairtape.deployment.config.description import read_deployment
    from fairtape.deployment.process.gateway import accounts_of

    for login in accounts_of(read_deployment(directory).folder, address).logins():
        notes = [f"broker {login.broker}" if login.broker else "", "token" if login.token else ""]
        notes.append("closed" if login.closed else "")
        click.echo("  ".join([f"{login.name:16}", *filter(None, notes)]).rstrip())


@accounts.command()
@_DIRECTORY
@click.argument("name")
@_URL
def token(*, directory: Path, name: str, address: str | None) -> None:
    """Print a new token; the previous one becomes invalid.

    A program logs in with it instead of a password.
    """
    from fairtape.deployment.config.description import read_deployment
    from fairtape.deployment.process.gateway import accounts_of

    click.echo(accounts_of(read_deployment(directory).folder, address).issue_token(name))


@accounts.command()
@_DIRECTORY
@click.argument("name")
@_URL
def close(*, directory: Path, name: str, address: str | None) -> None:
    """Close a login. Its orders stay as they are."""
    from fairtape.deployment.config.description import read_deployment
    from fairtape.deployment.process.gateway import accounts_of

    accounts_of(read_deployment(directory).folder, address).close_login(name)
    click.echo(f"{name} can no longer log in")


@accounts.command(context_settings={"ignore_unknown_options": True})  # a negative amount is not an option
@_DIRECTORY
@click.argument("name")
@click.argument("asset")
@click.argument("amount")
@click.option("--source", required=True, metavar="NAME|NUMBER", help="The operator's source; no gateway may use it.")
@click.pass_context
def fund(ctx: click.Context, *, directory: Path, name: str, asset: str, amount: str, source: str) -> None:
    """Pay cash or shares into an account, or out of it.

    ASSET is "cash" or a symbol. AMOUNT is a decimal number; a negative one is a withdrawal. The payment is a message in
    the order, so every replica books it at the same position. A withdrawal above the balance is refused, and the exit
    code is then 1. An account needs no login to receive a payment, but one to trade.
    """
    from fairtape.cli.floor import enter_request, print_answer
    from fairtape.exchange.orders import CASH, Funding

    try:
        value = parse_fixed(amount)
    except BadNumber as bad:
        raise UserError(f"AMOUNT: {bad}") from None
    asset_name = CASH if asset == CASH_WORD else asset
    answer, floor = enter_request(
        directory, source, lambda gateway, number: Funding(gateway, number, name, asset_name, value)
    )
    account = floor.ledger.accounts.get(name)
    has = 0 if account is None else account.balance(asset_name).total
    print_answer(ctx, answer, f"{amount} {asset} for {name}; balance {format_sum(has)}")
