"""`fairtape demo --floor`: traders on four continents, and what becomes of their trades when the arbiter dies."""

from typing import Final, NoReturn

import click

from fairtape.cli.progress import EXIT_BROKEN
from fairtape.demo.trading_floor import COMMIT_PASSES, Closing, TradingFloor
from fairtape.simulation.facts import Violation


def show_floor(ctx: click.Context) -> NoReturn:
    """Play the session, tell it, and end the command."""
    session = TradingFloor()
    try:
        for line in session.play():
            click.echo(line)
    except Violation as broken:
        click.echo(f"fairtape: a guarantee broke: {broken}", err=True)
        ctx.exit(EXIT_BROKEN)
    closing = session.closing()
    click.echo(told(closing))
    ctx.exit(0 if closing.same and closing.conserved and not closing.accusations else EXIT_BROKEN)


def told(closing: Closing) -> str:
    """The end of the story."""
    shares = "\n".join(f"  {name:<16} took part in {count:>5,} trades" for name, count in closing.shares.items())
    return (
        f"\n{closing.trades:,} trades, {closing.committed:,} of them committed, {closing.void:,} void; the longest"
        f" silence between two trades was {closing.stood_still / 1e9:.1f} s\n{shares}\n"
        f"The arbiters reported {closing.reports:,} tokens, and were accused {closing.accusations:,} times.\n"
        f"A trade commits after {COMMIT_PASSES} passes of the token. All five replicas hold"
        f" {'the same trades and the same ledger' if closing.same else 'NOT the same'}, the killed one among them;"
        f" cash and shares {'add up to the last unit' if closing.conserved else 'do NOT add up'}."
    )
