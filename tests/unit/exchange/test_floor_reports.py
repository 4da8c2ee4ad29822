"""Replicas of a floor compare themselves: reports, evidence, rebuilding, and what a Break revokes."""

from dataclasses import replace

import pytest

from fairtape.core.effects import FormationChange
from fairtape.exchange.floor import Floor, FloorLimits, OutOfOrder
from fairtape.exchange.orders import Pulse, TradeReport, decode, encode
from fairtape.exchange.outputs import Evidence, SequenceBroken, Voided
from unit.exchange.floor_values import kinds, scripted_floor, the_rejection


def break_at(token: int, *, broken: bool = True) -> FormationChange:
    return FormationChange(0, 2, token, 99, broken, b"", 0)


def test_a_true_report_is_silent_and_a_false_one_is_evidence_that_names_what_differs() -> None:
    scripted = scripted_floor()
    script = scripted.script
    scripted.play(script.sell("bob", "b1", 1, 1), script.buy("ann", "a1", 1, 1))
    token = scripted.floor.token
    payload = scripted.floor.report(token)
    assert payload is not None
    report = decode(payload)
    assert isinstance(report, TradeReport)
    assert scripted.play(payload, source=3) == []
    number = script.sequence
    outputs = scripted.play(encode(report._replace(trade_count=2)), source=3)
    assert Evidence(number, 3, token, "trade_count", "1", "2") in outputs
    false = scripted.play(encode(TradeReport(1, 99, 1, bytes(32))), source=3)
    assert {output.field for output in false if isinstance(output, Evidence)} == {"trade_count", "trades_hash"}
    assert scripted.floor.report(token + 1) is None


def test_a_report_of_a_forgotten_token_is_refused_without_evidence() -> None:
    scripted = scripted_floor(limits=FloorLimits(reports_max=1))
    script = scripted.script
    for n in range(2):
        scripted.play(script.sell("bob", f"b{n}", 1, 1), script.buy("ann", f"a{n}", 1, 1))
    assert "too old" in the_rejection(scripted.play(TradeReport(1, 2, 1, bytes(32)), source=3))


def test_replicas_agree_after_each_token_and_a_rebuilt_one_with_them() -> None:
    scripted = scripted_floor()
    script = scripted.script
    for n in range(20):
        scripted.play(script.sell("bob", f"b{n}", 1 + n % 3, 100), script.buy("ann", f"a{n}", 2, 100))
    rebuilt = Floor(commit_passes=2)
    for ordered in script.tokens:
        rebuilt.apply(ordered)
    assert rebuilt.trades_hash == scripted.floor.trades_hash
    assert rebuilt.ledger.snapshot() == scripted.floor.ledger.snapshot()


def test_a_formation_without_a_break_changes_nothing() -> None:
    scripted = scripted_floor()
    assert scripted.floor.on_formation(break_at(1, broken=False)) == []


def test_at_a_break_trades_of_earlier_tokens_stand() -> None:
    scripted = scripted_floor(commit_passes=3)
    script = scripted.script
    scripted.play(script.sell("bob", "b1", 1, 1), script.buy("ann", "a1", 1, 1))
    assert scripted.floor.on_formation(break_at(script.token + 1)) == [SequenceBroken(script.token + 1, 99, False)]
    scripted.play(Pulse())
    scripted.play(Pulse())
    assert kinds(scripted.play(Pulse())) == ["Committed", "Printed"]


def test_at_a_break_trades_of_lost_tokens_are_void_and_the_floor_asks_to_be_rebuilt() -> None:
    """With more than N failures a committed trade is lost, and the floor names it."""
    scripted = scripted_floor(commit_passes=1)
    script = scripted.script
    lost = script.token + 1
    scripted.play(script.sell("bob", "b1", 2, 1), script.buy("ann", "a1", 1, 1))
    scripted.play(script.buy("ann", "a2", 1, 1))
    outputs = scripted.floor.on_formation(break_at(lost))
    assert [output.committed for output in outputs if isinstance(output, Voided)] == [True, False]
    assert outputs[0] == SequenceBroken(lost, 99, True)
    with pytest.raises(OutOfOrder, match="rebuild"):
        scripted.play(Pulse())
    rebuilt = Floor(commit_passes=1)
    rebuilt.apply(script.tokens[0])
    assert rebuilt.trade_count == 0


def test_passes_are_counted_within_one_formation() -> None:
    """The first holder of a new formation may have held the last token of the old one: its token proves nothing."""
    scripted = scripted_floor(commit_passes=1)
    script, floor = scripted.script, scripted.floor
    scripted.play(script.sell("bob", "b1", 1, 1), script.buy("ann", "a1", 1, 1))
    assert kinds(floor.apply(replace(script.ordered(Pulse()), formation=2))) == []
    assert kinds(floor.apply(replace(script.ordered(Pulse()), formation=2))) == ["Committed", "Printed"]


def test_an_empty_token_of_a_formation_that_delivered_nothing_commits_nothing() -> None:
    """A replica that sees the empty token and one that does not must settle at the same token."""
    scripted = scripted_floor(commit_passes=1)
    script, floor = scripted.script, scripted.floor
    scripted.play(script.sell("bob", "b1", 1, 1), script.buy("ann", "a1", 1, 1))
    assert floor.pass_token(script.token + 1, 2) == []
    assert kinds(floor.pass_token(script.token + 2, 1)) == ["Committed", "Printed"]


def test_a_report_of_a_token_that_a_break_revoked_is_no_evidence() -> None:
    """The token's number belongs to another formation now, and the arbiter reported correctly."""
    scripted = scripted_floor()
    script, floor = scripted.script, scripted.floor
    scripted.play(script.sell("bob", "b1", 1, 1), script.buy("ann", "a1", 1, 1))
    lost = TradeReport(1, script.token + 1, 1, bytes(32))
    floor.apply(replace(script.ordered(Pulse()), formation=2))
    outputs = floor.apply(replace(script.ordered(lost, source=3), formation=2))
    assert "it was lost" in the_rejection(outputs)
    assert not any(isinstance(output, Evidence) for output in outputs)
    false = replace(script.ordered(lost._replace(formation=2), source=3), formation=2)
    assert any(isinstance(output, Evidence) for output in floor.apply(false))
