"""Lanes: the journals that a job reads, how far each may be read, and stretches of them to be read in parallel.

A lane is one site's journal of one stripe. Its offset is the number that is due next, together with the digest of the
entry before it: a journal that was cut after a Break and grew again bears other messages under the same numbers, and
the digest tells. Only what the site released is read, so what was read once never changes.

The driver plans and hops over heads; nobody but an executor reads a body.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from fairtape.core.effects import Release
from fairtape.core.errors import UserError
from fairtape.core.instants import SECOND, Instant
from fairtape.journal import Damaged, JournalReader
from fairtape.journal.format import HEADER_SIZE, Owner
from fairtape.journal.segments import Place, RecordScanner, Segment
from fairtape.pipeline.source.options import Options

STRETCH_ROWS_MAX: Final = 1 << 20  # of one task, but for the last token: a second or two of work
TASK_STRETCHES_MAX: Final = 256
LANES_MAX: Final = 4_096
CLOCKS_APART_MAX: Final = 60 * SECOND  # tokens of RMP bear their sites' clocks; beyond it nobody looks for earlier ones


class PartitionName(NamedTuple):
    """Which order, and who wrote it down."""

    stripe: int
    site: int

    @property
    def owner(self) -> Owner:
        """What every segment of the lane must say of itself."""
        return Owner(*self)

    def __str__(self) -> str:
        return f"{self.stripe}/{self.site}"

    @classmethod
    def parse(cls, text: str) -> "PartitionName":
        """The lane of which this is the text."""
        stripe, _, site = text.partition("/")
        return cls(int(stripe), int(site))


class Offset(NamedTuple):
    """How far a lane has been read: the number due next, and the digest of the entry before it (empty: unknown)."""

    next: int
    digest: str = ""


Offsets = dict[PartitionName, Offset]


def offsets_to_json(offsets: Mapping[PartitionName, Offset]) -> dict[str, dict[str, Any]]:
    """Offsets as Spark keeps them in a checkpoint."""
    return {str(name): {"next": mark.next, "digest": mark.digest} for name, mark in sorted(offsets.items())}


def offsets_from_json(kept: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Offsets from a checkpoint."""
    return {PartitionName.parse(name): Offset(int(mark["next"]), str(mark["digest"])) for name, mark in kept.items()}


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Consecutive numbers of one lane, and the place in its journal where reading begins."""

    stripe: int
    site: int
    first: int
    end: int  # the number after the last one
    digest: str  # of the last entry, where it is known: with it the stretch ends
    segment: str  # the file to begin with
    offset: int
    sequence: int  # of the entry there; at most `first`
    previous: bytes  # the digest of the entry before it

    @property
    def name(self) -> PartitionName:
        """Its lane."""
        return PartitionName(self.stripe, self.site)

    @property
    def rows(self) -> int:
        """How many numbers it has."""
        return self.end - self.first

    @property
    def place(self) -> Place:
        """Where reading begins."""
        return Place(Path(self.segment), self.offset, self.sequence, self.previous)


class Partition:
    """One journal as the driver follows it."""

    def __init__(self, directory: Path, name: PartitionName) -> None:
        self.directory = directory
        self.name = name
        self._journal = JournalReader(directory)
        self._scanner: RecordScanner | None = None
        self._released = 0

    @property
    def first(self) -> int:
        """The first number of the journal; a site that joined later begins later."""
        return self._place(1).sequence

    def since(self, instant: Instant) -> int:
        """The first number of a token acknowledged at or after this instant."""
        place = self._journal.place(1, instant)
        assert place is not None
        return place.sequence

    def released_end(self) -> int:
        """The number behind the last one that was released, found by hopping over what was added since last time."""
        if self._scanner is None or self._scanner.is_truncated:
            self._begin_to_follow()
        assert self._scanner is not None
        while (step := self._scanner.next_record()) is not None:
            if isinstance(mark := step[1], Release):
                self._released = mark.sequence + mark.count
        return self._released

    def mark(self, sequence: int, *, above: int) -> Offset:
        """The end of the last whole token before this number, or of the one that holds `above` if that is none."""
        place = self._place(sequence)
        if place.sequence > above or sequence <= above:
            begin = self._place(place.sequence)  # with the changes of formation before the token, which come with it
            return Offset(begin.sequence, begin.previous.hex())
        scanner = RecordScanner(place, self.name.owner)
        try:
            while scanner.sequence <= above and scanner.next_head() is not None:
                pass
            return self.mark(scanner.sequence, above=0)
        finally:
            scanner.close()

    def check(self, mark: Offset) -> None:
        """See that this lane still is what was read up to this mark."""
        place = self._place(mark.next)
        if place.sequence > mark.next:
            raise Damaged(place.path, 0, mark.next, f"the journal begins only with sequence {place.sequence}")
        stands = place.sequence == mark.next
        if mark.digest and (place.previous.hex() != mark.digest if stands else self.ordered_end() > mark.next):
            reason = "other entries stand before it than were read: the journal was cut and went on; read it anew"
            raise Damaged(place.path, place.offset, mark.next, reason)

    def stretches(self, start: Offset, end: Offset, *, rows_max: int = STRETCH_ROWS_MAX) -> Iterator[OffsetRange]:
        """The numbers from `start` on up to `end`, cut where segments begin and where there are too many."""
        self.check(start)
        cuts = [start.next]
        cuts += [first for first in self._segment_firsts() if start.next < first < end.next]
        cuts.append(end.next)
        for first, stop in pairwise(cuts):
            for at in range(first, stop, rows_max):
                place = self._place(at)
                until = min(at + rows_max, stop)
                digest = end.digest if until == end.next else ""
                path, offset, sequence, previous = place
                yield OffsetRange(*self.name, at, until, digest, str(path), offset, sequence, previous)

    def ends_before(self, instant: Instant) -> int:
        """A number behind every token that was acknowledged before this instant; cheap, so it may be higher."""
        for path in self._journal.paths():
            with Segment(path) as segment:
                if segment.header.tip.latest_at >= instant + CLOCKS_APART_MAX:
                    return segment.header.tip.sequence
        return self.released_end()

    def ordered_end(self) -> int:
        """The number behind the last one that the site holds, released or not."""
        self.released_end()
        assert self._scanner is not None
        return self._scanner.sequence

    def _begin_to_follow(self) -> None:
        if self._scanner is not None:
            self._scanner.close()
        last = self._journal.paths()[-1]
        with Segment(last) as segment:
            tip = segment.header.tip
        self._scanner = RecordScanner(Place(last, HEADER_SIZE, tip.sequence, tip.digest), self.name.owner)
        self._released = tip.released

    def _place(self, sequence: int) -> Place:
        """The entry that holds this number, or the first change of formation before it, whichever segment it ends.

        A place must not depend on where segments begin: offsets name the entry before it by its digest.
        """
        place = self._journal.place(sequence, None)
        assert place is not None
        if sequence > 1 and place.sequence == int(place.path.stem) == sequence:
            return self._change_before(place) or place
        return place

    def _change_before(self, place: Place) -> Place | None:
        """The first of the changes of formation with which the segment before this place ends, if there are any."""
        before = self._journal.place(place.sequence - 1, None)
        assert before is not None
        digest = b""
        with (
            suppress(Damaged),
            closing(RecordScanner(before, self.name.owner)) as scanner,
        ):  # damage is for those who read it
            while before.sequence < place.sequence and (step := scanner.next_head()) is not None:
                offset, head = step
                if head.sequence >= place.sequence:
                    return (
                        Place(scanner.segment.path, offset, place.sequence, digest) if head.changes_formation else None
                    )
                digest = scanner.segment.digest(offset + head.encoded_size, head.sequence)
        return None

    def _segment_firsts(self) -> list[int]:
        return [int(path.stem) for path in self._journal.paths()]


class Partitions:
    """All lanes that a job reads. Journals that begin later are found when somebody asks again."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._lanes: dict[PartitionName, Partition] = {}
        self._known: set[Path] = set()
        self._target: dict[PartitionName, int] | None = None

    def lanes(self) -> dict[PartitionName, Partition]:
        """All that are there now, in the order of their names."""
        for directory in directories(self._options.journals):
            if directory not in self._known:
                self._look_into(directory)
        return self._lanes

    def start(self) -> Offsets:
        """Where reading begins, of every lane that is there."""
        return {name: self._begin(lane) for name, lane in self.lanes().items()}

    def settle(self) -> None:
        """Read no further than to what is there now (the trigger `availableNow`)."""
        self._target = {name: self._end(lane) for name, lane in self.lanes().items()}

    def latest(self, start: Offsets, rows_max: int | None = None) -> Offsets:
        """How far every lane can be read, together at most about `rows_max` numbers beyond `start`."""
        reached = dict(start)
        ready = {name: lane for name, lane in self.lanes().items() if self._target is None or name in self._target}
        left = rows_max
        for place, (name, lane) in enumerate(ready.items()):
            begin = start.get(name) or self._begin(lane)
            end = self._end(lane) if self._target is None else self._target[name]
            share = None if left is None else max(left // (len(ready) - place), 1)
            reached[name] = mark = self._advance(lane, begin, end, share)
            if left is not None:
                left = max(left - (mark.next - begin.next), 0)
        return reached

    def tasks(self, start: Offsets, end: Offsets) -> list[list[OffsetRange]]:
        """What lies between, small stretches together, so that there are no more tasks (and files) than work."""
        found = self.lanes()
        stretches = [
            stretch
            for name, mark in end.items()
            for stretch in self._lane(found, name).stretches(start.get(name) or self._begin(found[name]), mark)
        ]
        return list(_bundled(stretches))

    def _advance(self, lane: Partition, begin: Offset, end: int, rows_max: int | None) -> Offset:
        if end <= begin.next:
            lane.check(begin)
            return begin
        if rows_max is not None and begin.next + rows_max < end:
            return lane.mark(begin.next + rows_max, above=begin.next)
        last = self._options.last
        return Offset(end) if last is not None and end == last + 1 else lane.mark(end, above=end)

    def _begin(self, lane: Partition) -> Offset:
        if (kept := self._options.start.get(str(lane.name))) is not None:
            return Offset(int(kept["next"]), str(kept["digest"]))
        first = max(self._options.first, lane.first)
        return Offset(first if self._options.since is None else max(first, lane.since(self._options.since)))

    def _end(self, lane: Partition) -> int:
        end = lane.ordered_end() if self._options.ordered else lane.released_end()
        if self._options.until is not None:
            end = min(end, lane.ends_before(self._options.until))
        return end if self._options.last is None else min(end, self._options.last + 1)

    def _lane(self, found: Mapping[PartitionName, Partition], name: PartitionName) -> Partition:
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
        if name in self._lanes:
            raise both_of(name.owner, self._lanes[name].directory, directory)
        if len(self._lanes) == LANES_MAX:
            raise UserError(f"journals name more than {LANES_MAX:,} directories; choose some by sites or stripes")
        self._lanes[name] = Partition(directory, name)
        self._lanes = dict(sorted(self._lanes.items()))


def directories(journals: Sequence[str]) -> list[Path]:
    """The directories that are named, patterns resolved. A pattern may fit nothing yet; a plain name must exist."""
    found: list[Path] = []
    for name in journals:
        literal = Path(name)  # a directory may be called like a pattern
        named = [literal] if literal.is_dir() else sorted(map(Path, glob(name)))  # noqa: PTH207 - may be absolute
        matches = [path for path in named if path.is_dir()]
        if not matches and not set("*?[") & set(name):
            raise UserError(f"journals names {name!r}, which is no directory; name the directories that sites write")
        found += matches
    return list(dict.fromkeys(path.absolute() for path in found))


def both_of(owner: Owner, one: Path, other: Path) -> UserError:
    """What to raise where two directories claim one lane."""
    return UserError(
        f"journals {str(one)!r} and {str(other)!r} are both of stripe {owner.stripe} and site {owner.site}; "
        "name one of them"
    )


def _bundled(stretches: Sequence[OffsetRange]) -> Iterator[list[OffsetRange]]:
    bundle: list[OffsetRange] = []
    rows = 0
    for stretch in stretches:
        if bundle and (rows + stretch.rows > STRETCH_ROWS_MAX or len(bundle) == TASK_STRETCHES_MAX):
            yield bundle
            bundle, rows = [], 0
        bundle.append(stretch)
        rows += stretch.rows
    if bundle:
        yield bundle
