"""Plans, trades and tokens for tests of the edge."""

from collections.abc import Iterable, Sequence

from fairtape.core.effects import Deliver, FormationChange, Ordered, Release, Span
from fairtape.core.instants import MILLISECOND
from fairtape.edge.protocol.sessions import Edition
from fairtape.market.prices import ONE
from fairtape.market.stripes import DAY, StripePlan, plan_by_rate
from fairtape.market.trades import PublishedTrade, encode
from fairtape.wire.blocks import pack_messages

MIDNIGHT = 20_000 * DAY
NOON = MIDNIGHT + DAY // 2
SYMBOLS = ("AAPL", "MSFT", "IBM", "GE", "F", "T")


def plan(version: int = 1, *, stripes: int = 2, cap: int = 10**9, symbols: Sequence[str] = SYMBOLS) -> StripePlan:
    rates = {symbol: 100 + version * place % 7 for place, symbol in enumerate(symbols)}
    return plan_by_rate(rates, stripes, cap, version=version, midnight_at=MIDNIGHT, venues=("XNYS", "XLON")).plan


def edition(version: int = 1, *, stripes: int = 2, cap: int = 10**9) -> Edition:
    return Edition("FT", plan(version, stripes=stripes, cap=cap), 0)


def trade(number: int, symbol: str | None = None, *, quantity: int = 100 * ONE) -> PublishedTrade:
    return PublishedTrade(
        number % 2 + 1,
        symbol or SYMBOLS[number % len(SYMBOLS)],
        number * 10**7,
        quantity,
        NOON + number,
        number,
        number % 4,
    )


def token(sequence: int, payloads: Sequence[bytes], *, number: int | None = None, block: int = 5) -> Ordered:
    """Msg(e) of one source, in blocks of a few messages."""
    bodies = tuple(pack_messages(payloads[at : at + block]) for at in range(0, len(payloads), block))
    counts = tuple(len(payloads[at : at + block]) for at in range(0, len(payloads), block))
    span = Span(101, 1, sequence, len(payloads), sequence, bodies, counts)
    e = sequence if number is None else number
    return Ordered(0, 1, e, sequence, len(payloads), NOON + sequence * MILLISECOND, (span,))


def tokens(count: int, size: int, *, first: int = 1) -> list[Ordered]:
    """Consecutive tokens of trades."""
    return [
        token(at, [encode(trade(n)) for n in range(at, at + size)]) for at in range(first, first + count * size, size)
    ]


def delivery(ordered: Ordered) -> Deliver:
    release = Release(
        ordered.token, ordered.sequence, ordered.count, ordered.acknowledged_at, NOON, late=False, clock_bound=0
    )
    return Deliver(ordered, release)


def formation_change(sequence: int, formation: int, *, broken: bool = False) -> FormationChange:
    return FormationChange(0, formation, sequence, sequence, broken, b"layout", NOON + sequence)


def sequences(orders: Iterable[Ordered]) -> list[int]:
    return [number for each in orders for number in range(each.sequence, each.sequence + each.count)]
