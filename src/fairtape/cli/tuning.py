"""Hearing a deployment that others run: the lines of one site, and of another when that one fails."""

import sys
import time
from typing import Final

import click

from fairtape.cli.lines import JsonLines, TextLines
from fairtape.cli.outlet import Outlet
from fairtape.cli.tape import Progress, Tape
from fairtape.cli.words import counted
from fairtape.core.instants import MILLISECOND, SECOND, Duration
from fairtape.deployment.audience import Audience
from fairtape.deployment.description import Deployment
from fairtape.deployment.processes import Interrupts
from fairtape.runtime.clock import SharedClock
from fairtape.runtime.complaints import Complaint
from fairtape.runtime.journal import Damaged

LOOK_PERIOD: Final = 20 * MILLISECOND  # how often the journal is looked at
CHOICE_PERIOD: Final = 500 * MILLISECOND  # how often somebody asks whether the site still serves: so old are its pages
SILENCE_TOLD_MIN: Final = 1 * SECOND  # a reformation takes less
REPAIR_PERIOD_MAX: Final = 5 * SECOND  # for which a journal may be unreadable while its site cuts it back
FOREVER: Final = 10**9 * SECOND


def tune_in(
    deployment: Deployment, site: str | None, from_sequence: int | None, *, seconds: float | None, as_json: bool
) -> list[str]:
    """Print what a site releases until Ctrl-C; why it ended otherwise, which is printed as well."""
    audience = Audience(deployment, wanted=site)
    chosen = audience.choose(None, SharedClock().now())
    if chosen is None:
        raise Complaint(_nobody(deployment, site))
    lines = (JsonLines if as_json else TextLines)(audience.names)
    with Interrupts() as interrupts:
        tape = Tape(
            audience.journals,
            Outlet(sys.stdout.fileno()),
            lines,
            site=chosen,
            from_sequence=from_sequence or audience.released_through(chosen) + 1,
        )
        name = audience.names[chosen]
        click.echo(f"this is what site {name} of {deployment.folder} releases; Ctrl-C ends it", err=True)
        tuner = Tuner(audience, tape, interrupts)
        try:
            ended = tuner.hear(FOREVER if seconds is None else round(seconds * SECOND))
        except Damaged as damage:
            ended = [str(damage)]
        enough = interrupts.count + 1
        complete = tape.flush(lambda: interrupts.count >= enough)
    click.echo(_summary(tape, complete=complete), err=True)
    for sentence in ended:
        click.echo(f"fairtape: {sentence}", err=True)
    return ended


class Tuner:
    """Keeps to a site that serves."""

    def __init__(self, audience: Audience, tape: Tape, interrupts: Interrupts) -> None:
        self._audience = audience
        self._tape = tape
        self._interrupts = interrupts
        self._clock = SharedClock()
        self._readable_at = self._clock.now()
        self._served_at = self._clock.now()
        self._silent = False  # and that was told
        self._astray = False  # whether the journal was cut before the place that is read

    def hear(self, period: Duration) -> list[str]:
        """Print for so long, or until Ctrl-C, or until it is over; why it is over."""
        now = choose_at = self._clock.now()
        ends_at = now + period
        while not self._interrupts.count and now < ends_at:
            if now >= choose_at:
                choose_at = now + CHOICE_PERIOD
                over = self._audience.is_over()
                self._choose()
                if self._advance() is Progress.CAUGHT_UP and over:
                    return ["the deployment has stopped"]
            if self._advance() is not Progress.BUSY:
                time.sleep(LOOK_PERIOD / SECOND)
            now = self._clock.now()
        return []

    def _choose(self) -> None:
        present = self._tape.site
        chosen = self._audience.choose(present, self._clock.now())
        names = self._audience.names
        if chosen is not None and chosen != present:
            self._tell(f"site {names[present]} no longer serves; this is what site {names[chosen]} releases")
            self._tape.follow(chosen)
        self._tell_of_silence(names[self._tape.site])

    def _tell_of_silence(self, name: str) -> None:
        """A site that is cut off from the others releases nothing; whoever hears it must know that."""
        now = self._clock.now()
        if not self._audience.serves(self._tape.site, now):
            if not self._silent and now - self._served_at > SILENCE_TOLD_MIN:
                self._silent = True
                self._tell(f"site {name} does not serve: it is cut off, behind or gone, and no other is here instead")
            return
        if self._silent:
            self._tell(f"site {name} serves again")
        self._silent, self._served_at = False, now

    def _tell(self, sentence: str) -> None:
        click.echo(sentence, err=True)

    def _advance(self) -> Progress:
        """Print what there is. A site that comes back may cut off what the others went on without: read that again."""
        now = self._clock.now()
        try:
            if self._astray:
                self._tape.follow(self._tape.site)
            progress = self._tape.advance()
        except Damaged:
            if now - self._readable_at > REPAIR_PERIOD_MAX:
                raise
            self._astray = True
            return Progress.CAUGHT_UP
        self._astray, self._readable_at = False, now
        return progress


def _nobody(deployment: Deployment, site: str | None) -> str:
    if site is not None:
        return f"--site is {site!r}, which does not run on this machine; name one that does, or start it"
    return (
        f"no site of the deployment in {str(deployment.folder)!r} runs on this machine;"
        f" start it with: fairtape up {deployment.folder}"
    )


def _summary(tape: Tape, *, complete: bool) -> str:
    printed = tape.printed
    others = f", {counted(printed.others, 'other message')}" if printed.others else ""
    breaks = f", {counted(printed.breaks, 'break')}" if printed.breaks else ""
    rest = "" if complete else f"; then nobody took the lines any more, go on with --from-seq {printed.through + 1}"
    return f"{counted(printed.trades, 'trade')} in one order{others}, {printed.late:,} released late{breaks}{rest}"
