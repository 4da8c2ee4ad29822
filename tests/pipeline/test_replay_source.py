"""A replay port as a data source: a real retransmit server in another process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairtape.core.effects import FormationChange
from fairtape.core.errors import UserError
from fairtape.edge.service.stripe_plans import StripePlanStore, mark_of
from fairtape.market.stripes import DAY, Endpoint, StripePlan, plan_by_rate
from fairtape.ring.membership.layout import decode_formation, encode_formation
from pipeline.market_values import STARTS_AT, SYMBOLS, Market

pytest.importorskip("pyspark", reason="the extra `pipeline` (PySpark) is not installed")

from fairtape.pipeline.schemas import REPLAYED, SCHEMAS
from fairtape.pipeline.source.replay_source import (
    ReplaySourceOptions,
    SessionRange,
    Sessions,
    offsets_from_json,
    offsets_to_json,
    replayed,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TESTS = Path(__file__).parents[1]
CHILD = Path(__file__).with_name("replay_child.py")
TRADED = ("sequence", "venue", "symbol", "price", "quantity", "traded_at_ns", "trade_id", "trade_flags")
ABSENT = {
    "site", "formation", "token", "incarnation", "source_number", "acknowledged_at_ns", "commit_at_ns",
    "released_at_ns", "late", "clock_bound_ns",
}  # fmt: skip


def planned(version: int, stripes: int) -> StripePlan:
    rates = dict.fromkeys(SYMBOLS, 100 + version)
    base = Endpoint("239.197.7.1", 31_001)
    midnight_at = STARTS_AT // DAY * DAY
    found = plan_by_rate(
        rates, stripes, 10**9, version=version, midnight_at=midnight_at, venues=("XNYS", "XLON"), base=base
    )
    return found.plan


class ReplayWorld:
    """A market whose sessions end twice: by a Break, and by another plan; its journal, and the plans."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal = folder / "0-1"
        plans = StripePlanStore(folder, 0)
        plans.add(planned(1, 2))
        plans.add(planned(2, 3))
        self.plan = plans.path(1)
        market = Market(21)
        market.form((1, 2))
        market.trade_on(25)
        market.form((1,), broken=True)
        market.trade_on(10)
        market.form((1, 2))
        change = market.history.pop()
        assert isinstance(change, FormationChange)
        formation = replace(decode_formation(change.layout), plan=mark_of(planned(2, 3)))
        market.history.append(replace(change, layout=encode_formation(formation)))
        market.trade_on(10)
        self.market = market
        market.write(folder, (1,))

    @contextmanager
    def server(self) -> "Iterator[tuple[subprocess.Popen[str], str]]":
        """A server, and where it replays."""
        command = [sys.executable, str(CHILD), str(self.folder), str(self.journal)]
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
            try:
                assert child.stdout is not None
                yield child, child.stdout.readline().strip()
            finally:
                child.kill()

    def options(self, port: str, **texts: Any) -> ReplaySourceOptions:
        return ReplaySourceOptions.of({"replay": port, "plan": str(self.plan), **texts})


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> ReplayWorld:
    return ReplayWorld(tmp_path_factory.mktemp("replay"))


@pytest.fixture(scope="module")
def port(stage: ReplayWorld) -> Iterator[str]:
    with stage.server() as (_, at):
        yield at


def read(options: ReplaySourceOptions, rows_max: int | None = None) -> list[dict[str, Any]]:
    """All rows, in micro-batches of `rows_max`, with offsets as from a checkpoint."""
    sessions = Sessions(options)
    start, found = sessions.start(), []
    sessions.settle()
    while (end := sessions.latest(start, rows_max)) != start:
        for wanted in sessions.ranges(start, end):
            found += [row for batch in replayed(wanted, options) for row in batch.to_pylist()]
        start = offsets_from_json(offsets_to_json(end))
    return found


def trades_in(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in TRADED) for row in rows)


def test_trades_of_a_replay_are_those_of_the_journal_through_a_break_and_another_plan(
    spark: "SparkSession", stage: ReplayWorld, port: str
) -> None:
    def loaded(**options: str) -> "DataFrame":
        return spark.read.format("fairtape").options(rows="trades", **options).load()

    journal = [row.asDict() for row in loaded(journals=str(stage.journal)).collect()]
    replay = [row.asDict() for row in loaded(replay=port, plan=str(stage.plan)).collect()]
    assert trades_in(replay) == trades_in(journal)
    assert {row["session"][2:7] for row in replay} == {"00100", "00101", "00200"}
    assert {name for name in replay[0] if all(row[name] is None for row in replay)} == ABSENT | {"source"}


def test_a_stream_of_a_replay_gives_the_same_rows_in_limited_batches_and_goes_on_from_its_checkpoint(
    spark: "SparkSession", stage: ReplayWorld, port: str, tmp_path: Path
) -> None:
    stream = spark.readStream.format("fairtape").options(replay=port, plan=str(stage.plan), max_rows="130").load()
    counts: list[int] = []
    rows: list[tuple[str, int]] = []

    def keep(batch: "DataFrame", _number: int) -> None:
        found = [(row.session, row.stripe_number) for row in batch.select("session", "stripe_number").collect()]
        counts.append(len(found))
        rows.extend(found)

    for _ in range(2):
        writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
    assert max(counts) <= 130
    expected = [(row["session"], row["stripe_number"]) for row in read(stage.options(port))]
    assert sorted(rows) == sorted(expected)


@pytest.mark.parametrize("rows_max", [7, 60, None])
def test_every_message_of_every_session_comes_once_however_batches_are_cut(
    stage: ReplayWorld, port: str, rows_max: int | None
) -> None:
    found = read(stage.options(port), rows_max)
    numbers: dict[str, list[int]] = {}
    for row in found:
        numbers.setdefault(row["session"], []).append(row["stripe_number"])
    assert len(numbers) == 10
    assert all(seen == list(range(1, len(seen) + 1)) for seen in numbers.values())
    assert {row["kind"] for row in found} == {"trade", "correction", "broken", "opaque", "mark", "directory"}
    assert {row["kind"] for row in found if row["source"] is not None} == {"opaque"}


def test_a_correction_is_one_also_where_reading_begins_with_it(stage: ReplayWorld, port: str) -> None:
    options = stage.options(port)
    for row in read(options):
        if row["kind"] == "correction":
            wanted = SessionRange(row["session"], row["stripe_number"], row["stripe_number"])
            (batch,) = replayed(wanted, options)
            assert batch.to_pylist() == [row]
            assert not list(replayed(wanted, replace(options, rows="trades")))
            return
    raise AssertionError


def test_symbols_and_stripes_are_chosen_by_options(stage: ReplayWorld, port: str) -> None:
    everything = read(stage.options(port, rows="trades"))
    assert read(stage.options(port, rows="trades", symbols="ABC")) == [
        row for row in everything if row["symbol"] == "ABC"
    ]
    one = read(stage.options(port, rows="trades", stripes="1"))
    assert one == [row for row in everything if row["stripe"] == 1]


def test_a_server_that_goes_away_is_reported_with_the_number_and_one_that_returns_is_read_on(
    stage: ReplayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairtape.pipeline.source.replay_source.PAUSE_SECONDS", 0)
    with stage.server() as (child, port):
        options = stage.options(port)
        sessions = Sessions(options)
        (session, *_) = start = sessions.start()
        last = sessions.latest(start)[session].next - 1
        child.kill()
        child.wait()
    with pytest.raises(
        UserError, match=rf"replay {port} closed before message 1 of session {session} .* last wanted message is {last}"
    ):
        list(replayed(SessionRange(session, 1, last), options))
    with pytest.raises(
        UserError, match=rf"replay {port} does not answer .*; check that a retransmit server runs there"
    ):
        Sessions(options).latest(start)


def test_a_range_beyond_what_is_there_is_no_shorter_answer(
    stage: ReplayWorld, port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairtape.pipeline.source.replay_source.PAUSE_SECONDS", 0)
    options = stage.options(port)
    (session, *_) = Sessions(options).start()
    following = options.replay.following(session)
    assert following is not None
    with pytest.raises(UserError, match=rf"closed before message {following} of session {session}"):
        list(options.replay.messages(session, 1, following))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"replay": "nowhere"}, r"replay is 'nowhere'; expected HOST:PORT"),
        ({"plan": ""}, r"cannot be read"),
        ({"rows": "offset_ranges"}, r"rows is 'offset_ranges'; of a replay it must be one of messages, trades"),
        ({"since": "1"}, r"option 'since' is unknown for a replay"),
        ({"stripes": "44"}, r"stripes names 44; plan 1 has 1, 2"),
        ({"user": "much too long"}, r"user or password cannot be sent"),
        ({"tag": "long"}, r"tag is 'long'"),
    ],
)
def test_a_wrong_option_of_a_replay_is_reported_in_a_sentence(
    stage: ReplayWorld, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        ReplaySourceOptions.of({"replay": "127.0.0.1:1", "plan": str(stage.plan), **options})


def test_a_replay_without_a_plan_says_what_the_plan_is_for() -> None:
    with pytest.raises(UserError, match="plan is missing; name the file of the stripe plan"):
        ReplaySourceOptions.of({"replay": "127.0.0.1:1"})


def test_a_deployment_that_the_server_does_not_serve_is_reported(stage: ReplayWorld, port: str) -> None:
    with pytest.raises(UserError, match="knows no session XX"):
        read(stage.options(port, tag="XX"))


def test_columns_of_a_replay_begin_like_those_of_a_journal() -> None:
    for name, schema in REPLAYED.items():
        assert schema.names[: len(SCHEMAS[name].names)] == SCHEMAS[name].names
