"""The data source in a real Spark: batch, stream, and the trap of filters that are pushed down."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import unit.journal.journal_values as values
from fairtape.pipeline.source.options import JournalSourceOptions
from pipeline import pipeline_values as pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: "SparkSession", journals: Path | str, **options: Any) -> "DataFrame":
    return spark.read.format("fairtape").options(journals=str(journals), **options).load()


def test_rows_in_spark_are_those_of_the_journal(spark: "SparkSession", tmp_path: Path) -> None:
    history = values.first_with_formations(60, seed=3)
    values.write(tmp_path, history)
    found = [row.asDict() for row in read(spark, tmp_path).orderBy("sequence", "token", "formation").collect()]
    assert {row["stripe"] for row in found} == {values.STRIPE}
    expected = sorted(pipeline.expected_rows(tmp_path), key=lambda each: (each[2], each[1]))
    found_rows = [pipeline.as_expected(row) for row in found if row["kind"] != "fragment"]
    assert sorted(found_rows, key=repr) == sorted(expected, key=repr)


def test_integers_survive_spark(spark: "SparkSession", tmp_path: Path) -> None:
    pipeline.append(tmp_path, pipeline.tokens(3))
    rows = read(spark, tmp_path, rows="trades").orderBy("sequence").collect()
    assert [(row.price, row.quantity, row.traded_at_ns, row.trade_id % (1 << 64)) for row in rows] == [
        (trade.price, trade.quantity, trade.traded_at, trade.trade_id) for trade in map(pipeline.trade, range(1, 31))
    ]


def test_a_filter_on_one_use_of_a_relation_leaves_its_other_uses_alone(spark: "SparkSession", tmp_path: Path) -> None:
    pipeline.append(tmp_path, pipeline.tokens(10))
    trades = read(spark, tmp_path, rows="trades")
    chosen = trades.filter("symbol = 'ABC' AND sequence > 50")
    assert chosen.count() == 13
    assert trades.count() == 100
    assert chosen.unionAll(trades).count() == 113


def test_empty_journals_have_columns_and_no_rows(spark: "SparkSession", tmp_path: Path) -> None:
    empty = read(spark, tmp_path)
    assert empty.columns[:5] == ["stripe", "site", "formation", "token", "sequence"]
    assert empty.count() == 0


def test_damage_reaches_the_user_with_file_byte_and_number(spark: "SparkSession", tmp_path: Path) -> None:
    pipeline.append(tmp_path, pipeline.tokens(10))
    (segment, *_) = sorted(tmp_path.glob("*.segment"))
    octets = bytearray(segment.read_bytes())
    octets[1_000] ^= 1
    segment.write_bytes(octets)
    with pytest.raises(Exception, match=rf"{segment.name} is damaged at byte \d+, sequence \d+"):
        read(spark, tmp_path).collect()


def test_segments_that_two_sites_swapped_end_the_query(spark: "SparkSession", tmp_path: Path) -> None:
    journals = pipeline.equal_journals(tmp_path, pipeline.tokens(40, size=8))
    assert read(spark, tmp_path / "*").count() == 640
    mine, _ = pipeline.swap(*journals, 2)
    with pytest.raises(Exception, match=rf"{mine.name} is damaged at byte 0, sequence {int(mine.stem)}: it belongs to"):
        read(spark, tmp_path / "*").collect()


def test_a_release_mark_that_was_altered_ends_the_query(spark: "SparkSession", tmp_path: Path) -> None:
    pipeline.append(tmp_path, pipeline.tokens(10))
    last = values.segments(tmp_path)[-1]
    pipeline.flip(last, -1)
    with pytest.raises(Exception, match=rf"{last.name} is damaged .* digest of a release mark"):
        read(spark, tmp_path).collect()


def test_a_stream_gives_the_rows_of_the_batch_in_limited_batches(spark: "SparkSession", tmp_path: Path) -> None:
    journals = tmp_path / "journals"
    for stripe in (0, 1):
        pipeline.append(journals / str(stripe), pipeline.tokens(20, stripe=stripe), stripe=stripe)
    stream = spark.readStream.format("fairtape").options(journals=f"{journals}/*", max_rows="150").load()
    counts: list[int] = []
    rows: list[tuple[int, int]] = []

    def keep(batch: "DataFrame", _number: int) -> None:
        found = [(row.stripe, row.sequence) for row in batch.select("stripe", "sequence").collect()]
        counts.append(len(found))
        rows.extend(found)

    for first in (201, 251):  # a second run goes on where the first ended, with what came in between
        writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        pipeline.append(journals / "0", pipeline.tokens(5, first=first))
    assert max(counts) <= 150
    expected = [(0, number) for number in range(1, 251)] + [(1, number) for number in range(1, 201)]
    assert sorted(rows) == expected


def test_bars_are_those_of_a_plain_loop(spark: "SparkSession", tmp_path: Path) -> None:
    from fairtape.pipeline.tables.market_tables import bars

    small = [replace(pipeline.trade(number), price=number * 7 % 11, quantity=number) for number in range(1, 101)]
    frame = spark.createDataFrame(
        [(number, each.symbol, each.price, each.quantity, each.traded_at) for number, each in enumerate(small, 1)],
        "sequence LONG, symbol STRING, price LONG, quantity LONG, traded_at_ns LONG",
    )
    plain: dict[tuple[str, int], list[int]] = {}
    for each in small:
        begins_at = each.traded_at - each.traded_at % 17
        bar = plain.setdefault((each.symbol, begins_at), [each.price, each.price, each.price, each.price, 0, 0])
        bar[1:] = [max(bar[1], each.price), min(bar[2], each.price), each.price, bar[4] + each.quantity, bar[5] + 1]
    found = {(row[0], row[1]): list(row[2:]) for row in bars(frame, period=17).collect()}
    assert found == plain


def test_a_wrong_option_names_itself_in_spark(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(Exception, match="option 'symbol' is unknown"):
        read(spark, tmp_path, symbol="ABC")
    assert JournalSourceOptions.of({"journals": str(tmp_path)}).rows == "messages"


def test_a_directory_that_is_called_like_a_pattern_is_read(spark: "SparkSession", tmp_path: Path) -> None:
    journal = tmp_path / "br[1]" / "s*"
    values.write(journal, values.first_with_formations(6, seed=3))
    assert read(spark, journal).count() > 0
