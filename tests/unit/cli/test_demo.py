"""The report of the demonstration: delays, wording that matches the numbers, and commands for the journals."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairtape.cli.demo import report
from fairtape.core.effects import Ordered, Span
from fairtape.core.instants import MILLISECOND, SECOND
from fairtape.demo.findings import STEP, CustomerVerdict, Delays, Findings
from fairtape.demo.world import SITES, TIMING, DemoWorld
from fairtape.market.trades import TRADE_SIZE, blank_trades
from fairtape.wire.blocks import pack_records

NOW = 1_767_225_600 * SECOND


def a_token(*traded_at: int) -> Ordered:
    trades = blank_trades(len(traded_at))
    trades["symbol"] = b"ACME"
    trades["traded_at"] = traded_at
    body = pack_records(trades.tobytes(), TRADE_SIZE)
    span = Span(101, 1, 1, len(traded_at), 1, (body,), (len(traded_at),))
    return Ordered(0, 1, 1, 1, len(traded_at), NOW, (span,))


FINDINGS = Findings(
    world=DemoWorld(seconds=1.0, loss=0.01, rate=400.0, seed=1),
    transport="mesh",
    folder=Path("/some where"),
    published=1,
    delivered=dict.fromkeys((city.name for city in SITES.values()), 1),
    one_order=True,
    problem=None,
    releases=9,
    late=0,
    spread_p50=1,
    spread_p99=1,
    delay_p50=1_400 * MILLISECOND,
    delay_p99=1_500 * MILLISECOND,
    delay_max=1_600 * MILLISECOND,
    clock_bound=1,
    real_time=False,
    requests=1,
    repairs=2,
    lost=1,
    late_reforming=0,
    killed=None,
    killed_at=0,
    formations=1,
    reformed_delay=None,
    customers=CustomerVerdict(200, 200, 0),
    customer_requests=1,
    customer_lost=2,
    without_second_feed=0,
    restored_delay=None,
    journals={"New York": Path("/some where/journals/new-york")},
    failures=(),
    finished=True,
    interrupted=False,
)
KILLED = replace(
    FINDINGS,
    published=10,
    delivered=dict.fromkeys((city.name for city in SITES.values()), 10) | {"Tokyo": 4},
    killed="Tokyo",
    killed_at=10 * SECOND,
    reformed_delay=3_800 * MILLISECOND,
    restored_delay=4_100 * MILLISECOND,
    releases=84,
    late=21,
    late_reforming=7,
)


def text(findings: Findings = FINDINGS, *, temporary: bool = True) -> str:
    return " ".join(report(findings, temporary=temporary).split())


def test_the_guarantee_counts_from_reception_at_the_token_site() -> None:
    assert FINDINGS.guaranteed_delay == TIMING.token_period + TIMING.commit_delay
    assert "1,850 ms from reception at the token site to release" in text()
    assert FINDINGS.as_json()["guaranteed_delay_ms"] == 1_850.0


def test_the_measured_delay_is_reported_from_the_trade_to_the_release() -> None:
    assert "p50 1,400 ms, p99 1,500 ms, max 1,600 ms from the trade on its floor to its release" in text()
    assert FINDINGS.as_json()["measured_delay_ms"] == {"p50": 1_400.0, "p99": 1_500.0, "max": 1_600.0}


def test_where_nothing_was_released_nothing_was_measured() -> None:
    findings = replace(FINDINGS, delay_p50=None, delay_p99=None, delay_max=None)
    assert "nothing was released" in text(findings)
    assert findings.as_json()["measured_delay_ms"] == {"p50": None, "p99": None, "max": None}


def test_a_killed_receiver_counts_up_to_its_last_release() -> None:
    assert KILLED.complete
    assert KILLED.delivered_min == 10
    output = text(KILLED)
    assert "delivered 10 messages at every site but Tokyo" in output
    assert "yes: 8 identical to the end, and Tokyo identical for the 4 messages it released" in output
    assert "Tokyo, 10.0 s after the opening; the ring continued without it 3.8 s later" in output
    assert "its customers received two feeds again after 4.1 s" in output
    assert "25.000% of all releases; 33% of them waited for a reformation" in output
    fields = KILLED.as_json()
    assert (fields["receiver_killed"], fields["receiver_delivered"], fields["delivered_min"]) == ("Tokyo", 4, 10)
    assert (fields["reformed_delay_ms"], fields["second_feed_delay_ms"]) == (3_800.0, 4_100.0)


def test_a_ring_that_did_not_go_on_is_reported() -> None:
    assert "the ring did not continue without it in time" in text(replace(KILLED, reformed_delay=None))
    assert "its customers receive two feeds again" in text(replace(KILLED, restored_delay=None))
    assert "two feeds again" not in text(replace(KILLED, restored_delay=None, without_second_feed=3))


def test_customers_are_reported_complete_or_counted() -> None:
    assert "200 of 200 in 3 regions received exactly what was released, every message once and in order" in text()
    assert "2 datagrams lost on the way to them, 1 request for messages lost on both feeds" in text()
    short = replace(FINDINGS, customers=CustomerVerdict(200, 198, 31))
    assert short.missed
    assert "ONLY 198 of 200 in 3 regions received exactly what was released; 31 messages missed" in text(short)
    assert (short.as_json()["customers_complete"], short.as_json()["customer_gaps"]) == (198, 31)
    unfinished = replace(short, finished=False)
    assert not unfinished.missed
    assert "198 of 200 in 3 regions had received everything released when the run ended" in text(unfinished)
    assert "customers" not in text(replace(FINDINGS, world=replace(FINDINGS.world, customers=0)))


def test_a_count_of_one_is_singular() -> None:
    assert "published 1 message delivered 1 message at every site" in text()
    assert "1 datagram lost, 1 request, 2 repairs" in text()


def test_only_a_temporary_folder_comes_with_the_command_that_removes_it() -> None:
    assert text().endswith("remove everything with: rm -r '/some where'")
    assert "rm -r" not in text(temporary=False)


def test_every_site_adds_a_delay_for_every_trade() -> None:
    delays = Delays()
    delays.add(a_token(NOW, NOW + MILLISECOND), [NOW + 10 * MILLISECOND, NOW + 12 * MILLISECOND])
    assert delays.most == 12 * MILLISECOND
    assert delays.percentile(0.0) == 9 * MILLISECOND + STEP


def test_without_a_token_there_is_no_delay() -> None:
    assert Delays().percentile(0.5) is None
    assert Delays().most is None


@given(st.lists(st.integers(0, 100 * SECOND), min_size=1, max_size=50), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_a_percentile_is_exact_up_to_a_step(waits: list[int], share: float) -> None:
    delays = Delays()
    for wait in waits:
        delays.add(a_token(NOW), [NOW + wait])
    exact = sorted(waits)[min(int(share * len(waits)), len(waits) - 1)]
    found = delays.percentile(share)
    assert found is not None
    assert delays.most == max(waits)
    assert np.clip(exact, 0, 60 * SECOND - STEP) <= found <= exact + STEP
