"""The results of the demonstration, computed from the journals after the run.

Order and release times come from the journals of all sites. What the customers received is compared with the journal
of a site, byte by byte.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fairtape.core.effects import Ordered, Release
from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.core.percentiles import percentile
from fairtape.core.spans import messages
from fairtape.demo.customers import CustomerReport, RegionReports
from fairtape.demo.tally import DemoTally
from fairtape.demo.world import FLOORS, REGIONS, SITES, TIMING, DemoWorld, plan_of
from fairtape.deployment.config.description import Deployment
from fairtape.edge.protocol.sessions import Edition, StripePosition
from fairtape.edge.protocol.stripe_sequencer import StripeMessages, StripeSequencer, StripeStep
from fairtape.formats.framing import unframe
from fairtape.journal import AuditReport, FormationChanged, JournalEntry, JournalReader, compare, verify
from fairtape.market.trades import records
from fairtape.net.driver import may_run_in_real_time

STEP: Final = 100 * MICROSECOND
STEPS_MAX: Final = 60 * SECOND // STEP  # longer delays count in the last step; the maximum is exact


class CustomerVerdict(NamedTuple):
    """The result of checking the reports of all customers."""

    customers: int  # that sent a report
    complete: int  # that received exactly what was released
    missed: int  # messages not received, summed over all customers


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The results, as the report prints them."""

    world: DemoWorld
    transport: str
    folder: Path  # of the deployment
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
    formations: int  # that were decided
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
            "carrier": self.transport,
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
            "formations": self.formations,
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


def collect_findings(tally: DemoTally, reports: Sequence[RegionReports], *, interrupted: bool) -> Findings:
    """Read the journals of all sites and combine them with the tally."""
    deployment = tally.deployment
    journals = {SITES[node.number].name: deployment.journal_of(node) for node in deployment.sites}
    killed = None if tally.killed is None else SITES[tally.killed].name
    proofs = {name: verify(path) for name, path in journals.items()}
    survivors = [name for name in journals if name != killed]
    problem = _problem(proofs, survivors, finished=tally.finished)
    if problem is None and killed is not None:
        problem = _prefix_problem(killed, journals[killed], journals[survivors[0]])
    decided_at = sorted(each.decided_at for each in tally.decisions.values())
    marks = _Marks(decided_at[1:])
    if problem is None:
        marks.read(list(journals.values()))
    sites = tally.sites.values()
    regions = tally.regions.values()
    return Findings(
        world=tally.world,
        transport="mesh" if deployment.groups is None else "multicast",
        folder=deployment.folder,
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
        requests=sum(each.requests for each in sites),
        repairs=sum(each.repairs for each in sites),
        lost=sum(each.lost for each in sites),
        late_reforming=marks.late_reforming,
        killed=killed,
        killed_at=max(tally.killed_at - tally.opened_at, 0),
        formations=len(tally.decisions),
        reformed_delay=_reformed_delay(tally),
        customers=check_customers(deployment, journals[survivors[0]], reports),
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
    for _, formation in sorted(tally.formations.items()):
        if tally.killed is not None and tally.killed not in formation.members:
            return formation.starts_at - tally.killed_at
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

    def __init__(self, reformed_at: Sequence[Instant]) -> None:
        self._reformed_at = reformed_at
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
        return any(first < decided_at <= last for decided_at in self._reformed_at)


def _rows(journals: Sequence[Path]) -> Iterator[list[JournalEntry]]:
    """The entries of each token over all sites. The journal of a killed site ends earlier."""
    with ExitStack() as open_journals:
        cursors = [open_journals.enter_context(JournalReader.open(path).entries()) for path in journals]
        for row in zip_longest(*cursors):
            yield [entry for entry in row if entry is not None]


class Delays:
    """A histogram of the delays from trade to release, over all sites. Its memory does not grow with the run."""

    def __init__(self) -> None:
        self._counts = np.zeros(STEPS_MAX, np.int64)
        self.most: Duration | None = None

    def add(self, ordered: Ordered, released: Sequence[Instant]) -> None:
        """Add the trades of one token, and when each site released them. Trades and sites use the same clock."""
        delays = np.subtract.outer(np.array(released, np.int64), _traded_at(ordered)).ravel()
        if len(delays):
            np.add.at(self._counts, np.clip(delays // STEP, 0, STEPS_MAX - 1), 1)
            self.most = max(self.most or 0, int(delays.max()))

    def percentile(self, share: float) -> Duration | None:
        """The delay that this share of releases does not exceed, rounded up to a step. None without releases."""
        if self.most is None:
            return None
        through = np.cumsum(self._counts)
        wanted = min(int(share * through[-1]), through[-1] - 1)
        return min((int(np.searchsorted(through, wanted, side="right")) + 1) * STEP, self.most)


def _traded_at(ordered: Ordered) -> npt.NDArray[np.int64]:
    payloads = [payload for span in ordered.spans for _, payload in messages(span)]
    traded_at: npt.NDArray[np.int64] = records(b"".join(payloads))["traded_at"].astype(np.int64)
    return traded_at


def check_customers(deployment: Deployment, journal: Path, regions: Iterable[RegionReports]) -> CustomerVerdict:
    """Compare every report with what the journal says was released on each stripe."""
    reports = [report for region in regions for report in region.reports]
    if not reports:
        return CustomerVerdict(0, 0, 0)
    released = _released(deployment, journal)
    complete = sum(dict(report.received) == released for report in reports)
    missed = sum(_missed(report, released) for report in reports)
    return CustomerVerdict(len(reports), complete, missed)


def _missed(report: CustomerReport, released: Mapping[int, tuple[int, bytes]]) -> int:
    return sum(max(count - report.received.get(stripe, (0, b""))[0], 0) for stripe, (count, _) in released.items())


def _released(deployment: Deployment, journal: Path) -> dict[int, tuple[int, bytes]]:
    """Message count and digest of each stripe, recomputed from the journal."""
    assert deployment.edge is not None
    edition = Edition(deployment.edge.tag, plan_of(deployment), deployment.edge.core)
    sequencer = StripeSequencer(StripePosition.fresh(edition))
    counts = [0] * len(edition.stripes)
    digests = [blake2b() for _ in edition.stripes]
    _add(sequencer.begin(), counts, digests)
    with JournalReader.open(journal).entries() as cursor:
        for each in cursor.everything():
            if isinstance(each, FormationChanged):
                sequencer.on_formation(each.change)
            else:
                _add(sequencer.deliver(each.ordered), counts, digests)
    numbers = (stripe.number for stripe in edition.stripes)
    return {number: (count, made.digest()) for number, count, made in zip(numbers, counts, digests, strict=True)}


def _add(steps: Sequence[StripeStep], counts: list[int], digests: list[Any]) -> None:
    for step in steps:
        if isinstance(step, StripeMessages):
            counts[step.stripe] += step.count
            digests[step.stripe].update(b"".join(unframe(step.framed)))


def _scaled(duration: Duration | None, unit: Duration) -> float | None:
    return None if duration is None else duration / unit
