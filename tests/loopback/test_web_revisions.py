"""Cancels and corrections reach every customer of a server: by WebSocket, by HTTP and on the page."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import fairtape
from fairtape.client import Canceled, Corrected, Trade, VenueStatus
from fairtape.market.notices import CancelNotice, CorrectionNotice, Status, StatusNotice, encode_notice
from fairtape.market.prices import ONE, format_fixed
from fairtape.market.trades import PublishedTrade
from loopback.web_customers import (
    PATIENCE,
    await_status,
    customer,
    get,
    get_json,
    kinds,
    make_site,
    receive_through,
    served,
)
from unit.tape.tape_values import trade
from unit.web.web_values import Site

RIGHT = PublishedTrade(trade(8).venue, "ABC", 5 * ONE, 7 * ONE, trade(8).traded_at, 1 << 63)


def revised_site(folder: Path) -> Site:
    """Of ABC there are the trades 4, 8 and 12; 12 is void, and 8 was another one, which is 14 from then on."""
    site = make_site(folder)
    site.release(12, per_token=1)
    site.publish(encode_notice(CancelNotice(12, trade(12).venue_name, "ABC", 5)))
    site.publish(encode_notice(CorrectionNotice(8, RIGHT, 6)))
    site.publish(encode_notice(StatusNotice("XNYS", Status.HALTED, 7)))
    site.publish(
        encode_notice(CancelNotice(4, "XLON" if trade(4).venue_name != "XLON" else "XNYS", "ABC", 8))
    )  # not its own
    return site


@pytest.mark.parametrize("encoding", ["json", "binary"])
def test_notices_of_venues_are_sent_in_order_in_either_encoding(tmp_path: Path, encoding: str) -> None:
    site = revised_site(tmp_path)
    site.release(1, per_token=1)
    with served(site) as server, customer(server, f"from=11&form={encoding}") as connection:
        received = receive_through(connection, 17)
    assert kinds(received) == ["subscribed", 11, 12, "canceled", "corrected", "status", "canceled", 17]
    canceled, corrected, status = received[3:6]
    assert (canceled["sequence"], canceled["number"], canceled["symbol"]) == (13, 12, "ABC")
    assert (canceled["canceled_at_ns"], canceled["source_number"]) == ("5", 1_013)
    assert (corrected["number"], corrected["price"], corrected["quantity"]) == (8, "5", "7")
    assert (corrected["trade_id"], corrected["corrected_at_ns"]) == (str(1 << 63), "6")
    assert (status["venue"], status["status"], status["since_ns"]) == ("XNYS", "halted", "7")


def test_the_last_sale_and_the_volume_follow_what_is_taken_back(tmp_path: Path) -> None:
    site = revised_site(tmp_path)
    with served(site) as server:
        await_status(server, next=17)
        found = get_json(server, "/v1/last?symbol=ABC")
        assert (found["last"]["sequence"], found["last"]["price"]) == (14, "5")
        assert (found["volume"], found["trades"]) == (format_fixed(trade(4).quantity + 7 * ONE), 2)
        for number, name in ((4, trade(4).venue_name), (14, trade(8).venue_name)):
            site.publish(encode_notice(CancelNotice(number, name, "ABC", 9)))
        await_status(server, next=19)
        found = get_json(server, "/v1/last?symbol=ABC")
        assert (found["last"], found["volume"], found["trades"]) == (None, "0", 0)
        records = get_json(server, "/v1/trades?from=13&symbols=ABC")["records"]
        assert [each["kind"] for each in records] == [
            "canceled",
            "corrected",
            "status",
            "canceled",
            "canceled",
            "canceled",
        ]


def test_a_remote_tape_delivers_the_same_as_the_journal(tmp_path: Path) -> None:
    site = revised_site(tmp_path)
    with fairtape.connect(site.folder, start="beginning") as tape:
        notices = [record for record in tape if isinstance(record, Canceled | Corrected | VenueStatus)]
        snapshot = tape.snapshot()
    assert len(notices) == 4
    assert {symbol: sale.sequence for symbol, sale in snapshot.items()} == {"A": 11, "ABC": 14, "DEF": 9, "GHIJ": 10}
    with served(site) as server, fairtape.connect(f"ws://127.0.0.1:{server.port}", start="beginning") as tape:
        remote = iter(tape)
        records: list[Any] = [next(remote) for _ in range(16)]
        assert {symbol: sale.sequence for symbol, sale in tape.snapshot().items()} == {
            symbol: sale.sequence for symbol, sale in snapshot.items()
        }
    assert [unreceived(record) for record in records if not isinstance(record, Trade)] == list(map(unreceived, notices))


def unreceived(record: Any) -> dict[str, Any]:
    """The fields without the receive time, which is this client's own."""
    return {name: getattr(record, name) for name in type(record).__dataclass_fields__ if name != "received_at"}


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_page_requests_a_snapshot_when_a_sale_that_it_shows_is_void(tmp_path: Path) -> None:
    """The page's own model, on what a server sends: the void sale gives way to the one before it."""
    site = make_site(tmp_path)
    site.release(8, per_token=1)
    with served(site) as server, customer(server, "snapshot=1") as connection:
        records = [connection.recv(timeout=PATIENCE) for _ in range(3)]  # subscribed, snapshot, its trades
        site.publish(encode_notice(CancelNotice(8, trade(8).venue_name, "ABC", 5)))
        records.append(connection.recv(timeout=PATIENCE))
        connection.send('{"do":"snapshot"}')
        records += [connection.recv(timeout=PATIENCE) for _ in range(2)]
        (model, _) = re.findall(r"<script>(.*?)</script>", get(server, "/")[1].decode(), re.DOTALL)
    program = f"""{model}
        const model = new Model();
        const seen = [];
        for (const text of {json.dumps(records)}) {{
            model.receive(JSON.parse(text), 1750000000100);
            seen.push([model.lasts.get("ABC")?.sequence ?? null, model.needsSnapshot]);
        }}
        console.log(JSON.stringify(seen));
    """
    run = subprocess.run(["node", "-e", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert json.loads(run.stdout) == [[None, False], [None, False], [8, False], [8, True], [None, True], [4, True]]
