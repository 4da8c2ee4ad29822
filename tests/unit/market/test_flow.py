"""The generated flow has the shapes of real markets, and equal seeds give equal flow."""

from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest

from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.market.flow import (
    BURST_MAX,
    LOT,
    PEAK,
    TICK,
    BadFlow,
    Flow,
    _Generator,
    activity,
    batches,
    burst_sizes,
    by_venue,
    session_progress,
)
from fairtape.market.prices import ONE
from fairtape.market.symbols import VENUES
from fairtape.market.trades import Trades, records

OPEN_AT = 1_723_161_600 * SECOND
FLOW = Flow(rate=5_000, symbols=3_000, venues=4, starts_at=OPEN_AT, session_period=20 * SECOND)


def generated(flow: Flow, seed: int = 11) -> list[Trades]:
    return list(batches(flow, np.random.default_rng(seed)))


def joined(slices: Sequence[Trades]) -> Trades:
    return np.concatenate(slices)


def within_a_millisecond(trades: Trades) -> np.ndarray:
    """The number of trades in the millisecond after each trade."""
    times = trades["traded_at"]
    found: np.ndarray = np.searchsorted(times, times + MILLISECOND) - np.arange(len(times))
    return found


def test_equal_seeds_give_equal_flow_and_others_do_not() -> None:
    first, again, other = (joined(generated(FLOW, seed)).tobytes() for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_every_record_is_a_trade() -> None:
    trades = joined(generated(FLOW))
    assert np.array_equal(records(trades.tobytes()), trades)


def test_each_batch_is_in_order_and_keeps_to_its_slice() -> None:
    slices = generated(FLOW)
    assert len(slices) == FLOW.session_period // FLOW.slice_period
    for position, trades in enumerate(slices):
        begins_at = OPEN_AT + position * FLOW.slice_period
        times = trades["traded_at"]
        assert (np.diff(times) >= 0).all()
        assert ((begins_at <= times) & (times < begins_at + FLOW.slice_period)).all()


def test_the_rate_is_the_mean_over_the_session() -> None:
    trades = joined(generated(FLOW))
    assert len(trades) == pytest.approx(FLOW.rate * FLOW.session_period / SECOND, rel=0.03)


@pytest.mark.parametrize("session_period", [2 * SECOND, 20 * SECOND])
def test_open_and_close_are_busy_and_noon_is_quiet_however_short_the_session(session_period: int) -> None:
    flow = Flow(rate=100_000 * SECOND / session_period, starts_at=OPEN_AT, session_period=session_period)
    times = joined(generated(flow))["traded_at"]
    counts, _ = np.histogram(times, bins=20, range=(flow.starts_at, flow.ends_at))
    noon = counts[8:12].mean()
    assert counts[0] > 2.5 * noon
    assert counts[-1] > 2.5 * noon
    assert counts[0] > counts[1] > counts[2]
    assert counts[-1] > counts[-2] > counts[-3]


def test_the_session_is_complete_and_never_busier_than_its_peak() -> None:
    progress = session_progress(np.linspace(0, 1, 10_001))
    assert progress[[0, -1]].tolist() == pytest.approx([0, 1])
    assert np.diff(progress).min() > 0
    assert np.diff(progress).max() * 10_000 < PEAK


def test_a_few_symbols_make_most_of_the_trades_and_thousands_hardly_any() -> None:
    _, counts = np.unique(joined(generated(FLOW))["symbol"], return_counts=True)
    counts[::-1].sort()
    total = counts.sum()
    assert counts[:30].sum() > 0.2 * total  # 1 %
    assert counts[:300].sum() > 0.6 * total  # 10 %
    assert counts[1_500:].sum() < 0.15 * total
    assert len(counts) > 2_000


def test_activity_falls_with_rank_and_adds_up() -> None:
    shares = activity(6_000)
    assert shares.sum() == pytest.approx(1)
    assert (np.diff(shares) < 0).all()
    assert 0.25 < shares[:60].sum() < 0.40
    assert 0.68 < shares[:600].sum() < 0.78


def test_bursts_put_tens_of_trades_of_one_symbol_into_one_millisecond() -> None:
    trades = joined(generated(FLOW))
    most = 0
    for symbol in np.unique(trades["symbol"])[:500]:
        most = max(most, int(within_a_millisecond(trades[trades["symbol"] == symbol]).max()))
    assert most >= 20


def test_without_burstiness_trades_come_alone() -> None:
    calm = Flow(rate=500, starts_at=OPEN_AT, session_period=20 * SECOND, burstiness=0)
    wild = Flow(rate=500, starts_at=OPEN_AT, session_period=20 * SECOND, burstiness=0.9)
    assert within_a_millisecond(joined(generated(calm))).max() <= 12
    assert within_a_millisecond(joined(generated(wild))).max() >= 40


@pytest.mark.parametrize("burstiness", [0.0, 0.3, 0.7, 0.9])
def test_the_mean_burst_is_what_a_branching_process_gives(burstiness: float) -> None:
    """Each trade triggers n others on average, so a burst has 1 / (1 - n)."""
    shares = burst_sizes(burstiness)
    assert len(shares) <= BURST_MAX
    assert shares.sum() == pytest.approx(1)
    assert shares @ np.arange(1, len(shares) + 1) == pytest.approx(1 / (1 - burstiness), rel=0.01)


def test_several_venues_print_one_symbol_within_one_millisecond() -> None:
    trades = joined(generated(FLOW))
    order = np.lexsort((trades["traded_at"], trades["symbol"]))
    before, after = trades[order][:-1], trades[order][1:]
    together = (before["symbol"] == after["symbol"]) & (after["traded_at"] - before["traded_at"] < MILLISECOND)
    elsewhere = together & (before["venue"] != after["venue"])
    assert elsewhere.sum() > 0.1 * len(trades)


def test_every_venue_prints_and_numbers_its_own_trades_from_one() -> None:
    parts = by_venue(joined(generated(FLOW)))
    assert list(parts) == [venue.number for venue in VENUES[: FLOW.venues]]
    for number, trades in parts.items():
        assert set(trades["venue"].tolist()) == {VENUES[number - 1].name.encode()}
        assert trades["trade_id"].tolist() == list(range(1, len(trades) + 1))
        assert (np.diff(trades["traded_at"]) >= 0).all()


def test_the_split_by_venue_loses_nothing() -> None:
    trades = generated(FLOW)[0]
    parts = by_venue(trades)
    assert sum(map(len, parts.values())) == len(trades)
    assert by_venue(trades[:0]) == {}


def test_prices_walk_in_ticks_and_stay_positive() -> None:
    trades = joined(generated(FLOW))
    assert (trades["price"] % TICK == 0).all()
    assert trades["price"].min() >= TICK
    symbols, counts = np.unique(trades["symbol"], return_counts=True)
    busiest = trades[trades["symbol"] == symbols[counts.argmax()]]
    steps = np.abs(np.diff(busiest["price"])) // TICK
    assert steps.max() <= 2  # one tick of movement, one between buyers and sellers
    assert len(np.unique(busiest["price"])) > 5


def test_a_price_does_not_jump_between_slices() -> None:
    coarse = Flow(rate=20_000, symbols=1, session_period=2 * SECOND, slice_period=1 * SECOND)
    fine = Flow(rate=20_000, symbols=1, session_period=2 * SECOND, slice_period=10 * MILLISECOND)
    for flow in (coarse, fine):
        assert np.abs(np.diff(joined(generated(flow))["price"])).max() <= 2 * TICK


def test_a_price_is_never_below_one_tick() -> None:
    flow = Flow(rate=20_000, symbols=1, session_period=1 * SECOND)
    floor = _Generator(flow, np.random.default_rng(11))
    floor._walks[:] = 3
    prices = floor.advance(0, flow.ends_at)["price"]
    assert prices.min() == TICK
    assert np.abs(np.diff(prices)).max() <= 2 * TICK


def test_sizes_are_odd_lots_and_round_lots_with_a_long_tail() -> None:
    quantities = joined(generated(FLOW))["quantity"]
    assert (quantities % ONE == 0).all()
    shares = quantities // ONE
    assert shares.min() >= 1
    assert 0.4 < (shares < LOT).mean() < 0.6
    assert ((shares < LOT) | (shares % LOT == 0)).all()
    assert shares.max() > 50 * np.median(shares)


def test_a_quiet_flow_has_empty_batches_in_between() -> None:
    quiet = Flow(rate=0.1, session_period=20 * SECOND)
    slices = generated(quiet)
    assert len(slices) == 200
    assert min(map(len, slices)) == 0


def test_a_whole_day_begins_at_once_and_holds_one_slice() -> None:
    day = Flow(rate=1_000_000, slice_period=10 * MILLISECOND)
    first, second = islice(batches(day, np.random.default_rng(3)), 2)
    assert 0 < len(first) < PEAK * 10_000 * 1.2
    assert first["traded_at"][-1] < second["traded_at"][0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rate", 0),
        ("rate", -1),
        ("rate", float("nan")),
        ("rate", 1e12),
        ("symbols", 0),
        ("symbols", 1 << 17),
        ("venues", 0),
        ("venues", len(VENUES) + 1),
        ("session_period", 0),
        ("slice_period", 0),
        ("slice_period", 86_401 * SECOND),
        ("burstiness", -0.1),
        ("burstiness", 1.0),
        ("burstiness", float("nan")),
        ("starts_at", -1),
        ("starts_at", 1 << 63),
    ],
)
def test_a_flow_with_a_bad_field_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(BadFlow, match=f"^{field} is "):
        Flow(**{"rate": 1_000, field: value})  # type: ignore[arg-type]  # that is what is tried


def test_a_slice_too_large_for_memory_is_refused() -> None:
    with pytest.raises(BadFlow, match=r"^slice_period is .* shorten it"):
        Flow(rate=10_000_000, slice_period=1 * SECOND)
