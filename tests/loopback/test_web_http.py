"""HTTP beside the WebSocket: status, symbols, last sales, ranges of the past, and the page."""

import json
import os
import re
import shutil
import socket
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from websockets.sync.client import ClientConnection

import unit.journal.journal_values as values
from fairtape.tape.batches import SCHEMA
from fairtape.web import api, request_timeout
from fairtape.web import history as ranges
from loopback.web_customers import PATIENCE, await_status, customer, get, get_json, make_site, served
from unit.tape.tape_values import trade


def test_the_status_reports_customers_and_delays(tmp_path: Path) -> None:
    site = make_site(tmp_path, 7)
    with served(site) as server, customer(server, "form=json"):
        site.release(3, late=True)
        status = await_status(server, next=11, customers=1, subscriptions=1)
        assert (status["messages"], status["late"], status["stale"], status["title"]) == (10, 3, False, "test")


def test_the_last_sale_and_the_volume_of_a_symbol_are_exact(tmp_path: Path) -> None:
    with served(make_site(tmp_path, 10)) as server:
        assert get_json(server, "/v1/symbols")["symbols"] == ["A", "ABC", "DEF", "GHIJ"]
        found = get_json(server, "/v1/last?symbol=ABC")
        assert found["last"]["sequence"] == 8
        assert Decimal(found["last"]["price"]).scaleb(9) == trade(8).price
        assert (found["volume"], found["trades"], found["through"]) == ("12", 2, 10)


@pytest.mark.parametrize(
    ("path", "field", "expected"),
    [
        ("/v1/last", "symbol", "symbol"),
        ("/v1/last?symbol=XYZ", "symbol", "not traded"),
        ("/v1/trades?from=x", "from", "whole number"),
        ("/v1/trades?from=0", "from", "above 0"),
        ("/v1/trades?limit=1000000", "limit", "100,000"),
        ("/v1/trades?from=1&since_ns=5", "since_ns", "both"),
        ("/v1/trades?from=2&to=1", "to", "before 2"),
        ("/v1/trades?since_ns=9&until_ns=8", "until_ns", "before 9"),
        ("/v1/trades?from=9", "from", "has come to 2"),
        ("/v1/trades?symbols=", "symbols", "symbol"),
        ("/v1/trades?colour=red", "colour", "no field"),
        ("/v1/trades?format=xml", "format", "json or arrow"),
    ],
)
def test_a_bad_request_is_answered_with_the_field_and_the_remedy(
    tmp_path: Path, path: str, field: str, expected: str
) -> None:
    with served(make_site(tmp_path, 2)) as server:
        code, body = get(server, path)
        received = json.loads(body)
        assert (code, received["field"]) == (400, field)
        assert expected in received["told"]


def test_http_at_the_websocket_path_is_answered_with_upgrade_required(tmp_path: Path) -> None:
    with served(make_site(tmp_path, 2)) as server:
        code, body = get(server, "/v1/ticker")
        assert code == 426
        assert "is a WebSocket; connect to it as ws://" in json.loads(body)["told"]


def test_a_range_by_number_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    site = make_site(tmp_path, 20)
    site.change_formation()
    site.release(11)
    site.hold(4)
    with served(site) as server:
        numbers: list[int] = []
        kinds: list[str] = []
        following = 3
        while following < 32:
            part = get_json(server, f"/v1/trades?from={following}&limit=7")
            assert part["next"] > following
            numbers += [record["sequence"] for record in part["records"] if record["kind"] == "trade"]
            kinds += [record["kind"] for record in part["records"]]
            following = part["next"]
        assert numbers == list(range(3, 32))
        assert kinds.count("reformation") == 1
        assert kinds[18] == "reformation"
        assert get_json(server, "/v1/trades?from=32") == {"records": [], "next": 32}
        assert get_json(server, "/v1/trades?from=5&to=6&symbols=DEF")["records"][0]["symbol"] == "DEF"


def test_a_range_may_begin_with_an_instant_and_come_as_arrow(tmp_path: Path) -> None:
    with served(make_site(tmp_path, 30)) as server:
        # Three trades a token: the fifth token has the numbers from 13 on.
        code, body = get(server, f"/v1/trades?since_ns={values.token_at(5)}&format=arrow&limit=10")
        table = pa.ipc.open_stream(body).read_all()
        assert code == 200
        assert table.schema.equals(SCHEMA)
        assert table["sequence"].to_pylist() == list(range(13, 23))
        assert table["price"].to_pylist() == [Decimal(trade(number).price).scaleb(-9) for number in range(13, 23)]
        until = f"since_ns={values.token_at(5)}&until_ns={values.token_at(7)}"
        assert [each["sequence"] for each in get_json(server, f"/v1/trades?{until}")["records"]] == list(range(13, 19))
        assert table["traded_at_ns"].to_pylist() == [trade(number).traded_at for number in range(13, 23)]


def test_a_scan_for_a_rare_symbol_is_bounded_and_can_be_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "SCAN_MAX", 12)
    with served(make_site(tmp_path, 30)) as server:
        assert get_json(server, "/v1/trades?from=1&symbols=XYZ") == {"records": [], "next": 13}
        assert get_json(server, "/v1/trades?from=25&symbols=XYZ") == {"records": [], "next": 31}


def test_a_long_response_is_written_in_pieces_and_is_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "ROWS_MAX", 2)
    with served(make_site(tmp_path, 30)) as server:
        part = get_json(server, "/v1/trades?from=1&limit=29")
        assert [each["sequence"] for each in part["records"] if each["kind"] == "trade"] == list(range(1, 30))
        assert part["next"] == 30


def test_a_request_beyond_the_limit_is_answered_with_retry_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(make_site(tmp_path, 3)) as server:
        monkeypatch.setattr(api, "RESPONSES_MAX", 0)
        code, body = get(server, "/v1/trades?from=1")
        assert (code, json.loads(body)["told"]) == (503, "0 others read the past; retry in a moment")
        monkeypatch.undo()
        assert get_json(server, "/v1/trades?from=1")["next"] == 4


def test_a_client_that_does_not_read_its_response_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_timeout, "RESPONSE_PERIOD_MAX", 0.2)
    site = make_site(tmp_path)
    site.release(60_000, per_token=1_000)
    with served(site) as server:
        with pytest.raises(ConnectionError):
            _never_read(server.port)
        await_status(server, half_open=1)


def _never_read(port: int) -> None:
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(PATIENCE)
        connection.connect(("127.0.0.1", port))
        connection.sendall(b"GET /v1/trades?limit=100000 HTTP/1.1\r\nHost: test\r\n\r\n")
        while True:  # the socket is writable until the server has cut the line
            connection.send(b"x")


# The page.


def _page(tmp_path: Path) -> str:
    with served(make_site(tmp_path, 1)) as server:
        code, body = get(server, "/")
        assert code == 200
        return body.decode()


def test_the_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    page = _page(tmp_path)
    assert not re.findall(r"https?://|@import|url\(|<script[^>]+src|<link(?![^>]+data:)", page)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_page_shows_what_was_released_late_and_how_far_apart(tmp_path: Path) -> None:
    """The page's own model, run on messages that a server has sent."""
    site = make_site(tmp_path, 9)
    with served(site) as server, customer(server, "snapshot=1&policy=conflate") as connection:
        _await_snapshot(connection)
        site.release(4, late=True)
        messages = [connection.recv(timeout=PATIENCE)]
        while not re.search(r'"sequence":13,', str(messages[-1])):
            messages.append(connection.recv(timeout=PATIENCE))
        code, body = get(server, "/")
        assert code == 200
    model, view = re.findall(r"<script>(.*?)</script>", body.decode(), re.DOTALL)
    program = f"""{model}
        new Function({json.dumps(view)});  // it is well-formed; running it takes a browser
        const model = new Model();
        for (const text of {json.dumps(messages)}) model.receive(JSON.parse(text), 1750000000100);
        console.log(JSON.stringify({{ messages: model.messages, late: model.late, next: model.next,
            bound: model.bound, release: percentile(model.releases, 0.5), rows: model.rows.length,
            lasts: model.lasts.size }}));
    """
    run = subprocess.run(["node", "-e", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    shown = json.loads(run.stdout)
    expected = {"messages": 4, "late": 4, "next": 14, "bound": 1_000, "release": 0.000007, "rows": 4, "lasts": 4}
    assert shown == expected


BROWSER = """
    // As much of a browser as the page asks for.
    class Element {
        constructor() { this.textContent = ""; this.className = ""; this.value = ""; this.children = []; }
        add() { const child = new Element(); this.children.push(child); return child; }
        insertRow() { return this.add(); }
        insertCell() { return this.add(); }
        replaceChildren() { this.children = []; }
    }
    const elements = new Map();
    globalThis.document = { getElementById(id) {
        if (!elements.has(id)) elements.set(id, new Element());
        return elements.get(id);
    } };
    globalThis.location = { protocol: "http:", host: `127.0.0.1:${process.env.PORT}` };
    const fetchAnywhere = globalThis.fetch;
    globalThis.fetch = path => fetchAnywhere(`http://${location.host}/${path}`);
    globalThis.requestAnimationFrame = draw => setTimeout(draw, 10);
    setInterval(() => {
        const shown = id => document.getElementById(id).textContent;
        if (shown("messages") !== "5" || shown("title") === "") return;
        const tape = document.getElementById("tape").children.map(row => row.children.map(cell => cell.textContent));
        const lasts = document.getElementById("lasts").children.length;
        console.log(JSON.stringify({ state: shown("state"), late: shown("late"), title: shown("title"), tape, lasts }));
        process.exit(0);
    }, 10);
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_page_draws_what_a_server_sends_it(tmp_path: Path) -> None:
    """Both scripts of the page, over a real WebSocket."""
    node = ["node", "--experimental-websocket", "--no-warnings"]
    probe = "process.exit(typeof WebSocket === 'function' ? 0 : 1)"
    if subprocess.run([*node, "-e", probe], capture_output=True, timeout=PATIENCE, check=False).returncode:
        pytest.skip("this node has no WebSocket")
    site = make_site(tmp_path, 9)
    with served(site) as server:
        scripts = re.findall(r"<script>(.*?)</script>", get(server, "/")[1].decode(), re.DOTALL)
        program = "\n".join([BROWSER, *(script.replace('"use strict";', "") for script in scripts)])
        environment = {**os.environ, "PORT": str(server.port)}
        with subprocess.Popen([*node, "-e", program], stdout=subprocess.PIPE, text=True, env=environment) as browser:
            try:
                await_status(server, customers=1, subscriptions=1)
                site.change_formation()
                site.release(5, late=True)
                output, _ = browser.communicate(timeout=PATIENCE)
            finally:
                browser.kill()
    shown = json.loads(output)
    assert (shown["state"], shown["title"], shown["late"], shown["lasts"]) == ("live", "test", "5", 4)
    assert [row[0] for row in shown["tape"][:5]] == [14, 13, 12, 11, 10]
    assert shown["tape"][5][0].startswith("reformation: sequence 10")


def _await_snapshot(connection: ClientConnection) -> None:
    received: dict[str, Any] = {}
    while received.get("kind") != "trades":
        received = json.loads(connection.recv(timeout=PATIENCE))
