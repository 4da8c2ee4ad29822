"""`fairtape trace`: what happened in one simulated world, as text or as a picture."""

from pathlib import Path
from typing import Final

import click

from fairtape.cli.check import SEED_MAX
from fairtape.cli.limits import check_within
from fairtape.core.errors import UserError
from fairtape.core.instants import NEVER, SECOND, Instant
from fairtape.simulation.configuration import LOSS_MAX, draw
from fairtape.simulation.ring_run import RingRun, judge
from fairtape.simulation.scenario import lines
from fairtape.simulation.space_time_diagram import Window, choose_window, count_flights, draw_svg
from fairtape.simulation.world import EPOCH

SECONDS_MAX: Final = 1e6  # no world lasts as long


@click.command()
@click.argument("seed", type=int)
@click.option("--svg", type=click.Path(path_type=Path), help="Draw the space-time diagram into this file.")
@click.option("--from", "since", type=float, help="Begin so many seconds after the world's start.")
@click.option("--to", "until", type=float, help="End so many seconds after the world's start.")
@click.option("--loss", type=float, help="The share of datagrams lost, as it was given to `fairtape check`.")
def trace(*, seed: int, svg: Path | None, since: float | None, until: float | None, loss: float | None) -> None:
    """Run one simulated world again and show what happened.

    Without --svg the trace is printed. Without --from and --to a stretch is chosen in which something is repaired.
    """
    _refuse_trace(seed=seed, since=since, until=until, loss=loss)
    configuration = draw(seed, loss=loss)
    trial = RingRun(configuration, record=(_instant(since, 0), _instant(until, NEVER)))
    verdict = _run(trial)
    assert trial.recorder is not None
    happenings = trial.recorder.happenings
    timing = configuration.timing
    if since is not None and _instant(since, 0) > trial.world.now:
        raise UserError(f"--from is {since:g}; this world ends after {(trial.world.now - EPOCH) / SECOND:.6f} s")
    chosen = choose_window(happenings, period=timing.token_period, commit_delay=timing.commit_delay)
    window = _window(since, until, chosen)
    if svg is None:
        shown = [one for one in happenings if window.since <= one.at <= window.until]
        click.echo("\n".join([*lines(shown, configuration.sites), verdict]))
        return
    picture = draw_svg(
        happenings,
        window=window,
        sources=configuration.sources,
        sites=configuration.sites,
        title=f"fairtape, seed {seed}: {verdict}",
        subtitle=configuration.describe(),
    )
    try:
        svg.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--svg is {svg}; it cannot be written ({error.strerror}), give another file") from None
    click.echo(
        f"{svg}: {count_flights(happenings, window)} datagrams in {(window.until - window.since) / SECOND:.6f} s"
    )


def _run(trial: RingRun) -> str:
    lively, broken = judge(trial)
    if broken is not None:
        return f"broke {broken}"
    return "everything was released everywhere" if lively else "safe, with a failure declared or injected"


def _window(since: float | None, until: float | None, chosen: Window) -> Window:
    """What was asked for; an end that was not given is the chosen one, or as far away as the chosen stretch is long."""
    width = chosen.until - chosen.since
    begins_at = _instant(since, min(chosen.since, _instant(until, NEVER) - width))
    return Window(max(begins_at, EPOCH), _instant(until, max(chosen.until, begins_at + width)))


def _instant(seconds: float | None, otherwise: Instant) -> Instant:
    return otherwise if seconds is None else EPOCH + round(seconds * SECOND)


def _refuse_trace(*, seed: int, since: float | None, until: float | None, loss: float | None) -> None:
    check_within("SEED", seed, 0, SEED_MAX)
    check_within("--loss", loss, 0.0, LOSS_MAX, hint=", such as 0.05 for 5 %")
    check_within("--from", since, 0.0, SECONDS_MAX)
    check_within("--to", until, 1e-6, SECONDS_MAX)
    if since is not None and until is not None and _instant(until, 0) <= _instant(since, 0):
        raise UserError(f"--to is {until:g}; give a time after --from, which is {since:g}")
