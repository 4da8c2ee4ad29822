"""`fairtape trace`: what happened in one simulated world, as text or as a picture."""

from pathlib import Path

import click

from fairtape.core.instants import NEVER, SECOND, Instant
from fairtape.runtime.complaints import Complaint
from fairtape.simulation.scenario import lines
from fairtape.simulation.swarm import LOSS_MAX, draw
from fairtape.simulation.tracing import Window, choose_window, count_flights, draw_svg
from fairtape.simulation.trial import Trial, judge
from fairtape.simulation.world import EPOCH


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
    _refuse(seed=seed, since=since, until=until, loss=loss)
    configuration = draw(seed, loss=loss)
    trial = Trial(configuration, record=(_instant(since, 0), _instant(until, NEVER)))
    verdict = _run(trial)
    assert trial.recorder is not None
    happenings = trial.recorder.happenings
    timing = configuration.timing
    chosen = choose_window(happenings, period=timing.token_period, commit_delay=timing.commit_delay)
    window = Window(_instant(since, chosen.since), _instant(until, chosen.until))
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
        raise Complaint(f"--svg is {svg}; it cannot be written ({error.strerror}), give another file") from None
    click.echo(
        f"{svg}: {count_flights(happenings, window)} datagrams in {(window.until - window.since) / SECOND:.6f} s"
    )


def _run(trial: Trial) -> str:
    lively, broken = judge(trial)
    if broken is not None:
        return f"broke {broken}"
    return "everything was released everywhere" if lively else "safe, with a failure declared or injected"


def _instant(seconds: float | None, otherwise: Instant) -> Instant:
    return otherwise if seconds is None else EPOCH + round(seconds * SECOND)


def _refuse(*, seed: int, since: float | None, until: float | None, loss: float | None) -> None:
    if seed < 0:
        raise Complaint(f"SEED is {seed}; give 0 or more")
    if loss is not None and not 0.0 <= loss <= LOSS_MAX:
        raise Complaint(f"--loss is {loss:g}; give a share from 0 to {LOSS_MAX:g}, such as 0.05 for 5 %")
    if since is not None and until is not None and until <= since:
        raise Complaint(f"--to is {until:g}; give a time after --from, which is {since:g}")
