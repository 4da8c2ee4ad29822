"""A naive twin of `fairtape.tape.sales`, and random orders of trades, cancels and corrections to compare it with.

The twin keeps every trade for ever and adds up again whenever it is asked.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from fairtape.core.effects import Deliver
from fairtape.market.notices import CancelNotice, CorrectionNotice, Status, StatusNotice
from fairtape.market.prices import ONE
from fairtape.tape.sales import OPEN_MAX, SYMBOLS_MAX, Sale
from unit.tape.ticker_values import LONDON, NOON, NYSE, VENUE_OF, SourceMessage, a_trade, notice_of, sold, token

SYMBOLS = ("A", "B", "C")


class Action(NamedTuple):
    """One message of an order."""

    kind: str
    target: int  # the number of the trade that a revision names
    symbol: str
    price: int
    quantity: int
    source: int


ACTIONS = st.builds(
    Action,
    st.sampled_from(["sell", "sell", "sell", "cancel", "correct", "status", "other"]),
    st.integers(1, 40),
    st.sampled_from(SYMBOLS),
    st.integers(1, 9),
    st.integers(0, 9),
    st.sampled_from([NYSE, LONDON]),
)


def message(action: Action) -> SourceMessage:
    kind, target, symbol, price, quantity, source = action
    match kind:
        case "sell":
            return sold(symbol, price, quantity, source=source)
        case "cancel":
            return notice_of(CancelNotice(target, VENUE_OF[source], symbol, NOON), source=source)
        case "correct":
            return notice_of(
                CorrectionNotice(target, a_trade(symbol, price, quantity, source=source), NOON), source=source
            )
        case "status":
            return notice_of(StatusNotice(VENUE_OF[source], Status.HALTED, NOON), source=source)
    return SourceMessage(source, b"no trade")


def tokens(actions: Sequence[Action], sizes: Sequence[int], *, at: int | None = None) -> list[Deliver]:
    """The messages of these actions in tokens of these sizes."""
    messages = [message(action) for action in actions]
    found: list[Deliver] = []
    start = 0
    while start < len(messages):
        size = sizes[len(found) % len(sizes)]
        found.append(token(start + 1, messages[start : start + size], at=at))
        start += size
    return found


class SalesTwin:
    def __init__(self, actions: Iterable[Action], *, open_max: int = OPEN_MAX, symbols_max: int = SYMBOLS_MAX) -> None:
        self.unlisted = 0
        self._open_max = open_max
        self._symbols_max = symbols_max
        self._sales: dict[int, Sale] = {}  # by number: all that ever were
        self._void: set[int] = set()
        self._settled: set[int] = set()
        self._symbols: set[str] = set()
        for number, action in enumerate(actions, 1):
            self._apply(number, action)

    @property
    def symbols(self) -> list[str]:
        return sorted(self._symbols)

    @property
    def standing(self) -> list[Sale]:
        """The sales that were not canceled, as they were corrected."""
        return [sale for number, sale in self._sales.items() if number not in self._void]

    def last_of(self, symbol: str) -> Sale | None:
        return max((sale for sale in self.standing if sale.symbol == symbol), key=lambda sale: sale.place, default=None)

    def volume_of(self, symbol: str) -> tuple[int, int]:
        quantities = [sale.quantity for sale in self.standing if sale.symbol == symbol]
        return sum(quantities), len(quantities)

    def volume_at(self, venue: str) -> tuple[int, int]:
        quantities = [sale.quantity for sale in self.standing if sale.venue == venue]
        return sum(quantities), len(quantities)

    def _apply(self, number: int, action: Action) -> None:
        kind, target, symbol, price, quantity, source = action
        price, quantity = price * ONE, quantity * ONE
        if kind == "sell":
            if symbol not in self._symbols and len(self._symbols) == self._symbols_max:
                self.unlisted += 1
                return
            self._symbols.add(symbol)
            self._sales[number] = Sale(number, number, source, VENUE_OF[source], symbol, price, quantity, NOON)
        elif kind in ("cancel", "correct"):
            wrong = self._sales.get(target)
            if wrong is None or target not in self._open() or (wrong.source, wrong.symbol) != (source, symbol):
                return
            self._void.add(target)
            if kind == "correct":
                self._sales[number] = wrong._replace(number=number, price=price, quantity=quantity)
        still_open = sorted(self._open())
        self._settled |= set(still_open[: max(len(still_open) - self._open_max, 0)])

    def _open(self) -> set[int]:
        return set(self._sales) - self._void - self._settled
