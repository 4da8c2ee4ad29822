"""The Python client of remote servers: the same tape over WebSockets, across lost connections and servers."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import fairtape
import unit.journal.journal_values as values
from fairtape.client import (
    Break,
    ClientError,
    Fresh,
    Merged,
    Message,
    Reformation,
    Skipped,
    Snapshot,
    Stale,
    Tape,
    Trade,
)
from fairtape.client import remote_feed as remote
from fairtape.net.loopback import free_ports
from fairtape.tape.records import Record
from fairtape.web.broadcast import QUEUE_MIN, BroadcastLimits
from fairtape.web.server import Running, ServedSite, running
from loopback.web_customers import await_status, get_json, make_site, served
from unit.web.web_values import Site

BURSTS, BURST = 40, 1_000
LAST = BURSTS * BURST


def address(server: Running) -> str:
    return f"ws://127.0.0.1:{server.port}"


def numbers(records: list[Record]) -> list[int]:
    return [record.sequence for record in records if isinstance(record, Trade)]


def through(tape: Tape, last: int) -> list[Record]:
    """Records up to the trade of this number."""
    found: list[Record] = []
    for record in tape:
        found.append(record)
        if isinstance(record, Trade) and record.sequence == last:
            break
    return found


def unreceived(record: Record) -> Record:
    """The record without the receive time, which is this client's own."""
    if isinstance(record, Trade):
        return record._replace(received_at=None)
    return replace(record, received_at=None) if isinstance(record, Message) else record


@contextmanager
def at_port(site: Site, port: int) -> Iterator[Running]:
    with running(ServedSite(directory=site.folder, title="test"), port=port) as server:
        await_status(server)
        yield server


def test_a_remote_tape_equals_the_local_one(tmp_path: Path) -> None:
    site = make_site(tmp_path, 20)
    site.change_formation()
    site.release(10)
    site.publish(b"noted")
    with served(site) as server, fairtape.connect(address(server)) as live:
        whole = list(fairtape.connect(site.folder, start="beginning"))
        with fairtape.connect(address(server), start="beginning") as tape:
            found = list(islice(tape, len(whole)))
            assert tape.following == 32
        assert list(map(unreceived, found)) == list(map(unreceived, whole))
        assert [type(found[20]), type(found[31])] == [Reformation, Message]
        site.release(3)
        assert numbers(through(live, 34)) == [32, 33, 34]


@pytest.mark.parametrize(("start", "first"), [("beginning", 1), (12, 12), (values.token_at(3), 7)])
def test_a_remote_tape_may_begin_anywhere(tmp_path: Path, start: str | int, first: int) -> None:
    with served(make_site(tmp_path, 20)) as server, fairtape.connect(address(server), start=start) as tape:
        assert numbers(through(tape, 20)) == list(range(first, 21))


def test_a_late_joiner_begins_with_the_last_trades_of_its_symbols(tmp_path: Path) -> None:
    site = make_site(tmp_path, 30)
    with served(site) as server, fairtape.connect(address(server), symbols=["ABC", "A"], start="snapshot") as tape:
        opening, *sales = islice(tape, 3)
        assert opening == Snapshot(1, 30, 2)
        assert numbers(sales) == [27, 28]
        assert {symbol: trade.sequence for symbol, trade in tape.snapshot().items()} == {"A": 27, "ABC": 28}
        site.release(6)
        assert numbers(list(islice(tape, 3))) == [31, 32, 35]


def test_a_feed_resumes_at_a_restarted_server_from_the_number_that_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "OUTAGE_MIN", 0)
    site, (port,) = make_site(tmp_path, 5), free_ports(1)
    with ExitStack() as first:
        server = first.enter_context(at_port(site, port))
        tape = fairtape.connect(address(server), start="beginning")
        records = iter(tape)
        assert numbers(list(islice(records, 5))) == [1, 2, 3, 4, 5]
        first.close()
        site.release(7)
        assert isinstance(next(records), Stale)
    with at_port(site, port), tape:
        assert isinstance(next(records), Fresh)
        assert numbers(list(islice(records, 7))) == list(range(6, 13))


def test_a_feed_goes_on_with_another_server_where_one_ended(tmp_path: Path) -> None:
    """Where its order had a Break meanwhile, the Break is delivered, and the numbers after it again."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one, other = make_site(tmp_path / "one", 30), make_site(tmp_path / "other", 24)
    with ExitStack() as first, served(other) as second:
        server = first.enter_context(served(one))
        with fairtape.connect(f"{address(server)},{address(second)}", start="beginning") as tape:
            records = iter(tape)
            assert numbers(list(islice(records, 30))) == list(range(1, 31))
            other.change_formation(broken=True)
            other.release(8)
            await_status(second, next=33)
            first.close()
            again = list(islice(records, 9))
            assert isinstance(again[0], Break)
            assert numbers(again) == list(range(25, 33))


# Slow readers. Each reads nothing while much more is released than all buffers hold; another one goes on.


def burst_past(site: Site, quick: Tape) -> None:
    """Release all, while another tape reads it."""
    for burst in range(BURSTS):
        site.release(BURST, per_token=250)
        assert numbers(through(quick, (burst + 1) * BURST)) == list(range(burst * BURST + 1, (burst + 1) * BURST + 1))


def check_account(records: list[Record]) -> None:
    """Every missing number lies in the range of one notice, and each notice counts those in its range."""
    missing = sorted(set(range(1, LAST + 1)) - set(numbers(records)))
    for notice in records:
        if isinstance(notice, Skipped | Merged):
            mine, missing = missing[: notice.count], missing[notice.count :]
            assert (mine[0], mine[-1]) == (notice.first, notice.last)
    assert not missing


@pytest.mark.parametrize("policy", ["block", "skip", "conflate"])
def test_notices_account_for_all_that_a_slow_reader_missed_under_each_policy(tmp_path: Path, policy: str) -> None:
    site = make_site(tmp_path)
    with (
        served(site, BroadcastLimits(queue_max=QUEUE_MIN)) as server,
        fairtape.connect(address(server)) as quick,
        fairtape.connect(address(server), policy=policy, queue_max=2_000) as slow,
    ):
        burst_past(site, quick)
        assert slow.waiting <= 2_000
        found = through(slow, LAST)
        assert numbers(found) == sorted(set(numbers(found)))
        check_account(found)
        if policy == "block":
            assert numbers(found) == list(range(1, LAST + 1))
        else:
            assert slow.skipped + slow.merged == LAST - len(numbers(found)) > 0


def test_best_effort_delivers_the_newest_and_notices_of_what_is_missing(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    with (
        served(site, BroadcastLimits(queue_max=QUEUE_MIN)) as server,
        fairtape.connect(address(server)) as quick,
        fairtape.connect(address(server), grade="best effort", queue_max=100) as slow,
    ):
        burst_past(site, quick)
        assert get_json(server, "/v1/status")["waiting"] <= QUEUE_MIN
        check_account(through(slow, LAST))


@pytest.mark.parametrize(
    ("target", "options", "sentence"),
    [
        ("http://{}", {}, "an address is such as 'ws://127.0.0.1:8765'"),
        ("ws://", {}, "an address is such as 'ws://127.0.0.1:8765'"),
        ("ws://{},tcp://x", {}, "an address is such as 'ws://127.0.0.1:8765'"),
        ("ws://{}/v2/else", {}, "there is no WebSocket at /v2/else; it is at /v1/ticker; serve a site with"),
        ("ws://{}", {"start": 99}, "from is 99, and the order has come to 5; give at most 6"),
        ("ws://127.0.0.1:1", {}, "cannot be reached: "),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, target: str, options: dict[str, Any], sentence: str) -> None:
    with served(make_site(tmp_path, 5)) as server, pytest.raises(ClientError) as received:
        fairtape.connect(target.format(f"127.0.0.1:{server.port}"), **options)
    assert sentence in str(received.value)
    assert "\n" not in str(received.value)
