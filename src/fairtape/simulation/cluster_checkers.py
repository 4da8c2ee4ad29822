"""The guarantees of a cluster that reforms and heals.

One order · no gap, no duplicate, nothing invented · source order · one token holder per formation and token · never
early · released together, or marked late · survives K · true claims · no site acts in a formation that was superseded.
Released messages may be lost only by a Break. A violation names its guarantee.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

from fairtape.core.effects import FormationChange, Ordered, Release, Span
from fairtape.core.instants import MICROSECOND, Duration, Instant
from fairtape.core.spans import MessageAssembler, StreamId
from fairtape.nodes.coordinator.server import Reformer
from fairtape.nodes.site import Site
from fairtape.ring.membership.formation import Formation
from fairtape.ring.membership.layout import decode_formation
from fairtape.ring.receiver.release import LATE_AFTER
from fairtape.simulation.cluster import Cluster
from fairtape.simulation.world import Observer, Violation
from fairtape.wire.frames import Ack, Kind, NodeId, decode_control

Identity = tuple[NodeId, int, int]
"""Source, incarnation and number of a message."""


class ClusterCheckers(Observer):
    """Checks all guarantees of one cluster, as an observer of its world."""

    def __init__(self, cluster: Cluster) -> None:
        self.releases = 0
        self.late_at: Counter[NodeId] = Counter()  # releases, by site
        self.notices: list[tuple[Instant, NodeId, str]] = []
        self._cluster = cluster
        self._formations: list[Formation] = []
        self._decoded = 0  # entries of the store's log
        self._acks: dict[tuple[int, int, int], bytes] = {}
        self._contents: dict[tuple[int, int], Ordered] = {}  # by formation and token
        self._holders: dict[tuple[int, int], set[NodeId]] = defaultdict(set)
        self._order: dict[int, dict[int, Identity]] = defaultdict(dict)  # by sequence, then by formation
        self._claimed: dict[NodeId, int] = defaultdict(int)  # the token that each site last called stable
        self._expected: dict[NodeId, int] = defaultdict(lambda: 1)
        self._released_through: dict[NodeId, int] = defaultdict(int)
        self._resumed_at: dict[NodeId, Instant] = {}  # by the site's own clock
        self._delays: dict[NodeId, Duration] = {}  # how late its processor has let a site act
        self._crashed_at: dict[NodeId, Instant] = {}  # by true time, of sites that were members

    def sent(self, node: NodeId, to: int, datagram: bytes, at: Instant, /) -> None:  # noqa: ARG002
        """OneHolder: Ack(e) of a formation has one content. Fenced: no new one of a superseded formation."""
        if datagram[2] != Kind.ACK:
            return
        ack = decode_control(datagram)
        assert isinstance(ack, Ack)
        name = ack.formation, ack.token, ack.part
        if name not in self._acks:
            self._check_fenced(node, ack.formation, ack.token, "acknowledged")
        if self._acks.setdefault(name, datagram) != datagram:
            self._violated("OneHolder", node, f"a second Ack({ack.token}) of formation {ack.formation}")

    def appended(self, node: NodeId, ordered: Ordered, now: Instant, /) -> None:  # noqa: ARG002
        """OneOrder: a token of a formation has one content. TrueClaims: what is stable is held by all members."""
        name = ordered.formation, ordered.token
        if self._contents.setdefault(name, ordered) != ordered:
            self._violated("OneOrder", node, f"token {ordered.token} of formation {ordered.formation} differs")
        self._holders[name].add(node)
        self._check_claim(node)

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:
        """NoGap, NeverEarly, ReleasedTogether, Fenced, SurvivesK and OneOrder."""
        self.releases += 1
        if release.late:
            self.late_at[node] += 1
        if release.sequence != self._expected[node]:
            self._violated("NoGap", node, f"released {release.sequence}, expected {self._expected[node]}")
        self._expected[node] = release.sequence + release.count
        self._released_through[node] = release.token
        if now < release.commit_at:
            self._violated("NeverEarly", node, f"token {release.token} released {release.commit_at - now} ns early")
        self._check_together(node, release, ordered.formation, now)
        self._check_fenced(node, ordered.formation, ordered.token, "released")
        self._check_survival(node, ordered)
        for span in ordered.spans:
            self._check_order(node, ordered.formation, span)

    def truncated(self, node: NodeId, token: int, now: Instant, /) -> None:  # noqa: ARG002
        """CommittedSurvives: released messages may be removed only after a Break."""
        if token >= self._released_through[node]:
            return
        forgotten = any(token < lost <= self._released_through[node] for lost, _ in self._cluster.rolled_back)
        if not forgotten and not any(formation.broken for formation in self.formations()):
            self._violated(
                "CommittedSurvives", node, f"removed tokens after {token}, released {self._released_through[node]}"
            )
        self._released_through[node] = token
        self._expected[node] = self._cluster.journals[node].recovered().sequence

    def noticed(self, node: NodeId, text: str, now: Instant, /) -> None:  # noqa: ARG002
        self.notices.append((self._cluster.world.now, node, text))

    def fault_event(self, node: NodeId, what: str, now: Instant, /) -> None:
        """A paused site may be late; a restarted one releases again what its journal has not marked as released."""
        journal = self._cluster.journals.get(node)
        if what == "resume":
            self._resumed_at[node] = now
        elif what == "crash" and self.formations() and node in self.formations()[-1].members:
            self._crashed_at[node] = self._cluster.world.now
        elif what == "restart" and journal is not None:
            self._released_through[node] = journal.recovered().released_through
            self._expected[node] = journal.released_sequence()

    def delayed(self, node: NodeId, period: Duration, now: Instant, /) -> None:  # noqa: ARG002
        self._delays[node] = max(self._delays.get(node, 0), period)

    def released_through(self, node: NodeId) -> int:
        return self._released_through[node]

    @property
    def late(self) -> int:
        """The count of releases marked late, at all sites."""
        return self.late_at.total()

    def formations(self) -> list[Formation]:
        """All formations that were recorded for the primary loop."""
        log = self._cluster.store_access.recorded
        for entry in log[self._decoded :]:
            if entry.loop == 0:
                self._formations.append(decode_formation(entry.formation))
        self._decoded = len(log)
        return self._formations

    def _check_together(self, node: NodeId, release: Release, number: int, now: Instant) -> None:
        """ReleasedTogether: at the commit instant of the site's own clock, or marked late."""
        formation = next(each for each in self.formations() if each.number == number)
        if release.released_at != now:
            self._violated("ReleasedTogether", node, f"a release at {now} is marked as {release.released_at}")
        if not formation.timed or release.late:
            return
        commit_at = formation.scheduled_at(release.token) + formation.timing.commit_delay
        if release.commit_at != commit_at:
            text = f"token {release.token} of formation {number} commits at {release.commit_at}, expected {commit_at}"
            self._violated("ReleasedTogether", node, text)
        was_paused = release.commit_at <= self._resumed_at.get(node, -1)
        lateness_max = self._grain(node, formation) + self._delays.get(node, 0)
        allowed = LATE_AFTER if was_paused else min(lateness_max, LATE_AFTER)
        if now - release.commit_at > allowed:
            late = (now - release.commit_at) / 1e6
            self._violated("ReleasedTogether", node, f"token {release.token} was {late:.3f} ms late and not marked")

    def _grain(self, node: NodeId, formation: Formation) -> Duration:
        """How late a correct clock may be at a deadline; a step beyond the permitted clock error does not count."""
        return min(self._cluster.world.clock(node).grain, 2 * formation.timing.clock_error_max + MICROSECOND)

    def _check_claim(self, node: NodeId) -> None:
        """TrueClaims: all members of the formation that proves a token to be stable hold everything up to it.

        A site announces this to readers of its journal.
        """
        site = self._cluster.world.machine(node)
        assert isinstance(site, Site)
        claimed, known = site.stable_through, self._claimed[node]
        self._claimed[node] = claimed
        if claimed <= known or site.formation is None:
            return
        latest = site.formation.number
        proof = [each for each in self.formations() if each.number <= latest and each.first_token <= claimed][-1]
        for entry in reversed(self._cluster.journals[node].entries):
            if entry.token <= known:
                return
            if isinstance(entry, Ordered) and entry.token <= claimed:
                missing = set(proof.members) - self._holders[entry.formation, entry.token]
                if missing:
                    text = f"claims that all hold token {claimed}; {sorted(missing)} do not hold token {entry.token}"
                    self._violated("TrueClaims", node, text)

    def _check_fenced(self, node: NodeId, number: int, token: int, did: str) -> None:
        """Fenced: once a formation is recorded, no site acts on tokens that it supersedes.

        By then its members have been fenced, or their leases have expired by any correct clock. A site whose clock is
        wrong by more than its bound may act: others ignore what it sends, and K + 1 sites hold what it releases.
        """
        formations = self.formations()
        if not formations or formations[-1].number <= number or self._is_deceived(node):
            return
        for later in formations:
            if later.number > number and later.first_token <= token:
                text = f"{did} token {token} of formation {number}, which formation {later.number} superseded"
                self._violated("Fenced", node, text)

    def _is_deceived(self, node: NodeId) -> bool:
        clock, timing = self._cluster.world.clock(node), self._cluster.plan.topology.primary.timing
        return abs(clock.error_at(self._cluster.world.now)) > max(clock.bound, timing.clock_error_max)

    def durations(self) -> Iterator[tuple[str, Duration]]:
        """How long it took to detect the crash of a member ("detect"), and then to record a formation ("reform")."""
        cluster = self._cluster
        for node in cluster.plan.reformers:
            server = cluster.world.machine(node)
            assert isinstance(server, Reformer)
            for decision in server.primary.decisions:
                if decision.formation.first_sequence and decision.formation.number > 1:
                    yield "reform", decision.decided_at - decision.began_at
                    began = [self._crashed_at[site] for site in decision.silent if site in self._crashed_at]
                    if began and decision.began_at > max(began):
                        yield "detect", decision.began_at - max(began)

    def _check_survival(self, node: NodeId, ordered: Ordered) -> None:
        holders = self._holders[ordered.formation, ordered.token]
        needed = min(f.resilience for f in self.formations() if f.number >= ordered.formation) + 1
        if len(holders) < needed:
            self._violated("SurvivesK", node, f"token {ordered.token} released with {len(holders)} holders of {needed}")

    def _check_order(self, node: NodeId, formation: int, span: Span) -> None:
        for offset in range(span.count):
            identity = span.source, span.incarnation, span.first + offset
            self._place(node, formation, span.sequence + offset, identity)

    def _place(self, node: NodeId, formation: int, sequence: int, identity: Identity) -> None:
        known = self._order[sequence]
        known.setdefault(formation, identity)
        for other, placed in known.items():
            if placed != identity and not self._broken_between(min(other, formation), max(other, formation), sequence):
                self._violated("OneOrder", node, f"sequence {sequence} is {identity} and {placed}, without a Break")

    def _broken_between(self, earlier: int, later: int, sequence: int) -> bool:
        """Whether a Break lies between, or a journal was rolled back past this message, which no machine can know."""
        if any(lost == sequence for _, lost in self._cluster.rolled_back):
            return True
        return any(f.broken and earlier < f.number <= later and f.first_sequence <= sequence for f in self.formations())

    def finish(self) -> None:
        """After healing: all journals are equal, and hold exactly what was published."""
        journals = self._cluster.journals
        first, *others = journals
        for other in others:
            if journals[other].encoded != journals[first].encoded:
                self._violated("OneJournal", other, f"its journal differs from that of site {first}")
        entries = journals[first].entries
        self._check_sources([entry for entry in entries if isinstance(entry, Ordered)])
        self._check_committed(entries)

    def _check_sources(self, entries: list[Ordered]) -> None:
        streams: dict[StreamId, int] = {}
        texts: dict[StreamId, list[bytes]] = defaultdict(list)
        assembler = MessageAssembler()
        sequence = 1
        for entry in entries:
            for span in entry.spans:
                stream = span.source, span.incarnation
                if span.sequence != sequence:
                    self._violated("NoGap", None, f"the order has {span.sequence}, expected {sequence}")
                if span.first != streams.get(stream, 1):
                    found, expected = span.first, streams.get(stream, 1)
                    self._violated("SourceOrder", None, f"{stream} continues with {found}, expected {expected}")
                streams[stream] = span.first + span.count
                sequence += span.count
                texts[stream] += [message for _, message in assembler.messages(span)]
        for stream, messages in texts.items():
            if messages != self._cluster.published[stream][: len(messages)]:
                self._violated("NothingInvented", None, f"the order has messages that {stream} did not publish")
        for source in self._cluster.plan.sources:
            self._check_everything_arrived(source, texts)

    def _check_everything_arrived(self, source: NodeId, texts: dict[StreamId, list[bytes]]) -> None:
        latest = max((inc for node, inc in self._cluster.published if node == source), default=None)
        if latest is None or not self._cluster.world.is_up(source):
            return
        if self._cluster.source(source).incarnation != latest:
            return  # nothing was published since its restart
        if self._cluster.rolled_back or any(formation.broken for formation in self.formations()):
            return  # a Break may lose settled messages, which the source has discarded
        published = self._cluster.published[source, latest]
        if len(texts.get((source, latest), ())) != len(published):
            self._violated("EverythingArrives", source, f"{len(texts[source, latest])} of {len(published)} arrived")

    def _check_committed(self, entries: list[Ordered | FormationChange]) -> None:
        """CommittedSurvives: what any site released is in the final order, unless a Break removed it."""
        final = {
            span.sequence + offset: (span.source, span.incarnation, span.first + offset)
            for entry in entries
            if isinstance(entry, Ordered)
            for span in entry.spans
            for offset in range(span.count)
        }
        latest = self.formations()[-1].number
        for sequence, known in self._order.items():
            for formation, identity in known.items():
                lost = final.get(sequence) != identity
                if lost and not self._broken_between(formation, latest, sequence):
                    self._violated("CommittedSurvives", None, f"sequence {sequence}, {identity}, is lost")

    def _violated(self, guarantee: str, node: NodeId | None, text: str) -> None:
        raise Violation(guarantee, node, self._cluster.world.now, text)
