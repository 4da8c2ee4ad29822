"""Lost connections to servers: what is requested of the next one, so that nothing is lost or delivered twice."""

from collections.abc import Iterator
from decimal import localcontext

import pytest

from fairtape.client import remote_feed as remote
from fairtape.client.selection import Selection
from fairtape.tape.feed import AtSnapshot, Delivery, LastSales, Live, Start, number_after
from fairtape.tape.records import Break, Gap, Skipped
from unit.tape import tape_values


class ScriptedConnection:
    """Delivers its script, and is lost."""

    def __init__(self, script: list[Delivery], requests: list[dict[str, object]]) -> None:
        self.next_sequence: int | None = None
        self.stale_since = None
        self._script = script
        self._requests = requests

    def subscribe(self, request: dict[str, object], **_options: object) -> dict[str, object]:
        self._requests.append({name: request[name] for name in ("from", "snapshot") if name in request})
        return {"next": request.get("from", 11), "formation": 1}

    def receive(self) -> list[Delivery]:
        if not self._script:
            raise remote.ConnectionLost
        return [self._script.pop(0)]

    def close(self) -> None:
        """Nothing to close."""


def run_feed(
    monkeypatch: pytest.MonkeyPatch, start: Start, *scripts: list[Delivery], count: int
) -> tuple[list[Delivery], list[dict[str, object]]]:
    remaining: Iterator[list[Delivery]] = iter(scripts)
    requests: list[dict[str, object]] = []
    monkeypatch.setattr(remote, "ServerConnection", lambda _address: ScriptedConnection(next(remaining), requests))
    feed = remote.RemoteFeed(["ws://one:1"], Selection(None, None), guaranteed=False)
    feed.open(start)
    found: list[Delivery] = []
    for delivery in feed.run():
        found.append(delivery)
        if len(found) == count:
            feed.stop()
    return found, requests


def test_a_snapshot_is_requested_until_it_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    sales = LastSales(1, 10, tape_values.batch_of(8, 3))
    found, requests = run_feed(monkeypatch, AtSnapshot(), [], [sales], [tape_values.batch_of(11, 2)], count=2)
    assert found[0] is sales
    assert requests == [{"snapshot": True}, {"snapshot": True}, {"from": 11}]


def test_skipped_records_are_not_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first: list[Delivery] = [tape_values.batch_of(11, 10), Skipped(21, 30, 10)]
    _, requests = run_feed(monkeypatch, Live(), first, [tape_values.batch_of(31, 1)], count=3)
    assert requests == [{}, {"from": 31}]


def test_the_next_number_is_after_a_gap_and_goes_back_at_a_break() -> None:
    assert number_after(Gap(100, 50), 100) == 150
    assert number_after(Break(90, 5), 101) == 90
    assert number_after(Break(120, 5), 101) == 101


def test_a_decimal_is_exact_whatever_the_context() -> None:
    trade = next(tape_values.batch_of(1, 1).records())._replace(price=123_456_789_123_456_789, quantity=-1)
    with localcontext() as context:
        context.prec = 6
        assert str(trade.price_decimal) == "123456789.123456789"
        assert str(trade.quantity_decimal) == "-1E-9"
