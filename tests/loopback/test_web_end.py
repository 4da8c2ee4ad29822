"""A server whose journal can no longer be read, overload, and the benchmark of the server."""

from pathlib import Path
from typing import Any

import pytest

import unit.journal.journal_values as values
from fairtape.bench.websocket_customers import WebSetting, measure_websocket
from fairtape.core.instants import SECOND
from fairtape.journal import Damaged
from fairtape.web import live_ticker, server_loop
from fairtape.web.server import ServedSite, running
from loopback.web_customers import (
    PATIENCE,
    await_status,
    customer,
    get,
    kinds,
    make_site,
    receive,
    receive_rest,
    served,
)


def test_a_damaged_journal_ends_the_server_and_customers_are_sent_the_next_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_ticker, "REPAIR_PERIOD_MAX", 0)
    site = make_site(tmp_path, 6)
    with served(site) as server, customer(server, "form=json") as connection:
        receive(connection)
        (segment,) = values.segments(site.folder)
        with segment.open("ab") as file:
            file.write(b"\xff" * 200)
        received, code = receive_rest(connection)
        assert received == [{"kind": "end", "next": 7}]
        assert code == 1001
        assert server.ended.wait(PATIENCE)
        assert isinstance(server.server.server_loop.failure, Damaged)


def test_an_overload_and_its_end_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_loop, "PROMPT_MIN", 3)
    monkeypatch.setattr(server_loop, "LAG_PERIOD", 0)
    site = make_site(tmp_path)
    said: list[str] = []
    target = ServedSite(directory=site.folder, title="test")
    with running(target, report=said.append) as server, customer(server, "form=json") as connection:
        receive(connection)
        received: list[Any] = []
        while "delayed" not in kinds(received):  # which it is, once the server is older than its goal
            site.release(1, at=server.server.server_loop.began_at)
            received += receive(connection)
        assert received[-1]["delay_ns"] > server_loop.DELAY_GOAL
        status = await_status(server, overloaded=True)
        assert status["counts"]["overloads"] == 1
        monkeypatch.setattr(server_loop, "DELAY_GOOD", SECOND * 1_000)
        while "prompt" not in kinds(received):
            site.release(1, at=server.server.server_loop.began_at)
            received += receive(connection)
        await_status(server, overloaded=False)
    assert said[0].startswith("this server cannot keep up; customers: 1; one message in a hundred is out ")
    assert said[1] == "this server keeps up again; customers: 1"


def test_an_unknown_path_is_not_found(tmp_path: Path) -> None:
    with served(make_site(tmp_path)) as server:
        code, body = get(server, "/v2/ticker")
        assert code == 404
        assert b"/v1/" in body


def test_the_bench_counts_every_message_of_every_customer() -> None:
    figures = measure_websocket(WebSetting(customers=8, rate=400, seconds=0.5, real_time=False))
    assert figures["websocket_customers"] == 8
    assert figures["websocket_deliveries"] == 8 * 200
    assert figures["websocket_faults"] == figures["websocket_deliveries_missing"] == 0
    assert 0 < figures["websocket_p50_ms"] <= figures["websocket_p99_ms"] <= figures["websocket_max_ms"]
