"""The engine benchmark: one flow for all engines, and results that name the peer."""

from fairtape.bench.floor import NONE, PEERS, flow, measure_engines, run_engine, run_floor

FEW = 1_500


def test_equal_seeds_give_equal_flows_of_all_kinds() -> None:
    events = flow(FEW, seed=3)
    assert events == flow(FEW, seed=3)
    assert events != flow(FEW, seed=4)
    cancels = [event for event in events if event.cancels != NONE]
    assert 0.3 < len(cancels) / FEW < 0.6
    assert all(event.cancels < number for number, event in enumerate(events))


def test_the_floor_makes_the_trades_of_its_engine_except_self_trades() -> None:
    events = flow(FEW)
    _, alone = run_engine(events)
    _, whole = run_floor(events)
    assert 0.9 * alone < whole <= 1.1 * alone


def test_results_name_the_measured_peer() -> None:
    results = measure_engines(orders=FEW, rounds=1)
    rate, floor_rate = results["orders_per_s"], results["floor_orders_per_s"]
    assert isinstance(rate, int)
    assert isinstance(floor_rate, int)
    assert min(rate, floor_rate) > 0
    if results["peer"] in PEERS:
        assert results["peer_same_trades"] is True
        assert {"peer_orders_per_s", "ratio"} <= results.keys()
