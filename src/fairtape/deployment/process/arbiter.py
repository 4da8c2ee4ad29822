"""The arbiter of a site: it computes the floor from the site's journal, and reports the trades of the site's tokens.

"By making the token site the arbiter we guarantee that the arbiter has the most complete acknowledged sequence of buy
and sell orders" (TRMP 2001 §7.3). It runs beside the site, not in it: a floor that is rebuilt after a Break must not
delay a token. Reports are published by a source of the arbiter's own. What was not reported before a crash is reported
after it.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.errors import UserError
from fairtape.core.instants import MILLISECOND, Instant
from fairtape.core.spans import messages
from fairtape.deployment.config.description import Deployment, Node
from fairtape.deployment.config.process_names import ARBITER
from fairtape.deployment.follow.floor_reader import FloorReader, FloorStep
from fairtape.deployment.process.children import Interrupts
from fairtape.deployment.publish.source_runtime import source_of, source_runtime
from fairtape.deployment.publish.target import publish_target
from fairtape.deployment.status import ArbiterStatus
from fairtape.deployment.status_files import RunFolder, StatusFile
from fairtape.exchange.orders import TRADE_REPORT_KIND, BadOrder, TradeReport, decode
from fairtape.exchange.outputs import Evidence
from fairtape.net.clock import SharedClock
from fairtape.net.driver import Driver
from fairtape.nodes.source import Source
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import decode_formation
from fairtape.wire.frames import NodeId

READ_PERIOD: Final = 5 * MILLISECOND  # between two reads of a journal without notifications
PATIENT_PERIOD: Final = 0.2  # seconds between two looks for the journal of the site
UNREPORTED_MAX: Final = 1_024  # tokens; older reports could no longer be checked

Place = tuple[int, int]
"""Formation and token."""


class Arbiter:
    """A producer that publishes trade reports."""

    def __init__(self, site: NodeId, source: Source, reader: FloorReader) -> None:
        self.reports = 0
        self.accusations = 0
        self._site = site
        self._source = source
        self._reader = reader
        self._formation: Formation | None = None
        self._unreported: OrderedDict[Place, bytes] = OrderedDict()
        self._sent: set[Place] = set()
        self._read_at: Instant = 0

    def deadline(self) -> Instant | None:
        return self._read_at

    def wake(self, now: Instant) -> None:
        """Read what the site has released, and publish reports."""
        notifications = self._reader.notifications
        notifications.receive()
        for step in self._reader.steps():
            self._apply(step)
        for place, report in self._unreported.items():
            if place not in self._sent and self._source.publish([report], now):
                self._sent.add(place)
                self.reports += 1
        unsent = len(self._sent) < len(self._unreported)
        period = notifications.wait_period(self._reader.sequence, poll_period=READ_PERIOD)
        self._read_at = now + (READ_PERIOD if unsent else period)

    def _apply(self, step: FloorStep) -> None:
        entry = step.entry
        self.accusations += sum(isinstance(output, Evidence) for output in step.outputs)
        if isinstance(entry, FormationChange):
            self._formation = decode_formation(entry.layout)
            self._forget([place for place in self._unreported if place[1] >= entry.token])
            return
        self._forget([(report.formation, report.token) for report in _reports(entry, self._source.me)])
        report = self._reader.floor.report(entry.token)
        if report is not None and self._formation is not None and self._formation.holder(entry.token) == self._site:
            self._unreported[entry.formation, entry.token] = report
            if len(self._unreported) > UNREPORTED_MAX:
                self._forget([next(iter(self._unreported))])

    def _forget(self, places: list[Place]) -> None:
        for place in places:
            self._unreported.pop(place, None)
            self._sent.discard(place)


def _reports(ordered: Ordered, source: NodeId) -> Iterator[TradeReport]:
    """The reports of a source in this token."""
    for span in ordered.spans:
        if span.source != source or any(span.fragments):
            continue
        for _, payload in messages(span):
            if payload[:1] == bytes([TRADE_REPORT_KIND]):
                yield from _read(payload)


def _read(payload: bytes) -> Iterator[TradeReport]:
    try:
        message = decode(payload)
    except BadOrder:
        return
    if isinstance(message, TradeReport):
        yield message


def run_arbiter(
    deployment: Deployment, node: Node, source: NodeId, say: Callable[[str], None], *, patient: bool = False
) -> None:
    """Run the arbiter of a site until SIGINT or SIGTERM. If `patient`, wait for the journal of the site to exist."""
    journal = deployment.journal_of(node)
    with Interrupts() as interrupts:
        while patient and not interrupts.count and not journal.exists():
            time.sleep(PATIENT_PERIOD)
        if not interrupts.count:
            _run(deployment, node, source, journal, say, lambda: interrupts.count > 0)


def _run(
    deployment: Deployment,
    node: Node,
    source: NodeId,
    journal: Path,
    say: Callable[[str], None],
    ended: Callable[[], bool],
) -> None:
    clock = SharedClock()
    if not journal.exists():
        raise UserError(f"site {node.name} has no journal on this machine; start it with: fairtape up")
    config = publish_target(deployment.folder).source_config(source)
    machine = source_of(config, clock)
    with closing(FloorReader.of_journal(journal, deployment.floor.new)) as reader:
        arbiter = Arbiter(node.number, machine, reader)
        runtime = source_runtime(config, machine, producer=arbiter, producer_fd=reader.notifications.fileno())
        driver = Driver([runtime], clock)
        say(f"the arbiter of {node.name} reports as {deployment.name_of(source)}")
        name = f"{node.name}{ARBITER}"
        status_file = StatusFile(RunFolder(deployment.folder), name)

        def status(now: Instant) -> ArbiterStatus:
            return ArbiterStatus(
                name=name,
                node=source,
                written_at=now,
                reports=arbiter.reports,
                accusations=arbiter.accusations,
                token=reader.floor.token,
                trades=reader.floor.trade_count,
                tentative=sum(1 for _ in reader.floor.tentative()),
            )

        def ends() -> bool:
            status_file.keep_posted(clock.now(), status)
            return ended()

        try:
            driver.run(ends)
        finally:
            driver.close()
            status_file.close(replace(status(clock.now()), ended=True))
            say(f"{arbiter.reports:,} reports, {arbiter.accusations:,} accusations")
