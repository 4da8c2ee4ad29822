"""All figures of `fairtape bench floor`: the keys that programs read, and what is wrong with them."""

from fairtape.bench.trading import measure_settling, measure_trading


def test_settled_trades_are_counted_and_proved() -> None:
    results = measure_settling(trades=1_000)
    assert results["settled_trades"] == 1_000
    assert results["settled_sound"] is True


def test_the_figures_have_the_keys_that_are_promised() -> None:
    results = measure_trading(orders=1_500, rounds=1, trades=500)
    keys = {"orders_per_s", "peer", "fix_ratio", "settled_trades_per_s", "problems", "shortfalls"}
    assert keys <= results.keys()
    assert results["problems"] == []
