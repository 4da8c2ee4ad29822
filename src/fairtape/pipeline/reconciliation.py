"""Reconciliation: the proof, on Spark, that the journals of all sites hold one sequence.

A segment header has the state that its segment continues, so executors check all segments in parallel: each entry and
each release mark against its hash chain, and that the next segment continues from the end. So damage is found where it
is, and not again in later segments. The result is a row for every entry: its place and the digest of its content.
Release marks come after their entries; marks of entries in an earlier segment become rows, too.

Spark then compares these marks with the entries of other segments, and the entries of all journals with one another:
the same content at the same place. Only digests leave the executors; the first entry that differs is read again, to
find the byte.

Of each journal only the first problem is reported; later ones may follow from it.
"""

import hashlib
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.pandas.types import from_arrow_schema

from fairtape.core.effects import Release
from fairtape.core.entries import Head
from fairtape.core.errors import UserError
from fairtape.journal import Damaged, JournalReader
from fairtape.journal.audit import what_breaks
from fairtape.journal.format import HEADER_SIZE, Owner
from fairtape.journal.segments import Place, RecordScanner, Segment, SegmentReplay
from fairtape.pipeline.schemas import Arrow
from fairtape.pipeline.source.options import journal_names
from fairtape.pipeline.source.partitions import directories, duplicate_partition

PROBLEMS_MAX: Final = 100  # that are reported
BATCH_ROWS: Final = 8_192
TASKS_MAX: Final = 256
_PIECES_DDL: Final = "directory STRING, stripe INT, site LONG, segment STRING, following STRING, first LONG"

_POSITION: Final = ("formation", "token", "turns")
"""What ascends from entry to entry, over all formations."""

ENTRY: Final = "entry"
MARK: Final = "mark"  # of an entry in an earlier segment
PROBLEM: Final = "problem"  # the first of a segment
NAMES_NO_ENTRY: Final = "a release mark names no entry"

FINDINGS: Final = pa.schema(
    [
        pa.field("directory", pa.string()),
        pa.field("stripe", pa.int32()),
        pa.field("site", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("formation", pa.int64()),
        pa.field("token", pa.int64()),
        pa.field("turns", pa.int32()),  # 0: a change of formation, which comes before the token it begins with
        pa.field("sequence", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("content", pa.binary()),  # the digest of the entry alone
        pa.field("segment", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("reason", pa.string()),  # of a problem
    ]
)
"""A row of what is found in a segment."""

Finding: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """A segment to be checked, and what the check needs to know of its journal."""

    directory: str
    stripe: int | None  # None where no header of the journal can be read
    site: int | None
    segment: str
    following: str | None  # the next segment
    first: int  # sequence of the whole journal

    @property
    def owner(self) -> Owner | None:
        """The owner of the journal, if a header names it."""
        return None if self.stripe is None or self.site is None else Owner(self.stripe, self.site)


def check_segment(piece: SegmentTask) -> Iterator[Finding]:
    """Every entry of a segment, marks of earlier entries, and the first problem."""
    check = _SegmentCheck(piece)
    for found in check.run():
        yield check.common | found
    if check.problem is not None:
        yield check.common | {"kind": PROBLEM} | check.problem


class _SegmentCheck:
    def __init__(self, piece: SegmentTask) -> None:
        self._piece = piece
        self._path = Path(piece.segment)
        self._unreleased: deque[Head] = deque()  # entries with messages that wait for their mark
        self.common = {"directory": piece.directory, "stripe": piece.stripe, "site": piece.site}
        self.problem: Finding | None = None

    def run(self) -> Iterator[Finding]:
        try:
            with Segment(self._path, self._piece.owner) as segment:
                if not segment.header.has_valid_start:
                    self._report(0, segment.header.tip.sequence, "the first segment continues another one")
                yield from self._records(SegmentReplay(segment))
        except Damaged as damage:
            self._report(damage.offset, damage.sequence, damage.reason, path=damage.path)

    def _records(self, replay: SegmentReplay) -> Iterator[Finding]:
        segment = replay.segment
        try:
            for offset, record in replay:
                if isinstance(record, Head):
                    yield self._entry(segment, offset, record)
                elif isinstance(record, Release):
                    yield from self._mark(segment, offset, record)
        except Damaged as damage:
            self._report(damage.offset, damage.sequence, damage.reason, record=_record(segment, damage))
        else:
            if self._piece.following is not None:
                _check_end(replay, Path(self._piece.following), self._piece.owner)

    def _entry(self, segment: Segment, offset: int, head: Head) -> Finding:
        if not head.changes_formation:
            self._unreleased.append(head)
        encoded = segment.stored(offset, head, head.sequence)[: head.encoded_size]
        return {
            "kind": ENTRY,
            "formation": head.formation,
            "token": head.token,
            "turns": int(not head.changes_formation),
            "sequence": head.sequence,
            "end": head.end,
            "content": hashlib.sha256(encoded).digest(),
            "segment": str(segment.path),
            "offset": offset,
        }

    def _mark(self, segment: Segment, offset: int, mark: Release) -> Iterator[Finding]:
        if mark.released_at < mark.commit_at:
            self._report(offset, mark.sequence, "it was released before its commit instant", record=mark)
        if mark.sequence >= segment.header.tip.sequence:
            head = self._unreleased.popleft() if self._unreleased else None
            if head is None or (head.token, head.sequence, head.messages) != (mark.token, mark.sequence, mark.count):
                raise Damaged(segment.path, offset, mark.sequence, NAMES_NO_ENTRY)
        elif mark.sequence >= self._piece.first:
            place = {"segment": str(segment.path), "offset": offset}
            end = mark.sequence + mark.count
            yield {"kind": MARK, "token": mark.token, "sequence": mark.sequence, "end": end} | place

    def _report(
        self,
        offset: int,
        sequence: int,
        reason: str,
        *,
        path: Path | None = None,
        record: Head | Release | None = None,
    ) -> None:
        """Keep the first problem. For a release mark, the sequence is that of the mark."""
        if self.problem is None:
            self.problem = {
                "token": None if record is None else record.token,
                "sequence": record.sequence if isinstance(record, Release) else sequence,
                "segment": str(path or self._path),
                "offset": offset,
                "reason": reason,
            }


def _record(segment: Segment, damage: Damaged) -> Head | Release | None:
    """The record at the damaged place, if its head can be read."""
    with suppress(Damaged):
        if damage.offset >= HEADER_SIZE:
            record = segment.record(damage.offset, damage.sequence)
            return record if isinstance(record, Head | Release) else None
    return None


def _check_end(replay: SegmentReplay, following: Path, owner: Owner | None) -> None:
    """Check that no bytes are left over, and that the next segment continues exactly where this one ends."""
    segment, tip, number = replay.segment, replay.tip, replay.segment.header.number
    if segment.size != replay.end:
        raise Damaged(segment.path, replay.end, tip.sequence, "an entry is cut short, and a segment follows")
    if int(following.stem) > tip.sequence:
        reason = f"what follows is missing up to sequence {int(following.stem) - 1}"
        raise Damaged(segment.path, replay.end, tip.sequence, reason)
    with Segment(following, owner) as after:
        if (after.header.number, after.header.tip) != (number + 1, tip):
            raise Damaged(following, 0, tip.sequence, what_breaks(after.header, tip, number))


@dataclass(frozen=True, slots=True)
class JournalProblem:
    """The first problem of a journal."""

    stripe: int | None  # None where no segment names the owner of the journal
    site: int | None
    token: int | None  # None where neither this journal nor another one has it
    after_token: int | None  # the last token before it that was checked, where its own is unknown
    sequence: int
    path: str
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class JournalExtent:
    """The range of one journal."""

    stripe: int
    site: int
    first_sequence: int
    last_sequence: int
    entries: int


@dataclass(frozen=True, slots=True)
class JournalDifference:
    """The first place of a stripe at which journals differ."""

    stripe: int
    token: int
    sequence: int
    sites: tuple[int, ...]  # that lack the entry, or whose content is not that of most
    places: tuple[tuple[int, str, int], ...]  # of two that differ: site, file, and the byte of it that differs
    reason: str


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The result of a reconciliation."""

    extents: tuple[JournalExtent, ...]
    empty: tuple[str, ...]  # journals that hold nothing yet
    problems: tuple[JournalProblem, ...]
    differences: tuple[JournalDifference, ...]  # the first one of each stripe

    @property
    def sound(self) -> bool:
        """Whether every journal is valid, and all agree as far as they go."""
        return not self.problems and not self.differences

    @property
    def level(self) -> bool:
        """Whether the journals of each stripe also begin and end at the same numbers."""
        ends = {(each.stripe, each.first_sequence, each.last_sequence) for each in self.extents}
        return not self.empty and len(ends) == len({each.stripe for each in self.extents})


def reconcile(spark: SparkSession, journals: Sequence[Path | str]) -> Reconciliation:
    """Check journals, and compare them with one another."""
    found = {directory: _pieces(directory) for directory in directories(journal_names(journals))}
    _check_owners(found)
    pieces = [asdict(piece) for several in found.values() for piece in several]
    if not pieces:
        raise _nothing()
    rows = spark.createDataFrame([tuple(piece.values()) for piece in pieces], _PIECES_DDL)
    spread = rows.repartition(min(len(pieces), TASKS_MAX))
    findings = spread.mapInArrow(_examine, from_arrow_schema(FINDINGS)).persist()
    try:
        entries = findings.where(F.col("kind") == ENTRY)
        extents, problems = _extents(entries), _problems(findings, entries)
        if not extents and not problems:
            raise _nothing()
        return Reconciliation(
            extents, _empty(found, extents, problems), problems, () if problems else _differences(entries)
        )
    finally:
        findings.unpersist()


def _pieces(directory: Path) -> list[SegmentTask]:
    """The segments of a journal. Its owner is that of most segments: one may be damaged, or of another journal."""
    paths = JournalReader(directory).paths()
    owners = Counter(owner for owner in map(_owner, paths) if owner is not None)
    stripe, site = next(iter(owners.most_common(1)), ((None, None), 0))[0]
    following = [*map(str, paths[1:]), None]
    return [
        SegmentTask(str(directory), stripe, site, str(path), after, int(paths[0].stem))
        for path, after in zip(paths, following, strict=False)
    ]


def _owner(path: Path) -> Owner | None:
    try:
        with Segment(path) as segment:
            return segment.header.owner
    except Damaged:
        return None  # reported where the segment is checked


def _check_owners(found: Mapping[Path, Sequence[SegmentTask]]) -> None:
    owners = sorted((pieces[0].owner, path) for path, pieces in found.items() if pieces and pieces[0].owner is not None)
    for (one, path), (other, another) in pairwise(owners):
        if one == other and one is not None:
            raise duplicate_partition(one, path, another)


def _empty(
    found: Mapping[Path, Sequence[SegmentTask]], extents: Sequence[JournalExtent], problems: Sequence[JournalProblem]
) -> tuple[str, ...]:
    """Journals without an entry and without a problem."""
    held = {Owner(extent.stripe, extent.site) for extent in extents}
    reported = {Path(problem.path).parent for problem in problems}
    silent = (path for path, pieces in found.items() if not pieces or pieces[0].owner not in held)
    return tuple(str(path) for path in silent if path not in reported)


def _nothing() -> UserError:
    return UserError(
        "these journals hold no entry, so there is nothing to prove; name journals that sites have written"
    )


def _examine(tables: Iterator[Arrow]) -> Iterator[Arrow]:
    """Check the segments of a task."""
    rows: list[Finding] = []
    for piece in (SegmentTask(**row) for table in tables for row in table.to_pylist()):
        for row in check_segment(piece):
            rows.append(row)
            if len(rows) >= BATCH_ROWS:
                yield pa.RecordBatch.from_pylist(rows, schema=FINDINGS)
                rows = []
    yield pa.RecordBatch.from_pylist(rows, schema=FINDINGS)


def _problems(findings: DataFrame, entries: DataFrame) -> tuple[JournalProblem, ...]:
    """The first problem of each journal, in the order in which it was written."""
    where = F.struct("segment", "offset", "sequence", "token", "reason", "stripe", "site")
    named = "stripe", "site", "sequence", "token", "end"
    marks = findings.where(F.col("kind") == MARK).withColumn("reason", F.lit(NAMES_NO_ENTRY))
    stray = marks.join(entries.where("turns = 1").select(*named), list(named), "left_anti")
    wrong = findings.where(F.col("kind") == PROBLEM).unionByName(stray)
    rows = wrong.groupBy("directory").agg(F.min(where).alias("first")).collect()
    firsts = sorted((_problem(row["first"]) for row in rows), key=_rank)
    return tuple(_with_token(problem, entries) for problem in firsts[:PROBLEMS_MAX])


def _problem(first: Row) -> JournalProblem:
    segment, offset, sequence, token, reason, stripe, site = first
    return JournalProblem(stripe, site, token, None, sequence, segment, offset, reason)


def _rank(problem: JournalProblem) -> tuple[int, int, int]:
    """Problems of unknown journals come last."""
    unknown = 1 << 32
    stripe, site = (unknown if number is None else number for number in (problem.stripe, problem.site))
    return stripe, problem.sequence, site


def _with_token(problem: JournalProblem, entries: DataFrame) -> JournalProblem:
    """Find the token of the problem in another journal, or else the last token before it in this one."""
    if problem.token is not None or problem.stripe is None:
        return problem
    at = F.lit(problem.sequence)
    here = (F.col("sequence") <= at) & (F.col("end") > at)
    before = (F.col("site") == problem.site) & (F.col("end") <= at)
    tokens = F.max(F.when(here, F.col("token"))), F.max(F.when(before, F.col("token")))
    reported = entries.where((F.col("stripe") == problem.stripe) & (F.col("turns") == 1)).agg(*tokens).first()
    assert reported is not None
    token, after = reported
    return replace(problem, token=token, after_token=after if token is None else None)


def _extents(entries: DataFrame) -> tuple[JournalExtent, ...]:
    ends = F.min("sequence"), F.max("end") - 1, F.count("token")
    rows = entries.groupBy("stripe", "site").agg(*ends).orderBy("stripe", "site").collect()
    return tuple(JournalExtent(*row) for row in rows)


def _differences(entries: DataFrame) -> tuple[JournalDifference, ...]:
    """The first position of each stripe at which a journal has another entry than the others, or none."""
    position = F.struct(*_POSITION)
    bounds = entries.groupBy("stripe", "site").agg(F.min(position).alias("first"), F.max(position).alias("last"))
    reported = entries.groupBy("stripe", *_POSITION).agg(
        F.min("sequence").alias("sequence"),
        F.count_distinct("content").alias("contents"),
        F.collect_list(F.struct("site", "content", "segment", "offset")).alias("holders"),
    )
    due = reported.join(F.broadcast(bounds), "stripe").where(position.between(F.col("first"), F.col("last")))
    held = due.groupBy("stripe", *_POSITION).agg(
        F.first("sequence").alias("sequence"),
        F.first("contents").alias("contents"),
        F.first("holders").alias("holders"),
        F.collect_list("site").alias("sites"),
    )
    different = held.where((F.col("contents") > 1) | (F.size("holders") < F.size("sites")))
    whole = F.struct(*_POSITION, "sequence", "holders", "sites")
    rows = different.groupBy("stripe").agg(F.min_by(whole, position).alias("first")).orderBy("stripe").collect()
    return tuple(_difference(row["stripe"], row["first"].asDict(recursive=True)) for row in rows)


def _difference(stripe: int, found: dict[str, Any]) -> JournalDifference:
    holders = sorted(found["holders"], key=lambda holder: int(holder["site"]))
    place = stripe, found["token"], found["sequence"]
    if absent := tuple(sorted(set(found["sites"]) - {holder["site"] for holder in holders})):
        where = tuple((holder["site"], holder["segment"], holder["offset"]) for holder in holders[:1])
        return JournalDifference(*place, absent, where, "it is missing there")
    contents = Counter(holder["content"] for holder in holders)
    usual = max(contents, key=lambda content: contents[content])
    odd = [holder for holder in holders if holder["content"] != usual]
    pair = next(holder for holder in holders if holder["content"] == usual), odd[0]
    entries = [_read(holder["segment"], holder["offset"], found["sequence"]) for holder in pair]
    byte = next(
        (at for at, (one, other) in enumerate(zip(*entries, strict=False)) if one != other), min(map(len, entries))
    )
    where = tuple((holder["site"], holder["segment"], holder["offset"] + byte) for holder in pair)
    return JournalDifference(*place, tuple(holder["site"] for holder in odd), where, "it has another content there")


def _read(path: str, offset: int, sequence: int) -> bytes:
    """The bytes of the entry at this place."""
    scanner = RecordScanner(Place(Path(path), offset, sequence, b""))
    try:
        step = scanner.next_head()
        assert step is not None
        return scanner.segment.stored(offset, step[1], sequence)[: step[1].encoded_size]
    finally:
        scanner.close()
