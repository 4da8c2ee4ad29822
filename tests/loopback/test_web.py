"""The WebSocket on real sockets: what customers are sent, slow and bad customers, and the shutdown."""

import json
import signal
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fairtape.web import request_timeout, server_loop, websocket
from fairtape.web.broadcast import QUEUE_MIN, TOO_SLOW, BroadcastLimits
from loopback import commands
from loopback.web_customers import (
    HANDSHAKE,
    PATIENCE,
    SlowCustomer,
    await_status,
    customer,
    get_json,
    kinds,
    make_site,
    receive,
    receive_rest,
    receive_through,
    served,
)
from unit.tape.tape_values import SYMBOLS

QUICK = 0.2  # seconds


def test_a_customer_gets_what_is_released_in_either_encoding_by_query_or_message(tmp_path: Path) -> None:
    site = make_site(tmp_path, 5)
    with served(site) as server, customer(server, "form=json") as one, customer(server) as two:
        two.send('{"do":"subscribe","form":"binary","symbols":["ABC"]}')
        (first,), (second,) = receive(one), receive(two)
        assert (first["kind"], first["next"], second["symbols"]) == ("subscribed", 6, ["ABC"])
        site.hold(3)
        site.release(20)
        assert receive_through(one, 28) == list(range(6, 29))
        assert receive_through(two, 28) == [number for number in range(6, 29) if SYMBOLS[number % 4] == "ABC"]


def test_a_customer_that_reconnects_resumes_without_a_gap_or_a_duplicate(tmp_path: Path) -> None:
    site = make_site(tmp_path, 200)
    with served(site) as server:
        with customer(server, "form=binary&from=11") as connection:
            (answer,) = receive(connection)
            assert answer["next"] == 11
            site.release(50)
            assert receive_through(connection, 250) == list(range(11, 251))
        site.release(400)
        with customer(server, "form=binary&from=251") as connection:
            receive(connection)
            site.release(30)
            assert receive_through(connection, 680) == list(range(251, 681))


def test_a_late_joiner_gets_a_snapshot_first(tmp_path: Path) -> None:
    site = make_site(tmp_path, 33)
    with served(site) as server, customer(server, "snapshot=1") as connection:
        assert receive(connection)[0]["kind"] == "subscribed"
        assert receive(connection) == [{"kind": "snapshot", "first": 1, "through": 33, "count": 4}]
        assert receive(connection) == [30, 31, 32, 33]
        site.release(2)
        assert receive_through(connection, 35) == [34, 35]
        connection.send('{"do":"snapshot"}')
        assert receive(connection)[0]["through"] == 35
        assert receive(connection) == [32, 33, 34, 35]
        connection.send('{"do":"unsubscribe"}')
        assert receive(connection)[0] == {"kind": "unsubscribed", "next": 36}


def test_breaks_and_formations_are_sent_in_order(tmp_path: Path) -> None:
    site = make_site(tmp_path, 3)
    with served(site) as server, customer(server, "form=binary") as connection:
        receive(connection)
        site.change_formation()
        site.release(2)
        site.change_formation(broken=True)
        site.release(1)
        assert kinds(receive_through(connection, 6)) == ["reformation", 4, 5, "break", 6]


# Slow customers. Each reads nothing while much more is released than all buffers hold.

BURSTS, BURST = 40, 1_000
LAST = BURSTS * BURST
WRITE_BUFFER_MAX = websocket.BUFFER_MAX + (
    1 << 20
)  # bytes that wait in the process for one customer: beyond the limit, one frame


@pytest.mark.parametrize("policy", ["skip", "conflate", "disconnect"])
def test_a_slow_customer_costs_the_others_nothing_and_knows_what_it_missed(tmp_path: Path, policy: str) -> None:
    site = make_site(tmp_path)
    with served(site, BroadcastLimits(queue_max=QUEUE_MIN)) as server, customer(server, "form=binary") as quick:
        receive(quick)
        slow = SlowCustomer(server.port, f"policy={policy}&form=json")
        for burst in range(1, BURSTS + 1):
            site.release(BURST, per_token=250)
            assert receive_through(quick, burst * BURST) == list(range((burst - 1) * BURST + 1, burst * BURST + 1))
            assert get_json(server, "/v1/status")["waiting"] <= QUEUE_MIN
            assert all(
                each.transport.get_write_buffer_size() < WRITE_BUFFER_MAX
                for each in list(server.server.server_loop.connections)
            )
        status = get_json(server, "/v1/status")
        received = slow.receive_through(LAST)
        slow.close()
        numbers = [each for each in received if isinstance(each, int)]
        assert numbers == sorted(set(numbers))
        if policy == "disconnect":
            assert status["counts"]["too_slow"] == 1
            assert received[-2]["kind"] == "error"
            assert received[-2]["next"] == numbers[-1] + 1
            assert received[-1] == {"kind": "closed", "code": TOO_SLOW}
            return
        assert status["lagging"] == 1
        notices = [each for each in received[1:] if not isinstance(each, int)]
        assert {each["kind"] for each in notices} <= {"skipped", "merged"}
        check_account(numbers, notices)
        await_status(server, lagging=0)


def check_account(numbers: list[int], notices: list[dict[str, Any]]) -> None:
    """Every missing number lies in the range of one notice, and each notice counts those in its range."""
    missing = sorted(set(range(1, LAST + 1)) - set(numbers))
    assert missing
    for notice in notices:
        mine, missing = missing[: notice["count"]], missing[notice["count"] :]
        assert (mine[0], mine[-1]) == (notice["first"], notice["last"])
    assert not missing


# Bad customers.


@pytest.mark.parametrize("query", ["symbols=", "from=0", "from=99", "form=xml", "colour=red"])
def test_a_bad_query_is_answered_with_a_sentence_and_a_code(tmp_path: Path, query: str) -> None:
    with served(make_site(tmp_path, 1)) as server, customer(server, query) as connection:
        (received,) = receive(connection)
        assert received["kind"] == "error"
        assert received["field"] == query.partition("=")[0]
        assert receive_rest(connection) == ([], websocket.BAD_REQUEST)
        assert get_json(server, "/v1/status")["counts"]["bad_requests"] == 1


@pytest.mark.parametrize("message", ["", "{", "[]", '{"do":"sing"}', '{"do":"snapshot"}', b"\x01"])
def test_a_bad_message_is_answered_with_a_sentence_and_a_code(tmp_path: Path, message: str | bytes) -> None:
    with served(make_site(tmp_path, 1)) as server, customer(server) as connection:
        connection.send(message)
        assert receive(connection)[0]["kind"] == "error"
        assert receive_rest(connection) == ([], websocket.BAD_REQUEST)


def test_a_message_that_is_too_large_and_a_flood_end_a_connection_and_nothing_else(tmp_path: Path) -> None:
    site = make_site(tmp_path, 1)
    with served(site) as server, customer(server, "form=json") as good:
        receive(good)
        with customer(server, "form=json") as connection:
            connection.send("x" * (websocket.REQUEST_MAX + 1))
            assert receive_rest(connection)[1] == 1009
        with customer(server, "form=json") as connection:
            for _ in range(200):
                try:
                    connection.send('{"do":"unsubscribe"}')
                except ConnectionClosed:
                    break
            assert receive_rest(connection)[1] == websocket.FLOOD
        site.release(2)
        assert receive_through(good, 3) == [2, 3]
        await_status(server, customers=1, floods=1)


def test_another_path_and_one_customer_too_many_are_refused_before_the_handshake(tmp_path: Path) -> None:
    with (
        served(make_site(tmp_path), BroadcastLimits(customers_max=1)) as server,
        customer(server, "form=json") as connection,
    ):
        receive(connection)
        with pytest.raises(InvalidStatus) as refused, customer(server, "form=json"):
            pass
        assert refused.value.response.status_code == 503
        assert json.loads(refused.value.response.body or b"")["field"] == "connection"
        raw = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
        raw.sendall(HANDSHAKE.format(query="").replace("/v1/ticker", "/v1/other").encode())
        assert raw.recv(1_024).startswith(b"HTTP/1.1 404")
        raw.close()


def test_noise_and_broken_frames_do_not_affect_the_server(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    with served(site) as server, customer(server, "form=json") as good:
        receive(good)
        for noise in (b"\x00" * 64 + b"\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * (request_timeout.HEAD_MAX + 1)):
            with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as raw:
                raw.sendall(noise)
                _read_away(raw)
        for noise in (b"\xff\xff\xff\xff", b"\x81\x05hello", b"\x82\xff" + struct.pack(">Q", 1 << 62)):
            slow = SlowCustomer(server.port, "form=json")
            slow.send(noise)
            assert slow.receive_through(1)[-1]["kind"] == "closed"
            slow.close()
        site.release(1)
        assert receive_through(good, 1) == [1]
        await_status(server, customers=1)


def _read_away(raw: socket.socket) -> None:
    try:
        while raw.recv(4_096):
            pass
    except ConnectionError:
        pass


# Connections whose peer is gone.


def test_malformed_handshakes_do_not_leak_connections(tmp_path: Path) -> None:
    websocket = b"Host: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    with served(make_site(tmp_path, 2), limits=BroadcastLimits(customers_max=1)) as server:
        for path in (b"//[", b"/v1/ticker?" + b"%F0%9F%98%80" * 60 + b"=1", b"/v1/ticker?%FF=%FF"):
            for _ in range(request_timeout.CONNECTIONS_SPARE // 2):
                with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as raw:
                    raw.sendall(b"GET " + path + b" HTTP/1.1\r\n" + websocket + key)
                    raw.recv(100)
        assert get_json(server, "/v1/status")["customers"] == 0


def test_a_silent_or_incomplete_request_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_timeout, "HEAD_PERIOD_MAX", QUICK)
    monkeypatch.setattr(websocket, "SUBSCRIBE_PERIOD_MAX", QUICK)
    with served(make_site(tmp_path)) as server:
        for data in (b"", b"GET / HT"):
            with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as raw:
                raw.sendall(data)
                _read_away(raw)
        with customer(server) as connection:
            assert receive(connection)[0]["field"] == "do"
        await_status(server, half_open=3, customers=0)


def test_a_customer_that_answers_no_ping_is_closed_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_loop, "PING_PERIOD", int(QUICK * 1e9))
    site = make_site(tmp_path)
    with served(site) as server, customer(server, "form=json") as connection:
        receive(connection)
        dead = SlowCustomer(server.port, "form=json")
        assert dead.pinged_to_death()
        dead.close()
        await_status(server, customers=1, half_open=1)
        site.release(1)
        assert receive_through(connection, 1) == [1]


def test_a_customer_whose_socket_closes_is_removed(tmp_path: Path) -> None:
    with served(make_site(tmp_path, 3)) as server:
        for linger in (False, True):
            gone = SlowCustomer(server.port, "from=1")
            await_status(server, customers=1)
            gone.hang_up(reset=linger)
            await_status(server, customers=0, subscriptions=0, replaying=0)


def test_a_customer_that_reads_nothing_for_long_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_loop, "PING_PERIOD", int(QUICK * 1e9))
    monkeypatch.setattr(websocket, "STALL_PERIOD_MAX", QUICK)
    site = make_site(tmp_path)
    with served(site) as server:
        slow = SlowCustomer(server.port, "form=json")
        while not get_json(server, "/v1/status")["lagging"]:
            site.release(BURST, per_token=250)
        await_status(server, customers=0, half_open=1)
        slow.close()


# Shutdown.


def test_at_shutdown_customers_have_what_was_released_and_the_next_number(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    with served(site) as server, customer(server, "form=binary") as connection, customer(server) as idle:
        receive(connection)
        idle.send('{"do":"unsubscribe"}')
        receive(idle)
        site.release(3_000, per_token=100)
        server.server.should_exit = True
        assert receive_rest(connection) == ([*range(1, 3_001), {"kind": "end", "next": 3_001}], 1001)
        assert server.ended.wait(PATIENCE)


def test_a_slow_customer_gets_what_was_released_before_shutdown(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    with served(site) as server, customer(server, "form=binary") as quick:
        receive(quick)
        slow = SlowCustomer(server.port, "form=json")
        site.release(5_000, per_token=100)
        receive_through(quick, 5_000)
        server.server.should_exit = True
        received = slow.receive_through(-1)
        assert [each for each in received if isinstance(each, int)] == list(range(1, 5_001))
        assert kinds(received)[-2:] == ["end", "closed"]
        slow.close()


def test_ctrl_c_ends_the_command_in_order(tmp_path: Path) -> None:
    site = make_site(tmp_path, 10)
    process = commands.start("web", site.folder, "--port", 0)
    connection = commands.await_line(process, "http://")
    port = int(connection.partition("http://127.0.0.1:")[2].partition("/")[0])
    slow = SlowCustomer(port, "from=1")
    assert slow.receive_through(10)[1:] == list(range(1, 11))
    process.send_signal(signal.SIGINT)
    assert kinds(slow.receive_through(-1)) == ["end", "closed"]
    slow.close()
    code, output, errors = commands.finish(process)
    assert (code, output) == (0, "")
    assert "next is number 11" in errors
    assert "Traceback" not in errors


def test_a_mistake_on_the_command_line_is_one_sentence(tmp_path: Path) -> None:
    site = make_site(tmp_path, 1)
    for arguments, expected in (
        ((tmp_path / "nothing",), "does not exist"),
        ((site.folder, "s1"), "holds no deployment"),
        ((site.folder, "--port", "70000"), "--port"),
        ((site.folder, "--host", "192.0.2.1"), "--host"),
    ):
        code, output, errors = commands.run("web", *arguments)
        assert (code, output) == (2, "")
        assert expected in errors
        assert "Traceback" not in errors
