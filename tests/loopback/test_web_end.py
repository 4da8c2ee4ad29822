"""How a server ends when its journal can no longer be read, and how the bench sees one that keeps up."""

from pathlib import Path
from typing import Any

import pytest

import unit.journal_values as values
from fairtape.bench.web import WebSetting, web_figures
from fairtape.core.instants import SECOND
from fairtape.journal import Damaged
from fairtape.web import server_loop as stage
from fairtape.web import ticker
from fairtape.web.server import ServedSite, running
from loopback.web_customers import PATIENCE, await_status, customer, get, hear, hear_out, kinds, make_site, served


def test_a_damaged_journal_ends_the_server_and_its_customers_know_where_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticker, "REPAIR_PERIOD_MAX", 0)
    site = make_site(tmp_path, 6)
    with served(site) as server, customer(server, "form=json") as line:
        hear(line)
        (segment,) = values.segments(site.folder)
        with segment.open("ab") as file:
            file.write(b"\xff" * 200)
        told, code = hear_out(line)
        assert told == [{"kind": "end", "next": 7}]
        assert code == 1001
        assert server.ended.wait(PATIENCE)
        assert isinstance(server.server.stage.failure, Damaged)


def test_a_server_that_cannot_keep_up_says_so_and_when_it_can_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "PROMPT_MIN", 3)
    monkeypatch.setattr(stage, "PACE_PERIOD", 0)
    site = make_site(tmp_path)
    said: list[str] = []
    target = ServedSite(directory=site.folder, title="test")
    with running(target, say=said.append) as server, customer(server, "form=json") as line:
        hear(line)
        told: list[Any] = []
        while "delayed" not in kinds(told):  # which it is, once the server is older than its goal
            site.release(1, at=server.server.stage.began_at)
            told += hear(line)
        assert told[-1]["delay_ns"] > stage.DELAY_GOAL
        status = await_status(server, overloaded=True)
        assert status["counts"]["overloads"] == 1
        monkeypatch.setattr(stage, "DELAY_GOOD", SECOND * 1_000)
        while "prompt" not in kinds(told):
            site.release(1, at=server.server.stage.began_at)
            told += hear(line)
        await_status(server, overloaded=False)
    assert said[0].startswith("this server cannot keep up; customers: 1; one message in a hundred is out ")
    assert said[1] == "this server keeps up again; customers: 1"


def test_nothing_at_a_path_is_said_so(tmp_path: Path) -> None:
    with served(make_site(tmp_path)) as server:
        code, body = get(server, "/v2/ticker")
        assert code == 404
        assert b"/v1/" in body


def test_the_bench_counts_every_message_of_every_customer() -> None:
    figures = web_figures(WebSetting(customers=8, rate=400, seconds=0.5, real_time=False))
    assert figures["websocket_customers"] == 8
    assert figures["websocket_deliveries"] == 8 * 200
    assert figures["websocket_faults"] == figures["websocket_deliveries_missing"] == 0
    assert 0 < figures["websocket_p50_ms"] <= figures["websocket_p99_ms"] <= figures["websocket_max_ms"]
