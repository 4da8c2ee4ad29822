"""What the demonstration proved. Everything about the order and its releases is read from the journals afterwards."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fairtape.core.instants import Duration
from fairtape.demo.tally import Tally, percentile
from fairtape.demo.world import FLOORS, SITES, TIMING, World, longest_way
from fairtape.runtime.journal import Entry, Journal, compare, verify


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
        """From publication to release when nothing is late: the longest way, the wait for a token, the commit delay."""
        return longest_way() + TIMING.delay_max

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
            "longest_way_ms": longest_way() / 1e6,
            "token_period_ms": TIMING.token_period / 1e6,
            "commit_delay_ms": TIMING.commit_delay / 1e6,
            "release_spread_us": {"p50": _microseconds(self.spread_p50), "p99": _microseconds(self.spread_p99)},
            "clock_bound_us": self.clock_bound / 1e3,
            "requests": self.requests,
            "repairs": self.repairs,
            "datagrams_lost": self.lost,
            "failures": list(self.failures),
            "interrupted": self.interrupted,
            "journals": {name: str(path) for name, path in self.journals.items()},
        }


def find(world: World, tally: Tally, journals: Mapping[str, Path], *, interrupted: bool) -> Findings:
    """Read the journals of all sites and put everything together."""
    problem = _problem(tally, journals)
    marks = _Marks()
    if problem is None:
        marks.read(list(journals.values()))
    news = tally.sites.values()
    return Findings(
        world=world,
        published=tally.published,
        delivered={name: verify(path).released_sequence or 0 for name, path in journals.items()},
        one_order=problem is None,
        problem=problem,
        releases=marks.releases,
        late=marks.late,
        spread_p50=percentile(marks.spreads, 0.5),
        spread_p99=percentile(marks.spreads, 0.99),
        clock_bound=marks.clock_bound,
        requests=sum(each.requests for each in news),
        repairs=sum(each.repairs for each in news),
        lost=sum(each.lost for each in news),
        journals=journals,
        failures=tuple(tally.failures),
        interrupted=interrupted,
    )


def _problem(tally: Tally, journals: Mapping[str, Path]) -> str | None:
    """Why these journals do not prove one order. Equal chains of equal length mean equal bytes."""
    reports = {name: verify(path) for name, path in journals.items()}
    for name, report in reports.items():
        if not report.sound:
            return f"the journal of {name} is damaged: {report.problems[0].reason}"
    comparison = compare(list(journals.values()))
    if comparison.difference is not None:
        return f"from sequence {comparison.difference.sequence} on: {comparison.difference.reason}"
    if tally.finished and len({report.digest for report in reports.values()}) > 1:
        return "all sites have released everything, and their chains end differently"
    return None


class _Marks:
    """The release marks of all sites, token by token."""

    def __init__(self) -> None:
        self.releases = 0
        self.late = 0
        self.clock_bound: Duration = 0
        self.spreads: list[Duration] = []

    def read(self, journals: Sequence[Path]) -> None:
        """Take in what these sites released."""
        for row in _rows(journals):
            marks = [entry.release for entry in row if entry.release is not None]
            on_time = [mark.released_at for mark in marks if not mark.late]
            self.releases += sum(mark.count for mark in marks)
            self.late += sum(mark.count for mark in marks if mark.late)
            self.clock_bound = max(self.clock_bound, *(mark.clock_bound for mark in marks))
            if len(on_time) > 1:
                self.spreads.append(max(on_time) - min(on_time))


def _rows(journals: Sequence[Path]) -> Iterator[tuple[Entry, ...]]:
    """The same token at every site, as far as all of them have released."""
    with ExitStack() as open_journals:
        cursors = [open_journals.enter_context(Journal.open(path).entries()) for path in journals]
        yield from zip(*cursors, strict=False)


def _microseconds(duration: Duration | None) -> float | None:
    return None if duration is None else duration / 1e3
