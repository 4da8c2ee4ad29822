"""A generator of realistic market flow: the trades that many venues print over one session.

The load on a merging multicast depends on the shape of the flow, not on its mean rate. The flow has the shapes of real
markets:

- a few symbols trade all the time and thousands hardly ever (Zipf–Mandelbrot, fitted to the daily volumes of some 6,000
  symbols of the United States);
- the open and the close are several times busier than noon, also in a shortened session;
- trades come in bursts. One trade triggers others, as in a Hawkes process: the size of a burst has the Borel
  distribution, whose tail reaches tens of trades within a millisecond, and `burstiness` is its branching ratio, the
  share of all trades that another trade triggered;
- a burst is one sweep: one symbol, one direction, several venues, within microseconds of one another;
- prices walk in ticks, buyers pay one tick more than sellers get, and sizes are odd lots and round lots with a long
  tail.

The random generator is passed in, and equal seeds give equal flow. Memory is bounded by one slice of time. Floats
decide only when and where something happens; prices and quantities are integers throughout.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp, lgamma, log
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from fairtape.core.instants import MICROSECOND, MILLISECOND, SECOND, Duration, Instant
from fairtape.market.prices import FIXED_MAX, ONE
from fairtape.market.symbols import UNIVERSE_MAX, VENUE_NAMES, VENUE_NUMBERS, VENUES, universe
from fairtape.market.trades import TradeFlag, Trades, blank_trades

RATE_MAX: Final = 100_000_000  # trades per second
SESSION_MAX: Final = 24 * 3_600 * SECOND
SLICE_TRADES_MAX: Final = 4_000_000  # expected trades of the busiest slice: 256 MB of records
BURSTINESS_MAX: Final = 0.95
BURST_MAX: Final = 1_000  # trades in one burst; the Borel distribution is truncated there

TICK: Final = ONE // 100  # one cent
LOT: Final = 100  # shares

_BURST_GAP: Final = 20 * MICROSECOND  # mean time between two trades of one burst
_SWEEP: Final = 0.5  # the share of a burst's trades that any venue may print; the rest stay at the first venue
_HOME: Final = 0.4  # the share of a symbol's bursts that begin at its home venue
_MOVE: Final = 0.3  # the share of trades that move the price by a tick
_ODD_LOT: Final = 0.5  # the share of trades below one round lot

# Activity of rank r is (r + _FLATNESS) ** -_STEEPNESS: of 6,000 symbols, 1 % make a third of the trades and 10 % three
# quarters, which is between the concentrations of shares and of dollars.
_STEEPNESS: Final = 1.2
_FLATNESS: Final = 20

# Intensity over the session: a floor and an exponential at either end, as (height above the floor, width).
_OPEN: Final = (5.0, 0.04)
_CLOSE: Final = (4.0, 0.05)
_GRID: Final = 4_096  # points of the tabulated cumulative intensity
PEAK: Final = 4.5  # the highest intensity, as a multiple of the mean

_VENUE_NAMES: Final = np.array([venue.name for venue in VENUES], "S")

# A trade without price and size: the symbol by its rank, the venue by its position in VENUES.
_PRINT: Final = np.dtype([("traded_at", "i8"), ("symbol", "u2"), ("venue", "u1"), ("bought", "?")])

Numbers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
_Prints: TypeAlias = npt.NDArray[np.void]


class BadFlow(ValueError):
    """A flow that cannot be generated; the message names the field, the value and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The parameters of a flow."""

    rate: float  # trades per second, the mean over the session
    symbols: int = 5_000
    venues: int = 3  # the first ones of VENUES
    starts_at: Instant = 0  # the open
    session_period: Duration = 23_400 * SECOND  # six hours and a half; a shorter one keeps its shape
    slice_period: Duration = 100 * MILLISECOND  # of one batch
    burstiness: float = 0.7  # the share of trades triggered by another trade; 0 gives independent trades

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("symbols", self.symbols, 1, UNIVERSE_MAX),
            ("venues", self.venues, 1, len(VENUES)),
            ("session_period", self.session_period, 1, SESSION_MAX),
            ("slice_period", self.slice_period, 1, self.session_period),
            ("burstiness", self.burstiness, 0, BURSTINESS_MAX),
            ("starts_at", self.starts_at, 0, FIXED_MAX - SESSION_MAX),
        ):
            if not least <= value <= most:
                raise BadFlow(f"{name} is {value}; it must be from {least} to {most}")
        if not 0 < self.rate <= RATE_MAX:
            raise BadFlow(f"rate is {self.rate} trades per second; it must be above 0 and at most {RATE_MAX}")
        busiest = PEAK * self.rate * self.slice_period / SECOND
        if busiest > SLICE_TRADES_MAX:
            raise BadFlow(
                f"slice_period is {self.slice_period} ns, in which {busiest:.0f} trades are expected at this rate; "
                f"shorten it until they are at most {SLICE_TRADES_MAX}"
            )

    @property
    def ends_at(self) -> Instant:
        """The close: every trade is earlier."""
        return self.starts_at + self.session_period


def batches(flow: Flow, chance: np.random.Generator) -> Iterator[Trades]:
    """The flow as one batch per slice of time, each in order of time.

    Batch k holds the trades of [starts_at + k * slice_period, starts_at + (k + 1) * slice_period), even when there are
    none, so that a caller can keep pace by counting batches.
    """
    generator = _Generator(flow, chance)
    for begins_at in range(flow.starts_at, flow.ends_at, flow.slice_period):
        yield generator.advance(begins_at, min(begins_at + flow.slice_period, flow.ends_at))


def by_venue(trades: Trades) -> Mapping[int, Trades]:
    """The trades of each venue that printed any, by its number, in order: what its source has to send."""
    numbers = sorted(VENUE_NUMBERS[name.decode("ascii")] for name in set(trades["venue"].tolist()))
    return {number: trades[trades["venue"] == VENUE_NAMES[number].encode("ascii")] for number in numbers}


def activity(symbols: int) -> Floats:
    """The share of each symbol in all bursts, the busiest first. The shares add up to 1."""
    weights = (np.arange(1, symbols + 1) + _FLATNESS) ** -_STEEPNESS
    shares: Floats = weights / weights.sum()
    return shares


def burst_sizes(burstiness: float) -> Floats:
    """The Borel distribution: the probability of a burst of 1, 2, 3 … trades, where each triggers a Poisson number."""
    if burstiness == 0:
        return np.ones(1)
    sizes = range(1, BURST_MAX + 1)
    weights = np.array([exp((k - 1) * log(burstiness * k) - burstiness * k - lgamma(k + 1)) for k in sizes])
    shares: Floats = weights / weights.sum()
    return shares


def session_progress(elapsed: Floats) -> Floats:
    """The expected share of a session's trades after this share of its time."""
    (open_height, open_width), (close_height, close_width) = _OPEN, _CLOSE
    opening = open_height * open_width * (1 - np.exp(-elapsed / open_width))
    closing = close_height * close_width * (np.exp((elapsed - 1) / close_width) - exp(-1 / close_width))
    whole = 1 + open_height * open_width * (1 - exp(-1 / open_width))
    whole += close_height * close_width * (1 - exp(-1 / close_width))
    progress: Floats = (elapsed + opening + closing) / whole
    return progress


class _Generator:
    """The state of all venues: prices, the next trade numbers, and bursts that are still running."""

    def __init__(self, flow: Flow, chance: np.random.Generator) -> None:
        self._flow = flow
        self._chance = chance
        self._names = np.array(universe(flow.symbols), "S")
        self._symbol_shares = _cumulative(activity(flow.symbols))
        self._homes = chance.integers(flow.venues, size=flow.symbols, dtype=np.uint8)
        sizes = burst_sizes(flow.burstiness)
        self._size_shares = _cumulative(sizes)
        self._bursts = flow.rate * flow.session_period / SECOND / float(sizes @ np.arange(1, len(sizes) + 1))
        self._elapsed = np.linspace(0, 1, _GRID + 1)
        self._progress = session_progress(self._elapsed)
        # Prices of shares: a median of 40, and few above 500.
        self._walks = (4_000 * np.exp(chance.normal(0, 0.9, flow.symbols))).astype(np.int64)
        self._next_ids = [1] * flow.venues
        self._running: _Prints = np.empty(0, _PRINT)

    def advance(self, begins_at: Instant, ends_at: Instant) -> Trades:
        """The trades of one slice. Later trades of its bursts are in the slices that follow."""
        fresh = self._burst_trades(self._burst_starts(begins_at, ends_at))
        prints = np.concatenate([self._running, fresh])
        prints = prints[np.argsort(prints["traded_at"], kind="stable")]
        due = int(np.searchsorted(prints["traded_at"], ends_at))
        self._running = prints[due:].copy()
        return self._with_prices(prints[:due])

    def _burst_starts(self, begins_at: Instant, ends_at: Instant) -> Numbers:
        """The start times of bursts within the slice: a Poisson process with the intensity of the session."""
        opens_at, period = self._flow.starts_at, self._flow.session_period
        bounds = [(begins_at - opens_at) / period, (ends_at - opens_at) / period]
        first, last = np.interp(bounds, self._elapsed, self._progress)
        count = self._chance.poisson(self._bursts * (last - first))
        elapsed = np.interp(self._chance.uniform(first, last, count), self._progress, self._elapsed)
        return np.clip(opens_at + (elapsed * period).astype(np.int64), begins_at, ends_at - 1)

    def _burst_trades(self, begins_at: Numbers) -> _Prints:
        """Every trade of the bursts that begin at these instants."""
        chance, count = self._chance, len(begins_at)
        sizes = np.searchsorted(self._size_shares, chance.random(count), side="right") + 1
        symbols = np.searchsorted(self._symbol_shares, chance.random(count), side="right").astype(np.uint16)
        elsewhere = chance.integers(self._flow.venues, size=count, dtype=np.uint8)
        venues = np.where(chance.random(count) < _HOME, self._homes[symbols], elsewhere)
        bought = chance.random(count) < 0.5
        burst = np.repeat(np.arange(count), sizes)
        prints: _Prints = np.empty(len(burst), _PRINT)
        prints["traded_at"] = begins_at[burst] + self._delays(sizes, burst)
        prints["symbol"] = symbols[burst]
        prints["venue"] = self._sweep(venues[burst])
        prints["bought"] = bought[burst]
        return prints

    def _delays(self, sizes: Numbers, burst: npt.NDArray[np.intp]) -> Numbers:
        """The delay of each trade after the start of its burst: 0 for the first, one more gap for each that follows."""
        gaps = self._chance.exponential(_BURST_GAP, len(burst)).astype(np.int64)
        printed = np.cumsum(gaps)
        firsts = np.cumsum(sizes) - sizes
        delays: Numbers = printed - printed[firsts][burst]
        return delays

    def _sweep(self, venues: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The same venues, except that a share of the trades is at random venues."""
        anywhere = self._chance.integers(self._flow.venues, size=len(venues), dtype=np.uint8)
        return np.where(self._chance.random(len(venues)) < _SWEEP, anywhere, venues)

    def _with_prices(self, prints: _Prints) -> Trades:
        trades = blank_trades(len(prints))
        trades["traded_at"] = prints["traded_at"]
        trades["symbol"] = self._names[prints["symbol"]]
        trades["venue"] = _VENUE_NAMES[prints["venue"]]
        trades["flags"] = np.where(prints["bought"], TradeFlag.BOUGHT, TradeFlag.SOLD)
        trades["price"] = (self._prices(prints) + prints["bought"]) * TICK
        trades["quantity"] = self._shares(len(trades)) * ONE
        for venue in range(self._flow.venues):
            own = np.flatnonzero(prints["venue"] == venue)
            trades["trade_id"][own] = np.arange(len(own)) + self._next_ids[venue]
            self._next_ids[venue] += len(own)
        return trades

    def _prices(self, prints: _Prints) -> Numbers:
        """The best bid at each trade, in ticks: a random walk per symbol, moved up by buyers and down by sellers.

        The absolute value of the walk is used, which is the same as reflection at one tick.
        """
        moves = (self._chance.random(len(prints)) < _MOVE) * np.where(prints["bought"], 1, -1)
        order = np.argsort(prints["symbol"], kind="stable")
        totals = np.cumsum(moves[order])
        symbols, firsts, counts = np.unique(prints["symbol"][order], return_index=True, return_counts=True)
        lasts = firsts + counts - 1
        before = np.concatenate([[0], totals[lasts[:-1]]]) if len(symbols) else totals
        walks = np.empty_like(totals)
        walks[order] = totals + np.repeat(self._walks[symbols] - before, counts)
        self._walks[symbols] += totals[lasts] - before
        return np.abs(walks) + 1

    def _shares(self, count: int) -> Numbers:
        """Sizes: odd lots, and round lots with a Pareto tail up to a thousand lots."""
        odd = self._chance.integers(1, LOT, size=count)
        lots = np.minimum(1 / (1 - self._chance.random(count)) ** (2 / 3), 1_000).astype(np.int64)
        return np.where(self._chance.random(count) < _ODD_LOT, odd, lots * LOT)


def _cumulative(shares: Floats) -> Floats:
    """The running total of shares, ending in exactly 1, so that every draw below 1 is covered."""
    totals: Floats = np.cumsum(shares)
    totals[-1] = 1.0
    return totals
