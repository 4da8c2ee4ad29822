"""Hearing a deployment that others run: the lines of one site, and of another when that one fails."""

import sys
import time
from collections.abc import Mapping
from typing import Final

import click

from fairtape.cli.lines import JsonLines, TextLines
from fairtape.cli.listen import LOOK_PERIOD
from fairtape.cli.outlet import OutputThread
from fairtape.cli.tape import Progress, TapePrinter
from fairtape.cli.words import counted
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, SECOND, Duration
from fairtape.deployment.config.description import Deployment
from fairtape.deployment.follow.journal_follower import JournalFollower
from fairtape.deployment.follow.site_failover import Changed, Restored, Silenced, SiteFailover, Tiding
from fairtape.deployment.follow.site_selection import SiteSelection
from fairtape.deployment.process.children import Interrupts
from fairtape.journal import Damaged
from fairtape.net.clock import SharedClock
from fairtape.wire.frames import NodeId

FOREVER: Final = 10**9 * SECOND


def tune_in(
    deployment: Deployment, site: str | None, from_sequence: int | None, *, seconds: float | None, as_json: bool
) -> list[str]:
    """Print what a site releases until Ctrl-C; why it ended otherwise, which is printed as well."""
    audience = SiteSelection(deployment, wanted=site)
    chosen = audience.choose(None, SharedClock().now())
    if chosen is None:
        raise UserError(_nobody(deployment, site))
    lines = (JsonLines if as_json else TextLines)(audience.names)
    with Interrupts() as interrupts:
        from_sequence = from_sequence or audience.released_through(chosen) + 1
        following = JournalFollower(audience.journals, site=chosen, from_sequence=from_sequence)
        tape = TapePrinter(following, OutputThread(sys.stdout.fileno()), lines)
        name = audience.names[chosen]
        click.echo(f"this is what site {name} of {deployment.folder} releases; Ctrl-C ends it", err=True)
        listener = TapeListener(audience, tape, SiteFailover(audience, following), interrupts)
        try:
            ended = listener.hear(FOREVER if seconds is None else round(seconds * SECOND))
        except Damaged as damage:
            ended = [str(damage)]
        enough = interrupts.count + 1
        complete = tape.flush(lambda: interrupts.count >= enough)
    click.echo(_tape_summary(tape, complete=complete), err=True)
    for sentence in ended:
        click.echo(f"fairtape: {sentence}", err=True)
    return ended


class TapeListener:
    """Prints what a site releases that serves."""

    def __init__(self, audience: SiteSelection, tape: TapePrinter, tuner: SiteFailover, interrupts: Interrupts) -> None:
        self._audience = audience
        self._tape = tape
        self._tuner = tuner
        self._interrupts = interrupts
        self._clock = SharedClock()

    def hear(self, period: Duration) -> list[str]:
        """Print for so long, or until Ctrl-C, or until it is over; why it is over."""
        ends_at = self._clock.now() + period
        while not self._interrupts.count and self._clock.now() < ends_at:
            if self._tuner.is_due():
                over = self._audience.is_over()
                for tiding in self._tuner.look():
                    click.echo(_told(tiding, self._audience.names), err=True)
                if self._advance() is Progress.CAUGHT_UP and over:
                    return ["the deployment has stopped"]
            if self._advance() is not Progress.BUSY:
                time.sleep(LOOK_PERIOD / SECOND)
        return []

    def _advance(self) -> Progress:
        return self._tuner.patiently(self._tape.advance) or Progress.CAUGHT_UP


def _told(tiding: Tiding, names: Mapping[NodeId, str]) -> str:
    name = names[tiding.site]
    match tiding:
        case Changed(before):
            return f"site {names[before]} no longer serves; this is what site {name} releases"
        case Silenced():
            return f"site {name} does not serve: it is cut off, behind or gone, and no other is here instead"
        case Restored():
            return f"site {name} serves again"


def _nobody(deployment: Deployment, site: str | None) -> str:
    if site is not None:
        return f"--site is {site!r}, which does not run on this machine; name one that does, or start it"
    return (
        f"no site of the deployment in {str(deployment.folder)!r} runs on this machine;"
        f" start it with: fairtape up {deployment.folder}"
    )


def _tape_summary(tape: TapePrinter, *, complete: bool) -> str:
    printed = tape.printed
    others = f", {counted(printed.others, 'other message')}" if printed.others else ""
    breaks = f", {counted(printed.breaks, 'break')}" if printed.breaks else ""
    rest = "" if complete else f"; then nobody took the lines any more, go on with --from-seq {printed.through + 1}"
    return f"{counted(printed.trades, 'trade')} in one order{others}, {printed.late:,} released late{breaks}{rest}"
