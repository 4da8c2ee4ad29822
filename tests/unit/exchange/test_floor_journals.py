"""The floor read from journals: across a Break, reported on by an arbiter, and shown by `fairtape floor`."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fairtape.cli import run
from fairtape.core.effects import FormationChange, Ordered, Release
from fairtape.core.instants import Instant
from fairtape.core.timing import PROFILES
from fairtape.deployment.follow.floor_reader import FloorReader
from fairtape.deployment.process.arbiter import Arbiter
from fairtape.exchange.floor import Floor
from fairtape.exchange.orders import FloorMessage, TradeReport, decode
from fairtape.exchange.outputs import Evidence
from fairtape.journal import JournalFollower, JournalWriter
from fairtape.nodes.source import Source
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import encode_formation
from fairtape.wire.seals import Keys
from unit.exchange.floor_values import Script, kinds

SITE, ARBITER = 2, 301


def new() -> Floor:
    return Floor(commit_passes=1)


def formation(number: int, token: int, *, broken: bool = False) -> Formation:
    timing = PROFILES["metro"]
    return Formation(number=number, members=(1, SITE, 3), timing=timing, starts_at=10, first_token=token, broken=broken)


def change(number: int, token: int, sequence: int, *, broken: bool = False) -> FormationChange:
    layout = encode_formation(formation(number, token, broken=broken))
    return FormationChange(0, number, token, sequence, broken, layout, 10)


class Scribe:
    """Writes a journal as a site does."""

    def __init__(self, directory: Path) -> None:
        self.writer = JournalWriter.open(directory, stripe=0, site=SITE)
        self.script = Script()
        self.formation = 1
        self.writer.append_formation(change(1, 1, 1), 0)

    def release(self, *messages: FloorMessage | bytes, source: int | None = None) -> Ordered:
        ordered = replace(self.script.ordered(*messages, source=source), formation=self.formation)
        self.writer.append(ordered, ordered.acknowledged_at)
        at = ordered.acknowledged_at
        self.writer.release(Release(ordered.token, ordered.sequence, ordered.count, at, at, False, 0), at)
        return ordered

    def trade(self, name: str) -> Ordered:
        script = self.script
        return self.release(script.sell("bob", f"b{name}", 1, 100), script.buy("ann", f"a{name}", 1, 100))


@contextmanager
def scribe(directory: Path) -> Iterator[Scribe]:
    scribe = Scribe(directory)
    script = scribe.script
    try:
        scribe.release(script.open(), *script.fund("ann", 10_000, 100), *script.fund("bob", 10_000, 100))
        yield scribe
    finally:
        scribe.writer.close()


class Recorder(Source):
    """A source that records what it publishes."""

    given: list[bytes]

    def publish(self, messages: Sequence[bytes], now: Instant) -> int:
        self.given += messages
        return super().publish(messages, now)


def reports(source: Recorder) -> list[TradeReport]:
    """The reports of an arbiter."""
    decoded = [decode(payload) for payload in source.given]
    return [message for message in decoded if isinstance(message, TradeReport)]


def arbiter_of(reader: FloorReader) -> tuple[Arbiter, Recorder]:
    keys = Keys.from_secret(b"floor", (1, SITE, 3), (ARBITER,))
    source = Recorder(me=ARBITER, keys=keys.for_source(ARBITER), timing=PROFILES["metro"], resilience=0, incarnation=1)
    source.given = []
    return Arbiter(SITE, source, reader), source


def test_a_reader_follows_the_journal_and_has_the_floor_that_was_alive(tmp_path: Path) -> None:
    live = new()
    with scribe(tmp_path) as site:
        live.apply(site.script.tokens[0])
        reader = FloorReader.of_journal(tmp_path, new)
        for n in range(5):
            live.apply(site.trade(str(n)))
            reader.catch_up()
            assert reader.floor.trades_hash == live.trades_hash
            assert reader.floor.ledger.snapshot() == live.ledger.snapshot()
        reader.close()


def test_after_a_break_the_reader_names_what_is_void_and_goes_on_from_what_is_left(tmp_path: Path) -> None:
    with scribe(tmp_path) as site:
        kept = site.trade("1")
        reader = FloorReader.of_journal(tmp_path, new)
        reader.catch_up()
        lost = [site.trade("2"), site.trade("3")]
        reader.catch_up()
        assert reader.floor.trade_count == 3
        reader.close()
        site.writer.truncate_after(kept.token)
        site.writer.append_formation(change(2, lost[0].token, lost[0].sequence, broken=True), 0)
        site.script.token, site.script.sequence, site.formation = kept.token, lost[0].sequence, 2
        after = site.trade("4")
        again = FloorReader.of_journal(tmp_path, new)
        again.catch_up()
        assert (again.floor.trade_count, again.floor.token) == (2, after.token)
        again.close()


def test_a_reader_that_goes_on_with_another_site_after_a_break_is_rebuilt(tmp_path: Path) -> None:
    """The first site is gone, and with it the last token, which only it had released."""
    with scribe(tmp_path / "one") as one, scribe(tmp_path / "two") as two:
        for site in (one, two):
            kept = site.trade("1")
        lost = one.trade("2")
        two.writer.append_formation(change(2, lost.token, lost.sequence, broken=True), 0)
        two.formation = 2
        two.release(two.script.buy("ann", "a7", 1, 90))
        following = JournalFollower({1: tmp_path / "one", 2: tmp_path / "two"}, site=1)
        reader = FloorReader(following, new)
        reader.catch_up()
        assert reader.floor.trade_count == 2
        following.follow(2)
        outputs = [output for step in reader.steps() for output in step.outputs]
        assert kinds(outputs) == ["SequenceBroken", "Voided", "Sequenced"]
        assert (reader.floor.trade_count, reader.floor.token) == (1, kept.token + 1)
        reader.close()


def test_an_arbiter_reports_the_tokens_of_its_site_and_no_others(tmp_path: Path) -> None:
    with scribe(tmp_path) as site:
        reader = FloorReader.of_journal(tmp_path, new)
        arbiter, source = arbiter_of(reader)
        tokens = [site.trade(str(n)).token for n in range(6)]
        arbiter.wake(1)
        mine = [token for token in tokens if formation(1, 1).holder(token) == SITE]
        assert [report.token for report in reports(source)] == mine
        arbiter.wake(2)
        assert arbiter.reports == len(mine)
        reader.close()


def test_an_arbiter_that_comes_back_reports_what_it_had_not_and_nothing_twice(tmp_path: Path) -> None:
    with scribe(tmp_path) as site:
        reader = FloorReader.of_journal(tmp_path, new)
        arbiter, source = arbiter_of(reader)
        for n in range(3):
            site.trade(str(n))
        arbiter.wake(1)
        (first,) = source.given
        site.release(first, source=ARBITER)
        for n in range(3, 6):
            site.trade(str(n))
        reader.close()
        reader = FloorReader.of_journal(tmp_path, new)
        again, source = arbiter_of(reader)
        again.wake(2)
        (report,) = reports(source)
        reported = decode(first)
        assert isinstance(reported, TradeReport)
        assert report.token > reported.token
        assert again.accusations == 0
        reader.close()


def test_an_arbiter_sees_the_lie_of_another(tmp_path: Path) -> None:
    with scribe(tmp_path) as site:
        token = site.trade("1").token
        site.release(TradeReport(1, token, 7, bytes(32)), source=ARBITER + 1)
        reader = FloorReader.of_journal(tmp_path, new)
        found = [output for step in reader.steps() for output in step.outputs if isinstance(output, Evidence)]
        assert {each.field for each in found} == {"trade_count", "trades_hash"}
        reader.close()


def test_replay_prints_digests_and_says_whether_journals_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        with scribe(tmp_path / name) as site:
            site.trade("1")
            site.release(site.script.buy("ann", "a9", 5, 99))
    both = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert run(["floor", "replay", *both, "--commit-passes", "1"]) == 0
    output = capsys.readouterr().out
    assert "1 trade, 0 tentative" in output
    assert "2 floors, at token 3: the same" in output
    assert run(["floor", "replay", both[0], "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["floors"]
    assert (found["trades"], found["imbalance"], found["evidence"]) == (1, {}, 0)
    with scribe(tmp_path / "other") as site:
        site.release(site.script.buy("ann", "a1", 1, 100))
        site.trade("2")
    assert run(["floor", "replay", both[0], str(tmp_path / "other")]) == 1
    assert "NOT the same" in capsys.readouterr().out


def test_book_and_trades_are_shown_from_a_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with scribe(tmp_path / "j") as site:
        site.trade("1")
        site.release(site.script.buy("ann", "a9", 5, 99), site.script.sell("bob", "b9", 2, 101))
    journal = str(tmp_path / "j")
    assert run(["floor", "book", journal]) == 0
    shown = capsys.readouterr().out
    assert "XYZ" in shown
    assert "99" in shown
    assert run(["floor", "book", journal, "XYZ", "--json"]) == 0
    (book,) = json.loads(capsys.readouterr().out)
    assert (book["bids"], book["offers"], book["last"]) == ([["99", "5"]], [["101", "2"]], "100")
    assert run(["floor", "trades", journal]) == 0
    assert "bob to ann" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["book", "{journal}", "NONE"], "SYMBOL is NONE; the floor trades XYZ"),
        (["book", "{journal}", "--depth", "0"], "--depth is 0"),
        (["book", "{journal}", "--live", "--json"], "give one of them"),
        (["order", "{journal}", "ann", "buy", "1", "XYZ"], "holds no deployment"),
        (["order", "{journal}", "ann", "buy", "many", "XYZ"], "QUANTITY: 'many' is not a decimal number"),
        (["open", "{journal}", "XYZ", "--rule", "batch"], "--rule is batch, which needs --period-ms"),
        (["open", "{journal}", "X Y"], "symbol is 'X Y'"),
        (["trades", "{journal}", "--last", "0"], "--last is 0"),
        (["replay", "{journal}/nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with scribe(tmp_path / "j"):
        pass
    assert run(["floor", *(each.format(journal=tmp_path / "j") for each in arguments)]) == 2
    errors = capsys.readouterr().err
    assert complaint in errors
    assert "Traceback" not in errors
