"""What the demonstration proved. Everything about the order and its releases is read from the journals afterwards."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fairtape.core.instants import MICROSECOND, MILLISECOND, Duration
from fairtape.demo.delays import Delays
from fairtape.demo.tally import Tally, percentile
from fairtape.demo.world import FLOORS, SITES, TIMING, World
from fairtape.runtime.journal import Entry, Journal, Report, compare, verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The report."""

    world: World
    published: int
    delivered: Mapping[str, int]  # messages released, by city
    one_order: bool
    problem: str | None  # why it is not one order
    releases: int  # messages times sites
    late: int
    spread_p50: Duration | None
    spread_p99: Duration | None
    delay_p50: Duration | None  # from the trade on its floor to a release, over all sites
    delay_p99: Duration | None
    delay_max: Duration | None
    clock_bound: Duration
    requests: int
    repairs: int
    lost: int
    journals: Mapping[str, Path]
    failures: Sequence[str]
    interrupted: bool

    @property
    def delivered_min(self) -> int:
        """What every site has released."""
        return min(self.delivered.values())

    @property
    def complete(self) -> bool:
        """Everything published was released at every site."""
        return set(self.delivered.values()) == {self.published}

    @property
    def late_fraction(self) -> float:
        """The share of releases after their instant."""
        return self.late / self.releases if self.releases else 0.0

    @property
    def guaranteed_delay(self) -> Duration:
        """From reception at the token site to a release on time: the wait for a token, and the commit delay. T-RMP §5.

        The way to the token site comes before it, and what is lost there is sent again.
        """
        return TIMING.delay_max

    def as_json(self) -> dict[str, object]:
        """The report for programs."""
        return {
            "sites": len(SITES),
            "floors": len(FLOORS),
            "seconds": self.world.seconds,
            "loss": self.world.loss,
            "seed": self.world.seed,
            "carrier": "mesh" if self.world.groups is None else "multicast",
            "published": self.published,
            "delivered_min": self.delivered_min,
            "delivered": dict(self.delivered),
            "complete": self.complete,
            "one_order": self.one_order,
            "late_fraction": round(self.late_fraction, 6),
            "late_releases": self.late,
            "guaranteed_delay_ms": self.guaranteed_delay / 1e6,
            "token_period_ms": TIMING.token_period / 1e6,
            "commit_delay_ms": TIMING.commit_delay / 1e6,
            "measured_delay_ms": {
                "p50": _scaled(self.delay_p50, MILLISECOND),
                "p99": _scaled(self.delay_p99, MILLISECOND),
                "max": _scaled(self.delay_max, MILLISECOND),
            },
            "release_spread_us": {
                "p50": _scaled(self.spread_p50, MICROSECOND),
                "p99": _scaled(self.spread_p99, MICROSECOND),
            },
            "clock_bound_us": self.clock_bound / 1e3,
            "requests": self.requests,
            "repairs": self.repairs,
            "datagrams_lost": self.lost,
            "failures": list(self.failures),
            "interrupted": self.interrupted,
            "journals": [str(path) for path in self.journals.values()],
        }


def find(world: World, tally: Tally, journals: Mapping[str, Path], *, interrupted: bool) -> Findings:
    """Read the journals of all sites and put everything together."""
    proofs = {name: verify(path) for name, path in journals.items()}
    problem = _problem(proofs, finished=tally.finished)
    marks = _Marks()
    if problem is None:
        marks.read(list(journals.values()))
    news = tally.sites.values()
    return Findings(
        world=world,
        published=tally.published,
        delivered={name: proof.released_sequence or 0 for name, proof in proofs.items()},
        one_order=problem is None,
        problem=problem,
        releases=marks.releases,
        late=marks.late,
        spread_p50=percentile(marks.spreads, 0.5),
        spread_p99=percentile(marks.spreads, 0.99),
        delay_p50=marks.delays.percentile(0.5),
        delay_p99=marks.delays.percentile(0.99),
        delay_max=marks.delays.most,
        clock_bound=marks.clock_bound,
        requests=sum(each.requests for each in news),
        repairs=sum(each.repairs for each in news),
        lost=sum(each.lost for each in news),
        journals=journals,
        failures=tuple(tally.failures),
        interrupted=interrupted,
    )


def _problem(proofs: Mapping[str, Report], *, finished: bool) -> str | None:
    """Why these journals do not prove one order. Equal chains mean equal histories, byte for byte."""
    for name, proof in proofs.items():
        if not proof.sound:
            return f"the journal of {name} is damaged: {proof.problems[0].reason}"
    difference = compare([proof.directory for proof in proofs.values()]).difference
    if difference is not None:
        return f"from sequence {difference.sequence} on: {difference.reason}"
    if finished and len({proof.digest for proof in proofs.values()}) > 1:
        return "all sites have released everything, and their chains end differently"
    return None


class _Marks:
    """The release marks of all sites, token by token."""

    def __init__(self) -> None:
        self.releases = 0
        self.late = 0
        self.clock_bound: Duration = 0
        self.spreads: list[Duration] = []
        self.delays = Delays()

    def read(self, journals: Sequence[Path]) -> None:
        """Take in what these sites released."""
        for row in _rows(journals):
            marks = [entry.release for entry in row if entry.release is not None]
            on_time = [mark.released_at for mark in marks if not mark.late]
            self.releases += sum(mark.count for mark in marks)
            self.late += sum(mark.count for mark in marks if mark.late)
            self.clock_bound = max(self.clock_bound, *(mark.clock_bound for mark in marks))
            self.delays.add(row[0].ordered, [mark.released_at for mark in marks])
            if len(on_time) > 1:
                self.spreads.append(max(on_time) - min(on_time))


def _rows(journals: Sequence[Path]) -> Iterator[tuple[Entry, ...]]:
    """The same token at every site, as far as all of them have released."""
    with ExitStack() as open_journals:
        cursors = [open_journals.enter_context(Journal.open(path).entries()) for path in journals]
        yield from zip(*cursors, strict=False)


def _scaled(duration: Duration | None, unit: Duration) -> float | None:
    return None if duration is None else duration / unit
