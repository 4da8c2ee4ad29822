"""The arbiter of a site: it computes the floor from the site's journal and reports what the site's tokens traded.

"By making the token site the arbiter we guarantee that the arbiter has the most complete acknowledged sequence of buy
and sell orders" (TRMP 2001 §7.3). It runs beside the site, not in it: a floor that is rebuilt after a Break must not
keep a token waiting. Reports go into the order like everything else, through a source of the arbiter's own, and what
was not reported before a crash is reported after it.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from fairtape.core.effects import FormationChange, Ordered
from fairtape.core.instants import MILLISECOND, Instant
from fairtape.core.spans import messages
from fairtape.deployment.follow.floor_reader import FloorReader, FloorStep
from fairtape.exchange.order_codec import TRADE_REPORT_KIND, decode
from fairtape.exchange.orders import BadOrder, TradeReport
from fairtape.nodes.source import Source
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import decode_formation
from fairtape.wire.frames import NodeId

LOOK_PERIOD: Final = 5 * MILLISECOND
UNREPORTED_MAX: Final = 1_024  # tokens; older reports could not be checked any more

Place = tuple[int, int]
"""Formation and token."""


class Arbiter:
    """A producer that reports."""

    def __init__(self, site: NodeId, source: Source, reader: FloorReader) -> None:
        self.reports = 0
        self.accusations = 0
        self._site = site
        self._source = source
        self._reader = reader
        self._formation: Formation | None = None
        self._unreported: OrderedDict[Place, bytes] = OrderedDict()
        self._sent: set[Place] = set()
        self._look_at: Instant = 0

    def deadline(self) -> Instant | None:
        """The next look at the journal."""
        return self._look_at

    def wake(self, now: Instant) -> None:
        """Read what the site has released, and report."""
        self._look_at = now + LOOK_PERIOD
        for step in self._reader.steps():
            self._take(step)
        for place, report in self._unreported.items():
            if place not in self._sent and self._source.publish([report], now):
                self._sent.add(place)
                self.reports += 1

    def _take(self, step: FloorStep) -> None:
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
    """What a source has reported in this token."""
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
