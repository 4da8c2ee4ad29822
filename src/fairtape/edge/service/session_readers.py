"""Decoders of edge messages, one per session, because each session has its own directory."""

from collections.abc import Callable
from typing import Final

from fairtape.edge.protocol.itch_encoder import ItchEncoder
from fairtape.edge.protocol.sessions import Session
from fairtape.formats.itch.ticker_messages import TickerReader
from fairtape.market.stripes import StripePlan

READERS_MAX: Final = 4_096  # sessions; beyond it the oldest is dropped


class SessionReaders:
    """The readers of all received sessions."""

    def __init__(self, plans: Callable[[int], StripePlan | None]) -> None:
        """`plans` finds a plan by its version."""
        self._plans = plans
        self._readers: dict[str, TickerReader] = {}
        self._encoders: dict[tuple[int, int], ItchEncoder] = {}

    def of(self, session: str) -> TickerReader:
        """The reader of a session. It has the directory from the plan, because late joiners did not receive it."""
        reader = self._readers.get(session)
        if reader is None:
            name = Session.parse(session)
            plan = self._plans(name.version) if name else None
            if len(self._readers) >= READERS_MAX:
                del self._readers[next(iter(self._readers))]
            reader = self._readers[session] = TickerReader(midnight_at=plan.midnight_at if plan else 0)
            if plan is not None and name is not None:
                self._seed(reader, plan, name.stripe)
        return reader

    def _seed(self, reader: TickerReader, plan: StripePlan, number: int) -> None:
        stripe = plan.stripes.get(number)
        if stripe is None:
            return
        encoder = self._encoders.setdefault((plan.version, stripe.core), ItchEncoder(plan, stripe.core))
        for message in encoder.openings(0)[plan.of_core(stripe.core).index(stripe)]:
            reader.read(message)
