"""The results of the demonstration. Order and release times are read from the journals after the run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from fairtape.core.effects import Release
from fairtape.core.instants import MICROSECOND, MILLISECOND, Duration, Instant
from fairtape.core.percentiles import percentile
from fairtape.demo.audit import CustomerVerdict, check_customers
from fairtape.demo.customers import RegionReports
from fairtape.demo.delays import Delays
from fairtape.demo.reformers import FormationNews
from fairtape.demo.tally import DemoTally
from fairtape.demo.world import FLOORS, REGIONS, SITES, TIMING, DemoWorld, WorldPlan, name_of
from fairtape.journal import AuditReport, JournalEntry, JournalReader, compare, verify
from fairtape.net.driver import may_run_in_real_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The results, as the report prints them."""

    world: DemoWorld
    published: int
    delivered: Mapping[str, int]  # messages released, by city
    one_order: bool
    problem: str | None  # why the journals do not prove one order
    releases: int  # messages times sites
    late: int
    spread_p50: Duration | None
    spread_p99: Duration | None
    delay_p50: Duration | None  # from the trade on its floor to a release, over all sites
    delay_p99: Duration | None
    delay_max: Duration | None
    clock_bound: Duration
    real_time: bool  # whether receivers ran with real-time priority
    requests: int
    repairs: int
    lost: int
    late_reforming: int  # late releases that waited for a reformation
    killed: str | None  # the receiver that was killed
    killed_at: Instant  # since the floors opened
    formations: Sequence[FormationNews]
    reformed_delay: Duration | None  # from the kill to the first token of the formation without it
    customers: CustomerVerdict
    customer_requests: int
    customer_lost: int  # datagrams
    without_second_feed: int  # customers that do not receive two feeds at the end
    restored_delay: Duration | None  # from the kill until all customers received two feeds again
    journals: Mapping[str, Path]
    failures: Sequence[str]
    finished: bool  # everything published was released and received, according to the children
    interrupted: bool

    @property
    def survivors(self) -> list[str]:
        """All sites except the killed one."""
        return [name for name in self.delivered if name != self.killed]

    @property
    def delivered_min(self) -> int:
        """Messages that every surviving site released."""
        return min(self.delivered[name] for name in self.survivors)

    @property
    def complete(self) -> bool:
        """Whether every surviving site released everything published."""
        return all(self.delivered[name] == self.published for name in self.survivors)

    @property
    def missed(self) -> bool:
        """Whether the run finished and some customer did not receive exactly what was released."""
        return self.finished and self.customers.complete < self.world.customers

    @property
    def late_fraction(self) -> float:
        """The share of releases after their commit instant."""
        return self.late / self.releases if self.releases else 0.0

    @property
    def guaranteed_delay(self) -> Duration:
        """From reception at the token site to release: the wait for a token plus the commit delay. T-RMP §5.

        The path from the source to the token site, with its retransmissions, is not included.
        """
        return TIMING.delay_max

    def as_json(self) -> dict[str, object]:
        """The fields of `fairtape demo --json`."""
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
            "late_for_reformation": self.late_reforming,
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
            "real_time": self.real_time,
            "requests": self.requests,
            "repairs": self.repairs,
            "datagrams_lost": self.lost,
            "formations": len(self.formations),
            "receiver_killed": self.killed,
            "receiver_delivered": self.delivered[self.killed] if self.killed is not None else None,
            "reformed_delay_ms": _scaled(self.reformed_delay, MILLISECOND),
            "regions": len(REGIONS),
            "customers": self.world.customers,
            "customers_complete": self.customers.complete,
            "customer_gaps": self.customers.missed,
            "customer_requests": self.customer_requests,
            "customer_datagrams_lost": self.customer_lost,
            "customers_with_two_feeds": self.world.customers - self.without_second_feed,
            "second_feed_delay_ms": _scaled(self.restored_delay, MILLISECOND),
            "failures": list(self.failures),
            "interrupted": self.interrupted,
            "journals": [str(path) for path in self.journals.values()],
        }


def collect_findings(
    tally: DemoTally,
    plan: WorldPlan,
    journals: Mapping[str, Path],
    reports: Sequence[RegionReports],
    *,
    interrupted: bool,
) -> Findings:
    """Read the journals of all sites and combine them with the tally."""
    killed = None if tally.killed is None else name_of(tally.killed)
    proofs = {name: verify(path) for name, path in journals.items()}
    survivors = [name for name in journals if name != killed]
    problem = _problem(proofs, survivors, finished=tally.finished)
    if problem is None and killed is not None:
        problem = _prefix_problem(killed, journals[killed], journals[survivors[0]])
    marks = _Marks(list(tally.formations)[1:])
    if problem is None:
        marks.read(list(journals.values()))
    news = tally.sites.values()
    regions = tally.regions.values()
    return Findings(
        world=tally.world,
        published=tally.published,
        delivered={name: proof.released_sequence or 0 for name, proof in proofs.items()},
        one_order=problem is None,
        problem=problem,
        releases=marks.releases,
        late=marks.late,
        spread_p50=percentile(marks.spreads, 0.5, None),
        spread_p99=percentile(marks.spreads, 0.99, None),
        delay_p50=marks.delays.percentile(0.5),
        delay_p99=marks.delays.percentile(0.99),
        delay_max=marks.delays.most,
        clock_bound=marks.clock_bound,
        real_time=may_run_in_real_time(),
        requests=sum(each.requests for each in news),
        repairs=sum(each.repairs for each in news),
        lost=sum(each.lost for each in news),
        late_reforming=marks.late_reforming,
        killed=killed,
        killed_at=max(tally.killed_at - tally.opened_at, 0),
        formations=tuple(tally.formations),
        reformed_delay=_reformed_delay(tally),
        customers=check_customers(plan.edge, journals[survivors[0]], reports),
        customer_requests=sum(region.requests for region in regions),
        customer_lost=sum(region.lost for region in regions),
        without_second_feed=tally.without_second_feed,
        restored_delay=tally.restored_at - tally.killed_at if tally.restored_at else None,
        journals=journals,
        failures=tuple(tally.failures),
        finished=tally.finished,
        interrupted=interrupted,
    )


def _reformed_delay(tally: DemoTally) -> Duration | None:
    """From the kill to the start of the first formation without the killed site."""
    for each in tally.formations:
        if tally.killed is not None and tally.killed not in each.formation.members:
            return each.formation.starts_at - tally.killed_at
    return None


def _problem(proofs: Mapping[str, AuditReport], survivors: Sequence[str], *, finished: bool) -> str | None:
    """Why the journals of the survivors do not prove one order. Equal hash chains mean identical histories."""
    for name, proof in proofs.items():
        if not proof.sound:
            return f"the journal of {name} is damaged: {proof.problems[0].reason}"
    difference = compare([proofs[name].directory for name in survivors]).difference
    if difference is not None:
        return f"from sequence {difference.sequence} on: {difference.reason}"
    if finished and len({proofs[name].digest for name in survivors}) > 1:
        return "all sites released everything, but their hash chains differ"
    return None


def _prefix_problem(killed: str, journal: Path, whole: Path) -> str | None:
    """Why the releases of the killed site are not a prefix of the releases of the others.

    Messages that it held but did not release do not count: the others may have continued without them.
    """
    with JournalReader.open(journal).entries() as part, JournalReader.open(whole).entries() as rest:
        for one, other in zip_longest(part, rest):
            if one is None:
                return None
            if other is None or one.encoded != other.encoded:
                return f"{killed} and the other sites released different messages at sequence {one.ordered.sequence}"
    return None


class _Marks:
    """The release marks of all sites, token by token."""

    def __init__(self, reformations: Sequence[FormationNews]) -> None:
        self._reformations = reformations
        self.releases = 0
        self.late = 0
        self.late_reforming = 0
        self.clock_bound: Duration = 0
        self.spreads: list[Duration] = []
        self.delays = Delays()

    def read(self, journals: Sequence[Path]) -> None:
        for row in _rows(journals):
            marks = [entry.release for entry in row if entry.release is not None]
            on_time = [mark.released_at for mark in marks if not mark.late]
            late = sum(mark.count for mark in marks if mark.late)
            self.releases += sum(mark.count for mark in marks)
            self.late += late
            self.late_reforming += late if self._waited(marks) else 0
            self.clock_bound = max(self.clock_bound, *(mark.clock_bound for mark in marks))
            self.delays.add(row[0].ordered, [mark.released_at for mark in marks])
            if len(on_time) > 1:
                self.spreads.append(max(on_time) - min(on_time))

    def _waited(self, marks: Sequence[Release]) -> bool:
        """Whether a formation was decided between the commit instant and the release."""
        first = min(mark.commit_at for mark in marks)
        last = max(mark.released_at for mark in marks)
        return any(first < each.decided_at <= last for each in self._reformations)


def _rows(journals: Sequence[Path]) -> Iterator[list[JournalEntry]]:
    """The entries of each token over all sites. The journal of a killed site ends earlier."""
    with ExitStack() as open_journals:
        cursors = [open_journals.enter_context(JournalReader.open(path).entries()) for path in journals]
        for row in zip_longest(*cursors):
            yield [entry for entry in row if entry is not None]


def _scaled(duration: Duration | None, unit: Duration) -> float | None:
    return None if duration is None else duration / unit
