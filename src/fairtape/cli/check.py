"""`fairtape check` and `fairtape trace`: check the guarantees in simulated worlds; show one world in detail."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fairtape.cli.terminal import EXIT_BROKEN, check_within, with_progress
from fairtape.core.errors import UserError
from fairtape.core.instants import NEVER, SECOND, Instant

if TYPE_CHECKING:
    from fairtape.simulation.campaign import CampaignTally, Distribution, RunSeed
    from fairtape.simulation.cluster_run import ClusterRun, RunOutcome
    from fairtape.simulation.space_time_diagram import Window

SECONDS_MAX: Final = 1e6  # no world lasts that long


@click.command()
@click.option("--seeds", default=100, show_default=True, help="How many worlds to run.")
@click.option("--first", type=int, default=1, show_default=True, metavar="SEED", help="The first of these seeds.")
@click.option("--seed", type=int, help="Repeat this one world exactly.")
@click.option("--healing", is_flag=True, help="Whole deployments, in which every kind of node fails and restarts.")
@click.option("--failover", is_flag=True, help="Deployments without link faults, in which one or two members crash.")
@click.option("--floor", is_flag=True, help="As --healing, with a trading floor at every site.")
@click.option("--overload", is_flag=True, help="Nodes share processors, and sources publish more than these can carry.")
@click.option("--loss", type=float, help="The share of datagrams that every link loses, instead of each seed's own.")
@click.option("--jobs", type=int, help="Number of worlds run in parallel.  [default: one per core]")
@click.option("--results", type=click.Path(path_type=Path), help="Write every outcome to this file; continue it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
@click.pass_context
def check(
    ctx: click.Context,
    *,
    seeds: int,
    first: int,
    seed: int | None,
    healing: bool,
    failover: bool,
    floor: bool,
    overload: bool,
    loss: float | None,
    jobs: int | None,
    results: Path | None,
    as_json: bool,
) -> None:
    """Simulate rings with faults and check every guarantee.

    Each world is drawn from a seed: its sites, timing, links and faults. A world is one ring, or with --healing a whole
    deployment: loops, reformation servers and their store, under crashes, pauses, cut links, clock errors, lost
    journals, growth, retirement and injected datagrams; the summary has the share of worlds with each. After all faults
    have ended, every message must be in every journal. With --failover the only fault is that one or two members crash,
    and the promised times must be kept. With --floor every site runs a trading floor: its replicas must make the same
    trades, committed trades must stay, and cash and shares must add up exactly. With --overload turns take time, nodes
    share processors with one another and with other programs, and sources publish up to several times what the
    processors can carry: within a second they must be slowed, so that releases are on time and no site is taken for
    failed.

    A world that breaks a guarantee is named with the command that repeats it exactly. The exit code is then 1.
    The digest covers every datagram and every release in these worlds, with its time. It is the same on every machine
    with the same version of fairtape, for any number of jobs: equal digests mean equal histories.

    With --results a campaign can be interrupted and continued: worlds that the file has are not run again, and count in
    the summary, also in its seeds per second. The file is refused after a change of the code, and for other kinds.
    """
    from fairtape.simulation.campaign import CampaignDigest, CampaignTally, cores, replay_command

    _check_options(seeds=seeds, first=first, seed=seed, loss=loss, jobs=jobs)
    flags = {"--healing": healing, "--failover": failover, "--floor": floor, "--overload": overload}
    kind = _choose(flags, loss)
    chosen = range(first, first + seeds) if seed is None else range(seed, seed + 1)
    at_once = min(jobs or cores(), len(chosen))
    if seed is not None and not as_json:
        click.echo(f"seed {seed}: {kind.describe(seed)}")
    tally = CampaignTally()
    digest = CampaignDigest()
    began_at = time.perf_counter()
    outcomes = _outcomes(chosen, kind, at_once, results)
    for outcome in with_progress(outcomes, "worlds", len(chosen), quiet=as_json):
        tally.add(outcome)
        digest.add(outcome)
        if outcome.failed and not as_json:
            command = replay_command(outcome, *kind.options)
            click.echo(f"seed {outcome.seed} broke {outcome.text}\n  repeat with: {command}")
    seconds = time.perf_counter() - began_at
    if as_json:
        fields = {"worlds": kind.name, **_fields(tally, seconds, kind, at_once), "loss": loss, "digest": str(digest)}
        click.echo(json.dumps(fields))
    else:
        click.echo(f"{_summary(tally, seconds, kind)}\n  digest {digest}")
    ctx.exit(EXIT_BROKEN if tally.failures else 0)


@dataclass(frozen=True, slots=True)
class RunKind:
    """One kind of world."""

    name: str
    run: "RunSeed"
    describe: Callable[[int], str]
    options: tuple[str, ...]  # the command line options that choose this kind
    counted: str  # the meaning of `reforming`
    counts: str = "at all replicas"  # what was counted


def _choose(flags: dict[str, bool], loss: float | None) -> RunKind:
    from fairtape.simulation.cluster_run import run_ring
    from fairtape.simulation.ring_schedule import draw_ring

    chosen = [flag for flag, given in flags.items() if given]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen)} are given; give one of them")
    if chosen and loss is not None:
        raise UserError(f"--loss is {loss:g}; only worlds of one ring take it, leave it out")
    if chosen:
        return _kinds()[chosen[0]]
    return RunKind(
        "ring",
        partial(run_ring, loss=loss),
        lambda seed: draw_ring(seed, loss=loss).describe(),
        () if loss is None else ("--loss", f"{loss:g}"),
        "declared a failure",
    )


def _kinds() -> dict[str, RunKind]:
    from fairtape.simulation import failover_run, fault_schedule
    from fairtape.simulation import overload as overloads
    from fairtape.simulation.cluster_run import run_cluster
    from fairtape.simulation.floor_run import run_floor
    from fairtape.simulation.overload_run import run_overload

    def schedule(seed: int) -> str:
        return fault_schedule.draw(seed).describe()

    def failure(seed: int) -> str:
        return failover_run.draw(seed).describe()

    def overload(seed: int) -> str:
        return overloads.draw(seed).describe()

    return {
        "--healing": RunKind("healing", run_cluster, schedule, ("--healing",), "had to reform"),
        "--failover": RunKind("failover", failover_run.run_failover, failure, ("--failover",), "had to reform"),
        "--floor": RunKind("floor", run_floor, schedule, ("--floor",), "had to reform"),
        "--overload": RunKind("overload", run_overload, overload, ("--overload",), "declared a failure", "measured"),
    }


def _outcomes(seeds: range, kind: RunKind, jobs: int, path: Path | None) -> Iterator["RunOutcome"]:
    """The outcomes that the results file has, then those of the other seeds, which are added to it."""
    from fairtape.simulation.campaign import KILLED, campaign
    from fairtape.simulation.campaign_results import CampaignResults

    if path is None:
        yield from campaign(seeds, kind.run, jobs=jobs)
        return
    with closing(CampaignResults(path, kind.name, kind.options)) as results:
        yield from (outcome for seed, outcome in results.outcomes.items() if seed in seeds)
        missing = [seed for seed in seeds if seed not in results.outcomes]
        for outcome in campaign(missing, kind.run, jobs=jobs):
            if outcome.text != KILLED:  # which says nothing about the world
                results.add(outcome)
            yield outcome


def _check_options(*, seeds: int, first: int, seed: int | None, loss: float | None, jobs: int | None) -> None:
    from fairtape.cli.simulate import JOBS_MAX, SEED_MAX, SEEDS_MAX
    from fairtape.simulation.ring_schedule import LOSS_MAX

    check_within("--seeds", seeds, 1, SEEDS_MAX)
    check_within("--first", first, 0, SEED_MAX)
    check_within("--seed", seed, 0, SEED_MAX)
    check_within("--jobs", jobs, 1, JOBS_MAX)
    check_within("--loss", loss, 0.0, LOSS_MAX, hint=", such as 0.05 for 5 %")


def _summary(tally: "CampaignTally", seconds: float, kind: RunKind) -> str:
    verdict = f"{len(tally.failures)} broke a guarantee" if tally.failures else "every guarantee held"
    worlds = "1 world" if tally.seeds == 1 else f"{tally.seeds:,} worlds"
    return (
        f"{worlds} in {seconds:.1f} s: {verdict}.\n"
        f"  {tally.all_delivered} delivered everything everywhere, {tally.reforming} {kind.counted}; "
        f"{tally.messages:,} messages, {tally.deliveries:,} datagrams, {tally.deliveries / seconds:,.0f} per second"
        + "".join(f"\n  {_distribution_text(name, took)}" for name, took in _distributions(tally))
        + (f"\n  {kind.counts}: {_counts_text(tally)}" if tally.counts else "")
        + (f"\n  {_seeds_text(tally, seconds)}" if tally.faults else "")
        + "".join(f"\n  {line}" for line in _by_checker(tally, kind))
    )


def _counts_text(tally: "CampaignTally") -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(tally.counts.items()))


def _seeds_text(tally: "CampaignTally", seconds: float) -> str:
    shares = ", ".join(f"{name} {share:.0%}" for name, share in tally.fault_shares().items())
    return f"{tally.seeds / seconds:.2f} seeds per second; share of the seeds with each fault: {shares}"


def _by_checker(tally: "CampaignTally", kind: RunKind) -> list[str]:
    """How many worlds broke each guarantee, and the first of them."""
    from fairtape.simulation.campaign import replay_command

    lines = []
    for name, outcomes in sorted(tally.broken().items()):
        first = min(outcomes, key=lambda outcome: outcome.seed)
        worlds = "1 world" if len(outcomes) == 1 else f"{len(outcomes):,} worlds"
        lines.append(f"{name} was broken in {worlds}; the first: {replay_command(first, *kind.options)}")
    return lines


def _distributions(tally: "CampaignTally") -> list[tuple[str, "Distribution"]]:
    from fairtape.simulation.campaign import Distribution

    return [(name, Distribution.of(took)) for name, took in sorted(tally.durations.items())]


def _distribution_text(name: str, took: "Distribution") -> str:
    return (
        f"to {name}: {took.count:,} times, median {took.median / 1e6:.1f} ms, "
        f"99 % within {took.p99 / 1e6:.1f} ms, longest {took.longest / 1e6:.1f} ms"
    )


def _fields(tally: "CampaignTally", seconds: float, kind: RunKind, jobs: int) -> dict[str, object]:
    from fairtape.simulation.campaign import replay_command

    failures = [
        {
            "seed": outcome.seed,
            "guarantee": outcome.guarantee,
            "node": outcome.node,
            "text": outcome.text,
            "command": replay_command(outcome, *kind.options),
        }
        for outcome in sorted(tally.failures, key=lambda outcome: outcome.seed)
    ]
    return {
        "seeds": tally.seeds,
        "failures": failures,
        "datagrams_per_s": round(tally.deliveries / seconds),
        "datagrams": tally.deliveries,
        "messages": tally.messages,
        "late_releases": tally.late,
        "delivered_everything": tally.all_delivered,
        "declared_a_failure": tally.reforming,
        "seconds": round(seconds, 3),
        "seeds_per_s": round(tally.seeds / seconds, 3),
        "fault_shares": {name: round(share, 4) for name, share in tally.fault_shares().items()},
        "jobs": jobs,
        "counts": dict(sorted(tally.counts.items())),
        "durations": {
            name: {
                "count": took.count,
                "median_s": took.median / 1e9,
                "p99_s": took.p99 / 1e9,
                "longest_s": took.longest / 1e9,
            }
            for name, took in _distributions(tally)
        },
    }


@click.command()
@click.argument("seed", type=int)
@click.option("--svg", type=click.Path(path_type=Path), help="Draw the space-time diagram into this file.")
@click.option("--from", "since", type=float, help="Begin this many seconds after the start of the world.")
@click.option("--to", "until", type=float, help="End this many seconds after the start of the world.")
@click.option("--loss", type=float, help="The share of datagrams lost, as it was given to `fairtape check`.")
def trace(*, seed: int, svg: Path | None, since: float | None, until: float | None, loss: float | None) -> None:
    """Repeat one simulated world and show its trace.

    Without --svg the trace is printed. Without --from and --to a window with repairs is chosen.
    """
    from fairtape.simulation.cluster_run import ClusterRun
    from fairtape.simulation.recorder import lines
    from fairtape.simulation.ring_schedule import draw_ring
    from fairtape.simulation.space_time_diagram import choose_window, count_flights, draw_svg
    from fairtape.simulation.world import EPOCH

    _check_trace_options(seed=seed, since=since, until=until, loss=loss)
    schedule = draw_ring(seed, loss=loss)
    run = ClusterRun(schedule, record=(_instant(since, 0), _instant(until, NEVER)))
    verdict = _verdict(run)
    assert run.recorder is not None
    events = run.recorder.events
    timing, ended_at = schedule.plan.topology.primary.timing, run.cluster.world.now
    if since is not None and _instant(since, 0) > ended_at:
        raise UserError(f"--from is {since:g}; this world ends after {(ended_at - EPOCH) / SECOND:.6f} s")
    chosen = choose_window(events, period=timing.token_period, commit_delay=timing.commit_delay)
    window = _window(since, until, chosen)
    if svg is None:
        shown = [one for one in events if window.since <= one.at <= window.until]
        click.echo("\n".join([*lines(shown, run.cluster.sites), verdict]))
        return
    diagram = draw_svg(
        events,
        window=window,
        sources=schedule.plan.sources,
        sites=run.cluster.sites,
        title=f"fairtape, seed {seed}: {verdict}",
        subtitle=schedule.describe(),
    )
    try:
        svg.write_text(diagram, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--svg is {svg}; it cannot be written ({error.strerror}), give another file") from None
    click.echo(f"{svg}: {count_flights(events, window)} datagrams in {(window.until - window.since) / SECOND:.6f} s")


def _verdict(run: "ClusterRun") -> str:
    from fairtape.simulation.cluster_run import violation_of

    broken = violation_of(run)
    if broken is not None:
        return f"broke {broken}"
    return "everything was released everywhere" if run.all_delivered else "safe, with a failure declared or injected"


def _window(since: float | None, until: float | None, chosen: "Window") -> "Window":
    """The requested window; a bound that was not given comes from the chosen window or from its width."""
    from fairtape.simulation.space_time_diagram import Window
    from fairtape.simulation.world import EPOCH

    width = chosen.until - chosen.since
    begins_at = _instant(since, min(chosen.since, _instant(until, NEVER) - width))
    return Window(max(begins_at, EPOCH), _instant(until, max(chosen.until, begins_at + width)))


def _instant(seconds: float | None, otherwise: Instant) -> Instant:
    from fairtape.simulation.world import EPOCH

    return otherwise if seconds is None else EPOCH + round(seconds * SECOND)


def _check_trace_options(*, seed: int, since: float | None, until: float | None, loss: float | None) -> None:
    from fairtape.cli.simulate import SEED_MAX
    from fairtape.simulation.ring_schedule import LOSS_MAX

    check_within("SEED", seed, 0, SEED_MAX)
    check_within("--loss", loss, 0.0, LOSS_MAX, hint=", such as 0.05 for 5 %")
    check_within("--from", since, 0.0, SECONDS_MAX)
    check_within("--to", until, 1e-6, SECONDS_MAX)
    if since is not None and until is not None and _instant(until, 0) <= _instant(since, 0):
        raise UserError(f"--to is {until:g}; give a time after --from, which is {since:g}")
