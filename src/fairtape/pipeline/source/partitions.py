"""Partitions: the journals that a job reads, how far each can be read, and the offset ranges that tasks read.

A partition is one site's journal of one stripe. Its offset is the next sequence number to be read, with the digest of
the entry before it. A journal that was truncated after a Break and written again has other messages under the same
numbers, and the digest shows it. Only released messages are read, so rows that were read never change.

The driver plans by reading record heads; only executors read bodies.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Instant
from fairtape.journal import Damaged, JournalReader
from fairtape.journal.follow import ReleaseScanner
from fairtape.journal.format import Owner
from fairtape.journal.segment_list import firsts_between
from fairtape.journal.segments import Place, RecordScanner
from fairtape.pipeline.source.options import JournalSourceOptions

OFFSET_RANGE_ROWS_MAX: Final = 1 << 20  # of one task, without the rest of its last token: a second or two of work
TASK_RANGES_MAX: Final = 256
PARTITIONS_MAX: Final = 4_096
CLOCKS_APART_MAX: Final = 60 * SECOND  # between sites: tokens of RMP carry the times of their sites' clocks


class PartitionName(NamedTuple):
    """A stripe, and the site whose journal of it is read."""

    stripe: int
    site: int

    @property
    def owner(self) -> Owner:
        """The owner that every segment of the journal must name."""
        return Owner(*self)

    def __str__(self) -> str:
        return f"{self.stripe}/{self.site}"

    @classmethod
    def parse(cls, text: str) -> "PartitionName":
        """The inverse of `str`."""
        stripe, _, site = text.partition("/")
        return cls(int(stripe), int(site))


class Offset(NamedTuple):
    """The next number to be read of a partition, and the digest of the entry before it (empty: unknown)."""

    next: int
    digest: str = ""


Offsets = dict[PartitionName, Offset]


def offsets_to_json(offsets: Mapping[PartitionName, Offset]) -> dict[str, dict[str, Any]]:
    """Offsets as Spark writes them to a checkpoint."""
    return {str(name): {"next": offset.next, "digest": offset.digest} for name, offset in sorted(offsets.items())}


def offsets_from_json(kept: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Offsets from a checkpoint."""
    return {
        PartitionName.parse(name): Offset(int(offset["next"]), str(offset["digest"])) for name, offset in kept.items()
    }


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Consecutive numbers of one partition, and the place in its journal where reading begins."""

    stripe: int
    site: int
    first: int
    end: int  # the number after the last one
    digest: str  # of the last entry, where it is known
    segment: str  # the first file to read
    offset: int  # of a byte in it
    sequence: int  # of the entry there; at most `first`
    previous: bytes  # the digest of the entry before it

    @property
    def name(self) -> PartitionName:
        """The partition that it belongs to."""
        return PartitionName(self.stripe, self.site)

    @property
    def rows(self) -> int:
        """The count of its numbers."""
        return self.end - self.first

    @property
    def place(self) -> Place:
        """Where reading begins."""
        return Place(Path(self.segment), self.offset, self.sequence, self.previous)


class JournalPartition:
    """One journal, as the driver plans to read it."""

    def __init__(self, directory: Path, name: PartitionName) -> None:
        self.directory = directory
        self.name = name
        self._journal = JournalReader(directory)
        self._releases = ReleaseScanner(self._journal, name.owner)

    @property
    def first(self) -> int:
        """The first number of the journal. A site that joined later begins with a later number."""
        return self._place(1).sequence

    def since(self, instant: Instant) -> int:
        """The first number of a token acknowledged at or after this instant."""
        place = self._journal.place(1, instant)
        assert place is not None
        return place.sequence

    def released_end(self) -> int:
        """The number after the last released one. Reads the heads of what was added since the last call."""
        return self._releases.released_end()

    def token_offset(self, sequence: int, *, above: int) -> Offset:
        """The end of the last whole token before this number, or of the token that holds `above` if there is none."""
        place = self._place(sequence)
        if place.sequence > above or sequence <= above:
            begin = self._place(place.sequence)  # with the changes of formation before the token, which belong to it
            return Offset(begin.sequence, begin.previous.hex())
        scanner = RecordScanner(place, self.name.owner)
        try:
            while scanner.sequence <= above and scanner.next_head() is not None:
                pass
            return self.token_offset(scanner.sequence, above=0)
        finally:
            scanner.close()

    def check(self, offset: Offset) -> None:
        """Raise `Damaged` unless the journal still has what was read up to this offset."""
        place = self._place(offset.next)
        if place.sequence > offset.next:
            raise Damaged(place.path, 0, offset.next, f"the journal begins with sequence {place.sequence}")
        is_there = place.sequence == offset.next
        if offset.digest and (place.previous.hex() != offset.digest if is_there else self.ordered_end() > offset.next):
            reason = "the entries before it are not those that were read: the journal was truncated; read it anew"
            raise Damaged(place.path, place.offset, offset.next, reason)

    def offset_ranges(
        self, start: Offset, end: Offset, *, rows_max: int = OFFSET_RANGE_ROWS_MAX
    ) -> Iterator[OffsetRange]:
        """The numbers from `start` to before `end`, cut where segments begin and after `rows_max` numbers."""
        self.check(start)
        cuts = [start.next]
        cuts += firsts_between(self.directory, start.next, end.next)
        cuts.append(end.next)
        for first, stop in pairwise(cuts):
            for at in range(first, stop, rows_max):
                place = self._place(at)
                until = min(at + rows_max, stop)
                digest = end.digest if until == end.next else ""
                path, offset, sequence, previous = place
                yield OffsetRange(*self.name, at, until, digest, str(path), offset, sequence, previous)

    def ends_before(self, instant: Instant) -> int:
        """An upper bound of the numbers of tokens that were acknowledged before this instant."""
        return self.since(instant + CLOCKS_APART_MAX)

    def ordered_end(self) -> int:
        """The number after the last one that the site holds, released or not."""
        return self._releases.ordered_end()

    def _place(self, sequence: int) -> Place:
        """The entry that holds this number, or the first change of formation directly before it.

        That change may end the segment before. The place must not depend on where segments begin, because an offset
        has the digest of the entry before it.
        """
        place = self._journal.place(sequence, None)
        assert place is not None
        if sequence > 1 and place.sequence == int(place.path.stem) == sequence:
            return self._change_before(place) or place
        return place

    def _change_before(self, place: Place) -> Place | None:
        """The first of the changes of formation at the end of the segment before this place, if there are any."""
        before = self._journal.place(place.sequence - 1, None)
        assert before is not None
        digest = b""
        # Tasks that read it report damage.
        with suppress(Damaged), closing(RecordScanner(before, self.name.owner)) as scanner:
            while before.sequence < place.sequence and (step := scanner.next_head()) is not None:
                offset, head = step
                if head.sequence >= place.sequence:
                    return (
                        Place(scanner.segment.path, offset, place.sequence, digest) if head.changes_formation else None
                    )
                digest = scanner.segment.digest(offset + head.encoded_size, head.sequence)
        return None


class Partitions:
    """All partitions that a job reads. Every call of `partitions` also finds journals that are new."""

    def __init__(self, options: JournalSourceOptions) -> None:
        self._options = options
        self._partitions: dict[PartitionName, JournalPartition] = {}
        self._known: set[Path] = set()
        self._target: dict[PartitionName, int] | None = None

    def partitions(self) -> dict[PartitionName, JournalPartition]:
        """All that exist now, in the order of their names."""
        for directory in directories(self._options.journals):
            if directory not in self._known:
                self._look_into(directory)
        return self._partitions

    def start(self) -> Offsets:
        """The offset at which reading begins, for every partition that exists."""
        return {name: self._begin(partition) for name, partition in self.partitions().items()}

    def settle(self) -> None:
        """Read no further than to the present end (the trigger `availableNow`)."""
        self._target = {name: self._end(partition) for name, partition in self.partitions().items()}

    def latest(self, start: Offsets, rows_max: int | None = None) -> Offsets:
        """How far every partition can be read: together about `rows_max` numbers after `start` at most."""
        reached = dict(start)
        ready = {
            name: partition
            for name, partition in self.partitions().items()
            if self._target is None or name in self._target
        }
        left = rows_max
        for place, (name, partition) in enumerate(ready.items()):
            begin = start.get(name) or self._begin(partition)
            end = self._end(partition) if self._target is None else self._target[name]
            share = None if left is None else max(left // (len(ready) - place), 1)
            reached[name] = offset = self._advance(partition, begin, end, share)
            if left is not None:
                left = max(left - (offset.next - begin.next), 0)
        return reached

    def tasks(self, start: Offsets, end: Offsets) -> list[list[OffsetRange]]:
        """The offset ranges between these, by task. Small ones share a task, so that there are few tasks and files."""
        found = self.partitions()
        offset_ranges = [
            offset_range
            for name, offset in end.items()
            for offset_range in self._partition_of(found, name).offset_ranges(
                start.get(name) or self._begin(found[name]), offset
            )
        ]
        return list(_bundled(offset_ranges))

    def _advance(self, partition: JournalPartition, begin: Offset, end: int, rows_max: int | None) -> Offset:
        if end <= begin.next:
            partition.check(begin)
            return begin
        if rows_max is not None and begin.next + rows_max < end:
            return partition.token_offset(begin.next + rows_max, above=begin.next)
        last = self._options.last
        return Offset(end) if last is not None and end == last + 1 else partition.token_offset(end, above=end)

    def _begin(self, partition: JournalPartition) -> Offset:
        if (kept := self._options.start.get(str(partition.name))) is not None:
            return Offset(int(kept["next"]), str(kept["digest"]))
        first = max(self._options.first, partition.first)
        return Offset(first if self._options.since is None else max(first, partition.since(self._options.since)))

    def _end(self, partition: JournalPartition) -> int:
        end = partition.ordered_end() if self._options.ordered else partition.released_end()
        if self._options.until is not None:
            end = min(end, partition.ends_before(self._options.until))
        return end if self._options.last is None else min(end, self._options.last + 1)

    def _partition_of(self, found: Mapping[PartitionName, JournalPartition], name: PartitionName) -> JournalPartition:
        if name not in found:
            raise UserError(
                f"journals {', '.join(self._options.journals)} hold no stripe {name.stripe} of site {name.site}, which "
                "was read before; name its directory again"
            )
        return found[name]

    def _look_into(self, directory: Path) -> None:
        owner = JournalReader(directory).owner()
        if owner is None:
            return
        name = PartitionName(*owner)
        self._known.add(directory)
        if not self._options.wants(name.stripe, name.site):
            return
        if name in self._partitions:
            raise duplicate_partition(name.owner, self._partitions[name].directory, directory)
        if len(self._partitions) == PARTITIONS_MAX:
            raise UserError(f"journals name more than {PARTITIONS_MAX:,} directories; choose some by sites or stripes")
        self._partitions[name] = JournalPartition(directory, name)
        self._partitions = dict(sorted(self._partitions.items()))


def directories(journals: Sequence[str]) -> list[Path]:
    """The directories that are named, with patterns resolved. A pattern may match nothing; a plain name must exist."""
    found: list[Path] = []
    for name in journals:
        literal = Path(name)  # a directory may be called like a pattern
        named = [literal] if literal.is_dir() else sorted(map(Path, glob(name)))  # noqa: PTH207 - may be absolute
        matches = [path for path in named if path.is_dir()]
        if not matches and not set("*?[") & set(name):
            raise UserError(f"journals names {name!r}, which is not a directory; name the directories that sites write")
        found += matches
    return list(dict.fromkeys(path.absolute() for path in found))


def duplicate_partition(owner: Owner, one: Path, other: Path) -> UserError:
    """The error for two directories that hold the same partition."""
    return UserError(
        f"journals {str(one)!r} and {str(other)!r} are both of stripe {owner.stripe} and site {owner.site}; "
        "name one of them"
    )


def _bundled(offset_ranges: Sequence[OffsetRange]) -> Iterator[list[OffsetRange]]:
    bundle: list[OffsetRange] = []
    rows = 0
    for offset_range in offset_ranges:
        if bundle and (rows + offset_range.rows > OFFSET_RANGE_ROWS_MAX or len(bundle) == TASK_RANGES_MAX):
            yield bundle
            bundle, rows = [], 0
        bundle.append(offset_range)
        rows += offset_range.rows
    if bundle:
        yield bundle
