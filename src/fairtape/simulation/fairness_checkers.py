"""The guarantees of fairness that only an observer of the truth can check.

*PlacedByArrival.* Within a token, sources are in the order in which the first block that is not acknowledged yet of
each arrived at the token site, whether a source is idle or busy. *LateIsMarked.* A release is marked as late if, by
the true time, it is later than permitted. A site whose clock is wrong can know this once it has heard, from more than
half of the other members, an acknowledgment that was sent since its clock went wrong.
"""

from itertools import count, groupby, pairwise
from struct import Struct
from typing import Final

from fairtape.core.effects import Ordered, Release
from fairtape.core.instants import Duration, Instant
from fairtape.ring.receiver.receive_buffer import StreamKey
from fairtape.ring.receiver.release import LATE_AFTER
from fairtape.simulation.cluster import Cluster
from fairtape.simulation.world import Observer, Violation
from fairtape.wire.frames import Ack, Kind, Malformed, NodeId, Range, decode_control, is_block, kind_of
from fairtape.wire.seals import SEAL_OVERHEAD

_BLOCK: Final = Struct(">8xIIQQ")  # formation, source, incarnation, first number


class FairnessCheckers(Observer):
    """Checks the order within tokens, and the marks of late releases, of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._arrivals: dict[NodeId, dict[tuple[StreamKey, int], int]] = {site: {} for site in cluster.sites}
        self._arrived = count(1).__next__
        self._acks_sent_at: dict[tuple[int, int], Instant] = {}  # by formation and token, in true time
        self._heard: dict[NodeId, dict[NodeId, Instant]] = {site: {} for site in cluster.sites}  # when whose was sent
        self._runs_since: dict[NodeId, Instant] = {}  # the last restart, or end of a pause, in true time
        self._delays: dict[NodeId, Duration] = {}  # how late its processor has let a site act
        cluster.world.receipts = self._received

    def _received(self, node: NodeId, datagrams: list[bytes]) -> None:
        """A site has read these datagrams: note the blocks that it holds now and did not hold before."""
        arrivals = self._arrivals.get(node)
        if arrivals is None:
            return
        receiver = self._cluster.site(node).receiver
        if receiver is None or receiver.far_behind:
            arrivals.clear()  # it drops what the ring sends, and reads it again later
            return
        for datagram in datagrams:
            if is_block(datagram) and len(datagram) > SEAL_OVERHEAD:
                _, source, incarnation, first = _BLOCK.unpack_from(datagram)
                name = (source, incarnation), first
                if name not in arrivals and receiver.holds_block(*name, datagram):
                    arrivals[name] = self._arrived()
            else:
                self._note_ack(node, datagram)

    def _note_ack(self, node: NodeId, datagram: bytes) -> None:
        try:
            ack = decode_control(datagram) if kind_of(datagram) is Kind.ACK else None
        except Malformed:
            return  # an intruder's
        if ack is None:
            return
        assert isinstance(ack, Ack)
        sent_at = self._acks_sent_at.get((ack.formation, ack.token))
        if sent_at is not None:
            self._heard[node][ack.sender] = max(sent_at, self._heard[node].get(ack.sender, 0))

    def fault_event(self, node: NodeId, what: str, now: Instant, /) -> None:  # noqa: ARG002
        if what in ("restart", "resume"):
            self._runs_since[node] = self._cluster.world.now
        if what == "crash" and node in self._arrivals:
            self._arrivals[node].clear()

    def delayed(self, node: NodeId, period: Duration, now: Instant, /) -> None:  # noqa: ARG002
        self._delays[node] = max(self._delays.get(node, 0), period)

    def sent(self, node: NodeId, to: int, datagram: bytes, at: Instant, /) -> None:  # noqa: ARG002
        """PlacedByArrival, for each part of an acknowledgment that a site sends."""
        if datagram[2] != Kind.ACK:
            return
        ack = decode_control(datagram)
        assert isinstance(ack, Ack)
        if ack.sender != node or (ack.formation, ack.token) in self._acks_sent_at:
            return  # a repair
        self._acks_sent_at[ack.formation, ack.token] = self._cluster.world.now
        for earlier, later in pairwise(self._placed(node, ack.ranges)):
            if earlier[0] > later[0]:
                text = f"token {ack.token} names source {earlier[1]} before {later[1]}, which arrived first"
                raise Violation("PlacedByArrival", node, self._cluster.world.now, text)

    def _placed(self, node: NodeId, ranges: tuple[Range, ...]) -> list[tuple[int, NodeId]]:
        """When the first block of each source arrived, for the sources of which that is known."""
        arrivals, placed = self._arrivals[node], []
        for source, group in groupby(ranges, key=lambda named: named.source):
            known = [arrivals.get(((source, named.incarnation), named.first)) for named in group]
            if None not in known:
                placed.append((min(each for each in known if each is not None), source))
        return placed

    def delivered(self, node: NodeId, ordered: Ordered, release: Release, now: Instant, /) -> None:  # noqa: ARG002
        """LateIsMarked. The schedule of a timed formation is in true time."""
        receiver = self._cluster.site(node).receiver
        formation = None if receiver is None else receiver.formation_numbered(ordered.formation)
        if release.late or formation is None or not formation.timed:
            return
        late = self._cluster.world.now - release.commit_at - self._delays.get(node, 0)
        permitted = LATE_AFTER + formation.timing.clock_error_max
        if late > permitted and self._could_know(node):
            text = f"token {release.token} was released {late / 1e6:.3f} ms late by the true time, and not marked"
            raise Violation("LateIsMarked", node, self._cluster.world.now, text)

    def _could_know(self, node: NodeId) -> bool:
        receiver = self._cluster.site(node).receiver
        assert receiver is not None
        others = [member for member in receiver.formation.members if member != node]
        since = self._runs_since.get(node, 0)
        heard = sum(self._heard[node].get(member, 0) >= since for member in others)
        return heard > len(others) // 2
