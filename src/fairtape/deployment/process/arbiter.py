"""The arbiter of a site: it computes the floor from the site's journal, and reports the trades of the site's tokens.

"By making the token site the arbiter we guarantee that the arbiter has the most complete acknowledged sequence of buy
and sell orders" (TRMP 2001 §7.3). It runs beside the site, not in it: a floor that is rebuilt after a Break must not
delay a token. Reports are published by a source of the arbiter's own. What was not reported before a crash is reported
after it.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.instants import MILLISECOND, Instant
from fairtape.core.spans import messages
from fairtape.deployment.follow.floor_reader import FloorReader, FloorStep
from fairtape.exchange.orders import TRADE_REPORT_KIND, BadOrder, TradeReport, decode
from fairtape.nodes.source import Source
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import decode_formation
from fairtape.wire.frames import NodeId

READ_PERIOD: Final = 5 * MILLISECOND
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
        self._read_at = now + READ_PERIOD
        for step in self._reader.steps():
            self._apply(step)
        for place, report in self._unreported.items():
            if place not in self._sent and self._source.publish([report], now):
                self._sent.add(place)
                self.reports += 1

    def _apply(self, step: FloorStep) -> None:
        entry = step.entry
        self.accusations += sum(type(output).__name__ == "Evidence" for output in step.outputs)
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
