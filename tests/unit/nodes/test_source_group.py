"""A group of sources sends what its sources would send alone, byte for byte, and costs one machine."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairtape.core.effects import Multicast, Notice
from fairtape.core.instants import MILLISECOND, NEVER, Instant
from fairtape.nodes.message_authentication import MessageAuthenticator
from fairtape.nodes.source import Source
from fairtape.nodes.source_group import SourceGroup
from fairtape.ring.sender.transmission import BURST_BLOCKS_MAX
from fairtape.wire.frames import Ack, Control, Hole, NodeId, Progress, Range, TokenAck, decode_block, decode_control
from fairtape.wire.seals import Keys, Marker
from unit.ring.ring_values import STARTS_AT, TIMING, only

SITES = (1, 2, 3)
FIRST = 101
KEYS = Keys.from_secret(b"a group", SITES, range(FIRST, FIRST + 400))
FORMATION = 7
NOW = STARTS_AT


def sources(count: int, *, resilience: int = 0, datagram_max: int = 1_400) -> list[Source]:
    return [
        Source(
            me=node,
            keys=KEYS.for_source(node),
            timing=TIMING,
            resilience=resilience,
            incarnation=1_000 + node,
            datagram_max=datagram_max,
        )
        for node in range(FIRST, FIRST + count)
    ]


class Sites:
    """What token sites send: acknowledgments to all sources, holes and progress to one."""

    def __init__(self) -> None:
        self._authenticators = {
            site: MessageAuthenticator(me=site, keys=KEYS, peers=KEYS.sites, first_serial=1) for site in SITES
        }
        self.token = 0
        self.sequence = 1

    def ack(self, ranges: Sequence[Range], *, formation: int = FORMATION, forged: NodeId | None = None) -> bytes:
        self.token += 1
        first, marks = self.sequence, []
        for named in ranges:
            mark = Marker(KEYS.sources[named.source], stripe=0).mark(formation, self.token, self.sequence, named)
            marks.append(bytes(8) if named.source == forged else mark)
            self.sequence += named.count
        sender = SITES[self.token % len(SITES)]
        whole = Ack(0, formation, sender, self.token, first, 0, 0, 0, 1, tuple(ranges), tuple(marks))
        return self._authenticators[sender].for_sites(whole)

    def reply(self, to: NodeId, message: Control) -> bytes:
        return self._authenticators[message.sender].for_source(to, message)


def blocks_of(group: SourceGroup) -> list[bytes]:
    return [datagram for effect in only(Multicast, group.drain()) for datagram in effect.datagrams]


def acknowledged(source: Source) -> Range:
    """Everything that the source has sent."""
    return Range(source.me, source.incarnation, 1, source.next_number - 1)


class Twins:
    """The same sources in a group and alone. Both get the same calls, and must send the same.

    What one source verifies, all sources of a group know. So a source that is alone learns of every acknowledgment
    that any of the others has verified.
    """

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        count, resilience = chance.randint(1, 6), chance.randint(0, 1)
        datagram_max = chance.choice((256, 1_400))
        self.alone = sources(count, resilience=resilience, datagram_max=datagram_max)
        self.group = SourceGroup(sources(count, resilience=resilience, datagram_max=datagram_max))
        self.sites = Sites()
        self.now: Instant = NOW
        self.formation = FORMATION
        self.heard: list[tuple[int | None, bytes]] = []

    def act(self) -> None:
        acts = (self.publish, self.publish, self.acknowledge, self.acknowledge, self.reply, self.disturb, self.wait)
        self.chance.choice(acts)()
        self.finish()

    def publish(self) -> None:
        chance, place = self.chance, self.chance.randrange(len(self.alone))
        one, other = self.alone[place], self.group.sources[FIRST + place]
        if chance.random() < 0.5:
            records = bytes(16 * chance.choice((1, 20, 4_000)))
            taken = [each.publish_records(records, 16, self.now) for each in (one, other)]
        else:
            messages = [chance.randbytes(chance.choice((1, 60, 3_000))) for _ in range(chance.randint(1, 30))]
            taken = [each.publish(messages, self.now) for each in (one, other)]
        assert taken[0] == taken[1]

    def acknowledge(self) -> None:
        chance = self.chance
        if chance.random() < 0.05:
            self.formation += 1
        ranges = []
        for source in chance.sample(self.alone, chance.randint(0, len(self.alone))):
            first = source.acked_through + 1
            count = chance.randint(1, max(source.next_number - first, 1))
            ranges.append(Range(source.me, source.incarnation, first, count))
            if chance.random() < 0.1:
                ranges.append(Range(source.me, source.incarnation, first + count, 1))
        ranges.append(Range(FIRST + 399, 5, 1, 3))  # a source of another process
        chance.shuffle(ranges)
        forged = chance.choice(self.alone).me if chance.random() < 0.1 else None
        self.hear(None, self.sites.ack(ranges, formation=self.formation, forged=forged))

    def reply(self) -> None:
        """A hole or a progress, sometimes of another incarnation, sometimes after a Break."""
        chance, place = self.chance, self.chance.randrange(len(self.alone))
        source = self.alone[place]
        sent, incarnation = source.next_number, source.incarnation + chance.choice((0, 0, 0, 10_000))
        first = chance.randint(1, sent)
        message: Hole | Progress
        if chance.random() < 0.5:
            message = Hole(0, self.formation, 2, Range(source.me, incarnation, first, chance.randint(1, 50)))
        else:
            settled = chance.randint(1, first)
            message = Progress(0, self.formation, 2, incarnation, first, self.sites.token, settled)
        self.hear(place, self.sites.reply(source.me, message))

    def disturb(self) -> None:
        """A replay, or damage."""
        if not self.heard:
            return
        place, datagram = self.chance.choice(self.heard)
        if self.chance.random() < 0.5:
            damaged = bytearray(datagram)
            damaged[self.chance.randrange(len(damaged))] ^= 1 << self.chance.randrange(8)
            datagram = bytes(damaged)
        self.hear(place, datagram)

    def hear(self, place: int | None, datagram: bytes) -> None:
        """An acknowledgment reaches all sources; a reply reaches the address of one."""
        self.heard.append((place, datagram))
        verified = sum(each.counts["acks"] for each in self.alone)
        for each in self.alone if place is None else [self.alone[place]]:
            each.receive_all([datagram], self.now)
        if sum(each.counts["acks"] for each in self.alone) > verified:
            ack = decode_control(datagram)
            assert isinstance(ack, Ack)
            for each in self.alone:
                each.ack_verified(ack.formation, ack.token, self.now)
        self.group.receive_all([datagram], self.now)

    def wait(self) -> None:
        """Until the next deadline, or for a while."""
        until = self.now + self.chance.choice((MILLISECOND, 100 * MILLISECOND, 1_000 * MILLISECOND))
        while (due_at := self._due_at()) <= until:
            self.now = max(due_at, self.now)
            self.finish()
        self.now = until

    def finish(self) -> None:
        for each in self.alone:
            while (deadline := each.deadline()) is not None and deadline <= self.now:
                each.wake(self.now)
        while (deadline := self.group.deadline()) is not None and deadline <= self.now:
            self.group.wake(self.now)
        self.compare()

    def compare(self) -> None:
        sent = self.group.drain()
        blocks = [datagram for effect in only(Multicast, sent) for datagram in effect.datagrams]
        notices: list[Notice] = []
        for one, other in zip(self.alone, self.group.sources.values(), strict=True):
            effects = one.drain()
            notices += only(Notice, effects)
            own = [datagram for effect in only(Multicast, effects) for datagram in effect.datagrams]
            assert [block for block in blocks if decode_block(block).source == one.me] == own
            assert state(other) == state(one)
        assert sorted(each.text for each in only(Notice, sent)) == sorted(each.text for each in notices)
        deadline = self.group.deadline()
        assert (NEVER if deadline is None else deadline) == self._due_at()

    def _due_at(self) -> Instant:
        deadlines = [each.deadline() for each in self.alone]
        return min((at for at in deadlines if at is not None), default=NEVER)


def state(source: Source) -> tuple[object, ...]:
    """All but the counts of datagrams that change nothing: those that concern no source of a group it counts itself."""
    counts = [source.counts[name] for name in ("acks", "progress", "holes", "blocks", "resent", "probes")]
    return (
        source.me, source.next_number, source.acked_through, source.settled_through, source.queued, source.in_flight,
        source.kept, source.idle, source.must_restart, source.deadline(), counts,
    )  # fmt: skip


@settings(max_examples=300)
@given(st.integers(0, 1 << 32), st.integers(1, 60))
def test_a_group_sends_what_its_sources_would_send_alone(seed: int, acts: int) -> None:
    twins = Twins(Random(seed))
    for _ in range(acts):
        twins.act()


def test_the_blocks_of_several_sources_leave_in_one_multicast() -> None:
    group = SourceGroup(sources(10))
    for source in group.sources.values():
        assert source.publish([bytes(64)], NOW) == 1
    (effect,) = group.drain()
    assert isinstance(effect, Multicast)
    assert [decode_block(datagram).source for datagram in effect.datagrams] == list(group.sources)
    assert len({len(datagram) for datagram in effect.datagrams}) == 1, "they could not share a train"
    assert group.drain() == []


def test_one_multicast_has_a_limited_number_of_blocks() -> None:
    group = SourceGroup(sources(300))
    for source in group.sources.values():
        source.publish([bytes(64)], NOW)
    effects = only(Multicast, group.drain())
    assert [len(effect.datagrams) for effect in effects] == [BURST_BLOCKS_MAX] * 3 + [300 - 3 * BURST_BLOCKS_MAX]


def test_an_acknowledgment_reaches_the_sources_that_it_names() -> None:
    group, sites = SourceGroup(sources(4)), Sites()
    for source in group.sources.values():
        source.publish([b"a"], NOW)
    one, two, three, four = group.sources.values()
    group.receive(sites.ack([acknowledged(two), Range(FIRST + 300, 1, 1, 5), acknowledged(four)]), NOW)
    assert [source.acked_through for source in (one, two, three, four)] == [0, 1, 0, 1]
    group.receive(sites.ack([acknowledged(one), acknowledged(three)]), NOW)
    assert group.idle
    assert [source.counts["acks"] for source in group.sources.values()] == [1, 1, 1, 1]


def test_an_acknowledgment_of_one_source_settles_what_the_others_were_acknowledged_k_tokens_before() -> None:
    """Alone, a source that publishes nothing more would have to probe."""
    group, sites = SourceGroup(sources(3, resilience=1)), Sites()
    one, two, three = group.sources.values()
    for source in (one, two):
        source.publish([b"a"], NOW)
    group.receive(sites.ack([acknowledged(one), acknowledged(two)]), NOW)
    assert [source.kept for source in (one, two)] == [1, 1]
    three.publish([b"a"], NOW)
    group.receive(sites.ack([acknowledged(three)], forged=three.me), NOW)
    assert [source.kept for source in (one, two)] == [1, 1]
    group.receive(sites.ack([acknowledged(three)]), NOW)
    assert [source.kept for source in (one, two, three)] == [0, 0, 1]
    assert one.idle


def test_an_acknowledgment_of_another_formation_settles_nothing() -> None:
    """That formation may have begun before Ack(e): no site may have the block."""
    group, sites = SourceGroup(sources(2, resilience=1)), Sites()
    one, two = group.sources.values()
    one.publish([b"a"], NOW)
    group.receive(sites.ack([acknowledged(one)]), NOW)
    two.publish([b"a"], NOW)
    group.receive(sites.ack([acknowledged(two)], formation=FORMATION + 1), NOW)
    assert [source.kept for source in (one, two)] == [1, 1]
    group.receive(sites.reply(one.me, Progress(0, FORMATION + 1, 1, one.incarnation, 2, sites.token, 1)), NOW)
    group.receive(sites.ack([], formation=FORMATION + 1), NOW)
    assert one.kept == 1, "an acknowledgment that names no source of the group proves nothing"
    group.receive(sites.ack([acknowledged(two)], formation=FORMATION + 1), NOW)
    assert [source.kept for source in (one, two)] == [0, 0]


def test_after_a_change_an_acknowledgment_passes_only_sources_that_have_heard_of_the_formation() -> None:
    asked: list[NodeId] = []

    class Observed(Source):
        def ack_verified(self, formation: int, token: int, now: Instant) -> bool:
            asked.append(self.me)
            return super().ack_verified(formation, token, now)

    members = [
        Observed(me=node, keys=KEYS.for_source(node), timing=TIMING, resilience=1, incarnation=1_000 + node)
        for node in range(FIRST, FIRST + 20)
    ]
    group, sites = SourceGroup(members), Sites()
    for source in members:
        source.publish([b"a"], NOW)
    group.receive(sites.ack([acknowledged(source) for source in members]), NOW)
    for _ in range(3):
        members[0].publish([b"b"], NOW)
        group.receive(sites.ack([acknowledged(members[0])], formation=FORMATION + 1), NOW)
    assert set(asked) <= {members[0].me}
    # The others learn of it, are acknowledged again, and settled with the next acknowledgment.
    group.receive(sites.ack([acknowledged(source) for source in members[1:]], formation=FORMATION + 1), NOW)
    assert [source.kept for source in members[1:]] == [1] * 19
    members[0].publish([b"c"], NOW)
    group.receive(sites.ack([acknowledged(members[0])], formation=FORMATION + 1), NOW)
    assert [source.kept for source in members[1:]] == [0] * 19


def test_a_forged_mark_of_one_source_does_not_keep_the_others_from_theirs() -> None:
    group, sites = SourceGroup(sources(2)), Sites()
    for source in group.sources.values():
        source.publish([b"a"], NOW)
    one, two = group.sources.values()
    group.receive(sites.ack([acknowledged(one), acknowledged(two)], forged=one.me), NOW)
    assert (one.acked_through, two.acked_through) == (0, 1)
    assert (one.counts["forged"], two.counts["acks"]) == (1, 1)


def test_a_progress_reaches_the_source_of_its_incarnation() -> None:
    """It names no source: only its key and its incarnation tell whose it is."""
    group, sites = SourceGroup(sources(3)), Sites()
    for source in group.sources.values():
        source.publish([b"a"], NOW)
    one, two, three = group.sources.values()
    group.receive(sites.reply(two.me, Progress(0, FORMATION, 1, two.incarnation, 2, 1, 2)), NOW)
    group.receive(sites.reply(two.me, Progress(0, FORMATION, 1, three.incarnation, 2, 1, 2)), NOW)
    group.receive(sites.reply(two.me, Progress(0, FORMATION, 1, 5, 2, 1, 2)), NOW)
    assert [source.acked_through for source in (one, two, three)] == [0, 1, 0]
    assert three.counts["forged"] == 1
    assert group.counts == Counter(other_incarnation=1)


def test_what_concerns_none_of_the_sources_is_counted_by_the_group() -> None:
    group, sites = SourceGroup(sources(2)), Sites()
    ack = sites.ack([Range(FIRST + 300, 1, 1, 5)])
    for datagram in (ack, ack[:-40], b"", sites.reply(FIRST, TokenAck(0, FORMATION, 1, 4))):
        group.receive(datagram, NOW)
    group.receive(sites.reply(FIRST, Hole(0, FORMATION, 1, Range(FIRST + 1, 3, 1, 1))), NOW)
    group.receive(sites.reply(FIRST, Hole(1, FORMATION, 1, Range(FIRST, 1_000 + FIRST, 1, 1))), NOW)
    assert group.counts == Counter(acks_of_others=1, malformed=4, other_incarnation=1)
    assert group.drain() == []


def test_a_source_that_floods_delays_no_other_that_is_due() -> None:
    """Every source that is due gets its turn before any gets another one, and a wake sends about one burst."""
    group = SourceGroup(sources(5, datagram_max=256))
    flooding = list(group.sources.values())[:4]
    for source in group.sources.values():
        source.publish([b"early"], NOW)
    blocks_of(group)
    due_at = group.deadline()
    assert due_at is not None
    for source in flooding:
        source.publish_records(bytes(16 * 20_000), 16, due_at)  # the window has room for more than a burst
    blocks_of(group)
    turns: list[list[NodeId]] = []
    while (deadline := group.deadline()) is not None and deadline <= due_at and len(turns) < 100:
        group.wake(due_at)
        turns.append([decode_block(block).source for block in blocks_of(group)])
    assert all(0 < len(turn) < 2 * BURST_BLOCKS_MAX for turn in turns)
    served = [source for turn in turns for source in dict.fromkeys(turn)]
    assert set(served[:5]) == set(group.sources)


def test_each_source_has_its_own_window() -> None:
    group = SourceGroup(sources(2))
    greedy, modest = group.sources.values()
    greedy.publish_records(bytes(64 * 20_000), 64, NOW)
    assert greedy.queued > 0
    blocks_of(group)
    assert modest.publish([b"a"], NOW) == 1
    assert [decode_block(block).source for block in blocks_of(group)] == [modest.me]
    assert modest.queued == 0


@pytest.mark.parametrize(
    "members",
    [
        [],
        sources(1) * 2,
        [sources(1)[0], Source(me=FIRST + 1, keys=KEYS, timing=TIMING, resilience=0, incarnation=1_000 + FIRST)],
    ],
)
def test_a_group_has_sources_of_distinct_numbers_and_incarnations(members: list[Source]) -> None:
    with pytest.raises(AssertionError):
        SourceGroup(members)
