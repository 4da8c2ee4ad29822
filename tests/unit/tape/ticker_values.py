"""Orders of trades and notices, for tests of the ticker."""

from collections.abc import Sequence
from typing import NamedTuple

from fairtape.core.effects import Deliver, Ordered, Release, Span
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.market.notices import VenueNotice, encode_notice
from fairtape.market.prices import ONE
from fairtape.market.trades import PublishedTrade, encode
from fairtape.wire.blocks import pack_messages

NOON = 1_767_225_600 * SECOND
NYSE, LONDON = 101, 102
VENUE_OF = {NYSE: "XNYS", LONDON: "XLON"}


class SourceMessage(NamedTuple):
    """A message of a source."""

    source: int
    payload: bytes


def sold(
    symbol: str = "ACME", price: int = 10, quantity: int = 100, *, source: int = NYSE, at: int = NOON
) -> SourceMessage:
    return SourceMessage(source, encode(a_trade(symbol, price, quantity, source=source, at=at)))


def a_trade(
    symbol: str = "ACME", price: int = 10, quantity: int = 100, *, source: int = NYSE, at: int = NOON
) -> PublishedTrade:
    return PublishedTrade(1 if source == NYSE else 2, symbol, price * ONE, quantity * ONE, at)


def notice_of(notice: VenueNotice, *, source: int = NYSE) -> SourceMessage:
    return SourceMessage(source, encode_notice(notice))


def token(first: int, messages: Sequence[SourceMessage], *, at: int | None = None) -> Deliver:
    """Msg(e) with these messages, each in a block of its own."""
    acknowledged_at = NOON + first * MILLISECOND if at is None else at
    spans = tuple(
        Span(message.source, 1, number, 1, number, (pack_messages([message.payload]),), (1,))
        for number, message in enumerate(messages, first)
    )
    ordered = Ordered(0, 1, first, first, len(messages), acknowledged_at, spans)
    release = Release(first, first, len(messages), acknowledged_at, acknowledged_at, late=False, clock_bound=0)
    return Deliver(ordered, release)
