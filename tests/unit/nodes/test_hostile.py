"""Hostile bytes raise nothing, change nothing and are all counted: at a receiver, at a source, at the journal reader.

`make test` throws thirty thousand; the environment variable FAIRTAPE_DATAGRAMS asks for more:

    FAIRTAPE_DATAGRAMS=1000000 python -m pytest tests/unit/nodes/test_hostile.py
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

import pytest

from fairtape.core.effects import FetchChunks, Multicast, Ordered, Recovered, Truncate
from fairtape.core.entries import Extract, Position
from fairtape.core.instants import MILLISECOND, SECOND, Instant
from fairtape.journal import Damaged, JournalReader, JournalWriter, SyncPolicy, verify
from fairtape.nodes.coordinator.primary_loop import Phase
from fairtape.nodes.receiver import Receiver
from fairtape.nodes.source import Source
from fairtape.nodes.source_group import SourceGroup
from fairtape.ring.membership.formation import Formation
from fairtape.simulation.simulated_store import MemoryFormationStore
from fairtape.wire.frames import Control, Hole, Progress, Request, TokenAck
from fairtape.wire.membership import NUMBERED_MAX, MembershipState
from unit.journal import journal_values
from unit.nodes.boundary_values import to_a_leader, to_a_site
from unit.nodes.hostile_values import Forger, snapshot
from unit.nodes.test_coordinator_server import Served
from unit.nodes.test_site import FIRST, NOW, ActiveSite
from unit.ring.loop_values import report_of
from unit.ring.ring_values import (
    OTHER_SOURCE,
    SOURCE,
    STARTS_AT,
    Signer,
    ack,
    block,
    formation,
    named,
    only,
    receive,
    receiver,
    run_until,
    source,
)

DATAGRAMS: Final = int(os.environ.get("FAIRTAPE_DATAGRAMS", "30000"))
AT_RECEIVERS: Final = DATAGRAMS * 6 // 10
AT_SOURCES: Final = DATAGRAMS * 3 // 10
AUTHENTIC: Final = DATAGRAMS // 12  # machines that receive authentic boundary values
AT_JOURNALS: Final = DATAGRAMS - AT_RECEIVERS - AT_SOURCES
BATCH: Final = 200  # datagrams between two looks at the whole state

LAYOUT: Final = formation((1, 2, 3, 4))
SOURCES: Final = (SOURCE, OTHER_SOURCE)


def elsewhere(layout: Formation, signer: Signer) -> list[bytes]:
    """Authentic datagrams of other formations and stripes, and for other nodes."""
    foreign = replace(layout, number=layout.number + 1)
    foreign_messages: list[Control] = [
        ack(foreign, 3, 9, [named(9, node=OTHER_SOURCE)]),
        Request(0, foreign.number, 3, (1, 2), (named(1),)),
        TokenAck(0, foreign.number, 2, 5),
        ack(layout, 3, 9, [named(9)], stripe=1),
        Request(1, layout.number, 3, (1,), (named(1),)),
    ]
    messages: list[Control] = [Hole(0, layout.number, 3, named(1, 2)), Progress(0, layout.number, 3, 1, 4, 2, 4)]
    return [
        *map(signer.sign, foreign_messages),
        *(signer.sign_for_source(OTHER_SOURCE, message) for message in messages),
        block(9, stripe=1),
        block(9, incarnation=1, node=OTHER_SOURCE, stripe=2),
    ]


class ReceiverTarget:
    """A receiver at work: held blocks, holes, waiting commits, and one of several situations."""

    def __init__(self, situation: str, *, timed: bool = True) -> None:
        last = (1, 5) if situation == "token site" else (5, 1)  # who has token 4
        self.layout = formation((2, 3, 4, *last), resilience=1, timed=timed)
        self.machine: Receiver = receiver(1, self.layout)
        self.received: list[bytes] = []
        self._voice = Signer()
        self.kept = elsewhere(self.layout, self._voice)
        self._tell(complete=situation == "token site")
        waited = self.layout.timing.reform_delay if situation == "reforming" else 10 * MILLISECOND
        self.now: Instant = self.layout.scheduled_at(3) + waited
        run_until(self.machine, self.now)
        for datagram in list(self.received):  # a repeated block is answered once per retry period: that is over now
            receive(self.machine, datagram, self.now)
        self.machine.drain()

    def _tell(self, *, complete: bool) -> None:
        layout, signer = self.layout, self._voice
        at = layout.scheduled_at(1)
        for first, node in ((1, SOURCE), (3, SOURCE), (1, OTHER_SOURCE), (2, OTHER_SOURCE), (4, OTHER_SOURCE)):
            messages = (b"one", b"two") if (first, node) == (1, SOURCE) else (b"alone",)
            self._say(block(first, messages, node=node), at)
        self._say(block(1, node=SOURCE, incarnation=2), at)
        if complete:
            self._say(block(4, (b"a", b"b", b"c")), at)
        for token, sequence, ranges in (
            (1, 1, [named(1, 2), named(1, node=OTHER_SOURCE)]),
            (2, 4, [named(3)]),
            (3, 5, [named(4, 3)]),
        ):
            self._say(signer.sign(ack(layout, token, sequence, ranges)), layout.scheduled_at(token) + 1)
        self._say(signer.sign(Request(0, layout.number, 4, (1,), (named(1, 2),))), layout.scheduled_at(3) + 2)

    def _say(self, datagram: bytes, at: Instant) -> None:
        run_until(self.machine, at)
        receive(self.machine, datagram, at)
        self.received.append(datagram)


class SourceTarget:
    """A source with acknowledged blocks, blocks in flight and received control datagrams; alone or in a group."""

    def __init__(self, *, grouped: bool = False) -> None:
        self.source = source()
        others = [source(node=OTHER_SOURCE, incarnation=2)]
        self.machine: Source | SourceGroup = SourceGroup([self.source, *others]) if grouped else self.source
        self.received: list[bytes] = []
        signer = Signer()
        self.kept = [*elsewhere(LAYOUT, signer), signer.ack(LAYOUT, 2, 5, [named(1, node=OTHER_SOURCE)])]
        self.now: Instant = STARTS_AT
        for number in range(12):
            self.source.publish([b"trade %d" % number], self.now)
        sent = [datagram for effect in only(Multicast, self.machine.drain()) for datagram in effect.datagrams]
        datagrams = [
            signer.ack(LAYOUT, 1, 1, [named(1, 3), named(1, node=OTHER_SOURCE)]),
            signer.sign_for_source(SOURCE, Progress(0, LAYOUT.number, 2, 1, 6, 2, 6)),
            signer.sign_for_source(SOURCE, Hole(0, LAYOUT.number, 3, named(8, 2))),
        ]
        for datagram in datagrams:
            receive(self.machine, datagram, self.now)
            self.received.append(datagram)
        self.kept += sent
        self.machine.drain()


def strike(target: ReceiverTarget | SourceTarget, datagrams: int, seed: int) -> Counter[str]:
    """Send them all; returns how they were counted."""
    machine, now = target.machine, target.now
    forger = Forger(Random(seed), received=target.received, kept=target.kept, sources=SOURCES)
    deadline, before = machine.deadline(), snapshot(machine)
    counted = counts_of(machine)
    for thrown in range(1, datagrams + 1):
        machine.receive(forger.forge(), now)
        assert machine.drain() == []
        assert counts_of(machine).total() == counted.total() + thrown
        if thrown % BATCH == 0 or thrown == datagrams:
            assert machine.deadline() == deadline
            assert snapshot(machine) == before
    return counts_of(machine) - counted


def counts_of(machine: Receiver | Source | SourceGroup) -> Counter[str]:
    members = machine.sources.values() if isinstance(machine, SourceGroup) else ()
    return sum((member.counts for member in members), Counter(machine.counts))


SITUATIONS: Final = ("recovering", "token site", "reforming")


@pytest.mark.parametrize("situation", SITUATIONS)
def test_hostile_datagrams_change_nothing_at_a_receiver(situation: str) -> None:
    counted = strike(ReceiverTarget(situation), AT_RECEIVERS // 4, seed=len(situation))
    assert counted.total() == AT_RECEIVERS // 4
    assert set(counted) - {"own"} == {"malformed", "forged", "replayed", "duplicate", "foreign"}


def test_hostile_datagrams_change_nothing_at_an_event_driven_receiver() -> None:
    datagrams = AT_RECEIVERS - 3 * (AT_RECEIVERS // 4)
    assert strike(ReceiverTarget("recovering", timed=False), datagrams, seed=5).total() == datagrams


def test_hostile_datagrams_change_nothing_at_a_source() -> None:
    counted = strike(SourceTarget(), AT_SOURCES, seed=6)
    assert counted.total() == AT_SOURCES
    assert set(counted) == {"malformed", "forged", "replayed", "acks", "acks_of_others"}


def test_hostile_datagrams_change_nothing_at_a_group_of_sources() -> None:
    counted = strike(SourceTarget(grouped=True), AT_SOURCES, seed=7)
    assert counted.total() == AT_SOURCES
    assert set(counted) == {"malformed", "forged", "replayed", "acks", "acks_of_others", "other_incarnation"}


def test_the_targets_are_in_the_middle_of_their_work() -> None:
    """An idle machine has no state to corrupt: these have holes, recoveries, waiting commits and blocks in flight."""
    recovering, token_site, reforming = (ReceiverTarget(situation).machine for situation in SITUATIONS)
    assert len(recovering._recoveries) > 0
    assert token_site._token.held == 4
    assert reforming.reforming is not None
    for machine in (recovering, token_site, reforming):
        assert machine.complete_through >= 2
        assert machine._buffer.with_holes()
    assert token_site.released_through < token_site.complete_through
    assert SourceTarget().source.in_flight > 0


def test_a_snapshot_sees_every_change() -> None:
    """A check of the check: a genuine block, an acknowledgment, a request and the time each change it."""
    target = ReceiverTarget("recovering")
    machine, seen = target.machine, [snapshot(target.machine)]
    for datagram in (
        block(4, (b"a", b"b", b"c")),
        Signer(first_serial=1 << 40).sign(Request(0, target.layout.number, 2, (1,), ())),
        block(3, node=OTHER_SOURCE),
    ):
        machine.receive(datagram, target.now)
        seen.append(snapshot(machine))
    machine.wake(target.now)
    seen.append(snapshot(machine))
    assert all(one != other for one, other in pairwise(seen))


class JournalTarget:
    """A journal of two small segments, whose files are corrupted one at a time and restored."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.entries = journal_values.first(8, seed=3, size_max=12)
        with JournalWriter.open(directory, stripe=3, site=1, sync=SyncPolicy.NEVER, segment_size_max=1_024) as writer:
            for position, ordered in enumerate(self.entries):
                writer.append(ordered, ordered.acknowledged_at)
                if position:
                    journal_values.mark(writer, self.entries[position - 1])
        self.files = {path: path.read_bytes() for path in journal_values.segments(directory)}
        assert len(self.files) > 1
        self.whole = verify(directory)
        assert self.whole.sound

    def judged(self, path: Path, bent: bytes) -> str:
        """Read and audit a corrupted file: never more than was written, and never without an error."""
        overwrite(path, bent)
        try:
            return self._read(bent == self.files[path])
        finally:
            assert path.read_bytes() == bent
            overwrite(path, self.files[path])

    def _read(self, unchanged: bool) -> str:
        found: list[Ordered] = []
        damage: Damaged | None = None
        try:
            with JournalReader.open(self.directory).entries(ordered=True) as cursor:
                found.extend(entry.ordered for entry in cursor)
        except Damaged as complaint:
            damage = complaint
        assert found == self.entries[: len(found)]
        report = verify(self.directory)
        if unchanged:
            assert report == self.whole
            return "unchanged"
        if not report.sound:
            return "damaged"
        assert damage is None
        if report.unfinished:
            return "unfinished"
        if (report.entries, report.released_sequence) == (self.whole.entries, self.whole.released_sequence):
            assert self._lost_only_a_checkpoint()
            return "slower"
        assert (report.entries, report.released_sequence) < (self.whole.entries, self.whole.released_sequence)
        return "shorter"

    def _lost_only_a_checkpoint(self) -> bool:
        """A checkpoint only repeats the entries before it: without it a writer just reads more."""
        for path, content in self.files.items():
            bent = path.read_bytes()
            if bent != content and not (content.startswith(bent) and content[len(bent) :][:1] == b"C"):
                return False
        return True


def overwrite(path: Path, content: bytes) -> None:
    """In place: some file systems wait for the disk when a file is emptied first."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def bent_files(target: JournalTarget, chance: Random) -> Iterator[tuple[Path, bytes]]:
    """One hostile file after the other."""
    paths = list(target.files)
    forgers = {
        path: Forger(Random(position), received=[content], kept=list(target.files.values()), sources=SOURCES)
        for position, (path, content) in enumerate(target.files.items())
    }
    while True:
        path = chance.choice(paths)
        yield path, forgers[path].forge()


def test_hostile_bytes_change_nothing_at_the_journal_reader(tmp_path: Path) -> None:
    target = JournalTarget(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    outcomes: Counter[str] = Counter()
    for path, bent in bent_files(target, Random(7)):
        outcomes[target.judged(path, bent)] += 1
        if outcomes.total() == AT_JOURNALS:
            break
    assert outcomes.total() == AT_JOURNALS
    assert outcomes["damaged"] > outcomes["shorter"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert {path: path.read_bytes() for path in target.files} == target.files


def test_boundary_values_in_authentic_datagrams_raise_nothing_at_a_site() -> None:
    """Not even what a server or another member says, with the highest numbers, ends a site."""
    chance = Random(1)
    for _ in range(AUTHENTIC):
        active = ActiveSite()
        active.install(chance.choice((FIRST, replace(FIRST, first_token=11, starts_at=NOW, keeper=3))))
        now = NOW
        for _ in range(6):
            now += chance.choice((1, MILLISECOND, 30 * MILLISECOND, SECOND))
            active.receive(to_a_site(chance, now), now)
            for effect in active.site.drain():
                if isinstance(effect, FetchChunks):
                    end = Position(effect.formation, effect.token)
                    active.site.fetched_chunks(effect.ticket, Extract([], end, 0, exhausted=True), now)
                elif isinstance(effect, Truncate):
                    active.site.recovered(Recovered.nothing(), now)
            active.site.wake(now)
            active.site.drain()


def test_boundary_values_in_authentic_reports_raise_nothing_at_a_reformation_server() -> None:
    """Decision 74, Plausible reports."""
    chance = Random(2)
    for _ in range(AUTHENTIC // 10):
        served = Served(101, MemoryFormationStore())
        served.run(NOW, NOW + 20 * MILLISECOND)
        now = NOW + 20 * MILLISECOND
        for _ in range(25):
            now += chance.choice((10 * MILLISECOND, 40 * MILLISECOND, 300 * MILLISECOND))
            formation = served.server.primary.formation
            number, first = (formation.number, formation.first_token) if formation is not None else (0, 0)
            fenced = served.server.primary.phase in (Phase.FENCING, Phase.HALTED)
            state = MembershipState.FENCED if fenced else MembershipState.MEMBER
            lies = chance.random() < 0.4
            for site in (2,) if lies else (1, 2, 3):
                report = report_of(
                    site, formation=number, complete_through=first + 3, asked_at=now, membership_state=state
                )
                served.receive(to_a_leader(chance, report) if lies else report, now)
        assert max(entry.number for entry in served.store.log) < NUMBERED_MAX
