"""The guarantees of a ring, one checker each, named after the guarantee.

A checker observes what nodes send, append, release and declare. It shares no code with the machines and sees all nodes
at once. The first violation raises `Violation`. `RingCheckers` runs all of them as one observer of a world.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fairtape.core.effects import Channel, Ordered, Reason, Release, Report, Span
from fairtape.core.instants import MILLISECOND, Duration, Instant
from fairtape.core.spans import MessageAssembler, StreamId
from fairtape.ring.membership.formation import Formation
from fairtape.simulation.world import Observer, Violation
from fairtape.wire.frames import Ack, Kind, Malformed, NodeId, decode_control

LATE_AFTER: Final = 5 * MILLISECOND  # decision 6, Commit: beyond it a release is late, even after a pause
_SOURCE: Final = slice(12, 16)  # the source in the header of a block
_NONCE: Final = slice(12, 32)  # source, incarnation and first message number in the header of a block

"""One incarnation of one source."""


@dataclass(slots=True)
class Facts:
    """The true state of a world, for all checkers: the formation, what was published, and the progress of each site."""

    formation: Formation
    published: Mapping[StreamId, Sequence[bytes]] = field(default_factory=dict)  # accepted by the source
    complete: Callable[[NodeId], int] = lambda _: 0  # the token through which a site is complete
    claim: Callable[[NodeId], int] = lambda _: 0  # the token through which it claims that all sites are complete
    forgotten: Mapping[NodeId, Callable[[], tuple[StreamId, int]]] = field(default_factory=dict)  # by each source
    grain: Mapping[NodeId, Duration] = field(default_factory=dict)  # how late a clock may be at a deadline
    delay: dict[NodeId, Duration] = field(default_factory=dict)  # how late its processor has let a site act
    at: Instant = 0  # true time
    placed: list[int] = field(default_factory=list)  # the tokens that have messages, ascending
    appended_through: dict[NodeId, int] = field(default_factory=dict)
    appended_at: dict[tuple[NodeId, int], Instant] = field(default_factory=dict)  # by the site's own clock
    held: dict[StreamId, dict[NodeId, int]] = field(default_factory=dict)  # the number through which each site holds it
    released: int = 0  # count of releases
    late: int = 0  # count of releases marked late
    reported: dict[NodeId, Report] = field(default_factory=dict)
    down: set[NodeId] = field(default_factory=set)
    paused: set[NodeId] = field(default_factory=set)
    resumed_at: dict[NodeId, Instant] = field(default_factory=dict)  # by the site's own clock

    def __post_init__(self) -> None:
        for member in self.formation.members:
            self.appended_through[member] = self.formation.first_token - 1

    def last_placed(self, token: int) -> int:
        """The last token up to `token` that has messages. A site that has appended it has appended all before it."""
        position = bisect_right(self.placed, token)
        return self.placed[position - 1] if position else self.formation.first_token - 1

    def lateness_max(self, node: NodeId) -> Duration:
        """How late a site may act at a deadline: by the grain of its clock and the delays of its processor."""
        return self.grain.get(node, 0) + self.delay.get(node, 0)


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

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def block_sent(self, node: NodeId, datagram: bytes) -> None:
        """A block was sent, by its source or as a repair."""

    def ack_sent(self, node: NodeId, ack: Ack) -> None:
        """A part of an acknowledgment was sent, by its token site or as a repair."""

    def placed(self, ordered: Ordered) -> None:
        """Msg(e) was appended for the first time at any site."""

    def appended(self, act: Writing) -> None:
        """A site appended Msg(e)."""

    def delivered(self, act: Releasing) -> None:
        """A site released Msg(e)."""

    def declared(self, node: NodeId, report: Report) -> None:
        """A site declared a failure."""

    def finished(self, clocks: Mapping[NodeId, Instant]) -> None:
        """The run is over; `clocks` has the reading of each site's clock."""

    def violated(self, node: NodeId | None, text: str) -> None:
        raise Violation(type(self).__name__, node, self.facts.at, text)


class OneOrder(Checker):
    """The same number is the same message at every site.

    The first site that appends Msg(e) fixes its content: sequence numbers, time and bytes. Every other append and every
    release must be equal. This is the main guarantee: a trade that is the seven-hundredth in one city is the
    seven-hundredth in every city.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._order: dict[int, Ordered] = {}  # not yet released everywhere
        self._releases: Counter[int] = Counter()

    def appended(self, act: Writing) -> None:
        self._compare(act.node, act.ordered)

    def delivered(self, act: Releasing) -> None:
        self._compare(act.node, act.ordered)
        token = act.ordered.token
        self._releases[token] += 1
        if self._releases[token] == len(self.facts.formation.members):  # no site releases it again: no duplicate
            del self._order[token], self._releases[token]

    def _compare(self, node: NodeId, ordered: Ordered) -> None:
        first = self._order.setdefault(ordered.token, ordered)
        if first is not ordered and first != ordered:
            self.violated(node, f"Msg({ordered.token}) is {_outline(ordered)} here and {_outline(first)} elsewhere")


class NoGapNoDuplicateNothingInvented(Checker):
    """Each site appends and releases every number once, in order, and nothing that no source published.

    Tokens increase and sequence numbers have no gap, in the journal and in what applications receive. The ordered
    bodies are decoded and their fragments reassembled; the result must be a prefix of what that incarnation of that
    source published.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        first = facts.formation.first_sequence
        self._append_next = dict.fromkeys(facts.formation.members, first)
        self._release_next = dict.fromkeys(facts.formation.members, first)
        self._readers: dict[tuple[NodeId, int], Iterator[bytes]] = {}
        self._assembler = MessageAssembler()

    def placed(self, ordered: Ordered) -> None:
        position = ordered.sequence
        for span in ordered.spans:
            if span.sequence != position:
                self.violated(None, f"Msg({ordered.token}) numbers a span from {span.sequence}, expected {position}")
            if span.count != sum(span.counts):
                self.violated(None, f"Msg({ordered.token}) counts {span.count} messages in bodies of {span.counts}")
            position += span.count
            self._match(ordered.token, span)
        if position != ordered.sequence + ordered.count:
            self.violated(None, f"Msg({ordered.token}) counts {ordered.count} messages, its spans hold others")

    def appended(self, act: Writing) -> None:
        through = self.facts.appended_through[act.node]
        if act.ordered.token <= through:
            self.violated(act.node, f"appended Msg({act.ordered.token}) after Msg({through})")
        self._follow(act.node, act.ordered, self._append_next, "appended")

    def delivered(self, act: Releasing) -> None:
        if act.ordered.count == 0:
            self.violated(act.node, f"released Msg({act.ordered.token}), which is empty")
        if act.ordered.token > self.facts.appended_through[act.node]:
            self.violated(act.node, f"released Msg({act.ordered.token}) before it was appended")
        if (act.release.token, act.release.sequence, act.release.count) != (
            act.ordered.token,
            act.ordered.sequence,
            act.ordered.count,
        ):
            self.violated(act.node, f"the release of Msg({act.ordered.token}) has another token, sequence or count")
        self._follow(act.node, act.ordered, self._release_next, "released")

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
        holder = self.facts.formation.holder(ack.token)
        if ack.sender != holder:
            self.violated(node, f"Ack({ack.token}) names site {ack.sender} as its sender; the token is with {holder}")
        content = (ack.sender, ack.sequence, ack.sent_at, ack.parts, ack.ranges)
        first = self._first.setdefault((ack.formation, ack.token, ack.part), content)
        if first != content:
            self.violated(node, f"Ack({ack.token}) was {first} and is now {content}")


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

    def finished(self, clocks: Mapping[NodeId, Instant]) -> None:
        for node, now in clocks.items():
            token = self.facts.complete(node) + 1
            excused = node in self.facts.reported or node in self.facts.down or node in self.facts.paused
            if not excused and now > self._deadline(node, token):
                self.violated(node, f"Msg({token}) is neither complete nor declared failed")

    def _deadline(self, node: NodeId, token: int) -> Instant:
        formation = self.facts.formation
        if not formation.timed:
            return 1 << 63
        starts_at = max(formation.scheduled_at(token), self.facts.resumed_at.get(node, 0))
        waits = (1 if formation.timing.merged else 2) * formation.timing.retries_max + 1
        return starts_at + formation.timing.reform_delay + waits * self.facts.lateness_max(node)


class NeverEarly(Checker):
    """No site releases before the commit instant, by its own clock.

    The commit instant is t_e + Δ_C, the same at every site: a participant at one site must not learn anything before a
    participant at another can. RMP commits as soon as it can, so no release is early.
    """

    def delivered(self, act: Releasing) -> None:
        formation, token = self.facts.formation, act.ordered.token
        if not formation.timed:
            return
        commit_at = formation.scheduled_at(token) + formation.timing.commit_delay
        if act.ordered.acknowledged_at != formation.scheduled_at(token):
            self.violated(act.node, f"Msg({token}) has another time than its scheduled one")
        if act.release.commit_at != commit_at:
            self.violated(act.node, f"Msg({token}) commits at {act.release.commit_at}, expected {commit_at}")
        if act.now < commit_at or act.release.released_at < commit_at:
            self.violated(act.node, f"Msg({token}) was released {(commit_at - act.now) / 1e6:.3f} ms early")


class ReleasedTogether(Checker):
    """All sites release Msg(e) at the same instant of their own clocks, except those that are marked late.

    A site that is ready in time (it is complete, and knows that K + 1 sites hold the message) releases at the commit
    instant, to the grain of its clock and the delays of its processor. Only a site that was paused at that instant may
    release later. A release is marked late if it is more than `LATE_AFTER` after the commit instant, for any reason, or
    if the site was not ready in time, however small the delay; no other release is. RMP has no common instant.
    """

    def delivered(self, act: Releasing) -> None:
        release, token = act.release, act.ordered.token
        if release.released_at != act.now:
            self.violated(act.node, f"Msg({token}) is marked as released at {release.released_at}; it is {act.now}")
        if not self.facts.formation.timed:
            return
        behind = act.now - release.commit_at
        grain = self.facts.lateness_max(act.node)
        was_paused = release.commit_at <= self.facts.resumed_at.get(act.node, -1)
        known_at = self.facts.appended_at.get((act.node, token + self.facts.formation.resilience))
        ready = known_at is not None and known_at <= release.commit_at
        if ready and behind > grain and not was_paused:
            self.violated(act.node, f"Msg({token}) was ready in time and released {behind / 1e6:.3f} ms late")
        if not release.late and behind > (LATE_AFTER if was_paused else min(grain, LATE_AFTER)):
            self.violated(act.node, f"Msg({token}) was released {behind / 1e6:.3f} ms late and not marked")
        if release.late and (behind <= 0 or (ready and behind <= LATE_AFTER)):
            self.violated(act.node, f"Msg({token}) was released on time and marked late")


class SurvivesK(Checker):
    """What one site has released survives the failure of any K sites.

    When Msg(e) is released anywhere, at least K + 1 sites have it in their journals: RMP's K-resilience.
    """

    def delivered(self, act: Releasing) -> None:
        holders = sum(through >= act.ordered.token for through in self.facts.appended_through.values())
        needed = self.facts.formation.resilience + 1
        if holders < needed:
            self.violated(act.node, f"released Msg({act.ordered.token}) while {holders} sites hold it; {needed} must")


class TrueClaims(Checker):
    """A claim "all receivers hold everything up to n" is true when it is made.

    2001 §2: when the token has gone around, its holder knows what all sites hold. Sites discard messages based on this
    knowledge, so a false claim would discard a message that another site may still request.
    """

    def appended(self, act: Writing) -> None:
        claimed = self.facts.claim(act.node)
        needed = self.facts.last_placed(claimed)
        for member, through in self.facts.appended_through.items():
            if through < needed and member != act.node:
                self.violated(act.node, f"claims that all hold Msg({claimed}); site {member} does not")


class KeptUntilHeld(Checker):
    """A source discards nothing that fewer than K + 1 sites hold.

    An acknowledgment proves one holder. If that site fails before another has requested the message from it, only the
    source can send it again, so the source must still have it.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._seen: dict[StreamId, int] = {}

    def block_sent(self, _node: NodeId, datagram: bytes) -> None:
        """An acknowledgment lets a source discard messages and send new ones."""
        source = int.from_bytes(datagram[_SOURCE])
        if source in self.facts.forgotten:
            self._check(source)

    def ack_sent(self, _node: NodeId, ack: Ack) -> None:
        """A source without new messages discards without sending, so it is checked here as well."""
        if ack.ranges:
            for source in self.facts.forgotten:
                self._check(source)

    def _check(self, source: NodeId) -> None:
        stream, through = self.facts.forgotten[source]()
        if through <= self._seen.get(stream, 0):
            return
        self._seen[stream] = through
        holders = sum(held >= through for held in self.facts.held.get(stream, {}).values())
        needed = self.facts.formation.resilience + 1
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
        through = self.facts.appended_through[node]
        if through < (ack.token if ack.ranges else self.facts.last_placed(ack.token)):
            self.violated(node, f"sent Ack({ack.token}) with a journal through {through}")


class EverythingArrives(Checker):
    """In a healed world without failures, everything that a source accepted is released everywhere.

    This is liveness; a ring that does nothing would satisfy all safety guarantees. It is required only if no site
    crashed or declared a failure, and only of incarnations that are still running: what was not acknowledged when a
    source crashed is lost with its memory.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._released: dict[tuple[NodeId, NodeId, int], int] = {}
        self.alive: Callable[[tuple[NodeId, int]], int] = lambda _: 0  # the count of numbers an incarnation has used

    def delivered(self, act: Releasing) -> None:
        for span in act.ordered.spans:
            key = act.node, span.source, span.incarnation
            self._released[key] = self._released.get(key, 0) + span.count

    def missing(self) -> str | None:
        """The first stream that a site has not released completely."""
        for source, incarnation in self.facts.published:
            wanted = self.alive((source, incarnation))
            for member in self.facts.formation.members:
                got = self._released.get((member, source, incarnation), 0)
                if got < wanted:
                    return f"site {member} released {got} of {wanted} messages of source {source}.{incarnation}"
        return None

    def demand(self) -> None:
        missing = self.missing()
        if missing is not None:
            self.violated(None, missing)


def _outline(ordered: Ordered) -> str:
    spans = " ".join(f"{s.source}.{s.incarnation}:{s.first}+{s.count}" for s in ordered.spans)
    return f"{ordered.sequence}+{ordered.count} at {ordered.acknowledged_at} [{spans}]"


GUARANTEES: Final[tuple[type[Checker], ...]] = (
    OneOrder,
    NoGapNoDuplicateNothingInvented,
    SourceOrder,
    OneTokenHolder,
    NoProtocolBreach,
    CompleteOrReforming,
    NeverEarly,
    ReleasedTogether,
    SurvivesK,
    TrueClaims,
    KeptUntilHeld,
    NoNonceTwice,
    AppendBeforeAck,
    EverythingArrives,
)


class RingCheckers(Observer):
    """All checkers as one observer: keeps the facts and calls only the hooks that a checker overrides."""

    def __init__(self, facts: Facts, guarantees: Sequence[type[Checker]] = GUARANTEES) -> None:
        self.facts = facts
        self.checkers = [guarantee(facts) for guarantee in guarantees]
        self._placed_through = facts.formation.first_token - 1
        self._on_block = self._hooks("block_sent")
        self._on_ack = self._hooks("ack_sent")
        self._on_placed = self._hooks("placed")
        self._on_appended = self._hooks("appended")
        self._on_delivered = self._hooks("delivered")
        self._on_declared = self._hooks("declared")

    def _hooks(self, hook: str) -> list[Callable[..., None]]:
        return [getattr(c, hook) for c in self.checkers if getattr(type(c), hook) is not getattr(Checker, hook)]

    def sent(self, node: NodeId, _to: NodeId | Channel, datagram: bytes, at: Instant, /) -> None:
        self.facts.at = at
        kind = datagram[2]
        if kind == Kind.BLOCK:
            for check in self._on_block:
                check(node, datagram)
        elif kind == Kind.ACK:
            ack = decode_control(datagram)
            for check in self._on_ack:
                check(node, ack)

    def appended(self, node: NodeId, ordered: Ordered, now: Instant, /) -> None:
        if ordered.token > self._placed_through:
            self._placed_through = ordered.token
            self.facts.placed.append(ordered.token)
            for check in self._on_placed:
                check(ordered)
        writing = Writing(node, ordered, now)
        for check in self._on_appended:
            check(writing)
        self._record(node, ordered, now)  # after the checks, which see the state before the append

    def _record(self, node: NodeId, ordered: Ordered, now: Instant) -> None:
        facts = self.facts
        facts.appended_through[node] = ordered.token
        facts.appended_at[node, ordered.token] = now
        for span in ordered.spans:
            facts.held.setdefault((span.source, span.incarnation), {})[node] = span.first + span.count - 1

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:
        self.facts.released += 1
        self.facts.late += release.late
        releasing = Releasing(node, ordered, release, now)
        for check in self._on_delivered:
            check(releasing)

    def reported(self, node: NodeId, report: Report, _now: Instant, /) -> None:
        self.facts.reported.setdefault(node, report)
        for check in self._on_declared:
            check(node, report)

    def delayed(self, node: NodeId, period: Duration, now: Instant, /) -> None:
        """A site that got no turn for more than two retries has not run, as if it had been paused."""
        facts = self.facts
        facts.delay[node] = max(facts.delay.get(node, 0), period)
        if period > 2 * facts.formation.timing.retry_period:
            facts.resumed_at[node] = now

    def fault_event(self, node: NodeId, what: str, now: Instant, /) -> None:
        facts = self.facts
        match what:
            case "crash":
                facts.down.add(node)
                facts.paused.discard(node)
            case "restart":
                facts.down.discard(node)
            case "pause":
                facts.paused.add(node)
            case "resume":
                facts.paused.discard(node)
                facts.resumed_at[node] = now

    def finished(self, clocks: Mapping[NodeId, Instant]) -> None:
        for checker in self.checkers:
            checker.finished(clocks)
