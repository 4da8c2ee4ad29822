"""Reconciliation: the proof, on Spark, that the journals of all sites hold one sequence.

Executors read stretches of all journals, prove every entry against the hash chain, and hand over a row for each: where
it stands and the digest of its content. Spark then holds the rows of one journal against one another (no link of the
chain and no number is missing or there twice, nothing was released before its time) and the rows of all journals
against one another (the same content at the same place). Contents never leave their machine but as digests; only the
first entry that differs is read again, to name the byte.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_schema

from fairtape.pipeline.lanes import Stretch
from fairtape.pipeline.options import Options, journal_names
from fairtape.pipeline.rows import stretch_of
from fairtape.pipeline.scanning import entries_of
from fairtape.pipeline.schemas import Arrow
from fairtape.pipeline.source import FORMAT
from fairtape.runtime.journal import Damaged
from fairtape.runtime.journal.format import link
from fairtape.runtime.journal.segments import Place, Trail

PROBLEMS_MAX: Final = 100  # that are told
BATCH_ROWS: Final = 8_192

_POSITION: Final = ("formation", "token", "turns")
"""What ascends from entry to entry, over all formations."""

ENTRIES: Final = pa.schema(
    [
        pa.field("stripe", pa.int32()),
        pa.field("site", pa.int64()),
        pa.field("formation", pa.int64()),
        pa.field("token", pa.int64()),
        pa.field("turns", pa.int32()),  # 0: a change of formation, which comes before the token it begins with
        pa.field("sequence", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("content", pa.binary()),  # the digest of the entry alone
        pa.field("previous", pa.binary()),  # the chain before it
        pa.field("chain", pa.binary()),  # and with it
        pa.field("segment", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("problem", pa.string()),  # what is wrong with it, where something is
    ]
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A journal that does not prove what it says."""

    stripe: int
    site: int
    token: int | None
    sequence: int
    path: str
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Extent:
    """How far one journal goes."""

    stripe: int
    site: int
    first_sequence: int
    last_sequence: int
    entries: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place of a stripe at which not all journals say the same."""

    stripe: int
    token: int
    sequence: int
    sites: tuple[int, ...]  # that say something else than the one before them, or than most
    places: tuple[tuple[int, str, int], ...]  # of two that differ: site, file, and the byte of it that differs
    reason: str


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What was proved."""

    extents: tuple[Extent, ...]
    problems: tuple[Problem, ...]
    differences: tuple[Difference, ...]  # the first one of each stripe

    @property
    def sound(self) -> bool:
        """Whether every journal proves itself, and all say the same as far as they go."""
        return not self.problems and not self.differences

    @property
    def level(self) -> bool:
        """Whether the journals of each stripe also begin and end alike."""
        ends = {(each.stripe, each.first_sequence, each.last_sequence) for each in self.extents}
        return len(ends) == len({each.stripe for each in self.extents})


def reconcile(spark: SparkSession, journals: Sequence[Path | str]) -> Reconciliation:
    """Hold journals against themselves and one another."""
    options = Options(journals=journal_names(journals), rows="stretches", ordered=True)
    stretches = spark.read.format(FORMAT).options(**options.to_texts()).load()
    entries = stretches.mapInArrow(_examine, from_arrow_schema(ENTRIES)).persist()
    try:
        problems = _problems(entries)
        return Reconciliation(_extents(entries), problems, () if problems else _differences(entries))
    finally:
        entries.unpersist()


def _examine(tables: Iterator[Arrow]) -> Iterator[Arrow]:
    """A row for every entry of these stretches; where a stretch is damaged, the last row says so."""
    rows: list[dict[str, Any]] = []
    for stretch in (stretch_of(row) for table in tables for row in table.to_pylist()):
        for row in _entries(stretch):
            rows.append(row)
            if len(rows) >= BATCH_ROWS:
                yield pa.RecordBatch.from_pylist(rows, schema=ENTRIES)
                rows = []
    yield pa.RecordBatch.from_pylist(rows, schema=ENTRIES)


def _entries(stretch: Stretch) -> Iterator[dict[str, Any]]:
    lane = {"stripe": stretch.stripe, "site": stretch.site}
    try:
        for head, encoded, place, release in entries_of(stretch, ordered=True):
            if not stretch.first <= head.sequence < stretch.end:
                continue  # the stretch before tells it
            early = release is not None and release.released_at < release.commit_at
            yield lane | {
                "formation": head.formation,
                "token": head.token,
                "turns": int(not head.turns),
                "sequence": head.sequence,
                "end": head.end,
                "content": hashlib.sha256(encoded).digest(),
                "previous": place.previous,
                "chain": link(place.previous, encoded),
                "segment": str(place.path),
                "offset": place.offset,
                "problem": "it was released before its commit instant" if early else None,
            }
    except Damaged as damage:
        where = {"sequence": damage.sequence, "segment": str(damage.path), "offset": damage.offset}
        yield lane | where | {"problem": damage.reason}


def _problems(entries: DataFrame) -> tuple[Problem, ...]:
    """What is wrong within single journals: links or numbers that do not follow one another, and worse."""
    in_order = Window.partitionBy("stripe", "site").orderBy(*_POSITION)
    whole = entries.where("token IS NOT NULL")
    chained = F.when(
        F.lag("chain").over(in_order) != F.col("previous"), F.lit("it does not continue the chain before it")
    )
    before = F.lag("end").over(in_order)
    skipped = F.when(before != F.col("sequence"), F.concat(F.lit("it follows sequence "), (before - 1).cast("string")))
    broken = whole.withColumn("problem", F.coalesce("problem", skipped, chained))
    found = broken.unionByName(entries.where("token IS NULL")).where("problem IS NOT NULL")
    columns = ("stripe", "site", "token", "sequence", "segment", "offset", "problem")
    rows = found.orderBy("stripe", "sequence", "site").select(*columns).limit(PROBLEMS_MAX).collect()
    return tuple(Problem(*row) for row in rows)


def _extents(entries: DataFrame) -> tuple[Extent, ...]:
    ends = F.min("sequence"), F.max("end") - 1, F.count("token")
    rows = entries.where("token IS NOT NULL").groupBy("stripe", "site").agg(*ends).orderBy("stripe", "site").collect()
    return tuple(Extent(*row) for row in rows)


def _differences(entries: DataFrame) -> tuple[Difference, ...]:
    """The first position of each stripe at which a journal has another entry than the others, or none."""
    position = F.struct(*_POSITION)
    bounds = entries.groupBy("stripe", "site").agg(F.min(position).alias("first"), F.max(position).alias("last"))
    told = entries.groupBy("stripe", *_POSITION).agg(
        F.min("sequence").alias("sequence"),
        F.count_distinct("content").alias("contents"),
        F.collect_list(F.struct("site", "content", "segment", "offset")).alias("tellers"),
    )
    due = told.join(F.broadcast(bounds), "stripe").where(position.between(F.col("first"), F.col("last")))
    held = due.groupBy("stripe", *_POSITION).agg(
        F.first("sequence").alias("sequence"),
        F.first("contents").alias("contents"),
        F.first("tellers").alias("tellers"),
        F.collect_list("site").alias("sites"),
    )
    unlike = held.where((F.col("contents") > 1) | (F.size("tellers") < F.size("sites")))
    whole = F.struct(*_POSITION, "sequence", "tellers", "sites")
    rows = unlike.groupBy("stripe").agg(F.min_by(whole, position).alias("first")).orderBy("stripe").collect()
    return tuple(_difference(row["stripe"], row["first"].asDict(recursive=True)) for row in rows)


def _difference(stripe: int, found: dict[str, Any]) -> Difference:
    tellers = sorted(found["tellers"], key=lambda teller: int(teller["site"]))
    place = stripe, found["token"], found["sequence"]
    if absent := tuple(sorted(set(found["sites"]) - {teller["site"] for teller in tellers})):
        where = tuple((teller["site"], teller["segment"], teller["offset"]) for teller in tellers[:1])
        return Difference(*place, absent, where, "it is missing there")
    contents = Counter(teller["content"] for teller in tellers)
    usual = max(contents, key=lambda content: contents[content])
    odd = [teller for teller in tellers if teller["content"] != usual]
    pair = next(teller for teller in tellers if teller["content"] == usual), odd[0]
    entries = [_read(teller["segment"], teller["offset"], found["sequence"]) for teller in pair]
    byte = next(
        (at for at, (one, other) in enumerate(zip(*entries, strict=False)) if one != other), min(map(len, entries))
    )
    where = tuple((teller["site"], teller["segment"], teller["offset"] + byte) for teller in pair)
    return Difference(*place, tuple(teller["site"] for teller in odd), where, "it has another content there")


def _read(path: str, offset: int, sequence: int) -> bytes:
    """The bytes of the entry that stands there."""
    trail = Trail(Place(Path(path), offset, sequence, b""))
    try:
        step = trail.next_head()
        assert step is not None
        return trail.segment.stored(offset, step[1], sequence)[: step[1].encoded_size]
    finally:
        trail.close()
