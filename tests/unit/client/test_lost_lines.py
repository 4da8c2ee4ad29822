"""A line to a server that is lost: what is asked of the next one, and that nothing is told twice or never."""

from collections.abc import Iterator
from decimal import localcontext

import pytest

from fairtape.client import remote_feed as remote
from fairtape.client.selection import Selection
from fairtape.tape.feed import AtSnapshot, Delivery, LastSales, Live, Start, number_after
from fairtape.tape.records import Break, Gap, Skipped
from unit.tape import tape_values


class ScriptedLine:
    """Says what the script has for it, and is lost."""

    def __init__(self, script: list[Delivery], wishes: list[dict[str, object]]) -> None:
        self.following: int | None = None
        self.stale_since = None
        self._script = script
        self._wishes = wishes

    def subscribe(self, wish: dict[str, object], *, picky: bool = False) -> dict[str, object]:  # noqa: ARG002
        self._wishes.append({name: wish[name] for name in ("from", "snapshot") if name in wish})
        return {"next": wish.get("from", 11), "formation": 1}

    def hear(self) -> list[Delivery]:
        if not self._script:
            raise remote.ConnectionLost
        return [self._script.pop(0)]

    def close(self) -> None:
        """Nothing to close."""


def heard(
    monkeypatch: pytest.MonkeyPatch, start: Start, *scripts: list[Delivery], count: int
) -> tuple[list[Delivery], list[dict[str, object]]]:
    lines: Iterator[list[Delivery]] = iter(scripts)
    wishes: list[dict[str, object]] = []
    monkeypatch.setattr(remote, "ServerConnection", lambda _address: ScriptedLine(next(lines), wishes))
    feed = remote.RemoteFeed(["ws://one:1"], Selection(None, None), guaranteed=False)
    feed.open(start)
    found: list[Delivery] = []
    for delivery in feed.run():
        found.append(delivery)
        if len(found) == count:
            feed.stop()
    return found, wishes


def test_a_snapshot_is_asked_for_until_it_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    sales = LastSales(1, 10, tape_values.batch_of(8, 3))
    found, wishes = heard(monkeypatch, AtSnapshot(), [], [sales], [tape_values.batch_of(11, 2)], count=2)
    assert found[0] is sales
    assert wishes == [{"snapshot": True}, {"snapshot": True}, {"from": 11}]


def test_what_was_skipped_is_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first: list[Delivery] = [tape_values.batch_of(11, 10), Skipped(21, 30, 10)]
    _, wishes = heard(monkeypatch, Live(), first, [tape_values.batch_of(31, 1)], count=3)
    assert wishes == [{}, {"from": 31}]


def test_numbers_go_on_behind_gaps_and_begin_anew_behind_breaks() -> None:
    assert number_after(Gap(100, 50), 100) == 150
    assert number_after(Break(90, 5), 101) == 90
    assert number_after(Break(120, 5), 101) == 101


def test_a_decimal_is_exact_whatever_the_context() -> None:
    trade = next(tape_values.batch_of(1, 1).records())._replace(price=123_456_789_123_456_789, quantity=-1)
    with localcontext() as context:
        context.prec = 6
        assert str(trade.price_decimal) == "123456789.123456789"
        assert str(trade.quantity_decimal) == "-1E-9"
