"""The guarantees, one checker each, named after the guarantee.

A checker observes what nodes send, append, release and declare. It shares no code with the machines and sees all nodes
at once. The first violation raises `Violation`. The same checkers serve a ring of one formation that is never replaced
and a deployment that reforms and heals: what they know of a world is in its `Facts`. `Checkers` runs all of them as one
observer; `cluster_checkers` connects it to a cluster.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

from fairtape.core.effects import Channel, Ordered, Reason, Release, Report, Span
from fairtape.core.instants import MILLISECOND, NEVER, Duration, Instant
from fairtape.core.spans import MessageAssembler, StreamId
from fairtape.ring.membership.formation import Formation
from fairtape.simulation.simulated_journal import SimulatedJournal
from fairtape.simulation.world import Observer, Violation
from fairtape.wire.frames import Ack, Kind, Malformed, NodeId, decode_control

LATE_AFTER: Final = 5 * MILLISECOND  # decision 6, Commit: beyond it a release is late, even after a pause
_SOURCE: Final = slice(12, 16)  # the source in the header of a block
_NONCE: Final = slice(12, 32)  # source, incarnation and first message number in the header of a block

Place = tuple[int, int]
"""Formation and token. Where one formation supersedes another, they may order other messages under one token."""

Identity = tuple[NodeId, int, int]
"""Source, incarnation and number of a message."""


@dataclass(slots=True)
class Facts:
    """The true state of a world, for all checkers: its formations, what was published, and what each site holds."""

    sites: tuple[NodeId, ...]
    formations: Callable[[], Sequence[Formation]]  # of the primary loop: all that were recorded, in ascending order
    is_fixed: bool = True  # there is one formation, without leases, and nothing can replace it
    published: Mapping[StreamId, Sequence[bytes]] = field(default_factory=dict)  # accepted by the source
    journals: Mapping[NodeId, SimulatedJournal] = field(default_factory=dict)  # of the sites that have one
    complete: Callable[[NodeId], int] = lambda _: 0  # the token through which a site is complete
    claim: Callable[[NodeId], tuple[int, int]] = lambda _: (0, 0)  # its formation; what it says that all members hold
    settled: Mapping[NodeId, Callable[[], tuple[StreamId, int]]] = field(default_factory=dict)  # what a source discards
    used: Callable[[StreamId], int] = lambda _: 0  # the numbers of a running incarnation whose messages must arrive
    grain: Callable[[NodeId], Duration] = lambda _: 0  # how late the clock of a site may be at a deadline
    true_time: Callable[[], Instant] = lambda: 0
    delay: dict[NodeId, Duration] = field(default_factory=dict)  # how late its processor has let a site act
    placed: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # tokens with messages, ascending
    appended: dict[NodeId, list[Place]] = field(default_factory=lambda: defaultdict(list))  # by each site, in order
    appended_at: dict[tuple[NodeId, Place], Instant] = field(default_factory=dict)  # by the site's own clock
    holders: dict[Place, set[NodeId]] = field(default_factory=lambda: defaultdict(set))
    held: dict[StreamId, dict[NodeId, int]] = field(default_factory=dict)  # the number through which each site held it
    order: dict[int, dict[int, Identity]] = field(default_factory=lambda: defaultdict(dict))
    """What was released, where a formation can be replaced: by sequence number, then by formation."""
    released_through: dict[NodeId, int] = field(default_factory=lambda: defaultdict(int))  # token
    released: int = 0  # count of releases
    late_at: Counter[NodeId] = field(default_factory=Counter)  # releases marked late, by site
    rolled_back: Callable[[], AbstractSet[tuple[int, int]]] = frozenset
    """Token and number of messages that copies of journals lacked, and that no site had reported to the leader."""
    is_deceived: Callable[[NodeId], bool] = lambda _: False  # whether a site's clock is wrong by more than its bound
    reported: dict[NodeId, Report] = field(default_factory=dict)
    down: set[NodeId] = field(default_factory=set)
    paused: set[NodeId] = field(default_factory=set)
    resumed_at: dict[NodeId, Instant] = field(default_factory=dict)  # by the site's own clock

    def formation(self, number: int) -> Formation:
        """The formation with this number."""
        return next(each for each in reversed(self.formations()) if each.number == number)

    def last_placed(self, number: int, token: int) -> int:
        """The last token up to `token` that has messages. A site that has appended it has appended all before it."""
        tokens = self.placed[number]
        position = bisect_right(tokens, token)
        return tokens[position - 1] if position else 0

    def final_order(self) -> list[Ordered]:
        """What the journals have, where sites have journals. In the end they are equal."""
        journal = next(iter(self.journals.values()), None)
        return [] if journal is None else [entry for entry in journal.entries if isinstance(entry, Ordered)]

    def lateness_max(self, node: NodeId) -> Duration:
        """How late a site may act at a deadline: by the grain of its clock and the delays of its processor."""
        return self.grain(node) + self.delay.get(node, 0)

    def broken_between(self, earlier: int, later: int, sequence: int) -> bool:
        """Whether this number may have another message: by a Break, or since a journal was rolled back unnoticed."""
        if any(lost == sequence for _, lost in self.rolled_back()):
            return True
        return any(f.broken and earlier < f.number <= later and f.first_sequence <= sequence for f in self.formations())


class Writing(NamedTuple):
    """A site appends Msg(e) at `now` of its own clock."""

    node: NodeId
    ordered: Ordered
    now: Instant


class Releasing(NamedTuple):
    """A site releases Msg(e) at `now` of its own clock."""

    node: NodeId
    ordered: Ordered
    release: Release
    now: Instant


class Checker:
    """One guarantee. Subclasses override the hooks that they need."""

    fixed_only: ClassVar[bool] = False  # it holds as long as nothing replaces the formation

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def block_sent(self, node: NodeId, datagram: bytes) -> None:
        """A block was sent, by its source or as a repair."""

    def ack_sent(self, node: NodeId, ack: Ack) -> None:
        """A part of an acknowledgment was sent, by its token site or as a repair."""

    def placed(self, ordered: Ordered) -> None:
        """Msg(e) has its place in the order for good.

        Where nothing can replace the formation, that is when the first site appends it; else when all journals are
        equal in the end.
        """

    def appended(self, act: Writing) -> None:
        """A site appended Msg(e)."""

    def delivered(self, act: Releasing) -> None:
        """A site released Msg(e)."""

    def truncated(self, node: NodeId, token: int) -> None:
        """A site removed everything after a token from its journal."""

    def restarted(self, node: NodeId) -> None:
        """A site starts again with its journal, which may have lost its end."""

    def declared(self, node: NodeId, report: Report) -> None:
        """A site declared a failure."""

    def ended(self, clocks: Mapping[NodeId, Instant]) -> None:
        """The run is over; `clocks` has the reading of each site's clock."""

    def healed(self) -> None:
        """The run is over, all faults have ended, and nothing excuses that something is missing."""

    def violated(self, node: NodeId | None, text: str) -> None:
        raise Violation(type(self).__name__, node, self.facts.true_time(), text)


class OneOrder(Checker):
    """The same number is the same message at every site.

    The first site that appends Msg(e) of a formation fixes its content: sequence numbers, time and bytes. Every other
    append and every release must be equal. Another formation releases no other message under the same number, except
    after a Break. This is the main guarantee: a trade that is the seven-hundredth in one city is the seven-hundredth in
    every city.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._contents: dict[Place, Ordered] = {}
        self._releases: Counter[Place] = Counter()

    def appended(self, act: Writing) -> None:
        self._compare(act.node, act.ordered)

    def delivered(self, act: Releasing) -> None:
        self._compare(act.node, act.ordered)
        if self.facts.is_fixed:
            self._forget(act.ordered)
            return
        for sequence, identity in _identities(act.ordered):
            self._place(act.node, act.ordered.formation, sequence, identity)

    def _compare(self, node: NodeId, ordered: Ordered) -> None:
        first = self._contents.setdefault((ordered.formation, ordered.token), ordered)
        if first is not ordered and first != ordered:
            self.violated(node, f"Msg({ordered.token}) is {_outline(ordered)} here and {_outline(first)} elsewhere")

    def _forget(self, ordered: Ordered) -> None:
        """What all sites of one formation have released, none of them releases again: that would be a duplicate."""
        place = ordered.formation, ordered.token
        self._releases[place] += 1
        if self._releases[place] == len(self.facts.sites):
            del self._contents[place], self._releases[place]

    def _place(self, node: NodeId, formation: int, sequence: int, identity: Identity) -> None:
        known = self.facts.order[sequence]
        known.setdefault(formation, identity)
        for other, placed in known.items():
            earlier, later = min(other, formation), max(other, formation)
            if placed != identity and not self.facts.broken_between(earlier, later, sequence):
                self.violated(node, f"number {sequence} is {identity} and {placed}, without a Break")


class CommittedSurvives(Checker):
    """What any site released stays in the order, unless a Break removed it.

    No site removes from its journal what it has released, unless some formation is broken. In the end every message
    that any site released is in the final order, under its number, unless a later formation was broken at or before it.
    """

    def truncated(self, node: NodeId, token: int) -> None:
        released = self.facts.released_through[node]
        forgotten = any(token < lost <= released for lost, _ in self.facts.rolled_back())
        if token < released and not forgotten and not any(each.broken for each in self.facts.formations()):
            self.violated(node, f"removed tokens after {token}, released {released}")

    def healed(self) -> None:
        if not self.facts.order:
            return
        final = {at: identity for ordered in self.facts.final_order() for at, identity in _identities(ordered)}
        latest = self.facts.formations()[-1].number
        for sequence, known in self.facts.order.items():
            for formation, identity in known.items():
                if final.get(sequence) != identity and not self.facts.broken_between(formation, latest, sequence):
                    self.violated(None, f"number {sequence}, {identity}, is lost")


class OneJournal(Checker):
    """In the end the journals of all sites are equal, byte for byte.

    Formations are entries, too, so that a reader of any journal sees the same history. A site that missed something
    while it was down or cut off has got exactly that from the others. Sites of a fixed formation have no journals.
    """

    def healed(self) -> None:
        first, *others = self.facts.journals or (0,)
        for other in others:
            if self.facts.journals[other].encoded != self.facts.journals[first].encoded:
                self.violated(other, f"its journal differs from that of site {first}")


class NoGapNoDuplicateNothingInvented(Checker):
    """Each site appends and releases every number once, in order, and nothing that no source published.

    Tokens increase and sequence numbers have no gap, in the journal and in what applications receive; a site that
    starts again continues where its journal ends. The ordered bodies are decoded and their fragments reassembled; the
    result must be a prefix of what that incarnation of that source published.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        first = facts.formations()[0].first_sequence if facts.is_fixed else 1
        self._append_next = dict.fromkeys(facts.sites, first)
        self._release_next = dict.fromkeys(facts.sites, first)
        self._place_next = first
        self._readers: dict[StreamId, Iterator[bytes]] = {}
        self._assembler = MessageAssembler()

    def placed(self, ordered: Ordered) -> None:
        for span in ordered.spans:
            if span.sequence != self._place_next:
                text = f"Msg({ordered.token}) numbers a span from {span.sequence}, expected {self._place_next}"
                self.violated(None, text)
            if span.count != sum(span.counts):
                self.violated(None, f"Msg({ordered.token}) counts {span.count} messages in bodies of {span.counts}")
            self._place_next += span.count
            self._match(ordered.token, span)
        if self._place_next != ordered.sequence + ordered.count:
            self.violated(None, f"Msg({ordered.token}) counts {ordered.count} messages, its spans hold others")

    def appended(self, act: Writing) -> None:
        *before, place = self.facts.appended[act.node][-2:]
        if before and place <= before[0]:
            self.violated(act.node, f"appended Msg({act.ordered.token}) after Msg({before[0][1]})")
        self._follow(act.node, act.ordered, self._append_next, "appended")

    def delivered(self, act: Releasing) -> None:
        ordered, release = act.ordered, act.release
        if ordered.count == 0:
            self.violated(act.node, f"released Msg({ordered.token}), which is empty")
        if act.node not in self.facts.holders[ordered.formation, ordered.token]:
            self.violated(act.node, f"released Msg({ordered.token}) before it was appended")
        if (release.token, release.sequence, release.count) != (ordered.token, ordered.sequence, ordered.count):
            self.violated(act.node, f"the release of Msg({ordered.token}) has another token, sequence or count")
        self._follow(act.node, ordered, self._release_next, "released")

    def truncated(self, node: NodeId, token: int) -> None:
        sequence = self.facts.journals[node].recovered().sequence
        self._append_next[node] = sequence
        if token < self.facts.released_through[node]:
            self._release_next[node] = sequence

    def restarted(self, node: NodeId) -> None:
        self._append_next[node] = self.facts.journals[node].recovered().sequence
        self._release_next[node] = self.facts.journals[node].released_sequence()

    def _follow(self, node: NodeId, ordered: Ordered, following: dict[NodeId, int], did: str) -> None:
        if ordered.sequence != following[node]:
            self.violated(node, f"{did} Msg({ordered.token}) from {ordered.sequence}, expected {following[node]}")
        following[node] += ordered.count

    def _match(self, token: int, span: Span) -> None:
        key = span.source, span.incarnation
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = iter(self.facts.published.get(key, ()))
        try:
            for _, message in self._assembler.messages(span):
                if next(reader, None) != message:
                    self.violated(None, f"Msg({token}) holds a message that {key} did not publish at that place")
        except Malformed as fault:
            self.violated(None, f"Msg({token}) holds a body of {key} that cannot be decoded: {fault}")


class SourceOrder(Checker):
    """Messages of one source stay in the order in which it sent them.

    Within one incarnation the numbers begin at 1 and have no gap. Once a message of a later incarnation is in the
    order, none of an earlier incarnation follows it: two incarnations of a source are never interleaved.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._next: dict[NodeId, tuple[int, int]] = {}

    def placed(self, ordered: Ordered) -> None:
        for span in ordered.spans:
            incarnation, following = self._next.get(span.source, (-1, 1))
            if span.incarnation > incarnation:
                incarnation, following = span.incarnation, 1
            if (span.incarnation, span.first) != (incarnation, following):
                found = f"{span.source}.{span.incarnation}:{span.first}"
                self.violated(None, f"Msg({ordered.token}) holds {found}, expected .{incarnation}:{following}")
            self._next[span.source] = incarnation, following + span.count


class OneTokenHolder(Checker):
    """At most one token holder per formation: Ack(e) has one author and one content.

    Every part of every acknowledgment on the network, original or repair, must name as its sender the site that holds
    token e, and must have the content that this part had the first time.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._first: dict[tuple[int, int, int], tuple[object, ...]] = {}

    def ack_sent(self, node: NodeId, ack: Ack) -> None:
        holder = self.facts.formation(ack.formation).holder(ack.token)
        if ack.sender != holder:
            self.violated(node, f"Ack({ack.token}) names site {ack.sender} as its sender; the token is with {holder}")
        content = (ack.sender, ack.sequence, ack.sent_at, ack.parts, ack.ranges)
        first = self._first.setdefault((ack.formation, ack.token, ack.part), content)
        if first != content:
            self.violated(node, f"Ack({ack.token}) was {first} and is now {content}")


class Fenced(Checker):
    """Once a formation is recorded, no site acts on tokens that it supersedes.

    By then its members have been fenced, or their leases have expired by any correct clock. An acknowledgment that was
    sent before may be sent again as a repair; a new one may not be sent, and nothing may be released. A site whose
    clock is wrong by more than its bound may act: others ignore what it sends, and K + 1 sites hold what it releases.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._sent: set[tuple[int, int, int]] = set()

    def ack_sent(self, node: NodeId, ack: Ack) -> None:
        name = ack.formation, ack.token, ack.part
        if name not in self._sent:
            self._sent.add(name)
            self._check(node, ack.formation, ack.token, "acknowledged")

    def delivered(self, act: Releasing) -> None:
        self._check(act.node, act.ordered.formation, act.ordered.token, "released")

    def _check(self, node: NodeId, number: int, token: int, did: str) -> None:
        for later in reversed(self.facts.formations()):
            if later.number <= number:
                return
            if later.first_token <= token and not self.facts.is_deceived(node):
                text = f"{did} token {token} of formation {number}, which formation {later.number} superseded"
                self.violated(node, text)


class NoProtocolBreach(Checker):
    """No site ever finds that another one has broken the protocol.

    Every site of a world runs the same code, so an acknowledgment that does not continue the order is a bug, even if
    the site that detected it handled it correctly and stopped.
    """

    def declared(self, node: NodeId, report: Report) -> None:
        if report.reason is Reason.BREACH:
            self.violated(node, f"found Ack({report.token}) of site {report.suspect} out of order")


class CompleteOrReforming(Checker):
    """By t_e + Δ_R every operable site is complete through e, or reforming.

    T-RMP §3: by t_e + (n + 1/2) T_R all operable receivers either have the message or started a reformation; §4 and
    the 2001 paper give the separate count twice the retries. The time is that of the site's own clock. A site that was
    paused has the same delay again from the instant at which it resumed. A reforming site releases nothing from the
    token on at which it declared the failure. RMP is event driven and has no deadline.
    """

    fixed_only = True

    def appended(self, act: Writing) -> None:
        if act.node not in self.facts.reported and act.now > self._deadline(act.node, act.ordered.token):
            late = (act.now - self._deadline(act.node, act.ordered.token)) / 1e6
            self.violated(act.node, f"Msg({act.ordered.token}) became complete {late:.3f} ms after the deadline")

    def delivered(self, act: Releasing) -> None:
        report = self.facts.reported.get(act.node)
        if report is not None and act.ordered.token >= report.token:
            self.violated(
                act.node, f"released Msg({act.ordered.token}) after it declared a failure at token {report.token}"
            )

    def ended(self, clocks: Mapping[NodeId, Instant]) -> None:
        for node, now in clocks.items():
            token = self.facts.complete(node) + 1
            excused = node in self.facts.reported or node in self.facts.down or node in self.facts.paused
            if not excused and now > self._deadline(node, token):
                self.violated(node, f"Msg({token}) is neither complete nor declared failed")

    def _deadline(self, node: NodeId, token: int) -> Instant:
        (formation,) = self.facts.formations()
        if not formation.timed:
            return NEVER
        starts_at = max(formation.scheduled_at(token), self.facts.resumed_at.get(node, 0))
        waits = (1 if formation.timing.merged else 2) * formation.timing.retries_max + 1
        turns = (formation.request_sets - 1) * formation.timing.token_period
        return starts_at + formation.timing.reform_delay + turns + waits * self.facts.lateness_max(node)


class NeverEarly(Checker):
    """No site releases before the commit instant, by its own clock.

    The commit instant is t_e + Δ_C, the same at every site: a participant at one site must not learn anything before a
    participant at another can. RMP commits as soon as it can, so no release is early. A site that was away for so long
    that it no longer knows the formation of a token may name a later instant; its release is marked late.
    """

    def delivered(self, act: Releasing) -> None:
        formation, token = self.facts.formation(act.ordered.formation), act.ordered.token
        if not formation.timed:
            return
        commit_at = formation.scheduled_at(token) + formation.timing.commit_delay
        if act.ordered.acknowledged_at != formation.scheduled_at(token):
            self.violated(act.node, f"Msg({token}) has another time than its scheduled one")
        forgotten = act.release.late and act.release.commit_at > commit_at and not self.facts.is_fixed
        if act.release.commit_at != commit_at and not forgotten:
            self.violated(act.node, f"Msg({token}) commits at {act.release.commit_at}, expected {commit_at}")
        early = max(commit_at, act.release.commit_at) - min(act.now, act.release.released_at)
        if early > 0:
            self.violated(act.node, f"Msg({token}) was released {early / 1e6:.3f} ms early")


class ReleasedTogether(Checker):
    """All sites release Msg(e) at the same instant of their own clocks, except those that are marked late.

    A site that is ready in time (it is complete, and knows that K + 1 sites hold the message) releases at the commit
    instant, to the grain of its clock and the delays of its processor. Only a site that was paused at that instant may
    release later. A release is marked late if it is more than `LATE_AFTER` after the commit instant, for any reason, or
    if the site was not ready in time, however small the delay; no other release is. RMP has no common instant. Where
    sites need leases, one that was renewed after the commit instant is another reason, which is not seen here.
    """

    def delivered(self, act: Releasing) -> None:
        release, token = act.release, act.ordered.token
        if release.released_at != act.now:
            self.violated(act.node, f"Msg({token}) is marked as released at {release.released_at}; it is {act.now}")
        formation = self.facts.formation(act.ordered.formation)
        if not formation.timed:
            return
        behind = act.now - release.commit_at
        grain = self.facts.lateness_max(act.node)
        was_paused = release.commit_at <= self.facts.resumed_at.get(act.node, -1)
        if not release.late and behind > (LATE_AFTER if was_paused else min(grain, LATE_AFTER)):
            self.violated(act.node, f"Msg({token}) was released {behind / 1e6:.3f} ms late and not marked")
        if not self.facts.is_fixed:
            return
        known_at = self.facts.appended_at.get((act.node, (formation.number, token + formation.resilience)))
        ready = known_at is not None and known_at <= release.commit_at
        if ready and behind > grain and not was_paused:
            self.violated(act.node, f"Msg({token}) was ready in time and released {behind / 1e6:.3f} ms late")
        if release.late and (behind <= 0 or (ready and behind <= LATE_AFTER)):
            self.violated(act.node, f"Msg({token}) was released on time and marked late")


class SurvivesK(Checker):
    """What one site has released survives the failure of any K sites.

    When Msg(e) is released anywhere, at least K + 1 sites have it in their journals: RMP's K-resilience. K is that of
    its formation, or of a later one with fewer members.
    """

    def delivered(self, act: Releasing) -> None:
        formation, token = act.ordered.formation, act.ordered.token
        holders = len(self.facts.holders[formation, token])
        needed = min(each.resilience for each in self.facts.formations() if each.number >= formation) + 1
        if holders < needed:
            self.violated(act.node, f"released Msg({token}) while {holders} sites hold it; {needed} must")


class TrueClaims(Checker):
    """A claim "all members hold everything up to e" is true when it is made.

    2001 §2: when the token has gone around, its holder knows what all sites hold. Sites discard messages based on this
    knowledge and tell the readers of their journals, so a false claim would discard a message that another site may
    still request. The members are those of the formation that proves it: the latest that the site knows.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._claimed: dict[NodeId, int] = defaultdict(int)

    def appended(self, act: Writing) -> None:
        node = act.node
        latest, claimed = self.facts.claim(node)
        known, self._claimed[node] = self._claimed[node], claimed
        if claimed <= known or not latest:
            return
        proof = [f for f in self.facts.formations() if f.number <= latest and f.first_token <= claimed][-1]
        for place in reversed(self.facts.appended[node]):
            if place[1] <= known:
                return
            missing = set(proof.members) - self.facts.holders[place] if place[1] <= claimed else set()
            if missing:
                self.violated(
                    node, f"claims that all hold Msg({claimed}); {sorted(missing)} do not hold Msg({place[1]})"
                )


class KeptUntilHeld(Checker):
    """A source discards nothing that fewer than K + 1 sites held: one that has lost its journal since counts as well.

    An acknowledgment proves one holder. If that site fails before another has requested the message from it, only the
    source can send it again, so the source must still have it. K is the smallest of all formations so far.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._seen: dict[StreamId, int] = {}

    def block_sent(self, _node: NodeId, datagram: bytes) -> None:
        """An acknowledgment lets a source discard messages and send new ones."""
        source = int.from_bytes(datagram[_SOURCE])
        if source in self.facts.settled:
            self._check(source)

    def ack_sent(self, _node: NodeId, ack: Ack) -> None:
        """A source without new messages discards without sending, so it is checked here as well."""
        if ack.ranges:
            for source in self.facts.settled:
                self._check(source)

    def _check(self, source: NodeId) -> None:
        stream, through = self.facts.settled[source]()
        if through <= self._seen.get(stream, 0):
            return
        self._seen[stream] = through
        holders = sum(held >= through for held in self.facts.held.get(stream, {}).values())
        needed = min(formation.resilience for formation in self.facts.formations()) + 1
        if holders < needed:
            self.violated(source, f"discarded everything through {through}; {holders} of {needed} sites hold it")


class NoNonceTwice(Checker):
    """No nonce ever seals two plaintexts.

    The nonce of a block is its source and first number, under a key of its incarnation. Two different datagrams with
    the same three would reveal both plaintexts, so a retransmission and a repair must have the same bytes.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._sealed: dict[bytes, int] = {}  # hashes: whole datagrams would be all that was ever sent

    def block_sent(self, node: NodeId, datagram: bytes) -> None:
        if self._sealed.setdefault(datagram[_NONCE], hash(datagram)) != hash(datagram):
            self.violated(node, f"two different blocks under the nonce {datagram[_NONCE].hex()}")


class AppendBeforeAck(Checker):
    """A site has appended everything through e before it sends Ack(e).

    By sending Ack(e) a site counts as a holder of everything through Msg(e). If it appended later, a crash could lose
    messages that it counts as holding.
    """

    def ack_sent(self, node: NodeId, ack: Ack) -> None:
        if node != ack.sender:
            return
        token = ack.token if ack.ranges else self.facts.last_placed(ack.formation, ack.token)
        if token and node not in self.facts.holders[ack.formation, token]:
            self.violated(node, f"sent Ack({ack.token}) without Msg({token}) in its journal")


class EverythingArrives(Checker):
    """In a healed world without failures, everything that a source accepted is released everywhere.

    This is liveness; a ring that does nothing would satisfy all safety guarantees. It is required only if nothing
    excuses a loss: in a fixed formation, a site that crashed or declared a failure; else a Break, which may lose
    messages that their source has discarded. What was not acknowledged when a source crashed is lost with its memory.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._released: dict[tuple[NodeId, StreamId], int] = {}  # the number through which it was released

    def delivered(self, act: Releasing) -> None:
        for span in act.ordered.spans:
            key = act.node, (span.source, span.incarnation)
            self._released[key] = max(self._released.get(key, 0), span.first + span.count - 1)

    def missing(self) -> str | None:
        """The first stream that a site has not released completely."""
        for stream in self.facts.published:
            wanted = self.facts.used(stream)
            for site in self.facts.sites:
                got = self._released.get((site, stream), 0)
                if got < wanted:
                    return f"site {site} released {got} of {wanted} messages of source {stream[0]}.{stream[1]}"
        return None

    def healed(self) -> None:
        missing = self.missing()
        lost = self.facts.rolled_back() or any(formation.broken for formation in self.facts.formations())
        if missing is not None and not lost:
            self.violated(None, missing)


def _identities(ordered: Ordered) -> Iterator[tuple[int, Identity]]:
    """Each message of a token: its sequence number, and what it is."""
    for span in ordered.spans:
        for offset in range(span.count):
            yield span.sequence + offset, (span.source, span.incarnation, span.first + offset)


def _outline(ordered: Ordered) -> str:
    spans = " ".join(f"{s.source}.{s.incarnation}:{s.first}+{s.count}" for s in ordered.spans)
    return f"{ordered.sequence}+{ordered.count} at {ordered.acknowledged_at} [{spans}]"


GUARANTEES: Final[tuple[type[Checker], ...]] = (
    OneOrder,
    NoGapNoDuplicateNothingInvented,
    SourceOrder,
    OneTokenHolder,
    Fenced,
    NoProtocolBreach,
    CompleteOrReforming,
    NeverEarly,
    ReleasedTogether,
    SurvivesK,
    TrueClaims,
    KeptUntilHeld,
    NoNonceTwice,
    AppendBeforeAck,
    OneJournal,
    CommittedSurvives,
    EverythingArrives,
)


class Checkers(Observer):
    """All checkers as one observer: keeps the facts and calls only the hooks that a checker overrides."""

    def __init__(self, facts: Facts, guarantees: Sequence[type[Checker]] = GUARANTEES) -> None:
        self.facts = facts
        self.checkers = [each(facts) for each in guarantees if facts.is_fixed or not each.fixed_only]
        self._on_block = self._hooks("block_sent")
        self._on_ack = self._hooks("ack_sent")
        self._on_placed = self._hooks("placed")
        self._on_appended = self._hooks("appended")
        self._on_delivered = self._hooks("delivered")

    def _hooks(self, hook: str) -> list[Callable[..., None]]:
        return [getattr(c, hook) for c in self.checkers if getattr(type(c), hook) is not getattr(Checker, hook)]

    def sent(self, node: NodeId, _to: NodeId | Channel, datagram: bytes, _at: Instant, /) -> None:
        kind = datagram[2]
        if kind == Kind.BLOCK:
            for check in self._on_block:
                check(node, datagram)
        elif kind == Kind.ACK:
            ack = decode_control(datagram)
            for check in self._on_ack:
                check(node, ack)

    def appended(self, node: NodeId, ordered: Ordered, now: Instant, /) -> None:
        tokens = self.facts.placed[ordered.formation]
        if not tokens or ordered.token > tokens[-1]:
            tokens.append(ordered.token)
            if self.facts.is_fixed:
                self._place(ordered)
        self._record(node, ordered, now)
        writing = Writing(node, ordered, now)
        for check in self._on_appended:
            check(writing)

    def _place(self, ordered: Ordered) -> None:
        for check in self._on_placed:
            check(ordered)

    def _record(self, node: NodeId, ordered: Ordered, now: Instant) -> None:
        facts, place = self.facts, (ordered.formation, ordered.token)
        facts.appended[node].append(place)
        facts.holders[place].add(node)
        if facts.is_fixed:
            facts.appended_at[node, place] = now
        for span in ordered.spans:
            held = facts.held.setdefault((span.source, span.incarnation), {})
            held[node] = max(held.get(node, 0), span.first + span.count - 1)

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:
        self.facts.released += 1
        if release.late:
            self.facts.late_at[node] += 1
        releasing = Releasing(node, ordered, release, now)
        for check in self._on_delivered:
            check(releasing)
        self.facts.released_through[node] = release.token

    def truncated(self, node: NodeId, token: int, now: Instant, /) -> None:  # noqa: ARG002
        for checker in self.checkers:
            checker.truncated(node, token)
        self._recover(node)

    def reported(self, node: NodeId, report: Report, _now: Instant, /) -> None:
        self.facts.reported.setdefault(node, report)
        for checker in self.checkers:
            checker.declared(node, report)

    def delayed(self, node: NodeId, period: Duration, now: Instant, /) -> None:
        """A site that got no turn for more than two retries has not run, as if it had been paused."""
        facts, formations = self.facts, self.facts.formations()
        facts.delay[node] = max(facts.delay.get(node, 0), period)
        if formations and period > 2 * formations[-1].timing.retry_period:
            facts.resumed_at[node] = now

    def fault_event(self, node: NodeId, what: str, now: Instant, /) -> None:
        facts = self.facts
        match what:
            case "crash":
                facts.down.add(node)
                facts.paused.discard(node)
            case "restart":
                facts.down.discard(node)
                if node in facts.journals:
                    self._recover(node)
                    for checker in self.checkers:
                        checker.restarted(node)
            case "pause":
                facts.paused.add(node)
            case "resume":
                facts.paused.discard(node)
                facts.resumed_at[node] = now

    def _recover(self, node: NodeId) -> None:
        """A site has what its journal has, whatever it had before."""
        facts, journal = self.facts, self.facts.journals[node]
        entries = (entry for entry in journal.entries if isinstance(entry, Ordered))
        facts.appended[node] = [(entry.formation, entry.token) for entry in entries]
        facts.released_through[node] = journal.recovered().released_through

    def ended(self, clocks: Mapping[NodeId, Instant]) -> None:
        """The run is over, whatever has happened in it."""
        for checker in self.checkers:
            checker.ended(clocks)

    def missing(self) -> str | None:
        """The first stream that a site has not released completely."""
        return next(each for each in self.checkers if isinstance(each, EverythingArrives)).missing()

    def finish(self) -> None:
        """All faults have ended, and nothing excuses that something is missing or that journals differ."""
        for ordered in self.facts.final_order():
            self._place(ordered)
        for checker in self.checkers:
            checker.healed()
